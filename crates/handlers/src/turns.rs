//! Limits work that takes a processor for long on purpose, such as checking passwords: other threads do it, a few
//! pieces at a time.

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Most pieces of such work (which takes a processor for long) that other threads do for a worker at a time. Further
/// pieces wait.
const AT_ONCE: usize = 2;

/// Limits how many pieces of work that takes a processor for long are done for a worker at a time.
pub(crate) struct Turns(Semaphore);

impl Default for Turns {
    fn default() -> Self {
        Self(Semaphore::new(AT_ONCE))
    }
}

impl Turns {
    /// Waits until fewer than [`AT_ONCE`] pieces of work are being done, has another thread do `work`, and returns its
    /// result; `None` if the work panicked.
    pub(crate) async fn take<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let _turn = self.0.acquire().await;
        spawn_blocking(work).await.ok()
    }
}
