//! Raw public keys in the place of certificates (RFC 7250).

use std::sync::Arc;

use rcgen::PublicKeyData;
use rustls::pki_types::CertificateDer;

use super::files::Files;
use super::kit::{Offer, Pair, TLS12, TLS13, Talk, acceptor};
use crate::record::framing::HEADER_LEN;
use crate::{OutputBuffer, Resumption, ResumptionSettings, TlsAcceptor, TlsError, TlsSettings};

/// Makes TLS settings with these identities. Each is a pair of a name, and whether it has a raw public key in the place of a
/// certificate.
fn settings(pairs: &[(&Pair, bool)]) -> TlsSettings {
    let files = Files::new();
    let mut mapping = "identity:\n".to_owned();
    for (at, (pair, is_raw)) in pairs.iter().enumerate() {
        let name = format!("pair{at}");
        let pair = match is_raw {
            true => files.raw_pair(&name, pair),
            false => files.pair(&name, pair),
        };
        mapping += &format!("  - {}\n", pair.trim().replace('\n', "\n    "));
    }
    files.settings(&mapping)
}

fn raw_offer() -> Offer {
    Offer {
        raw_public_keys: true,
        ..Offer::version(TLS13)
    }
}

/// The certificates, or the raw public key, that a client gets from a server with these settings.
fn presented(settings: &TlsSettings, offer: &Offer) -> Vec<CertificateDer<'static>> {
    let talk = Talk::established(&acceptor(settings.clone()), offer);
    let presented = talk.client.peer_certificates();
    presented.unwrap_or_default().to_vec()
}

/// The alert that a client gets from a server with these settings.
fn alert(settings: &TlsSettings, offer: &Offer) -> Vec<u8> {
    let mut talk = Talk::new(&acceptor(settings.clone()), offer, "a.test");
    let mut hello = talk.client_flight();
    let (mut plain, mut out) = (Vec::new(), OutputBuffer::default());
    let received = talk.server.receive(&mut hello, &mut plain, &mut out);
    assert_eq!(received, Err(TlsError::UnsupportedCertificate));
    out.to_vec()
}

/// The record with the alert `unsupported_certificate` (RFC 7250 §4.2).
const UNSUPPORTED_CERTIFICATE: [u8; 7] = [21, 3, 3, 0, 2, 2, 43];

#[test]
fn clients_get_the_type_of_certificate_that_they_take() {
    let (one, other) = (Pair::new("a.test"), Pair::rsa("a.test"));
    let raw = |pair: &Pair| CertificateDer::from(pair.key.subject_public_key_info());
    for pairs in [
        [(&one, true), (&other, false)],
        [(&other, false), (&one, true)],
    ] {
        let both = settings(&pairs);
        assert_eq!(presented(&both, &raw_offer()), [raw(&one)]);
        for versions in [TLS12, TLS13] {
            let found = presented(&both, &Offer::version(versions));
            assert_eq!(found, [other.certificate.der().clone()]);
        }
    }
    // If the server has several raw public keys, the client gets the first that it can verify.
    let two = settings(&[(&other, true), (&one, true)]);
    assert_eq!(presented(&two, &raw_offer()), [raw(&other)]);
    let schemes = vec![rustls::SignatureScheme::ECDSA_NISTP256_SHA256];
    let ecdsa = Offer {
        schemes,
        ..raw_offer()
    };
    assert_eq!(presented(&two, &ecdsa), [raw(&one)]);
}

#[test]
fn clients_without_a_type_in_common_are_told_so() {
    let pair = Pair::new("a.test");
    let raw_only = settings(&[(&pair, true)]);
    for versions in [TLS12, TLS13] {
        let offer = Offer::version(versions);
        assert_eq!(alert(&raw_only, &offer), UNSUPPORTED_CERTIFICATE);
    }
    // Raw public keys are for TLS 1.3 only.
    let tls12 = Offer {
        raw_public_keys: true,
        ..Offer::version(TLS12)
    };
    assert_eq!(alert(&raw_only, &tls12), UNSUPPORTED_CERTIFICATE);
}

#[test]
fn clients_of_quic_get_the_type_of_certificate_that_they_take() {
    let (one, other) = (Pair::new("a.test"), Pair::new("a.test"));
    let both = Arc::new(settings(&[(&one, true), (&other, false)]));
    let resumption = Resumption::new(&ResumptionSettings::default());
    let acceptor = TlsAcceptor::for_quic(&[both], Vec::new(), resumption, &[b"h3"], b"").unwrap();
    for (offer, gets_raw_key) in [(raw_offer(), true), (Offer::version(TLS13), false)] {
        let config = offer.config();
        let name = "a.test".try_into().unwrap();
        let mut client = rustls::ClientConnection::new(config, name).unwrap();
        let mut record = Vec::new();
        client.write_tls(&mut record).unwrap();
        let choice = acceptor.choose_for_quic(&mut record[HEADER_LEN..]);
        let resolver = &choice.config.cert_resolver;
        assert_eq!(resolver.only_raw_public_keys(), gets_raw_key);
    }
}

#[test]
fn nothing_is_stapled_to_a_raw_public_key() {
    let pair = Pair::new("a.test");
    let files = Files::new();
    let mapping = files.raw_pair("pair", &pair) + "ocsp-update-cmd: /bin/false\n";
    assert_eq!(files.settings(&mapping).staples().count(), 0);
    let mapping = files.pair("pair", &pair) + "ocsp-update-cmd: /bin/false\n";
    assert_eq!(files.settings(&mapping).staples().count(), 1);
}
