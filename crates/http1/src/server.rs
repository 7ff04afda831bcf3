//! The server role of one connection.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use h2o_http::{BodyLength, Headers, Method, RequestHead, Scheme, StatusCode, Version};

use crate::chunked::{Chunked, ChunkedReader};
use crate::encode::{self, BodyMode, BodyWriter, Finished};
use crate::field_lines::{HeadEnd, HeadScan, LineEnds};
use crate::request_head::{self, Wishes};
use crate::timers::{TimedOut, Timers};
use crate::{Answer, PeerError, Settings};

/// What one step over the input found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Nothing can be reported before more octets arrive.
    NeedMore {
        /// Octets the caller drops.
        taken: usize,
    },
    /// The head of a request is complete and filled in.
    Request {
        /// Octets the caller drops.
        taken: usize,
    },
    /// Content of the body.
    Data {
        /// Octets the caller drops, once it has used the content.
        taken: usize,
        /// Where in the input the content lies.
        data: Range<usize>,
    },
    /// The body is complete.
    BodyEnd {
        /// Octets the caller drops.
        taken: usize,
    },
    /// The client speaks HTTP/2: the octets belong to another engine. Nothing is taken.
    Http2Preface,
}

/// What follows a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// The connection waits for the next request; what the client has pipelined can be received.
    Request,
    /// The connection is to be closed.
    Close,
}

/// The head of a response to send.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    /// The status.
    pub status: StatusCode,
    /// The reason phrase; `None` for the registered one.
    pub reason: Option<&'a str>,
    /// The fields. Those that frame the message are the engine's and left out.
    pub headers: &'a Headers,
    /// Length of the content, if it is known.
    pub length: Option<u64>,
    /// Value of `Server`, if it is to be sent.
    pub server: Option<&'a [u8]>,
}

/// What we read next.
#[derive(Clone, Copy, Debug)]
enum Receiving {
    Head(HeadScan),
    /// A body with `Content-Length`.
    Sized {
        left: u64,
    },
    Chunked(ChunkedReader),
    /// The request is complete. What follows is pipelined and stays with the caller.
    Complete,
    /// Octets pass as they are.
    Tunnel,
    /// The client broke the protocol; nothing it sends is looked at.
    Failed,
}

/// How far the response is.
#[derive(Clone, Copy, Debug)]
enum Sending {
    /// No final response yet.
    Awaited,
    Body(BodyWriter),
    Tunnel,
    Complete,
}

/// `Expect: 100-continue` (RFC 9110 §10.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expectation {
    None,
    /// The client holds its body back until it is told to go on.
    Waiting,
}

/// What the request means for its response and for the connection.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    is_http10: bool,
    /// HEAD: the response has no content whatever its fields say.
    is_head: bool,
    is_connect: bool,
    offers_upgrade: bool,
    is_persistent: bool,
    expectation: Expectation,
}

/// The server role of one connection: octets and time in, events and octets out.
///
/// The caller owns the buffers. It hands over all octets that it has received and not yet dropped, drops
/// what a step took, and steps again while that makes progress.
#[derive(Debug)]
pub struct ServerConnection {
    settings: Arc<Settings>,
    receiving: Receiving,
    sending: Sending,
    exchange: Exchange,
    timers: Timers,
    first_octet_at: Option<Instant>,
    body_received: u64,
    requests: u64,
    scheme: Scheme,
    is_shutting_down: bool,
}

impl Exchange {
    const NONE: Self = Self {
        is_http10: false,
        is_head: false,
        is_connect: false,
        offers_upgrade: false,
        is_persistent: true,
        expectation: Expectation::None,
    };

    fn new(head: &RequestHead, wishes: Wishes) -> Self {
        Self {
            is_http10: head.version == Version::Http10,
            is_head: head.method == Method::Head,
            is_connect: head.body == BodyLength::Tunnel,
            offers_upgrade: !head.upgrade().is_empty(),
            is_persistent: wishes.is_persistent,
            expectation: if wishes.expects_continue {
                Expectation::Waiting
            } else {
                Expectation::None
            },
        }
    }
}

impl ServerConnection {
    /// A connection that was accepted at `now` and waits for its first request.
    #[must_use]
    pub fn new(settings: Arc<Settings>, scheme: Scheme, now: Instant) -> Self {
        let mut timers = Timers::new();
        timers.await_head(&settings, now);
        Self {
            settings,
            receiving: Receiving::Head(HeadScan::default()),
            sending: Sending::Awaited,
            exchange: Exchange::NONE,
            timers,
            first_octet_at: None,
            body_received: 0,
            requests: 0,
            scheme,
            is_shutting_down: false,
        }
    }

    /// One step over `input`, which is all octets received and not yet taken. The caller drops `taken`
    /// octets and calls again while progress is made.
    ///
    /// An incomplete head is not taken; the engine remembers how far it has looked. While a response is in
    /// progress and the body is complete, nothing is taken: pipelined requests wait.
    ///
    /// # Errors
    /// What the client did wrong. If no response has begun, [`ServerConnection::error_response`] says so;
    /// the connection is to be closed once what was begun is written.
    pub fn receive(
        &mut self,
        input: &[u8],
        now: Instant,
        head: &mut RequestHead,
    ) -> Result<Received, PeerError> {
        let received = match &mut self.receiving {
            Receiving::Head(_) => self.recv_head(input, now, head),
            Receiving::Sized { .. } => Ok(self.recv_sized(input, now)),
            Receiving::Chunked(_) => self.recv_chunked(input, now),
            Receiving::Tunnel => Ok(recv_tunnel(input)),
            Receiving::Complete | Receiving::Failed => Ok(Received::NeedMore { taken: 0 }),
        };
        if received.is_err() {
            self.receiving = Receiving::Failed;
            self.exchange.is_persistent = false;
            self.timers.stop_reading();
        }
        received
    }

    fn recv_head(
        &mut self,
        input: &[u8],
        now: Instant,
        head: &mut RequestHead,
    ) -> Result<Received, PeerError> {
        let Receiving::Head(mut scan) = self.receiving else {
            return Ok(Received::NeedMore { taken: 0 });
        };
        if input.is_empty() {
            return Ok(Received::NeedMore { taken: 0 });
        }
        if self.first_octet_at.is_none() {
            self.first_octet_at = Some(now);
        }
        if self.requests == 0 && self.settings.upgrade_to_http2 && is_http2_preface(input) {
            return Ok(Received::Http2Preface);
        }
        let seen = scan.scanned();
        let found = match scan.find_end(input, self.settings.max_head) {
            HeadEnd::TooLarge => Err(PeerError::HeadTooLarge),
            HeadEnd::Complete { end } => self.on_head(&input[..end], now, head),
            HeadEnd::Incomplete { lines } => {
                let checked = check_incomplete(&mut scan, input, lines, self.settings.strict);
                self.receiving = Receiving::Head(scan);
                if seen < input.len() {
                    self.timers.on_read(&self.settings, now);
                }
                checked.map(|()| Received::NeedMore { taken: 0 })
            }
        };
        // H2O compatibility: a few stray line ends are not worth an answer.
        let is_blank = input.len() <= 4 && input.iter().all(|octet| matches!(octet, b'\r' | b'\n'));
        found.map_err(|error| {
            if is_blank {
                PeerError::BlankInput
            } else {
                error
            }
        })
    }

    fn on_head(
        &mut self,
        input: &[u8],
        now: Instant,
        head: &mut RequestHead,
    ) -> Result<Received, PeerError> {
        let parsed = request_head::parse(input, &self.settings, self.scheme, head);
        self.exchange.is_head = head.method == Method::Head;
        let wishes = parsed?;
        self.requests += 1;
        self.exchange = Exchange::new(head, wishes);
        self.receiving = match head.body {
            BodyLength::None | BodyLength::Known(0) => Receiving::Complete,
            BodyLength::Known(left) => Receiving::Sized { left },
            BodyLength::Unknown => Receiving::Chunked(ChunkedReader::new()),
            BodyLength::Tunnel => Receiving::Tunnel,
        };
        match self.receiving {
            Receiving::Sized { .. } | Receiving::Chunked(_) => {
                self.timers.await_body(&self.settings, now);
                if self.wants_continue() {
                    // The client waits for us.
                    self.timers.pause_body(now);
                }
            }
            Receiving::Complete | Receiving::Tunnel | Receiving::Head(_) | Receiving::Failed => {
                self.timers.stop_reading();
            }
        }
        Ok(Received::Request { taken: input.len() })
    }

    fn recv_sized(&mut self, input: &[u8], now: Instant) -> Received {
        let Receiving::Sized { left } = &mut self.receiving else {
            return Received::NeedMore { taken: 0 };
        };
        if *left == 0 {
            self.on_body_end();
            return Received::BodyEnd { taken: 0 };
        }
        let len = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
        if len == 0 {
            return Received::NeedMore { taken: 0 };
        }
        *left -= len as u64;
        self.body_received += len as u64;
        self.on_body_read(now);
        Received::Data {
            taken: len,
            data: 0..len,
        }
    }

    fn recv_chunked(&mut self, input: &[u8], now: Instant) -> Result<Received, PeerError> {
        let Receiving::Chunked(reader) = &mut self.receiving else {
            return Ok(Received::NeedMore { taken: 0 });
        };
        let found = reader.read(input, self.body_received)?;
        let data_left = reader.data_left();
        if !input.is_empty() {
            self.on_body_read(now);
        }
        match found {
            Chunked::NeedMore => Ok(Received::NeedMore { taken: input.len() }),
            Chunked::End { taken } => {
                self.on_body_end();
                Ok(Received::BodyEnd { taken })
            }
            Chunked::Data { skip, len } => {
                self.body_received = self.body_received.saturating_add(len as u64);
                // H2O compatibility: "reaches", where Content-Length has to exceed. The announced rest of
                // the chunk counts, so that the refusal does not wait for it.
                let announced = self.body_received.saturating_add(data_left);
                if announced >= self.settings.limit_request_body {
                    return Err(PeerError::BodyTooLarge);
                }
                Ok(Received::Data {
                    taken: skip + len,
                    data: skip..skip + len,
                })
            }
        }
    }

    fn on_body_read(&mut self, now: Instant) {
        self.timers.resume_body(&self.settings, now);
        self.timers.on_read(&self.settings, now);
    }

    fn on_body_end(&mut self) {
        self.receiving = Receiving::Complete;
        self.exchange.expectation = Expectation::None;
        self.timers.stop_reading();
    }

    /// True if the client waits for `100 Continue` before it sends its body. Either
    /// [`ServerConnection::send_continue`] or a final response answers that.
    #[must_use]
    pub const fn wants_continue(&self) -> bool {
        matches!(self.exchange.expectation, Expectation::Waiting)
    }

    /// Writes `100 Continue`, to HTTP/1.0 as well (H2O compatibility: whoever asks is answered), unless
    /// the client does not wait for it.
    pub fn send_continue(&mut self, out: &mut Vec<u8>, now: Instant) {
        if self.wants_continue() && matches!(self.sending, Sending::Awaited) {
            out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            self.exchange.expectation = Expectation::None;
            self.timers.resume_body(&self.settings, now);
        }
    }

    /// Writes an interim response, except to an HTTP/1.0 client (RFC 9110 §15.2) or once the final
    /// response has begun.
    pub fn send_informational(&mut self, status: StatusCode, headers: &Headers, out: &mut Vec<u8>) {
        let is_due = matches!(self.sending, Sending::Awaited) && !self.exchange.is_http10;
        if is_due && status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
            encode::status_line(out, status, None);
            encode::fields(out, headers);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Writes the head of the final response and says how its content is delimited.
    ///
    /// 101 to a request that offered an upgrade and 2xx to CONNECT make the connection a tunnel.
    pub fn respond(
        &mut self,
        response: &ResponseHead<'_>,
        out: &mut Vec<u8>,
        now: Instant,
    ) -> BodyMode {
        debug_assert!(
            matches!(self.sending, Sending::Awaited),
            "a second response"
        );
        if self.wants_continue() {
            // The client may now send its body or not; nobody can tell what comes next (RFC 9110 §10.1.1).
            self.exchange.is_persistent = false;
            self.exchange.expectation = Expectation::None;
            self.timers.resume_body(&self.settings, now);
        }
        let is_upgrade = response.status == StatusCode::SWITCHING_PROTOCOLS;
        if is_upgrade && self.exchange.offers_upgrade || self.is_connect_success(response.status) {
            return self.respond_tunnel(response, is_upgrade, out);
        }
        let mode = self.body_mode(response);
        if mode == BodyMode::UntilClose || is_upgrade || self.is_shutting_down {
            self.exchange.is_persistent = false;
        }
        out.reserve(encode::HEAD_ROOM);
        encode::status_line(out, response.status, response.reason);
        self.write_connection(out);
        if let Some(length) = response.length
            && !response.status.is_informational()
            && response.status != StatusCode::NO_CONTENT
        {
            encode::content_length(out, length);
        }
        write_fields(response, out);
        out.extend_from_slice(match mode {
            BodyMode::Chunked => b"transfer-encoding: chunked\r\n\r\n",
            BodyMode::None | BodyMode::Identity(_) | BodyMode::UntilClose => b"\r\n",
        });
        self.sending = match BodyWriter::new(mode) {
            BodyWriter::Done => Sending::Complete,
            writer => Sending::Body(writer),
        };
        if matches!(self.receiving, Receiving::Tunnel) {
            // A refused CONNECT: what the client sends ahead is not for us.
            self.receiving = Receiving::Complete;
        }
        mode
    }

    fn is_connect_success(&self, status: StatusCode) -> bool {
        self.exchange.is_connect && (200..300).contains(&status.as_u16())
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
        self.exchange.is_persistent = false;
        self.upgrade();
        BodyMode::UntilClose
    }

    /// Makes the connection a tunnel: octets pass raw both ways, and nothing is timed.
    /// [`ServerConnection::respond`] does so by itself where HTTP/1 says so.
    pub const fn upgrade(&mut self) {
        self.exchange.is_persistent = false;
        self.receiving = Receiving::Tunnel;
        self.sending = Sending::Tunnel;
        self.timers.stop();
    }

    fn body_mode(&self, response: &ResponseHead<'_>) -> BodyMode {
        if self.exchange.is_head || response.status.is_bodyless() {
            return BodyMode::None;
        }
        match response.length {
            Some(length) => BodyMode::Identity(length),
            None if self.exchange.is_http10 => BodyMode::UntilClose,
            None => BodyMode::Chunked,
        }
    }

    fn write_connection(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(if self.exchange.is_persistent {
            b"Connection: keep-alive\r\n"
        } else {
            b"Connection: close\r\n"
        });
    }

    /// Writes the answer to a [`PeerError`], if there is one and no response has begun. The response is
    /// complete and the connection closes after it.
    pub fn error_response(&mut self, answer: Answer, server: Option<&[u8]>, out: &mut Vec<u8>) {
        self.exchange.is_persistent = false;
        self.timers.stop_reading();
        if !matches!(self.sending, Sending::Awaited) {
            return;
        }
        self.receiving = Receiving::Failed;
        self.sending = Sending::Complete;
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
            out.extend_from_slice(b"content-type: text/plain; charset=utf-8\r\n\r\n");
            if !self.exchange.is_head {
                out.extend_from_slice(body.as_bytes());
            }
        }
    }

    /// Writes content. What exceeds the announced length, and any content where none is allowed, is left
    /// out.
    pub fn send_data(&mut self, data: &[u8], out: &mut Vec<u8>) {
        match &mut self.sending {
            Sending::Body(writer) => writer.send_data(data, out),
            Sending::Tunnel => out.extend_from_slice(data),
            Sending::Awaited | Sending::Complete => {}
        }
    }

    /// Writes what comes before `len` octets of content that the caller sends by other means, and says how
    /// many of them to send: less than `len` only where [`ServerConnection::send_data`] would leave some out.
    #[must_use]
    pub fn begin_data(&mut self, len: usize, out: &mut Vec<u8>) -> usize {
        match &mut self.sending {
            Sending::Body(writer) => writer.begin_data(len, out),
            Sending::Tunnel => len,
            Sending::Awaited | Sending::Complete => 0,
        }
    }

    /// Writes what comes after the content announced by [`ServerConnection::begin_data`].
    pub fn end_data(&mut self, out: &mut Vec<u8>) {
        if let Sending::Body(writer) = &mut self.sending {
            writer.end_data(out);
        }
    }

    /// Ends the response. If it is shorter than announced the connection closes.
    pub fn finish(&mut self, trailers: Option<&Headers>, out: &mut Vec<u8>) {
        match &mut self.sending {
            Sending::Body(writer) => match writer.finish(trailers, out) {
                Finished::Complete => {}
                Finished::Short => self.exchange.is_persistent = false,
            },
            Sending::Awaited => self.exchange.is_persistent = false,
            Sending::Tunnel | Sending::Complete => {}
        }
        self.sending = Sending::Complete;
    }

    /// Ends the response midway, so that the client can tell; the connection closes.
    pub fn abort(&mut self, out: &mut Vec<u8>) {
        if let Sending::Body(writer) = &mut self.sending {
            writer.abort(out);
        }
        self.exchange.is_persistent = false;
        self.sending = Sending::Complete;
    }

    /// True once the response is written to `out` as a whole, or given up.
    #[must_use]
    pub const fn is_response_done(&self) -> bool {
        matches!(self.sending, Sending::Complete)
    }

    /// True once nothing more of the request is to come: its end was received or will not be.
    #[must_use]
    pub const fn is_body_done(&self) -> bool {
        matches!(self.receiving, Receiving::Complete | Receiving::Failed)
    }

    /// True while octets pass raw both ways.
    #[must_use]
    pub const fn is_tunnel(&self) -> bool {
        matches!(self.sending, Sending::Tunnel)
    }

    /// What follows, once the response is written and the body read. A connection whose handler does not
    /// want the rest of the body is not worth reading on: it closes.
    pub fn next(&mut self, now: Instant) -> Next {
        let is_over = matches!(
            (&self.sending, &self.receiving),
            (Sending::Complete, Receiving::Complete)
        );
        if !is_over || !self.exchange.is_persistent || self.is_shutting_down {
            self.timers.stop_reading();
            return Next::Close;
        }
        self.receiving = Receiving::Head(HeadScan::default());
        self.sending = Sending::Awaited;
        self.exchange = Exchange::NONE;
        self.first_octet_at = None;
        self.body_received = 0;
        self.timers.await_head(&self.settings, now);
        Next::Request
    }

    /// Tells that `written` octets of our output have left since the last call, and whether more is
    /// `pending`. Call it after every attempt to write, and when the caller finds that the kernel's queue
    /// has shrunk: what counts as progress decides whether the client is too slow.
    pub fn on_written(&mut self, written: usize, pending: bool, now: Instant) {
        if !self.is_tunnel() {
            self.timers
                .on_written(written, pending, &self.settings, now);
        }
    }

    /// The caller stops reading the body because nobody wants it for now: the client is not timed.
    pub fn pause_reading(&mut self, now: Instant) {
        self.timers.pause_body(now);
    }

    /// The caller reads on.
    pub fn resume_reading(&mut self, now: Instant) {
        if !self.wants_continue() {
            self.timers.resume_body(&self.settings, now);
        }
    }

    /// When [`ServerConnection::on_timeout`] is to be called next, if nothing happens before.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next(&self.settings, self.body_received)
    }

    /// The limit that has passed, if one has: the connection is to be closed without an answer.
    #[must_use]
    pub fn on_timeout(&mut self, now: Instant) -> Option<TimedOut> {
        let first_request = self.requests == 0;
        let passed = self
            .timers
            .passed(&self.settings, self.body_received, first_request, now);
        if passed.is_some() {
            self.exchange.is_persistent = false;
            self.timers.stop();
        }
        passed
    }

    /// Responses from here on say `Connection: close`, and no further request is taken. An idle
    /// connection can be closed at once.
    pub const fn shut_down(&mut self) {
        self.is_shutting_down = true;
    }

    /// True while no octet of a next request has arrived.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        matches!(self.receiving, Receiving::Head(_)) && self.first_octet_at.is_none()
    }

    /// Number of the current request, from 1; 0 before the first head is complete.
    #[must_use]
    pub const fn request_index(&self) -> u64 {
        self.requests
    }

    /// When the first octet of the current request was received.
    #[must_use]
    pub const fn first_octet_at(&self) -> Option<Instant> {
        self.first_octet_at
    }

    /// Octets of content received of the current request.
    #[must_use]
    pub const fn body_received(&self) -> u64 {
        self.body_received
    }
}

fn recv_tunnel(input: &[u8]) -> Received {
    match input.len() {
        0 => Received::NeedMore { taken: 0 },
        len => Received::Data {
            taken: len,
            data: 0..len,
        },
    }
}

/// RFC 9113 §3.4; as much of it as tells it from any HTTP/1 request.
fn is_http2_preface(input: &[u8]) -> bool {
    input.starts_with(b"PRI * HTTP/2")
}

fn check_incomplete(
    scan: &mut HeadScan,
    input: &[u8],
    lines: usize,
    strict: bool,
) -> Result<(), PeerError> {
    let ends = LineEnds::new(strict);
    scan.check_lines(&input[..lines], ends, |lines| {
        request_head::check_first_line(lines, ends)
    })?;
    if scan.is_in_first_line() {
        request_head::check_partial_line(input)?;
    }
    Ok(())
}

fn write_server(server: Option<&[u8]>, out: &mut Vec<u8>) {
    if let Some(server) = server {
        out.extend_from_slice(b"Server: ");
        encode::text(out, server);
        out.extend_from_slice(b"\r\n");
    }
}

fn write_fields(response: &ResponseHead<'_>, out: &mut Vec<u8>) {
    write_server(response.server, out);
    encode::fields(out, response.headers);
}
