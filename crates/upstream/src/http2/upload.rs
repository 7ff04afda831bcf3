//! The content of a request on its way to the server: pulled when the stream has its turn and its window has room.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2o_exchange::{BodyError, BodyPipe, BodySource, FileReader, RequestBody};
use h2o_http2::{ClientConnection, StreamKey};

/// What is left of a request's content. Dropped before its end it is not wanted any more: the client's connection need not
/// hold it back.
pub(super) struct Upload {
    content: Content,
    /// Bytes that are missing of the announced length.
    left: Option<u64>,
    step: Step,
}

enum Content {
    Bytes(Bytes),
    File(FileReader),
    Pipe {
        pipe: Rc<BodyPipe>,
        /// What was taken out of the pipe and not sent yet.
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
enum Step {
    /// The server's word that it wants the content (RFC 9110 §10.1.1), or its response.
    Held,
    /// Its turn, or window.
    Ready,
    /// More from the client, or from the disk.
    Starved,
}

/// What came of pulling content for one frame.
pub(super) enum Pulled {
    /// A frame was written.
    Frame,
    /// A frame was written, and the request is complete.
    End,
    /// There is nothing to send for now; the task is woken when there is.
    Starved,
}

impl Upload {
    /// Bytes of memory held for what is not sent yet.
    pub(super) fn retained(&self) -> usize {
        match &self.content {
            Content::Bytes(bytes) => h2o_exchange::retained(bytes),
            Content::File(reader) => reader.retained(),
            // The connection that fills the pipe counts what is in there.
            Content::Pipe { rest, .. } => rest.len(),
        }
    }

    /// True if another handler may be given the content: there is to be one reader then.
    pub(super) fn is_kept(&self) -> bool {
        matches!(&self.content, Content::Pipe { pipe, .. } if pipe.is_kept())
    }

    /// What is to be sent of `body`, of which `announced` bytes were announced. `None`: there is nothing. `is_held`: it is
    /// sent when the server asks for it.
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
            step: if is_held { Step::Held } else { Step::Ready },
        })
    }

    pub(super) fn is_held(&self) -> bool {
        self.step == Step::Held
    }

    pub(super) fn waits_for_client(&self) -> bool {
        self.step == Step::Starved
    }

    /// The server wants the content, or does not mind. True if it was held back.
    pub(super) fn let_go(&mut self) -> bool {
        let was_held = self.is_held();
        if was_held {
            self.step = Step::Ready;
        }
        was_held
    }

    /// True if there may be more since the upload was starved.
    pub(super) fn is_fed(&mut self) -> bool {
        let is_fed = match &self.content {
            // The disk is asked.
            Content::Bytes(_) | Content::File(_) => true,
            Content::Pipe { pipe, rest } => !rest.is_empty() || !pipe.is_starved(),
        };
        if is_fed && self.step == Step::Starved {
            self.step = Step::Ready;
        }
        is_fed
    }

    /// Moves at most `max` bytes into one DATA frame.
    ///
    /// # Errors
    /// The content cannot be completed: the client is gone, or the file cannot be read.
    pub(super) fn pull(
        &mut self,
        engine: &mut ClientConnection,
        stream: StreamKey,
        max: usize,
        task: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Pulled, BodyError> {
        let pulled = match &mut self.content {
            Content::Bytes(bytes) => {
                let piece = bytes.split_to(max.min(bytes.len()));
                let is_end = bytes.is_empty();
                engine.send_data(stream, &piece, is_end, out);
                Pulled::frame(is_end)
            }
            Content::File(reader) => {
                let sent = engine.send_data_with(stream, max, out, |out| {
                    match reader.poll_append(task, max, out) {
                        Poll::Pending => Ok(None),
                        Poll::Ready(Ok(len)) => Ok(Some((len, reader.remaining() == 0))),
                        Poll::Ready(Err(error)) => Err(error),
                    }
                })?;
                sent.map_or(Pulled::Starved, |(_, is_end)| Pulled::frame(is_end))
            }
            Content::Pipe { pipe, rest } => {
                if rest.is_empty() {
                    match pipe.poll_next(task) {
                        Poll::Pending => {
                            self.step = Step::Starved;
                            return Ok(Pulled::Starved);
                        }
                        Poll::Ready(Some(piece)) => *rest = piece?,
                        Poll::Ready(None) if self.left.is_some_and(|left| left > 0) => {
                            return Err(BodyError::Failed("the request is cut off".into()));
                        }
                        Poll::Ready(None) => {
                            engine.finish(stream, None, out);
                            return Ok(Pulled::End);
                        }
                    }
                }
                let piece = rest.split_to(max.min(rest.len()));
                let len = piece.len() as u64;
                if self.left.is_some_and(|left| len > left) {
                    let text = "the request is longer than announced";
                    return Err(BodyError::Failed(text.into()));
                }
                if let Some(left) = &mut self.left {
                    *left -= len;
                }
                // Where the client's end is there already, it goes along: servers then know the length before they begin.
                let is_end = match self.left {
                    Some(left) => left == 0,
                    None => rest.is_empty() && pipe.is_drained(),
                };
                engine.send_data(stream, &piece, is_end, out);
                Pulled::frame(is_end)
            }
        };
        if matches!(pulled, Pulled::Starved) {
            self.step = Step::Starved;
        }
        Ok(pulled)
    }
}

impl Pulled {
    const fn frame(is_end: bool) -> Self {
        if is_end { Self::End } else { Self::Frame }
    }
}
