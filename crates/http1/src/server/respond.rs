//! Sending to the client: interim and final responses, and their content.

use std::time::Instant;

use h2o_http::{Headers, ResponseHead, StatusCode};

use super::{Expectation, ReceiveState, SendState, ServerConnection};
use crate::Answer;
use crate::encode::{self, BodyMode, BodyOutcome, BodyWriter};

impl ServerConnection {
    /// Whether the client waits for `100 Continue` before it sends the request's body. Either
    /// [`ServerConnection::send_continue`] or a final response ends that wait.
    #[must_use]
    pub const fn wants_continue(&self) -> bool {
        matches!(
            (&self.request.expectation, &self.sending),
            (Expectation::Waiting, SendState::Awaited)
        )
    }

    /// Whether the final response has not begun.
    #[must_use]
    pub const fn awaits_response(&self) -> bool {
        matches!(self.sending, SendState::Awaited)
    }

    /// Writes `100 Continue` if the client waits for it. H2O compatibility: H2O sends it to HTTP/1.0 clients, too.
    pub fn send_continue(&mut self, out: &mut Vec<u8>, now: Instant) {
        if self.wants_continue() {
            out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            self.request.expectation = Expectation::None;
            self.timers.resume_body(&self.settings, now);
        }
    }

    /// Writes an interim response. Does nothing for an HTTP/1.0 client (RFC 9110 §15.2) or once the final response has
    /// begun.
    pub fn send_informational(&mut self, status: StatusCode, headers: &Headers, out: &mut Vec<u8>) {
        let is_due = matches!(self.sending, SendState::Awaited) && !self.request.is_http10;
        if is_due && status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
            encode::status_line(out, status, None);
            encode::fields(out, headers);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Writes the head of the final response. Returns how its content is delimited. A second response to the same request
    /// is not written.
    ///
    /// The connection becomes a tunnel if the status is 101 and the request offered an upgrade, or 2xx and the method is
    /// CONNECT.
    pub fn respond(
        &mut self,
        response: &ResponseHead<'_>,
        out: &mut Vec<u8>,
        now: Instant,
    ) -> BodyMode {
        if !matches!(self.sending, SendState::Awaited) {
            return BodyMode::None;
        }
        if self.wants_continue() {
            // The client may still send the body that it held back, or skip it (RFC 9110 §10.1.1). The next bytes could be
            // either that body or another request, so the connection closes.
            self.request.is_persistent = false;
            self.request.expectation = Expectation::None;
            self.timers.resume_body(&self.settings, now);
        }
        let is_upgrade = response.status == StatusCode::SWITCHING_PROTOCOLS;
        if is_upgrade && self.request.offers_upgrade || self.is_connect_success(response.status) {
            return self.respond_tunnel(response, is_upgrade, out);
        }
        let mode = self.body_mode(response);
        // After a 1xx as the final response the client would wait for another response. Closing the connection ends that
        // wait.
        let is_final = !response.status.is_informational();
        if mode == BodyMode::UntilClose || !is_final || self.is_shutting_down {
            self.request.is_persistent = false;
        }
        out.reserve(encode::HEAD_ROOM);
        let length = response.length.filter(|_| {
            !response.status.is_informational() && response.status != StatusCode::NO_CONTENT
        });
        match (response.status, response.reason, length) {
            (StatusCode::OK, None, Some(length)) if self.request.is_persistent => {
                // The start of the most frequent kind of response is a constant, which is written in one copy.
                out.extend_from_slice(
                    b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: ",
                );
                encode::decimal_line(out, length);
            }
            (status, reason, length) => {
                encode::status_line(out, status, reason);
                self.write_connection(out);
                if let Some(length) = length {
                    encode::content_length(out, length);
                }
            }
        }
        write_fields(response, out);
        out.extend_from_slice(match mode {
            BodyMode::Chunked => b"transfer-encoding: chunked\r\n\r\n",
            BodyMode::None | BodyMode::Identity(_) | BodyMode::UntilClose => b"\r\n",
        });
        self.sending = match BodyWriter::new(mode) {
            BodyWriter::Done => SendState::Complete,
            writer => SendState::Body(writer),
        };
        if matches!(self.receiving, ReceiveState::Tunnel) {
            // The CONNECT was refused. Bytes that the client sent after it were meant for the tunnel and must not be read
            // as a request, so the connection closes.
            self.receiving = ReceiveState::Complete;
        }
        mode
    }

    fn is_connect_success(&self, status: StatusCode) -> bool {
        self.request.is_connect && (200..300).contains(&status.as_u16())
    }

    fn respond_tunnel(
        &mut self,
        response: &ResponseHead<'_>,
        is_upgrade: bool,
        out: &mut Vec<u8>,
    ) -> BodyMode {
        encode::status_line(out, response.status, response.reason);
        out.extend_from_slice(if is_upgrade {
            b"Connection: upgrade\r\n"
        } else {
            b"Connection: close\r\n"
        });
        write_fields(response, out);
        out.extend_from_slice(b"\r\n");
        self.request.is_persistent = false;
        self.upgrade();
        BodyMode::UntilClose
    }

    /// Makes the connection a tunnel: bytes are passed through in both directions, and no time limit applies.
    /// [`ServerConnection::respond`] calls this when the response opens a tunnel in HTTP/1.
    pub const fn upgrade(&mut self) {
        self.request.is_persistent = false;
        self.receiving = ReceiveState::Tunnel;
        self.sending = SendState::Tunnel;
        self.timers.stop();
    }

    fn body_mode(&self, response: &ResponseHead<'_>) -> BodyMode {
        if self.request.is_head || response.status.is_bodyless() {
            return BodyMode::None;
        }
        match response.length {
            Some(length) => BodyMode::Identity(length),
            None if self.request.is_http10 => BodyMode::UntilClose,
            None => BodyMode::Chunked,
        }
    }

    fn write_connection(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(if self.request.is_persistent {
            b"Connection: keep-alive\r\n"
        } else {
            b"Connection: close\r\n"
        });
    }

    /// Writes the answer to a [`crate::PeerError`], if the error has one and no response has begun, with these values of
    /// `server` and `date`. The response is complete thereby, and the connection closes after it.
    pub fn error_response(
        &mut self,
        answer: Answer,
        server: Option<&[u8]>,
        date: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) {
        self.request.is_persistent = false;
        if !matches!(self.sending, SendState::Awaited) {
            return;
        }
        self.timers.stop_reading();
        self.receiving = ReceiveState::Failed;
        self.sending = SendState::Complete;
        if let Answer::Respond {
            status,
            reason,
            body,
        } = answer
        {
            encode::status_line(out, status, Some(reason));
            self.write_connection(out);
            encode::content_length(out, body.len() as u64);
            write_server(server, out);
            if let Some(date) = date {
                out.extend_from_slice(b"date: ");
                encode::text(out, date);
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(b"content-type: text/plain; charset=utf-8\r\n\r\n");
            if !self.request.is_head {
                out.extend_from_slice(body.as_bytes());
            }
        }
    }

    /// Writes content of the response. Bytes beyond the announced length are not sent, and neither is any content if none
    /// is allowed.
    pub fn send_data(&mut self, data: &[u8], out: &mut Vec<u8>) {
        match &mut self.sending {
            SendState::Body(writer) => writer.send_data(data, out),
            SendState::Tunnel => out.extend_from_slice(data),
            SendState::Awaited | SendState::Complete => {}
        }
    }

    /// Writes the framing before `len` bytes of content that the caller sends itself. Returns how many of these bytes to
    /// send: fewer than `len` only if [`ServerConnection::send_data`] would send fewer.
    #[must_use]
    pub fn begin_data(&mut self, len: usize, out: &mut Vec<u8>) -> usize {
        match &mut self.sending {
            SendState::Body(writer) => writer.begin_data(len, out),
            SendState::Tunnel => len,
            SendState::Awaited | SendState::Complete => 0,
        }
    }

    /// Writes the framing after the content announced by [`ServerConnection::begin_data`].
    pub fn end_data(&mut self, out: &mut Vec<u8>) {
        if let SendState::Body(writer) = &mut self.sending {
            writer.end_data(out);
        }
    }

    /// Ends the response. If its content is shorter than announced, the connection closes.
    pub fn finish(&mut self, trailers: Option<&Headers>, out: &mut Vec<u8>) {
        match &mut self.sending {
            SendState::Body(writer) => match writer.finish(trailers, out) {
                BodyOutcome::Complete => {}
                BodyOutcome::Short => self.request.is_persistent = false,
            },
            SendState::Awaited => self.request.is_persistent = false,
            SendState::Tunnel | SendState::Complete => {}
        }
        self.sending = SendState::Complete;
    }

    /// Aborts the response in such a way that the client notices; the connection closes.
    pub fn abort(&mut self, out: &mut Vec<u8>) {
        if let SendState::Body(writer) = &mut self.sending {
            writer.abort(out);
        }
        self.request.is_persistent = false;
        self.sending = SendState::Complete;
    }
}

#[inline]
fn write_server(server: Option<&[u8]>, out: &mut Vec<u8>) {
    if let Some(server) = server {
        out.extend_from_slice(b"Server: ");
        encode::text(out, server);
        out.extend_from_slice(b"\r\n");
    }
}

#[inline]
fn write_fields(response: &ResponseHead<'_>, out: &mut Vec<u8>) {
    write_server(response.server, out);
    encode::fields(out, response.headers);
}
