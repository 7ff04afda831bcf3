//! `fetch-ocsp-response [--issuer=FILE] [--openssl=COMMAND] [CERTIFICATE-FILE]`: asks a certificate's OCSP responder for its
//! status, by means of the program `openssl`. It reads the certificate and its issuer from the file or standard input, and writes
//! the response in DER to standard output.

use std::fs::DirBuilder;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use h2o_log::reason;

use crate::getopt::{Argument, CommandLine, Known, long};
use crate::{Failure, print_out};

/// Exit status (`EX_TEMPFAIL`) if no OCSP response was obtained but a later attempt may succeed.
const TEMPORARY: u8 = 75;

const HELP: &str = "Usage: fetch-ocsp-response [options] [CERTIFICATE-FILE]

Options:
  --issuer=FILE        the certificate of the issuer (default: the second one of
                       CERTIFICATE-FILE)
  --openssl=COMMAND    the openssl program (default: openssl)
  --help

CERTIFICATE-FILE is standard input by default. The exit status is 75 if a later
attempt may succeed.
";

#[derive(Clone, Copy)]
enum Flag {
    Issuer,
    OpenSsl,
    Help,
}

const KNOWN: &[Known<Flag>] = &[
    long("issuer", true, Flag::Issuer),
    long("openssl", true, Flag::OpenSsl),
    long("help", false, Flag::Help),
];

/// Fetches an OCSP response and writes it to standard output.
pub(super) fn run(arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let mut line = CommandLine::new("fetch-ocsp-response", KNOWN, arguments);
    let (mut issuer, mut openssl, mut file) = (None, "openssl".to_owned(), None);
    while let Some(argument) = line.next().map_err(Failure::config)? {
        match argument {
            Argument::Option(Flag::Help, _) => {
                print_out(HELP);
                return Ok(());
            }
            Argument::Option(Flag::Issuer, path) => issuer = path,
            Argument::Option(Flag::OpenSsl, path) => openssl = path.unwrap_or(openssl),
            Argument::Word(word) => file = Some(word),
            Argument::End => {}
        }
    }
    let directory = Directory::new()?;
    let text = read(file.as_deref())?;
    let mut certificates = certificates(&text);
    let leaf = certificates
        .next()
        .ok_or_else(|| Failure::config("the input has no certificate"))?;
    let leaf = directory.write("certificate.pem", leaf)?;
    let issuer = match (issuer, certificates.next()) {
        (Some(path), _) => PathBuf::from(path),
        (None, Some(issuer)) => directory.write("issuer.pem", issuer)?,
        (None, None) => {
            return Err(Failure::config(
                "the input has no certificate of the issuer; name one with --issuer",
            ));
        }
    };
    let fetch = Fetch {
        openssl: &openssl,
        certificate: &leaf,
        issuer: &issuer,
    };
    let response = fetch.run(&directory.0.join("response.der"))?;
    let written = std::io::stdout().write_all(&response);
    written.map_err(|error| Failure::system(format!("failed to write: {}", reason(&error))))
}

fn read(file: Option<&str>) -> Result<String, Failure> {
    let mut text = String::new();
    let read = match file {
        Some(path) => std::fs::read_to_string(path).map(|content| text = content),
        None => std::io::stdin().read_to_string(&mut text).map(drop),
    };
    let name = file.unwrap_or("standard input");
    read.map_err(|error| Failure::config(format!("failed to read {name}: {}", reason(&error))))?;
    Ok(text)
}

/// Finds the certificates in a PEM text.
fn certificates(text: &str) -> impl Iterator<Item = &str> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let starts = text.match_indices(BEGIN);
    starts.filter_map(move |(at, _)| {
        let len = text[at..].find(END)?;
        Some(&text[at..at + len + END.len()])
    })
}

struct Fetch<'a> {
    openssl: &'a str,
    certificate: &'a Path,
    issuer: &'a Path,
}

impl Fetch<'_> {
    /// Asks the OCSP responder. `openssl` verifies the response and writes it to the given file.
    fn run(&self, file: &Path) -> Result<Vec<u8>, Failure> {
        let mut command = Command::new(self.openssl);
        command.args(["x509", "-noout", "-ocsp_uri", "-in"]);
        let output = self.output(command.arg(self.certificate))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let url = text.lines().next().unwrap_or_default();
        if url.is_empty() {
            return Err(Failure::config("the certificate names no OCSP responder"));
        }
        let mut command = Command::new(self.openssl);
        command.args(["ocsp", "-no_nonce", "-url", url]);
        command.arg("-issuer").arg(self.issuer);
        command.arg("-cert").arg(self.certificate);
        command.arg("-verify_other").arg(self.issuer);
        command.arg("-CAfile").arg(self.issuer);
        command.args(["-partial_chain", "-respout"]).arg(file);
        let output = self.output(&mut command)?;
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        if !output.status.success() || !said.contains("Response verify OK") {
            return Err(Failure {
                text: format!("no valid response from {url}:\n{}", said.trim_end()),
                code: TEMPORARY,
            });
        }
        std::fs::read(file)
            .map_err(|error| Failure::system(format!("openssl wrote nothing: {}", reason(&error))))
    }

    fn output(&self, command: &mut Command) -> Result<Output, Failure> {
        command.output().map_err(|error| {
            let (program, why) = (self.openssl, reason(&error));
            Failure::config(format!("failed to run {program}: {why}"))
        })
    }
}

/// A temporary directory for files that `openssl` reads and writes. The directory is removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self, Failure> {
        let mut number = 0_u64;
        loop {
            let name = format!("h2o.ocsp.{}.{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                // An earlier process with the same id has left a directory of this name behind, so the next name is tried.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => {
                    return Err(Failure::system(format!(
                        "failed to create the directory {}: {}",
                        path.display(),
                        reason(&error)
                    )));
                }
            }
        }
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.0.join(name);
        let written = std::fs::write(&path, text);
        written.map_err(|error| {
            Failure::system(format!(
                "failed to write {}: {}",
                path.display(),
                reason(&error)
            ))
        })?;
        Ok(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // The result is ignored: if files remain, they are in the system's directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
