//! The time limits of the server role.
//!
//! Reading and writing are timed apart, as a body may still come in while its response goes out. Only
//! the earliest moment leaves the crate.

use std::time::{Duration, Instant};

use crate::Settings;

/// What a client was too slow with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedOut {
    /// No complete head in time; also how an idle connection ends.
    Head {
        /// True before the first request of the connection, which the access log records.
        first_request: bool,
    },
    /// Silence within a body.
    Read,
    /// A body that comes in more slowly than the settings allow.
    BodyRate,
    /// The client takes our octets not at all, or too slowly.
    Write,
}

/// Limits on what the client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// Nothing is awaited from the client.
    Off,
    /// A head is awaited; the whole of it is bounded, silence only once it has begun.
    Head {
        until: Instant,
        silence: Option<Instant>,
    },
    /// A body is awaited.
    Body { since: Instant, silence: Instant },
    /// The rest of a body is not wanted for now; `spent` of the time that counts has passed.
    Paused { spent: Duration },
}

/// Limits on what the client takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    /// Nothing waits to be written.
    Off,
    /// `written` octets have left since `since`, and more wait.
    Pending {
        since: Instant,
        silence: Instant,
        written: u64,
    },
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
            since: now,
            silence: after(now, settings.io_timeout),
        };
    }

    /// The client was heard.
    pub(crate) fn on_read(&mut self, settings: &Settings, now: Instant) {
        match &mut self.reading {
            Reading::Head { silence, .. } => *silence = Some(after(now, settings.io_timeout)),
            Reading::Body { silence, .. } => *silence = after(now, settings.io_timeout),
            Reading::Off | Reading::Paused { .. } => {}
        }
    }

    pub(crate) const fn stop_reading(&mut self) {
        self.reading = Reading::Off;
    }

    /// We stop reading a body: the client's silence is ours from here on.
    pub(crate) fn pause_body(&mut self, now: Instant) {
        if let Reading::Body { since, .. } = self.reading {
            self.reading = Reading::Paused {
                spent: now.saturating_duration_since(since),
            };
        }
    }

    pub(crate) fn resume_body(&mut self, settings: &Settings, now: Instant) {
        if let Reading::Paused { spent } = self.reading {
            self.reading = Reading::Body {
                since: now.checked_sub(spent).unwrap_or(now),
                silence: after(now, settings.io_timeout),
            };
        }
    }

    /// `written` octets left, and more are or are not `pending`.
    ///
    /// H2O keeps its timer running between the writes of one response, which cuts off responses whose
    /// handler pauses; here it is off whenever nothing waits to be written.
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
        match &mut self.writing {
            Writing::Off => {
                self.writing = Writing::Pending {
                    since: now,
                    silence: after(now, settings.io_timeout),
                    written: 0,
                };
            }
            Writing::Pending {
                silence,
                written: sum,
                ..
            } if written > 0 => {
                *silence = after(now, settings.io_timeout);
                *sum = sum.saturating_add(written as u64);
            }
            Writing::Pending { .. } => {}
        }
    }

    /// Neither side is timed from here on: a tunnel.
    pub(crate) const fn stop(&mut self) {
        *self = Self::new();
    }

    /// The earliest limit. `received` counts the octets of the body so far.
    pub(crate) fn next(&self, settings: &Settings, received: u64) -> Option<Instant> {
        let read = match self.reading {
            Reading::Off | Reading::Paused { .. } => None,
            Reading::Head { until, silence } => earlier(until, silence),
            Reading::Body { since, silence } => {
                earlier(silence, rate_limit(settings, since, received))
            }
        };
        let write = match self.writing {
            Writing::Off => None,
            Writing::Pending {
                since,
                silence,
                written,
            } => earlier(silence, rate_limit(settings, since, written)),
        };
        [read, write].into_iter().flatten().min()
    }

    /// The limit that has passed at `now`, if one has.
    pub(crate) fn passed(
        &self,
        settings: &Settings,
        received: u64,
        first_request: bool,
        now: Instant,
    ) -> Option<TimedOut> {
        let rate_passed =
            |since, octets| rate_limit(settings, since, octets).is_some_and(|limit| limit <= now);
        match self.reading {
            Reading::Head { until, silence }
                if until <= now || silence.is_some_and(|silence| silence <= now) =>
            {
                return Some(TimedOut::Head { first_request });
            }
            Reading::Body { silence, .. } if silence <= now => return Some(TimedOut::Read),
            Reading::Body { since, .. } if rate_passed(since, received) => {
                return Some(TimedOut::BodyRate);
            }
            Reading::Off | Reading::Paused { .. } | Reading::Head { .. } | Reading::Body { .. } => {
            }
        }
        match self.writing {
            Writing::Pending {
                since,
                silence,
                written,
            } if silence <= now || rate_passed(since, written) => Some(TimedOut::Write),
            Writing::Off | Writing::Pending { .. } => None,
        }
    }
}

fn earlier(one: Instant, other: Option<Instant>) -> Option<Instant> {
    Some(other.map_or(one, |other| one.min(other)))
}

/// When a transfer of `octets` since `since` will have fallen below the lowest rate; `None` for never.
fn rate_limit(settings: &Settings, since: Instant, octets: u64) -> Option<Instant> {
    let millis = octets
        .saturating_mul(1000)
        .checked_div(u64::from(settings.body_min_rate))?;
    since.checked_add(settings.body_grace.max(Duration::from_millis(millis)))
}

/// `now + limit`, for any limit a configuration can hold.
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
            body_min_rate: 500,
            body_grace: Duration::from_secs(20),
            ..Settings::default()
        }
    }

    fn start() -> Instant {
        #[expect(clippy::disallowed_methods, reason = "any moment will do")]
        Instant::now()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn heads_are_bounded_as_a_whole_and_by_silence() {
        let (settings, start) = (settings(), start());
        let mut timers = Timers::new();
        assert_eq!(timers.next(&settings, 0), None);
        timers.await_head(&settings, start);
        assert_eq!(timers.next(&settings, 0), Some(start + 10 * SECOND));
        timers.on_read(&settings, start);
        assert_eq!(timers.next(&settings, 0), Some(start + 5 * SECOND));
        for second in [4, 8] {
            let now = start + second * SECOND;
            assert_eq!(timers.passed(&settings, 0, true, now), None);
            timers.on_read(&settings, now);
        }
        assert_eq!(timers.next(&settings, 0), Some(start + 10 * SECOND));
        let passed = timers.passed(&settings, 0, true, start + 10 * SECOND);
        assert_eq!(
            passed,
            Some(TimedOut::Head {
                first_request: true
            })
        );
    }

    #[test]
    fn bodies_are_bounded_by_silence_and_after_a_while_by_rate() {
        let (settings, start) = (settings(), start());
        let mut timers = Timers::new();
        timers.await_body(&settings, start);
        assert_eq!(timers.next(&settings, 0), Some(start + 5 * SECOND));
        assert_eq!(
            timers.passed(&settings, 0, true, start + 5 * SECOND),
            Some(TimedOut::Read)
        );
        timers.on_read(&settings, start + 18 * SECOND);
        // 10,000 octets last for 20 seconds, 10,500 for 21.
        for (received, limit) in [(0, 20), (10_000, 20), (10_500, 21), (u64::MAX, 23)] {
            let limit = start + limit * SECOND;
            assert_eq!(timers.next(&settings, received), Some(limit));
            let before = limit - Duration::from_millis(1);
            assert_eq!(timers.passed(&settings, received, true, before), None);
            assert!(timers.passed(&settings, received, true, limit).is_some());
        }
        let passed = timers.passed(&settings, 10_500, true, start + 21 * SECOND);
        assert_eq!(passed, Some(TimedOut::BodyRate));
        let unlimited = Settings {
            body_min_rate: 0,
            ..settings
        };
        assert_eq!(timers.next(&unlimited, 0), Some(start + 23 * SECOND));
    }

    #[test]
    fn time_we_do_not_read_is_not_the_clients() {
        let (settings, start) = (settings(), start());
        let mut timers = Timers::new();
        timers.pause_body(start);
        assert_eq!(timers.next(&settings, 0), None);
        timers.await_body(&settings, start);
        timers.pause_body(start + 3 * SECOND);
        assert_eq!(timers.next(&settings, 0), None);
        timers.pause_body(start + 4 * SECOND);
        timers.on_read(&settings, start + 5 * SECOND);
        let resumed = start + 1000 * SECOND;
        timers.resume_body(&settings, resumed);
        assert_eq!(timers.next(&settings, 0), Some(resumed + 5 * SECOND));
        timers.on_read(&settings, resumed + 15 * SECOND);
        // Three of the twenty seconds of grace are spent.
        assert_eq!(timers.next(&settings, 0), Some(resumed + 17 * SECOND));
    }

    #[test]
    fn writing_is_timed_only_while_octets_wait() {
        let (settings, start) = (settings(), start());
        let mut timers = Timers::new();
        timers.on_written(100, false, &settings, start);
        assert_eq!(timers.next(&settings, 0), None);
        timers.on_written(100, true, &settings, start);
        assert_eq!(timers.next(&settings, 0), Some(start + 5 * SECOND));
        timers.on_written(0, true, &settings, start + SECOND);
        assert_eq!(timers.next(&settings, 0), Some(start + 5 * SECOND));
        timers.on_written(1, true, &settings, start + 2 * SECOND);
        assert_eq!(timers.next(&settings, 0), Some(start + 7 * SECOND));
        assert_eq!(
            timers.passed(&settings, 0, true, start + 7 * SECOND),
            Some(TimedOut::Write)
        );
        // An octet every four seconds is progress, but not enough of it.
        for second in (4..20).step_by(4) {
            timers.on_written(1, true, &settings, start + second * SECOND);
        }
        assert_eq!(timers.next(&settings, 0), Some(start + 20 * SECOND));
        timers.on_written(20_000, true, &settings, start + 19 * SECOND);
        assert_eq!(timers.next(&settings, 0), Some(start + 24 * SECOND));
        timers.on_written(1, false, &settings, start + 20 * SECOND);
        assert_eq!(timers.next(&settings, 0), None);
    }

    #[test]
    fn limits_of_any_size_are_accepted() {
        let huge = Settings {
            request_timeout: Duration::MAX,
            io_timeout: Duration::MAX,
            body_grace: Duration::MAX,
            body_min_rate: 1,
            ..Settings::default()
        };
        let mut timers = Timers::new();
        timers.await_body(&huge, start());
        assert!(timers.next(&huge, u64::MAX).is_some());
    }
}
