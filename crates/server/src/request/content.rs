//! The body of a response, which the server pulls piece by piece, with its length and its trailers.

use std::task::{Context as TaskContext, Poll};

use bytes::Bytes;
use h2o_exchange::{Body, BodyError, BodySource, FileReader, Trailers};
use h2o_http::Headers;

use super::{SlotId, Streams};
use crate::flow::Turn;

/// The part of a response's body that has not been sent.
pub(crate) struct Content {
    pub(crate) source: Source,
    /// Number of bytes of the announced length that have not been sent; `None` if no length was announced.
    left: Option<u64>,
    /// Bytes that the source of the body returned beyond the number requested.
    rest: Bytes,
    /// Whether the slot of the response is in the list of [`Requests::read_ahead`](super::Requests::read_ahead).
    pub(super) is_listed: bool,
}

/// Where the bytes of a response's body come from.
pub(crate) enum Source {
    Bytes(Bytes),
    File(FileReader),
    Stream(Box<dyn BodySource>),
}

/// Result of pulling a piece of a response's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PullResult {
    /// A piece of `len` bytes was written; `is_end` says whether it was the last.
    Data { len: usize, is_end: bool },
    /// The source of the body has no bytes yet; it will wake the task.
    Waiting,
    /// The client's socket is full.
    Blocked,
}

impl Content {
    /// Makes the content of a response from its whole body, of `len` bytes if the length is known. Returns `None` if the body is
    /// empty.
    pub(super) fn new(body: Body, len: Option<u64>) -> Option<Self> {
        let source = match body {
            Body::Empty => return None,
            Body::Bytes(bytes) => Source::Bytes(bytes),
            Body::File(range) => Source::File(FileReader::new(range)),
            Body::Stream(source) => Source::Stream(source),
        };
        Some(Self {
            source,
            left: len,
            rest: Bytes::new(),
            is_listed: false,
        })
    }

    /// Bytes of memory that unsent data of the body takes.
    pub(super) fn retained(&self) -> usize {
        let source = match &self.source {
            Source::Bytes(bytes) => h2o_exchange::retained(bytes),
            Source::File(reader) => reader.retained(),
            Source::Stream(source) => source.retained(),
        };
        source + self.rest.len()
    }

    /// Whether the source of the body wakes the task when it has more bytes.
    pub(super) const fn needs_waker(&self) -> bool {
        !matches!(self.source, Source::Bytes(_))
    }

    /// Moves up to `max` bytes of the body from its source to the client.
    pub(crate) fn pull<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        max: usize,
        task: &mut TaskContext<'_>,
    ) -> Result<PullResult, BodyError> {
        let max = self.left.map_or(max, |left| {
            max.min(usize::try_from(left).unwrap_or(usize::MAX))
        });
        let (len, is_end) = match &mut self.source {
            Source::Bytes(bytes) => {
                let piece = bytes.split_to(max.min(bytes.len()));
                let is_end = bytes.is_empty() || self.left == Some(piece.len() as u64);
                streams.send_data(turn, id, &piece, is_end);
                (piece.len(), is_end)
            }
            Source::File(reader) => match streams.send_file_data(turn, id, max, reader, task)? {
                Some(sent) => sent,
                None => return Ok(PullResult::Waiting),
            },
            Source::Stream(source) => {
                let mut piece = std::mem::take(&mut self.rest);
                if piece.is_empty() && self.left == Some(0) && !S::RULES.ends_with_source {
                    // After the end of the response's body the source may still have work: to pass the rest of the request's body
                    // on.
                    let trailers = match source.trailers() {
                        Trailers::Unknown => None,
                        Trailers::None => Some(None),
                        Trailers::Fields(trailers) => Some(Some(trailers)),
                    };
                    if let Some(trailers) = trailers {
                        streams.finish(turn, id, trailers);
                        return Ok(self.moved(0, true));
                    }
                }
                if piece.is_empty() {
                    piece = match source.poll_next(task, max.max(1)) {
                        Poll::Pending if self.left.is_none() && source.is_complete() => {
                            // The client learns the end of the body at once. The source may still have work: to pass the rest of
                            // the request's body on.
                            streams.finish(turn, id, last_trailers(&mut **source));
                            self.left = Some(0);
                            return Ok(self.moved(0, !S::RULES.ends_with_source));
                        }
                        Poll::Pending => return Ok(PullResult::Waiting),
                        Poll::Ready(Some(piece)) => piece?,
                        Poll::Ready(None) if self.left.is_some_and(|left| left > 0) => {
                            return Err(wrong_length("shorter"));
                        }
                        Poll::Ready(None) => {
                            streams.finish(turn, id, last_trailers(&mut **source));
                            self.source = Source::Bytes(Bytes::new());
                            return Ok(self.moved(0, true));
                        }
                    };
                }
                if self.left == Some(0) && !piece.is_empty() {
                    return Err(wrong_length("longer"));
                }
                if piece.len() > max {
                    self.rest = piece.split_off(max);
                }
                let is_whole = !S::RULES.ends_with_source && self.left == Some(piece.len() as u64);
                // Trailers may follow the body, so its last piece waits until the source has ended.
                let trailers = is_whole.then(|| source.trailers());
                let is_end = match trailers {
                    None => false,
                    Some(Trailers::None) => true,
                    Some(Trailers::Unknown) if !self.rest.is_empty() => {
                        return Err(wrong_length("longer"));
                    }
                    Some(Trailers::Unknown) => false,
                    Some(Trailers::Fields(trailers)) => {
                        streams.send_data(turn, id, &piece, false);
                        streams.finish(turn, id, Some(trailers));
                        return Ok(self.moved(piece.len(), true));
                    }
                };
                // An empty piece is not sent: the source is polled again when the driver pulls this response the next time.
                if !piece.is_empty() || is_end {
                    streams.send_data(turn, id, &piece, is_end);
                }
                (piece.len(), is_end)
            }
        };
        Ok(self.moved(len, is_end))
    }

    /// Notes that `len` bytes of the body were sent; `is_end` says whether they were the last.
    pub(crate) const fn moved(&mut self, len: usize, is_end: bool) -> PullResult {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(len as u64);
        }
        PullResult::Data { len, is_end }
    }
}

/// The trailers of a body that has ended.
fn last_trailers(source: &mut dyn BodySource) -> Option<Headers> {
    match source.trailers() {
        Trailers::Fields(trailers) => Some(trailers),
        Trailers::None | Trailers::Unknown => None,
    }
}

fn wrong_length(how: &str) -> BodyError {
    BodyError::Failed(format!("the response body is {how} than announced"))
}
