//! Tests of the `priority` field of responses, as it is applied to the dependency tree.

use super::*;

#[test]
fn a_response_priority_moves_within_a_chain() {
    let mut bench = Bench::new();
    bench
        .open(1, only(0, 256))
        .open(3, only(1, 220))
        .open(5, only(3, 147))
        .open(7, only(5, 110));
    bench.ready(&[1, 3, 5, 7]);
    assert!(bench.answers(7, answer(0)));
    assert_eq!(bench.places(), "1<0:256 3<7:220 5<3:147 7<1:256 (7<5:110)");
    assert_eq!(
        bench.scheduler.received(bench.keys[&7]),
        only(5, 110).unwrap()
    );
    bench.blocked(&[1]);
    assert_eq!(bench.next(), Some(7));
    // Stream 9 depends on stream 7, which its response has moved: stream 9 is placed below the place that the client
    // requested for stream 7. A PRIORITY frame for stream 7 moves only that place.
    bench.open(9, only(7, 110)).ready(&[9]);
    assert_eq!(
        bench.places(),
        "1<0:256 3<7:220 5<3:147 7<1:256 (7<5:110) 9<7:110"
    );
    let keeper = bench.scheduler.find(7).unwrap();
    assert_eq!(children(&bench.scheduler, keeper), [bench.keys[&9].0]);
    // A second `priority` field of the response moves stream 7 again. Streams of equal weight stay before it.
    assert!(bench.answers(7, answer(1)));
    assert_eq!(
        bench.places(),
        "1<0:256 3<1:220 5<7:147 7<3:220 (7<5:110) 9<7:110"
    );
    assert!(bench.answers(7, answer(7)));
    assert_eq!(
        bench.places(),
        "1<0:256 3<1:220 5<3:147 7<9:1 (7<5:110) 9<7:110"
    );
    bench.blocked(&[3, 5, 9]);
    assert_eq!(bench.next(), Some(7));
    bench.close(7);
    assert_eq!(bench.places(), "1<0:256 3<1:220 5<3:147 7<5:110 9<7:110");
    assert!(bench.answers(1, answer(3)));
    assert_eq!(
        bench.places(),
        "1<5:147 (1<0:256) 3<1:220 5<3:147 7<1:110 9<7:110"
    );
    // A `priority` field that names no urgency has no effect.
    assert!(!bench.answers(
        3,
        PriorityField {
            urgency: None,
            incremental: Some(true)
        }
    ));
}

#[test]
fn a_response_priority_is_for_chains_only() {
    for (second, expected) in [
        (only(1, 100), true),
        (only(0, 100), true),
        (on(1, 100), false),
        (only(1, 101), false),
        (on(0, 100), false),
    ] {
        let mut bench = Bench::new();
        bench.open(1, only(0, 100)).open(3, second);
        assert_eq!(bench.answers(3, answer(1)), expected, "{second:?}");
    }
    let mut bench = Bench::new();
    bench.open(1, None);
    assert!(!bench.answers(1, answer(1)));
}

#[test]
fn weights_of_urgencies() {
    for (u, weight) in [256, 220, 183, 147, 110, 74, 37, 1].into_iter().enumerate() {
        let mut bench = Bench::new();
        bench.open(1, only(0, 50));
        assert!(bench.answers(1, answer(u8::try_from(u).unwrap())));
        assert_eq!(bench.scheduler.actual(bench.keys[&1]).weight, weight);
    }
}
