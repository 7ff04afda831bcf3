//! The time of the system.

use h2o_exchange::Clock;

/// The time in seconds since the Unix epoch.
pub(crate) fn now() -> i64 {
    i64::try_from(Clock::default().unix().as_secs()).unwrap_or(i64::MAX)
}
