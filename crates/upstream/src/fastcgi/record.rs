//! Records of FastCGI 1.0 (FastCGI Specification §3.3). All have request number 1, since a connection carries one request at a
//! time.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Length in bytes of a record's header.
const HEADER: usize = 8;
/// Limit in bytes of the content of a record.
const MAX_CONTENT: usize = 0xffff;

/// Types of records.
pub mod kind {
    /// The type FCGI_BEGIN_REQUEST: the server begins a request.
    pub const BEGIN_REQUEST: u8 = 1;
    /// The type FCGI_END_REQUEST: the application has ended a request.
    pub const END_REQUEST: u8 = 3;
    /// The type FCGI_PARAMS: parameters of a request.
    pub const PARAMS: u8 = 4;
    /// The type FCGI_STDIN: content of a request.
    pub const STDIN: u8 = 5;
    /// The type FCGI_STDOUT: header block and content of a response.
    pub const STDOUT: u8 = 6;
    /// The type FCGI_STDERR: messages for the error log.
    pub const STDERR: u8 = 7;
}

/// FCGI_OVERLOADED: the application rejects a new request, because it is out of some resource.
const OVERLOADED: u8 = 2;

use kind::{BEGIN_REQUEST, END_REQUEST, PARAMS, STDERR, STDIN, STDOUT};

/// The header of a record of version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// The type of the record: a constant of [`kind`], or another number.
    pub kind: u8,
    /// The number of the request that the record belongs to.
    pub request: u16,
    /// Length in bytes of the content.
    pub content: u16,
    /// Length in bytes of the padding after the content.
    pub padding: u8,
}

impl RecordHeader {
    /// Length in bytes of a header.
    pub const LEN: usize = HEADER;

    /// Encodes the header as it is sent.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER] {
        let ([request, request_low], [content, content_low]) =
            (self.request.to_be_bytes(), self.content.to_be_bytes());
        [
            1,
            self.kind,
            request,
            request_low,
            content,
            content_low,
            self.padding,
            0,
        ]
    }

    /// Parses a header. The version in it is not checked.
    #[must_use]
    pub fn parse(
        [
            _,
            kind,
            request,
            request_low,
            content,
            content_low,
            padding,
            _,
        ]: [u8; HEADER],
    ) -> Self {
        Self {
            kind,
            request: u16::from_be_bytes([request, request_low]),
            content: u16::from_be_bytes([content, content_low]),
            padding,
        }
    }
}

/// The header of a record, without padding, of the only request of a connection.
fn header(kind: u8, len: u16) -> [u8; HEADER] {
    let header = RecordHeader {
        kind,
        request: 1,
        content: len,
        padding: 0,
    };
    header.encode()
}

/// Appends records with `content`; no record for empty content, which would end the stream.
fn encode_stream(kind: u8, content: &[u8], out: &mut impl BufMut) {
    for piece in content.chunks(MAX_CONTENT) {
        out.put_slice(&header(
            kind,
            u16::try_from(piece.len()).unwrap_or(u16::MAX),
        ));
        out.put_slice(piece);
    }
}

/// The parameters of a request, while they are being written: the functions of this module append to `encoded`. Their memory becomes that
/// of the [`RequestRecords`].
pub struct Parameters {
    /// The parameters, as [`encode_parameter`] writes them, after [`Parameters::BEFORE`] bytes of space for what is sent before them.
    pub encoded: Vec<u8>,
}

impl Parameters {
    /// Number of bytes that are sent before the parameters: the record BEGIN_REQUEST, and the header of the record of the parameters.
    const BEFORE: usize = 3 * HEADER;

    /// An empty list of parameters, with memory for parameters of `len` bytes.
    #[must_use]
    pub fn with_capacity(len: usize) -> Self {
        let mut encoded = Vec::with_capacity(Self::BEFORE + len + RequestRecords::AFTER);
        encoded.resize(Self::BEFORE, 0);
        Self { encoded }
    }

    /// The parameters that have been written.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.encoded.get(Self::BEFORE..).unwrap_or_default()
    }
}

/// The records of a request to an application in the role of a responder, except for its content. The memory is shared by the attempts to
/// send the request.
pub struct RequestRecords(Bytes);

impl RequestRecords {
    /// Number of bytes that are sent after the parameters: the records that end parameters and content.
    const AFTER: usize = 2 * HEADER;

    /// Makes the records of a request with these parameters. `keeps_connection` asks the application to leave the connection open after its
    /// response.
    #[must_use]
    pub fn new(mut parameters: Parameters, keeps_connection: bool) -> Self {
        let begin = [0, 1, u8::from(keeps_connection), 0, 0, 0, 0, 0];
        match u16::try_from(parameters.as_bytes().len()) {
            Ok(len @ 1..) => {
                let before = [header(BEGIN_REQUEST, 8), begin, header(PARAMS, len)];
                parameters.encoded[..Parameters::BEFORE].copy_from_slice(before.as_flattened());
            }
            Ok(0) | Err(_) => {
                let mut out = [header(BEGIN_REQUEST, 8), begin].concat();
                encode_stream(PARAMS, parameters.as_bytes(), &mut out);
                parameters.encoded = out;
            }
        }
        let after = [header(PARAMS, 0), header(STDIN, 0)];
        (parameters.encoded).extend_from_slice(after.as_flattened());
        Self(parameters.encoded.into())
    }

    /// The whole of a request without content.
    pub(super) const fn without_content(&self) -> &Bytes {
        &self.0
    }

    /// What is sent before the content of a request.
    pub(super) fn before_content(&self) -> &[u8] {
        self.0.strip_suffix(&header(STDIN, 0)).unwrap_or_default()
    }
}

/// Appends records with content of the request.
pub(super) fn encode_stdin(content: &[u8], out: &mut BytesMut) {
    encode_stream(STDIN, content, out);
}

/// Appends the record that ends the content of the request.
pub(super) fn encode_stdin_end(out: &mut BytesMut) {
    out.extend_from_slice(&header(STDIN, 0));
}

/// Appends a parameter: a name, and the concatenation of the parts of `value` (FastCGI Specification §3.4).
pub fn encode_parameter(name: &[u8], value: &[&[u8]], out: &mut Vec<u8>) {
    encode_len(name.len(), out);
    encode_len(value.iter().map(|piece| piece.len()).sum(), out);
    out.extend_from_slice(name);
    for piece in value {
        out.extend_from_slice(piece);
    }
}

/// Appends a parameter whose value is in one piece.
#[expect(
    clippy::inline_always,
    reason = "most callers have a constant name, whose length and bytes then are constants as well"
)]
#[inline(always)]
pub fn encode_pair(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.reserve(2 * LONGEST_LEN + name.len() + value.len());
    match (u8::try_from(name.len()), u8::try_from(value.len())) {
        (Ok(name @ ..=127), Ok(value @ ..=127)) => out.extend_from_slice(&[name, value]),
        _ => {
            encode_len(name.len(), out);
            encode_len(value.len(), out);
        }
    }
    out.extend_from_slice(name);
    out.extend_from_slice(value);
}

/// Appends a header field, whose name is in lower case, as a parameter: `user-agent` becomes `HTTP_USER_AGENT`.
pub fn encode_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    const PREFIX: &[u8] = b"HTTP_";
    out.reserve(2 * LONGEST_LEN + PREFIX.len() + name.len() + value.len());
    encode_len(PREFIX.len() + name.len(), out);
    encode_len(value.len(), out);
    out.extend_from_slice(PREFIX);
    out.extend(name.iter().map(|&byte| match byte {
        b'-' => b'_',
        byte => byte.to_ascii_uppercase(),
    }));
    out.extend_from_slice(value);
}

/// Number of bytes of the longer form of a length.
const LONGEST_LEN: usize = 4;

/// Appends the length in bytes of a name or value.
#[inline]
fn encode_len(len: usize, out: &mut Vec<u8>) {
    match u8::try_from(len) {
        Ok(len @ ..=127) => out.push(len),
        Ok(_) | Err(_) => {
            // A request head is far shorter than 2^31 bytes, so the conversion cannot fail.
            let len = u32::try_from(len).unwrap_or(u32::MAX) | 1 << 31;
            out.extend_from_slice(&len.to_be_bytes());
        }
    }
}

/// Reads parameters (names and values) as [`encode_parameter`] writes them. `None` if they are malformed.
#[must_use]
pub fn decode_parameters(mut encoded: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    fn take_len(encoded: &mut &[u8]) -> Option<usize> {
        let (&first, rest) = encoded.split_first()?;
        if first < 0x80 {
            *encoded = rest;
            return Some(first.into());
        }
        let (long, rest) = encoded.split_first_chunk()?;
        *encoded = rest;
        usize::try_from(u32::from_be_bytes(*long) & !(1 << 31)).ok()
    }
    let mut parameters = Vec::new();
    while !encoded.is_empty() {
        let (name, value) = (take_len(&mut encoded)?, take_len(&mut encoded)?);
        let (name, rest) = encoded.split_at_checked(name)?;
        let (value, rest) = rest.split_at_checked(value)?;
        parameters.push((name, value));
        encoded = rest;
    }
    Some(parameters)
}

/// What the next record of the application, or a part of it, contains.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Content of the response: the content of a STDOUT record, or a part of it.
    Stdout(Bytes),
    /// The whole content of a STDERR record.
    Stderr(Bytes),
    /// An END_REQUEST record; `is_overloaded` says whether its status is FCGI_OVERLOADED.
    End { is_overloaded: bool },
    /// A record of this type, which an application must not send.
    Unexpected(u8),
    /// The record has not arrived completely.
    NeedMore,
}

/// The content of a complete response that is all of `received`: one STDOUT record, the record that ends the content, which may be missing,
/// and END_REQUEST with the status that means success. `None` if `received` is anything else, which is then read record by record.
pub(super) fn whole_response(received: &[u8]) -> Option<&[u8]> {
    let (content, rest) = split_record(received, STDOUT)?;
    let rest = match split_record(rest, STDOUT) {
        Some((b"", rest)) => rest,
        Some(_) => return None,
        None => rest,
    };
    match split_record(rest, END_REQUEST)? {
        ([_, _, _, _, 0, ..], b"") => Some(content),
        _ => None,
    }
}

/// Splits off a record of this type; returns its content, and what follows the record.
fn split_record(received: &[u8], kind: u8) -> Option<(&[u8], &[u8])> {
    let (header, rest) = received.split_first_chunk()?;
    let header = RecordHeader::parse(*header);
    if header.kind != kind {
        return None;
    }
    let (content, rest) = rest.split_at_checked(header.content.into())?;
    Some((content, rest.get(usize::from(header.padding)..)?))
}

/// Reads the records that an application sends.
#[derive(Debug, Default)]
pub(super) struct RecordReader {
    /// Number of content bytes that are still to come of the current STDOUT record.
    stdout: usize,
    /// Number of padding bytes that follow the content of the current record.
    padding: usize,
}

impl RecordReader {
    /// Takes the next record, or at most `max` content bytes of a STDOUT record, out of `input`.
    pub(super) fn next(&mut self, input: &mut BytesMut, max: usize) -> Received {
        loop {
            if self.stdout > 0 {
                if input.is_empty() {
                    return Received::NeedMore;
                }
                let len = self.stdout.min(input.len()).min(max);
                self.stdout -= len;
                return Received::Stdout(input.split_to(len).freeze());
            }
            let skipped = self.padding.min(input.len());
            input.advance(skipped);
            self.padding -= skipped;
            let Some(header) = input.first_chunk().copied().map(RecordHeader::parse) else {
                return Received::NeedMore;
            };
            let RecordHeader { kind, padding, .. } = header;
            let len = usize::from(header.content);
            match kind {
                STDOUT => {
                    input.advance(HEADER);
                    (self.stdout, self.padding) = (len, usize::from(padding));
                }
                STDERR | END_REQUEST => {
                    if input.len() < HEADER + len {
                        return Received::NeedMore;
                    }
                    input.advance(HEADER);
                    let content = input.split_to(len).freeze();
                    self.padding = usize::from(padding);
                    match kind {
                        END_REQUEST => {
                            let is_overloaded = content.get(4) == Some(&OVERLOADED);
                            return Received::End { is_overloaded };
                        }
                        _ if content.is_empty() => {}
                        _ => return Received::Stderr(content),
                    }
                }
                other => return Received::Unexpected(other),
            }
        }
    }

    /// Whether all records that have begun are complete, if nothing follows `input`.
    pub(super) fn is_between_records(&self, input: &BytesMut) -> bool {
        self.stdout == 0 && self.padding == 0 && input.is_empty()
    }

    /// Whether `input` has nothing but padding after END_REQUEST, so that the connection can carry another request.
    pub(super) fn is_clean(&self, input: &BytesMut) -> bool {
        input.len() == self.padding
    }
}

/// Entry points for fuzzing FastCGI records.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use bytes::{Bytes, BytesMut};

    use super::{Received, RecordReader, decode_parameters, encode_parameter, whole_response};

    /// Fuzz target: parses `input` as the records of an application, once whole and once in pieces of the size that its
    /// first byte gives, and compares the results.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn fastcgi_records(input: &[u8]) {
        let Some((&size, sent)) = input.split_first() else {
            return;
        };
        let size = usize::from(size).max(1);
        let whole = read([sent].into_iter(), usize::MAX);
        if let Some(content) = whole_response(sent) {
            let end = Received::End {
                is_overloaded: false,
            };
            assert_eq!(whole, (content.to_vec(), Vec::new(), end));
        }
        assert_eq!(read(sent.chunks(size), size), whole);
        if let Some(parameters) = decode_parameters(sent) {
            let mut encoded = Vec::new();
            for &(name, value) in &parameters {
                encode_parameter(name, &[value], &mut encoded);
            }
            // Encoding the parameters again may give fewer bytes, since a sender may use the four-byte form of a length where one
            // byte suffices.
            assert!(encoded.len() <= sent.len());
            assert_eq!(decode_parameters(&encoded), Some(parameters));
        }
    }

    /// Parses pieces of a FastCGI response. Returns the content of the STDOUT records, the STDERR messages, and the last result of
    /// the reader.
    fn read<'a>(
        pieces: impl Iterator<Item = &'a [u8]>,
        max: usize,
    ) -> (Vec<u8>, Vec<Bytes>, Received) {
        let mut reader = RecordReader::default();
        let (mut input, mut stdout, mut stderr) = (BytesMut::new(), Vec::new(), Vec::new());
        for piece in pieces {
            input.extend_from_slice(piece);
            loop {
                match reader.next(&mut input, max) {
                    Received::Stdout(content) => {
                        assert!((1..=max).contains(&content.len()));
                        stdout.extend_from_slice(&content);
                    }
                    Received::Stderr(content) => stderr.push(content),
                    Received::NeedMore => break,
                    end @ (Received::End { .. } | Received::Unexpected(_)) => {
                        return (stdout, stderr, end);
                    }
                }
            }
        }
        (stdout, stderr, Received::NeedMore)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_as_they_were_written() {
        let long = vec![b'v'; 70_000];
        let pairs: [(&[u8], &[u8]); 4] = [
            (b"A", b""),
            (b"", b"x"),
            (b"LONG", &long),
            (&long[..128], b"y"),
        ];
        let mut encoded = Vec::new();
        for (name, value) in pairs {
            encode_parameter(name, &[value], &mut encoded);
        }
        assert_eq!(decode_parameters(&encoded).unwrap(), pairs);
        for cut in [1, 2, 4, 5, encoded.len() - 1] {
            assert_eq!(decode_parameters(&encoded[..cut]), None, "{cut}");
        }
    }

    fn parameter(name: &[u8], value: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        encode_parameter(name, value, &mut out);
        out
    }

    #[test]
    fn lengths_of_parameters_have_one_or_four_bytes() {
        assert_eq!(parameter(b"A", &[b"b", b"c"]), b"\x01\x02Abc");
        assert_eq!(parameter(b"A", &[]), b"\x01\x00A");
        let long = [b'x'; 128];
        assert!(parameter(b"A", &[&long[..127]]).starts_with(b"\x01\x7fAx"));
        assert!(parameter(b"A", &[&long]).starts_with(b"\x01\x80\0\0\x80Ax"));
    }

    #[test]
    fn a_request_begins_with_its_parameters() {
        let records = |parameters: &[u8], keeps_connection| {
            let mut written = Parameters::with_capacity(9);
            written.encoded.extend_from_slice(parameters);
            RequestRecords::new(written, keeps_connection)
        };
        let short = records(b"\x01\x01Ab", true);
        let mut out = BytesMut::from(short.before_content());
        encode_stdin_end(&mut out);
        assert_eq!(out, short.without_content());
        let mut out = BytesMut::from(short.before_content());
        encode_stdin(b"", &mut out);
        encode_stdin(b"hi", &mut out);
        encode_stdin_end(&mut out);
        let want: &[u8] = b"\x01\x01\0\x01\0\x08\0\0\0\x01\x01\0\0\0\0\0\
            \x01\x04\0\x01\0\x04\0\0\x01\x01Ab\x01\x04\0\x01\0\0\0\0\
            \x01\x05\0\x01\0\x02\0\0hi\x01\x05\0\x01\0\0\0\0";
        assert_eq!(out, want);
        let mut out = BytesMut::new();
        encode_stdin(&[b'x'; 65_536], &mut out);
        assert_eq!(
            (out.len(), &out[8 + 65_535..8 + 65_535 + 8]),
            (65_536 + 16, &b"\x01\x05\0\x01\0\x01\0\0"[..])
        );
    }

    #[test]
    fn long_parameters_take_several_records() {
        let mut written = Parameters::with_capacity(0);
        encode_parameter(b"LONG", &[&[b'x'; MAX_CONTENT]], &mut written.encoded);
        let encoded = written.as_bytes().to_vec();
        let records = RequestRecords::new(written, false);
        let mut want = b"\x01\x01\0\x01\0\x08\0\0\0\x01\0\0\0\0\0\0".to_vec();
        for piece in [&encoded[..MAX_CONTENT], &encoded[MAX_CONTENT..], b""] {
            let len = u16::try_from(piece.len()).expect("a record has at most 65,535 bytes");
            want.extend_from_slice(b"\x01\x04\0\x01");
            want.extend_from_slice(&len.to_be_bytes());
            want.extend_from_slice(b"\0\0");
            want.extend_from_slice(piece);
        }
        assert_eq!(records.before_content(), want);
        want.extend_from_slice(b"\x01\x05\0\x01\0\0\0\0");
        assert_eq!(**records.without_content(), want[..]);
    }

    #[test]
    fn a_response_that_came_at_once_is_recognised() {
        let stdout: &[u8] = b"\x01\x06\0\x01\0\x03\x02\0abc??";
        let stdout_end: &[u8] = b"\x01\x06\0\x01\0\0\0\0";
        let end: &[u8] = b"\x01\x03\0\x01\0\x08\x01\0\0\0\0\x07\0\0\0\0?";
        let overloaded: &[u8] = b"\x01\x03\0\x01\0\x08\0\0\0\0\0\0\x02\0\0\0";
        let stderr: &[u8] = b"\x01\x07\0\x01\0\x04\0\0oops";
        let cases: &[(&[&[u8]], bool)] = &[
            (&[stdout, stdout_end, end], true),
            (&[stdout, end], true),
            (&[stdout, stdout_end], false),
            (&[stdout, stdout, end], false),
            (&[stdout, stdout_end, overloaded], false),
            (&[stdout, stderr, end], false),
            (&[stderr, stdout, end], false),
            (&[stdout, end, b"?"], false),
            (&[end], false),
        ];
        for (records, is_whole) in cases {
            let wire = records.concat();
            let want = is_whole.then_some(&b"abc"[..]);
            assert_eq!(whole_response(&wire), want, "{}", wire.escape_ascii());
            for len in 0..wire.len() {
                let begun = whole_response(&wire[..len]);
                // Without its last byte, the last of these cases is a complete response.
                let is_end = wire.ends_with(b"??") && len == wire.len() - 1;
                assert_eq!(begun.is_some(), is_end, "{len} of {}", wire.escape_ascii());
            }
        }
    }

    #[test]
    fn records_are_read_however_they_are_split() {
        let wire: &[u8] = b"\x01\x06\0\x01\0\x03\x02\0abc??\x01\x07\0\x01\0\x04\x01\0oops?\x01\x07\0\x01\0\0\0\0\
            \x01\x06\0\x01\0\x01\0\0d\x01\x06\0\x01\0\0\0\0\x01\x03\0\x01\0\x08\x01\0\0\0\0\0\0\0\0\0?";
        for size in 1..=wire.len() {
            let (mut reader, mut input) = (RecordReader::default(), BytesMut::new());
            let (mut stdout, mut stderr, mut ended) = (Vec::new(), Vec::new(), false);
            for piece in wire.chunks(size) {
                input.extend_from_slice(piece);
                loop {
                    match reader.next(&mut input, 2) {
                        Received::Stdout(part) => stdout.extend_from_slice(&part),
                        Received::Stderr(text) => stderr.push(text),
                        Received::End { .. } => ended = true,
                        Received::Unexpected(kind) => panic!("{kind}"),
                        Received::NeedMore => break,
                    }
                }
            }
            assert_eq!(stdout, b"abcd");
            assert_eq!(stderr, ["oops"]);
            assert!(ended, "{size}");
        }
        let mut reader = RecordReader::default();
        let mut input = BytesMut::from(&b"\x01\x09\0\x01\0\0\0\0"[..]);
        assert_eq!(reader.next(&mut input, 9), Received::Unexpected(9));
    }
}
