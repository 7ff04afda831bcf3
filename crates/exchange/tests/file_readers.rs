//! The file reader: every state with every call, with the disk thread blocked where that matters, and readers that are
//! dropped or moved to another task while the disk thread reads for them.

use std::future::poll_fn;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use h2o_exchange::{
    BodyError, BodySource as _, ByteQueue, FileRange, FileReader, OpenFile, TempFile, TempFiles,
};
use tokio::runtime::Runtime;

/// Offset and length of the range that every reader reads of its file.
const OFFSET: u64 = 1_000;
const LEN: u64 = 40_000;

/// An async runtime with one disk thread, which the test can block.
struct Disk {
    runtime: Runtime,
    held_up: Option<mpsc::Sender<()>>,
}

impl Disk {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build();
        Self {
            runtime: runtime.expect("a runtime starts"),
            held_up: None,
        }
    }

    /// Blocks the disk thread until the test releases it.
    fn hold_up(&mut self) {
        let (sender, wait) = mpsc::channel();
        self.runtime.spawn_blocking(move || wait.recv());
        self.held_up = Some(sender);
    }

    fn let_go(&mut self) {
        self.held_up = None;
    }

    /// Polls a call once, within the runtime.
    fn once<T>(&self, ask: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let _within = self.runtime.enter();
        ask(&mut Context::from_waker(Waker::noop()))
    }

    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }
}

fn content() -> Vec<u8> {
    let bytes = 0..OFFSET + LEN + 500;
    bytes
        .map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1])
        .collect()
}

fn file() -> (Arc<OpenFile>, std::fs::File) {
    let fd = rustix::fs::memfd_create("body", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = std::fs::File::from(fd.expect("the system can make a file in memory"));
    file.write_all(&content()).expect("the file can be written");
    let other = file.try_clone().expect("the descriptor can be duplicated");
    (OpenFile::new(file.into()), other)
}

struct Case {
    disk: Disk,
    reader: FileReader,
    file: std::fs::File,
}

impl Case {
    fn warm(&mut self) {
        let reader = &mut self.reader;
        let warmed = poll_fn(|context| reader.poll_warm(context));
        self.disk.run(warmed).expect("the reader can read the file");
    }

    fn take(&mut self, len: usize) {
        let mut taken = Vec::new();
        while taken.len() < len {
            let reader = &mut self.reader;
            let max = len - taken.len();
            let read = poll_fn(|context| reader.poll_append(context, max, &mut taken));
            assert!(self.disk.run(read).expect("the reader can read the file") > 0);
        }
    }

    fn cut(&mut self) {
        self.file
            .set_len(OFFSET)
            .expect("the file can be truncated");
    }
}

type Enter = fn(&mut Case);
/// A call on a file reader, which the test polls once.
type Ask = fn(&mut FileReader, &mut Context<'_>) -> Poll<Result<Option<Vec<u8>>, BodyError>>;

const CALLS: [(&str, Ask); 4] = [
    ("poll_next", |reader, context| {
        let next = reader.poll_next(context, 100);
        next.map(|piece| {
            piece
                .transpose()
                .map(|piece| piece.map(|piece| piece.to_vec()))
        })
    }),
    ("poll_read", |reader, context| {
        let mut buffer = [0; 100];
        let read = reader.poll_read(context, &mut buffer);
        read.map_ok(|read| Some(buffer[..read].to_vec()))
    }),
    ("poll_append", |reader, context| {
        let mut out = Vec::new();
        let read = reader.poll_append(context, 100, &mut out);
        read.map_ok(|read| {
            assert_eq!(out.len(), read);
            Some(out)
        })
    }),
    ("poll_warm", |reader, context| {
        reader.poll_warm(context).map_ok(|()| None)
    }),
];

/// A row: name of the reader's state, how to reach it, whether `sendfile` may send the rest (`None`: depends on whether
/// the file system tells what is in its page cache), and the outcome of each call.
type State = (&'static str, Enter, Option<bool>, [&'static str; 4]);

const SHRUNK: &str = "error: the file became shorter while it was being sent, 40000 left";

const STATES: [State; 7] = [
    (
        "new",
        |_| {},
        Some(true),
        [
            "100 bytes from 0, 39900 left",
            "100 bytes from 0, 39900 left",
            "100 bytes from 0, 39900 left",
            "done, 40000 left",
        ],
    ),
    (
        "half read",
        |case| case.take(20_000),
        None,
        [
            "100 bytes from 20000, 19900 left",
            "100 bytes from 20000, 19900 left",
            "100 bytes from 20000, 19900 left",
            "done, 20000 left",
        ],
    ),
    (
        "being read by the disk thread",
        |case| {
            case.disk.hold_up();
            let reader = &mut case.reader;
            let polled = case.disk.once(|context| reader.poll_warm(context));
            assert!(polled.is_pending());
        },
        Some(false),
        [
            "pending, then 100 bytes from 0, 39900 left",
            "pending, then 100 bytes from 0, 39900 left",
            "pending, then 100 bytes from 0, 39900 left",
            "pending, then done, 40000 left",
        ],
    ),
    (
        "warm",
        Case::warm,
        Some(false),
        [
            "100 bytes from 0, 39900 left",
            "100 bytes from 0, 39900 left",
            "100 bytes from 0, 39900 left",
            "done, 40000 left",
        ],
    ),
    (
        "warm, and nearly all of it taken",
        |case| {
            case.warm();
            case.take(39_950);
        },
        Some(false),
        [
            "50 bytes from 39950, 0 left",
            "50 bytes from 39950, 0 left",
            "50 bytes from 39950, 0 left",
            "done, 50 left",
        ],
    ),
    (
        "at its end",
        |case| case.take(40_000),
        Some(true),
        [
            "end, 0 left",
            "0 bytes from 40000, 0 left",
            "0 bytes from 40000, 0 left",
            "done, 0 left",
        ],
    ),
    ("cut short", Case::cut, Some(true), [SHRUNK; 4]),
];

/// Makes a call in a state of the reader. Returns the call's result as text, with `pending, then` before it if the call
/// waits for the disk thread.
fn outcome(enter: Enter, name: &str, ask: Ask, may_sendfile: Option<bool>) -> String {
    let (open, file) = file();
    let range = FileRange {
        file: open,
        offset: OFFSET,
        len: LEN,
    };
    let mut case = Case {
        disk: Disk::new(),
        reader: FileReader::new(range),
        file,
    };
    enter(&mut case);
    let is_idle = case.reader.unread().is_some();
    assert_eq!(case.reader.retained() == 0, is_idle);
    assert!(may_sendfile.is_none_or(|may| may == is_idle));
    let at = usize::try_from(LEN - case.reader.remaining()).expect("the length fits into the type");
    let mut words = String::new();
    if case.disk.held_up.is_some() {
        let reader = &mut case.reader;
        let polled = case.disk.once(|context| ask(reader, context));
        assert!(polled.is_pending(), "the disk thread is held up");
        words += "pending, then ";
        case.disk.let_go();
    }
    let reader = &mut case.reader;
    let done = case.disk.run(poll_fn(|context| ask(reader, context)));
    words += &match done {
        Err(error) => format!("error: {error}"),
        Ok(None) if name == "poll_next" => "end".to_owned(),
        Ok(None) => "done".to_owned(),
        Ok(Some(bytes)) => {
            let from = usize::try_from(OFFSET).expect("the length fits into the type") + at;
            assert_eq!(bytes, content()[from..from + bytes.len()]);
            format!("{} bytes from {at}", bytes.len())
        }
    };
    format!("{words}, {} left", case.reader.remaining())
}

#[test]
fn every_state_meets_every_call() {
    for (state, enter, may_sendfile, wants) in STATES {
        for ((name, ask), want) in CALLS.into_iter().zip(wants) {
            let got = outcome(enter, name, ask, may_sendfile);
            assert_eq!(got, want, "{name} on a reader that is {state}");
        }
    }
}

#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn the_task_that_asked_last_is_woken_when_the_disk_has_read() {
    let (open, _file) = file();
    let mut disk = Disk::new();
    let mut reader = FileReader::new(FileRange {
        file: open,
        offset: 0,
        len: 10,
    });
    disk.hold_up();
    let [first, last] = [Arc::new(Bell::default()), Arc::new(Bell::default())];
    {
        let _within = disk.runtime.enter();
        for bell in [&first, &last] {
            let waker = Waker::from(Arc::clone(bell));
            let polled = reader.poll_warm(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
    }
    disk.let_go();
    // Waits for a later job on the only disk thread: the read before it has then ended.
    disk.run(async { tokio::task::spawn_blocking(|| {}).await })
        .expect("the task does not panic");
    assert_eq!((first.0.load(Relaxed), last.0.load(Relaxed)), (0, 1));
    assert!(matches!(
        disk.once(|context| reader.poll_warm(context)),
        Poll::Ready(Ok(()))
    ));
}

#[test]
fn a_file_cut_while_the_disk_thread_reads_it_is_an_error() {
    // Each row: length of the file when the disk thread reads it, and the number of bytes returned before the error.
    for (left, want) in [(OFFSET, 0), (OFFSET + 1, 1), (OFFSET + 30_000, 30_000)] {
        let (open, file) = file();
        let mut disk = Disk::new();
        let mut reader = FileReader::new(FileRange {
            file: open,
            offset: OFFSET,
            len: LEN,
        });
        disk.hold_up();
        assert!(disk.once(|context| reader.poll_warm(context)).is_pending());
        file.set_len(left).expect("the file can be truncated");
        disk.let_go();
        let mut given = 0;
        let error = loop {
            match disk.run(poll_fn(|context| reader.poll_next(context, 7_000))) {
                Some(Ok(piece)) => given += piece.len(),
                Some(Err(error)) => break error,
                None => panic!("the reader ended without an error after {given} bytes"),
            }
        };
        assert_eq!(given, want);
        assert!(matches!(error, BodyError::Local(_)), "{error}");
    }
}

#[test]
fn the_space_of_a_temporary_file_lasts_until_the_last_of_its_readers_is_gone() {
    let files = Arc::new(TempFiles::default());
    let mut disk = Disk::new();
    let mut temporary = TempFile::new(&files);
    let mut bytes = ByteQueue::default();
    bytes.push(&content());
    disk.run(async {
        temporary
            .write(bytes, 0)
            .expect("the temporary file takes the bytes");
        poll_fn(|context| temporary.poll_written(context)).await
    })
    .expect("the file can be written");
    let range = |offset| FileRange {
        file: Arc::clone(temporary.file().expect("the temporary file is open")),
        offset,
        len: 100,
    };
    let (mut cancelled, mut kept) = (FileReader::new(range(0)), FileReader::new(range(100)));
    drop(temporary);
    disk.hold_up();
    assert!(
        disk.once(|context| cancelled.poll_warm(context))
            .is_pending()
    );
    drop(cancelled);
    assert_eq!(
        files.used(),
        content().len() as u64,
        "another reader still uses the temporary file"
    );
    let piece = disk.once(|context| kept.poll_next(context, 100));
    if let Poll::Ready(Some(Ok(piece))) = piece {
        assert_eq!(piece, content()[100..200]);
    }
    {
        let _within = disk.runtime.enter();
        drop(kept);
    }
    // The disk thread still holds the file, because it reads for the reader that was dropped.
    assert_eq!(files.used(), content().len() as u64);
    disk.let_go();
    drop(disk);
    assert_eq!(files.used(), 0);
}

#[test]
fn where_the_disk_threads_have_ended_a_read_fails_and_nobody_waits_for_it() {
    let (open, _file) = file();
    let mut reader = FileReader::new(FileRange {
        file: open,
        offset: 0,
        len: 10,
    });
    let disk = Disk::new();
    let ended = disk.runtime.handle().clone();
    drop(disk);
    let _within = ended.enter();
    let warmed = reader.poll_warm(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(warmed, Poll::Ready(Err(BodyError::Local(_)))));
    assert_eq!(reader.retained(), 0);
}

#[test]
fn what_cannot_be_read_is_the_error_of_the_system() {
    // A directory cannot be read like a file.
    let directory = std::fs::File::open("/").expect("the root directory can be opened");
    let open = OpenFile::new(directory.into());
    let disk = Disk::new();
    for (name, ask) in CALLS {
        let mut reader = FileReader::new(FileRange {
            file: Arc::clone(&open),
            offset: 0,
            len: 10,
        });
        let error = disk
            .run(poll_fn(|context| ask(&mut reader, context)))
            .expect_err(name);
        let BodyError::Local(error) = error else {
            panic!("{name}: {error}");
        };
        assert_eq!(error.kind(), std::io::ErrorKind::IsADirectory, "{name}");
    }
    // This file is open for writing only, so that reading it fails.
    let sink = std::fs::File::options().write(true).open("/dev/null");
    let sink = OpenFile::new(sink.expect("/dev/null can be opened").into());
    assert!(sink.read_blocking(0, &mut [0]).is_err());
    assert!(sink.read_cached(0, &mut [0]).is_err());
    let mut out = Bytes::from_static(b"before").to_vec();
    assert!(sink.append_cached(0, 10, &mut out).is_err());
    assert_eq!(out, b"before", "a read that fails appends no bytes");
    assert!(rustix::io::fcntl_getfd(sink.as_fd()).is_ok());
}
