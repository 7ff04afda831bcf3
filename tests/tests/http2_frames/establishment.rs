//! The beginning and the end of HTTP/2 connections.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use h2o_tests::Deadline;
use h2o_tests::http2::{Frame, GoAway, Http2, PREFACE, code, flag, get, kind, setting};

use super::kit::*;

#[test]
fn the_server_begins_with_its_settings_and_a_window_of_16_megabytes() {
    let server = start("");
    let mut connection = Http2::connect(server.port());
    connection.send(&PREFACE[..23]);
    let nothing = connection.read_while_waiting(Duration::from_millis(200), |connection| {
        !connection.frames.is_empty() || connection.is_closed
    });
    assert!(
        !nothing,
        "before the preface is whole: {}",
        connection.story()
    );
    connection.send(&PREFACE[23..]);
    connection.send_frame(&Frame::settings(&[]));
    connection.read_until("three frames from the server", |connection| {
        connection.frames.len() >= 3
    });
    let want = [
        Frame::settings(&[
            (setting::MAX_CONCURRENT_STREAMS, 100),
            (setting::ENABLE_CONNECT_PROTOCOL, 1),
        ]),
        Frame::window_update(0, 16_711_681),
        Frame::settings(&[]).with_flags(flag::ACK),
    ];
    assert_eq!(connection.frames, want);
}

#[test]
fn a_wrong_preface_ends_the_connection_without_goaway() {
    let server = start("");
    // The server recognises HTTP/2 by the first 18 bytes of the preface, which are right here; a later byte is wrong.
    let mut wrong = PREFACE.to_vec();
    wrong[23] = b'x';
    let mut connection = Http2::connect(server.port());
    let _ = connection.try_send(wrong);
    compare(&mut connection, &Want::Close).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_preface_and_a_request_arrive_in_any_number_of_pieces() {
    let server = start("");
    let mut connection = Http2::connect(server.port());
    let bytes = [
        PREFACE.to_vec(),
        Frame::settings(&[]).bytes(),
        small(1).bytes(),
        upload(3).bytes(),
        Frame::data(3, 0, *b"abc").padded(5).bytes(),
        Frame::data(3, flag::END_STREAM, *b"d").bytes(),
    ];
    for byte in bytes.concat() {
        connection.send([byte]);
    }
    assert_eq!(connection.read_answer(1).text(), "hello");
    assert_eq!(connection.read_answer(3).status(), 404);
}

#[test]
fn a_connection_is_upgraded_from_http_1() {
    let server = start("");
    let mut socket = TcpStream::connect(("127.0.0.1", server.port())).expect("the server listens");
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("the time is not zero");
    // The value of the field `HTTP2-Settings` sets INITIAL_WINDOW_SIZE to 3.
    let request = "GET /a.txt HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAQAAAAD\r\n\r\n";
    socket
        .write_all(request.as_bytes())
        .expect("the server reads the request");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket
            .read_exact(&mut byte)
            .expect("the server sends the whole head");
        head.extend(byte);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    assert!(head.contains("\r\nupgrade: h2c\r\n"), "{head}");
    let mut connection = Http2::over(socket);
    connection.send(PREFACE);
    connection.send_frame(&Frame::settings(&[(setting::INITIAL_WINDOW_SIZE, 4)]));
    connection.read_until("the first 4 bytes of the answer", |connection| {
        connection.answer(1).body.len() >= 4
    });
    connection.ping();
    assert_eq!(connection.answer(1).text(), "hell");
    connection.send_frame(&Frame::window_update(1, 1));
    assert_eq!(connection.read_answer(1).text(), "hello");
    assert_eq!(connection.ask(3, &get("/empty.txt")).status(), 200);
    // The server sends its SETTINGS once after an upgrade; H2O sends them twice.
    let prefaces = connection.frames.iter();
    let prefaces = prefaces.filter(|frame| frame.kind == kind::SETTINGS && !frame.has(flag::ACK));
    assert_eq!(prefaces.count(), 1, "{}", connection.story());
}

#[test]
fn a_server_that_is_told_to_end_finishes_what_it_has_begun() {
    let server = start("");
    let mut connection = Http2::open(server.port(), &[(setting::INITIAL_WINDOW_SIZE, 1)]);
    connection.send_frame(&Frame::request(1, get("/a.txt")));
    exactly(&mut connection, 1, 1, "the window");
    let clock = Deadline::after_secs(0);
    server.terminate();
    connection.read_until("the first GOAWAY", |connection| connection.goaway.is_some());
    let goaway = |last, text: &str| {
        Some(GoAway {
            last,
            code: code::NO_ERROR,
            text: text.to_owned(),
        })
    };
    assert_eq!(
        connection.goaway,
        goaway((1 << 31) - 1, "graceful shutdown")
    );
    // Until the second GOAWAY the server accepts requests that the client sent before it knew of the shutdown.
    assert_eq!(connection.ask(3, &get("/empty.txt")).status(), 200);
    connection.read_until("the second GOAWAY", |connection| {
        connection.goaway == goaway(3, "")
    });
    assert!(clock.elapsed() > Duration::from_millis(900), "{clock:?}");
    // Requests after the second GOAWAY are not answered.
    connection.send_frame(&Frame::request(5, get("/a.txt")));
    connection.send_frame(&Frame::window_update(1, 4));
    connection.read_to_end();
    assert_eq!(connection.answer(1).text(), "hello");
    assert!(connection.answer(1).is_ended);
    assert!(
        connection.answer(5).fields.is_empty(),
        "{}",
        connection.story()
    );
}

#[test]
fn settings_are_acknowledged_or_end_the_connection() {
    let server = start("");
    let ends = |name, settings: &[(u16, u32)], code| {
        let want = Want::GoAway(0, code, "invalid SETTINGS frame");
        row(name, [Frame::settings(settings)], want)
    };
    let goes_on =
        |name, settings: &[(u16, u32)]| row(name, [Frame::settings(settings)], Want::Nothing);
    let rows = [
        ends(
            "ENABLE_PUSH 2",
            &[(setting::ENABLE_PUSH, 2)],
            code::PROTOCOL_ERROR,
        ),
        ends(
            "INITIAL_WINDOW_SIZE 2^31",
            &[(setting::INITIAL_WINDOW_SIZE, 1 << 31)],
            code::FLOW_CONTROL_ERROR,
        ),
        ends(
            "MAX_FRAME_SIZE 16383",
            &[(setting::MAX_FRAME_SIZE, 16_383)],
            code::PROTOCOL_ERROR,
        ),
        ends(
            "MAX_FRAME_SIZE 2^24",
            &[(setting::MAX_FRAME_SIZE, 1 << 24)],
            code::PROTOCOL_ERROR,
        ),
        goes_on(
            "ENABLE_PUSH 0 and 1",
            &[(setting::ENABLE_PUSH, 0), (setting::ENABLE_PUSH, 1)],
        ),
        goes_on(
            "INITIAL_WINDOW_SIZE 2^31-1",
            &[(setting::INITIAL_WINDOW_SIZE, (1 << 31) - 1)],
        ),
        goes_on("MAX_FRAME_SIZE 16384", &[(setting::MAX_FRAME_SIZE, 16_384)]),
        goes_on(
            "MAX_FRAME_SIZE 2^24-1",
            &[(setting::MAX_FRAME_SIZE, (1 << 24) - 1)],
        ),
        goes_on(
            "HEADER_TABLE_SIZE 0 and 2^32-1",
            &[
                (setting::HEADER_TABLE_SIZE, 0),
                (setting::HEADER_TABLE_SIZE, u32::MAX),
            ],
        ),
        goes_on("unknown settings", &[(0xffff, 1), (0, u32::MAX)]),
        row(
            "five bytes",
            [Frame::new(kind::SETTINGS, 0, 0, [0; 5])],
            Want::GoAway(0, code::FRAME_SIZE_ERROR, ""),
        ),
        row(
            "an acknowledgement of nothing",
            [Frame::settings(&[]).with_flags(flag::ACK)],
            Want::Nothing,
        ),
    ];
    play(&server, &rows);

    let mut connection = open(&server);
    for count in 2..5 {
        connection.send_frame(&Frame::settings(&[(setting::ENABLE_PUSH, 0)]));
        connection.read_until("an acknowledgement of SETTINGS", |connection| {
            let acks = connection.frames.iter();
            acks.filter(|frame| frame.kind == kind::SETTINGS && frame.has(flag::ACK))
                .count()
                == count
        });
    }
}
