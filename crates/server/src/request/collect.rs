//! Collects a request body before the handlers run: in memory, or in a temporary file.

use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use bytes::Bytes;
use h2o_exchange::{
    ByteQueue, Exchange, FileRange, RequestBody, Response, TempFile, TempFiles, WriteError,
};
use h2o_http::BodyLength;

use super::answers;
use super::guards::WaitingStep;
use crate::context::Context;
use crate::setup::Setup;

/// Largest number of bytes of a request body that the server reads and drops before the response although no handler wants the
/// body, so that the connection can be used again, and because some clients take an early response for a failure.
const UNWANTED: u64 = 64 * 1024;
/// A disk thread writes a request body to its temporary file in pieces of about this many bytes.
const WRITE_PIECE: usize = 256 * 1024;
/// Number of bytes of a request body that may wait in memory for the disk; while there are more, the server reads no more from the
/// client.
const MAX_UNWRITTEN: usize = 2 * WRITE_PIECE;

/// A body with at least this number of bytes is moved to a temporary file if the connection or the worker holds too much in memory.
const MOVED_FROM: usize = 64 * 1024;
/// The threshold if bodies are never moved to temporary files.
const NO_THRESHOLD: usize = usize::MAX;

/// A request body that is being collected.
pub(super) struct BodyCollection {
    pub(super) collector: Collector,
    /// Number of received bytes for which the client's flow-control window has not been raised yet, because the disk is slow.
    pub(super) owed: usize,
    /// Whether the whole body has come from the client.
    pub(super) is_complete: bool,
    /// What the request waits for before the body may be collected, such as a guard.
    pub(super) awaited: Option<WaitingStep>,
}

impl BodyCollection {
    pub(super) const fn new(collector: Collector, awaited: Option<WaitingStep>) -> Self {
        Self {
            collector,
            owed: 0,
            is_complete: false,
            awaited,
        }
    }

    /// Bytes of memory that the collected part of the body takes.
    pub(super) fn retained(&self) -> usize {
        self.collector.retained()
    }
}

/// The part of a request body that was received so far.
pub(crate) enum Collector {
    Memory {
        content: ByteQueue,
        /// Length in bytes at which the body is moved to a temporary file.
        threshold: usize,
        /// Largest permitted length of the body, in bytes.
        max: u64,
    },
    /// A body that is large, or whose announced length is large, in a temporary file.
    File(Box<FileWriter>),
    /// No handler reads the body. `left` is the number of bytes that may still come and be dropped.
    Unwanted { left: u64 },
}

/// A request body that is being written to a temporary file.
pub(crate) struct FileWriter {
    file: TempFile,
    /// Number of bytes of the body that have come so far, and in `max` the largest permitted number.
    len: u64,
    max: u64,
    written: u64,
    /// Bytes of the body that were not handed to a disk thread yet.
    queue: ByteQueue,
}

/// Why a piece of a request body was not collected.
pub(crate) enum CollectError {
    /// No handler wants the body, and it is longer than the part that the server reads of such bodies.
    Unwanted,
    /// The body cannot be stored, for this reason.
    Failed(StorageError),
}

/// Why a request body cannot be stored.
pub(crate) enum StorageError {
    /// The body is larger than `temp-buffer-max-size`.
    TooLarge,
    /// The temporary files of the process have reached their limit of space.
    NoRoom,
    /// Writing to the temporary file failed.
    Disk(WriteError),
}

impl StorageError {
    /// Makes the response to the request whose body could not be stored, and notes the reason for the error log.
    pub(crate) fn answer(&self, context: &Context, exchange: &mut Exchange) -> Response {
        let (reason, response) = match self {
            Self::TooLarge => return answers::too_large(context),
            Self::NoRoom => (
                "the temporary files have reached temp-buffer-max-total".to_owned(),
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
    /// Makes a collector for a request body whose length the client announced as `announced`.
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
            threshold: usize::try_from(threshold).unwrap_or(NO_THRESHOLD),
            max: setup.temp_buffer_max_size,
        }
    }

    /// Like [`Collector::new`], for a body that no handler reads. Returns `None` if the announced length is too large for the
    /// server to read the body.
    pub(crate) fn unwanted(announced: BodyLength) -> Option<Self> {
        let is_short = !matches!(announced, BodyLength::Known(len) if len > UNWANTED);
        is_short.then_some(Self::Unwanted { left: UNWANTED })
    }

    /// Adds a received piece of the body. `others` is the number of bytes that the other requests of the connection hold in memory.
    pub(crate) fn push(
        &mut self,
        context: &Context,
        piece: &[u8],
        others: usize,
    ) -> Result<(), CollectError> {
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
                let len = content.len();
                if len as u64 > *max {
                    return Err(CollectError::Failed(StorageError::TooLarge));
                }
                // No client may hold much more than `threshold` by many requests, nor keep others from being served.
                let is_large = len >= MOVED_FROM
                    && (others.saturating_add(len) >= *threshold || context.memory.is_tight());
                if len >= *threshold || is_large && *threshold != NO_THRESHOLD {
                    let content = std::mem::take(content);
                    let mut writer = Box::new(FileWriter::new(context, *max));
                    writer.push_all(content)?;
                    *self = Self::File(writer);
                }
                Ok(())
            }
        }
    }

    /// Whether the body is dropped, because no handler reads it.
    pub(crate) const fn is_unwanted(&self) -> bool {
        matches!(self, Self::Unwanted { .. })
    }

    /// Whether [`Collector::poll_room`] and [`Collector::poll_whole`] may have to wait for the disk.
    pub(crate) const fn needs_disk(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// Ready when there is space for more bytes of the body.
    pub(crate) fn poll_room(
        &mut self,
        task: &mut TaskContext<'_>,
    ) -> Poll<Result<(), StorageError>> {
        match self {
            Self::File(writer) => writer.poll_room(task),
            Self::Memory { .. } | Self::Unwanted { .. } => Poll::Ready(Ok(())),
        }
    }

    /// Returns the complete body. For a body in a temporary file this is ready once all of it is written. The result for an
    /// unwanted body is [`RequestBody::None`].
    pub(crate) fn poll_whole(
        &mut self,
        task: &mut TaskContext<'_>,
    ) -> Poll<Result<RequestBody, StorageError>> {
        Poll::Ready(Ok(match self {
            Self::Unwanted { .. } => RequestBody::None,
            Self::Memory { content, .. } => RequestBody::Bytes(in_one_piece(content)),
            Self::File(writer) => {
                ready!(writer.poll_written(task, 1))?;
                // A body of zero bytes has no temporary file.
                writer
                    .range()
                    .map_or_else(|| RequestBody::Bytes(Bytes::new()), RequestBody::File)
            }
        }))
    }

    /// Bytes of memory that the part received so far takes.
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

    /// Number of bytes of the body that are still in memory, not in the file.
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

    /// Has a disk thread write the queued bytes of the body if there are at least `least` of them. Ready when there are fewer and
    /// no write is in progress.
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

/// Joins the pieces of `content` one by one, so that no byte is in memory twice for long.
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
