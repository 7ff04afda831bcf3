//! Extensible priorities (RFC 9218), which HTTP/2 and HTTP/3 share: the `priority` field, the order in which streams send,
//! and PRIORITY_UPDATE frames that arrive before their streams are opened.

mod early;
mod queue;

pub use early::{EarlyUpdates, MAX_EARLY_UPDATES, TooManyUpdates};
pub use queue::{QueuedStream, UrgencyQueue};

/// Urgency and incremental delivery of one response (RFC 9218 §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityParameters {
    /// The urgency: from 0, the most urgent, to 7.
    pub urgency: u8,
    /// Whether the client can use parts of the response as they arrive.
    pub incremental: bool,
}

impl PriorityParameters {
    /// The parameters of a request without a `priority` field (RFC 9218 §4.1, §4.2).
    pub const DEFAULT: Self = Self {
        urgency: 3,
        incremental: false,
    };
}

impl Default for PriorityParameters {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The parameters that the value of a `priority` field or of a PRIORITY_UPDATE frame names (RFC 9218 §5, §7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PriorityField {
    /// The parameter `u` (urgency), 0 to 7.
    pub urgency: Option<u8>,
    /// The parameter `i` (incremental).
    pub incremental: Option<bool>,
}

impl PriorityField {
    /// Parses the value of a `priority` field. Unknown keys and values out of range are skipped (RFC 9218 §4); if a key
    /// occurs more than once, the last member counts (RFC 9651 §3.2).
    #[must_use]
    pub fn parse(value: &[u8]) -> Self {
        let mut field = Self::default();
        for member in value.split(|&byte| byte == b',') {
            // The members `u` and `i` have no parameters of their own, so text after `;` is ignored.
            let item = member.split(|&byte| byte == b';').next().unwrap_or(member);
            match item.trim_ascii() {
                [b'u', b'=', digit @ b'0'..=b'7'] => field.urgency = Some(digit - b'0'),
                b"i" | b"i=?1" => field.incremental = Some(true),
                b"i=?0" => field.incremental = Some(false),
                _ => {}
            }
        }
        field
    }

    /// The parameters of `base`, replaced by those that this field names: the `priority` field of a response may change the
    /// priority that its request asked for (RFC 9218 §8).
    #[must_use]
    pub fn over(self, base: PriorityParameters) -> PriorityParameters {
        PriorityParameters {
            urgency: self.urgency.unwrap_or(base.urgency),
            incremental: self.incremental.unwrap_or(base.incremental),
        }
    }
}

/// Completes the parameters of a request's field or of a PRIORITY_UPDATE frame: those that it does not name have their
/// default values.
impl From<PriorityField> for PriorityParameters {
    fn from(field: PriorityField) -> Self {
        field.over(Self::DEFAULT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_u_and_i_and_others_are_skipped() {
        let cases: &[(&[u8], Option<u8>, Option<bool>)] = &[
            (b"", None, None),
            (b"u=0", Some(0), None),
            (b"u=7", Some(7), None),
            (b"u=8", None, None),
            (b"u=-1", None, None),
            (b"u=10", None, None),
            (b"u=1.0", None, None),
            (b"u", None, None),
            (b"u=", None, None),
            (b"u =1", None, None),
            (b"U=1", None, None),
            (b"i", None, Some(true)),
            (b"i=?1", None, Some(true)),
            (b"i=?0", None, Some(false)),
            (b"i=1", None, None),
            (b"i=?2", None, None),
            (b"u=5, i", Some(5), Some(true)),
            (b" u=5\t,\ti=?0 ", Some(5), Some(false)),
            (b"u=5,u=2", Some(2), None),
            (b"u=5,u=9", Some(5), None),
            (b"i,i=?0", None, Some(false)),
            (b"x=3, u=1;a=b, yi, i;q", Some(1), Some(true)),
            (b",,u=1,", Some(1), None),
            (b"\xff\x00,u=4", Some(4), None),
        ];
        for &(value, urgency, incremental) in cases {
            let want = PriorityField {
                urgency,
                incremental,
            };
            assert_eq!(
                PriorityField::parse(value),
                want,
                "{}",
                value.escape_ascii()
            );
        }
    }

    #[test]
    fn a_field_replaces_the_parameters_it_names() {
        let client = PriorityParameters {
            urgency: 5,
            incremental: true,
        };
        assert_eq!(PriorityField::parse(b"").over(client), client);
        assert_eq!(PriorityField::parse(b"u=1").over(client).urgency, 1);
        assert!(PriorityField::parse(b"u=1").over(client).incremental);
        assert!(!PriorityField::parse(b"i=?0").over(client).incremental);
        assert_eq!(
            PriorityParameters::from(PriorityField::parse(b"i")).urgency,
            3
        );
    }
}
