//! The order in which the streams of an HTTP/2 connection send: by the dependency tree of RFC 7540 §5.3, or by the
//! urgencies of RFC 9218 if the client uses them.
//!
//! The engine opens and closes streams here, reports which of them are ready (have bytes to send, and a window that allows
//! it), and asks which stream sends the next DATA frame:
//!
//! ```
//! use h2o_http2::scheduler::{Priority, PriorityError, Scheduler};
//!
//! # fn main() -> Result<(), PriorityError> {
//! let mut scheduler = Scheduler::new();
//! let page = scheduler.open(1, 0, None)?;
//! let image = Priority { dependency: 1, ..Priority::DEFAULT };
//! let image = scheduler.open(3, 1, Some(image))?;
//! scheduler.set_ready(image, true);
//! scheduler.set_ready(page, true);
//! assert_eq!(scheduler.next(), Some(0)); // The page: the image depends on it.
//! scheduler.set_ready(page, false);
//! assert_eq!(scheduler.next(), Some(1));
//! # Ok(())
//! # }
//! ```

mod activity;
mod index;
#[cfg(test)]
mod tests;
mod tree;
mod wheel;

use h2o_http::priority::{
    EarlyUpdates, PriorityField, PriorityParameters, QueuedStream, UrgencyQueue,
};

use index::Index;
use tree::{NONE, Node, NodeKind, ROOT, Tree};
use wheel::ELEVATED;

/// Number of closed streams whose nodes stay in the tree, since PRIORITY frames may still refer to them (RFC 7540 §5.3.4).
const CLOSED_KEPT: usize = 10;
/// Maximum number of idle streams with a place in the tree, and of idle streams whose PRIORITY_UPDATE frames are kept.
const MAX_PLACEHOLDERS: usize = 16;
/// For each urgency of RFC 9218 the weight that it has in the dependency tree: `255.9 / 7 * (7 - u) + 1`, rounded down.
const WEIGHT_OF_URGENCY: [u16; 8] = [256, 220, 183, 147, 110, 74, 37, 1];

/// The place of a stream in the dependency tree, as a client requests it (RFC 7540 §5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// Whether the other streams that depend on `dependency` become dependent on this one.
    pub exclusive: bool,
    /// The stream on which this one depends; 0 for none.
    pub dependency: u32,
    /// The weight of the stream among its siblings: 1 to 256.
    pub weight: u16,
}

impl Priority {
    /// The priority of a stream for which the client states none (RFC 7540 §5.3.5).
    pub const DEFAULT: Self = Self {
        exclusive: false,
        dependency: 0,
        weight: 16,
    };
}

impl Default for Priority {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The current place of a stream in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The stream on which this one depends; 0 for none.
    pub parent: u32,
    /// The weight of the stream among its siblings: 1 to 256, or 257 for a stream that precedes all others.
    pub weight: u16,
}

/// Identifies an open stream in the scheduler; not to be used after [`Scheduler::close`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeKey(u32);

/// A mistake of the peer in its priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriorityError {
    /// The client made a stream depend on itself, which is not allowed (RFC 7540 §5.3.1).
    SelfDependency,
    /// The client has given priorities to more streams that it has not opened yet than the scheduler keeps.
    TooManyPlaceholders,
}

/// The streams of one connection and the order in which they send.
pub struct Scheduler {
    tree: Tree,
    /// Finds the node of a stream that a frame names. If the `priority` field of a response has moved the stream, that is
    /// the node that keeps the place which the client requested. The index is built when the first frame names a stream,
    /// since many clients never send such frames.
    index: Option<Index>,
    /// A ring of the nodes of the streams that were closed last; `oldest` is the position of the next one to be forgotten.
    closed: [u32; CLOSED_KEPT],
    oldest: usize,
    placeholders: usize,
    open: usize,
    ready: usize,
    /// The node of the stream that can send, if it is the only one: its turns need no search in the tree.
    alone: u32,
    /// If the client uses RFC 9218: the streams that can send, queued by the numbers of their nodes. The tree then only
    /// records the priorities that the client requests.
    urgencies: Option<Box<UrgencyQueue>>,
    /// PRIORITY_UPDATE frames for streams that are not open yet.
    early: EarlyUpdates,
}

impl Default for Scheduler {
    fn default() -> Self {
        Self::new()
    }
}

impl Scheduler {
    /// A scheduler without streams. Does not allocate.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            tree: Tree::new(),
            index: None,
            closed: [NONE; CLOSED_KEPT],
            oldest: 0,
            placeholders: 0,
            open: 0,
            ready: 0,
            alone: NONE,
            urgencies: None,
            early: EarlyUpdates::new(),
        }
    }

    /// Opens a stream. Without a `priority` the stream gets the place that PRIORITY frames gave it before, or the default
    /// place. `user` is the value that [`Self::next`] returns for the stream. The identifier must be new, and not 0.
    ///
    /// # Errors
    /// Returns [`PriorityError::SelfDependency`] if `priority` makes the stream depend on itself; it is not opened then.
    pub fn open(
        &mut self,
        stream: u32,
        user: u32,
        priority: Option<Priority>,
    ) -> Result<NodeKey, PriorityError> {
        if priority.is_some_and(|priority| priority.dependency == stream) {
            return Err(PriorityError::SelfDependency);
        }
        let node = self.begin(stream, user);
        if let Some(priority) = priority {
            self.tree.nodes[node].received = priority;
            self.depend(node, priority);
        }
        if !self.early.is_empty() {
            self.take_update(stream, node);
        }
        Ok(NodeKey(node))
    }

    /// Opens a pushed stream, which depends on the stream whose request the push accompanies (RFC 7540 §5.3.5).
    pub fn open_pushed(&mut self, stream: u32, user: u32, parent: NodeKey) -> NodeKey {
        let node = self.begin(stream, user);
        self.tree.nodes[node].received.dependency = self.tree.nodes[parent.0].stream;
        self.tree
            .depend(node, parent.0, Priority::DEFAULT.weight, false);
        NodeKey(node)
    }

    /// The node of a stream that is being opened: the one that a PRIORITY frame made for it while it was idle, or a new node
    /// of default priority.
    fn begin(&mut self, stream: u32, user: u32) -> u32 {
        self.open += 1;
        if self.placeholders > 0
            && let Some(node) = self.find(stream)
        {
            debug_assert_eq!(
                self.tree.nodes[node].kind,
                NodeKind::Placeholder,
                "a stream is opened only once"
            );
            self.placeholders -= 1;
            self.tree.nodes[node].kind = NodeKind::Open;
            self.tree.nodes[node].user = user;
            return node;
        }
        self.add(stream, user, NodeKind::Open)
    }

    fn add(&mut self, stream: u32, user: u32, kind: NodeKind) -> u32 {
        let node = self.tree.add(stream, user, kind);
        if let Some(index) = &mut self.index {
            debug_assert_eq!(index.get(stream), None, "a stream is opened only once");
            index.insert(stream, node);
        }
        node
    }

    fn find(&mut self, stream: u32) -> Option<u32> {
        self.index().get(stream)
    }

    fn index(&mut self) -> &mut Index {
        let tree = &self.tree;
        self.index.get_or_insert_with(|| {
            let mut index = Index::new();
            for node in tree.numbers() {
                // No stream has been displaced (moved by the `priority` field of its response) so far: the first such move
                // builds the index.
                if tree.nodes[node].kind != NodeKind::Free {
                    index.insert(tree.nodes[node].stream, node);
                }
            }
            index
        })
    }

    /// Handles a PRIORITY frame. Moves an open stream or a remembered closed one, and makes a node for an idle stream of the
    /// client (its identifier is odd and above `newest_opened`). A frame for any other stream is ignored.
    ///
    /// # Errors
    /// Returns [`PriorityError::SelfDependency`] if the stream would depend on itself, or
    /// [`PriorityError::TooManyPlaceholders`] for the 17th idle stream.
    pub fn reprioritize(
        &mut self,
        stream: u32,
        priority: Priority,
        newest_opened: u32,
    ) -> Result<(), PriorityError> {
        if priority.dependency == stream {
            return Err(PriorityError::SelfDependency);
        }
        let node = match self.find(stream) {
            Some(node) => node,
            None if stream <= newest_opened || stream.is_multiple_of(2) => return Ok(()),
            None if self.placeholders == MAX_PLACEHOLDERS => {
                return Err(PriorityError::TooManyPlaceholders);
            }
            None => {
                self.placeholders += 1;
                self.add(stream, 0, NodeKind::Placeholder)
            }
        };
        self.tree.nodes[node].received = priority;
        let Node {
            kind, user, weight, ..
        } = self.tree.nodes[node];
        if kind == NodeKind::PlaceKeeper {
            self.tree.nodes[user].received = priority;
        }
        if weight != ELEVATED {
            self.depend(node, priority);
        }
        Ok(())
    }

    fn depend(&mut self, node: u32, priority: Priority) {
        let Priority {
            exclusive,
            dependency,
            weight,
        } = priority;
        debug_assert!((1..=256).contains(&weight));
        if dependency == 0 {
            self.tree
                .depend(node, ROOT, weight.clamp(1, 256), exclusive);
        } else if let Some(parent) = self.find(dependency) {
            self.tree
                .depend(node, parent, weight.clamp(1, 256), exclusive);
        } else {
            // A stream that is to depend on a stream outside the tree gets the default priority (RFC 7540 §5.3.1).
            self.tree
                .depend(node, ROOT, Priority::DEFAULT.weight, false);
        }
    }

    /// Closes a stream. Its node stays in the tree until ten other streams have been closed.
    pub fn close(&mut self, key: NodeKey) {
        if self.is_ready(key) {
            self.set_ready(key, false);
        }
        self.open -= 1;
        let Node { weight, kind, .. } = self.tree.nodes[key.0];
        let node = if kind == NodeKind::Displaced || weight == ELEVATED {
            self.return_to_place(key.0)
        } else {
            key.0
        };
        self.tree.nodes[node].kind = NodeKind::Closed;
        let oldest = std::mem::replace(&mut self.closed[self.oldest], node);
        self.oldest = if self.oldest + 1 == CLOSED_KEPT {
            0
        } else {
            self.oldest + 1
        };
        if oldest != NONE {
            self.forget(oldest);
        }
    }

    /// Ends the special place of a stream that closes. A displaced stream (moved by its response's `priority` field) goes
    /// back to the place that the client requested, and its children move up. An elevated stream (before all others) stays
    /// below the root, with the weight that the client requested. Returns the node that stays in the tree.
    fn return_to_place(&mut self, node: u32) -> u32 {
        let Node {
            stream,
            received,
            kind,
            ..
        } = self.tree.nodes[node];
        if kind == NodeKind::Displaced {
            self.tree.dissolve(node);
            return self
                .find(stream)
                .expect("a stream that was moved out of the tree has left a place keeper");
        }
        self.tree
            .relocate(node, ROOT, received.weight.clamp(1, 256));
        node
    }

    fn forget(&mut self, node: u32) {
        if let Some(index) = &mut self.index {
            index.remove(self.tree.nodes[node].stream);
        }
        self.tree.remove(node);
    }

    /// Sets whether the stream has bytes to send and a window that allows it.
    #[inline]
    pub fn set_ready(&mut self, key: NodeKey, ready: bool) {
        if self.is_ready(key) == ready {
            return;
        }
        if ready {
            self.ready += 1;
            if self.ready == 1 {
                self.alone = key.0;
            } else {
                self.join_turns(key.0);
            }
        } else {
            self.ready -= 1;
            if self.alone == key.0 {
                self.alone = NONE;
            } else {
                self.leave_turns(key.0);
            }
        }
    }

    #[inline(never)]
    fn join_turns(&mut self, node: u32) {
        let alone = std::mem::replace(&mut self.alone, NONE);
        if alone != NONE {
            self.begin_turns(alone);
        }
        self.begin_turns(node);
    }

    #[inline(never)]
    fn leave_turns(&mut self, node: u32) {
        match &mut self.urgencies {
            None => self.tree.set_ready(node, false),
            Some(urgencies) => {
                let left = urgencies.remove(node);
                self.tree.nodes[node].has_sent |= left.is_some_and(|stream| stream.has_sent);
            }
        }
    }

    fn begin_turns(&mut self, node: u32) {
        match &mut self.urgencies {
            None => self.tree.set_ready(node, true),
            Some(urgencies) => urgencies.insert(node, queued(&self.tree.nodes[node])),
        }
    }

    /// Whether the stream can send, as [`Self::set_ready`] was told last.
    #[inline]
    #[must_use]
    pub fn is_ready(&self, key: NodeKey) -> bool {
        self.alone == key.0
            || self.tree.nodes[key.0].ready
            || (self.urgencies.as_ref()).is_some_and(|urgencies| urgencies.contains(key.0))
    }

    /// Whether [`Self::next`] would return a stream.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.ready > 0
    }

    /// The `user` value of the stream that sends the next DATA frame. The call counts as the stream's turn; the stream
    /// stays ready.
    #[inline]
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator would borrow the streams between frames"
    )]
    pub fn next(&mut self) -> Option<u32> {
        if self.alone != NONE {
            let node = &mut self.tree.nodes[self.alone];
            node.has_sent = true;
            return Some(node.user);
        }
        if self.ready == 0 {
            return None;
        }
        match &mut self.urgencies {
            None => self.next_in_tree(),
            Some(urgencies) => next_by_urgency(urgencies, &self.tree),
        }
    }

    #[inline(never)]
    fn next_in_tree(&mut self) -> Option<u32> {
        let node = self.tree.next_ready()?;
        Some(self.tree.nodes[node].user)
    }

    /// Puts a stream before all others: weight 257 directly below the root. PRIORITY frames no longer move it.
    pub fn elevate(&mut self, key: NodeKey) {
        self.while_not_ready(key, |this| {
            let Node { kind, stream, .. } = this.tree.nodes[key.0];
            if kind == NodeKind::Displaced {
                // Removes the node that keeps the place which the client requested for the stream.
                let keeper = this
                    .find(stream)
                    .expect("a stream that was moved out of the tree has left a place keeper");
                this.tree.dissolve(keeper);
                this.index().insert(stream, key.0);
                this.tree.nodes[key.0].kind = NodeKind::Open;
            }
            this.tree.relocate(key.0, ROOT, ELEVATED);
        });
    }

    /// The stream's place in the tree as the client requested it last.
    #[must_use]
    pub fn received(&self, key: NodeKey) -> Priority {
        self.tree.nodes[key.0].received
    }

    /// The stream's current place in the tree.
    #[must_use]
    pub fn actual(&self, key: NodeKey) -> Place {
        let Node { parent, weight, .. } = self.tree.nodes[key.0];
        Place {
            parent: self.tree.nodes[parent].stream,
            weight,
        }
    }

    /// Whether the client has given idle streams places in the tree, as Firefox does to form groups of streams.
    #[must_use]
    pub fn has_placeholders(&self) -> bool {
        self.placeholders > 0
    }

    /// Whether the stream depends on no other stream.
    #[must_use]
    pub fn depends_on_root(&self, key: NodeKey) -> bool {
        self.tree.nodes[key.0].parent == ROOT
    }

    /// Applies the `priority` field of the response. If the client uses urgencies, the field overrides the parameters that
    /// it names. In the tree the field is applied if it names an urgency and the tree is like Chromium's: every stream is
    /// exclusive, and no weight exceeds that of the parent. The urgency is converted to a weight, and the stream moves to
    /// the place that Chromium would have given it; streams that name it as their parent later still find its old place.
    ///
    /// Returns whether the field was applied. In the tree this costs a walk over all streams.
    pub fn apply_response_priority(&mut self, key: NodeKey, field: PriorityField) -> bool {
        if self.urgencies.is_some() {
            let parameters = field.over(self.tree.nodes[key.0].parameters);
            self.change_parameters(key.0, parameters);
            return field != PriorityField::default();
        }
        let Some(&weight) = field
            .urgency
            .and_then(|urgency| WEIGHT_OF_URGENCY.get(usize::from(urgency)))
        else {
            return false;
        };
        if self.tree.nodes[key.0].weight == ELEVATED || !self.tree.is_ordered_chain() {
            return false;
        }
        self.while_not_ready(key, |this| {
            let Node { kind, stream, .. } = this.tree.nodes[key.0];
            if let Some(keeper) = this
                .tree
                .displace(key.0, weight, kind != NodeKind::Displaced)
            {
                this.index().insert(stream, keeper);
            }
            this.tree.nodes[key.0].kind = NodeKind::Displaced;
        });
        true
    }

    fn while_not_ready(&mut self, key: NodeKey, change: impl FnOnce(&mut Self)) {
        let ready = self.is_ready(key);
        self.set_ready(key, false);
        change(self);
        self.set_ready(key, ready);
    }

    /// Switches to the urgencies of RFC 9218, since the client uses them: from now on they decide the order, instead of the
    /// dependency tree.
    pub fn use_urgencies(&mut self) {
        if self.urgencies.is_some() {
            return;
        }
        let mut urgencies = Box::new(UrgencyQueue::new());
        for node in self.tree.numbers() {
            if self.tree.nodes[node].ready {
                self.tree.set_ready(node, false);
                urgencies.insert(node, queued(&self.tree.nodes[node]));
            }
        }
        self.tree.wheels.shrink();
        self.urgencies = Some(urgencies);
    }

    /// Sets the parameters of the request's `priority` field; ignored if a PRIORITY_UPDATE frame came before the request
    /// (RFC 9218 §7). They have an effect once urgencies are used.
    pub fn set_parameters(&mut self, key: NodeKey, parameters: PriorityParameters) {
        if !self.tree.nodes[key.0].is_updated {
            self.change_parameters(key.0, parameters);
        }
    }

    /// Handles a PRIORITY_UPDATE frame. It is applied to an open stream, and kept for a stream of the client that is not
    /// open yet (its identifier is odd and above `newest_opened`). A frame for any other stream is ignored.
    ///
    /// # Errors
    /// Returns [`PriorityError::TooManyPlaceholders`] for the 17th stream that is not open yet.
    pub fn priority_update(
        &mut self,
        stream: u32,
        parameters: PriorityParameters,
        newest_opened: u32,
    ) -> Result<(), PriorityError> {
        if let Some(node) = self.find(stream) {
            let Node { kind, user, .. } = self.tree.nodes[node];
            match kind {
                NodeKind::Open => self.change_parameters(node, parameters),
                NodeKind::PlaceKeeper => self.change_parameters(user, parameters),
                NodeKind::Placeholder => {
                    return self.keep_update(stream, parameters, newest_opened);
                }
                NodeKind::Root | NodeKind::Displaced | NodeKind::Closed | NodeKind::Free => {}
            }
            return Ok(());
        }
        self.keep_update(stream, parameters, newest_opened)
    }

    fn keep_update(
        &mut self,
        stream: u32,
        parameters: PriorityParameters,
        newest_opened: u32,
    ) -> Result<(), PriorityError> {
        if stream <= newest_opened || stream.is_multiple_of(2) {
            return Ok(());
        }
        // Streams with identifiers that the client has skipped can no longer be opened (RFC 9113 §5.1.1).
        let can_open = |id| id > u64::from(newest_opened);
        self.early
            .keep(u64::from(stream), parameters, can_open)
            .map_err(|_| PriorityError::TooManyPlaceholders)
    }

    /// The current priority parameters of the stream.
    #[must_use]
    pub fn parameters(&self, key: NodeKey) -> PriorityParameters {
        self.tree.nodes[key.0].parameters
    }

    #[inline(never)]
    fn take_update(&mut self, stream: u32, node: u32) {
        if let Some(parameters) = self.early.take(u64::from(stream)) {
            self.tree.nodes[node].parameters = parameters;
            self.tree.nodes[node].is_updated = true;
        }
    }

    fn change_parameters(&mut self, node: u32, parameters: PriorityParameters) {
        if self.tree.nodes[node].parameters != parameters {
            self.while_not_ready(NodeKey(node), |this| {
                this.tree.nodes[node].parameters = parameters;
            });
        }
    }

    /// Frees memory if no stream is open. The closed streams are forgotten. If no idle stream has a place in the tree,
    /// nothing stays allocated except the few bytes of a connection that uses urgencies.
    pub fn shrink(&mut self) {
        if self.open > 0 {
            return;
        }
        for node in std::mem::replace(&mut self.closed, [NONE; CLOSED_KEPT]) {
            if node != NONE {
                self.forget(node);
            }
        }
        self.tree.shrink();
        if self.placeholders == 0 {
            self.index = None;
        } else if let Some(index) = &mut self.index {
            index.shrink();
        }
        self.early.shrink();
        if let Some(urgencies) = &mut self.urgencies {
            urgencies.shrink();
        }
    }
}

#[inline(never)]
fn next_by_urgency(urgencies: &mut UrgencyQueue, tree: &Tree) -> Option<u32> {
    let node = urgencies.next()?;
    Some(tree.nodes[node].user)
}

/// The stream of a node in the form that the queue of RFC 9218 takes.
fn queued(node: &Node) -> QueuedStream {
    QueuedStream {
        id: u64::from(node.stream),
        priority: node.parameters,
        is_elevated: node.weight == ELEVATED,
        has_sent: node.has_sent,
    }
}
