//! Collects a request body before a handler runs: in memory, or in a temporary file.

use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use bytes::Bytes;
use h2o_exchange::{
    ByteQueue, Exchange, FileRange, RequestBody, Response, TempFile, TempFiles, WriteError,
};
use h2o_http::BodyLength;

use super::answers;
use super::guards::WaitingGuard;
use crate::context::Context;
use crate::setup::Setup;

/// Bytes of an unwanted body that are read before the response, so that the connection can be used again, and because some
/// clients take an early response for a failure.
const UNWANTED: u64 = 64 * 1024;
/// Bytes per write by a disk thread.
const WRITE_PIECE: usize = 256 * 1024;
/// Number of bytes that may wait in memory until the disk has taken them; with more, the client has to wait.
const MAX_UNWRITTEN: usize = 2 * WRITE_PIECE;

/// A body that is being collected.
pub(super) struct BodyCollection {
    pub(super) collector: Collector,
    /// Number of received bytes for which the client's flow-control window was not raised again, because the disk is slow.
    pub(super) owed: usize,
    /// Whether all of the body has come.
    pub(super) is_complete: bool,
    /// The guard (a handler that only refuses or lets through) that has not decided yet whether the body may be collected.
    pub(super) guard: Option<WaitingGuard>,
}

impl BodyCollection {
    pub(super) const fn new(collector: Collector, guard: Option<WaitingGuard>) -> Self {
        Self {
            collector,
            owed: 0,
            is_complete: false,
            guard,
        }
    }

    /// Bytes of memory held.
    pub(super) fn retained(&self) -> usize {
        self.collector.retained()
    }
}

/// The part of a body received so far.
pub(crate) enum Collector {
    Memory {
        content: ByteQueue,
        /// Length in bytes from which on the body is written to a file.
        threshold: usize,
        /// Greatest length in bytes.
        max: u64,
    },
    /// A body that is large, or announced to be.
    File(Box<FileWriter>),
    /// No handler reads the body. `left`: bytes that may still be received and dropped.
    Unwanted { left: u64 },
}

/// A body that is written to a temporary file.
pub(crate) struct FileWriter {
    file: TempFile,
    /// Number of bytes of the body that have come so far, and the most that may come.
    len: u64,
    max: u64,
    written: u64,
    /// Bytes of the body that no disk thread has been given yet.
    queue: ByteQueue,
}

/// Why a piece of a body was not collected.
pub(crate) enum CollectError {
    /// No handler wants the body, and it is longer than what the server reads of such bodies.
    Unwanted,
    /// The body cannot be stored.
    Failed(StorageError),
}

/// Why a body cannot be stored.
pub(crate) enum StorageError {
    /// The body is larger than `temp-buffer-max-size`.
    TooLarge,
    /// The temporary files of the process are at their limit.
    NoRoom,
    /// Writing failed.
    Disk(WriteError),
}

impl StorageError {
    /// Makes the response to the request, and notes the reason for the error log.
    pub(crate) fn answer(&self, context: &Context, exchange: &mut Exchange) -> Response {
        let (reason, response) = match self {
            Self::TooLarge => return answers::too_large(context),
            Self::NoRoom => (
                "temp-buffer-max-total is reached".to_owned(),
                answers::no_room(context),
            ),
            Self::Disk(unwritten) => (unwritten.error.to_string(), answers::no_disk(context)),
        };
        let note = format!("failed to write the request body to a temporary file: {reason}");
        exchange.note_error("core", &note);
        response
    }
}

impl Collector {
    /// A collector for a body of the `announced` length.
    pub(crate) fn new(context: &Context, setup: &Setup, announced: BodyLength) -> Self {
        let announced = match announced {
            BodyLength::Known(len) => Some(len),
            BodyLength::None | BodyLength::Unknown | BodyLength::Tunnel => None,
        };
        let threshold = setup.temp_buffer_threshold;
        // A body whose announced length is large goes to a temporary file from the start.
        if announced.is_some_and(|len| len >= threshold) {
            return Self::File(Box::new(FileWriter::new(
                context,
                setup.temp_buffer_max_size,
            )));
        }
        Self::Memory {
            content: ByteQueue::default(),
            threshold: usize::try_from(threshold).unwrap_or(usize::MAX),
            max: setup.temp_buffer_max_size,
        }
    }

    /// Like [`Collector::new`], for a body that no handler reads. `None`: it is too long to be read.
    pub(crate) fn unwanted(announced: BodyLength) -> Option<Self> {
        let is_short = !matches!(announced, BodyLength::Known(len) if len > UNWANTED);
        is_short.then_some(Self::Unwanted { left: UNWANTED })
    }

    /// Adds a piece.
    pub(crate) fn push(&mut self, context: &Context, piece: &[u8]) -> Result<(), CollectError> {
        match self {
            Self::Unwanted { left } => {
                let rest = left.checked_sub(piece.len() as u64);
                *left = rest.ok_or(CollectError::Unwanted)?;
                Ok(())
            }
            Self::File(writer) => writer.push(piece),
            Self::Memory {
                content,
                threshold,
                max,
            } => {
                content.push(piece);
                if content.len() >= *threshold {
                    let content = std::mem::take(content);
                    let mut writer = Box::new(FileWriter::new(context, *max));
                    writer.push_all(content)?;
                    *self = Self::File(writer);
                }
                Ok(())
            }
        }
    }

    /// Whether the body is dropped.
    pub(crate) const fn is_unwanted(&self) -> bool {
        matches!(self, Self::Unwanted { .. })
    }

    /// Whether [`Collector::poll_room`] and [`Collector::poll_whole`] may have to wait for the disk.
    pub(crate) const fn needs_disk(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// Ready when there is space for more.
    pub(crate) fn poll_room(
        &mut self,
        task: &mut TaskContext<'_>,
    ) -> Poll<Result<(), StorageError>> {
        match self {
            Self::File(writer) => writer.poll_room(task),
            Self::Memory { .. } | Self::Unwanted { .. } => Poll::Ready(Ok(())),
        }
    }

    /// The complete body, which for a body in a file is ready when all of it is written. [`RequestBody::None`] for an unwanted
    /// body.
    pub(crate) fn poll_whole(
        &mut self,
        task: &mut TaskContext<'_>,
    ) -> Poll<Result<RequestBody, StorageError>> {
        Poll::Ready(Ok(match self {
            Self::Unwanted { .. } => RequestBody::None,
            Self::Memory { content, .. } => RequestBody::Bytes(in_one_piece(content)),
            Self::File(writer) => {
                ready!(writer.poll_written(task, 1))?;
                // An empty body has no file.
                writer
                    .range()
                    .map_or_else(|| RequestBody::Bytes(Bytes::new()), RequestBody::File)
            }
        }))
    }

    /// Bytes of memory held.
    pub(crate) fn retained(&self) -> usize {
        match self {
            Self::Memory { content, .. } => content.len(),
            Self::File(writer) => writer.unwritten(),
            Self::Unwanted { .. } => 0,
        }
    }
}

impl FileWriter {
    fn new(context: &Context, max: u64) -> Self {
        let files: &Arc<TempFiles> = &context.worker.shared.temp_files;
        Self {
            file: TempFile::new(files),
            len: 0,
            max,
            written: 0,
            queue: ByteQueue::default(),
        }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), CollectError> {
        self.grow(bytes.len())?;
        self.queue.push(bytes);
        Ok(())
    }

    fn push_all(&mut self, bytes: ByteQueue) -> Result<(), CollectError> {
        self.grow(bytes.len())?;
        self.queue.append(bytes);
        Ok(())
    }

    const fn grow(&mut self, by: usize) -> Result<(), CollectError> {
        self.len += by as u64;
        if self.len > self.max {
            return Err(CollectError::Failed(StorageError::TooLarge));
        }
        Ok(())
    }

    /// Bytes that are still in memory.
    fn unwritten(&self) -> usize {
        self.queue.len() + self.file.writing()
    }

    fn poll_room(&mut self, task: &mut TaskContext<'_>) -> Poll<Result<(), StorageError>> {
        if let Poll::Ready(Err(error)) = self.poll_written(task, WRITE_PIECE) {
            return Poll::Ready(Err(error));
        }
        if self.unwritten() > MAX_UNWRITTEN {
            Poll::Pending
        } else {
            Poll::Ready(Ok(()))
        }
    }

    /// Has a disk thread write the queued bytes if there are at least `least` of them. Ready when there are fewer and no write
    /// is in progress.
    fn poll_written(
        &mut self,
        task: &mut TaskContext<'_>,
        least: usize,
    ) -> Poll<Result<(), StorageError>> {
        loop {
            let written = ready!(self.file.poll_written(task)).map_err(StorageError::Disk)?;
            self.written += written as u64;
            if self.queue.len() < least {
                return Poll::Ready(Ok(()));
            }
            let bytes = std::mem::take(&mut self.queue);
            self.file
                .write(bytes, self.written)
                .map_err(|_| StorageError::NoRoom)?;
        }
    }

    fn range(&self) -> Option<FileRange> {
        Some(FileRange {
            file: Arc::clone(self.file.file()?),
            offset: 0,
            len: self.written,
        })
    }
}

/// Joins `content` piece by piece, so that no byte is in memory twice for long.
fn in_one_piece(content: &mut ByteQueue) -> Bytes {
    if let Some(whole) = content.take_whole() {
        return whole;
    }
    let mut bytes = Vec::with_capacity(content.len());
    while !content.is_empty() {
        bytes.extend_from_slice(&content.take(usize::MAX));
    }
    bytes.into()
}
