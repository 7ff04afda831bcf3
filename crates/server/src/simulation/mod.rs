//! The drivers against clients and backends that a seed makes up, on a virtual clock.
//!
//! Clients of both protocol versions pipeline, upload, download, drip, stall, keep windows shut, take requests back and go
//! away; backends answer early, late, in pieces, or break off; the disk is slow. Sockets are real, so the events of the
//! kernel are, too; time passes only when a run says so.
//!
//! A connection that sleeps although it could go on is found in three ways. (1) Whenever all is quiet every connection is
//! run once more for no reason: nothing may come of it. (2) In the end everybody does what others wait for, and without any
//! time passing every request must come to its end. (3) In other runs the clients do nothing more, or only pretend to, and
//! every connection must end by itself.
//!
//! A failure prints its seed; `SEED=n cargo test -p h2o-server simulation` runs that one alone.

mod findings;
mod http1;
mod http2;
mod plan;
mod wire;
mod world;

use std::collections::VecDeque;

use h2o_testkit::{Random, run_seeds};
use tokio::runtime::{Builder, LocalOptions};

use http1::Http1;
use http2::Http2;
use plan::Plan;
use wire::Wire;
use world::{Knobs, Site, World};

const SEEDS: u64 = 300;

/// How a request ended, as its client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Complete,
    /// By the client, or by a server that had a reason.
    Cut,
}

/// What is known of the requests of a run.
struct Run {
    plans: Vec<Plan>,
    ends: Vec<Option<Ended>>,
    /// Time passes: a server may give up clients that are slow.
    times_out: bool,
}

impl Run {
    fn end(&mut self, id: usize, ended: Ended) {
        let before = self.ends[id].replace(ended);
        assert_eq!(before, None, "request {id} ends once");
    }
}

enum Client {
    Http1(Http1),
    Http2(Http2),
}

impl Client {
    const fn wire(&self) -> &Wire {
        match self {
            Self::Http1(client) => client.wire(),
            Self::Http2(client) => client.wire(),
        }
    }

    fn act(&mut self, run: &mut Run, random: &mut Random) {
        match self {
            Self::Http1(client) => client.act(run, random),
            Self::Http2(client) => client.act(run, random),
        }
    }

    fn cooperate(&mut self, run: &mut Run) -> bool {
        match self {
            Self::Http1(client) => client.cooperate(run),
            Self::Http2(client) => client.cooperate(run),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Http1(client) => client.describe(),
            Self::Http2(client) => client.describe(),
        }
    }

    fn remaining(&mut self) -> Option<VecDeque<usize>> {
        match self {
            Self::Http1(client) => client.remaining(),
            Self::Http2(client) => client.remaining(),
        }
    }
}

/// Runs a test on a clock that stands unless it is told to go on, with one thread for the disk.
fn on_virtual_clock<T>(test: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .max_blocking_threads(1)
        .build_local(LocalOptions::default());
    runtime.unwrap().block_on(test)
}

/// Requests that were complete before everybody began to do as others wanted, and all.
async fn run(seed: u64, site: &Site) -> (usize, usize) {
    let mut random = Random::new(seed);
    let count = random.below(14) + 2;
    let uploads = random.once_in(4);
    let plans = (0..count).map(|id| Plan::new(&mut random, id, uploads));
    let plans = plans.collect();
    let knobs = Knobs::new(&mut random);
    let steps = random.pick(&[50, 600, 2500]);
    let freezes = random.once_in(3);
    let mut world = World::start(site, plans, knobs, random);
    world.share_out();
    for _ in 0..steps {
        world.act().await;
    }
    world.settle().await;
    world.nudge().await;
    let ends = world.run.ends.iter();
    let complete = ends.filter(|end| **end == Some(Ended::Complete)).count();
    if freezes {
        world.freeze().await;
    } else {
        world.finish().await;
    }
    world.end().await;
    (complete, count)
}

#[test]
fn whatever_waits_has_an_event_to_come_that_will_wake_it() {
    let site = Site::new();
    let run = |seed| on_virtual_clock(run(seed, &site));
    let Some((complete, planned)) = run_seeds(SEEDS, run) else {
        return;
    };
    // The clients are neither so diligent nor so lazy that one of the two is never seen.
    assert!(complete > planned / 10, "{complete} of {planned}");
    assert!(complete < planned * 9 / 10, "{complete} of {planned}");
}
