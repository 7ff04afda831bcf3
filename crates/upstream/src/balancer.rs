//! Load balancing: chooses the backend of a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::{Balancing, Upstream};

/// Chooses the backends of requests. Shared by all workers.
pub(crate) enum Balancer {
    RoundRobin {
        weights: Box<[u32]>,
        /// Upper 32 bits: index of the backend chosen last. Lower 32 bits: how many times in a row that backend was chosen.
        turn: AtomicU64,
    },
    LeastConn(Box<[Load]>),
}

/// The load of a backend.
pub(crate) struct Load {
    weight: u32,
    /// Number of requests in progress to the backend, including those for which a connection is being opened.
    requests: AtomicUsize,
}

impl Balancer {
    pub(crate) fn new(balancing: Balancing, weights: impl Iterator<Item = u32>) -> Self {
        match balancing {
            Balancing::RoundRobin => Self::RoundRobin {
                weights: weights.collect(),
                turn: AtomicU64::new(0),
            },
            Balancing::LeastConn => Self::LeastConn(
                weights
                    .map(|weight| Load {
                        weight,
                        requests: AtomicUsize::new(0),
                    })
                    .collect(),
            ),
        }
    }

    /// Chooses the next backend for which `is_out` is false; `None` if there is none.
    pub(crate) fn choose(&self, is_out: impl Fn(usize) -> bool) -> Option<usize> {
        match self {
            Self::RoundRobin { weights, turn } => choose_in_turn(weights, turn, is_out),
            Self::LeastConn(loads) => {
                let weights = loads.iter().enumerate();
                choose_least(
                    loads,
                    weights.map(
                        |(index, load)| {
                            if is_out(index) { 0 } else { load.weight.into() }
                        },
                    ),
                )
            }
        }
    }

    /// Chooses by `shares` in place of the weights; `None` if all shares are 0. `turns` is the state of round robin. Round robin
    /// interleaves the backends here, and does not send a backend several requests in a row: in slow start, its share may be less
    /// than that of a backend with weight 1.
    pub(crate) fn choose_by(&self, shares: &[u64], turns: &mut [i64]) -> Option<usize> {
        match self {
            Self::RoundRobin { .. } => choose_in_proportion(shares, turns),
            Self::LeastConn(loads) => choose_least(loads, shares.iter().copied()),
        }
    }
}

/// Smooth weighted round robin: each backend's counter in `turns` grows by the backend's share; the backend with the largest
/// counter is chosen, and its counter drops by the sum of all shares.
fn choose_in_proportion(shares: &[u64], turns: &mut [i64]) -> Option<usize> {
    let mut all = 0;
    let mut nearest: Option<usize> = None;
    for (index, &share) in shares.iter().enumerate() {
        // A share is at most 256 * 1024, so the conversion cannot fail.
        let share = i64::try_from(share).unwrap_or(i64::from(u32::MAX));
        if share == 0 {
            turns[index] = 0;
            continue;
        }
        all += share;
        turns[index] += share;
        if nearest.is_none_or(|nearest| turns[index] > turns[nearest]) {
            nearest = Some(index);
        }
    }
    turns[nearest?] -= all;
    nearest
}

fn choose_in_turn(
    weights: &[u32],
    turn: &AtomicU64,
    is_out: impl Fn(usize) -> bool,
) -> Option<usize> {
    let next = |turn: u64| {
        let (last, used) = unpack(turn);
        if !is_out(last) && used < weights[last] {
            return Some((last, used + 1));
        }
        let count = weights.len();
        let following = (1..=count).map(|step| (last + step) % count);
        following
            .into_iter()
            .find(|&index| !is_out(index))
            .map(|index| (index, 1))
    };
    let mut old = turn.load(Relaxed);
    loop {
        let (index, used) = next(old)?;
        match turn.compare_exchange_weak(old, pack(index, used), Relaxed, Relaxed) {
            Ok(_) => return Some(index),
            Err(other) => old = other,
        }
    }
}

const fn pack(index: usize, used: u32) -> u64 {
    (index as u64) << 32 | used as u64
}

fn unpack(turn: u64) -> (usize, u32) {
    let index = usize::try_from(turn >> 32).unwrap_or(0);
    (index, u32::try_from(turn & 0xffff_ffff).unwrap_or(0))
}

/// Chooses the backend with the lowest ratio of requests in progress to its weight. Backends with weight 0 are never
/// chosen.
fn choose_least(loads: &[Load], weights: impl Iterator<Item = u64>) -> Option<usize> {
    let mut best: Option<(usize, u64, u64)> = None;
    for (index, (load, weight)) in loads.iter().zip(weights).enumerate() {
        let requests = load.requests.load(Relaxed) as u64;
        // Compares the two fractions by cross multiplication; if they are equal, the first backend stays chosen.
        let is_better = best.is_none_or(|(_, best_requests, best_weight)| {
            requests * best_weight < best_requests * weight
        });
        if weight > 0 && is_better {
            best = Some((index, requests, weight));
        }
    }
    best.map(|(index, ..)| index)
}

/// Counts a request as in progress to a backend, for the balancer, as long as this value lives.
pub(crate) struct InUse {
    upstream: Arc<Upstream>,
    backend: usize,
}

impl InUse {
    /// Counts a request to `backend`; `None` if the balancer does not use the number of requests.
    pub(crate) fn begin(upstream: &Arc<Upstream>, backend: usize) -> Option<Self> {
        let Balancer::LeastConn(loads) = &upstream.balancer else {
            return None;
        };
        loads[backend].requests.fetch_add(1, Relaxed);
        Some(Self {
            upstream: Arc::clone(upstream),
            backend,
        })
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if let Balancer::LeastConn(loads) = &self.upstream.balancer {
            loads[self.backend].requests.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balancer(balancing: Balancing, weights: &[u32]) -> Balancer {
        Balancer::new(balancing, weights.iter().copied())
    }

    #[test]
    fn in_turn_each_as_often_as_it_weighs() {
        let balancer = balancer(Balancing::RoundRobin, &[1, 3, 2]);
        let chosen: Vec<_> = (0..12)
            .map(|_| balancer.choose(|_| false).unwrap())
            .collect();
        assert_eq!(chosen, [0, 1, 1, 1, 2, 2, 0, 1, 1, 1, 2, 2]);
    }

    #[test]
    fn every_backend_is_tried_once() {
        for balancing in [Balancing::RoundRobin, Balancing::LeastConn] {
            let balancer = balancer(balancing, &[1, 256, 1]);
            let mut tried = [false; 3];
            let mut order = Vec::new();
            while let Some(index) = balancer.choose(|index| tried[index]) {
                tried[index] = true;
                order.push(index);
            }
            assert_eq!(order, [0, 1, 2], "{balancing:?}");
        }
    }

    #[test]
    fn the_turn_goes_on_behind_one_that_was_down() {
        let balancer = balancer(Balancing::RoundRobin, &[1, 1, 1]);
        assert_eq!(balancer.choose(|_| false), Some(0));
        assert_eq!(balancer.choose(|index| index == 0), Some(1));
        assert_eq!(balancer.choose(|_| false), Some(2));
        assert_eq!(balancer.choose(|_| false), Some(0));
    }

    #[test]
    fn shares_are_dealt_out_evenly() {
        let in_turn = balancer(Balancing::RoundRobin, &[1, 1, 1]);
        let cases: [(&[u64], &str); 5] = [
            (&[1024, 1024, 1024], "012012"),
            (&[1024, 0, 1024], "020202"),
            (&[0, 0, 1], "222222"),
            // First case: weights of 3 and 1. Second case: equal weights, but the second backend is in slow start.
            (&[3072, 1024, 0], "001000"),
            (&[1024, 256, 0], "00100001"),
        ];
        for (shares, want) in cases {
            let mut turns = [0; 3];
            let chosen: String = (0..want.len())
                .map(|_| in_turn.choose_by(shares, &mut turns).unwrap().to_string())
                .collect();
            let count = |text: &str, digit| text.matches(digit).count();
            for digit in ['0', '1', '2'] {
                assert_eq!(
                    count(&chosen, digit),
                    count(want, digit),
                    "{shares:?}: {chosen}"
                );
            }
        }
        assert_eq!(in_turn.choose_by(&[0; 3], &mut [0; 3]), None);
        let mut turns = [0; 3];
        let slow = (0..1025).filter(|_| {
            let chosen = in_turn.choose_by(&[1024, 1, 0], &mut turns);
            chosen == Some(1)
        });
        assert_eq!(slow.count(), 1);
    }

    #[test]
    fn shares_weigh_requests() {
        let balancer = balancer(Balancing::LeastConn, &[1, 1]);
        let Balancer::LeastConn(loads) = &balancer else {
            panic!("the balancer counts connections, as chosen above")
        };
        loads[0].requests.store(4, Relaxed);
        loads[1].requests.store(1, Relaxed);
        for (shares, want) in [
            ([1024, 1024], Some(1)),
            ([1024, 255], Some(0)),
            ([0, 255], Some(1)),
            ([1024, 0], Some(0)),
            ([0, 0], None),
        ] {
            assert_eq!(balancer.choose_by(&shares, &mut [0; 2]), want, "{shares:?}");
        }
    }

    #[test]
    fn the_least_loaded_for_its_weight_is_chosen() {
        let balancer = balancer(Balancing::LeastConn, &[1, 2]);
        let Balancer::LeastConn(loads) = &balancer else {
            panic!("the balancer counts connections, as chosen above")
        };
        let cases = [
            // Each case: the requests in progress to the two backends, and the backend that is chosen.
            ((0, 0), 0),
            ((1, 0), 1),
            ((1, 1), 1),
            ((1, 2), 0),
            ((2, 3), 1),
            ((2, 4), 0),
        ];
        for ((first, second), want) in cases {
            loads[0].requests.store(first, Relaxed);
            loads[1].requests.store(second, Relaxed);
            assert_eq!(
                balancer.choose(|_| false),
                Some(want),
                "{first} and {second}"
            );
        }
    }
}
