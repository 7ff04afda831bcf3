//! The messages between the server and the key process.

use rustls::{SignatureAlgorithm, SignatureScheme};

/// Length in bytes of the longest message; what TLS signs is a few hundred bytes long.
pub(crate) const LONGEST: usize = 16 * 1024;

/// The first byte of an answer from the key process. After [`DONE`] follows what the server asked for, after
/// [`REFUSED`] the reason of the refusal.
pub(crate) const DONE: u8 = 1;
pub(crate) const REFUSED: u8 = 0;

/// First bytes of the orders that the main thread of the server sends to the key process.
pub(crate) mod order {
    /// The order to read a key from the descriptor that comes with it. The answer is a [`super::KeyFacts`].
    pub(crate) const LOAD: u8 = b'l';
    /// The order to forget the key whose number follows.
    pub(crate) const FORGET: u8 = b'f';
    /// The order to sign for a thread of the server: its requests come over the channel whose descriptor is sent with it.
    pub(crate) const SIGN_FOR: u8 = b's';
    /// The order to run as the user and the group whose numbers follow.
    pub(crate) const SWITCH_USER: u8 = b'u';
}

/// Signature schemes that keys may use, in the order in which rustls prefers them.
const SCHEMES: [SignatureScheme; 10] = [
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PKCS1_SHA512,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED25519,
];

/// What the key process tells the server about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyFacts {
    pub(crate) number: u32,
    pub(crate) algorithm: SignatureAlgorithm,
    pub(crate) schemes: Vec<SignatureScheme>,
    /// The public key: SubjectPublicKeyInfo in DER form.
    pub(crate) public_key: Vec<u8>,
}

impl KeyFacts {
    pub(crate) fn of(number: u32, key: &dyn rustls::sign::SigningKey) -> Option<Self> {
        let can = |scheme: &SignatureScheme| key.choose_scheme(&[*scheme]).is_some();
        Some(Self {
            number,
            algorithm: key.algorithm(),
            schemes: SCHEMES.into_iter().filter(can).collect(),
            public_key: key.public_key()?.to_vec(),
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![DONE];
        out.extend(self.number.to_be_bytes());
        out.push(self.algorithm.into());
        out.push(u8::try_from(self.schemes.len()).unwrap_or(u8::MAX));
        for scheme in &self.schemes {
            out.extend(u16::from(*scheme).to_be_bytes());
        }
        out.extend(&self.public_key);
        out
    }

    /// Reads the facts from an answer of the key process, without its first byte.
    pub(crate) fn parse(answer: &[u8]) -> Option<Self> {
        let (number, rest) = answer.split_first_chunk()?;
        let (&[algorithm, count], rest) = rest.split_first_chunk()?;
        let (schemes, public_key) = rest.split_at_checked(usize::from(count) * 2)?;
        let schemes = schemes.chunks_exact(2);
        Some(Self {
            number: u32::from_be_bytes(*number),
            algorithm: algorithm.into(),
            schemes: schemes
                .map(|pair| u16::from_be_bytes([pair[0], pair[1]]).into())
                .collect(),
            public_key: public_key.to_vec(),
        })
    }
}

/// A request of a thread of the server to sign data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SignRequest<'a> {
    pub(crate) number: u32,
    pub(crate) scheme: SignatureScheme,
    pub(crate) message: &'a [u8],
}

impl<'a> SignRequest<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(6 + self.message.len());
        out.extend(self.number.to_be_bytes());
        out.extend(u16::from(self.scheme).to_be_bytes());
        out.extend(self.message);
        out
    }

    pub(crate) fn parse(request: &'a [u8]) -> Option<Self> {
        let (number, rest) = request.split_first_chunk()?;
        let (scheme, message) = rest.split_first_chunk()?;
        Some(Self {
            number: u32::from_be_bytes(*number),
            scheme: u16::from_be_bytes(*scheme).into(),
            message,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in_and_may_be_cut_anywhere() {
        let facts = KeyFacts {
            number: 0x0102_0304,
            algorithm: SignatureAlgorithm::ECDSA,
            schemes: vec![
                SignatureScheme::ECDSA_NISTP256_SHA256,
                SignatureScheme::ED25519,
            ],
            public_key: vec![1, 2, 3],
        };
        let encoded = facts.encode();
        assert_eq!(KeyFacts::parse(&encoded[1..]), Some(facts));
        for len in 0..9 {
            assert_eq!(KeyFacts::parse(&encoded[1..1 + len]), None, "{len}");
        }
        let request = SignRequest {
            number: 7,
            scheme: SignatureScheme::RSA_PSS_SHA256,
            message: b"message",
        };
        let encoded = request.encode();
        assert_eq!(SignRequest::parse(&encoded), Some(request));
        for len in 0..6 {
            assert_eq!(SignRequest::parse(&encoded[..len]), None, "{len}");
        }
    }
}
