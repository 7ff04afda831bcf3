//! Whose turn it is among urgencies (RFC 9218 §10).
//!
//! The lowest urgency number first. Inside one urgency, streams that are not incremental, and incremental ones
//! that have not sent yet, are served in the order of their identifiers; then the other incremental ones take
//! turns of a frame each.

use super::tree::{NONE, Nodes, Queued};
use super::wheel::{ELEVATED, push, unlink};

/// What goes first: the urgency plus one, or 0 for an elevated stream; then the identifier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    class: u8,
    stream: u32,
}

pub(super) struct Urgencies {
    /// A binary heap of the streams served in order; each knows its place (`turn.prev`).
    in_order: Vec<(Rank, u32)>,
    /// By urgency, the rings of those that take turns.
    rings: [u32; 8],
    /// The rings that are not empty.
    occupied: u8,
}

impl Urgencies {
    pub(super) const fn new() -> Self {
        Self {
            in_order: Vec::new(),
            rings: [NONE; 8],
            occupied: 0,
        }
    }

    pub(super) fn insert(&mut self, nodes: &mut Nodes, node: u32) {
        let at = &mut nodes[node];
        debug_assert_eq!(at.queued, Queued::No);
        let urgency = at.urgency.urgency.min(7);
        let is_elevated = at.weight == ELEVATED;
        if at.urgency.incremental && at.sent && !is_elevated {
            at.queued = Queued::RoundRobin;
            push(nodes, &mut self.rings[usize::from(urgency)], node);
            self.occupied |= 1 << urgency;
            return;
        }
        at.queued = Queued::InOrder;
        let rank = Rank {
            class: if is_elevated { 0 } else { urgency + 1 },
            stream: at.stream,
        };
        self.in_order.push((rank, node));
        self.rise(nodes, self.in_order.len() - 1);
    }

    pub(super) fn remove(&mut self, nodes: &mut Nodes, node: u32) {
        match nodes[node].queued {
            Queued::No => {}
            Queued::RoundRobin => {
                let urgency = usize::from(nodes[node].urgency.urgency.min(7));
                unlink(nodes, &mut self.rings[urgency], node);
                if self.rings[urgency] == NONE {
                    self.occupied &= !(1 << urgency);
                }
            }
            Queued::InOrder => {
                let place = nodes[node].turn.prev as usize;
                self.in_order.swap_remove(place);
                if place < self.in_order.len() {
                    self.rise(nodes, place);
                    self.sink(nodes, place);
                }
            }
        }
        nodes[node].queued = Queued::No;
    }

    pub(super) fn next(&mut self, nodes: &mut Nodes) -> Option<u32> {
        // Eight if there is none, and then the class of no stream is higher.
        let ring = self.occupied.trailing_zeros();
        if let Some(&(rank, node)) = self.in_order.first()
            && u32::from(rank.class) <= ring + 1
        {
            if !nodes[node].sent {
                nodes[node].sent = true;
                if nodes[node].urgency.incremental {
                    self.remove(nodes, node);
                    self.insert(nodes, node);
                }
            }
            return Some(node);
        }
        let head = self.rings.get_mut(ring as usize)?;
        let node = *head;
        *head = nodes[node].turn.next;
        Some(node)
    }

    /// Gives back memory that is not in use.
    pub(super) fn shrink(&mut self) {
        self.in_order.shrink_to_fit();
    }

    fn rise(&mut self, nodes: &mut Nodes, mut place: usize) {
        let moved = self.in_order[place];
        while place > 0 {
            let above = (place - 1) / 2;
            if self.in_order[above].0 <= moved.0 {
                break;
            }
            self.put(nodes, place, self.in_order[above]);
            place = above;
        }
        self.put(nodes, place, moved);
    }

    fn sink(&mut self, nodes: &mut Nodes, mut place: usize) {
        let moved = self.in_order[place];
        loop {
            let left = 2 * place + 1;
            let Some(&first) = self.in_order.get(left) else {
                break;
            };
            let (below, at) = match self.in_order.get(left + 1) {
                Some(&second) if second.0 < first.0 => (second, left + 1),
                _ => (first, left),
            };
            if moved.0 <= below.0 {
                break;
            }
            self.put(nodes, place, below);
            place = at;
        }
        self.put(nodes, place, moved);
    }

    fn put(&mut self, nodes: &mut Nodes, place: usize, entry: (Rank, u32)) {
        self.in_order[place] = entry;
        nodes[entry.1].turn.prev =
            u32::try_from(place).expect("no more entries than nodes, which count in 32 bits");
    }
}
