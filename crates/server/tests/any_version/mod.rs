//! A client of HTTP/1, HTTP/2 and HTTP/3: a test says once what it asks and what it wants to see.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    reason = "helpers of tests, which may fail them"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use h2o_testkit::patient;

use crate::embedded::Embedded;
use crate::{http2_client, http3_client};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http1,
    Http2,
    Http3,
}

pub const VERSIONS: [Version; 3] = [Version::Http1, Version::Http2, Version::Http3];

/// A request that the test's client sends.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    Get(&'a str),
    Connect(&'a str),
    /// A request with a body of this length, `Expect: 100-continue` and credentials.
    Expect(&'a str, usize),
    /// A request with `content-length: 0`, so that its body is empty.
    Empty(&'a str),
    /// A request with this method (not CONNECT), path and fields.
    With(&'a str, &'a str, &'a [(&'a str, &'a str)]),
    /// A request with this path and these fields, which announce a body; the body is never sent.
    Promised(&'a str, &'a [(&'a str, &'a str)]),
}

/// The `authorization` field of user `ann`, whose password is `secret`.
pub const RIGHT: &str = "Basic YW5uOnNlY3JldA==";

/// The response fields, with their values, whose presence [`Answer::told`] reports.
pub const TOLD: [(&str, &str); 5] = [
    ("access-control-allow-methods", "GET, PUT"),
    ("access-control-allow-origin", "https://a.test"),
    ("location", "/new/x"),
    ("retry-after", "60"),
    (
        "www-authenticate",
        "Basic realm=\"staff\", charset=\"UTF-8\"",
    ),
];

/// What the client saw of the response to a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The statuses of the interim responses, and at the end the status of the final response.
    pub statuses: Vec<u16>,
    /// Whether the filters of the path were applied to the response.
    pub is_filtered: bool,
    /// Which fields of [`TOLD`] the final response has.
    pub told: Vec<&'static str>,
    pub body: String,
}

impl Answer {
    fn new() -> Self {
        Self {
            statuses: Vec::new(),
            is_filtered: false,
            told: Vec::new(),
            body: String::new(),
        }
    }

    /// Describes the response by its status, its fields of [`TOLD`] and its content. The response must have passed the filters and
    /// have had no interim responses.
    pub fn line(&self) -> String {
        assert!(self.is_filtered && self.statuses.len() == 1, "{self:?}");
        format!("{} {:?} {}", self.statuses[0], self.told, self.body.trim())
    }
}

pub fn answered(statuses: &[u16], body: &str) -> Option<Answer> {
    Some(Answer {
        statuses: statuses.to_vec(),
        is_filtered: true,
        told: Vec::new(),
        body: body.to_owned(),
    })
}

/// A client's connection on which it sends requests one after another.
pub enum Client {
    Http1(BufReader<TcpStream>),
    Http2(http2_client::Client),
    Http3(Box<http3_client::Client>),
}

impl Client {
    pub fn connect(server: &Embedded, version: Version) -> Self {
        match version {
            Version::Http1 => {
                let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
                Self::Http1(BufReader::new(patient(stream)))
            }
            Version::Http2 => Self::Http2(http2_client::Client::connect(server.port)),
            Version::Http3 => Self::Http3(Box::new(http3_client::Client::connect(server.port))),
        }
    }

    /// Sends a request and reads the response. Returns `None` if the server has closed the connection.
    pub fn ask(&mut self, request: Request<'_>) -> Option<Answer> {
        match self {
            Self::Http1(stream) => ask_http1(stream, request),
            Self::Http2(client) => ask_http2(client, request),
            Self::Http3(client) => ask_http3(client, request),
        }
    }
}

/// Formats fields as lines of an HTTP/1 head.
fn lines(fields: &[(&str, &str)]) -> String {
    let lines = fields.iter();
    lines
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect()
}

fn ask_http1(stream: &mut BufReader<TcpStream>, request: Request<'_>) -> Option<Answer> {
    let (line, fields, body) = match request {
        Request::Get(path) => (format!("GET {path}"), String::new(), 0),
        Request::Connect(authority) => (format!("CONNECT {authority}"), String::new(), 0),
        Request::Expect(path, len) => {
            let fields = format!(
                "Content-Length: {len}\r\nExpect: 100-continue\r\nAuthorization: {RIGHT}\r\n"
            );
            (format!("POST {path}"), fields, len)
        }
        Request::Empty(path) => {
            let fields = "Content-Length: 0\r\n".to_owned();
            (format!("POST {path}"), fields, 0)
        }
        Request::With(method, path, fields) => (format!("{method} {path}"), lines(fields), 0),
        Request::Promised(path, fields) => (format!("POST {path}"), lines(fields), 0),
    };
    let host = match request {
        Request::Connect(authority) => authority,
        Request::Get(_)
        | Request::Expect(..)
        | Request::Empty(_)
        | Request::With(..)
        | Request::Promised(..) => "a.test",
    };
    let head = format!("{line} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
    stream.get_mut().write_all(head.as_bytes()).ok()?;
    let mut answer = Answer::new();
    loop {
        let (mut head, mut len) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let start = head.len();
            if stream.read_line(&mut head).ok()? == 0 {
                return None;
            }
            let line = head[start..].to_lowercase();
            if let Some(value) = line.strip_prefix("content-length: ") {
                len = value.trim().parse().unwrap();
            }
            answer.is_filtered |= line == "x-rule: seen by filters\r\n";
            let told = TOLD
                .iter()
                .filter(|(name, value)| line == format!("{name}: {}\r\n", value.to_lowercase()));
            answer.told.extend(told.map(|(name, _)| name));
        }
        answer.told.sort_unstable();
        let status = head[9..12].parse().unwrap();
        answer.statuses.push(status);
        if status == 100 {
            stream.get_mut().write_all(&vec![b'x'; body]).unwrap();
            continue;
        }
        let mut content = vec![0; len];
        stream.read_exact(&mut content).ok()?;
        answer.body = String::from_utf8(content).unwrap();
        return Some(answer);
    }
}

fn ask_http2(client: &mut http2_client::Client, request: Request<'_>) -> Option<Answer> {
    let (stream, len) = match request {
        Request::Get(path) => (client.ask(path, &[]), 0),
        Request::Connect(authority) => (client.connect_plain(authority), 0),
        Request::Expect(path, len) => {
            let fields = [
                ("content-length", &*len.to_string()),
                ("expect", "100-continue"),
                ("authorization", RIGHT),
            ]
            .map(|(name, value)| (name, value.to_owned()));
            let fields = fields.each_ref().map(|(name, value)| (*name, &**value));
            (client.post_with(path, &fields), len)
        }
        Request::Empty(path) => {
            let stream = client.post_with(path, &[("content-length", "0")]);
            client.send(stream, b"", true);
            (stream, 0)
        }
        Request::With(method, path, fields) => (client.begin(method, path, fields, true), 0),
        Request::Promised(path, fields) => (client.post_with(path, fields), 0),
    };
    let mut answer = Answer::new();
    loop {
        for frame in client.next_unless_closed()? {
            let Some(seen) = frame.strip_prefix(&format!("{stream} ")) else {
                if frame.starts_with("goaway") {
                    return None;
                }
                continue;
            };
            if let Some(status) = seen.get(..3).and_then(|status| status.parse().ok())
                && !seen.contains("bytes")
            {
                answer.statuses.push(status);
                answer.is_filtered |= seen.contains("x-rule=seen by filters");
                let told = TOLD.iter();
                let told = told.filter(|(name, value)| seen.contains(&format!("{name}={value}")));
                answer.told.extend(told.map(|(name, _)| name));
                if status == 100 {
                    client.send(stream, &vec![b'x'; len], true);
                }
            }
            if seen.ends_with('.') {
                answer.body = String::from_utf8(client.content(stream).to_vec()).unwrap();
                return Some(answer);
            }
        }
    }
}

fn ask_http3(client: &mut http3_client::Client, request: Request<'_>) -> Option<Answer> {
    fn pseudo<'a>(method: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
        vec![
            (":method", method),
            (":scheme", "https"),
            (":authority", "a.test"),
            (":path", path),
        ]
    }
    if client.is_closed {
        return None;
    }
    let len;
    let mut body = None;
    let stream = match request {
        Request::Get(path) => client.ask(&pseudo("GET", path), true),
        Request::Connect(authority) => {
            client.ask(&[(":method", "CONNECT"), (":authority", authority)], false)
        }
        Request::Expect(path, count) => {
            len = count.to_string();
            body = Some(count);
            let mut head = pseudo("POST", path);
            head.extend([
                ("content-length", &*len),
                ("expect", "100-continue"),
                ("authorization", RIGHT),
            ]);
            client.ask(&head, false)
        }
        Request::Empty(path) => {
            let mut head = pseudo("POST", path);
            head.push(("content-length", "0"));
            client.ask(&head, true)
        }
        Request::With(method, path, fields) => {
            let mut head = pseudo(method, path);
            head.extend_from_slice(fields);
            client.ask(&head, true)
        }
        Request::Promised(path, fields) => {
            let mut head = pseudo("POST", path);
            head.extend_from_slice(fields);
            client.ask(&head, false)
        }
    };
    if let Some(count) = body {
        client.until(|client| !client.answer(stream).heads.is_empty());
        if client.answer(stream).statuses() == [100] {
            client.send(stream, &vec![b'x'; count], true);
        }
    }
    let is_whole = |answer: &http3_client::Answer| answer.has_ended || answer.reset.is_some();
    client.until(|client| is_whole(client.answer(stream)));
    let answer = client.answer(stream);
    if !answer.has_ended {
        return None;
    }
    let fields = answer.heads.last()?;
    Some(Answer {
        statuses: answer.statuses(),
        is_filtered: (fields.iter())
            .any(|(name, value)| name == "x-rule" && value == "seen by filters"),
        told: (TOLD.iter())
            .filter(|told| (fields.iter()).any(|(name, value)| (&**name, &**value) == **told))
            .map(|(name, _)| *name)
            .collect(),
        body: String::from_utf8(answer.content.clone()).unwrap(),
    })
}
