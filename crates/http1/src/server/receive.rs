//! Receiving from the client: heads and bodies of requests, and bytes of tunnels.

use std::ops::Range;
use std::time::Instant;

use h2o_http::{BodyLength, Method, RequestHead};

use super::{Expectation, ReceiveState, RequestState, ServerConnection};
use crate::PeerError;
use crate::chunked::{Chunked, ChunkedReader};
use crate::field_lines::{HeadEnd, HeadScan, LineEnds};
use crate::request_head;

/// The result of one step of [`ServerConnection::receive`] over the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Nothing can be reported before more bytes arrive.
    NeedMore {
        /// How many bytes the caller removes from the start of the input.
        taken: usize,
    },
    /// The head of a request is complete and stored.
    Request {
        /// How many bytes the caller removes from the start of the input.
        taken: usize,
    },
    /// Content of the body, or bytes of a tunnel.
    Data {
        /// How many bytes the caller removes from the start of the input after using the content.
        taken: usize,
        /// The range of the content in the input.
        data: Range<usize>,
    },
    /// The body of the request is complete.
    BodyEnd {
        /// How many bytes the caller removes from the start of the input.
        taken: usize,
    },
    /// The client speaks HTTP/2: the caller passes the input to the engine of HTTP/2. No bytes were taken.
    Http2Preface,
}

impl ServerConnection {
    /// Makes one step over `input`, which is all bytes received and not yet removed. The caller removes `taken` bytes and
    /// calls again while a step makes progress.
    ///
    /// An incomplete head is not taken; the engine remembers how far it has scanned. While a response is in progress and
    /// the body is complete, nothing is taken: pipelined requests wait in the input.
    ///
    /// # Errors
    /// Returns the client's violation of the protocol. If no response has begun, [`ServerConnection::error_response`]
    /// writes the answer. The caller closes the connection once the output is written.
    pub fn receive(
        &mut self,
        input: &[u8],
        now: Instant,
        head: &mut RequestHead,
    ) -> Result<Received, PeerError> {
        let received = match &mut self.receiving {
            ReceiveState::Head(_) => self.recv_head(input, now, head),
            ReceiveState::Sized { .. } => Ok(self.recv_sized(input, now)),
            ReceiveState::Chunked(_) => self.recv_chunked(input, now),
            ReceiveState::Tunnel => Ok(recv_tunnel(input)),
            ReceiveState::Complete | ReceiveState::Failed => Ok(Received::NeedMore { taken: 0 }),
        };
        if received.is_err() {
            self.receiving = ReceiveState::Failed;
            self.request.is_persistent = false;
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
        let ReceiveState::Head(mut scan) = self.receiving else {
            return Ok(Received::NeedMore { taken: 0 });
        };
        if input.is_empty() {
            return Ok(Received::NeedMore { taken: 0 });
        }
        if self.first_byte_at.is_none() {
            self.first_byte_at = Some(now);
        }
        if self.requests == 0 && self.settings.upgrade_to_http2 && is_http2_preface(input) {
            return Ok(Received::Http2Preface);
        }
        let found = if scan.scanned() == 0 && self.is_surely_whole(input) {
            Ok(Some(input.len()))
        } else {
            self.find_head(input, &mut scan, now)
        };
        let found = match found {
            Ok(Some(end)) => self.on_head(&input[..end], now, head),
            Ok(None) => Ok(Received::NeedMore { taken: 0 }),
            Err(error) => Err(error),
        };
        // H2O compatibility: H2O sends no response to input that consists of a few line ends.
        let is_blank = input.len() <= 4 && input.iter().all(|byte| matches!(byte, b'\r' | b'\n'));
        found.map_err(|error| {
            if is_blank {
                PeerError::BlankInput
            } else if self.requests == 0
                && self.settings.upgrade_to_http2
                && is_broken_preface(input)
            {
                PeerError::NotHttp
            } else {
                error
            }
        })
    }

    /// Whether `input` certainly contains a whole request head: it ends with an empty line, as usual for a client that
    /// waits for the response. The end of the head then need not be searched for before parsing. Only used for short
    /// inputs, since all of the input is copied.
    fn is_surely_whole(&self, input: &[u8]) -> bool {
        const SHORT: usize = 4096;
        input.ends_with(b"\r\n\r\n")
            && (5..SHORT.min(self.settings.max_head)).contains(&input.len())
    }

    /// Searches the input for the end of the head; `None` if it has not arrived.
    fn find_head(
        &mut self,
        input: &[u8],
        scan: &mut HeadScan,
        now: Instant,
    ) -> Result<Option<usize>, PeerError> {
        let seen = scan.scanned();
        match scan.find_end(input, self.settings.max_head) {
            HeadEnd::TooLarge => Err(PeerError::HeadTooLarge),
            HeadEnd::Complete { end } => Ok(Some(end)),
            HeadEnd::Incomplete { lines } => {
                let checked = check_incomplete(scan, input, lines, self.settings.strict);
                self.receiving = ReceiveState::Head(*scan);
                if seen < input.len() {
                    self.timers.on_read(&self.settings, now);
                }
                checked.map(|()| None)
            }
        }
    }

    #[inline]
    fn on_head(
        &mut self,
        input: &[u8],
        now: Instant,
        head: &mut RequestHead,
    ) -> Result<Received, PeerError> {
        let parsed = request_head::parse(input, &self.settings, self.scheme, head);
        self.request.is_head = head.method == Method::Head;
        let options = parsed?;
        self.requests += 1;
        self.request = RequestState::new(head, options);
        self.receiving = match head.body {
            BodyLength::None | BodyLength::Known(0) => ReceiveState::Complete,
            BodyLength::Known(left) => ReceiveState::Sized { left },
            BodyLength::Unknown => ReceiveState::Chunked(ChunkedReader::new()),
            BodyLength::Tunnel => ReceiveState::Tunnel,
        };
        match self.receiving {
            ReceiveState::Sized { .. } | ReceiveState::Chunked(_) => {
                self.timers.await_body(&self.settings, now);
                if self.wants_continue() {
                    // The time limit of the body does not run while the client waits for 100 Continue.
                    self.timers.pause_body();
                }
            }
            ReceiveState::Complete
            | ReceiveState::Tunnel
            | ReceiveState::Head(_)
            | ReceiveState::Failed => {
                self.timers.stop_reading();
            }
        }
        Ok(Received::Request { taken: options.len })
    }

    fn recv_sized(&mut self, input: &[u8], now: Instant) -> Received {
        let ReceiveState::Sized { left } = &mut self.receiving else {
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
        let ReceiveState::Chunked(reader) = &mut self.receiving else {
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
                // H2O compatibility: H2O refuses a chunked body that reaches the limit, but a `Content-Length` only if it
                // exceeds the limit. The announced rest of the chunk counts, so that the body is refused before that rest
                // has arrived.
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

    /// Reports that the client has ended its direction of a tunnel. Outside of tunnels this call has no effect: there, the
    /// end of the client's input ends the connection.
    pub const fn recv_end(&mut self) {
        if matches!(self.receiving, ReceiveState::Tunnel) {
            self.receiving = ReceiveState::Complete;
        }
    }

    fn on_body_read(&mut self, now: Instant) {
        self.timers.resume_body(&self.settings, now);
        self.timers.on_read(&self.settings, now);
    }

    fn on_body_end(&mut self) {
        self.receiving = ReceiveState::Complete;
        self.request.expectation = Expectation::None;
        self.timers.stop_reading();
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

/// Whether the input starts with the HTTP/2 preface (RFC 9113 §3.4). The part of it that is compared is long enough to tell
/// it from any HTTP/1 request.
fn is_http2_preface(input: &[u8]) -> bool {
    input.starts_with(b"PRI * HTTP/2")
}

/// Whether the input is a damaged HTTP/2 preface: a first line of text without a version, which neither an HTTP/1 request
/// nor a TLS record begins with. A client that tried to speak HTTP/2 gets no answer in HTTP/1 (RFC 9113 §3.4).
fn is_broken_preface(input: &[u8]) -> bool {
    let line = input.split(|&byte| byte == b'\r').next();
    line.is_some_and(|line| {
        let mut words = line.split(|&byte| byte == b' ');
        let is_word = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_uppercase);
        line.len() < input.len() && words.clone().count() > 2 && words.all(is_word)
    })
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
        request_head::check_partial_line(input, ends)?;
    }
    Ok(())
}
