//! Congestion avoidance of NewReno (RFC 9002 §7.3.3): the window grows by one packet per window acknowledged.

use std::time::Instant;

use super::Ack;
use super::loss_based::{Avoidance, Window};

#[derive(Clone, Debug, Default)]
pub(crate) struct Reno {
    /// Bytes acknowledged since the window last grew by a packet.
    acked: u64,
}

impl Avoidance for Reno {
    const BETA_PERCENT: u128 = 50;

    fn growth(&mut self, ack: &Ack, window: Window) -> u64 {
        self.acked += ack.bytes;
        if self.acked < window.bytes {
            return 0;
        }
        self.acked -= window.bytes;
        window.mtu
    }

    fn on_loss(&mut self, _: Window) {
        self.acked = 0;
    }

    fn on_retreat(&mut self, _: Window) {}

    fn on_underuse(&mut self) {}

    fn on_end_of_pause(&mut self, _: Instant) {}
}
