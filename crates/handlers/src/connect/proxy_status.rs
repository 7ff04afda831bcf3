//! The result of a tunnel request, as text for the error log and as the `proxy-status` field for the client (RFC 9209).

use std::fmt::Write as _;
use std::net::IpAddr;

use h2o_http::is_token_byte;

/// The parameters that describe the result of a tunnel request; absent ones are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// Type of the error (RFC 9209 §2.3); `None` if the tunnel was opened.
    pub(super) error: Option<&'static str>,
    /// The response code of DNS, if the look-up of the name failed.
    pub(super) rcode: Option<&'static str>,
    pub(super) details: Option<&'static str>,
    /// The address of the target to which the connection was made or tried.
    pub(super) next_hop: Option<IpAddr>,
}

impl Report {
    /// The value of the `proxy-status` field. `identity` is the proxy's name, [encoded](encode_identity).
    pub(super) fn field(&self, identity: &str) -> String {
        let mut value = identity.to_owned();
        if let Some(error) = self.error {
            value.push_str("; error=");
            value.push_str(error);
        }
        for (name, text) in [("rcode", self.rcode), ("details", self.details)] {
            if let Some(text) = text {
                // The values of `rcode` and `details` are the program's own texts, and have no characters to escape.
                let _ = write!(value, "; {name}=\"{text}\"");
            }
        }
        if let Some(next_hop) = self.next_hop {
            let _ = write!(value, "; next-hop=\"{next_hop}\"");
        }
        value
    }

    /// The text for the error log. H2O compatibility: H2O logs the same text.
    pub(super) fn log_text(&self) -> String {
        const NULL: &str = "(null)";
        let (error, rcode) = (self.error.unwrap_or(NULL), self.rcode.unwrap_or(NULL));
        let details = self.details.unwrap_or(NULL);
        match self.next_hop {
            Some(next_hop) => {
                format!("{error}; rcode={rcode}; details={details}; next-hop={next_hop}")
            }
            None => format!("{error}; rcode={rcode}; details={details}; next-hop={NULL}"),
        }
    }
}

/// The name of a proxy as a member of a structured field: a token if possible, else a string (RFC 8941 §3.3.3 and §3.3.4).
pub(super) fn encode_identity(name: &str) -> String {
    let bytes = name.as_bytes();
    let may_begin = |byte: u8| byte.is_ascii_alphabetic() || byte == b'*';
    let may_follow = |byte: &u8| is_token_byte(*byte) || matches!(byte, b':' | b'/');
    if bytes.first().is_some_and(|first| may_begin(*first)) && bytes.iter().all(may_follow) {
        return name.to_owned();
    }
    let mut quoted = String::with_capacity(name.len() + 2);
    quoted.push('"');
    for letter in name.chars() {
        if matches!(letter, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(letter);
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_tokens_or_strings() {
        let cases = [
            ("h2o", "h2o"),
            ("*", "*"),
            ("a.example:443/x", "a.example:443/x"),
            ("my proxy", "\"my proxy\""),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("1a", "\"1a\""),
            ("", "\"\""),
        ];
        for (name, want) in cases {
            assert_eq!(encode_identity(name), want, "{name}");
        }
    }

    #[test]
    fn absent_parts_are_left_out_of_the_field_and_null_in_the_log() {
        let next_hop = Some("2001:db8::1".parse().unwrap());
        let success = Report {
            next_hop,
            ..Report::default()
        };
        assert_eq!(success.field("h2o"), "h2o; next-hop=\"2001:db8::1\"");
        let refused = Report {
            error: Some("connection_refused"),
            next_hop: Some("192.0.2.1".parse().unwrap()),
            ..Report::default()
        };
        assert_eq!(
            refused.field("\"my proxy\""),
            "\"my proxy\"; error=connection_refused; next-hop=\"192.0.2.1\""
        );
        assert_eq!(
            refused.log_text(),
            "connection_refused; rcode=(null); details=(null); next-hop=192.0.2.1"
        );
        let unresolved = Report {
            error: Some("dns_error"),
            rcode: Some("NXDOMAIN"),
            details: Some("hostname does not exist"),
            next_hop: None,
        };
        assert_eq!(
            unresolved.field("h2o"),
            "h2o; error=dns_error; rcode=\"NXDOMAIN\"; details=\"hostname does not exist\""
        );
        assert_eq!(
            unresolved.log_text(),
            "dns_error; rcode=NXDOMAIN; details=hostname does not exist; next-hop=(null)"
        );
    }
}
