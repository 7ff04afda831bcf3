//! Response bodies. The engine of the client's connection pulls their bytes when it can send them.

use std::task::{Context, Poll};

use bytes::Bytes;

use crate::body_source::{BodyError, BodySource};
use crate::file::{FileRange, FileReader};

/// The body of a response.
#[derive(Default)]
pub enum Body {
    /// The response has no body.
    #[default]
    Empty,
    /// A body in memory: a small file from the content cache, an error page.
    Bytes(Bytes),
    /// A part of a file: the connection reads it when the engine has room, or sends it by `sendfile` where nothing is
    /// encrypted.
    File(FileRange),
    /// A body whose bytes are generated while the engine pulls them.
    Stream(Box<dyn BodySource>),
}

impl Body {
    /// The length of the body in bytes, if it is known before the body is pulled.
    #[must_use]
    pub fn len(&self) -> Option<u64> {
        match self {
            Self::Empty => Some(0),
            Self::Bytes(bytes) => Some(bytes.len() as u64),
            Self::File(range) => Some(range.len),
            Self::Stream(_) => None,
        }
    }

    /// Whether the body is known to be empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Number of bytes of memory that the body holds.
    #[must_use]
    pub fn retained(&self) -> usize {
        match self {
            Self::Empty | Self::File(_) => 0,
            Self::Bytes(bytes) => retained(bytes),
            Self::Stream(source) => source.retained(),
        }
    }

    /// Converts the body into a source, for filters that wrap it.
    #[must_use]
    pub fn into_source(self) -> Box<dyn BodySource> {
        match self {
            Self::Empty => Box::new(WholeBody(Bytes::new())),
            Self::Bytes(bytes) => Box::new(WholeBody(bytes)),
            Self::File(range) => Box::new(FileReader::new(range)),
            Self::Stream(source) => source,
        }
    }
}

/// Number of bytes of memory that `bytes` keeps from being freed: 0 if others share it, such as an entry of the content cache.
#[must_use]
pub fn retained(bytes: &Bytes) -> usize {
    if bytes.is_unique() { bytes.len() } else { 0 }
}

struct WholeBody(Bytes);

impl BodySource for WholeBody {
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
