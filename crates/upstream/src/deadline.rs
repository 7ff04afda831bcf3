//! Time limits of a worker's exchanges: coarse, and cheap to move, since they are moved with every step forward.
//!
//! A connection has one entry for its whole life; setting it is a store. One task per worker looks at all entries ten times a
//! second, as long as there are any, and wakes those whose time has come. No exchange has a timer of the runtime.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use h2o_exchange::Worker;
use slab::Slab;

use crate::pool::Pools;

/// How often the entries are looked at. Limits are long; being late by this is in order.
const STEP: Duration = Duration::from_millis(100);
/// Idle connections are looked at every so many steps.
const STEPS_PER_SWEEP: u32 = 10;

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
        if !all.is_ticking.replace(true) {
            tokio::task::spawn_local(tick(Rc::clone(&all), worker.local::<Pools>()));
        }
        Self { all, key }
    }

    /// Sets or moves the limit.
    pub(crate) fn set(&self, at: Instant) {
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

async fn tick(all: Rc<Deadlines>, pools: Rc<Pools>) {
    let mut passed = Vec::new();
    for step in 1u32.. {
        tokio::time::sleep(STEP).await;
        // The worker's clock stands while the worker waits.
        let now = tokio::time::Instant::now().into_std();
        if step.is_multiple_of(STEPS_PER_SWEEP) {
            pools.sweep(now);
        }
        for (_, entry) in all.entries.borrow_mut().iter_mut() {
            if entry.at.is_some_and(|at| at <= now) {
                entry.at = None;
                entry.has_passed = true;
                passed.extend(entry.waker.take());
            }
        }
        passed.drain(..).for_each(Waker::wake);
        if all.entries.borrow().is_empty() {
            break;
        }
    }
    all.is_ticking.set(false);
}
