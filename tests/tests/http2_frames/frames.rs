//! Single frames: errors that the server must punish, and oddities that it must tolerate.

use h2o_tests::http2::{Frame, code, encode, flag, get, kind, setting};

use super::kit::*;

#[test]
fn wrong_frames_are_answered_with_their_code_and_text() {
    let server = start("");
    let rows: Vec<Row> = [
        sizes_and_streams(),
        sections_in_pieces(),
        headers_in_wrong_states(),
        data_and_windows(),
        tolerated(),
    ]
    .into_iter()
    .flatten()
    .collect();
    play(&server, &rows);
}

fn sizes_and_streams() -> Vec<Row> {
    let size = |last, text| Want::GoAway(last, code::FRAME_SIZE_ERROR, text);
    let protocol = |last, text| Want::GoAway(last, code::PROTOCOL_ERROR, text);
    vec![
        row(
            "a frame of 16,385 bytes",
            [Frame::new(0xee, 0, 0, vec![0; 16_385])],
            size(0, ""),
        ),
        row(
            "a frame of 16,384 bytes",
            [Frame::new(0xee, 0, 0, vec![0; 16_384])],
            Want::Nothing,
        ),
        row(
            "PRIORITY of 4 bytes",
            [Frame::new(kind::PRIORITY, 0, 1, [0; 4])],
            size(0, "invalid PRIORITY frame"),
        ),
        row(
            "RST_STREAM of 3 bytes",
            [upload(1), Frame::new(kind::RST_STREAM, 0, 1, [0; 3])],
            size(1, "invalid RST_STREAM frame"),
        ),
        row(
            "RST_STREAM of 5 bytes",
            [upload(1), Frame::new(kind::RST_STREAM, 0, 1, [0; 5])],
            size(1, "invalid RST_STREAM frame"),
        ),
        row(
            "PING of 7 bytes",
            [Frame::new(kind::PING, 0, 0, [0; 7])],
            size(0, "invalid PING frame"),
        ),
        row(
            "PING of 9 bytes",
            [Frame::new(kind::PING, 0, 0, [0; 9])],
            size(0, "invalid PING frame"),
        ),
        row(
            "WINDOW_UPDATE of 3 bytes",
            [Frame::new(kind::WINDOW_UPDATE, 0, 0, [0, 0, 1])],
            size(0, "invalid WINDOW_UPDATE frame"),
        ),
        row(
            "GOAWAY of 7 bytes",
            [Frame::new(kind::GOAWAY, 0, 0, [0; 7])],
            size(0, "invalid GOAWAY frame"),
        ),
        row(
            "SETTINGS ACK with a payload",
            [Frame::settings(&[(setting::ENABLE_PUSH, 0)]).with_flags(flag::ACK)],
            size(0, "invalid SETTINGS frame (+ACK)"),
        ),
        row(
            "DATA on stream 0",
            [Frame::data(0, 0, *b"x")],
            protocol(0, "invalid stream id in DATA frame"),
        ),
        row(
            "HEADERS on stream 0",
            [small(0)],
            protocol(0, "invalid stream id in HEADERS frame"),
        ),
        row(
            "PRIORITY on stream 0",
            [Frame::priority(0, false, 1, 16)],
            protocol(0, "invalid stream id in PRIORITY frame"),
        ),
        row(
            "RST_STREAM on stream 0",
            [Frame::rst_stream(0, code::CANCEL)],
            protocol(0, "invalid stream id in RST_STREAM frame"),
        ),
        row(
            "SETTINGS on stream 1",
            [Frame::new(kind::SETTINGS, 0, 1, [])],
            protocol(0, "invalid stream id in SETTINGS frame"),
        ),
        row(
            "PING on stream 1",
            [Frame::new(kind::PING, 0, 1, [0; 8])],
            protocol(0, "invalid PING frame"),
        ),
        row(
            "GOAWAY on stream 1",
            [Frame::new(kind::GOAWAY, 0, 1, [0; 8])],
            protocol(0, "invalid stream id in GOAWAY frame"),
        ),
        row(
            "PUSH_PROMISE",
            [Frame::new(
                kind::PUSH_PROMISE,
                flag::END_HEADERS,
                1,
                [0, 0, 0, 2],
            )],
            protocol(0, "received PUSH_PROMISE frame"),
        ),
    ]
}

/// The field section of a request, cut into its first 10 bytes and the rest.
fn split_section() -> (Vec<u8>, Vec<u8>) {
    let mut section = get("/a.txt");
    let rest = section.split_off(10);
    (section, rest)
}

fn sections_in_pieces() -> Vec<Row> {
    let (begin, rest) = split_section();
    let begun = |stream| Frame::new(kind::HEADERS, flag::END_STREAM, stream, begin.clone());
    let protocol = |text| Want::GoAway(1, code::PROTOCOL_ERROR, text);
    let last = |stream| Frame::continuation(stream, rest.clone()).with_flags(flag::END_HEADERS);
    vec![
        row(
            "PING where CONTINUATION is due",
            [begun(1), Frame::ping([0; 8])],
            protocol("expected CONTINUATION frame"),
        ),
        row(
            "DATA where CONTINUATION is due",
            [begun(1), Frame::data(1, 0, *b"x")],
            protocol("expected CONTINUATION frame"),
        ),
        row(
            "an unknown frame where CONTINUATION is due",
            [begun(1), Frame::new(0xee, 0, 1, [])],
            protocol("expected CONTINUATION frame"),
        ),
        row(
            "CONTINUATION on another stream",
            [begun(1), last(3)],
            protocol("unexpected stream id in CONTINUATION frame"),
        ),
        row(
            "CONTINUATION out of nowhere",
            [last(1)],
            Want::GoAway(
                0,
                code::PROTOCOL_ERROR,
                "received invalid CONTINUATION frame",
            ),
        ),
        steps(
            "CONTINUATION after the end of the section",
            vec![small(1).into(), Step::Await(1), last(1).into()],
            protocol("received invalid CONTINUATION frame"),
        ),
        row(
            "a section in two frames",
            [begun(1), last(1)],
            Want::Answer(1, 200, "hello"),
        ),
        row(
            "a section in three frames, one empty",
            [begun(1), Frame::continuation(1, []), last(1)],
            Want::Answer(1, 200, "hello"),
        ),
        row(
            "a section with a padded begin",
            [begun(1).padded(7), last(1)],
            Want::Answer(1, 200, "hello"),
        ),
        row(
            "an empty begin",
            [
                Frame::new(kind::HEADERS, flag::END_STREAM, 1, []),
                Frame::continuation(1, get("/a.txt")).with_flags(flag::END_HEADERS),
            ],
            Want::Answer(1, 200, "hello"),
        ),
    ]
}

fn headers_in_wrong_states() -> Vec<Row> {
    let protocol = |last, text| Want::GoAway(last, code::PROTOCOL_ERROR, text);
    let closed = |last| {
        Want::GoAway(
            last,
            code::STREAM_CLOSED,
            "closed stream id in HEADERS frame",
        )
    };
    let trailers = |flags| Frame::new(kind::HEADERS, flags, 1, encode(&[("x-after", "1")]));
    // A request whose response cannot be completed, because the window of its stream is 0.
    let stuck = [
        Frame::settings(&[(setting::INITIAL_WINDOW_SIZE, 0)]),
        Frame::request(1, get("/large")),
    ];
    vec![
        row(
            "an even stream",
            [small(2)],
            protocol(0, "invalid stream id in HEADERS frame"),
        ),
        row(
            "a second request on a stream that is being answered",
            stuck.iter().cloned().chain([small(1)]),
            protocol(1, "invalid stream id in HEADERS frame"),
        ),
        steps(
            "HEADERS after the answer",
            vec![small(1).into(), Step::Await(1), small(1).into()],
            closed(1),
        ),
        steps(
            "HEADERS on a stream that was passed over",
            vec![small(5).into(), Step::Await(5), small(3).into()],
            closed(5),
        ),
        row(
            "trailers that are not the end",
            [
                upload(1),
                Frame::data(1, 0, *b"x"),
                trailers(flag::END_HEADERS),
            ],
            protocol(1, "trailing HEADERS frame MUST have END_STREAM flag set"),
        ),
        row(
            "trailers",
            [upload(1), Frame::data(1, 0, *b"x"), trailers(flag::WHOLE)],
            Want::Answer(1, 404, ""),
        ),
        row(
            "trailers without content",
            [upload(1), trailers(flag::WHOLE)],
            Want::Answer(1, 404, ""),
        ),
        row(
            "HEADERS that depend on themselves",
            [Frame::request_after(1, false, 1, 16, &get("/a.txt"))],
            protocol(0, "stream cannot depend on itself"),
        ),
        row(
            "PRIORITY that depends on itself",
            [Frame::priority(1, false, 1, 16)],
            protocol(0, "stream cannot depend on itself"),
        ),
        row(
            "HEADERS with a priority of 4 bytes",
            [Frame::new(
                kind::HEADERS,
                flag::WHOLE | flag::PRIORITY,
                1,
                [0; 4],
            )],
            protocol(0, ""),
        ),
        row(
            "HEADERS padded with more than they have",
            [Frame::new(
                kind::HEADERS,
                flag::WHOLE | flag::PADDED,
                1,
                [200, 0x82],
            )],
            protocol(0, "invalid HEADERS frame"),
        ),
        row(
            "HEADERS padded without the length",
            [Frame::new(kind::HEADERS, flag::WHOLE | flag::PADDED, 1, [])],
            protocol(0, "invalid HEADERS frame"),
        ),
        row(
            "HEADERS padded with 255 bytes",
            [small(1).padded(255)],
            Want::Answer(1, 200, "hello"),
        ),
        row(
            "HEADERS with unknown flags",
            [small(1).with_flags(flag::WHOLE | 0xd2)],
            Want::Answer(1, 200, "hello"),
        ),
        row(
            "RST_STREAM on an idle stream",
            [Frame::rst_stream(1, code::CANCEL)],
            protocol(0, "unexpected stream id in RST_STREAM frame"),
        ),
        steps(
            "RST_STREAM after the answer",
            vec![
                small(1).into(),
                Step::Await(1),
                Frame::rst_stream(1, code::CANCEL).into(),
            ],
            Want::Nothing,
        ),
        row(
            "the reserved bit of a stream identifier",
            [small(1 << 31 | 1)],
            Want::Answer(1, 200, "hello"),
        ),
    ]
}

fn data_and_windows() -> Vec<Row> {
    let protocol = |last, text| Want::GoAway(last, code::PROTOCOL_ERROR, text);
    let stuck = || {
        [
            Frame::settings(&[(setting::INITIAL_WINDOW_SIZE, 0)]),
            Frame::request(1, get("/large")),
        ]
    };
    let most = (1 << 31) - 1;
    vec![
        row(
            "DATA on an idle stream",
            [Frame::data(1, 0, *b"x")],
            protocol(0, "invalid DATA frame"),
        ),
        steps(
            "DATA after the answer",
            vec![
                small(1).into(),
                Step::Await(1),
                Frame::data(1, 0, *b"x").into(),
            ],
            Want::Reset(1, code::STREAM_CLOSED),
        ),
        row(
            "DATA after END_STREAM",
            stuck().into_iter().chain([Frame::data(1, 0, *b"x")]),
            Want::Reset(1, code::STREAM_CLOSED),
        ),
        row(
            "DATA padded with all it has",
            [
                upload(1),
                Frame::new(kind::DATA, flag::PADDED, 1, [3, 0, 0]),
            ],
            protocol(1, "invalid DATA frame"),
        ),
        row(
            "DATA padded without the length",
            [upload(1), Frame::new(kind::DATA, flag::PADDED, 1, [])],
            protocol(1, "invalid DATA frame"),
        ),
        row(
            "DATA that is nothing but padding",
            [
                upload(1),
                Frame::data(1, flag::END_STREAM, [])
                    .with_flags(9)
                    .padded(200),
            ],
            Want::Answer(1, 404, ""),
        ),
        row(
            "WINDOW_UPDATE of 0 on a stream",
            stuck().into_iter().chain([Frame::window_update(1, 0)]),
            Want::Reset(1, code::PROTOCOL_ERROR),
        ),
        row(
            "WINDOW_UPDATE of 0 on the connection",
            [Frame::window_update(0, 0)],
            protocol(0, "invalid WINDOW_UPDATE frame"),
        ),
        row(
            "a stream's window of 2^31",
            stuck().into_iter().chain([
                Frame::window_update(1, most),
                Frame::window_update(1, most),
                Frame::window_update(1, most),
            ]),
            Want::Reset(1, code::FLOW_CONTROL_ERROR),
        ),
        row(
            "a connection's window of 2^31",
            [Frame::window_update(0, most - 65_534)],
            Want::GoAway(0, code::FLOW_CONTROL_ERROR, "flow control window overflow"),
        ),
        row(
            "a connection's window of 2^31-1",
            [Frame::window_update(0, most - 65_535)],
            Want::Nothing,
        ),
        row(
            "WINDOW_UPDATE on an idle stream",
            [Frame::window_update(1, 1)],
            protocol(0, "invalid stream id in WINDOW_UPDATE frame"),
        ),
        steps(
            "WINDOW_UPDATE after the answer",
            vec![
                small(1).into(),
                Step::Await(1),
                Frame::window_update(1, 1).into(),
            ],
            Want::Nothing,
        ),
        row(
            "WINDOW_UPDATE with the reserved bit",
            [Frame::window_update(0, 1 << 31 | 1)],
            Want::Nothing,
        ),
    ]
}

fn tolerated() -> Vec<Row> {
    vec![
        row(
            "frames of unknown types",
            [
                Frame::new(0xee, 0xff, 0, *b"x"),
                Frame::new(0x0a, 0, 1, *b"ALTSVC"),
                Frame::new(0xee, 0xff, 77, []),
                small(1),
            ],
            Want::Answer(1, 200, "hello"),
        ),
        row(
            "PRIORITY_UPDATE of an idle stream",
            [Frame::priority_update(1, "u=0"), small(1)],
            Want::Answer(1, 200, "hello"),
        ),
        row(
            "GOAWAY, then a request",
            [Frame::goaway(0, code::NO_ERROR, "bye"), small(1)],
            Want::Answer(1, 200, "hello"),
        ),
        row(
            "PRIORITY for itself after its answer",
            [small(1), Frame::priority(1, true, 0, 256), small(3)],
            Want::Answer(3, 200, "hello"),
        ),
        row(
            "PING with ACK",
            [Frame::ping([1; 8]).with_flags(flag::ACK)],
            Want::Nothing,
        ),
        row(
            "a dependency on an unknown stream",
            [Frame::request_after(1, true, 99, 256, &get("/a.txt"))],
            Want::Answer(1, 200, "hello"),
        ),
    ]
}

#[test]
fn ping_is_answered_with_its_content() {
    let server = start("");
    let mut connection = open(&server);
    let before = connection.frames.len();
    connection.send_frame(&Frame::ping(*b"12345678"));
    connection.read_until("the answer to PING", |connection| {
        connection.frames.len() > before
    });
    let want = Frame::ping(*b"12345678").with_flags(flag::ACK);
    assert_eq!(connection.frames[before], want);
}
