//! Clients that are too slow with one of their streams, or with the connection: see [`crate::pace`].

use std::time::Instant;

use h2o_http2::{ErrorCode, State, StreamInfo, StreamKey};

use super::{Http2, Step};
use crate::flow::{Flow, Turn};
use crate::pace::{ClientRate, Look, Pace};

/// How fast the client takes what we send on the connection as a whole.
pub(super) struct Paces {
    /// When what waits is to be looked at.
    pub(super) look_at: Option<Instant>,
    /// Octets that have left.
    pub(super) written: u64,
    /// Of the octets that the socket does not take.
    socket: Pace,
    /// Of the content for which the connection has no window.
    window: Pace,
}

/// How fast the client sends the content of a request, and takes that of the response.
pub(super) struct StreamPaces {
    sent: Pace,
    taken: Pace,
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
}

impl Http2 {
    /// What is left when a turn is over is looked at from time to time.
    #[inline]
    pub(super) fn plan_look(&mut self, turn: &Turn<'_>) {
        if !self.engine.has_streams() && !turn.connection.io.has_output() {
            self.paces.look_at = None;
        } else if self.paces.look_at.is_none() {
            let now = turn.now;
            self.paces.look_at = Some(ClientRate::default().next_look(now));
        }
    }

    /// Ends the streams with which the client is too slow. [`Flow::Close`]: it is too slow with all that the socket holds.
    pub(super) fn look_at_paces(&mut self, turn: &mut Turn<'_>) -> Flow {
        let now = turn.now;
        if self.paces.look_at.is_none_or(|at| at > now) {
            return Flow::Wait;
        }
        let is_blocked = turn.connection.io.has_output();
        let (_, window) = self.engine.windows();
        // That of the connection: the most lenient of all.
        let mut most_lenient: Option<ClientRate> = None;
        let mut slow = Vec::new();
        let mut waits_for_window = Vec::new();
        for info in self.engine.streams() {
            let Some(work) = self.works.get_mut(info.key.index()) else {
                continue;
            };
            let Some(exchange) = &work.exchange else {
                continue;
            };
            let rate = *ClientRate::of(&exchange.borrow());
            let other = most_lenient.unwrap_or(rate);
            most_lenient = Some(rate.or_more_lenient(other));
            let has_content = matches!(work.step, Step::Sending(_)) && !work.waits;
            if has_content && window <= 0 {
                waits_for_window.push(info.key);
            }
            let sends = has_content && info.send_window <= 0;
            let receives = awaits_content(&work.step, &info) && !work.is_tunnel && !work.is_held;
            if !sends && !receives && work.paces.is_none() {
                continue;
            }
            let paces = work.paces.get_or_insert_with(|| {
                let pace = Pace::new(now);
                Box::new(StreamPaces {
                    sent: pace,
                    taken: pace,
                })
            });
            let look = |octets, waits_for_client| Look {
                now,
                octets,
                waits_for_client,
            };
            if !paces.sent.keeps_up(look(info.received, receives), &rate)
                || !paces.taken.keeps_up(look(info.sent, sends), &rate)
            {
                slow.push(info.key);
            }
        }
        let rate = most_lenient.unwrap_or_default();
        self.paces.look_at = Some(rate.next_look(now));
        let looked = Look {
            now,
            octets: self.sent,
            waits_for_client: !is_blocked && !waits_for_window.is_empty(),
        };
        if !self.paces.window.keeps_up(looked, &rate) {
            slow.append(&mut waits_for_window);
        }
        for stream in slow {
            self.give_up(turn, stream);
        }
        let unacknowledged = turn.connection.io.socket.unacknowledged() as u64;
        let looked = Look {
            now,
            octets: self.paces.written.saturating_sub(unacknowledged),
            waits_for_client: is_blocked,
        };
        if self.paces.socket.keeps_up(looked, &rate) {
            Flow::Wait
        } else {
            Flow::Close
        }
    }

    /// Ends a stream with which the client is too slow.
    fn give_up(&mut self, turn: &mut Turn<'_>, stream: StreamKey) {
        let code = ErrorCode::CANCEL;
        turn.context.worker.counters.count_http2_error(code.0);
        self.engine.reset(stream, code, &mut turn.out);
        self.drop_stream(turn, stream);
    }
}

/// Whether content of a request has to come, and nothing keeps the client from sending it. Once the response has begun, the two
/// may talk as they like.
const fn awaits_content(step: &Step, info: &StreamInfo) -> bool {
    if info.recv_window == 0 || !matches!(info.state, State::Open | State::HalfClosedLocal) {
        return false;
    }
    match step {
        Step::Collecting(_)
        | Step::AwaitingUpload
        | Step::Queued
        | Step::Waiting(_)
        | Step::Receiving(_) => true,
        Step::Moving | Step::Answered(_) | Step::Sending(_) | Step::Parting => false,
    }
}
