//! Time limits of a worker's exchanges: coarse, and cheap to move, since they are moved with every step forward.
//!
//! A connection has one entry for its whole life; setting it is a store. One task per worker looks at all entries ten times a
//! second, as long as any is set, and wakes those whose time has come. No exchange has a timer of the runtime.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use h2o_exchange::Worker;
use slab::Slab;

/// How often the entries are looked at. Limits are long; being late by this is in order.
const STEP: Duration = Duration::from_millis(100);

/// The time limits of a worker.
#[derive(Default)]
pub(crate) struct Deadlines {
    entries: RefCell<Slab<Entry>>,
    is_ticking: Cell<bool>,
}

#[derive(Default)]
struct Entry {
    at: Option<Instant>,
    has_passed: bool,
    waker: Option<Waker>,
}

/// One time limit.
pub(crate) struct Deadline {
    all: Rc<Deadlines>,
    key: usize,
}

impl Deadline {
    /// A limit that is not set.
    pub(crate) fn new(worker: &Rc<Worker>) -> Self {
        let all = worker.local::<Deadlines>();
        let key = all.entries.borrow_mut().insert(Entry::default());
        Self { all, key }
    }

    /// Sets or moves the limit.
    ///
    /// Must run in a local runtime of tokio.
    pub(crate) fn set(&self, at: Instant) {
        if !self.all.is_ticking.replace(true) {
            tokio::task::spawn_local(tick(Rc::clone(&self.all)));
        }
        if let Some(entry) = self.all.entries.borrow_mut().get_mut(self.key) {
            entry.at = Some(at);
            entry.has_passed = false;
        }
    }

    /// There is no limit for now.
    pub(crate) fn clear(&self) {
        if let Some(entry) = self.all.entries.borrow_mut().get_mut(self.key) {
            entry.at = None;
            entry.has_passed = false;
        }
    }

    /// Ready once the limit has passed.
    pub(crate) fn poll_passed(&self, context: &Context<'_>) -> Poll<()> {
        let mut entries = self.all.entries.borrow_mut();
        let Some(entry) = entries.get_mut(self.key) else {
            return Poll::Pending;
        };
        if entry.has_passed {
            return Poll::Ready(());
        }
        let waker = context.waker();
        if !(entry.waker.as_ref()).is_some_and(|old| old.will_wake(waker)) {
            entry.waker = Some(waker.clone());
        }
        Poll::Pending
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.all.entries.borrow_mut().try_remove(self.key);
    }
}

/// Looks at all entries until none is set.
async fn tick(all: Rc<Deadlines>) {
    let mut passed = Vec::new();
    loop {
        tokio::time::sleep(STEP).await;
        // The worker's clock stands while the worker waits.
        let now = tokio::time::Instant::now().into_std();
        let mut is_any_set = false;
        for (_, entry) in all.entries.borrow_mut().iter_mut() {
            match entry.at {
                Some(at) if at <= now => {
                    entry.at = None;
                    entry.has_passed = true;
                    passed.extend(entry.waker.take());
                }
                Some(_) => is_any_set = true,
                None => {}
            }
        }
        passed.drain(..).for_each(Waker::wake);
        if !is_any_set {
            break;
        }
    }
    all.is_ticking.set(false);
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::runtime::Builder;
    use tokio::task::LocalSet;
    use tokio::time::{advance, sleep};

    use super::*;

    #[test]
    fn limits_pass_and_nothing_ticks_when_none_is_set() {
        let work = async {
            let all = Rc::new(Deadlines::default());
            let [first, second] = [(); 2].map(|()| Deadline {
                all: Rc::clone(&all),
                key: all.entries.borrow_mut().insert(Entry::default()),
            });
            let limit = Duration::from_secs(1);
            let now = || tokio::time::Instant::now().into_std();
            assert!(!all.is_ticking.get());
            for _ in 0..3 {
                let start = now();
                first.set(start + limit);
                second.set(start + limit);
                second.clear();
                poll_fn(|context| first.poll_passed(context)).await;
                assert!((limit..=limit + STEP).contains(&(now() - start)));
                let never =
                    poll_fn(|context| Poll::Ready(second.poll_passed(context).is_pending()));
                assert!(never.await);
                sleep(2 * STEP).await;
                assert!(!all.is_ticking.get());
            }
            first.set(now() + limit);
            sleep(2 * STEP).await;
            assert!(all.is_ticking.get());
            drop(first);
            advance(STEP).await;
            sleep(STEP).await;
            assert!(!all.is_ticking.get());
        };
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        LocalSet::new().block_on(&runtime, work);
    }
}
