//! A runtime with a virtual clock, for tests without sockets and threads.

use tokio::runtime::{Builder, LocalOptions};

/// Runs a test, and the tasks that it spawns, on a clock that advances to the next timer whenever all tasks wait.
///
/// # Panics
/// If the test panics.
pub fn on_virtual_clock<T>(test: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build_local(LocalOptions::default());
    runtime.expect("a runtime starts").block_on(test)
}
