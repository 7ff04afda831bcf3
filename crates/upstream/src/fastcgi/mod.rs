//! Requests to FastCGI applications: the engine that [`crate::dispatch`] uses where an upstream speaks FastCGI.
//!
//! A connection carries one request at a time; with `fastcgi.timeout.keepalive` it is kept for the next request.

mod body;
mod check;
mod exchange;
pub(crate) mod head;
pub mod record;

use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use h2o_exchange::{Body, Timer, Worker};
use h2o_http::{Headers, Method};

use crate::connect::NewConnection;
use crate::plain_stream::IdleState;
use crate::pool::LocalState;
use crate::read_ahead::{self, Buffering};
use crate::ready_body::ReadyBody;
use crate::stream::UpstreamStream;
use crate::unanswered::{Reuse, Unanswered, is_idempotent};
use crate::{Call, Failure, FailureCause, Protocol, Reply};
use body::FastcgiBody;
pub(crate) use check::ask;
use exchange::{FastcgiExchange, Part, WholeResponse};
use head::{Head, HeadError};
use record::RequestRecords;

/// A function that is called with the content of each STDERR record.
pub type OnStderr = Rc<dyn Fn(&[u8])>;

/// A FastCGI request, except for its content.
pub struct FastcgiRequest<'a> {
    /// The method; decides whether the request may be sent again.
    pub method: Method,
    /// The records of the request; whether they ask for a connection that is kept is to agree with the settings of the upstream.
    pub records: &'a RequestRecords,
    /// Is called with the text that the application writes to STDERR, for the error log.
    pub on_stderr: OnStderr,
}

/// Which FastCGI parameters of a health check name the requested path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FastcgiTarget {
    /// Health checks name the requested path in `PATH_INFO`, for an application that answers all requests of a path.
    Path,
    /// Health checks name the requested script in `SCRIPT_NAME`, and its file, below this directory, in `SCRIPT_FILENAME`.
    Script(Box<str>),
}

/// Why no complete header block of a response has arrived. H2O compatibility: the texts are H2O's.
#[derive(Debug, PartialEq, Eq)]
enum FastcgiError {
    /// The application sent no record for `fastcgi.timeout.io` or, at the beginning of its response, for `fastcgi.timeout.first_byte`.
    TimedOut,
    /// The application closed the connection before the end of the header block.
    Closed,
    /// The application sent END_REQUEST before the end of the header block. `is_overloaded`: the application is overloaded and has not
    /// begun with the request.
    EndBeforeHead { is_overloaded: bool },
    /// The header block of the response is longer than the server accepts.
    HeadTooLong,
    /// The application sent a record of this type, which FastCGI does not allow it to send to a server.
    UnexpectedRecord(u8),
    /// The client did not send the whole request body.
    Client,
}

impl fmt::Display for FastcgiError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => out.write_str(Failure::IO_TIMEOUT),
            Self::Closed => out.write_str("fastcgi connection closed unexpectedly"),
            Self::EndBeforeHead { .. } => {
                out.write_str("received FCGI_END_REQUEST before end of the headers")
            }
            Self::HeadTooLong => out.write_str("received broken response"),
            Self::UnexpectedRecord(kind) => write!(out, "received unexpected record, type: {kind}"),
            Self::Client => out.write_str("the client did not send the whole request body"),
        }
    }
}

impl FastcgiError {
    /// The failure of the request that ended with this error. `is_sent`: the application has received bytes of the request.
    /// `has_received`: bytes of the response have arrived.
    fn to_failure(&self, is_sent: bool, has_received: bool) -> Failure {
        let cause = match self {
            Self::TimedOut => FailureCause::TimedOut,
            Self::Closed if has_received => FailureCause::Other,
            Self::Closed if is_sent => FailureCause::Silent,
            Self::Closed
            | Self::EndBeforeHead {
                is_overloaded: true,
            } => FailureCause::NotSent,
            Self::EndBeforeHead { .. } | Self::HeadTooLong | Self::UnexpectedRecord(_) => {
                FailureCause::Other
            }
            Self::Client => FailureCause::Client,
        };
        Failure::sent("")
            .with_text(self.to_string())
            .with_cause(cause)
    }
}

impl Failure {
    /// The text for the error log of a request to a FastCGI application. H2O compatibility: the texts are H2O's.
    #[must_use]
    pub fn fastcgi_text(&self) -> String {
        match self.cause {
            FailureCause::NotConnected if self.text == Self::CONNECT_TIMEOUT => {
                "connect timeout".to_owned()
            }
            FailureCause::NotConnected | FailureCause::NoDescriptor => {
                format!("connection failed:{}", self.text)
            }
            _ => self.text.to_string(),
        }
    }
}

/// A connection to a FastCGI application.
pub(crate) struct Connection {
    stream: UpstreamStream,
    /// Index of the application among the backends of the upstream.
    backend: usize,
    /// The timer of the timeouts of the request in progress.
    timer: Timer,
}

impl Connection {
    pub(crate) fn new(connected: NewConnection, worker: &Worker) -> Self {
        // Drops the guard that counted the connection while it was being opened: the request itself is counted from
        // here on.
        Self {
            stream: connected.stream,
            backend: connected.backend,
            timer: Timer::new(&worker.timers),
        }
    }

    /// Says what happened on the connection while it was idle. With `thoroughly` the kernel is asked.
    pub(crate) fn check(&mut self, thoroughly: bool) -> IdleState {
        self.stream.check(thoroughly)
    }
}

/// Sends a request over a connection and waits for the header block of the response.
pub(crate) async fn send(
    local: &Rc<LocalState>,
    call: &mut Call<'_>,
    connection: Box<Connection>,
    body: &ReadyBody,
    reuse: Reuse,
) -> Result<Reply, Unanswered> {
    let backend = connection.backend;
    let Some(request) = call.fastcgi else {
        debug_assert!(
            false,
            "a request to a FastCGI application has FastCGI parameters"
        );
        return Err(Failure::unsent(Failure::IO).into());
    };
    let headers = std::mem::take(&mut call.headers);
    let mut exchange =
        FastcgiExchange::begin(local, call.worker, connection, request, body, headers);
    let failure = match receive_head(&mut exchange).await {
        Ok(beginning) => match beginning.head {
            Ok(head) => {
                let Beginning {
                    content, has_ended, ..
                } = beginning;
                return Ok(reply(call, exchange, head, content, has_ended));
            }
            Err(error) => check::head_failure(&error),
        },
        Err(error) => {
            call.headers = std::mem::take(&mut exchange.headers);
            error.to_failure(exchange.has_sent, exchange.has_received)
        }
    };
    Err(Unanswered {
        failure,
        backend: Some(backend),
        reuse,
        is_idempotent: is_idempotent(&request.method),
    })
}

/// The beginning of a response: its header block, and what has arrived with it.
struct Beginning {
    head: Result<Head, HeadError>,
    /// Bytes of the body.
    content: Bytes,
    /// Whether the response is complete.
    has_ended: bool,
}

impl Beginning {
    /// Reads a header block, after which the end of the response was not looked for.
    fn of(block: &[u8], content: Bytes, headers: &mut Headers) -> Self {
        Self {
            head: head::parse(block, std::mem::take(headers)),
            content,
            has_ended: false,
        }
    }
}

/// Waits for the header block of the response.
async fn receive_head(exchange: &mut FastcgiExchange) -> Result<Beginning, FastcgiError> {
    if let Some(WholeResponse { head, content }) =
        poll_fn(|context| exchange.poll_whole(context)).await?
    {
        return Ok(Beginning {
            head,
            content,
            has_ended: true,
        });
    }
    let mut received = BytesMut::new();
    loop {
        match poll_fn(|context| exchange.poll_part(context, usize::MAX)).await? {
            Part::Content(mut piece) => {
                if received.is_empty()
                    && let Some(end) = head_end(&piece, 0)
                {
                    let block = piece.split_to(end);
                    return Ok(Beginning::of(&block, piece, &mut exchange.headers));
                }
                // The empty line that ends the header block may have arrived in pieces.
                let from = received.len().saturating_sub(3);
                received.extend_from_slice(&piece);
                let end = head_end(&received, from);
                if end.unwrap_or(received.len()) > h2o_http::MAX_HEAD {
                    return Err(FastcgiError::HeadTooLong);
                }
                if let Some(end) = end {
                    let body = received.split_off(end).freeze();
                    return Ok(Beginning::of(&received, body, &mut exchange.headers));
                }
            }
            Part::End { is_overloaded } => {
                return Err(FastcgiError::EndBeforeHead { is_overloaded });
            }
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
    memchr::memchr_iter(b'\n', &received[from..]).find_map(|at| {
        let rest = &received[from + at + 1..];
        match rest {
            [b'\n', ..] => Some(from + at + 2),
            [b'\r', b'\n', ..] => Some(from + at + 3),
            _ => None,
        }
    })
}

/// Makes the reply from the head and all of the body that has arrived, which for a small response is the whole body. If the whole
/// response has arrived, the body is in memory and its length is known; bytes beyond the announced length are dropped. `has_ended` says that
/// nothing follows `content`.
fn reply(
    call: &Call<'_>,
    mut exchange: FastcgiExchange,
    head: Head,
    content: Bytes,
    has_ended: bool,
) -> Reply {
    let backend = exchange.backend();
    let mut ready = content;
    let mut end = has_ended.then_some(Ok(()));
    while end.is_none() {
        match exchange.take_part(usize::MAX) {
            Ok(Some(Part::Content(piece))) if ready.is_empty() => ready = piece,
            Ok(Some(Part::Content(piece))) => {
                let mut longer = BytesMut::from(ready);
                longer.extend_from_slice(&piece);
                ready = longer.freeze();
            }
            Ok(Some(Part::End { .. } | Part::Closed)) => end = Some(Ok(())),
            Ok(None) => break,
            // The head of the response has arrived, so the request succeeds and only the body of the response fails.
            Err(error) => end = Some(Err(error.to_string())),
        }
    }
    let buffering = Buffering::of(call.worker, exchange.settings());
    let (exchange, failure) = match end {
        None => (Some(exchange), None),
        Some(Ok(())) => {
            exchange.finish();
            (None, None)
        }
        Some(Err(text)) => (None, Some(text)),
    };
    let is_short = (head.length).is_some_and(|length| length > ready.len() as u64);
    let body = if exchange.is_none() && failure.is_none() && !is_short {
        if let Some(length) = head.length {
            ready.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        }
        Body::Bytes(ready)
    } else {
        // A body that ends before its announced length fails after its last byte, so that the client notices the
        // truncation.
        let body = FastcgiBody::new(exchange, failure, ready, head.length);
        read_ahead::body(body, buffering)
    };
    Reply {
        status: head.status,
        reason: head.reason,
        headers: head.headers,
        length: head.length,
        body,
        backend,
        closes: false,
        is_chunked: false,
        is_tunnel: false,
        protocol: Protocol::Fastcgi,
    }
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
            // `head_end` finds the same position if the header block arrives one byte at a time.
            let mut found = None;
            for len in 1..=block.len() {
                found = found.or(head_end(&block[..len], (len - 1).saturating_sub(3)));
            }
            assert_eq!(found, *want, "{}", block.escape_ascii());
        }
    }
}
