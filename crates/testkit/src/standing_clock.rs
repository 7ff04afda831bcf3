//! A runtime whose clock stands still, for tests with sockets and threads.
//!
//! Tokio's paused clock advances to the next timer whenever the runtime is idle, and a runtime that waits for a socket is idle. On
//! this runtime the clock advances only when the test calls [`pass`].

use std::future::poll_fn;
use std::pin::pin;
use std::sync::mpsc;
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions};

/// Runs a test on a clock that advances only by [`pass`].
///
/// # Panics
/// If the test panics, or takes longer than 20 seconds of real time.
pub fn on_standing_clock<T>(test: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build_local(LocalOptions::default());
    runtime.expect("a runtime starts").block_on(async {
        // While a blocking task runs, tokio does not advance its paused clock. So this blocking task runs until the test is over.
        let (is_over, wait) = mpsc::channel::<()>();
        let patience = Duration::from_secs(20);
        let mut patience = tokio::task::spawn_blocking(move || wait.recv_timeout(patience));
        let mut test = pin!(test);
        let outcome = poll_fn(|task| {
            let is_too_long = pin!(&mut patience).poll(task).is_ready();
            assert!(!is_too_long, "the test ends within its time limit");
            test.as_mut().poll(task)
        });
        let outcome = outcome.await;
        drop(is_over);
        outcome
    })
}

/// Lets the runtime run all tasks as far as they can go now. This includes reading the bytes that peers have sent.
pub async fn settle() {
    // The runtime polls its sockets at least every 61 tasks, so several times during these yields.
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Advances the clock by `time`, and lets all tasks run before and after that.
pub async fn pass(time: Duration) {
    settle().await;
    tokio::time::advance(time).await;
    settle().await;
}

/// Lets all tasks run until `outcome` returns a value, for which another thread or task may be needed.
pub async fn until<T>(mut outcome: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(outcome) = outcome() {
            return outcome;
        }
        settle().await;
        std::thread::sleep(Duration::from_millis(1));
    }
}
