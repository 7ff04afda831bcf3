//! The answers, which are encoded when the program starts.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use h2o_http::{date, huffman, prefixed};
use rustc_hash::FxHashMap;

use crate::http1::Patterns;

/// Bytes of the largest file, which fits into one frame and one record.
const MAX_FILE_LEN: u64 = 16 * 1024;
/// Largest number of files.
const MAX_FILES: usize = 20_000;
/// Largest depth of directories.
const MAX_DEPTH: usize = 16;

const SERVER: &[u8] = b"h2o-floor";
const MOVED: &[u8] = b"<!DOCTYPE html><TITLE>Moved</TITLE><P>The document has moved \
    <A HREF=\"http://example.invalid/\">here</A>";
const MISSING: &[u8] = b"not found\n";

/// Length of a frame head of HTTP/2, whose last four bytes are the stream id.
pub(crate) const FRAME_HEAD_LEN: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The encoded answers to requests for one path.
pub(crate) struct Answer {
    /// Head and body for HTTP/1.
    pub(crate) http1: Vec<u8>,
    /// HEADERS and DATA frame for an HTTP/2 connection whose dynamic table has this answer's fields as its newest entries.
    pub(crate) http2: Vec<u8>,
    /// Where the stream ids of the two frames in `http2` are written: one offset for each.
    streams: [usize; 2],
    /// The field block that adds this answer's fields to the dynamic table.
    pub(crate) first: Vec<u8>,
    /// The HPACK byte that refers to `date` in the dynamic table after `first`; that of `server` is lower by one.
    pub(crate) date_index: u8,
    /// The beginning of the field block for a connection whose dynamic table has the fields of another answer. The indices of `date` and
    /// `server` follow it, then `other_fields`.
    pub(crate) other_status: Vec<u8>,
    pub(crate) other_fields: Vec<u8>,
    pub(crate) body: Vec<u8>,
    /// HEADERS and DATA frame for HTTP/3.
    pub(crate) http3: Bytes,
}

/// A field whose name is in the static table of HPACK.
struct Field {
    name: &'static str,
    index: usize,
    value: Vec<u8>,
}

impl Field {
    fn new(name: &'static str, index: usize, value: impl Into<Vec<u8>>) -> Self {
        let value = value.into();
        Self { name, index, value }
    }

    /// Appends the field as QPACK encodes it without a dynamic table (RFC 9204 §4.5).
    fn encode_qpack(&self, out: &mut Vec<u8>) {
        let index = match (self.name, self.value.as_slice()) {
            ("accept-ranges", b"bytes") => return prefixed::encode(0xc0, 6, 32, out),
            ("content-type", b"text/plain") => return prefixed::encode(0xc0, 6, 53, out),
            ("content-length", _) => 4,
            ("date", _) => 6,
            ("etag", _) => 7,
            ("last-modified", _) => 10,
            ("location", _) => 12,
            (":status", _) => 24,
            ("content-type", _) => 44,
            _ => 92,
        };
        prefixed::encode(0x50, 4, index, out);
        string(&self.value, out);
    }

    /// Appends the field for HPACK, so that the decoder adds it to the dynamic table (RFC 7541 §6.2.1), or does not (§6.2.2).
    fn encode(&self, enters: bool, out: &mut Vec<u8>) {
        let (first, bits) = if enters { (0x40, 6) } else { (0, 4) };
        prefixed::encode(first, bits, self.index, out);
        string(&self.value, out);
    }
}

/// Appends a string in the shorter of its two encodings (RFC 7541 §5.2).
fn string(text: &[u8], out: &mut Vec<u8>) {
    let len = huffman::encoded_len(text);
    if len < text.len() {
        prefixed::encode(0x80, 7, len, out);
        huffman::encode(text, out);
    } else {
        plain_string(text, out);
    }
}

fn plain_string(text: &[u8], out: &mut Vec<u8>) {
    prefixed::encode(0, 7, text.len(), out);
    out.extend_from_slice(text);
}

impl Answer {
    /// `own` has the fields other than `date`, `server` and `content-length`.
    fn new(status: (u16, &str), date: &[u8], own: Vec<Field>, body: Vec<u8>) -> Self {
        let (code, reason) = status;
        let mut common = vec![
            Field::new("date", 33, date),
            Field::new("server", 54, SERVER),
        ];
        let mut own = own;
        own.push(Field::new("content-length", 28, body.len().to_string()));

        let mut http1 =
            format!("HTTP/1.1 {code} {reason}\r\nconnection: keep-alive\r\n").into_bytes();
        for field in common.iter().chain(&own) {
            http1.extend_from_slice(field.name.as_bytes());
            http1.extend_from_slice(b": ");
            http1.extend_from_slice(&field.value);
            http1.extend_from_slice(b"\r\n");
        }
        http1.extend_from_slice(b"\r\n");
        http1.extend_from_slice(&body);

        let mut section = vec![0, 0];
        match code {
            200 => prefixed::encode(0xc0, 6, 25, &mut section),
            404 => prefixed::encode(0xc0, 6, 27, &mut section),
            _ => Field::new(":status", 8, code.to_string()).encode_qpack(&mut section),
        }
        for field in common.iter().chain(&own) {
            field.encode_qpack(&mut section);
        }
        let mut http3 = Vec::new();
        for (kind, payload) in [(1, &section), (0, &body)] {
            http3.push(kind);
            // The length as a variable-length integer of four bytes (RFC 9000 §16).
            let len = u32::try_from(payload.len()).unwrap_or(u32::MAX) & 0x3fff_ffff;
            http3.extend_from_slice(&(len | 0x8000_0000).to_be_bytes());
            http3.extend_from_slice(payload);
        }

        let (mut first, mut repeat, mut other_status) = (Vec::new(), Vec::new(), Vec::new());
        // For these statuses, the static table of HPACK has the complete field `:status`.
        let static_status = match code {
            200 => Some(0x88),
            404 => Some(0x8d),
            _ => None,
        };
        if let Some(byte) = static_status {
            first.push(byte);
            repeat.push(byte);
            other_status.push(byte);
        } else {
            let field = Field::new(":status", 8, code.to_string());
            field.encode(false, &mut other_status);
            common.insert(0, field);
        }
        let newest = common.len() + own.len() - 1;
        let mut date_index = 0;
        for (number, field) in common.iter().chain(&own).enumerate() {
            field.encode(true, &mut first);
            // The newest entry of the dynamic table has index 62 (RFC 7541 §2.3.3); there are never more than nine entries.
            let index = 0xbe + byte(newest - number);
            repeat.push(index);
            if field.name == "date" {
                date_index = index;
            }
        }
        let mut other_fields = Vec::new();
        for field in &own {
            field.encode(false, &mut other_fields);
        }

        let mut http2 = Vec::new();
        http2.extend_from_slice(&headers_frame(repeat.len()));
        http2.extend_from_slice(&repeat);
        let data_at = http2.len();
        http2.extend_from_slice(&data_frame(body.len()));
        http2.extend_from_slice(&body);
        Self {
            http1,
            http2,
            streams: [FRAME_HEAD_LEN - 4, data_at + FRAME_HEAD_LEN - 4],
            first,
            date_index,
            other_status,
            other_fields,
            body,
            http3: http3.into(),
        }
    }

    /// The frames of the answer on this stream, for a connection that has had this answer before.
    #[inline]
    pub(crate) fn on_stream(&mut self, stream: [u8; 4]) -> &[u8] {
        for at in self.streams {
            self.http2[at..at + 4].copy_from_slice(&stream);
        }
        &self.http2
    }
}

fn byte(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// The head of a HEADERS frame, with 0 in place of the stream id.
pub(crate) fn headers_frame(len: usize) -> [u8; FRAME_HEAD_LEN] {
    frame_head(len, HEADERS, END_HEADERS)
}

/// The head of a DATA frame, with 0 in place of the stream id.
pub(crate) fn data_frame(len: usize) -> [u8; FRAME_HEAD_LEN] {
    frame_head(len, DATA, END_STREAM)
}

fn frame_head(len: usize, kind: u8, flags: u8) -> [u8; FRAME_HEAD_LEN] {
    let [_, .., high, middle, low] = len.to_be_bytes();
    [high, middle, low, kind, flags, 0, 0, 0, 0]
}

/// All answers, by their paths.
pub(crate) struct Site {
    pub(crate) patterns: Patterns,
    answers: Vec<Answer>,
    by_path: FxHashMap<Vec<u8>, usize>,
    /// Answers by path, as an HPACK string with its length: each path is there with and without Huffman code.
    by_string: FxHashMap<Vec<u8>, usize>,
}

/// Number of the answer for paths that do not exist.
const MISSING_NUMBER: usize = 0;

impl Site {
    /// Reads all files below `root` and encodes the answers.
    pub(crate) fn load(root: &Path) -> Result<Self, String> {
        #[expect(
            clippy::disallowed_methods,
            reason = "only the start of the program reads the clock, for the Date field"
        )]
        let date = date::format(seconds(SystemTime::now()));
        let html = || Field::new("content-type", 31, "text/html; charset=utf-8");
        let mut site = Self {
            patterns: Patterns::default(),
            answers: vec![Answer::new(
                (404, "Not Found"),
                &date,
                vec![html()],
                MISSING.to_vec(),
            )],
            by_path: FxHashMap::default(),
            by_string: FxHashMap::default(),
        };
        let location = Field::new("location", 46, "http://example.invalid/");
        let moved = Answer::new(
            (301, "Moved Permanently"),
            &date,
            vec![location, html()],
            MOVED.to_vec(),
        );
        site.add(b"/moved", moved);
        site.add_directory(root, "", &date, MAX_DEPTH)
            .map_err(|error| format!("{}: {error}", root.display()))?;
        Ok(site)
    }

    fn add_directory(
        &mut self,
        directory: &Path,
        prefix: &str,
        date: &[u8],
        depth: usize,
    ) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let file_name = entry.file_name();
            let Some(name) = file_name.to_str() else {
                continue;
            };
            let path = format!("{prefix}/{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() && depth > 0 {
                self.add_directory(&entry.path(), &path, date, depth - 1)?;
            } else if kind.is_file() && entry.metadata()?.len() <= MAX_FILE_LEN {
                if self.answers.len() > MAX_FILES {
                    return Err(io::Error::other(format!("more than {MAX_FILES} files")));
                }
                self.add(path.as_bytes(), file(&entry, date)?);
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &[u8], answer: Answer) {
        let number = self.answers.len();
        self.answers.push(answer);
        self.by_path.insert(path.to_vec(), number);
        let mut plain = Vec::new();
        plain_string(path, &mut plain);
        self.by_string.insert(plain, number);
        let mut shorter = Vec::new();
        string(path, &mut shorter);
        self.by_string.insert(shorter, number);
    }

    #[inline]
    pub(crate) fn by_path(&self, path: &[u8]) -> &Answer {
        &self.answers[self.by_path.get(path).copied().unwrap_or(MISSING_NUMBER)]
    }

    /// Number of the answer for a path as an HPACK string.
    #[inline]
    pub(crate) fn by_string(&self, string: &[u8]) -> usize {
        self.by_string
            .get(string)
            .copied()
            .unwrap_or(MISSING_NUMBER)
    }

    #[inline]
    pub(crate) fn answer(&mut self, number: usize) -> &mut Answer {
        &mut self.answers[number]
    }
}

fn file(entry: &fs::DirEntry, date: &[u8]) -> io::Result<Answer> {
    let body = fs::read(entry.path())?;
    let modified = entry.metadata()?.modified()?;
    let seconds = seconds(modified);
    let content_type = match entry
        .path()
        .extension()
        .and_then(|extension| extension.to_str())
    {
        Some("txt") => "text/plain",
        Some("html") => "text/html",
        _ => "application/octet-stream",
    };
    let own = vec![
        Field::new("content-type", 31, content_type),
        Field::new("last-modified", 44, date::format(seconds)),
        Field::new("etag", 34, format!("\"{seconds:x}-{:x}\"", body.len())),
        Field::new("accept-ranges", 18, "bytes"),
    ];
    Ok(Answer::new((200, "OK"), date, own, body))
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0))
}
