//! Work that takes a processor for long on purpose, as checking passwords does: done by other threads, a few at a time.

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// How many of these pieces of work a worker has done at a time: each occupies a processor. Others wait for their turn.
const AT_ONCE: usize = 2;

/// The turns of a worker.
pub(crate) struct Turns(Semaphore);

impl Default for Turns {
    fn default() -> Self {
        Self(Semaphore::new(AT_ONCE))
    }
}

impl Turns {
    /// The result of the work, once its turn has come; `None` if the work panicked.
    pub(crate) async fn take<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let _turn = self.0.acquire().await;
        spawn_blocking(work).await.ok()
    }
}
