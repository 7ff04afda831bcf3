//! Sends an HTTP/1 request to the backend: the head, and the body as the socket takes it.

use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2o_exchange::{BodyPipe, BodySource, FileReader, RequestBody};
use h2o_http1::ClientConnection;

use crate::scratch::Scratch;
use crate::stream::UpstreamStream;

/// Limit in bytes of the body data of one write.
const PIECE: usize = 48 * 1024;
/// Limit of the writes per poll of the task.
const PIECES: usize = 16;

/// The part of the request's body that was not sent.
pub(super) enum Content {
    Nothing,
    Bytes(Bytes),
    File(FileReader),
    Stream(Rc<BodyPipe>),
}

impl Content {
    pub(super) fn new(body: RequestBody) -> Self {
        match body {
            RequestBody::None => Self::Nothing,
            RequestBody::Bytes(bytes) => Self::Bytes(bytes),
            RequestBody::File(range) => Self::File(FileReader::new(range)),
            RequestBody::Stream(pipe) => Self::Stream(pipe),
        }
    }
}

impl Drop for Content {
    /// Stops the client's connection from buffering a body that will not be sent.
    fn drop(&mut self) {
        if let Self::Stream(pipe) = self {
            pipe.abandon();
        }
    }
}

/// What must arrive from the backend before the body is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldReason {
    Nothing,
    /// An interim response, or the final one (`expect: 100-continue`).
    Continue,
    /// The response that opens the tunnel.
    Tunnel,
}

/// What sending of a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadProgress {
    /// The request was sent, or sending was given up.
    Done,
    /// The socket takes no more bytes now.
    Blocked,
    /// The client has to send more of the body.
    Starved,
    /// The body is held back until the backend answers; see [`HoldReason`].
    Held,
}

/// A request that is being sent.
pub(super) struct Upload {
    content: Content,
    hold: HoldReason,
    /// Bytes to write to the socket, from index `at` on.
    out: Vec<u8>,
    at: usize,
    /// Whether the TLS layer has sent everything that was written.
    is_flushed: bool,
    /// Number of bytes written so far, including the head.
    pub(super) written: u64,
    /// Whether bytes were written since this flag was last cleared.
    pub(super) has_moved: bool,
    /// Whether the client has ended its direction of a tunnel.
    pub(super) has_client_left: bool,
    /// The message if the body cannot be completed.
    pub(super) broken: Option<&'static str>,
}

impl Upload {
    /// Begins to send a request whose encoded head is in `out`. Body data that is available already is sent with the head.
    pub(super) fn new(
        content: Content,
        hold: HoldReason,
        engine: &mut ClientConnection,
        out: Vec<u8>,
    ) -> Self {
        let mut upload = Self {
            content,
            hold,
            out,
            at: 0,
            is_flushed: false,
            written: 0,
            has_moved: false,
            has_client_left: false,
            broken: None,
        };
        match &mut upload.content {
            // Until the tunnel is open, the request can be sent again over another connection.
            Content::Stream(pipe) if hold == HoldReason::Tunnel => pipe.keep(),
            _ if hold != HoldReason::Nothing => {}
            Content::Nothing => engine.finish(None, &mut upload.out),
            Content::Bytes(_) => upload.send_bytes(engine),
            Content::Stream(pipe) => {
                let mut nobody = Context::from_waker(Waker::noop());
                if pipe.queued() > 0
                    && let Poll::Ready(Some(Ok(piece))) = pipe.poll_next(&mut nobody)
                {
                    engine.send_data(&piece, &mut upload.out);
                }
            }
            Content::File(_) => {}
        }
        upload
    }

    /// Sends the body from now on, if it was held back.
    pub(super) fn release(&mut self) {
        if let (HoldReason::Tunnel, Content::Stream(pipe)) = (self.hold, &self.content) {
            pipe.stop_keeping();
        }
        self.hold = HoldReason::Nothing;
    }

    pub(super) const fn hold(&self) -> HoldReason {
        self.hold
    }

    /// The pipe through which the client's body arrives; `None` if the body is not streamed.
    pub(super) fn pipe(&self) -> Option<Rc<BodyPipe>> {
        match &self.content {
            Content::Stream(pipe) => Some(Rc::clone(pipe)),
            Content::Nothing | Content::Bytes(_) | Content::File(_) => None,
        }
    }

    /// Sends as much of the request as possible. If the backend takes no more bytes, that is no error: it may have responded.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut UpstreamStream,
        engine: &mut ClientConnection,
        scratch: &Scratch,
    ) -> UploadProgress {
        for _ in 0..PIECES {
            match self.poll_written(context, stream) {
                Poll::Pending => return UploadProgress::Blocked,
                Poll::Ready(true) => {}
                Poll::Ready(false) => {
                    self.give_up();
                    return UploadProgress::Done;
                }
            }
            if self.out.capacity() > 0 {
                scratch.put_output(std::mem::take(&mut self.out));
            }
            if self.hold != HoldReason::Nothing {
                return UploadProgress::Held;
            }
            if matches!(self.content, Content::Nothing) {
                return UploadProgress::Done;
            }
            self.out = scratch.take_output();
            if self.poll_content(context, engine, scratch).is_pending() {
                scratch.put_output(std::mem::take(&mut self.out));
                return UploadProgress::Starved;
            }
        }
        context.waker().wake_by_ref();
        UploadProgress::Blocked
    }

    /// Writes the bytes of `out`. Ready with `false` if writing fails.
    fn poll_written(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut UpstreamStream,
    ) -> Poll<bool> {
        while self.at < self.out.len() {
            match stream.poll_send(context, &self.out[self.at..]) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(false),
                Poll::Ready(Ok(written)) => {
                    self.at += written;
                    self.written += written as u64;
                    self.has_moved = true;
                    self.is_flushed = false;
                }
            }
        }
        self.out.clear();
        self.at = 0;
        if !self.is_flushed {
            match stream.poll_flushed(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(result) => self.is_flushed = result.is_ok(),
            }
        }
        Poll::Ready(self.is_flushed)
    }

    /// Moves the next body data into `out`; pending if the client has to send more first.
    fn poll_content(
        &mut self,
        context: &mut Context<'_>,
        engine: &mut ClientConnection,
        scratch: &Scratch,
    ) -> Poll<()> {
        match &mut self.content {
            Content::Nothing => {}
            Content::Bytes(_) => self.send_bytes(engine),
            Content::File(reader) => {
                let mut input = scratch.take_input();
                let read = reader.poll_read(context, &mut input[..PIECE]);
                if let Poll::Ready(Ok(read @ 1..)) = read {
                    engine.send_data(&input[..read], &mut self.out);
                }
                scratch.put_input(input);
                match read {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(0)) => self.finish(engine),
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(_)) => self.break_off(engine, "internal error"),
                }
            }
            Content::Stream(pipe) => match pipe.poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(piece))) => engine.send_data(&piece, &mut self.out),
                Poll::Ready(Some(Err(_))) => {
                    self.break_off(engine, crate::Failure::IO);
                }
                Poll::Ready(None) => {
                    self.has_client_left = true;
                    self.finish(engine);
                }
            },
        }
        Poll::Ready(())
    }

    fn send_bytes(&mut self, engine: &mut ClientConnection) {
        let Content::Bytes(bytes) = &mut self.content else {
            return;
        };
        let piece = bytes.split_to(PIECE.min(bytes.len()));
        engine.send_data(&piece, &mut self.out);
        if bytes.is_empty() {
            self.finish(engine);
        }
    }

    fn finish(&mut self, engine: &mut ClientConnection) {
        self.content = Content::Nothing;
        engine.finish(None, &mut self.out);
    }

    fn break_off(&mut self, engine: &mut ClientConnection, text: &'static str) {
        self.content = Content::Nothing;
        engine.abort(&mut self.out);
        self.broken = Some(text);
    }

    /// Drops the rest of the body.
    fn give_up(&mut self) {
        self.content = Content::Nothing;
        self.hold = HoldReason::Nothing;
        self.out.clear();
        self.at = 0;
        self.is_flushed = true;
    }

    /// Number of bytes of memory held for unsent data.
    pub(super) fn retained(&self) -> usize {
        let content = match &self.content {
            Content::Bytes(bytes) => h2o_exchange::retained(bytes),
            Content::File(reader) => reader.retained(),
            // The client's connection, which fills the body pipe, counts the bytes in it.
            Content::Nothing | Content::Stream(_) => 0,
        };
        self.out.capacity() + content
    }

    /// Whether no part of the request is left to send.
    pub(super) const fn is_done(&self) -> bool {
        matches!(self.content, Content::Nothing) && self.out.is_empty() && self.is_flushed
    }
}
