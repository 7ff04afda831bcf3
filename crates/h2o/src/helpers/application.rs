//! A helper process that runs the FastCGI application of a `fastcgi.spawn`: it starts the application's command again whenever that
//! ends, and ends it when the server closes a pipe. `h2o_opener::application` starts this helper.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use h2o_log::{reason, report};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::closing;
use crate::Failure;

/// Delay before the command is started again after it has ended. The delay doubles each time, up to the longest delay.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// How long the command may take to end after SIGTERM before it gets SIGKILL.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// What the main thread of the helper waits for.
enum Event {
    /// The server has closed the pipe.
    Closed,
    /// The command has ended; the text describes how.
    Ended(String),
}

/// Runs the FastCGI application until the server closes the pipe.
pub(super) fn run(mut arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let mut next = || {
        let missing = || {
            Failure::config("run-application is not for users: only the server starts this command")
        };
        arguments.next().ok_or_else(missing)
    };
    let (pipe, directory, user, command) = (next()?, PathBuf::from(next()?), next()?, next()?);
    let failed = |what: &str, error: &std::io::Error| {
        Failure::system(format!("fastcgi.spawn: {what}: {}", reason(error)))
    };
    // Signals that are sent to all processes of a service or terminal are ignored: the application must run until the server ends.
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::default())
            .map_err(|error| failed("failed to register a signal handler", &error))?;
    }
    let pipe = File::open(format!("/proc/self/fd/{pipe}"))
        .map_err(|error| failed("failed to open the pipe from the server", &error))?;
    let (sender, events) = channel();
    let from_pipe = sender.clone();
    closing::on_close(pipe, move || {
        let _ = from_pipe.send(Event::Closed);
    });
    keep_running(&user, &command, &sender, &events);
    closing::remove(&directory);
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "this process has no worker, and so no worker's clock"
)]
fn now() -> Instant {
    Instant::now()
}

/// Starts the command, and starts it again whenever it ends. Returns when the server has closed the pipe and the
/// command has ended.
fn keep_running(user: &str, command: &str, sender: &Sender<Event>, events: &Receiver<Event>) {
    let mut delay = FIRST_DELAY;
    loop {
        let begun = now();
        let text = match start(user, command) {
            Ok(mut child) => {
                let group = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
                let sender = sender.clone();
                std::thread::spawn(move || {
                    let status = child.wait();
                    let text = status.map_or_else(|error| reason(&error), |end| end.to_string());
                    let _ = sender.send(Event::Ended(text));
                });
                match events.recv() {
                    Ok(Event::Ended(text)) => {
                        // The processes that the command has left behind are ended, too: otherwise they would go on to answer requests
                        // beside the restarted command.
                        let _ = killpg(group, Signal::SIGTERM);
                        text
                    }
                    Ok(Event::Closed) | Err(_) => return end(group, events),
                }
            }
            Err(error) => reason(&error),
        };
        if now().duration_since(begun) >= LONGEST_DELAY {
            delay = FIRST_DELAY;
        }
        report!(
            warning,
            "fastcgi.spawn: the application ended ({text}), starting it again in {} seconds: {command}",
            delay.as_secs_f32()
        );
        if events.recv_timeout(delay).is_ok() {
            return;
        }
        delay = (delay * 2).min(LONGEST_DELAY);
    }
}

/// Starts the command in a process group of its own. If `user` is another user, the command is started through this program's
/// `setuidgid`.
fn start(user: &str, command: &str) -> std::io::Result<Child> {
    let shell = ["/bin/sh", "-c", command];
    let mut program = if user.is_empty() {
        Command::new(shell[0])
    } else {
        let mut program = Command::new("/proc/self/exe");
        program.arg0("setuidgid").arg(user).arg(shell[0]);
        program
    };
    program.args(&shell[1..]);
    program.env("H2O_ROOT", h2o_opener::installation_root());
    program.process_group(0).spawn()
}

/// Ends the command and the processes that it has started.
fn end(group: Pid, events: &Receiver<Event>) {
    let _ = killpg(group, Signal::SIGTERM);
    if events.recv_timeout(END_PATIENCE).is_err() {
        let _ = killpg(group, Signal::SIGKILL);
        let _ = events.recv();
    }
}
