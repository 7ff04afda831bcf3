//! A runtime whose clock stands, for tests with sockets and threads.
//!
//! A paused clock of tokio goes on to the next timer whenever the runtime has nothing to do, and a runtime that waits for a
//! socket has nothing to do. Here time passes when the test says so.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::mpsc;
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions};

/// Runs a test on a clock that stands, but for [`pass`].
///
/// # Panics
/// If the test does, or if it takes longer than 20 seconds of real time.
pub fn on_standing_clock<T>(test: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build_local(LocalOptions::default());
    runtime.expect("a runtime").block_on(async {
        // The runtime leaves the clock alone while such a task runs.
        let (is_over, wait) = mpsc::channel::<()>();
        let patience = Duration::from_secs(20);
        let mut patience = tokio::task::spawn_blocking(move || wait.recv_timeout(patience));
        let mut test = pin!(test);
        let outcome = poll_fn(|task| {
            let is_too_long = pin!(&mut patience).poll(task).is_ready();
            assert!(!is_too_long, "nothing takes that long");
            test.as_mut().poll(task)
        });
        let outcome = outcome.await;
        drop(is_over);
        outcome
    })
}

/// Has the runtime do all it can do now. What peers have sent, or taken, before is seen.
pub async fn settle() {
    // It looks at its sockets after 61 tasks at the latest.
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Lets time pass, on a clock that stands otherwise.
pub async fn pass(time: Duration) {
    settle().await;
    tokio::time::advance(time).await;
    settle().await;
}

/// Waits for what a thread or a task does.
pub async fn until<T>(mut outcome: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(outcome) = outcome() {
            return outcome;
        }
        settle().await;
        std::thread::sleep(Duration::from_millis(1));
    }
}
