//! Messages of the server itself, which go to the error log.

use std::fmt::{Arguments, Write as _};
use std::io::{self, Write as _};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::standard::kept_error;
use crate::{Target, unix_time};

/// Severity of a message, as each line of the error log shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The server could not do something that the configuration or an operator asked for.
    Error,
    /// The server keeps running, but an operator should look at this.
    Warning,
    /// The server has done something, or something in its environment has changed.
    Notice,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Notice => "notice",
        }
    }
}

/// The error log. It is set when the server is about to serve; until then messages are written to standard error.
static ERROR_LOG: OnceLock<Arc<Target>> = OnceLock::new();

/// Writes a message to the error log; see [`crate::report!`].
pub fn report(level: Level, text: Arguments<'_>) {
    let now = unix_time();
    let lines = lines(level, &text.to_string(), now, zone());
    match ERROR_LOG.get() {
        Some(log) => log.write(lines.as_bytes(), now),
        // Unlike `eprintln`, does not panic when standard error is closed.
        None => {
            let _ = std::io::stderr().write_all(lines.as_bytes());
        }
    }
}

/// Writes a message to the error log. Each line begins with the time, the level and the process id:
/// `2026-11-22T10:11:12.345+01:00 [error] 1234: text`. Never waits once [`become_error_log`] was called: if the log is not
/// read, lines are dropped and counted.
///
/// Messages that a client can cause without limit go through a [`LineLimit`](crate::LineLimit).
///
/// ```
/// h2o_log::report!(warning, "backend {} is down", "10.0.0.1:80");
/// ```
#[macro_export]
macro_rules! report {
    (error, $($text:tt)*) => { $crate::report($crate::Level::Error, format_args!($($text)*)) };
    (warning, $($text:tt)*) => { $crate::report($crate::Level::Warning, format_args!($($text)*)) };
    (notice, $($text:tt)*) => { $crate::report($crate::Level::Notice, format_args!($($text)*)) };
}

/// Writes a line to standard error as it is, for messages that programs match while the server starts or checks a
/// configuration: `[FILE:LINE] in command NAME, TEXT`. H2O compatibility: H2O writes these lines without a time.
pub fn report_plainly(text: &str) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Makes `target`, which is open, the error log for all later messages. A second call has no effect.
///
/// # Errors
/// The system's error, if the thread of a log command cannot be started.
pub fn become_error_log(target: Arc<Target>) -> io::Result<()> {
    // The time zone is looked up here rather than by a worker: this may read a file.
    let _ = zone();
    target.watch()?;
    target.mark_as_error_log();
    let _ = ERROR_LOG.set(target);
    Ok(())
}

/// Writes an error message to the duplicate of standard error that [`keep_standard_streams`](crate::keep_standard_streams) made,
/// if there is one. Workers must not call this, since it may block.
pub(crate) fn report_at_start(text: &str) {
    if let Some(kept) = kept_error() {
        let lines = lines(Level::Error, text, unix_time(), zone());
        let _ = rustix::io::write(kept, lines.as_bytes());
    }
}

/// The error log; `None` before [`become_error_log`].
#[must_use]
pub fn error_log() -> Option<&'static Arc<Target>> {
    ERROR_LOG.get()
}

/// Waits up to a second until all messages are written. Later messages are lost.
pub fn close_error_log() {
    if let Some(log) = ERROR_LOG.get() {
        log.close();
    }
}

/// The system's time zone, looked up once, as C programs do.
fn zone() -> &'static TimeZone {
    static ZONE: OnceLock<TimeZone> = OnceLock::new();
    ZONE.get_or_init(TimeZone::system)
}

fn lines(level: Level, text: &str, at: Duration, zone: &TimeZone) -> String {
    let seconds = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
    let nanoseconds = i32::try_from(at.subsec_nanos()).unwrap_or(0);
    let at = Timestamp::new(seconds, nanoseconds).unwrap_or(Timestamp::MAX);
    let at = at.to_zoned(zone.clone());
    let (level, process) = (level.name(), std::process::id());
    let mut out = String::with_capacity(text.len() + 64);
    // Each line gets a prefix of its own, so that no part of a message can be mistaken for another message.
    for line in text.split('\n') {
        let time = at.strftime("%Y-%m-%dT%H:%M:%S%.3f%:z");
        let _ = write!(out, "{time} [{level}] {process}: ");
        // Clients and applications choose parts of messages: these must not control the terminal of whoever reads the log.
        for c in line.chars() {
            match c {
                '\t' => out.push(c),
                c if c.is_control() => {
                    let _ = write!(out, "\\x{:02x}", u32::from(c));
                }
                c => out.push(c),
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_lacks_its_time_its_level_and_its_process() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let at = Duration::from_millis(1_704_067_199_045);
        let id = std::process::id();
        for (level, word) in [
            (Level::Error, "error"),
            (Level::Warning, "warning"),
            (Level::Notice, "notice"),
        ] {
            let start = format!("2024-01-01T00:59:59.045+01:00 [{word}] {id}: ");
            assert_eq!(
                lines(level, "one\n\ttwo", at, &zone),
                format!("{start}one\n{start}\ttwo\n")
            );
            assert_eq!(
                lines(level, "a\x1b[31mb\r\0\u{7f}\u{9b}é", at, &zone),
                format!("{start}a\\x1b[31mb\\x0d\\x00\\x7f\\x9bé\n")
            );
        }
    }
}
