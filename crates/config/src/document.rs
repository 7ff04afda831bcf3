//! A configuration file after its tags, aliases and merge keys were resolved.

use std::collections::HashMap;
use std::sync::Arc;

use crate::node::Node;

/// A configuration file in which all tags, aliases and merge keys are resolved.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) root: ResolvedNode,
    /// For each anchor the node that defines it first, including anchors of included files.
    pub(crate) anchors: HashMap<Arc<str>, ResolvedNode>,
}

/// A node without aliases and merge keys in it.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedNode {
    pub(crate) node: Node,
    pub(crate) depth: usize,
    /// The number of nodes in this node, itself included. A node to which several aliases refer is counted once for
    /// each of them.
    pub(crate) size: usize,
}
