//! `fastcgi-cgi`: runs CGI scripts (RFC 3875) for a server that speaks FastCGI.

mod request;
mod scripts;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use h2o_log::{reason, report};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt};
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::iterator::Signals;

use crate::getopt::{Argument, CommandLine, Known, long};
use crate::{Failure, print_out};
use scripts::Scripts;

const NAME: &str = "fastcgi-cgi";

const HELP: &str = "Usage: fastcgi-cgi [OPTION]...

Runs CGI scripts for a server that speaks FastCGI, one process for a request.

Options:
  --listen=PATH        listen at this Unix socket, and replace an existing file
                       (default: descriptor 0 is a listening socket)
  --max-workers=N      run at most N scripts at a time (default: unlimited)
  --pass-authz         pass `Authorization` of the request to scripts
  --verbose            report each script that is run
  --help
";

/// How long to wait before connections are accepted again, after a connection could not be accepted for lack of file descriptors or
/// memory.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy)]
enum Flag {
    Listen,
    MaxWorkers,
    PassAuthorization,
    Verbose,
    Help,
}

const KNOWN: &[Known<Flag>] = &[
    long("listen", true, Flag::Listen),
    long("max-workers", true, Flag::MaxWorkers),
    long("pass-authz", false, Flag::PassAuthorization),
    long("verbose", false, Flag::Verbose),
    long("help", false, Flag::Help),
];

/// The options on the command line of `fastcgi-cgi`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Options {
    listen: Option<PathBuf>,
    max_workers: Option<usize>,
    passes_authorization: bool,
    is_verbose: bool,
}

impl Options {
    /// Reads the command line. Returns `None` if `--help` is given.
    fn read(arguments: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self::default();
        let mut line = CommandLine::new(NAME, KNOWN, arguments);
        while let Some(argument) = line.next()? {
            match argument {
                Argument::Option(Flag::Help, _) => return Ok(None),
                Argument::Option(Flag::Listen, path) => options.listen = path.map(PathBuf::from),
                Argument::Option(Flag::MaxWorkers, count) => {
                    let count = count.unwrap_or_default();
                    let number = count.parse().ok().filter(|&number| number > 0);
                    let number = number.ok_or_else(|| {
                        format!("{NAME}: --max-workers must be a number from 1 on: {count}")
                    })?;
                    options.max_workers = Some(number);
                }
                Argument::Option(Flag::PassAuthorization, _) => options.passes_authorization = true,
                Argument::Option(Flag::Verbose, _) => options.is_verbose = true,
                Argument::Word(word) => return Err(format!("{NAME}: unknown argument: {word}")),
                Argument::End => {}
            }
        }
        Ok(Some(options))
    }
}

/// Serves FastCGI connections until SIGTERM, which all running scripts get, too.
pub(super) fn run(arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let Some(options) = Options::read(arguments).map_err(Failure::config)? else {
        print_out(HELP);
        return Ok(());
    };
    let failed = |what: &str, error: io::Error| {
        Failure::system(format!("{NAME}: {what}: {}", reason(&error)))
    };
    let mut signals = Signals::new([SIGTERM, SIGHUP])
        .map_err(|error| failed("failed to register signal handlers", error))?;
    let listener = match &options.listen {
        Some(path) => {
            // The socket of an earlier process is removed. An error is ignored: if the file remains, binding fails and is reported.
            let _ = std::fs::remove_file(path);
            let bound = UnixListener::bind(path);
            bound
                .map_err(|error| failed(&path.display().to_string(), error))?
                .into()
        }
        None => inherited()?,
    };
    let scripts = Arc::new(Scripts::new(options.max_workers));
    let accepting = Arc::clone(&scripts);
    std::thread::Builder::new()
        .spawn(move || accept_all(&listener, &options, &accepting))
        .map_err(|error| failed("failed to start a thread", error))?;
    for signal in signals.forever() {
        if signal == SIGTERM {
            scripts.end();
            break;
        }
    }
    Ok(())
}

/// The listening socket that this process has inherited as file descriptor 0.
fn inherited() -> Result<OwnedFd, Failure> {
    let stdin = io::stdin();
    if !sockopt::socket_acceptconn(&stdin).unwrap_or(false) {
        return Err(Failure::config(format!(
            "{NAME}: stdin is no a socket: descriptor 0 must be a listening socket, unless `--listen` is given"
        )));
    }
    (stdin.as_fd().try_clone_to_owned())
        .map_err(|error| Failure::system(format!("{NAME}: descriptor 0: {}", reason(&error))))
}

fn accept_all(listener: &OwnedFd, options: &Options, scripts: &Arc<Scripts>) {
    loop {
        // While the largest permitted number of scripts runs, new connections wait in the kernel's accept queue.
        let place = Scripts::take_place(scripts);
        let stream = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(socket) => UnixStream::from(socket),
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(error) => {
                let error = io::Error::from(error);
                report!(
                    error,
                    "{NAME}: failed to accept a connection: {}",
                    reason(&error)
                );
                std::thread::sleep(SHORTAGE_PAUSE);
                continue;
            }
        };
        let options = options.clone();
        let served = std::thread::Builder::new().spawn(move || {
            if let Err(error) = request::serve(&stream, &options, &place) {
                report!(error, "{NAME}: {}", reason(&error));
            }
        });
        if let Err(error) = served {
            report!(
                error,
                "{NAME}: failed to start a thread: {}",
                reason(&error)
            );
            std::thread::sleep(SHORTAGE_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Option<Options>, String> {
        Options::read(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_read() {
        let all = Options {
            listen: Some("/x".into()),
            max_workers: Some(20),
            passes_authorization: true,
            is_verbose: true,
        };
        let line = "--listen=/x --max-workers 20 --pass-authz --verbose";
        assert_eq!(read(line), Ok(Some(all)));
        assert_eq!(read(""), Ok(Some(Options::default())));
        assert_eq!(read("--help --what"), Ok(None));
        for wrong in ["--max-workers=0", "--max-workers=x", "--what", "word"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
