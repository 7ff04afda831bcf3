//! The program that obtains certificates in the server's place: the attribute `loader` of the directive `acme` names
//! it.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::Acme;

/// The program that `loader` names, with the arguments that it is run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loader {
    /// The path of the program, or its name, which is looked for in `PATH`.
    pub program: PathBuf,
    /// The arguments that follow `--pid PID`.
    pub arguments: Vec<OsString>,
}

impl Acme {
    /// Returns the program that is to obtain the certificates of these hosts; `None` if no `loader` is configured, so
    /// that the server obtains them itself.
    pub fn loader_of<'a>(&self, hosts: impl Iterator<Item = &'a str>) -> Option<Loader> {
        let program = self.loader.clone()?;
        let mut arguments = vec![
            "--directory".into(),
            self.state.path().into(),
            "--email".into(),
            OsString::from(&*self.email),
        ];
        arguments.extend(hosts.map(OsString::from));
        Some(Loader { program, arguments })
    }
}
