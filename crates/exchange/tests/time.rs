//! Time on a worker, with tokio's paused clock: timers in every state, and how late they fire.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use h2o_exchange::{Counter, Counters, Shared, Timer, Worker};
use h2o_http::StatusCode;
use h2o_testkit::on_virtual_clock;

const MS: Duration = Duration::from_millis(1);

fn worker() -> Rc<Worker> {
    Worker::new(
        0,
        Arc::new(Counters::default()),
        Arc::new(Shared::default()),
    )
}

/// Runs work of a worker on tokio's paused clock.
fn run<T, F: Future<Output = T>>(work: impl FnOnce(Rc<Worker>) -> F) -> T {
    on_virtual_clock(async {
        let worker = worker();
        let work = work(Rc::clone(&worker));
        worker.run(work).await
    })
}

/// Whether a timer has fired.
async fn has_fired(timer: &Timer) -> bool {
    poll_fn(|task| Poll::Ready(timer.poll_fired(task).is_ready())).await
}

type Act = fn(&Timer);

#[test]
fn a_timer_does_in_each_state_what_it_is_told() {
    // Each row: name of the timer's state, how to reach it, and how long to wait then: a timer set for 100 ms has fired
    // after half a second.
    const STATES: [(&str, Act, Duration); 5] = [
        ("new", |_| {}, Duration::ZERO),
        ("set", |timer| timer.set_after(100 * MS), Duration::ZERO),
        (
            "fired",
            |timer| timer.set_after(100 * MS),
            Duration::from_millis(500),
        ),
        (
            "cleared",
            |timer| {
                timer.set_after(100 * MS);
                timer.clear();
            },
            Duration::from_millis(500),
        ),
        (
            "due at once",
            |timer| timer.set_after(Duration::ZERO),
            Duration::from_millis(10),
        ),
    ];
    // Each row: a call on a timer and, for each state of the timer, whether the timer has fired right after the call,
    // 50 ms later and 200 ms later.
    type Row = (&'static str, Act, [&'static str; 5]);
    const CALLS: [Row; 6] = [
        (
            "nothing",
            |_| {},
            [
                "no no no",
                "no no yes",
                "yes yes yes",
                "no no no",
                "yes yes yes",
            ],
        ),
        ("clear", Timer::clear, ["no no no"; 5]),
        (
            "set for 30 ms",
            |timer| timer.set_after(30 * MS),
            ["no yes yes"; 5],
        ),
        (
            "set for 120 ms",
            |timer| timer.set_after(120 * MS),
            ["no no yes"; 5],
        ),
        (
            "set for an hour",
            |timer| timer.set_after(Duration::from_secs(3600)),
            ["no no no"; 5],
        ),
        (
            "set for an hour, then for 30 ms",
            |timer| {
                timer.set_after(Duration::from_secs(3600));
                timer.set_after(30 * MS);
            },
            ["no yes yes"; 5],
        ),
    ];
    for (call, act, wants) in CALLS {
        for ((state, enter, before), want) in STATES.into_iter().zip(wants) {
            let got = run(|worker| async move {
                let timer = Timer::new(&worker.timers);
                enter(&timer);
                worker.sleep(before).await;
                act(&timer);
                let mut got = Vec::new();
                for pause in [0, 50, 150] {
                    if pause > 0 {
                        worker.sleep(pause * MS).await;
                    }
                    got.push(if has_fired(&timer).await { "yes" } else { "no" });
                }
                got.join(" ")
            });
            assert_eq!(got, want, "{call}, told to a timer that is {state}");
        }
    }
}

#[test]
fn timers_fire_when_their_time_has_come_and_at_most_an_eighth_later() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let times: Vec<Duration> = (0..30)
            .map(|_| {
                let most = [20, 127, 2_000, 100_000][random.usize(..4)];
                random.u32(..most) * MS
            })
            .collect();
        run(|worker| async move {
            let start = worker.clock.now();
            let timers: Vec<Timer> = times.iter().map(|_| Timer::new(&worker.timers)).collect();
            for (timer, time) in timers.iter().zip(&times) {
                // Most timers are moved before they fire.
                timer.set_after(Duration::from_millis(50));
                timer.set_after(*time);
            }
            let late = RefCell::new(vec![None; times.len()]);
            poll_fn(|task| {
                let mut late = late.borrow_mut();
                for ((timer, time), late) in timers.iter().zip(&times).zip(late.iter_mut()) {
                    if late.is_none() && timer.poll_fired(task).is_ready() {
                        let passed = worker.clock.now().saturating_duration_since(start);
                        assert!(passed >= *time, "seed {seed}: {time:?} after {passed:?}");
                        *late = Some(passed - *time);
                    }
                }
                if late.iter().all(Option::is_some) {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            for (late, time) in late.into_inner().into_iter().zip(times) {
                let late = late.expect("all timers have fired");
                let most = if time <= 127 * MS {
                    2 * MS
                } else {
                    time / 8 + 2 * MS
                };
                assert!(late <= most, "seed {seed}: {time:?} was {late:?} late");
            }
        });
    }
}

#[test]
fn work_that_ends_in_time_is_not_cut_off() {
    let ended = run(|worker| async move {
        let mut ended = Vec::new();
        for (work, limit) in [(10, 100), (100, 10), (0, 0), (200, 1_000), (1_000, 200)] {
            let result = worker.timeout(limit * MS, worker.sleep(work * MS)).await;
            ended.push(result.is_ok());
        }
        // Work that is ready does not time out.
        ended.push(worker.timeout(Duration::ZERO, async {}).await.is_ok());
        ended
    });
    assert_eq!(ended, [true, false, false, true, false, true]);
}

#[test]
fn a_timer_that_is_dropped_wakes_nobody() {
    run(|worker| async move {
        let timer = Timer::new(&worker.timers);
        timer.set_after(10 * MS);
        drop(timer);
        // The timer that was dropped leaves a free place, which another timer gets.
        let other = Timer::new(&worker.timers);
        other.set_after(100 * MS);
        worker.sleep(50 * MS).await;
        assert!(
            !has_fired(&other).await,
            "a timer does not fire at the time of the timer before"
        );
        worker.sleep(100 * MS).await;
        assert!(has_fired(&other).await);
    });
}

#[test]
fn a_worker_has_one_value_of_each_type() {
    let worker = worker();
    let first: Rc<Cell<u32>> = worker.local();
    first.set(7);
    let again: Rc<Cell<u32>> = worker.local();
    assert_eq!(again.get(), 7);
    let other: Rc<Cell<u64>> = worker.local();
    assert_eq!(other.get(), 0);
    assert_eq!(
        self::worker().local::<Cell<u32>>().get(),
        0,
        "the value belongs to another worker"
    );
}

#[test]
fn turns_of_the_clock_are_told_apart_and_time_stands_within_one() {
    run(|worker| async move {
        let clock = Rc::clone(&worker.clock);
        let turn = clock.turn();
        let (now, unix) = (clock.now(), clock.unix());
        assert_eq!(
            (clock.now(), clock.unix()),
            (now, unix),
            "the clock does not change within a turn"
        );
        assert_eq!(clock.turn(), turn);
        clock.begin_round();
        assert_eq!(
            clock.turn(),
            turn + 1,
            "values cached for a turn are read again after the clock was updated"
        );
        assert_eq!(clock.now(), now, "the time stays that of the turn");
        tokio::time::sleep(5_000 * MS).await;
        clock.begin_turn();
        assert!(clock.now() >= now + 5_000 * MS);
        assert_eq!(clock.date().len(), h2o_http::date::LEN);
        assert_eq!(
            clock.date(),
            clock.date(),
            "the text of the date is made once per second"
        );
    });
}

#[test]
fn counters_have_names_of_their_own_and_count_what_they_say() {
    let mut names: Vec<&str> = Counter::ALL.iter().map(|counter| counter.name()).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all, "no counter name occurs twice");
    for (at, counter) in Counter::ALL.iter().enumerate() {
        let counters = Counters::default();
        counters.add(*counter, 3);
        counters.uncount(*counter);
        for (other_at, other) in Counter::ALL.iter().enumerate() {
            let want = if at == other_at { 2 } else { 0 };
            assert_eq!(
                counters.get(*other),
                want,
                "{} beside {}",
                other.name(),
                counter.name()
            );
        }
    }
}

/// Names of the counters whose value is not zero.
fn counted(count: impl Fn(&Counters)) -> Vec<&'static str> {
    let counters = Counters::default();
    count(&counters);
    let counted = Counter::ALL
        .iter()
        .filter(|counter| counters.get(**counter) > 0);
    counted.map(|counter| counter.name()).collect()
}

#[test]
fn statuses_are_counted_by_their_class_and_errors_by_their_code() {
    for code in 100..600 {
        let status = StatusCode::new(code).expect("the number is a valid status code");
        let requests = counted(|counters| counters.count_request(Some(status)));
        assert_eq!(
            requests.len(),
            if (200..600).contains(&code) { 2 } else { 1 },
            "{code}"
        );
        let errors = counted(|counters| counters.count_status(status));
        let own = format!("status-errors.{code}");
        match code {
            400 | 401 | 403 | 404 | 405 | 416 | 417 | 421 | 500 | 502 | 503 => {
                assert_eq!(errors, [own])
            }
            _ => assert_eq!(errors, Vec::<&str>::new(), "{code}"),
        }
    }
    assert_eq!(
        counted(|counters| counters.count_request(None)).len(),
        1,
        "a request without a response is counted once"
    );
}

/// A model of an event loop's timers: the deadline of each.
type Model = std::collections::BTreeMap<u32, Option<Duration>>;

#[test]
fn an_event_loop_learns_of_each_timer_once_and_of_no_other() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        on_virtual_clock(async move {
            let worker = worker();
            let (clock, timers) = (Rc::clone(&worker.clock), Rc::clone(&worker.timers));
            let start = clock.now();
            let (mut keys, mut model) = (std::collections::BTreeMap::new(), Model::new());
            let mut names = 0;
            for _ in 0..80 {
                clock.begin_turn();
                let some = random.choice(keys.keys().copied().collect::<Vec<u32>>());
                match (random.u8(..6), some) {
                    (0, _) => {
                        names += 1;
                        keys.insert(names, timers.add(names));
                        model.insert(names, None);
                    }
                    (1..=3, Some(name)) => {
                        let most = [100, 3_000, 500_000][random.usize(..3)];
                        let at = clock.now() + random.u32(..most) * MS;
                        timers.set(keys[&name], Some(at));
                        model.insert(name, Some(at - start));
                    }
                    (4, Some(name)) => {
                        timers.set(keys[&name], None);
                        model.insert(name, None);
                    }
                    (5, Some(name)) => {
                        timers.remove(
                            keys.remove(&name)
                                .expect("the timer of this name was added"),
                        );
                        model.remove(&name);
                    }
                    _ => {}
                }
                tokio::time::sleep(random.u32(..300) * MS).await;
                clock.begin_turn();
                let mut due = Vec::new();
                while poll_fn(|task| Poll::Ready(timers.poll_due(task, &mut due).is_ready())).await
                {
                    let now = clock.now() - start;
                    for name in due.drain(..) {
                        let at = model.insert(name, None).flatten();
                        let at = at.unwrap_or_else(|| panic!("seed {seed}: {name} was not set"));
                        assert!(at <= now, "seed {seed}: {name} is early");
                    }
                }
                let now = clock.now() - start;
                for (name, at) in &model {
                    // Timers are set for less than 500 seconds, so none fires more than 63 seconds late.
                    let is_overdue = at.is_some_and(|at| at + Duration::from_secs(63) < now);
                    assert!(!is_overdue, "seed {seed}: {name} was forgotten");
                }
            }
        });
    }
}

#[test]
fn tasks_of_a_worker_see_the_time_at_which_they_run() {
    on_virtual_clock(async {
        let worker = worker();
        let start = worker.clock.now();
        let its = Rc::clone(&worker);
        let task = worker.spawn(async move {
            tokio::time::sleep(700 * MS).await;
            its.clock.now()
        });
        let seen = task.await.expect("the task does not panic");
        assert!(seen >= start + 700 * MS, "{:?}", seen - start);
    });
}

#[test]
fn a_worker_that_shuts_down_says_so_to_those_who_ask_and_those_who_wait() {
    on_virtual_clock(async {
        let worker = worker();
        let told = Rc::new(Cell::new(0));
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let (worker, told) = (Rc::clone(&worker), Rc::clone(&told));
                tokio::task::spawn_local(async move {
                    worker.shutdown.notified().await;
                    told.set(told.get() + 1);
                })
            })
            .collect();
        tokio::time::sleep(MS).await;
        assert_eq!((worker.shutting_down.get(), told.get()), (false, 0));
        worker.shut_down();
        for task in waiting {
            task.await.expect("the task does not panic");
        }
        assert_eq!((worker.shutting_down.get(), told.get()), (true, 3));
    });
}
