//! Clients that are too slow with one of their streams, or with the connection: see [`crate::pace`].

use std::time::Instant;

use h2o_http2::{ServerConnection, StreamState};

use super::slot;
use crate::flow::{Flow, Turn};
use crate::pace::{ClientRate, Pace, TransferState};
use crate::request::{CloseReason, Requests};

/// Progress of the connection as a whole.
pub(super) struct Paces {
    /// Time of the next check.
    look_at: Option<Instant>,
    /// Bytes that the socket has taken.
    written: u64,
    /// Progress of the output that waits for the socket.
    socket: Pace,
    /// Progress of the bodies that wait for the window of the connection.
    window: Pace,
}

impl Paces {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            look_at: None,
            written: 0,
            socket: Pace::new(now),
            window: Pace::new(now),
        }
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.look_at
    }

    /// The socket has taken bytes.
    pub(super) const fn on_written(&mut self, written: usize) {
        self.written += written as u64;
    }

    /// Sets the time of the next check, if there are streams or output.
    #[inline]
    pub(super) fn plan_look(&mut self, engine: &ServerConnection, turn: &Turn<'_>) {
        if !engine.has_streams() && !turn.connection.io.has_output() {
            self.look_at = None;
        } else if self.look_at.is_none() {
            self.look_at = Some(ClientRate::default().next_check(turn.now));
        }
    }

    /// Ends the streams for which the client is too slow. [`Flow::Close`]: it is too slow for the connection as a whole.
    pub(super) fn look(
        &mut self,
        requests: &mut Requests,
        engine: &mut ServerConnection,
        turn: &mut Turn<'_>,
    ) -> Flow {
        let now = turn.now;
        if self.look_at.is_none_or(|at| at > now) {
            return Flow::Wait;
        }
        let look = |bytes, waits_for_client| TransferState {
            now,
            bytes,
            waits_for_client,
        };
        let is_blocked = turn.connection.io.has_output();
        let (_, window) = engine.windows();
        // The rate of the connection: the most lenient one of its requests.
        let mut most_lenient: Option<ClientRate> = None;
        let mut slow = Vec::new();
        let mut waits_for_window = Vec::new();
        for info in engine.streams() {
            let id = slot(info.key);
            let Some(rate) = requests.client_rate(id) else {
                continue;
            };
            let other = most_lenient.unwrap_or(rate);
            most_lenient = Some(rate.or_more_lenient(other));
            let has_content = requests.has_content(id);
            if has_content && window <= 0 {
                waits_for_window.push(id);
            }
            let may_send = info.recv_window > 0
                && matches!(info.state, StreamState::Open | StreamState::HalfClosedLocal);
            let receives = may_send && requests.expects_body(id);
            let sends = has_content && info.send_window <= 0;
            let (received, taken) = (look(info.received, receives), look(info.sent, sends));
            if !requests.keeps_up(id, received, taken, &rate) {
                slow.push(id);
            }
        }
        let rate = most_lenient.unwrap_or_default();
        self.look_at = Some(rate.next_check(now));
        let looked = look(requests.sent(), !is_blocked && !waits_for_window.is_empty());
        if !self.window.keeps_up(looked, &rate) {
            slow.append(&mut waits_for_window);
        }
        for id in slow {
            requests.close(engine, turn, id, CloseReason::TooSlow);
        }
        let unacknowledged = turn.connection.io.socket.unacknowledged() as u64;
        let looked = look(self.written.saturating_sub(unacknowledged), is_blocked);
        if self.socket.keeps_up(looked, &rate) {
            Flow::Wait
        } else {
            Flow::Close
        }
    }
}
