//! A queue of bytes that keeps them in memory and, if they become too many, in a temporary file.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use crate::body_source::BodyError;
use crate::byte_queue::ByteQueue;
use crate::file::{FileRange, FileReader};
use crate::temp_file::TempFile;
use crate::temp_files::TempFiles;

/// A job for a disk thread writes at least this many bytes, since fewer are not worth the effort, unless less room is
/// left before the end of the ring buffer in the file.
const LEAST_WRITE: u64 = 64 * 1024;

/// A queue of bytes, partly in memory and partly in a temporary file.
///
/// The order of the bytes is: those in `front`, those in the file, those being written to the file, those in `back`.
#[derive(Default)]
pub struct Spool {
    front: ByteQueue,
    file: Option<Box<SpoolFile>>,
    back: ByteQueue,
    /// Whether a write to the file has failed. Nothing is written to the file after that.
    has_failed: bool,
    /// Whether bytes in the middle of the queue were lost. The reader gets the bytes before the gap and then an error,
    /// but never those behind it.
    is_cut: bool,
}

/// A temporary file used as a ring buffer: space whose bytes were read is overwritten.
struct SpoolFile {
    file: TempFile,
    /// Most bytes that the file may have at a time.
    size: u64,
    /// Number of bytes read from and written to the file so far. The offset of a byte in the file is its number modulo
    /// `size`.
    read: u64,
    written: u64,
    /// Reads the unread bytes of the file that follow one another: up to the end of the ring buffer, or to the last
    /// byte that was written when this reader was made.
    reader: Option<FileReader>,
}

impl SpoolFile {
    fn new(files: &Arc<TempFiles>, size: u64) -> Box<Self> {
        Box::new(Self {
            file: TempFile::new(files),
            size,
            read: 0,
            written: 0,
            reader: None,
        })
    }

    /// Number of bytes in the file that were not read yet.
    const fn len(&self) -> u64 {
        self.written - self.read
    }

    /// How many bytes can be written to the file next without wrapping around.
    fn room(&self) -> u64 {
        let free = self.size - self.len();
        let place = self.written % self.size;
        let to_end = self.size - place;
        let room = free.min(to_end);
        if room >= LEAST_WRITE.min(to_end).min(self.size) {
            room
        } else {
            0
        }
    }

    /// Limits the file to its current size, so that it does not grow. Returns false if it was limited already.
    const fn stop_growing(&mut self) -> bool {
        let grows = self.written > 0 && self.written < self.size;
        if grows {
            self.size = self.written;
        }
        grows
    }

    /// Reads the next bytes from the file, at most `max`; `None` if it has none left.
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.len() == 0 {
            return Poll::Ready(None);
        }
        let reader = match (&mut self.reader, self.file.file()) {
            (Some(reader), _) => reader,
            (slot, Some(file)) => {
                let offset = self.read % self.size;
                let len = (self.written - self.read).min(self.size - offset);
                slot.insert(FileReader::new(FileRange {
                    file: Arc::clone(file),
                    offset,
                    len,
                }))
            }
            (None, None) => return Poll::Ready(Some(Err(BodyError::file_shrunk()))),
        };
        let mut bytes = Vec::new();
        let read = ready!(reader.poll_append(context, max, &mut bytes))?;
        if reader.remaining() == 0 {
            self.reader = None;
        }
        self.read += read as u64;
        Poll::Ready(Some(Ok(bytes.into())))
    }
}

impl Spool {
    /// Appends a piece to the queue.
    pub fn push(&mut self, piece: Bytes) {
        if self.is_cut {
            return;
        }
        if self.file.is_some() || !self.back.is_empty() {
            self.back.push_piece(piece);
        } else {
            self.front.push_piece(piece);
        }
    }

    /// Number of bytes in memory, including those that a disk thread is writing to the file.
    #[must_use]
    pub fn memory(&self) -> usize {
        let writing = self.file.as_ref().map_or(0, |file| file.file.writing());
        self.front.len() + writing + self.back.len()
    }

    /// Number of bytes in memory that follow those in the file, so that they could be written to it next.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.back.len()
    }

    /// Whether the queue is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.front.is_empty() && self.file.is_none() && self.back.is_empty()
    }

    /// Whether the queue has a temporary file.
    #[must_use]
    pub const fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Takes the next bytes of the queue, at most `max`; `None` if none are left.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            if !self.front.is_empty() {
                return Poll::Ready(Some(Ok(self.front.take(max))));
            }
            let Some(file) = &mut self.file else {
                if self.is_cut {
                    let error = std::io::Error::other(
                        "buffered content was lost, because the disk threads have ended",
                    );
                    return Poll::Ready(Some(Err(BodyError::Local(error))));
                }
                if self.back.is_empty() {
                    return Poll::Ready(None);
                }
                self.front = std::mem::take(&mut self.back);
                continue;
            };
            if let Some(read) = ready!(file.poll_read(context, max)) {
                self.drop_empty_file();
                return Poll::Ready(Some(read));
            }
            ready!(self.poll_spilled(context))?;
            self.drop_empty_file();
        }
    }

    /// Starts writing as many bytes as fit from memory to a temporary file of at most `size` bytes. Returns false if
    /// nothing is written: a limit is reached, a write has failed, or a write is in progress.
    ///
    /// Must run in a runtime of tokio.
    pub fn spill(&mut self, files: &Arc<TempFiles>, size: u64) -> bool {
        if self.has_failed || size == 0 {
            return false;
        }
        let file = self.file.get_or_insert_with(|| SpoolFile::new(files, size));
        if file.file.writing() > 0 {
            return false;
        }
        if file.len() == 0 {
            // The file is empty, so the bytes in `front` are the next to be read, and must be the first in the file,
            // too.
            let mut first = std::mem::take(&mut self.front);
            first.append(std::mem::take(&mut self.back));
            self.back = first;
        }
        loop {
            let room = usize::try_from(file.room()).unwrap_or(usize::MAX);
            let bytes = self.back.split_to(room);
            if bytes.is_empty() {
                break;
            }
            let place = file.written % file.size;
            let Err(mut bytes) = file.file.write(bytes, place) else {
                return true;
            };
            bytes.append(std::mem::take(&mut self.back));
            self.back = bytes;
            if !file.stop_growing() {
                break;
            }
        }
        self.drop_empty_file();
        false
    }

    /// Ready when no write is in progress. If a write failed, its bytes stay in memory.
    ///
    /// # Errors
    /// [`BodyError`] if bytes of the queue were lost.
    pub fn poll_spilled(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        let Some(file) = &mut self.file else {
            return Poll::Ready(Ok(()));
        };
        match ready!(file.file.poll_written(context)) {
            Ok(written) => file.written += written as u64,
            Err(unwritten) => {
                self.has_failed = true;
                let Some(mut bytes) = unwritten.bytes else {
                    self.is_cut = true;
                    self.back = ByteQueue::default();
                    self.drop_empty_file();
                    return Poll::Ready(Err(BodyError::Local(unwritten.error)));
                };
                bytes.append(std::mem::take(&mut self.back));
                self.back = bytes;
                self.drop_empty_file();
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Drops the file once everything in it has been read.
    fn drop_empty_file(&mut self) {
        let is_empty = |file: &SpoolFile| file.len() == 0 && file.file.writing() == 0;
        if self.file.as_deref().is_some_and(is_empty) {
            self.file = None;
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

    async fn next(spool: &mut Spool, max: usize) -> Option<Bytes> {
        let piece = poll_fn(|context| spool.poll_next(context, max)).await;
        piece.map(|piece| piece.expect("the spool has lost no bytes"))
    }

    async fn spilled(spool: &mut Spool) {
        let result = poll_fn(|context| spool.poll_spilled(context)).await;
        result.expect("the spool has lost no bytes");
    }

    /// A generator of pseudo-random numbers, which are the same for each seed.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, limit: usize) -> usize {
            self.0 = (self.0.wrapping_mul(6_364_136_223_846_793_005))
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(self.0 >> 33).unwrap_or(0) % limit
        }
    }

    /// The bytes that the test pushes into the spool.
    fn content() -> Vec<u8> {
        (0..3_000_000_u32).map(|n| n.to_le_bytes()[1]).collect()
    }

    /// Pushes, spills to the file and takes bytes at random; the output must equal the input.
    async fn play(content: &[u8], seed: u64, files: &Arc<TempFiles>, size: u64) {
        let mut numbers = Numbers(seed);
        let (mut spool, mut pushed, mut taken) = (Spool::default(), 0, 0);
        let mut expect = |piece: &[u8]| {
            assert!(
                content[taken..].starts_with(piece),
                "seed {seed} at {taken}"
            );
            taken += piece.len();
        };
        for _ in 0..200 {
            match numbers.below(6) {
                0 | 1 => {
                    let end = (pushed + numbers.below(90_000)).min(content.len());
                    spool.push(Bytes::copy_from_slice(&content[pushed..end]));
                    pushed = end;
                }
                2 => {
                    let had_file = spool.has_file();
                    let memory = spool.memory();
                    let is_begun = spool.spill(files, size);
                    assert!(spool.has_file() || !is_begun && !had_file, "seed {seed}");
                    assert_eq!(spool.memory(), memory, "seed {seed}");
                }
                3 => spilled(&mut spool).await,
                _ => {
                    let max = 1 + numbers.below(60_000);
                    if let Some(piece) = next(&mut spool, max).await {
                        assert!((1..=max).contains(&piece.len()));
                        expect(&piece);
                    }
                }
            }
        }
        while let Some(piece) = next(&mut spool, 70_000).await {
            expect(&piece);
        }
        assert!(spool.is_empty() && taken == pushed, "seed {seed}");
    }

    #[test]
    fn bytes_come_out_in_order_wherever_they_were() {
        let files = Arc::new(TempFiles::default());
        let content = content();
        run(async {
            for seed in 0..10 {
                for size in [1, 1_000, 100_000, 1 << 20, 1 << 30] {
                    play(&content, seed, &files, size).await;
                }
            }
        });
        assert!(files.written() > 0 && files.used() == 0 && files.failures() == 0);
    }

    #[test]
    fn nothing_is_lost_when_files_cannot_be_written_or_may_not_grow() {
        let none = Arc::new(TempFiles::new("/nonexistent".into(), 1 << 30));
        let few = Arc::new(TempFiles::new("/tmp".into(), 100_000));
        let content = content();
        run(async {
            for seed in 0..20 {
                play(&content, seed, &none, 1 << 20).await;
                play(&content, seed, &few, 1 << 20).await;
            }
        });
        assert!(none.failures() > 0 && none.written() == 0);
        assert!(few.refusals() > 0 && few.written() > 0 && few.used() == 0);
    }

    #[test]
    fn a_file_does_not_grow_beyond_its_size_and_its_places_are_used_again() {
        let files = Arc::new(TempFiles::default());
        let size = 200_000;
        run(async {
            let mut spool = Spool::default();
            let mut taken = 0;
            for _ in 0..50 {
                spool.push(vec![b'x'; 70_000].into());
                while spool.spill(&files, size) {
                    spilled(&mut spool).await;
                }
                assert!(files.used() <= size);
                taken += next(&mut spool, 60_000)
                    .await
                    .map_or(0, |piece| piece.len());
            }
            assert!(!spool.spill(&files, size));
            while let Some(piece) = next(&mut spool, usize::MAX).await {
                taken += piece.len();
            }
            assert_eq!(taken, 50 * 70_000);
            assert!(files.written() > 5 * size);
        });
        assert_eq!(
            files.used(),
            0,
            "a temporary file that was read to its end is not kept"
        );
    }

    #[test]
    fn a_file_that_was_cut_from_outside_is_an_error_and_not_an_end() {
        let files = Arc::new(TempFiles::default());
        run(async {
            let mut spool = Spool::default();
            spool.push(vec![b'x'; 100_000].into());
            assert!(spool.spill(&files, 1 << 20));
            spilled(&mut spool).await;
            spool.push(Bytes::from_static(b"behind it"));
            let taken = next(&mut spool, 30_000).await.map(|piece| piece.len());
            assert_eq!(taken, Some(30_000));
            let file = spool.file.as_ref().and_then(|file| file.file.file());
            rustix::fs::ftruncate(file.expect("the spool has written a file"), 0)
                .expect("the file can be truncated");
            let mut taken = 30_000;
            let error = loop {
                match poll_fn(|context| spool.poll_next(context, 30_000)).await {
                    Some(Ok(piece)) => taken += piece.len(),
                    Some(Err(error)) => break error,
                    None => panic!("the spool ended without an error after {taken} bytes"),
                }
            };
            assert!(
                taken < 100_000,
                "the spool hands out only bytes that were read before the file was truncated"
            );
            assert_eq!(error.to_string(), BodyError::file_shrunk().to_string());
        });
        assert_eq!(files.used(), 0);
    }

    #[test]
    fn what_follows_lost_bytes_is_never_handed_out() {
        let files = Arc::new(TempFiles::default());
        let ended = {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            runtime.expect("a runtime starts").handle().clone()
        };
        // The number of bytes that the file holds when the disk threads end.
        for safe in [0, 50_000] {
            let mut spool = Spool::default();
            if safe > 0 {
                spool.push(vec![b'x'; safe].into());
                run(async {
                    assert!(spool.spill(&files, 1 << 20));
                    spilled(&mut spool).await;
                });
            }
            spool.push(vec![b'y'; 10_000].into());
            {
                let _within = ended.enter();
                assert!(spool.spill(&files, 1 << 20));
            }
            spool.push(Bytes::from_static(b"behind them"));
            run(async {
                let lost = poll_fn(|context| spool.poll_spilled(context)).await;
                assert!(lost.is_err());
                assert!(
                    !spool.spill(&files, 1 << 20),
                    "the spool writes no more once the disk threads have ended"
                );
                spool.push(Bytes::from_static(b"later"));
                let mut taken = Vec::new();
                let error = loop {
                    match poll_fn(|context| spool.poll_next(context, 30_000)).await {
                        Some(Ok(piece)) => taken.extend_from_slice(&piece),
                        Some(Err(error)) => break error,
                        None => panic!(
                            "the spool ended without an error after {} bytes",
                            taken.len()
                        ),
                    }
                };
                assert_eq!(taken, vec![b'x'; safe]);
                assert!(matches!(error, BodyError::Local(_)), "{error}");
                let again = poll_fn(|context| spool.poll_next(context, 1)).await;
                assert!(
                    matches!(again, Some(Err(_))),
                    "the spool reports the error again at the next poll"
                );
            });
            assert_eq!(spool.memory(), 0);
        }
        assert_eq!(files.used(), 0);
    }
}
