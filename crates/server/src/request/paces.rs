//! Finds slow clients on connections that carry many streams, by checking the transfers of all streams of a connection at once.

use std::time::Instant;

use super::{CloseReason, Requests, SlotId, Streams};
use crate::flow::Turn;
use crate::pace::{ClientRate, Pace, TransferState};

/// State of the transfers of one stream, in both directions, at a check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamTransfers {
    pub(crate) id: SlotId,
    /// Bytes of the request's body received so far.
    pub(crate) received: u64,
    /// Whether the flow-control windows allow the client to send more of the request's body.
    pub(crate) may_receive: bool,
    /// Bytes of the response's body sent so far.
    pub(crate) sent: u64,
    /// Whether the response waits only for a larger flow-control window of its stream.
    pub(crate) lacks_window: bool,
    /// Whether the response waits for something that all streams of the connection share: the connection's flow-control window, or
    /// the network.
    pub(crate) lacks_connection: bool,
}

/// Progress of the transfers of a connection that carries many streams, and the time of their next check.
pub(crate) struct ConnectionPace {
    check_at: Option<Instant>,
    /// Progress of the responses that wait for something that all streams share: the connection's flow-control window, or the
    /// network.
    shared: Pace,
}

impl ConnectionPace {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            check_at: None,
            shared: Pace::new(now),
        }
    }

    /// When the transfers must be checked next.
    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.check_at
    }

    /// Whether it is time to call [`ConnectionPace::check`].
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.check_at.is_some_and(|at| at <= now)
    }

    /// Sets the time of the next check of the transfers. `is_busy` says whether some stream transfers data or waits for the client.
    #[inline]
    pub(crate) fn plan(&mut self, is_busy: bool, now: Instant) {
        if !is_busy {
            self.check_at = None;
        } else if self.check_at.is_none() {
            self.check_at = Some(ClientRate::default().next_check(now));
        }
    }

    /// Ends the streams whose client is too slow. `is_held_up` says whether output waits below the streams (in TLS or the socket),
    /// so that no stream waits for a window. Returns the minimum rate that applies to the connection as a whole: the most lenient
    /// of those of its requests.
    pub(crate) fn check<S: Streams>(
        &mut self,
        requests: &mut Requests,
        streams: &mut S,
        turn: &mut Turn<'_>,
        transfers: &[StreamTransfers],
        is_held_up: bool,
    ) -> ClientRate {
        let now = turn.now;
        let state = |bytes, waits_for_client| TransferState {
            now,
            bytes,
            waits_for_client,
        };
        let mut most_lenient: Option<ClientRate> = None;
        let (mut slow, mut blocked) = (Vec::new(), Vec::new());
        for stream in transfers {
            let id = stream.id;
            let Some(rate) = requests.client_rate(id) else {
                continue;
            };
            most_lenient = Some(rate.or_more_lenient(most_lenient.unwrap_or(rate)));
            let has_content = requests.has_content(id);
            if has_content && stream.lacks_connection {
                blocked.push(id);
            }
            let receives = stream.may_receive && requests.expects_body(id);
            let received = state(stream.received, receives);
            let sent = state(stream.sent, has_content && stream.lacks_window);
            if !requests.keeps_up(id, received, sent, &rate) {
                slow.push(id);
            }
        }
        let rate = most_lenient.unwrap_or_default();
        self.check_at = Some(rate.next_check(now));
        let shared = state(requests.sent(), !is_held_up && !blocked.is_empty());
        if !self.shared.keeps_up(shared, &rate) {
            slow.append(&mut blocked);
        }
        for id in slow {
            requests.close(streams, turn, id, CloseReason::TooSlow);
        }
        rate
    }
}
