//! Limits the number of log messages that clients can cause.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::unix_time;

/// Lets through a number of messages of one kind per minute and counts the others.
///
/// ```
/// static REFUSED: h2o_log::LineLimit = h2o_log::LineLimit::per_minute(10);
/// if let Some(held_back) = REFUSED.admit() {
///     h2o_log::report!(warning, "TLS handshake with 192.0.2.1 failed{held_back}");
/// }
/// ```
pub struct LineLimit {
    lines: u32,
    state: Mutex<Minute>,
}

struct Minute {
    /// The minute for which messages are counted, as a number of minutes since the Unix epoch.
    number: u64,
    admitted: u32,
    held_back: u64,
}

/// How many messages were held back before this one. Displayed after the text of a message: empty, or ` (N more of these
/// were left out)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBack(u64);

impl LineLimit {
    /// Lets this many messages through in each minute of the clock.
    #[must_use]
    pub const fn per_minute(lines: u32) -> Self {
        Self {
            lines,
            state: Mutex::new(Minute {
                number: 0,
                admitted: 0,
                held_back: 0,
            }),
        }
    }

    /// Counts a message. Returns `None` if the message must not be written, because the limit of this minute is
    /// reached.
    pub fn admit(&self) -> Option<HeldBack> {
        self.admit_in(unix_time().as_secs() / 60)
    }

    fn admit_in(&self, minute: u64) -> Option<HeldBack> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.number != minute {
            state.number = minute;
            state.admitted = 0;
        }
        if state.admitted == self.lines {
            state.held_back += 1;
            return None;
        }
        state.admitted += 1;
        Some(HeldBack(std::mem::take(&mut state.held_back)))
    }
}

impl fmt::Display for HeldBack {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(out, " ({count} more of these were left out)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_message_beyond_the_limit_is_written_and_none_is_forgotten() {
        let limit = LineLimit::per_minute(2);
        let admitted = |minute| limit.admit_in(minute).map(|held| held.to_string());
        assert_eq!(admitted(7).as_deref(), Some(""));
        assert_eq!(admitted(7).as_deref(), Some(""));
        for _ in 0..5 {
            assert_eq!(admitted(7), None);
        }
        assert_eq!(
            admitted(8).as_deref(),
            Some(" (5 more of these were left out)")
        );
        assert_eq!(admitted(8).as_deref(), Some(""));
        assert_eq!(admitted(8), None);
    }
}
