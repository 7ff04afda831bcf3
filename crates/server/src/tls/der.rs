//! Just enough DER to find the public key of a certificate. A full parser of RFC 5280 would refuse version 1
//! certificates, which small private authorities make and clients accept.

const SEQUENCE: u8 = 0x30;
/// Constructed, context-specific, number 0.
const VERSION: u8 = 0xa0;

/// The SubjectPublicKeyInfo of a certificate (RFC 5280 §4.1), as a whole element.
pub(super) fn subject_public_key_info(certificate: &[u8]) -> Option<&[u8]> {
    let (certificate, _) = element(certificate)?;
    let (tbs, _) = element(certificate.content_of(SEQUENCE)?)?;
    let mut rest = tbs.content_of(SEQUENCE)?;
    if rest.first() == Some(&VERSION) {
        rest = element(rest)?.1;
    }
    // serialNumber, signature, issuer, validity, subject
    for _ in 0..5 {
        rest = element(rest)?.1;
    }
    let (info, _) = element(rest)?;
    info.content_of(SEQUENCE)?;
    Some(info.whole)
}

/// Compares two SubjectPublicKeyInfos. The algorithm's parameters may be left out or NULL for RSA (RFC 4055 §1.2), so
/// the algorithm is compared by its identifier and, where the identifier does not say it all, by its parameters.
pub(super) fn same_public_key(one: &[u8], other: &[u8]) -> bool {
    match (PublicKey::parse(one), PublicKey::parse(other)) {
        (Some(one), Some(other)) => {
            one.key == other.key
                && one.algorithm == other.algorithm
                && (one.parameters == other.parameters
                    || (one.has_no_parameters() && other.has_no_parameters()))
        }
        _ => false,
    }
}

struct PublicKey<'a> {
    algorithm: &'a [u8],
    parameters: &'a [u8],
    key: &'a [u8],
}

impl<'a> PublicKey<'a> {
    fn parse(info: &'a [u8]) -> Option<Self> {
        let (info, _) = element(info)?;
        let (algorithm, rest) = element(info.content_of(SEQUENCE)?)?;
        let (identifier, parameters) = element(algorithm.content_of(SEQUENCE)?)?;
        Some(Self {
            algorithm: identifier.whole,
            parameters,
            key: element(rest)?.0.whole,
        })
    }

    fn has_no_parameters(&self) -> bool {
        matches!(self.parameters, [] | [0x05, 0x00])
    }
}

/// One element: its tag and content within its whole encoding.
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    whole: &'a [u8],
}

impl<'a> Element<'a> {
    fn content_of(&self, tag: u8) -> Option<&'a [u8]> {
        (self.tag == tag).then_some(self.content)
    }
}

/// Takes one element off the front; tags above 30 do not occur.
fn element(input: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let (&[tag, first], rest) = input.split_first_chunk()?;
    let (len, header_len) = match first {
        0..=0x7f => (usize::from(first), 2),
        0x81..=0x83 => {
            let octets = usize::from(first & 0x7f);
            let len = rest
                .get(..octets)?
                .iter()
                .fold(0, |len, octet| len << 8 | usize::from(*octet));
            (len, 2 + octets)
        }
        _ => return None,
    };
    let (whole, rest) = input.split_at_checked(header_len + len)?;
    let content = &whole[header_len..];
    Some((
        Element {
            tag,
            content,
            whole,
        },
        rest,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_the_sixth_element_after_the_version() {
        // SEQUENCE { SEQUENCE { [0] {}, five NULLs, SEQUENCE { NULL } } }
        let certificate = [
            0x30, 0x12, 0x30, 0x10, 0xa0, 0, 5, 0, 5, 0, 5, 0, 5, 0, 5, 0, 0x30, 2, 5, 0,
        ];
        assert_eq!(
            subject_public_key_info(&certificate),
            Some(&[0x30, 2, 5, 0][..])
        );
        // Version 1 has no version.
        let version1 = [&[0x30, 0x10, 0x30, 0x0e][..], &certificate[6..]].concat();
        assert_eq!(
            subject_public_key_info(&version1),
            Some(&[0x30, 2, 5, 0][..])
        );
        for len in 0..certificate.len() {
            assert_eq!(subject_public_key_info(&certificate[..len]), None);
        }
    }

    #[test]
    fn lengths_are_of_up_to_three_octets() {
        let whole_len = |header: &[u8], content: usize| {
            let input = [header, &vec![0; content]].concat();
            element(&input).map(|(element, _)| element.whole.len())
        };
        assert_eq!(whole_len(&[4, 0x7f], 0x7f), Some(0x81));
        assert_eq!(whole_len(&[4, 0x81, 0x80], 0x80), Some(0x83));
        assert_eq!(whole_len(&[4, 0x82, 1, 0], 0x100), Some(0x104));
        assert_eq!(whole_len(&[4, 0x83, 1, 0, 0], 0x10000), Some(0x10005));
        assert_eq!(whole_len(&[4, 0x84, 0, 0, 0, 1], 1), None);
        assert_eq!(whole_len(&[4, 0x80], 9), None);
        assert_eq!(whole_len(&[4, 0x82, 1, 0], 0xff), None);
    }

    #[test]
    fn absent_parameters_equal_null_ones() {
        let info = |parameters: &[u8]| {
            let algorithm = [&[6, 1, 9][..], parameters].concat();
            let len = u8::try_from(algorithm.len()).unwrap();
            let algorithm = [&[0x30, len][..], &algorithm].concat();
            let content = [&algorithm[..], &[3, 1, 7]].concat();
            [&[0x30, u8::try_from(content.len()).unwrap()][..], &content].concat()
        };
        assert!(same_public_key(&info(&[]), &info(&[5, 0])));
        assert!(same_public_key(&info(&[6, 1, 1]), &info(&[6, 1, 1])));
        assert!(!same_public_key(&info(&[6, 1, 1]), &info(&[6, 1, 2])));
        assert!(!same_public_key(&info(&[]), &info(&[6, 1, 2])));
        assert!(!same_public_key(&[], &[]));
    }
}
