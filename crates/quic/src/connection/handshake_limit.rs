//! Limits of a handshake: time, packets, and bytes to an address that is not validated.

use std::time::{Duration, Instant};

use super::Connection;

/// The least round trip time that a handshake's time limit is computed with: the same that is assumed before the round trip
/// time is measured. Over a shorter path, a client needs most of the time for its computations.
const LEAST_HANDSHAKE_RTT: Duration = Duration::from_millis(66);

/// Limit of the ACK frames sent during a handshake. A client that sends early data causes a few dozen. quinn-proto remembers
/// each packet that has one, with some hundred bytes, until the client acknowledges it.
const MAX_HANDSHAKE_ACKS: u64 = 64;

/// Limit of the NEW_TOKEN frames sent during a handshake. quinn-proto (quinn-proto 0.11) sends one for each Handshake packet
/// that it receives, and remembers it until the client acknowledges it: about 800 bytes of memory for a packet of 50. A
/// client needs Handshake packets to acknowledge the server's certificates, for its own certificates and its Finished
/// message, and to send lost ones again. Its certificates may be many packets, so the more a client sends, the more frames
/// are allowed: one for each [`BYTES_PER_TOKEN`] bytes.
const MAX_HANDSHAKE_TOKENS: u64 = 8;
const BYTES_PER_TOKEN: u64 = 600;

/// The time limit of a handshake that may take `round_trips` round trips.
fn handshake_time(rtt: Duration, round_trips: u32) -> Duration {
    rtt.max(LEAST_HANDSHAKE_RTT) * round_trips
}

/// The limit that a handshake has exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exceeded {
    Time,
    Packets,
}

/// The limits of one connection's handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandshakeLimit {
    pub(crate) began: Instant,
    /// The time limit in round trip times; 0 for no limit.
    pub(crate) round_trips: u32,
    pub(crate) datagrams: u64,
    /// Bytes that may be sent for each byte received, as long as the client's address is not validated (RFC 9000 §8.1);
    /// `None` once it is. quinn-proto has the same limit, but may exceed it by almost a datagram.
    pub(crate) amplification: Option<u64>,
    /// Bytes received from the client, including the first datagram, which quinn-proto does not count.
    pub(crate) received: u64,
    /// A hash of the connection id that the client chose for its first packets. A packet with another id, which this side
    /// chose, proves that the client receives at its address.
    pub(crate) first_id: u64,
}

impl Connection {
    /// Bytes that may be sent now to a client whose address the handshake has not validated; `None` for no limit.
    pub(super) fn unvalidated_credit(&self) -> Option<u64> {
        let limit = self.limit?;
        let credit = limit.received.saturating_mul(limit.amplification?);
        Some(credit.saturating_sub(self.library.stats().udp_tx.bytes))
    }

    /// Whether a client opened this connection and its handshake is not complete.
    pub(crate) fn is_being_accepted(&self) -> bool {
        self.limit.is_some()
    }

    /// When the time limit of the handshake expires.
    pub(super) fn handshake_ends(&self) -> Option<Instant> {
        let limit = self.limit?;
        if limit.round_trips == 0 || self.library.is_closed() {
            return None;
        }
        Some(limit.began + handshake_time(self.library.rtt(), limit.round_trips))
    }

    /// Closes the connection if its handshake has taken too long or caused too many packets.
    pub(super) fn limit_handshake(&mut self, now: Instant) {
        let Some(limit) = self.limit.filter(|_| !self.library.is_closed()) else {
            return;
        };
        let is_late = self.handshake_ends().is_some_and(|ends| ends <= now);
        let stats = self.library.stats();
        let is_too_much = stats.udp_tx.datagrams > limit.datagrams
            || stats.frame_tx.acks > MAX_HANDSHAKE_ACKS
            || stats.frame_tx.new_token > MAX_HANDSHAKE_TOKENS + limit.received / BYTES_PER_TOKEN;
        if is_late || is_too_much {
            self.exceeded = Some(if is_late {
                Exceeded::Time
            } else {
                Exceeded::Packets
            });
            self.close(now, 0, b"handshake timeout");
        }
    }

    /// The limit that the handshake exceeded, for which the connection was closed; `None` if it exceeded no limit.
    pub(crate) const fn exceeded(&self) -> Option<Exceeded> {
        self.exceeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_computes_slowly_is_not_given_up_because_it_is_near() {
        let (near, far) = (Duration::from_micros(50), Duration::from_millis(200));
        assert_eq!(handshake_time(near, 400), Duration::from_millis(26_400));
        assert_eq!(handshake_time(far, 400), Duration::from_secs(80));
    }
}
