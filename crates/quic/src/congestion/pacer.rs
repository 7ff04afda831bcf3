//! The pacer: datagrams are sent at the controller's rate (RFC 9002 §7.7), not all at once.

use std::time::{Duration, Instant};

use super::{bytes_in, scale};

/// Number of packets that may be sent at once after a pause (RFC 9002 §7.7).
const BURST_PACKETS: u64 = 10;
/// Data that was due within this time may be sent at once, since timers and the event loop may be late by as much.
const BURST_TIME: Duration = Duration::from_millis(4);
/// The least number of bytes that is worth a wakeup: what is sent in `QUANTUM_TIME` at the current rate, and at least
/// `QUANTUM_PACKETS` packets.
const QUANTUM_TIME: Duration = Duration::from_millis(1);
const QUANTUM_PACKETS: u64 = 2;
/// Number of packets that is worth a wakeup at any rate.
const MAX_QUANTUM_PACKETS: u64 = 32;

/// A token bucket, which holds the bytes that may be sent now.
#[derive(Clone, Debug)]
pub(crate) struct Pacer {
    credit: u64,
    filled: Option<Instant>,
}

impl Pacer {
    pub(crate) fn new() -> Self {
        Self {
            credit: 0,
            filled: None,
        }
    }

    /// Bytes that may be sent now; 0 until there are enough for a wakeup to be worthwhile.
    pub(crate) fn credit(&mut self, now: Instant, rate: u64, mtu: u64) -> u64 {
        let capacity = (BURST_PACKETS * mtu).max(bytes_in(rate, BURST_TIME));
        match self.filled {
            None => self.credit = capacity,
            Some(filled) => {
                let gained = bytes_in(rate, now.saturating_duration_since(filled));
                // At a low rate, a short time earns less than a byte. The time is not counted as used, so that many such calls do
                // not add up to a loss.
                if gained == 0 && self.credit < capacity {
                    return self.available(rate, mtu);
                }
                self.credit = capacity.min(self.credit + gained);
            }
        }
        self.filled = Some(now);
        self.available(rate, mtu)
    }

    fn available(&self, rate: u64, mtu: u64) -> u64 {
        if self.credit < quantum(rate, mtu) {
            0
        } else {
            self.credit
        }
    }

    pub(crate) fn on_sent(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_sub(bytes);
    }

    /// When enough bytes for a wakeup may be sent again.
    pub(crate) fn next(&self, rate: u64, mtu: u64) -> Option<Instant> {
        let missing = quantum(rate, mtu).saturating_sub(self.credit);
        let nanos = scale(missing, 1_000_000_000, u128::from(rate.max(1)));
        // Rounded up: if the timer fired too early, the call would find too little to send.
        Some(self.filled? + Duration::from_nanos(nanos.saturating_add(1)))
    }
}

fn quantum(rate: u64, mtu: u64) -> u64 {
    bytes_in(rate, QUANTUM_TIME).clamp(QUANTUM_PACKETS * mtu, MAX_QUANTUM_PACKETS * mtu)
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "a virtual clock has to begin at some instant"
)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_is_a_burst_and_then_the_rate() {
        let (rate, mtu) = (1_000_000, 1250);
        let start = Instant::now();
        let mut now = start;
        let mut pacer = Pacer::new();
        let mut sent = 0;
        while now < start + Duration::from_secs(1) {
            let credit = pacer.credit(now, rate, mtu);
            assert!(
                credit > 0,
                "the pacer allows a packet whenever its timer fires"
            );
            // Whole packets are sent, so the last one may exceed the credit.
            let bytes = credit.div_ceil(mtu) * mtu;
            pacer.on_sent(bytes);
            sent += bytes;
            now = pacer
                .next(rate, mtu)
                .expect("the pacer has sent a packet, so it knows the next time");
        }
        let expected = rate + BURST_PACKETS * mtu;
        assert!(
            sent.abs_diff(expected) <= 10 * mtu,
            "the pacer has allowed {sent} bytes in a second"
        );
    }

    #[test]
    fn a_pause_earns_no_more_than_a_burst() {
        let mut pacer = Pacer::new();
        let now = Instant::now();
        assert_eq!(pacer.credit(now, 1_000_000, 1250), 12_500);
        pacer.on_sent(12_500);
        let later = now + Duration::from_secs(3600);
        assert_eq!(pacer.credit(later, 1_000_000, 1250), 12_500);
    }
}
