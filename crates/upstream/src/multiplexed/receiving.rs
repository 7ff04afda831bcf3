//! Handles responses from the backend: heads, body data and ends.

use std::time::Instant;

use h2o_http::StatusCode;

use super::connection::State;
use super::engine::{Engine, StreamIndex};
use super::stream::StreamFailure;

impl<E: Engine> State<E> {
    /// Wakes requests that wait for the handshake or for the backend's SETTINGS.
    pub(crate) fn wake_waiting(&mut self) {
        for waker in self.waiting.drain(..) {
            waker.wake();
        }
    }

    /// Length in bytes of the frame that contained the field section just received.
    fn section_frame_len(&self) -> usize {
        E::frame_len(self.head.section_len as usize)
    }

    /// Handles trailers, which the engine has written into the fields of `head`: they end the response.
    pub(crate) fn on_trailers(&mut self, key: StreamIndex) {
        let trailers = std::mem::take(&mut self.head.headers);
        let len = self.section_frame_len();
        if let Some(stream) = self.stream(key) {
            stream.note_received(len);
        }
        self.end(key, Ok((!trailers.is_empty()).then_some(trailers)));
    }

    /// Handles the head of an interim response, which the engine has written into `head`.
    pub(crate) fn on_informational(&mut self, key: StreamIndex, now: Instant) {
        let status = self.head.status;
        let headers = std::mem::take(&mut self.head.headers);
        let until = now + self.settings.io_timeout;
        let len = self.section_frame_len();
        let Some(stream) = self.stream(key) else {
            return;
        };
        stream.note_section(len);
        if !stream.on_informational(status, headers) {
            self.fail(key, StreamFailure::Protocol);
            return;
        }
        if stream.deadline.is_some() {
            // The backend has answered, so from here on `io_timeout` applies and not the timeout of the first byte.
            stream.deadline = Some((until, StreamFailure::IoTimeout));
            self.note_deadline(until);
        }
        if status == StatusCode::CONTINUE {
            self.release_body(key);
        }
    }

    /// Handles the head of the final response, which the engine has written into `head`.
    pub(crate) fn on_response(&mut self, key: StreamIndex, end_stream: bool, now: Instant) {
        let len = self.section_frame_len();
        let Some(stream) = self.streams.get_mut(key.0).and_then(Option::as_mut) else {
            return;
        };
        stream.on_head(&mut self.head, len);
        if end_stream {
            stream.on_end(Ok(None));
        }
        self.release_body(key);
        self.note_transfer(key, now);
    }

    /// Sends the request body that was held back until the backend answers (H2O compatibility: as in H2O, any final response
    /// releases it, too).
    fn release_body(&mut self, key: StreamIndex) {
        let Some(stream) = self.stream(key) else {
            return;
        };
        if stream
            .upload
            .as_mut()
            .is_some_and(super::upload::Upload::release_body)
        {
            stream.deadline = None;
            self.engine.set_content(key, true);
        }
    }

    /// Handles content of a response, which is a whole DATA frame or a part of one.
    pub(crate) fn on_data(
        &mut self,
        key: StreamIndex,
        piece: &[u8],
        end_stream: bool,
        now: Instant,
    ) {
        let Some(stream) = self.stream(key) else {
            return;
        };
        if !piece.is_empty() {
            stream.note_received(E::frame_len(piece.len()));
            stream.on_content(piece);
        }
        if end_stream {
            self.end(key, Ok(None));
        }
        self.note_transfer(key, now);
    }

    /// Records that a tunnel has moved bytes, so its timeout starts anew. Does nothing for other streams.
    pub(super) fn note_transfer(&mut self, key: StreamIndex, now: Instant) {
        let until = now + self.settings.io_timeout;
        let Some(stream) = self.stream(key) else {
            return;
        };
        if stream.is_tunnel && stream.is_open() {
            stream.deadline = Some((until, StreamFailure::IoTimeout));
            self.note_deadline(until);
        }
    }

    /// Handles the reset of a stream. After a complete response, a reset only means that the backend does not want the rest of the
    /// request (RFC 9113 §8.1, RFC 9114 §4.1).
    pub(crate) fn on_reset(&mut self, key: StreamIndex, failure: StreamFailure) {
        let Some(stream) = self.stream(key) else {
            self.engine.release(key);
            return;
        };
        stream.upload = None;
        self.end(key, Err(failure));
    }

    /// Makes sure that deadlines are checked no later than at `until`.
    pub(super) fn note_deadline(&mut self, until: Instant) {
        self.earliest = Some(self.earliest.map_or(until, |earliest| earliest.min(until)));
    }
}
