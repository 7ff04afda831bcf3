//! Congestion windows that the application does not fill (RFC 9002 §7.8, RFC 7661).

use std::time::{Duration, Instant};

/// How long a window that the application does not fill stays valid (RFC 7661 §4.4).
const VALID_FOR: Duration = Duration::from_secs(300);

/// Observes how much of a congestion window is used.
#[derive(Clone, Debug)]
pub(crate) struct Underuse {
    /// Whether the window does not grow while the application does not fill it.
    is_respected: bool,
    /// The highest number of bytes in flight in the current period of one second, and in the period before.
    used: [u64; 2],
    period_began: Option<Instant>,
    /// When at least half of the window was last in use (RFC 7661 §4.2).
    validated: Option<Instant>,
}

impl Underuse {
    pub(crate) fn new(is_respected: bool) -> Self {
        Self {
            is_respected,
            used: [0; 2],
            period_began: None,
            validated: None,
        }
    }

    /// Handles packets having been sent; `in_flight` includes them. Returns whether so little of the window has been used
    /// for so long that it says nothing about the path any more.
    pub(crate) fn on_sent(&mut self, now: Instant, in_flight: u64, window: u64) -> bool {
        let began = *self.period_began.get_or_insert(now);
        if now.saturating_duration_since(began) >= Duration::from_secs(1) {
            self.used = [0, self.used[0]];
            self.period_began = Some(now);
        }
        self.used[0] = self.used[0].max(in_flight);
        let validated = *self.validated.get_or_insert(now);
        if self.pipe() * 2 >= window {
            self.validated = Some(now);
            return false;
        }
        let is_stale = now.saturating_duration_since(validated) >= VALID_FOR;
        if is_stale {
            self.validated = Some(now);
        }
        is_stale
    }

    /// The highest number of bytes in flight within the last one to two seconds (`pipeACK` of RFC 7661).
    pub(crate) fn pipe(&self) -> u64 {
        self.used[0].max(self.used[1])
    }

    /// Whether acknowledgements may let the congestion window grow.
    pub(crate) fn may_grow(&self, app_limited: bool, window: u64) -> bool {
        !self.is_respected || !app_limited || self.pipe() * 2 >= window
    }

    /// The congestion window that the reaction to a loss starts from: the bytes recently in flight, if they were less than half of
    /// `window` (RFC 7661 §4.4.1).
    pub(crate) fn before_loss(&self, window: u64) -> u64 {
        if self.pipe() * 2 < window {
            self.pipe()
        } else {
            window
        }
    }
}
