//! The setting `format: json` of `access-log`: turns the fields that an administrator has chosen by name into a format.

use h2o_config::{Error, Node};

/// The known fields: the name of each, which is its key in a log line, and its value as a format. Values in quotes are
/// strings, the others are numbers.
const FIELDS: &[(&str, &str)] = &[
    ("time", r#""%{%FT%T}t.%{msec_frac}t%{%z}t""#),
    ("client", r#""%h""#),
    ("client-port", "%{remote}p"),
    ("server", r#""%A""#),
    ("server-port", "%p"),
    ("user", r#""%u""#),
    ("method", r#""%m""#),
    ("host", r#""%V""#),
    ("configured-host", r#""%v""#),
    ("path", r#""%U""#),
    ("query", r#""%q""#),
    ("protocol", r#""%H""#),
    ("request", r#""%r""#),
    ("status", "%s"),
    ("first-status", "%<s"),
    ("bytes", "%b"),
    ("request-body-bytes", "%{request-body-bytes}x"),
    ("response-header-bytes", "%{response-header-bytes}x"),
    ("referer", r#""%{referer}i""#),
    ("user-agent", r#""%{user-agent}i""#),
    ("error", r#""%{error}x""#),
    ("connection-id", "%{connection-id}x"),
    ("request-id", "%{request-id}x"),
    ("duration", "%{duration}x"),
    ("connect-time", "%{connect-time}x"),
    ("request-header-time", "%{request-header-time}x"),
    ("request-body-time", "%{request-body-time}x"),
    ("request-total-time", "%{request-total-time}x"),
    ("process-time", "%{process-time}x"),
    ("response-time", "%{response-time}x"),
    ("proxy.idle-time", "%{proxy.idle-time}x"),
    ("proxy.connect-time", "%{proxy.connect-time}x"),
    ("proxy.request-time", "%{proxy.request-time}x"),
    ("proxy.process-time", "%{proxy.process-time}x"),
    ("proxy.response-time", "%{proxy.response-time}x"),
    ("proxy.total-time", "%{proxy.total-time}x"),
    ("proxy.request-bytes", "%{proxy.request-bytes}x"),
    ("proxy.response-bytes", "%{proxy.response-bytes}x"),
    ("ssl.protocol-version", r#""%{ssl.protocol-version}x""#),
    ("ssl.session-reused", "%{ssl.session-reused}x"),
    ("ssl.cipher", r#""%{ssl.cipher}x""#),
    ("ssl.cipher-bits", "%{ssl.cipher-bits}x"),
    ("ssl.server-name", r#""%{ssl.server-name}x""#),
    (
        "ssl.negotiated-protocol",
        r#""%{ssl.negotiated-protocol}x""#,
    ),
];

/// The fields of a log line, if the configuration chooses none.
pub(super) const DEFAULT: &str = "time, client, method, host, path, query, protocol, status, bytes, duration, referer, \
                                  user-agent";

/// Names of fields that begin with this text end with the name of a header field.
const REQUEST_HEADER: &str = "request-header.";
const RESPONSE_HEADER: &str = "response-header.";

/// The format of log lines with the fields that `chosen` lists.
///
/// # Errors
/// The message about a field that is unknown or listed twice, or about an empty list.
pub(super) fn format(chosen: Option<&Node>) -> Result<String, Error> {
    let mut format = JsonFormat::default();
    match chosen {
        None => {
            for name in DEFAULT.split(", ") {
                format.add(name, known(name).unwrap_or_default());
            }
        }
        Some(node) => {
            let fields = node.sequence()?;
            if fields.is_empty() {
                return Err(node.error(
                    "the list of fields is empty; write for example `[time, path, status]`",
                ));
            }
            for field in fields {
                format.add_chosen(field)?;
            }
        }
    }
    Ok(format.text + "}")
}

/// The text of a format, to which fields are added.
#[derive(Default)]
struct JsonFormat<'a> {
    text: String,
    names: Vec<&'a str>,
}

impl<'a> JsonFormat<'a> {
    fn add_chosen(&mut self, field: &'a Node) -> Result<(), Error> {
        let name = field.scalar()?;
        if self.names.contains(&name) {
            return Err(field.error(format!("`{name}` is listed twice")));
        }
        if let Some(header) = name.strip_prefix(REQUEST_HEADER) {
            self.add(name, &format!("\"%{{{}}}i\"", header_name(field, header)?));
        } else if let Some(header) = name.strip_prefix(RESPONSE_HEADER) {
            self.add(name, &format!("\"%{{{}}}o\"", header_name(field, header)?));
        } else if let Some(value) = known(name) {
            self.add(name, value);
        } else {
            let names: Vec<&str> = FIELDS.iter().map(|(name, _)| *name).collect();
            let nearest = h2o_config::nearest(name, names.iter().copied());
            let message = format!(
                "unknown field `{name}`; the fields are {}, {REQUEST_HEADER}NAME, {RESPONSE_HEADER}NAME",
                names.join(", ")
            );
            return Err(field.error(message).did_you_mean(nearest));
        }
        self.names.push(name);
        Ok(())
    }

    /// Adds a field to the format. Its name and value need no escaping: the name is one of [`FIELDS`] or has the
    /// checked name of a header field.
    fn add(&mut self, name: &str, value: &str) {
        self.text.push(if self.text.is_empty() { '{' } else { ',' });
        for part in ["\"", name, "\":", value] {
            self.text.push_str(part);
        }
    }
}

fn known(name: &str) -> Option<&'static str> {
    let field = FIELDS.iter().find(|(known, _)| *known == name)?;
    Some(field.1)
}

/// Refuses names of header fields with a character that could end the specifier or the JSON string in which the name
/// stands.
fn header_name<'a>(field: &Node, name: &'a str) -> Result<&'a str, Error> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if name.is_empty() || !name.bytes().all(is_plain) {
        return Err(field.error(format!(
            "`{name}` is not a header name of letters, digits, `-` and `_`"
        )));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_log::escape::Escape;
    use crate::access_log::format::Format;

    #[test]
    fn every_field_compiles_and_the_default_has_known_ones() {
        for (name, value) in FIELDS {
            Format::compile(value, Escape::Json).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        for name in DEFAULT.split(", ") {
            assert!(known(name).is_some(), "{name}");
        }
    }

    #[test]
    fn the_manual_lists_every_field() {
        let manual = include_str!("../../../../docs/logs.md");
        let start = manual.find("## Write JSON").unwrap();
        let section = &manual[start..start + manual[start..].find("\n## Variables").unwrap()];
        let names = FIELDS.iter().map(|(name, _)| *name);
        for name in names.chain(["request-header.NAME", "response-header.NAME"]) {
            assert!(section.contains(&format!("`{name}`")), "{name}");
        }
    }
}
