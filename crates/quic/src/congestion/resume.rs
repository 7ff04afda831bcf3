//! What earlier connections have found out about paths (draft-ietf-tsvwg-careful-resume): a client that comes again to the same server, and
//! has shown its address, need not begin from nothing.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Clients that are remembered by an endpoint; when more come, those heard of first are forgotten.
const MAX_CLIENTS: usize = 4096;
/// How long what was found out is good for. H2O compatibility: as long as a token of an earlier connection validates an address.
const LIFE: Duration = Duration::from_secs(600);

/// What was found out about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Observation {
    /// The congestion window, in bytes.
    pub(crate) window: u64,
    pub(crate) min_rtt: Duration,
    pub(crate) at: Instant,
}

/// Observations by address.
#[derive(Debug, Default)]
pub(crate) struct PathMemory {
    by_client: HashMap<IpAddr, Observation>,
    order: VecDeque<IpAddr>,
}

impl PathMemory {
    pub(crate) fn remember(&mut self, client: IpAddr, observation: Observation) {
        if self.by_client.insert(client, observation).is_none() {
            self.order.push_back(client);
        }
        if self.order.len() > MAX_CLIENTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_client.remove(&oldest);
        }
    }

    pub(crate) fn recall(&self, client: IpAddr, now: Instant) -> Option<Observation> {
        let found = self.by_client.get(&client).copied();
        found.filter(|found| now.saturating_duration_since(found.at) < LIFE)
    }
}

/// The window that a connection jumps to once its round trip time shows that the path is the one that was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Jump {
    pub(crate) window: u64,
    pub(crate) min_rtt: Duration,
}

impl Jump {
    /// Half of what the path carried, and at most `max` bytes.
    pub(crate) fn new(observation: &Observation, max: u64) -> Self {
        Self {
            window: (observation.window / 2).min(max),
            min_rtt: observation.min_rtt,
        }
    }

    /// The window, if the round trip time is between half and ten times of what it was.
    pub(crate) fn window(&self, rtt: Duration) -> Option<u64> {
        let is_alike = self.min_rtt / 2 <= rtt && rtt <= self.min_rtt * 10;
        is_alike.then_some(self.window)
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "the beginning of a virtual clock"
)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_remembered_for_ten_minutes_and_only_so_many() {
        let mut memory = PathMemory::default();
        let at = Instant::now();
        let seen = Observation {
            window: 100_000,
            min_rtt: Duration::from_millis(80),
            at,
        };
        let client = |number: u32| IpAddr::from(number.to_be_bytes());
        for number in 0..=4096 {
            memory.remember(client(number), seen);
        }
        assert_eq!(memory.recall(client(0), at), None);
        assert_eq!(memory.recall(client(1), at), Some(seen));
        assert_eq!(memory.recall(client(1), at + LIFE), None);
        assert_eq!(memory.by_client.len(), MAX_CLIENTS);
    }

    #[test]
    fn a_jump_needs_a_round_trip_time_like_the_one_that_was_seen() {
        let seen = Observation {
            window: 100_000,
            min_rtt: Duration::from_millis(80),
            at: Instant::now(),
        };
        let jump = Jump::new(&seen, 60_000);
        assert_eq!(jump.window(Duration::from_millis(85)), Some(50_000));
        assert_eq!(jump.window(Duration::from_millis(39)), None);
        assert_eq!(jump.window(Duration::from_millis(801)), None);
        assert_eq!(Jump::new(&seen, 30_000).window(seen.min_rtt), Some(30_000));
    }
}
