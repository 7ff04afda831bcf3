//! Established TLS connections: record sizes, closing, key updates, and peers that break the rules.

use rustls::crypto::aws_lc_rs::cipher_suite;

use super::kit::{Offer, Pair, Raw, TLS12, TLS13, Talk, acceptor, records, settings};
use crate::OutputBuffer;
use crate::TlsError;
use crate::record::framing::ContentType;
use crate::versions::Version;

const ALERT: ContentType = ContentType::Alert;
const DATA: ContentType = ContentType::ApplicationData;
const HANDSHAKE: ContentType = ContentType::Handshake;

fn raw(version: Version) -> Raw {
    let versions = match version {
        Version::Tls12 => TLS12,
        Version::Tls13 => TLS13,
    };
    let talk = Talk::established(&acceptor(settings("a.test")), &Offer::version(versions));
    talk.into_raw(version)
}

fn fatal(description: u8) -> (ContentType, Vec<u8>) {
    (ALERT, vec![2, description])
}

#[test]
fn records_are_small_first() {
    for (suite, want) in [
        (cipher_suite::TLS13_AES_128_GCM_SHA256, 1378),
        (cipher_suite::TLS13_CHACHA20_POLY1305_SHA256, 1378),
        (cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, 1371),
        (
            cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
            1379,
        ),
    ] {
        let acceptor = acceptor(settings("a.test"));
        let mut talk = Talk::established(&acceptor, &Offer::suite(suite));
        let wire = talk.server_says(&[1; 100_000]);
        let lens: Vec<usize> = records(&wire).iter().map(|record| record.len()).collect();
        let small = 65_536usize.div_ceil(want);
        assert!(lens[..small].iter().all(|len| *len == 1400), "{lens:?}");
        let overhead = 1400 - want;
        assert_eq!(lens[small], 16_384 + overhead);
        assert_eq!(talk.heard(), vec![1; 100_000]);
        // The count of bytes in small records continues over several calls.
        let wire = talk.server_says(&[2; 20_000]);
        let lens: Vec<usize> = records(&wire).iter().map(|record| record.len()).collect();
        assert_eq!(lens, [16_384 + overhead, 20_000 - 16_384 + overhead]);
    }
}

#[test]
fn gathered_pieces_fill_records_across_their_borders() {
    let mut talk = Talk::established(&acceptor(settings("a.test")), &Offer::version(TLS13));
    let parts: [&[u8]; 6] = [b"", &[1; 1000], &[2; 1000], b"", &[3; 70_000], &[4; 5]];
    let mut out = OutputBuffer::default();
    talk.server.encrypt_gather(&parts, &mut out).unwrap();
    let lens: Vec<usize> = records(&out).iter().map(|record| record.len()).collect();
    let (last, rest) = lens.split_last().unwrap();
    assert!(rest.iter().all(|len| *len == 1400), "{lens:?}");
    assert_eq!(*last, 22 + 72_005 - 1378 * 48);
    talk.give_client(&out);
    assert_eq!(talk.heard(), parts.concat());
    out.clear();
    talk.server.encrypt_gather(&[], &mut out).unwrap();
    talk.server.encrypt_gather(&[b"", b""], &mut out).unwrap();
    talk.server.encrypt(b"", &mut out).unwrap();
    assert_eq!(*out, *b"");
}

#[test]
fn data_may_be_split_at_every_byte() {
    for version in [Version::Tls12, Version::Tls13] {
        let mut peer = raw(version);
        for split in 0..100 {
            let mut bytes = peer.seal(DATA, b"first");
            bytes.extend(peer.seal(DATA, b"second"));
            let split = split.min(bytes.len());
            let (result, mut plain, answers) = peer.send(&bytes[..split]);
            assert!(result.is_ok() && answers.is_empty());
            let (result, more, answers) = peer.send(&bytes[split..]);
            assert!(result.is_ok() && answers.is_empty());
            plain.extend(more);
            assert_eq!(plain, b"firstsecond");
        }
    }
}

#[test]
fn close_notify_is_sent_once_and_ends_sending() {
    for versions in [TLS12, TLS13] {
        let mut talk = Talk::established(&acceptor(settings("a.test")), &Offer::version(versions));
        let mut out = OutputBuffer::default();
        talk.server.close_notify(&mut out);
        talk.give_client(&out);
        assert!(talk.client.process_new_packets().unwrap().peer_has_closed());
        out.clear();
        talk.server.close_notify(&mut out);
        assert_eq!(*out, *b"");
        assert_eq!(talk.server.encrypt(b"x", &mut out), Err(TlsError::Closed));
        // The other direction of the connection stays open (RFC 8446 §6.1).
        talk.client_says(b"still here");
        assert_eq!(talk.received, b"still here");
    }
}

#[test]
fn nothing_is_heard_after_the_peers_close_notify() {
    for version in [Version::Tls12, Version::Tls13] {
        let mut peer = raw(version);
        let mut bytes = peer.seal(DATA, b"before");
        bytes.extend(peer.seal(ALERT, &[1, 0]));
        bytes.extend(peer.seal(DATA, b"after"));
        bytes.extend(b"garbage");
        let (result, plain, answers) = peer.send(&bytes);
        assert!(result.unwrap().closed_by_peer);
        assert_eq!(plain, b"before");
        assert_eq!(answers, []);
        let (result, plain, _) = peer.send(b"more garbage");
        assert!(result.unwrap().closed_by_peer);
        assert_eq!(plain, b"");
        let mut out = OutputBuffer::default();
        peer.server.encrypt(b"the answer", &mut out).unwrap();
        assert_eq!(
            peer.opener.open(&mut out.to_vec()).unwrap(),
            (DATA, &b"the answer"[..])
        );
    }
}

#[test]
fn keys_are_updated_on_request_and_at_once() {
    let mut talk = Talk::established(&acceptor(settings("a.test")), &Offer::version(TLS13));
    for round in 0..100u8 {
        talk.client.refresh_traffic_keys().unwrap();
        talk.client_says(&[round]);
        assert_eq!(talk.received, [round]);
        talk.received.clear();
        talk.server_says(&[round]);
        assert_eq!(talk.heard(), [round]);
    }
}

#[test]
fn requests_to_update_keys_are_answered_with_the_old_keys() {
    let mut peer = raw(Version::Tls13);
    let (result, _, answers) = peer.send_record(HANDSHAKE, &[24, 0, 0, 1, 1]);
    assert!(result.is_ok());
    assert_eq!(answers, [(HANDSHAKE, vec![24, 0, 0, 1, 0])]);
    // A KeyUpdate that does not request one gets no reply; the peer's next record must use new keys.
    let mut peer = raw(Version::Tls13);
    let (result, _, answers) = peer.send_record(HANDSHAKE, &[24, 0, 0, 1, 0]);
    assert!(result.is_ok());
    assert_eq!(answers, []);
    let (result, _, answers) = peer.send_record(DATA, b"old keys");
    assert_eq!(result, Err(TlsError::BadRecordMac));
    assert_eq!(answers, [fatal(20)]);
}

#[test]
fn a_key_update_may_come_in_pieces_but_not_with_others() {
    let mut peer = raw(Version::Tls13);
    for piece in [&[24][..], &[0, 0], &[1]] {
        let (result, _, answers) = peer.send_record(HANDSHAKE, piece);
        assert!(result.is_ok() && answers.is_empty());
    }
    let (result, _, answers) = peer.send_record(HANDSHAKE, &[1]);
    assert!(result.is_ok());
    assert_eq!(answers.len(), 1);
    let mut peer = raw(Version::Tls13);
    peer.send_record(HANDSHAKE, &[24, 0]).0.unwrap();
    let (result, _, answers) = peer.send_record(DATA, b"between");
    assert_eq!(result, Err(TlsError::UnexpectedMessage));
    assert_eq!(answers, [fatal(10)]);
}

#[test]
fn wrong_messages_are_answered_with_their_alert() {
    use TlsError::{Decode, IllegalParameter, PeerAlert, Renegotiation, UnexpectedMessage};
    let both = [Version::Tls12, Version::Tls13];
    let new = [Version::Tls13];
    type Case<'a> = (&'a [Version], ContentType, &'a [u8], TlsError, &'a [u8]);
    let cases: &[Case] = &[
        (&both, ALERT, &[2, 40], PeerAlert(40), &[]),
        (&both, ALERT, &[2], Decode, &[2, 50]),
        (&both, ALERT, &[1, 0, 0], Decode, &[2, 50]),
        (&both, ALERT, &[], Decode, &[2, 50]),
        (
            &both,
            ContentType::ChangeCipherSpec,
            &[1],
            UnexpectedMessage,
            &[2, 10],
        ),
        // In TLS 1.3, the level of an alert is ignored (RFC 8446 §6).
        (&new, ALERT, &[1, 40], PeerAlert(40), &[]),
        (&new, HANDSHAKE, &[], UnexpectedMessage, &[2, 10]),
        (&new, HANDSHAKE, &[1, 0, 0, 0], UnexpectedMessage, &[2, 10]),
        (&new, HANDSHAKE, &[24, 0, 0, 2, 0], Decode, &[2, 50]),
        (
            &new,
            HANDSHAKE,
            &[24, 0, 0, 1, 2],
            IllegalParameter,
            &[2, 47],
        ),
        (
            &new,
            HANDSHAKE,
            &[24, 0, 0, 1, 0, 24],
            UnexpectedMessage,
            &[2, 10],
        ),
        (
            &[Version::Tls12],
            HANDSHAKE,
            &[1, 0, 0, 0],
            Renegotiation,
            &[1, 100],
        ),
    ];
    for (versions, content_type, payload, want, alert) in cases {
        for version in *versions {
            let mut peer = raw(*version);
            let (result, plain, answers) = peer.send_record(*content_type, payload);
            assert_eq!(
                result,
                Err(want.clone()),
                "{version:?} {content_type:?} {payload:?}"
            );
            assert_eq!(plain, b"");
            if payload.len() == 5 && payload[4] == 2 {
                // An invalid request to update keys has not changed the keys of this side.
                assert_eq!(answers, [(ALERT, alert.to_vec())]);
            }
            let answers: Vec<&[u8]> = answers.iter().map(|(_, payload)| &payload[..]).collect();
            let want: &[&[u8]] = if alert.is_empty() { &[] } else { &[alert] };
            assert_eq!(answers, want, "{version:?} {content_type:?} {payload:?}");
            let (again, _, answers) = peer.send(b"x");
            assert_eq!((again, answers.len()), (Err(TlsError::Closed), 0));
        }
    }
}

#[test]
fn warnings_are_tolerated_for_a_while() {
    for (version, warning) in [(Version::Tls12, [1, 41]), (Version::Tls13, [1, 90])] {
        let mut peer = raw(version);
        for _ in 0..32 {
            peer.send_record(ALERT, &warning).0.unwrap();
        }
        peer.send_record(DATA, b"x").0.unwrap();
        for _ in 0..32 {
            peer.send_record(ALERT, &warning).0.unwrap();
        }
        let (result, _, answers) = peer.send_record(ALERT, &warning);
        assert_eq!(result, Err(TlsError::Flood));
        assert_eq!(answers, [fatal(10)]);
    }
}

#[test]
fn empty_records_and_key_updates_in_a_row_are_bounded() {
    for version in [Version::Tls12, Version::Tls13] {
        let mut peer = raw(version);
        for _ in 0..32 {
            peer.send_record(DATA, b"").0.unwrap();
        }
        assert_eq!(peer.send_record(DATA, b"").0, Err(TlsError::Flood));
    }
    let mut talk = Talk::established(&acceptor(settings("a.test")), &Offer::version(TLS13));
    for _ in 0..32 {
        talk.client.refresh_traffic_keys().unwrap();
        talk.run().unwrap();
    }
    talk.client.refresh_traffic_keys().unwrap();
    assert_eq!(talk.run(), Err(TlsError::Flood));
}

#[test]
fn damaged_records_do_not_authenticate() {
    for version in [Version::Tls12, Version::Tls13] {
        let len = raw(version).seal(DATA, b"data").len();
        for position in 0..len {
            let mut peer = raw(version);
            let mut record = peer.seal(DATA, b"data");
            record[position] ^= 1;
            let (result, plain, answers) = peer.send(&record);
            assert_eq!(plain, b"");
            // If the damaged byte is in the record's length, the server may wait for more bytes.
            if result.is_err() {
                assert_eq!(answers.len(), 1, "byte {position}");
            } else {
                assert!((3..5).contains(&position), "byte {position}");
            }
        }
    }
}

#[test]
fn records_and_plaintext_have_their_limits() {
    // Records that break the rules of RFC 8446 §5.1 and §5.2, or RFC 5246 §6.2.
    for version in [Version::Tls12, Version::Tls13] {
        let mut peer = raw(version);
        let (result, plain, _) = peer.send_record(DATA, &[9; 16_384]);
        assert!(result.is_ok());
        assert_eq!(plain, [9; 16_384]);
        let overhead = peer.sealer.overhead() - 5;
        let len = u16::try_from(16_385 + overhead).unwrap().to_be_bytes();
        let mut record = vec![23, 3, 3, len[0], len[1]];
        record.resize(5 + 16_385 + overhead, 0);
        let (result, _, answers) = peer.send(&record);
        assert_eq!(result, Err(TlsError::RecordOverflow));
        assert_eq!(answers, [fatal(22)]);
        // A record with an excessive length is refused before any of its bytes is kept.
        let mut peer = raw(version);
        let (result, _, answers) = peer.send(&[23, 3, 3, 0xff, 0xff]);
        assert_eq!(result, Err(TlsError::RecordOverflow));
        assert_eq!(answers, [fatal(22)]);
    }
}

#[test]
fn an_idle_connection_keeps_no_bytes() {
    for versions in [TLS12, TLS13] {
        let mut talk = Talk::established(&acceptor(settings("a.test")), &Offer::version(versions));
        assert_eq!(talk.server.retained(), 0);
        talk.client_says(&[1; 50_000]);
        assert_eq!(talk.server.retained(), 0);
        std::io::Write::write_all(&mut talk.client.writer(), &[1; 16_384]).unwrap();
        let flight = talk.client_flight();
        let (one, other) = flight.split_at(10_000);
        talk.give_server(one).unwrap();
        // The server keeps at most twice the bytes that the peer has sent.
        assert!((10_000..=20_000).contains(&talk.server.retained()));
        talk.give_server(other).unwrap();
        assert_eq!(talk.server.retained(), 0);
    }
}

#[test]
fn keys_that_are_used_up_are_replaced_or_end_the_connection() {
    let acceptor = acceptor(Pair::new("a.test").settings());
    let mut talk = Talk::established(&acceptor, &Offer::version(TLS13));
    talk.server.set_seal_limit(4);
    for round in 0..20 {
        talk.server_says(&[round; 3000]);
        assert_eq!(talk.heard(), [round; 3000]);
    }
    let mut talk = Talk::established(&acceptor, &Offer::version(TLS12));
    talk.server.set_seal_limit(4);
    let mut out = OutputBuffer::default();
    let result = talk.server.encrypt(&[0; 16_000], &mut out);
    assert_eq!(result, Err(TlsError::KeysExhausted));
    talk.give_client(&out);
    assert!(talk.client.process_new_packets().unwrap().peer_has_closed());
}
