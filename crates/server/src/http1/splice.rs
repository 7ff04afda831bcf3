//! Moves response bodies from a backend's socket to the client's within the kernel, through a pipe (`splice(2)`).

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};

use h2o_exchange::{BodyError, BodySource};
use h2o_http1::ServerConnection;

use crate::event::pipes::{Pipe, Pipes};
use crate::flow::Turn;
use crate::request::PullResult;

/// The transfer within the kernel of a response's body that is sent without chunks and without encryption by this process.
pub(super) struct Splicing {
    /// The pipe between the two sockets; present from the first spliced bytes on.
    pipe: Option<Pipe>,
    pipes: Rc<Pipes>,
    /// Whether no pipe was available, so that the rest of the body is copied.
    copies: bool,
}

/// Why a transfer within the kernel has failed.
pub(super) enum TransferError {
    Socket,
    Body(BodyError),
}

impl From<io::Error> for TransferError {
    fn from(_: io::Error) -> Self {
        Self::Socket
    }
}

impl From<BodyError> for TransferError {
    fn from(error: BodyError) -> Self {
        Self::Body(error)
    }
}

impl Splicing {
    pub(super) const fn new(pipes: Rc<Pipes>) -> Self {
        Self {
            pipe: None,
            pipes,
            copies: false,
        }
    }

    /// Moves the next piece of the body within the kernel. Returns `None` if the piece must be copied instead.
    pub(super) fn send(
        &mut self,
        turn: &mut Turn<'_>,
        engine: &mut ServerConnection,
        source: &mut dyn BodySource,
        task: &mut TaskContext<'_>,
    ) -> Result<Option<PullResult>, TransferError> {
        if let Some(pipe) = self.pipe.as_mut().filter(|pipe| pipe.held > 0) {
            let io = &mut turn.connection.io;
            let Some(sent) = io.send_piped(pipe.read.as_fd(), pipe.held)? else {
                return Ok(Some(PullResult::Blocked));
            };
            pipe.held -= sent;
            // The length of the body is known, so it is sent without chunks, and the engine only counts its bytes.
            let counted = engine.begin_data(sent, &mut Vec::new());
            debug_assert_eq!(
                counted, sent,
                "the response has a known length, so the engine counts all piped bytes"
            );
            return Ok(Some(PullResult::Data {
                len: sent,
                is_end: false,
            }));
        }
        if self.copies {
            return Ok(None);
        }
        let Some(source) = source.splice() else {
            return Ok(None);
        };
        let Some(pipe) = self.pipes.lend(&mut self.pipe) else {
            self.copies = true;
            return Ok(None);
        };
        match source.poll_splice(task, pipe.write.as_fd(), pipe.capacity) {
            Poll::Pending => Ok(Some(PullResult::Waiting)),
            Poll::Ready(moved) => {
                pipe.held = moved?;
                Ok(Some(PullResult::Data {
                    len: 0,
                    is_end: false,
                }))
            }
        }
    }
}

impl Drop for Splicing {
    fn drop(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            self.pipes.put(pipe);
        }
    }
}
