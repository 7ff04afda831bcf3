//! The body of a request to a backend over HTTP/2 or HTTP/3: pulled when the stream's turn has come and its window has room.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2o_exchange::{BodyError, BodyPipe, BodySource, FileReader, RequestBody};

use super::engine::{Engine, StreamIndex};

/// The part of a request body that was not sent. Dropping this before the end lets the client's connection stop buffering.
pub(super) struct Upload {
    content: Content,
    /// Number of body bytes still to come, if the request has announced its length.
    left: Option<u64>,
    step: UploadState,
}

enum Content {
    Bytes(Bytes),
    File(FileReader),
    Pipe {
        pipe: Rc<BodyPipe>,
        /// Bytes that were taken from the pipe and not sent yet.
        rest: Bytes,
    },
}

impl Drop for Content {
    fn drop(&mut self) {
        if let Self::Pipe { pipe, .. } = self {
            pipe.abandon();
        }
    }
}

/// What an upload waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UploadState {
    /// For a 100 or a final response of the backend (RFC 9110 §10.1.1): until then, the body is held back.
    Held,
    /// For the stream's turn, or for room in its flow-control window.
    Ready,
    /// For more data from the client or the disk.
    Starved,
}

/// The result of pulling data for one DATA frame.
pub(super) enum PullResult {
    /// A DATA frame was written, and more data is to follow.
    Frame,
    /// The last DATA frame was written.
    End,
    /// There is no data at present; the task is woken when there is.
    Starved,
}

impl Upload {
    /// Number of bytes of memory held for unsent data.
    pub(super) fn retained(&self) -> usize {
        match &self.content {
            Content::Bytes(bytes) => h2o_exchange::retained(bytes),
            Content::File(reader) => reader.retained(),
            // The client's connection counts the bytes in the pipe, which it fills.
            Content::Pipe { rest, .. } => rest.len(),
        }
    }

    /// Whether the client's body is kept so that another handler may send it again. This upload must then end when the stream's
    /// request or response body is dropped: the other handler reads from the same pipe, which has one reader only.
    pub(super) fn is_kept(&self) -> bool {
        matches!(&self.content, Content::Pipe { pipe, .. } if pipe.is_kept())
    }

    /// Makes the upload of `body` with an announced length; `None` if the body is empty. `is_held`: whether the body is held back
    /// until the backend answers.
    pub(super) fn new(body: RequestBody, announced: Option<u64>, is_held: bool) -> Option<Self> {
        let content = match body {
            RequestBody::None => return None,
            RequestBody::Bytes(bytes) if bytes.is_empty() => return None,
            RequestBody::Bytes(bytes) => Content::Bytes(bytes),
            RequestBody::File(range) if range.len == 0 => return None,
            RequestBody::File(range) => Content::File(FileReader::new(range)),
            RequestBody::Stream(pipe) => Content::Pipe {
                pipe,
                rest: Bytes::new(),
            },
        };
        Some(Self {
            content,
            left: announced,
            step: if is_held {
                UploadState::Held
            } else {
                UploadState::Ready
            },
        })
    }

    pub(super) fn is_held(&self) -> bool {
        self.step == UploadState::Held
    }

    pub(super) fn waits_for_client(&self) -> bool {
        self.step == UploadState::Starved
    }

    /// Sends the body from now on. Returns whether it was held back before.
    pub(super) fn release_body(&mut self) -> bool {
        let was_held = self.is_held();
        if was_held {
            self.step = UploadState::Ready;
        }
        was_held
    }

    /// Whether data may have arrived since the upload ran out of it.
    pub(super) fn is_fed(&mut self) -> bool {
        let is_fed = match &self.content {
            // A read from the disk is simply tried again.
            Content::Bytes(_) | Content::File(_) => true,
            Content::Pipe { pipe, rest } => !rest.is_empty() || !pipe.is_starved(),
        };
        if is_fed && self.step == UploadState::Starved {
            self.step = UploadState::Ready;
        }
        is_fed
    }

    /// Moves at most `max` bytes into a DATA frame.
    ///
    /// # Errors
    /// The body cannot be completed: the client disconnected, or the file cannot be read.
    pub(super) fn pull(
        &mut self,
        engine: &mut impl Engine,
        stream: StreamIndex,
        max: usize,
        task: &mut Context<'_>,
    ) -> Result<PullResult, BodyError> {
        let pulled = match &mut self.content {
            Content::Bytes(bytes) => {
                let piece = bytes.split_to(max.min(bytes.len()));
                let is_end = bytes.is_empty();
                engine.send_data(stream, piece, is_end);
                PullResult::frame(is_end)
            }
            Content::File(reader) => {
                let sent = engine.send_data_with(stream, max, |out| {
                    match reader.poll_append(task, max, out) {
                        Poll::Pending => Ok(None),
                        Poll::Ready(Ok(len)) => Ok(Some((len, reader.remaining() == 0))),
                        Poll::Ready(Err(error)) => Err(error),
                    }
                })?;
                sent.map_or(PullResult::Starved, |(_, is_end)| PullResult::frame(is_end))
            }
            Content::Pipe { pipe, rest } => {
                if rest.is_empty() {
                    match pipe.poll_next(task) {
                        Poll::Pending => {
                            self.step = UploadState::Starved;
                            return Ok(PullResult::Starved);
                        }
                        Poll::Ready(Some(piece)) => *rest = piece?,
                        Poll::Ready(None) if self.left.is_some_and(|left| left > 0) => {
                            return Err(BodyError::Failed(
                                "the request body is shorter than announced".into(),
                            ));
                        }
                        Poll::Ready(None) => {
                            engine.finish(stream);
                            return Ok(PullResult::End);
                        }
                    }
                }
                let piece = rest.split_to(max.min(rest.len()));
                let len = piece.len() as u64;
                if self.left.is_some_and(|left| len > left) {
                    let text = "the request body is longer than announced";
                    return Err(BodyError::Failed(text.into()));
                }
                if let Some(left) = &mut self.left {
                    *left -= len;
                }
                // If the end of the client's body is known, END_STREAM is sent with the last data. So a backend that receives the
                // whole body at once knows its length before it begins to process the request.
                let is_end = match self.left {
                    Some(left) => left == 0,
                    None => rest.is_empty() && pipe.is_drained(),
                };
                engine.send_data(stream, piece, is_end);
                PullResult::frame(is_end)
            }
        };
        if matches!(pulled, PullResult::Starved) {
            self.step = UploadState::Starved;
        }
        Ok(pulled)
    }
}

impl PullResult {
    const fn frame(is_end: bool) -> Self {
        if is_end { Self::End } else { Self::Frame }
    }
}
