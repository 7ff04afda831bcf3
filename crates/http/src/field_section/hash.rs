//! Hashes of fields. By them the encoders of HPACK and QPACK find the entries of their dynamic tables.

use super::Pseudo;
use crate::Name;

/// The hash by which an encoder finds a regular field in its dynamic table. A caller that sends a field often may store its
/// hash.
#[inline]
#[must_use]
pub fn field_hash(name: Name<'_>, value: &[u8]) -> u32 {
    let seed = match name {
        Name::Known(known) => known as u64,
        Name::Other(text) => u64::from(hash_from(0x200, text.as_bytes())),
    };
    // Adding 0x100 keeps the seeds of regular fields apart from those of pseudo-header fields, which are smaller.
    hash_from(0x100 + seed, value)
}

/// The hash of a pseudo-header field. A regular field has the same hash only by chance.
#[inline]
#[must_use]
pub fn pseudo_hash(name: Pseudo, value: &[u8]) -> u32 {
    hash_from(name as u64, value)
}

/// A hash of `text`. It need not be strong: an entry found by hash is compared with the field, and hash chains are short.
#[inline]
fn hash_from(seed: u64, text: &[u8]) -> u32 {
    let mut hash = mix(seed ^ (text.len() as u64) << 32);
    if let Some(last) = text.last_chunk::<8>() {
        for word in text.as_chunks::<8>().0 {
            hash = mix(hash ^ u64::from_le_bytes(*word));
        }
        hash = mix(hash ^ u64::from_le_bytes(*last));
    } else if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        let word = u64::from(u32::from_le_bytes(*first)) << 32;
        hash = mix(hash ^ (word | u64::from(u32::from_le_bytes(*last))));
    } else {
        let word = text
            .iter()
            .fold(0, |word, &byte| word << 8 | u64::from(byte));
        hash = mix(hash ^ word);
    }
    let [a, b, c, d, ..] = (hash ^ hash >> 32).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Multiplies and combines both halves of the product, so that every bit of `word` influences high and low bits of the
/// result.
#[inline]
fn mix(word: u64) -> u64 {
    const ODD: u128 = 0x9e37_79b9_7f4a_7c15;
    let product = u128::from(word) * ODD;
    let halves: [u8; 16] = product.to_le_bytes();
    let (low, high) = halves.split_at(8);
    let half = |bytes: &[u8]| bytes.first_chunk().map_or(0, |o| u64::from_le_bytes(*o));
    half(low) ^ half(high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Known;

    #[test]
    fn fields_that_differ_have_other_hashes() {
        let values = ["", "a", "b", "abcd", "abce", "xbcd", "abcdefgh", "abcdefgi"];
        let long = ["abcdefghijk", "xbcdefghijk", "abcdefghijx", "abcdxfghijk"];
        let mut hashes = std::collections::BTreeSet::new();
        let mut count = 0;
        for value in values.into_iter().chain(long).map(str::as_bytes) {
            let names = [
                Name::Known(Known::Age),
                Name::Known(Known::Via),
                Name::Other("x"),
                Name::Other("y"),
            ];
            let fields = names.into_iter().map(|name| field_hash(name, value));
            let pseudo = [Pseudo::Path, Pseudo::Method].map(|name| pseudo_hash(name, value));
            for hash in fields.chain(pseudo) {
                hashes.insert(hash);
                count += 1;
            }
        }
        assert_eq!(hashes.len(), count);
    }
}
