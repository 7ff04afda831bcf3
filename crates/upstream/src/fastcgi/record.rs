//! Records of FastCGI 1.0 (FastCGI Specification §3.3), of request number 1.

use bytes::{Buf, Bytes, BytesMut};

/// Length of a record's header.
const HEADER: usize = 8;
/// Most content of a record.
const MAX_CONTENT: usize = 0xffff;
/// The only request of a connection at a time.
const REQUEST: [u8; 2] = 1_u16.to_be_bytes();

const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;

/// Appends a record's header.
fn encode_header(kind: u8, len: u16, out: &mut BytesMut) {
    out.extend_from_slice(&[1, kind]);
    out.extend_from_slice(&REQUEST);
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
}

/// Appends records with `content`; none for empty content, which would end the stream.
fn encode_stream(kind: u8, content: &[u8], out: &mut BytesMut) {
    for piece in content.chunks(MAX_CONTENT) {
        encode_header(kind, u16::try_from(piece.len()).unwrap_or(u16::MAX), out);
        out.extend_from_slice(piece);
    }
}

/// Appends the start of a request for a responder, with its parameters as [`encode_parameter`] writes them.
pub(super) fn encode_begin(keeps_connection: bool, parameters: &[u8], out: &mut BytesMut) {
    encode_header(BEGIN_REQUEST, 8, out);
    out.extend_from_slice(&[0, 1, u8::from(keeps_connection), 0, 0, 0, 0, 0]);
    encode_stream(PARAMS, parameters, out);
    encode_header(PARAMS, 0, out);
}

/// Appends content of the request.
pub(super) fn encode_stdin(content: &[u8], out: &mut BytesMut) {
    encode_stream(STDIN, content, out);
}

/// Appends the end of the request.
pub(super) fn encode_stdin_end(out: &mut BytesMut) {
    encode_header(STDIN, 0, out);
}

/// Appends a name and the concatenation of `value` (§3.4).
pub fn encode_parameter(name: &[u8], value: &[&[u8]], out: &mut Vec<u8>) {
    let mut put_len = |len: usize| match u8::try_from(len) {
        Ok(len @ ..=127) => out.push(len),
        Ok(_) | Err(_) => {
            // A head is far shorter than 2^31 bytes.
            let len = u32::try_from(len).unwrap_or(u32::MAX) | 1 << 31;
            out.extend_from_slice(&len.to_be_bytes());
        }
    };
    put_len(name.len());
    put_len(value.iter().map(|piece| piece.len()).sum());
    out.extend_from_slice(name);
    for piece in value {
        out.extend_from_slice(piece);
    }
}

/// What a record of the application says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Content of the response, maybe a part of a record's.
    Stdout(Bytes),
    /// The whole content of a STDERR record.
    Stderr(Bytes),
    /// END_REQUEST.
    End,
    /// A record that an application must not send.
    Unexpected(u8),
    /// The rest has not arrived.
    NeedMore,
}

/// Reads the application's records.
#[derive(Debug, Default)]
pub(super) struct RecordReader {
    /// The rest of a STDOUT record.
    stdout: usize,
    /// Padding after it.
    padding: usize,
}

impl RecordReader {
    /// Takes the next part, with at most `max` bytes of content, out of `input`.
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
            let Some(&[_, kind, _, _, high, low, padding, _]) = input.first_chunk::<HEADER>()
            else {
                return Received::NeedMore;
            };
            let len = usize::from(u16::from_be_bytes([high, low]));
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
                        END_REQUEST => return Received::End,
                        _ if content.is_empty() => {}
                        _ => return Received::Stderr(content),
                    }
                }
                other => return Received::Unexpected(other),
            }
        }
    }

    /// Whether nothing follows END_REQUEST, so that the connection can carry another request.
    pub(super) fn is_clean(&self, input: &BytesMut) -> bool {
        input.len() == self.padding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut out = BytesMut::new();
        encode_begin(true, b"\x01\x01Ab", &mut out);
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
                        Received::End => ended = true,
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
