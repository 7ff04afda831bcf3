//! A response as a client received it.

use std::fmt;

/// An HTTP response.
#[derive(Clone, Debug)]
pub struct Response {
    /// Status code and reason phrase: `200 OK`.
    pub status: String,
    /// The fields in the order received, with names as they were received.
    pub fields: Vec<(String, String)>,
    /// The body, without framing.
    pub body: Vec<u8>,
}

impl Response {
    /// Parses the head of a response: everything before the empty line.
    ///
    /// # Panics
    /// If the head is not valid HTTP/1.
    #[must_use]
    pub fn parse_head(head: &[u8]) -> Self {
        let text = String::from_utf8_lossy(head);
        let mut lines = text.split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let (version, status) = status_line
            .split_once(' ')
            .unwrap_or_else(|| panic!("the response has no status line: {text}"));
        assert!(
            version.starts_with("HTTP/"),
            "the response has no status line: {text}"
        );
        let fields = lines.filter(|line| !line.is_empty()).map(|line| {
            let (name, value) = line
                .split_once(": ")
                .or_else(|| line.split_once(':'))
                .unwrap_or_else(|| panic!("the line is no header field: {line}"));
            (name.to_owned(), value.to_owned())
        });
        Self {
            status: status.to_owned(),
            fields: fields.collect(),
            body: Vec::new(),
        }
    }

    /// The status code.
    #[must_use]
    pub fn code(&self) -> u16 {
        let code = self.status.split(' ').next().unwrap_or_default();
        code.parse().unwrap_or_default()
    }

    /// The value of the first field with this name, in any letter case.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// The values of all fields with this name, in any letter case.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.fields
            .iter()
            .filter(move |(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Compares the response with `want`. Its first line is the status code and reason phrase. Each following line is about a field:
    /// present with this value (`name: value`), present with any value (`name: *`), or absent (`!name`). After an empty line comes the
    /// body; without an empty line the body is not compared.
    ///
    /// # Panics
    /// If the response differs.
    pub fn must_be(&self, want: &str) {
        if let Some(difference) = self.difference(want) {
            panic!("{difference}\n--- wanted\n{want}\n--- got\n{self}");
        }
    }

    fn difference(&self, want: &str) -> Option<String> {
        let (head, body) = match want.split_once("\n\n") {
            Some((head, body)) => (head, Some(body)),
            None => (want, None),
        };
        let mut lines = head.lines();
        let status = lines.next().unwrap_or_default();
        if self.status != status {
            return Some(format!("status is {}, not {status}", self.status));
        }
        for line in lines {
            if let Some(name) = line.strip_prefix('!') {
                if let Some(value) = self.field(name) {
                    return Some(format!("there is a field {name}: {value}"));
                }
                continue;
            }
            let (name, value) = line.split_once(':').unwrap_or((line, "*"));
            let value = value.trim_start();
            if !self.all(name).any(|found| value == "*" || found == value) {
                return Some(format!("there is no field {line}"));
            }
        }
        body.filter(|body| self.body != body.as_bytes())
            .map(|_| "the content is another".to_owned())
    }
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.status)?;
        for (name, value) in &self.fields {
            writeln!(f, "{name}: {value}")?;
        }
        let shown = &self.body[..self.body.len().min(2000)];
        write!(f, "\n{}", String::from_utf8_lossy(shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_compared_by_what_is_asked_for() {
        let mut response = Response::parse_head(b"HTTP/1.1 200 OK\r\nA: 1\r\na: 2\r\nB:");
        response.body = b"x\ny".to_vec();
        for want in [
            "200 OK",
            "200 OK\nA: 1\na: 2",
            "200 OK\na: *\nb: ",
            "200 OK\n!c",
            "200 OK\n\nx\ny",
        ] {
            assert_eq!(response.difference(want), None, "{want}");
        }
        for want in [
            "200",
            "200 OK\nA: 3",
            "200 OK\n!B",
            "200 OK\nc: *",
            "200 OK\n\nx",
            "200 OK\n\n",
        ] {
            assert!(response.difference(want).is_some(), "{want}");
        }
    }
}
