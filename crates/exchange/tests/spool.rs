//! The spool (a queue in memory and a temporary file): every state with every call. Wherever its bytes are, they come
//! out in order.

use std::sync::Arc;

use bytes::Bytes;
use h2o_exchange::Spool;
use h2o_exchange::TempFiles;

/// A step of the test, which changes the spool of a case.
type Act = fn(&mut Case);
/// A row: name of the spool's state, how to reach it, and the outcome of each call in it.
type State = (&'static str, Act, &'static [(&'static str, &'static str)]);

/// The size of the spool's temporary file, which is a ring buffer, in bytes.
const SIZE: u64 = 100_000;

struct Case {
    runtime: tokio::runtime::Runtime,
    files: Arc<TempFiles>,
    spool: Spool,
    said: String,
}

impl Case {
    fn push(&mut self, len: usize) {
        self.spool.push(vec![b'x'; len].into());
    }

    fn spill(&mut self) {
        let (spool, files) = (&mut self.spool, &self.files);
        let is_begun = self.runtime.block_on(async { spool.spill(files, SIZE) });
        self.said = if is_begun { "begun" } else { "not begun" }.to_owned();
    }

    fn spilled(&mut self) {
        let spool = &mut self.spool;
        let done = std::future::poll_fn(|context| spool.poll_spilled(context));
        self.said = format!(
            "{:?}",
            self.runtime
                .block_on(done)
                .map_err(|error| error.to_string())
        );
    }

    fn next(&mut self, max: usize) -> Option<Bytes> {
        let spool = &mut self.spool;
        let next = self.runtime.block_on(std::future::poll_fn(|context| {
            spool.poll_next(context, max)
        }));
        let next = next.map(|piece| piece.expect("the spool has lost no bytes"));
        self.said = next
            .as_ref()
            .map_or("end".to_owned(), |piece| format!("{} bytes", piece.len()));
        next
    }
}

const CALLS: [(&str, Act); 8] = [
    ("push", |case| {
        case.push(10);
        case.said = "done".into();
    }),
    ("take some", |case| drop(case.next(7))),
    ("take much", |case| drop(case.next(1 << 20))),
    ("spill", Case::spill),
    ("wait for what is written", Case::spilled),
    ("spill, and wait", |case| {
        case.spill();
        let begun = std::mem::take(&mut case.said);
        case.spilled();
        case.said = format!("{begun}, {}", case.said);
    }),
    ("push, spill, and wait", |case| {
        case.push(10);
        case.spill();
        let begun = std::mem::take(&mut case.said);
        case.spilled();
        case.said = format!("{begun}, {}", case.said);
    }),
    ("take all", |case| {
        let mut taken = 0;
        while let Some(piece) = case.next(30_000) {
            taken += piece.len();
        }
        case.said = format!("{taken} bytes, in use {}", case.files.used());
        assert!(case.spool.is_empty());
    }),
];

fn outcome(enter: Act, call: Act) -> String {
    outcome_with(TempFiles::default(), enter, call)
}

fn outcome_with(files: TempFiles, enter: Act, call: Act) -> String {
    let mut case = Case {
        runtime: tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime starts"),
        files: Arc::new(files),
        spool: Spool::default(),
        said: String::new(),
    };
    enter(&mut case);
    case.said.clear();
    call(&mut case);
    let spool = &case.spool;
    let mut words = format!(
        "{} -> {} in memory, {} wait",
        case.said,
        spool.memory(),
        spool.waiting()
    );
    for (is_so, name) in [
        (spool.has_file(), ", a file"),
        (spool.is_empty(), ", empty"),
    ] {
        words += if is_so { name } else { "" };
    }
    words
}

#[test]
fn every_state_meets_every_call() {
    let states: [State; 7] = [
        (
            "empty",
            |_| {},
            &[
                ("push", "done -> 10 in memory, 0 wait"),
                ("take some", "end -> 0 in memory, 0 wait, empty"),
                ("take much", "end -> 0 in memory, 0 wait, empty"),
                ("spill", "not begun -> 0 in memory, 0 wait, empty"),
                (
                    "wait for what is written",
                    "Ok(()) -> 0 in memory, 0 wait, empty",
                ),
                (
                    "spill, and wait",
                    "not begun, Ok(()) -> 0 in memory, 0 wait, empty",
                ),
                (
                    "push, spill, and wait",
                    "begun, Ok(()) -> 0 in memory, 0 wait, a file",
                ),
                (
                    "take all",
                    "0 bytes, in use 0 -> 0 in memory, 0 wait, empty",
                ),
            ],
        ),
        (
            "in memory",
            |case| case.push(1_000),
            &[
                ("push", "done -> 1010 in memory, 0 wait"),
                ("take some", "7 bytes -> 993 in memory, 0 wait"),
                ("take much", "1000 bytes -> 0 in memory, 0 wait, empty"),
                ("spill", "begun -> 1000 in memory, 0 wait, a file"),
                (
                    "wait for what is written",
                    "Ok(()) -> 1000 in memory, 0 wait",
                ),
                (
                    "spill, and wait",
                    "begun, Ok(()) -> 0 in memory, 0 wait, a file",
                ),
                (
                    "push, spill, and wait",
                    "begun, Ok(()) -> 0 in memory, 0 wait, a file",
                ),
                (
                    "take all",
                    "1000 bytes, in use 0 -> 0 in memory, 0 wait, empty",
                ),
            ],
        ),
        (
            "being written",
            |case| {
                case.push(1_000);
                case.spill();
            },
            &[
                ("push", "done -> 1010 in memory, 10 wait, a file"),
                ("take some", "7 bytes -> 0 in memory, 0 wait, a file"),
                ("take much", "1000 bytes -> 0 in memory, 0 wait, empty"),
                ("spill", "not begun -> 1000 in memory, 0 wait, a file"),
                (
                    "wait for what is written",
                    "Ok(()) -> 0 in memory, 0 wait, a file",
                ),
                (
                    "spill, and wait",
                    "not begun, Ok(()) -> 0 in memory, 0 wait, a file",
                ),
                (
                    "push, spill, and wait",
                    "not begun, Ok(()) -> 10 in memory, 10 wait, a file",
                ),
                (
                    "take all",
                    "1000 bytes, in use 0 -> 0 in memory, 0 wait, empty",
                ),
            ],
        ),
        (
            "being written, with more behind",
            |case| {
                case.push(1_000);
                case.spill();
                case.push(500);
            },
            &[
                ("push", "done -> 1510 in memory, 510 wait, a file"),
                ("take some", "7 bytes -> 500 in memory, 500 wait, a file"),
                ("take much", "1000 bytes -> 500 in memory, 500 wait"),
                ("spill", "not begun -> 1500 in memory, 500 wait, a file"),
                (
                    "wait for what is written",
                    "Ok(()) -> 500 in memory, 500 wait, a file",
                ),
                (
                    "spill, and wait",
                    "not begun, Ok(()) -> 500 in memory, 500 wait, a file",
                ),
                (
                    "push, spill, and wait",
                    "not begun, Ok(()) -> 510 in memory, 510 wait, a file",
                ),
                (
                    "take all",
                    "1500 bytes, in use 0 -> 0 in memory, 0 wait, empty",
                ),
            ],
        ),
        (
            "in a file",
            |case| {
                case.push(70_000);
                case.spill();
                case.spilled();
            },
            &[
                ("push", "done -> 10 in memory, 10 wait, a file"),
                ("take some", "7 bytes -> 0 in memory, 0 wait, a file"),
                ("take much", "70000 bytes -> 0 in memory, 0 wait, empty"),
                ("spill", "not begun -> 0 in memory, 0 wait, a file"),
                (
                    "wait for what is written",
                    "Ok(()) -> 0 in memory, 0 wait, a file",
                ),
                (
                    "spill, and wait",
                    "not begun, Ok(()) -> 0 in memory, 0 wait, a file",
                ),
                (
                    "push, spill, and wait",
                    "begun, Ok(()) -> 0 in memory, 0 wait, a file",
                ),
                (
                    "take all",
                    "70000 bytes, in use 0 -> 0 in memory, 0 wait, empty",
                ),
            ],
        ),
        (
            "half read from a file, with more behind",
            |case| {
                case.push(70_000);
                case.spill();
                case.spilled();
                let _ = case.next(35_000);
                case.push(500);
            },
            &[
                ("push", "done -> 510 in memory, 510 wait, a file"),
                ("take some", "7 bytes -> 500 in memory, 500 wait, a file"),
                ("take much", "35000 bytes -> 500 in memory, 500 wait"),
                ("spill", "begun -> 500 in memory, 0 wait, a file"),
                (
                    "wait for what is written",
                    "Ok(()) -> 500 in memory, 500 wait, a file",
                ),
                (
                    "spill, and wait",
                    "begun, Ok(()) -> 0 in memory, 0 wait, a file",
                ),
                (
                    "push, spill, and wait",
                    "begun, Ok(()) -> 0 in memory, 0 wait, a file",
                ),
                (
                    "take all",
                    "35500 bytes, in use 0 -> 0 in memory, 0 wait, empty",
                ),
            ],
        ),
        (
            "in a full file",
            |case| {
                case.push(150_000);
                case.spill();
                case.spilled();
            },
            &[
                ("push", "done -> 50010 in memory, 50010 wait, a file"),
                (
                    "take some",
                    "7 bytes -> 50000 in memory, 50000 wait, a file",
                ),
                ("take much", "100000 bytes -> 50000 in memory, 50000 wait"),
                ("spill", "not begun -> 50000 in memory, 50000 wait, a file"),
                (
                    "wait for what is written",
                    "Ok(()) -> 50000 in memory, 50000 wait, a file",
                ),
                (
                    "spill, and wait",
                    "not begun, Ok(()) -> 50000 in memory, 50000 wait, a file",
                ),
                (
                    "push, spill, and wait",
                    "not begun, Ok(()) -> 50010 in memory, 50010 wait, a file",
                ),
                (
                    "take all",
                    "150000 bytes, in use 0 -> 0 in memory, 0 wait, empty",
                ),
            ],
        ),
    ];
    for (state, enter, wants) in states {
        assert_eq!(
            wants.len(),
            CALLS.len(),
            "{state}: the table has every call"
        );
        for ((name, call), (of, want)) in CALLS.into_iter().zip(wants) {
            assert_eq!(name, *of, "{state}: the table has the calls in their order");
            assert_eq!(
                outcome(enter, call),
                *want,
                "{name} on a spool that is {state}"
            );
        }
    }
}

#[test]
fn where_no_file_can_be_made_bytes_stay_in_memory() {
    let broken = || TempFiles::new("/nonexistent".into(), 1 << 30);
    let wait: Act = |case| {
        case.push(1_000);
        case.spill();
        case.spilled();
    };
    let again: Act = |case| case.spill();
    let all: Act = |case| {
        case.push(7);
        let got: usize = std::iter::from_fn(|| case.next(400))
            .map(|piece| piece.len())
            .sum();
        case.said = format!("{got} bytes");
    };
    assert_eq!(
        outcome_with(broken(), wait, again),
        "not begun -> 1000 in memory, 1000 wait"
    );
    assert_eq!(
        outcome_with(broken(), wait, all),
        "1007 bytes -> 0 in memory, 0 wait, empty"
    );
}

#[test]
fn no_file_is_made_where_none_may_grow() {
    let full = || TempFiles::new("/tmp".into(), 999);
    let push: Act = |case| case.push(1_000);
    let spill: Act = |case| {
        case.spill();
        assert_eq!(
            (case.files.made(), case.files.used(), case.files.refusals()),
            (0, 0, 1)
        );
    };
    let want = "not begun -> 1000 in memory, 1000 wait";
    assert_eq!(outcome_with(full(), push, spill), want);
    let off = || TempFiles::new("/tmp".into(), 0);
    let spill: Act = |case| {
        case.spill();
        assert_eq!(
            (case.files.made(), case.files.refusals()),
            (0, 0),
            "the limit of temporary files causes no warning for a spool that needs no file"
        );
    };
    assert_eq!(outcome_with(off(), push, spill), want);
}
