//! Temporary files: written bytes can be read, dropped files free their space, and all files together stay below the
//! limit.

use std::future::poll_fn;
use std::sync::Arc;

use h2o_exchange::ByteQueue;
use h2o_exchange::{TempFile, TempFiles};

fn queue(bytes: &[u8]) -> ByteQueue {
    let mut queue = ByteQueue::default();
    queue.push(bytes);
    queue
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime starts").block_on(test)
}

/// Writes to a temporary file and waits for the end of the write. The error has the bytes that were not written.
async fn write(file: &mut TempFile, bytes: &[u8], offset: u64) -> Result<usize, String> {
    if let Err(refused) = file.write(queue(bytes), offset) {
        assert_eq!(
            refused.len(),
            bytes.len(),
            "the file gives all refused bytes back"
        );
        return Err("refused".to_owned());
    }
    assert_eq!(file.writing(), bytes.len());
    let written = poll_fn(|context| file.poll_written(context)).await;
    assert_eq!(file.writing(), 0);
    written.map_err(|unwritten| {
        let bytes = unwritten.bytes.map_or(0, |bytes| bytes.len());
        format!("{bytes} bytes not written: {:?}", unwritten.error.kind())
    })
}

fn read(file: &TempFile, offset: u64, len: usize) -> Vec<u8> {
    let mut buffer = vec![0; len];
    let file = file
        .file()
        .expect("the temporary file is open after a write");
    let read = file
        .read_blocking(offset, &mut buffer)
        .expect("the temporary file can be read");
    buffer.truncate(read);
    buffer
}

#[test]
fn files_hold_what_was_written_last_at_each_place() {
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let files = Arc::new(TempFiles::default());
        run(async {
            let mut file = TempFile::new(&files);
            let mut model: Vec<u8> = Vec::new();
            let mut bytes_written = 0;
            for _ in 0..30 {
                let offset = random.usize(..=model.len());
                let bytes: Vec<u8> = (0..random.usize(1..60_000))
                    .map(|_| random.u8(..))
                    .collect();
                let written = write(&mut file, &bytes, offset as u64).await;
                assert_eq!(written, Ok(bytes.len()), "seed {seed}");
                bytes_written += bytes.len() as u64;
                model.resize(model.len().max(offset + bytes.len()), 0);
                model[offset..offset + bytes.len()].copy_from_slice(&bytes);
                let at = random.usize(..model.len());
                let len = random.usize(..100_000);
                let want = &model[at..model.len().min(at + len)];
                assert!(read(&file, at as u64, len) == want, "seed {seed}");
                assert_eq!(
                    files.used(),
                    model.len() as u64,
                    "seed {seed}: overwritten bytes take no more space"
                );
            }
            assert_eq!(
                (files.made(), files.written()),
                (1, bytes_written),
                "seed {seed}"
            );
        });
        assert_eq!(files.used(), 0, "seed {seed}");
    }
}

#[test]
fn space_is_kept_for_as_long_as_something_can_be_read() {
    let files = Arc::new(TempFiles::default());
    run(async {
        let mut file = TempFile::new(&files);
        write(&mut file, &[1; 5_000], 0)
            .await
            .expect("the write is below the limit");
        let reader = Arc::clone(
            file.file()
                .expect("the temporary file is open after a write"),
        );
        drop(file);
        assert_eq!(
            files.used(),
            5_000,
            "the file counts while a response reads from the file"
        );
        let mut buffer = [0; 10];
        assert_eq!(
            reader
                .read_blocking(4_995, &mut buffer)
                .expect("the temporary file can be read"),
            5
        );
        drop(reader);
        assert_eq!(files.used(), 0);
        // The file is dropped while the disk thread writes it.
        let mut file = TempFile::new(&files);
        assert!(file.write(queue(&[2; 100]), 0).is_ok());
        drop(file);
    });
    // The runtime has waited for the disk thread before it ended.
    assert_eq!(files.used(), 0);
}

#[test]
fn files_together_stay_below_their_ceiling_whatever_they_do() {
    const LIMIT: u64 = 100_000;
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let all = Arc::new(TempFiles::new(std::env::temp_dir(), LIMIT));
        run(async {
            let mut files: Vec<(TempFile, u64)> = Vec::new();
            let mut refused = 0;
            for _ in 0..60 {
                if files.len() < 8 && random.u8(..3) == 0 {
                    files.push((TempFile::new(&all), 0));
                }
                if files.is_empty() {
                    continue;
                }
                let at = random.usize(..files.len());
                if random.u8(..5) == 0 {
                    files.swap_remove(at);
                } else {
                    let sum: u64 = files.iter().map(|(_, size)| size).sum();
                    let (file, size) = &mut files[at];
                    let bytes = vec![b'x'; random.usize(1..40_000)];
                    let offset = random.u64(..=*size);
                    let end = offset + bytes.len() as u64;
                    let grown = end.saturating_sub(*size);
                    let fits = sum + grown <= LIMIT;
                    let written = write(file, &bytes, offset).await;
                    assert_eq!(
                        written.is_ok(),
                        fits,
                        "seed {seed}: a write adds {grown} bytes to files of {sum} bytes"
                    );
                    refused += u64::from(!fits);
                    if fits {
                        *size = end.max(*size);
                    }
                }
                let sum: u64 = files.iter().map(|(_, size)| size).sum();
                assert_eq!(all.used(), sum, "seed {seed}");
                assert!(all.used() <= LIMIT, "seed {seed}");
            }
            assert_eq!(all.refusals(), refused, "seed {seed}");
        });
        assert_eq!((all.used(), all.failures()), (0, 0), "seed {seed}");
    }
}

#[test]
fn threads_that_write_at_once_do_not_pass_the_ceiling() {
    const LIMIT: u64 = 200_000;
    let all = Arc::new(TempFiles::new(std::env::temp_dir(), LIMIT));
    // This file uses 160,000 bytes of the limit, so that the largest files are refused even if the threads run one
    // after the other.
    let mut rest = TempFile::new(&all);
    run(async {
        let written = write(&mut rest, &[b'x'; 160_000], 0).await;
        assert!(written.is_ok(), "{written:?}");
    });
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            let all = Arc::clone(&all);
            std::thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                run(async {
                    for _ in 0..40 {
                        let mut file = TempFile::new(&all);
                        for _ in 0..4 {
                            let bytes = vec![b'x'; random.usize(1..50_000)];
                            let offset = random.u64(..10_000);
                            let written = write(&mut file, &bytes, offset).await;
                            assert!(all.used() <= LIMIT, "{written:?}");
                        }
                    }
                });
            })
        })
        .collect();
    for thread in threads {
        thread
            .join()
            .expect("no thread has seen more bytes than the limit");
    }
    assert!(
        all.refusals() > 0,
        "the limit of all temporary files was reached"
    );
    drop(rest);
    assert_eq!(all.used(), 0);
}

#[test]
fn what_cannot_be_written_is_given_back_and_takes_no_space_for_long() {
    let broken = Arc::new(TempFiles::new("/nonexistent".into(), 1 << 20));
    run(async {
        let mut file = TempFile::new(&broken);
        for times in 1..=3 {
            let written = write(&mut file, b"text", 0).await;
            assert_eq!(written, Err("4 bytes not written: NotFound".to_owned()));
            assert!(file.file().is_none());
            assert_eq!(broken.failures(), times);
        }
        let nothing = poll_fn(|context| file.poll_written(context)).await;
        assert!(
            matches!(nothing, Ok(0)),
            "a file without a write in progress is ready at once"
        );
    });
    assert_eq!(
        (
            broken.used(),
            broken.made(),
            broken.written(),
            broken.limit()
        ),
        (0, 0, 0, 1 << 20)
    );
}

#[test]
fn a_new_limit_and_directory_are_those_of_what_is_written_next() {
    let all = Arc::new(TempFiles::new("/nonexistent".into(), 100));
    run(async {
        let mut file = TempFile::new(&all);
        let lost = write(&mut file, &[1; 50], 0).await;
        assert_eq!(lost, Err("50 bytes not written: NotFound".to_owned()));
        all.set(&std::env::temp_dir(), 200);
        assert_eq!(write(&mut file, &[1; 150], 0).await, Ok(150));
        // Files that have more than the new limit stay, and do not grow.
        all.set(std::path::Path::new("/nonexistent"), 100);
        assert_eq!((all.limit(), all.used()), (100, 150));
        assert_eq!(write(&mut file, &[2; 150], 0).await, Ok(150));
        let refused = write(&mut file, &[2; 151], 0).await;
        assert_eq!(refused, Err("refused".to_owned()));
        assert_eq!(read(&file, 0, 200), [2; 150]);
        // The limit 0 allows no new files; those that exist can still be read.
        all.set(std::path::Path::new("/nonexistent"), 0);
        let mut other = TempFile::new(&all);
        assert_eq!(write(&mut other, b"x", 0).await, Err("refused".to_owned()));
        assert_eq!(read(&file, 149, 10), [2]);
        all.set(&std::env::temp_dir(), 151);
        assert_eq!(write(&mut other, b"x", 0).await, Ok(1));
    });
    assert_eq!((all.used(), all.made()), (0, 2));
}
