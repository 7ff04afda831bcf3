//! `cache-digest` request fields (draft-ietf-httpbis-cache-digest), by which clients list their cached resources.

use aws_lc_rs::digest;
use h2o_http::base64url;

use super::golomb::BitReader;

/// Most letters of one digest. Longer digests are skipped, as are further digests and numbers beyond
/// [`MAX_ALL_LETTERS`], [`MAX_DIGESTS`] and [`MAX_NUMBERS`], so that a client cannot make the server use much memory.
const MAX_LETTERS: usize = 8192;
/// Most letters of all digests of a request. Further digests are ignored: with header compression a client can repeat
/// such fields cheaply, while each letter costs the server the same every time.
const MAX_ALL_LETTERS: usize = 32 * 1024;
/// Most digests that are read of a request.
const MAX_DIGESTS: usize = 8;
/// Most numbers that are read of all digests of a request.
const MAX_NUMBERS: usize = 16_384;

/// The digests of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Digests of the URLs of cached, fresh resources.
    fresh: Vec<Digest>,
    /// Whether the request has a digest that could be read.
    is_present: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Digest {
    /// How many bits the first 64 bits of a hash are shifted to the right for a lookup.
    shift: u32,
    /// The numbers in the digest, in ascending order.
    numbers: Vec<u64>,
}

impl Digests {
    /// Reads the `cache-digest` fields of a request.
    pub fn parse<'a>(fields: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut digests = Self::default();
        let mut left = MAX_ALL_LETTERS;
        for field in fields {
            for element in field.split(|&byte| byte == b',') {
                // The comma after an element counts towards the limit, too.
                let Some(rest) = left.checked_sub(element.len() + 1) else {
                    return digests;
                };
                left = rest;
                digests.add(element.trim_ascii());
            }
        }
        digests
    }

    /// Whether the request has a digest that could be read.
    pub fn is_present(&self) -> bool {
        self.is_present
    }

    /// Whether the client has cached the resource at `url` (`scheme://authority/path?query`).
    pub fn is_fresh(&self, url: &[u8]) -> bool {
        if self.fresh.is_empty() {
            return false;
        }
        let hash = digest::digest(&digest::SHA256, url);
        let first = hash.as_ref().first_chunk::<8>();
        let word = first.map_or(0, |first| u64::from_be_bytes(*first));
        self.fresh.iter().any(|digest| {
            // If the digest has no bits for a number, all bits are shifted out.
            let number = word.checked_shr(digest.shift).unwrap_or(0);
            digest.numbers.binary_search(&number).is_ok()
        })
    }

    fn add(&mut self, element: &[u8]) {
        let mut parts = element.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let data = parts.next().unwrap_or_default();
        let (mut reset, mut validators) = (false, false);
        for parameter in parts {
            match parameter.to_ascii_lowercase().as_slice() {
                b"reset" => reset = true,
                b"validators" => validators = true,
                // The flag `complete` is ignored: the server pushes the same resources whether or not the digest lists
                // everything that the client has cached.
                b"complete" => {}
                // A digest with another flag, such as `stale`, is ignored: it does not list fresh resources.
                _ => return,
            }
        }
        let used = self.fresh.iter().map(|digest| digest.numbers.len()).sum();
        let Some(digest) = Digest::parse(data, MAX_NUMBERS.saturating_sub(used)) else {
            return;
        };
        if reset {
            self.fresh.clear();
        }
        self.is_present = true;
        // A digest of URLs with entity tags is ignored: the server could look a URL up in it only when the response
        // with the entity tag is known.
        if !validators && self.fresh.len() < MAX_DIGESTS {
            self.fresh.push(digest);
        }
    }
}

impl Digest {
    /// Parses the bytes of a digest: 5 bits N, 5 bits P, then a set of numbers of N + P bits whose low P bits are
    /// written as they are.
    fn parse(data: &[u8], max_numbers: usize) -> Option<Self> {
        if data.is_empty() || data.len() > MAX_LETTERS {
            return None;
        }
        let bytes = base64url::decode(data)?;
        let mut reader = BitReader::new(&bytes);
        let size = u32::try_from(reader.bits(5)?).ok()?;
        let probability = u32::try_from(reader.bits(5)?).ok()?;
        let bits = size + probability;
        let mut numbers = Vec::new();
        let mut count = 0;
        reader.numbers(probability, 1 << bits, |number| {
            count += 1;
            if count <= max_numbers {
                numbers.push(number);
            }
        })?;
        (count <= max_numbers).then_some(Self {
            shift: 64 - bits,
            numbers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::golomb::encode;
    use super::*;

    fn parse(fields: &[&str]) -> Digests {
        Digests::parse(fields.iter().map(|field| field.as_bytes()))
    }

    /// Creates the text of the digest of `urls`, as the specification describes it, with string operations.
    fn digest_of(urls: &[&str], size: u32, probability: u32) -> String {
        let mut numbers: Vec<u64> = urls
            .iter()
            .map(|url| {
                let hash = digest::digest(&digest::SHA256, url.as_bytes());
                let word = u64::from_be_bytes(*hash.as_ref().first_chunk().unwrap());
                word.checked_shr(64 - size - probability).unwrap_or(0)
            })
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        let set = encode(numbers.into_iter(), probability);
        let bits: String = [format!("{size:05b}{probability:05b}")]
            .into_iter()
            .chain(set.iter().map(|byte| format!("{byte:08b}")))
            .collect();
        let bytes: Vec<u8> = bits
            .as_bytes()
            .chunks(8)
            .map(|bits| {
                let text = format!("{:0<8}", std::str::from_utf8(bits).unwrap());
                u8::from_str_radix(&text, 2).unwrap()
            })
            .collect();
        base64url::encode(&bytes)
    }

    #[test]
    fn a_digest_is_as_worked_out_by_hand() {
        // SHA-256 of "https://a.test/" begins with FIRST. N = 0, P = 7: its first 7 bits, written as they are.
        let first = digest::digest(&digest::SHA256, b"https://a.test/").as_ref()[0];
        let number = first >> 1;
        // The bits are 00000 00111 1 nnnnnnn and 6 bits of padding.
        let bytes = [0b0000_0001, 0b1110_0000 | number >> 2, number << 6];
        let digests = parse(&[&base64url::encode(&bytes)]);
        assert!(digests.is_fresh(b"https://a.test/"));
        assert_eq!(
            digests.fresh,
            [Digest {
                shift: 57,
                numbers: vec![number.into()]
            }]
        );
    }

    #[test]
    fn what_is_in_a_digest_is_fresh_and_little_else() {
        let urls: Vec<String> = (0..100).map(|n| format!("https://a.test/{n}?q")).collect();
        let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
        for (size, probability) in [(7, 7), (6, 20), (7, 31), (7, 0), (0, 0)] {
            let digests = parse(&[&digest_of(&urls, size, probability)]);
            assert!(digests.is_present());
            for url in &urls {
                assert!(
                    digests.is_fresh(url.as_bytes()),
                    "{url} {size} {probability}"
                );
            }
            let others = (0..1000)
                .filter(|n| digests.is_fresh(format!("https://b.test/{n}").as_bytes()))
                .count();
            // About one in 2^P other URLs is mistaken for a URL in the digest.
            assert!(
                probability < 7 || others < 30,
                "{others} {size} {probability}"
            );
        }
    }

    #[test]
    fn parameters_say_what_a_digest_is_good_for() {
        let (a, b) = ("https://h/a", "https://h/b");
        let (da, db) = (digest_of(&[a], 1, 20), digest_of(&[b], 1, 20));
        let cases = [
            (format!("{da}, {db}"), true, true, true),
            (format!("{da};complete ; RESET,{db} "), true, true, true),
            (format!("{da}, {db}; reset"), false, true, true),
            (format!("{da}; validators, {db}"), false, true, true),
            (format!("{da}; validators"), false, false, true),
            (format!("{da}; stale, {db}"), false, true, true),
            (format!("{da}; x"), false, false, false),
            (format!("{da}, {db}!; reset"), true, false, true),
            (String::new(), false, false, false),
            ("A, AA, =".to_owned(), false, false, false),
        ];
        for (field, fresh_a, fresh_b, present) in cases {
            let digests = parse(&[&field]);
            let got = (
                digests.is_fresh(a.as_bytes()),
                digests.is_fresh(b.as_bytes()),
            );
            assert_eq!(
                (got, digests.is_present()),
                ((fresh_a, fresh_b), present),
                "{field}"
            );
        }
        let two_fields = parse(&[&da, &db]);
        assert!(two_fields.is_fresh(a.as_bytes()) && two_fields.is_fresh(b.as_bytes()));
    }

    #[test]
    fn a_client_cannot_make_us_keep_more_than_the_limits() {
        // N = 31, P = 0: every 1 bit is a number.
        let dense = |letters: usize| format!("-A{}", "_".repeat(letters - 2));
        let kept = |digests: &Digests| -> usize {
            digests
                .fresh
                .iter()
                .map(|digest| digest.numbers.len())
                .sum()
        };
        assert_eq!(kept(&parse(&[&dense(400)])), 400 * 6 - 12);
        assert_eq!(parse(&[&dense(MAX_LETTERS)]), Digests::default());
        let field = vec![dense(1000); 20].join(",");
        let digests = parse(&[&field]);
        assert_eq!(kept(&digests), 2 * (1000 * 6 - 12));
        let field = vec![dense(100); 20].join(",");
        assert_eq!(parse(&[&field]).fresh.len(), MAX_DIGESTS);
        let long = digest_of(&["u"], 1, 20) + &"A".repeat(MAX_LETTERS);
        assert!(!parse(&[&long]).is_present());
        // A digest after the limit of letters is not read.
        let digest = digest_of(&["https://a.test/"], 1, 20);
        let space = "?".repeat(MAX_ALL_LETTERS - digest.len() - 2);
        for (space, want) in [(space.clone(), true), (space + "?", false)] {
            assert_eq!(parse(&[&space, &digest]).is_present(), want);
        }
    }
}
