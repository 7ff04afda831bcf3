//! What is allowed as the argument of a directive or as the value of an attribute: kinds of node, and the attributes of
//! mappings.

use std::fmt;
use std::ops::BitOr;

use crate::node::Kind;

/// The kinds of node that a directive or an attribute accepts, as a set.
#[derive(Clone, Copy, Debug)]
pub struct Kinds {
    set: u8,
    /// The attributes that are allowed in a mapping, or in the mappings of a sequence. Empty if any key is allowed.
    pub attributes: &'static [Attribute],
}

impl Kinds {
    /// The set of scalars (strings) alone.
    pub const SCALAR: Self = Self::new(1);
    /// The set of sequences alone.
    pub const SEQUENCE: Self = Self::new(2);
    /// The set of mappings alone.
    pub const MAPPING: Self = Self::new(4);
    /// The set of all kinds: scalars, sequences and mappings.
    pub const ANY: Self = Self::new(7);

    const fn new(set: u8) -> Self {
        Self {
            set,
            attributes: &[],
        }
    }

    /// This set of kinds, with the attributes that a mapping may have. The mapping is the value itself, an item of a
    /// value that is a sequence, or in a file whose path is the value. The manual lists the attributes.
    #[must_use]
    pub const fn with_attributes(self, attributes: &'static [Attribute]) -> Self {
        Self { attributes, ..self }
    }

    /// The union of both sets. Code outside of constants uses the operator `|` instead.
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

    /// Whether the set has this kind of node.
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

/// Formats the set like `a scalar or a sequence`.
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

/// One attribute of a mapping, with its texts for the manual.
#[derive(Clone, Copy, Debug)]
pub struct Attribute {
    /// The name by which [`crate::Attributes::get`] finds the attribute.
    pub name: &'static str,
    /// Other names that the configuration may use for the attribute.
    pub aliases: &'static [&'static str],
    /// The kinds of node that are allowed as the attribute's value.
    pub kinds: Kinds,
    /// Whether the attribute is mandatory: a mapping without it is refused.
    pub required: bool,
    /// The grammar of the attribute's value, such as `ON|OFF`; for the manual.
    pub value: &'static str,
    /// The value that applies if the attribute is absent, as a text for the manual; empty if none does.
    pub default: &'static str,
    /// What the attribute does, in a sentence or two of Markdown; for the manual.
    pub help: &'static str,
}

impl Attribute {
    /// The definition of an attribute that may be absent. `value`, `default` and `help` are texts for the manual.
    #[must_use]
    pub const fn optional(
        name: &'static str,
        kinds: Kinds,
        value: &'static str,
        default: &'static str,
        help: &'static str,
    ) -> Self {
        Self {
            name,
            aliases: &[],
            kinds,
            required: false,
            value,
            default,
            help,
        }
    }

    /// The definition of a mandatory attribute. `value` and `help` are texts for the manual.
    #[must_use]
    pub const fn required(
        name: &'static str,
        kinds: Kinds,
        value: &'static str,
        help: &'static str,
    ) -> Self {
        Self {
            required: true,
            ..Self::optional(name, kinds, value, "", help)
        }
    }

    /// Adds other names that the configuration may use for the attribute.
    #[must_use]
    pub const fn aliases(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
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
