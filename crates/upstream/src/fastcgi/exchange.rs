//! One request over a connection to a FastCGI application: sends its content, and reads the records of the response.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use h2o_exchange::{BodyPipe, BodySource, FileReader, RequestBody, Timer, Worker};

use super::record::{self, Received, RecordReader};
use super::{FastcgiError, OnStderr};
use crate::idle_pool::IdlePool;
use crate::stream::UpstreamStream;

/// Length in bytes of the content that is put into one record, and of a read.
const PIECE: usize = 16 * 1024;

/// A request in progress. Dropping this closes the connection, so that the application learns that its response is not needed.
pub(super) struct FastcgiExchange {
    stream: UpstreamStream,
    pool: Rc<IdlePool<UpstreamStream>>,
    backend: usize,
    worker: Rc<Worker>,
    keeps_connection: bool,
    content: Content,
    out: BytesMut,
    input: BytesMut,
    reader: RecordReader,
    timer: Timer,
    limit: Duration,
    /// Whether the timer of the I/O timeout runs.
    is_waiting: bool,
    /// Whether any byte of the response has been received.
    pub(super) has_received: bool,
    on_stderr: OnStderr,
}

/// The part of the request's content that was not sent.
enum Content {
    Bytes(Bytes),
    File(FileReader),
    Stream(Rc<BodyPipe>),
    /// The end of the content has been put into the output.
    Ended,
}

/// A connection to a FastCGI application, and the pool that it returns to after the request.
pub(super) struct Pooled {
    pub(super) stream: UpstreamStream,
    pub(super) pool: Rc<IdlePool<UpstreamStream>>,
    pub(super) backend: usize,
}

/// The next part of a response.
#[derive(Debug)]
pub(super) enum Part {
    Content(Bytes),
    /// The application sent END_REQUEST. The connection has been returned to the pool or closed.
    End,
    /// The application has closed the connection.
    Closed,
}

impl FastcgiExchange {
    /// Begins a request with these parameters and this content.
    pub(super) fn begin(
        connection: Pooled,
        worker: &Rc<Worker>,
        parameters: &[u8],
        body: &RequestBody,
        on_stderr: &OnStderr,
    ) -> Self {
        let Pooled {
            stream,
            pool,
            backend,
        } = connection;
        let settings = pool.settings();
        let keeps_connection = !settings.keepalive.is_zero();
        let mut out = BytesMut::with_capacity(parameters.len() + 64);
        record::encode_begin(keeps_connection, parameters, &mut out);
        let content = match body {
            RequestBody::None => Content::Bytes(Bytes::new()),
            RequestBody::Bytes(bytes) => Content::Bytes(bytes.clone()),
            RequestBody::File(range) => Content::File(FileReader::new(range.clone())),
            RequestBody::Stream(pipe) => Content::Stream(Rc::clone(pipe)),
        };
        Self {
            stream,
            backend,
            worker: Rc::clone(worker),
            keeps_connection,
            content,
            out,
            input: BytesMut::new(),
            reader: RecordReader::default(),
            timer: Timer::new(&worker.timers),
            limit: settings.io_timeout,
            is_waiting: false,
            has_received: false,
            on_stderr: Rc::clone(on_stderr),
            pool,
        }
    }

    /// Sends as much of the request as the socket takes. Returns whether sending can continue only when the client sends more of
    /// the request body.
    fn poll_upload(&mut self, context: &mut Context<'_>) -> Result<bool, FastcgiError> {
        loop {
            while !self.out.is_empty() {
                match self.stream.poll_send(context, &self.out) {
                    Poll::Pending => return Ok(false),
                    Poll::Ready(Ok(sent @ 1..)) => {
                        self.out.advance(sent);
                        self.is_waiting = false;
                    }
                    // Writing failed: stop the upload, but keep reading, since the application may already have
                    // responded.
                    Poll::Ready(Ok(0) | Err(_)) => {
                        self.stop_upload();
                        self.keeps_connection = false;
                        return Ok(false);
                    }
                }
            }
            if matches!(self.content, Content::Ended) {
                return Ok(false);
            }
            if self.poll_content(context)?.is_pending() {
                return Ok(true);
            }
        }
    }

    /// Moves the next piece of content into the output buffer.
    fn poll_content(&mut self, context: &mut Context<'_>) -> Result<Poll<()>, FastcgiError> {
        let piece = match &mut self.content {
            Content::Ended => return Ok(Poll::Ready(())),
            Content::Bytes(bytes) => bytes.split_to(PIECE.min(bytes.len())),
            Content::File(reader) => {
                let mut piece = vec![0; PIECE];
                match reader.poll_read(context, &mut piece) {
                    Poll::Pending => return Ok(Poll::Pending),
                    Poll::Ready(Ok(len)) => piece.truncate(len),
                    Poll::Ready(Err(_)) => return Err(FastcgiError::Client),
                }
                piece.into()
            }
            Content::Stream(pipe) => match pipe.poll_next(context) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(Some(Ok(piece))) => piece,
                Poll::Ready(None) => Bytes::new(),
                Poll::Ready(Some(Err(_))) => return Err(FastcgiError::Client),
            },
        };
        if piece.is_empty() {
            record::encode_stdin_end(&mut self.out);
            self.content = Content::Ended;
        } else {
            record::encode_stdin(&piece, &mut self.out);
        }
        Ok(Poll::Ready(()))
    }

    /// Drops the part of the request body that has not been sent, because the application no longer reads it.
    fn stop_upload(&mut self) {
        if let Content::Stream(pipe) = &self.content {
            pipe.abandon();
        }
        self.content = Content::Ended;
        self.out.clear();
    }

    /// Returns the next part of the response, with at most `max` bytes of content. Sends the rest of the request meanwhile.
    pub(super) fn poll_part(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Part, FastcgiError>> {
        let awaits_client = match self.poll_upload(context) {
            Ok(awaits_client) => awaits_client,
            Err(error) => return Poll::Ready(Err(error)),
        };
        loop {
            if let Some(part) = self.take_part(max)? {
                self.is_waiting = false;
                return Poll::Ready(Ok(part));
            }
            match self.poll_read(context) {
                Poll::Ready(true) => self.is_waiting = false,
                Poll::Ready(false) => {
                    self.stop_upload();
                    return Poll::Ready(Ok(Part::Closed));
                }
                Poll::Pending if awaits_client => {
                    // While the server waits for the client, only the client's timeouts apply.
                    self.is_waiting = false;
                    self.timer.clear();
                    return Poll::Pending;
                }
                Poll::Pending => {
                    if !self.is_waiting {
                        self.is_waiting = true;
                        self.timer.set_after(self.limit);
                    }
                    return self
                        .timer
                        .poll_fired(context)
                        .map(|()| Err(FastcgiError::IoTimeout));
                }
            }
        }
    }

    /// Returns the next part of the response from the bytes that have been received; `None` if they do not contain one.
    pub(super) fn take_part(&mut self, max: usize) -> Result<Option<Part>, FastcgiError> {
        loop {
            match self.reader.next(&mut self.input, max) {
                Received::NeedMore => return Ok(None),
                Received::Stdout(content) => return Ok(Some(Part::Content(content))),
                Received::Stderr(text) => (self.on_stderr)(&text),
                Received::Unexpected(kind) => return Err(FastcgiError::UnexpectedRecord(kind)),
                Received::End => {
                    let is_sent = matches!(self.content, Content::Ended) && self.out.is_empty();
                    self.keeps_connection &= is_sent && self.reader.is_clean(&self.input);
                    self.stop_upload();
                    return Ok(Some(Part::End));
                }
            }
        }
    }

    /// Reads once from the socket. Returns false at the end of the connection.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let at = self.input.len();
        self.input.resize(at + PIECE, 0);
        let read = self.stream.poll_receive(context, &mut self.input[at..]);
        let len = match read {
            Poll::Ready(Ok(len)) => len,
            Poll::Ready(Err(_)) | Poll::Pending => 0,
        };
        self.input.truncate(at + len);
        if self.input.is_empty() && len == 0 {
            // No buffer is kept while nothing arrives, so that a slow application costs no memory.
            self.input = BytesMut::new();
        }
        self.has_received |= len > 0;
        read.map(|_| len > 0)
    }

    /// Puts the connection into the pool after END_REQUEST, if it can be used again.
    pub(super) fn finish(self) {
        if self.keeps_connection {
            self.pool.put(self.backend, self.stream, &self.worker);
        }
    }

    /// Number of bytes of memory held.
    pub(super) fn retained(&self) -> usize {
        let content = match &self.content {
            Content::Bytes(bytes) => h2o_exchange::retained(bytes),
            Content::File(reader) => reader.retained(),
            // The client's connection counts the bytes in the pipe.
            Content::Stream(_) | Content::Ended => 0,
        };
        self.out.capacity() + self.input.capacity() + content
    }
}
