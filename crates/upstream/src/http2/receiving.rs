//! Input from the backend: heads, body data and ends of responses.

use std::time::Instant;

use h2o_http::StatusCode;
use h2o_http2::{ClientReceived, PeerError, StreamKey};

use super::connection::State;
use super::stream::StreamFailure;

impl State {
    /// Processes all complete frames of the input. Returns how many bytes they had.
    ///
    /// # Errors
    /// The backend's violation; GOAWAY is in the output.
    pub(super) fn receive(&mut self, input: &[u8], now: Instant) -> Result<usize, PeerError> {
        let had_settings = self.engine.has_settings();
        let mut at = 0;
        loop {
            let rest = &input[at..];
            let step = self
                .engine
                .receive(rest, &mut self.head, now, &mut self.out)?;
            // Backends have no abuse budget: reading limits what they can cost.
            self.engine.take_costs();
            at += step.taken;
            match step.received {
                ClientReceived::NeedMore => break,
                ClientReceived::Charged
                | ClientReceived::GoAway { .. }
                | ClientReceived::Pong { .. } => {}
                ClientReceived::Informational { stream } => self.on_informational(stream, now),
                ClientReceived::Response { stream, end_stream } => {
                    self.on_response(stream, end_stream, now);
                }
                ClientReceived::Data {
                    stream,
                    data,
                    end_stream,
                } => self.on_data(stream, &rest[data], end_stream, now),
                ClientReceived::Trailers { stream } => {
                    let trailers = std::mem::take(&mut self.head.headers);
                    self.note_trailers(stream);
                    self.end(stream, Ok((!trailers.is_empty()).then_some(trailers)));
                }
                ClientReceived::Reset {
                    stream,
                    code,
                    by_us,
                } => self.on_reset(stream, StreamFailure::of_reset(code, by_us)),
                ClientReceived::Refused { stream } => {
                    self.on_reset(stream, StreamFailure::Refused);
                }
            }
        }
        if !had_settings && self.engine.has_settings() {
            for waker in self.waiting.drain(..) {
                waker.wake();
            }
        }
        Ok(at)
    }

    fn note_trailers(&mut self, key: StreamKey) {
        let bytes = self.head.section_len as usize;
        if let Some(stream) = self.stream(key) {
            stream.note_received(bytes);
        }
    }

    fn on_informational(&mut self, key: StreamKey, now: Instant) {
        let status = self.head.status;
        let headers = std::mem::take(&mut self.head.headers);
        let until = now + self.settings.io_timeout;
        let section_len = self.head.section_len as usize;
        let Some(stream) = self.stream(key) else {
            return;
        };
        stream.note_section(section_len);
        stream.on_informational(status, headers);
        if stream.deadline.is_some() {
            // Progress: from here on `io_timeout` applies.
            stream.deadline = Some((until, StreamFailure::IoTimeout));
            self.note_deadline(until);
        }
        if status == StatusCode::CONTINUE {
            self.release_body(key);
        }
    }

    fn on_response(&mut self, key: StreamKey, end_stream: bool, now: Instant) {
        let Some(stream) = self.streams.get_mut(key.index()).and_then(Option::as_mut) else {
            return;
        };
        stream.on_head(&mut self.head);
        if end_stream {
            stream.on_end(Ok(None));
        }
        self.release_body(key);
        self.note_transfer(key, now);
    }

    /// Sends the held-back body (H2O compatibility: as in H2O, any response releases it).
    fn release_body(&mut self, key: StreamKey) {
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

    fn on_data(&mut self, key: StreamKey, piece: &[u8], end_stream: bool, now: Instant) {
        let Some(stream) = self.stream(key) else {
            return;
        };
        if !piece.is_empty() {
            stream.on_content(piece);
        }
        if end_stream {
            self.end(key, Ok(None));
        }
        self.note_transfer(key, now);
    }

    /// Records that a tunnel moved bytes.
    pub(super) fn note_transfer(&mut self, key: StreamKey, now: Instant) {
        let until = now + self.settings.io_timeout;
        let Some(stream) = self.stream(key) else {
            return;
        };
        if stream.is_tunnel && stream.is_open() {
            stream.deadline = Some((until, StreamFailure::IoTimeout));
            self.note_deadline(until);
        }
    }

    /// The stream was reset. After a complete response that only means that the backend does not want the rest of the
    /// request (RFC 9113 §8.1).
    fn on_reset(&mut self, key: StreamKey, failure: StreamFailure) {
        let Some(stream) = self.stream(key) else {
            self.engine.release(key, &mut self.out);
            return;
        };
        stream.upload = None;
        self.end(key, Err(failure));
    }

    /// Lowers the time of the next check to `until`.
    pub(super) fn note_deadline(&mut self, until: Instant) {
        self.earliest = Some(self.earliest.map_or(until, |earliest| earliest.min(until)));
    }
}
