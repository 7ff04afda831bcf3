//! HyStart++ (RFC 9406): slow start ends when round trips become longer, before packets are lost.

use std::time::{Duration, Instant};

use super::Ack;

/// Bounds of the increase in round trip time that ends slow start (`MIN_RTT_THRESH`, `MAX_RTT_THRESH`).
const MIN_INCREASE: Duration = Duration::from_millis(4);
const MAX_INCREASE: Duration = Duration::from_millis(16);
/// The shortest round trip time of the last round is divided by this to get the increase (`MIN_RTT_DIVISOR` of RFC 9406).
const RTT_DIVISOR: u32 = 8;
/// Number of round trip times to measure in a round before they are compared (`N_RTT_SAMPLE` of RFC 9406).
const MIN_SAMPLES: u32 = 8;
/// In conservative slow start, the window grows slower by this factor (`CSS_GROWTH_DIVISOR` of RFC 9406).
const CONSERVATIVE_DIVISOR: u64 = 4;
/// Number of rounds of conservative slow start after which slow start ends (`CSS_ROUNDS` of RFC 9406).
const CONSERVATIVE_ROUNDS: u32 = 5;

/// What slow start does after an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The window grows by the bytes acknowledged, divided by `divisor`. The RFC's limit of growth per acknowledgement is
    /// not needed, since packets are paced.
    Slow { divisor: u64 },
    /// Slow start has ended; congestion avoidance begins.
    Over,
}

/// The state of slow start of one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct HyStart {
    /// When the current round began: the acknowledgement of a packet sent after this time begins the next one.
    round_began: Option<Instant>,
    last_round_min: Option<Duration>,
    round_min: Option<Duration>,
    samples: u32,
    /// In conservative slow start, the shortest round trip time when it began, and the number of rounds since.
    conservative: Option<(Duration, u32)>,
}

impl HyStart {
    pub(crate) fn on_ack(&mut self, ack: &Ack) -> Phase {
        let began = *self.round_began.get_or_insert(ack.now);
        if ack.sent >= began {
            self.round_began = Some(ack.now);
            self.last_round_min = self.round_min.take();
            self.samples = 0;
            if let Some((_, rounds)) = &mut self.conservative {
                *rounds += 1;
                if *rounds >= CONSERVATIVE_ROUNDS {
                    return Phase::Over;
                }
            }
        }
        let rtt = ack.now.saturating_duration_since(ack.sent);
        let round_min = self.round_min.map_or(rtt, |least| least.min(rtt));
        self.round_min = Some(round_min);
        self.samples += 1;
        if self.samples >= MIN_SAMPLES {
            match (self.conservative, self.last_round_min) {
                // The round trip time is short again: a growing queue was not the reason for its increase.
                (Some((baseline, _)), _) if round_min < baseline => self.conservative = None,
                (None, Some(last)) => {
                    let increase = (last / RTT_DIVISOR).clamp(MIN_INCREASE, MAX_INCREASE);
                    if round_min >= last + increase {
                        self.conservative = Some((round_min, 0));
                    }
                }
                (Some(_), _) | (None, None) => {}
            }
        }
        Phase::Slow {
            divisor: match self.conservative {
                Some(_) => CONSERVATIVE_DIVISOR,
                None => 1,
            },
        }
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "a virtual clock has to begin at some instant"
)]
mod tests {
    use super::*;

    /// Runs rounds of ten packets each, with these round trip times. Returns the phase after each round.
    fn rounds(rtts: &[u64]) -> Vec<Phase> {
        let mut slow_start = HyStart::default();
        let mut sent = Instant::now();
        let mut phases = Vec::new();
        for &rtt in rtts {
            let now = sent + Duration::from_millis(rtt);
            let ack = Ack {
                now,
                sent,
                bytes: 1200,
                app_limited: false,
                smoothed_rtt: Duration::from_millis(rtt),
            };
            let mut phase = slow_start.on_ack(&ack);
            for _ in 0..9 {
                if phase != Phase::Over {
                    phase = slow_start.on_ack(&ack);
                }
            }
            phases.push(phase);
            sent = now;
        }
        phases
    }

    #[test]
    fn slow_start_becomes_conservative_when_round_trips_do_and_ends_five_rounds_later() {
        let fast = Phase::Slow { divisor: 1 };
        let conservative = Phase::Slow { divisor: 4 };
        assert_eq!(rounds(&[80, 80, 85, 89]), [fast; 4]);
        let phases = rounds(&[80, 80, 91, 91, 91, 91, 91, 91, 91]);
        assert_eq!(phases[..2], [fast; 2]);
        assert_eq!(phases[2..7], [conservative; 5]);
        assert_eq!(phases[7], Phase::Over);
    }

    #[test]
    fn slow_start_goes_on_when_round_trips_become_short_again() {
        let phases = rounds(&[80, 80, 91, 80, 80]);
        let divisors = [1, 1, 4, 1, 1];
        assert_eq!(phases, divisors.map(|divisor| Phase::Slow { divisor }));
    }
}
