//! Congestion controllers that lower the window when packets are lost. All of them do the same (RFC 9002 §7, with HyStart++), but
//! for how the window grows in congestion avoidance.

use std::fmt;
use std::time::{Duration, Instant};

use super::hystart::{HyStart, Phase};
use super::rapid::RapidStart;
use super::underused::Underuse;
use super::{Ack, Loss, MIN_WINDOW_PACKETS, rate_of_window, scale};

/// How the congestion window grows in congestion avoidance.
pub(crate) trait Avoidance: fmt::Debug + Default {
    /// The congestion window after a loss, in percent of the window before it.
    const BETA_PERCENT: u128;

    /// Number of bytes by which the window grows for `ack`.
    fn growth(&mut self, ack: &Ack, window: Window) -> u64;
    /// Packets were lost while the congestion window was `before`.
    fn on_loss(&mut self, before: Window);
    /// A jump went too far: the congestion window is now `window`.
    fn on_retreat(&mut self, window: Window);
    /// The window was lowered because it was not used.
    fn on_underuse(&mut self);
    /// A packet is sent while none is in flight: there was nothing to send.
    fn on_end_of_pause(&mut self, now: Instant);
}

/// A congestion window, and the length of the packets on its path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) bytes: u64,
    pub(crate) mtu: u64,
}

/// A congestion controller that lowers the window when packets are lost.
#[derive(Clone, Debug)]
pub(crate) struct LossBased<A> {
    window: Window,
    threshold: u64,
    initial_window: u64,
    /// When the window was last lowered for a loss. Losses of packets sent before this time belong to the same event and do
    /// not lower it again (RFC 9002 §7.3.2).
    recovery_began: Option<Instant>,
    avoidance: A,
    slow_start: HyStart,
    rapid: RapidStart,
    underuse: Underuse,
}

impl<A: Avoidance> LossBased<A> {
    pub(crate) fn new(
        initial_window: u64,
        mtu: u64,
        respects_underuse: bool,
        rapid: RapidStart,
    ) -> Self {
        Self {
            window: Window {
                bytes: initial_window,
                mtu,
            },
            threshold: u64::MAX,
            initial_window,
            recovery_began: None,
            avoidance: A::default(),
            slow_start: HyStart::default(),
            rapid,
            underuse: Underuse::new(respects_underuse),
        }
    }

    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u64, before: u64) {
        if before == 0 {
            self.avoidance.on_end_of_pause(now);
        }
        let window = self.window.bytes;
        if self.underuse.on_sent(now, before + bytes, window) {
            self.threshold = self.threshold.max(window / 4 * 3);
            self.window.bytes = self.initial_window.max(window / 2).min(window);
            self.avoidance.on_underuse();
        }
    }

    pub(crate) fn on_ack(&mut self, ack: &Ack) {
        if self.recovery_began.is_some_and(|began| ack.sent <= began)
            || !(self.underuse).may_grow(ack.app_limited, self.window.bytes)
        {
            return;
        }
        if self.window.bytes >= self.threshold {
            self.window.bytes += self.avoidance.growth(ack, self.window);
            return;
        }
        match self.slow_start.on_ack(ack) {
            Phase::Slow { divisor } => {
                let growth = ack.bytes / divisor;
                self.window.bytes += self.rapid.on_ack(ack, growth, divisor > 1);
            }
            Phase::Over => self.threshold = self.window.bytes,
        }
    }

    pub(crate) fn on_end_acks(&mut self, _: Instant, _: u64) {}

    pub(crate) fn on_loss(&mut self, loss: &Loss, _: u64) {
        if self.recovery_began.is_some_and(|began| loss.sent <= began) {
            return;
        }
        self.recovery_began = Some(loss.now);
        let used = self.underuse.before_loss(self.window.bytes);
        let before = self.rapid.before_loss(used);
        self.avoidance.on_loss(Window {
            bytes: before,
            ..self.window
        });
        self.shrink(before);
        if loss.is_persistent {
            self.window.bytes = self.least();
            self.recovery_began = None;
        }
    }

    pub(crate) fn on_mtu_update(&mut self, mtu: u64) {
        self.window.mtu = mtu;
        self.window.bytes = self.window.bytes.max(self.least());
    }

    /// Raises the window for a jump: the connection begins with a larger window than the initial one.
    pub(crate) fn jump(&mut self, window: u64) {
        self.window.bytes = self.window.bytes.max(window);
    }

    /// After a jump, lowers the congestion window to `window` bytes: the part of it that was used.
    pub(crate) fn limit(&mut self, window: u64) {
        self.window.bytes = self.window.bytes.min(window);
    }

    /// Lowers the window after a jump that went too far: packets were lost. `delivered`: bytes sent since the jump that have
    /// arrived.
    pub(crate) fn retreat(&mut self, delivered: u64) {
        self.shrink(delivered);
        self.avoidance.on_retreat(self.window);
    }

    /// Sets the window to its size after a loss at a window of `before` bytes. Slow start is over.
    fn shrink(&mut self, before: u64) {
        self.window.bytes = scale(before, A::BETA_PERCENT, 100).max(self.least());
        self.threshold = self.window.bytes;
    }

    /// The least congestion window, in bytes.
    const fn least(&self) -> u64 {
        MIN_WINDOW_PACKETS * self.window.mtu
    }

    pub(crate) const fn window(&self) -> u64 {
        self.window.bytes
    }

    pub(crate) const fn slow_start_threshold(&self) -> Option<u64> {
        Some(self.threshold)
    }

    pub(crate) fn pacing_rate(&self, smoothed_rtt: Duration) -> u64 {
        rate_of_window(self.window.bytes, self.threshold, smoothed_rtt)
    }
}
