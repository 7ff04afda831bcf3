//! Timers of a worker: the one mechanism for connections, handlers and tasks.
//!
//! Setting a timer is cheap, since most timers are moved whenever bytes are received or sent, and few ever fire. A
//! timer may fire late by an eighth of its time, so that the event loop wakes seldom; timers up to 127 milliseconds are
//! exact to a millisecond.

mod wheel;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use slab::Slab;
use tokio::time::Sleep;

use crate::Clock;
pub use wheel::TimerKey;
use wheel::{UNSET, Wheel};

/// Values in the timing wheel below this number are events of the event loop. A value with this bit set belongs to a
/// [`Timer`]: the rest of it is the index of a [`Waiter`].
const WAITER: u32 = 1 << 31;

/// The timers of a worker.
///
/// The event loop [adds](Timers::add) a timer for each connection and [collects](Timers::take_due) those that are due.
/// Futures use a [`Timer`], which wakes their task.
pub struct Timers {
    clock: Rc<Clock>,
    /// The time at which tick 0 of the timing wheel begins.
    start: Instant,
    wheel: RefCell<Wheel>,
    waiters: RefCell<Slab<Waiter>>,
    /// The sleep of the async runtime until the next timer is due, where no event loop waits for it.
    sleep: RefCell<Option<Pin<Box<Sleep>>>>,
    /// The task that waits for the next timer.
    waiting: RefCell<Option<Waker>>,
    /// Whether that task is waiting, so that a timer set to an earlier time must wake it.
    is_asleep: Cell<bool>,
}

/// The state of a [`Timer`].
#[derive(Default)]
struct Waiter {
    has_fired: bool,
    waker: Option<Waker>,
}

impl Timers {
    pub(crate) fn new(clock: Rc<Clock>) -> Self {
        Self {
            start: clock.now(),
            clock,
            wheel: RefCell::new(Wheel::new()),
            waiters: RefCell::default(),
            sleep: RefCell::default(),
            waiting: RefCell::default(),
            is_asleep: Cell::new(false),
        }
    }

    /// The clock by which the timers run.
    #[must_use]
    pub const fn clock(&self) -> &Rc<Clock> {
        &self.clock
    }

    /// Adds a timer of the event loop, which is not set yet. When it fires, [`Timers::take_due`] returns the number
    /// `event`, which is below 2^31.
    pub fn add(&self, event: u32) -> TimerKey {
        debug_assert!(
            event < WAITER,
            "the upper half of the event numbers is for waiters"
        );
        self.wheel.borrow_mut().add(event)
    }

    /// Removes a timer of the event loop.
    pub fn remove(&self, key: TimerKey) {
        self.wheel.borrow_mut().remove(key);
    }

    /// Sets, moves or clears a timer of the event loop. A deadline in the past fires at the next [`Timers::take_due`].
    pub fn set(&self, key: TimerKey, deadline: Option<Instant>) {
        let deadline = deadline.map_or(UNSET, |at| self.tick_after(at));
        let mut wheel = self.wheel.borrow_mut();
        let before = wheel.next();
        wheel.set(key, deadline, || self.tick(self.clock.now()));
        if wheel.next() < before && self.is_asleep.replace(false) {
            drop(wheel);
            let waiting = self.waiting.borrow().clone();
            if let Some(task) = waiting {
                task.wake();
            }
        }
    }

    /// Wakes the tasks whose timers are due, and appends the events of the event loop's timers that are due.
    pub fn take_due(&self, events: &mut Vec<u32>) {
        let now = self.tick(self.clock.now());
        let mut wakers = Vec::new();
        let mut waiters = self.waiters.borrow_mut();
        self.wheel.borrow_mut().advance(now, |value| {
            let Some(index) = value.checked_sub(WAITER) else {
                events.push(value);
                return;
            };
            if let Some(waiter) = waiters.get_mut(index as usize) {
                waiter.has_fired = true;
                wakers.extend(waiter.waker.take());
            }
        });
        drop(waiters);
        // The wakers are called last, when `waiters` is not borrowed any more, because woken tasks may set timers.
        wakers.into_iter().for_each(Waker::wake);
    }

    /// How long it takes, by the time of the clock's turn, until [`Timers::take_due`] is to be called again; `None` if no timer is set.
    #[must_use]
    pub fn until_next(&self) -> Option<Duration> {
        let next = self.wheel.borrow().next();
        let at = || self.start + Duration::from_millis(next);
        (next != UNSET).then(|| at().saturating_duration_since(self.clock.now()))
    }

    /// Like [`Timers::take_due`] where an async runtime waits for the timers and not an event loop: ready with the events that are due;
    /// pending if there are none, and the task is woken when the next timer is due.
    ///
    /// Must be called at the end of each turn, within a runtime of tokio.
    pub fn poll_due(&self, task: &mut Context<'_>, events: &mut Vec<u32>) -> Poll<()> {
        loop {
            self.take_due(events);
            if !events.is_empty() {
                return Poll::Ready(());
            }
            std::task::ready!(self.poll_next(task));
            // The clock is read again: the async runtime has reported the next timer's time as reached, and may be
            // ahead of the time that the clock keeps during a turn.
            self.clock.begin_turn();
        }
    }

    /// Ready when the next timer is due, where an async runtime waits for it and not an event loop. Until then the task is woken when that
    /// time has come, or when a timer is set to an earlier time.
    ///
    /// Must be called within a runtime of tokio.
    pub fn poll_next(&self, task: &mut Context<'_>) -> Poll<()> {
        let next = self.wheel.borrow().next();
        if next != UNSET && self.poll_sleep(task, next).is_ready() {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.borrow_mut();
        if !(waiting.as_ref()).is_some_and(|waker| waker.will_wake(task.waker())) {
            *waiting = Some(task.waker().clone());
        }
        self.is_asleep.set(true);
        Poll::Pending
    }

    fn poll_sleep(&self, task: &mut Context<'_>, next: u64) -> Poll<()> {
        let at = tokio::time::Instant::from_std(self.start + Duration::from_millis(next));
        let mut sleep = self.sleep.borrow_mut();
        let sleep = sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(task)
    }

    /// The tick of the timing wheel (one millisecond) at the time `now`.
    fn tick(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.start);
        since.as_secs() * 1000 + u64::from(since.subsec_millis())
    }

    /// The first tick of the timing wheel (one millisecond) that begins at the time `at` or later.
    fn tick_after(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.start);
        let part = u64::from(since.subsec_nanos().div_ceil(1_000_000));
        since.as_secs().saturating_mul(1000).saturating_add(part)
    }
}

/// A timer on which a future can wait.
pub struct Timer {
    timers: Rc<Timers>,
    key: TimerKey,
    /// Index of the timer's state among those of the worker.
    waiter: u32,
}

impl Timer {
    /// Creates a timer that is not set.
    #[must_use]
    pub fn new(timers: &Rc<Timers>) -> Self {
        let waiter = timers.waiters.borrow_mut().insert(Waiter::default());
        let waiter = u32::try_from(waiter).unwrap_or(u32::MAX);
        Self {
            key: timers.wheel.borrow_mut().add(WAITER | waiter),
            timers: Rc::clone(timers),
            waiter,
        }
    }

    /// The clock by which the timer runs.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.timers.clock
    }

    /// Sets the timer to the time `at`, or moves it there.
    pub fn set(&self, at: Instant) {
        self.forget_that_it_fired();
        self.timers.set(self.key, Some(at));
    }

    /// Sets the timer to fire when `time` has passed.
    pub fn set_after(&self, time: Duration) {
        self.set(self.timers.clock.now() + time);
    }

    /// Clears the timer.
    pub fn clear(&self) {
        self.forget_that_it_fired();
        self.timers.set(self.key, None);
    }

    fn forget_that_it_fired(&self) {
        if let Some(waiter) = (self.timers.waiters.borrow_mut()).get_mut(self.waiter as usize) {
            waiter.has_fired = false;
        }
    }

    /// Waits until the timer fires.
    pub async fn fired(&self) {
        poll_fn(|task| self.poll_fired(task)).await;
    }

    /// Ready once the timer has fired, until it is set again or cleared.
    pub fn poll_fired(&self, task: &Context<'_>) -> Poll<()> {
        let mut waiters = self.timers.waiters.borrow_mut();
        let Some(waiter) = waiters.get_mut(self.waiter as usize) else {
            return Poll::Pending;
        };
        if waiter.has_fired {
            return Poll::Ready(());
        }
        if !(waiter.waker.as_ref()).is_some_and(|waker| waker.will_wake(task.waker())) {
            waiter.waker = Some(task.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.timers.remove(self.key);
        self.timers
            .waiters
            .borrow_mut()
            .try_remove(self.waiter as usize);
    }
}

/// The error of a timeout that has expired before the work was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut;

impl fmt::Display for TimedOut {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the time limit has passed")
    }
}

impl std::error::Error for TimedOut {}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use tokio::runtime::{Builder, LocalOptions};

    use super::*;
    use crate::Worker;

    fn on_worker<F: Future>(test: impl FnOnce(Rc<Worker>) -> F) {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build_local(LocalOptions::default())
            .unwrap();
        runtime.block_on(async {
            let worker = Worker::new(0, Arc::default(), Arc::default());
            worker.run(test(Rc::clone(&worker))).await;
        });
    }

    #[test]
    fn a_timer_fires_when_its_time_has_come_and_not_when_it_was_cleared() {
        on_worker(async |worker| {
            let [first, second] = [(); 2].map(|()| Timer::new(&worker.timers));
            let limit = Duration::from_secs(1);
            for _ in 0..3 {
                let start = worker.clock.now();
                first.set_after(limit);
                second.set_after(limit);
                second.clear();
                poll_fn(|task| first.poll_fired(task)).await;
                let took = worker.clock.now() - start;
                assert!((limit..=limit * 9 / 8).contains(&took), "{took:?}");
                // The first timer has fired, which it keeps reporting; the second was cleared and never fires.
                let state =
                    poll_fn(|task| Poll::Ready((first.poll_fired(task), second.poll_fired(task))));
                assert_eq!(state.await, (Poll::Ready(()), Poll::Pending));
            }
            first.set_after(limit);
            first.set_after(3 * limit);
            let start = worker.clock.now();
            poll_fn(|task| first.poll_fired(task)).await;
            assert!(worker.clock.now() - start >= 3 * limit);
        });
    }

    #[test]
    fn a_limit_as_long_as_a_number_can_say_never_passes() {
        on_worker(async |worker| {
            let endless = Timer::new(&worker.timers);
            endless.set_after(Duration::from_millis(u64::MAX));
            worker.sleep(Duration::from_secs(3600)).await;
            let state = poll_fn(|task| Poll::Ready(endless.poll_fired(task)));
            assert_eq!(state.await, Poll::Pending);
        });
    }

    #[test]
    fn short_times_are_exact_after_a_long_rest() {
        on_worker(async |worker| {
            worker.sleep(Duration::from_secs(3600)).await;
            let start = worker.clock.now();
            worker.sleep(Duration::from_millis(50)).await;
            let took = worker.clock.now() - start;
            assert!((50..=52).contains(&took.as_millis()), "{took:?}");
        });
    }

    #[test]
    fn the_event_loop_notices_a_timer_that_a_task_sets_while_it_sleeps() {
        on_worker(async |worker| {
            let start = worker.clock.now();
            let task = worker.spawn({
                let worker = Rc::clone(&worker);
                async move {
                    tokio::time::sleep(Duration::from_secs(5)).await;
                    worker.sleep(Duration::from_millis(100)).await;
                    worker.clock.now()
                }
            });
            let far = worker.timeout(Duration::from_secs(1000), task);
            let took = far
                .await
                .expect("the future ends before its timeout")
                .unwrap()
                - start;
            assert!((5100..=5110).contains(&took.as_millis()), "{took:?}");
        });
    }

    #[test]
    fn work_is_cut_off_by_its_timeout_only() {
        on_worker(async |worker| {
            let limit = Duration::from_secs(2);
            let long = worker.timeout(limit, worker.sleep(2 * limit)).await;
            assert_eq!(long, Err(TimedOut));
            assert_eq!(worker.timeout(limit, async { 7 }).await, Ok(7));
            assert_eq!(
                worker.timers.waiters.borrow().len(),
                0,
                "the slots of the waiters are free again"
            );
        });
    }

    #[test]
    fn the_event_loop_learns_which_of_its_timers_are_due() {
        on_worker(async |worker| {
            let timers = &worker.timers;
            let keys = [4, 5, 6].map(|event| timers.add(event));
            let start = worker.clock.now();
            let at = |seconds| Some(start + Duration::from_secs(seconds));
            timers.set(keys[0], at(1));
            timers.set(keys[1], at(1));
            timers.set(keys[2], at(10));
            timers.remove(keys[1]);
            let mut events = Vec::new();
            poll_fn(|task| timers.poll_due(task, &mut events)).await;
            assert_eq!(std::mem::take(&mut events), [4]);
            poll_fn(|task| timers.poll_due(task, &mut events)).await;
            assert_eq!(events, [6]);
            assert!(worker.clock.now() - start >= Duration::from_secs(10));
        });
    }
}
