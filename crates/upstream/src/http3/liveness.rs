//! Whether a backend still knows an HTTP/3 connection. Over TCP, the backend's kernel tells at once that it does not; over QUIC,
//! there is only silence.

use std::time::{Duration, Instant};

/// If the backend has not acknowledged a packet for this time, no more requests are begun over the connection.
const DOUBT: Duration = Duration::from_secs(1);
/// If the backend has not acknowledged a packet for this time, the connection is closed.
const LOSS: Duration = Duration::from_secs(5);
/// After this time without a datagram from the backend, a PING is sent, which the backend must acknowledge.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// When a backend last sent something, and since when it owes an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Liveness {
    /// When the last datagram from the backend was received.
    heard: Instant,
    /// When this side sent the first packet after that datagram that the backend must acknowledge, which it does within
    /// milliseconds (RFC 9000 §13.2.1). `None` if no acknowledgement is due.
    asked: Option<Instant>,
}

impl Liveness {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            heard: now,
            asked: None,
        }
    }

    /// Records that a datagram was received.
    pub(super) const fn on_received(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Records that a packet was sent that the backend must acknowledge.
    pub(super) fn on_sent(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
    }

    /// Whether new requests should avoid the connection.
    pub(super) fn is_doubtful(self, now: Instant) -> bool {
        self.asked
            .is_some_and(|asked| now.saturating_duration_since(asked) >= DOUBT)
    }

    /// When the connection is closed as lost, unless a datagram is received before. If no acknowledgement is due, the time
    /// includes the wait of `KEEP_ALIVE` until a PING is sent.
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
        assert!(
            !liveness.is_doubtful(after(9)),
            "a connection on which nothing was sent is not doubtful"
        );
        assert_eq!(
            liveness.ends(),
            after(10),
            "without traffic a PING is sent after 5 seconds"
        );
        liveness.on_sent(after(2));
        liveness.on_sent(after(3));
        assert!(!liveness.is_doubtful(after(2)) && liveness.is_doubtful(after(3)));
        assert_eq!(liveness.ends(), after(7));
        liveness.on_received(after(4));
        assert!(!liveness.is_doubtful(after(9)));
        assert_eq!(liveness.ends(), after(14));
    }
}
