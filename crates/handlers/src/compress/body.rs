//! A body that is compressed while it is pulled.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use h2o_exchange::{BodyError, BodySource, Trailers, Worker};
use tokio::task::JoinHandle;

use super::encoder::{Encoder, Method, SpareEncoders};
use super::operation::{EncoderError, Operation};

/// The compressed form of a body.
pub(super) struct CompressedBody {
    source: Box<dyn BodySource>,
    worker: Rc<Worker>,
    method: Method,
    stage: Stage,
    /// Bytes of memory that the compressor holds, noted here because the compressor itself may be in use by another
    /// thread.
    memory: usize,
    /// Uncompressed bytes from the source that were collected and not compressed yet.
    input: BytesMut,
    /// Whether the compressor may hold bytes back that it was given.
    is_holding: bool,
    /// Compressed bytes that the engine has not pulled yet.
    output: Bytes,
    /// Bytes that are still expected from the source, if the length of the uncompressed body was announced.
    left: Option<u64>,
    /// The turn of the event loop in which a piece was compressed last.
    turn: u64,
    /// Whether the source has reported its end. It may do so later than all of the body is compressed, since it still passes the
    /// request's body on.
    is_source_over: bool,
}

enum Stage {
    Reading(Encoder),
    /// Another thread compresses a piece, and then flushes or finishes the encoder if the operation says so.
    Away(JoinHandle<Piece>, Operation),
    /// The last piece was compressed; its bytes are in `output`.
    Ended,
}

/// A compressor that another thread returns, with its output.
type Piece = (Encoder, Result<Vec<u8>, EncoderError>);

impl CompressedBody {
    /// Compresses the body `source`, whose length is `len` if that is known.
    pub(super) fn new(
        source: Box<dyn BodySource>,
        worker: &Rc<Worker>,
        method: Method,
        encoder: Encoder,
        len: Option<u64>,
    ) -> Self {
        Self {
            source,
            worker: Rc::clone(worker),
            method,
            memory: encoder.memory(),
            stage: Stage::Reading(encoder),
            input: BytesMut::new(),
            is_holding: false,
            output: Bytes::new(),
            left: len,
            turn: u64::MAX,
            is_source_over: false,
        }
    }

    /// The next piece to compress, with what to do after it. If the source pauses, all bytes that it has returned are
    /// flushed, so that a client gets each part of a streamed response when it is made.
    fn poll_input(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(Bytes, Operation), BodyError>> {
        let max = self.method.piece();
        // Pieces of the body from this length on are compressed where they are; shorter ones are collected first.
        let uncopied = max / 2;
        loop {
            let piece = match self.source.poll_next(context, max - self.input.len()) {
                Poll::Ready(Some(piece)) => piece?,
                Poll::Ready(None) if self.left.is_some_and(|left| left > 0) => {
                    return Poll::Ready(Err(wrong_length("shorter")));
                }
                Poll::Ready(None) => {
                    self.is_source_over = true;
                    return Poll::Ready(Ok((self.input.split().freeze(), Operation::Finish)));
                }
                Poll::Pending if self.left == Some(0) || self.source.is_complete() => {
                    return Poll::Ready(Ok((self.input.split().freeze(), Operation::Finish)));
                }
                Poll::Pending if self.input.is_empty() && !self.is_holding => {
                    return Poll::Pending;
                }
                Poll::Pending => {
                    return Poll::Ready(Ok((self.input.split().freeze(), Operation::Flush)));
                }
            };
            if piece.is_empty() {
                // An empty piece means that the source lets other connections run first, so the source is polled again
                // in a later turn of the event loop.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if let Some(left) = &mut self.left {
                *left = left
                    .checked_sub(piece.len() as u64)
                    .ok_or_else(|| wrong_length("longer"))?;
            }
            if self.input.is_empty() && piece.len() >= uncopied {
                return Poll::Ready(Ok((piece, Operation::Continue)));
            }
            self.input.extend_from_slice(&piece);
            if self.input.len() >= uncopied {
                return Poll::Ready(Ok((self.input.split().freeze(), Operation::Continue)));
            }
        }
    }

    /// Polls the source after the end of the body: it may still have to pass the rest of the request's body on.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        match self.source.poll_next(context, 1) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(piece))) if piece.is_empty() => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Some(Ok(_))) => Poll::Ready(Some(Err(wrong_length("longer")))),
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error))),
            Poll::Ready(None) => {
                self.is_source_over = true;
                Poll::Ready(None)
            }
        }
    }

    fn compress(
        &mut self,
        mut encoder: Encoder,
        piece: Bytes,
        operation: Operation,
    ) -> Result<(), BodyError> {
        self.turn = self.worker.clock.turn();
        let work = move || -> Piece {
            let mut output = Vec::new();
            let result = encoder.encode(&piece, operation, &mut output);
            (encoder, result.map(|()| output))
        };
        if self.method.is_slow() {
            self.stage = Stage::Away(tokio::task::spawn_blocking(work), operation);
            return Ok(());
        }
        self.finish_piece(work(), operation)
    }

    fn finish_piece(&mut self, piece: Piece, operation: Operation) -> Result<(), BodyError> {
        let (encoder, output) = piece;
        self.memory = encoder.memory();
        self.is_holding = operation == Operation::Continue;
        self.output = output.map_err(|EncoderError| failed())?.into();
        if operation == Operation::Finish {
            SpareEncoders::put_back(&self.worker, self.method, encoder);
            self.memory = 0;
        } else {
            self.stage = Stage::Reading(encoder);
        }
        Ok(())
    }
}

fn failed() -> BodyError {
    BodyError::Failed("the response body could not be compressed".into())
}

fn wrong_length(how: &str) -> BodyError {
    BodyError::Failed(format!("the response body is {how} than announced"))
}

impl BodySource for CompressedBody {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        while self.output.is_empty() {
            match std::mem::replace(&mut self.stage, Stage::Ended) {
                Stage::Ended if self.is_source_over => return Poll::Ready(None),
                Stage::Ended => return self.poll_rest(context),
                Stage::Away(mut task, operation) => {
                    let Poll::Ready(done) = Pin::new(&mut task).poll(context) else {
                        self.stage = Stage::Away(task, operation);
                        return Poll::Pending;
                    };
                    self.finish_piece(done.map_err(|_| failed())?, operation)?;
                }
                Stage::Reading(encoder) if self.turn == self.worker.clock.turn() => {
                    // The compressor has already compressed a piece in this turn of the event loop: other connections
                    // run first.
                    self.stage = Stage::Reading(encoder);
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Stage::Reading(encoder) => {
                    let Poll::Ready(input) = self.poll_input(context) else {
                        self.stage = Stage::Reading(encoder);
                        return Poll::Pending;
                    };
                    let (piece, operation) = input?;
                    self.compress(encoder, piece, operation)?;
                }
            }
        }
        let len = max.min(self.output.len());
        Poll::Ready(Some(Ok(self.output.split_to(len))))
    }

    fn trailers(&mut self) -> Trailers {
        self.source.trailers()
    }

    fn is_complete(&self) -> bool {
        matches!(self.stage, Stage::Ended) && self.output.is_empty()
    }

    fn poll_ahead(&mut self, context: &mut Context<'_>) {
        self.source.poll_ahead(context);
    }

    fn retained(&self) -> usize {
        self.source.retained() + self.memory + self.input.capacity() + self.output.len()
    }
}
