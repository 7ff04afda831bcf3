//! `fetch-ocsp-response [--issuer=FILE] [CERTIFICATE-FILE]`: asks the OCSP responder of a certificate for the
//! certificate's status. The program reads the certificate and that of its issuer from the file or standard input, and
//! writes the OCSP response in DER to standard output.

use std::fs::File;
use std::io::{Read, Write};
use std::time::Duration;

use h2o_exchange::Clock;
use h2o_log::{reason, report};
use h2o_tls::OcspSubject;
use h2o_upstream::Post;

use crate::getopt::{Argument, CommandLine, Known, long};
use crate::{Failure, print_out};

/// Exit status (`EX_TEMPFAIL`) if no OCSP response was obtained but a later attempt may succeed.
const TEMPORARY: u8 = 75;

/// How long the OCSP responder may take. This is less than the 60 seconds after which the server kills a command that it
/// runs to fetch a response.
const PATIENCE: Duration = Duration::from_secs(50);

/// The greatest length of an OCSP response that is accepted, in bytes.
const LONGEST_RESPONSE: usize = 64 * 1024;

/// How many bytes of a file with certificates are read at most; the rest is ignored.
const LONGEST_FILE: u64 = 1 << 20;

const HELP: &str = "Usage: fetch-ocsp-response [options] [CERTIFICATE-FILE]

Options:
  --issuer=FILE        the certificate of the issuer (default: it is among the
                       others of CERTIFICATE-FILE)
  --openssl=COMMAND    has no effect: this command runs no openssl
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
    let (mut issuer, mut file) = (None, None);
    while let Some(argument) = line.next().map_err(Failure::config)? {
        match argument {
            Argument::Option(Flag::Help, _) => {
                print_out(HELP);
                return Ok(());
            }
            Argument::Option(Flag::Issuer, path) => issuer = path,
            Argument::Option(Flag::OpenSsl, _) => {
                report!(
                    warning,
                    "--openssl has no effect: this command runs no openssl"
                );
            }
            Argument::Word(word) => file = Some(word),
            Argument::End => {}
        }
    }
    let mut text = read(file.as_deref())?;
    if let Some(issuer) = issuer {
        text.push(b'\n');
        text.extend(read(Some(&issuer))?);
    }
    let subject = OcspSubject::of_pem(&text).map_err(|error| Failure::config(error.to_string()))?;
    let response = fetch(&subject)?;
    let written = std::io::stdout().write_all(&response);
    written.map_err(|error| {
        Failure::system(format!(
            "failed to write the response to standard output: {}",
            reason(&error)
        ))
    })
}

fn read(file: Option<&str>) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let read = match file {
        Some(path) => {
            File::open(path).and_then(|file| file.take(LONGEST_FILE).read_to_end(&mut text))
        }
        None => std::io::stdin().take(LONGEST_FILE).read_to_end(&mut text),
    };
    let name = file.unwrap_or("standard input");
    read.map_err(|error| Failure::config(format!("failed to read {name}: {}", reason(&error))))?;
    Ok(text)
}

/// Asks the OCSP responder for the status of the certificate, and checks its response.
fn fetch(subject: &OcspSubject) -> Result<Vec<u8>, Failure> {
    let url = subject
        .responder()
        .ok_or_else(|| Failure::config("the certificate names no OCSP responder"))?;
    let post = Post {
        url,
        content_type: "application/ocsp-request",
        content: &subject.request(),
        time: PATIENCE,
        longest: LONGEST_RESPONSE,
    };
    let failed = |error: String| Failure {
        text: format!("no valid response from {url}: {error}"),
        code: TEMPORARY,
    };
    let response = post.send().map_err(failed)?;
    let checked = subject.check(&response, Clock::default().unix());
    checked.map_err(|error| failed(error.to_string()))?;
    Ok(response)
}
