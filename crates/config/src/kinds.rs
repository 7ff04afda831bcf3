//! What a directive or an attribute takes: kinds of node, and the attributes of mappings.

use std::fmt;
use std::ops::BitOr;

use crate::node::Kind;

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

/// One attribute of a mapping, with its text for the manual.
#[derive(Clone, Copy, Debug)]
pub struct Attribute {
    /// The name under which [`crate::Attributes::get`] finds it.
    pub name: &'static str,
    /// Other names the configuration may use for it.
    pub aliases: &'static [&'static str],
    /// What its value may be.
    pub kinds: Kinds,
    /// Whether the mapping is refused without it.
    pub required: bool,
    /// The grammar of its value, such as `ON|OFF`; for the manual.
    pub value: &'static str,
    /// Its effect when it is absent; empty if it has none. For the manual.
    pub default: &'static str,
    /// What it does, in a sentence or two of Markdown; for the manual.
    pub help: &'static str,
}

impl Attribute {
    /// An attribute that may be left out. `value`, `default` and `help` are texts for the manual.
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

    /// An attribute that may not be left out. `value` and `help` are texts for the manual.
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

    /// Adds other names for the attribute.
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
