//! Fetches OCSP responses (staples) for certificates: sends a request to the OCSP responder, or runs the command that the configuration
//! names. Each fetch has a thread of its own.

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use h2o_exchange::Clock;
use h2o_log::{reason, report};
use h2o_tls::{FetchFailure, OcspResponse, Staple, StapleChange, StapleFetch};
use h2o_upstream::Post;
use rustix::event::{PollFd, PollFlags, Timespec};

/// How long an OCSP responder, or a command that fetches an OCSP response, may take.
const FETCH_TIME: Duration = Duration::from_secs(60);

/// Largest size of an OCSP response that is accepted, in bytes.
const LONGEST: usize = 64 * 1024;

/// Exit status by which the command says that a later attempt may succeed (`EX_TEMPFAIL`).
const TEMPORARY: i32 = 75;

/// How often the server checks whether a command that has closed its output has also ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The certificates whose OCSP responses are stapled; the key is the address in memory, so that each is in the map once.
pub(crate) type Staples = HashMap<*const Staple, Arc<Staple>>;

/// Counts the fetches that are running: each holds a reference to `running`.
#[derive(Default)]
pub(crate) struct StapleFetches {
    running: Arc<()>,
}

impl StapleFetches {
    /// Drops the OCSP responses whose time is over, and starts the fetches that are due, at most `limit` at a time. The main thread calls
    /// this at intervals.
    pub(crate) fn begin_due(&self, staples: Staples, limit: usize) {
        let now = Clock::default().unix();
        for staple in staples.values() {
            staple.drop_stale(now);
        }
        for staple in staples.into_values() {
            if Arc::strong_count(&self.running) > limit {
                return;
            }
            if !staple.poll(now) {
                continue;
            }
            let running = Arc::clone(&self.running);
            let run = {
                let staple = Arc::clone(&staple);
                move || {
                    update(&staple);
                    drop(running);
                }
            };
            let thread = thread::Builder::new().name("h2o-ocsp".to_owned());
            if thread.spawn(run).is_err() {
                staple.finish(Err(FetchFailure::Temporary), now);
            }
        }
    }
}

/// Why a fetch brought no OCSP response.
struct Failure {
    kind: FetchFailure,
    /// The message to log; `None` if the command has printed one itself.
    text: Option<String>,
}

impl Failure {
    fn said(kind: FetchFailure, text: String) -> Self {
        let text = Some(text);
        Self { kind, text }
    }
}

fn update(staple: &Staple) {
    let fetched = obtain(staple).map_err(|failure| {
        if let Some(text) = failure.text {
            report!(error, "[OCSP Stapling] {text}");
        }
        failure.kind
    });
    let file = staple.file();
    if fetched.as_ref().is_ok_and(OcspResponse::is_revoked) {
        report!(
            error,
            "[OCSP Stapling] the responder says that the certificate has been revoked; certificate file:{file}"
        );
    }
    match staple.finish(fetched, Clock::default().unix()) {
        StapleChange::Updated => report!(
            notice,
            "[OCSP Stapling] successfully updated the response for certificate file:{file}"
        ),
        StapleChange::Kept => report!(
            warning,
            "[OCSP Stapling] reusing old response due to a temporary error occurred while fetching OCSP response for certificate file:{file}"
        ),
        StapleChange::Removed => report!(
            error,
            "[OCSP Stapling] OCSP stapling is temporary disabled due to repeated errors for certificate file:{file}"
        ),
        StapleChange::Disabled => report!(
            error,
            "[OCSP Stapling] disabled for certificate file:{file}"
        ),
    }
}

/// For `-m test`: fetches each response once, and reports the outcome. H2O compatibility: the texts are H2O's, and a failure does not fail
/// the test.
pub(crate) fn test(staples: &Staples, mut say: impl FnMut(&str)) {
    for staple in staples.values() {
        let file = staple.file();
        say(&format!(
            "[OCSP Stapling] testing for certificate file:{file}"
        ));
        let outcome = match obtain(staple) {
            Ok(_) => "stapling works for",
            Err(failure) => {
                if let Some(text) = failure.text {
                    say(&format!("[OCSP Stapling] {text}"));
                }
                match failure.kind {
                    FetchFailure::Temporary => "temporary failed for",
                    FetchFailure::Permanent => "does not work, will be disabled for",
                }
            }
        };
        say(&format!("[OCSP Stapling] {outcome} file:{file}"));
    }
}

/// Fetches an OCSP response, and accepts it only if it can be stapled now.
fn obtain(staple: &Staple) -> Result<OcspResponse, Failure> {
    let file = staple.file();
    let fetch = staple.fetch().map_err(|error| {
        Failure::said(
            FetchFailure::Permanent,
            format!("{error}; certificate file:{file}"),
        )
    })?;
    let (response, from) = match &fetch {
        StapleFetch::Ask { url, request } => (ask(url, request)?, &**url),
        StapleFetch::Run(command) => (run(command, file)?, "the command"),
    };
    let accepted = staple.accept(response, Clock::default().unix());
    accepted.map_err(|error| {
        let text =
            format!("the response from {from} is not used: {error}; certificate file:{file}");
        Failure::said(FetchFailure::Temporary, text)
    })
}

/// Sends an OCSP request to the responder with this URL, and returns the content of the HTTP response.
fn ask(url: &str, request: &[u8]) -> Result<Vec<u8>, Failure> {
    let post = Post {
        url,
        content_type: "application/ocsp-request",
        content: request,
        time: FETCH_TIME,
        longest: LONGEST,
    };
    post.send().map_err(|error| {
        let text = format!("no response from {url}: {error}");
        Failure::said(FetchFailure::Temporary, text)
    })
}

/// Runs a command that fetches an OCSP response, with the certificate file as its standard input, and returns what it has written to its
/// standard output.
fn run(command: &Path, file: &str) -> Result<Vec<u8>, Failure> {
    // The reason why a command cannot be run will not go away, so there are no more attempts.
    let failed = |text| Failure::said(FetchFailure::Permanent, text);
    let input = h2o_opener::open(file.as_ref()).map_err(|error| {
        let reason = reason(&error);
        failed(format!("failed to read certificate file:{file}: {reason}"))
    })?;
    let name = command.display();
    let mut command = Command::new(command);
    command
        .stdin(input)
        .stdout(Stdio::piped())
        .env("H2O_ROOT", h2o_opener::installation_root())
        // The command gets a process group of its own, so that it can be ended together with the processes that it has started.
        .process_group(0);
    let mut child = command
        .spawn()
        .map_err(|error| failed(format!("failed to run {name}: {}", reason(&error))))?;
    let deadline = now() + FETCH_TIME;
    let output = child.stdout.take();
    let read = output.map(|output| read_until(output, deadline));
    let ended = match read {
        Some(Ok(response)) => ended(&mut child, response, deadline),
        Some(Err(_)) | None => None,
    };
    ended.unwrap_or_else(|| {
        if let Some(group) = i32::try_from(child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = child.wait();
        let text = format!(
            "{name} took more than {} seconds, or wrote more than {LONGEST} bytes",
            FETCH_TIME.as_secs()
        );
        Err(Failure::said(FetchFailure::Temporary, text))
    })
}

/// Reads all that the command writes to its output until the command closes it.
fn read_until(mut output: ChildStdout, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut response = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let left = deadline.saturating_duration_since(now());
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::TimedOut)?;
        let mut fds = [PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN)];
        if rustix::event::poll(&mut fds, Some(&left))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match output.read(&mut piece)? {
            0 => return Ok(response),
            len => response.extend_from_slice(&piece[..len]),
        }
        if response.len() > LONGEST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
    }
}

/// Waits for the exit of a command that has closed its output. Returns the response or the failure that its exit status means, and `None`
/// if the command does not end in time.
fn ended(
    child: &mut Child,
    response: Vec<u8>,
    deadline: Instant,
) -> Option<Result<Vec<u8>, Failure>> {
    let failure = |kind| Some(Err(Failure { kind, text: None }));
    loop {
        if let Some(status) = child.try_wait().ok()? {
            return match status.code() {
                Some(0) => Some(Ok(response)),
                Some(TEMPORARY) => failure(FetchFailure::Temporary),
                Some(_) | None => failure(FetchFailure::Permanent),
            };
        }
        if now() >= deadline {
            return None;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the thread that waits for a command has no worker's clock"
)]
fn now() -> Instant {
    Instant::now()
}
