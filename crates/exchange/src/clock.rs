//! A worker's clock, normally read once per turn of the event loop.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// After this many uses within a turn of the event loop the system's clocks are read again, so that the time advances
/// during a long turn.
const LOOKS_PER_READ: u32 = 1000;

/// One in this many turns of the event loop is timed, for the average duration.
const TURNS_PER_SAMPLE: u32 = 8;

/// A coarse clock. The event loop calls [`Clock::begin_turn`]; the first use of the clock in a turn reads the system's
/// clocks, later uses in the turn return the same time.
pub struct Clock {
    turn: Cell<u64>,
    looks: Cell<u32>,
    now: Cell<Instant>,
    unix: Cell<Duration>,
    /// Average duration of a turn of the event loop.
    turn_time: Cell<Duration>,
    turns_until_sample: Cell<u32>,
    date: Cell<(u64, [u8; h2o_http::date::LEN])>,
}

impl Default for Clock {
    fn default() -> Self {
        let (now, unix) = read();
        Self {
            turn: Cell::new(1),
            looks: Cell::new(0),
            now: Cell::new(now),
            unix: Cell::new(unix),
            turn_time: Cell::new(Duration::ZERO),
            turns_until_sample: Cell::new(0),
            date: Cell::new((u64::MAX, [0; 29])),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "only this function reads the system's clocks; other code uses the worker's clock"
)]
fn read() -> (Instant, Duration) {
    (
        // Reads the clock of tokio, which tests can pause.
        tokio::time::Instant::now().into_std(),
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    )
}

impl Clock {
    /// Begins a turn of the event loop: the next use of the clock reads the system's clocks.
    pub fn begin_turn(&self) {
        self.turn.set(self.turn.get() + 1);
        self.looks.set(0);
    }

    /// Begins a round within a turn of the event loop: more input was received, so facts that were checked before (such
    /// as a file's mtime) must be checked again. The time stays the same.
    pub fn begin_round(&self) {
        self.turn.set(self.turn.get() + 1);
    }

    /// Ends the turn: the event loop is about to wait.
    pub fn end_turn(&self) {
        let turns = self.turns_until_sample.get();
        self.turns_until_sample.set(turns.saturating_sub(1));
        // A turn without work does not use the clock, and is not timed.
        if turns == 0 && self.looks.get() > 0 {
            self.turns_until_sample.set(TURNS_PER_SAMPLE - 1);
            let took = read().0.saturating_duration_since(self.now.get());
            self.turn_time.set((self.turn_time.get() * 7 + took) / 8);
        }
    }

    /// Average duration of the recent turns of the event loop.
    #[must_use]
    pub fn turn_time(&self) -> Duration {
        self.turn_time.get()
    }

    /// Number of the current round, see [`Clock::begin_round`]. A fact checked in this round need not be checked again.
    #[must_use]
    pub fn turn(&self) -> u64 {
        self.turn.get()
    }

    #[inline]
    fn refresh(&self) {
        let looks = self.looks.get();
        if looks == 0 {
            self.read();
        }
        self.looks.set(if looks >= LOOKS_PER_READ {
            0
        } else {
            looks + 1
        });
    }

    #[cold]
    fn read(&self) {
        let (now, unix) = read();
        self.now.set(now);
        self.unix.set(unix);
    }

    /// The monotonic time in this turn of the event loop.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        self.refresh();
        self.now.get()
    }

    /// The wall-clock time in this turn of the event loop, since the Unix epoch.
    #[must_use]
    pub fn unix(&self) -> Duration {
        self.refresh();
        self.unix.get()
    }

    /// The wall-clock time as an IMF-fixdate, formatted once per second.
    #[must_use]
    pub fn date(&self) -> [u8; h2o_http::date::LEN] {
        let seconds = self.unix().as_secs();
        let (made, text) = self.date.get();
        if made == seconds {
            return text;
        }
        let text = h2o_http::date::format(i64::try_from(seconds).unwrap_or(i64::MAX));
        self.date.set((seconds, text));
        text
    }
}
