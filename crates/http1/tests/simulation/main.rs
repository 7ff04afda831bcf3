//! A simulation of the client role against the server role, over a link that splits, delays and cuts the bytes at any
//! place.
//!
//! Each seed makes a plan of requests and responses and a schedule of actions. Whatever the schedule, both sides must see
//! what was planned or, if the link was cut or the server aborted, know that they did not. A failure prints its seed;
//! `SEED=n cargo test -p h2o-http1 --test simulation` runs that seed alone.

mod actors;
mod plan;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use actors::{Client, Server};
use h2o_testkit::{Random, any_moment, run_seeds};
use plan::Plan;

const SEEDS: u64 = 3000;

/// One direction of the link: the bytes on their way, and whether the sender has closed it.
#[derive(Default)]
struct Wire {
    bytes: VecDeque<u8>,
    is_closed: bool,
}

impl Wire {
    /// Moves a random number of bytes, at most `most`, from the link to the receiver's buffer.
    fn deliver(&mut self, to: &mut Vec<u8>, random: &mut Random, most: usize) {
        let most = most.min(self.bytes.len());
        if most > 0 {
            let len = random.below(most) + 1;
            to.extend(self.bytes.drain(..len));
        }
    }

    fn is_drained(&self) -> bool {
        self.is_closed && self.bytes.is_empty()
    }
}

/// One connection with an actor at each end.
struct Connection<'p> {
    client: Client<'p>,
    server: Server<'p>,
    up: Wire,
    down: Wire,
    now: Instant,
}

impl<'p> Connection<'p> {
    fn new(plan: &'p Plan, from: usize) -> Self {
        let now = any_moment();
        Self {
            client: Client::new(plan, from),
            server: Server::new(plan, from, now),
            up: Wire::default(),
            down: Wire::default(),
            now,
        }
    }

    /// Lets one actor or one direction of the link act. `most` is how many bytes the link moves at once.
    fn step(&mut self, random: &mut Random, most: usize) {
        self.now += Duration::from_micros(100);
        let timed_out = self.server.engine.on_timeout(self.now);
        assert_eq!(timed_out, None, "no side was slow, so no timeout fires");
        match random.below(4) {
            0 => self.client.act(random, &mut self.up),
            1 => self.server.act(random, self.now, &mut self.down),
            2 => {
                self.up.deliver(&mut self.server.input, random, most);
                self.server.receive(self.now);
            }
            _ => {
                self.down.deliver(&mut self.client.input, random, most);
                self.client.receive();
                if self.down.is_drained() {
                    self.client.on_closed();
                }
            }
        }
    }

    fn cut(&mut self) {
        self.up = Wire {
            is_closed: true,
            ..Wire::default()
        };
        self.down.bytes.clear();
        self.down.is_closed = true;
    }
}

/// Runs the plan of a seed. Returns how many exchanges were completed, and how many were planned.
fn run(seed: u64) -> (usize, usize) {
    let mut random = Random::new(seed);
    let plan = Plan::new(&mut random);
    let most = [1, 2, 20, 1000, 100_000][random.below(5)];
    let (mut next, mut completed) = (0, 0);
    while next < plan.exchanges.len() {
        let mut connection = Connection::new(&plan, next);
        // A third of the connections is cut after a random number of bytes.
        let cut_after = (random.below(3) == 0).then(|| random.below(4000));
        let mut delivered = 0;
        let mut steps = 0;
        while !connection.client.is_over() {
            let before = connection.up.bytes.len() + connection.down.bytes.len();
            connection.step(&mut random, most);
            let after = connection.up.bytes.len() + connection.down.bytes.len();
            delivered += before.saturating_sub(after);
            if cut_after.is_some_and(|at| delivered > at) {
                connection.cut();
            }
            steps += 1;
            assert!(steps < 1_000_000, "client and server wait for each other");
        }
        next = connection.client.next_exchange();
        completed += connection.client.completed();
    }
    (completed, plan.exchanges.len())
}

#[test]
fn both_sides_see_what_was_planned_or_know_that_they_did_not() {
    let Some((completed, planned)) = run_seeds(SEEDS, run) else {
        return;
    };
    // Checks that the schedule is neither too gentle nor too harsh: many exchanges are completed, and many are not.
    assert!(
        completed > planned / 2,
        "{completed} of {planned} exchanges were completed"
    );
    assert!(
        completed < planned * 9 / 10,
        "{completed} of {planned} exchanges were completed"
    );
}
