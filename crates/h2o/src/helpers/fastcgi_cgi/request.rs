//! Serves one FastCGI connection, on which one request comes: runs the CGI script for it, and converts the script's output to
//! FastCGI records.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::net::Shutdown;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, TryRecvError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use h2o_log::{reason, report};
use h2o_upstream::fastcgi_record::{RecordHeader, decode_parameters, kind};
use nix::sys::signal::Signal;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::Options;
use super::scripts::Place;

/// Largest size of all FastCGI parameters of a request together, in bytes.
const MAX_PARAMETERS: usize = 1024 * 1024;
/// Largest content of a FastCGI record that is sent, in bytes.
const MAX_CONTENT: usize = 61_440;
/// How long a script may take to end after SIGTERM before it gets SIGKILL.
const KILL_AFTER: Duration = Duration::from_secs(3);

/// A request that the server has sent over FastCGI.
#[derive(Debug)]
struct Request {
    number: u16,
    parameters: Vec<(Vec<u8>, Vec<u8>)>,
    /// A file with the body of the request; `None` if it has no body.
    content: Option<File>,
}

impl Request {
    /// Reads a request from the connection. Returns `None` if the server has closed the connection before the request was complete.
    fn read(input: &mut impl Read) -> io::Result<Option<Self>> {
        let mut number = 0;
        let mut encoded = Vec::new();
        let mut content: Option<File> = None;
        loop {
            let mut header = [0; RecordHeader::LEN];
            match input.read_exact(&mut header) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error),
            }
            let header = RecordHeader::parse(header);
            let mut record = vec![0; usize::from(header.content) + usize::from(header.padding)];
            input.read_exact(&mut record)?;
            record.truncate(header.content.into());
            match header.kind {
                kind::BEGIN_REQUEST => number = header.request,
                kind::PARAMS => {
                    encoded.extend_from_slice(&record);
                    if encoded.len() > MAX_PARAMETERS {
                        return Err(io::Error::other("the parameters of a request are too long"));
                    }
                }
                kind::STDIN if record.is_empty() => break,
                kind::STDIN => {
                    if content.is_none() {
                        content = Some(tempfile::tempfile()?);
                    }
                    if let Some(file) = &mut content {
                        file.write_all(&record)?;
                    }
                }
                other => {
                    let text = format!("received unexpected record, type: {other}");
                    return Err(io::Error::other(text));
                }
            }
        }
        if let Some(file) = &mut content {
            file.rewind()?;
        }
        let parameters = decode_parameters(&encoded)
            .ok_or_else(|| io::Error::other("the parameters of a request are malformed"))?;
        let owned = |(name, value): (&[u8], &[u8])| (name.to_vec(), value.to_vec());
        Ok(Some(Self {
            number,
            parameters: parameters.into_iter().map(owned).collect(),
            content,
        }))
    }

    fn parameter(&self, wanted: &[u8]) -> Option<&[u8]> {
        let mut found = self.parameters.iter().filter(|(name, _)| name == wanted);
        found.next().map(|(_, value)| &**value)
    }

    /// The environment variables that the script of the request gets.
    fn variables(&self, options: &Options) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        let passes_authorization = options.passes_authorization;
        let is_wanted = move |name: &[u8], value: &[u8]| {
            !name.is_empty()
                && !name.contains(&b'=')
                && !name.contains(&0)
                && !value.contains(&0)
                && (passes_authorization || name != b"HTTP_AUTHORIZATION")
        };
        self.parameters
            .iter()
            .filter(move |(name, value)| is_wanted(name, value))
            .map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value)))
    }
}

/// Writes FastCGI records to the server.
struct Output<'a> {
    stream: Mutex<&'a UnixStream>,
    request: u16,
}

impl Output<'_> {
    fn write(&self, kind: u8, content: &[u8]) -> io::Result<()> {
        let header = RecordHeader {
            kind,
            request: self.request,
            content: u16::try_from(content.len()).map_err(io::Error::other)?,
            padding: 0,
        };
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        stream.write_all(&header.encode())?;
        stream.write_all(content)
    }

    /// Sends the output of a script, read from `input` until its end, as FastCGI records of type `kind`. The output is read to its end even
    /// after the server has closed the connection, so that the script does not block on a full pipe before it gets SIGTERM.
    fn copy(&self, kind: u8, mut input: impl Read) {
        let mut buffer = vec![0; MAX_CONTENT];
        let mut is_open = true;
        loop {
            match input.read(&mut buffer) {
                Ok(0) => return,
                Ok(len) => is_open = is_open && self.write(kind, &buffer[..len]).is_ok(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

/// Serves the request of one connection.
pub(super) fn serve(stream: &UnixStream, options: &Options, place: &Place) -> io::Result<()> {
    let Some(mut request) = Request::read(&mut BufReader::new(stream))? else {
        return Ok(());
    };
    let output = Output {
        stream: Mutex::new(stream),
        request: request.number,
    };
    let Some(script) = request.parameter(b"SCRIPT_FILENAME") else {
        let text = b"fastcgi-cgi: SCRIPT_FILENAME is missing: use this in `file.custom-handler`\n";
        return output.write(kind::STDERR, text);
    };
    let script = std::path::absolute(PathBuf::from(OsStr::from_bytes(script)))?;
    let content = request.content.take();
    if options.is_verbose {
        report!(notice, "fastcgi-cgi: running {}", script.display());
    }
    match start(&script, request.variables(options), content) {
        Ok(mut child) => {
            run(&mut child, stream, &output, place)?;
            child.wait().map(drop)
        }
        Err(error) => {
            let text = format!("{}: {}\n", script.display(), reason(&error));
            output.write(kind::STDERR, text.as_bytes())
        }
    }
}

fn start<'a>(
    script: &Path,
    variables: impl Iterator<Item = (&'a OsStr, &'a OsStr)>,
    content: Option<File>,
) -> io::Result<Child> {
    Command::new(script)
        .envs(variables)
        .current_dir(script.parent().unwrap_or(Path::new("/")))
        .stdin(content.map_or_else(Stdio::null, Stdio::from))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // The script has its own process group, so that the processes which it starts are ended together with it.
        .process_group(0)
        .spawn()
}

/// Sends the output of a script until the script ends. Ends the script if the server closes the connection.
fn run(
    child: &mut Child,
    stream: &UnixStream,
    output: &Output<'_>,
    place: &Place,
) -> io::Result<()> {
    let group = i32::try_from(child.id()).map_err(io::Error::other)?;
    let running = place.begin(group);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (has_output, output_ended) = channel::<()>();
    let running = &running;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The server sends nothing more on this connection. The read returns when the server closes the connection, or when
            // this process shuts it down below.
            while matches!((&*stream).read(&mut [0; 512]), Ok(len) if len > 0) {}
            if output_ended.try_recv() == Err(TryRecvError::Disconnected) {
                return;
            }
            running.signal(Signal::SIGTERM);
            if output_ended.recv_timeout(KILL_AFTER) == Err(RecvTimeoutError::Timeout) {
                running.signal(Signal::SIGKILL);
            }
        });
        let errors = scope.spawn(|| {
            if let Some(stderr) = stderr {
                output.copy(kind::STDERR, stderr);
            }
        });
        if let Some(stdout) = stdout {
            output.copy(kind::STDOUT, stdout);
        }
        let _ = errors.join();
        drop(has_output);
        // Errors are ignored: the server may have closed the connection already.
        let _ = output.write(kind::STDOUT, &[]);
        let _ = stream.shutdown(Shutdown::Both);
    });
    // Waits for the end of the script's process without reaping it, so that the kernel does not give its process id to another process,
    // which would then get the SIGTERM that is meant for the script.
    if let Some(pid) = Pid::from_raw(group) {
        let _ = waitid(
            WaitId::Pid(pid),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use h2o_upstream::fastcgi_record::encode_parameter;

    fn record(kind: u8, content: &[u8]) -> Vec<u8> {
        let header = RecordHeader {
            kind,
            request: 7,
            content: u16::try_from(content.len()).unwrap(),
            padding: 3,
        };
        [&header.encode()[..], content, &[0; 3]].concat()
    }

    #[test]
    fn a_request_is_its_parameters_and_its_content() {
        let mut parameters = Vec::new();
        for (name, value) in [
            ("A", "1"),
            ("HTTP_AUTHORIZATION", "x"),
            ("B=C", "2"),
            ("D", "\0"),
        ] {
            encode_parameter(name.as_bytes(), &[value.as_bytes()], &mut parameters);
        }
        let (first, second) = parameters.split_at(5);
        let whole = [
            record(kind::BEGIN_REQUEST, &[0, 1, 0, 0, 0, 0, 0, 0]),
            record(kind::PARAMS, first),
            record(kind::PARAMS, second),
            record(kind::PARAMS, b""),
            record(kind::STDIN, b"con"),
            record(kind::STDIN, b"tent"),
            record(kind::STDIN, b""),
        ]
        .concat();
        let mut request = Request::read(&mut &*whole).unwrap().unwrap();
        assert_eq!((request.number, request.parameters.len()), (7, 4));
        let mut content = String::new();
        request
            .content
            .take()
            .unwrap()
            .read_to_string(&mut content)
            .unwrap();
        assert_eq!(content, "content");
        let names = |passes_authorization| {
            let options = Options {
                passes_authorization,
                ..Options::default()
            };
            let names = request.variables(&options).map(|(name, _)| name.to_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(false), ["A"]);
        assert_eq!(names(true), ["A", "HTTP_AUTHORIZATION"]);

        for cut in 0..whole.len() - 1 {
            assert!(
                !matches!(Request::read(&mut &whole[..cut]), Ok(Some(_))),
                "{cut}"
            );
        }
        for wrong in [record(9, b""), record(kind::PARAMS, b"\xff")] {
            let end = [record(kind::PARAMS, b""), record(kind::STDIN, b"")].concat();
            assert!(Request::read(&mut &*[wrong, end].concat()).is_err());
        }
    }
}
