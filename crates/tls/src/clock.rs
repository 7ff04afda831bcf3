//! Wall-clock time, for the lifetimes of tickets and sessions.

use std::time::{SystemTime, UNIX_EPOCH};

/// The present time in seconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "only handshakes read the clock here, and rustls reads the clock for them, too"
)]
pub(crate) fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}
