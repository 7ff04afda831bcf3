//! The dependency tree of RFC 7540 §5.3: the dependencies and weights of streams. `activity.rs` decides which node has the
//! next turn.

use h2o_http::priority::PriorityParameters;

use super::Priority;
use super::wheel::Wheels;

/// Stands for "no node" where the number of a node is expected.
pub(super) const NONE: u32 = u32::MAX;
/// The number of the root node, which stands for stream 0.
pub(super) const ROOT: u32 = 0;

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeKind {
    Root,
    Open,
    /// An open stream at the place to which the `priority` field of its response moved it; a `PlaceKeeper` is at the place
    /// that the client requested.
    Displaced,
    /// Keeps the place that the client requested for a displaced stream; `user` is the node of that stream.
    PlaceKeeper,
    /// An idle stream to which a PRIORITY frame gave a place.
    Placeholder,
    Closed,
    Free,
}

/// The active children of a node: those that are ready or have a ready node below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turns {
    None,
    One(u32),
    /// Several children take turns on the wheel (calendar of turns) with this number. The wheel may have only one child
    /// left, as long as a child that left it could return before its next turn would be due.
    Many(u32),
}

/// A [`Turns`], packed into a number.
#[derive(Clone, Copy)]
pub(super) struct PackedTurns(u32);

/// The bit that marks the number as that of a wheel (calendar of turns) instead of a node. No node or wheel has so high a
/// number: a connection would need 2^31 of them, of 64 bytes or more each.
const MANY: u32 = 1 << 31;

impl PackedTurns {
    const NONE: Self = Self(NONE);

    fn get(self) -> Turns {
        match self.0 {
            NONE => Turns::None,
            many if many & MANY != 0 => Turns::Many(many & !MANY),
            one => Turns::One(one),
        }
    }
}

impl From<Turns> for PackedTurns {
    fn from(turns: Turns) -> Self {
        match turns {
            Turns::None => Self::NONE,
            Turns::One(child) => Self(child),
            Turns::Many(wheel) => Self(wheel | MANY),
        }
    }
}

/// The neighbours of a node in a ring of nodes that take turns.
#[derive(Clone, Copy)]
pub(super) struct Siblings {
    pub(super) prev: u32,
    pub(super) next: u32,
}

pub(super) struct Node {
    pub(super) stream: u32,
    pub(super) user: u32,
    pub(super) kind: NodeKind,
    pub(super) received: Priority,

    /// The weight of the stream among its siblings (RFC 7540 §5.3.2): 1 to 256 from the client, or
    /// [`ELEVATED`](super::wheel::ELEVATED) for a stream that precedes all its siblings.
    pub(super) weight: u16,
    pub(super) parent: u32,
    pub(super) first_child: u32,
    pub(super) prev: u32,
    /// The next sibling of a node in use; the next free node of a free one.
    pub(super) next: u32,

    pub(super) ready: bool,
    turns: PackedTurns,
    pub(super) other_end: u32,
    pub(super) turn: Siblings,
    pub(super) due: u32,
    pub(super) fraction: u16,
    pub(super) slot: u8,

    pub(super) parameters: PriorityParameters,
    /// Whether a PRIORITY_UPDATE frame for the stream came before its request.
    pub(super) is_updated: bool,
    /// Whether the stream has sent a frame since it entered the queue of RFC 9218. While the stream is in the queue, the
    /// queue keeps its own, current value.
    pub(super) has_sent: bool,
}

impl Node {
    fn new(stream: u32, user: u32, kind: NodeKind) -> Self {
        Self {
            stream,
            user,
            kind,
            received: Priority::DEFAULT,
            weight: Priority::DEFAULT.weight,
            parent: NONE,
            first_child: NONE,
            prev: NONE,
            next: NONE,
            ready: false,
            turns: PackedTurns::NONE,
            other_end: NONE,
            turn: Siblings {
                prev: NONE,
                next: NONE,
            },
            due: 0,
            fraction: 0,
            slot: 0,
            parameters: PriorityParameters::DEFAULT,
            is_updated: false,
            has_sent: false,
        }
    }
}

impl Node {
    pub(super) fn turns(&self) -> Turns {
        self.turns.get()
    }

    pub(super) fn set_turns(&mut self, turns: Turns) {
        self.turns = turns.into();
    }
}

/// A node is as large as a cache line.
const _: () = assert!(size_of::<Node>() == 64);

/// The nodes of the tree; the number of a node is its index.
pub(super) struct Nodes(Vec<Node>);

impl std::ops::Index<u32> for Nodes {
    type Output = Node;
    #[inline]
    fn index(&self, node: u32) -> &Node {
        &self.0[node as usize]
    }
}

impl std::ops::IndexMut<u32> for Nodes {
    #[inline]
    fn index_mut(&mut self, node: u32) -> &mut Node {
        &mut self.0[node as usize]
    }
}

pub(super) struct Tree {
    /// All nodes. The root is made together with the node of the first stream.
    pub(super) nodes: Nodes,
    free: u32,
    pub(super) wheels: Wheels,
    #[cfg(test)]
    pub(super) steps: u64,
}

impl Tree {
    pub(super) const fn new() -> Self {
        Self {
            nodes: Nodes(Vec::new()),
            free: NONE,
            wheels: Wheels::new(),
            #[cfg(test)]
            steps: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn allocated(&self) -> usize {
        self.nodes.0.capacity() + self.wheels.allocated()
    }

    /// The numbers of all nodes except the root, including free ones.
    pub(super) fn numbers(&self) -> std::ops::Range<u32> {
        1..self.count().max(1)
    }

    fn count(&self) -> u32 {
        u32::try_from(self.nodes.0.len())
            .expect("a stream has two nodes at most, and there are 2^31 streams")
    }

    /// Adds a node directly below the root, with the default priority.
    pub(super) fn add(&mut self, stream: u32, user: u32, kind: NodeKind) -> u32 {
        let node = self.make(stream, user, kind);
        self.link(node, ROOT);
        node
    }

    fn make(&mut self, stream: u32, user: u32, kind: NodeKind) -> u32 {
        let made = Node::new(stream, user, kind);
        if self.free != NONE {
            let node = self.free;
            self.free = self.nodes[node].next;
            self.nodes[node] = made;
            return node;
        }
        if self.nodes.0.is_empty() {
            self.nodes.0.push(Node::new(0, 0, NodeKind::Root));
        }
        let node = self.count();
        self.nodes.0.push(made);
        node
    }

    /// Makes a node depend on `parent` (RFC 7540 §5.3.1 and §5.3.3).
    pub(super) fn depend(&mut self, node: u32, parent: u32, weight: u16, exclusive: bool) {
        debug_assert_ne!(node, parent);
        if self.nodes[node].first_child != NONE && self.is_below(parent, node) {
            // A new parent that is below this node first moves to this node's place (RFC 7540 §5.3.3).
            let weight = self.nodes[parent].weight;
            self.relocate(parent, self.nodes[node].parent, weight);
        }
        self.relocate(node, parent, weight);
        if exclusive {
            self.adopt_siblings(node);
        }
    }

    /// Makes the siblings of a node its children, except elevated ones, which precede all other streams.
    fn adopt_siblings(&mut self, node: u32) {
        let mut sibling = self.nodes[self.nodes[node].parent].first_child;
        while sibling != NONE {
            let Node { next, weight, .. } = self.nodes[sibling];
            if sibling != node && weight != super::wheel::ELEVATED {
                self.relocate(sibling, node, weight);
            }
            sibling = next;
        }
    }

    /// Moves a node with all nodes below it. The new parent must not be below the node.
    pub(super) fn relocate(&mut self, node: u32, parent: u32, weight: u16) {
        let is_active = self.is_active(node);
        if is_active {
            self.detach(node);
        }
        if self.nodes[node].parent != parent {
            self.unlink(node);
            self.link(node, parent);
            // The fraction that the node's last turn still costs is relative to the weights of its old siblings, so it is
            // cleared.
            self.nodes[node].fraction = 0;
            if let Turns::Many(wheel) = self.nodes[parent].turns() {
                self.nodes[node].due = self.wheels[wheel].now();
            }
        }
        self.nodes[node].weight = weight;
        if is_active {
            self.attach(node);
        }
    }

    /// Removes a node that is not ready. Its weight is divided among its children in proportion to their weights (RFC 7540
    /// §5.3.4).
    pub(super) fn remove(&mut self, node: u32) {
        debug_assert!(!self.nodes[node].ready);
        if self.nodes[node].first_child != NONE {
            self.hand_down(node);
        }
        self.release(node);
    }

    fn hand_down(&mut self, node: u32) {
        let parent = self.nodes[node].parent;
        let weight = u32::from(self.nodes[node].weight);
        let mut sum = 0;
        let mut child = self.nodes[node].first_child;
        while child != NONE {
            sum += u32::from(self.nodes[child].weight);
            child = self.nodes[child].next;
        }
        while self.nodes[node].first_child != NONE {
            let child = self.nodes[node].first_child;
            let share = (weight * u32::from(self.nodes[child].weight) + sum / 2) / sum;
            let share = u16::try_from(share).unwrap_or(256).clamp(1, 256);
            self.relocate(child, parent, share);
        }
    }

    /// Removes a node that is not ready; its children keep their weights.
    pub(super) fn dissolve(&mut self, node: u32) {
        self.bypass(node, self.nodes[node].parent);
        self.release(node);
    }

    #[inline]
    fn release(&mut self, node: u32) {
        self.unlink(node);
        self.nodes[node].kind = NodeKind::Free;
        self.nodes[node].next = self.free;
        self.free = node;
    }

    /// Makes the children of a node that is not ready children of `parent`. They keep their weights.
    fn bypass(&mut self, node: u32, parent: u32) {
        while self.nodes[node].first_child != NONE {
            let child = self.nodes[node].first_child;
            self.relocate(child, parent, self.nodes[child].weight);
        }
    }

    /// Moves a node that is not ready within a tree that is one chain: exclusively below the last node whose weight is not
    /// lower than `weight`. If `keep_place` is true, a new node keeps the old place, which the client requested, with all
    /// nodes below it; its number is returned.
    pub(super) fn displace(&mut self, node: u32, weight: u16, keep_place: bool) -> Option<u32> {
        let Node {
            parent,
            stream,
            received,
            ..
        } = self.nodes[node];
        let keeper = keep_place.then(|| {
            let keeper = self.make(stream, node, NodeKind::PlaceKeeper);
            self.nodes[keeper].received = received;
            self.nodes[keeper].weight = self.nodes[node].weight;
            self.link(keeper, parent);
            keeper
        });
        self.bypass(node, keeper.unwrap_or(parent));
        self.unlink(node);
        let mut above = ROOT;
        loop {
            let below = self.nodes[above].first_child;
            if below == NONE || self.nodes[below].weight < weight {
                break;
            }
            above = below;
        }
        self.link(node, above);
        self.nodes[node].weight = weight;
        self.adopt_siblings(node);
        keeper
    }

    /// Whether the tree is one chain in the order of weights, as if the client made every stream exclusive and put it below
    /// those of no less weight. Costs a walk down the chain.
    pub(super) fn is_ordered_chain(&self) -> bool {
        let mut weight = 256;
        let mut node = self.nodes[ROOT].first_child;
        while node != NONE {
            let at = &self.nodes[node];
            let is_exclusive = at.received.exclusive || at.kind == NodeKind::Displaced;
            if at.next != NONE || at.weight > weight || !is_exclusive {
                return false;
            }
            weight = at.weight;
            node = at.first_child;
        }
        true
    }

    fn is_below(&self, node: u32, ancestor: u32) -> bool {
        let mut at = node;
        while at != ROOT {
            at = self.nodes[at].parent;
            if at == ancestor {
                return true;
            }
        }
        false
    }

    fn link(&mut self, node: u32, parent: u32) {
        let next = self.nodes[parent].first_child;
        self.nodes[parent].first_child = node;
        self.nodes[node].parent = parent;
        self.nodes[node].prev = NONE;
        self.nodes[node].next = next;
        if next != NONE {
            self.nodes[next].prev = node;
        }
    }

    fn unlink(&mut self, node: u32) {
        let Node {
            prev, next, parent, ..
        } = self.nodes[node];
        if prev == NONE {
            self.nodes[parent].first_child = next;
        } else {
            self.nodes[prev].next = next;
        }
        if next != NONE {
            self.nodes[next].prev = prev;
        }
    }

    /// Frees the memory that is not needed while no node is active; if only the root is left, all memory.
    pub(super) fn shrink(&mut self) {
        self.wheels.shrink();
        while matches!(self.nodes.0.last(), Some(node) if matches!(node.kind, NodeKind::Free | NodeKind::Root))
        {
            self.nodes.0.pop();
        }
        self.nodes.0.shrink_to_fit();
        self.free = NONE;
        for node in self.numbers() {
            if self.nodes[node].kind == NodeKind::Free {
                self.nodes[node].next = self.free;
                self.free = node;
            }
        }
    }
}
