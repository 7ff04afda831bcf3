//! Tests of the dependencies between streams (RFC 7540 §5.3).

use super::*;

// Figures 3 and 4 of RFC 7540 §5.3.1.
#[test]
fn a_dependent_stream_joins_its_siblings_or_stands_between() {
    let mut bench = Bench::new();
    bench.open(1, None).open(3, on(1, 12)).open(5, on(1, 4));
    bench.open(7, on(1, 16));
    assert_eq!(bench.places(), "1<0:16 3<1:12 5<1:4 7<1:16");
    let mut bench = Bench::new();
    bench.open(1, None).open(3, on(1, 12)).open(5, on(1, 4));
    bench.open(7, only(1, 16));
    assert_eq!(bench.places(), "1<0:16 3<7:12 5<7:4 7<1:16");
}

#[test]
fn a_stream_moves_with_its_subtree_and_a_new_parent_from_below_moves_first() {
    for ready in [
        &[][..],
        &[13],
        &[1, 3, 5, 7, 9, 11, 13],
        &[5, 11, 13],
        &[3, 9],
    ] {
        let mut bench = figure_5(ready);
        bench.priority(3, on(9, 16));
        assert_eq!(
            bench.places(),
            "1<0:16 3<9:16 5<3:16 7<3:16 9<1:16 11<7:16 13<9:16"
        );
        let mut bench = figure_5(ready);
        bench.priority(3, only(9, 16));
        assert_eq!(
            bench.places(),
            "1<0:16 3<9:16 5<3:16 7<3:16 9<1:16 11<7:16 13<3:16"
        );
    }
}

#[test]
fn a_dependency_on_an_unknown_stream_is_default_priority() {
    let mut bench = Bench::new();
    bench.open(1, on(0, 7)).open(3, only(99, 200));
    assert_eq!(bench.places(), "1<0:7 3<0:16");
    bench.priority(3, on(1, 3)).priority(3, only(97, 200));
    assert_eq!(bench.places(), "1<0:7 3<0:16");
    assert_eq!(
        bench.scheduler.received(bench.keys[&3]),
        only(97, 200).unwrap()
    );
}

#[test]
fn a_stream_cannot_depend_on_itself() {
    let mut bench = Bench::new();
    let own = Priority {
        dependency: 1,
        ..Priority::DEFAULT
    };
    let error = Err(PriorityError::SelfDependency);
    assert_eq!(bench.scheduler.open(1, 1, Some(own)).err(), error.err());
    assert_eq!(bench.scheduler.reprioritize(1, own, 0), error);
    bench.open(1, None);
    assert_eq!(bench.scheduler.reprioritize(1, own, 1), error);
    bench.close(1);
    assert_eq!(bench.scheduler.reprioritize(1, own, 1), error);
}

#[test]
fn a_closed_stream_hands_its_weight_down() {
    let mut bench = Bench::new();
    bench
        .open(1, on(0, 100))
        .open(3, on(1, 30))
        .open(5, on(1, 10))
        .open(7, on(3, 5));
    bench.ready(&[3, 5, 7]).close(1);
    assert_eq!(bench.places(), "1<0:100 3<1:30 5<1:10 7<3:5");
    for id in (101..=119).step_by(2) {
        bench.open(id, on(5, 1)).close(id);
    }
    assert!(
        bench.places().starts_with("3<0:75 5<0:25 7<3:5 101<5:1 "),
        "{}",
        bench.places()
    );
    bench.blocked(&[7]);
    let counts = bench.counts(400);
    assert!(counts[&3].abs_diff(300) <= 4, "{counts:?}");

    // The weight 1 of a closed stream is divided among its children: each gets the weight 1, none gets 0.
    let mut bench = Bench::new();
    bench
        .open(1, on(0, 1))
        .open(3, on(1, 256))
        .open(5, on(1, 1))
        .close(1);
    for id in (101..=119).step_by(2) {
        bench.open(id, None).close(id);
    }
    assert!(
        bench.places().starts_with("3<0:1 5<0:1 "),
        "{}",
        bench.places()
    );
}

#[test]
fn ten_closed_streams_are_remembered() {
    let mut bench = Bench::new();
    for id in (1..=21).step_by(2) {
        bench.open(id, None);
    }
    for id in (1..=19).step_by(2) {
        bench.close(id);
    }
    bench.open(23, on(1, 9));
    assert_eq!(
        bench.scheduler.actual(bench.keys[&23]),
        Place {
            parent: 1,
            weight: 9
        }
    );
    // A PRIORITY frame moves a remembered closed stream, too.
    bench.priority(1, on(3, 200));
    assert!(bench.places().starts_with("1<3:200 "));
    bench.close(21);
    bench.open(25, on(1, 9));
    assert_eq!(
        bench.scheduler.actual(bench.keys[&25]),
        Place {
            parent: 0,
            weight: 16
        }
    );
    assert_eq!(
        bench.scheduler.actual(bench.keys[&23]),
        Place {
            parent: 3,
            weight: 200
        }
    );
    // PRIORITY frames are ignored for streams that are forgotten, that the client has skipped, or that only the server can
    // open.
    let before = bench.places();
    bench
        .priority(1, on(3, 1))
        .priority(0, on(3, 1))
        .priority(98, on(3, 1));
    assert_eq!(bench.places(), before);
}

#[test]
fn sixteen_idle_streams_have_places() {
    let mut bench = Bench::new();
    bench.open(1, None);
    for id in (3..=33).step_by(2) {
        bench.priority(id, on(0, 2));
    }
    assert!(bench.scheduler.has_placeholders());
    let more = |bench: &mut Bench, id| {
        bench
            .scheduler
            .reprioritize(id, Priority::DEFAULT, bench.newest)
    };
    assert_eq!(
        more(&mut bench, 35),
        Err(PriorityError::TooManyPlaceholders)
    );
    assert_eq!(more(&mut bench, 36), Ok(()));
    assert_eq!(more(&mut bench, 33), Ok(()));
    // Opening one of the sixteen idle streams makes room for another.
    bench.open(5, None);
    assert_eq!(
        bench.scheduler.actual(bench.keys[&5]),
        Place {
            parent: 0,
            weight: 2
        }
    );
    assert_eq!(bench.scheduler.received(bench.keys[&5]).weight, 2);
    assert_eq!(more(&mut bench, 35), Ok(()));
    assert_eq!(
        more(&mut bench, 37),
        Err(PriorityError::TooManyPlaceholders)
    );
}

#[test]
fn a_priority_with_the_request_replaces_the_placeholders() {
    let mut bench = Bench::new();
    bench.open(1, None).priority(3, on(1, 2)).open(3, on(0, 5));
    assert_eq!(bench.places(), "1<0:16 3<0:5");
    assert!(!bench.scheduler.has_placeholders());
}

#[test]
fn firefox_groups_share_by_weight() {
    let mut bench = Bench::new();
    let groups = [(3, 0, 201), (5, 0, 101), (7, 0, 1), (9, 7, 1), (11, 3, 1)];
    for (id, parent, weight) in groups {
        bench.priority(id, on(parent, weight));
    }
    // The groups that Firefox makes: leaders 3 (scripts), others 5, background 7, speculative 9, and followers 11 (images),
    // which depend on the leaders.
    bench
        .open(13, on(11, 32))
        .open(15, on(3, 32))
        .open(17, on(3, 32))
        .open(19, on(11, 12))
        .open(21, on(5, 32));
    bench.ready(&[13, 15, 17, 19, 21]);
    let counts = bench.counts(3020);
    // Group 3 has the weight 201 and group 5 has 101. Below stream 3 the weights are 32, 32 and 1 for the followers.
    assert!(counts[&21].abs_diff(1010) <= 5, "{counts:?}");
    assert!(counts[&15].abs_diff(990) <= 10, "{counts:?}");
    assert!(counts[&13] + counts[&19] >= 25, "{counts:?}");
    for id in [13, 15, 17, 19, 21] {
        bench.close(id);
    }
    // The groups stay after the streams in them have closed and unused memory was freed.
    bench.scheduler.shrink();
    bench.check();
    assert_eq!(bench.places(), "3<0:201 5<0:101 7<0:1 9<7:1 11<3:1");
    bench
        .open(23, on(11, 32))
        .open(25, on(7, 32))
        .ready(&[23, 25]);
    let counts = bench.counts(404);
    assert!(counts[&25].abs_diff(2) <= 1, "{counts:?}");
}

#[test]
fn chromium_chain_goes_from_the_top() {
    let mut bench = Bench::new();
    bench
        .open(1, only(0, 256))
        .open(3, only(1, 220))
        .open(5, only(3, 147))
        .open(7, only(3, 183));
    bench.open(9, only(5, 147));
    assert_eq!(bench.places(), "1<0:256 3<1:220 5<7:147 7<3:183 9<5:147");
    bench.ready(&[9, 5, 1]);
    assert_eq!(bench.turns(2), [1, 1]);
    bench.close(1);
    assert_eq!(bench.turns(2), [5, 5]);
    bench.ready(&[3]);
    assert_eq!(bench.next(), Some(3));
    bench.blocked(&[3, 5]);
    assert_eq!(bench.next(), Some(9));
}

#[test]
fn an_elevated_stream_goes_before_all() {
    let mut bench = Bench::new();
    bench
        .open(1, on(0, 256))
        .open(3, None)
        .open(5, None)
        .ready(&[1, 3]);
    let key = bench.keys[&5];
    bench.scheduler.elevate(key);
    assert_eq!(
        bench.scheduler.actual(key),
        Place {
            parent: 0,
            weight: 257
        }
    );
    bench.ready(&[5]);
    assert_eq!(bench.turns(3), [5, 5, 5]);
    // A PRIORITY frame for an elevated stream (before all others) is recorded, but does not move the stream.
    bench.priority(5, on(1, 2));
    assert_eq!(bench.scheduler.received(key), on(1, 2).unwrap());
    assert!(bench.scheduler.depends_on_root(key));
    // Two elevated streams (before all others) take turns, even if the client opens an exclusive stream.
    let other = bench.keys[&3];
    bench.scheduler.elevate(other);
    bench.open(7, only(0, 256)).ready(&[7]);
    assert_eq!(bench.turns(4), [5, 3, 5, 3]);
    assert_eq!(bench.places(), "1<7:256 3<0:257 5<0:257 7<0:256");
    assert!(!bench.answers(3, answer(7)));
    bench.blocked(&[3]);
    assert_eq!(bench.turns(2), [5, 5]);
    // A stream that depends on an elevated stream (before all others) is not elevated itself.
    bench.push(2, 5).ready(&[2]);
    bench.close(5);
    assert_eq!(bench.places(), "1<7:256 2<5:16 3<0:257 5<0:2 7<0:256");
    assert!(bench.turns(100).contains(&7));
}

#[test]
fn a_pushed_stream_depends_on_the_one_that_asked() {
    let mut bench = Bench::new();
    bench.open(1, on(0, 5)).push(2, 1).push(4, 2);
    assert_eq!(bench.places(), "1<0:5 2<1:16 4<2:16");
    assert_eq!(bench.scheduler.received(bench.keys[&4]), on(2, 16).unwrap());
    bench.ready(&[1, 2]);
    assert_eq!(bench.next(), Some(1));
    bench.priority(2, on(0, 9));
    assert_eq!(bench.places(), "1<0:5 2<0:9 4<2:16");
}
