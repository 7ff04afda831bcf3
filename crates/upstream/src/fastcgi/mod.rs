//! Requests to FastCGI applications.
//!
//! A connection carries one request at a time; with `fastcgi.timeout.keepalive` it is kept for the next request.

mod body;
mod exchange;
pub mod record;

use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use h2o_exchange::{Body, RequestBody, Worker};

use crate::backend_choice::BackendChoice;
use crate::connect::connect;
use crate::idle_pool::IdlePool;
use crate::pool::{LocalState, LocalStates};
use crate::read_ahead::{self, Buffering};
use crate::stream::UpstreamStream;
use crate::{Failure, FailureCause, Upstream};
use body::FastcgiBody;
use exchange::{FastcgiExchange, Part, Pooled};

/// A function that is called with the content of each STDERR record.
pub type OnStderr = Rc<dyn Fn(&[u8])>;

/// Limit in bytes of the header block of a response.
const MAX_HEAD: usize = 64 * 1024;

/// Why an application gave no response, or not all of the response. H2O compatibility: the texts are H2O's.
#[derive(Debug, PartialEq, Eq)]
pub enum FastcgiError {
    /// No connection to the application could be established, for this reason.
    NotConnected(Box<str>),
    /// The connection to the application was not established within `fastcgi.timeout.io`.
    ConnectTimeout,
    /// No file descriptor was left for a connection.
    NoDescriptor,
    /// The application made no progress for `fastcgi.timeout.io`.
    IoTimeout,
    /// The application closed the connection before the end of the response's header block.
    Closed,
    /// The application sent END_REQUEST before the end of the response's header block.
    EndBeforeHead,
    /// The header block of the response is longer than the limit.
    HeadTooLong,
    /// The application sent a record of this type, which FastCGI does not allow it to send to a server.
    UnexpectedRecord(u8),
    /// The client did not send the whole request body.
    Client,
}

impl fmt::Display for FastcgiError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected(reason) => write!(out, "connection failed:{reason}"),
            Self::ConnectTimeout => out.write_str("connect timeout"),
            Self::NoDescriptor => out.write_str("connection failed:no file descriptor is left"),
            Self::IoTimeout => out.write_str("I/O timeout"),
            Self::Closed => out.write_str("fastcgi connection closed unexpectedly"),
            Self::EndBeforeHead => {
                out.write_str("received FCGI_END_REQUEST before end of the headers")
            }
            Self::HeadTooLong => out.write_str("received broken response"),
            Self::UnexpectedRecord(kind) => write!(out, "received unexpected record, type: {kind}"),
            Self::Client => out.write_str("the request body did not arrive"),
        }
    }
}

impl From<Failure> for FastcgiError {
    fn from(failure: Failure) -> Self {
        match failure.cause {
            FailureCause::NoDescriptor => Self::NoDescriptor,
            _ if failure.text == Failure::CONNECT_TIMEOUT => Self::ConnectTimeout,
            _ => Self::NotConnected(failure.text.into()),
        }
    }
}

/// A request to be sent to a FastCGI application.
pub struct FastcgiCall<'a> {
    /// The worker that the request runs on.
    pub worker: &'a Rc<Worker>,
    /// The parameters, as [`record::encode_parameter`] writes them.
    pub parameters: &'a [u8],
    /// The body of the request.
    pub body: RequestBody,
    /// A function to be called with messages of the application for the error log.
    pub on_stderr: OnStderr,
}

/// The start of a response, up to the end of its header block.
pub struct FastcgiReply {
    /// The header block of the response, with the empty line that ends it.
    pub head: Bytes,
    exchange: Option<FastcgiExchange>,
    ready: Bytes,
    buffering: Option<Buffering>,
}

impl FastcgiReply {
    /// The body of the response; bytes beyond the announced `length` are dropped. If the whole response has already
    /// arrived, the body is in memory and its length is known.
    #[must_use]
    pub fn into_body(self, length: Option<u64>) -> Body {
        let is_short = length.is_some_and(|length| length > self.ready.len() as u64);
        if self.exchange.is_none() && !is_short {
            let mut ready = self.ready;
            if let Some(length) = length {
                ready.truncate(usize::try_from(length).unwrap_or(usize::MAX));
            }
            return Body::Bytes(ready);
        }
        // A body that ends before its announced length fails after the last byte that arrived, so that the client notices the
        // truncation.
        let body = FastcgiBody::new(self.exchange, self.ready, length);
        read_ahead::body(body, self.buffering)
    }
}

impl Upstream {
    /// Sends a request to a FastCGI application, and waits for the header block of the response. Must run on the worker of the
    /// call, in a local runtime of tokio.
    ///
    /// Dropping the future, or later the body of the reply, closes the connection.
    ///
    /// # Errors
    /// [`FastcgiError`] if there is no header block.
    pub async fn send_fastcgi(
        self: &Arc<Self>,
        call: FastcgiCall<'_>,
    ) -> Result<FastcgiReply, FastcgiError> {
        let local = call.worker.local::<LocalStates>().of(self);
        let now = call.worker.clock.now();
        let pool = &local.fastcgi;
        // A body that cannot be sent again must not be lost on a connection that the application has just closed, so the kernel is
        // asked whether it is open.
        let can_resend = !matches!(call.body, RequestBody::Stream(_));
        let idle = pool.take(0, now, |stream: &mut UpstreamStream| {
            stream.check(!can_resend)
        });
        if let Some(stream) = idle {
            let mut exchange = begin(&call, stream, pool);
            match receive_head(&mut exchange).await {
                Err(FastcgiError::Closed) if can_resend && !exchange.has_received => {}
                Ok(head) => return reply(&call, self, exchange, head),
                Err(error) => return Err(error),
            }
        }
        let stream = open(&local, call.worker).await?;
        let mut exchange = begin(&call, stream, pool);
        let head = receive_head(&mut exchange).await?;
        reply(&call, self, exchange, head)
    }
}

async fn open(local: &Rc<LocalState>, worker: &Rc<Worker>) -> Result<UpstreamStream, FastcgiError> {
    let limit = local.upstream.settings.connect_timeout;
    let mut backends = BackendChoice::default();
    // Boxed: connecting needs a large future, and most requests do not connect.
    let connected = Box::pin(connect(worker, local, &[], limit, &mut backends)).await?;
    Ok(connected.stream)
}

fn begin(
    call: &FastcgiCall<'_>,
    stream: UpstreamStream,
    pool: &Rc<IdlePool<UpstreamStream>>,
) -> FastcgiExchange {
    let connection = Pooled {
        stream,
        pool: Rc::clone(pool),
        backend: 0,
    };
    FastcgiExchange::begin(
        connection,
        call.worker,
        call.parameters,
        &call.body,
        &call.on_stderr,
    )
}

/// Waits for the header block of the response. Returns it, and the bytes of the body that have arrived with it.
async fn receive_head(exchange: &mut FastcgiExchange) -> Result<(Bytes, Bytes), FastcgiError> {
    let mut received = BytesMut::new();
    loop {
        match poll_fn(|context| exchange.poll_part(context, usize::MAX)).await? {
            Part::Content(piece) => {
                // The empty line that ends the block may have been split between two pieces.
                let from = received.len().saturating_sub(3);
                received.extend_from_slice(&piece);
                if let Some(end) = head_end(&received, from) {
                    let body = received.split_off(end).freeze();
                    return Ok((received.freeze(), body));
                }
                if received.len() > MAX_HEAD {
                    return Err(FastcgiError::HeadTooLong);
                }
            }
            Part::End => return Err(FastcgiError::EndBeforeHead),
            Part::Closed => return Err(FastcgiError::Closed),
        }
    }
}

/// The position after the empty line that ends a header block; lines end with CRLF or LF. The search begins at `from`.
fn head_end(received: &[u8], from: usize) -> Option<usize> {
    if received.starts_with(b"\n") {
        return Some(1);
    }
    if received.starts_with(b"\r\n") {
        return Some(2);
    }
    let lines = received[from..].iter().enumerate();
    let mut ends = lines.filter(|&(_, &byte)| byte == b'\n');
    ends.find_map(|(at, _)| {
        let rest = &received[from + at + 1..];
        match rest {
            [b'\n', ..] => Some(from + at + 2),
            [b'\r', b'\n', ..] => Some(from + at + 3),
            _ => None,
        }
    })
}

/// Makes the reply, with all bytes of the response that have arrived: for a small response, these are all.
fn reply(
    call: &FastcgiCall<'_>,
    upstream: &Upstream,
    mut exchange: FastcgiExchange,
    (head, body): (Bytes, Bytes),
) -> Result<FastcgiReply, FastcgiError> {
    let mut ready = BytesMut::from(body);
    let has_ended = loop {
        match exchange.take_part(usize::MAX) {
            Ok(Some(Part::Content(piece))) => ready.extend_from_slice(&piece),
            Ok(Some(Part::End | Part::Closed)) => break true,
            Ok(None) => break false,
            Err(error) => return Err(error),
        }
    };
    let exchange = if has_ended {
        exchange.finish();
        None
    } else {
        Some(exchange)
    };
    Ok(FastcgiReply {
        head,
        exchange,
        ready: ready.freeze(),
        buffering: Buffering::of(call.worker, &upstream.settings),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_block_ends_with_an_empty_line_of_either_kind() {
        let cases: &[(&[u8], Option<usize>)] = &[
            (b"\nbody", Some(1)),
            (b"\r\nbody", Some(2)),
            (b"a: b\n\nbody", Some(6)),
            (b"a: b\r\n\r\nbody", Some(8)),
            (b"a: b\n\r\nbody", Some(7)),
            (b"a: b\r\n", None),
            (b"a: b\r\n\r", None),
            (b"", None),
        ];
        for (block, want) in cases {
            assert_eq!(head_end(block, 0), *want, "{}", block.escape_ascii());
            // The result is the same if the block arrives one byte at a time.
            let mut found = None;
            for len in 1..=block.len() {
                found = found.or(head_end(&block[..len], (len - 1).saturating_sub(3)));
            }
            assert_eq!(found, *want, "{}", block.escape_ascii());
        }
    }
}
