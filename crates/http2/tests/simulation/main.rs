//! A simulation of the client role against the server role, over a link that splits, delays and cuts the bytes at any
//! place.
//!
//! Each seed makes a plan of requests and responses and a schedule of actions. Whatever the schedule, both sides must see
//! what was planned or know that they did not, no window may be exceeded, and no stream may be left at the end. A failure
//! prints its seed; `SEED=n cargo test -p h2o-http2 --test simulation` runs that seed alone.

mod client;
mod plan;
mod server;

use std::collections::VecDeque;
use std::time::Duration;

use client::{Client, Ended};
use h2o_testkit::{Random, any_moment, run_seeds};
use plan::Plan;
use server::Server;

const SEEDS: u64 = 300;

/// One direction of the link: the bytes on their way.
#[derive(Default)]
struct Wire {
    bytes: VecDeque<u8>,
    is_cut: bool,
}

impl Wire {
    fn send(&mut self, bytes: &[u8]) {
        if !self.is_cut {
            self.bytes.extend(bytes);
        }
    }

    /// Moves a random number of bytes, at most `most`, from the link to the receiver's buffer. Returns the number.
    fn deliver(&mut self, to: &mut Vec<u8>, random: &mut Random, most: usize) -> usize {
        let most = most.min(self.bytes.len());
        if most == 0 {
            return 0;
        }
        let len = random.below(most) + 1;
        to.extend(self.bytes.drain(..len));
        len
    }
}

/// Runs exchanges over one connection until all are done, the connection has ended, or the link is cut.
fn run_connection(
    plan: &Plan,
    open: &mut Vec<usize>,
    results: &mut [Option<Ended>],
    random: &mut Random,
    most: usize,
) {
    let mut now = any_moment();
    let (mut up, mut down) = (Wire::default(), Wire::default());
    let mut client = Client::new(plan, now, &mut up);
    let mut server = Server::new(plan, now);
    // A quarter of the connections is cut after a random number of bytes.
    let cut_after = random.once_in(4).then(|| random.below(8000));
    let mut delivered = 0;
    for step in 0.. {
        assert!(step < 2_000_000, "client and server wait for each other");
        now += Duration::from_millis(1);
        server.pass_time(now, &mut down);
        match random.below(4) {
            0 => client.act(random, open, results, &mut up),
            1 => server.act(random, &mut down),
            2 => {
                delivered += up.deliver(&mut server.input, random, most);
                server.receive(now, &mut down);
            }
            _ => {
                delivered += down.deliver(&mut client.input, random, most);
                client.receive(now, open, results, &mut up);
            }
        }
        if cut_after.is_some_and(|at| delivered > at) {
            for at in client.outstanding() {
                results[at] = Some(Ended::Cut);
            }
            return;
        }
        let has_more = !open.is_empty() && client.engine.is_reusable();
        let is_quiet =
            client.is_idle() && server.is_idle() && up.bytes.is_empty() && down.bytes.is_empty();
        if !has_more && is_quiet {
            break;
        }
    }
    assert!(
        !client.engine.has_streams() && !server.engine.has_streams(),
        "an engine holds a stream that has ended"
    );
    client.engine.shrink();
    server.engine.shrink();
    let retained = client.engine.retained().max(server.engine.retained());
    assert!(
        retained < 32 << 10,
        "memory of ended streams is not freed: {retained}"
    );
}

/// Runs the plan of a seed. Returns how many exchanges were completed, and how many were planned.
fn run(seed: u64) -> (usize, usize) {
    let mut random = Random::new(seed);
    let most = random.pick(&[1, 20, 1000, 100_000]);
    let plan = Plan::new(&mut random, (most * 100).clamp(300, 200_000));
    let mut results = vec![None; plan.exchanges.len()];
    let mut open: Vec<_> = (0..plan.exchanges.len()).collect();
    for connections in 0.. {
        if open.is_empty() {
            break;
        }
        assert!(connections < 100, "the exchanges need too many connections");
        run_connection(&plan, &mut open, &mut results, &mut random, most);
    }
    let is_complete = |result: &&Option<Ended>| **result == Some(Ended::Complete);
    assert!(
        results.iter().all(Option::is_some),
        "an exchange has not ended"
    );
    (results.iter().filter(is_complete).count(), results.len())
}

#[test]
fn both_sides_see_what_was_planned_or_know_that_they_did_not() {
    let Some((complete, planned)) = run_seeds(SEEDS, run) else {
        return;
    };
    // Checks that the schedule is neither too gentle nor too harsh: many exchanges are completed, and many are not.
    assert!(
        complete > planned / 2,
        "{complete} of {planned} exchanges were completed"
    );
    assert!(
        complete < planned * 9 / 10,
        "{complete} of {planned} exchanges were completed"
    );
}
