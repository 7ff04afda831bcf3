//! QUIC packets and their protection (RFC 9000 §17, RFC 9001 §5).

use rustls::quic::{HeaderProtectionKey, PacketKey};

use super::frame::Reader;
use crate::http3::varint;

/// The number of QUIC version 1.
pub const VERSION_1: u32 = 1;

/// Length in bytes of the packet number in each packet that the client sends.
const NUMBER: usize = 4;

/// The kind of a packet, with the part of its header that depends on the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header<'a> {
    /// An Initial packet with this token.
    Initial(&'a [u8]),
    /// A 0-RTT packet, for early data.
    ZeroRtt,
    /// A Handshake packet.
    Handshake,
    /// A packet with a short header, whose key phase bit is this.
    Short(bool),
}

/// Encodes a long header up to the token or the length; `kind` holds the two bits of the packet's type.
#[must_use]
pub fn long_header(kind: u8, version: u32, destination: &[u8], source: &[u8]) -> Vec<u8> {
    // The lowest two bits say that the packet number has four bytes.
    let mut header = vec![0xc0 | kind << 4 | 3];
    header.extend(version.to_be_bytes());
    for id in [destination, source] {
        header.push(u8::try_from(id.len()).expect("a connection id has at most 20 bytes"));
        header.extend(id);
    }
    header
}

/// Encodes the header before the packet number, for a payload of this length before encryption.
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
    let len = u16::try_from(NUMBER + payload).expect("a packet is shorter than 2^14 bytes");
    header.extend((0x4000 | len).to_be_bytes());
    header
}

/// Makes a whole packet: header, encrypted payload, header protection.
pub(super) fn seal(
    protection: &dyn HeaderProtectionKey,
    key: &dyn PacketKey,
    number: u64,
    mut packet: Vec<u8>,
    frames: &[u8],
) -> Vec<u8> {
    let number_at = packet.len();
    let low = u32::try_from(number & 0xffff_ffff).expect("the packet number was cut to 32 bits");
    packet.extend(low.to_be_bytes());
    let mut payload = frames.to_vec();
    let tag = (key.encrypt_in_place(number, &packet, &mut payload))
        .expect("a packet is shorter than 2^14 bytes");
    packet.extend(payload);
    packet.extend(tag.as_ref());
    let sample_at = number_at + NUMBER;
    let sample = packet[sample_at..sample_at + protection.sample_len()].to_vec();
    let (first, rest) = packet.split_at_mut(1);
    let number = &mut rest[number_at - 1..number_at - 1 + NUMBER];
    (protection.encrypt_in_place(&sample, &mut first[0], number))
        .expect("the packet is long enough for the sample");
    packet
}

/// A received packet whose header protection is removed.
pub(super) struct Unprotected {
    header: Vec<u8>,
    payload: Vec<u8>,
    pub(super) number: u64,
    pub(super) phase: bool,
}

/// Removes the header protection of a packet whose packet number begins at `number_at`. `largest` is the largest packet number
/// received so far.
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

/// Completes a truncated packet number: returns the number that is nearest to the expected one (RFC 9000, appendix A.3).
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

/// The first packet of a received datagram.
pub(super) enum Incoming<'a> {
    /// Version Negotiation, with the versions that the server offers.
    VersionNegotiation(Vec<u32>),
    /// Retry, with the connection id that the client must use from now on, and the token that it must send.
    Retry { source: &'a [u8], token: &'a [u8] },
    /// A packet with a long header: Initial (`kind` 0) or Handshake (`kind` 2), with the positions of its packet number and of its
    /// end.
    Long {
        kind: u8,
        source: &'a [u8],
        number_at: usize,
        end: usize,
    },
    /// A packet with a short header; it takes the rest of the datagram.
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
