//! Content on its way to the socket: pulled stream by stream, in the order the scheduler says.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context as TaskContext, Poll, Waker};

use bytes::Bytes;
use h2o_exchange::{BodyError, BodySource, Counter, FileReader, Trailers};
use h2o_http2::{ErrorCode, StreamKey};

use super::receiving::waker_of;
use super::{Http2, Step};
use crate::flow::Turn;
use crate::latency::{self, Latency};

/// Octets of output per write while the socket does not take them at once: what is written cannot be overtaken.
pub(super) const FIRST_ROUND: usize = 16 * 1024;
/// Octets of output per write at most. Larger writes were measured to be dearer: the octets leave the nearest cache.
pub(super) const LAST_ROUND: usize = 64 * 1024;
/// What the kernel may hold of a connection's output without having sent it, where several responses compete.
const UNSENT: u32 = 16 * 1024;
/// Octets of content sent that earn a unit of the connection's budget: window updates and the like are paid by it.
const OCTETS_PER_UNIT: u64 = 2048;

/// What is left of a response's content.
pub(crate) struct Sending {
    pub(crate) content: Content,
    /// Octets that are missing of the announced length.
    pub(crate) left: Option<u64>,
    /// What a stream gave beyond what it was asked for.
    pub(crate) rest: Bytes,
    /// Listed in [`Http2::ahead`]: the source was last asked when there was more to come, or not yet.
    pub(crate) is_ahead: bool,
}

/// Where content comes from.
pub(crate) enum Content {
    Bytes(Bytes),
    File(FileReader),
    Stream(Box<dyn BodySource>),
}

/// What came of pulling content for one frame.
enum Pulled {
    /// A frame was written.
    Frame { len: usize, is_end: bool },
    /// There is none for now; the stream's waker was kept.
    Waiting,
}

impl Http2 {
    /// Fills `out` with content up to one write's worth.
    pub(super) fn pump(&mut self, turn: &mut Turn<'_>) {
        let mut is_due = self.latency.is_due(turn.connection.io.tls.is_some());
        while turn.out.len() < self.latency.round(self.round) {
            let Some((stream, max)) = self.engine.poll_send() else {
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
            self.pull(turn, stream, max);
        }
        let unearned = self.sent - self.earned;
        if unearned >= OCTETS_PER_UNIT {
            let units = u32::try_from(unearned / OCTETS_PER_UNIT).unwrap_or(u32::MAX);
            self.earned = self.sent - unearned % OCTETS_PER_UNIT;
            turn.connection.earn_units(turn.context, units);
        }
        let costs = self.engine.take_costs();
        if costs > 0 && turn.connection.pay_units(turn.context, costs).is_err() {
            self.fail(turn, h2o_http2::PeerError::Overdrawn);
        }
        if self.low_water == 0 && self.engine.has_sendable() {
            self.set_low_water(turn, UNSENT);
        }
    }

    /// Once nothing more can be sent, the source of this response is told.
    pub(super) fn list_ahead(&mut self, stream: StreamKey) {
        if let Some(work) = self.works.get_mut(stream.index())
            && let Step::Sending(sending) = &mut work.step
            && matches!(sending.content, Content::Stream(_))
            && !std::mem::replace(&mut sending.is_ahead, true)
        {
            self.ahead.push(stream);
        }
    }

    /// The client takes nothing for now, neither by its socket nor by its windows: those who make content may go on by
    /// themselves.
    pub(super) fn read_ahead(&mut self, turn: &Turn<'_>) {
        let mut ahead = std::mem::take(&mut self.ahead);
        for stream in ahead.drain(..) {
            let work = self.works.get_mut(stream.index());
            let Some(work) = work.filter(|work| work.key == Some(stream)) else {
                continue;
            };
            let waker = waker_of(work, turn, stream);
            if let Step::Sending(sending) = &mut work.step
                && std::mem::take(&mut sending.is_ahead)
                && let Content::Stream(source) = &mut sending.content
            {
                source.poll_ahead(&mut TaskContext::from_waker(&waker));
            }
        }
        // The memory is kept.
        self.ahead = ahead;
    }

    /// Finds out how content is best sent on this path, before some is.
    #[cold]
    fn weigh_latency(&mut self, turn: &mut Turn<'_>) {
        let overhead = turn
            .connection
            .io
            .tls
            .as_ref()
            .map_or(0, |tls| tls.record_overhead());
        self.latency = Latency::decide(
            &turn.context.http2.latency,
            turn.connection.io.socket.tcp_info().as_ref(),
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

    fn set_low_water(&mut self, turn: &Turn<'_>, octets: u32) {
        if std::mem::replace(&mut self.low_water, octets) != octets {
            turn.connection.io.socket.set_not_sent_low_water(octets);
        }
    }

    /// Moves content of one stream into one DATA frame.
    fn pull(&mut self, turn: &mut Turn<'_>, stream: StreamKey, max: usize) {
        let Some(work) = self.works.get_mut(stream.index()) else {
            self.engine.set_content(stream, false);
            return;
        };
        let waker = match &work.step {
            Step::Sending(Sending {
                content: Content::Bytes(_),
                ..
            }) => Waker::noop().clone(),
            _ => waker_of(work, turn, stream),
        };
        let Step::Sending(sending) = &mut work.step else {
            self.engine.set_content(stream, false);
            return;
        };
        let mut task = TaskContext::from_waker(&waker);
        let engine = &mut self.engine;
        let pulled = if matches!(sending.content, Content::Stream(_)) {
            // A fault of what makes the content is that of one response.
            catch_unwind(AssertUnwindSafe(|| {
                sending.pull(engine, stream, max, &mut task, &mut turn.out)
            }))
            .unwrap_or_else(|_| {
                turn.context.worker.counters.count(Counter::Panics);
                Err(BodyError::Failed(
                    "the source of the content panicked".into(),
                ))
            })
        } else {
            sending.pull(engine, stream, max, &mut task, &mut turn.out)
        };
        match pulled {
            Ok(Pulled::Frame { len, is_end }) => {
                self.sent += len as u64;
                if let Some(exchange) = &work.exchange {
                    exchange.borrow_mut().sent.body_bytes += len as u64;
                }
                if is_end {
                    self.finish(turn, stream, None);
                } else {
                    self.list_ahead(stream);
                }
            }
            Ok(Pulled::Waiting) => {
                // It has been asked.
                sending.is_ahead = false;
                self.engine.set_content(stream, false);
                self.set_waits(stream, true);
            }
            Err(error) => self.break_off(turn, stream, &error),
        }
    }

    /// The content cannot be completed: the client must not take it for complete.
    fn break_off(&mut self, turn: &mut Turn<'_>, stream: StreamKey, error: &BodyError) {
        let is_tunnel = self
            .works
            .get(stream.index())
            .is_some_and(|work| work.is_tunnel);
        let code = match error {
            // RFC 9113 §8.5.
            _ if is_tunnel => ErrorCode::CONNECT_ERROR,
            BodyError::Local(_) => ErrorCode::INTERNAL_ERROR,
            BodyError::Failed(_) => ErrorCode::PROTOCOL_ERROR,
        };
        turn.context.worker.counters.count_http2_error(code.0);
        if let Some(exchange) = self
            .works
            .get(stream.index())
            .and_then(|work| work.exchange.as_ref())
        {
            exchange.borrow_mut().note_body_error(error);
        }
        self.engine.reset(stream, code, &mut turn.out);
        self.end_work(stream);
        self.engine.release(stream, &mut turn.out);
    }
}

impl Sending {
    /// `content`, of which `left` octets were announced.
    pub(super) const fn new(content: Content, left: Option<u64>) -> Self {
        Self {
            content,
            left,
            rest: Bytes::new(),
            is_ahead: false,
        }
    }

    /// Octets of memory held for content that was not sent.
    pub(super) fn retained(&self) -> usize {
        let content = match &self.content {
            Content::Bytes(bytes) => h2o_exchange::retained(bytes),
            Content::File(reader) => reader.retained(),
            Content::Stream(source) => source.retained(),
        };
        content + self.rest.len()
    }

    fn pull(
        &mut self,
        engine: &mut h2o_http2::ServerConnection,
        stream: StreamKey,
        max: usize,
        task: &mut TaskContext<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Pulled, BodyError> {
        let max = self.left.map_or(max, |left| {
            max.min(usize::try_from(left).unwrap_or(usize::MAX))
        });
        let left = &mut self.left;
        match &mut self.content {
            Content::Bytes(bytes) => {
                let piece = bytes.split_to(max.min(bytes.len()));
                let is_end = bytes.is_empty() || *left == Some(piece.len() as u64);
                engine.send_data(stream, &piece, is_end, out);
                Ok(Pulled::frame(left, piece.len(), is_end))
            }
            Content::File(reader) => {
                let sent = engine.send_data_with(stream, max, out, |out| {
                    match reader.poll_append(task, max, out) {
                        Poll::Pending => Ok(None),
                        Poll::Ready(Ok(len)) => Ok(Some((len, reader.remaining() == 0))),
                        Poll::Ready(Err(error)) => Err(error),
                    }
                })?;
                Ok(sent.map_or(Pulled::Waiting, |(len, is_end)| {
                    Pulled::frame(left, len, is_end)
                }))
            }
            Content::Stream(source) => {
                let mut piece = std::mem::take(&mut self.rest);
                if piece.is_empty() && *left == Some(0) {
                    // The end of the content need not be that of its source, which may still read the request's.
                    let trailers = match source.trailers() {
                        Trailers::Unknown => None,
                        Trailers::None => Some(None),
                        Trailers::Fields(trailers) => Some(Some(trailers)),
                    };
                    if let Some(trailers) = trailers {
                        engine.finish(stream, trailers.as_ref(), out);
                        return Ok(Pulled::frame(left, 0, true));
                    }
                }
                if piece.is_empty() {
                    piece = match source.poll_next(task, max.max(1)) {
                        Poll::Pending => return Ok(Pulled::Waiting),
                        Poll::Ready(Some(piece)) => piece?,
                        Poll::Ready(None) if left.is_some_and(|left| left > 0) => {
                            let text = "the content is shorter than announced";
                            return Err(BodyError::Failed(text.into()));
                        }
                        Poll::Ready(None) => {
                            let trailers = match source.trailers() {
                                Trailers::Fields(trailers) => Some(trailers),
                                Trailers::None | Trailers::Unknown => None,
                            };
                            engine.finish(stream, trailers.as_ref(), out);
                            self.content = Content::Bytes(Bytes::new());
                            return Ok(Pulled::frame(left, 0, true));
                        }
                    };
                }
                if piece.len() > max {
                    self.rest = piece.split_off(max);
                }
                let is_whole = *left == Some(piece.len() as u64);
                // The end is waited for where something may come with it.
                let is_end = is_whole
                    && match source.trailers() {
                        Trailers::None => true,
                        Trailers::Unknown if !self.rest.is_empty() => {
                            let text = "the content is longer than announced";
                            return Err(BodyError::Failed(text.into()));
                        }
                        Trailers::Unknown => false,
                        Trailers::Fields(trailers) => {
                            engine.send_data(stream, &piece, false, out);
                            engine.finish(stream, Some(&trailers), out);
                            return Ok(Pulled::frame(left, piece.len(), true));
                        }
                    };
                // Of an empty piece the source is asked for more when its turn comes.
                if !piece.is_empty() || is_end {
                    engine.send_data(stream, &piece, is_end, out);
                }
                Ok(Pulled::frame(left, piece.len(), is_end))
            }
        }
    }
}

impl Pulled {
    fn frame(left: &mut Option<u64>, len: usize, is_end: bool) -> Self {
        if let Some(left) = left {
            *left = left.saturating_sub(len as u64);
        }
        Self::Frame { len, is_end }
    }
}
