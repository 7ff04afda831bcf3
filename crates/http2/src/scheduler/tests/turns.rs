//! Tests of the turns that streams have by their weights.

use super::*;

#[test]
fn weights_are_served_in_proportion() {
    let cases: &[&[u16]] = &[
        &[16, 16],
        &[256, 256, 256],
        &[1, 256],
        &[1, 2, 3, 4, 5],
        &[12, 4],
        &[200, 100, 1, 1],
        &[256, 220, 183, 147, 110, 74, 37, 1],
        &[1; 64],
        &[7; 3],
    ];
    for weights in cases {
        let mut bench = Bench::new();
        let mut id = 1;
        for &weight in *weights {
            bench.open(id, on(0, weight)).ready(&[id]);
            id += 2;
        }
        let sum: u32 = weights.iter().copied().map(u32::from).sum();
        let counts = bench.counts(20 * sum as usize);
        for (id, weight) in (1..).step_by(2).zip(*weights) {
            let got = counts[&id];
            let want = 20 * u32::from(*weight);
            // A tolerance is needed, since no stream waits for its first turn, whatever its weight.
            assert!(
                got.abs_diff(want) <= 2 + want / 50,
                "{weights:?}: {weight} had {got} of {want}"
            );
        }
    }
}

#[test]
fn equal_weights_take_turns() {
    let mut bench = Bench::new();
    bench
        .open(1, None)
        .open(3, None)
        .open(5, None)
        .ready(&[1, 3, 5]);
    assert_eq!(bench.turns(9), [1, 3, 5, 1, 3, 5, 1, 3, 5]);
}

#[test]
fn a_pause_does_not_pay() {
    // Stream 1 pauses after each of its turns. It does not get more turns by that than its weight allows.
    let mut bench = Bench::new();
    bench.open(1, on(0, 8)).open(3, on(0, 80)).ready(&[1, 3]);
    let mut counts = [0, 0];
    for _ in 0..1100 {
        if bench.next() == Some(1) {
            counts[0] += 1;
            bench.blocked(&[1]).ready(&[1]);
        } else {
            counts[1] += 1;
        }
    }
    assert!((95..=105).contains(&counts[0]), "{counts:?}");
    // A pause does not cost a stream turns either: its next turn comes as soon as the pause is over.
    bench.blocked(&[1]);
    bench.turns(100);
    bench.ready(&[1]);
    assert!(bench.turns(2).contains(&1));
}

#[test]
fn a_ready_stream_is_served_before_those_that_depend_on_it() {
    let mut bench = figure_5(&[3, 5, 7, 9, 11, 13]);
    assert_eq!(bench.turns(3), [3, 3, 3]);
    bench.blocked(&[3]);
    let counts = bench.counts(100);
    assert_eq!((counts[&5], counts[&7]), (50, 50));
    bench.blocked(&[7, 5]);
    let counts = bench.counts(100);
    assert_eq!((counts[&9], counts[&11]), (50, 50));
    bench.blocked(&[9, 11]);
    assert_eq!(bench.turns(2), [13, 13]);
    bench.blocked(&[13]);
    assert_eq!(bench.next(), None);
    assert!(!bench.scheduler.has_ready());
}
