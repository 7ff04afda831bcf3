//! What earlier connections have measured of their paths (draft-ietf-tsvwg-careful-resume): if a client with a validated
//! address comes again to the same server, the congestion window need not start from the initial one.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Ack, Loss};

/// Limit of the clients that are remembered; beyond it, the client that was first seen longest ago is forgotten.
const MAX_CLIENTS: usize = 4096;
/// How long what an earlier connection has measured is used. H2O compatibility: as long as an address token of that connection is
/// accepted.
const LIFE: Duration = Duration::from_secs(600);

/// What a connection has measured of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Observation {
    /// The congestion window, in bytes.
    pub(crate) window: u64,
    pub(crate) min_rtt: Duration,
    pub(crate) at: Instant,
}

/// What connections have measured of the paths to clients. Clones share the memory.
#[derive(Clone, Debug, Default)]
pub struct KnownPaths(Arc<Mutex<PathMemory>>);

impl KnownPaths {
    pub(crate) fn remember(&self, client: IpAddr, observation: Observation) {
        self.lock().remember(client, observation);
    }

    pub(crate) fn recall(&self, client: IpAddr, now: Instant) -> Option<Observation> {
        self.lock().recall(client, now)
    }

    fn lock(&self) -> MutexGuard<'_, PathMemory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Measurements by the client's address.
#[derive(Debug, Default)]
struct PathMemory {
    by_client: HashMap<IpAddr, Observation>,
    order: VecDeque<IpAddr>,
}

impl PathMemory {
    fn remember(&mut self, client: IpAddr, observation: Observation) {
        if self.by_client.insert(client, observation).is_none() {
            self.order.push_back(client);
        }
        if self.order.len() > MAX_CLIENTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_client.remove(&oldest);
        }
    }

    fn recall(&self, client: IpAddr, now: Instant) -> Option<Observation> {
        let found = self.by_client.get(&client).copied();
        found.filter(|found| now.saturating_duration_since(found.at) < LIFE)
    }
}

/// The congestion window that a connection jumps to once its round trip time is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Jump {
    window: u64,
    /// The round trip time of the earlier connection, by which the path is recognised; `None` if the path is not known.
    min_rtt: Option<Duration>,
}

impl Jump {
    /// A jump on a known path: to half of the window that the path carried, and at most to `max` bytes.
    pub(crate) fn to_known(observation: &Observation, max: u64) -> Self {
        Self {
            window: (observation.window / 2).min(max),
            min_rtt: Some(observation.min_rtt),
        }
    }

    /// A jump on an unknown path, to a window of `window` bytes.
    pub(crate) const fn to(window: u64) -> Self {
        Self {
            window,
            min_rtt: None,
        }
    }

    /// The window to jump to, if the round trip time is between half and ten times that of the earlier connection.
    fn window(&self, rtt: Duration) -> Option<u64> {
        let is_alike = (self.min_rtt).is_none_or(|seen| seen / 2 <= rtt && rtt <= seen * 10);
        is_alike.then_some(self.window)
    }
}

/// The phase of a connection's jump to a larger window (draft-ietf-tsvwg-careful-resume §3).
#[derive(Clone, Copy, Debug)]
pub(crate) enum JumpPhase {
    /// Before the jump: the round trip time has not been measured ("Reconnaissance").
    Waiting(Jump),
    /// The window is raised, and nothing that was sent since has been acknowledged ("Unvalidated").
    Unvalidated { began: Instant },
    /// Packets that were sent with the raised window are being acknowledged; `acked` counts their bytes ("Validating").
    Validating {
        began: Instant,
        ended: Instant,
        acked: u64,
    },
    /// Some packets sent with the raised window were lost: the window is lowered to what the path has delivered ("Safe
    /// Retreat").
    Retreating {
        began: Instant,
        ended: Instant,
        acked: u64,
    },
    /// There was no jump, or it is over.
    Over,
}

/// How the controller has to change the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Stay,
    /// Raise the window to this number of bytes.
    Jump(u64),
    /// Lower the window to this number of bytes: no more of the raised window was used, so that nothing is known about the
    /// rest.
    Keep(u64),
    /// Lower the window to this number of bytes, which the path has delivered of those sent with the raised window; others
    /// were lost.
    Retreat(u64),
}

impl JumpPhase {
    pub(crate) fn new(jump: Option<Jump>) -> Self {
        jump.map_or(Self::Over, Self::Waiting)
    }

    /// Handles the acknowledgement of a packet. `in_flight`: bytes in flight before it came.
    pub(crate) fn on_ack(&mut self, ack: &Ack, in_flight: u64) -> Step {
        match self {
            Self::Unvalidated { began } if ack.sent >= *began => {
                *self = Self::Validating {
                    began: *began,
                    ended: ack.now,
                    acked: ack.bytes,
                };
                Step::Keep(in_flight)
            }
            Self::Validating { ended, .. } | Self::Retreating { ended, .. }
                if ack.sent > *ended =>
            {
                *self = Self::Over;
                Step::Stay
            }
            Self::Validating { began, acked, .. } => {
                *acked += if ack.sent >= *began { ack.bytes } else { 0 };
                Step::Stay
            }
            Self::Retreating { began, acked, .. } => {
                *acked += if ack.sent >= *began { ack.bytes } else { 0 };
                Step::Retreat(*acked)
            }
            Self::Waiting(_) | Self::Unvalidated { .. } | Self::Over => Step::Stay,
        }
    }

    /// Handles the end of a batch of acknowledgements: the jump begins if the round trip time allows it.
    pub(crate) fn on_end_acks(&mut self, now: Instant, rtt: Duration) -> Step {
        let Self::Waiting(jump) = self else {
            return Step::Stay;
        };
        let window = jump.window(rtt);
        *self = match window {
            Some(_) => Self::Unvalidated { began: now },
            None => Self::Over,
        };
        window.map_or(Step::Stay, Step::Jump)
    }

    /// Handles packets that were lost or marked by routers.
    pub(crate) fn on_loss(&mut self, loss: &Loss) -> Step {
        let (began, ended, acked) = match *self {
            Self::Waiting(_) => {
                *self = Self::Over;
                return Step::Stay;
            }
            // A lost packet that was sent before the jump ends the jump as well: it shows that the path is full.
            Self::Unvalidated { began } => (began, loss.now, 0),
            Self::Validating {
                began,
                ended,
                acked,
            } => (began, ended, acked),
            Self::Retreating { .. } | Self::Over => return Step::Stay,
        };
        if loss.is_persistent {
            *self = Self::Over;
            return Step::Stay;
        }
        *self = Self::Retreating {
            began,
            ended,
            acked,
        };
        Step::Retreat(acked)
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "a virtual clock has to begin at some instant"
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
        let jump = Jump::to_known(&seen, 60_000);
        assert_eq!(jump.window(Duration::from_millis(85)), Some(50_000));
        assert_eq!(jump.window(Duration::from_millis(39)), None);
        assert_eq!(jump.window(Duration::from_millis(801)), None);
        assert_eq!(
            Jump::to_known(&seen, 30_000).window(seen.min_rtt),
            Some(30_000)
        );
    }

    fn ack(sent: Instant, now: Instant) -> Ack {
        Ack {
            now,
            sent,
            bytes: 1000,
            app_limited: false,
            smoothed_rtt: Duration::from_millis(80),
        }
    }

    fn loss(sent: Instant, now: Instant) -> Loss {
        Loss {
            now,
            sent,
            bytes: 1000,
            is_persistent: false,
        }
    }

    #[test]
    fn a_jump_is_kept_as_far_as_it_was_used_and_taken_back_as_far_as_it_was_lost() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let rtt = Duration::from_millis(80);
        let jumped = || {
            let mut jump_phase = JumpPhase::new(Some(Jump::to(60_000)));
            assert_eq!(jump_phase.on_ack(&ack(at(0), at(80)), 9000), Step::Stay);
            assert_eq!(jump_phase.on_end_acks(at(80), rtt), Step::Jump(60_000));
            assert_eq!(jump_phase.on_end_acks(at(80), rtt), Step::Stay);
            // An acknowledgement of a packet that was sent before the jump does not end the phase "Unvalidated".
            assert_eq!(jump_phase.on_ack(&ack(at(70), at(150)), 9000), Step::Stay);
            jump_phase
        };
        let mut jump_phase = jumped();
        assert_eq!(
            jump_phase.on_ack(&ack(at(81), at(161)), 40_000),
            Step::Keep(40_000)
        );
        assert_eq!(jump_phase.on_ack(&ack(at(90), at(170)), 40_000), Step::Stay);
        let mut lossy = jump_phase;
        assert_eq!(
            jump_phase.on_ack(&ack(at(165), at(245)), 40_000),
            Step::Stay
        );
        assert_eq!(
            jump_phase.on_loss(&loss(at(166), at(250))),
            Step::Stay,
            "over"
        );
        assert_eq!(lossy.on_loss(&loss(at(95), at(180))), Step::Retreat(2000));
        assert_eq!(lossy.on_loss(&loss(at(96), at(180))), Step::Stay);
        let more = lossy.on_ack(&ack(at(100), at(181)), 9000);
        assert_eq!(more, Step::Retreat(3000));
        assert_eq!(lossy.on_ack(&ack(at(162), at(250)), 9000), Step::Stay);
        assert_eq!(
            lossy.on_ack(&ack(at(100), at(251)), 9000),
            Step::Stay,
            "over"
        );

        let mut early = jumped();
        assert_eq!(early.on_loss(&loss(at(75), at(151))), Step::Retreat(0));
        let mut never = JumpPhase::new(Some(Jump::to(60_000)));
        assert_eq!(never.on_loss(&loss(at(0), at(70))), Step::Stay);
        assert_eq!(never.on_end_acks(at(80), rtt), Step::Stay);
    }
}
