//! Response bodies: pulled by the engine, never pushed.

use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2o_http::Headers;

use crate::file::{FileRange, FileReader};

/// The content of a response.
#[derive(Default)]
pub enum Body {
    /// No content.
    #[default]
    Empty,
    /// Content in memory: small files out of the content cache, error pages.
    Bytes(Bytes),
    /// Part of a file: read when the engine has room, sent by `sendfile` on clear text.
    File(FileRange),
    /// Content made as it is pulled.
    Stream(Box<dyn BodySource>),
}

/// Why a body ended early. The response can then only be cut off.
#[derive(Debug)]
pub enum BodyError {
    /// Reading failed, or a file was shorter than announced.
    Local(std::io::Error),
    /// What makes the body failed; the text is for the error log.
    Failed(String),
}

impl BodyError {
    /// A file ended before the length that was announced.
    #[must_use]
    pub fn file_shrunk() -> Self {
        Self::Local(std::io::Error::new(
            std::io::ErrorKind::UnexpectedEof,
            "the file became shorter while it was being sent",
        ))
    }
}

impl std::fmt::Display for BodyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local(error) => error.fmt(f),
            Self::Failed(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for BodyError {}

/// Content made as it is pulled.
pub trait BodySource {
    /// The next piece, of at most `max` bytes (`max` is at least 1); `None` at the end.
    ///
    /// # Errors
    /// [`BodyError`] if the body cannot be completed; it is not polled again.
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>>;

    /// What follows the content (RFC 9110 §6.5). Asked by engines that can send trailers, when the end has come, or all of
    /// an announced length. Sources that wrap another one and leave its content alone hand this on.
    fn trailers(&mut self) -> Trailers {
        Trailers::None
    }

    /// The client takes no content for now. A source whose content comes from elsewhere may take it from there all the same and
    /// keep it, within bounds of its own, so that nobody is held up by a slow client. The caller is woken when calling again may
    /// do something. Sources that wrap another one hand this on.
    fn poll_ahead(&mut self, _: &mut Context<'_>) {}

    /// Bytes of memory that it holds, which count for `max-memory`. Asked after each turn of its connection: a source whose
    /// memory grows by itself wakes whoever called [`BodySource::poll_ahead`].
    fn retained(&self) -> usize;

    /// Where the next bytes lie in a socket as they are, another way to have them, which goes round our memory. `None` where
    /// only [`BodySource::poll_next`] will do; that may change in the course of a response.
    fn splice(&mut self) -> Option<&mut dyn SpliceSource> {
        None
    }
}

/// Content that the kernel can move by itself.
pub trait SpliceSource {
    /// Moves up to `max` bytes of the content into `pipe`, which is empty, and says how many there were: at least one.
    ///
    /// # Errors
    /// [`BodyError`] if the body cannot be completed; it is not polled again.
    fn poll_splice(
        &mut self,
        context: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        max: usize,
    ) -> Poll<Result<usize, BodyError>>;
}

/// What follows the content of a response.
#[derive(Debug, Default)]
pub enum Trailers {
    /// Nothing.
    #[default]
    None,
    /// That is known when [`BodySource::poll_next`] has said that the end has come.
    Unknown,
    /// These fields, handed out once.
    Fields(Headers),
}

impl Body {
    /// The length, if known without pulling.
    #[must_use]
    pub fn len(&self) -> Option<u64> {
        match self {
            Self::Empty => Some(0),
            Self::Bytes(bytes) => Some(bytes.len() as u64),
            Self::File(range) => Some(range.len),
            Self::Stream(_) => None,
        }
    }

    /// True if the body is known to hold nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Bytes of memory that it holds.
    #[must_use]
    pub fn retained(&self) -> usize {
        match self {
            Self::Empty | Self::File(_) => 0,
            Self::Bytes(bytes) => retained(bytes),
            Self::Stream(source) => source.retained(),
        }
    }

    /// The body as a source, for filters that wrap it.
    #[must_use]
    pub fn into_source(self) -> Box<dyn BodySource> {
        match self {
            Self::Empty => Box::new(Whole(Bytes::new())),
            Self::Bytes(bytes) => Box::new(Whole(bytes)),
            Self::File(range) => Box::new(FileReader::new(range)),
            Self::Stream(source) => source,
        }
    }
}

/// Bytes of memory that are held because of `bytes`: what others hold as well is theirs, such as an entry of the content cache.
#[must_use]
pub fn retained(bytes: &Bytes) -> usize {
    if bytes.is_unique() { bytes.len() } else { 0 }
}

struct Whole(Bytes);

impl BodySource for Whole {
    fn poll_next(
        &mut self,
        _: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.0.is_empty() {
            return Poll::Ready(None);
        }
        let at = max.min(self.0.len());
        Poll::Ready(Some(Ok(self.0.split_to(at))))
    }

    fn retained(&self) -> usize {
        retained(&self.0)
    }
}
