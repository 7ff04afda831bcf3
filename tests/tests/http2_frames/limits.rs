//! Limits at which the server ends a request or the connection.

use std::time::Duration;

use h2o_tests::Deadline;
use h2o_tests::http2::{
    Frame, GoAway, Http2, code, encode, encode_integer, flag, get, kind, post, setting,
};

use super::kit::*;

/// A HEADERS frame with the first payload, and a CONTINUATION frame with each other payload.
fn in_pieces(payloads: &[Vec<u8>]) -> Vec<Frame> {
    let last = payloads.len() - 1;
    let frames = payloads.iter().enumerate().map(|(index, payload)| {
        let end = if index == last { flag::END_HEADERS } else { 0 };
        match index {
            0 => Frame::new(kind::HEADERS, flag::END_STREAM | end, 1, payload.clone()),
            _ => Frame::continuation(1, payload.clone()).with_flags(end),
        }
    });
    frames.collect()
}

/// The field section of a request, padded by a field to `length` bytes.
fn section_of(length: usize) -> Vec<u8> {
    let mut section = get("/a.txt");
    let value = (0..=length).rev().find(|&value| {
        // The field's type byte, the length and the one byte of its name, and the length of its value.
        let mut head = vec![0, 1, b'x'];
        encode_integer(&mut head, 0, 7, value);
        section.len() + head.len() + value <= length
    });
    section.extend([0, 1, b'x']);
    let value = value.expect("the request is shorter than the given length");
    encode_integer(&mut section, 0, 7, value);
    section.extend(vec![b'y'; value]);
    assert_eq!(section.len(), length);
    section
}

/// H2O accepts any number of CONTINUATION frames up to 417,792 bytes, and answers longer sections with REFUSED_STREAM. This server accepts
/// what well-behaved clients send, and ends the connection of clients that send more.
#[test]
fn a_section_has_at_most_8_continuation_frames_and_64_kilobytes() {
    let server = start("");
    let calm = || -> Result<(), &str> { Err("ENHANCE_YOUR_CALM") };
    let pieces = |length: usize| -> Vec<Vec<u8>> {
        section_of(length)
            .chunks(16_384)
            .map(<[u8]>::to_vec)
            .collect()
    };
    let continuations = |count: usize| {
        let mut payloads = vec![Vec::new(); count + 1];
        payloads[count] = get("/a.txt");
        payloads
    };
    for (name, frames, want) in [
        (
            "8 CONTINUATION frames",
            in_pieces(&continuations(8)),
            Ok(()),
        ),
        (
            "9 CONTINUATION frames",
            in_pieces(&continuations(9)),
            calm(),
        ),
        ("65,536 bytes", in_pieces(&pieces(65_536)), Ok(())),
        ("65,537 bytes", in_pieces(&pieces(65_537)), calm()),
    ] {
        let mut connection = open(&server);
        connection.send_frames(&frames);
        connection.read_while_waiting(PATIENCE, |connection| {
            connection.is_closed || connection.answer(1).is_over()
        });
        let goaway = connection.goaway.as_ref().map(|goaway| goaway.code);
        if want.is_ok() {
            let status = connection.answer(1).status();
            assert!(
                matches!(status, 200 | 400),
                "{name}: {}",
                connection.story()
            );
        } else {
            assert_eq!(
                goaway,
                Some(code::ENHANCE_YOUR_CALM),
                "{name}: {}",
                connection.story()
            );
            assert!(connection.is_closed, "{name}");
        }
    }
}

#[test]
fn streams_above_http2_max_streams_are_refused() {
    let server = start("http2-max-streams: 2");
    let mut connection = Http2::open(server.port(), &[(setting::INITIAL_WINDOW_SIZE, 0)]);
    let want = Frame::settings(&[
        (setting::MAX_CONCURRENT_STREAMS, 2),
        (setting::ENABLE_CONNECT_PROTOCOL, 1),
    ]);
    assert_eq!(connection.frames[0], want);
    for stream in [1, 3, 5] {
        connection.send_frame(&Frame::request(stream, get("/large")));
    }
    assert_eq!(connection.read_answer(5).reset, Some(code::REFUSED_STREAM));
    connection.send_frame(&Frame::rst_stream(1, code::CANCEL));
    // After the reset of stream 1 the server accepts another request.
    assert_eq!(connection.ask(7, &get("/empty.txt")).status(), 200);
    assert_eq!(connection.answer(3).reset, None);
}

#[test]
fn content_above_limit_request_body_is_refused() {
    let server = start("limit-request-body: 1000");
    let content = |length: usize, flags| Frame::data(1, flags, vec![b'x'; length]);
    let rows = [
        row(
            "1,000 bytes",
            [upload(1), content(1000, 1)],
            Want::Answer(1, 404, ""),
        ),
        row(
            "1,001 bytes",
            [upload(1), content(1001, 1)],
            Want::Reset(1, code::REFUSED_STREAM),
        ),
        row(
            "1,001 bytes in two frames",
            [upload(1), content(1000, 0), content(1, 1)],
            Want::Reset(1, code::REFUSED_STREAM),
        ),
        row(
            "1,001 bytes and more to come",
            [upload(1), content(1001, 0)],
            Want::Reset(1, code::REFUSED_STREAM),
        ),
    ];
    play(&server, &rows);
}

#[test]
fn an_idle_connection_is_told_so_and_closed() {
    let server = start("http2-idle-timeout: 1");
    let shut = &[(setting::INITIAL_WINDOW_SIZE, 0)][..];
    let rows = [
        ("nothing was asked", &[][..], None, 0),
        ("everything was answered", &[], Some("/a.txt"), 1),
        ("the client keeps the window shut", shut, Some("/large"), 1),
    ];
    std::thread::scope(|scope| {
        for (name, settings, path, last) in rows {
            let server = &server;
            scope.spawn(move || {
                // The clock starts before the server's idle timeout does. Without the directive the timeout would be 10 s, longer than the
                // 9 s of this clock.
                let clock = Deadline::after_secs(9);
                let mut connection = Http2::open(server.port(), settings);
                if let Some(path) = path {
                    connection.send_frame(&Frame::request(1, get(path)));
                }
                let closed = connection.read_while_waiting(clock.left(), |c| c.is_closed);
                assert!(closed, "{name}: {}", connection.story());
                let time = clock.elapsed();
                assert!(time > Duration::from_millis(900), "{name}: {time:?}");
                let text = "idle timeout".to_owned();
                let code = code::NO_ERROR;
                assert_eq!(
                    connection.goaway,
                    Some(GoAway { last, code, text }),
                    "{name}"
                );
            });
        }
    });
}

#[test]
fn a_body_is_asked_for_before_it_is_sent() {
    let server = start("");
    let mut connection = open(&server);
    let section = [post("/upload"), encode(&[("expect", "100-continue")])].concat();
    connection.send_frame(&Frame::request_with_content(1, section.clone()));
    connection.read_until("100", |connection| !connection.answer(1).interim.is_empty());
    let answer = connection.answer(1);
    assert_eq!(
        answer.interim[0][0],
        (":status".to_owned(), "100".to_owned())
    );
    assert!(answer.fields.is_empty(), "{answer:?}");
    connection.send_frame(&Frame::data(1, flag::END_STREAM, *b"abc"));
    let answer = connection.read_answer(1);
    assert_eq!((answer.status(), answer.interim.len()), (404, 1));

    let no_hints = [section, encode(&[("no-early-hints", "1")])].concat();
    connection.send_frame(&Frame::request_with_content(3, no_hints));
    connection.ping();
    connection.send_frame(&Frame::data(3, flag::END_STREAM, *b"abc"));
    let answer = connection.read_answer(3);
    assert_eq!((answer.status(), answer.interim.len()), (404, 0));
}
