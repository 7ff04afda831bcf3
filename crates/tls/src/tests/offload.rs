//! Encryption by the kernel (kTLS), with a simulated kernel.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use nix::sys::socket::sockopt::TlsCryptoInfo;
use rustls::SupportedCipherSuite;
use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;

use super::kit::{Offer, Pair, TLS13, Talk, acceptor_with};
use crate::record::kernel::KernelAction;
use crate::{OutputBuffer, Resumption, ResumptionSettings, TlsAcceptor, TlsError};
use std::sync::Arc;

/// Simulates how Linux encrypts records (Documentation/networking/tls.rst, net/tls).
struct Kernel {
    is_tls13: bool,
    is_gcm: bool,
    key: LessSafeKey,
    /// The salt and the IV that follows it.
    iv: [u8; 12],
    sequence: u64,
}

impl Kernel {
    fn new(info: &TlsCryptoInfo) -> Self {
        let (header, algorithm, key, salt, iv, rec_seq): (_, _, &[u8], &[u8], &[u8], _) = match info
        {
            TlsCryptoInfo::Aes128Gcm(info) => (
                &info.info,
                &AES_128_GCM,
                &info.key,
                &info.salt,
                &info.iv,
                info.rec_seq,
            ),
            TlsCryptoInfo::Aes256Gcm(info) => (
                &info.info,
                &AES_256_GCM,
                &info.key,
                &info.salt,
                &info.iv,
                info.rec_seq,
            ),
            TlsCryptoInfo::Chacha20Poly1305(info) => (
                &info.info,
                &CHACHA20_POLY1305,
                &info.key,
                &info.salt,
                &info.iv,
                info.rec_seq,
            ),
        };
        Self {
            is_tls13: header.version == 0x0304,
            is_gcm: header.cipher_type != libc::TLS_CIPHER_CHACHA20_POLY1305,
            key: LessSafeKey::new(UnboundKey::new(algorithm, key).unwrap()),
            iv: [salt, iv].concat().try_into().unwrap(),
            sequence: u64::from_be_bytes(rec_seq),
        }
    }

    fn record(&mut self, content_type: u8, payload: &[u8]) -> Vec<u8> {
        let sequence = self.sequence.to_be_bytes();
        let mut content = payload.to_vec();
        let mut nonce = self.iv;
        let mut prefix = Vec::new();
        if self.is_tls13 || !self.is_gcm {
            for (byte, sequence) in nonce[4..].iter_mut().zip(sequence) {
                *byte ^= sequence;
            }
        } else {
            prefix.extend_from_slice(&nonce[4..]);
            // In TLS 1.2 with AES-GCM, the kernel increments the IV for the next record.
            let vector = u64::from_be_bytes(self.iv[4..].try_into().unwrap());
            self.iv[4..].copy_from_slice(&(vector + 1).to_be_bytes());
        }
        let outer = if self.is_tls13 {
            content.push(content_type);
            23
        } else {
            content_type
        };
        let len = u16::try_from(prefix.len() + content.len() + 16).unwrap();
        let header = [&[outer, 3, 3][..], &len.to_be_bytes()].concat();
        let aad = if self.is_tls13 {
            header.clone()
        } else {
            let len = u16::try_from(content.len()).unwrap().to_be_bytes();
            [&sequence[..], &[content_type, 3, 3], &len].concat()
        };
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key
            .seal_in_place_append_tag(nonce, Aad::from(aad), &mut content)
            .unwrap();
        self.sequence += 1;
        [header, prefix, content].concat()
    }
}

fn acceptor(settings: crate::TlsSettings) -> Arc<TlsAcceptor> {
    let resumption = Resumption::new(&ResumptionSettings::default());
    let acceptor = acceptor_with(settings, &resumption);
    let acceptor = Arc::into_inner(acceptor).unwrap();
    Arc::new(acceptor.offload(true))
}

#[test]
fn the_kernel_does_not_go_on_with_other_records_than_ours() {
    for suite in ALL_CIPHER_SUITES {
        let pair = match suite {
            SupportedCipherSuite::Tls12(suite)
                if format!("{:?}", suite.common.suite).contains("_RSA_") =>
            {
                Pair::rsa("a.test")
            }
            _ => Pair::new("a.test"),
        };
        let mut talk = Talk::established(&acceptor(pair.settings()), &Offer::suite(*suite));
        for text in ["some", "records", "of ours"] {
            talk.server_says(text.as_bytes());
        }
        let (keys, records) = talk.server.kernel_keys().unwrap();
        assert!(records > 1 << 20);
        talk.server.on_handed_over(true);
        let mut kernel = Kernel::new(&keys.0);
        for text in [" and", " of", " the", " kernel"] {
            talk.give_client(&kernel.record(23, text.as_bytes()));
        }
        assert_eq!(talk.heard(), b"somerecordsof ours and of the kernel");
        // Received data is decrypted in this process.
        talk.client_says(b"hello");
        assert_eq!(talk.received, b"hello");
        // This process does not encrypt with the keys that the kernel has, because a nonce would be used twice.
        let mut out = OutputBuffer::default();
        assert_eq!(talk.server.encrypt(b"x", &mut out), Err(TlsError::NotReady));
        talk.server.close_notify(&mut out);
        assert_eq!(*out, *b"");
        let actions = talk.server.take_kernel_actions();
        let [KernelAction::Record(21, alert)] = &actions[..] else {
            panic!(
                "the kernel has to do {} actions, not those that the test expects",
                actions.len()
            );
        };
        assert_eq!(alert, &[1, 0]);
        talk.give_client(&kernel.record(21, alert));
        assert!(talk.server.take_kernel_actions().is_empty());
        let mut rest = Vec::new();
        let end = std::io::Read::read_to_end(&mut talk.client.reader(), &mut rest);
        assert!(end.is_ok(), "close_notify has come: {end:?}");
    }
}

#[test]
fn the_kernel_is_not_left_without_the_keys_that_a_client_asks_for() {
    let settings = Pair::new("a.test").settings();
    let mut talk = Talk::established(&acceptor(settings), &Offer::version(TLS13));
    let (keys, _) = talk.server.kernel_keys().unwrap();
    talk.server.on_handed_over(true);
    let mut kernel = Kernel::new(&keys.0);
    talk.give_client(&kernel.record(23, b"before"));
    talk.client.refresh_traffic_keys().unwrap();
    let flight = talk.client_flight();
    talk.give_server(&flight).unwrap();
    let actions = talk.server.take_kernel_actions();
    let [KernelAction::Record(22, message), KernelAction::Keys(keys)] = &actions[..] else {
        panic!(
            "the kernel has to do {} actions, not those that the test expects",
            actions.len()
        );
    };
    talk.give_client(&kernel.record(22, message));
    let mut kernel = Kernel::new(&keys.0);
    talk.give_client(&kernel.record(23, b" and after"));
    assert_eq!(talk.heard(), b"before and after");
    talk.client_says(b"still there");
    assert_eq!(talk.received, b"still there");
}

#[test]
fn nothing_is_handed_over_where_nobody_asked_for_it() {
    let settings = Pair::new("a.test").settings();
    let mut talk = Talk::established(&super::kit::acceptor(settings.clone()), &Offer::default());
    assert!(talk.server.kernel_keys().is_none());
    talk.server_says(b"x");
    // Nothing is handed over either after the kernel has refused the keys.
    let mut talk = Talk::established(&acceptor(settings), &Offer::default());
    assert!(talk.server.kernel_keys().is_some());
    talk.server.on_handed_over(false);
    assert!(talk.server.kernel_keys().is_none());
    talk.server_says(b"x");
    assert_eq!(talk.heard(), b"x");
}
