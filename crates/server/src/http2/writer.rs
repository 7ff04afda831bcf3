//! Writes response bodies in the order that the scheduler sets, and decides how many bytes each write has.

use h2o_http2::ServerConnection;

use super::slot;
use crate::flow::Turn;
use crate::latency::{self, Latency};
use crate::request::Requests;

/// Number of bytes of output per write while the socket is full: a more urgent response cannot overtake written bytes.
const FIRST_ROUND: usize = 16 * 1024;
/// Largest number of bytes of output per write. Measurements showed larger writes to cost more, because the bytes leave the nearest
/// CPU cache.
const LAST_ROUND: usize = 64 * 1024;
/// Limit on the bytes in the kernel that are waiting to be sent for the first time, while several responses compete.
const UNSENT: u32 = 16 * 1024;

/// Decides how many bytes of output each write of a connection has.
pub(super) struct Writer {
    /// Number of bytes of output for the next write.
    round: usize,
    /// Number of unsent bytes that the kernel may hold, so that a new response can overtake the remaining bytes; 0 for no limit.
    low_water: u32,
    latency: Latency,
}

impl Writer {
    pub(super) const fn new() -> Self {
        Self {
            round: FIRST_ROUND,
            low_water: 0,
            latency: Latency::Unknown,
        }
    }

    /// Notes that the socket has taken `written` bytes.
    pub(super) fn on_written(&mut self, turn: &Turn<'_>, written: usize) {
        if turn.connection.io.has_output() {
            self.round = FIRST_ROUND;
        } else if written >= self.round {
            self.round = (2 * self.round).min(LAST_ROUND);
        }
    }

    /// Fills the output with pieces of response bodies, up to the length of one write.
    pub(super) fn pump(
        &mut self,
        requests: &mut Requests,
        engine: &mut ServerConnection,
        turn: &mut Turn<'_>,
    ) {
        let mut is_due = self.latency.is_due(turn.connection.io.tls.is_some());
        while turn.out.len() < self.latency.round(self.round) {
            let Some((stream, max)) = engine.poll_send() else {
                break;
            };
            if std::mem::take(&mut is_due) {
                self.weigh_latency(turn);
            }
            let room = self
                .latency
                .round(self.round)
                .saturating_sub(turn.out.len());
            let max = self.latency.piece(max, room);
            let _ = requests.pull(engine, turn, slot(stream), max);
        }
        if self.low_water == 0 && engine.has_sendable() {
            self.set_low_water(turn, UNSENT);
        }
    }

    /// Before bodies are sent, asks the kernel for the state of the network path, which decides about the latency optimisation
    /// ([`Latency`]).
    #[cold]
    fn weigh_latency(&mut self, turn: &mut Turn<'_>) {
        let io = &mut turn.connection.io;
        let overhead = io.tls.as_ref().map_or(0, |tls| tls.record_overhead());
        self.latency = Latency::decide(
            &turn.connection.listener.setup.http2.latency,
            io.socket.tcp_info().as_ref(),
            turn.context.worker.clock.turn_time(),
            u32::try_from(overhead).unwrap_or(0),
        );
        let record_payload = match self.latency {
            Latency::Unknown | Latency::Off => return,
            Latency::Write(round) => {
                self.set_low_water(turn, latency::LOW_WATER);
                round.record_payload as usize
            }
            Latency::Unlimited => {
                if self.low_water == latency::LOW_WATER {
                    self.set_low_water(turn, UNSENT);
                }
                usize::MAX
            }
        };
        if let Some(tls) = &mut turn.connection.io.tls {
            tls.choose_record_size(record_payload);
        }
    }

    fn set_low_water(&mut self, turn: &Turn<'_>, bytes: u32) {
        if std::mem::replace(&mut self.low_water, bytes) != bytes {
            turn.connection.io.socket.set_not_sent_low_water(bytes);
        }
    }
}
