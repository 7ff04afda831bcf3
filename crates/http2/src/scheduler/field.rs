//! The `priority` field of RFC 9218 §4 and §5.

/// Urgency and incremental delivery of one response (RFC 9218 §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Urgency {
    /// 0, the most urgent, to 7.
    pub urgency: u8,
    /// Whether the client can use parts of the response as they arrive.
    pub incremental: bool,
}

impl Default for Urgency {
    fn default() -> Self {
        Self {
            urgency: 3,
            incremental: false,
        }
    }
}

/// The parameters a `priority` field names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// `u`, 0 to 7.
    pub urgency: Option<u8>,
    /// `i`.
    pub incremental: Option<bool>,
}

impl Update {
    /// `value` with the parameters replaced that this update names.
    #[must_use]
    pub fn over(self, value: Urgency) -> Urgency {
        Urgency {
            urgency: self.urgency.unwrap_or(value.urgency),
            incremental: self.incremental.unwrap_or(value.incremental),
        }
    }
}

/// What a request's field or a PRIORITY_UPDATE frame says: a parameter it leaves out has its default.
impl From<Update> for Urgency {
    fn from(update: Update) -> Self {
        update.over(Self::default())
    }
}

/// Parses the value of a `priority` field. Unknown keys and values out of range are skipped, as RFC 9218 §4
/// asks; the last member of a name counts (RFC 9651 §3.2).
#[must_use]
pub fn parse_priority(value: &[u8]) -> Update {
    let mut update = Update::default();
    for member in value.split(|&octet| octet == b',') {
        // No parameter of a member means anything to us.
        let item = member
            .split(|&octet| octet == b';')
            .next()
            .unwrap_or(member);
        match item.trim_ascii() {
            [b'u', b'=', digit @ b'0'..=b'7'] => update.urgency = Some(digit - b'0'),
            b"i" | b"i=?1" => update.incremental = Some(true),
            b"i=?0" => update.incremental = Some(false),
            _ => {}
        }
    }
    update
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
            let want = Update {
                urgency,
                incremental,
            };
            assert_eq!(parse_priority(value), want, "{}", value.escape_ascii());
        }
    }

    #[test]
    fn an_update_replaces_what_it_names() {
        let client = Urgency {
            urgency: 5,
            incremental: true,
        };
        assert_eq!(parse_priority(b"").over(client), client);
        assert_eq!(parse_priority(b"u=1").over(client).urgency, 1);
        assert!(parse_priority(b"u=1").over(client).incremental);
        assert!(!parse_priority(b"i=?0").over(client).incremental);
        assert_eq!(Urgency::from(parse_priority(b"i")).urgency, 3);
    }
}
