//! The options of `connection` (RFC 9110 §7.6.1) that name fields. Such fields are for the next hop only and are not
//! forwarded.

use h2o_http::{Headers, Known, Name};

/// Whether a value of the `connection` field has options that may name fields.
pub(super) fn names_fields(value: &[u8]) -> bool {
    options_of(value).next().is_some()
}

fn options_of(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    const WITHOUT_FIELD: [&[u8]; 5] = [
        b"keep-alive",
        b"close",
        b"upgrade",
        b"te",
        b"http2-settings",
    ];
    value
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|option| {
            let mut others = WITHOUT_FIELD.iter();
            !option.is_empty() && !others.any(|other| other.eq_ignore_ascii_case(option))
        })
}

/// The options of `connection` that may name fields. They are parsed once and limited, because each field is compared
/// with each option, and the peer chooses the number of both.
#[derive(Debug, Default)]
pub(super) struct ConnectionOptions<'v>(Vec<&'v [u8]>);

/// The error if a message has more options than any sensible message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooManyOptions;

impl<'v> ConnectionOptions<'v> {
    /// Most options that may name fields in a message.
    pub(super) const MOST: usize = 64;

    /// Reads all values of the `connection` field. Allocates memory only if there are options.
    ///
    /// # Errors
    /// [`TooManyOptions`] if there are more than [`ConnectionOptions::MOST`] options.
    pub(super) fn read(values: impl Iterator<Item = &'v [u8]>) -> Result<Self, TooManyOptions> {
        let mut options = Vec::new();
        for value in values {
            for option in options_of(value) {
                if options.len() == Self::MOST {
                    return Err(TooManyOptions);
                }
                options.push(option);
            }
        }
        Ok(Self(options))
    }

    /// Whether the `connection` fields in `headers` have more than [`ConnectionOptions::MOST`] options.
    pub(super) fn are_too_many(headers: &'v Headers) -> bool {
        let values = || headers.get_all(Known::Connection);
        // An option takes at least a byte and a comma, so shorter values cannot have too many options.
        let len: usize = values().map(|value| value.len() + 1).sum();
        len > 2 * Self::MOST && Self::read(values()).is_err()
    }

    /// Whether `name` is the name of one of the options.
    pub(super) fn have(&self, name: &str) -> bool {
        (self.0.iter()).any(|option| option.eq_ignore_ascii_case(name.as_bytes()))
    }

    /// Removes the fields that the options name, except well-known end-to-end fields.
    pub(super) fn remove_named(&self, headers: &mut Headers) {
        if !self.0.is_empty() {
            headers.retain(|field| match field.name {
                Name::Known(_) => true,
                Name::Other(name) => !self.have(name),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_may_name_fields_are_recognised() {
        for (value, want) in [
            ("", false),
            ("keep-alive", false),
            ("Upgrade, HTTP2-Settings,", false),
            (" close ,te", false),
            ("close, x-a", true),
            ("X-A", true),
        ] {
            assert_eq!(names_fields(value.as_bytes()), want, "{value}");
        }
        let values: [&[u8]; 3] = [b"close, x-a", b"", b",X-B ,keep-alive"];
        let options = ConnectionOptions::read(values.into_iter()).unwrap();
        for (name, want) in [("x-a", true), ("x-b", true), ("close", false), ("x", false)] {
            assert_eq!(options.have(name), want, "{name}");
        }
    }

    #[test]
    fn the_number_of_options_is_limited() {
        const MOST: usize = ConnectionOptions::MOST;
        for (count, each, want) in [
            (MOST, "x", false),
            (MOST + 1, "x", true),
            (MOST + 1, "close", false),
            (MOST, "x-a,", false),
            (MOST + 1, " x-a ,,", true),
        ] {
            let mut headers = Headers::new();
            for part in vec![each; count].chunks(3) {
                headers.push(Known::Connection, part.join(",").as_bytes());
            }
            let are_too_many = ConnectionOptions::are_too_many(&headers);
            assert_eq!(are_too_many, want, "{count} {each}");
        }
    }
}
