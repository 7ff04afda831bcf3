//! Selection of the node in the dependency tree whose stream sends next.
//!
//! A node is *ready* if its stream can send, and *active* if it or a node below it is ready. An active node *decides* if it
//! is ready or has several active children. A *run* is a line of active nodes, from the child of a deciding node down to
//! the next deciding node. The two ends of a run refer to each other (`other_end`), so that a turn costs one step for each
//! deciding node, however long the lines between them are. Chromium's streams form one such line.
//!
//! When a node becomes ready, its ancestors become active up to the first one that is active already. A node that begins to
//! decide searches for the upper end of the run that it was on.

use super::tree::{NONE, ROOT, Tree, Turns};

impl Tree {
    /// Sets whether the stream of a node can send. The caller only calls this method if that changes.
    pub(super) fn set_ready(&mut self, node: u32, ready: bool) {
        debug_assert_ne!(self.nodes[node].ready, ready);
        match (ready, self.nodes[node].turns()) {
            (true, Turns::None) => {
                self.nodes[node].ready = true;
                self.nodes[node].other_end = node;
                self.attach(node);
            }
            (true, Turns::One(_) | Turns::Many(_)) => {
                self.split(node);
                self.nodes[node].ready = true;
            }
            (false, Turns::None) => {
                self.detach(node);
                self.nodes[node].ready = false;
            }
            (false, Turns::One(_) | Turns::Many(_)) => {
                self.nodes[node].ready = false;
                self.merge(node);
            }
        }
    }

    /// The ready node that sends next, if there is one. It is served before all nodes that depend on it, so none of its
    /// ancestors is ready.
    #[inline]
    pub(super) fn next_ready(&mut self) -> Option<u32> {
        let mut at = ROOT;
        loop {
            self.step();
            at = match self.nodes[at].turns() {
                Turns::None => return None,
                Turns::One(child) => self.nodes[child].other_end,
                Turns::Many(wheel) => self.turn(at, wheel),
            };
            if self.nodes[at].ready {
                return Some(at);
            }
        }
    }

    /// Gives the next turn to one of the children of the node `at`. Returns the first node, from this child downwards, that
    /// is ready or has several active children (ready, or with a ready node below).
    #[inline]
    fn turn(&mut self, at: u32, wheel: u32) -> u32 {
        let child = self.wheels[wheel].turn(&mut self.nodes);
        let end = self.nodes[child].other_end;
        if self.wheels[wheel].is_spent() {
            self.wheels.release(wheel);
            self.nodes[at].set_turns(Turns::One(child));
            self.merge(at);
        }
        end
    }

    pub(super) fn is_active(&self, node: u32) -> bool {
        self.nodes[node].ready || self.nodes[node].turns() != Turns::None
    }

    /// Whether this active node (ready, or with a ready node below it) decides who sends: a turn either serves it or chooses
    /// among its children.
    fn decides(&self, node: u32) -> bool {
        let at = &self.nodes[node];
        at.ready || node == ROOT || matches!(at.turns(), Turns::Many(_))
    }

    /// Makes the ancestors of `node` active (a node is active if it or a node below it is ready). `node` must be active and
    /// not yet among the active children of its parent.
    pub(super) fn attach(&mut self, node: u32) {
        let end = self.nodes[node].other_end;
        let mut top = node;
        loop {
            self.step();
            let parent = self.nodes[top].parent;
            match self.nodes[parent].turns() {
                Turns::None => {
                    self.nodes[parent].set_turns(Turns::One(top));
                    if self.decides(parent) {
                        break;
                    }
                    top = parent;
                }
                Turns::One(other) => {
                    self.split(parent);
                    let wheel = self.wheels.acquire();
                    self.wheels[wheel].insert(&mut self.nodes, other);
                    self.wheels[wheel].insert(&mut self.nodes, top);
                    self.nodes[parent].set_turns(Turns::Many(wheel));
                    break;
                }
                Turns::Many(wheel) => {
                    self.wheels[wheel].insert(&mut self.nodes, top);
                    break;
                }
            }
        }
        self.nodes[top].other_end = end;
        self.nodes[end].other_end = top;
    }

    /// Undoes [`Self::attach`]: makes those ancestors inactive that were active only because of this node. The node itself
    /// stays active: the caller attaches it at another place, or makes it inactive.
    pub(super) fn detach(&mut self, node: u32) {
        let mut end = NONE;
        let mut top = node;
        loop {
            self.step();
            let parent = self.nodes[top].parent;
            if self.decides(parent) {
                if end == NONE {
                    end = self.nodes[top].other_end;
                }
                self.drop_turns(parent, top);
            } else {
                self.nodes[parent].set_turns(Turns::None);
            }
            if self.is_active(parent) || parent == ROOT {
                break;
            }
            top = parent;
        }
        self.nodes[node].other_end = end;
        self.nodes[end].other_end = node;
    }

    /// Removes `child` from the active children of its parent, which decides which of them has the next turn.
    fn drop_turns(&mut self, parent: u32, child: u32) {
        match self.nodes[parent].turns() {
            Turns::None | Turns::One(_) => self.nodes[parent].set_turns(Turns::None),
            Turns::Many(wheel) => {
                self.wheels[wheel].remove(&mut self.nodes, child);
                if self.wheels[wheel].len() == 0 {
                    self.wheels.release(wheel);
                    self.nodes[parent].set_turns(Turns::None);
                }
            }
        }
    }

    /// Splits a run (a line of active nodes in which no node has a choice) at `node`, which is about to have a choice: to
    /// send itself, or among several active children.
    fn split(&mut self, node: u32) {
        let Turns::One(child) = self.nodes[node].turns() else {
            return;
        };
        if self.decides(node) {
            return;
        }
        let mut top = node;
        loop {
            self.step();
            let parent = self.nodes[top].parent;
            if self.decides(parent) {
                break;
            }
            top = parent;
        }
        let end = self.nodes[top].other_end;
        self.nodes[top].other_end = node;
        self.nodes[node].other_end = top;
        self.nodes[child].other_end = end;
        self.nodes[end].other_end = child;
    }

    /// Joins the runs (lines of active nodes in which no node has a choice) above and below `node`, unless it still has a
    /// choice: to send itself, or among several active children.
    fn merge(&mut self, node: u32) {
        let Turns::One(child) = self.nodes[node].turns() else {
            return;
        };
        if self.decides(node) {
            return;
        }
        let (top, end) = (self.nodes[node].other_end, self.nodes[child].other_end);
        self.nodes[top].other_end = end;
        self.nodes[end].other_end = top;
    }

    /// Counts the nodes that the methods of the tree visit, for the tests that limit their number.
    #[inline]
    fn step(&mut self) {
        #[cfg(test)]
        {
            self.steps += 1;
        }
    }
}
