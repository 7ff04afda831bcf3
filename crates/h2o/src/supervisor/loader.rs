//! The program that obtains certificates (`loader` of `acme`), which the supervisor runs beside the workers.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use h2o_log::reason;

use super::{now, say};
use crate::systemd;

/// How long the supervisor waits before it starts the loader (the program that obtains certificates) again after its first end. The pause
/// doubles with each further end.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause before the loader (the program that obtains certificates) is started again. The end of a loader that has run for at
/// least this time counts as its first end, so that the pauses begin anew.
const LONGEST_PAUSE: Duration = Duration::from_secs(60 * 60);

/// The loader (the program that obtains certificates), which the supervisor keeps running.
pub(super) struct Loader<'a> {
    /// The path of the program, followed by its arguments without `--pid PID`.
    words: &'a [String],
    state: State,
    /// The pause before the program is started again, once it has ended.
    pause: Duration,
}

enum State {
    Running {
        /// The standard input of the loader is a pipe that stays open as long as the supervisor lives; the loader has to end when it is
        /// closed.
        child: Child,
        since: Instant,
    },
    /// The loader has ended, or could not be started. The supervisor starts it at the time `at`.
    Paused { at: Instant },
}

impl<'a> Loader<'a> {
    /// Starts the program that obtains certificates. `words`: its path, followed by its arguments without `--pid PID`.
    pub(super) fn start(words: &'a [String]) -> Self {
        let mut loader = Self {
            words,
            state: State::Paused { at: now() },
            pause: FIRST_PAUSE,
        };
        loader.run();
        loader
    }

    /// When the supervisor is to call [`on_deadline`](Self::on_deadline).
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Running { .. } => None,
            State::Paused { at } => Some(at),
        }
    }

    /// Starts the program that obtains certificates again, if its pause is over.
    pub(super) fn on_deadline(&mut self) {
        if self.deadline().is_some_and(|at| at <= now()) {
            self.run();
        }
    }

    /// Checks whether the program that obtains certificates has ended, and if so, plans its next start.
    pub(super) fn reap(&mut self) {
        let State::Running { child, since } = &mut self.state else {
            return;
        };
        let Some(status) = child.try_wait().ok().flatten() else {
            return;
        };
        let (pid, since) = (child.id(), *since);
        if now().saturating_duration_since(since) >= LONGEST_PAUSE {
            self.pause = FIRST_PAUSE;
        }
        let pause = self.plan();
        let status = status.into_raw();
        say(&format!(
            "the loader of certificates {pid} died, status:{status}; it is started again in {pause}"
        ));
    }

    fn run(&mut self) {
        match self.spawn() {
            Ok(child) => {
                let since = now();
                self.state = State::Running { child, since };
            }
            Err(error) => {
                let pause = self.plan();
                let program = self.words.first().map_or("", String::as_str);
                let reason = reason(&error);
                say(&format!(
                    "certificates are not obtained, failed to run {program}: {reason}; the next attempt is in {pause}"
                ));
            }
        }
    }

    fn spawn(&self) -> io::Result<Child> {
        let (program, arguments) = self
            .words
            .split_first()
            .ok_or(io::ErrorKind::InvalidInput)?;
        Command::new(program)
            .args(["--pid", &std::process::id().to_string()])
            .args(arguments)
            .stdin(Stdio::piped())
            .env_remove(systemd::SOCKET)
            .env_remove(systemd::WATCHDOG)
            .spawn()
    }

    /// Plans the next start. Returns the pause until then as a text for messages.
    fn plan(&mut self) -> String {
        let pause = self.pause;
        self.state = State::Paused { at: now() + pause };
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        format!("{} s", pause.as_secs())
    }
}
