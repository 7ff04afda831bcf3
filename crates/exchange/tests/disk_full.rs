//! Full disks, and processes without free descriptors: temporary files are refused, unwritten bytes stay in memory, and
//! bytes in files can still be read.
//!
//! A limit on the size of files replaces a full disk. It applies to a whole process, so each test runs in its own
//! process.

use std::future::poll_fn;
use std::process::Command;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use h2o_exchange::{ByteQueue, Descriptors, Spool, TempFile, TempFiles};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Runs a test in its own process, whose output is not affected by the limit.
fn in_own_process(name: &str, test: impl FnOnce()) {
    const IS_CHILD: &str = "H2O_TEST_IN_OWN_PROCESS";
    if std::env::var_os(IS_CHILD).is_some() {
        test();
        return;
    }
    let program = std::env::current_exe().expect("the path of the test program is known");
    let child = Command::new(program)
        .args([name, "--exact", "--nocapture"])
        .env(IS_CHILD, "1")
        .output()
        .expect("the test program can be started again");
    let said = String::from_utf8_lossy(&child.stdout);
    let complained = String::from_utf8_lossy(&child.stderr);
    let passed = child.status.success() && said.contains("1 passed");
    assert!(passed, "{said}{complained}");
}

/// Sets the limit of this process on the length of files; `None`: the highest that is allowed.
fn limit(resource: Resource, current: Option<u64>) {
    let maximum = getrlimit(resource).maximum;
    let current = current.or(maximum);
    setrlimit(resource, Rlimit { current, maximum }).expect("the resource limit can be set");
}

/// Limits the length of this process's files.
fn limit_disk(len: Option<u64>) {
    // If the signal were not ignored, exceeding the limit would kill the process.
    #[expect(unsafe_code, reason = "no safe wrapper ignores a signal")]
    // SAFETY: no handler is installed, and nothing else in this process relies on the signal.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
    limit(Resource::Fsize, len);
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime starts").block_on(test)
}

fn content(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1])
        .collect()
}

/// Writes to the temporary file and waits for the end of the write. Returns how many bytes were written, or the code of
/// the error and the bytes that were not written.
async fn write(file: &mut TempFile, bytes: &[u8], offset: u64) -> Result<usize, (i32, Vec<u8>)> {
    let mut queue = ByteQueue::default();
    queue.push(bytes);
    file.write(queue, offset)
        .expect("the write is far below temp-buffer-max-total");
    let written = poll_fn(|context| file.poll_written(context)).await;
    written.map_err(|unwritten| {
        let bytes = unwritten
            .bytes
            .expect("unwritten bytes are given back while the disk threads run");
        let bytes: Vec<u8> = bytes.slices().flatten().copied().collect();
        (unwritten.error.raw_os_error().unwrap_or(0), bytes)
    })
}

fn read(file: &TempFile, len: usize) -> Vec<u8> {
    let mut buffer = vec![0; len];
    let file = file
        .file()
        .expect("the temporary file is open after a write");
    let read = file
        .read_blocking(0, &mut buffer)
        .expect("the temporary file has the range");
    buffer.truncate(read);
    buffer
}

#[test]
fn a_write_that_ends_half_way_gives_all_of_its_bytes_back() {
    in_own_process(
        "a_write_that_ends_half_way_gives_all_of_its_bytes_back",
        || {
            let files = Arc::new(TempFiles::default());
            let all = content(200_000);
            run(async {
                let mut file = TempFile::new(&files);
                assert_eq!(write(&mut file, &all[..50_000], 0).await, Ok(50_000));
                // The limit leaves space for half of the next write.
                limit_disk(Some(75_000));
                let (error, back) = write(&mut file, &all[50_000..100_000], 50_000)
                    .await
                    .expect_err("a write to a full disk fails");
                assert_eq!((error, &back[..]), (libc::EFBIG, &all[50_000..100_000]));
                assert_eq!((files.failures(), files.written()), (1, 50_000));
                assert_eq!(
                    read(&file, 50_000),
                    all[..50_000],
                    "bytes written before the failure are kept"
                );
                // Space that the temporary file has already can still be overwritten.
                assert_eq!(write(&mut file, &all[10..20], 0).await, Ok(10));
                limit_disk(None);
                assert_eq!(write(&mut file, &all[50_000..], 50_000).await, Ok(150_000));
                assert_eq!(read(&file, 200_000)[50_000..], all[50_000..]);
                assert_eq!((files.made(), files.failures()), (1, 1));
            });
            assert_eq!(files.used(), 0);
        },
    );
}

#[test]
fn a_first_write_that_fails_leaves_no_file() {
    in_own_process("a_first_write_that_fails_leaves_no_file", || {
        let files = Arc::new(TempFiles::default());
        limit_disk(Some(0));
        run(async {
            let mut file = TempFile::new(&files);
            let (error, back) = write(&mut file, b"text", 0)
                .await
                .expect_err("a write to a full disk fails");
            assert_eq!((error, &back[..]), (libc::EFBIG, &b"text"[..]));
            assert!(file.file().is_none());
            limit_disk(None);
            assert_eq!(write(&mut file, b"text", 0).await, Ok(4));
            assert_eq!(read(&file, 10), b"text");
        });
        assert_eq!((files.used(), files.written()), (0, 4));
    });
}

/// Pushes, spills to disk and takes bytes at random, while the disk becomes full and has space again.
async fn play(seed: u64, files: &Arc<TempFiles>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let all = content(2_000_000);
    let (mut pushed, mut taken) = (0, 0);
    let mut spool = Spool::default();
    for _ in 0..150 {
        match random.u8(..8) {
            0..3 => {
                let end = (pushed + random.usize(..90_000)).min(all.len());
                spool.push(Bytes::copy_from_slice(&all[pushed..end]));
                pushed = end;
            }
            3 | 4 => {
                let _ = spool.spill(files, 300_000);
            }
            5 => {
                let spilled = poll_fn(|context| spool.poll_spilled(context)).await;
                spilled.expect("a spool keeps bytes in memory that cannot be written");
            }
            6 if random.u8(..4) == 0 => {
                let lens = [Some(0), Some(60_000), Some(200_000), None];
                limit_disk(
                    random
                        .choice(lens)
                        .expect("the list of limits is not empty"),
                );
            }
            _ => {
                let max = random.usize(1..60_000);
                if let Some(piece) = poll_fn(|context| spool.poll_next(context, max)).await {
                    let piece = piece.expect("the spool has lost no bytes");
                    assert!(all[taken..].starts_with(&piece), "seed {seed} at {taken}");
                    taken += piece.len();
                }
            }
        }
    }
    while let Some(piece) = poll_fn(|context| spool.poll_next(context, usize::MAX)).await {
        let piece = piece.expect("the spool has lost no bytes");
        assert!(all[taken..].starts_with(&piece), "seed {seed} at {taken}");
        taken += piece.len();
    }
    assert!(spool.is_empty() && taken == pushed, "seed {seed}");
}

#[test]
fn a_spool_loses_nothing_and_changes_no_order_when_its_disk_fills_up() {
    in_own_process(
        "a_spool_loses_nothing_and_changes_no_order_when_its_disk_fills_up",
        || {
            let files = Arc::new(TempFiles::default());
            run(async {
                for seed in 0..60 {
                    limit_disk(None);
                    play(seed, &files).await;
                }
            });
            assert!(files.failures() > 10 && files.written() > 1_000_000);
            assert_eq!(files.used(), 0);
        },
    );
}

#[test]
fn without_descriptors_content_stays_in_memory() {
    in_own_process("without_descriptors_content_stays_in_memory", || {
        let files = Arc::new(TempFiles::default());
        run(async {
            let mut file = TempFile::new(&files);
            // Starts the disk thread before the limit is set; the thread needs no further descriptor.
            tokio::task::spawn_blocking(|| {})
                .await
                .expect("the task does not panic");
            limit(Resource::Nofile, Some(0));
            let (error, back) = write(&mut file, b"text", 0)
                .await
                .expect_err("a file cannot be opened without a free descriptor");
            assert_eq!((error, &back[..]), (libc::EMFILE, &b"text"[..]));
            let mut spool = Spool::default();
            spool.push(Bytes::from_static(b"text"));
            assert!(
                spool.spill(&files, 1_000),
                "the first spill tries to open a file"
            );
            let spilled = poll_fn(|context| spool.poll_spilled(context)).await;
            assert!(spilled.is_ok() && !spool.has_file() && spool.memory() == 4);
            limit(Resource::Nofile, None);
            assert!(
                !spool.spill(&files, 1_000),
                "the second spill does not try to open a file again"
            );
            let next = poll_fn(|context| spool.poll_next(context, 10)).await;
            assert_eq!(next.and_then(Result::ok).as_deref(), Some(&b"text"[..]));
            assert_eq!(write(&mut file, b"text", 0).await, Ok(4));
        });
        assert_eq!((files.failures(), files.used()), (2, 0));
    });
}

#[test]
fn temporary_files_leave_descriptors_to_clients() {
    let descriptors = Arc::new(Descriptors::new(16));
    let counted = TempFiles::new(std::env::temp_dir(), 1 << 20).counted(&descriptors);
    let files = Arc::new(counted);
    run(async {
        let mut open = Vec::new();
        loop {
            let mut file = TempFile::new(&files);
            let mut bytes = ByteQueue::default();
            bytes.push(b"text");
            let Err(refused) = file.write(bytes, 0) else {
                let written = poll_fn(|context| file.poll_written(context)).await;
                written.expect("the temporary file is written");
                open.push(file);
                continue;
            };
            assert_eq!(refused.len(), 4, "the file gives the refused bytes back");
            break;
        }
        assert_eq!(
            open.len(),
            8,
            "temporary files use at most half of the descriptors"
        );
        assert_eq!((descriptors.refusals(), files.refusals()), (1, 0));
        assert!(descriptors.may_accept());
        // A temporary file that was dropped keeps its descriptor open as long as a reader refers to it.
        let reader = open.pop().and_then(|file| file.file().cloned());
        assert!(descriptors.open().is_none());
        drop(reader);
        assert!(descriptors.open().is_some());
        // A `TempFile` can create its file once a descriptor is free.
        let mut file = TempFile::new(&files);
        assert_eq!(write(&mut file, b"text", 0).await, Ok(4));
        let done = poll_fn(|context| match file.poll_written(context) {
            Poll::Ready(result) => Poll::Ready(result.map_err(|unwritten| unwritten.error)),
            Poll::Pending => Poll::Pending,
        });
        assert_eq!(
            done.await
                .expect("a file without a write in progress is ready at once"),
            0
        );
    });
    assert_eq!((files.used(), files.made()), (0, 9));
}
