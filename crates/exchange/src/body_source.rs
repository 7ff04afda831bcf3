//! Response bodies whose bytes are generated while the engine pulls them.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2o_http::Headers;

/// Why a response body ended before its end. The head was sent by then, so the engine can only truncate the response.
#[derive(Debug)]
pub enum BodyError {
    /// A file could not be read, or was shorter than announced.
    Local(io::Error),
    /// The origin of the body failed; the text is for the error log.
    Failed(String),
    /// The origin of the body failed and has written the text to the error log already.
    Reported(String),
}

impl BodyError {
    /// The error of a file that ended before the announced length of the body.
    #[must_use]
    pub fn file_shrunk() -> Self {
        Self::Local(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the file became shorter while it was being sent",
        ))
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(error) => error.fmt(f),
            Self::Failed(text) | Self::Reported(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for BodyError {}

/// The source of a response body whose bytes are generated while the engine pulls them.
pub trait BodySource {
    /// Returns the next piece of the body, of at most `max` bytes (`max` is at least 1); `None` at the end of the body.
    ///
    /// # Errors
    /// [`BodyError`] if the body cannot be completed; the source is not polled again.
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>>;

    /// The trailers (RFC 9110 §6.5). Called by engines that can send them, after the end of the body or the last byte
    /// of an announced length. A source that wraps another one without changing its bytes must forward this call.
    fn trailers(&mut self) -> Trailers {
        Trailers::None
    }

    /// Whether the whole body was returned already, although [`BodySource::poll_next`] does not report the end yet: the source still
    /// passes the request's body on. Called by engines whose clients cannot tell the end by an announced length. A source that wraps
    /// another one without changing its bytes must forward this call.
    fn is_complete(&self) -> bool {
        false
    }

    /// Called while the client takes no data. The source may read ahead and buffer, within its own limits, so that a
    /// slow client does not occupy a backend. Wakes the caller when another call can make progress. A source that wraps
    /// another one must forward this call.
    fn poll_ahead(&mut self, _: &mut Context<'_>) {}

    /// Bytes of memory that the source holds; they count against `max-memory`. The engine queries this each time it has
    /// worked on the connection. A source that later takes more memory wakes the caller of [`BodySource::poll_ahead`],
    /// so that the engine queries it again.
    fn retained(&self) -> usize;

    /// Returns the source as one that the kernel can move by `splice`, if the next bytes of the body wait unmodified in
    /// a socket. `None` if the bytes must be read by [`BodySource::poll_next`]; the answer may change during a
    /// response.
    fn splice(&mut self) -> Option<&mut dyn SpliceSource> {
        None
    }
}

/// A body that the kernel can move from socket to socket.
pub trait SpliceSource {
    /// Moves up to `max` bytes of the body into `pipe`, which is empty. Returns how many bytes: at least one.
    ///
    /// # Errors
    /// [`BodyError`] if the body cannot be completed; the source is not polled again.
    fn poll_splice(
        &mut self,
        context: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        max: usize,
    ) -> Poll<Result<usize, BodyError>>;
}

/// The trailer fields of a response.
#[derive(Debug, Default)]
pub enum Trailers {
    /// The response has no trailers.
    #[default]
    None,
    /// The source cannot tell before [`BodySource::poll_next`] has reported the end of the body.
    Unknown,
    /// The trailer fields, which are returned only once.
    Fields(Headers),
}
