//! Names in SNI (RFC 6066 §3) that are not valid host names: with a port, a wildcard, a leading hyphen, consecutive dots, or
//! arbitrary bytes. Some clients send such names, and OpenSSL ignores them; rustls ends the handshake. In this server, such a name
//! counts as absent.
//!
//! rustls has no option to ignore the name, so the extension is hidden from rustls: its type is overwritten in the ClientHello
//! with a private-use type, which rustls ignores like any unknown type (RFC 8446 §4.2). The rest of the message, including its
//! length, is unchanged. But both sides must hash the same messages (RFC 8446 §4.4.1), so the type must be restored before rustls
//! hashes a ClientHello. rustls takes its hash functions from the cipher suites; [`restoring`] creates suites whose hash functions
//! restore the type. In TLS 1.2 a client's signature covers the messages themselves (RFC 5246 §7.4.8): [`RestoringVerifier`]
//! restores the type there.
//!
//! The cipher suites of [`restoring`] are used only for connections with a hidden name. Otherwise an attacker between client and
//! server could hide the name of any client in the same way, unnoticed by both.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CipherSuiteCommon;
use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;
use rustls::crypto::hash::{Context, Hash, HashAlgorithm, Output};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, SignatureScheme, SupportedCipherSuite,
    Tls12CipherSuite, Tls13CipherSuite,
};

use crate::quic_keys::with_small_keys;
use crate::server::client_hello::{CLIENT_HELLO, extension, extension_at};

/// The extension type that replaces `server_name` in a ClientHello, one of those for private use (RFC 8446 §11).
const HIDDEN: u16 = 0xff5a;

/// Position in a ClientHello of the type of a `server_name` extension that must be hidden; `None` if rustls accepts the name, or
/// if the extension is malformed in a way that rustls should refuse. `message` begins with the HandshakeType.
pub(crate) fn hidden_name_at(message: &[u8], data: &[u8]) -> Option<usize> {
    let name = only_host_name(data)?;
    // rustls makes the same check of a server name.
    let is_odd = ServerName::try_from(name).is_err();
    if !is_odd || extension_at(message, HIDDEN).is_some() {
        return None;
    }
    extension_at(message, extension::SERVER_NAME)
}

/// The host name in a ServerNameList that has no other entries.
fn only_host_name(data: &[u8]) -> Option<&[u8]> {
    let (list_len, list) = data.split_first_chunk::<2>()?;
    let (&[0, high, low], name) = list.split_first_chunk()? else {
        return None;
    };
    let is_whole = usize::from(u16::from_be_bytes(*list_len)) == list.len()
        && usize::from(u16::from_be_bytes([high, low])) == name.len();
    is_whole.then_some(name)
}

/// Hides the server name in a ClientHello; `at` is the result of [`hidden_name_at`].
pub(crate) fn hide(message: &mut [u8], at: usize) {
    message[at..at + 2].copy_from_slice(&HIDDEN.to_be_bytes());
}

/// The bytes before and after the type of a hidden name, if `message` is a ClientHello with a hidden name. Its end may be missing:
/// the binders of a PSK cover the bytes before them (RFC 8446 §4.2.11.2).
fn around_hidden(message: &[u8]) -> Option<(&[u8], &[u8])> {
    if message.first() != Some(&CLIENT_HELLO) {
        return None;
    }
    let at = extension_at(message, HIDDEN)?;
    Some((&message[..at], &message[at + 2..]))
}

/// Returns `message` as the client sent it: with the type of a hidden `server_name` restored.
pub(crate) fn restored(message: &[u8]) -> Cow<'_, [u8]> {
    match around_hidden(message) {
        Some((before, behind)) => [before, &SERVER_NAME, behind].concat().into(),
        None => message.into(),
    }
}

const SERVER_NAME: [u8; 2] = extension::SERVER_NAME.to_be_bytes();

/// Returns `suite` with a hash function that hashes hidden names as the client sent them.
pub(crate) fn restoring(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    static SUITES: LazyLock<Vec<SupportedCipherSuite>> = LazyLock::new(|| {
        let suites = ALL_CIPHER_SUITES.iter().copied();
        suites.map(with_small_keys).map(wrap).collect()
    });
    let wrapped = SUITES
        .iter()
        .find(|wrapped| wrapped.suite() == suite.suite());
    wrapped.copied().unwrap_or(suite)
}

/// Makes the changed suite. To be called once per suite: rustls needs references that stay valid for ever, so the memory is never
/// freed.
fn wrap(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    let common = |common: &CipherSuiteCommon| CipherSuiteCommon {
        suite: common.suite,
        hash_provider: Box::leak(Box::new(RestoringHash(common.hash_provider))),
        confidentiality_limit: common.confidentiality_limit,
    };
    match suite {
        SupportedCipherSuite::Tls13(suite) => {
            SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                common: common(&suite.common),
                hkdf_provider: suite.hkdf_provider,
                aead_alg: suite.aead_alg,
                quic: suite.quic,
            })))
        }
        SupportedCipherSuite::Tls12(suite) => {
            SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite {
                common: common(&suite.common),
                prf_provider: suite.prf_provider,
                kx: suite.kx,
                sign: suite.sign,
                aead_alg: suite.aead_alg,
            })))
        }
    }
}

/// A hash function for handshake messages that restores hidden names. rustls passes it one message at a time.
struct RestoringHash(&'static dyn Hash);

impl Hash for RestoringHash {
    fn start(&self) -> Box<dyn Context> {
        Box::new(RestoringContext(self.0.start()))
    }

    fn hash(&self, data: &[u8]) -> Output {
        self.0.hash(data)
    }

    fn output_len(&self) -> usize {
        self.0.output_len()
    }

    fn algorithm(&self) -> HashAlgorithm {
        self.0.algorithm()
    }

    fn fips(&self) -> bool {
        self.0.fips()
    }
}

struct RestoringContext(Box<dyn Context>);

impl Context for RestoringContext {
    fn fork_finish(&self) -> Output {
        self.0.fork_finish()
    }

    fn fork(&self) -> Box<dyn Context> {
        Box::new(Self(self.0.fork()))
    }

    fn finish(self: Box<Self>) -> Output {
        self.0.finish()
    }

    fn update(&mut self, data: &[u8]) {
        match around_hidden(data) {
            Some((before, behind)) => {
                self.0.update(before);
                self.0.update(&SERVER_NAME);
                self.0.update(behind);
            }
            None => self.0.update(data),
        }
    }
}

/// Verifies a client's signature over handshake messages as the client sent them, with hidden names restored.
#[derive(Debug)]
pub(crate) struct RestoringVerifier(pub(super) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for RestoringVerifier {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(&restored(message), cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.0.requires_raw_public_keys()
    }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs::cipher_suite;

    use super::*;

    fn vector16(content: &[u8]) -> Vec<u8> {
        let len = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&len[..], content].concat()
    }

    fn server_name(name: &[u8]) -> Vec<u8> {
        vector16(&[&[0][..], &vector16(name)].concat())
    }

    /// Makes a ClientHello with these extensions.
    fn hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([3, 1, 2, 3, 0, 2, 0x13, 1, 1, 0]);
        let extensions = extensions.iter().flat_map(|(number, content)| {
            let number = number.to_be_bytes().to_vec();
            number.into_iter().chain(vector16(content))
        });
        body.extend(vector16(&extensions.collect::<Vec<_>>()));
        let len = u16::try_from(body.len()).unwrap().to_be_bytes();
        [&[1, 0, len[0], len[1]][..], &body].concat()
    }

    #[test]
    fn only_names_that_rustls_refuses_are_odd() {
        let is_odd = |name: &[u8]| {
            let data = server_name(name);
            hidden_name_at(&hello(&[(0, data.clone())]), &data).is_some()
        };
        for name in [
            &b"localhost:8443"[..],
            b"*.example.com",
            b"-bad.example",
            b"a..b",
            b"b\xc3\xbccher.example",
            b"b\xfccher.example",
            b"a b",
            b"",
            b".",
            b"[::1]",
            b"nul\0",
            &[b'a'; 300],
        ] {
            assert!(is_odd(name), "{}", name.escape_ascii());
        }
        for name in [
            &b"localhost"[..],
            b"foo_bar",
            b"WWW.Example.Com",
            b"a.test.",
            b"192.0.2.1",
            b"2001:db8::1",
        ] {
            assert!(!is_odd(name), "{}", name.escape_ascii());
        }
    }

    #[test]
    fn malformed_lists_stay_for_rustls_to_refuse() {
        let odd = server_name(b"a:1");
        let two = vector16(&[&odd[2..], &odd[2..]].concat());
        let of_other_type = vector16(&[&[1][..], &vector16(b"a:1")].concat());
        let longer = [&odd[..], &[0]].concat();
        let shorter = odd[..odd.len() - 1].to_vec();
        for data in [two, of_other_type, longer, shorter, Vec::new()] {
            assert_eq!(hidden_name_at(&hello(&[(0, data.clone())]), &data), None);
        }
        // In this ClientHello, the client itself uses the private-use extension type with which names are hidden, so its name
        // cannot be hidden.
        let message = hello(&[(0, odd.clone()), (HIDDEN, vec![1])]);
        assert_eq!(hidden_name_at(&message, &odd), None);
    }

    #[test]
    fn hidden_names_are_digested_as_they_were_sent() {
        let odd = server_name(b"localhost:8443");
        let filler = |len: usize| (21, vec![9; len]);
        for suite in [
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        ] {
            let hash = |suite: SupportedCipherSuite| match suite {
                SupportedCipherSuite::Tls13(suite) => suite.common.hash_provider,
                SupportedCipherSuite::Tls12(suite) => suite.common.hash_provider,
            };
            let (plain, wrapped) = (hash(suite), hash(restoring(suite)));
            for message in [
                hello(&[(0, odd.clone())]),
                hello(&[filler(0), (0, odd.clone()), filler(500)]),
                hello(&[filler(3), (10, vec![0xff, 0x5a]), (0, odd.clone())]),
            ] {
                let at = hidden_name_at(&message, &odd).unwrap();
                let mut hidden = message.clone();
                hide(&mut hidden, at);
                assert_eq!(hidden.len(), message.len());
                assert_eq!(extension_at(&hidden, extension::SERVER_NAME), None);
                // The ClientHello is cut anywhere after the server name, as it is for the hash of PSK binders, and is followed by
                // more messages.
                for len in at + 4 + odd.len()..=message.len() {
                    let mut context = wrapped.start();
                    context.update(&hidden[..len]);
                    context.update(b"\x02 and more");
                    let mut want = plain.start();
                    want.update(&message[..len]);
                    want.update(b"\x02 and more");
                    let forked = context.fork().finish();
                    assert_eq!(forked.as_ref(), want.fork_finish().as_ref());
                    assert_eq!(context.finish().as_ref(), want.finish().as_ref());
                }
            }
        }
    }

    #[test]
    fn other_messages_are_digested_as_they_are() {
        let message = hello(&[(0, server_name(b"a.test")), (21, vec![0xff, 0x5a, 0, 0])]);
        assert!(around_hidden(&message).is_none());
        let mut other = hello(&[(HIDDEN, server_name(b"a:1"))]);
        assert!(around_hidden(&other).is_some());
        other[0] = 2;
        assert!(around_hidden(&other).is_none());
    }
}
