//! A temporary file: unnamed, written and closed by the disk threads.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::task::JoinHandle;

use crate::byte_queue::ByteQueue;
use crate::file::OpenFile;
use crate::temp_files::{TempFiles, TempSpace};

/// Largest number of slices of memory that one system call writes to the file.
const SLICES: usize = 16;

/// The error of a failed write to a temporary file, with the bytes that were not written.
#[derive(Debug)]
pub struct WriteError {
    /// The system's error of the write.
    pub error: io::Error,
    /// The bytes that were not written; `None` if they are lost because the disk threads have ended.
    pub bytes: Option<ByteQueue>,
}

/// A temporary file that is written piece by piece; the first write creates it.
pub struct TempFile {
    space: Arc<TempSpace>,
    file: Option<Arc<OpenFile>>,
    write: Option<WriteJob>,
}

/// A write to a temporary file, which is a job for a disk thread.
struct WriteJob {
    bytes: usize,
    task: JoinHandle<Result<Arc<OpenFile>, WriteError>>,
}

impl TempFile {
    /// Prepares a temporary file, which the first write creates.
    #[must_use]
    pub fn new(files: &Arc<TempFiles>) -> Self {
        Self {
            space: Arc::new(TempSpace::new(files)),
            file: None,
            write: None,
        }
    }

    /// Number of bytes that a disk thread is writing to the file.
    #[must_use]
    pub fn writing(&self) -> usize {
        self.write.as_ref().map_or(0, |write| write.bytes)
    }

    /// The open file, for reading; `None` before the first write.
    #[must_use]
    pub const fn file(&self) -> Option<&Arc<OpenFile>> {
        self.file.as_ref()
    }

    /// Starts writing bytes at `offset` of the file. No other write may be in progress.
    ///
    /// Must run in a runtime of tokio.
    ///
    /// # Errors
    /// Returns the bytes if a limit does not allow to write them.
    pub fn write(&mut self, bytes: ByteQueue, offset: u64) -> Result<(), ByteQueue> {
        debug_assert!(
            self.write.is_none(),
            "a temporary file has one write in progress at a time"
        );
        if !self.space.grow_to(offset + bytes.len() as u64) {
            return Err(bytes);
        }
        let (file, space) = (self.file.clone(), Arc::clone(&self.space));
        self.write = Some(WriteJob {
            bytes: bytes.len(),
            task: tokio::task::spawn_blocking(move || {
                let written = open(file, space).and_then(|file| {
                    write_all(&file, &bytes, offset)?;
                    Ok(file)
                });
                written.map_err(|error| WriteError {
                    error,
                    bytes: Some(bytes),
                })
            }),
        });
        Ok(())
    }

    /// Ready when no write is in progress, with the number of bytes written since the last call.
    ///
    /// # Errors
    /// [`WriteError`] if not all bytes could be written; the file keeps its earlier contents.
    pub fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, WriteError>> {
        let Some(write) = &mut self.write else {
            return Poll::Ready(Ok(0));
        };
        let bytes = write.bytes;
        let result = std::task::ready!(std::pin::Pin::new(&mut write.task).poll(context));
        self.write = None;
        let result = result.unwrap_or_else(|error| {
            Err(WriteError {
                error: io::Error::other(error),
                bytes: None,
            })
        });
        Poll::Ready(match result {
            Ok(file) => {
                self.space.note_written(bytes);
                self.file = Some(file);
                Ok(bytes)
            }
            Err(unwritten) => {
                self.space.note_failure(&unwritten.error);
                Err(unwritten)
            }
        })
    }
}

/// Opens the file, creating it if necessary. Blocks on the disk.
fn open(file: Option<Arc<OpenFile>>, space: Arc<TempSpace>) -> io::Result<Arc<OpenFile>> {
    match file {
        Some(file) => Ok(file),
        None => {
            let fd = create(&space.directory())?;
            space.note_created();
            Ok(OpenFile::temporary(fd, space))
        }
    }
}

fn write_all(file: &OpenFile, bytes: &ByteQueue, mut offset: u64) -> io::Result<()> {
    let slices: Vec<IoSlice<'_>> = bytes.slices().map(IoSlice::new).collect();
    for part in slices.chunks(SLICES) {
        let mut part = part.to_vec();
        let mut part = &mut part[..];
        while !part.is_empty() {
            match rustix::io::pwritev(file.as_fd(), part, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut part, written);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Creates an unnamed file in `directory`. Blocks on the disk.
///
/// # Errors
/// The system's error, if the file cannot be created.
pub fn create(directory: &Path) -> io::Result<OwnedFd> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::open(directory, flags | OFlags::TMPFILE, mode) {
        // The file system or the kernel does not support unnamed files (O_TMPFILE): create a named one and unlink it.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => create_named(directory, flags, mode),
        other => other.map_err(Into::into),
    }
}

fn create_named(directory: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Relaxed);
        let path = directory.join(format!("h2o.b.{}.{number}", std::process::id()));
        match rustix::fs::open(&path, flags | OFlags::CREATE, mode) {
            Ok(fd) => {
                rustix::fs::unlink(&path)?;
                return Ok(fd);
            }
            // A file of this name was left behind by an earlier process with the same id: try the next name.
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime starts");
        runtime.block_on(test)
    }

    fn queue(bytes: &[u8]) -> ByteQueue {
        let mut queue = ByteQueue::default();
        queue.push(bytes);
        queue
    }

    async fn written(file: &mut TempFile) -> Result<usize, WriteError> {
        poll_fn(|context| file.poll_written(context)).await
    }

    #[test]
    fn what_is_written_can_be_read_wherever_it_was_put() {
        let files = Arc::new(TempFiles::default());
        let content: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        run(async {
            let mut file = TempFile::new(&files);
            assert_eq!(written(&mut file).await.unwrap(), 0);
            assert!(file.file().is_none() && files.used() == 0);
            for (bytes, offset) in [(&content[300_000..], 300_000), (&content[..300_000], 0)] {
                file.write(queue(bytes), offset).unwrap();
                assert_eq!(file.writing(), bytes.len());
                assert_eq!(written(&mut file).await.unwrap(), bytes.len());
                assert_eq!(file.writing(), 0);
            }
            let mut read = vec![0; content.len()];
            let opened = file.file().unwrap();
            assert_eq!(opened.read_blocking(0, &mut read).unwrap(), content.len());
            assert!(read == content);
            assert_eq!(files.used(), content.len() as u64);
        });
        assert_eq!(files.used(), 0, "the temporary file is removed");
    }

    #[test]
    fn files_together_do_not_grow_beyond_the_ceiling() {
        let files = Arc::new(TempFiles::new("/tmp".into(), 10));
        run(async {
            let (mut one, mut other) = (TempFile::new(&files), TempFile::new(&files));
            one.write(queue(b"123456"), 0).unwrap();
            assert_eq!(other.write(queue(b"12345"), 0).unwrap_err().len(), 5);
            other.write(queue(b"1234"), 0).unwrap();
            written(&mut one).await.unwrap();
            written(&mut other).await.unwrap();
            // Bytes that were written to the file can be overwritten.
            one.write(queue(b"xyz"), 3).unwrap();
            written(&mut one).await.unwrap();
            assert_eq!(one.write(queue(b"xyz"), 4).unwrap_err().len(), 3);
            // A range of a file, such as a response body, keeps the file's space reserved until it is dropped.
            let kept = Arc::clone(one.file().unwrap());
            drop(one);
            assert_eq!(files.used(), 10);
            drop(kept);
            assert_eq!(files.used(), 4);
            other.write(queue(b"12345678"), 2).unwrap();
            written(&mut other).await.unwrap();
        });
        assert_eq!(files.used(), 0);
    }

    #[test]
    fn bytes_that_cannot_be_written_are_not_lost() {
        let files = Arc::new(TempFiles::new("/nonexistent".into(), 100));
        run(async {
            let mut file = TempFile::new(&files);
            file.write(queue(b"abc"), 0).unwrap();
            let unwritten = written(&mut file).await.unwrap_err();
            assert_eq!(unwritten.error.kind(), io::ErrorKind::NotFound);
            assert_eq!(unwritten.bytes.unwrap().take(9), "abc");
            assert!(file.file().is_none());
        });
        assert!(!files.failures.is_due(), "the failed write was reported");
    }

    #[test]
    fn files_with_names_are_the_fallback_and_leave_none_behind() {
        let directory = std::env::temp_dir().join(format!("h2o-temp-file-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = create_named(&directory, flags, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(rustix::io::write(&fd, b"abc").unwrap(), 3);
        // The removal fails unless the directory is empty, so no temporary file has kept its name.
        std::fs::remove_dir(&directory).unwrap();
    }
}
