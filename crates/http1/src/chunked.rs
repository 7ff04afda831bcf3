//! A reader of bodies in chunked coding (RFC 9112 §7.1).

use h2o_http::is_token_byte;

use crate::ChunkError;

/// Limit of the extensions of one chunk in bytes. Extensions have no use in practice, but were a way to make servers read
/// without end (as in CVE-2023-39326).
pub const MAX_CHUNK_EXTENSION: usize = 4096;
/// A body is refused if its chunk framing has at least this many bytes and makes up more than three quarters of the bytes
/// received: one byte per chunk costs the server far more than the client. H2O compatibility: H2O refuses such bodies.
pub const MAX_CHUNK_FRAMING: u64 = 100 * 1024;
/// Maximum length of a trailer section in bytes.
pub const MAX_TRAILER_SECTION: usize = 8192;
/// Maximum number of fields in a trailer section.
pub const MAX_TRAILER_FIELDS: usize = 100;

/// Decodes a whole body in chunked coding. Trailers are dropped.
///
/// # Errors
/// Returns an error if the body is not valid, or ends before or after the end of `encoded`.
pub fn decode_chunked(encoded: &[u8]) -> Result<Vec<u8>, ChunkError> {
    let mut reader = ChunkedReader::new();
    let mut content = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    loop {
        match reader.read(rest, content.len() as u64)? {
            Chunked::Data { skip, len } => {
                let end = skip + len;
                content.extend_from_slice(&rest[skip..end]);
                rest = &rest[end..];
            }
            Chunked::End { taken } if taken == rest.len() => return Ok(content),
            Chunked::End { .. } | Chunked::NeedMore => return Err(ChunkError::DataUnterminated),
        }
    }
}

/// The state of the reader: the element of the grammar of chunked coding that the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    /// The next byte may belong to `chunk-size`. The fields hold the number of digits read so far, and their value.
    Size {
        digits: u8,
        size: u64,
    },
    /// The next byte may be a blank after the size of a chunk. Only an extension or the line end may follow such blanks
    /// (RFC 9112 §7.1.1).
    SizeBlank {
        size: u64,
        len: u16,
    },
    /// The next byte may belong to `chunk-ext`, whose semicolon has been read.
    Extension {
        size: u64,
        len: u16,
    },
    /// The next byte must be the line feed that ends the line with the size of a chunk.
    SizeLineFeed {
        size: u64,
    },
    /// The next byte belongs to `chunk-data`.
    Data {
        left: u64,
    },
    /// The next byte must be the carriage return after the data of a chunk.
    DataCarriageReturn,
    DataLineFeed,
    /// The next byte starts a line after the last chunk: either a trailer field or the empty line that ends the body.
    TrailerStart,
    TrailerName,
    TrailerValue,
    /// The next byte must be the line feed that ends a trailer field.
    TrailerLineFeed,
    /// The next byte must be the line feed of the empty line that ends the body.
    EndLineFeed,
    End,
}

/// The reader of one chunked body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkedReader {
    state: ChunkState,
    /// Number of bytes of the trailer section so far.
    trailer_len: u16,
    trailer_fields: u8,
    /// Number of bytes of the body so far that are not content.
    framing: u64,
}

/// The result of one call to [`ChunkedReader::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunked {
    /// The whole input was framing; more is needed.
    NeedMore,
    /// The input begins with `skip` bytes of framing, followed by `len` bytes of content.
    Data { skip: usize, len: usize },
    /// The body ends after `taken` bytes of the input.
    End { taken: usize },
}

impl ChunkedReader {
    pub(crate) const fn new() -> Self {
        Self {
            state: ChunkState::Size { digits: 0, size: 0 },
            trailer_len: 0,
            trailer_fields: 0,
            framing: 0,
        }
    }

    /// Reads `input` up to the end of the next run of content. `content` is the number of content bytes received before
    /// this call.
    pub(crate) fn read(&mut self, input: &[u8], content: u64) -> Result<Chunked, ChunkError> {
        let mut at = 0;
        loop {
            if let (ChunkState::Data { left }, Some(_)) = (self.state, input.get(at)) {
                self.count_framing(at, content)?;
                let here = input.len() - at;
                let len = usize::try_from(left).map_or(here, |left| left.min(here));
                self.state = match left - len as u64 {
                    0 => ChunkState::DataCarriageReturn,
                    left => ChunkState::Data { left },
                };
                return Ok(Chunked::Data { skip: at, len });
            }
            if self.state == ChunkState::End {
                self.count_framing(at, content)?;
                return Ok(Chunked::End { taken: at });
            }
            let Some(&byte) = input.get(at) else {
                self.count_framing(at, content)?;
                return Ok(Chunked::NeedMore);
            };
            self.state = self.on_framing(byte)?;
            at += 1;
        }
    }

    /// Bytes that are still to come of the current chunk's data; 0 if the next byte is framing.
    pub(crate) const fn data_left(&self) -> u64 {
        if let ChunkState::Data { left } = self.state {
            left
        } else {
            0
        }
    }

    /// Whether the next byte begins a chunk, or belongs to the line end after a chunk's data or to the trailers.
    pub(crate) const fn is_between_chunks(&self) -> bool {
        match self.state {
            ChunkState::Size { digits, .. } => digits == 0,
            ChunkState::TrailerStart
            | ChunkState::TrailerName
            | ChunkState::TrailerValue
            | ChunkState::TrailerLineFeed
            | ChunkState::EndLineFeed
            | ChunkState::End
            | ChunkState::DataCarriageReturn
            | ChunkState::DataLineFeed => true,
            ChunkState::SizeBlank { .. }
            | ChunkState::Extension { .. }
            | ChunkState::SizeLineFeed { .. }
            | ChunkState::Data { .. } => false,
        }
    }

    fn count_framing(&mut self, len: usize, content: u64) -> Result<(), ChunkError> {
        self.framing = self.framing.saturating_add(len as u64);
        let received = self.framing.saturating_add(content);
        let excessive = self.framing.saturating_mul(4) > received.saturating_mul(3);
        if self.framing >= MAX_CHUNK_FRAMING && excessive {
            return Err(ChunkError::FramingExcessive);
        }
        Ok(())
    }

    /// The state of the reader after the framing byte `byte`.
    #[inline]
    fn on_framing(&mut self, byte: u8) -> Result<ChunkState, ChunkError> {
        match self.state {
            ChunkState::Size { digits, size } => on_size(byte, digits, size),
            ChunkState::SizeBlank { size, len } => match byte {
                b'\r' => Ok(ChunkState::SizeLineFeed { size }),
                b';' => Ok(ChunkState::Extension { size, len }),
                b' ' | b'\t' => lengthen(len).map(|len| ChunkState::SizeBlank { size, len }),
                _ => Err(ChunkError::SizeInvalid),
            },
            ChunkState::Extension { size, len } => match byte {
                b'\r' => Ok(ChunkState::SizeLineFeed { size }),
                _ if is_text(byte) => lengthen(len).map(|len| ChunkState::Extension { size, len }),
                _ => Err(ChunkError::ExtensionInvalid),
            },
            ChunkState::SizeLineFeed { size } => match (byte, size) {
                (b'\n', 0) => Ok(ChunkState::TrailerStart),
                (b'\n', left) => Ok(ChunkState::Data { left }),
                _ => Err(ChunkError::ExtensionInvalid),
            },
            ChunkState::DataCarriageReturn if byte == b'\r' => Ok(ChunkState::DataLineFeed),
            ChunkState::DataLineFeed if byte == b'\n' => {
                Ok(ChunkState::Size { digits: 0, size: 0 })
            }
            ChunkState::DataCarriageReturn | ChunkState::DataLineFeed => {
                Err(ChunkError::DataUnterminated)
            }
            ChunkState::TrailerStart
            | ChunkState::TrailerName
            | ChunkState::TrailerValue
            | ChunkState::TrailerLineFeed
            | ChunkState::EndLineFeed => self.on_trailer(byte),
            ChunkState::Data { .. } | ChunkState::End => Ok(self.state), // These bytes are not framing; `read` handles them.
        }
    }

    fn on_trailer(&mut self, byte: u8) -> Result<ChunkState, ChunkError> {
        self.trailer_len += 1;
        if usize::from(self.trailer_len) > MAX_TRAILER_SECTION {
            return Err(ChunkError::TrailersTooLarge);
        }
        match self.state {
            ChunkState::TrailerStart => match byte {
                b'\r' => Ok(ChunkState::EndLineFeed),
                // A bare line feed ends the body, too; the server drops all trailers. H2O compatibility: H2O accepts bare
                // line feeds in trailers.
                b'\n' => Ok(ChunkState::End),
                _ if is_token_byte(byte) => self.on_trailer_field(),
                _ => Err(ChunkError::TrailerInvalid),
            },
            ChunkState::TrailerName => match byte {
                b':' => Ok(ChunkState::TrailerValue),
                _ if is_token_byte(byte) => Ok(ChunkState::TrailerName),
                _ => Err(ChunkError::TrailerInvalid),
            },
            ChunkState::TrailerValue => match byte {
                b'\r' => Ok(ChunkState::TrailerLineFeed),
                b'\n' => Ok(ChunkState::TrailerStart),
                _ if is_text(byte) => Ok(ChunkState::TrailerValue),
                _ => Err(ChunkError::TrailerInvalid),
            },
            ChunkState::TrailerLineFeed if byte == b'\n' => Ok(ChunkState::TrailerStart),
            _ if byte == b'\n' => Ok(ChunkState::End),
            _ => Err(ChunkError::TrailerInvalid),
        }
    }

    fn on_trailer_field(&mut self) -> Result<ChunkState, ChunkError> {
        self.trailer_fields += 1;
        if usize::from(self.trailer_fields) > MAX_TRAILER_FIELDS {
            return Err(ChunkError::TrailersTooLarge);
        }
        Ok(ChunkState::TrailerName)
    }
}

/// The state of the reader after a digit of `chunk-size`, or after the byte that follows the digits.
#[inline]
fn on_size(byte: u8, digits: u8, size: u64) -> Result<ChunkState, ChunkError> {
    if let Some(digit) = (byte as char).to_digit(16) {
        if digits == 16 {
            return Err(ChunkError::SizeTooLong);
        }
        return Ok(ChunkState::Size {
            digits: digits + 1,
            size: size << 4 | u64::from(digit),
        });
    }
    match byte {
        _ if digits == 0 => Err(ChunkError::SizeInvalid),
        b'\r' => Ok(ChunkState::SizeLineFeed { size }),
        b';' => Ok(ChunkState::Extension { size, len: 0 }),
        b' ' | b'\t' => Ok(ChunkState::SizeBlank { size, len: 1 }),
        _ => Err(ChunkError::SizeInvalid),
    }
}

/// Counts a byte of a chunk extension (or a blank before it) against the limit. Returns the new length.
fn lengthen(len: u16) -> Result<u16, ChunkError> {
    if usize::from(len) >= MAX_CHUNK_EXTENSION {
        return Err(ChunkError::ExtensionTooLong);
    }
    Ok(len + 1)
}

/// Whether `byte` is allowed in the value of a trailer field or in a chunk extension.
const fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `input` in pieces of `step` bytes. Returns the content, and the position after the body; `None` if the body is
    /// not complete.
    fn read(input: &[u8], step: usize) -> Result<(Vec<u8>, Option<usize>), ChunkError> {
        let mut reader = ChunkedReader::new();
        let mut content = Vec::new();
        let (mut at, mut seen) = (0, 0);
        loop {
            match reader.read(&input[at..seen], content.len() as u64)? {
                Chunked::NeedMore if seen == input.len() => return Ok((content, None)),
                Chunked::NeedMore => (at, seen) = (seen, (seen + step).min(input.len())),
                Chunked::Data { skip, len } => {
                    assert!(len > 0);
                    content.extend_from_slice(&input[at + skip..at + skip + len]);
                    at += skip + len;
                }
                Chunked::End { taken } => return Ok((content, Some(at + taken))),
            }
        }
    }

    #[test]
    fn bodies_read_alike_in_pieces_of_any_size() {
        type Want = Result<(&'static [u8], Option<usize>), ChunkError>;
        let cases: &[(&[u8], Want)] = &[
            (b"0\r\n\r\nGET", Ok((b"", Some(5)))),
            (b"3\r\nabc\r\n0\r\n\r\n", Ok((b"abc", Some(13)))),
            (
                b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
                Ok((b"abcde", Some(20))),
            ),
            (b"0003\r\nabc\r\n000\r\n\r\n", Ok((b"abc", Some(18)))),
            (
                b"a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n",
                Ok((b"01234567890123456789", Some(35))),
            ),
            (b"3;a=\"b\";c\r\nabc\r\n0;x\r\n\r\n", Ok((b"abc", Some(23)))),
            (b"3 \t\r\nabc\r\n0 ;x\t\xff\r\n\r\n", Ok((b"abc", Some(20)))),
            (b"0\r\nA: b\r\nC:\r\n\r\nx", Ok((b"", Some(15)))),
            (b"0\r\nA: b\n\nx", Ok((b"", Some(9)))),
            (b"0\r\n\nx", Ok((b"", Some(4)))),
            (b"3\r\nab", Ok((b"ab", None))),
            (b"3\r\nabc\r\n", Ok((b"abc", None))),
            (b"0\r\n", Ok((b"", None))),
            (b"0000000000000001\r\na\r\n0\r\n\r\n", Ok((b"a", Some(26)))),
            (b"ffffffffffffffff\r\na", Ok((b"a", None))),
            (b"\r\n", Err(ChunkError::SizeInvalid)),
            (b"g\r\n", Err(ChunkError::SizeInvalid)),
            (b"-1\r\n", Err(ChunkError::SizeInvalid)),
            (b"+1\r\n", Err(ChunkError::SizeInvalid)),
            (b" 1\r\n", Err(ChunkError::SizeInvalid)),
            (b"0x1\r\n", Err(ChunkError::SizeInvalid)),
            (b"1_0\r\n", Err(ChunkError::SizeInvalid)),
            (b"1 1\r\n", Err(ChunkError::SizeInvalid)),
            (b"1\na\r\n", Err(ChunkError::SizeInvalid)),
            (b";x\r\n", Err(ChunkError::SizeInvalid)),
            (b"00000000000000000\r\n", Err(ChunkError::SizeTooLong)),
            (b"1;a\nb\r\n", Err(ChunkError::ExtensionInvalid)),
            (b"1;a\0\r\n", Err(ChunkError::ExtensionInvalid)),
            (b"1;\x7f\r\n", Err(ChunkError::ExtensionInvalid)),
            (b"1\rx", Err(ChunkError::ExtensionInvalid)),
            (b"1;a\r\r\n", Err(ChunkError::ExtensionInvalid)),
            (b"1\r\nab\r\n", Err(ChunkError::DataUnterminated)),
            (b"1\r\na\n", Err(ChunkError::DataUnterminated)),
            (b"1\r\na\rb", Err(ChunkError::DataUnterminated)),
            (b"0\r\n x: y\r\n", Err(ChunkError::TrailerInvalid)),
            (b"0\r\nx y\r\n", Err(ChunkError::TrailerInvalid)),
            (b"0\r\nx\r\n", Err(ChunkError::TrailerInvalid)),
            (b"0\r\n:\r\n", Err(ChunkError::TrailerInvalid)),
            (b"0\r\nx: \0\r\n", Err(ChunkError::TrailerInvalid)),
            (b"0\r\nx: y\rz", Err(ChunkError::TrailerInvalid)),
            (b"0\r\n\rx", Err(ChunkError::TrailerInvalid)),
        ];
        for (input, want) in cases {
            let want = want.map(|(content, end)| (content.to_vec(), end));
            for step in 1..=input.len() {
                assert_eq!(
                    read(input, step),
                    want,
                    "{} by {step}",
                    input.escape_ascii()
                );
            }
        }
    }

    #[test]
    fn extensions_are_limited() {
        let with = |len| format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(len)).into_bytes();
        let input = with(MAX_CHUNK_EXTENSION);
        assert_eq!(read(&input, 1000), Ok((b"a".to_vec(), Some(input.len()))));
        let input = with(MAX_CHUNK_EXTENSION + 1);
        assert_eq!(read(&input, 1000), Err(ChunkError::ExtensionTooLong));
        let blanks = [b"1".to_vec(), vec![b' '; MAX_CHUNK_EXTENSION + 1]].concat();
        assert_eq!(read(&blanks, 1000), Err(ChunkError::ExtensionTooLong));
    }

    #[test]
    fn trailers_are_limited_in_number_and_size() {
        let with = |field: &str, times| format!("0\r\n{}\r\n", field.repeat(times)).into_bytes();
        let input = with("a:b\r\n", MAX_TRAILER_FIELDS);
        assert_eq!(read(&input, 100), Ok((vec![], Some(input.len()))));
        let input = with("a:b\r\n", MAX_TRAILER_FIELDS + 1);
        assert_eq!(read(&input, 100), Err(ChunkError::TrailersTooLarge));
        let fits = format!("a:{}\r\n", "b".repeat(MAX_TRAILER_SECTION - 6));
        let input = with(&fits, 1);
        assert_eq!(read(&input, 1000), Ok((vec![], Some(input.len()))));
        let input = with(&format!("a{fits}"), 1);
        assert_eq!(read(&input, 1000), Err(ChunkError::TrailersTooLarge));
    }

    #[test]
    fn framing_may_outweigh_content_only_up_to_100_kib() {
        let read = |chunk: &str, times| read(chunk.repeat(times).as_bytes(), 4096).map(|_| ());
        // The chunk is "1 CRLF a CRLF": five bytes of framing for one byte of content.
        let times = usize::try_from(MAX_CHUNK_FRAMING).unwrap() / 5;
        assert_eq!(read("1\r\na\r\n", times - 1), Ok(()));
        let attack = read("1\r\na\r\n", times);
        assert_eq!(attack, Err(ChunkError::FramingExcessive));
        // Five bytes of framing for two bytes of content are less than three quarters.
        assert_eq!(read("2\r\nab\r\n", 10 * times), Ok(()));
    }
}
