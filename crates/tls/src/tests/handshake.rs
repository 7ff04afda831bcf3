//! TLS handshakes: versions, server names, application protocols, certificates, broken input.

use std::sync::Arc;

use rustls::NamedGroup;
use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;

use super::files::{Authority, Files};
use super::kit::{Offer, Pair, TLS12, TLS13, Talk, acceptor, listener, records, settings};
use crate::OutputBuffer;
use crate::handshake::Progress;
use crate::suites::describe;
use crate::{Resumption, ResumptionSettings, TlsError, TlsSettings};

fn resumption() -> Arc<Resumption> {
    Resumption::new(&ResumptionSettings::default())
}

/// The certificate that the server presented to the client.
fn shown(talk: &Talk) -> Vec<u8> {
    talk.client.peer_certificates().unwrap()[0].to_vec()
}

fn leaf(settings: &TlsSettings) -> Vec<u8> {
    settings.identities[0].leaf().unwrap().to_vec()
}

#[test]
fn every_suite_carries_data_both_ways() {
    let (rsa, ecdsa) = (Pair::rsa("a.test").settings(), settings("a.test"));
    for suite in ALL_CIPHER_SUITES {
        let (name, bits) = describe(suite.suite());
        let settings = if name.contains("RSA") { &rsa } else { &ecdsa };
        let mut talk = Talk::established(&acceptor(settings.clone()), &Offer::suite(*suite));
        let info = talk.server.info();
        assert_eq!((info.cipher, info.cipher_bits), (name, bits));
        assert_eq!(
            info.protocol == "TLSv1.3",
            name.starts_with("TLS_"),
            "{name}"
        );
        assert_eq!(info.server_name.as_deref(), Some("a.test"));
        assert_eq!(info.alpn, Some("http/1.1"));
        assert!(!info.resumed);
        talk.client_says(b"ping");
        assert_eq!(talk.received, b"ping", "{name}");
        let text: Vec<u8> = (0..200_000u32).map(|n| n.to_le_bytes()[0]).collect();
        talk.server_says(&text);
        assert_eq!(talk.heard(), text, "{name}");
    }
}

#[test]
fn every_group_agrees() {
    let mut settings = settings("a.test");
    settings.groups = rustls::crypto::aws_lc_rs::ALL_KX_GROUPS.to_vec();
    let acceptor = acceptor(settings);
    for group in [
        NamedGroup::X25519MLKEM768,
        NamedGroup::secp256r1MLKEM768,
        NamedGroup::X25519,
        NamedGroup::secp256r1,
        NamedGroup::secp384r1,
    ] {
        let offer = Offer {
            groups: vec![group],
            ..Offer::default()
        };
        let talk = Talk::established(&acceptor, &offer);
        let agreed = talk.client.negotiated_key_exchange_group().unwrap();
        assert_eq!(agreed.name(), group);
    }
}

#[test]
fn a_group_without_key_share_is_asked_for() {
    // The server answers with HelloRetryRequest (RFC 8446 §4.1.4).
    let mut settings = settings("a.test");
    settings.groups = vec![rustls::crypto::aws_lc_rs::kx_group::SECP384R1];
    let offer = Offer {
        groups: vec![NamedGroup::X25519, NamedGroup::secp384r1],
        ..Offer::default()
    };
    let talk = Talk::established(&acceptor(settings), &offer);
    let agreed = talk.client.negotiated_key_exchange_group().unwrap();
    assert_eq!(agreed.name(), NamedGroup::secp384r1);
}

#[test]
fn the_handshake_may_be_split_at_every_byte() {
    let acceptor = acceptor(settings("a.test"));
    for versions in [TLS12, TLS13] {
        let config = Offer::version(versions).config();
        let flight_len = Talk::with_config(&acceptor, Arc::clone(&config), "a.test")
            .client_flight()
            .len();
        for split in 0..=flight_len {
            let mut talk = Talk::with_config(&acceptor, Arc::clone(&config), "a.test");
            loop {
                let flight = talk.client_flight();
                if flight.is_empty() {
                    break;
                }
                let (one, other) = flight.split_at(split.min(flight.len()));
                talk.give_server(one).unwrap();
                talk.give_server(other).unwrap();
            }
            assert!(!talk.client.is_handshaking(), "split at {split}");
            talk.client_says(b"hello");
            assert_eq!(talk.received, b"hello");
        }
    }
}

#[test]
fn bytes_may_come_one_by_one() {
    let acceptor = acceptor(settings("a.test"));
    for versions in [TLS12, TLS13] {
        let mut talk = Talk::new(&acceptor, &Offer::version(versions), "a.test");
        let mut done = 0;
        for _ in 0..4 {
            for byte in talk.client_flight() {
                talk.give_server(&[byte]).unwrap();
                done += u32::from(talk.progress.handshake_done_now);
            }
        }
        assert_eq!(done, 1);
        std::io::Write::write_all(&mut talk.client.writer(), b"hello").unwrap();
        for byte in talk.client_flight() {
            talk.give_server(&[byte]).unwrap();
        }
        assert_eq!(talk.received, b"hello");
    }
}

#[test]
fn a_client_hello_may_be_spread_over_records() {
    let acceptor = acceptor(settings("a.test"));
    for size in [1, 2, 3, 100] {
        let mut talk = Talk::new(&acceptor, &Offer::version(TLS13), "a.test");
        let hello = talk.client_flight();
        let mut spread = Vec::new();
        for piece in hello[5..].chunks(size) {
            spread.extend_from_slice(&[22, 3, 1, 0, u8::try_from(piece.len()).unwrap()]);
            spread.extend_from_slice(piece);
        }
        talk.give_server(&spread).unwrap();
        talk.run().unwrap();
        assert!(!talk.client.is_handshaking(), "pieces of {size}");
        assert_eq!(talk.server.info().server_name.as_deref(), Some("a.test"));
    }
}

#[test]
fn data_that_follows_the_handshake_in_the_same_read_is_not_lost() {
    let acceptor = acceptor(settings("a.test"));
    for versions in [TLS12, TLS13] {
        let mut talk = Talk::new(&acceptor, &Offer::version(versions), "a.test");
        // TLS 1.2 has one more flight of messages before the client may send.
        while talk.client.is_handshaking() {
            let flight = talk.client_flight();
            if !talk.client.is_handshaking() {
                break;
            }
            talk.give_server(&flight).unwrap();
        }
        std::io::Write::write_all(&mut talk.client.writer(), &[7; 40_000]).unwrap();
        let mut flight = talk.client_flight();
        let partial = flight.split_off(flight.len() - 3);
        talk.give_server(&flight).unwrap();
        if versions == TLS13 {
            assert!(talk.progress.handshake_done_now);
            assert!(!talk.progress.early);
        }
        talk.give_server(&partial).unwrap();
        assert_eq!(talk.received, [7; 40_000]);
    }
}

#[test]
fn the_name_chooses_the_first_entry_that_has_it() {
    let all: Vec<TlsSettings> = (0..4).map(|_| settings("any.test")).collect();
    let acceptor = listener(
        &[
            (&[], all[0].clone()),
            (&["b.test", "c.test"], all[1].clone()),
            (&["*.d.test"], all[2].clone()),
            (&["c.test", "x.d.test"], all[3].clone()),
        ],
        &resumption(),
    );
    for versions in [TLS12, TLS13] {
        for (name, want) in [
            ("b.test", 1),
            ("C.TEST", 1),
            ("x.d.test", 2),
            ("x.y.d.test", 2),
            ("d.test", 0),
            ("unknown.test", 0),
            ("192.0.2.1", 0),
        ] {
            let mut talk = Talk::new(&acceptor, &Offer::version(versions), name);
            talk.run().unwrap();
            assert_eq!(shown(&talk), leaf(&all[want]), "{name}");
        }
    }
}

#[test]
fn each_entry_has_its_own_versions_and_suites() {
    let files = Files::new();
    let old = format!(
        "{}max-version: TLSv1.2\n",
        files.pair("old", &Pair::new("old.test"))
    );
    let new = format!(
        "{}min-version: TLSv1.3\ncipher-suite-tls1.3: [TLS_AES_256_GCM_SHA384]\n",
        files.pair("new", &Pair::new("new.test"))
    );
    let (old, new) = (files.settings(&old), files.settings(&new));
    let acceptor = listener(&[(&["old.test"], old), (&["new.test"], new)], &resumption());
    let mut talk = Talk::new(&acceptor, &Offer::default(), "old.test");
    talk.run().unwrap();
    assert_eq!(talk.server.info().protocol, "TLSv1.2");
    let mut talk = Talk::new(&acceptor, &Offer::default(), "new.test");
    talk.run().unwrap();
    assert_eq!(talk.server.info().cipher, "TLS_AES_256_GCM_SHA384");
    // The client gets the alert `protocol_version`.
    let mut talk = Talk::new(&acceptor, &Offer::version(TLS12), "new.test");
    assert!(talk.run().is_err());
    assert!(talk.client.process_new_packets().is_err());
}

#[test]
fn the_order_of_suites_is_the_clients_unless_configured() {
    let offer = Offer {
        suites: vec![
            rustls::crypto::aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
            rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
        ],
        ..Offer::version(TLS13)
    };
    for (prefer_our_order, want) in [
        (false, "TLS_CHACHA20_POLY1305_SHA256"),
        (true, "TLS_AES_256_GCM_SHA384"),
    ] {
        let mut settings = settings("a.test");
        settings.prefer_our_order = prefer_our_order;
        let talk = Talk::established(&acceptor(settings), &offer);
        assert_eq!(talk.server.info().cipher, want);
    }
}

#[test]
fn unknown_application_protocols_end_tls13_and_are_passed_over_in_tls12() {
    let acceptor = acceptor(settings("a.test"));
    let offer = |versions, alpn: &[&'static [u8]]| Offer {
        alpn: alpn.to_vec(),
        ..Offer::version(versions)
    };
    let mut talk = Talk::new(&acceptor, &offer(TLS13, &[b"nope"]), "a.test");
    assert_eq!(
        talk.run(),
        Err(TlsError::Handshake(rustls::Error::NoApplicationProtocol))
    );
    assert_eq!(
        talk.client.process_new_packets().unwrap_err(),
        rustls::Error::AlertReceived(rustls::AlertDescription::NoApplicationProtocol)
    );
    let talk = Talk::established(&acceptor, &offer(TLS12, &[b"nope"]));
    assert_eq!(talk.server.info().alpn, None);
    for versions in [TLS12, TLS13] {
        let talk = Talk::established(&acceptor, &offer(versions, &[b"nope", b"http/1.1"]));
        assert_eq!(talk.server.info().alpn, Some("http/1.1"));
        assert_eq!(talk.client.alpn_protocol(), Some(&b"http/1.1"[..]));
        let talk = Talk::established(&acceptor, &offer(versions, &[]));
        assert_eq!(talk.server.info().alpn, None);
    }
}

#[test]
fn identities_are_chosen_by_what_the_client_can_verify() {
    let identity = |algorithm| Pair::with_algorithm("a.test", algorithm).identity();
    let identities = vec![
        identity(&rcgen::PKCS_ED25519),
        identity(&rcgen::PKCS_ECDSA_P384_SHA384),
        identity(&rcgen::PKCS_ECDSA_P256_SHA256),
    ];
    let leaves: Vec<Vec<u8>> = identities
        .iter()
        .map(|identity| identity.leaf().unwrap().to_vec())
        .collect();
    let mut settings = settings("a.test");
    settings.identities = identities;
    let acceptor = acceptor(settings);
    let (ed25519, p384, p256) = (
        SignatureScheme::ED25519,
        SignatureScheme::ECDSA_NISTP384_SHA384,
        SignatureScheme::ECDSA_NISTP256_SHA256,
    );
    for (versions, schemes, want) in [
        (TLS13, vec![p256, p384, ed25519], 0),
        (TLS13, vec![p256, p384], 1),
        (TLS13, vec![p256], 2),
        (TLS12, vec![p256, p384, ed25519], 2),
    ] {
        let offer = Offer {
            schemes,
            ..Offer::version(versions)
        };
        let talk = Talk::established(&acceptor, &offer);
        assert_eq!(shown(&talk), leaves[want]);
    }
}

#[test]
fn what_is_not_tls_is_answered_with_an_alert() {
    let acceptor = acceptor(settings("a.test"));
    for input in [
        &b"get / HTTP/1.1\r\nHost: a.test\r\n\r\n"[..],
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x17\x03\x03\x00\x01\x00",
        b"\x15\x03\x03\x00\x01\x00",
        b"\x14\x03\x03\x00\x01\x01",
        b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10",
    ] {
        let mut server = acceptor.accept();
        let (mut plain, mut out) = (Vec::new(), OutputBuffer::default());
        let result = server.receive(&mut input.to_vec(), &mut plain, &mut out);
        assert!(result.is_err(), "{}: {result:?}", input.escape_ascii());
        let [alert] = records(&out)[..] else {
            panic!("{}: {}", input.escape_ascii(), out.escape_ascii());
        };
        assert_eq!((alert[0], alert[5]), (21, 2), "{}", input.escape_ascii());
        assert_eq!(plain, b"");
        // After the error, the connection has ended.
        out.clear();
        let again = server.receive(&mut input.to_vec(), &mut plain, &mut out);
        assert_eq!(again, Err(TlsError::Closed));
        assert_eq!(server.encrypt(b"x", &mut out), Err(TlsError::Closed));
        server.close_notify(&mut out);
        assert_eq!(*out, *b"");
    }
}

#[test]
fn a_client_that_takes_raw_public_keys_only_is_not_told_of_a_failure_of_the_handshake() {
    // The client gets the alert `unsupported_certificate` (RFC 7250 §4.2).
    for versions in [TLS12, TLS13] {
        let offer = Offer {
            raw_public_keys: true,
            ..Offer::version(versions)
        };
        let mut talk = Talk::new(&acceptor(settings("a.test")), &offer, "a.test");
        let mut hello = talk.client_flight();
        let (mut plain, mut out) = (Vec::new(), OutputBuffer::default());
        let received = talk.server.receive(&mut hello, &mut plain, &mut out);
        assert_eq!(received, Err(TlsError::UnsupportedCertificate));
        assert_eq!(*out, [21, 3, 3, 0, 2, 2, 43]);
    }
}

#[test]
fn any_damaged_byte_of_the_hello_is_survived() {
    let acceptor = acceptor(settings("a.test"));
    let config = Offer::version(TLS13).config();
    let mut talk = Talk::with_config(&acceptor, config, "a.test");
    let hello = talk.client_flight();
    for position in 0..hello.len() {
        for value in [
            0,
            0xff,
            hello[position] ^ 0x80,
            hello[position].wrapping_add(1),
        ] {
            let mut damaged = hello.clone();
            damaged[position] = value;
            let mut server = acceptor.accept();
            let (mut plain, mut out) = (Vec::new(), OutputBuffer::default());
            // Some of the damaged inputs are still a ClientHello, some are incomplete; none may panic or deliver data.
            let _ = server.receive(&mut damaged, &mut plain, &mut out);
            assert_eq!(plain, b"");
        }
    }
}

/// For each version, a ClientHello in one record with an invalid server name.
fn odd_hellos() -> [Vec<u8>; 2] {
    [TLS12, TLS13].map(|versions| {
        let offer = Offer::version(versions);
        let mut talk = Talk::new(&acceptor(settings("a.test")), &offer, "a.test");
        let mut hello = talk.client_flight();
        let at = hello.windows(6).position(|name| name == b"a.test").unwrap();
        hello[at + 1] = b':';
        hello
    })
}

#[test]
fn any_damaged_byte_of_a_hello_with_a_name_to_hide_is_survived() {
    let acceptor = acceptor(settings("a.test"));
    for hello in odd_hellos() {
        for at in 0..hello.len() {
            for byte in [0, 1, 0x16, 0x7f, 0x80, 0xff] {
                let mut damaged = hello.clone();
                damaged[at] = byte;
                let mut server = acceptor.accept();
                let (mut plain, mut out) = (Vec::new(), OutputBuffer::default());
                let _ = server.receive(&mut damaged, &mut plain, &mut out);
                assert_eq!(plain, b"");
            }
        }
    }
}

#[test]
fn a_hello_with_a_name_to_hide_is_answered_however_it_is_split() {
    let acceptor = acceptor(settings("a.test"));
    for hello in odd_hellos() {
        let answer = |pieces: &[&[u8]]| {
            let mut server = acceptor.accept();
            let (mut plain, mut out) = (Vec::new(), OutputBuffer::default());
            for piece in pieces {
                let progress = server.receive(&mut piece.to_vec(), &mut plain, &mut out);
                assert!(progress.unwrap().handshaking);
            }
            // The content type and the HandshakeType of the answer, which is a ServerHello (RFC 8446 §4.1.3).
            (out[0], out[5])
        };
        assert_eq!(answer(&[&hello]), (22, 2));
        for at in 1..hello.len() {
            let (one, other) = hello.split_at(at);
            assert_eq!(answer(&[one, other]), (22, 2), "{at}");
            // The ClientHello is split into two records as well.
            if at > 5 {
                let len = u16::try_from(at - 5).unwrap().to_be_bytes();
                let rest = u16::try_from(hello.len() - at).unwrap().to_be_bytes();
                let first = [&hello[..3], &len, &hello[5..at]].concat();
                let second = [&hello[..3], &rest, &hello[at..]].concat();
                assert_eq!(answer(&[&first, &second]), (22, 2), "{at}");
            }
        }
    }
}

#[test]
fn a_name_that_somebody_in_between_has_hidden_does_not_go_unnoticed() {
    let acceptor = acceptor(settings("a.test"));
    for (versions, name) in [
        (TLS12, b"a.test"),
        (TLS13, b"a.test"),
        (TLS12, b"a:test"),
        (TLS13, b"a:test"),
    ] {
        let mut talk = Talk::new(&acceptor, &Offer::version(versions), "a.test");
        let mut hello = talk.client_flight();
        let at = hello.windows(6).position(|name| name == b"a.test").unwrap();
        hello[at..at + 6].copy_from_slice(name);
        // The bytes before the name are: extension type, length, list length, name type, name length.
        assert_eq!(hello[at - 9..at - 7], [0, 0]);
        hello[at - 9..at - 7].copy_from_slice(&[0xff, 0x5a]);
        let _ = talk.give_server(&hello);
        let ended = talk.run();
        assert!(
            ended.is_err() || talk.client.is_handshaking(),
            "both sides have digested the same"
        );
        assert_eq!(talk.server.info().protocol, "");
    }
}

#[test]
fn a_hello_that_never_ends_is_not_kept() {
    let acceptor = acceptor(settings("a.test"));
    let mut server = acceptor.accept();
    let (mut plain, mut out) = (Vec::new(), OutputBuffer::default());
    // The ClientHello announces 65,535 bytes. Each record has one of them, and so takes six bytes.
    let mut sent = 0;
    let error = loop {
        let byte: &[u8] = match sent {
            0 => &[22, 3, 1, 0, 4, 1, 0, 0xff, 0xff],
            _ => &[22, 3, 1, 0, 1, 0],
        };
        sent += byte.len();
        assert!(sent < 200_000);
        if let Err(error) = server.receive(&mut byte.to_vec(), &mut plain, &mut out) {
            break error;
        }
    };
    assert_eq!(error, TlsError::HandshakeTooLarge);
}

#[test]
fn a_client_that_gives_up_is_reported() {
    let acceptor = acceptor(settings("a.test"));
    let mut talk = Talk::new(&acceptor, &Offer::version(TLS13), "a.test");
    let hello = talk.client_flight();
    talk.give_server(&hello).unwrap();
    let close_notify = [21, 3, 3, 0, 2, 1, 0];
    let (mut plain, mut out) = (Vec::new(), OutputBuffer::default());
    let progress = talk
        .server
        .receive(&mut close_notify.to_vec(), &mut plain, &mut out);
    assert_eq!(
        progress,
        Ok(Progress {
            closed_by_peer: true,
            ..Progress::default()
        })
    );
    let mut talk = Talk::new(&acceptor, &Offer::version(TLS13), "a.test");
    let hello = talk.client_flight();
    talk.give_server(&hello).unwrap();
    let unknown_ca = [21, 3, 3, 0, 2, 2, 48];
    let result = talk
        .server
        .receive(&mut unknown_ca.to_vec(), &mut plain, &mut out);
    assert_eq!(result, Err(TlsError::PeerAlert(48)));
}

#[test]
fn client_certificates_are_demanded_and_checked() {
    let files = Files::new();
    let authority = Authority::new();
    let settings = files.settings(&format!(
        "{}client-ca-file: {}\n",
        files.pair("server", &Pair::new("a.test")),
        files.write("ca.pem", &authority.pem()),
    ));
    let acceptor = acceptor(settings);
    for versions in [TLS12, TLS13] {
        for (identity, want) in [
            (None, false),
            (Some(Authority::new().issue("client.test")), false),
            (Some(authority.issue("client.test")), true),
        ] {
            let offer = Offer {
                identity: identity.map(Arc::new),
                ..Offer::version(versions)
            };
            let mut talk = Talk::new(&acceptor, &offer, "a.test");
            assert_eq!(talk.run().is_ok(), want);
            // The client sees the error only after its own handshake.
            assert_eq!(talk.client.process_new_packets().is_ok(), want);
        }
    }
}
