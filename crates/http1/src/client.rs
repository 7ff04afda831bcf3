//! The client role of one connection.

mod receive;
mod request;

use std::sync::Arc;

use h2o_http::{BodyLength, Headers, Method};

pub use receive::ClientReceived;
pub use request::ClientRequest;

use crate::chunked::ChunkedReader;
use crate::encode::{BodyMode, BodyWriter, Finished};
use crate::field_lines::HeadScan;
use crate::response_head::Asked;
use crate::{ClientSettings, UpstreamError};

/// The effect of the end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nothing: no request was outstanding, or its response is complete.
    Nothing,
    /// The end of the connection completed the content of the response.
    Body,
    /// The end of the connection ended the tunnel.
    Tunnel,
}

/// The part of a response that is due next. Callers limit the server's time by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Nothing: no request is outstanding, or the connection is broken.
    Nothing,
    /// The head of a response.
    Head,
    /// Content.
    Body,
    /// Bytes of the tunnel.
    Tunnel,
}

/// State of receiving.
#[derive(Clone, Copy, Debug)]
enum Receiving {
    /// No request is outstanding.
    Idle,
    Head(HeadScan),
    Sized {
        left: u64,
    },
    Chunked(ChunkedReader),
    UntilClose,
    Tunnel,
    /// The server broke the protocol; its input is ignored.
    Failed,
}

/// State of the request.
#[derive(Clone, Copy, Debug)]
enum Sending {
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
    receiving: Receiving,
    sending: Sending,
    asked: Asked,
    interims: u32,
    /// Bytes of content received of the current response.
    received: u64,
    is_persistent: bool,
    requests: u64,
}

impl ClientConnection {
    /// A connection that was just established.
    #[must_use]
    pub const fn new(settings: Arc<ClientSettings>) -> Self {
        Self {
            settings,
            receiving: Receiving::Idle,
            sending: Sending::Complete,
            asked: Asked {
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

    /// Writes the head of a request. Returns how its content is delimited. The connection must be new or
    /// [reusable](ClientConnection::is_reusable).
    pub fn send_request(&mut self, request: &ClientRequest<'_>, out: &mut Vec<u8>) -> BodyMode {
        assert!(
            matches!(
                (&self.receiving, self.is_persistent),
                (Receiving::Idle, true)
            ),
            "one request is outstanding at a time"
        );
        let mode = match request.body {
            BodyLength::None | BodyLength::Tunnel => BodyMode::None,
            BodyLength::Known(length) => BodyMode::Identity(length),
            BodyLength::Unknown => BodyMode::Chunked,
        };
        self.asked = Asked {
            is_head: *request.method == Method::Head,
            is_connect: matches!(request.method, Method::Connect | Method::ConnectUdp),
            offers_upgrade: request.upgrade.is_some(),
        };
        self.is_persistent = request.keep_alive || self.asked.offers_upgrade;
        self.receiving = Receiving::Head(HeadScan::default());
        self.sending = match BodyWriter::new(mode) {
            BodyWriter::Done => Sending::Complete,
            writer => Sending::Body(writer),
        };
        self.interims = 0;
        self.received = 0;
        self.requests += 1;
        request::encode(request, mode, out);
        mode
    }

    /// Writes content. Bytes beyond the announced length are left out.
    pub fn send_data(&mut self, data: &[u8], out: &mut Vec<u8>) {
        match &mut self.sending {
            Sending::Body(writer) => writer.send_data(data, out),
            Sending::Tunnel => out.extend_from_slice(data),
            Sending::Complete => {}
        }
    }

    /// Writes the framing before `len` bytes of content that the caller sends itself. Returns how many of them to send.
    #[must_use]
    pub fn begin_data(&mut self, len: usize, out: &mut Vec<u8>) -> usize {
        match &mut self.sending {
            Sending::Body(writer) => writer.begin_data(len, out),
            Sending::Tunnel => len,
            Sending::Complete => 0,
        }
    }

    /// Writes the framing after the content announced by [`ClientConnection::begin_data`].
    pub fn end_data(&mut self, out: &mut Vec<u8>) {
        if let Sending::Body(writer) = &mut self.sending {
            writer.end_data(out);
        }
    }

    /// Ends the request. If it is shorter than announced, the caller must close the connection: nothing else tells the
    /// server.
    pub fn finish(&mut self, trailers: Option<&Headers>, out: &mut Vec<u8>) {
        if let Sending::Body(writer) = &mut self.sending {
            match writer.finish(trailers, out) {
                Finished::Complete => {}
                Finished::Short => self.is_persistent = false,
            }
        }
        self.sending = Sending::Complete;
    }

    /// Aborts the request so that the server notices; the caller closes the connection.
    pub fn abort(&mut self, out: &mut Vec<u8>) {
        if let Sending::Body(writer) = &mut self.sending {
            writer.abort(out);
        }
        self.is_persistent = false;
        self.sending = Sending::Complete;
    }

    /// The server has closed the connection. All bytes before that were passed to [`ClientConnection::receive`].
    ///
    /// # Errors
    /// The response is not complete. The variants tell whether it is missing, or its head or its content was cut off.
    pub fn on_closed(&mut self) -> Result<Ended, UpstreamError> {
        let ended = match &self.receiving {
            Receiving::Idle | Receiving::Failed => Ok(Ended::Nothing),
            Receiving::Head(scan) if scan.scanned() == 0 && self.interims == 0 => {
                Err(UpstreamError::ClosedBeforeResponse)
            }
            Receiving::Head(_) => Err(UpstreamError::HeadTruncated),
            Receiving::Sized { left: 0 } | Receiving::UntilClose => Ok(Ended::Body),
            Receiving::Sized { .. } | Receiving::Chunked(_) => Err(UpstreamError::BodyTruncated),
            Receiving::Tunnel => Ok(Ended::Tunnel),
        };
        self.is_persistent = false;
        self.receiving = Receiving::Failed;
        ended
    }

    /// Whether the connection can carry another request: request and response are complete, both sides allow it, and the
    /// server has sent nothing more (`leftover`), which could be mistaken for the next response.
    #[must_use]
    pub const fn is_reusable(&self, leftover: &[u8]) -> bool {
        matches!(
            (&self.receiving, &self.sending),
            (Receiving::Idle, Sending::Complete)
        ) && self.is_persistent
            && leftover.is_empty()
    }

    /// Whether the content is chunked, at least one chunk is complete and the next has not begun. If the server closes the
    /// connection now, it left out the last chunk and perhaps the line end before it: the content is incomplete (RFC 9112
    /// §8), but no chunk was cut off.
    #[must_use]
    pub const fn is_between_chunks(&self) -> bool {
        match self.receiving {
            Receiving::Chunked(reader) => self.received > 0 && reader.is_between_chunks(),
            Receiving::Idle
            | Receiving::Head(_)
            | Receiving::Sized { .. }
            | Receiving::UntilClose
            | Receiving::Tunnel
            | Receiving::Failed => false,
        }
    }

    /// Bytes of content still to come, if the head announced their number. The caller may take them off the connection
    /// itself and then calls [`ClientConnection::skip_content`].
    #[must_use]
    pub const fn content_left(&self) -> Option<u64> {
        match self.receiving {
            Receiving::Sized { left } => Some(left),
            Receiving::Idle
            | Receiving::Head(_)
            | Receiving::Chunked(_)
            | Receiving::UntilClose
            | Receiving::Tunnel
            | Receiving::Failed => None,
        }
    }

    /// The caller took `len` bytes of content off the connection itself: at most [`ClientConnection::content_left`].
    pub const fn skip_content(&mut self, len: u64) {
        if let Receiving::Sized { left } = &mut self.receiving {
            *left = left.saturating_sub(len);
        }
    }

    /// Number of the current request, from 1; 0 before the first. A connection that is closed before the response to a
    /// later request was probably idle for too long (RFC 9112 §9.3.1).
    #[must_use]
    pub const fn request_index(&self) -> u64 {
        self.requests
    }

    /// Whether the final response is complete.
    #[must_use]
    pub const fn is_response_done(&self) -> bool {
        matches!(self.receiving, Receiving::Idle)
    }

    /// Whether the request is written completely or was aborted.
    #[must_use]
    pub const fn is_request_done(&self) -> bool {
        matches!(self.sending, Sending::Complete)
    }

    /// The part of a response that is due next.
    #[must_use]
    pub const fn awaited(&self) -> Awaited {
        match self.receiving {
            Receiving::Idle | Receiving::Failed => Awaited::Nothing,
            Receiving::Head(_) => Awaited::Head,
            Receiving::Sized { .. } | Receiving::Chunked(_) | Receiving::UntilClose => {
                Awaited::Body
            }
            Receiving::Tunnel => Awaited::Tunnel,
        }
    }
}
