//! Packets of QUIC and their protection (RFC 9000 §17, RFC 9001 §5).

use rustls::quic::{HeaderProtectionKey, PacketKey};

use super::frame::Reader;
use crate::http3::varint;

/// QUIC version 1.
pub const VERSION_1: u32 = 1;

/// Bytes of each packet number that is sent.
const NUMBER: usize = 4;

/// The header of a packet up to its length and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header<'a> {
    /// With a token.
    Initial(&'a [u8]),
    /// Early data.
    ZeroRtt,
    /// Before the handshake is complete.
    Handshake,
    /// With its key phase.
    Short(bool),
}

/// The bytes of a long header up to the token or the length, with the two bits of its type.
#[must_use]
pub fn long_header(kind: u8, version: u32, destination: &[u8], source: &[u8]) -> Vec<u8> {
    // The lowest bits: packet numbers of four bytes.
    let mut header = vec![0xc0 | kind << 4 | 3];
    header.extend(version.to_be_bytes());
    for id in [destination, source] {
        header.push(u8::try_from(id.len()).expect("ids are short"));
        header.extend(id);
    }
    header
}

/// The bytes of a header before the packet number, for a payload that is sealed.
pub(super) fn header(
    kind: Header<'_>,
    version: u32,
    destination: &[u8],
    source: &[u8],
    payload: usize,
) -> Vec<u8> {
    let (bits, token) = match kind {
        Header::Initial(token) => (0, Some(token)),
        Header::ZeroRtt => (1, None),
        Header::Handshake => (2, None),
        Header::Short(phase) => {
            let mut header = vec![0x40 | u8::from(phase) << 2 | 3];
            header.extend(destination);
            return header;
        }
    };
    let mut header = long_header(bits, version, destination, source);
    if let Some(token) = token {
        header.extend(varint(token.len() as u64));
        header.extend(token);
    }
    let len = u16::try_from(NUMBER + payload).expect("packets are short");
    header.extend((0x4000 | len).to_be_bytes());
    header
}

/// A whole packet, sealed.
pub(super) fn seal(
    protection: &dyn HeaderProtectionKey,
    key: &dyn PacketKey,
    number: u64,
    mut packet: Vec<u8>,
    frames: &[u8],
) -> Vec<u8> {
    let number_at = packet.len();
    let low = u32::try_from(number & 0xffff_ffff).expect("four bytes");
    packet.extend(low.to_be_bytes());
    let mut payload = frames.to_vec();
    let tag = (key.encrypt_in_place(number, &packet, &mut payload)).expect("packets are short");
    packet.extend(payload);
    packet.extend(tag.as_ref());
    let sample_at = number_at + NUMBER;
    let sample = packet[sample_at..sample_at + protection.sample_len()].to_vec();
    let (first, rest) = packet.split_at_mut(1);
    let number = &mut rest[number_at - 1..number_at - 1 + NUMBER];
    (protection.encrypt_in_place(&sample, &mut first[0], number)).expect("the sample is whole");
    packet
}

/// A packet whose header protection is removed.
pub(super) struct Unprotected {
    header: Vec<u8>,
    payload: Vec<u8>,
    pub(super) number: u64,
    pub(super) phase: bool,
}

/// Removes the protection of a header whose number begins at `number_at`; `largest` is the largest number so far.
pub(super) fn unprotect(
    protection: &dyn HeaderProtectionKey,
    packet: &[u8],
    number_at: usize,
    largest: Option<u64>,
) -> Option<Unprotected> {
    let mut packet = packet.to_vec();
    let sample_at = number_at + NUMBER;
    let sample = packet
        .get(sample_at..sample_at + protection.sample_len())?
        .to_vec();
    let (first, rest) = packet.split_at_mut(1);
    let number = &mut rest[number_at - 1..number_at - 1 + NUMBER];
    (protection.decrypt_in_place(&sample, &mut first[0], number)).ok()?;
    let len = usize::from(packet[0] & 3) + 1;
    let bytes = packet[number_at..number_at + len].iter();
    let low = bytes.fold(0, |value, byte| value << 8 | u64::from(*byte));
    let payload = packet.split_off(number_at + len);
    Some(Unprotected {
        number: whole_number(low, len, largest),
        phase: packet[0] & 4 != 0,
        header: packet,
        payload,
    })
}

impl Unprotected {
    pub(super) fn open(&self, key: &dyn PacketKey) -> Option<Vec<u8>> {
        let mut payload = self.payload.clone();
        let opened = key.decrypt_in_place(self.number, &self.header, &mut payload);
        opened.ok().map(<[u8]>::to_vec)
    }
}

/// The number that is nearest to the one expected (RFC 9000, appendix A.3).
fn whole_number(low: u64, len: usize, largest: Option<u64>) -> u64 {
    let expected = largest.map_or(0, |largest| largest + 1);
    let window = 1_u64 << (8 * len);
    let candidate = expected & !(window - 1) | low;
    if candidate + window / 2 <= expected {
        candidate + window
    } else if candidate > expected + window / 2 && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

/// What a datagram begins with.
pub(super) enum Incoming<'a> {
    /// A list of versions.
    VersionNegotiation(Vec<u32>),
    /// The id to use, and the token to bring.
    Retry { source: &'a [u8], token: &'a [u8] },
    /// An Initial (0) or Handshake (2) packet; where its number begins; its end.
    Long {
        kind: u8,
        source: &'a [u8],
        number_at: usize,
        end: usize,
    },
    /// Everything that is left.
    Short,
}

pub(super) fn parse(datagram: &[u8]) -> Option<Incoming<'_>> {
    let mut reader = Reader(datagram);
    let first = reader.byte()?;
    if first & 0x80 == 0 {
        return Some(Incoming::Short);
    }
    let version = u32::from_be_bytes(reader.bytes(4)?.try_into().ok()?);
    let len = reader.byte()?;
    reader.bytes(usize::from(len))?;
    let len = reader.byte()?;
    let source = reader.bytes(usize::from(len))?;
    if version == 0 {
        let (versions, _) = reader.0.as_chunks::<4>();
        let versions = versions.iter().map(|bytes| u32::from_be_bytes(*bytes));
        return Some(Incoming::VersionNegotiation(versions.collect()));
    }
    let kind = first >> 4 & 3;
    if kind == 3 {
        let len = reader.0.len().checked_sub(16)?;
        let token = reader.bytes(len)?;
        return Some(Incoming::Retry { source, token });
    }
    if kind == 0 {
        reader.prefixed()?;
    }
    let len = usize::try_from(reader.number()?).ok()?;
    let number_at = datagram.len() - reader.0.len();
    reader.bytes(len)?;
    Some(Incoming::Long {
        kind,
        source,
        number_at,
        end: number_at + len,
    })
}
