//! The tree a configuration is loaded into.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;
use crate::pos::Pos;

/// A value of the configuration, with the position where it was written; cheap to clone.
#[derive(Clone, Debug)]
pub struct Node {
    /// The content.
    pub value: Value,
    /// The position of the node. For a `|` or `>` scalar this is the line after the indicator, where its text begins.
    pub pos: Pos,
}

/// The content of a [`Node`]. Aliases share it, so cloning is cheap.
#[derive(Clone, Debug)]
pub enum Value {
    /// Any scalar: `1`, `"1"`, `yes` and an empty value are strings here.
    Scalar(Arc<str>),
    /// A list.
    Sequence(Arc<[Node]>),
    /// Key-value pairs in file order. Duplicate keys are kept, since each occurrence of a directive is executed.
    Mapping(Arc<[(Node, Node)]>),
}

/// What a [`Node`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The type for a scalar is a string; YAML's other scalar types are not distinguished.
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
    /// Which of the three kinds this is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.value {
            Value::Scalar(_) => Kind::Scalar,
            Value::Sequence(_) => Kind::Sequence,
            Value::Mapping(_) => Kind::Mapping,
        }
    }

    /// The text of a scalar.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(text) => Some(text),
            Value::Sequence(_) | Value::Mapping(_) => None,
        }
    }

    /// The items of a sequence.
    #[must_use]
    pub fn as_sequence(&self) -> Option<&[Self]> {
        match &self.value {
            Value::Sequence(items) => Some(items),
            Value::Scalar(_) | Value::Mapping(_) => None,
        }
    }

    /// The entries of a mapping.
    #[must_use]
    pub fn as_mapping(&self) -> Option<&[(Self, Self)]> {
        match &self.value {
            Value::Mapping(entries) => Some(entries),
            Value::Scalar(_) | Value::Sequence(_) => None,
        }
    }

    /// An error at this node.
    pub fn error(&self, message: impl Into<String>) -> Error {
        Error::at(self.pos.clone(), message)
    }
}
