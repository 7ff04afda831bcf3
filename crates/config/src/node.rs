//! The tree of nodes into which a configuration is loaded.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;
use crate::pos::Pos;

/// A node of the configuration, with its position in the file. A clone shares the content.
#[derive(Clone, Debug)]
pub struct Node {
    /// The content of the node.
    pub value: Value,
    /// The position of the node. For a `|` or `>` scalar this is the line after the indicator, where the text begins.
    pub pos: Pos,
}

/// The content of a [`Node`]. Clones of a node and its aliases share the content.
#[derive(Clone, Debug)]
pub enum Value {
    /// Any scalar: `1`, `"1"`, `yes` and an empty value are all strings here.
    Scalar(Arc<str>),
    /// A list of nodes.
    Sequence(Arc<[Node]>),
    /// Pairs of key and value in the order of the file. Duplicate keys are kept, since each occurrence of a directive is
    /// executed.
    Mapping(Arc<[(Node, Node)]>),
}

/// The kind of a [`Node`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A string; the other scalar types of YAML are not distinguished from it.
    Scalar,
    /// A list of nodes.
    Sequence,
    /// A list of pairs of nodes, in which a key may occur more than once.
    Mapping,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Scalar, Self::Sequence, Self::Mapping];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "a scalar",
            Self::Sequence => "a sequence",
            Self::Mapping => "a mapping",
        })
    }
}

impl Node {
    /// The kind of the node.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.value {
            Value::Scalar(_) => Kind::Scalar,
            Value::Sequence(_) => Kind::Sequence,
            Value::Mapping(_) => Kind::Mapping,
        }
    }

    /// The text of the node, if it is a scalar.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(text) => Some(text),
            Value::Sequence(_) | Value::Mapping(_) => None,
        }
    }

    /// The items of the node, if it is a sequence.
    #[must_use]
    pub fn as_sequence(&self) -> Option<&[Self]> {
        match &self.value {
            Value::Sequence(items) => Some(items),
            Value::Scalar(_) | Value::Mapping(_) => None,
        }
    }

    /// The entries of the node, if it is a mapping.
    #[must_use]
    pub fn as_mapping(&self) -> Option<&[(Self, Self)]> {
        match &self.value {
            Value::Mapping(entries) => Some(entries),
            Value::Scalar(_) | Value::Sequence(_) => None,
        }
    }

    /// An error at the position of this node.
    pub fn error(&self, message: impl Into<String>) -> Error {
        Error::at(self.pos.clone(), message)
    }
}
