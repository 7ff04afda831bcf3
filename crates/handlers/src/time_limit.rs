//! Time limits in milliseconds, as values of directives.

use std::time::Duration;

use h2o_config::{Command, Error, Unit};
use h2o_exchange::Scope;

/// The value of a directive, which must be a number of milliseconds.
///
/// # Errors
/// If it is something else.
pub(crate) fn milliseconds(command: &Command<'_>) -> Result<Duration, Error> {
    let limit = (command.node).quantity(Unit::Milliseconds, "%lu", 0..=u64::MAX)?;
    Ok(Duration::from_millis(limit))
}

/// Like [`milliseconds`], for a limit that applies to each request: with 0 every request fails, of which the administrator is warned.
///
/// # Errors
/// As for [`milliseconds`].
pub(crate) fn time_limit(scope: &mut Scope, command: &Command<'_>) -> Result<Duration, Error> {
    let limit = milliseconds(command)?;
    scope.warn_of_no_time(command, limit, "with `0`, every request fails at once");
    Ok(limit)
}
