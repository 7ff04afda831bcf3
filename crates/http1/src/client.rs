//! The client role of one HTTP/1 connection: requests to a backend.

mod receive;
mod request;

use std::sync::Arc;

use h2o_http::{BodyLength, Headers, Method};

pub use receive::ClientReceived;
pub use request::ClientRequest;

use crate::chunked::ChunkedReader;
use crate::encode::{BodyMode, BodyOutcome, BodyWriter};
use crate::field_lines::HeadScan;
use crate::response_head::RequestKind;
use crate::{ClientSettings, UpstreamError};

/// The part of a response, or the tunnel, that ended when the server closed the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedPart {
    /// Nothing: no request was outstanding, or its response was complete.
    Nothing,
    /// The content of the response, which is complete thereby.
    Body,
    /// The tunnel that the connection had become.
    Tunnel,
}

/// The part of a response that the server has to send next. Callers choose the time limit for the server by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwaitedPart {
    /// No part: no request is outstanding, or the connection is broken.
    Nothing,
    /// The head of a response, interim or final.
    Head,
    /// Content of the response.
    Body,
    /// Bytes of the tunnel.
    Tunnel,
}

/// What the connection expects to receive from the server.
#[derive(Clone, Copy, Debug)]
enum ReceiveState {
    /// No request is outstanding.
    Idle,
    Head(HeadScan),
    Sized {
        left: u64,
    },
    Chunked(ChunkedReader),
    UntilClose,
    Tunnel,
    /// The server violated the protocol; the rest of its input is ignored.
    Failed,
}

/// How far the request has been written.
#[derive(Clone, Copy, Debug)]
enum SendState {
    Body(BodyWriter),
    Tunnel,
    Complete,
}

/// The client role of one connection: bytes in, events and bytes out.
///
/// One request is outstanding at a time. The caller owns the buffers and passes them as for [`crate::ServerConnection`].
#[derive(Debug)]
pub struct ClientConnection {
    settings: Arc<ClientSettings>,
    receiving: ReceiveState,
    sending: SendState,
    kind: RequestKind,
    interims: u32,
    /// Number of content bytes of the current response received so far.
    received: u64,
    is_persistent: bool,
    requests: u64,
}

impl ClientConnection {
    /// The engine for a connection that was just established.
    #[must_use]
    pub const fn new(settings: Arc<ClientSettings>) -> Self {
        Self {
            settings,
            receiving: ReceiveState::Idle,
            sending: SendState::Complete,
            kind: RequestKind {
                is_head: false,
                is_connect: false,
                offers_upgrade: false,
            },
            interims: 0,
            received: 0,
            is_persistent: true,
            requests: 0,
        }
    }

    /// Writes the head of a request. Returns how the request's content is delimited. The connection must be new or
    /// [reusable](ClientConnection::is_reusable).
    pub fn send_request(&mut self, request: &ClientRequest<'_>, out: &mut Vec<u8>) -> BodyMode {
        assert!(
            matches!(
                (&self.receiving, self.is_persistent),
                (ReceiveState::Idle, true)
            ),
            "one request is outstanding at a time"
        );
        let mode = match request.body {
            BodyLength::None | BodyLength::Tunnel => BodyMode::None,
            BodyLength::Known(length) => BodyMode::Identity(length),
            BodyLength::Unknown => BodyMode::Chunked,
        };
        self.kind = RequestKind {
            is_head: *request.method == Method::Head,
            is_connect: matches!(request.method, Method::Connect | Method::ConnectUdp),
            offers_upgrade: request.upgrade.is_some(),
        };
        self.is_persistent = request.keep_alive || self.kind.offers_upgrade;
        self.receiving = ReceiveState::Head(HeadScan::default());
        self.sending = match BodyWriter::new(mode) {
            BodyWriter::Done => SendState::Complete,
            writer => SendState::Body(writer),
        };
        self.interims = 0;
        self.received = 0;
        self.requests += 1;
        request::encode(request, mode, out);
        mode
    }

    /// Writes content of the request. Bytes beyond the announced `content-length` are not sent.
    pub fn send_data(&mut self, data: &[u8], out: &mut Vec<u8>) {
        match &mut self.sending {
            SendState::Body(writer) => writer.send_data(data, out),
            SendState::Tunnel => out.extend_from_slice(data),
            SendState::Complete => {}
        }
    }

    /// Writes the framing before `len` bytes of content that the caller sends itself. Returns how many of these bytes to
    /// send.
    #[must_use]
    pub fn begin_data(&mut self, len: usize, out: &mut Vec<u8>) -> usize {
        match &mut self.sending {
            SendState::Body(writer) => writer.begin_data(len, out),
            SendState::Tunnel => len,
            SendState::Complete => 0,
        }
    }

    /// Writes the framing after the content announced by [`ClientConnection::begin_data`].
    pub fn end_data(&mut self, out: &mut Vec<u8>) {
        if let SendState::Body(writer) = &mut self.sending {
            writer.end_data(out);
        }
    }

    /// Ends the request. If its content is shorter than announced, the caller must close the connection: nothing else tells
    /// the server that the content is incomplete.
    pub fn finish(&mut self, trailers: Option<&Headers>, out: &mut Vec<u8>) {
        if let SendState::Body(writer) = &mut self.sending {
            match writer.finish(trailers, out) {
                BodyOutcome::Complete => {}
                BodyOutcome::Short => self.is_persistent = false,
            }
        }
        self.sending = SendState::Complete;
    }

    /// Aborts the request in such a way that the server notices; the caller then closes the connection.
    pub fn abort(&mut self, out: &mut Vec<u8>) {
        if let SendState::Body(writer) = &mut self.sending {
            writer.abort(out);
        }
        self.is_persistent = false;
        self.sending = SendState::Complete;
    }

    /// Reports that the server has closed the connection. All bytes received before that were passed to
    /// [`ClientConnection::receive`].
    ///
    /// # Errors
    /// Returns an error if the response is not complete. It tells whether the response is missing, or whether its head or
    /// its content was cut off.
    pub fn on_closed(&mut self) -> Result<EndedPart, UpstreamError> {
        let ended = match &self.receiving {
            ReceiveState::Idle | ReceiveState::Failed => Ok(EndedPart::Nothing),
            ReceiveState::Head(scan) if scan.scanned() == 0 && self.interims == 0 => {
                Err(UpstreamError::ClosedBeforeResponse)
            }
            ReceiveState::Head(_) => Err(UpstreamError::HeadTruncated),
            ReceiveState::Sized { left: 0 } | ReceiveState::UntilClose => Ok(EndedPart::Body),
            ReceiveState::Sized { .. } | ReceiveState::Chunked(_) => {
                Err(UpstreamError::BodyTruncated)
            }
            ReceiveState::Tunnel => Ok(EndedPart::Tunnel),
        };
        self.is_persistent = false;
        self.receiving = ReceiveState::Failed;
        ended
    }

    /// Whether the connection can carry another request: request and response are complete, both sides allow it, and the
    /// server has sent nothing more (`leftover`), which could be mistaken for the next response.
    #[must_use]
    pub const fn is_reusable(&self, leftover: &[u8]) -> bool {
        matches!(
            (&self.receiving, &self.sending),
            (ReceiveState::Idle, SendState::Complete)
        ) && self.is_persistent
            && leftover.is_empty()
    }

    /// Whether the connection stays open after the current request and its response, as far as both sides have said.
    #[must_use]
    pub const fn is_persistent(&self) -> bool {
        self.is_persistent
    }

    /// Whether the content is chunked, at least one chunk is complete and the next has not begun. If the server closes the
    /// connection now, it has left out the last chunk and perhaps the line end before it: the content is incomplete (RFC
    /// 9112 §8), but no chunk was cut off.
    #[must_use]
    pub const fn is_between_chunks(&self) -> bool {
        match self.receiving {
            ReceiveState::Chunked(reader) => self.received > 0 && reader.is_between_chunks(),
            ReceiveState::Idle
            | ReceiveState::Head(_)
            | ReceiveState::Sized { .. }
            | ReceiveState::UntilClose
            | ReceiveState::Tunnel
            | ReceiveState::Failed => false,
        }
    }

    /// Whether the content of the response ends, or has ended, with its connection (RFC 9112 §6.3).
    #[must_use]
    pub const fn ends_with_connection(&self) -> bool {
        matches!(
            self.receiving,
            ReceiveState::UntilClose | ReceiveState::Failed
        )
    }

    /// Number of content bytes still to come, if the response's head announced the length. The caller may read them from
    /// the socket itself and then calls [`ClientConnection::skip_content`].
    #[must_use]
    pub const fn content_left(&self) -> Option<u64> {
        match self.receiving {
            ReceiveState::Sized { left } => Some(left),
            ReceiveState::Idle
            | ReceiveState::Head(_)
            | ReceiveState::Chunked(_)
            | ReceiveState::UntilClose
            | ReceiveState::Tunnel
            | ReceiveState::Failed => None,
        }
    }

    /// Reports that the caller read `len` bytes of content from the socket itself: at most
    /// [`ClientConnection::content_left`].
    pub const fn skip_content(&mut self, len: u64) {
        if let ReceiveState::Sized { left } = &mut self.receiving {
            *left = left.saturating_sub(len);
        }
    }

    /// Number of the current request on this connection, from 1; 0 before the first. If the server closes the connection
    /// before it answers a later request, the connection was probably idle for too long (RFC 9112 §9.3.1).
    #[must_use]
    pub const fn request_index(&self) -> u64 {
        self.requests
    }

    /// Whether the final response is complete.
    #[must_use]
    pub const fn is_response_done(&self) -> bool {
        matches!(self.receiving, ReceiveState::Idle)
    }

    /// Whether the request is written completely or was aborted.
    #[must_use]
    pub const fn is_request_done(&self) -> bool {
        matches!(self.sending, SendState::Complete)
    }

    /// The part of a response that the server has to send next.
    #[must_use]
    pub const fn awaited(&self) -> AwaitedPart {
        match self.receiving {
            ReceiveState::Idle | ReceiveState::Failed => AwaitedPart::Nothing,
            ReceiveState::Head(_) => AwaitedPart::Head,
            ReceiveState::Sized { .. } | ReceiveState::Chunked(_) | ReceiveState::UntilClose => {
                AwaitedPart::Body
            }
            ReceiveState::Tunnel => AwaitedPart::Tunnel,
        }
    }
}
