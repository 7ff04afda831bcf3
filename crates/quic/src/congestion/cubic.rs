//! Congestion avoidance of Cubic (RFC 9438).

use std::time::{Duration, Instant};

use super::Ack;
use super::loss_based::{Avoidance, Window};

/// The constant C of Cubic, in packets per cubed second (RFC 9438 §5).
const C: f64 = 0.4;
/// Growth of a window that grows as fast as Reno's, in packets per window acknowledged (RFC 9438 §4.3): 3 (1 - beta) / (1 + beta).
const RENO_ALPHA: f64 = 0.529;

#[derive(Clone, Debug, Default)]
pub(crate) struct Cubic {
    /// The congestion window before the last loss, in packets.
    max: f64,
    epoch: Option<Epoch>,
    /// The part of the window's growth that is less than a packet, kept for the next acknowledgement.
    fraction: f64,
}

/// The state of congestion avoidance since the last loss.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    began: Instant,
    /// Seconds from the start of congestion avoidance until the window has the size before the loss again (K of RFC 9438 §4.2).
    k: f64,
    /// The congestion window that Reno would have, in packets.
    reno: f64,
    /// When the last acknowledgement came. Time in which there was nothing to send does not count as time in which the
    /// window grows (RFC 9438 §5.8).
    last_ack: Instant,
}

#[allow(
    clippy::cast_precision_loss,
    reason = "a window above 2^52 bytes need not be exact"
)]
fn float(value: u64) -> f64 {
    value as f64
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates"
)]
fn integer(value: f64) -> u64 {
    value as u64
}

fn packets(window: Window) -> f64 {
    float(window.bytes) / float(window.mtu)
}

impl Avoidance for Cubic {
    /// RFC 9438 §4.6.
    const BETA_PERCENT: u128 = 70;

    /// The growth of RFC 9438 §4.2 to §4.5.
    fn growth(&mut self, ack: &Ack, window: Window) -> u64 {
        let packets = packets(window);
        if self.epoch.is_none() {
            self.max = self.max.max(packets);
        }
        let max = self.max;
        let epoch = self.epoch.get_or_insert_with(|| Epoch {
            began: ack.now,
            k: ((max - packets) / C).cbrt(),
            reno: packets,
            last_ack: ack.now,
        });
        epoch.last_ack = ack.now;
        let elapsed = ack.now.saturating_duration_since(epoch.began);
        let at = |time: Duration| C * (time.as_secs_f64() - epoch.k).powi(3) + max;
        let acked = float(ack.bytes) / float(window.mtu);
        let alpha = if epoch.reno < max { RENO_ALPHA } else { 1.0 };
        epoch.reno += alpha * acked / packets;
        let growth = if at(elapsed) < epoch.reno {
            epoch.reno - packets
        } else {
            // The window grows by at most half of its size per round trip.
            let target = at(elapsed + ack.smoothed_rtt).clamp(packets, packets * 1.5);
            (target - packets) / packets * acked
        };
        self.fraction += growth.max(0.0) * float(window.mtu);
        let whole = integer(self.fraction);
        self.fraction -= float(whole);
        whole
    }

    fn on_loss(&mut self, before: Window) {
        let packets = packets(before);
        // Fast convergence (RFC 9438 §4.7): if the window was still smaller than at the loss before, it is to grow back to less than
        // its size at this loss, which leaves bandwidth to new connections.
        self.max = if packets < self.max {
            packets * 0.85
        } else {
            packets
        };
        self.epoch = None;
        self.fraction = 0.0;
    }

    fn on_retreat(&mut self, window: Window) {
        self.max = packets(window);
        self.epoch = None;
    }

    fn on_underuse(&mut self) {
        self.epoch = None;
    }

    fn on_end_of_pause(&mut self, now: Instant) {
        if let Some(epoch) = &mut self.epoch {
            epoch.began += now.saturating_duration_since(epoch.last_ack);
            epoch.last_ack = now;
        }
    }
}
