//! Directives of HTTP/2: the time limit of a graceful shutdown, the delay for clients that reset streams, the ORIGIN frame, and old names
//! of HTTP/2 in ALPN.

use std::time::Duration;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::http2::{Frame, GoAway, Http2, PREFACE, code, encode, flag, get, kind, setting};
use h2o_tests::{Deadline, Folder, Server, Setup, openssl, run};

fn start(settings: &str) -> Server {
    Setup::new(&format!(
        "
{settings}
listen: @PORT@
num-threads: 1
hosts:
  default:
    paths:
      /: {{ file.dir: @DIR@/www }}
      /moved: {{ redirect: {{ url: 'http://elsewhere.example/', status: 302 }} }}
"
    ))
    .file("www/a.txt", "hello")
    .start()
}

/// Starts a server with TLS; `ssl` is a further attribute of the listener on `TLS_PORT`.
fn start_tls(ssl: &str) -> Server {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "www.example.com");
    let pair = "certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key";
    let config = format!(
        "
num-threads: 1
listen:
  - port: @TLS_PORT@
    ssl: {{ {pair}{ssl} }}
  - port: @BARE_TLS_PORT@
    ssl: {{ {pair} }}
  - port: @PORT@
hosts: {{ default: {{ paths: {{ /: {{ file.dir: @DIR@/www }} }} }} }}
"
    );
    Setup::in_folder(folder, &config)
        .file("www/a.txt", "hello")
        .start()
}

// --- http2-graceful-shutdown-timeout -------------------------------------------------------------------------------

/// A connection on which the response of stream 1 stops after one byte, because the stream's window is 1.
fn held(server: &Server) -> Http2 {
    let mut connection = Http2::open(server.port(), &[(setting::INITIAL_WINDOW_SIZE, 1)]);
    connection.send_frame(&Frame::request(1, get("/a.txt")));
    connection.read_until("the first byte", |connection| {
        connection.answer(1).text() == "h"
    });
    connection
}

fn read_goaway(connection: &mut Http2, last: u32, text: &str) {
    let want = Some(GoAway {
        last,
        code: code::NO_ERROR,
        text: text.to_owned(),
    });
    connection.read_until(&format!("GOAWAY {last} `{text}`"), |connection| {
        connection.goaway == want
    });
}

#[test]
fn a_shutdown_waits_for_streams_for_as_long_as_it_may() {
    let mut patient = start("");
    let mut limited = start("http2-graceful-shutdown-timeout: 1");
    let mut waits = held(&patient);
    let mut reads_on = held(&limited);
    let mut is_cut = held(&limited);
    patient.terminate();
    let clock = Deadline::after_secs(10);
    limited.terminate();
    for connection in [&mut waits, &mut reads_on, &mut is_cut] {
        read_goaway(connection, (1 << 31) - 1, "graceful shutdown");
    }
    for connection in [&mut waits, &mut reads_on, &mut is_cut] {
        read_goaway(connection, 1, "");
    }
    let second = clock.elapsed();
    assert!(second > Duration::from_millis(900), "{second:?}");
    // A stream that ends before the time limit gets its complete response.
    reads_on.send_frame(&Frame::window_update(1, 4));
    reads_on.read_to_end();
    let answer = reads_on.answer(1);
    assert!(answer.is_ended && answer.text() == "hello", "{answer:?}");
    // A stream that does not end before the time limit is cut off.
    is_cut.read_to_end();
    let time = clock.elapsed();
    assert!(time > Duration::from_millis(1900), "{time:?}");
    let answer = is_cut.answer(1);
    assert!(!answer.is_ended && answer.text() == "h", "{answer:?}");
    drop((reads_on, is_cut));
    let status = limited.wait(Duration::from_secs(5));
    assert!(status.success(), "{status}:\n{}", limited.messages());
    // The other server, without a time limit, got SIGTERM earlier and still waits for its client.
    waits.ping();
    assert!(!waits.is_closed && !waits.answer(1).is_ended);
    waits.send_frame(&Frame::window_update(1, 4));
    waits.read_to_end();
    let answer = waits.answer(1);
    assert!(answer.is_ended && answer.text() == "hello", "{answer:?}");
    drop(waits);
    let status = patient.wait(Duration::from_secs(5));
    assert!(status.success(), "{status}:\n{}", patient.messages());
}

// --- http2-dos-delay -----------------------------------------------------------------------------------------------

/// Number of resets in a row that do not cause a delay with the configuration of these tests.
const FORGIVEN: usize = 3;

fn start_with_delay(delay: &str) -> Server {
    start(&format!(
        "http2-max-concurrent-requests-per-connection: {FORGIVEN}\n{delay}"
    ))
}

/// A connection, and the id of its next stream.
struct Client {
    connection: Http2,
    /// Frames that are sent together with the next request, so that no time passes between them.
    pending: Vec<Frame>,
    next: u32,
}

impl Client {
    fn new(server: &Server) -> Self {
        // With windows of 0 no content is sent, so a stream for a file stays open until it is reset.
        let connection = Http2::open(server.port(), &[(setting::INITIAL_WINDOW_SIZE, 0)]);
        Self {
            connection,
            pending: Vec::new(),
            next: 1,
        }
    }

    fn stream(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    fn send(&mut self, frames: impl IntoIterator<Item = Frame>) {
        self.pending.extend(frames);
        self.connection
            .send_frames(&std::mem::take(&mut self.pending));
    }

    /// Requests files and resets each stream once its response has begun. The last reset is sent together with the next request.
    fn reset(&mut self, count: usize) {
        for _ in 0..count {
            let stream = self.stream();
            self.send([Frame::request(stream, get("/a.txt"))]);
            self.connection
                .read_until("the head of the response", |connection| {
                    connection.answer(stream).status() == 200
                });
            self.pending.push(Frame::rst_stream(stream, code::CANCEL));
        }
    }

    /// Sends a request that the server answers without waiting for anything, and a PING behind it. Returns the stream.
    fn ask_and_ping(&mut self) -> u32 {
        let stream = self.stream();
        let request = encode(&[
            (":method", "HEAD"),
            (":scheme", "http"),
            (":path", "/moved"),
            (":authority", "a.example"),
        ]);
        let request = Frame::request(stream, request);
        let ping = Frame::ping(u64::from(stream).to_be_bytes());
        self.send([request, ping]);
        stream
    }

    /// Whether the response comes before the answer to the PING that was sent behind the request.
    fn is_answered_at_once(&mut self) -> bool {
        let stream = self.ask_and_ping();
        self.connection.read_until(
            "the response, and the acknowledgement of PING",
            |connection| {
                connection.answer(stream).is_over() && is_pong(connection, stream).is_some()
            },
        );
        assert_eq!(self.connection.answer(stream).status(), 302);
        let mut frames = self.connection.frames.iter();
        let answer = frames.position(|frame| frame.stream == stream);
        answer < is_pong(&self.connection, stream)
    }
}

/// The position, among the frames received, of the answer to the PING that was sent with `stream`.
fn is_pong(connection: &Http2, stream: u32) -> Option<usize> {
    let content = u64::from(stream).to_be_bytes();
    let mut frames = connection.frames.iter();
    frames.position(|frame| {
        frame.kind == kind::PING && frame.has(flag::ACK) && frame.payload == content
    })
}

#[test]
fn a_client_that_resets_many_streams_waits_for_seconds_and_others_do_not() {
    let server = start_with_delay("http2-dos-delay: 2");
    let mut bad = Client::new(&server);
    let mut good = Client::new(&server);
    bad.reset(FORGIVEN - 1);
    assert!(
        bad.is_answered_at_once(),
        "one reset fewer than are forgiven causes no delay"
    );
    // The request that was answered has earned one more reset without a delay, so the second reset causes one.
    bad.reset(2);
    let clock = Deadline::after_secs(10);
    let waiting = [bad.ask_and_ping(), bad.ask_and_ping()];
    bad.connection
        .read_until("the answers to PING", |connection| {
            waiting
                .iter()
                .all(|&stream| is_pong(connection, stream).is_some())
        });
    // `http2-dos-delay` delays one HTTP/2 client, and neither another client's existing connection nor a new connection.
    assert!(
        good.is_answered_at_once(),
        "an existing connection of another client is delayed"
    );
    assert!(
        Client::new(&server).is_answered_at_once(),
        "a new connection is delayed"
    );
    bad.connection.ping();
    for stream in waiting {
        let answer = bad.connection.answer(stream);
        assert_eq!(answer.status(), 0, "{}", bad.connection.story());
    }
    let first = bad.connection.read_answer(waiting[0]);
    let time = clock.elapsed();
    assert!(time > Duration::from_millis(1500), "{time:?}");
    let second = bad.connection.read_answer(waiting[1]);
    assert_eq!([first.status(), second.status()], [302; 2]);
    // The delay is over, and the two requests answered have earned one reset without a delay.
    assert!(bad.is_answered_at_once());
    bad.reset(1);
    assert!(bad.is_answered_at_once());
}

#[test]
fn the_delay_is_there_unless_it_is_switched_off() {
    let server = start_with_delay("");
    let mut client = Client::new(&server);
    client.reset(FORGIVEN);
    assert!(
        !client.is_answered_at_once(),
        "resets do not delay requests with the default of http2-dos-delay"
    );
    let server = start_with_delay("http2-dos-delay: 0");
    let mut client = Client::new(&server);
    for _ in 0..3 {
        client.reset(FORGIVEN + 1);
        assert!(client.is_answered_at_once(), "off");
    }
}

// --- http2-origin-frame --------------------------------------------------------------------------------------------

/// Types of the frames that nghttp receives before the head of the response. The text of an ORIGIN frame also has its origins.
fn nghttp(url: &str) -> Vec<String> {
    let output = run("nghttp", &["-nv", "--no-verify-peer", url]);
    assert_eq!(output.code, 0, "{output}");
    let text = output.text();
    let (before, _) = text
        .split_once(":status: 200")
        .unwrap_or_else(|| panic!("the client got no answer: {output}"));
    let mut frames: Vec<String> = Vec::new();
    for line in before.lines() {
        if let Some((_, frame)) = line.split_once("] recv ") {
            frames.extend(frame.split(' ').next().map(str::to_owned));
        } else if let Some(frame) = frames.last_mut()
            && frame.starts_with("ORIGIN")
            && line.starts_with(' ')
        {
            frame.push_str(line.trim_start());
        }
    }
    frames
}

#[test]
fn origins_follow_the_settings_in_small_letters() {
    for (ssl, want) in [
        (
            ", http2-origin-frame: 'https://WWW.Example.COM'",
            "ORIGIN[https://www.example.com]",
        ),
        (
            ", http2-origin-frame: [ 'https://A.example:8443', 'HTTPS://b.example' ]",
            "ORIGIN[https://a.example:8443][https://b.example]",
        ),
    ] {
        let server = start_tls(ssl);
        let url = |name: &str| format!("https://127.0.0.1:{}/a.txt", server.port_of(name));
        let got = nghttp(&url("TLS_PORT"));
        let at = |name: &str| got.iter().position(|frame| frame == name);
        let origin =
            at(want).unwrap_or_else(|| panic!("the client did not get the frame {want}: {got:?}"));
        assert!(at("SETTINGS").is_some_and(|at| at < origin), "{got:?}");
        let count = got.iter().filter(|frame| frame.starts_with("ORIGIN"));
        assert_eq!(count.count(), 1, "{got:?}");
        // Listeners without the directive send no ORIGIN frame.
        for url in [url("BARE_TLS_PORT"), server.url("/a.txt")] {
            let got = nghttp(&url);
            assert!(got.contains(&"SETTINGS".to_owned()), "{got:?}");
            assert!(!got.concat().contains("ORIGIN"), "{url}: {got:?}");
        }
    }
}

// --- ALPN ----------------------------------------------------------------------------------------------------------

/// A client in Python that speaks over TLS. Its arguments: the port, the name of the protocol that it offers with ALPN, the bytes to send,
/// and the bytes that it waits for (both in hexadecimal). Prints the protocol that the server has selected.
const ASK: &str = "
import socket, ssl, sys
port, offer, conversation, wanted = sys.argv[1:]
context = ssl._create_unverified_context()
context.set_alpn_protocols([offer])
raw = socket.create_connection(('127.0.0.1', int(port)), timeout=10)
connection = context.wrap_socket(raw)
connection.sendall(bytes.fromhex(conversation))
got = b''
while bytes.fromhex(wanted) not in got:
    more = connection.recv(65536)
    assert more, got
    got += more
print(connection.selected_alpn_protocol())
";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn older_names_of_http_2_are_agreed_on() {
    let server = start_tls("");
    let port = server.port_of("TLS_PORT").to_string();
    let address = format!("127.0.0.1:{port}");
    for version in ["-tls1_2", "-tls1_3"] {
        for (offer, want) in [
            ("h2-14", Some("h2-14")),
            ("h2-16", Some("h2-16")),
            ("h2-14,h2-16", Some("h2-16")),
            ("http/1.1,h2-14", Some("h2-14")),
            ("h2-14,h2-16,h2", Some("h2")),
            ("h2-15,http/1.1", Some("http/1.1")),
            ("h2-15", None),
        ] {
            let args = ["s_client", version, "-alpn", offer, "-connect", &address];
            let text = openssl(&args).text();
            let mut lines = text.lines();
            let got = lines.find_map(|line| line.strip_prefix("ALPN protocol: "));
            assert_eq!(got, want, "{offer}: {text}");
        }
    }
    // Whichever of these names ALPN has selected, client and server then speak HTTP/2.
    let request = [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/a.txt"),
        (":authority", "www.example.com"),
    ];
    let conversation = [
        PREFACE.to_vec(),
        Frame::settings(&[]).bytes(),
        Frame::request(1, encode(&request)).bytes(),
    ];
    let conversation = hex(&conversation.concat());
    let wanted = hex(&Frame::data(1, flag::END_STREAM, *b"hello").bytes());
    for name in ["h2-14", "h2-16"] {
        let output = run("python3", &["-c", ASK, &port, name, &conversation, &wanted]);
        assert_eq!((output.code, output.text().trim()), (0, name), "{output}");
    }
}
