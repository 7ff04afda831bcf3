//! Catches signals for the server and for the supervisor; a thread receives them as values.

use std::sync::Arc;

use h2o_log::reason;
use signal_hook::consts::SIGXFSZ;
use signal_hook::iterator::Signals;

use crate::Failure;

/// Catches `signals`: from here on they are kept for [`forward`] and do not kill the process. SIGXFSZ is ignored, so that a file at its
/// size limit (RLIMIT_FSIZE) makes a write fail, as a full disk does. Commands that the process starts have the default signal handlers.
///
/// # Errors
/// If the system refuses.
pub(crate) fn catch(signals: &[i32]) -> Result<Signals, Failure> {
    signal_hook::flag::register(SIGXFSZ, Arc::default())
        .and_then(|_| Signals::new(signals))
        .map_err(|error| {
            Failure::system(format!(
                "failed to register signal handlers: {}",
                reason(&error)
            ))
        })
}

/// Starts the thread that passes signals to `receive` until that function returns `false`. Signals that arrived since
/// [`catch`] come first.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn forward(
    mut signals: Signals,
    receive: impl Fn(i32) -> bool + Send + 'static,
) -> Result<(), Failure> {
    let forward = move || {
        for signal in signals.forever() {
            if !receive(signal) {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("h2o-signals".to_owned());
    thread.spawn(forward).map(drop).map_err(|error| {
        Failure::system(format!(
            "failed to start the thread that receives signals: {}",
            reason(&error)
        ))
    })
}
