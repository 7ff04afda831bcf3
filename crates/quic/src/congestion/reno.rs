//! The congestion controller NewReno (RFC 9002 §7.3).

use std::time::{Duration, Instant};

use super::hystart::{HyStart, Phase};
use super::rapid::RapidStart;
use super::underused::Underuse;
use super::{Ack, Loss, MIN_WINDOW_PACKETS, rate_of_window};

#[derive(Clone, Debug)]
pub(crate) struct Reno {
    window: u64,
    threshold: u64,
    mtu: u64,
    initial_window: u64,
    /// When the window was last lowered for a loss. Losses of packets sent before this time belong to the same event and do
    /// not lower it again (RFC 9002 §7.3.2).
    recovery_began: Option<Instant>,
    /// Bytes acknowledged since the window last grew by a packet.
    acked: u64,
    slow_start: HyStart,
    rapid: RapidStart,
    underuse: Underuse,
}

impl Reno {
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
            acked: 0,
            slow_start: HyStart::default(),
            rapid,
            underuse: Underuse::new(respects_underuse),
        }
    }

    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u64, before: u64) {
        if self.underuse.on_sent(now, before + bytes, self.window) {
            self.threshold = self.threshold.max(self.window / 4 * 3);
            self.window = self.initial_window.max(self.window / 2).min(self.window);
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
        self.acked += ack.bytes;
        if self.acked >= self.window {
            self.acked -= self.window;
            self.window += self.mtu;
        }
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
        self.window = (before / 2).max(least);
        self.threshold = self.window;
        self.acked = 0;
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
        self.window = (delivered / 2).max(MIN_WINDOW_PACKETS * self.mtu);
        self.threshold = self.window;
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
