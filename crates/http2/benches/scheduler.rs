//! Cost of the turns of streams. Run with `cargo bench -p h2o-http2 --bench scheduler`; the numbers are medians
//! of many rounds, in nanoseconds. With the name of one case as argument that case alone runs, a hundred
//! thousand times and untimed, for a tool that counts instructions.

#![expect(clippy::print_stdout, reason = "the numbers are the output")]

use std::hint::black_box;
use std::time::Instant;

use h2o_http2::scheduler::{Key, Priority, Scheduler, Urgency};

struct Case {
    name: &'static str,
    scheduler: Scheduler,
    /// The streams that are open all along.
    keys: Vec<Key>,
    next_stream: u32,
    run: fn(&mut Self),
}

fn main() {
    let wanted = std::env::args()
        .skip(1)
        .find(|argument| argument != "--bench");
    for mut case in cases() {
        match &wanted {
            None => {
                let nanoseconds = median(&mut case);
                println!("{}: {nanoseconds:.1} ns", case.name);
            }
            Some(name) if name == case.name => (0..100_000).for_each(|_| (case.run)(&mut case)),
            Some(_) => {}
        }
    }
}

fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("small response", 0, |_| None, respond),
        case("small response beside 100 blocked", 100, |_| None, respond),
        case("turn of 100 in a flat tree", 100, |_| None, turn),
        case("turn below 98 blocked in a chain", 100, chain, turn),
        case(
            "last of a chain of 100, alone ready and not, all others blocked",
            100,
            chain,
            toggle,
        ),
        case("small response, urgencies", 0, |_| None, respond),
        case("turn of 100 incremental, urgencies", 100, |_| None, turn),
    ];
    for case in &mut cases {
        if case.name.ends_with("urgencies") {
            case.scheduler.use_urgencies();
        }
        for (n, &key) in case.keys.iter().enumerate() {
            case.scheduler.set_urgency(
                key,
                Urgency {
                    urgency: 3,
                    incremental: true,
                },
            );
            let is_ready =
                !case.name.contains("blocked") || case.name.starts_with("turn below") && n >= 98;
            case.scheduler.set_ready(key, is_ready);
        }
    }
    cases
}

fn case(
    name: &'static str,
    streams: u32,
    priority: fn(u32) -> Option<Priority>,
    run: fn(&mut Case),
) -> Case {
    let mut scheduler = Scheduler::new();
    let keys = (0..streams)
        .map(|n| {
            scheduler
                .open(2 * n + 1, n, priority(n))
                .expect("no stream depends on itself")
        })
        .collect();
    Case {
        name,
        scheduler,
        keys,
        next_stream: 2 * streams + 1,
        run,
    }
}

/// As Chromium opens streams of one kind: each below the one before.
fn chain(n: u32) -> Option<Priority> {
    Some(Priority {
        exclusive: true,
        dependency: (2 * n).saturating_sub(1),
        weight: 147,
    })
}

/// All that is done for a response of one frame.
fn respond(case: &mut Case) {
    let stream = case.next_stream;
    case.next_stream = if stream > 1 << 30 { 1001 } else { stream + 2 };
    let scheduler = black_box(&mut case.scheduler);
    let key = scheduler.open(stream, 7, None).expect("no dependency");
    scheduler.set_ready(key, true);
    assert_eq!(scheduler.next(), Some(7));
    scheduler.set_ready(key, false);
    scheduler.close(key);
}

fn turn(case: &mut Case) {
    black_box(black_box(&mut case.scheduler).next());
}

fn toggle(case: &mut Case) {
    let last = case.keys[99];
    black_box(&mut case.scheduler).set_ready(last, true);
    black_box(case.scheduler.next());
    case.scheduler.set_ready(last, false);
}

fn median(case: &mut Case) -> f64 {
    const PER_ROUND: u32 = 20_000;
    #[expect(clippy::disallowed_methods, reason = "a benchmark needs a clock")]
    let clock = Instant::now;
    let mut rounds: Vec<f64> = (0..101)
        .map(|_| {
            let start = clock();
            for _ in 0..PER_ROUND {
                (case.run)(case);
            }
            start.elapsed().as_nanos() as f64 / f64::from(PER_ROUND)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}
