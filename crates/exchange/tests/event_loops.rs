//! Timers and clock as the event loop of a worker uses them: every state of its timers with every call, wake-ups, and
//! the cost of a turn.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use h2o_exchange::{Clock, Counters, Shared, Timer, TimerKey, Timers, Worker};
use h2o_testkit::on_virtual_clock;

const MS: Duration = Duration::from_millis(1);

fn worker() -> Rc<Worker> {
    let (counters, shared) = (Counters::default(), Shared::default());
    Worker::new(0, Arc::new(counters), Arc::new(shared))
}

#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Bell {
    fn rung(&self) -> usize {
        self.0.swap(0, Relaxed)
    }
}

struct Loop {
    worker: Rc<Worker>,
    timers: Rc<Timers>,
    key: Option<TimerKey>,
    bell: Arc<Bell>,
}

impl Loop {
    fn new() -> Self {
        let worker = worker();
        let timers = Rc::clone(&worker.timers);
        Self {
            key: Some(timers.add(1)),
            worker,
            timers,
            bell: Arc::default(),
        }
    }

    fn set(&self, after: Duration) {
        let at = self.worker.clock.now() + after;
        self.timers
            .set(self.key.expect("the timer is registered"), Some(at));
    }

    fn clear(&self) {
        self.timers
            .set(self.key.expect("the timer is registered"), None);
    }

    /// Ends a turn of the event loop. Returns the events whose timers are due, as text.
    fn turn(&self) -> String {
        self.worker.clock.begin_turn();
        let waker = Waker::from(Arc::clone(&self.bell));
        let mut due = Vec::new();
        let polled = (self.timers).poll_due(&mut Context::from_waker(&waker), &mut due);
        assert_eq!(polled.is_ready(), !due.is_empty());
        due.sort_unstable();
        match due[..] {
            [] => "-".to_owned(),
            [event] => event.to_string(),
            _ => format!("{due:?}"),
        }
    }
}

type Act = fn(&mut Loop);

/// Each row: a call. One timer of the event loop is due in 100 ms; the call changes a second timer while the event loop
/// sleeps. The test counts wake-ups of the event loop, and the events of turns after 0, 50, 150 and 1000 ms.
const CALLS: [(&str, Act); 7] = [
    ("nothing", |_| {}),
    ("clear", |it| it.clear()),
    ("set for 30 ms", |it| it.set(30 * MS)),
    ("set for 600 ms", |it| it.set(600 * MS)),
    ("set for now", |it| it.set(Duration::ZERO)),
    ("set for 30 ms, and clear", |it| {
        it.set(30 * MS);
        it.clear();
    }),
    ("remove, and add another", |it| {
        it.timers
            .remove(it.key.take().expect("the timer is registered"));
        it.key = Some(it.timers.add(3));
        it.set(70 * MS);
    }),
];

type State = (&'static str, Act, [&'static str; 7]);

const STATES: [State; 4] = [
    (
        "not set",
        |_| {},
        [
            "woken 0: - - 2 -",
            "woken 0: - - 2 -",
            "woken 1: - 1 2 -",
            "woken 0: - - 2 1",
            "woken 1: - 1 2 -",
            "woken 1: - - 2 -",
            "woken 1: - - [2, 3] -",
        ],
    ),
    (
        "set for 40 ms",
        |it| it.set(40 * MS),
        [
            "woken 0: - 1 2 -",
            "woken 0: - - 2 -",
            "woken 1: - 1 2 -",
            "woken 0: - - 2 1",
            "woken 1: - 1 2 -",
            "woken 1: - - 2 -",
            "woken 0: - - [2, 3] -",
        ],
    ),
    (
        "due",
        |it| {
            it.set(40 * MS);
            assert_eq!(it.turn(), "-");
            it.worker.clock.begin_turn();
            it.set(Duration::ZERO);
        },
        [
            "woken 0: - 1 2 -",
            "woken 0: - - 2 -",
            "woken 0: - 1 2 -",
            "woken 0: - - 2 1",
            "woken 0: - 1 2 -",
            "woken 0: - - 2 -",
            "woken 0: - - [2, 3] -",
        ],
    ),
    (
        "cleared",
        |it| {
            it.set(40 * MS);
            it.clear();
        },
        [
            "woken 0: - - 2 -",
            "woken 0: - - 2 -",
            // The cleared timer stays in its slot of the timing wheel, so the event loop sleeps until 40 ms: only a
            // timer for an earlier time wakes it.
            "woken 1: - 1 2 -",
            "woken 0: - - 2 1",
            "woken 1: - 1 2 -",
            "woken 1: - - 2 -",
            "woken 0: - - [2, 3] -",
        ],
    ),
];

#[test]
fn a_timer_of_the_event_loop_does_in_each_state_what_it_is_told() {
    for (state, enter, wants) in STATES {
        for ((name, call), want) in CALLS.into_iter().zip(wants) {
            let got = on_virtual_clock(async {
                let mut it = Loop::new();
                let other = it.timers.add(2);
                let at = it.worker.clock.now() + 100 * MS;
                it.timers.set(other, Some(at));
                enter(&mut it);
                assert_eq!(
                    it.turn(),
                    "-",
                    "{name}, {state}: the turn before the call fires no timer, so the loop sleeps"
                );
                it.bell.rung();
                call(&mut it);
                let woken = it.bell.rung();
                let mut told = Vec::new();
                for pause in [0, 50, 100, 850] {
                    tokio::time::advance(pause * MS).await;
                    told.push(it.turn());
                }
                format!("woken {woken}: {}", told.join(" "))
            });
            assert_eq!(got, want, "{name}, told to a timer that is {state}");
        }
    }
}

#[test]
fn a_sleeping_event_loop_is_woken_once_for_an_earlier_timer() {
    on_virtual_clock(async {
        let it = Loop::new();
        it.set(1_000 * MS);
        assert_eq!(it.turn(), "-");
        for earlier in [500, 200, 20] {
            it.set(earlier * MS);
        }
        assert_eq!(
            it.bell.rung(),
            1,
            "of three earlier timers only the first one wakes the event loop"
        );
        assert_eq!(it.turn(), "-");
        it.set(900 * MS);
        assert_eq!(
            it.bell.rung(),
            0,
            "a later timer does not wake the event loop, which finds the timer when it wakes"
        );
    });
}

#[test]
fn the_event_loop_that_asked_last_is_the_one_that_is_woken() {
    on_virtual_clock(async {
        let mut it = Loop::new();
        it.set(1_000 * MS);
        assert_eq!(it.turn(), "-");
        let first = std::mem::take(&mut it.bell);
        assert_eq!(it.turn(), "-");
        it.set(20 * MS);
        assert_eq!((first.rung(), it.bell.rung()), (0, 1));
    });
}

#[test]
fn a_future_that_moves_to_another_task_is_woken_there() {
    on_virtual_clock(async {
        let worker = worker();
        let timer = Timer::new(&worker.timers);
        timer.set_after(50 * MS);
        let [first, last] = [Arc::new(Bell::default()), Arc::new(Bell::default())];
        for bell in [&first, &last] {
            let waker = Waker::from(Arc::clone(bell));
            assert!(timer.poll_fired(&Context::from_waker(&waker)).is_pending());
        }
        worker.run(tokio::time::sleep(100 * MS)).await;
        assert_eq!((first.rung(), last.rung()), (0, 1));
        let fired = timer.poll_fired(&Context::from_waker(Waker::noop()));
        assert!(fired.is_ready());
    });
}

#[test]
fn a_task_that_is_cancelled_while_it_waits_wakes_nobody_and_leaves_no_timer() {
    on_virtual_clock(async {
        let worker = worker();
        let woken = Rc::new(Cell::new(0));
        let work = async {
            for _ in 0..50 {
                let (its, woken) = (Rc::clone(&worker), Rc::clone(&woken));
                let task = worker.spawn(async move {
                    its.sleep(1_000 * MS).await;
                    woken.set(woken.get() + 1);
                });
                worker.sleep(MS).await;
                task.abort();
                assert!(task.await.is_err_and(|error| error.is_cancelled()));
                // The memory of the dropped timer is reused for a timer of another task.
                let start = worker.clock.now();
                worker.sleep(20 * MS).await;
                assert!(
                    worker.clock.now() - start < 30 * MS,
                    "the sleep has its own duration, not that of the event loop's timer"
                );
            }
            worker.sleep(5_000 * MS).await;
        };
        worker.run(work).await;
        assert_eq!(woken.get(), 0);
    });
}

#[test]
fn a_timer_that_its_own_firing_sets_again_fires_again() {
    on_virtual_clock(async {
        let worker = worker();
        let timer = Timer::new(&worker.timers);
        let start = worker.clock.now();
        let fired = Cell::new(0);
        let work = poll_fn(|context| {
            while timer.poll_fired(context).is_ready() || fired.get() == 0 {
                fired.set(fired.get() + 1);
                if fired.get() == 10 {
                    return Poll::Ready(());
                }
                timer.set_after(100 * MS);
            }
            Poll::Pending
        });
        worker.run(work).await;
        let took = worker.clock.now() - start;
        assert!((900 * MS..1_100 * MS).contains(&took), "{took:?}");
    });
}

#[test]
fn a_turn_is_timed_now_and_then_and_the_times_are_averaged() {
    on_virtual_clock(async {
        let clock = Clock::default();
        assert_eq!(clock.turn_time(), Duration::ZERO);
        // The clock times the first turn, then one turn in eight.
        let mut want = Duration::ZERO;
        for turn in 0..64 {
            clock.begin_turn();
            let _ = clock.now();
            let took = if turn % 16 == 0 { 80 * MS } else { 16 * MS };
            tokio::time::advance(took).await;
            clock.end_turn();
            if turn % 8 == 0 {
                want = (want * 7 + took) / 8;
            }
            let (got, least) = (clock.turn_time(), want.saturating_sub(MS));
            assert!((least..=want + 3 * MS).contains(&got), "{turn}: {got:?}");
        }
        assert!(want > 20 * MS);
        // Turns that did not use the clock had no work: they do not count for the average.
        let before = clock.turn_time();
        for _ in 0..64 {
            clock.begin_turn();
            tokio::time::advance(500 * MS).await;
            clock.end_turn();
        }
        assert_eq!(clock.turn_time(), before);
    });
}

#[test]
fn a_long_turn_does_not_stand_still() {
    on_virtual_clock(async {
        let clock = Clock::default();
        clock.begin_turn();
        let start = clock.now();
        tokio::time::advance(250 * MS).await;
        assert_eq!(
            clock.now(),
            start,
            "the worker's clock stands still within a turn"
        );
        let looks = (0..5_000).take_while(|_| clock.now() == start).count();
        assert!(
            (900..1_100).contains(&looks),
            "the clock gave the same time {looks} times in a row"
        );
        assert!(clock.now() - start >= 250 * MS);
    });
}
