//! Benchmarks of the HTTP/2 scheduler: choosing the stream that sends the next frame.

#[path = "../../../bench/micro/kit.rs"]
mod kit;

use std::hint::black_box;

use h2o_http::priority::PriorityParameters;
use h2o_http2::scheduler::{NodeKey, Priority, Scheduler};

/// Which of the streams can send during the whole benchmark.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ready {
    All,
    Last2,
    None,
}

/// How the client gives its streams priorities.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tree {
    Flat,
    /// Opens streams as Chromium does for requests of one kind: each new stream depends on the previous one.
    Chain,
    Urgencies,
}

struct Streams {
    scheduler: Scheduler,
    /// The streams that are open during the whole benchmark.
    keys: Vec<NodeKey>,
    next_stream: u32,
}

fn main() {
    let bench = kit::Bench::from_arguments();
    bench.case("small", "Scheduler: small response", || {
        respond(0, Tree::Flat)
    });
    bench.case(
        "small-beside-100",
        "Scheduler: small response beside 100 blocked",
        || respond(100, Tree::Flat),
    );
    bench.case(
        "small-urgency",
        "Scheduler: small response, urgencies",
        || respond(0, Tree::Urgencies),
    );
    bench.case("turn-flat", "Scheduler: turn of 100 in a flat tree", || {
        turn(Tree::Flat, Ready::All)
    });
    bench.case(
        "turn-chain",
        "Scheduler: turn below 98 blocked in a chain",
        || turn(Tree::Chain, Ready::Last2),
    );
    bench.case(
        "turn-urgency",
        "Scheduler: turn of 100 incremental, urgencies",
        || turn(Tree::Urgencies, Ready::All),
    );
    bench.case(
        "toggle-chain",
        "Scheduler: last of a chain of 100 ready and not",
        toggle,
    );
}

impl Streams {
    fn new(count: u32, tree: Tree, ready: Ready) -> Self {
        let mut scheduler = Scheduler::new();
        if tree == Tree::Urgencies {
            scheduler.use_urgencies();
        }
        let mut keys = Vec::new();
        for n in 0..count {
            let below = Priority {
                exclusive: true,
                dependency: (2 * n).saturating_sub(1),
                weight: 147,
            };
            let priority = (tree == Tree::Chain).then_some(below);
            let key = scheduler.open(2 * n + 1, n, priority);
            keys.push(key.expect("no stream depends on itself"));
        }
        for (&key, n) in keys.iter().zip(0..) {
            scheduler.set_parameters(
                key,
                PriorityParameters {
                    urgency: 3,
                    incremental: true,
                },
            );
            let is_ready = ready == Ready::All || (ready == Ready::Last2 && n + 2 >= count);
            scheduler.set_ready(key, is_ready);
        }
        Self {
            scheduler,
            keys,
            next_stream: 2 * count + 1,
        }
    }
}

/// Makes all calls to the scheduler for a response of one frame, on a connection with `count` other streams that cannot
/// send.
fn respond(count: u32, tree: Tree) -> impl FnMut() {
    let mut streams = Streams::new(count, tree, Ready::None);
    move || {
        let stream = streams.next_stream;
        streams.next_stream = if stream > 1 << 30 { 1001 } else { stream + 2 };
        let scheduler = black_box(&mut streams.scheduler);
        let key = scheduler
            .open(stream, 7, None)
            .expect("a stream without a dependency can be opened");
        scheduler.set_ready(key, true);
        assert_eq!(scheduler.next(), Some(7));
        scheduler.set_ready(key, false);
        scheduler.close(key);
    }
}

fn turn(tree: Tree, ready: Ready) -> impl FnMut() {
    let mut streams = Streams::new(100, tree, ready);
    move || {
        black_box(black_box(&mut streams.scheduler).next());
    }
}

fn toggle() -> impl FnMut() {
    let mut streams = Streams::new(100, Tree::Chain, Ready::None);
    let last = streams.keys[99];
    move || {
        black_box(&mut streams.scheduler).set_ready(last, true);
        black_box(streams.scheduler.next());
        streams.scheduler.set_ready(last, false);
    }
}
