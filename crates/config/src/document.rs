//! A configuration file after its aliases and merge keys were resolved.

use std::collections::HashMap;
use std::sync::Arc;

use crate::node::Node;

/// A file with everything in it resolved.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) root: ResolvedNode,
    /// For each anchor the node that defines it first, including anchors of included files.
    pub(crate) anchors: HashMap<Arc<str>, ResolvedNode>,
}

/// A node without aliases and merge keys.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedNode {
    pub(crate) node: Node,
    pub(crate) depth: usize,
    /// The number of nodes; a node with aliases is counted each time it is used.
    pub(crate) size: usize,
}
