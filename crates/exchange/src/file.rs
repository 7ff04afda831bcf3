//! File content without ever stopping the event loop: what the page cache holds is read at once, the
//! rest by a small thread pool.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use rustix::io::{IoSliceMut, ReadWriteFlags};
use tokio::task::JoinHandle;

use crate::body::{BodyError, BodySource};
use crate::temp_file::TempSpace;

/// Largest piece read on the thread pool at once.
const COLD_READ: usize = 256 * 1024;

/// An open file, shared by the exchanges that send from it.
#[derive(Debug)]
pub struct OpenFile {
    fd: OwnedFd,
    /// For temporary files: what they hold of the space that there is for all of them.
    space: Option<Arc<TempSpace>>,
}

impl OpenFile {
    /// Takes over an open descriptor.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self { fd, space: None })
    }

    /// A temporary file, which keeps its space until nobody uses it any more.
    pub(crate) fn temporary(fd: OwnedFd, space: Arc<TempSpace>) -> Arc<Self> {
        Arc::new(Self {
            fd,
            space: Some(space),
        })
    }

    /// Reads what the page cache holds at `offset`. Returns 0 at the end of the file.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the disk would have to be waited for; else the system's error.
    pub fn read_cached(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut slices = [IoSliceMut::new(buffer)];
        match rustix::io::preadv2(&self.fd, &mut slices, offset, ReadWriteFlags::NOWAIT) {
            Ok(read) => Ok(read),
            // The file system does not know RWF_NOWAIT: go through the pool.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// As [`OpenFile::read_cached`], appending up to `max` bytes to `out`, whose memory is not cleared first.
    ///
    /// # Errors
    /// Those of [`OpenFile::read_cached`].
    #[expect(
        unsafe_code,
        reason = "no safe wrapper reads into a Vec without waiting"
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
                // The file system does not know RWF_NOWAIT: go through the pool.
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => io::ErrorKind::WouldBlock.into(),
                _ => error,
            });
        };
        let len = out.len() + read.min(max);
        // SAFETY: the kernel has written `read` bytes, at most `max`, behind the length, where there is room for them.
        unsafe { out.set_len(len) };
        Ok(read)
    }

    /// True if the page cache holds the `len` bytes from `offset`, as far as looking at one byte per
    /// read-ahead window can tell: what is sent by `sendfile` then does not wait for the disk.
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

    /// Reads at `offset`, waiting for the disk. Only for the thread pool and for start-up.
    ///
    /// # Errors
    /// The system's error.
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
    /// What a temporary file occupies is given back to the disk when its last descriptor is closed, which takes long where that
    /// is much: a disk thread does it.
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

/// Part of a file.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The file.
    pub file: Arc<OpenFile>,
    /// First byte.
    pub offset: u64,
    /// Number of bytes. A file found to be shorter ends the response as an error.
    pub len: u64,
}

/// Reads a [`FileRange`] piece by piece.
pub struct FileReader {
    range: FileRange,
    cold: Option<JoinHandle<io::Result<Vec<u8>>>>,
    /// Read by the pool, not handed on yet.
    ready: Bytes,
}

impl FileReader {
    /// A reader at the start of the range.
    #[must_use]
    pub const fn new(range: FileRange) -> Self {
        Self {
            range,
            cold: None,
            ready: Bytes::new(),
        }
    }

    /// What has not been handed on yet.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.range.len + self.ready.len() as u64
    }

    /// The part of the range not read yet, if nothing is held back or being read: what `sendfile` may take.
    #[must_use]
    pub fn unread(&self) -> Option<&FileRange> {
        (self.cold.is_none() && self.ready.is_empty()).then_some(&self.range)
    }

    /// Notes that `len` bytes of [`FileReader::unread`] have been sent by other means.
    pub fn skip(&mut self, len: u64) {
        let len = len.min(self.range.len);
        self.range.offset += len;
        self.range.len -= len;
    }

    /// Brings the next bytes into the page cache on the thread pool; ready when that is done.
    ///
    /// # Errors
    /// As [`FileReader::poll_read`].
    pub fn poll_warm(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        if self.ready.is_empty() && self.range.len > 0 {
            self.ready = match self.poll_cold(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(ready) => ready?,
            };
        }
        Poll::Ready(Ok(()))
    }

    /// Reads into `buffer`; 0 only at the end of the range or for an empty buffer.
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

    /// As [`FileReader::poll_read`], appending up to `max` bytes to `out`.
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
