//! Whether a backend still has a connection. Over TCP its kernel tells at once that it has not; over QUIC there is only silence.

use std::time::{Duration, Instant};

/// After this time without a sign of life from a backend that should give one, no more requests are begun over the
/// connection.
const DOUBT: Duration = Duration::from_secs(1);
/// After this time the connection is given up.
const LOSS: Duration = Duration::from_secs(5);
/// After this time in which nothing was received, the backend is asked for a sign of life (PING).
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// When a backend was last heard of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Liveness {
    /// When something was last received.
    heard: Instant,
    /// When we sent the first packet, after the last datagram received, that the backend must acknowledge, which it
    /// does within milliseconds (RFC 9000 §13.2.1). `None`: no acknowledgement is due.
    asked: Option<Instant>,
}

impl Liveness {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            heard: now,
            asked: None,
        }
    }

    /// A datagram was received.
    pub(super) const fn on_received(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Notes that a packet was sent that the backend must acknowledge.
    pub(super) fn on_sent(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
    }

    /// Whether new requests should avoid the connection.
    pub(super) fn is_doubtful(self, now: Instant) -> bool {
        self.asked
            .is_some_and(|asked| now.saturating_duration_since(asked) >= DOUBT)
    }

    /// When the connection is closed as lost, unless a datagram is received before. If no packet awaits an
    /// acknowledgement, a PING is still to be sent `KEEP_ALIVE` after the last datagram.
    pub(super) fn ends(self) -> Instant {
        match self.asked {
            Some(asked) => asked + LOSS,
            None => self.heard + KEEP_ALIVE + LOSS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_from_what_should_have_been_acknowledged() {
        let begin = tokio::time::Instant::now().into_std();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut liveness = Liveness::new(begin);
        assert!(!liveness.is_doubtful(after(9)), "nothing was asked");
        assert_eq!(liveness.ends(), after(10), "a PING after 5 seconds");
        liveness.on_sent(after(2));
        liveness.on_sent(after(3));
        assert!(!liveness.is_doubtful(after(2)) && liveness.is_doubtful(after(3)));
        assert_eq!(liveness.ends(), after(7));
        liveness.on_received(after(4));
        assert!(!liveness.is_doubtful(after(9)));
        assert_eq!(liveness.ends(), after(14));
    }
}
