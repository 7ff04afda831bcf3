//! Turns of the active children of one node in proportion to their weights: a calendar of 64 slots.
//!
//! A turn of a child of weight `w` costs `63 / w` slots: the child's next turn is due that many slots later, and the
//! fraction is added to its next cost. A child of weight 256 therefore has four turns in a slot and a child of weight 1 has
//! one turn in 63 slots, and finding the next child is one bitmap operation.

use super::tree::{NONE, Nodes};

const SLOTS: u32 = 64;
/// The slot number that marks elevated children, which precede all others.
const FIRST: u8 = 64;
/// Weight of a child that precedes all its siblings; the highest weight that a peer can request is 256.
pub(super) const ELEVATED: u16 = 257;

pub(super) struct Wheel {
    /// For each slot, the first child in the ring of children whose turn is due then; meaningless if the slot's bit in
    /// `occupied` is 0.
    slots: [u32; SLOTS as usize],
    occupied: u64,
    /// The first child in the ring of elevated children.
    first: u32,
    /// Number of slots that have passed since this calendar of turns began; wraps around.
    now: u32,
    /// The latest slot of this calendar in which the next turn of a child that has left is due: if the child returned
    /// before, it would still have to wait for its turn.
    owed_until: u32,
    len: u32,
}

impl Wheel {
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn insert(&mut self, nodes: &mut Nodes, child: u32) {
        self.len += 1;
        if nodes[child].weight == ELEVATED {
            nodes[child].slot = FIRST;
            push(nodes, &mut self.first, child);
            return;
        }
        // A child that left this calendar of turns and returns early still has to wait for the slots that its last turn
        // cost.
        let ahead = nodes[child].due.wrapping_sub(self.now);
        self.place(nodes, child, if ahead < SLOTS { ahead } else { 0 });
    }

    pub(super) fn remove(&mut self, nodes: &mut Nodes, child: u32) {
        self.len -= 1;
        if nodes[child].slot == FIRST {
            unlink(nodes, &mut self.first, child);
            return;
        }
        self.take(nodes, child);
        if nodes[child].due.wrapping_sub(self.owed_until) < 1 << 31 {
            self.owed_until = nodes[child].due;
        }
    }

    /// Selects the child whose turn is due next. The wheel must not be empty.
    #[inline]
    pub(super) fn turn(&mut self, nodes: &mut Nodes) -> u32 {
        if self.first != NONE {
            let child = self.first;
            self.first = nodes[child].turn.next;
            return child;
        }
        debug_assert_ne!(self.occupied, 0);
        let ahead = self
            .occupied
            .rotate_right(self.now % SLOTS)
            .trailing_zeros();
        self.now = self.now.wrapping_add(ahead);
        let child = self.slots[(self.now % SLOTS) as usize];
        let node = &mut nodes[child];
        let cost = ((SLOTS - 1) << 16) / u32::from(node.weight) + u32::from(node.fraction);
        let [_, _, low, high] = cost.to_be_bytes();
        node.fraction = u16::from_be_bytes([low, high]);
        if cost >> 16 == 0 {
            self.slots[(self.now % SLOTS) as usize] = node.turn.next;
        } else {
            self.take(nodes, child);
            self.place(nodes, child, cost >> 16);
        }
        child
    }

    /// Whether only one child is left, and no child that left the wheel would have to wait if it returned.
    #[inline]
    pub(super) fn is_spent(&self) -> bool {
        self.len == 1 && (self.first != NONE || self.now.wrapping_sub(self.owed_until) < 1 << 31)
    }

    pub(super) fn now(&self) -> u32 {
        self.now
    }

    #[inline]
    fn place(&mut self, nodes: &mut Nodes, child: u32, ahead: u32) {
        let due = self.now.wrapping_add(ahead);
        let slot = due % SLOTS;
        nodes[child].due = due;
        // The conversion loses nothing: a slot number is below 64.
        nodes[child].slot = slot.to_be_bytes()[3];
        let head = &mut self.slots[slot as usize];
        if self.occupied & 1 << slot == 0 {
            *head = NONE;
            self.occupied |= 1 << slot;
        }
        push(nodes, head, child);
    }

    #[inline]
    fn take(&mut self, nodes: &mut Nodes, child: u32) {
        let slot = nodes[child].slot;
        let head = &mut self.slots[usize::from(slot)];
        unlink(nodes, head, child);
        if *head == NONE {
            self.occupied &= !(1 << slot);
        }
    }

    #[cfg(test)]
    pub(super) fn members(&self, nodes: &Nodes) -> Vec<u32> {
        let mut members = Vec::new();
        let heads = (0..SLOTS)
            .filter(|slot| self.occupied & 1 << slot != 0)
            .map(|slot| (slot, self.slots[slot as usize]));
        for (slot, head) in heads.chain((self.first != NONE).then_some((SLOTS, self.first))) {
            let mut at = head;
            loop {
                assert_eq!(u32::from(nodes[at].slot), slot);
                assert_eq!(slot == SLOTS, nodes[at].weight == ELEVATED);
                members.push(at);
                let next = nodes[at].turn.next;
                assert_eq!(nodes[next].turn.prev, at);
                at = next;
                if at == head {
                    break;
                }
            }
        }
        assert_eq!(members.len(), self.len as usize);
        members
    }
}

/// The wheels (calendars of turns) of all nodes of a connection, in use or free.
pub(super) struct Wheels {
    wheels: Vec<Wheel>,
    free: Vec<u32>,
    /// The slot number from which the next wheel counts: later than any due turn that an older wheel has noted in a node.
    epoch: u32,
}

impl Wheels {
    pub(super) const fn new() -> Self {
        Self {
            wheels: Vec::new(),
            free: Vec::new(),
            epoch: 0,
        }
    }

    pub(super) fn acquire(&mut self) -> u32 {
        self.epoch = self.epoch.wrapping_add(1 << 16);
        if let Some(wheel) = self.free.pop() {
            let reused = &mut self[wheel];
            debug_assert_eq!((reused.occupied, reused.first, reused.len), (0, NONE, 0));
            let epoch = self.epoch;
            self[wheel].now = epoch;
            self[wheel].owed_until = epoch;
            return wheel;
        }
        let wheel = u32::try_from(self.wheels.len())
            .expect("each wheel belongs to a node, and the number of nodes fits into 32 bits");
        self.wheels.push(Wheel {
            slots: [NONE; SLOTS as usize],
            occupied: 0,
            first: NONE,
            now: self.epoch,
            owed_until: self.epoch,
            len: 0,
        });
        wheel
    }

    /// Frees a wheel, even if it still has children.
    pub(super) fn release(&mut self, wheel: u32) {
        self[wheel].occupied = 0;
        self[wheel].first = NONE;
        self[wheel].len = 0;
        self.free.push(wheel);
    }

    #[cfg(test)]
    pub(super) fn allocated(&self) -> usize {
        self.wheels.capacity() + self.free.capacity()
    }

    pub(super) fn shrink(&mut self) {
        if self.free.len() == self.wheels.len() {
            self.wheels = Vec::new();
            self.free = Vec::new();
        }
    }
}

impl std::ops::Index<u32> for Wheels {
    type Output = Wheel;
    #[inline]
    fn index(&self, wheel: u32) -> &Wheel {
        &self.wheels[wheel as usize]
    }
}

impl std::ops::IndexMut<u32> for Wheels {
    #[inline]
    fn index_mut(&mut self, wheel: u32) -> &mut Wheel {
        &mut self.wheels[wheel as usize]
    }
}

/// Appends a node to the ring of nodes that `head` begins.
#[inline]
pub(super) fn push(nodes: &mut Nodes, head: &mut u32, node: u32) {
    if *head == NONE {
        *head = node;
        nodes[node].turn.prev = node;
        nodes[node].turn.next = node;
        return;
    }
    let last = nodes[*head].turn.prev;
    nodes[node].turn.prev = last;
    nodes[node].turn.next = *head;
    nodes[last].turn.next = node;
    nodes[*head].turn.prev = node;
}

/// Removes a node from the ring of nodes that `head` begins.
#[inline]
pub(super) fn unlink(nodes: &mut Nodes, head: &mut u32, node: u32) {
    let (prev, next) = (nodes[node].turn.prev, nodes[node].turn.next);
    if next == node {
        *head = NONE;
        return;
    }
    nodes[prev].turn.next = next;
    nodes[next].turn.prev = prev;
    if *head == node {
        *head = next;
    }
}
