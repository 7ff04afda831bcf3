//! The main thread while the server runs: signals, graceful shutdown, and dead workers.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use h2o_config::Source;
use h2o_log::{Target, reason, report};
use h2o_server::{LoadedConfig, Server, WorkerEnd};
use signal_hook::consts::{SIGHUP, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::control::{Answer, Question};
use crate::systemd::{self, State};
use crate::{Failure, error_log, reload};

/// How long to wait for workers that were told to close their connections.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// Interval of the main thread's own work while the server serves.
const TICK: Duration = Duration::from_secs(1);

/// An event of the running server.
pub(crate) enum Event {
    /// A signal arrived.
    Signal(i32),
    /// A worker's thread ended.
    Worker(WorkerEnd),
    /// A client of the control socket asks.
    Question(Question, Sender<Answer>),
}

/// The queue of events, with its sender.
pub(crate) struct Events {
    pub(crate) sender: Sender<Event>,
    receiver: Receiver<Event>,
}

/// From here on TERM, HUP, USR1, USR2 and QUIT are events: none of them kills the process. Commands that the server starts
/// have the default dispositions. INT is not caught and kills, so that the program can always be ended by hand. XFSZ is
/// ignored: a file at its size limit (RLIMIT_FSIZE) fails one write, as a full disk does.
pub(crate) fn catch_signals() -> Result<Signals, Failure> {
    signal_hook::flag::register(SIGXFSZ, Arc::default())
        .and_then(|_| Signals::new([SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT]))
        .map_err(|error| {
            Failure::system(format!(
                "failed to register signal handlers: {}",
                reason(&error)
            ))
        })
}

impl Events {
    /// Starts the thread that reports signals as events; signals that arrived since [`catch_signals`] come first.
    pub(crate) fn begin(mut signals: Signals) -> Result<Self, Failure> {
        let (sender, receiver) = channel();
        let from_signals = sender.clone();
        let forward = move || {
            for signal in signals.forever() {
                if from_signals.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("h2o-signals".to_owned());
        match thread.spawn(forward) {
            Ok(_) => Ok(Self { sender, receiver }),
            Err(error) => Err(Failure::system(format!(
                "failed to start the thread that receives signals: {}",
                reason(&error)
            ))),
        }
    }
}

/// Actions of [`handle_events`] on the server; its test implements them.
pub(crate) trait Control {
    /// Begins the graceful shutdown.
    fn shut_down(&self);
    /// Closes the remaining connections.
    fn close_connections(&self);
    /// USR1, and HUP before it reloads: reopens logs and loads changed certificates.
    fn reopen(&self, signal: &str);
    /// HUP: serves by the configuration as it is in its files now.
    fn reload(&mut self);
    /// A client of the control socket asks.
    fn answer(&mut self, question: Question) -> Answer;
    /// Called every [`TICK`] while the server serves.
    fn tick(&mut self);
}

/// How the server ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All workers have ended.
    Drained,
    /// Some workers still run.
    Abandoned,
    /// A worker's thread died.
    WorkerDied,
}

/// How the server ends.
#[derive(Clone, Copy)]
pub(crate) struct ShutdownRules {
    /// `shutdown-timeout`.
    pub(crate) limit: Option<Duration>,
    /// Whether a further TERM closes all connections. Supervisors repeat it without that meaning.
    pub(crate) is_term_counted: bool,
}

/// Handles events until the `workers` have ended.
pub(crate) fn handle_events(
    events: &Events,
    control: &mut impl Control,
    workers: usize,
    rules: ShutdownRules,
) -> End {
    let mut phase = Phase::Serving;
    let mut left = workers;
    loop {
        let event = match phase.deadline() {
            None => events
                .receiver
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => {
                let time = deadline.saturating_duration_since(now());
                events.receiver.recv_timeout(time)
            }
        };
        match event {
            Ok(Event::Worker(WorkerEnd::Died)) => return End::WorkerDied,
            Ok(Event::Worker(WorkerEnd::Drained)) => {
                left = left.saturating_sub(1);
                if left == 0 {
                    return End::Drained;
                }
            }
            Ok(Event::Question(question, client)) => {
                let answer = match phase {
                    Phase::Serving => control.answer(question),
                    Phase::Draining(_) | Phase::Closing(_) => {
                        reload::refused("the server is shutting down")
                    }
                };
                // The client may have gone.
                let _ = client.send(answer);
            }
            Ok(Event::Signal(SIGTERM)) => {
                if let Phase::Serving = phase {
                    report!(notice, "received SIGTERM, gracefully shutting down");
                    control.shut_down();
                    phase = Phase::Draining(rules.limit.map(|limit| now() + limit));
                } else if rules.is_term_counted {
                    report!(notice, "received SIGTERM again, closing all connections");
                    phase = phase.close(control);
                }
            }
            Ok(Event::Signal(SIGQUIT)) => {
                report!(notice, "received SIGQUIT, closing all connections");
                phase = phase.close(control);
            }
            Ok(Event::Signal(SIGHUP)) => {
                control.reopen("SIGHUP");
                if let Phase::Serving = phase {
                    control.reload();
                }
            }
            Ok(Event::Signal(SIGUSR1)) => control.reopen("SIGUSR1"),
            Ok(Event::Signal(SIGUSR2)) => report!(notice, "received SIGUSR2, which has no effect"),
            // No other signals are caught.
            Ok(Event::Signal(_)) => {}
            Err(RecvTimeoutError::Timeout) => match phase {
                Phase::Serving => control.tick(),
                Phase::Draining(_) => {
                    report!(
                        notice,
                        "shutdown-timeout has passed, closing the remaining connections"
                    );
                    phase = phase.close(control);
                }
                Phase::Closing(_) => return End::Abandoned,
            },
            // The thread that sends signals ends with the process.
            Err(RecvTimeoutError::Disconnected) => return End::Abandoned,
        }
    }
}

/// Phase of the shutdown.
#[derive(Clone, Copy)]
enum Phase {
    Serving,
    /// Connections may finish, at most until this time.
    Draining(Option<Instant>),
    /// Connections are being closed; workers are waited for until this time.
    Closing(Instant),
}

impl Phase {
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Serving => Some(now() + TICK),
            Self::Draining(until) => until,
            Self::Closing(until) => Some(until),
        }
    }

    fn close(self, control: &mut impl Control) -> Self {
        match self {
            Self::Serving | Self::Draining(_) => {
                control.close_connections();
                Self::Closing(now() + CLOSE_PATIENCE)
            }
            Self::Closing(_) => self,
        }
    }
}

/// The running server as [`handle_events`] sees it.
pub(crate) struct RunningServer<'a> {
    pub(crate) server: Server,
    pub(crate) loaded: LoadedConfig,
    /// The name of the configuration file.
    pub(crate) config: &'a str,
    /// Where it is read from.
    pub(crate) source: &'a dyn Source,
    /// Where messages go.
    pub(crate) error_log: &'a Target,
}

impl Control for RunningServer<'_> {
    fn shut_down(&self) {
        systemd::notify(State::Stopping);
        self.server.shut_down();
    }

    fn close_connections(&self) {
        systemd::notify(State::Stopping);
        self.server.close_connections();
    }

    fn reload(&mut self) {
        systemd::notify(State::Reloading);
        reload::answer(self, Question::Reload);
        systemd::notify(State::Ready);
    }

    fn answer(&mut self, question: Question) -> Answer {
        reload::answer(self, question)
    }

    fn tick(&mut self) {
        self.server.release_retired();
        let Some(reloaded) = self.server.reload_changed_certificates() else {
            return;
        };
        for failure in &reloaded.failures {
            report!(
                warning,
                "{failure}; the certificates loaded before stay in use"
            );
        }
        if reloaded.renewed > 0 {
            report!(
                notice,
                "certificates changed on disk; certificates reloaded: {}",
                reloaded.renewed
            );
        }
    }

    fn reopen(&self, signal: &str) {
        // The message is the last line of the old file.
        report!(
            notice,
            "received {signal}, reopening logs and reloading changed certificates"
        );
        let mut failures = self.loaded.reopen_resources();
        failures.extend(error_log::reopen(self.error_log).err());
        for failure in &failures {
            report!(
                error,
                "{failure}; its lines still go to the file that was open before"
            );
        }
        let certificates = self.server.reload_certificates();
        for failure in &certificates.failures {
            report!(
                error,
                "{failure}; the certificates loaded before stay in use"
            );
        }
        report!(
            notice,
            "reopened logs{}; certificates reloaded: {}",
            if failures.is_empty() {
                ""
            } else {
                ", except those that failed"
            },
            certificates.renewed
        );
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the main thread waits here, and has no worker's clock"
)]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[derive(Default)]
    struct Recorder(RefCell<Vec<&'static str>>);

    impl Control for Recorder {
        fn shut_down(&self) {
            self.0.borrow_mut().push("shut down");
        }

        fn close_connections(&self) {
            self.0.borrow_mut().push("close");
        }

        fn reopen(&self, _signal: &str) {
            self.0.borrow_mut().push("open");
        }

        fn reload(&mut self) {
            self.0.borrow_mut().push("reload");
        }

        fn answer(&mut self, _: Question) -> Answer {
            Answer::default()
        }

        fn tick(&mut self) {}
    }

    /// What two workers' server does about `events`, and how it ends.
    fn run(happens: Vec<Event>, limit: Option<Duration>) -> (Vec<&'static str>, End) {
        let (sender, receiver) = channel();
        for event in happens {
            sender.send(event).unwrap();
        }
        let mut control = Recorder::default();
        let rules = ShutdownRules {
            limit,
            is_term_counted: true,
        };
        let end = handle_events(&Events { sender, receiver }, &mut control, 2, rules);
        (control.0.into_inner(), end)
    }

    fn drained() -> Event {
        Event::Worker(WorkerEnd::Drained)
    }

    #[test]
    fn only_term_and_quit_end_the_server() {
        let happens = vec![
            Event::Signal(SIGHUP),
            Event::Signal(SIGUSR1),
            Event::Signal(SIGUSR2),
            Event::Signal(SIGTERM),
            Event::Signal(SIGHUP),
            drained(),
            drained(),
        ];
        let (did, end) = run(happens, None);
        assert_eq!(did, ["open", "reload", "open", "shut down", "open"]);
        assert_eq!(end, End::Drained);
    }

    #[test]
    fn a_second_term_and_quit_do_not_wait_for_connections() {
        for first in [SIGTERM, SIGQUIT] {
            let happens = vec![
                Event::Signal(first),
                Event::Signal(SIGTERM),
                Event::Signal(SIGQUIT),
                drained(),
                drained(),
            ];
            let (did, end) = run(happens, None);
            let want: &[_] = if first == SIGTERM {
                &["shut down", "close"]
            } else {
                &["close"]
            };
            assert_eq!(did, want);
            assert_eq!(end, End::Drained);
        }
    }

    #[test]
    fn no_connection_outlives_the_shutdown_timeout() {
        let limit = Some(Duration::from_millis(1));
        let (did, end) = run(vec![Event::Signal(SIGTERM)], limit);
        assert_eq!(did, ["shut down", "close"]);
        // Nor does a worker that does not listen.
        assert_eq!(end, End::Abandoned);
    }

    #[test]
    fn no_process_lives_on_when_a_worker_has_died() {
        let (did, end) = run(vec![Event::Worker(WorkerEnd::Died)], None);
        assert!(did.is_empty());
        assert_eq!(end, End::WorkerDied);
    }
}
