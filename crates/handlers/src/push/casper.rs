//! CASPer, "cache-aware server push": a cookie that records which resources a client was sent, so that they are not
//! pushed again. A resource is recorded as a few bits of a hash; of two resources with the same bits, the second is not
//! pushed. H2O compatibility: the name, the attributes and the coding of the cookie are the same as H2O's.

use aws_lc_rs::digest;
use h2o_http::base64url;

use super::golomb::{BitReader, encode};

/// The beginning of the server's cookie: its name.
const NAME: &[u8] = b"h2o_casper=";

/// The cookie lists keys (hashes of resources) by the distance from one key to the next. This number of low bits of
/// each distance is written as it is, the high bits in unary.
const LOW_BITS: u32 = 6;

/// A `set-cookie` value that deletes the cookie, for a client that sends cache digests.
pub const FORGET: &str = "h2o_casper=; Path=/; Expires=Sat, 01 Jan 2000 00:00:00 GMT";

/// The resources that a client is assumed to have cached.
#[derive(Clone, Debug)]
pub struct Casper {
    capacity_bits: u32,
    /// The set of recorded keys, with one bit per possible key: 4 KiB for the largest capacity, whatever the cookie
    /// says.
    keys: Box<[u64]>,
}

impl Casper {
    /// Creates an empty set. `capacity_bits` is 1 to 15; other values become the nearest of these.
    pub fn new(capacity_bits: u8) -> Self {
        let capacity_bits = u32::from(capacity_bits.clamp(1, 15));
        let words = (1_usize << capacity_bits).div_ceil(64);
        Self {
            capacity_bits,
            keys: vec![0; words].into(),
        }
    }

    /// Whether a `cookie` field has the server's cookie.
    pub fn is_cookie(field: &[u8]) -> bool {
        field.starts_with(NAME)
    }

    /// Number of bytes of memory that the set holds.
    pub fn retained(&self) -> usize {
        size_of_val(&*self.keys)
    }

    /// Adds the keys of a cookie. A cookie that cannot be decoded, or has keys beyond the capacity, is ignored as a whole.
    pub fn consume_cookie(&mut self, field: &[u8]) {
        let Some(data) = field.strip_prefix(NAME) else {
            return;
        };
        if data.len() > self.longest_data() {
            return;
        }
        let Some(bytes) = base64url::decode(data) else {
            return;
        };
        let limit = 1 << self.capacity_bits;
        let mut keys = self.keys.clone();
        let read = BitReader::new(&bytes).numbers(LOW_BITS, limit, |key| {
            // The conversion always succeeds, because the keys are below `limit`.
            if let Ok(key) = u16::try_from(key) {
                let (word, bit) = place(key);
                keys[word] |= bit;
            }
        });
        if read.is_some() {
            self.keys = keys;
        }
    }

    /// Length in bytes of the longest valid cookie, which has every key: each takes one bit and its low bits, and the
    /// sum of all distances is less than the capacity.
    fn longest_data(&self) -> usize {
        let capacity = 1_usize << self.capacity_bits;
        let bits = capacity * (LOW_BITS as usize + 1) + (capacity >> LOW_BITS);
        bits.div_ceil(8).div_ceil(3) * 4
    }

    /// Records the resource at `path`, which includes the query. Returns whether it was recorded already.
    pub fn lookup_and_add(&mut self, path: &[u8]) -> bool {
        let (word, bit) = place(self.key(path));
        let was_there = self.keys[word] & bit != 0;
        self.keys[word] |= bit;
        was_there
    }

    /// Whether the resource at `path`, which includes the query, is recorded.
    pub fn contains(&self, path: &[u8]) -> bool {
        let (word, bit) = place(self.key(path));
        self.keys[word] & bit != 0
    }

    fn key(&self, path: &[u8]) -> u16 {
        // The hash need not be secure: a client that causes a collision only loses a push.
        let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, path);
        // The key consists of the low bits of the first two bytes of the hash, read as a little-endian number.
        let first = hash.as_ref().first_chunk::<2>();
        let word = first.map_or(0, |first| u16::from_le_bytes(*first));
        word & ((1 << self.capacity_bits) - 1)
    }

    /// The `set-cookie` value that records the set; `None` if it is empty.
    pub fn cookie(&self) -> Option<String> {
        if self.keys.iter().all(|&word| word == 0) {
            return None;
        }
        let keys = (0..1_u16 << self.capacity_bits).filter(|&key| {
            let (word, bit) = place(key);
            self.keys[word] & bit != 0
        });
        let data = base64url::encode(&encode(keys.map(u64::from), LOW_BITS));
        Some(format!(
            "h2o_casper={data}; Path=/; Expires=Tue, 01 Jan 2030 00:00:00 GMT; Secure"
        ))
    }
}

/// The index of the word in `keys` with the bit of a key, and this bit.
fn place(key: u16) -> (usize, u64) {
    (usize::from(key / 64), 1 << (key % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(casper: &Casper) -> String {
        let cookie = casper.cookie().unwrap_or_default();
        let data = cookie.split([';', '=']).nth(1).unwrap_or_default();
        data.to_owned()
    }

    fn consuming(capacity_bits: u8, field: &str) -> Casper {
        let mut casper = Casper::new(capacity_bits);
        casper.consume_cookie(field.as_bytes());
        casper
    }

    #[test]
    fn a_key_is_the_low_bits_of_a_hash() {
        // SHA-1 of "/" begins with 42 09 9b 4a.
        let cases = [(15, 0x0942), (13, 0x0942), (8, 0x42), (6, 2), (1, 0)];
        for (capacity_bits, want) in cases {
            assert_eq!(
                Casper::new(capacity_bits).key(b"/"),
                want,
                "{capacity_bits}"
            );
        }
    }

    #[test]
    fn the_cookie_of_one_path_is_as_worked_out_by_hand() {
        let mut casper = Casper::new(13);
        assert_eq!(casper.cookie(), None);
        assert!(!casper.contains(b"/") && !casper.lookup_and_add(b"/"));
        assert!(casper.lookup_and_add(b"/") && casper.contains(b"/"));
        // The number 0x942 is 37 * 64 + 2: 37 bits 0, a bit 1, then 000010, and 4 bits of padding.
        let bytes = [0, 0, 0, 0, 0b0000_0100, 0b0010_0000];
        assert_eq!(base64url::encode(&bytes), "AAAAAAQg");
        assert_eq!(
            casper.cookie().as_deref(),
            Some("h2o_casper=AAAAAAQg; Path=/; Expires=Tue, 01 Jan 2030 00:00:00 GMT; Secure")
        );
    }

    #[test]
    fn cookies_are_read_back() {
        for capacity_bits in 1..=15 {
            let mut casper = Casper::new(capacity_bits);
            for number in 0..300 {
                casper.lookup_and_add(format!("/{number}?x").as_bytes());
            }
            let back = consuming(capacity_bits, &format!("h2o_casper={}", data(&casper)));
            assert_eq!(back.keys, casper.keys, "{capacity_bits}");
        }
    }

    #[test]
    fn a_full_cookie_is_as_long_as_any() {
        for capacity_bits in 1..=15 {
            let mut casper = Casper::new(capacity_bits);
            let full = if capacity_bits < 6 {
                (1 << (1 << capacity_bits)) - 1
            } else {
                u64::MAX
            };
            casper.keys.fill(full);
            let data = data(&casper);
            assert!(data.len() <= casper.longest_data(), "{capacity_bits}");
            let back = consuming(capacity_bits, &format!("h2o_casper={data}"));
            assert_eq!(back.keys, casper.keys, "{capacity_bits}");
        }
    }

    #[test]
    fn what_is_remembered_is_added_to() {
        let mut casper = Casper::new(13);
        casper.lookup_and_add(b"/a");
        casper.consume_cookie(b"h2o_casper=AAAAAAQg");
        assert!(casper.contains(b"/") && casper.contains(b"/a"));
    }

    #[test]
    fn other_cookies_are_ignored() {
        let long = format!("h2o_casper={}", "A".repeat(100_000));
        let cases = [
            "",
            "h2o_casper",
            "a=b; h2o_casper=AAAAAAQg",
            "h2o_casper=AAAAAAQg; a=b",
            "H2o_casper=AAAAAAQg",
            "h2o_casper=AAAAAAQg=",
            "h2o_casper=AAAAA",
            // The second key is cut off.
            "h2o_casper=gQAB",
            // The distance of 128 times 64 is beyond the capacity of 13 bits.
            "h2o_casper=AAAAAAAAAAAAAAAAAAAAAIA",
            "h2o_casper=",
            &long,
        ];
        for field in cases {
            assert_eq!(consuming(13, field).cookie(), None, "{field}");
        }
        // The same key is accepted or refused depending on the capacity.
        assert!(consuming(12, "h2o_casper=AAAAAAQg").cookie().is_some());
        assert_eq!(consuming(11, "h2o_casper=AAAAAAQg").cookie(), None);
        assert_eq!(data(&consuming(13, "h2o_casper=AAAAAAQg")), "AAAAAAQg");
    }
}
