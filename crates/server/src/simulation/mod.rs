//! Tests the connection drivers against simulated clients and backends that act at random, as a seed decides, on a virtual clock.
//!
//! Clients pipeline requests, upload, download, send a few bytes at a time, stall, keep windows shut, reset requests and
//! disconnect; backends answer early, late, in pieces, or fail within a response; the disk is slow. Sockets are real, and so are
//! the events of the kernel; time passes only when the test lets it pass.
//!
//! A connection that waits although it could proceed is found in three ways. (1) Whenever nothing happens any more, every
//! connection is run once more without an event: this must change nothing. (2) At the end, clients and backends do everything that
//! the server waits for, and every request must end without any time passing. (3) In other runs the clients stop, or only send
//! PINGs, and the server must close every connection by its timeouts.
//!
//! QUIC needs time to pass: acknowledgements are delayed, packets paced and lost ones repeated. In runs with HTTP/3, less time
//! passes than any time limit of a request, and the link loses datagrams.
//!
//! A failure prints its seed; `SEED=n cargo test -p h2o-server simulation` runs only the simulation of that seed.

mod findings;
mod http1;
mod http2;
mod http3;
mod plan;
mod wire;
mod world;

use std::collections::VecDeque;

use h2o_testkit::{Random, run_seeds};
use tokio::runtime::{Builder, LocalOptions};

use http1::Http1;
use http2::Http2;
use http3::Http3;
use plan::Plan;
use world::{Knobs, Site, World};

const SEEDS: u64 = 300;
const HTTP3_SEEDS: u64 = 60;

/// How a request ended from the view of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Complete,
    /// The client cancelled the request, or the server ended it for a reason that the simulation allows.
    Cut,
}

/// The requests of one simulation, and how each ended.
struct Run {
    plans: Vec<Plan>,
    ends: Vec<Option<Ended>>,
    /// Whether the simulation lets so much time pass that the server may time out slow clients.
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
    Http2(Box<Http2>),
    Http3(Box<Http3>),
}

impl Client {
    /// Number of bytes (for HTTP/3: of datagrams) in the kernel: first those that the server has sent and the client has not read,
    /// then those in the other direction.
    fn in_kernel(&self) -> (i32, i32) {
        match self {
            Self::Http1(client) => client.wire().in_kernel(),
            Self::Http2(client) => client.wire().in_kernel(),
            Self::Http3(client) => (i32::try_from(client.waiting()).unwrap(), 0),
        }
    }

    fn act(&mut self, run: &mut Run, random: &mut Random) {
        match self {
            Self::Http1(client) => client.act(run, random),
            Self::Http2(client) => client.act(run, random),
            Self::Http3(client) => client.act(run, random),
        }
    }

    fn cooperate(&mut self, run: &mut Run) -> bool {
        match self {
            Self::Http1(client) => client.cooperate(run),
            Self::Http2(client) => client.cooperate(run),
            Self::Http3(client) => client.cooperate(run),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Http1(client) => client.describe(),
            Self::Http2(client) => client.describe(),
            Self::Http3(client) => client.describe(),
        }
    }

    fn remaining(&mut self) -> Option<VecDeque<usize>> {
        match self {
            Self::Http1(client) => client.remaining(),
            Self::Http2(client) => client.remaining(),
            Self::Http3(client) => client.remaining(),
        }
    }
}

/// Runs a test on tokio's paused clock, with a single disk thread.
fn on_virtual_clock<T>(test: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .max_blocking_threads(1)
        .build_local(LocalOptions::default());
    runtime.unwrap().block_on(test)
}

/// Runs the simulation of a seed, with clients of HTTP/1 and HTTP/2, or of HTTP/3. Returns the number of requests that
/// were complete before clients and backends began to cooperate, and the number of all requests.
async fn run(seed: u64, site: &Site, is_http3: bool) -> (usize, usize) {
    let mut random = Random::new(seed);
    let count = random.below(14) + 2;
    let uploads = random.once_in(4);
    let plans = (0..count).map(|id| Plan::new(&mut random, id, uploads));
    let plans = plans.collect();
    let knobs = Knobs {
        is_http3,
        ..Knobs::new(&mut random)
    };
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
    let run = |seed| on_virtual_clock(run(seed, &Site::new(), false));
    let Some((complete, planned)) = run_seeds(SEEDS, run) else {
        return;
    };
    // Over all seeds both phases must occur: some requests end while clients and backends act at random, others only
    // once these cooperate.
    assert!(
        complete > planned / 10,
        "{complete} of {planned} requests were completed"
    );
    assert!(
        complete < planned * 9 / 10,
        "{complete} of {planned} requests were completed"
    );
}

#[test]
fn whatever_waits_over_http_3_has_an_event_to_come_that_will_wake_it() {
    let run = |seed| on_virtual_clock(run(seed, &Site::new(), true));
    let Some((complete, planned)) = run_seeds(HTTP3_SEEDS, run) else {
        return;
    };
    assert!(
        complete > planned / 20,
        "{complete} of {planned} requests were completed"
    );
    assert!(
        complete < planned * 9 / 10,
        "{complete} of {planned} requests were completed"
    );
}
