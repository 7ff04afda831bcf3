//! Every state of the pipe with every call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use h2o_exchange::BodyPipe;

use super::poll;

/// A waker that counts how often it is woken.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Bell {
    fn rung(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// The result of taking a piece of the body, as text.
fn piece(polled: Poll<Option<Result<Bytes, h2o_exchange::BodyError>>>) -> String {
    match polled {
        Poll::Pending => "pending".to_owned(),
        Poll::Ready(None) => "end".to_owned(),
        Poll::Ready(Some(Err(error))) => format!("error {error}"),
        Poll::Ready(Some(Ok(piece))) if piece.len() > 8 => format!("{} bytes", piece.len()),
        Poll::Ready(Some(Ok(piece))) => format!("{piece:?}"),
    }
}

type Enter = fn(&BodyPipe);
type Call = fn(&BodyPipe) -> String;
/// A row: name of the pipe's state, how to reach it, and the outcome of each call in it.
type State = (&'static str, Enter, &'static [(&'static str, &'static str)]);

fn done(call: impl FnOnce()) -> String {
    call();
    "done".to_owned()
}

const CALLS: [(&str, Call); 14] = [
    ("push", |pipe| done(|| pipe.push("xy"))),
    ("push nothing", |pipe| done(|| pipe.push(""))),
    ("finish", |pipe| done(|| pipe.finish(Ok(())))),
    ("fail", |pipe| done(|| pipe.finish(Err("cut off".into())))),
    ("poll_next", |pipe| {
        piece(poll(|context| pipe.poll_next(context)))
    }),
    ("poll_begun", |pipe| {
        format!("{:?}", poll(|context| pipe.poll_begun(context)))
    }),
    ("poll_room", |pipe| {
        format!("{:?}", poll(|context| pipe.poll_room(context)))
    }),
    ("take_whole", |pipe| {
        format!("{:?}", pipe.take_whole().map(|whole| whole.len()))
    }),
    ("abandon", |pipe| done(|| pipe.abandon())),
    ("give_up", |pipe| done(|| pipe.give_up("slow"))),
    ("keep", |pipe| done(|| pipe.keep())),
    ("stop_keeping", |pipe| done(|| pipe.stop_keeping())),
    ("rewind", |pipe| format!("{}", pipe.rewind())),
    ("rewind after taking all", |pipe| {
        while let Poll::Ready(Some(Ok(_))) = poll(|context| pipe.poll_next(context)) {}
        format!("{}", pipe.rewind())
    }),
];

/// Makes a call in a state of the pipe. Returns as text the call's result, the wakers that it fires, and the state
/// afterwards.
fn outcome(enter: Enter, call: Call) -> String {
    let pipe = BodyPipe::default();
    enter(&pipe);
    let [reader, writer, owner] = std::array::from_fn(|_| Arc::new(Bell::default()));
    let waker = |bell: &Arc<Bell>| Waker::from(Arc::clone(bell));
    pipe.set_owner(waker(&owner));
    pipe.watch(&mut Context::from_waker(&waker(&writer)));
    let _ = pipe.poll_begun(&mut Context::from_waker(&waker(&reader)));
    let mut words = call(&pipe);
    for (bell, name) in [(reader, "reader"), (writer, "writer"), (owner, "owner")] {
        if bell.rung() {
            words += &format!(", wakes the {name}");
        }
    }
    words += &format!(" -> {} queued", pipe.queued());
    for (is_so, name) in [
        (pipe.is_complete(), "complete"),
        (pipe.is_drained(), "drained"),
        (pipe.is_abandoned(), "abandoned"),
        (pipe.given_up().is_some(), "given up"),
        (pipe.is_starved(), "starved"),
        (pipe.is_kept(), "kept"),
    ] {
        if is_so {
            words += &format!(", {name}");
        }
    }
    words
}

fn take(pipe: &BodyPipe) {
    let _ = poll(|context| pipe.poll_next(context));
}

#[test]
fn every_state_meets_every_call() {
    let states: [State; 14] = [
        (
            "new",
            |_| {},
            &[
                ("push", "done, wakes the reader -> 2 queued"),
                ("push nothing", "done -> 0 queued, starved"),
                (
                    "finish",
                    "done, wakes the reader -> 0 queued, complete, drained",
                ),
                ("fail", "done, wakes the reader -> 0 queued"),
                ("poll_next", "pending -> 0 queued, starved"),
                ("poll_begun", "Pending -> 0 queued, starved"),
                ("poll_room", "Ready(65536) -> 0 queued, starved"),
                ("take_whole", "None -> 0 queued, starved"),
                (
                    "abandon",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned",
                ),
                (
                    "give_up",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, given up",
                ),
                ("keep", "done -> 0 queued, starved, kept"),
                ("stop_keeping", "done -> 0 queued, starved"),
                ("rewind", "true -> 0 queued, starved"),
                ("rewind after taking all", "true -> 0 queued, starved"),
            ],
        ),
        (
            "filled",
            |pipe| pipe.push("abc"),
            &[
                ("push", "done -> 5 queued"),
                ("push nothing", "done -> 3 queued"),
                ("finish", "done -> 3 queued, complete"),
                ("fail", "done -> 3 queued"),
                (
                    "poll_next",
                    "b\"abc\", wakes the writer -> 0 queued, starved",
                ),
                ("poll_begun", "Ready(()) -> 3 queued"),
                ("poll_room", "Ready(65533) -> 3 queued"),
                ("take_whole", "None -> 3 queued"),
                (
                    "abandon",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned",
                ),
                (
                    "give_up",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, given up",
                ),
                ("keep", "done -> 3 queued, kept"),
                ("stop_keeping", "done -> 3 queued"),
                ("rewind", "true -> 3 queued"),
                (
                    "rewind after taking all",
                    "false, wakes the writer -> 0 queued, starved",
                ),
            ],
        ),
        (
            "full",
            |pipe| pipe.push(vec![0; BodyPipe::CAPACITY]),
            &[
                ("push", "done -> 65538 queued"),
                ("push nothing", "done -> 65536 queued"),
                ("finish", "done -> 65536 queued, complete"),
                ("fail", "done -> 65536 queued"),
                ("poll_next", "32768 bytes, wakes the writer -> 32768 queued"),
                ("poll_begun", "Ready(()) -> 65536 queued"),
                ("poll_room", "Pending -> 65536 queued"),
                ("take_whole", "None -> 65536 queued"),
                (
                    "abandon",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned",
                ),
                (
                    "give_up",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, given up",
                ),
                ("keep", "done -> 65536 queued, kept"),
                ("stop_keeping", "done -> 65536 queued"),
                ("rewind", "true -> 65536 queued"),
                (
                    "rewind after taking all",
                    "false, wakes the writer -> 0 queued, starved",
                ),
            ],
        ),
        (
            "ended without content",
            |pipe| pipe.finish(Ok(())),
            &[
                ("push", "done -> 2 queued, complete"),
                ("push nothing", "done -> 0 queued, complete, drained"),
                ("finish", "done -> 0 queued, complete, drained"),
                ("fail", "done -> 0 queued, complete, drained"),
                ("poll_next", "end -> 0 queued, complete, drained"),
                ("poll_begun", "Ready(()) -> 0 queued, complete, drained"),
                ("poll_room", "Ready(65536) -> 0 queued, complete, drained"),
                (
                    "take_whole",
                    "Some(0), wakes the writer -> 0 queued, complete, drained",
                ),
                (
                    "abandon",
                    "done, wakes the writer, wakes the owner -> 0 queued, complete, drained, abandoned",
                ),
                (
                    "give_up",
                    "done, wakes the writer, wakes the owner -> 0 queued, complete, drained, abandoned, given up",
                ),
                ("keep", "done -> 0 queued, complete, drained, kept"),
                ("stop_keeping", "done -> 0 queued, complete, drained"),
                ("rewind", "true -> 0 queued, complete, drained"),
                (
                    "rewind after taking all",
                    "true -> 0 queued, complete, drained",
                ),
            ],
        ),
        (
            "filled and ended",
            |pipe| {
                pipe.push("abc");
                pipe.finish(Ok(()));
            },
            &[
                ("push", "done -> 5 queued, complete"),
                ("push nothing", "done -> 3 queued, complete"),
                ("finish", "done -> 3 queued, complete"),
                ("fail", "done -> 3 queued, complete"),
                (
                    "poll_next",
                    "b\"abc\", wakes the writer -> 0 queued, complete, drained",
                ),
                ("poll_begun", "Ready(()) -> 3 queued, complete"),
                ("poll_room", "Ready(65533) -> 3 queued, complete"),
                (
                    "take_whole",
                    "Some(3), wakes the writer -> 0 queued, complete, drained",
                ),
                (
                    "abandon",
                    "done, wakes the writer, wakes the owner -> 0 queued, complete, drained, abandoned",
                ),
                (
                    "give_up",
                    "done, wakes the writer, wakes the owner -> 0 queued, complete, drained, abandoned, given up",
                ),
                ("keep", "done -> 3 queued, complete, kept"),
                ("stop_keeping", "done -> 3 queued, complete"),
                ("rewind", "true -> 3 queued, complete"),
                (
                    "rewind after taking all",
                    "false, wakes the writer -> 0 queued, complete, drained",
                ),
            ],
        ),
        (
            "failed",
            |pipe| pipe.finish(Err("cut off".into())),
            &[
                ("push", "done -> 2 queued"),
                ("push nothing", "done -> 0 queued"),
                ("finish", "done -> 0 queued"),
                ("fail", "done -> 0 queued"),
                ("poll_next", "error cut off -> 0 queued"),
                ("poll_begun", "Ready(()) -> 0 queued"),
                ("poll_room", "Ready(65536) -> 0 queued"),
                ("take_whole", "None -> 0 queued"),
                (
                    "abandon",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned",
                ),
                (
                    "give_up",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, given up",
                ),
                ("keep", "done -> 0 queued, kept"),
                ("stop_keeping", "done -> 0 queued"),
                ("rewind", "true -> 0 queued"),
                ("rewind after taking all", "true -> 0 queued"),
            ],
        ),
        (
            "filled and failed",
            |pipe| {
                pipe.push("abc");
                pipe.finish(Err("cut off".into()));
            },
            &[
                ("push", "done -> 5 queued"),
                ("push nothing", "done -> 3 queued"),
                ("finish", "done -> 3 queued"),
                ("fail", "done -> 3 queued"),
                ("poll_next", "b\"abc\", wakes the writer -> 0 queued"),
                ("poll_begun", "Ready(()) -> 3 queued"),
                ("poll_room", "Ready(65533) -> 3 queued"),
                ("take_whole", "None -> 3 queued"),
                (
                    "abandon",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned",
                ),
                (
                    "give_up",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, given up",
                ),
                ("keep", "done -> 3 queued, kept"),
                ("stop_keeping", "done -> 3 queued"),
                ("rewind", "true -> 3 queued"),
                (
                    "rewind after taking all",
                    "false, wakes the writer -> 0 queued",
                ),
            ],
        ),
        (
            "taken",
            |pipe| {
                pipe.push("abc");
                take(pipe);
            },
            &[
                ("push", "done, wakes the reader -> 2 queued"),
                ("push nothing", "done -> 0 queued, starved"),
                (
                    "finish",
                    "done, wakes the reader -> 0 queued, complete, drained",
                ),
                ("fail", "done, wakes the reader -> 0 queued"),
                ("poll_next", "pending -> 0 queued, starved"),
                ("poll_begun", "Pending -> 0 queued, starved"),
                ("poll_room", "Ready(65536) -> 0 queued, starved"),
                ("take_whole", "None -> 0 queued, starved"),
                (
                    "abandon",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned",
                ),
                (
                    "give_up",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, given up",
                ),
                ("keep", "done -> 0 queued, starved"),
                ("stop_keeping", "done -> 0 queued, starved"),
                ("rewind", "false -> 0 queued, starved"),
                ("rewind after taking all", "false -> 0 queued, starved"),
            ],
        ),
        (
            "abandoned",
            |pipe| {
                pipe.push("abc");
                pipe.abandon();
            },
            &[
                ("push", "done -> 0 queued, abandoned"),
                ("push nothing", "done -> 0 queued, abandoned"),
                (
                    "finish",
                    "done, wakes the reader -> 0 queued, complete, drained, abandoned",
                ),
                ("fail", "done, wakes the reader -> 0 queued, abandoned"),
                ("poll_next", "pending -> 0 queued, abandoned"),
                ("poll_begun", "Pending -> 0 queued, abandoned"),
                ("poll_room", "Ready(65536) -> 0 queued, abandoned"),
                ("take_whole", "None -> 0 queued, abandoned"),
                (
                    "abandon",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned",
                ),
                (
                    "give_up",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, given up",
                ),
                ("keep", "done -> 0 queued, abandoned"),
                ("stop_keeping", "done -> 0 queued, abandoned"),
                ("rewind", "false -> 0 queued, abandoned"),
                ("rewind after taking all", "false -> 0 queued, abandoned"),
            ],
        ),
        (
            "given up",
            |pipe| {
                pipe.push("abc");
                pipe.give_up("stuck");
            },
            &[
                ("push", "done -> 0 queued, abandoned, given up"),
                ("push nothing", "done -> 0 queued, abandoned, given up"),
                (
                    "finish",
                    "done, wakes the reader -> 0 queued, complete, drained, abandoned, given up",
                ),
                (
                    "fail",
                    "done, wakes the reader -> 0 queued, abandoned, given up",
                ),
                ("poll_next", "pending -> 0 queued, abandoned, given up"),
                ("poll_begun", "Pending -> 0 queued, abandoned, given up"),
                ("poll_room", "Ready(65536) -> 0 queued, abandoned, given up"),
                ("take_whole", "None -> 0 queued, abandoned, given up"),
                (
                    "abandon",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, given up",
                ),
                (
                    "give_up",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, given up",
                ),
                ("keep", "done -> 0 queued, abandoned, given up"),
                ("stop_keeping", "done -> 0 queued, abandoned, given up"),
                ("rewind", "false -> 0 queued, abandoned, given up"),
                (
                    "rewind after taking all",
                    "false -> 0 queued, abandoned, given up",
                ),
            ],
        ),
        (
            "kept",
            |pipe| {
                pipe.keep();
                pipe.push("abc");
            },
            &[
                ("push", "done -> 5 queued, kept"),
                ("push nothing", "done -> 3 queued, kept"),
                ("finish", "done -> 3 queued, complete, kept"),
                ("fail", "done -> 3 queued, kept"),
                (
                    "poll_next",
                    "b\"abc\", wakes the writer -> 0 queued, starved, kept",
                ),
                ("poll_begun", "Ready(()) -> 3 queued, kept"),
                ("poll_room", "Ready(65533) -> 3 queued, kept"),
                ("take_whole", "None -> 3 queued, kept"),
                (
                    "abandon",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, kept",
                ),
                (
                    "give_up",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, given up, kept",
                ),
                ("keep", "done -> 3 queued, kept"),
                ("stop_keeping", "done -> 3 queued"),
                ("rewind", "true -> 3 queued, kept"),
                (
                    "rewind after taking all",
                    "true, wakes the writer -> 0 queued, kept",
                ),
            ],
        ),
        (
            "kept and taken",
            |pipe| {
                pipe.keep();
                pipe.push("abc");
                take(pipe);
            },
            &[
                ("push", "done, wakes the reader -> 2 queued, kept"),
                ("push nothing", "done -> 0 queued, starved, kept"),
                (
                    "finish",
                    "done, wakes the reader -> 0 queued, complete, drained, kept",
                ),
                ("fail", "done, wakes the reader -> 0 queued, kept"),
                ("poll_next", "pending -> 0 queued, starved, kept"),
                ("poll_begun", "Pending -> 0 queued, starved, kept"),
                ("poll_room", "Ready(65536) -> 0 queued, starved, kept"),
                ("take_whole", "None -> 0 queued, starved, kept"),
                (
                    "abandon",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, kept",
                ),
                (
                    "give_up",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, given up, kept",
                ),
                ("keep", "done -> 0 queued, starved, kept"),
                ("stop_keeping", "done -> 0 queued, starved"),
                ("rewind", "true -> 0 queued, kept"),
                ("rewind after taking all", "true -> 0 queued, kept"),
            ],
        ),
        (
            "kept and rewound",
            |pipe| {
                pipe.keep();
                pipe.push("abc");
                take(pipe);
                pipe.push("de");
                assert!(pipe.rewind());
            },
            &[
                ("push", "done -> 4 queued, kept"),
                ("push nothing", "done -> 2 queued, kept"),
                ("finish", "done -> 2 queued, complete, kept"),
                ("fail", "done -> 2 queued, kept"),
                ("poll_next", "b\"abc\", wakes the writer -> 2 queued, kept"),
                ("poll_begun", "Ready(()) -> 2 queued, kept"),
                ("poll_room", "Ready(65534) -> 2 queued, kept"),
                ("take_whole", "None -> 2 queued, kept"),
                (
                    "abandon",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, kept",
                ),
                (
                    "give_up",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, given up, kept",
                ),
                ("keep", "done -> 2 queued, kept"),
                ("stop_keeping", "done -> 2 queued"),
                ("rewind", "true -> 2 queued, kept"),
                (
                    "rewind after taking all",
                    "true, wakes the writer -> 0 queued, kept",
                ),
            ],
        ),
        (
            "kept and abandoned",
            |pipe| {
                pipe.keep();
                pipe.push("abc");
                pipe.abandon();
            },
            &[
                ("push", "done -> 0 queued, abandoned, kept"),
                ("push nothing", "done -> 0 queued, abandoned, kept"),
                (
                    "finish",
                    "done, wakes the reader -> 0 queued, complete, drained, abandoned, kept",
                ),
                (
                    "fail",
                    "done, wakes the reader -> 0 queued, abandoned, kept",
                ),
                ("poll_next", "pending -> 0 queued, abandoned, kept"),
                ("poll_begun", "Pending -> 0 queued, abandoned, kept"),
                ("poll_room", "Ready(65536) -> 0 queued, abandoned, kept"),
                ("take_whole", "None -> 0 queued, abandoned, kept"),
                (
                    "abandon",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, kept",
                ),
                (
                    "give_up",
                    "done, wakes the writer, wakes the owner -> 0 queued, abandoned, given up, kept",
                ),
                ("keep", "done -> 0 queued, abandoned, kept"),
                ("stop_keeping", "done -> 0 queued, abandoned"),
                ("rewind", "true -> 0 queued, kept"),
                ("rewind after taking all", "true -> 0 queued, kept"),
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
                "{name} on a pipe that is {state}"
            );
        }
    }
}
