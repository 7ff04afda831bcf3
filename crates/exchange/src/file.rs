//! Reads files without blocking the event loop: bytes in the page cache are read at once, bytes on the disk by a small
//! thread pool.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use rustix::io::{IoSliceMut, ReadWriteFlags};
use tokio::task::JoinHandle;

use crate::body_source::{BodyError, BodySource};
use crate::temp_files::TempSpace;

/// Most bytes that the thread pool reads at once.
const COLD_READ: usize = 256 * 1024;

/// An open file, shared by the exchanges that send from it.
#[derive(Debug)]
pub struct OpenFile {
    fd: OwnedFd,
    /// For temporary files: the space that the file occupies of `temp-buffer-max-total`.
    space: Option<Arc<TempSpace>>,
}

impl OpenFile {
    /// Makes an open file of an open file descriptor.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self { fd, space: None })
    }

    /// Makes an open file of the descriptor of a temporary file. The file's space is released when the last reference
    /// is dropped.
    pub(crate) fn temporary(fd: OwnedFd, space: Arc<TempSpace>) -> Arc<Self> {
        Arc::new(Self {
            fd,
            space: Some(space),
        })
    }

    /// Reads bytes at `offset` from the page cache. Returns 0 at the end of the file.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the bytes are not in the page cache; otherwise the system's error of the read.
    pub fn read_cached(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut slices = [IoSliceMut::new(buffer)];
        match rustix::io::preadv2(&self.fd, &mut slices, offset, ReadWriteFlags::NOWAIT) {
            Ok(read) => Ok(read),
            // The file system does not support RWF_NOWAIT (reading without blocking): let the thread pool read.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Like [`OpenFile::read_cached`], but appends up to `max` bytes to `out` without clearing its memory first.
    ///
    /// # Errors
    /// Those of [`OpenFile::read_cached`].
    #[expect(
        unsafe_code,
        reason = "no safe wrapper of preadv2 reads into a Vec without waiting for the disk"
    )]
    pub fn append_cached(&self, offset: u64, max: usize, out: &mut Vec<u8>) -> io::Result<usize> {
        out.reserve(max);
        let room = &mut out.spare_capacity_mut()[..max];
        let vector = libc::iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len(),
        };
        let offset = i64::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: one vector is passed, and it describes memory that is writable for its length.
        let read = unsafe {
            libc::preadv2(
                self.fd.as_raw_fd(),
                &raw const vector,
                1,
                offset,
                libc::RWF_NOWAIT,
            )
        };
        let Ok(read) = usize::try_from(read) else {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                // The file system does not support RWF_NOWAIT (reading without blocking): let the thread pool read.
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => io::ErrorKind::WouldBlock.into(),
                _ => error,
            });
        };
        let len = out.len() + read.min(max);
        // SAFETY: the kernel has written `read` bytes, at most `max`, into the spare capacity behind the vector's
        // bytes.
        unsafe { out.set_len(len) };
        Ok(read)
    }

    /// Whether the page cache holds the `len` bytes from `offset`, judged by one byte per read-ahead window, so that
    /// `sendfile` will not block on the disk.
    #[must_use]
    pub fn is_cached(&self, offset: u64, len: usize) -> bool {
        const WINDOW: usize = 128 * 1024;
        let last = len.saturating_sub(1);
        let probes = (0..len)
            .step_by(WINDOW)
            .chain((!last.is_multiple_of(WINDOW)).then_some(last));
        probes
            .into_iter()
            .all(|at| self.read_cached(offset + at as u64, &mut [0]).is_ok())
    }

    /// Reads bytes at `offset` of the file. This may wait for the disk, so only the thread pool may call it, the start
    /// of the server, and a script that cannot wait.
    ///
    /// # Errors
    /// The system's error of the read.
    pub fn read_blocking(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::io::pread(&self.fd, &mut *buffer, offset) {
                Err(rustix::io::Errno::INTR) => {}
                other => return other.map_err(Into::into),
            }
        }
    }
}

impl Drop for OpenFile {
    /// Closing a large temporary file takes long, because the file system frees its space. A disk thread does it, so
    /// that the event loop is not blocked.
    fn drop(&mut self) {
        if self.space.is_some()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
            && let Ok(last) = self.fd.try_clone()
        {
            runtime.spawn_blocking(|| drop(last));
        }
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A part of a file.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The file to read.
    pub file: Arc<OpenFile>,
    /// Offset of the range's first byte in the file.
    pub offset: u64,
    /// Number of bytes in the range. If the file turns out to be shorter, the response fails.
    pub len: u64,
}

/// Reads a [`FileRange`] piece by piece.
pub struct FileReader {
    range: FileRange,
    cold: Option<JoinHandle<io::Result<Vec<u8>>>>,
    /// Bytes that the thread pool has read from the file and that the reader has not returned yet.
    ready: Bytes,
}

impl FileReader {
    /// Creates a reader that is at the start of the range.
    #[must_use]
    pub const fn new(range: FileRange) -> Self {
        Self {
            range,
            cold: None,
            ready: Bytes::new(),
        }
    }

    /// Number of bytes of the range that the reader has not returned yet.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.range.len + self.ready.len() as u64
    }

    /// The part of the range that `sendfile` may send; `None` while the reader holds bytes or the pool is reading.
    #[must_use]
    pub fn unread(&self) -> Option<&FileRange> {
        (self.cold.is_none() && self.ready.is_empty()).then_some(&self.range)
    }

    /// Records that `len` bytes of [`FileReader::unread`] were sent without the reader, by `sendfile`.
    pub fn skip(&mut self, len: u64) {
        let len = len.min(self.range.len);
        self.range.offset += len;
        self.range.len -= len;
    }

    /// Has the thread pool load the next bytes into the page cache. Ready when that is done.
    ///
    /// # Errors
    /// Like [`FileReader::poll_read`].
    pub fn poll_warm(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        if self.ready.is_empty() && self.range.len > 0 {
            self.ready = match self.poll_cold(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(ready) => ready?,
            };
        }
        Poll::Ready(Ok(()))
    }

    /// Reads the next bytes of the range into `buffer`. Returns 0 only at the end of the range or for an empty buffer.
    ///
    /// # Errors
    /// [`BodyError::Local`] with `UnexpectedEof` if the file has become shorter than the range.
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<Result<usize, BodyError>> {
        if self.remaining() == 0 || buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if self.ready.is_empty() && self.cold.is_none() {
            let want = buffer
                .len()
                .min(usize::try_from(self.range.len).unwrap_or(usize::MAX));
            match self
                .range
                .file
                .read_cached(self.range.offset, &mut buffer[..want])
            {
                Ok(0) => return Poll::Ready(Err(BodyError::file_shrunk())),
                Ok(read) => {
                    self.skip(read as u64);
                    return Poll::Ready(Ok(read));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(BodyError::Local(error))),
            }
        }
        if self.poll_warm(context)?.is_pending() {
            return Poll::Pending;
        }
        let piece = self.ready.split_to(self.ready.len().min(buffer.len()));
        buffer[..piece.len()].copy_from_slice(&piece);
        Poll::Ready(Ok(piece.len()))
    }

    /// Like [`FileReader::poll_read`], but appends up to `max` bytes to `out`.
    ///
    /// # Errors
    /// Those of [`FileReader::poll_read`].
    pub fn poll_append(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyError>> {
        if self.remaining() == 0 || max == 0 {
            return Poll::Ready(Ok(0));
        }
        if self.ready.is_empty() && self.cold.is_none() {
            let want = max.min(usize::try_from(self.range.len).unwrap_or(usize::MAX));
            match self.range.file.append_cached(self.range.offset, want, out) {
                Ok(0) => return Poll::Ready(Err(BodyError::file_shrunk())),
                Ok(read) => {
                    self.skip(read as u64);
                    return Poll::Ready(Ok(read));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(BodyError::Local(error))),
            }
        }
        if self.poll_warm(context)?.is_pending() {
            return Poll::Pending;
        }
        let piece = self.ready.split_to(self.ready.len().min(max));
        out.extend_from_slice(&piece);
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_cold(&mut self, context: &mut Context<'_>) -> Poll<Result<Bytes, BodyError>> {
        let task = self.cold.get_or_insert_with(|| {
            let FileRange { file, offset, len } = self.range.clone();
            let len = COLD_READ.min(usize::try_from(len).unwrap_or(usize::MAX));
            tokio::task::spawn_blocking(move || {
                let mut buffer = vec![0; len];
                let read = file.read_blocking(offset, &mut buffer)?;
                buffer.truncate(read);
                Ok(buffer)
            })
        });
        let result = match Pin::new(task).poll(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(result) => result,
        };
        self.cold = None;
        let buffer = result
            .map_err(io::Error::other)
            .and_then(|read| read)
            .map_err(BodyError::Local)?;
        if buffer.is_empty() {
            return Poll::Ready(Err(BodyError::file_shrunk()));
        }
        self.skip(buffer.len() as u64);
        Poll::Ready(Ok(buffer.into()))
    }
}

impl BodySource for FileReader {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.remaining() == 0 {
            return Poll::Ready(None);
        }
        let mut buffer = vec![0; max.min(COLD_READ)];
        self.poll_read(context, &mut buffer).map(|result| {
            Some(result.map(|read| {
                buffer.truncate(read);
                buffer.into()
            }))
        })
    }

    fn retained(&self) -> usize {
        let cold = self.cold.as_ref().map_or(0, |_| COLD_READ);
        self.ready.len() + cold
    }
}
