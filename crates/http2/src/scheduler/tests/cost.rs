//! Tests of the cost of the scheduler's calls, in steps (visited nodes) and in memory.

use super::*;

/// The average number of steps (visited nodes) of a turn, over many turns of a tree of `count` streams.
fn steps_per_turn(
    count: u32,
    shape: fn(&mut Random, u32) -> u32,
    is_ready: fn(&mut Random, u32, u32) -> bool,
) -> f64 {
    let mut random = Random::new(7);
    let mut bench = Bench::new();
    bench.checks = false;
    for n in 0..count {
        let weight = u16::try_from(1 + random.below(256)).unwrap();
        bench.open(2 * n + 1, on(shape(&mut random, n), weight));
        if is_ready(&mut random, n, count) {
            bench.ready(&[2 * n + 1]);
        }
    }
    bench.scheduler.tree.steps = 0;
    bench.turns(10_000);
    bench.scheduler.tree.steps as f64 / 10_000.0
}

#[test]
fn a_turn_takes_no_longer_with_more_streams() {
    type Shape = fn(&mut Random, u32) -> u32;
    type Ready = fn(&mut Random, u32, u32) -> bool;
    let flat: Shape = |_, _| 0;
    let chain: Shape = |_, n| (2 * n).saturating_sub(1);
    let two_chains: Shape = |_, n| (2 * n).saturating_sub(3);
    let random: Shape = |random, n| if n == 0 { 0 } else { 2 * random.below(n) + 1 };
    let all: Ready = |_, _, _| true;
    let half: Ready = |random, _, _| random.below(2) == 0;
    let lower: Ready = |_, n, count| 2 * n >= count;
    let bottom: Ready = |_, n, count| n + 2 >= count;
    let cases: &[(&str, Shape, Ready, f64)] = &[
        ("flat", flat, all, 1.0),
        ("flat, half ready", flat, half, 1.0),
        ("chain", chain, all, 1.0),
        ("chain, half ready", chain, half, 1.0),
        ("chain, the last two ready", chain, bottom, 1.0),
        (
            "two chains, the last of each ready",
            two_chains,
            bottom,
            1.0,
        ),
        ("random, half ready", random, half, 3.0),
        // A turn costs one step for each node on the way down that chooses among several children. The number of such nodes
        // depends on the tree's shape, not on its size.
        ("random, the later half ready", random, lower, 4.5),
    ];
    for &(name, shape, ready, limit) in cases {
        for count in [10, 100, 1_000, 10_000] {
            let steps = steps_per_turn(count, shape, ready);
            println!("{name}, {count} streams: {steps:.2} steps");
            assert!(steps <= limit, "{name}, {count} streams: {steps} steps");
        }
    }
}

/// The average number of steps (visited nodes) of a response beside `count` streams that send.
fn steps_per_response(count: u32, shape: fn(u32) -> u32) -> f64 {
    let mut bench = Bench::new();
    bench.checks = false;
    for n in 0..count {
        bench.open(2 * n + 1, on(shape(n), 16)).ready(&[2 * n + 1]);
    }
    bench.scheduler.tree.steps = 0;
    for n in 0..1_000 {
        let id = 2 * (count + n) + 1;
        bench.open(id, None).ready(&[id]).next();
        bench.blocked(&[id]).close(id);
    }
    bench.scheduler.tree.steps as f64 / 1_000.0
}

#[test]
fn a_response_takes_no_longer_with_more_streams() {
    for count in [10, 100, 1_000, 10_000] {
        // One step (visited node) each for becoming ready, for the turn, and for being ready no longer.
        assert!(steps_per_response(count, |_| 0) <= 3.0);
        assert!(steps_per_response(count, |n| (2 * n).saturating_sub(1)) <= 3.0);
    }
}

#[test]
fn to_become_ready_costs_the_way_up_to_a_stream_that_is_active() {
    let mut bench = Bench::new();
    bench.checks = false;
    for n in 0..1_000 {
        bench.open(2 * n + 1, on((2 * n).saturating_sub(1), 16));
    }
    let mut steps = |stream, ready| {
        let before = bench.scheduler.tree.steps;
        bench.scheduler.set_ready(bench.keys[&stream], ready);
        bench.scheduler.tree.steps - before
    };
    // A stream that is the only ready one costs no steps.
    assert_eq!(steps(1999, true), 0);
    // With a second ready stream, the first one, which is the lowest of the chain, makes all nodes above it active (they
    // have a ready node below). A node that becomes ready later is active already, but the scheduler walks up from it to the
    // next node that is ready or has several active children.
    assert_eq!(steps(1, true), 1_001);
    assert_eq!(steps(21, true), 10);
    assert_eq!(steps(21, false), 0);
}

#[test]
fn nothing_is_allocated_before_the_first_stream_or_after_the_last() {
    let mut bench = Bench::new();
    bench.scheduler.shrink();
    for id in (1..200).step_by(2) {
        bench.open(id, on(id.saturating_sub(4), 9)).ready(&[id]);
    }
    bench.turns(50);
    bench.scheduler.shrink();
    bench.check();
    for id in (1..200).step_by(2) {
        bench.close(id);
    }
    bench.scheduler.shrink();
    assert_eq!(bench.scheduler.tree.allocated(), 0);
    assert_eq!(bench.places(), "");
    bench.open(201, None).ready(&[201]);
    assert_eq!(bench.next(), Some(201));
}
