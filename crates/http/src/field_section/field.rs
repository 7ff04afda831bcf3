//! A field as a decoder of HPACK or QPACK hands it out, and the classification of names and values that were received as
//! text.

use crate::{Known, is_token_byte};

/// The pseudo-header fields (RFC 9113 §8.3, RFC 8441 §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pseudo {
    /// The pseudo-header field `:authority`.
    Authority,
    /// The pseudo-header field `:method`.
    Method,
    /// The pseudo-header field `:path`.
    Path,
    /// The pseudo-header field `:protocol`.
    Protocol,
    /// The pseudo-header field `:scheme`.
    Scheme,
    /// The pseudo-header field `:status`.
    Status,
    /// Any other name that begins with a colon. A field with such a name makes its message malformed.
    Unknown,
}

impl Pseudo {
    /// The text of the name; a mere colon for [`Pseudo::Unknown`].
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Authority => ":authority",
            Self::Method => ":method",
            Self::Path => ":path",
            Self::Protocol => ":protocol",
            Self::Scheme => ":scheme",
            Self::Status => ":status",
            Self::Unknown => ":",
        }
    }

    fn from_text(text: &[u8]) -> Self {
        match text {
            b":authority" => Self::Authority,
            b":method" => Self::Method,
            b":path" => Self::Path,
            b":protocol" => Self::Protocol,
            b":scheme" => Self::Scheme,
            b":status" => Self::Status,
            _ => Self::Unknown,
        }
    }
}

/// The name of a received field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldName<'a> {
    /// A pseudo-header field.
    Pseudo(Pseudo),
    /// A name of the table of well-known fields.
    Known(Known),
    /// Any other name that is a token in lower case.
    Other(&'a str),
    /// Text that is not a valid field name; [`Flaws`] says why.
    Invalid(&'a [u8]),
}

impl<'a> FieldName<'a> {
    /// The text of the name.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        match *self {
            Self::Pseudo(pseudo) => pseudo.as_str().as_bytes(),
            Self::Known(known) => known.as_str().as_bytes(),
            Self::Other(text) => text.as_bytes(),
            Self::Invalid(text) => text,
        }
    }
}

/// One field of a decoded field section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedField<'a> {
    /// The field's name.
    pub name: FieldName<'a>,
    /// The field's value, as received.
    pub value: &'a [u8],
    /// The flaws that make a message with this field malformed (RFC 9113 §8.2).
    pub flaws: Flaws,
    /// Whether the sender asks to keep this field out of dynamic tables (RFC 7541 §7.1.3, RFC 9204 §7.1.3).
    pub never_indexed: bool,
}

/// A set of flaws of a field's name and value (RFC 9113 §8.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flaws(u8);

impl Flaws {
    /// The field has no flaw.
    pub const NONE: Self = Self(0);
    /// The name has an upper-case letter.
    pub const NAME_UPPER_CASE: Self = Self(1);
    /// The name is empty or has a byte that is not allowed in a token.
    pub const NAME_INVALID: Self = Self(2);
    /// The value has a control byte other than HTAB.
    pub const VALUE_CONTROL: Self = Self(4);
    /// The value begins or ends with a blank (SP or HTAB).
    pub const VALUE_BLANK: Self = Self(8);

    /// Whether the set of flaws is empty.
    #[inline]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether this set has at least one of the flaws in `some`.
    #[must_use]
    pub const fn has(self, some: Self) -> bool {
        self.0 & some.0 != 0
    }

    /// The union of this set of flaws and `more`.
    #[must_use]
    pub const fn and(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// The subset of the flaws that concern the field's name.
    #[must_use]
    pub const fn of_name(self) -> Self {
        Self(self.0 & (Self::NAME_UPPER_CASE.0 | Self::NAME_INVALID.0))
    }

    /// The flaws that a field value has.
    #[must_use]
    pub fn in_value(value: &[u8]) -> Self {
        let mut flaws = Self::NONE;
        if has_control(value) {
            flaws = Self::VALUE_CONTROL;
        }
        let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
        if is_blank(value.first()) || is_blank(value.last()) {
            flaws = flaws.and(Self::VALUE_BLANK);
        }
        flaws
    }
}

fn has_control(value: &[u8]) -> bool {
    // Fast path: most values have neither a byte below SP nor DEL and so need no closer look for control bytes.
    !crate::is_printable(value)
        && value
            .iter()
            .any(|&byte| (byte < 0x20 && byte != b'\t') || byte == 0x7f)
}

/// The kind of a field name. Together with the text of the name it makes a [`FieldName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// A pseudo-header field.
    Pseudo(Pseudo),
    /// A name of the table of well-known fields.
    Known(Known),
    /// Any other name that is a token in lower case.
    Other,
    /// Text that is not a valid field name.
    Invalid,
}

impl NameKind {
    /// The kind of the field name `text`, and its flaws.
    #[must_use]
    pub fn of(text: &[u8]) -> (Self, Flaws) {
        if let Some(known) = Known::from_lower(text) {
            return (Self::Known(known), Flaws::NONE);
        }
        if text.first() == Some(&b':') {
            return (Self::Pseudo(Pseudo::from_text(text)), Flaws::NONE);
        }
        let mut flaws = Flaws::NONE;
        if text.is_empty() || !text.iter().copied().all(is_token_byte) {
            flaws = Flaws::NAME_INVALID;
        }
        if text.iter().any(u8::is_ascii_uppercase) {
            flaws = flaws.and(Flaws::NAME_UPPER_CASE);
        }
        match flaws {
            Flaws::NONE => (Self::Other, flaws),
            _ => (Self::Invalid, flaws),
        }
    }

    /// The field name of this kind whose text is `text()`, which is called only if the kind does not imply the text.
    #[inline(always)]
    pub fn spelt<'a>(self, text: impl FnOnce() -> &'a [u8]) -> FieldName<'a> {
        match self {
            Self::Known(known) => FieldName::Known(known),
            Self::Pseudo(pseudo) => FieldName::Pseudo(pseudo),
            Self::Other => other(text()),
            Self::Invalid => FieldName::Invalid(text()),
        }
    }

    /// The text of the name, if all names of this kind have the same text.
    #[must_use]
    pub const fn fixed_text(self) -> Option<&'static [u8]> {
        match self {
            Self::Pseudo(Pseudo::Unknown) | Self::Other | Self::Invalid => None,
            Self::Pseudo(pseudo) => Some(pseudo.as_str().as_bytes()),
            Self::Known(known) => Some(known.as_str().as_bytes()),
        }
    }
}

fn other(text: &[u8]) -> FieldName<'_> {
    // A token consists of ASCII characters, so it is valid UTF-8.
    str::from_utf8(text).map_or(FieldName::Invalid(text), FieldName::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flaws_of_names_are_found() {
        let cases: &[(&[u8], NameKind, Flaws)] = &[
            (b"date", NameKind::Known(Known::Date), Flaws::NONE),
            (b"x-a", NameKind::Other, Flaws::NONE),
            (b":path", NameKind::Pseudo(Pseudo::Path), Flaws::NONE),
            (b":Path", NameKind::Pseudo(Pseudo::Unknown), Flaws::NONE),
            (b":", NameKind::Pseudo(Pseudo::Unknown), Flaws::NONE),
            (b"Date", NameKind::Invalid, Flaws::NAME_UPPER_CASE),
            (b"", NameKind::Invalid, Flaws::NAME_INVALID),
            (b"a b", NameKind::Invalid, Flaws::NAME_INVALID),
            (b"a:", NameKind::Invalid, Flaws::NAME_INVALID),
            (b"\xc3\xa4", NameKind::Invalid, Flaws::NAME_INVALID),
            (
                b"A\0",
                NameKind::Invalid,
                Flaws::NAME_INVALID.and(Flaws::NAME_UPPER_CASE),
            ),
        ];
        for &(text, kind, flaws) in cases {
            assert_eq!(NameKind::of(text), (kind, flaws), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn flaws_of_values_are_found_wherever_they_stand() {
        for byte in 0..=255_u8 {
            let is_control = byte != b'\t' && byte.is_ascii_control();
            for at in 0..40 {
                let mut value = [b'v'; 40];
                value[at] = byte;
                let flaws = Flaws::in_value(&value);
                assert_eq!(flaws.has(Flaws::VALUE_CONTROL), is_control, "{byte:#x}");
                let is_blank = (at == 0 || at == 39) && (byte == b' ' || byte == b'\t');
                assert_eq!(flaws.has(Flaws::VALUE_BLANK), is_blank, "{byte:#x} {at}");
            }
        }
        assert_eq!(Flaws::in_value(b""), Flaws::NONE);
        assert!(Flaws::in_value(b" ").has(Flaws::VALUE_BLANK));
    }
}
