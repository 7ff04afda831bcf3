//! A test for each error that the simulation has found, and for each rule that needs time to pass.

use std::time::Duration;

use h2o_exchange::BodyUse;
use h2o_testkit::Random;

use super::plan::{self, BodyPlan, Plan};
use super::world::{Knobs, Site, World};
use super::{Ended, on_virtual_clock};

const KNOBS: Knobs = Knobs {
    is_http3: false,
    buffer: 4608,
    window: 65_535,
    concurrent: 100,
    streaming: 1,
    delays: false,
    times_out: true,
};

fn world(site: &Site, plans: Vec<Plan>, knobs: Knobs) -> World {
    World::start(site, plans, knobs, Random::new(0))
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// The error was: a response for which the socket had no room blocked the queue, although its request was over.
#[test]
fn requests_in_the_queue_do_not_wait_for_a_socket_that_takes_nothing() {
    let site = Site::new();
    on_virtual_clock(async {
        let plans = vec![
            Plan::simple(0, None, BodyUse::None, 0, BodyPlan::Bytes(9000)),
            Plan::simple(1, None, BodyUse::None, 1, BodyPlan::Empty),
        ];
        let knobs = Knobs {
            concurrent: 1,
            ..KNOBS
        };
        let world = world(&site, plans, knobs);
        let mut client = world.http2([0, 1], 65_535);
        while client.begin(&world.run) {}
        client.flush();
        world.settle().await;
        assert_eq!(plan::waiting(), [1], "the second request has begun");
    });
}

/// The error was: requests in the queue counted as work that the server has to do, so the timeouts for clients did not apply to
/// their connection.
#[test]
fn windows_that_are_kept_shut_do_not_keep_requests() {
    let site = Site::new();
    for (pings, concurrent) in [(false, 2), (true, 2), (true, 100)] {
        on_virtual_clock(async {
            let plans =
                (0..5).map(|id| Plan::simple(id, None, BodyUse::None, 0, BodyPlan::Bytes(9000)));
            let plans = plans.collect();
            let knobs = Knobs {
                concurrent,
                ..KNOBS
            };
            let mut world = world(&site, plans, knobs);
            let mut client = world.http2(0..5, 0);
            while client.begin(&world.run) {}
            client.flush();
            world.settle().await;
            assert!(world.live().len() >= 2);
            // The timeout for the client of a queued request begins when its handler runs, so the requests time out in several rounds.
            let turns = if concurrent == 2 { 3 } else { 1 };
            // Lets more time pass than the timeout, and in whole seconds: the server's checks are up to six seconds apart.
            for _ in 0..turns * 40 {
                world.pass(seconds(1)).await;
                if pings {
                    client.ping();
                    client.flush();
                }
            }
            assert_eq!(
                world.live(),
                [0; 0],
                "{concurrent} at a time, pings: {pings}"
            );
            while client.receive(&mut world.run, 100_000) {}
            let ends = &world.run.ends;
            assert!(ends.iter().all(|end| *end == Some(Ended::Cut)), "{ends:?}");
        });
    }
}

#[test]
fn clients_that_take_a_few_bytes_now_and_then_do_not_keep_requests() {
    let site = Site::new();
    on_virtual_clock(async {
        let content = BodyPlan::Bytes(300_000);
        let plans = (0..3).map(|id| Plan::simple(id, None, BodyUse::None, 0, content.clone()));
        let mut world = world(&site, plans.collect(), KNOBS);
        let mut http1 = world.http1([0]);
        http1.begin(&world.run);
        http1.flush();
        let mut http2 = world.http2([1, 2], 1);
        while http2.begin(&world.run) {}
        http2.flush();
        world.settle().await;
        assert_eq!(world.live().len(), 3);
        for _ in 0..30 {
            world.pass(seconds(1)).await;
            http1.receive(&mut world.run, 100);
            http2.receive(&mut world.run, 100);
            // The client raises the windows only by the few bytes that it has received.
            http2.credit_all();
            http2.flush();
            world.settle().await;
        }
        assert_eq!(world.live(), [0; 0]);
    });
}

#[test]
fn uploads_that_drip_do_not_keep_requests() {
    let site = Site::new();
    for body_use in [BodyUse::Whole, BodyUse::Stream] {
        on_virtual_clock(async {
            let plans =
                (0..4).map(|id| Plan::simple(id, Some(20_000), body_use, 0, BodyPlan::Empty));
            let world = world(&site, plans.collect(), KNOBS);
            let mut http1 = world.http1([0]);
            http1.begin(&world.run);
            http1.flush();
            let mut http2 = world.http2([1, 2, 3], 65_535);
            while http2.begin(&world.run) {}
            http2.flush();
            world.settle().await;
            assert_eq!(world.live().len(), 4);
            for _ in 0..30 {
                world.pass(seconds(1)).await;
                http1.produce(&world.run, 1);
                http1.flush();
                for stream in [1, 3, 5] {
                    http2.produce_on(&world.run, stream, 1);
                }
                http2.ping();
                http2.flush();
                world.settle().await;
            }
            assert_eq!(world.live(), [0; 0], "{body_use:?}");
        });
    }
}

#[test]
fn clients_that_are_fast_enough_are_not_given_up_while_they_wait() {
    let site = Site::new();
    on_virtual_clock(async {
        let upload = Some(60_000);
        let plans = vec![
            Plan::simple(0, upload, BodyUse::Whole, 1, BodyPlan::Bytes(60_000)),
            Plan::simple(1, upload, BodyUse::Whole, 1, BodyPlan::Bytes(60_000)),
            Plan::simple(2, upload, BodyUse::Stream, 1, BodyPlan::Bytes(60_000)),
        ];
        let mut world = world(&site, plans, KNOBS);
        let mut http1 = world.http1([0]);
        http1.begin(&world.run);
        let mut http2 = world.http2([1, 2], 65_535);
        while http2.begin(&world.run) {}
        // The clients send, and later take, a thousand bytes per second on each stream. In between, the server waits for five minutes for
        // nothing but the handlers.
        for _ in 0..70 {
            world.pass(seconds(1)).await;
            http1.produce(&world.run, 1000);
            http1.flush();
            for stream in [1, 3] {
                http2.produce_on(&world.run, stream, 1000);
            }
            http2.flush();
            http2.receive(&mut world.run, 1000);
        }
        world.pass(seconds(300)).await;
        assert_eq!(plan::waiting(), [0, 1, 2]);
        for id in 0..3 {
            plan::happen(id);
        }
        world.settle().await;
        for _ in 0..140 {
            world.pass(seconds(1)).await;
            http1.receive(&mut world.run, 1000);
            http2.receive(&mut world.run, 2000);
            http2.credit_all();
            http2.flush();
        }
        assert_eq!(world.run.ends, [Some(Ended::Complete); 3]);
    });
}

/// The error was: the response said `Connection: keep-alive`, but the server closed the connection after it.
#[test]
fn a_connection_is_not_closed_for_content_that_comes_behind_the_response() {
    let site = Site::new();
    on_virtual_clock(async {
        let knobs = Knobs {
            times_out: false,
            ..KNOBS
        };
        let mut early = Plan::simple(0, Some(50_000), BodyUse::Stream, 0, BodyPlan::Bytes(10));
        early.answers_at_once();
        let plans = vec![
            early,
            Plan::simple(1, None, BodyUse::None, 0, BodyPlan::Empty),
        ];
        let mut world = world(&site, plans, knobs);
        let mut client = world.http1([0, 1]);
        client.begin(&world.run);
        client.produce(&world.run, 100);
        client.flush();
        world.settle().await;
        client.receive(&mut world.run, 1000);
        assert_eq!(
            world.run.ends[0],
            Some(Ended::Complete),
            "the response is complete before its request is"
        );
        while client.cooperate(&mut world.run) {
            world.settle().await;
        }
        assert_eq!(world.run.ends[1], Some(Ended::Complete));
        assert!(!client.wire().is_ended);
    });
}
