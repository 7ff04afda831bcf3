//! The time limits of the server role of an HTTP/1 connection.
//!
//! Reading and writing are timed separately, since a body may still arrive while its response is sent. Callers only see the
//! earliest deadline.

use std::time::{Duration, Instant};

use h2o_http::TimeLimit;

use crate::Settings;

/// Which time limit applies to receiving from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// No limit applies: the connection expects no input.
    Off,
    /// A request head is awaited until `until`. Once its first byte has arrived, `silence` limits each pause as well.
    Head {
        until: Instant,
        silence: Option<Instant>,
    },
    /// Content is awaited; `silence` is when the client's pause becomes too long.
    Body { silence: Instant },
    /// No limit applies for now: the caller does not read the body.
    Paused,
}

/// Which time limit applies to sending to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    /// No limit applies: no output is pending.
    Off,
    /// Output waits until the client reads; `silence` is when its pause becomes too long.
    Pending { silence: Instant },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers {
    reading: Reading,
    writing: Writing,
}

impl Timers {
    pub(crate) const fn new() -> Self {
        Self {
            reading: Reading::Off,
            writing: Writing::Off,
        }
    }

    pub(crate) fn await_head(&mut self, settings: &Settings, now: Instant) {
        self.reading = Reading::Head {
            until: after(now, settings.request_timeout),
            silence: None,
        };
    }

    pub(crate) fn await_body(&mut self, settings: &Settings, now: Instant) {
        self.reading = Reading::Body {
            silence: after(now, settings.io_timeout),
        };
    }

    /// Restarts the limit of the client's pause, since bytes have arrived.
    pub(crate) fn on_read(&mut self, settings: &Settings, now: Instant) {
        match &mut self.reading {
            Reading::Head { silence, .. } => *silence = Some(after(now, settings.io_timeout)),
            Reading::Body { silence } => *silence = after(now, settings.io_timeout),
            Reading::Off | Reading::Paused => {}
        }
    }

    pub(crate) const fn stop_reading(&mut self) {
        self.reading = Reading::Off;
    }

    /// Suspends the time limit of a body that the caller stops reading: the client is not to blame for the pause.
    pub(crate) fn pause_body(&mut self) {
        if self.is_reading_body() {
            self.reading = Reading::Paused;
        }
    }

    pub(crate) fn resume_body(&mut self, settings: &Settings, now: Instant) {
        if self.reading == Reading::Paused {
            self.await_body(settings, now);
        }
    }

    /// Whether the connection waits for content from the client.
    pub(crate) const fn is_reading_body(&self) -> bool {
        matches!(self.reading, Reading::Body { .. })
    }

    /// Whether output waits until the client reads.
    pub(crate) const fn is_writing(&self) -> bool {
        matches!(self.writing, Writing::Pending { .. })
    }

    /// Updates the limits after the socket accepted `written` bytes of output. `pending` tells whether more output waits to
    /// be written.
    ///
    /// H2O keeps its timer running between the writes of one response, which cuts off responses whose handler pauses. Here
    /// the timer is stopped whenever no output waits to be written.
    pub(crate) fn on_written(
        &mut self,
        written: usize,
        pending: bool,
        settings: &Settings,
        now: Instant,
    ) {
        if !pending {
            self.writing = Writing::Off;
            return;
        }
        if written > 0 || !self.is_writing() {
            self.writing = Writing::Pending {
                silence: after(now, settings.io_timeout),
            };
        }
    }

    /// Removes all limits; used when the connection becomes a tunnel.
    pub(crate) const fn stop(&mut self) {
        *self = Self::new();
    }

    /// The earliest deadline of reading and writing.
    pub(crate) fn next(&self) -> Option<Instant> {
        let read = match self.reading {
            Reading::Off | Reading::Paused => None,
            Reading::Head { until, silence } => {
                Some(silence.map_or(until, |silence| silence.min(until)))
            }
            Reading::Body { silence } => Some(silence),
        };
        let write = match self.writing {
            Writing::Off => None,
            Writing::Pending { silence } => Some(silence),
        };
        [read, write].into_iter().flatten().min()
    }

    /// The time limit that has expired at `now`, if any.
    pub(crate) fn passed(&self, first_request: bool, now: Instant) -> Option<TimeLimit> {
        match self.reading {
            Reading::Head { until, silence }
                if until <= now || silence.is_some_and(|silence| silence <= now) =>
            {
                return Some(TimeLimit::Head { first_request });
            }
            Reading::Body { silence } if silence <= now => return Some(TimeLimit::Read),
            Reading::Off | Reading::Paused | Reading::Head { .. } | Reading::Body { .. } => {}
        }
        match self.writing {
            Writing::Pending { silence } if silence <= now => Some(TimeLimit::Write),
            Writing::Off | Writing::Pending { .. } => None,
        }
    }
}

/// The sum `now + limit`, which does not overflow for any limit that a configuration can have.
fn after(now: Instant, limit: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 366 * 86_400);
    now.checked_add(limit).unwrap_or_else(|| now + CENTURY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            request_timeout: Duration::from_secs(10),
            io_timeout: Duration::from_secs(5),
            ..Settings::default()
        }
    }

    fn start() -> Instant {
        #[expect(
            clippy::disallowed_methods,
            reason = "the test may begin at any instant"
        )]
        Instant::now()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn heads_are_bounded_as_a_whole_and_by_silence() {
        let (settings, start) = (settings(), start());
        let mut timers = Timers::new();
        assert_eq!(timers.next(), None);
        timers.await_head(&settings, start);
        assert_eq!(timers.next(), Some(start + 10 * SECOND));
        timers.on_read(&settings, start);
        assert_eq!(timers.next(), Some(start + 5 * SECOND));
        for second in [4, 8] {
            let now = start + second * SECOND;
            assert_eq!(timers.passed(true, now), None);
            timers.on_read(&settings, now);
        }
        assert_eq!(timers.next(), Some(start + 10 * SECOND));
        let passed = timers.passed(true, start + 10 * SECOND);
        assert_eq!(
            passed,
            Some(TimeLimit::Head {
                first_request: true
            })
        );
    }

    #[test]
    fn bodies_are_bounded_by_silence() {
        let (settings, start) = (settings(), start());
        let mut timers = Timers::new();
        timers.await_body(&settings, start);
        assert!(timers.is_reading_body());
        assert_eq!(timers.next(), Some(start + 5 * SECOND));
        timers.on_read(&settings, start + 4 * SECOND);
        assert_eq!(timers.passed(true, start + 8 * SECOND), None);
        let passed = timers.passed(true, start + 9 * SECOND);
        assert_eq!(passed, Some(TimeLimit::Read));
    }

    #[test]
    fn time_we_do_not_read_is_not_the_clients() {
        let (settings, start) = (settings(), start());
        let mut timers = Timers::new();
        timers.pause_body();
        assert_eq!(timers.next(), None);
        timers.await_body(&settings, start);
        timers.pause_body();
        assert_eq!(timers.next(), None);
        timers.pause_body();
        timers.on_read(&settings, start + 5 * SECOND);
        assert!(timers.next().is_none() && !timers.is_reading_body());
        let resumed = start + 1000 * SECOND;
        timers.resume_body(&settings, resumed);
        assert_eq!(timers.next(), Some(resumed + 5 * SECOND));
    }

    #[test]
    fn writing_is_timed_only_while_bytes_wait() {
        let (settings, start) = (settings(), start());
        let mut timers = Timers::new();
        timers.on_written(100, false, &settings, start);
        assert_eq!(timers.next(), None);
        timers.on_written(100, true, &settings, start);
        assert!(timers.is_writing());
        assert_eq!(timers.next(), Some(start + 5 * SECOND));
        timers.on_written(0, true, &settings, start + SECOND);
        assert_eq!(timers.next(), Some(start + 5 * SECOND));
        timers.on_written(1, true, &settings, start + 2 * SECOND);
        assert_eq!(timers.next(), Some(start + 7 * SECOND));
        let passed = timers.passed(true, start + 7 * SECOND);
        assert_eq!(passed, Some(TimeLimit::Write));
        timers.on_written(1, false, &settings, start + 20 * SECOND);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn limits_of_any_size_are_accepted() {
        let huge = Settings {
            request_timeout: Duration::MAX,
            io_timeout: Duration::MAX,
            ..Settings::default()
        };
        let mut timers = Timers::new();
        timers.await_body(&huge, start());
        assert!(timers.next().is_some());
    }
}
