//! Response bodies from memory and from files have the length that they announce; a file that shrinks is an error.

use std::io::Write as _;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2o_exchange::{Body, BodyError, BodySource, FileRange, FileReader, OpenFile, Trailers};

/// Creates an unnamed file with this content.
fn file(content: &[u8]) -> (Arc<OpenFile>, std::fs::File) {
    let fd = rustix::fs::memfd_create("body", rustix::fs::MemfdFlags::CLOEXEC)
        .expect("the system can make a file in memory");
    let mut file = std::fs::File::from(fd);
    file.write_all(content)
        .expect("the file in memory can be written");
    let other = file.try_clone().expect("the descriptor can be duplicated");
    (OpenFile::new(file.into()), other)
}

fn range(file: &Arc<OpenFile>, offset: u64, len: u64) -> FileRange {
    FileRange {
        file: Arc::clone(file),
        offset,
        len,
    }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime starts").block_on(test)
}

/// Pulls all of a body source in pieces of at most `max` bytes.
async fn pull(source: &mut dyn BodySource, max: usize) -> Result<Vec<u8>, BodyError> {
    let mut all = Vec::new();
    loop {
        match std::future::poll_fn(|context| source.poll_next(context, max)).await {
            Some(piece) => {
                let piece = piece?;
                assert!(
                    (1..=max).contains(&piece.len()),
                    "a piece of {} bytes, of at most {max}",
                    piece.len()
                );
                all.extend_from_slice(&piece);
            }
            None => return Ok(all),
        }
    }
}

fn content() -> Vec<u8> {
    (0..100_000_u32)
        .map(|n| n.to_le_bytes()[1] ^ n.to_le_bytes()[0])
        .collect()
}

/// Each row: the kind of body, how it is built, and the range of the content that the body has.
type Case = (
    &'static str,
    fn(&Arc<OpenFile>, &[u8], u64) -> Body,
    std::ops::Range<usize>,
);

#[test]
fn a_body_gives_as_much_as_it_announces() {
    let content = content();
    let (file, _) = file(&content);
    let all = content.len() as u64;
    let bodies: [Case; 5] = [
        ("nothing", |_, _, _| Body::Empty, 0..0),
        (
            "memory",
            |_, content, _| Body::Bytes(Bytes::copy_from_slice(content)),
            0..100_000,
        ),
        (
            "a whole file",
            |file, _, all| Body::File(range(file, 0, all)),
            0..100_000,
        ),
        (
            "a part of a file",
            |file, _, _| Body::File(range(file, 70_000, 17)),
            70_000..70_017,
        ),
        (
            "the end of a file",
            |file, _, all| Body::File(range(file, all - 1, 1)),
            99_999..100_000,
        ),
    ];
    run(async {
        for (what, body, want) in bodies {
            let body_of = || body(&file, &content, all);
            assert_eq!(body_of().len(), Some(want.len() as u64), "{what}");
            assert_eq!(body_of().is_empty(), want.is_empty(), "{what}");
            for max in [1_000, 4_096, 65_537, usize::MAX] {
                let mut source = body_of().into_source();
                let got = pull(&mut *source, max)
                    .await
                    .expect("the body ends without an error");
                assert!(
                    got == content[want.clone()],
                    "{what} read in pieces of at most {max} bytes"
                );
                assert!(matches!(source.trailers(), Trailers::None), "{what}");
            }
        }
        let stream = Body::Stream(Body::Bytes(Bytes::from_static(b"abc")).into_source());
        assert_eq!((stream.len(), stream.is_empty()), (None, false));
        let mut source = stream.into_source();
        assert_eq!(
            pull(&mut *source, 2)
                .await
                .expect("the body ends without an error"),
            b"abc"
        );
    });
}

/// Names of the methods by which the test reads from a file reader.
const ASKS: [&str; 4] = [
    "poll_next",
    "poll_read",
    "poll_append",
    "poll_append behind others",
];

async fn ask(reader: &mut FileReader, how: &str, max: usize) -> Result<Vec<u8>, BodyError> {
    match how {
        "poll_next" => {
            let piece = std::future::poll_fn(|context| reader.poll_next(context, max)).await;
            piece.map_or(Ok(Vec::new()), |piece| piece.map(|piece| piece.to_vec()))
        }
        "poll_read" => {
            let mut buffer = vec![0; max];
            let read =
                std::future::poll_fn(|context| reader.poll_read(context, &mut buffer)).await?;
            buffer.truncate(read);
            Ok(buffer)
        }
        _ => {
            let mut out = if how == "poll_append" {
                Vec::new()
            } else {
                b"before".to_vec()
            };
            let before = out.len();
            let read =
                std::future::poll_fn(|context| reader.poll_append(context, max, &mut out)).await?;
            assert_eq!(
                out.len(),
                before + read,
                "{how}: the returned count is that of the appended bytes"
            );
            assert!(
                out.starts_with(&b"before"[..before]),
                "{how}: the bytes before are not overwritten"
            );
            Ok(out.split_off(before))
        }
    }
}

#[test]
fn a_reader_goes_through_its_range_however_it_is_asked() {
    let content = content();
    let (file, _) = file(&content);
    run(async {
        for seed in 0..60 {
            let mut random = fastrand::Rng::with_seed(seed);
            let offset = random.usize(..content.len());
            let len = random.usize(..content.len() - offset);
            let mut reader = FileReader::new(range(&file, offset as u64, len as u64));
            let mut at = offset;
            while reader.remaining() > 0 {
                assert_eq!(
                    reader.remaining(),
                    (offset + len - at) as u64,
                    "seed {seed}"
                );
                if random.u8(..5) == 0 {
                    // Simulates that the page cache has lost the file's bytes: the thread pool reads them, and the
                    // reader keeps them.
                    let warmed = std::future::poll_fn(|context| reader.poll_warm(context)).await;
                    warmed.expect("the reader can read the file");
                    assert!(
                        reader.unread().is_none(),
                        "seed {seed}: the reader holds bytes that sendfile would miss"
                    );
                    assert!(reader.retained() > 0, "seed {seed}");
                }
                if let Some(unread) = reader.unread() {
                    assert_eq!(unread.offset, at as u64, "seed {seed}");
                    if random.u8(..4) == 0 {
                        let by_others = random.u64(..2_000);
                        reader.skip(by_others);
                        at = (offset + len).min(
                            at + usize::try_from(by_others).expect("the length fits into the type"),
                        );
                        continue;
                    }
                }
                let max = random.usize(1..20_000);
                let how = ASKS[random.usize(..ASKS.len())];
                let piece = ask(&mut reader, how, max)
                    .await
                    .expect("the reader can read the file");
                assert!((1..=max).contains(&piece.len()), "seed {seed}: {how}");
                assert!(
                    piece == content[at..at + piece.len()],
                    "seed {seed}: {how} at {at}"
                );
                at += piece.len();
            }
            assert_eq!(at, offset + len, "seed {seed}");
            for how in ASKS {
                let end = ask(&mut reader, how, 100)
                    .await
                    .expect("the end of the file is no error");
                assert!(end.is_empty(), "seed {seed}: {how} at the end");
            }
        }
    });
}

#[test]
fn a_file_that_became_shorter_is_an_error_and_not_an_end() {
    // More bytes than the thread pool reads at once, in case the file system cannot tell whether they are in the page
    // cache.
    const LEN: usize = 4 << 20;
    let content = vec![b'x'; LEN];
    run(async {
        for how in ASKS {
            let (file, writer) = file(&content);
            let mut reader = FileReader::new(range(&file, 0, LEN as u64));
            let mut got = ask(&mut reader, how, 10_000)
                .await
                .expect("the file has the range")
                .len();
            assert!(got > 0, "{how}");
            writer.set_len(1 << 20).expect("the file can be truncated");
            let error = loop {
                match ask(&mut reader, how, 10_000).await {
                    Ok(piece) => {
                        assert!(
                            !piece.is_empty(),
                            "{how}: the reader ended without an error after {got} bytes"
                        );
                        got += piece.len();
                    }
                    Err(error) => break error,
                }
            };
            assert!(got < LEN, "{how}: {got}");
            assert!(matches!(error, BodyError::Local(_)), "{how}");
            let want = "the file became shorter while it was being sent";
            assert_eq!(error.to_string(), want, "{how}");
        }
        // A file that became shorter is an error, too, if the thread pool reads it.
        let (file, writer) = file(&content);
        let mut reader = FileReader::new(range(&file, 1, 50_000));
        writer.set_len(1).expect("the file can be truncated");
        let warmed = std::future::poll_fn(|context| reader.poll_warm(context)).await;
        assert!(warmed.is_err());
    });
}

#[test]
fn nothing_is_read_for_nothing() {
    let (file, _) = file(b"abc");
    let mut reader = FileReader::new(range(&file, 0, 3));
    let mut context = Context::from_waker(Waker::noop());
    let mut out = Vec::new();
    assert!(matches!(
        reader.poll_append(&mut context, 0, &mut out),
        Poll::Ready(Ok(0))
    ));
    assert!(matches!(
        reader.poll_read(&mut context, &mut []),
        Poll::Ready(Ok(0))
    ));
    assert_eq!((reader.remaining(), out.capacity()), (3, 0));
    reader.skip(100);
    assert_eq!(
        reader.remaining(),
        0,
        "skipping stops at the end of the range"
    );
}

#[test]
fn what_is_said_to_be_cached_can_be_read_without_waiting() {
    let (file, _) = file(&vec![1; 300_000]);
    let mut buffer = vec![0; 300_000];
    for (offset, len) in [(0, 300_000), (0, 1), (299_999, 1), (100_000, 200_000)] {
        // `is_cached` returns false on file systems that cannot tell what is in the page cache.
        if file.is_cached(offset, len) {
            let read = file.read_cached(offset, &mut buffer[..len]);
            assert_eq!(read.expect("the file has the range"), len, "from {offset}");
        }
    }
    assert!(file.is_cached(5, 0), "a range of no bytes counts as cached");
    let read = file
        .read_blocking(299_998, &mut buffer)
        .expect("the file has the range");
    assert_eq!(read, 2);
    let read = file
        .read_blocking(300_000, &mut buffer)
        .expect("reading at the end of the file is no error");
    assert_eq!(read, 0);
}
