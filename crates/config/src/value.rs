//! Reads typed values from nodes of the configuration. Each error says what was expected and where.

use std::fmt;
use std::ops::RangeInclusive;

use crate::error::Error;
use crate::kinds::Kinds;
use crate::nearest::nearest;
use crate::node::Node;

/// The unit of a number in the configuration. If the number is invalid, the error says how to write it in this unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number without a unit.
    Count,
    /// The number is in seconds.
    Seconds,
    /// The number is in milliseconds.
    Milliseconds,
    /// The number is in bytes.
    Bytes,
}

impl Unit {
    /// The number that `text` means if it has a suffix such as other servers accept: 10240 for `10 k` in bytes.
    fn convert(self, text: &str) -> Option<u64> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, suffix) = text.split_at(digits);
        let suffix = suffix.trim_ascii_start().to_ascii_lowercase();
        let factor_of = |table: &[(&str, u64)]| {
            let found = table.iter().find(|(known, _)| *known == suffix);
            found.map(|(_, factor)| *factor)
        };
        let (factor, divisor) = match self {
            Self::Count => (None, 1),
            Self::Seconds => (factor_of(&MILLISECONDS), 1000),
            Self::Milliseconds => (factor_of(&MILLISECONDS), 1),
            Self::Bytes => (factor_of(&BYTES), 1),
        };
        let number = number.parse::<u64>().ok()?.checked_mul(factor?)?;
        number.is_multiple_of(divisor).then_some(number / divisor)
    }

    /// What the user should write instead of `text`, which is not a number.
    fn hint(self, text: &str) -> String {
        if text.is_empty() {
            return format!("the value is missing, expected a {self}");
        }
        match self.convert(text) {
            Some(number) => format!("`{text}` is not a {self}; write `{number}`"),
            None => format!("`{text}` is not a {self}; write digits only"),
        }
    }
}

const MILLISECONDS: [(&str, u64); 13] = [
    ("ms", 1),
    ("s", 1000),
    ("sec", 1000),
    ("second", 1000),
    ("seconds", 1000),
    ("m", 60_000),
    ("min", 60_000),
    ("minute", 60_000),
    ("minutes", 60_000),
    ("h", 3_600_000),
    ("hour", 3_600_000),
    ("hours", 3_600_000),
    ("d", 86_400_000),
];

const BYTES: [(&str, u64); 10] = [
    ("b", 1),
    ("k", 1 << 10),
    ("kb", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mb", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gb", 1 << 30),
    ("gib", 1 << 30),
];

/// Formats the unit like `whole number of seconds`.
impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Count => "whole number",
            Self::Seconds => "whole number of seconds",
            Self::Milliseconds => "whole number of milliseconds",
            Self::Bytes => "whole number of bytes",
        })
    }
}

/// Words that people write for true and for false.
const TRUTHS: [[&str; 3]; 2] = [["ON", "YES", "true"], ["OFF", "NO", "false"]];

/// The word in `words` that says of true and false the same as `text`.
fn same_truth(text: &str, words: &[&'static str]) -> Option<&'static str> {
    let has =
        |alike: &[&str; 3], word: &str| alike.iter().any(|one| one.eq_ignore_ascii_case(word));
    let alike = TRUTHS.iter().find(|alike| has(alike, text))?;
    words.iter().copied().find(|word| has(alike, word))
}

impl Node {
    /// The text of the node, which must be a scalar.
    ///
    /// # Errors
    /// The message is `argument must be a scalar`.
    pub fn scalar(&self) -> Result<&str, Error> {
        self.as_str().ok_or_else(|| self.must_be(Kinds::SCALAR))
    }

    /// The items of the node, which must be a sequence.
    ///
    /// # Errors
    /// The message is `argument must be a sequence`.
    pub fn sequence(&self) -> Result<&[Self], Error> {
        self.as_sequence()
            .ok_or_else(|| self.must_be(Kinds::SEQUENCE))
    }

    /// The entries of the node, which must be a mapping.
    ///
    /// # Errors
    /// The message is `argument must be a mapping`.
    pub fn mapping(&self) -> Result<&[(Self, Self)], Error> {
        self.as_mapping()
            .ok_or_else(|| self.must_be(Kinds::MAPPING))
    }

    /// The items of the node if it is a sequence; otherwise the node itself as the only item.
    #[must_use]
    pub fn one_or_more(&self) -> &[Self] {
        self.as_sequence().unwrap_or(std::slice::from_ref(self))
    }

    /// The index in `words` of the word that the node contains. Letter case is ignored; abbreviations are refused.
    ///
    /// # Errors
    /// The message is that of `argument must be one of: OFF,ON`, with the words.
    pub fn one_of(&self, words: &[&'static str]) -> Result<usize, Error> {
        let text = self.scalar()?;
        words
            .iter()
            .position(|word| word.eq_ignore_ascii_case(text))
            .ok_or_else(|| {
                let meant = same_truth(text, words);
                self.error(format!("argument must be one of: {}", words.join(",")))
                    .did_you_mean(meant.or_else(|| nearest(text, words.iter().copied())))
            })
    }

    /// Whether the node is `ON`; otherwise it must be `OFF`. `yes` and `true` are refused with a hint.
    ///
    /// # Errors
    /// The message is `argument must be one of: OFF,ON`.
    pub fn on_off(&self) -> Result<bool, Error> {
        Ok(self.one_of(&["OFF", "ON"])? == 1)
    }

    /// Whether the node is a word that means "on": `ON`, `YES` or `TRUE`, in any letter case. For values that may be `OFF`, but not `ON`.
    #[must_use]
    pub fn means_on(&self) -> bool {
        self.as_str()
            .is_some_and(|text| same_truth(text, &["ON"]).is_some())
    }

    /// Whether the node is `YES`; otherwise it must be `NO`. `on` and `true` are refused with a hint.
    ///
    /// # Errors
    /// The message is `argument must be one of: YES,NO`.
    pub fn yes_no(&self) -> Result<bool, Error> {
        Ok(self.one_of(&["YES", "NO"])? == 0)
    }

    /// The decimal number in the node, which must be in `range`. Only blanks may be before the digits, and nothing after them.
    /// `format` is the conversion that H2O names in its error message for an invalid number, such as `%zu`.
    ///
    /// # Errors
    /// The messages are `argument must match the format: %zu`, `argument must be between 1 and 9`, `argument must be >= 1`
    /// and `argument is too large`.
    pub fn integer<T: TryFrom<u64>>(
        &self,
        format: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<T, Error> {
        self.quantity(Unit::Count, format, range)
    }

    /// Like [`Self::integer`], for a number with a unit such as seconds or bytes: the error message says what to write
    /// instead of `10s`.
    ///
    /// # Errors
    /// The errors are those of [`Self::integer`].
    pub fn quantity<T: TryFrom<u64>>(
        &self,
        unit: Unit,
        format: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<T, Error> {
        let text = self.scalar()?.trim_ascii();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(self
                .error(format!("argument must match the format: {format}"))
                .with_hint(unit.hint(text)));
        }
        let number = text.parse().ok().filter(|number| range.contains(number));
        number
            .and_then(|number: u64| T::try_from(number).ok())
            .ok_or_else(|| self.out_of(&range))
    }

    /// The finite number in the node, such as `0.8`.
    ///
    /// # Errors
    /// The message is `argument must match the format: %lf`.
    pub fn float(&self) -> Result<f64, Error> {
        let text = self.scalar()?;
        text.parse()
            .ok()
            .filter(|number: &f64| number.is_finite())
            .ok_or_else(|| {
                self.error("argument must match the format: %lf")
                    .with_hint(format!("`{text}` is not a number such as `0.5`"))
            })
    }

    fn must_be(&self, kinds: Kinds) -> Error {
        self.error(format!("argument must be {kinds}"))
    }

    fn out_of(&self, range: &RangeInclusive<u64>) -> Error {
        let (min, max) = (range.start(), range.end());
        let text = self.as_str().unwrap_or_default();
        // If the range has no upper limit, only a number that the target type cannot hold is too large.
        let too_large =
            text.parse().is_ok_and(|number: u64| number >= *min) || text.parse::<u64>().is_err();
        self.error(match (*max == u64::MAX, too_large) {
            (true, true) => "argument is too large".to_owned(),
            (true, false) => format!("argument must be >= {min}"),
            (false, _) => format!("argument must be between {min} and {max}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Value;
    use crate::pos::Pos;

    fn scalar(text: &str) -> Node {
        Node {
            value: Value::Scalar(text.into()),
            pos: Pos::new("f".into(), 1, 1),
        }
    }

    fn text<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
        match result {
            Ok(value) => format!("{value:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn words_match_whole_and_in_any_case() {
        let bad = "[f:1] argument must be one of: OFF,ON (column 1)";
        let on = "[f:1] argument must be one of: OFF,ON (column 1; did you mean `ON`?)";
        let off = "[f:1] argument must be one of: OFF,ON (column 1; did you mean `OFF`?)";
        let cases = [
            ("ON", "true"),
            ("on", "true"),
            ("Off", "false"),
            ("yes", on),
            ("true", on),
            ("no", off),
            ("False", off),
            ("1", bad),
            ("", bad),
            ("ON ", on),
            ("OFFF", off),
        ];
        for (input, want) in cases {
            assert_eq!(text(scalar(input).on_off()), want, "{input:?}");
        }
        assert_eq!(text(scalar("yes").yes_no()), "true");
        assert_eq!(
            text(scalar("ON").yes_no()),
            "[f:1] argument must be one of: YES,NO (column 1; did you mean `YES`?)"
        );
    }

    #[test]
    fn integers_are_digits_within_the_range() {
        let range = "[f:1] argument must be between 1 and 200 (column 1)";
        let cases = [
            ("1", "1"),
            ("200", "200"),
            ("007", "7"),
            (" 8", "8"),
            ("8 ", "8"),
            ("8\n", "8"),
            ("0", range),
            ("201", range),
            ("99999999999999999999999", range),
        ];
        for (input, want) in cases {
            assert_eq!(
                text(scalar(input).integer::<u8>("%u", 1..=200)),
                want,
                "{input:?}"
            );
        }
        for input in ["10abc", "-1", "+1", "1 2", "0x10", "1.5", "ten"] {
            assert_eq!(
                text(scalar(input).integer::<u8>("%u", 1..=200)),
                format!(
                    "[f:1] argument must match the format: %u (column 1; `{input}` is not a whole number; write digits only)"
                ),
            );
        }
        assert_eq!(
            text(scalar("").integer::<u8>("%u", 1..=200)),
            "[f:1] argument must match the format: %u (column 1; the value is missing, expected a whole number)"
        );
    }

    #[test]
    fn a_number_with_a_unit_is_not_refused_without_the_number_to_write() {
        let seconds = "is not a whole number of seconds; write";
        let milliseconds = "is not a whole number of milliseconds; write";
        let bytes = "is not a whole number of bytes; write";
        let cases = [
            (Unit::Seconds, "10s", seconds, "`10`"),
            (Unit::Seconds, "5 min", seconds, "`300`"),
            (Unit::Seconds, "1D", seconds, "`86400`"),
            (Unit::Seconds, "2000ms", seconds, "`2`"),
            (Unit::Seconds, "500ms", seconds, "digits only"),
            (Unit::Seconds, "99999999999999999s", seconds, "digits only"),
            (Unit::Seconds, "soon", seconds, "digits only"),
            (Unit::Milliseconds, "60s", milliseconds, "`60000`"),
            (Unit::Milliseconds, "500ms", milliseconds, "`500`"),
            (Unit::Bytes, "10M", bytes, "`10485760`"),
            (Unit::Bytes, "1 GiB", bytes, "`1073741824`"),
            (Unit::Bytes, "1.5G", bytes, "digits only"),
        ];
        for (unit, input, middle, want) in cases {
            let error = scalar(input)
                .quantity::<u64>(unit, "%lu", 0..=u64::MAX)
                .unwrap_err();
            let want = format!("`{input}` {middle} {want}");
            assert_eq!(error.hint.as_deref(), Some(&*want));
        }
    }

    #[test]
    fn integers_without_a_ceiling_say_only_what_is_known() {
        let cases = [
            ("18446744073709551615", "18446744073709551615"),
            (
                "18446744073709551616",
                "[f:1] argument is too large (column 1)",
            ),
            ("4", "[f:1] argument must be >= 5 (column 1)"),
        ];
        for (input, want) in cases {
            assert_eq!(
                text(scalar(input).integer::<u64>("%zu", 5..=u64::MAX)),
                want,
                "{input:?}"
            );
        }
        assert_eq!(
            text(scalar("256").integer::<u8>("%u", 0..=u64::MAX)),
            "[f:1] argument is too large (column 1)"
        );
    }

    #[test]
    fn floats_are_finite() {
        let cases = [("0.8", "0.8"), ("1", "1.0"), ("-2.5", "-2.5")];
        for (input, want) in cases {
            assert_eq!(text(scalar(input).float()), want, "{input:?}");
        }
        for input in ["inf", "nan", "0.8x", ""] {
            assert_eq!(
                text(scalar(input).float()),
                format!(
                    "[f:1] argument must match the format: %lf (column 1; `{input}` is not a number such as `0.5`)"
                )
            );
        }
    }

    #[test]
    fn kinds_are_checked_before_values() {
        let list = Node {
            value: Value::Sequence([scalar("a")].into()),
            ..scalar("")
        };
        assert_eq!(
            text(list.scalar()),
            "[f:1] argument must be a scalar (column 1)"
        );
        assert_eq!(
            text(list.on_off()),
            "[f:1] argument must be a scalar (column 1)"
        );
        assert_eq!(
            text(list.mapping().map(<[_]>::len)),
            "[f:1] argument must be a mapping (column 1)"
        );
        assert_eq!(
            text(scalar("").sequence().map(<[_]>::len)),
            "[f:1] argument must be a sequence (column 1)"
        );
        assert_eq!(list.one_or_more().len(), 1);
        assert_eq!(scalar("x").one_or_more()[0].as_str(), Some("x"));
    }
}
