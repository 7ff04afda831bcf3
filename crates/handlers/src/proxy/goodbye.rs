//! Graceful shutdown of WebSockets: the client gets a close frame of this server between two frames of the backend.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2o_exchange::{BodyError, BodySource, Timer, Worker};
use tokio::sync::futures::OwnedNotified;

/// A close frame with the code 1001, "going away" (RFC 6455 §5.5.1, §7.4.1).
const GOING_AWAY: [u8; 4] = [0x88, 2, 0x03, 0xe9];

/// Time limit for client and backend to close the WebSocket after this server has sent its close frame.
const CLOSING_TIME: Duration = Duration::from_secs(5);

/// The frames of a backend over a WebSocket. When the server shuts down, the client gets a close frame after the current
/// frame, and nothing more: no data may follow. The client answers with a close frame, which is forwarded to the backend
/// and ends the connection.
pub(super) struct GracefulWebSocket {
    worker: Rc<Worker>,
    frames: Box<dyn BodySource>,
    place: FramePosition,
    state: GoodbyeState,
}

enum GoodbyeState {
    /// The server is not shutting down.
    Open(Pin<Box<OwnedNotified>>),
    /// The server is shutting down. Its close frame follows when the current frame of the backend has ended.
    Ending,
    /// The close frame was begun: the client gets `rest` of it, and no more frames of the backend. The backend's
    /// further frames are dropped until it ends or `limit` passes.
    Closed { rest: Bytes, limit: Timer },
    /// The server sends no close frame, because the backend closes by itself, or does not send WebSocket frames.
    LeftAlone,
}

impl GracefulWebSocket {
    pub(super) fn new(worker: &Rc<Worker>, frames: Box<dyn BodySource>) -> Self {
        let shutdown = Arc::clone(&worker.shutdown);
        let state = if worker.shutting_down.get() {
            GoodbyeState::Ending
        } else {
            GoodbyeState::Open(Box::pin(shutdown.notified_owned()))
        };
        Self {
            worker: Rc::clone(worker),
            frames,
            place: FramePosition::START,
            state,
        }
    }

    /// Passes `bytes` of the backend on and follows the frames in them. During the shutdown, all bytes after the first
    /// end of a frame are dropped.
    fn pass(&mut self, bytes: Bytes) -> Bytes {
        if matches!(self.state, GoodbyeState::LeftAlone) {
            return bytes;
        }
        let mut at = 0;
        while at < bytes.len() {
            at += self.place.advance(&bytes[at..]);
            if self.place.is_closing {
                self.state = GoodbyeState::LeftAlone;
                return bytes;
            }
            if matches!(self.state, GoodbyeState::Ending) && self.place.is_between_frames() {
                self.close();
                return bytes.slice(..at);
            }
        }
        bytes
    }

    fn close(&mut self) {
        let limit = Timer::new(&self.worker.timers);
        limit.set_after(CLOSING_TIME);
        self.state = GoodbyeState::Closed {
            rest: Bytes::from_static(&GOING_AWAY),
            limit,
        };
    }
}

impl BodySource for GracefulWebSocket {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let GoodbyeState::Open(shutdown) = &mut self.state
            && shutdown.as_mut().poll(context).is_ready()
        {
            self.state = GoodbyeState::Ending;
        }
        if matches!(self.state, GoodbyeState::Ending) && self.place.is_between_frames() {
            self.close();
        }
        if let GoodbyeState::Closed { rest, limit } = &mut self.state {
            if !rest.is_empty() {
                return Poll::Ready(Some(Ok(rest.split_to(max.min(rest.len())))));
            }
            while limit.poll_fired(context).is_pending() {
                match ready!(self.frames.poll_next(context, max)) {
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => break,
                }
            }
            return Poll::Ready(None);
        }
        let piece = ready!(self.frames.poll_next(context, max));
        Poll::Ready(piece.map(|piece| piece.map(|bytes| self.pass(bytes))))
    }

    fn poll_ahead(&mut self, context: &mut Context<'_>) {
        self.frames.poll_ahead(context);
    }

    fn retained(&self) -> usize {
        self.frames.retained()
    }
}

/// A position in a sequence of WebSocket frames (RFC 6455 §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FramePosition {
    /// The first byte of the current frame's header.
    first: u8,
    second: u8,
    /// Number of bytes of the frame's header seen so far; 0 between frames and in a payload.
    seen: u8,
    /// In a header, the payload length read so far; in a payload, the number of bytes still to come.
    payload: u64,
    /// Whether a close frame of the backend has begun.
    is_closing: bool,
}

impl FramePosition {
    const START: Self = Self {
        first: 0,
        second: 0,
        seen: 0,
        payload: 0,
        is_closing: false,
    };

    const fn is_between_frames(self) -> bool {
        self.seen == 0 && self.payload == 0
    }

    /// Advances to the end of the frame or of `bytes`, whichever is first. Returns by how many bytes.
    fn advance(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        if self.seen > 0 || self.payload == 0 {
            while at < bytes.len() {
                at += 1;
                if self.on_header(bytes[at - 1]) {
                    break;
                }
            }
            if self.seen > 0 {
                return at;
            }
        }
        let rest = bytes.len() - at;
        let taken = usize::try_from(self.payload).map_or(rest, |payload| payload.min(rest));
        self.payload -= taken as u64;
        at + taken
    }

    /// Reads one byte of a frame's header. Returns whether it is the last one.
    fn on_header(&mut self, byte: u8) -> bool {
        const OPCODE: u8 = 0x0f;
        const CLOSE: u8 = 8;
        const MASK: u8 = 0x80;
        match self.seen {
            0 => {
                self.first = byte;
                self.is_closing |= byte & OPCODE == CLOSE;
            }
            1 => self.second = byte,
            seen if seen < 2 + self.length_bytes() => {
                self.payload = self.payload << 8 | u64::from(byte);
            }
            // A byte of the masking key.
            _ => {}
        }
        self.seen += 1;
        if self.seen < 2 {
            return false;
        }
        let mask_bytes = if self.second & MASK == 0 { 0 } else { 4 };
        if self.seen < 2 + self.length_bytes() + mask_bytes {
            return false;
        }
        if self.length_bytes() == 0 {
            self.payload = u64::from(self.second & !MASK);
        }
        self.seen = 0;
        true
    }

    /// Number of bytes of the extended payload length in the header.
    const fn length_bytes(self) -> u8 {
        match self.second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames as a backend sends them: one with text, an empty one, ones with lengths of 16 and of 64 bits, a masked
    /// one.
    fn frames() -> Vec<Vec<u8>> {
        let frame = |header: &[u8], payload: usize| {
            let mut frame = header.to_vec();
            frame.resize(header.len() + payload, 0x88);
            frame
        };
        vec![
            frame(&[0x01, 5], 5),
            frame(&[0x89, 0], 0),
            frame(&[0x80, 126, 0, 200], 200),
            frame(&[0x82, 127, 0, 0, 0, 0, 0, 1, 0x11, 0x70], 70_000),
            frame(&[0x81, 0x83, 1, 2, 3, 4], 3),
        ]
    }

    /// A backend that sends these pieces.
    struct Pieces(Vec<Bytes>);

    impl BodySource for Pieces {
        fn poll_next(
            &mut self,
            _: &mut Context<'_>,
            max: usize,
        ) -> Poll<Option<Result<Bytes, BodyError>>> {
            let Some(first) = self.0.first_mut() else {
                return Poll::Ready(None);
            };
            let piece = first.split_to(max.min(first.len()));
            if first.is_empty() {
                self.0.remove(0);
            }
            Poll::Ready(Some(Ok(piece)))
        }

        fn retained(&self) -> usize {
            0
        }
    }

    /// Runs a WebSocket whose backend sends `backend`, and returns all that the client receives, in pieces of at most `max` bytes.
    /// The server begins to shut down once the client has `before` bytes.
    fn received(backend: &[&[u8]], before: usize, max: usize) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let worker = Worker::new(0, Arc::default(), Arc::default());
            let pieces = backend.iter().map(|piece| Bytes::copy_from_slice(piece));
            let pieces = Pieces(pieces.filter(|piece| !piece.is_empty()).collect());
            let mut source = GracefulWebSocket::new(&worker, Box::new(pieces));
            let mut all = Vec::new();
            if before == 0 {
                worker.shut_down();
            }
            while let Some(piece) =
                std::future::poll_fn(|context| source.poll_next(context, max)).await
            {
                let piece = piece.unwrap();
                assert!((1..=max).contains(&piece.len()));
                all.extend_from_slice(&piece);
                if all.len() >= before {
                    worker.shut_down();
                }
            }
            all
        })
    }

    #[test]
    fn the_client_is_told_between_two_frames_and_gets_nothing_behind_that() {
        let (one, two) = (&b"\x81\x05hello"[..], &b"\x81\x05world"[..]);
        let both = [one, two].concat();
        for max in [1, 2, 3, 4, 5, 7, 100] {
            assert_eq!(received(&[&both], 0, max), GOING_AWAY, "{max}");
            let behind_one = [one, &GOING_AWAY].concat();
            for before in 1..=7.min(max) {
                let (begin, end) = both.split_at(before);
                assert_eq!(
                    received(&[begin, end], before, max),
                    behind_one,
                    "{max} {before}"
                );
            }
        }
        assert_eq!(
            received(&[one, two], 14, 100),
            [&both, &GOING_AWAY[..]].concat()
        );
    }

    #[test]
    fn a_client_gets_one_close_frame_only() {
        let closes = &b"\x81\x02hi\x88\x02\x03\xe8"[..];
        for before in [5, 6, 7] {
            let (begin, end) = closes.split_at(before);
            assert_eq!(received(&[begin, end], before, 100), closes, "{before}");
        }
    }

    #[test]
    fn frames_end_where_their_headers_say_however_they_are_cut() {
        let frames = frames();
        let mut ends = vec![0];
        for frame in &frames {
            ends.push(ends[ends.len() - 1] + frame.len());
        }
        let all = frames.concat();
        for size in [1, 2, 3, 7, 1000, all.len()] {
            let mut place = FramePosition::START;
            let mut found = vec![0];
            let mut at = 0;
            for piece in all.chunks(size) {
                let mut rest = piece;
                while !rest.is_empty() {
                    let taken = place.advance(rest);
                    assert!(taken > 0);
                    rest = &rest[taken..];
                    at += taken;
                    if place.is_between_frames() {
                        found.push(at);
                    }
                }
            }
            assert_eq!(found, ends, "{size}");
            assert!(!place.is_closing);
        }
    }

    #[test]
    fn a_close_frame_of_the_backend_is_seen_at_its_first_byte() {
        let mut place = FramePosition::START;
        assert_eq!(place.advance(&[0x88]), 1);
        assert!(place.is_closing && !place.is_between_frames());
    }
}
