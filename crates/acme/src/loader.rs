//! The program that obtains certificates in the server's place (`loader`).

use std::ffi::OsString;
use std::path::PathBuf;

use crate::Acme;

/// A loader with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loader {
    /// The program.
    pub program: PathBuf,
    /// Its arguments behind `--pid PID`.
    pub arguments: Vec<OsString>,
}

impl Acme {
    /// The loader for these hosts; `None` if the server obtains their certificates.
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
