//! The content of an HTTP/1 response on its way to the socket: pulled when there is room.

use std::io;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};

use bytes::Bytes;
use h2o_exchange::{Body, BodyError, BodySource, FileReader, Trailers};
use h2o_http::{Headers, Known, Name};
use h2o_http1::{BodyMode, ServerConnection};

use crate::context::per_turn;
use crate::flow::Turn;
use crate::splice::Splicing;
use h2o_tls::OFFLOADED_FILE_LEN;

/// Octets of content turned into records or chunks at once. What a client that does not read makes us hold
/// is this much at most.
const PIECE: usize = 48 * 1024;
/// Octets sent by one `sendfile`. The page cache is probed in these steps.
const FILE_PIECE: usize = 512 * 1024;
/// Octets of one response sent before other connections get their turn.
const TURN: usize = per_turn(1024 * 1024);
/// Content up to this size is copied behind the head, so that both leave in one piece.
const INLINE: usize = 8 * 1024;

/// What is left of a response's content.
pub(crate) enum Sending {
    Bytes(Bytes),
    File(FileReader),
    Stream(Box<dyn BodySource>),
    /// A stream, where the connection would take the octets as they are.
    Splice(Splicing),
}

/// How far a call of [`Sending::pump`] got.
pub(crate) enum Pumped {
    /// All content is on its way.
    Done,
    /// The socket takes no more for now.
    Blocked,
    /// The content is not there yet; the waker was kept.
    Waiting,
    /// This connection has had its turn.
    Again,
}

/// Why a response ended early.
pub(crate) enum Broken {
    /// The connection is gone.
    Socket,
    /// The content could not be completed.
    Body(BodyError),
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self::Socket
    }
}

impl From<BodyError> for Broken {
    fn from(error: BodyError) -> Self {
        Self::Body(error)
    }
}

/// Sends the head, which is in the output, and what can go with it at once. Returns what is left of the content.
pub(crate) fn begin(
    turn: &mut Turn<'_>,
    engine: &mut ServerConnection,
    mode: BodyMode,
    body: Body,
    written: &mut u64,
) -> io::Result<Option<Sending>> {
    let left = match body {
        Body::Empty => {
            engine.finish(None, &mut turn.out);
            None
        }
        Body::Bytes(bytes) if bytes.len() <= INLINE => {
            engine.send_data(&bytes, &mut turn.out);
            engine.finish(None, &mut turn.out);
            *written += bytes.len() as u64;
            None
        }
        Body::Bytes(bytes) if bytes.len() <= PIECE => {
            let len = engine.begin_data(bytes.len(), &mut turn.out);
            let mut after = Vec::new();
            engine.end_data(&mut after);
            engine.finish(None, &mut after);
            *written += len as u64;
            if after.is_empty() {
                return turn.send_with(bytes.slice(..len)).map(|()| None);
            }
            turn.out.extend_from_slice(&bytes[..len]);
            turn.out.extend_from_slice(&after);
            None
        }
        Body::Bytes(bytes) => Some(Sending::Bytes(bytes)),
        // In chunks, or with another length than the file's: as any other stream.
        Body::File(range) if mode != BodyMode::Identity(range.len) => {
            Some(Sending::Stream(Box::new(FileReader::new(range))))
        }
        Body::File(range) => {
            if range.len >= OFFLOADED_FILE_LEN {
                turn.connection.io.offload();
            }
            Some(Sending::File(FileReader::new(range)))
        }
        Body::Stream(source)
            if turn.connection.io.tls.is_none() && matches!(mode, BodyMode::Identity(_)) =>
        {
            let pipes = Rc::clone(&turn.context.pipes);
            Some(Sending::Splice(Splicing::new(source, pipes)))
        }
        Body::Stream(source) => Some(Sending::Stream(source)),
    };
    turn.send().map(|()| left)
}

impl Sending {
    /// Sends as much as the socket takes, within this connection's turn.
    pub(crate) fn pump(
        &mut self,
        turn: &mut Turn<'_>,
        engine: &mut ServerConnection,
        task: &mut TaskContext<'_>,
        written: &mut u64,
    ) -> Result<Pumped, Broken> {
        let start = *written;
        loop {
            if turn.connection.io.has_output() {
                return Ok(Pumped::Blocked);
            }
            if *written - start >= TURN as u64 {
                return Ok(Pumped::Again);
            }
            let step = match self {
                Self::Bytes(bytes) => send_bytes(turn, engine, bytes, written)?,
                Self::File(reader) if turn.connection.io.takes_files() => {
                    send_file(turn, engine, reader, task, written)?
                }
                Self::File(reader) => send_records(turn, engine, reader, task, written)?,
                Self::Stream(source) => send_stream(turn, engine, source.as_mut(), task, written)?,
                Self::Splice(splicing) => splicing.send(turn, engine, task, written)?,
            };
            if let Some(pumped) = step {
                return Ok(pumped);
            }
        }
    }
}

impl Sending {
    /// The socket takes nothing for now.
    pub(crate) fn poll_ahead(&mut self, task: &mut TaskContext<'_>) {
        match self {
            Self::Bytes(_) | Self::File(_) => {}
            Self::Stream(source) => source.poll_ahead(task),
            Self::Splice(splicing) => splicing.poll_ahead(task),
        }
    }

    /// Octets of memory held for content that was not sent.
    pub(crate) fn retained(&self) -> usize {
        match self {
            Self::Bytes(bytes) => h2o_exchange::retained(bytes),
            Self::File(reader) => reader.retained(),
            Self::Stream(source) => source.retained(),
            Self::Splice(splicing) => splicing.retained(),
        }
    }
}

pub(crate) type Step = Result<Option<Pumped>, Broken>;

fn finish(turn: &mut Turn<'_>, engine: &mut ServerConnection, trailers: Option<&Headers>) -> Step {
    engine.finish(trailers, &mut turn.out);
    turn.send()?;
    Ok(Some(Pumped::Done))
}

fn send_bytes(
    turn: &mut Turn<'_>,
    engine: &mut ServerConnection,
    bytes: &mut Bytes,
    written: &mut u64,
) -> Step {
    if bytes.is_empty() {
        return finish(turn, engine, None);
    }
    let piece = bytes.split_to(PIECE.min(bytes.len()));
    send_piece(turn, engine, &piece, written)
}

fn send_piece(
    turn: &mut Turn<'_>,
    engine: &mut ServerConnection,
    piece: &[u8],
    written: &mut u64,
) -> Step {
    engine.send_data(piece, &mut turn.out);
    *written += piece.len() as u64;
    turn.send()?;
    Ok(None)
}

/// The length is known, and the octets leave as they are or the kernel encrypts them: the kernel copies from the page cache to the socket.
fn send_file(
    turn: &mut Turn<'_>,
    engine: &mut ServerConnection,
    reader: &mut FileReader,
    task: &mut TaskContext<'_>,
    written: &mut u64,
) -> Step {
    let Some(range) = reader.unread().filter(|range| range.len > 0) else {
        return send_warmed(turn, engine, reader, task, written);
    };
    let len = FILE_PIECE.min(usize::try_from(range.len).unwrap_or(usize::MAX));
    if !range.file.is_cached(range.offset, len) {
        return send_warmed(turn, engine, reader, task, written);
    }
    let sent = turn
        .connection
        .io
        .send_file(range, len)
        .map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::NotConnected
            | io::ErrorKind::TimedOut => Broken::Socket,
            // The disk's, then.
            _ => Broken::Body(BodyError::Local(error)),
        });
    match sent? {
        None => Ok(Some(Pumped::Blocked)),
        Some(0) => Err(BodyError::file_shrunk().into()),
        Some(sent) => {
            // A file's length is known, so there are no chunks: this only counts.
            let counted = engine.begin_data(sent, &mut Vec::new());
            debug_assert_eq!(
                counted, sent,
                "a file is never longer than what was announced"
            );
            reader.skip(sent as u64);
            *written += sent as u64;
            Ok(None)
        }
    }
}

/// What the thread pool has read, or the end.
fn send_warmed(
    turn: &mut Turn<'_>,
    engine: &mut ServerConnection,
    reader: &mut FileReader,
    task: &mut TaskContext<'_>,
    written: &mut u64,
) -> Step {
    if reader.remaining() == 0 {
        engine.finish(None, &mut Vec::new());
        return Ok(Some(Pumped::Done));
    }
    match reader.poll_next(task, PIECE) {
        Poll::Pending => Ok(Some(Pumped::Waiting)),
        Poll::Ready(None) => Ok(None),
        Poll::Ready(Some(piece)) => {
            let piece = piece?;
            let mut framing = Vec::new();
            let len = engine.begin_data(piece.len(), &mut framing);
            *written += len as u64;
            turn.connection.io.send(turn.context, &piece[..len])?;
            Ok(None)
        }
    }
}

/// TLS: read into a lent buffer, encrypted into another, sent.
fn send_records(
    turn: &mut Turn<'_>,
    engine: &mut ServerConnection,
    reader: &mut FileReader,
    task: &mut TaskContext<'_>,
    written: &mut u64,
) -> Step {
    if reader.remaining() == 0 {
        return finish(turn, engine, None);
    }
    let mut buffer = turn.context.scratch.file.take();
    buffer.resize(PIECE, 0);
    let result = match reader.poll_read(task, &mut buffer) {
        Poll::Pending => Ok(Some(Pumped::Waiting)),
        Poll::Ready(Err(error)) => Err(error.into()),
        Poll::Ready(Ok(read)) => {
            let mut framing = Vec::new();
            let len = engine.begin_data(read, &mut framing);
            *written += len as u64;
            turn.connection
                .io
                .send(turn.context, &buffer[..len])
                .map(|()| None)
                .map_err(Into::into)
        }
    };
    turn.context.scratch.file.put(buffer);
    result
}

pub(crate) fn send_stream(
    turn: &mut Turn<'_>,
    engine: &mut ServerConnection,
    source: &mut dyn BodySource,
    task: &mut TaskContext<'_>,
    written: &mut u64,
) -> Step {
    match source.poll_next(task, PIECE) {
        Poll::Pending => Ok(Some(Pumped::Waiting)),
        Poll::Ready(None) => {
            let trailers = trailers(source);
            finish(turn, engine, trailers.as_ref())
        }
        // As it is: nothing is copied together.
        Poll::Ready(Some(piece)) if engine.is_tunnel() => {
            let piece = piece?;
            *written += piece.len() as u64;
            turn.connection.io.send(turn.context, &piece)?;
            Ok(None)
        }
        Poll::Ready(Some(piece)) => send_piece(turn, engine, &piece?, written),
    }
}

/// What follows the content over HTTP/1: times, nothing else that a backend may have sent (H2O compatibility).
fn trailers(source: &mut dyn BodySource) -> Option<Headers> {
    match source.trailers() {
        Trailers::None | Trailers::Unknown => None,
        Trailers::Fields(mut fields) => {
            fields.retain(|field| field.name == Name::Known(Known::ServerTiming));
            (!fields.is_empty()).then_some(fields)
        }
    }
}
