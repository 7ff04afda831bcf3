//! The three kinds of node, and sets of them.

use std::fmt;
use std::ops::BitOr;

use crate::attributes::Attribute;

/// What a [`crate::Node`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A string; YAML's other scalar types do not exist here.
    Scalar,
    /// A list of nodes.
    Sequence,
    /// A list of pairs of nodes, in which a key may occur more than once.
    Mapping,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Scalar, Self::Sequence, Self::Mapping];
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

/// The kinds of node a directive or an attribute takes.
#[derive(Clone, Copy, Debug)]
pub struct Kinds {
    set: u8,
    /// The attributes of mappings, also of those in a sequence. Empty if their keys are not fixed.
    pub attributes: &'static [Attribute],
}

impl Kinds {
    /// A string.
    pub const SCALAR: Self = Self::new(1);
    /// A list.
    pub const SEQUENCE: Self = Self::new(2);
    /// A list of pairs.
    pub const MAPPING: Self = Self::new(4);
    /// All three.
    pub const ANY: Self = Self::new(7);

    const fn new(set: u8) -> Self {
        Self {
            set,
            attributes: &[],
        }
    }

    /// The same, with mappings that have these attributes: the value itself, the elements of a sequence, or the contents of the
    /// file that the value names. The manual lists them.
    #[must_use]
    pub const fn with_attributes(self, attributes: &'static [Attribute]) -> Self {
        Self { attributes, ..self }
    }

    /// The union, for constants; elsewhere `|` reads better.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self {
            set: self.set | other.set,
            attributes: if self.attributes.is_empty() {
                other.attributes
            } else {
                self.attributes
            },
        }
    }

    /// Whether `kind` is among them.
    #[must_use]
    pub const fn contains(self, kind: Kind) -> bool {
        self.set & Self::of(kind).set != 0
    }

    const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Scalar => Self::SCALAR,
            Kind::Sequence => Self::SEQUENCE,
            Kind::Mapping => Self::MAPPING,
        }
    }
}

impl BitOr for Kinds {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.or(other)
    }
}

/// `a scalar or a sequence`
impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for kind in Kind::ALL.into_iter().filter(|&kind| self.contains(kind)) {
            write!(f, "{separator}{kind}")?;
            separator = " or ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_listed_with_or() {
        let cases = [
            (Kinds::SCALAR, "a scalar"),
            (Kinds::SCALAR | Kinds::SEQUENCE, "a scalar or a sequence"),
            (Kinds::MAPPING.or(Kinds::SCALAR), "a scalar or a mapping"),
            (Kinds::ANY, "a scalar or a sequence or a mapping"),
        ];
        for (kinds, want) in cases {
            assert_eq!(kinds.to_string(), want);
        }
    }
}
