//! One request over a connection to a FastCGI application: sends its content, and reads the records of the response.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use h2o_exchange::{BodyPipe, BodySource, FileReader, RequestBody, Worker};
use h2o_http::Headers;

use super::head::{self, Head, HeadError};
use super::record::{self, Received, RecordReader};
use super::{Connection, FastcgiError, FastcgiRequest, OnStderr, head_end};
use crate::UpstreamSettings;
use crate::balancer::InUse;
use crate::pool::LocalState;
use crate::ready_body::ReadyBody;

/// Largest number of content bytes that are put into one record, and of bytes that are read from the socket at a time.
const PIECE: usize = 16 * 1024;

/// A request in progress. Dropping this closes the connection, so that the application learns that its response is not needed.
pub(super) struct FastcgiExchange {
    connection: Box<Connection>,
    local: Rc<LocalState>,
    /// Counts the request, while it is in progress, among those of its application, for the load balancer.
    _in_use: Option<InUse>,
    worker: Rc<Worker>,
    keeps_connection: bool,
    content: Content,
    /// What was not sent of a request without content, in memory that all attempts share.
    records: Bytes,
    /// What was not sent of the records of a request with content, as far as they have been put together.
    out: BytesMut,
    input: BytesMut,
    reader: RecordReader,
    /// An empty header block with memory for the fields of the response.
    pub(super) headers: Headers,
    /// A complete response that was received by the first read, until [`FastcgiExchange::poll_whole`] returns it.
    whole: Option<WholeResponse>,
    /// Whether the timer of the I/O timeout runs.
    is_waiting: bool,
    /// Whether any byte of the request has been sent.
    pub(super) has_sent: bool,
    /// Whether any byte of the response has been received.
    pub(super) has_received: bool,
    /// Whether the application may have responded without reading the whole request: the response began before the whole request was
    /// sent, and has not paused since.
    is_early: bool,
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

/// A response that a single read has brought.
#[derive(Debug)]
pub(super) struct WholeResponse {
    pub(super) head: Result<Head, HeadError>,
    pub(super) content: Bytes,
}

/// The next part of a response.
#[derive(Debug)]
pub(super) enum Part {
    Content(Bytes),
    /// The application sent END_REQUEST; `is_overloaded` says whether the record's status is FCGI_OVERLOADED.
    End {
        is_overloaded: bool,
    },
    /// The application has closed the connection. H2O compatibility: after the head that ends a response, even without END_REQUEST.
    Closed,
}

impl FastcgiExchange {
    /// Begins a request with these parameters and this content. `headers` is empty and keeps its memory from earlier responses.
    pub(super) fn begin(
        local: &Rc<LocalState>,
        worker: &Rc<Worker>,
        connection: Box<Connection>,
        request: &FastcgiRequest<'_>,
        body: &ReadyBody,
        headers: Headers,
    ) -> Self {
        let upstream = &local.upstream;
        let keeps_connection = !upstream.settings.keepalive.is_zero();
        let content = match body.to_send() {
            RequestBody::None => Content::Ended,
            RequestBody::Bytes(bytes) if bytes.is_empty() => Content::Ended,
            RequestBody::Bytes(bytes) => Content::Bytes(bytes),
            RequestBody::File(range) => Content::File(FileReader::new(range)),
            RequestBody::Stream(pipe) => Content::Stream(pipe),
        };
        let (records, out) = match content {
            Content::Ended => (
                Bytes::clone(request.records.without_content()),
                BytesMut::new(),
            ),
            _ => (Bytes::new(), request.records.before_content().into()),
        };
        Self {
            _in_use: InUse::begin(upstream, connection.backend),
            connection,
            local: Rc::clone(local),
            worker: Rc::clone(worker),
            keeps_connection,
            content,
            records,
            out,
            input: BytesMut::new(),
            reader: RecordReader::default(),
            headers,
            whole: None,
            is_waiting: false,
            has_sent: false,
            has_received: false,
            is_early: false,
            on_stderr: Rc::clone(&request.on_stderr),
        }
    }

    /// Index, among the backends of the upstream, of the application that gets the request.
    pub(super) const fn backend(&self) -> usize {
        self.connection.backend
    }

    /// The settings of the upstream.
    pub(super) fn settings(&self) -> &UpstreamSettings {
        &self.local.upstream.settings
    }

    /// Whether the whole request has been sent.
    fn is_sent(&self) -> bool {
        matches!(self.content, Content::Ended) && !self.has_output()
    }

    /// Whether there are bytes that the socket has not taken.
    fn has_output(&self) -> bool {
        !self.records.is_empty() || !self.out.is_empty()
    }

    /// Sends as much of the request as the socket takes. Returns whether sending can continue only when the client has sent more of the
    /// request body.
    fn poll_upload(&mut self, context: &mut Context<'_>) -> Result<bool, FastcgiError> {
        loop {
            // Content that has already arrived, and the record that ends the content, are sent in one write with the output before
            // them: a request without content costs one write.
            let mut is_starved = false;
            while self.out.len() < PIECE && !is_starved && !matches!(self.content, Content::Ended) {
                is_starved = self.poll_content(context)?.is_pending();
            }
            if !self.has_output() {
                return Ok(is_starved);
            }
            while self.has_output() {
                let is_shared = !self.records.is_empty();
                let unsent: &[u8] = if is_shared { &self.records } else { &self.out };
                match self.connection.stream.poll_send(context, unsent) {
                    Poll::Pending => return Ok(false),
                    Poll::Ready(Ok(sent @ 1..)) => {
                        if is_shared {
                            self.records.advance(sent);
                        } else {
                            self.out.advance(sent);
                        }
                        self.has_sent = true;
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
        self.records.clear();
        self.out.clear();
    }

    /// Sends the request, and waits for the first bytes of the response. Returns the response if they are all of it; then no part follows.
    pub(super) fn poll_whole(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<WholeResponse>, FastcgiError>> {
        let awaits_client = self.poll_upload(context)?;
        // If the application has closed the connection, the next part says so.
        std::task::ready!(self.poll_received(context, awaits_client))?;
        Poll::Ready(Ok(self.whole.take()))
    }

    /// Returns the next part of the response, with at most `max` bytes of content. Sends the rest of the request meanwhile.
    pub(super) fn poll_part(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Part, FastcgiError>> {
        let awaits_client = self.poll_upload(context)?;
        loop {
            if let Some(part) = self.take_part(max)? {
                self.is_waiting = false;
                return Poll::Ready(Ok(part));
            }
            if !std::task::ready!(self.poll_received(context, awaits_client))? {
                self.stop_upload();
                return Poll::Ready(if self.reader.is_between_records(&self.input) {
                    Ok(Part::Closed)
                } else {
                    Err(FastcgiError::Closed)
                });
            }
        }
    }

    /// Reads once from the socket, within the time limits. Returns false at the end of the connection. `awaits_client` says whether the
    /// upload waits for the client.
    fn poll_received(
        &mut self,
        context: &mut Context<'_>,
        awaits_client: bool,
    ) -> Poll<Result<bool, FastcgiError>> {
        match self.poll_read(context) {
            Poll::Ready(read) => {
                self.is_waiting = false;
                Poll::Ready(read)
            }
            Poll::Pending if awaits_client => {
                // While the server waits for the client, only the client's timeouts apply.
                self.is_waiting = false;
                self.connection.timer.clear();
                Poll::Pending
            }
            Poll::Pending => {
                let is_sent = self.is_sent();
                self.is_early &= !is_sent;
                if !self.is_waiting {
                    self.is_waiting = true;
                    let settings = &self.local.upstream.settings;
                    (self.connection.timer).set_after(if is_sent && !self.has_received {
                        settings.first_byte_timeout
                    } else {
                        settings.io_timeout
                    });
                }
                let timer = &mut self.connection.timer;
                timer
                    .poll_fired(context)
                    .map(|()| Err(FastcgiError::TimedOut))
            }
        }
    }

    /// Returns the next part of the response from the bytes that have been received; `None` if they do not contain one.
    pub(super) fn take_part(&mut self, max: usize) -> Result<Option<Part>, FastcgiError> {
        loop {
            match self.reader.next(&mut self.input, max) {
                Received::NeedMore => return Ok(None),
                Received::Stdout(content) => {
                    self.is_early |= !self.is_sent();
                    return Ok(Some(Part::Content(content)));
                }
                Received::Stderr(text) => (self.on_stderr)(&text),
                Received::Unexpected(kind) => return Err(FastcgiError::UnexpectedRecord(kind)),
                Received::End { is_overloaded } => {
                    // An application that has not read the whole content of this request might take the rest for the next request on the
                    // connection.
                    self.keeps_connection &=
                        self.is_sent() && !self.is_early && self.reader.is_clean(&self.input);
                    self.stop_upload();
                    return Ok(Some(Part::End { is_overloaded }));
                }
            }
        }
    }

    /// Reads once from the socket. Returns false at the end of the connection. A reset is the end, too, if the application has not read the
    /// whole request: the kernel then resets a connection that the application closes.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, FastcgiError>> {
        let scratch = Rc::clone(&self.local.scratch);
        let mut buffer = scratch.take_input();
        let piece = &mut buffer[..PIECE];
        let read = self.connection.stream.poll_receive(context, piece);
        let len = match read {
            Poll::Ready(Ok(len)) => len,
            Poll::Ready(Err(_)) | Poll::Pending => 0,
        };
        if len > 0 {
            let received = &piece[..len];
            // A response that has begun before the whole request was sent is read record by record, because its connection may not be kept.
            if !self.has_received && self.is_sent() {
                self.whole = WholeResponse::parse(received, &mut self.headers);
            }
            if self.whole.is_none() {
                self.input.extend_from_slice(received);
            }
            self.has_received = true;
        } else if self.input.is_empty() {
            // No buffer is kept while nothing arrives, so that a slow application costs no memory.
            self.input = BytesMut::new();
        }
        scratch.put_input(buffer);
        read.map(|read| match read {
            Err(_) if self.is_sent() && !self.is_early => Err(FastcgiError::Closed),
            Ok(_) | Err(_) => Ok(len > 0),
        })
    }

    /// Puts the connection into the pool after END_REQUEST, if it can be used again.
    pub(super) fn finish(self) {
        let backend = self.connection.backend;
        if self.keeps_connection && !self.local.upstream.is_down(backend) {
            self.connection.timer.clear();
            (self.local.fastcgi).put(backend, self.connection, &self.worker);
        }
    }

    /// Number of bytes of memory held.
    pub(super) fn retained(&self) -> usize {
        let content = match &self.content {
            Content::Bytes(bytes) => h2o_exchange::retained(bytes),
            Content::File(reader) => reader.retained(),
            // The client's connection, which fills the body pipe, counts the bytes in it.
            Content::Stream(_) | Content::Ended => 0,
        };
        let records = h2o_exchange::retained(&self.records);
        records + self.out.capacity() + self.input.capacity() + content
    }
}

impl WholeResponse {
    /// Reads a response whose first bytes are those of `received`. `None` if these are not the whole of a successful response, without
    /// messages for the error log.
    fn parse(received: &[u8], headers: &mut Headers) -> Option<Self> {
        let response = record::whole_response(received)?;
        let (block, content) = response.split_at(head_end(response, 0)?);
        Some(Self {
            head: head::parse(block, std::mem::take(headers)),
            content: Bytes::copy_from_slice(content),
        })
    }
}
