//! HTTP/2 frame by frame: what a client may send wrong and what it gets for it, flow control to the octet, the form of
//! responses, and the order in which they share a connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use h2o_tests::http2::{
    Frame, GoAway, Http2, Indexing, PREFACE, code, encode, encode_integer, encode_with, flag, get,
    kind, post, setting,
};
use h2o_tests::{Deadline, Server, Setup};

/// The default of a stream's and a connection's window (RFC 9113 §6.9.2).
const DEFAULT_WINDOW: usize = 65_535;

const LARGE: usize = 1_000_000;

/// A server with these settings beside what all tests use.
fn start(settings: &str) -> Server {
    Setup::new(&format!(
        "
{settings}
listen: @PORT@
num-threads: 1
hosts:
  default:
    paths:
      /:
        file.dir: @DIR@/www
      /long:
        file.dir: @DIR@/www
        header.add: 'x-long: {}'
      /upload: {{ redirect: {{ url: 'http://elsewhere.example/', status: 302 }} }}
",
        "x".repeat(20_000)
    ))
    .file("www/a.txt", "hello")
    .file("www/empty.txt", "")
    .file("www/window", vec![b'w'; DEFAULT_WINDOW])
    .file("www/60k-a", vec![b'a'; 60_000])
    .file("www/60k-b", vec![b'b'; 60_000])
    .file("www/60k-c", vec![b'c'; 60_000])
    .file("www/large", vec![b'x'; LARGE])
    .start()
}

fn open(server: &Server) -> Http2 {
    Http2::open(server.port(), &[])
}

/// What a conversation ends with.
#[derive(Debug)]
enum Want {
    /// GOAWAY with this last stream, code and text, then the end of the connection.
    GoAway(u32, u32, &'static str),
    /// As above with any text.
    End(u32, u32),
    /// RST_STREAM on that stream with that code; the connection goes on.
    Reset(u32, u32),
    /// An answer on that stream with that status and, unless empty, content.
    Answer(u32, u16, &'static str),
    /// Nothing: the connection goes on.
    Nothing,
    /// The end of the connection without GOAWAY.
    Close,
}

/// What the client does.
enum Step {
    /// Sends a frame; successive ones in one piece.
    Send(Frame),
    /// Waits until the answer on that stream is over.
    Await(u32),
}

impl From<Frame> for Step {
    fn from(frame: Frame) -> Self {
        Self::Send(frame)
    }
}

struct Row {
    name: &'static str,
    steps: Vec<Step>,
    want: Want,
}

fn row(name: &'static str, frames: impl IntoIterator<Item = Frame>, want: Want) -> Row {
    let steps = frames.into_iter().map(Step::Send).collect();
    Row { name, steps, want }
}

/// As [`row`], with waits in between.
fn steps(name: &'static str, steps: Vec<Step>, want: Want) -> Row {
    Row { name, steps, want }
}

/// Plays each row on a connection of its own, in one piece and, unless it is long, octet by octet; says of all of them
/// what was not as wanted.
fn play(server: &Server, rows: &[Row]) {
    let pieces = |row: &Row| {
        let is_short = row.octets() <= 2000;
        [Some(usize::MAX), is_short.then_some(1)]
    };
    let failures: Vec<String> = rows
        .iter()
        .flat_map(|row| {
            pieces(row)
                .into_iter()
                .flatten()
                .map(move |piece| (row, piece))
        })
        .filter_map(|(row, piece)| play_row(server, row, piece).err())
        .collect();
    assert!(
        failures.is_empty(),
        "{} failures of {} rows:\n{}",
        failures.len(),
        rows.len(),
        failures.join("\n")
    );
    assert!(
        !server.messages().contains("panicked"),
        "the server is well"
    );
}

impl Row {
    fn octets(&self) -> usize {
        let octets = self.steps.iter().map(|step| match step {
            Step::Send(frame) => frame.octets().len(),
            Step::Await(_) => 0,
        });
        octets.sum()
    }
}

fn play_row(server: &Server, row: &Row, piece: usize) -> Result<(), String> {
    let mut connection = open(server);
    let mut pending = Vec::new();
    for step in &row.steps {
        match step {
            Step::Send(frame) => pending.extend(frame.octets()),
            Step::Await(stream) => {
                send_in_pieces(&mut connection, &std::mem::take(&mut pending), piece);
                let _ = connection.read_while_waiting(PATIENCE, |connection| {
                    connection.answer(*stream).is_over()
                });
            }
        }
    }
    send_in_pieces(&mut connection, &pending, piece);
    compare(&mut connection, &row.want).map_err(|error| {
        let how = if piece == 1 { " (octet by octet)" } else { "" };
        format!("* {}{how}: {error}\n{}", row.name, connection.story())
    })
}

/// The server may close the connection before it has taken everything.
fn send_in_pieces(connection: &mut Http2, octets: &[u8], piece: usize) {
    for piece in octets.chunks(piece.min(octets.len().max(1))) {
        if !connection.try_send(piece) {
            return;
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(3);

fn compare(connection: &mut Http2, want: &Want) -> Result<(), String> {
    match *want {
        Want::GoAway(last, code, text) => {
            if !connection.read_while_waiting(PATIENCE, |connection| connection.is_closed) {
                return Err("the connection stays open".to_owned());
            }
            let text = text.to_owned();
            let want = Some(GoAway { last, code, text });
            if connection.goaway != want {
                return Err(format!("wanted {want:?}, got {:?}", connection.goaway));
            }
        }
        Want::End(last, code) => {
            let is_closed =
                connection.read_while_waiting(PATIENCE, |connection| connection.is_closed);
            let got = connection.goaway.as_ref();
            let got = got.map(|goaway| (goaway.last, goaway.code));
            if !is_closed || got != Some((last, code)) {
                return Err(format!("wanted GOAWAY {:?}, got {got:?}", (last, code)));
            }
        }
        Want::Reset(stream, code) => {
            // A reset may come after a whole answer.
            let _ = connection.read_while_waiting(PATIENCE, |connection| {
                connection.answer(stream).reset.is_some() || connection.goaway.is_some()
            });
            let reset = connection.answer(stream).reset;
            if reset != Some(code) {
                return Err(format!("wanted reset {code}, got {reset:?}"));
            }
            return stays_open(connection);
        }
        Want::Answer(stream, status, text) => {
            let _ = connection.read_while_waiting(PATIENCE, |connection| {
                connection.answer(stream).is_over() || connection.goaway.is_some()
            });
            let answer = connection.answer(stream);
            if answer.status() != status || !(text.is_empty() || answer.text() == text) {
                return Err(format!("wanted {status} `{text}`, got {answer:?}"));
            }
            return stays_open(connection);
        }
        Want::Nothing => return stays_open(connection),
        Want::Close => {
            let is_closed =
                connection.read_while_waiting(PATIENCE, |connection| connection.is_closed);
            if !is_closed || connection.goaway.is_some() {
                return Err("wanted the end of the connection and no GOAWAY".to_owned());
            }
        }
    }
    Ok(())
}

fn stays_open(connection: &mut Http2) -> Result<(), String> {
    let content = *b"are you?";
    connection.send_frames(&[Frame::ping(content)]);
    let answered = connection.read_while_waiting(PATIENCE, |connection| {
        let is_answer = |frame: &Frame| frame.kind == kind::PING && frame.payload == content;
        connection.frames.iter().any(is_answer)
    });
    if answered && connection.goaway.is_none() {
        Ok(())
    } else {
        Err("the connection does not go on".to_owned())
    }
}

/// The begin of a request that goes on with content.
fn upload(stream: u32) -> Frame {
    Frame::request_with_content(stream, post("/upload"))
}

fn small(stream: u32) -> Frame {
    Frame::request(stream, get("/a.txt"))
}

/// A whole request with these fields.
fn asking(fields: &[(&str, &str)]) -> Frame {
    Frame::request(1, encode(fields))
}

/// A GET request with further fields.
fn with(fields: &[(&str, &str)]) -> Frame {
    Frame::request(1, [get("/a.txt"), encode(fields)].concat())
}

// --- establishment -------------------------------------------------------------------------------------------------

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
    connection.read_until("three frames", |connection| connection.frames.len() >= 3);
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
    // The first 18 octets decide that this is HTTP/2.
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
    let octets = [
        PREFACE.to_vec(),
        Frame::settings(&[]).octets(),
        small(1).octets(),
        upload(3).octets(),
        Frame::data(3, 0, *b"abc").padded(5).octets(),
        Frame::data(3, flag::END_STREAM, *b"d").octets(),
    ];
    for octet in octets.concat() {
        connection.send([octet]);
    }
    assert_eq!(connection.read_answer(1).text(), "hello");
    assert_eq!(connection.read_answer(3).status(), 302);
}

#[test]
fn a_connection_is_upgraded_from_http_1() {
    let server = start("");
    let mut socket = TcpStream::connect(("127.0.0.1", server.port())).expect("the server serves");
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("the time is not zero");
    // INITIAL_WINDOW_SIZE is 3.
    let request = "GET /a.txt HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAQAAAAD\r\n\r\n";
    socket
        .write_all(request.as_bytes())
        .expect("the server reads");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut octet = [0];
        socket.read_exact(&mut octet).expect("the head goes on");
        head.extend(octet);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    assert!(head.contains("\r\nupgrade: h2c\r\n"), "{head}");
    let mut connection = Http2::over(socket);
    connection.send(PREFACE);
    connection.send_frame(&Frame::settings(&[(setting::INITIAL_WINDOW_SIZE, 4)]));
    connection.read_until("the answer", |connection| {
        connection.answer(1).body.len() >= 4
    });
    connection.ping();
    assert_eq!(connection.answer(1).text(), "hell");
    connection.send_frame(&Frame::window_update(1, 1));
    assert_eq!(connection.read_answer(1).text(), "hello");
    assert_eq!(connection.ask(3, &get("/empty.txt")).status(), 200);
    // H2O sends its preface twice here.
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
    server.terminate();
    let clock = Deadline::after_secs(5);
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
    // Requests under way are still taken.
    assert_eq!(connection.ask(3, &get("/empty.txt")).status(), 200);
    connection.read_until("the second GOAWAY", |connection| {
        connection.goaway == goaway(3, "")
    });
    let time = clock.elapsed();
    assert!(
        time > Duration::from_millis(700) && time < Duration::from_secs(3),
        "{time:?}"
    );
    // Later ones are not answered.
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
            "five octets",
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
        connection.read_until("an acknowledgement", |connection| {
            let acks = connection.frames.iter();
            acks.filter(|frame| frame.kind == kind::SETTINGS && frame.has(flag::ACK))
                .count()
                == count
        });
    }
}

// --- frames --------------------------------------------------------------------------------------------------------

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
            "a frame of 16,385 octets",
            [Frame::new(0xee, 0, 0, vec![0; 16_385])],
            size(0, ""),
        ),
        row(
            "a frame of 16,384 octets",
            [Frame::new(0xee, 0, 0, vec![0; 16_384])],
            Want::Nothing,
        ),
        row(
            "PRIORITY of 4 octets",
            [Frame::new(kind::PRIORITY, 0, 1, [0; 4])],
            size(0, "invalid PRIORITY frame"),
        ),
        row(
            "RST_STREAM of 3 octets",
            [upload(1), Frame::new(kind::RST_STREAM, 0, 1, [0; 3])],
            size(1, "invalid RST_STREAM frame"),
        ),
        row(
            "RST_STREAM of 5 octets",
            [upload(1), Frame::new(kind::RST_STREAM, 0, 1, [0; 5])],
            size(1, "invalid RST_STREAM frame"),
        ),
        row(
            "PING of 7 octets",
            [Frame::new(kind::PING, 0, 0, [0; 7])],
            size(0, "invalid PING frame"),
        ),
        row(
            "PING of 9 octets",
            [Frame::new(kind::PING, 0, 0, [0; 9])],
            size(0, "invalid PING frame"),
        ),
        row(
            "WINDOW_UPDATE of 3 octets",
            [Frame::new(kind::WINDOW_UPDATE, 0, 0, [0, 0, 1])],
            size(0, "invalid WINDOW_UPDATE frame"),
        ),
        row(
            "GOAWAY of 7 octets",
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

/// The first octets of a request's HEADERS, and the rest.
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
    // Never answered, since its window is shut.
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
            Want::Answer(1, 302, ""),
        ),
        row(
            "trailers without content",
            [upload(1), trailers(flag::WHOLE)],
            Want::Answer(1, 302, ""),
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
            "HEADERS with a priority of 4 octets",
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
            "HEADERS padded with 255 octets",
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
            Want::Answer(1, 302, ""),
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
    connection.read_until("an answer", |connection| connection.frames.len() > before);
    let want = Frame::ping(*b"12345678").with_flags(flag::ACK);
    assert_eq!(connection.frames[before], want);
}

// --- HPACK ---------------------------------------------------------------------------------------------------------

#[test]
fn corrupt_field_sections_end_the_connection_with_compression_error() {
    let server = start("");
    let mut above_limit = Vec::new();
    encode_integer(&mut above_limit, 0x20, 5, 4097);
    let at_limit = |section: Vec<u8>| {
        let mut sections = Vec::new();
        encode_integer(&mut sections, 0x20, 5, 0);
        encode_integer(&mut sections, 0x20, 5, 4096);
        sections.extend(section);
        sections
    };
    let corrupt: [(&str, Vec<u8>); 10] = [
        ("index 0", vec![0x80]),
        ("an index past both tables", vec![0xff, 0x40]),
        ("a name index past both tables", vec![0x7f, 0x40, 0]),
        (
            "an index that never ends",
            [&[0xff][..], &[0xff; 20]].concat(),
        ),
        ("a table of 4,097 octets", above_limit),
        ("a change of the table's size after a field", vec![0x20]),
        ("a cut literal", vec![0x40, 5, b'a']),
        (
            "a string longer than its section",
            vec![0, 1, b'a', 0x7f, 0xff, 0xff, 0x7f],
        ),
        (
            "Huffman padding of a whole octet",
            vec![0, 1, b'a', 0x82, 0x07, 0xff],
        ),
        (
            "the end's code in Huffman",
            vec![0, 1, b'a', 0x84, 0xff, 0xff, 0xff, 0xff],
        ),
    ];
    let failures: Vec<_> = corrupt
        .into_iter()
        .filter_map(|(name, section)| {
            let mut connection = open(&server);
            connection.send_frames(&[Frame::request(1, [get("/a.txt"), section].concat())]);
            connection.read_while_waiting(PATIENCE, |connection| connection.is_closed);
            let code = connection.goaway.as_ref().map(|goaway| goaway.code);
            (code != Some(code::COMPRESSION_ERROR))
                .then(|| format!("{name}: {code:?}\n{}", connection.story()))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));

    let mut connection = open(&server);
    let answer = connection.ask(1, &at_limit(get("/a.txt")));
    assert_eq!(answer.text(), "hello");
}

#[test]
fn fields_in_the_dynamic_table_are_remembered() {
    let server = start("");
    let mut connection = open(&server);
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/a.txt"),
        (":authority", "www.example.com"),
    ];
    let first = connection.ask(1, &encode_with(Indexing::Incremental, &fields));
    assert_eq!(first.text(), "hello");
    // The oldest of four has the highest index.
    for stream in [3, 5] {
        let again = connection.ask(stream, &[0xc1, 0xc0, 0xbf, 0xbe]);
        assert_eq!(again.text(), "hello");
    }
    // A table of no size forgets all.
    connection.send_frames(&[Frame::request(7, [0x20, 0xc1, 0xc0, 0xbf, 0xbe])]);
    connection.read_to_end();
    let code = connection.goaway.map(|goaway| goaway.code);
    assert_eq!(code, Some(code::COMPRESSION_ERROR));
}

// --- request fields ------------------------------------------------------------------------------------------------

#[test]
fn wrong_fields_are_answered_with_their_code_and_text() {
    let server = start("");
    let method = (":method", "GET");
    let scheme = (":scheme", "http");
    let path = (":path", "/a.txt");
    let authority = (":authority", "a.example");
    let protocol = |text| Want::GoAway(1, code::PROTOCOL_ERROR, text);
    let reset = || Want::Reset(1, code::PROTOCOL_ERROR);
    let hello = || Want::Answer(1, 200, "hello");
    let bad_name = || Want::Answer(1, 400, "found an invalid character in header name");
    let bad_value = || Want::Answer(1, 400, "found an invalid character in header value");
    let specific = || protocol("found an unexpected connection-specific header");
    let pseudo = || protocol("invalid pseudo header");
    let many = |count| vec![("x", "1"); count];
    let rows = [
        row(
            "an upper-case letter in a name",
            [with(&[("X-a", "1")])],
            protocol("found an upper-case letter in header name"),
        ),
        row("a blank in a name", [with(&[("x a", "1")])], bad_name()),
        row("a colon within a name", [with(&[("x:a", "1")])], bad_name()),
        row(
            "an octet above 0x7f in a name",
            [with(&[("x\u{e9}", "1")])],
            bad_name(),
        ),
        row("a NUL in a value", [with(&[("x", "a\0b")])], bad_value()),
        row(
            "a line end in a value",
            [with(&[("x", "a\r\nb: c")])],
            bad_value(),
        ),
        row(
            "a leading blank in a value",
            [with(&[("x", " a")])],
            bad_value(),
        ),
        row(
            "a trailing tab in a value",
            [with(&[("x", "a\t")])],
            bad_value(),
        ),
        row(
            "a blank and text above 0x7f in a value",
            [with(&[("x", "a \u{e9}")])],
            hello(),
        ),
        row(
            "100 fields beside four of the request",
            [with(&many(100))],
            hello(),
        ),
        row(
            "101 fields beside four of the request",
            [with(&many(101))],
            Want::Answer(1, 400, "headers too long"),
        ),
        row(
            "996 fields and four of the request",
            [with(&many(996))],
            Want::Answer(1, 400, "headers too long"),
        ),
        row(
            "1,001 fields beside four of the request",
            [with(&many(1001))],
            Want::GoAway(1, code::COMPRESSION_ERROR, "headers too long"),
        ),
        row("connection", [with(&[("connection", "close")])], specific()),
        row(
            "http2-settings",
            [with(&[("http2-settings", "AA")])],
            specific(),
        ),
        row(
            "transfer-encoding",
            [with(&[("transfer-encoding", "chunked")])],
            specific(),
        ),
        row("upgrade", [with(&[("upgrade", "h2c")])], specific()),
        row("te: gzip", [with(&[("te", "gzip")])], specific()),
        row("te: trailers", [with(&[("te", "trailers")])], hello()),
        row(
            "keep-alive and proxy-connection",
            [with(&[("keep-alive", "1"), ("proxy-connection", "close")])],
            hello(),
        ),
        row(
            "content-length: abc",
            [with(&[("content-length", "abc")])],
            protocol("invalid content-length header"),
        ),
        row(
            "content-length: -1",
            [with(&[("content-length", "-1")])],
            protocol("invalid content-length header"),
        ),
        row(
            "content-length without content",
            [with(&[("content-length", "1")])],
            reset(),
        ),
        row(
            "content-length: 0 without content",
            [with(&[("content-length", "0")])],
            hello(),
        ),
        row(
            "content longer than content-length",
            [upload_of("3"), Frame::data(1, flag::END_STREAM, *b"four")],
            reset(),
        ),
        row(
            "content longer than content-length, not at its end",
            [upload_of("3"), Frame::data(1, 0, *b"four")],
            reset(),
        ),
        row(
            "content shorter than content-length",
            [upload_of("3"), Frame::data(1, flag::END_STREAM, *b"tw")],
            reset(),
        ),
        row(
            "content as long as content-length",
            [
                upload_of("3"),
                Frame::data(1, 0, *b"tw"),
                Frame::data(1, 1, *b"o"),
            ],
            Want::Answer(1, 302, ""),
        ),
        row(
            ":method twice",
            [asking(&[method, method, scheme, path, authority])],
            pseudo(),
        ),
        row(
            ":path twice",
            [asking(&[method, scheme, path, path, authority])],
            pseudo(),
        ),
        row(
            ":scheme twice",
            [asking(&[method, scheme, scheme, path, authority])],
            pseudo(),
        ),
        row(
            ":authority twice",
            [asking(&[method, scheme, path, authority, authority])],
            pseudo(),
        ),
        row(
            "a pseudo field after others",
            [asking(&[method, scheme, ("x", "1"), path, authority])],
            pseudo(),
        ),
        row(
            "an empty :path",
            [asking(&[method, scheme, (":path", ""), authority])],
            pseudo(),
        ),
        row(
            ":status",
            [asking(&[
                method,
                scheme,
                path,
                authority,
                (":status", "200"),
            ])],
            protocol(""),
        ),
        row(
            "an unknown pseudo field",
            [asking(&[method, scheme, path, authority, (":x", "1")])],
            protocol(""),
        ),
        row("no :method", [asking(&[scheme, path, authority])], reset()),
        row("no :scheme", [asking(&[method, path, authority])], reset()),
        row("no :path", [asking(&[method, scheme, authority])], reset()),
        row("no field at all", [Frame::request(1, [])], reset()),
        row(
            ":protocol with GET",
            [asking(&[
                method,
                scheme,
                path,
                authority,
                (":protocol", "websocket"),
            ])],
            reset(),
        ),
        row(
            "host for :authority",
            [asking(&[method, scheme, path, ("host", "a.example")])],
            hello(),
        ),
        row(
            "host beside :authority",
            [asking(&[
                method,
                scheme,
                path,
                authority,
                ("host", "b.example"),
            ])],
            hello(),
        ),
        row(
            "an unknown scheme",
            [asking(&[method, (":scheme", "ftp"), path, authority])],
            hello(),
        ),
        row(
            "expect: more",
            [with(&[("expect", "more")])],
            Want::Answer(1, 417, "unknown expectation"),
        ),
        row(
            "trailers with a pseudo field",
            [upload(1), Frame::request(1, encode(&[(":path", "/")]))],
            Want::End(1, code::PROTOCOL_ERROR),
        ),
    ];
    play(&server, &rows);
}

fn upload_of(length: &str) -> Frame {
    let section = [post("/upload"), encode(&[("content-length", length)])];
    Frame::request_with_content(1, section.concat())
}

#[test]
fn connect_has_its_own_fields() {
    let server = start("");
    let connect = (":method", "CONNECT");
    let authority = (":authority", "a.example:443");
    let rest = [
        (":scheme", "http"),
        (":path", "/"),
        (":protocol", "websocket"),
    ];
    let begin = |fields: &[(&str, &str)]| Frame::request_with_content(1, encode(fields));
    let reset = || Want::Reset(1, code::PROTOCOL_ERROR);
    let invalid = || Want::Answer(1, 400, "Invalid CONNECT request");
    let rows = [
        row(
            "CONNECT with :path",
            [begin(&[connect, authority, (":path", "/")])],
            reset(),
        ),
        row(
            "CONNECT with :scheme",
            [begin(&[connect, authority, (":scheme", "http")])],
            reset(),
        ),
        row("CONNECT without :authority", [begin(&[connect])], reset()),
        row(
            "CONNECT without :scheme and :path but :protocol",
            [begin(&[connect, authority, (":protocol", "websocket")])],
            reset(),
        ),
        row(
            "CONNECT with END_STREAM",
            [asking(&[connect, authority])],
            invalid(),
        ),
        row(
            "CONNECT with content-length",
            [begin(&[connect, authority, ("content-length", "0")])],
            invalid(),
        ),
        row(
            "extended CONNECT with END_STREAM",
            [asking(&[connect, rest[0], rest[1], rest[2], authority])],
            invalid(),
        ),
        row(
            "CONNECT where there are only files",
            [begin(&[connect, authority])],
            Want::Answer(1, 405, ""),
        ),
        row(
            "extended CONNECT where there are only files",
            [begin(&[connect, rest[0], rest[1], rest[2], authority])],
            Want::Answer(1, 405, ""),
        ),
        row(
            "CONNECT-UDP with another path",
            [begin(&[
                (":method", "CONNECT-UDP"),
                rest[0],
                (":path", "/a"),
                authority,
            ])],
            reset(),
        ),
    ];
    play(&server, &rows);
}

// --- limits that end a section, a stream, a connection -------------------------------------------------------------

/// HEADERS and as many CONTINUATION frames with these payloads.
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

/// A section of a request that is `length` octets long.
fn section_of(length: usize) -> Vec<u8> {
    let mut section = get("/a.txt");
    let value = (0..=length).rev().find(|&value| {
        // A name of one octet, and a length before the value.
        let mut head = vec![0, 1, b'x'];
        encode_integer(&mut head, 0, 7, value);
        section.len() + head.len() + value <= length
    });
    section.extend([0, 1, b'x']);
    let value = value.expect("the request is shorter");
    encode_integer(&mut section, 0, 7, value);
    section.extend(vec![b'y'; value]);
    assert_eq!(section.len(), length);
    section
}

/// H2O takes any number of CONTINUATION frames up to 417,792 octets and answers more with REFUSED_STREAM. This server
/// takes what a client in good faith sends, and ends the connection of others.
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
        ("65,536 octets", in_pieces(&pieces(65_536)), Ok(())),
        ("65,537 octets", in_pieces(&pieces(65_537)), calm()),
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
    // There is room again.
    assert_eq!(connection.ask(7, &get("/empty.txt")).status(), 200);
    assert_eq!(connection.answer(3).reset, None);
}

#[test]
fn content_above_limit_request_body_is_refused() {
    let server = start("limit-request-body: 1000");
    let content = |length: usize, flags| Frame::data(1, flags, vec![b'x'; length]);
    let rows = [
        row(
            "1,000 octets",
            [upload(1), content(1000, 1)],
            Want::Answer(1, 302, ""),
        ),
        row(
            "1,001 octets",
            [upload(1), content(1001, 1)],
            Want::Reset(1, code::REFUSED_STREAM),
        ),
        row(
            "1,001 octets in two frames",
            [upload(1), content(1000, 0), content(1, 1)],
            Want::Reset(1, code::REFUSED_STREAM),
        ),
        row(
            "1,001 octets and more to come",
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
                let mut connection = Http2::open(server.port(), settings);
                if let Some(path) = path {
                    connection.send_frame(&Frame::request(1, get(path)));
                }
                let clock = Deadline::after_secs(3);
                let closed = connection.read_while_waiting(clock.left(), |c| c.is_closed);
                assert!(closed, "{name}: {}", connection.story());
                let time = clock.elapsed();
                assert!(time > Duration::from_millis(700), "{name}: {time:?}");
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
    assert_eq!((answer.status(), answer.interim.len()), (302, 1));

    let no_hints = [section, encode(&[("no-early-hints", "1")])].concat();
    connection.send_frame(&Frame::request_with_content(3, no_hints));
    connection.ping();
    connection.send_frame(&Frame::data(3, flag::END_STREAM, *b"abc"));
    let answer = connection.read_answer(3);
    assert_eq!((answer.status(), answer.interim.len()), (302, 0));
}

// --- flow control --------------------------------------------------------------------------------------------------

/// Reads until so much of the answer on a stream is there; not an octet more comes.
fn exactly(connection: &mut Http2, stream: u32, length: usize, why: &str) {
    let limit = Duration::from_secs(5);
    connection.read_while_waiting(limit, |c| {
        c.answers
            .get(&stream)
            .is_some_and(|a| a.body.len() >= length)
    });
    connection.ping();
    connection.read_while_waiting(Duration::from_millis(20), |_| false);
    assert_eq!(connection.answer(stream).body.len(), length, "{why}");
}

#[test]
fn windows_of_the_client_are_kept_to_the_octet() {
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
fn the_window_of_the_connection_is_shared_and_kept_to_the_octet() {
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
    assert_eq!(connection.answer(3).status(), 200, "HEADERS have no window");
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
    // An empty answer needs no window.
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
    // Streams opened later begin with the last value; the connection's window is another.
    connection.send_frame(&Frame::request(3, get("/large")));
    exactly(&mut connection, 3, 110, "a later stream");

    // RFC 9113 §6.9.2: a window may not pass 2^31-1 by SETTINGS either.
    let mut connection = Http2::open(server.port(), &[(setting::INITIAL_WINDOW_SIZE, 0)]);
    connection.send_frame(&Frame::request(1, get("/large")));
    connection.send_frame(&Frame::window_update(1, (1 << 31) - 1));
    connection.ping();
    // The stream has taken at most the connection's window of 65,535.
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

/// The increments of all WINDOW_UPDATE frames received for a stream, past the one of the server's preface.
fn increments(connection: &Http2, stream: u32) -> Vec<usize> {
    let updates = connection.frames[2..].iter();
    updates
        .filter(|frame| frame.kind == kind::WINDOW_UPDATE && frame.stream == stream)
        .map(|frame| {
            let octets = frame.payload.first_chunk().expect("four octets");
            usize::try_from(u32::from_be_bytes(*octets)).expect("31 bits")
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
        assert_eq!(increments(&connection, 1), [], "before DATA");
        connection.send_frame(&Frame::data(1, 0, *b"x"));
        connection.read_until("WINDOW_UPDATE", |connection| {
            !increments(connection, 1).is_empty()
        });
        assert_eq!(increments(&connection, 1), [want], "{settings}");
        connection.send_frame(&Frame::data(1, flag::END_STREAM, *b"x"));
        assert_eq!(connection.read_answer(1).status(), 302);
        // Whole content in one frame needs no more window.
        connection.send_frame(&upload(3));
        connection.send_frame(&Frame::data(3, flag::END_STREAM, *b"x"));
        assert_eq!(connection.read_answer(3).status(), 302);
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
    // Padding takes from the window as well.
    let content = vec![b'x'; FRAME - 256];
    let frame = Frame::data(1, 0, content).padded(255).octets();
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
    assert_eq!(increments(&connection, 0), [], "{sent} octets");
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
        "{given} of {sent} octets"
    );
    assert_eq!(given % FRAME, 0, "padding counts");
    connection.send_frame(&Frame::data(1, flag::END_STREAM, *b"x"));
    assert_eq!(connection.read_answer(1).status(), 302);
}

// --- responses -----------------------------------------------------------------------------------------------------

fn of_stream(connection: &Http2, stream: u32) -> Vec<(u8, usize, bool)> {
    let frames = connection
        .frames
        .iter()
        .filter(|frame| frame.stream == stream);
    frames
        .filter(|frame| frame.kind != kind::WINDOW_UPDATE)
        .map(|frame| {
            let is_end =
                matches!(frame.kind, kind::DATA | kind::HEADERS) && frame.has(flag::END_STREAM);
            (frame.kind, frame.payload.len(), is_end)
        })
        .collect()
}

#[test]
fn responses_are_headers_then_data_with_the_end_on_the_last() {
    let server = start("");
    let mut connection = open(&server);
    let answer = connection.ask(1, &get("/a.txt"));
    let frames = of_stream(&connection, 1);
    let kinds: Vec<_> = frames
        .iter()
        .map(|&(kind, _, is_end)| (kind, is_end))
        .collect();
    assert_eq!(kinds, [(kind::HEADERS, false), (kind::DATA, true)]);
    let names: Vec<_> = answer
        .fields
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(names[..2], [":status", "server"]);
    assert_eq!(names.last(), Some(&"content-length"), "{names:?}");
    assert!(names.contains(&"date"), "{names:?}");
    assert!(!names.contains(&"connection"), "{names:?}");
    let lower = names
        .iter()
        .all(|name| !name.bytes().any(|c| c.is_ascii_uppercase()));
    assert!(lower, "{names:?}");
    assert_eq!(answer.field("content-type"), Some("text/plain"));
    assert_eq!(answer.field("content-length"), Some("5"));

    // The dynamic table has 32 entries at most.
    for stream in (3..201).step_by(2) {
        let again = connection.ask(stream, &get("/a.txt"));
        assert_eq!(again.text(), "hello");
        let (entries, size) = connection.decoder().table();
        assert!(
            entries <= 32 && size <= 4096,
            "{entries} entries, {size} octets"
        );
    }
}

#[test]
fn responses_without_content_end_with_headers() {
    let server = start("");
    let mut connection = open(&server);
    let head = encode(&[
        (":method", "HEAD"),
        (":scheme", "http"),
        (":path", "/large"),
        (":authority", "a.example"),
    ]);
    let etag = connection
        .ask(1, &get("/a.txt"))
        .field("etag")
        .unwrap_or_default()
        .to_owned();
    let unchanged = [get("/a.txt"), encode(&[("if-none-match", &etag)])].concat();
    for (stream, name, section, status, length) in [
        (3, "HEAD", head, 200, Some("1000000")),
        (5, "304", unchanged, 304, None),
        (7, "an empty file", get("/empty.txt"), 200, Some("0")),
    ] {
        let answer = connection.ask(stream, &section);
        assert_eq!(answer.status(), status, "{name}: {answer:?}");
        if length.is_some() {
            assert_eq!(answer.field("content-length"), length, "{name}");
        }
        let frames = of_stream(&connection, stream);
        assert_eq!(frames.len(), 1, "{name}: {frames:?}");
        assert!(frames[0].2, "{name}: {frames:?}");
    }
}

#[test]
fn frames_are_not_longer_than_the_client_takes() {
    let server = start("");
    for (size, largest) in [
        (None, 16_384),
        (Some(16_384), 16_384),
        (Some(20_000), 20_000),
    ] {
        let mut settings = vec![(setting::INITIAL_WINDOW_SIZE, 1 << 24)];
        settings.extend(size.map(|size| (setting::MAX_FRAME_SIZE, size)));
        let mut connection = Http2::open(server.port(), &settings);
        connection.send_frame(&Frame::window_update(0, 1 << 24));
        let answer = connection.ask(1, &get("/large"));
        assert_eq!(answer.body.len(), LARGE);
        let long = connection.ask(3, &get("/long/a.txt"));
        assert_eq!(long.field("x-long").map(str::len), Some(20_000));
        assert_eq!(long.text(), "hello");
        let longest = connection
            .frames
            .iter()
            .map(|frame| frame.payload.len())
            .max();
        assert!(longest <= Some(largest), "{longest:?} for {size:?}");
        // Content is not sent in crumbs.
        let data = connection
            .frames
            .iter()
            .filter(|frame| frame.kind == kind::DATA);
        let count = data.count();
        assert!(count <= 2 * LARGE.div_ceil(16_384), "{count} frames");
    }
}

// --- priorities ----------------------------------------------------------------------------------------------------

/// A connection whose window is used up and whose stream windows are wide.
fn with_a_shut_connection(server: &Server, settings: &[(u16, u32)]) -> Http2 {
    let settings = [&[(setting::INITIAL_WINDOW_SIZE, 1 << 24)], settings].concat();
    let mut connection = Http2::open(server.port(), &settings);
    let answer = connection.ask(1, &get("/window"));
    assert_eq!(answer.body.len(), DEFAULT_WINDOW);
    connection
}

/// Waits until all these are about to send, then opens the window by `step` `count` times; the stream of each frame of
/// content in order.
fn order(connection: &mut Http2, streams: &[u32], step: u16, count: usize) -> Vec<u32> {
    connection.read_until("all HEADERS", |connection| {
        let mut streams = streams.iter();
        streams.all(|stream| connection.answer(*stream).status() == 200)
    });
    // So that files are read ahead by whoever does that.
    connection.ping();
    let begin = connection.frames.len();
    let mut total = 0;
    let received = |connection: &Http2| -> usize {
        let data = connection.frames[begin..].iter();
        data.filter(|frame| frame.kind == kind::DATA)
            .map(|frame| frame.payload.len())
            .sum()
    };
    for _ in 0..count {
        connection.send_frame(&Frame::window_update(0, step.into()));
        total += usize::from(step);
        connection.read_until("what the window allows", |connection| {
            let all_over = streams
                .iter()
                .all(|stream| connection.answer(*stream).is_over());
            received(connection) >= total || all_over
        });
    }
    let data = connection.frames[begin..].iter();
    data.filter(|frame| frame.kind == kind::DATA && !frame.payload.is_empty())
        .map(|frame| frame.stream)
        .collect()
}

/// Without successive duplicates.
fn runs(order: &[u32]) -> Vec<u32> {
    let mut runs = order.to_vec();
    runs.dedup();
    runs
}

const FILES: [&str; 3] = ["/60k-a", "/60k-b", "/60k-c"];

fn asking_with_priority(stream: u32, path: &str, priority: &str) -> Frame {
    let fields: &[(&str, &str)] = &[("priority", priority)];
    let fields = if priority.is_empty() { &[] } else { fields };
    Frame::request(stream, [get(path), encode(fields)].concat())
}

/// Unlike H2O, this server follows RFC 9218 on HTTP/2.
#[test]
fn urgency_decides_which_of_three_responses_goes_first() {
    let server = start("");
    let no_tree = &[(setting::NO_RFC7540_PRIORITIES, 1)][..];
    // Streams 3, 5 and 7 with these fields; then these updates; the order wanted.
    type Case = (
        &'static str,
        [&'static str; 3],
        &'static [(u32, &'static str)],
        &'static [u32],
    );
    let cases: [Case; 6] = [
        ("urgencies 5, 1, 3", ["u=5", "u=1", "u=3"], &[], &[5, 7, 3]),
        (
            "urgencies 7, default, 0",
            ["u=7", "", "u=0"],
            &[],
            &[7, 5, 3],
        ),
        ("all alike", ["u=2", "u=2", "u=2"], &[], &[3, 5, 7]),
        (
            "an update raises the last",
            ["u=3", "u=3", "u=3"],
            &[(7, "u=0")],
            &[7, 3, 5],
        ),
        (
            "an update lowers the first",
            ["", "u=3", "u=3"],
            &[(3, "u=6")],
            &[5, 7, 3],
        ),
        (
            "the last of two updates counts",
            ["u=1", "u=2", "u=3"],
            &[(5, "u=7"), (5, "u=0")],
            &[5, 3, 7],
        ),
    ];
    for settings in [no_tree, &[]] {
        for (name, fields, updates, want) in cases {
            let mut connection = with_a_shut_connection(&server, settings);
            for ((stream, path), priority) in [3, 5, 7].into_iter().zip(FILES).zip(fields) {
                connection.send_frame(&asking_with_priority(stream, path, priority));
            }
            for (stream, value) in updates {
                connection.send_frame(&Frame::priority_update(*stream, value));
            }
            let order = order(&mut connection, &[3, 5, 7], 5000, 36);
            assert_eq!(runs(&order), want, "{name}, {settings:?}");
        }
    }
}

#[test]
fn an_update_ahead_of_its_request_counts() {
    let server = start("");
    let no_tree = [(setting::NO_RFC7540_PRIORITIES, 1)];
    let mut connection = with_a_shut_connection(&server, &no_tree);
    connection.send_frame(&Frame::priority_update(7, "u=0"));
    for (stream, path) in [3, 5, 7].into_iter().zip(FILES) {
        connection.send_frame(&asking_with_priority(stream, path, "u=2"));
    }
    let order = order(&mut connection, &[3, 5, 7], 5000, 36);
    assert_eq!(runs(&order), [7, 3, 5]);
}

#[test]
fn incremental_responses_of_one_urgency_share_the_connection() {
    let server = start("");
    let no_tree = [(setting::NO_RFC7540_PRIORITIES, 1)];
    let mut connection = with_a_shut_connection(&server, &no_tree);
    for (stream, path) in [3, 5, 7].into_iter().zip(FILES) {
        connection.send_frame(&asking_with_priority(stream, path, "u=2, i"));
    }
    let order = order(&mut connection, &[3, 5, 7], 2000, 30);
    for stream in [3, 5, 7] {
        let length = connection.answer(stream).body.len();
        assert!(
            (14_000..=26_000).contains(&length),
            "{stream}: {length} of 60,000\n{order:?}"
        );
    }
}

#[test]
fn exclusive_chains_are_sent_one_after_the_other() {
    let server = start("");
    let mut connection = with_a_shut_connection(&server, &[]);
    // As Chromium: every stream exclusive, after the last one that is not less urgent.
    for (stream, parent, weight, path) in [
        (3, 0, 220, FILES[0]),
        (5, 3, 147, FILES[1]),
        (7, 0, 256, FILES[2]),
    ] {
        let frame = Frame::request_after(stream, true, parent, weight, &get(path));
        connection.send_frame(&frame);
    }
    let first = order(&mut connection, &[3, 5, 7], 5000, 6);
    assert_eq!(runs(&first), [7], "the new one goes before all");
    // A fourth one, between the others.
    let frame = Frame::request_after(9, true, 7, 183, &get(FILES[0]));
    connection.send_frame(&frame);
    let rest = order(&mut connection, &[3, 5, 7, 9], 5000, 42);
    assert_eq!(runs(&rest), [7, 9, 3, 5]);
}

#[test]
fn groups_of_placeholders_share_in_proportion() {
    let server = start("");
    let mut connection = with_a_shut_connection(&server, &[]);
    // As Firefox: leaders, others, background, speculative, followers, urgent.
    for (stream, parent, weight) in [
        (3, 0, 201),
        (5, 0, 101),
        (7, 0, 1),
        (9, 7, 1),
        (11, 3, 1),
        (13, 0, 241),
    ] {
        connection.send_frame(&Frame::priority(stream, false, parent, weight));
    }
    for (stream, parent, weight) in [(15, 3, 32), (17, 5, 32), (19, 11, 32), (21, 9, 32)] {
        connection.send_frame(&Frame::request_after(
            stream,
            false,
            parent,
            weight,
            &get("/large"),
        ));
    }
    // 303 visits, as many as the weights of the groups.
    let _ = order(&mut connection, &[15, 17, 19, 21], 500, 303);
    let sent = |stream| connection.answer(stream).body.len();
    let all: usize = [15, 17, 19, 21].map(sent).iter().sum();
    let share = |part: usize| part * 303 / all;
    let shares = [share(sent(15) + sent(19)), share(sent(17)), share(sent(21))];
    assert!(
        (185..=217).contains(&shares[0]),
        "leaders and followers: {shares:?}"
    );
    assert!((85..=117).contains(&shares[1]), "others: {shares:?}");
    assert!(shares[2] <= 8, "speculative: {shares:?}");
    // Followers are to leaders as 1 to 32.
    let (leader, follower) = (sent(15), sent(19));
    assert!(
        follower * 16 <= leader && follower * 64 >= leader,
        "{leader} and {follower}"
    );
}

#[test]
fn a_stream_is_served_before_those_that_depend_on_it() {
    let server = start("");
    let mut connection = with_a_shut_connection(&server, &[]);
    connection.send_frame(&Frame::request_after(3, false, 0, 16, &get(FILES[0])));
    connection.send_frame(&Frame::request_after(5, false, 3, 256, &get(FILES[1])));
    connection.send_frame(&Frame::request_after(7, false, 5, 256, &get(FILES[2])));
    let first = order(&mut connection, &[3, 5, 7], 5000, 6);
    assert_eq!(runs(&first), [3]);
    // PRIORITY moves a stream that is being answered.
    connection.send_frame(&Frame::priority(5, true, 0, 16));
    let rest = order(&mut connection, &[3, 5, 7], 5000, 30);
    assert_eq!(rest.first(), Some(&5), "{rest:?}");
    assert_eq!(connection.answer(5).body.len(), 60_000);
    let last_5 = rest.iter().rposition(|&stream| stream == 5);
    let other = rest.iter().position(|&stream| stream != 5);
    assert!(last_5 < other, "5 before all: {rest:?}");
}

#[test]
fn sixteen_placeholders_are_kept() {
    let server = start("");
    let placeholders = |count: u32| (1..=count).map(|n| Frame::priority(2 * n + 1, false, 0, 16));
    let rows = [
        row("16 placeholders", placeholders(16), Want::Nothing),
        row(
            "16 placeholders, each twice",
            placeholders(16).chain(placeholders(16)),
            Want::Nothing,
        ),
        row(
            "17 placeholders",
            placeholders(17),
            Want::GoAway(
                0,
                code::ENHANCE_YOUR_CALM,
                "too many streams in idle/closed state",
            ),
        ),
        row(
            "placeholders become streams, which makes room",
            placeholders(16).chain([small(3), Frame::priority(101, false, 0, 16)]),
            Want::Answer(3, 200, "hello"),
        ),
    ];
    play(&server, &rows);
}
