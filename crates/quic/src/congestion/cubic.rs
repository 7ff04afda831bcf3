//! The congestion controller Cubic (RFC 9438), with HyStart++.

use std::time::{Duration, Instant};

use super::hystart::{HyStart, Phase};
use super::rapid::RapidStart;
use super::underused::Underuse;
use super::{Ack, Loss, MIN_WINDOW_PACKETS, rate_of_window, scale};

/// The constant C of Cubic, in packets per cubed second (RFC 9438 §5).
const C: f64 = 0.4;
/// The congestion window after a loss, in percent of the window before it (RFC 9438 §4.6).
const BETA_PERCENT: u128 = 70;
/// Growth of a window that grows as fast as Reno's, in packets per window acknowledged (RFC 9438 §4.3): 3 (1 - beta) / (1 + beta).
const RENO_ALPHA: f64 = 0.529;

#[derive(Clone, Debug)]
pub(crate) struct Cubic {
    window: u64,
    threshold: u64,
    mtu: u64,
    initial_window: u64,
    recovery_began: Option<Instant>,
    /// The congestion window before the last loss, in packets.
    max: f64,
    epoch: Option<Epoch>,
    /// The part of the window's growth that is less than a packet, kept for the next acknowledgement.
    fraction: f64,
    slow_start: HyStart,
    rapid: RapidStart,
    underuse: Underuse,
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

impl Cubic {
    pub(crate) fn new(
        initial_window: u64,
        mtu: u64,
        respects_underuse: bool,
        rapid: RapidStart,
    ) -> Self {
        Self {
            window: initial_window,
            threshold: u64::MAX,
            mtu,
            initial_window,
            recovery_began: None,
            max: 0.0,
            epoch: None,
            fraction: 0.0,
            slow_start: HyStart::default(),
            rapid,
            underuse: Underuse::new(respects_underuse),
        }
    }

    fn packets(&self) -> f64 {
        float(self.window) / float(self.mtu)
    }

    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u64, before: u64) {
        if before == 0
            && let Some(epoch) = &mut self.epoch
        {
            epoch.began += now.saturating_duration_since(epoch.last_ack);
            epoch.last_ack = now;
        }
        if self.underuse.on_sent(now, before + bytes, self.window) {
            self.threshold = self.threshold.max(self.window / 4 * 3);
            self.window = self.initial_window.max(self.window / 2).min(self.window);
            self.epoch = None;
        }
    }

    pub(crate) fn on_ack(&mut self, ack: &Ack) {
        if self.recovery_began.is_some_and(|began| ack.sent <= began)
            || !self.underuse.may_grow(ack.app_limited, self.window)
        {
            return;
        }
        if self.window < self.threshold {
            match self.slow_start.on_ack(ack) {
                Phase::Slow { divisor } => {
                    let growth = ack.bytes / divisor;
                    self.window += self.rapid.on_ack(ack, growth, divisor > 1);
                }
                Phase::Over => self.threshold = self.window,
            }
            return;
        }
        self.avoid_congestion(ack);
    }

    /// Lets the window grow in congestion avoidance (RFC 9438 §4.2 to §4.5).
    fn avoid_congestion(&mut self, ack: &Ack) {
        let packets = self.packets();
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
        let acked = float(ack.bytes) / float(self.mtu);
        let alpha = if epoch.reno < max { RENO_ALPHA } else { 1.0 };
        epoch.reno += alpha * acked / packets;
        let growth = if at(elapsed) < epoch.reno {
            epoch.reno - packets
        } else {
            // The window grows by at most half of its size per round trip.
            let target = at(elapsed + ack.smoothed_rtt).clamp(packets, packets * 1.5);
            (target - packets) / packets * acked
        };
        self.fraction += growth.max(0.0) * float(self.mtu);
        let whole = integer(self.fraction);
        self.fraction -= float(whole);
        self.window += whole;
    }

    pub(crate) fn on_end_acks(&mut self, _: Instant, _: u64) {}

    pub(crate) fn on_loss(&mut self, loss: &Loss, _: u64) {
        if self.recovery_began.is_some_and(|began| loss.sent <= began) {
            return;
        }
        self.recovery_began = Some(loss.now);
        let least = MIN_WINDOW_PACKETS * self.mtu;
        let before = self
            .rapid
            .before_loss(self.underuse.before_loss(self.window));
        let packets = float(before) / float(self.mtu);
        // Fast convergence (RFC 9438 §4.7): if the window was still smaller than at the loss before, it is to grow back to less than
        // its size at this loss, which leaves bandwidth to new connections.
        self.max = if packets < self.max {
            packets * 0.85
        } else {
            packets
        };
        self.window = scale(before, BETA_PERCENT, 100).max(least);
        self.threshold = self.window;
        self.epoch = None;
        self.fraction = 0.0;
        if loss.is_persistent {
            self.window = least;
            self.recovery_began = None;
        }
    }

    pub(crate) fn on_mtu_update(&mut self, mtu: u64) {
        self.mtu = mtu;
        self.window = self.window.max(MIN_WINDOW_PACKETS * mtu);
    }

    /// Raises the window for a jump: the connection begins with a larger window than the initial one.
    pub(crate) fn jump(&mut self, window: u64) {
        self.window = self.window.max(window);
    }

    /// After a jump, lowers the congestion window to `window` bytes: the part of it that was used.
    pub(crate) fn limit(&mut self, window: u64) {
        self.window = self.window.min(window);
    }

    /// Lowers the window after a jump that went too far: packets were lost. `delivered`: bytes sent since the jump that have
    /// arrived.
    pub(crate) fn retreat(&mut self, delivered: u64) {
        let window = scale(delivered, BETA_PERCENT, 100);
        self.window = window.max(MIN_WINDOW_PACKETS * self.mtu);
        self.threshold = self.window;
        self.max = self.packets();
        self.epoch = None;
    }

    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    pub(crate) fn slow_start_threshold(&self) -> Option<u64> {
        Some(self.threshold)
    }

    pub(crate) fn pacing_rate(&self, smoothed_rtt: Duration) -> u64 {
        rate_of_window(self.window, self.threshold, smoothed_rtt)
    }
}
