//! `kill-on-close [--rm=PATH] -- COMMAND [ARGUMENT]...`: runs a command, and ends it when the process that has started this helper
//! ends or closes file descriptor 5; then removes the directory PATH.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;

use h2o_log::reason;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::SIGINT;

use super::closing;
use crate::Failure;
use crate::getopt::{Argument, CommandLine, Known, long};

const USAGE: &str = "Usage: kill-on-close [--rm=PATH] -- COMMAND [ARGUMENT]...";

/// The pipe from the server, file descriptor 5.
const PIPE: &str = "/proc/self/fd/5";

const KNOWN: &[Known<()>] = &[long("rm", true, ())];

/// Runs the command, and returns after it has ended.
pub(super) fn run(arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let mut line = CommandLine::new("kill-on-close", KNOWN, arguments);
    let mut remove: Option<PathBuf> = None;
    let mut first = None;
    while let Some(argument) = line.next().map_err(Failure::config)? {
        match argument {
            Argument::Option((), path) => remove = path.map(PathBuf::from),
            Argument::Word(word) => {
                first = Some(word);
                break;
            }
            Argument::End => break,
        }
    }
    let mut words = first.into_iter().chain(line.rest());
    let program = words.next().ok_or_else(|| Failure::config(USAGE))?;
    let failed = |what: &str, error: &std::io::Error| {
        Failure::system(format!("kill-on-close: {what}: {}", reason(error)))
    };
    signal_hook::flag::register(SIGINT, Arc::default())
        .map_err(|error| failed("failed to register a signal handler", &error))?;
    let pipe = File::open(PIPE)
        .map_err(|error| failed("descriptor 5 must be a pipe from the server", &error))?;
    let child = Command::new(&program).args(words).spawn();
    let mut child = child.map_err(|error| failed(&format!("failed to start {program}"), &error))?;
    let pid = i32::try_from(child.id()).map_or_else(|_| Pid::this(), Pid::from_raw);
    let (ended, has_ended) = channel();
    let from_child = ended.clone();
    closing::on_close(pipe, move || {
        let _ = ended.send(true);
    });
    std::thread::spawn(move || {
        let _ = child.wait();
        let _ = from_child.send(false);
    });
    // The command may put itself into the background and end before the pipe is closed; what PATH has is in use until then.
    let mut has_child = true;
    while has_ended.recv() == Ok(false) {
        has_child = false;
    }
    if has_child {
        let _ = kill(pid, Signal::SIGTERM);
        while has_ended.recv() == Ok(true) {}
    }
    if let Some(path) = remove {
        closing::remove(&path);
    }
    Ok(())
}
