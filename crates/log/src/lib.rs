//! Logs: the server's own messages ([`report!`]), and the targets that lines of any log are written to ([`Target`]).
//!
//! A worker never waits for a log. Files are written to at once; pipes, sockets, devices and the standard error of the
//! starting process get what they have room for, and the rest is queued, up to a limit, for a helper thread that waits for
//! the reader.

mod limit;
mod report;
mod rotator;
mod standard;
mod stream;
mod target;

use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use h2o_opener::{Rotation, will_rotate};
pub use limit::{HeldBack, LineLimit};
pub use report::{Level, become_error_log, close_error_log, error_log, report, report_plainly};
pub use rotator::{Rotator, follow_rotation};
pub use standard::keep_standard_streams;
pub use target::{RunningTarget, Target};

/// The text of an error, without the error number that Rust puts behind it.
#[must_use]
pub fn reason(error: &io::Error) -> String {
    let mut text = error.to_string();
    if let Some(at) = text.rfind(" (os error ") {
        text.truncate(at);
    }
    text
}

#[expect(
    clippy::disallowed_methods,
    reason = "messages come from threads without a worker's clock, and are rare"
)]
fn unix_time() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

#[expect(
    clippy::disallowed_methods,
    reason = "threads that wait for a log have no worker's clock"
)]
fn now() -> Instant {
    Instant::now()
}
