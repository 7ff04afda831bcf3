//! HTTP/2 in cleartext between proxy and backend, frame by frame.

use std::collections::VecDeque;

use h2o_tests::http2::{Decoder, Frame, Http2, PREFACE, code, encode, flag, get, kind, post};
use h2o_tests::{Backend, Server, Setup, Talk, eventually};

use super::kit::config;

const SETTINGS: &str =
    "proxy.http2.force-cleartext: ON\nproxy.http2.ratio: 100\nproxy.timeout.io: 3000";

/// The backend's end of an HTTP/2 connection.
pub(crate) struct Frames<'a> {
    pub(crate) talk: &'a mut Talk,
    decoder: Decoder,
}

impl<'a> Frames<'a> {
    /// Reads the client's preface; `None` if the connection ends before.
    pub(crate) fn new(talk: &'a mut Talk) -> Option<Self> {
        let preface = talk.read_exactly(PREFACE.len())?;
        assert_eq!(
            preface, PREFACE,
            "the proxy's connection begins with the preface of HTTP/2"
        );
        Some(Self {
            talk,
            decoder: Decoder::default(),
        })
    }

    /// Reads the next frame; `None` if the connection ends before.
    pub(crate) fn read(&mut self) -> Option<Frame> {
        let head = self.talk.read_exactly(9)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let payload = self.talk.read_exactly(usize::try_from(length).ok()?)?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some(Frame::new(head[3], head[4], stream, payload))
    }

    /// Reads up to the next request. Returns its stream and its fields; `None` if the connection ends before.
    pub(crate) fn read_request(&mut self) -> Option<(u32, Vec<(String, String)>)> {
        loop {
            let frame = self.read()?;
            if frame.kind == kind::HEADERS {
                assert!(
                    frame.has(flag::END_HEADERS),
                    "the proxy's HEADERS frame holds the whole section"
                );
                assert!(
                    !frame.has(flag::PADDED),
                    "the proxy's HEADERS frame is not padded"
                );
                let skipped = if frame.has(flag::PRIORITY) { 5 } else { 0 };
                let fields = self.decoder.decode_text(&frame.payload[skipped..]);
                return Some((frame.stream, fields));
            }
        }
    }

    pub(crate) fn send(&mut self, frames: &[Frame]) {
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::bytes).collect();
        self.talk.send(bytes);
    }
}

pub(crate) fn start(backend: &Backend) -> Server {
    Setup::new(&config(SETTINGS, &backend.url("/"))).start()
}

fn fields(fields: &[(&str, &str)]) -> Frame {
    Frame::request_with_content(1, encode(fields))
}

fn ok() -> Frame {
    fields(&[(":status", "200")])
}

/// What the client must get, and what the error log must have.
#[derive(Clone, Copy, Debug)]
enum Want {
    /// The client gets 502 with this text, which is also logged.
    Error(&'static str),
    /// The client gets a response whose content is cut off; the text is logged.
    Cut(&'static str),
    /// The client gets a complete response with this status and content.
    Whole(u16, &'static str),
}

/// A name, the frames that the backend sends in answer to a request on stream 1, and what the client must get.
type Row = (&'static str, Vec<Frame>, Want);

/// The frames of a response head with a field of `len` bytes, in frames of up to `max` bytes.
fn long_head(len: usize, max: usize) -> Vec<Frame> {
    let section = encode(&[(":status", "200"), ("x", &"v".repeat(len))]);
    let pieces: Vec<_> = section.chunks(max).collect();
    let last = pieces.len() - 1;
    let frame = |(at, piece): (usize, &&[u8])| {
        let flags = if at == last { flag::END_HEADERS } else { 0 };
        let kind = if at == 0 {
            kind::HEADERS
        } else {
            kind::CONTINUATION
        };
        Frame::new(kind, flags, 1, piece.to_vec())
    };
    pieces.iter().enumerate().map(frame).collect()
}

fn rows() -> Vec<Row> {
    let wrong = Want::Error("protocol violation");
    let end = |content: &str| Frame::data(1, flag::END_STREAM, content);
    let many = vec![("x", "1"); 101];
    vec![
        (
            "content",
            vec![ok(), Frame::data(1, 0, "he"), end("llo")],
            Want::Whole(200, "hello"),
        ),
        (
            "no content",
            vec![Frame::request(1, encode(&[(":status", "204")]))],
            Want::Whole(204, ""),
        ),
        (
            "a head of 400,000 bytes",
            [long_head(400_000, 16_384), vec![end("hello")]].concat(),
            Want::Whole(200, "hello"),
        ),
        (
            "a head in a hundred frames",
            [long_head(100_000, 1000), vec![end("hello")]].concat(),
            Want::Whole(200, "hello"),
        ),
        ("a head of 420,000 bytes", long_head(420_000, 16_384), wrong),
        (
            "padding, unknown frames and an interim response",
            vec![
                Frame::new(0xee, 7, 1, *b"?"),
                fields(&[(":status", "103"), ("link", "</a>")]),
                ok(),
                Frame::data(1, flag::END_STREAM, "hello").padded(9),
            ],
            Want::Whole(200, "hello"),
        ),
        (
            "no :status",
            vec![Frame::request(1, encode(&[("x", "y")]))],
            wrong,
        ),
        (
            "a :status in letters",
            vec![Frame::request(1, encode(&[(":status", "2oo")]))],
            wrong,
        ),
        (
            "a :status of two digits",
            vec![Frame::request(1, encode(&[(":status", "20")]))],
            wrong,
        ),
        (
            "two of :status",
            vec![Frame::request(
                1,
                encode(&[(":status", "200"), (":status", "200")]),
            )],
            wrong,
        ),
        (
            "a pseudo field of requests",
            vec![Frame::request(
                1,
                encode(&[(":status", "200"), (":path", "/")]),
            )],
            wrong,
        ),
        (
            "status 101",
            vec![Frame::request(1, encode(&[(":status", "101")]))],
            wrong,
        ),
        (
            "connection",
            vec![Frame::request(
                1,
                encode(&[(":status", "200"), ("connection", "close")]),
            )],
            wrong,
        ),
        (
            "an upper-case name",
            vec![Frame::request(1, encode(&[(":status", "200"), ("X", "y")]))],
            wrong,
        ),
        (
            "a line end in a value",
            vec![Frame::request(
                1,
                encode(&[(":status", "200"), ("x", "a\r\nb: c")]),
            )],
            wrong,
        ),
        (
            "101 fields",
            vec![Frame::request(
                1,
                encode(&[&[(":status", "200")][..], &many].concat()),
            )],
            wrong,
        ),
        (
            "two lengths",
            vec![
                fields(&[
                    (":status", "200"),
                    ("content-length", "5"),
                    ("content-length", "6"),
                ]),
                end("hello"),
            ],
            wrong,
        ),
        (
            "a length in letters",
            vec![
                fields(&[(":status", "200"), ("content-length", "five")]),
                end("hello"),
            ],
            wrong,
        ),
        (
            "content before the head",
            vec![Frame::data(1, 0, "hello"), ok()],
            wrong,
        ),
        (
            "a section that is none",
            vec![Frame::request(1, [0xff; 12])],
            wrong,
        ),
        ("content on stream 0", vec![Frame::data(0, 0, "x")], wrong),
        (
            "a push",
            vec![Frame::new(
                kind::PUSH_PROMISE,
                flag::END_HEADERS,
                1,
                [0, 0, 0, 2, 0x88],
            )],
            wrong,
        ),
        (
            "a frame above the limit",
            vec![Frame::new(kind::DATA, 0, 1, vec![0; 16_385])],
            wrong,
        ),
        (
            "a reset",
            vec![Frame::rst_stream(1, code::INTERNAL_ERROR)],
            Want::Error("I/O error"),
        ),
        ("silence", vec![], Want::Error("first byte timeout")),
        (
            "half the content",
            vec![ok(), Frame::data(1, 0, "he")],
            Want::Cut("I/O timeout"),
        ),
        (
            "a reset within the content",
            vec![
                ok(),
                Frame::data(1, 0, "he"),
                Frame::rst_stream(1, code::CANCEL),
            ],
            Want::Cut("I/O error"),
        ),
    ]
}

#[test]
fn what_an_http2_back_end_does_wrong_is_not_passed_on() {
    let mut failures = Vec::new();
    for (name, frames, want) in rows() {
        for is_http2 in [false, true] {
            eprintln!("{name}, HTTP/2: {is_http2}");
            let frames = frames.clone();
            let backend = Backend::start(move |talk: &mut Talk| {
                let Some(mut connection) = Frames::new(talk) else {
                    return;
                };
                connection.send(&[Frame::settings(&[])]);
                if connection.read_request().is_some() {
                    connection.send(&frames);
                    connection.talk.read_to_end();
                }
            });
            let server = start(&backend);
            let seen = if is_http2 {
                ask_http2(&server)
            } else {
                ask_http1(&server)
            };
            let is_right = match want {
                Want::Error(text) => seen == Seen::Whole(502, text.to_owned()),
                Want::Whole(status, text) => seen == Seen::Whole(status, text.to_owned()),
                Want::Cut(_) => seen == Seen::Cut(is_http2.then_some(code::PROTOCOL_ERROR)),
            };
            if !is_right {
                failures.push(format!("* {name}: wanted {want:?}, got {seen:?}\n"));
            }
            let logged = match want {
                Want::Error(text) | Want::Cut(text) => text,
                Want::Whole(..) => continue,
            };
            server.wait_for_message(&format!("/x:{logged}\n"));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.concat());
}

/// The backend's last DATA frame, which ends the stream too early, has content, too.
#[test]
fn content_of_an_http2_back_end_that_is_short_of_its_length_is_not_lost() {
    let backend = Backend::start(move |talk: &mut Talk| {
        let Some(mut connection) = Frames::new(talk) else {
            return;
        };
        connection.send(&[Frame::settings(&[])]);
        while let Some((stream, _)) = connection.read_request() {
            let head = encode(&[(":status", "200"), ("content-length", "5")]);
            connection.send(&[
                Frame::request_with_content(stream, head),
                Frame::data(stream, 0, "h"),
                Frame::data(stream, flag::END_STREAM, "el"),
            ]);
        }
    });
    let server = start(&backend);
    let mut client = server.connect();
    client.send("GET /x HTTP/1.1\r\nHost: www.example.com\r\n\r\n");
    client.read_head().must_be("200 \ncontent-length: 5");
    assert_eq!(client.read_to_end(), b"hel");
    server.wait_for_message("/x:protocol violation\n");
    let name = backend.url("").replace("http://", "");
    server.wait_for_message(&format!(": backend {name}: protocol violation\n"));
    let answer = Http2::open(server.port(), &[]).ask(1, &get("/x"));
    assert_eq!((answer.status(), &*answer.text()), (200, "hel"));
    assert_eq!(answer.reset, Some(code::PROTOCOL_ERROR));
    assert_eq!(
        backend.connections(),
        1,
        "the protocol violation on one stream left the connection open"
    );
}

/// What a client got in response to its request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Whole(u16, String),
    /// A response that was cut off, with the error code of RST_STREAM.
    Cut(Option<u32>),
    /// No response, with the error code of RST_STREAM.
    Nothing(Option<u32>),
}

pub(crate) fn ask_http1(server: &Server) -> Seen {
    let mut client = server.connect();
    client.send("GET /x HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n");
    let bytes = client.read_to_end();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return Seen::Nothing(None);
    };
    let status = head[9..12]
        .parse()
        .expect("the status line has a numeric status");
    let is_chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    let Some(rest) = body.strip_suffix("0\r\n\r\n").filter(|_| is_chunked) else {
        return if is_chunked {
            Seen::Cut(None)
        } else {
            Seen::Whole(status, body.to_owned())
        };
    };
    let content = rest.split("\r\n").skip(1).step_by(2);
    Seen::Whole(status, content.collect())
}

pub(crate) fn ask_http2(server: &Server) -> Seen {
    let mut client = Http2::open(server.port(), &[]);
    let answer = client.ask(1, &get("/x"));
    match (answer.status(), answer.is_ended) {
        (0, _) => Seen::Nothing(answer.reset),
        (_, false) => Seen::Cut(answer.reset),
        (status, true) => Seen::Whole(status, answer.text()),
    }
}

#[test]
fn a_back_end_that_does_not_begin_with_settings_is_none() {
    for first in [
        Frame::ping([0; 8]).bytes(),
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
    ] {
        let backend = Backend::start(move |talk: &mut Talk| {
            talk.send(&first);
            talk.read_to_end();
        });
        let server = start(&backend);
        let response = server.ask("GET /x");
        response.must_be("502 Gateway Error\n\nprotocol violation");
    }
}

#[test]
fn a_request_is_pseudo_fields_and_then_the_list() {
    let backend = Backend::start(|talk: &mut Talk| {
        let Some(mut connection) = Frames::new(talk) else {
            return;
        };
        connection.send(&[Frame::settings(&[])]);
        while let Some((stream, fields)) = connection.read_request() {
            let mut text = String::new();
            for (name, value) in fields {
                text += &format!("{name}={value}\n");
            }
            let head = encode(&[
                (":status", "200"),
                ("content-length", &text.len().to_string()),
            ]);
            connection.send(&[
                Frame::request_with_content(stream, head),
                Frame::data(stream, flag::END_STREAM, text.as_str()),
            ]);
        }
    });
    let server = start(&backend);
    let own = format!("127.0.0.1:{}", backend.port());
    let get =
        server.ask("GET /a?b\nX-Spelt: C\nCookie: a=1\nCookie: b=2\nTE: trailers\nKeep-Alive: 1");
    let want = format!(
        ":method=GET\n:scheme=http\n:authority={own}\n:path=/a?b\nx-spelt=C\ncookie=a=1; b=2\nx-forwarded-proto=http\n\
         x-forwarded-for=127.0.0.1\nvia=1.1 www.example.com\n"
    );
    let lines = |text: &str| {
        // Pseudo-header fields may come in any order, so they are sorted.
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let pseudo = lines
            .iter()
            .take_while(|line| line.starts_with(':'))
            .count();
        lines[..pseudo].sort();
        lines
    };
    assert_eq!(lines(&get.text()), lines(&want));
    let post = server.ask("POST /a\nContent-Length: 5\n\nhello").text();
    assert!(post.contains("\ncontent-length=5\n"), "{post}");
    assert_eq!(
        backend.connections(),
        1,
        "GET and POST use the same connection"
    );
}

/// An upload of unknown length whose last bytes come together with its end.
#[test]
fn the_end_of_an_upload_does_not_come_in_an_empty_frame() {
    let backend = Backend::start(|talk: &mut Talk| {
        let Some(mut connection) = Frames::new(talk) else {
            return;
        };
        connection.send(&[Frame::settings(&[])]);
        while let Some((stream, _)) = connection.read_request() {
            let mut frames = Vec::new();
            while let Some(frame) = connection.read() {
                if frame.kind == kind::DATA {
                    frames.push(String::from_utf8_lossy(&frame.payload).into_owned());
                    if frame.has(flag::END_STREAM) {
                        break;
                    }
                }
            }
            connection.send(&[
                Frame::request_with_content(stream, encode(&[(":status", "200")])),
                Frame::data(stream, flag::END_STREAM, frames.join("|")),
            ]);
        }
    });
    let server = start(&backend);
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nbegin1\r\n");
    backend.wait_for("begin1");
    client.send("3\r\nend\r\n0\r\n\r\n");
    assert_eq!(client.read_response("POST").text(), "begin1|end");
    let mut client = Http2::open(server.port(), &[]);
    client.send_frames(&[
        Frame::request_with_content(1, post("/")),
        Frame::data(1, 0, "begin2"),
    ]);
    backend.wait_for("begin2");
    client.send_frame(&Frame::data(1, flag::END_STREAM, "end"));
    assert_eq!(client.read_answer(1).text(), "begin2|end");
}

#[test]
fn streams_share_a_connection_as_far_as_the_back_end_lets_them() {
    let backend = Backend::start(|talk: &mut Talk| {
        let Some(mut connection) = Frames::new(talk) else {
            return;
        };
        connection.send(&[Frame::settings(&[(
            h2o_tests::http2::setting::MAX_CONCURRENT_STREAMS,
            2,
        )])]);
        let (mut open, mut is_limit_known) = (VecDeque::new(), false);
        while let Some(frame) = connection.read() {
            match frame.kind {
                kind::SETTINGS => is_limit_known |= frame.has(flag::ACK),
                kind::HEADERS => {
                    open.push_back(frame.stream);
                    assert!(
                        open.len() <= 2 || !is_limit_known,
                        "the proxy opened more streams than SETTINGS allow"
                    );
                    // When the proxy acknowledges the PING, it has had time to open another stream.
                    connection.send(&[Frame::ping([0; 8])]);
                }
                kind::PING if frame.has(flag::ACK) => {
                    let oldest = open
                        .pop_front()
                        .expect("the test sent one PING for each stream");
                    connection.send(&[Frame::request(oldest, encode(&[(":status", "204")]))]);
                }
                _ => {}
            }
        }
    });
    let server = start(&backend);
    assert_eq!(server.ask("GET /").code(), 204);
    assert_eq!(backend.connections(), 1);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert_eq!(server.ask("GET /").code(), 204));
        }
    });
}

#[test]
fn a_client_that_goes_away_resets_the_stream() {
    let backend = Backend::start(|talk: &mut Talk| {
        let Some(mut connection) = Frames::new(talk) else {
            return;
        };
        connection.send(&[Frame::settings(&[])]);
        if connection.read_request().is_some() {
            connection.send(&[ok()]);
        }
        while let Some(frame) = connection.read() {
            if frame.kind == kind::RST_STREAM {
                let is_cancelled = frame.payload == code::CANCEL.to_be_bytes();
                assert!(frame.stream == 1 && is_cancelled, "{frame:?}");
                return;
            }
        }
    });
    let server = start(&backend);
    let mut client = Http2::open(server.port(), &[]);
    client.send_frame(&Frame::request(1, get("/")));
    client.read_until("the head of the response", |client| {
        client.answer(1).status() == 200
    });
    client.send_frame(&Frame::rst_stream(1, code::CANCEL));
    eventually("the stream to be reset", || {
        let received = backend.received(0);
        // The bytes of RST_STREAM for stream 1 with the error code CANCEL.
        let want = Frame::rst_stream(1, code::CANCEL).bytes();
        received
            .windows(want.len())
            .any(|window| window == want)
            .then_some(())
    });
}

#[test]
fn uploads_wait_for_the_windows_of_the_back_end() {
    let backend = Backend::start(|talk: &mut Talk| {
        let Some(mut connection) = Frames::new(talk) else {
            return;
        };
        let window = h2o_tests::http2::setting::INITIAL_WINDOW_SIZE;
        connection.send(&[Frame::settings(&[(window, 1000)])]);
        let Some((stream, _)) = connection.read_request() else {
            return;
        };
        let mut received = 0;
        while let Some(frame) = connection.read() {
            if frame.kind != kind::DATA {
                continue;
            }
            received += frame.payload.len();
            if frame.has(flag::END_STREAM) {
                break;
            }
            let room = u32::try_from(frame.payload.len()).unwrap_or(0);
            if room > 0 {
                connection.send(&[
                    Frame::window_update(0, room),
                    Frame::window_update(stream, room),
                ]);
            }
        }
        let text = received.to_string();
        connection.send(&[
            Frame::request_with_content(stream, encode(&[(":status", "200")])),
            Frame::data(stream, flag::END_STREAM, text.as_str()),
        ]);
        connection.talk.read_to_end();
    });
    let server = start(&backend);
    let mut client = Http2::open(server.port(), &[]);
    client.send_frame(&Frame::request_with_content(1, post("/")));
    for _ in 0..3 {
        client.send_frame(&Frame::data(1, 0, vec![b'x'; 16_000]));
    }
    client.send_frame(&Frame::data(1, flag::END_STREAM, vec![b'x'; 2_000]));
    assert_eq!(client.read_answer(1).text(), "50000");
}

#[test]
fn a_back_end_that_is_to_expect_is_told_so() {
    let backend = Backend::start(|talk: &mut Talk| {
        let Some(mut connection) = Frames::new(talk) else {
            return;
        };
        connection.send(&[Frame::settings(&[])]);
        while let Some((stream, fields)) = connection.read_request() {
            let expect = fields.iter().find(|(name, _)| name == "expect");
            let expect = expect.map_or("nothing", |(_, value)| value).to_owned();
            if expect != "nothing" {
                let proceed = encode(&[(":status", "100")]);
                connection.send(&[Frame::request_with_content(stream, proceed)]);
                connection.talk.read_until(b"content");
            }
            connection.send(&[
                Frame::request_with_content(stream, encode(&[(":status", "200")])),
                Frame::data(stream, flag::END_STREAM, expect.as_str()),
            ]);
        }
    });
    let settings = format!("{SETTINGS}\nproxy.expect: ON");
    let server = Setup::new(&config(&settings, &backend.url("/"))).start();
    let post = server.ask("POST /\nContent-Length: 7\n\ncontent");
    assert_eq!(post.text(), "100-continue");
    assert_eq!(server.ask("GET /").text(), "nothing");
    assert_eq!(server.ask("POST /\nContent-Length: 0").text(), "nothing");
}
