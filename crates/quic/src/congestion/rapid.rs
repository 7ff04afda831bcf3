//! A start that is faster than slow start (draft-kazuho-ccwg-rapid-start): the window triples every round trip, until round trips
//! become longer or packets are lost. After the first loss, the window is reduced to the bytes that the path has delivered in a
//! round trip.

use std::time::Instant;

use super::Ack;

/// The rapid start of one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct RapidStart {
    /// Whether the connection is still in a rapid start: it began with one, and nothing was lost yet.
    is_rapid: bool,
    /// When the current round began: the acknowledgement of a packet sent after this time begins the next one.
    round_began: Option<Instant>,
    /// Bytes acknowledged in this round and in the one before.
    acked: [u64; 2],
}

impl RapidStart {
    pub(crate) fn new(is_rapid: bool) -> Self {
        Self {
            is_rapid,
            ..Self::default()
        }
    }

    /// Handles an acknowledgement in slow start, for which slow start would let the window grow by `growth` bytes. Returns by how
    /// many bytes the window grows instead. `is_conservative`: round trips have become longer, so that there is no extra growth.
    pub(crate) fn on_ack(&mut self, ack: &Ack, growth: u64, is_conservative: bool) -> u64 {
        if !self.is_rapid {
            return growth;
        }
        if self.round_began.is_none_or(|began| ack.sent >= began) {
            self.round_began = Some(ack.now);
            self.acked = [0, self.acked[0]];
        }
        self.acked[0] += ack.bytes;
        if is_conservative { growth } else { 2 * growth }
    }

    /// The congestion window that the reaction to a loss starts from: at the first loss, `window` but at most the bytes that were
    /// acknowledged in a round; at later losses, `window`.
    pub(crate) fn before_loss(&mut self, window: u64) -> u64 {
        if !std::mem::take(&mut self.is_rapid) {
            return window;
        }
        window.min(self.acked[0].max(self.acked[1]))
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "a virtual clock has to begin at some instant"
)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_loss_leaves_what_the_path_has_delivered_in_a_round_trip() {
        let start = Instant::now();
        let ack = |sent: u64, now: u64| Ack {
            now: start + Duration::from_millis(now),
            sent: start + Duration::from_millis(sent),
            bytes: 1000,
            app_limited: false,
            smoothed_rtt: Duration::from_millis(50),
        };
        let mut rapid = RapidStart::new(true);
        assert_eq!(rapid.on_ack(&ack(0, 50), 1000, false), 2000);
        for time in 0..20 {
            assert_eq!(rapid.on_ack(&ack(51 + time, 101 + time), 1000, false), 2000);
        }
        // The next acknowledgement begins a new round; twenty packets were acknowledged in the round before.
        assert_eq!(rapid.on_ack(&ack(121, 171), 250, true), 250);
        assert_eq!(rapid.before_loss(60_000), 20_000);
        assert_eq!(rapid.before_loss(60_000), 60_000);
        assert_eq!(rapid.on_ack(&ack(122, 172), 1000, false), 1000);
        let mut usual = RapidStart::new(false);
        assert_eq!(usual.on_ack(&ack(0, 50), 1000, false), 1000);
        assert_eq!(usual.before_loss(60_000), 60_000);
    }
}
