//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

const USAGE: &str = "usage: h2o-floor --root DIR --cert FILE --key FILE --http PORT --https PORT --h2c PORT\n   \
                     or: h2o-floor --http PORT --fastcgi PORT";

/// What the program is to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Serve files.
    Files(Options),
    /// Forward requests from the port `http` to the FastCGI application on the port `application`.
    Fastcgi { http: u16, application: u16 },
}

/// The options of the command line for serving files. All of them must be given.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) root: PathBuf,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) http: u16,
    pub(crate) https: u16,
    pub(crate) h2c: u16,
}

impl Mode {
    pub(crate) fn parse(mut words: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let [
            mut root,
            mut cert,
            mut key,
            mut http,
            mut https,
            mut h2c,
            mut fastcgi,
        ] = [const { None }; 7];
        while let Some(word) = words.next() {
            let slot = match word.to_str() {
                Some("--root") => &mut root,
                Some("--cert") => &mut cert,
                Some("--key") => &mut key,
                Some("--http") => &mut http,
                Some("--https") => &mut https,
                Some("--h2c") => &mut h2c,
                Some("--fastcgi") => &mut fastcgi,
                _ => return Err(format!("unknown argument {}\n{USAGE}", word.display())),
            };
            let value = words
                .next()
                .ok_or_else(|| format!("{} needs a value\n{USAGE}", word.display()))?;
            *slot = Some(value);
        }
        if fastcgi.is_some() {
            return Ok(Self::Fastcgi {
                http: port("--http", http)?,
                application: port("--fastcgi", fastcgi)?,
            });
        }
        let path = |name, value: Option<OsString>| given(name, value).map(PathBuf::from);
        Ok(Self::Files(Options {
            root: path("--root", root)?,
            cert: path("--cert", cert)?,
            key: path("--key", key)?,
            http: port("--http", http)?,
            https: port("--https", https)?,
            h2c: port("--h2c", h2c)?,
        }))
    }
}

fn given(name: &str, value: Option<OsString>) -> Result<OsString, String> {
    value.ok_or_else(|| format!("{name} is missing\n{USAGE}"))
}

fn port(name: &str, value: Option<OsString>) -> Result<u16, String> {
    let value = given(name, value)?;
    let port = value.to_str().and_then(|text| text.parse().ok());
    port.ok_or_else(|| format!("{name}: {} is not a port\n{USAGE}", value.display()))
}
