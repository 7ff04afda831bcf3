//! Clients that are too slow with one of their streams, or with the connection: see [`crate::pace`].

use std::time::Instant;

use super::slot;
use super::streams::Http3Streams;
use crate::flow::Turn;
use crate::pace::{ClientRate, Pace, TransferState};
use crate::request::{CloseReason, Requests};

/// Progress of the connection as a whole.
pub(super) struct Paces {
    /// Time of the next check.
    look_at: Option<Instant>,
    /// Progress of the bodies that the transport does not take: their stream or the connection has no window, or the network does
    /// not carry more.
    sending: Pace,
}

impl Paces {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            look_at: None,
            sending: Pace::new(now),
        }
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.look_at
    }

    /// Sets the time of the next check, if there are streams.
    #[inline]
    pub(super) fn plan_look(&mut self, streams: &Http3Streams, turn: &Turn<'_>) {
        if !streams.engine.has_streams() {
            self.look_at = None;
        } else if self.look_at.is_none() {
            self.look_at = Some(ClientRate::default().next_check(turn.now));
        }
    }

    /// Ends the streams for which the client is too slow.
    pub(super) fn look(
        &mut self,
        requests: &mut Requests,
        streams: &mut Http3Streams,
        turn: &mut Turn<'_>,
    ) {
        let now = turn.now;
        if self.look_at.is_none_or(|at| at > now) {
            return;
        }
        let look = |bytes, waits_for_client| TransferState {
            now,
            bytes,
            waits_for_client,
        };
        // The rate of the connection: the most lenient one of its requests.
        let mut most_lenient: Option<ClientRate> = None;
        let (mut slow, mut blocked) = (Vec::new(), Vec::new());
        for info in streams.engine.streams() {
            let id = slot(info.key);
            let Some(rate) = requests.client_rate(id) else {
                continue;
            };
            most_lenient = Some(rate.or_more_lenient(most_lenient.unwrap_or(rate)));
            if requests.has_content(id) && streams.is_blocked(info.key) {
                blocked.push(id);
            }
            let receives = streams.has_window(info.key) && requests.expects_body(id);
            let received = look(info.received, receives);
            // Which responses wait for the network and which for their window the transport does not tell.
            let taken = look(info.sent, false);
            if !requests.keeps_up(id, received, taken, &rate) {
                slow.push(id);
            }
        }
        let rate = most_lenient.unwrap_or_default();
        self.look_at = Some(rate.next_check(now));
        let sending = look(requests.sent(), !blocked.is_empty());
        if !self.sending.keeps_up(sending, &rate) {
            slow.append(&mut blocked);
        }
        for id in slow {
            requests.close(streams, turn, id, CloseReason::TooSlow);
        }
    }
}
