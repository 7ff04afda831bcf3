//! FastCGI applications whose responses a test chooses record by record.

use h2o_tests::{Backend, Response, Server, Talk, curl};

pub(crate) const STDOUT: u8 = 6;
pub(crate) const STDERR: u8 = 7;

/// Encodes a FastCGI record of this type that an application sends in answer to request 1.
pub(crate) fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let len = u16::try_from(content.len())
        .expect("the content of the record is shorter than 64 KiB")
        .to_be_bytes();
    [&[1, kind, 0, 1, len[0], len[1], 0, 0], content].concat()
}

/// Encodes the record END_REQUEST, which reports success.
pub(crate) fn end() -> Vec<u8> {
    record(3, &[0; 8])
}

/// Encodes a complete response: the text in STDOUT records, then END_REQUEST.
pub(crate) fn response(text: impl AsRef<[u8]>) -> Vec<u8> {
    let records = text
        .as_ref()
        .chunks(60_000)
        .map(|piece| record(STDOUT, piece));
    records.chain([end()]).flatten().collect()
}

/// Reads records until the empty one that ends the stream of this type. Returns the stream's content; records of other types are dropped.
pub(crate) fn read_stream(talk: &mut Talk, kind: u8) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    loop {
        let header = talk.read_exactly(8)?;
        let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let piece = talk.read_exactly(len + usize::from(header[6]))?;
        match len {
            0 if header[1] == kind => return Some(content),
            len if header[1] == kind => content.extend_from_slice(&piece[..len]),
            _ => {}
        }
    }
}

/// A request as the application receives it: the parameters as `NAME=VALUE` in the order sent, and the content.
pub(crate) struct Received {
    pub(crate) parameters: Vec<String>,
    pub(crate) content: Vec<u8>,
}

impl Received {
    pub(crate) fn read(talk: &mut Talk) -> Option<Self> {
        let encoded = read_stream(talk, 4)?;
        let mut rest = &encoded[..];
        let mut parameters = Vec::new();
        while !rest.is_empty() {
            let (name, value) = (take_length(&mut rest), take_length(&mut rest));
            let (pair, after) = rest.split_at(name + value);
            let (name, value) = pair.split_at(name);
            parameters.push(format!("{}={}", name.escape_ascii(), value.escape_ascii()));
            rest = after;
        }
        let content = read_stream(talk, 5)?;
        Some(Self {
            parameters,
            content,
        })
    }
}

fn take_length(rest: &mut &[u8]) -> usize {
    let is_long = rest[0] & 0x80 != 0;
    let (length, after) = rest.split_at(if is_long { 4 } else { 1 });
    *rest = after;
    let bytes = length
        .iter()
        .fold(0, |sum, &byte| sum << 8 | usize::from(byte));
    bytes & 0x7fff_ffff
}

/// A FastCGI application that answers each request with the records that `answer` returns.
pub(crate) fn application(
    answer: impl Fn(&Received) -> Vec<u8> + Send + Sync + 'static,
) -> Backend {
    Backend::start(move |talk| {
        while let Some(request) = Received::read(talk) {
            let is_last = !talk.send(answer(&request));
            if is_last {
                return;
            }
        }
    })
}

/// A FastCGI application that answers with the parameters of the request, each in a line, then an empty line and the content.
pub(crate) fn recorder() -> Backend {
    application(|request| {
        let lines = request.parameters.join("\n");
        let content = String::from_utf8_lossy(&request.content).into_owned();
        response(format!(
            "Content-Type: text/plain\r\n\r\n{lines}\n\n{content}"
        ))
    })
}

pub(crate) fn ask(server: &Server, target: &str, args: &[&str]) -> Response {
    let url = format!("http://127.0.0.1:{}{target}", server.port());
    curl(&[args, &[&*url]].concat())
}

pub(crate) fn body(response: &Response) -> String {
    String::from_utf8_lossy(&response.body).into_owned()
}

impl Received {
    /// The last value of the parameter `name`; empty if the request has no such parameter.
    pub(crate) fn value(&self, name: &str) -> &str {
        let mut values = self.parameters.iter().filter_map(|line| {
            let (found, value) = line.split_once('=')?;
            (found == name).then_some(value)
        });
        values.next_back().unwrap_or_default()
    }
}

/// Reads the next record and returns its type and content; `None` if the connection ends first.
pub(crate) fn read_record(talk: &mut Talk) -> Option<(u8, Vec<u8>)> {
    let header = talk.read_exactly(8)?;
    let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let mut piece = talk.read_exactly(len + usize::from(header[6]))?;
    piece.truncate(len);
    Some((header[1], piece))
}
