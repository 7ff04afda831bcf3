//! Flow control: how many bytes each side may send, checked to the byte.

use h2o_tests::http2::{Frame, Http2, code, flag, get, kind, setting};

use super::kit::*;

#[test]
fn windows_of_the_client_are_kept_to_the_byte() {
    let server = start("");
    for initial in [0_u16, 1, 1000, 16_384, 16_385, 40_000] {
        let settings = [(setting::INITIAL_WINDOW_SIZE, u32::from(initial))];
        let mut connection = Http2::open(server.port(), &settings);
        connection.send_frame(&Frame::request(1, get("/large")));
        let mut length = usize::from(initial);
        exactly(&mut connection, 1, length, "the initial window");
        for more in [1_u16, 2, 1000, 20_000] {
            connection.send_frame(&Frame::window_update(1, more.into()));
            length += usize::from(more);
            exactly(&mut connection, 1, length, "after WINDOW_UPDATE");
        }
    }
}

#[test]
fn the_window_of_the_connection_is_shared_and_kept_to_the_byte() {
    let server = start("");
    let mut connection = Http2::open(server.port(), &[(setting::INITIAL_WINDOW_SIZE, 1 << 20)]);
    connection.send_frame(&Frame::request(1, get("/large")));
    exactly(
        &mut connection,
        1,
        DEFAULT_WINDOW,
        "the connection's window",
    );
    connection.send_frame(&Frame::request(3, get("/large")));
    exactly(&mut connection, 3, 0, "nothing is left for another stream");
    assert_eq!(
        connection.answer(3).status(),
        200,
        "HEADERS need no flow-control window"
    );
    for (more, total) in [(1, 1), (2, 3), (40_000, 40_003)] {
        connection.send_frame(&Frame::window_update(0, more));
        let wanted = DEFAULT_WINDOW + total;
        let sum = |connection: &Http2| -> usize {
            [1, 3]
                .map(|stream| connection.answer(stream).body.len())
                .iter()
                .sum()
        };
        connection.read_until("more", |connection| sum(connection) >= wanted);
        connection.ping();
        assert_eq!(sum(&connection), wanted);
    }
    // A response without content needs no window.
    connection.send_frame(&Frame::request(5, get("/empty.txt")));
    assert!(connection.read_answer(5).is_ended);
}

#[test]
fn a_change_of_the_initial_window_size_moves_open_windows() {
    let server = start("");
    let change = |connection: &mut Http2, to| {
        connection.send_frame(&Frame::settings(&[(setting::INITIAL_WINDOW_SIZE, to)]));
    };
    let mut connection = Http2::open(server.port(), &[(setting::INITIAL_WINDOW_SIZE, 1000)]);
    connection.send_frame(&Frame::request(1, get("/large")));
    exactly(&mut connection, 1, 1000, "the initial window");
    change(&mut connection, 1500);
    exactly(&mut connection, 1, 1500, "500 more");
    change(&mut connection, 100);
    exactly(&mut connection, 1, 1500, "the window is -1,400");
    connection.send_frame(&Frame::window_update(1, 1399));
    exactly(&mut connection, 1, 1500, "the window is -1");
    connection.send_frame(&Frame::window_update(1, 1));
    exactly(&mut connection, 1, 1500, "the window is 0");
    connection.send_frame(&Frame::window_update(1, 1));
    exactly(&mut connection, 1, 1501, "the window was 1");
    change(&mut connection, 0);
    change(&mut connection, 110);
    exactly(&mut connection, 1, 1511, "10 more than the 100 before");
    // A stream that is opened later begins with the latest INITIAL_WINDOW_SIZE, which does not apply to the connection's window.
    connection.send_frame(&Frame::request(3, get("/large")));
    exactly(&mut connection, 3, 110, "a later stream");

    // A change of INITIAL_WINDOW_SIZE must not raise the window of an open stream above 2^31-1 (RFC 9113 §6.9.2).
    let mut connection = Http2::open(server.port(), &[(setting::INITIAL_WINDOW_SIZE, 0)]);
    connection.send_frame(&Frame::request(1, get("/large")));
    connection.send_frame(&Frame::window_update(1, (1 << 31) - 1));
    connection.ping();
    // The server has sent at most 65,535 bytes on the stream (the connection's window), so this increase lifts the stream's window above
    // 2^31-1.
    change(&mut connection, 100_000);
    connection.read_to_end();
    let code = connection.goaway.as_ref().map(|goaway| goaway.code);
    assert_eq!(
        code,
        Some(code::FLOW_CONTROL_ERROR),
        "{}",
        connection.story()
    );
}

/// The increments in all WINDOW_UPDATE frames received for a stream, without the frames that open the connection.
fn increments(connection: &Http2, stream: u32) -> Vec<usize> {
    let updates = connection.frames[2..].iter();
    updates
        .filter(|frame| frame.kind == kind::WINDOW_UPDATE && frame.stream == stream)
        .map(|frame| {
            let bytes = frame.payload.first_chunk().expect("four bytes");
            usize::try_from(u32::from_be_bytes(*bytes)).expect("the number has at most 31 bits")
        })
        .collect()
}

#[test]
fn the_window_of_an_upload_is_raised_with_its_first_data() {
    for (settings, want) in [
        ("", 16_777_216 - DEFAULT_WINDOW),
        ("http2-input-window-size: 100000", 100_000 - DEFAULT_WINDOW),
    ] {
        let server = start(settings);
        let mut connection = open(&server);
        connection.send_frame(&upload(1));
        connection.ping();
        assert_eq!(
            increments(&connection, 1),
            [],
            "WINDOW_UPDATE before any DATA"
        );
        connection.send_frame(&Frame::data(1, 0, *b"x"));
        connection.read_until("WINDOW_UPDATE", |connection| {
            !increments(connection, 1).is_empty()
        });
        assert_eq!(increments(&connection, 1), [want], "{settings}");
        connection.send_frame(&Frame::data(1, flag::END_STREAM, *b"x"));
        assert_eq!(connection.read_answer(1).status(), 404);
        // If the first DATA frame completes the content, the server sends no WINDOW_UPDATE for the stream.
        connection.send_frame(&upload(3));
        connection.send_frame(&Frame::data(3, flag::END_STREAM, *b"x"));
        assert_eq!(connection.read_answer(3).status(), 404);
        assert_eq!(increments(&connection, 3), []);
    }
}

#[test]
fn the_window_of_the_connection_is_refilled_when_half_is_used() {
    const FRAME: usize = 16_384;
    const FULL: usize = 16 * 1024 * 1024;
    let server = start("");
    let mut connection = open(&server);
    connection.send_frame(&upload(1));
    // Padding counts towards the window too (RFC 9113 §6.9.1).
    let content = vec![b'x'; FRAME - 256];
    let frame = Frame::data(1, 0, content).padded(255).bytes();
    connection.send(&frame);
    connection.read_until("room for more", |connection| {
        !increments(connection, 1).is_empty()
    });
    let mut sent = FRAME;
    while sent < FULL / 2 - FRAME {
        connection.send(&frame);
        sent += FRAME;
    }
    connection.ping();
    assert_eq!(increments(&connection, 0), [], "{sent} bytes");
    while sent < FULL / 2 + 2 * FRAME {
        connection.send(&frame);
        sent += FRAME;
    }
    connection.read_until("WINDOW_UPDATE", |connection| {
        !increments(connection, 0).is_empty()
    });
    connection.ping();
    let given: usize = increments(&connection, 0).iter().sum();
    assert!(
        (FULL / 2..=sent).contains(&given),
        "{given} of {sent} bytes"
    );
    assert_eq!(
        given % FRAME,
        0,
        "padding was not counted as part of the window"
    );
    connection.send_frame(&Frame::data(1, flag::END_STREAM, *b"x"));
    assert_eq!(connection.read_answer(1).status(), 404);
}
