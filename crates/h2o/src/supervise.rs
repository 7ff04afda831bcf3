//! What the main thread does while the server runs: it handles signals, the graceful shutdown, and workers that died.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use h2o_log::report;
use h2o_server::WorkerEnd;
use signal_hook::consts::{SIGHUP, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::events::{Event, Events};
use crate::question::{Answer, Question, Reply};

/// How long the main thread waits for workers that were told to close their connections.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// How often the main thread does periodic work while the server serves.
const TICK: Duration = Duration::from_secs(1);

/// Why a reload is refused once the shutdown has begun.
const SHUTTING_DOWN: &str = "the server is shutting down";

/// The actions of the server that [`handle_events`] calls on signals and other events. The tests of the main thread implement them
/// by a recorder.
pub(crate) trait Control {
    /// Makes the readiness probe of load balancers fail, so that they learn that the server will end, while it still serves.
    fn announce_end(&self);
    /// Begins the graceful shutdown of the server.
    fn shut_down(&self);
    /// Returns the values of `shutdown-delay` and `shutdown-timeout` in the current configuration.
    fn shutdown_times(&self) -> ShutdownTimes;
    /// Closes the remaining connections at once.
    fn close_connections(&self);
    /// Reopens logs and loads changed certificates: on SIGUSR1, and on SIGHUP before the reload.
    fn reopen(&self, signal: &str);
    /// Reads the configuration again and uses it from now on: on SIGHUP.
    fn reload(&mut self);
    /// Answers the question of a client of the control socket. The method must not wait for workers, as no signal is handled until
    /// it returns.
    fn answer(&mut self, question: Question) -> Reply;
    /// Called every [`TICK`] while the server serves.
    fn tick(&mut self);
}

/// How the running server ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All workers have ended, after their last connections.
    Drained,
    /// The main thread gave up waiting; some workers still run.
    Abandoned,
    /// A worker's thread died.
    WorkerDied,
}

/// The configured times of the server's shutdown.
#[derive(Clone, Copy, Default)]
pub(crate) struct ShutdownTimes {
    /// Time between SIGTERM and the beginning of the graceful shutdown.
    pub(crate) delay: Duration,
    /// Time that the graceful shutdown may take; `None` for no limit.
    pub(crate) limit: Option<Duration>,
}

/// Handles events until the `workers` have ended. `is_term_counted` says whether a second SIGTERM closes all connections; under a
/// supervisor, which may send the signal several times, it must not.
pub(crate) fn handle_events(
    events: &Events,
    control: &mut impl Control,
    workers: usize,
    is_term_counted: bool,
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
                let reply = match (&phase, question) {
                    // Who waits for the end of the shutdown looks at what is left.
                    (Phase::Serving, _) | (_, Question::Status) => control.answer(question),
                    (_, Question::Reload | Question::Differences) => {
                        Reply::Now(Answer::refused(SHUTTING_DOWN))
                    }
                };
                // An error is ignored: the client that asked the question may have disconnected.
                let _ = client.send(reply);
            }
            Ok(Event::Signal(signal)) => phase = phase.on_signal(signal, control, is_term_counted),
            Err(RecvTimeoutError::Timeout) => match phase {
                Phase::Serving => control.tick(),
                Phase::Announced(_) => phase = Phase::drain(control),
                Phase::Draining(_) => {
                    report!(
                        notice,
                        "shutdown-timeout has passed, closing the remaining connections"
                    );
                    phase = phase.close(control);
                }
                Phase::Closing(_) => return End::Abandoned,
            },
            // The thread that sends signals normally runs until the process ends, so that its channel is never disconnected.
            Err(RecvTimeoutError::Disconnected) => return End::Abandoned,
        }
    }
}

/// Phase of the server's shutdown.
#[derive(Clone, Copy)]
enum Phase {
    Serving,
    /// SIGTERM has arrived; the graceful shutdown begins at this time.
    Announced(Instant),
    /// Graceful shutdown: connections may finish their requests until this time, if there is a limit.
    Draining(Option<Instant>),
    /// The remaining connections are being closed; the main thread waits for the workers until this time.
    Closing(Instant),
}

impl Phase {
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Serving => Some(now() + TICK),
            Self::Announced(until) => Some(until),
            Self::Draining(until) => until,
            Self::Closing(until) => Some(until),
        }
    }

    /// Handles a signal, and returns the phase after it.
    fn on_signal(self, signal: i32, control: &mut impl Control, is_term_counted: bool) -> Self {
        match (signal, self) {
            (SIGTERM, Self::Serving) => {
                let delay = control.shutdown_times().delay;
                if delay.is_zero() {
                    report!(notice, "received SIGTERM, gracefully shutting down");
                    return Self::drain(control);
                }
                control.announce_end();
                let seconds = delay.as_secs();
                report!(
                    notice,
                    "received SIGTERM, gracefully shutting down in {seconds} seconds"
                );
                return Self::Announced(now() + delay);
            }
            (SIGTERM, _) if is_term_counted => {
                report!(notice, "received SIGTERM again, closing all connections");
                return self.close(control);
            }
            (SIGQUIT, _) => {
                report!(notice, "received SIGQUIT, closing all connections");
                return self.close(control);
            }
            (SIGHUP, _) => {
                control.reopen("SIGHUP");
                if let Self::Serving = self {
                    control.reload();
                } else {
                    report!(
                        error,
                        "{SHUTTING_DOWN}; the configuration was not reloaded, the one in use stays"
                    );
                }
            }
            (SIGUSR1, _) => control.reopen("SIGUSR1"),
            (SIGUSR2, _) => report!(notice, "received SIGUSR2, which has no effect"),
            // A SIGTERM that a supervisor has sent again is ignored. No other signals are caught.
            (_, _) => {}
        }
        self
    }

    /// Begins the graceful shutdown, and returns the phase after that.
    fn drain(control: &impl Control) -> Self {
        control.shut_down();
        let limit = control.shutdown_times().limit;
        Self::Draining(limit.map(|limit| now() + limit))
    }

    fn close(self, control: &mut impl Control) -> Self {
        match self {
            Self::Serving | Self::Announced(_) | Self::Draining(_) => {
                control.close_connections();
                Self::Closing(now() + CLOSE_PATIENCE)
            }
            Self::Closing(_) => self,
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the main thread has no worker's clock"
)]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::sync::mpsc::channel;

    #[derive(Default)]
    struct Recorder {
        did: RefCell<Vec<&'static str>>,
        times: ShutdownTimes,
    }

    impl Control for Recorder {
        fn announce_end(&self) {
            self.did.borrow_mut().push("announce");
        }

        fn shutdown_times(&self) -> ShutdownTimes {
            self.times
        }

        fn shut_down(&self) {
            self.did.borrow_mut().push("shut down");
        }

        fn close_connections(&self) {
            self.did.borrow_mut().push("close");
        }

        fn reopen(&self, _signal: &str) {
            self.did.borrow_mut().push("open");
        }

        fn reload(&mut self) {
            self.did.borrow_mut().push("reload");
        }

        fn answer(&mut self, _: Question) -> Reply {
            Reply::Later(Box::new(|| Answer::refused("later")))
        }

        fn tick(&mut self) {}
    }

    /// Runs a server with two workers on the events `happens`. Returns the actions that it took, and how it ended.
    fn run(happens: Vec<Event>, times: ShutdownTimes) -> (Vec<&'static str>, End) {
        let (sender, receiver) = channel();
        for event in happens {
            sender.send(event).unwrap();
        }
        let mut control = Recorder {
            times,
            ..Recorder::default()
        };
        let end = handle_events(&Events { sender, receiver }, &mut control, 2, true);
        (control.did.into_inner(), end)
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
        let (did, end) = run(happens, ShutdownTimes::default());
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
            let (did, end) = run(happens, ShutdownTimes::default());
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
    fn no_signal_waits_for_an_answer_that_workers_owe() {
        let (sender, reply) = channel();
        let happens = vec![
            Event::Question(Question::Status, sender),
            Event::Signal(SIGUSR1),
            Event::Signal(SIGTERM),
            drained(),
            drained(),
        ];
        let (did, end) = run(happens, ShutdownTimes::default());
        assert_eq!((&did[..], end), (&["open", "shut down"][..], End::Drained));
        // The test waits for the answer as the client's thread would.
        let reply = reply.recv().unwrap();
        assert_eq!(reply.wait(), Answer::refused("later"));
    }

    #[test]
    fn the_status_is_told_during_the_shutdown_and_nothing_is_reloaded() {
        let questions = [Question::Status, Question::Reload, Question::Differences];
        let (senders, replies): (Vec<_>, Vec<_>) = questions.iter().map(|_| channel()).unzip();
        let asked = questions.into_iter().zip(senders);
        let mut happens = vec![Event::Signal(SIGTERM)];
        happens.extend(asked.map(|(question, sender)| Event::Question(question, sender)));
        happens.extend([drained(), drained()]);
        run(happens, ShutdownTimes::default());
        let answers: Vec<_> = replies
            .iter()
            .map(|reply| reply.recv().unwrap().wait())
            .collect();
        let refused = Answer::refused(SHUTTING_DOWN);
        assert_eq!(
            answers,
            [Answer::refused("later"), refused.clone(), refused]
        );
    }

    #[test]
    fn the_end_is_announced_before_the_shutdown_begins() {
        let times = ShutdownTimes {
            delay: Duration::from_millis(1),
            limit: Some(Duration::from_millis(1)),
        };
        let (did, end) = run(vec![Event::Signal(SIGTERM)], times);
        assert_eq!(did, ["announce", "shut down", "close"]);
        assert_eq!(end, End::Abandoned);
        // A second SIGTERM closes the connections without waiting for the delay.
        let times = ShutdownTimes {
            delay: Duration::from_secs(3600),
            limit: None,
        };
        let happens = vec![
            Event::Signal(SIGTERM),
            Event::Signal(SIGTERM),
            drained(),
            drained(),
        ];
        let (did, end) = run(happens, times);
        assert_eq!(did, ["announce", "close"]);
        assert_eq!(end, End::Drained);
    }

    #[test]
    fn no_connection_outlives_the_shutdown_timeout() {
        let times = ShutdownTimes {
            limit: Some(Duration::from_millis(1)),
            ..ShutdownTimes::default()
        };
        let (did, end) = run(vec![Event::Signal(SIGTERM)], times);
        assert_eq!(did, ["shut down", "close"]);
        // The main thread does not wait for workers that do not even close their connections: it abandons them.
        assert_eq!(end, End::Abandoned);
    }

    #[test]
    fn no_process_lives_on_when_a_worker_has_died() {
        let happens = vec![Event::Worker(WorkerEnd::Died)];
        let (did, end) = run(happens, ShutdownTimes::default());
        assert!(did.is_empty());
        assert_eq!(end, End::WorkerDied);
    }
}
