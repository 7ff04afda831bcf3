//! Capsules (RFC 9297 §3.2) that carry UDP datagrams (RFC 9298 §5).

use bytes::{Buf, Bytes};

/// The type of capsules that carry a datagram (RFC 9297 §3.5).
const DATAGRAM: u64 = 0;
/// Length of the longest UDP payload (RFC 9298 §5).
const MAX_PAYLOAD: usize = 65_527;
/// Length of the longest variable-length integer (RFC 9000 §16).
const MAX_VARINT: usize = 8;

/// How a UDP payload is written in a capsule or HTTP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// The payload stands after a context identifier, which is 0 for UDP payloads (RFC 9298 §4).
    ContextId,
    /// The payload stands alone (draft 03 of RFC 9298).
    Bare,
}

impl Format {
    /// The bytes before the payload in a datagram.
    pub(super) const fn context_id(self) -> &'static [u8] {
        match self {
            Self::ContextId => &[0],
            Self::Bare => &[],
        }
    }
}

/// Finds the datagrams in a client's bytes, which may arrive in pieces of any size.
#[derive(Debug)]
pub(super) struct CapsuleReader {
    format: Format,
    state: CapsuleState,
    /// Bytes of an incomplete capsule head, or of an incomplete datagram capsule.
    kept: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CapsuleState {
    /// The next bytes are the type and the length of a capsule.
    Head,
    /// The next bytes are the content of a datagram capsule, which has this length.
    Datagram(usize),
    /// The next bytes belong to a capsule of another type and are skipped; this many of them are left.
    Skipping(u64),
}

/// The error for a datagram that is longer than UDP allows: the client is faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl CapsuleReader {
    pub(super) const fn new(format: Format) -> Self {
        Self {
            format,
            state: CapsuleState::Head,
            kept: Vec::new(),
        }
    }

    /// Returns the payload of the next datagram in `piece`, whose bytes are consumed up to the datagram's end. `None`
    /// if all bytes were consumed.
    ///
    /// # Errors
    /// [`TooLong`]; the reader must not be used again.
    pub(super) fn next(&mut self, piece: &mut Bytes) -> Result<Option<Bytes>, TooLong> {
        loop {
            match self.state {
                CapsuleState::Head => {
                    if !self.read_head(piece)? {
                        return Ok(None);
                    }
                }
                CapsuleState::Skipping(left) => {
                    let skipped =
                        usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
                    piece.advance(skipped);
                    let left = left - skipped as u64;
                    if left > 0 {
                        self.state = CapsuleState::Skipping(left);
                        return Ok(None);
                    }
                    self.state = CapsuleState::Head;
                }
                CapsuleState::Datagram(len) => {
                    let Some(content) = self.collect(piece, len) else {
                        return Ok(None);
                    };
                    self.state = CapsuleState::Head;
                    if let Some(payload) = datagram_payload(self.format, content) {
                        if payload.len() > MAX_PAYLOAD {
                            return Err(TooLong);
                        }
                        return Ok(Some(payload));
                    }
                }
            }
        }
    }

    /// Number of bytes of memory that the reader holds.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) const fn retained(&self) -> usize {
        self.kept.capacity()
    }

    /// Reads the type and the length of a capsule. Returns false if they are incomplete.
    fn read_head(&mut self, piece: &mut Bytes) -> Result<bool, TooLong> {
        let had = self.kept.len();
        let more = piece.len().min(2 * MAX_VARINT - had);
        self.kept.extend_from_slice(&piece[..more]);
        let Some((kind, len, size)) = parse_head(&self.kept) else {
            piece.advance(more);
            return Ok(false);
        };
        piece.advance(size - had);
        self.kept.clear();
        let max = MAX_PAYLOAD + MAX_VARINT;
        self.state = match usize::try_from(len) {
            _ if kind != DATAGRAM => CapsuleState::Skipping(len),
            Ok(len) if len <= max => CapsuleState::Datagram(len),
            _ => return Err(TooLong),
        };
        Ok(true)
    }

    /// Returns the next `len` bytes, once all of them have arrived.
    fn collect(&mut self, piece: &mut Bytes, len: usize) -> Option<Bytes> {
        if self.kept.is_empty() && piece.len() >= len {
            return Some(piece.split_to(len));
        }
        let more = piece.len().min(len - self.kept.len());
        self.kept.extend_from_slice(&piece[..more]);
        piece.advance(more);
        (self.kept.len() == len).then(|| std::mem::take(&mut self.kept).into())
    }
}

/// The UDP payload in an HTTP datagram or a datagram capsule; `None` if it has none.
pub(super) fn datagram_payload(format: Format, mut content: Bytes) -> Option<Bytes> {
    if format == Format::ContextId {
        match parse_varint(&content) {
            Some((0, size)) => content.advance(size),
            // The client used a context that was never negotiated, or sent no context identifier: this is no UDP
            // payload.
            Some(_) | None => return None,
        }
    }
    Some(content)
}

fn parse_head(bytes: &[u8]) -> Option<(u64, u64, usize)> {
    let (kind, at) = parse_varint(bytes)?;
    let (len, size) = parse_varint(&bytes[at..])?;
    Some((kind, len, at + size))
}

/// Reads the variable-length integer at the start of `bytes` (RFC 9000 §16). Returns it with its length.
fn parse_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let size = 1 << (first >> 6);
    let rest = bytes.get(1..size)?;
    let start = u64::from(first & 0x3f);
    let value = rest
        .iter()
        .fold(start, |value, byte| value << 8 | u64::from(*byte));
    Some((value, size))
}

/// Most bytes that [`begin`] appends.
pub(super) const MAX_HEAD: usize = 6;

/// Appends the head of a capsule that carries a UDP payload of `len` bytes, at most 65527.
pub(super) fn begin(format: Format, len: usize, out: &mut impl Extend<u8>) {
    debug_assert!(
        len <= MAX_PAYLOAD,
        "a datagram is not longer than the largest UDP payload"
    );
    let context_id = format.context_id();
    let len = u32::try_from(len + context_id.len()).unwrap_or(u32::MAX);
    let bytes = len.to_be_bytes();
    out.extend([0]);
    match len {
        0..0x40 => out.extend([bytes[3]]),
        0x40..0x4000 => out.extend([0x40 | bytes[2], bytes[3]]),
        _ => out.extend([0x80 | bytes[0], bytes[1], bytes[2], bytes[3]]),
    }
    out.extend(context_id.iter().copied());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The UDP payloads in `input`, which arrives in pieces of `size` bytes.
    fn read(format: Format, input: &[u8], size: usize) -> Result<Vec<Vec<u8>>, TooLong> {
        let mut reader = CapsuleReader::new(format);
        let mut found = Vec::new();
        for piece in input.chunks(size) {
            let mut piece = Bytes::copy_from_slice(piece);
            while let Some(payload) = reader.next(&mut piece)? {
                found.push(payload.to_vec());
            }
            assert!(piece.is_empty(), "the reader consumes all bytes");
        }
        assert!(reader.retained() <= 2 * (MAX_PAYLOAD + MAX_VARINT));
        Ok(found)
    }

    fn capsule(format: Format, payload: &[u8]) -> Vec<u8> {
        let mut capsule = Vec::new();
        begin(format, payload.len(), &mut capsule);
        assert!(capsule.len() <= MAX_HEAD);
        capsule.extend_from_slice(payload);
        capsule
    }

    #[test]
    fn datagrams_come_out_as_they_went_in_however_they_are_split() {
        for format in [Format::ContextId, Format::Bare] {
            let payloads: Vec<Vec<u8>> =
                [0, 1, 62, 63, 64, 65, 1500, 16_382, 16_383, 16_384, 65_527]
                    .iter()
                    .map(|len| vec![b'x'; *len])
                    .collect();
            let input: Vec<u8> = payloads
                .iter()
                .flat_map(|payload| capsule(format, payload))
                .collect();
            for size in [1, 2, 3, 7, 1000, input.len()] {
                assert_eq!(read(format, &input, size), Ok(payloads.clone()), "{size}");
            }
        }
    }

    #[test]
    fn lengths_may_be_written_in_any_size() {
        let want = Ok(vec![b"ab".to_vec()]);
        for input in [
            &b"\0\x03\0ab"[..],
            b"\0\x40\x03\0ab",
            b"\x40\0\x80\0\0\x03\0ab",
            b"\xc0\0\0\0\0\0\0\0\xc0\0\0\0\0\0\0\x03\0ab",
            // The context identifier may be written in two bytes, too.
            b"\0\x04\x40\0ab",
        ] {
            for size in [1, input.len()] {
                assert_eq!(read(Format::ContextId, input, size), want, "{input:?}");
            }
        }
    }

    #[test]
    fn what_is_no_datagram_of_udp_is_passed_over() {
        let good = capsule(Format::ContextId, b"good");
        let strange: [&[u8]; 5] = [
            // Capsules of other types than DATAGRAM, one of them empty.
            b"\x01\x03abc",
            b"\x7f\xff\0",
            // Datagrams whose context identifier is not 0.
            b"\0\x03\x02ab",
            b"\0\x04\x40\x01ab",
            // A datagram without a context identifier.
            b"\0\0",
        ];
        for strange in strange {
            let input = [strange, &good, strange, &good].concat();
            for size in [1, 5, input.len()] {
                let found = read(Format::ContextId, &input, size);
                assert_eq!(found, Ok(vec![b"good".to_vec(); 2]), "{strange:?}");
            }
        }
        // A capsule of another type costs no memory, even if it announces the greatest length.
        let mut endless = b"\x01\xff\xff\xff\xff\xff\xff\xff\xff".to_vec();
        endless.resize(200_000, b'x');
        assert_eq!(read(Format::ContextId, &endless, 1000), Ok(Vec::new()));
    }

    #[test]
    fn datagrams_that_udp_cannot_have_are_errors() {
        let len = |len: u32| [&[0], &(0x8000_0000 | len).to_be_bytes()[..]].concat();
        // With a context identifier of eight bytes, the longest capsule has exactly the longest payload of UDP.
        let mut fits = len(65_535);
        fits.extend_from_slice(b"\xc0\0\0\0\0\0\0\0");
        fits.resize(fits.len() + 65_527, b'x');
        let found = read(Format::ContextId, &fits, 1000).unwrap();
        assert_eq!(found[0].len(), 65_527);
        let mut long = len(65_529);
        long.resize(long.len() + 65_529, 0);
        assert_eq!(read(Format::ContextId, &long, 1000), Err(TooLong));
        for input in [len(65_536), b"\0\xff\xff\xff\xff\xff\xff\xff\xff".to_vec()] {
            assert_eq!(read(Format::ContextId, &input, 1), Err(TooLong));
        }
    }
}
