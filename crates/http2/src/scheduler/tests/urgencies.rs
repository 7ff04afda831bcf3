//! Tests of the order of streams by the urgencies of RFC 9218.

use super::*;

#[test]
fn urgencies_go_first_to_last_and_streams_in_order() {
    let mut bench = Bench::new();
    for id in [1, 3, 5, 7, 9] {
        bench.open(id, None);
    }
    bench.scheduler.use_urgencies();
    for (id, value) in [
        (1, urgency(5, false)),
        (3, urgency(3, false)),
        (5, urgency(3, false)),
        (7, urgency(0, true)),
    ] {
        bench.scheduler.set_parameters(bench.keys[&id], value);
    }
    bench.ready(&[9, 7, 5, 3, 1]);
    for id in [7, 3, 5, 9, 1] {
        assert_eq!(bench.turns(3), [id; 3]);
        bench.close(id);
    }
    assert_eq!(bench.next(), None);
}

#[test]
fn incremental_streams_begin_in_order_and_then_take_turns() {
    let mut bench = Bench::new();
    bench.scheduler.use_urgencies();
    for (id, incremental) in [(1, true), (3, false), (5, true), (7, true)] {
        bench.open(id, None).ready(&[id]);
        bench
            .scheduler
            .set_parameters(bench.keys[&id], urgency(3, incremental));
        bench.check();
    }
    assert_eq!(bench.turns(3), [1, 3, 3]);
    bench.blocked(&[3]);
    assert_eq!(bench.turns(8), [5, 7, 1, 5, 7, 1, 5, 7]);
    // Within one urgency, a new stream is served at once, and a stream that was blocked gets its turn again; streams with a
    // lower urgency number precede all others.
    bench.open(9, None);
    bench
        .scheduler
        .set_parameters(bench.keys[&9], urgency(3, true));
    bench.ready(&[9]).blocked(&[1]).ready(&[1]);
    assert_eq!(bench.turns(5), [9, 5, 7, 1, 9]);
    bench.ready(&[3]);
    assert_eq!(bench.turns(2), [3, 3]);
    bench
        .scheduler
        .set_parameters(bench.keys[&7], urgency(2, true));
    assert_eq!(bench.turns(2), [7, 7]);
    let one = bench.keys[&1];
    bench.scheduler.elevate(one);
    assert_eq!(bench.turns(2), [1, 1]);
    bench.check();
}

#[test]
fn a_priority_update_counts_more_than_the_request() {
    let mut bench = Bench::new();
    bench.scheduler.use_urgencies();
    let update = |bench: &mut Bench, id, u| {
        bench
            .scheduler
            .priority_update(id, urgency(u, false), bench.newest)
    };
    assert_eq!(update(&mut bench, 3, 6), Ok(()));
    assert_eq!(update(&mut bench, 3, 7), Ok(()));
    bench.open(1, None).open(3, None);
    let (one, three) = (bench.keys[&1], bench.keys[&3]);
    bench.scheduler.set_parameters(three, urgency(0, true));
    assert_eq!(bench.scheduler.parameters(three), urgency(7, false));
    assert_eq!(update(&mut bench, 3, 1), Ok(()));
    assert_eq!(bench.scheduler.parameters(three), urgency(1, false));
    // The `priority` field of the response overrides the request's parameters that it names.
    assert!(bench.answers(
        3,
        PriorityField {
            urgency: None,
            incremental: Some(true)
        }
    ));
    assert_eq!(bench.scheduler.parameters(three), urgency(1, true));
    assert!(!bench.answers(3, PriorityField::default()));
    bench.scheduler.set_parameters(one, urgency(2, true));
    assert_eq!(bench.scheduler.parameters(one), urgency(2, true));
    // PRIORITY_UPDATE frames for sixteen streams that are not open yet are kept. Frames for streams that the client has
    // skipped make room for others; those for closed streams do not count.
    for id in (5..=35).step_by(2) {
        assert_eq!(update(&mut bench, id, 1), Ok(()));
    }
    assert_eq!(
        update(&mut bench, 37, 1),
        Err(PriorityError::TooManyPlaceholders)
    );
    assert_eq!(update(&mut bench, 2, 1), Ok(()));
    bench.close(1);
    assert_eq!(update(&mut bench, 1, 1), Ok(()));
    bench.open(7, None);
    assert_eq!(
        bench.scheduler.parameters(bench.keys[&7]),
        urgency(1, false)
    );
    assert_eq!(update(&mut bench, 37, 1), Ok(()));
    assert_eq!(update(&mut bench, 39, 1), Ok(()));
    assert_eq!(
        update(&mut bench, 41, 1),
        Err(PriorityError::TooManyPlaceholders)
    );
}

#[test]
fn ready_streams_move_over_to_urgencies() {
    let mut bench = Bench::new();
    bench
        .open(1, None)
        .open(3, on(1, 16))
        .open(5, on(3, 200))
        .open(7, None)
        .open(9, on(1, 5));
    bench.ready(&[3, 5, 7]);
    bench
        .scheduler
        .set_parameters(bench.keys[&5], urgency(1, false));
    bench.scheduler.use_urgencies();
    bench.scheduler.use_urgencies();
    bench.check();
    assert!(bench.scheduler.is_ready(bench.keys[&3]));
    for id in [5, 3, 7] {
        assert_eq!(bench.next(), Some(id));
        bench.close(id);
    }
    // The tree still records the dependencies that the client requests.
    bench.priority(9, on(7, 3));
    assert_eq!(
        bench.scheduler.actual(bench.keys[&9]),
        Place {
            parent: 7,
            weight: 3
        }
    );
    assert_eq!(bench.next(), None);
}
