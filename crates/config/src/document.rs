//! A file with aliases and merge keys resolved.

use std::collections::HashMap;
use std::sync::Arc;

use crate::node::Node;

/// A file with everything in it resolved.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) root: ResolvedNode,
    /// The first definition of each anchor, those of included files among them.
    pub(crate) anchors: HashMap<Arc<str>, ResolvedNode>,
}

/// A node without aliases and merge keys.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedNode {
    pub(crate) node: Node,
    pub(crate) depth: usize,
    /// The number of nodes, aliases counted as often as they are used.
    pub(crate) size: usize,
}
