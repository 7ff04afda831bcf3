//! Entry points for fuzzing: capsules and access control lists.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::Bytes;

use super::acl::{AclEntry, Addresses};
use super::capsule::{self, CapsuleReader, Format};

/// Reads capsules that arrive in these pieces. Returns the payloads found, and whether one was too long.
pub fn datagrams<'a>(
    has_context_ids: bool,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (Vec<Vec<u8>>, bool) {
    let mut reader = CapsuleReader::new(format(has_context_ids));
    let mut found = Vec::new();
    let mut received = 0;
    for piece in pieces {
        received += piece.len();
        let mut piece = Bytes::copy_from_slice(piece);
        loop {
            match reader.next(&mut piece) {
                Ok(Some(payload)) => found.push(payload.to_vec()),
                Ok(None) => break,
                Err(capsule::TooLong) => return (found, true),
            }
        }
        assert!(piece.is_empty(), "`next` consumes all bytes");
        // A length that a peer announces allocates no memory before the bytes arrive.
        assert!(
            reader.retained() <= 2 * received + 16,
            "the reader holds memory only for bytes that have arrived"
        );
    }
    (found, false)
}

/// Writes the capsule that carries this payload.
#[must_use]
pub fn capsule(has_context_id: bool, payload: &[u8]) -> Vec<u8> {
    let mut capsule = Vec::new();
    capsule::begin(format(has_context_id), payload.len(), &mut capsule);
    capsule.extend_from_slice(payload);
    capsule
}

const fn format(has_context_ids: bool) -> Format {
    if has_context_ids {
        Format::ContextId
    } else {
        Format::Bare
    }
}

/// Checks one entry of an access control list: written out in full it parses to the same entry, and it matches the
/// addresses and ports that it names.
pub fn acl(entry: &str) {
    let Ok(entry) = AclEntry::parse(entry) else {
        return;
    };
    let sign = if entry.permits { '+' } else { '-' };
    let (low, high) = (*entry.ports.start(), *entry.ports.end());
    let (address, first): (String, IpAddr) = match entry.addresses {
        Addresses::Any => ("*".to_owned(), Ipv4Addr::LOCALHOST.into()),
        Addresses::V4 { bits, mask } => {
            let first = Ipv4Addr::from_bits(bits);
            (format!("{first}/{}", mask.leading_ones()), first.into())
        }
        Addresses::V6 { bits, mask } => {
            let first = Ipv6Addr::from_bits(bits);
            (format!("[{first}]/{}", mask.leading_ones()), first.into())
        }
    };
    let again = format!("{sign}{address}:{low}-{high}");
    assert_eq!(AclEntry::parse(&again).as_ref(), Ok(&entry), "{again}");
    for port in [low, high] {
        assert!(entry.matches(SocketAddr::new(first, port)), "{again}");
    }
    let beyond = [low.checked_sub(1), high.checked_add(1)];
    for port in beyond.into_iter().flatten() {
        assert!(!entry.matches(SocketAddr::new(first, port)), "{again}");
    }
    // The address whose last bit covered by the mask is inverted, so that the entry does not match it.
    let other: Option<IpAddr> = match entry.addresses {
        Addresses::Any => None,
        Addresses::V4 { bits, mask } => {
            Some(Ipv4Addr::from_bits(bits ^ (mask & mask.wrapping_neg())).into())
        }
        Addresses::V6 { bits, mask } => {
            Some(Ipv6Addr::from_bits(bits ^ (mask & mask.wrapping_neg())).into())
        }
    };
    let is_other = |other| !entry.matches(SocketAddr::new(other, low));
    assert!(other.is_none_or(is_other), "{again}");
}
