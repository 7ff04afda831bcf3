//! The quick start: without any configuration the server serves the current directory, in clear text on port 8080 and with TLS and
//! QUIC (HTTP/3) on 8443, with a certificate that it generates, and with directory listings.

use std::fs;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use h2o_config::{OsSource, Source, nearest};

use h2o_log::reason;

use signal_hook::iterator::Signals;

use crate::options::COMMANDS;
use crate::parent::Parent;
use crate::run;
use crate::{DEFAULT_CONFIG, Failure, INSTALLED_CONFIG};

const NAME: &str = "(no configuration)";
/// How many port numbers the search for a free port tries.
const PORTS: u16 = 100;

/// A configuration text in memory, with a name for messages. Files to which the text refers are read from the file system.
pub(crate) struct BuiltIn {
    pub(crate) name: &'static str,
    pub(crate) text: String,
}

impl Source for BuiltIn {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        if path == self.name {
            Ok(self.text.clone().into_bytes())
        } else {
            OsSource.read(path)
        }
    }

    fn env(&self, name: &str) -> Option<String> {
        OsSource.env(name)
    }

    fn glob(&self, pattern: &str) -> io::Result<Vec<String>> {
        OsSource.glob(pattern)
    }
}

/// Serves the current directory.
///
/// `stray` is a word of the command line that is not an option: most likely a configuration file whose `-c` was forgotten.
pub(crate) fn serve(stray: Option<&str>, signals: Signals) -> Result<(), Failure> {
    if let Some(word) = stray {
        let is_file = word.contains(['.', '/']);
        let hint = match nearest(word, COMMANDS.iter().copied()).filter(|_| !is_file) {
            Some(command) => format!("did you mean `h2o {command}`?"),
            None if is_file => format!("did you mean `-c {word}`?"),
            None => format!("the commands are {}", COMMANDS.join(", ")),
        };
        let text = format!("unexpected argument: {word} ({hint})");
        return Err(Failure::config(text));
    }
    let directory = std::env::current_dir().map_err(|error| {
        Failure::system(format!(
            "cannot serve the current directory: {}",
            reason(&error)
        ))
    })?;
    let (http, https) = (free_port(8080)?, free_port(8443)?);
    let identity = certificate();
    let listen_tls = identity.as_ref().map_or_else(
        |_| String::new(),
        |(certificate, key)| {
            let (certificate, key) = (quoted(certificate.display()), quoted(key.display()));
            format!("listen: &tls\n  port: {https}\n  ssl: {{ certificate-file: {certificate}, key-file: {key} }}\nlisten:\n  <<: *tls\n  type: quic\n")
        },
    );
    let config = format!(
        "listen: {http}\n{listen_tls}hosts:\n  default:\n    paths:\n      /:\n        file.dir: {}\n        file.dirlisting: ON\n        file.send-compressed: ON\n",
        quoted(directory.display())
    );
    let source = BuiltIn {
        name: NAME,
        text: config,
    };
    let loaded =
        h2o_server::load(NAME, &source).map_err(|error| Failure::config(error.to_string()))?;
    let moved = |port: u16, wanted: u16| {
        if port == wanted {
            String::new()
        } else {
            format!("  (port {wanted} is taken)")
        }
    };
    let tls = match &identity {
        Ok((certificate, _)) => format!(
            "  https://localhost:{https}/{}\n\nThe certificate is self-signed ({}), so browsers show a warning.",
            moved(https, 8443),
            certificate.display()
        ),
        Err(failure) => format!("\nHTTPS is off: {}.", failure.text()),
    };
    let installed = if Path::new(INSTALLED_CONFIG).exists() {
        format!("; `-c {INSTALLED_CONFIG}` serves that of the installation")
    } else {
        String::new()
    };
    let greeting = format!(
        "There is no configuration ({DEFAULT_CONFIG}{installed}), so this directory is served, hidden files included, to everybody who can reach this machine:\n  {}\n\n  http://localhost:{http}/{}\n{tls}\nIf started by root, the server runs as `nobody`, who must be allowed to read the directory.\nCtrl-C ends the server. `h2o -h` lists the options.\n",
        directory.display(),
        moved(http, 8080),
    );
    let plan = run::Plan {
        loaded,
        config: NAME,
        source: &source,
        greeting: Some(&greeting),
        parent: Parent::none(),
        inherited: None,
    };
    run::serve(plan, signals)
}

/// Formats the text as a YAML string in double quotes.
pub(crate) fn quoted(text: impl std::fmt::Display) -> String {
    let escaped = text.to_string().replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

/// Finds the first port number from `first` on that is free for TCP and UDP.
fn free_port(first: u16) -> Result<u16, Failure> {
    let is_free = |port: u16| {
        // The test binds as the server does: IPv4 and IPv6 separately, and IPv6 only if the machine has it.
        let v6 = TcpListener::bind(("::", port));
        let v6_taken = v6
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
        drop(v6);
        // HTTP/3 needs the UDP port of the same number.
        let udp_taken = |address: &str| {
            let socket = UdpSocket::bind((address, port));
            socket.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
        };
        !v6_taken
            && TcpListener::bind(("0.0.0.0", port)).is_ok()
            && !udp_taken("::")
            && !udp_taken("0.0.0.0")
    };
    (first..first + PORTS)
        .find(|port| is_free(*port))
        .ok_or_else(|| {
            Failure::config(format!(
                "all ports from {first} to {} are in use",
                first + PORTS - 1
            ))
        })
}

/// Returns the files of the self-signed certificate of the user who runs the program, and of its key; both are created on first
/// use.
fn certificate() -> Result<(PathBuf, PathBuf), Failure> {
    let directory = state_directory().ok_or_else(|| {
        Failure::system(
            "neither XDG_STATE_HOME nor HOME is set, so there is no directory for the certificate",
        )
    })?;
    certificate_in(&directory).map_err(|error| {
        let directory = directory.display();
        let text = format!("failed to make a certificate in {directory}: {error}");
        Failure::system(text)
    })
}

fn certificate_in(directory: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let certificate = directory.join("localhost.crt");
    let key = directory.join("localhost.key");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    // Of servers that start at the same time one makes the files, so that they fit together, and the others wait for it. The lock ends with
    // the file.
    let lock = fs::File::open(directory)?;
    lock.lock()?;
    if !certificate.exists() || !key.exists() || is_old(&certificate) {
        let names = ["localhost", "127.0.0.1", "::1"].map(String::from).to_vec();
        let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
        write_private(&key, &made.signing_key.serialize_pem())?;
        fs::write(&certificate, made.cert.pem())?;
    }
    Ok((certificate, key))
}

/// Whether the self-signed certificate must be renewed: it is more than half a year old. Browsers reject certificates with a long
/// lifetime.
fn is_old(path: &Path) -> bool {
    let age = fs::metadata(path)
        .and_then(|found| found.modified())
        .ok()
        .and_then(|made| made.elapsed().ok());
    age.is_none_or(|age| age.as_secs() > 180 * 86_400)
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    use io::Write;
    // An old key file is removed first, since it may have permissions that let other users read it.
    let _ = fs::remove_file(path);
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?
        .write_all(text.as_bytes())
}

fn state_directory() -> Option<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("h2o"))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn servers_that_start_at_the_same_time_use_one_certificate() {
        let state = tempfile::tempdir().unwrap();
        let directory = state.path().join("h2o");
        let begin = Barrier::new(8);
        let start = || {
            begin.wait();
            let (certificate, key) = certificate_in(&directory).unwrap();
            [certificate, key].map(|path| fs::read_to_string(path).unwrap())
        };
        let read: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(read.iter().flatten().all(|text| !text.is_empty()));
        assert!(read.iter().all(|pair| *pair == read[0]));
    }
}
