//! Limits work that takes a processor for long on purpose, such as checking passwords: other threads do it, a few
//! pieces at a time.

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Number of these pieces of work that other threads do for a worker at a time, because each occupies a processor.
/// Further pieces wait.
const AT_ONCE: usize = 2;

/// The pieces of work that a worker may have done at a time.
pub(crate) struct Turns(Semaphore);

impl Default for Turns {
    fn default() -> Self {
        Self(Semaphore::new(AT_ONCE))
    }
}

impl Turns {
    /// Waits until the work may be done, and returns its result; `None` if the work panicked.
    pub(crate) async fn take<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let _turn = self.0.acquire().await;
        spawn_blocking(work).await.ok()
    }
}
