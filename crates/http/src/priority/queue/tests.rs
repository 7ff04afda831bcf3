//! Tests of the queue of streams by itself: the order of turns, every state of a slot with every call, and random calls
//! that are compared with a plain model.

use super::*;

fn stream(id: u64, urgency: u8, incremental: bool) -> QueuedStream {
    QueuedStream {
        id,
        priority: PriorityParameters {
            urgency,
            incremental,
        },
        is_elevated: false,
        has_sent: false,
    }
}

/// A queue of these streams; each stream's slot is its index in the list.
fn queue(streams: &[QueuedStream]) -> UrgencyQueue {
    let mut queue = UrgencyQueue::new();
    for (slot, stream) in (0..).zip(streams) {
        queue.insert(slot, *stream);
    }
    queue
}

/// The slots of the streams that send the next `count` frames.
fn turns(queue: &mut UrgencyQueue, count: usize) -> Vec<u32> {
    std::iter::from_fn(|| queue.next()).take(count).collect()
}

#[test]
fn turns_go_by_urgency_then_by_identifier_then_around() {
    let elevated = QueuedStream {
        is_elevated: true,
        ..stream(9, 7, true)
    };
    let has_sent = QueuedStream {
        has_sent: true,
        ..stream(2, 3, true)
    };
    let cases: &[(&str, &[QueuedStream], &[u32])] = &[
        ("nothing is queued", &[], &[]),
        (
            "the lowest urgency number is served alone",
            &[stream(0, 4, false), stream(4, 3, false), stream(8, 7, true)],
            &[1, 1, 1],
        ),
        (
            "in one urgency the oldest request is served until it ends",
            &[stream(8, 3, false), stream(4, 3, false)],
            &[1, 1, 1],
        ),
        (
            "incremental streams send a frame in order of their identifiers, then take turns",
            &[stream(8, 3, true), stream(4, 3, true), stream(0, 3, true)],
            &[2, 1, 0, 2, 1, 0, 2],
        ),
        (
            "streams that take turns wait for those that do not",
            &[stream(4, 3, true), stream(8, 3, false)],
            &[0, 1, 1],
        ),
        (
            "a stream that took turns before takes turns again",
            &[has_sent, stream(4, 3, true)],
            &[1, 0, 1, 0],
        ),
        (
            "a more urgent stream that takes turns is served before a less urgent one in order",
            &[stream(0, 5, false), stream(4, 1, true)],
            &[1, 1],
        ),
        (
            "an elevated stream is served first, and does not take turns",
            &[stream(0, 0, false), elevated],
            &[1, 1, 1],
        ),
        (
            "an urgency beyond the last is the last",
            &[stream(4, 200, true), stream(0, 7, true)],
            &[1, 0, 1, 0],
        ),
    ];
    for (what, streams, want) in cases {
        let mut queue = queue(streams);
        assert_eq!(turns(&mut queue, want.len()), *want, "{what}");
        if streams.is_empty() {
            assert_eq!(queue.next(), None, "{what}");
        }
    }
}

#[test]
fn identifiers_beyond_32_bits_keep_their_order() {
    // Stream identifiers of HTTP/3 have 62 bits (RFC 9000 §2.1).
    let mut queue = queue(&[stream(1 << 61, 3, false), stream((1 << 61) - 4, 3, false)]);
    assert_eq!(queue.next(), Some(1));
}

#[test]
fn a_removed_stream_knows_whether_it_has_sent() {
    for incremental in [false, true] {
        let mut queue = queue(&[stream(0, 3, incremental), stream(4, 3, incremental)]);
        assert_eq!(queue.next(), Some(0));
        let sent = queue.remove(0).expect("the stream is queued");
        assert_eq!(sent.id, 0);
        assert!(sent.has_sent);
        assert_eq!(sent.takes_turns(), incremental);
        assert!(queue.remove(1).is_some_and(|stream| !stream.has_sent));
        assert_eq!(queue.next(), None);
    }
}

/// What the queue knows of a slot (the number that the caller gives to a stream): whether its stream is queued, and among which others. A
/// second stream of the same urgency is always queued, so that a test sees which of the two comes first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// The slot is larger than any that the queue was ever given.
    Unknown,
    Free,
    InOrder,
    InTurns,
    Elevated,
}

#[test]
fn every_state_meets_every_call() {
    use State::{Elevated, Free, InOrder, InTurns, Unknown};
    const SLOT: u32 = 1;
    for state in [Unknown, Free, InOrder, InTurns, Elevated] {
        let make = || {
            let mut queue = queue(&[stream(0, 3, true)]);
            assert_eq!(queue.next(), Some(0), "the incremental stream has turns");
            let it = QueuedStream {
                is_elevated: state == Elevated,
                has_sent: state == InTurns,
                ..stream(4, 3, state == InTurns)
            };
            if state != Unknown {
                queue.insert(SLOT, it);
            }
            if state == Free {
                queue.remove(SLOT);
            }
            queue
        };
        let is_queued = !matches!(state, Unknown | Free);

        assert_eq!(make().contains(SLOT), is_queued, "{state:?}");

        let order = turns(&mut make(), 3);
        let want = match state {
            Unknown | Free => [0, 0, 0],
            InOrder | Elevated => [1, 1, 1],
            InTurns => [0, 1, 0],
        };
        assert_eq!(order, want, "{state:?}");

        let mut queue = make();
        let removed = queue.remove(SLOT).map(|stream| stream.id);
        assert_eq!(removed, is_queued.then_some(4), "{state:?}");
        assert!(!queue.contains(SLOT), "{state:?}");
        assert_eq!(
            turns(&mut queue, 2),
            [0, 0],
            "{state:?}: the other stream keeps its turns"
        );
        assert_eq!(
            queue.remove(SLOT),
            None,
            "{state:?}: the stream is queued only once"
        );

        let mut queue = make();
        queue.shrink();
        assert_eq!(queue.contains(SLOT), is_queued, "{state:?}");
        assert_eq!(
            turns(&mut queue, 3),
            want,
            "{state:?}: the turns are as before"
        );
    }
}

#[test]
fn memory_of_streams_that_are_gone_is_given_back() {
    let mut queue = UrgencyQueue::new();
    assert_eq!(queue.retained(), 0);
    for slot in 0..100 {
        queue.insert(slot, stream(u64::from(slot), 3, false));
    }
    let full = queue.retained();
    for slot in 1..100 {
        queue.remove(slot);
    }
    queue.shrink();
    assert!(
        queue.retained() * 50 < full,
        "{} of {full}",
        queue.retained()
    );
    assert_eq!(queue.next(), Some(0));
}

/// A plain model of the rules of RFC 9218 §10: all streams in lists that are searched for each turn.
#[derive(Default)]
struct Model {
    /// The streams that are served in the order of their identifiers, with their slots.
    in_order: Vec<(u32, QueuedStream)>,
    /// The incremental streams that take turns, with their slots. Among those of one urgency the next to send is the first.
    in_turns: Vec<(u32, QueuedStream)>,
}

impl Model {
    fn insert(&mut self, slot: u32, stream: QueuedStream) {
        if stream.priority.incremental && stream.has_sent && !stream.is_elevated {
            self.in_turns.push((slot, stream));
        } else {
            self.in_order.push((slot, stream));
        }
    }

    fn remove(&mut self, slot: u32) -> Option<QueuedStream> {
        for list in [&mut self.in_order, &mut self.in_turns] {
            if let Some(at) = list.iter().position(|&(other, _)| other == slot) {
                return Some(list.remove(at).1);
            }
        }
        None
    }

    fn next(&mut self) -> Option<u32> {
        let rank = |stream: &QueuedStream| match stream.is_elevated {
            true => 0,
            false => stream.priority.urgency + 1,
        };
        let first = (0..self.in_order.len())
            .min_by_key(|&at| (rank(&self.in_order[at].1), self.in_order[at].1.id));
        let turn = (0..self.in_turns.len()).min_by_key(|&at| rank(&self.in_turns[at].1));
        let rank_at = |list: &[(u32, QueuedStream)], at: usize| rank(&list[at].1);
        match (first, turn) {
            (Some(at), None) => Some(self.serve(at)),
            (Some(at), Some(turn))
                if rank_at(&self.in_order, at) <= rank_at(&self.in_turns, turn) =>
            {
                Some(self.serve(at))
            }
            (_, Some(turn)) => {
                let served = self.in_turns.remove(turn);
                self.in_turns.push(served);
                Some(served.0)
            }
            (None, None) => None,
        }
    }

    /// Serves the stream at this index of `in_order`. Returns its slot.
    fn serve(&mut self, at: usize) -> u32 {
        let (slot, mut stream) = self.in_order.remove(at);
        stream.has_sent = true;
        self.insert(slot, stream);
        slot
    }
}

#[test]
fn random_calls_agree_with_the_rules() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut queue, mut model) = (UrgencyQueue::new(), Model::default());
        for id in 0..400 {
            let slot = random.u32(..12);
            assert_eq!(queue.remove(slot), model.remove(slot), "seed {seed}");
            if random.u8(..3) > 0 {
                let stream = QueuedStream {
                    is_elevated: random.u8(..16) == 0,
                    has_sent: random.bool(),
                    ..stream(id, random.u8(..8) / 2, random.bool())
                };
                queue.insert(slot, stream);
                model.insert(slot, stream);
            }
            for _ in 0..random.u8(..6) {
                assert_eq!(queue.next(), model.next(), "seed {seed}");
            }
            if random.u8(..50) == 0 {
                queue.shrink();
            }
        }
    }
}
