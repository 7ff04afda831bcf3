//! Attacks by frames, field sections and streams of HTTP/3.

use std::time::Duration;

use h2o_tests::http3::{Frame, encode, instruction, kind, section_prefix, varint};
use h2o_tests::quic::{Quic, control_streams, frame, get};

use crate::{EXCESSIVE_LOAD, FRAMES, attack, flood, is_ended, is_overdrawn, start};

#[test]
fn field_sections_that_wait_for_ever() {
    let server = start("", "");
    let (_, clients) = attack(&server, |port| {
        let mut client = Quic::open(port);
        // The field sections refer to the first insertion into the QPACK table, which the client never sends.
        let mut section = section_prefix(16_384, 1, 1);
        section.push(0x80);
        section.extend(&encode(&[("x", "y".repeat(3000))])[2..]);
        for _ in 0..100 {
            let head = Frame::headers(section.clone()).bytes();
            client.send_request(&head);
            client.read(Duration::from_millis(2));
        }
        client.comes(Duration::from_secs(2), |client| client.closed.is_some());
        vec![client]
    });
    assert_eq!(
        clients[0].closed, None,
        "the server closed a connection whose field sections wait for the QPACK table"
    );
}

#[test]
fn a_table_that_churns() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut client = Quic::open(port);
        client.send_stream(6, &instruction::capacity(16_384), false);
        for n in 0..2000_u32 {
            if client.closed.is_some() {
                break;
            }
            let inserts =
                (0..30).map(|each| instruction::insert(b"x", format!("{n}-{each}").as_bytes()));
            client.send_stream(6, &inserts.collect::<Vec<_>>().concat(), false);
            client.read(Duration::from_millis(1));
        }
        vec![client]
    });
}

#[test]
fn field_sections_that_expand() {
    is_overdrawn(|client| {
        let table = [
            instruction::capacity(16_384),
            instruction::insert(b"x", &[b'y'; 16_000]),
        ];
        client.send_stream(6, &table.concat(), false);
        let mut section = section_prefix(16_384, 1, 1);
        section.extend([0x80; 900]);
        let head = Frame::headers(section).bytes();
        flood(client, FRAMES, |client, _| {
            let stream = client.next_request();
            client.stream_frame(stream, &head, true)
        });
    });
}

#[test]
fn field_sections_too_long() {
    is_overdrawn(|client| {
        // One complete field section that is too long, then many that announce such a length, so that the server need not wait for their
        // end.
        let section = encode(&[("x", "y".repeat(400_000))]);
        let _ = client.send_request(&Frame::headers(section).bytes());
        let claim = [varint(kind::HEADERS), varint(500_000), vec![0; 20]].concat();
        let mut before = None;
        flood(client, FRAMES, |client, _| {
            let stream = client.next_request();
            let len = claim.len() as u64;
            let reset = before
                .replace(stream)
                .map(|stream| frame::reset_stream(stream, 0x10c, len));
            [
                client.stream_frame(stream, &claim, false),
                reset.unwrap_or_default(),
            ]
            .concat()
        });
    });
}

#[test]
fn a_frame_without_end() {
    is_ended(
        |client| {
            let stream = client.next_request();
            let head = [varint(0x21 + 0x1f * 7), varint((1 << 62) - 1)].concat();
            client.send_stream(stream, &head, false);
            flood(client, 380, |client, _| {
                client.stream_frame(stream, &[7; 1000], false)
            });
        },
        0x101,
        "http3-errors.general-protocol",
    );
}

#[test]
fn unknown_frames() {
    is_overdrawn(|client| {
        let stream = client.next_request();
        let unknown = Frame::new(0x21, Vec::new()).bytes().repeat(300);
        flood(client, FRAMES, |client, _| {
            client.stream_frame(stream, &unknown, false)
        });
    });
}

#[test]
fn unknown_stream_types() {
    is_overdrawn(|client| {
        flood(client, 2 * FRAMES, |client, _| {
            let stream = client.next_unidirectional();
            client.stream_frame(stream, &varint(0x21 + 0x1f * stream), true)
        });
    });
}

#[test]
fn a_second_control_stream() {
    is_ended(
        |client| client.send_stream(14, &control_streams(&[])[0].1, false),
        0x103,
        "http3-errors.stream-creation",
    );
}

#[test]
fn settings_twice() {
    is_ended(
        |client| client.send_stream(2, &Frame::settings(&[]).bytes(), false),
        0x105,
        "http3-errors.frame-unexpected",
    );
}

#[test]
fn priority_updates() {
    is_overdrawn(|client| {
        let stream = client.send_request(&get("/large"));
        let frames = Frame::priority_update(stream, "u=1").bytes().repeat(60);
        flood(client, FRAMES, |client, _| {
            client.stream_frame(2, &frames, false)
        });
    });
}

#[test]
fn priority_updates_of_requests_to_come() {
    is_ended(
        |client| {
            flood(client, FRAMES, |client, n| {
                let frames = (0..40).map(|each| {
                    let stream = 4 * ((40 * n as u64 + each) % 90);
                    Frame::priority_update(stream, "u=1").bytes()
                });
                let frames = frames.collect::<Vec<_>>().concat();
                client.stream_frame(2, &frames, false)
            });
        },
        EXCESSIVE_LOAD,
        "http3-errors.excessive-load",
    );
}

#[test]
fn push_ids() {
    is_overdrawn(|client| {
        flood(client, FRAMES, |client, n| {
            let frames = (0..100)
                .map(|each| Frame::with_id(kind::MAX_PUSH_ID, 100 * n as u64 + each).bytes());
            let frames = frames.collect::<Vec<_>>().concat();
            client.stream_frame(2, &frames, false)
        });
    });
}
