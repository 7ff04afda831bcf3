//! Messages of the server itself.

use std::fmt::Arguments;
use std::io::Write;

/// Writes a line to standard error, which is the error log while the server runs; see [`crate::report!`].
pub fn report(text: Arguments<'_>) {
    let line = format!("{text}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// As the standard library's `eprintln`, which panics when writing fails: a full disk or a dead log command
/// must not end a worker. The line is lost instead.
#[macro_export]
macro_rules! report {
    ($($text:tt)*) => { $crate::report(format_args!($($text)*)) };
}
