//! Tests of the scheduler through its public calls, with a check of its invariants after each call.

mod cost;
mod dependencies;
mod model;
mod responses;
mod turns;
mod urgencies;

use std::collections::{BTreeMap, HashMap};

use super::tree::Turns;
use super::*;

/// The random number generator xorshift64.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from(((self.0 >> 32) * u64::from(limit)) >> 32)
            .expect("the random number is below a limit of type u32")
    }
}

fn on(dependency: u32, weight: u16) -> Option<Priority> {
    Some(Priority {
        exclusive: false,
        dependency,
        weight,
    })
}

fn only(dependency: u32, weight: u16) -> Option<Priority> {
    Some(Priority {
        exclusive: true,
        dependency,
        weight,
    })
}

fn urgency(urgency: u8, incremental: bool) -> PriorityParameters {
    PriorityParameters {
        urgency,
        incremental,
    }
}

fn answer(urgency: u8) -> PriorityField {
    PriorityField {
        urgency: Some(urgency),
        incremental: None,
    }
}

/// A scheduler whose streams the tests name by their identifiers. Every call checks the invariants.
struct Bench {
    scheduler: Scheduler,
    keys: HashMap<u32, NodeKey>,
    newest: u32,
    checks: bool,
}

impl Bench {
    fn new() -> Self {
        Self {
            scheduler: Scheduler::new(),
            keys: HashMap::new(),
            newest: 0,
            checks: true,
        }
    }

    fn check(&self) {
        if self.checks {
            self.scheduler.check();
        }
    }

    fn open(&mut self, stream: u32, priority: Option<Priority>) -> &mut Self {
        let key = self
            .scheduler
            .open(stream, stream, priority)
            .expect("no stream depends on itself");
        self.keys.insert(stream, key);
        self.newest = stream;
        self.check();
        self
    }

    fn push(&mut self, stream: u32, parent: u32) -> &mut Self {
        let key = self
            .scheduler
            .open_pushed(stream, stream, self.keys[&parent]);
        self.keys.insert(stream, key);
        self.check();
        self
    }

    fn priority(&mut self, stream: u32, priority: Option<Priority>) -> &mut Self {
        let done = self
            .scheduler
            .reprioritize(stream, priority.unwrap_or_default(), self.newest);
        assert_eq!(done, Ok(()));
        self.check();
        self
    }

    fn ready(&mut self, streams: &[u32]) -> &mut Self {
        for stream in streams {
            self.scheduler.set_ready(self.keys[stream], true);
            self.check();
        }
        self
    }

    fn blocked(&mut self, streams: &[u32]) -> &mut Self {
        for stream in streams {
            self.scheduler.set_ready(self.keys[stream], false);
            self.check();
        }
        self
    }

    fn close(&mut self, stream: u32) -> &mut Self {
        let key = self.keys.remove(&stream).expect("the stream is open");
        self.scheduler.close(key);
        self.check();
        self
    }

    fn answers(&mut self, stream: u32, update: PriorityField) -> bool {
        let applied = self
            .scheduler
            .apply_response_priority(self.keys[&stream], update);
        self.check();
        applied
    }

    fn next(&mut self) -> Option<u32> {
        let next = self.scheduler.next();
        self.check();
        next
    }

    fn turns(&mut self, count: usize) -> Vec<u32> {
        (0..count).map_while(|_| self.next()).collect()
    }

    fn counts(&mut self, turns: usize) -> BTreeMap<u32, u32> {
        let mut counts = BTreeMap::new();
        for _ in 0..turns {
            *counts
                .entry(self.next().expect("a stream is ready to send"))
                .or_insert(0) += 1;
        }
        counts
    }

    /// The places of all streams by identifier, each as `stream<parent:weight`. In parentheses: the place that the client
    /// requested for a stream which the `priority` field of its response has moved.
    fn places(&self) -> String {
        let nodes = &self.scheduler.tree.nodes;
        let mut places: Vec<_> = self
            .scheduler
            .tree
            .numbers()
            .filter(|&node| nodes[node].kind != NodeKind::Free)
            .map(|node| {
                let at = &nodes[node];
                let place = format!("{}<{}:{}", at.stream, nodes[at.parent].stream, at.weight);
                let is_kept = at.kind == NodeKind::PlaceKeeper;
                (
                    at.stream,
                    is_kept,
                    if is_kept { format!("({place})") } else { place },
                )
            })
            .collect();
        places.sort();
        let places: Vec<_> = places.into_iter().map(|place| place.2).collect();
        places.join(" ")
    }
}

impl Scheduler {
    /// Checks the invariants that hold between two calls.
    fn check(&self) {
        let nodes = &self.tree.nodes;
        let used: Vec<u32> = self
            .tree
            .numbers()
            .filter(|&node| nodes[node].kind != NodeKind::Free)
            .collect();
        let mut ready = 0;
        for &node in &used {
            let at = &nodes[node];
            assert!(children(self, at.parent).contains(&node));
            assert!((1..=ELEVATED).contains(&at.weight));
            assert!(at.weight != ELEVATED || at.parent == ROOT);
            if at.kind != NodeKind::Displaced {
                assert!(
                    self.index
                        .as_ref()
                        .is_none_or(|index| index.get(at.stream) == Some(node))
                );
            }
            let is_open = matches!(at.kind, NodeKind::Open | NodeKind::Displaced);
            assert!(is_open || !self.is_ready(NodeKey(node)));
            ready += usize::from(self.is_ready(NodeKey(node)));
            let has_turns = self.is_ready(NodeKey(node)) && self.alone != node;
            let is_queued = (self.urgencies.as_ref()).is_some_and(|queue| queue.contains(node));
            assert_eq!(is_queued, has_turns && self.urgencies.is_some());
            assert_eq!(at.ready, has_turns && self.urgencies.is_none());
        }
        assert_eq!(ready, self.ready);
        assert!(self.alone == NONE || ready == 1);
        if used.is_empty() {
            return;
        }
        let mut seen = 0;
        let mut todo = vec![ROOT];
        while let Some(node) = todo.pop() {
            let all = children(self, node);
            seen += all.len();
            let mut active: Vec<u32> = all
                .iter()
                .copied()
                .filter(|&child| is_active(self, child))
                .collect();
            let mut turns = match nodes[node].turns() {
                Turns::None => Vec::new(),
                Turns::One(child) => vec![child],
                Turns::Many(wheel) => self.tree.wheels[wheel].members(nodes),
            };
            active.sort_unstable();
            turns.sort_unstable();
            assert_eq!(active, turns);
            if node == ROOT || nodes[node].ready || matches!(nodes[node].turns(), Turns::Many(_)) {
                for child in turns {
                    let mut end = child;
                    while let (false, Turns::One(below)) = (nodes[end].ready, nodes[end].turns()) {
                        end = below;
                    }
                    assert_eq!(nodes[child].other_end, end);
                    assert_eq!(nodes[end].other_end, child);
                }
            }
            todo.extend(all);
        }
        assert_eq!(seen, used.len(), "all nodes hang below the root");
    }
}

fn children(scheduler: &Scheduler, node: u32) -> Vec<u32> {
    let nodes = &scheduler.tree.nodes;
    let mut found = Vec::new();
    let mut child = nodes[node].first_child;
    let mut prev = NONE;
    while child != NONE {
        assert_eq!((nodes[child].parent, nodes[child].prev), (node, prev));
        found.push(child);
        prev = child;
        child = nodes[child].next;
    }
    found
}

fn is_active(scheduler: &Scheduler, node: u32) -> bool {
    scheduler.tree.nodes[node].ready
        || children(scheduler, node)
            .iter()
            .any(|&child| is_active(scheduler, child))
}

/// The first tree of RFC 7540 §5.3.3, figure 5. Its nodes are these streams: x is 1, A 3, B 5, C 7, D 9, E 11, F 13.
fn figure_5(ready: &[u32]) -> Bench {
    let mut bench = Bench::new();
    bench.open(1, None).open(3, on(1, 16)).open(5, on(3, 16));
    bench
        .open(7, on(3, 16))
        .open(9, on(7, 16))
        .open(11, on(7, 16));
    bench.open(13, on(9, 16)).ready(ready);
    bench
}
