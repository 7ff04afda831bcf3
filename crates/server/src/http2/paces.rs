//! Finds clients that are too slow on one of their streams, or on the connection as a whole; the rule is in [`crate::pace`].

use std::time::Instant;

use h2o_http2::{ServerConnection, StreamState};

use super::slot;
use crate::flow::{Flow, Turn};
use crate::pace::{Pace, TransferState};
use crate::request::Requests;
use crate::request::paces::{ConnectionPace, StreamTransfers};

/// Progress of the transfers of the connection: of its streams, and of its output to the socket.
pub(super) struct Paces {
    streams: ConnectionPace,
    /// Number of bytes of output that the socket has taken.
    written: u64,
    /// Progress of the output that waits for the socket.
    socket: Pace,
}

impl Paces {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            streams: ConnectionPace::new(now),
            written: 0,
            socket: Pace::new(now),
        }
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.streams.deadline()
    }

    /// Notes that the socket has taken `written` bytes.
    pub(super) const fn on_written(&mut self, written: usize) {
        self.written += written as u64;
    }

    /// Sets the time of the next check, if the connection has streams or unsent output.
    #[inline]
    pub(super) fn plan_look(&mut self, engine: &ServerConnection, turn: &Turn<'_>) {
        let is_busy = engine.has_streams() || turn.connection.io.has_output();
        self.streams.plan(is_busy, turn.now);
    }

    /// If a check is due, ends the streams on which the client is too slow. Returns [`Flow::Close`] if the client is too slow for
    /// the connection as a whole.
    pub(super) fn look(
        &mut self,
        requests: &mut Requests,
        engine: &mut ServerConnection,
        turn: &mut Turn<'_>,
    ) -> Flow {
        if !self.streams.is_due(turn.now) {
            return Flow::Wait;
        }
        let is_blocked = turn.connection.io.has_output();
        let transfers = transfers(engine);
        let rate = self
            .streams
            .check(requests, engine, turn, &transfers, is_blocked);
        let unacknowledged = turn.connection.io.socket.unacknowledged() as u64;
        let written = TransferState {
            now: turn.now,
            bytes: self.written.saturating_sub(unacknowledged),
            waits_for_client: is_blocked,
        };
        if self.socket.keeps_up(written, &rate) {
            Flow::Wait
        } else {
            Flow::Close
        }
    }
}

fn transfers(engine: &ServerConnection) -> Vec<StreamTransfers> {
    let (_, window) = engine.windows();
    let of_stream = |info: h2o_http2::StreamInfo| StreamTransfers {
        id: slot(info.key),
        received: info.received,
        may_receive: info.recv_window > 0
            && matches!(info.state, StreamState::Open | StreamState::HalfClosedLocal),
        sent: info.sent,
        lacks_window: info.send_window <= 0,
        lacks_connection: window <= 0,
    };
    engine.streams().map(of_stream).collect()
}
