//! QPACK (RFC 9204): field sections of literals, instructions, and a decoder that checks that the server's encoder keeps the rules.

use std::collections::HashMap;

use crate::http2::{decode_huffman, encode_integer};

/// A header field: name and value.
type Field = (Vec<u8>, Vec<u8>);

/// Encodes a field section without references and without Huffman coding.
#[must_use]
pub fn encode<N: AsRef<[u8]>, V: AsRef<[u8]>>(fields: &[(N, V)]) -> Vec<u8> {
    let mut section = vec![0, 0];
    for (name, value) in fields {
        encode_literal(&mut section, name.as_ref(), value.as_ref());
    }
    section
}

/// Appends to a field section a line with a literal name (RFC 9204 §4.5.6).
pub fn encode_literal(section: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    encode_integer(section, 0x20, 3, name.len());
    section.extend_from_slice(name);
    encode_integer(section, 0, 7, value.len());
    section.extend_from_slice(value);
}

/// Encodes the prefix of a field section (RFC 9204 §4.5.1). `capacity` is the largest capacity of the dynamic table, as the decoder
/// has announced it.
#[must_use]
pub fn section_prefix(capacity: usize, required: usize, base: usize) -> Vec<u8> {
    let mut prefix = Vec::new();
    let encoded = match required {
        0 => 0,
        required => required % (2 * (capacity / 32)) + 1,
    };
    encode_integer(&mut prefix, 0, 8, encoded);
    if base >= required {
        encode_integer(&mut prefix, 0, 7, base - required);
    } else {
        encode_integer(&mut prefix, 0x80, 7, required - base - 1);
    }
    prefix
}

/// Instructions of QPACK's encoder (RFC 9204 §4.3) and decoder (§4.4).
pub mod instruction {
    use super::encode_integer;

    fn string(out: &mut Vec<u8>, text: &[u8]) {
        encode_integer(out, 0, 7, text.len());
        out.extend_from_slice(text);
    }

    fn number(first: u8, prefix: u8, value: usize) -> Vec<u8> {
        let mut out = Vec::new();
        encode_integer(&mut out, first, prefix, value);
        out
    }

    /// Encodes the instruction Set Dynamic Table Capacity.
    #[must_use]
    pub fn capacity(capacity: usize) -> Vec<u8> {
        number(0x20, 5, capacity)
    }

    /// Encodes the instruction Insert with Literal Name.
    #[must_use]
    pub fn insert(name: &[u8], value: &[u8]) -> Vec<u8> {
        let mut out = number(0x40, 5, name.len());
        out.extend_from_slice(name);
        string(&mut out, value);
        out
    }

    /// Encodes the instruction Insert with Name Reference, for an entry of the static table.
    #[must_use]
    pub fn insert_static(index: usize, value: &[u8]) -> Vec<u8> {
        let mut out = number(0xc0, 6, index);
        string(&mut out, value);
        out
    }

    /// Encodes the instruction Insert with Name Reference, for the dynamic entry of this age: 0 is the newest.
    #[must_use]
    pub fn insert_named(age: usize, value: &[u8]) -> Vec<u8> {
        let mut out = number(0x80, 6, age);
        string(&mut out, value);
        out
    }

    /// Encodes the instruction Duplicate for the dynamic entry of this age: 0 is the newest.
    #[must_use]
    pub fn duplicate(age: usize) -> Vec<u8> {
        number(0, 5, age)
    }

    /// Encodes the instruction Section Acknowledgment for a stream.
    #[must_use]
    pub fn acknowledge(stream: usize) -> Vec<u8> {
        number(0x80, 7, stream)
    }

    /// Encodes the instruction Stream Cancellation.
    #[must_use]
    pub fn cancel(stream: usize) -> Vec<u8> {
        number(0x40, 6, stream)
    }

    /// Encodes the instruction Insert Count Increment.
    #[must_use]
    pub fn increment(count: usize) -> Vec<u8> {
        number(0, 6, count)
    }
}

/// The error that a field section refers to insertions that the decoder has not received yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked;

/// A QPACK decoder for the server's field sections, with its state. It panics on everything that RFC 9204 forbids.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// The entries of the dynamic table by absolute index; evicted entries are removed.
    entries: HashMap<usize, Field>,
    inserted: usize,
    oldest: usize,
    size: usize,
    capacity: usize,
    max_capacity: usize,
    /// The oldest entry to which each unacknowledged field section refers, by stream: its absolute index.
    referenced: HashMap<u64, Vec<usize>>,
    /// The bytes of an incomplete instruction.
    rest: Vec<u8>,
}

impl Decoder {
    /// A decoder that has announced the capacity `max_capacity` of its dynamic table.
    #[must_use]
    pub fn new(max_capacity: usize) -> Self {
        Self {
            entries: HashMap::new(),
            inserted: 0,
            oldest: 0,
            size: 0,
            capacity: 0,
            max_capacity,
            referenced: HashMap::new(),
            rest: Vec::new(),
        }
    }

    /// Number of entries that the encoder has ever inserted into the dynamic table.
    #[must_use]
    pub const fn inserted(&self) -> usize {
        self.inserted
    }

    /// Number of entries in the dynamic table, and its size (RFC 9204 §3.2.1).
    #[must_use]
    pub fn table(&self) -> (usize, usize) {
        (self.entries.len(), self.size)
    }

    /// Executes instructions of the server's encoder. Returns how many of them were insertions.
    ///
    /// # Panics
    /// If an instruction is invalid.
    pub fn follow(&mut self, bytes: &[u8]) -> usize {
        let before = self.inserted;
        self.rest.extend_from_slice(bytes);
        let rest = std::mem::take(&mut self.rest);
        let mut input = Input(&rest);
        while !input.0.is_empty() {
            let start = input.0;
            if self.instruction(&mut input).is_none() {
                self.rest = start.to_vec();
                break;
            }
        }
        self.inserted - before
    }

    fn instruction(&mut self, input: &mut Input<'_>) -> Option<()> {
        let first = *input.0.first()?;
        let field = match first {
            0x80.. => {
                let index = input.integer(6)?;
                let name = if first & 0x40 != 0 {
                    STATIC[index].0.into()
                } else {
                    self.relative(self.inserted, index).0
                };
                (name, input.string(7)?)
            }
            0x40.. => (input.string(5)?, input.string(7)?),
            0x20.. => {
                self.capacity = input.integer(5)?;
                assert!(
                    self.capacity <= self.max_capacity,
                    "the capacity is above the announced maximum"
                );
                self.make_room(0);
                return Some(());
            }
            _ => {
                let index = input.integer(5)?;
                self.relative(self.inserted, index)
            }
        };
        let size = size(&field);
        assert!(size <= self.capacity, "the entry is larger than the table");
        self.make_room(size);
        self.size += size;
        self.entries.insert(self.inserted, field);
        self.inserted += 1;
        Some(())
    }

    fn make_room(&mut self, len: usize) {
        while self.size + len > self.capacity {
            let oldest = self
                .entries
                .remove(&self.oldest)
                .expect("the table has the entry");
            let is_needed = self
                .referenced
                .values()
                .flatten()
                .any(|&index| index <= self.oldest);
            assert!(
                !is_needed,
                "entry {} is evicted while a field section refers to it",
                self.oldest
            );
            self.size -= size(&oldest);
            self.oldest += 1;
        }
    }

    fn relative(&self, base: usize, index: usize) -> Field {
        let absolute = base
            .checked_sub(index + 1)
            .expect("the index refers to an entry of the table");
        self.entries
            .get(&absolute)
            .expect("the table has the entry")
            .clone()
    }

    /// Decodes a field section of a stream. Also returns whether the section must be acknowledged.
    ///
    /// # Errors
    /// [`Blocked`]: the section refers to insertions that have not come yet.
    ///
    /// # Panics
    /// If the section is invalid.
    pub fn decode(&mut self, stream: u64, section: &[u8]) -> Result<(Vec<Field>, bool), Blocked> {
        let mut input = Input(section);
        let (required, base) = self.prefix(&mut input);
        if required > self.inserted {
            return Err(Blocked);
        }
        let (mut fields, mut used) = (Vec::new(), Vec::new());
        while !input.0.is_empty() {
            let field = self.line(&mut input, base, &mut used);
            fields.push(field.expect("the field line is complete"));
        }
        let largest = used.iter().max().map_or(0, |index| index + 1);
        assert_eq!(
            required, largest,
            "the Required Insert Count is that of the entries used"
        );
        if let Some(&oldest) = used.iter().min() {
            self.referenced.entry(stream).or_default().push(oldest);
        }
        Ok((fields, required > 0))
    }

    fn prefix(&self, input: &mut Input<'_>) -> (usize, usize) {
        let encoded = input.integer(8).expect("the field section is complete");
        let most = self.max_capacity / 32;
        let required = match encoded {
            0 => 0,
            _ => {
                assert!(
                    encoded <= 2 * most,
                    "the encoded Required Insert Count is too large"
                );
                // The largest possible insert count: the encoder is ahead by at most the number of entries that the table can hold.
                let furthest = self.inserted + most;
                let back = (furthest % (2 * most) + 1 + 2 * most - encoded) % (2 * most);
                furthest
                    .checked_sub(back)
                    .expect("the Required Insert Count is not negative")
            }
        };
        let is_negative = input.0.first().expect("the field section is complete") & 0x80 != 0;
        let delta = input.integer(7).expect("the field section is complete");
        let base = if is_negative {
            required - delta - 1
        } else {
            required + delta
        };
        (required, base)
    }

    fn line(&self, input: &mut Input<'_>, base: usize, used: &mut Vec<usize>) -> Option<Field> {
        let first = *input.0.first()?;
        let mut dynamic = |absolute: usize| {
            used.push(absolute);
            self.entries
                .get(&absolute)
                .expect("the table has the entry")
                .clone()
        };
        Some(match first {
            0xc0.. => {
                let (name, value) = STATIC[input.integer(6)?];
                (name.into(), value.into())
            }
            0x80.. => dynamic(base - input.integer(6)? - 1),
            0x40.. => {
                let index = input.integer(4)?;
                let name = if first & 0x10 != 0 {
                    STATIC[index].0.into()
                } else {
                    dynamic(base - index - 1).0
                };
                (name, input.string(7)?)
            }
            0x20.. => (input.string(3)?, input.string(7)?),
            0x10.. => dynamic(base + input.integer(4)?),
            _ => {
                let name = dynamic(base + input.integer(3)?).0;
                (name, input.string(7)?)
            }
        })
    }

    /// Records that the oldest field section of a stream was acknowledged.
    pub fn acknowledged(&mut self, stream: u64) {
        if let Some(sections) = self.referenced.get_mut(&stream)
            && !sections.is_empty()
        {
            sections.remove(0);
        }
    }

    /// Records that a stream was cancelled.
    pub fn cancelled(&mut self, stream: u64) {
        self.referenced.remove(&stream);
    }
}

/// The size of an entry of the dynamic table (RFC 9204 §3.2.1).
fn size((name, value): &Field) -> usize {
    name.len() + value.len() + 32
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn integer(&mut self, prefix: u8) -> Option<usize> {
        let most = (1 << prefix) - 1;
        let (first, mut rest) = self.0.split_first()?;
        let mut value = usize::from(*first) & most;
        if value == most {
            for shift in (0..56).step_by(7) {
                let (byte, after) = rest.split_first()?;
                rest = after;
                value += usize::from(byte & 0x7f) << shift;
                if *byte < 0x80 {
                    break;
                }
            }
        }
        self.0 = rest;
        Some(value)
    }

    fn string(&mut self, prefix: u8) -> Option<Vec<u8>> {
        let is_huffman = self.0.first()? & 1 << prefix != 0;
        let len = self.integer(prefix)?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(if is_huffman {
            decode_huffman(text)
        } else {
            text.to_vec()
        })
    }
}

/// The static table of QPACK (RFC 9204 Appendix A), written down independently of the table of the engine under test.
pub const STATIC: [(&str, &str); 99] = [
    (":authority", ""),
    (":path", "/"),
    ("age", "0"),
    ("content-disposition", ""),
    ("content-length", "0"),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("referer", ""),
    ("set-cookie", ""),
    (":method", "CONNECT"),
    (":method", "DELETE"),
    (":method", "GET"),
    (":method", "HEAD"),
    (":method", "OPTIONS"),
    (":method", "POST"),
    (":method", "PUT"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "103"),
    (":status", "200"),
    (":status", "304"),
    (":status", "404"),
    (":status", "503"),
    ("accept", "*/*"),
    ("accept", "application/dns-message"),
    ("accept-encoding", "gzip, deflate, br"),
    ("accept-ranges", "bytes"),
    ("access-control-allow-headers", "cache-control"),
    ("access-control-allow-headers", "content-type"),
    ("access-control-allow-origin", "*"),
    ("cache-control", "max-age=0"),
    ("cache-control", "max-age=2592000"),
    ("cache-control", "max-age=604800"),
    ("cache-control", "no-cache"),
    ("cache-control", "no-store"),
    ("cache-control", "public, max-age=31536000"),
    ("content-encoding", "br"),
    ("content-encoding", "gzip"),
    ("content-type", "application/dns-message"),
    ("content-type", "application/javascript"),
    ("content-type", "application/json"),
    ("content-type", "application/x-www-form-urlencoded"),
    ("content-type", "image/gif"),
    ("content-type", "image/jpeg"),
    ("content-type", "image/png"),
    ("content-type", "text/css"),
    ("content-type", "text/html; charset=utf-8"),
    ("content-type", "text/plain"),
    ("content-type", "text/plain;charset=utf-8"),
    ("range", "bytes=0-"),
    ("strict-transport-security", "max-age=31536000"),
    (
        "strict-transport-security",
        "max-age=31536000; includesubdomains",
    ),
    (
        "strict-transport-security",
        "max-age=31536000; includesubdomains; preload",
    ),
    ("vary", "accept-encoding"),
    ("vary", "origin"),
    ("x-content-type-options", "nosniff"),
    ("x-xss-protection", "1; mode=block"),
    (":status", "100"),
    (":status", "204"),
    (":status", "206"),
    (":status", "302"),
    (":status", "400"),
    (":status", "403"),
    (":status", "421"),
    (":status", "425"),
    (":status", "500"),
    ("accept-language", ""),
    ("access-control-allow-credentials", "FALSE"),
    ("access-control-allow-credentials", "TRUE"),
    ("access-control-allow-headers", "*"),
    ("access-control-allow-methods", "get"),
    ("access-control-allow-methods", "get, post, options"),
    ("access-control-allow-methods", "options"),
    ("access-control-expose-headers", "content-length"),
    ("access-control-request-headers", "content-type"),
    ("access-control-request-method", "get"),
    ("access-control-request-method", "post"),
    ("alt-svc", "clear"),
    ("authorization", ""),
    (
        "content-security-policy",
        "script-src 'none'; object-src 'none'; base-uri 'none'",
    ),
    ("early-data", "1"),
    ("expect-ct", ""),
    ("forwarded", ""),
    ("if-range", ""),
    ("origin", ""),
    ("purpose", "prefetch"),
    ("server", ""),
    ("timing-allow-origin", "*"),
    ("upgrade-insecure-requests", "1"),
    ("user-agent", ""),
    ("x-forwarded-for", ""),
    ("x-frame-options", "deny"),
    ("x-frame-options", "sameorigin"),
];
