//! Content is forwarded as it arrives, and waits where the receiver does not read.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use h2o_tests::http2::{Frame, Http2, flag, get, kind, post, setting};
use h2o_tests::{Backend, Server, Talk, eventually};

use super::kit::proxy;

const MEGABYTE: usize = 1 << 20;

/// Bytes that sockets on both sides may hold; much less than is sent.
const HELD: usize = 32 * MEGABYTE;

const MUCH: usize = 64 * MEGABYTE;

/// Bytes in which every eight differ from those nearby.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    let mut word = 0_u64;
    while bytes.len() < length {
        word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A function that waits, as a step of a backend's script, until the test sends a value to the channel.
pub(crate) fn gate() -> (Sender<()>, impl Fn() + Send + Sync) {
    let (open, wait): (Sender<()>, Receiver<()>) = channel();
    let wait = Mutex::new(wait);
    let pass = move || {
        // The channel has no sender any more when the test is over, which ends the wait.
        let _ = wait.lock().map(|wait| wait.recv());
    };
    (open, pass)
}

/// Resident memory of the server, in bytes.
fn memory(server: &Server) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{}/status", server.pid()));
    let text = text.expect("the server runs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kilobytes = number.and_then(|number| number.parse::<usize>().ok());
    kilobytes.expect("the kernel accounts memory") * 1024
}

/// The backend is silent in the middle of a response, and so has nothing that could fail to be sent to the client.
#[test]
fn a_client_that_resets_its_connection_ends_the_request_to_a_silent_backend() {
    let (told, ends) = channel();
    let told = Mutex::new(told);
    let backend = Backend::start(move |talk| {
        let _ = talk.read_head();
        talk.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n");
        let end = talk.read_some();
        let told = told
            .lock()
            .expect("no thread panics while it holds the lock");
        let _ = told.send(end);
    });
    let server = proxy("", &backend);
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n");
    assert_eq!(client.read_head().code(), 200);
    rustix::net::sockopt::set_socket_linger(client.stream(), Some(Duration::ZERO))
        .expect("the descriptor is a socket");
    drop(client);
    let end = ends.recv_timeout(Duration::from_secs(10));
    assert_eq!(
        end,
        Ok(None),
        "the server closes its connection to the backend"
    );
}

#[test]
fn a_response_head_does_not_wait_for_its_content() {
    for framing in [
        "content-length: 10",
        "transfer-encoding: chunked",
        "x: until the end",
    ] {
        let is_chunked = framing.contains("chunked");
        let piece = move |text: &str| {
            if is_chunked {
                format!("5\r\n{text}\r\n")
            } else {
                text.to_owned()
            }
        };
        let (open, pass) = gate();
        let backend = Backend::start(move |talk: &mut Talk| {
            while talk.read_request().is_some() {
                talk.send(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n"));
                pass();
                talk.send(piece("hello"));
                pass();
                talk.send(piece("world"));
                if is_chunked {
                    talk.send("0\r\n\r\n");
                } else if framing.starts_with('x') {
                    return;
                }
            }
        });
        let server = proxy("", &backend);

        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = client.read_head();
        assert_eq!(head.code(), 200, "{framing}: {head}");
        let is_counted = framing.starts_with("content-length");
        open.send(()).unwrap();
        let first = if is_counted {
            "hello"
        } else {
            "5\r\nhello\r\n"
        };
        assert_eq!(
            client.read_exactly(first.len()),
            first.as_bytes(),
            "{framing}"
        );
        open.send(()).unwrap();
        let rest = if is_counted {
            "world"
        } else {
            "5\r\nworld\r\n0\r\n\r\n"
        };
        assert_eq!(
            client.read_exactly(rest.len()),
            rest.as_bytes(),
            "{framing}"
        );

        let mut client = Http2::open(server.port(), &[]);
        client.send_frame(&Frame::request(1, get("/")));
        client.read_until("the head", |client| client.answer(1).status() == 200);
        open.send(()).unwrap();
        client.read_until("the first half", |client| client.answer(1).body == b"hello");
        open.send(()).unwrap();
        assert_eq!(client.read_answer(1).body, b"helloworld", "{framing}");
    }
}

/// A backend that sends much. Also returns the number of bytes that its socket has accepted.
fn sending_much() -> (Backend, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&taken);
    let backend = Backend::start(move |talk: &mut Talk| {
        let _ = talk.read_request();
        talk.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {MUCH}\r\n\r\n"));
        for piece in pattern(MUCH).chunks(65_536) {
            if !talk.send(piece) {
                return;
            }
            counter.fetch_add(piece.len(), Ordering::Relaxed);
        }
        talk.read_to_end();
    });
    (backend, taken)
}

/// Waits until a number has not grown for 300 ms, and returns it.
pub(crate) fn at_rest(number: &AtomicUsize) -> usize {
    let mut before = usize::MAX;
    eventually("the transfer to stand still", || {
        std::thread::sleep(Duration::from_millis(300));
        let now = number.load(Ordering::Relaxed);
        let is_at_rest = now > 0 && now == before;
        before = now;
        is_at_rest.then_some(now)
    })
}

#[test]
fn a_back_end_waits_for_a_client_that_does_not_read() {
    let (backend, taken) = sending_much();
    let server = proxy("proxy.max-buffer-size: 65536", &backend);
    let before = memory(&server);
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_eq!(client.read_head().code(), 200);
    let held = at_rest(&taken);
    assert!(held < HELD, "{held} bytes are under way");
    let more = memory(&server).saturating_sub(before);
    assert!(more < 8 * MEGABYTE, "the server holds {more} bytes");
    let got = client.read_to_end();
    assert!(got == pattern(MUCH), "{} bytes", got.len());
}

#[test]
fn a_back_end_waits_for_the_windows_of_http2() {
    let (backend, taken) = sending_much();
    let server = proxy("proxy.max-buffer-size: 65536", &backend);
    let before = memory(&server);
    let window = 100_000;
    let mut client = Http2::open(server.port(), &[(setting::INITIAL_WINDOW_SIZE, window)]);
    client.send_frame(&Frame::request(1, get("/")));
    // The window of the connection, 65,535 bytes, is smaller than that of the stream.
    client.read_until("the window to be full", |client| {
        client.answer(1).body.len() == 65_535
    });
    let held = at_rest(&taken);
    assert!(held < HELD, "{held} bytes are under way");
    let more = memory(&server).saturating_sub(before);
    assert!(more < 8 * MEGABYTE, "the server holds {more} bytes");
    let rest = u32::try_from(MUCH).unwrap();
    client.send_frames(&[Frame::window_update(0, rest), Frame::window_update(1, rest)]);
    let got = client.read_answer(1).body;
    assert!(got == pattern(MUCH), "{} bytes", got.len());
}

/// A backend that waits before it reads an upload. It answers with the number of bytes if the content is complete and correct.
fn receiving_much(pass: impl Fn() + Send + Sync + 'static) -> Backend {
    Backend::start(move |talk: &mut Talk| {
        let Some(head) = talk.read_head() else {
            return;
        };
        pass();
        let body = match head.field("content-length") {
            Some(length) => talk.read_exactly(length.parse().expect("the text is a number")),
            None => talk.read_chunks(),
        };
        let body = body.unwrap_or_default();
        let text = if body == pattern(body.len()) {
            body.len().to_string()
        } else {
            "not what was sent".to_owned()
        };
        talk.send(format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        ));
        talk.read_to_end();
    })
}

#[test]
fn a_client_waits_for_a_back_end_that_does_not_read() {
    for is_chunked in [false, true] {
        let (open, pass) = gate();
        let backend = receiving_much(pass);
        let server = proxy("proxy.timeout.io: 60000", &backend);
        let before = memory(&server);
        let mut client = server.connect();
        let content = pattern(MUCH);
        let (framing, content) = if is_chunked {
            let mut chunks = Vec::new();
            for piece in content.chunks(MEGABYTE) {
                chunks.extend(format!("{:x}\r\n", piece.len()).into_bytes());
                chunks.extend(piece);
                chunks.extend(b"\r\n");
            }
            chunks.extend(b"0\r\n\r\n");
            ("Transfer-Encoding: chunked".to_owned(), chunks)
        } else {
            (format!("Content-Length: {MUCH}"), content)
        };
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n"));
        let sent = send_until_stuck(client.stream(), &content);
        assert!(sent < HELD, "{sent} bytes are under way");
        let more = memory(&server).saturating_sub(before);
        assert!(more < 8 * MEGABYTE, "the server holds {more} bytes");
        open.send(()).unwrap();
        client.send(&content[sent..]);
        client
            .read_response("POST")
            .must_be(&format!("200 OK\n\n{MUCH}"));
    }
}

/// Sends until the socket accepts no more for a second. Returns the number of bytes sent.
fn send_until_stuck(mut stream: &TcpStream, content: &[u8]) -> usize {
    let set_limit = |seconds| {
        let limit = Some(Duration::from_secs(seconds));
        stream
            .set_write_timeout(limit)
            .expect("the time is not zero");
    };
    set_limit(1);
    let mut sent = 0;
    while sent < content.len() {
        match stream.write(&content[sent..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("after {sent} bytes: {error}"),
        }
    }
    set_limit(20);
    sent
}

#[test]
fn windows_of_http2_open_as_the_back_end_reads() {
    let (open, pass) = gate();
    let backend = receiving_much(pass);
    let server = proxy(
        "proxy.timeout.io: 60000\nhttp2-input-window-size: 1000000",
        &backend,
    );
    let before = memory(&server);
    let mut client = Http2::open(server.port(), &[]);
    client.send_frame(&Frame::request_with_content(1, post("/")));
    let content = pattern(MUCH);
    let mut upload = Upload::new(&client, 1);
    let mut sent = upload.send(&mut client, &content, Duration::from_millis(500));
    assert!(sent < HELD, "{sent} bytes are under way");
    let more = memory(&server).saturating_sub(before);
    assert!(more < 8 * MEGABYTE, "the server holds {more} bytes");
    open.send(()).unwrap();
    while sent < content.len() {
        let more = upload.send(&mut client, &content[sent..], Duration::from_secs(10));
        assert!(more > 0, "{sent} bytes were taken\n{}", client.story());
        sent += more;
    }
    client.send_frame(&Frame::data(1, flag::END_STREAM, []));
    assert_eq!(client.read_answer(1).text(), MUCH.to_string());
}

/// How many bytes may still be sent on a stream and on its connection.
struct Upload {
    stream: u32,
    stream_window: usize,
    connection_window: usize,
    /// How many of the frames received on the connection have been taken into account in the two windows.
    seen: usize,
}

fn size(number: u32) -> usize {
    usize::try_from(number).expect("a usize has 32 bits")
}

impl Upload {
    fn new(client: &Http2, stream: u32) -> Self {
        let settings = client
            .frames
            .iter()
            .find(|frame| frame.kind == kind::SETTINGS);
        let settings = settings
            .map(|frame| frame.payload.clone())
            .unwrap_or_default();
        let initial = settings.chunks_exact(6).find_map(|setting| {
            let value = u32::from_be_bytes(setting[2..].try_into().ok()?);
            (setting[..2] == setting::INITIAL_WINDOW_SIZE.to_be_bytes()).then_some(value)
        });
        Self {
            stream,
            stream_window: size(initial.unwrap_or(65_535)),
            connection_window: 65_535,
            seen: 0,
        }
    }

    /// Sends until everything is sent, or the windows stay closed for `limit`. Returns the number of bytes sent.
    fn send(&mut self, client: &mut Http2, content: &[u8], limit: Duration) -> usize {
        let mut sent = 0;
        while sent < content.len() {
            self.look(client);
            let room = self.stream_window.min(self.connection_window).min(16_384);
            let room = room.min(content.len() - sent);
            if room == 0 {
                let count = client.frames.len();
                if !client.read_while_waiting(limit, |client| client.frames.len() > count) {
                    break;
                }
                continue;
            }
            let piece = &content[sent..sent + room];
            client.send_frame(&Frame::data(self.stream, 0, piece));
            self.stream_window -= room;
            self.connection_window -= room;
            sent += room;
        }
        sent
    }

    fn look(&mut self, client: &Http2) {
        for frame in &client.frames[self.seen..] {
            if frame.kind == kind::WINDOW_UPDATE {
                let increment = frame
                    .payload
                    .first_chunk()
                    .expect("the payload of WINDOW_UPDATE has four bytes");
                let increment = size(u32::from_be_bytes(*increment));
                if frame.stream == 0 {
                    self.connection_window += increment;
                } else if frame.stream == self.stream {
                    self.stream_window += increment;
                }
            }
        }
        self.seen = client.frames.len();
    }
}

#[test]
fn an_answer_that_comes_before_the_end_of_an_upload_is_passed_on() {
    let backend = Backend::start(|talk: &mut Talk| {
        let _ = talk.read_head();
        talk.send("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno");
        talk.read_to_end();
    });
    let server = proxy("", &backend);
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nbegin");
    client.read_response("POST").must_be("403 Forbidden\n\nno");
    let mut client = Http2::open(server.port(), &[]);
    client.send_frames(&[
        Frame::request_with_content(1, post("/")),
        Frame::data(1, 0, "begin"),
    ]);
    client.read_until("the answer", |client| {
        client.answer(1).is_ended || client.answer(1).reset.is_some()
    });
    let answer = client.answer(1);
    assert_eq!((answer.status(), answer.text()), (403, "no".to_owned()));
}

#[test]
fn a_back_end_that_goes_away_during_an_upload_is_told_about() {
    let backend = Backend::start(|talk: &mut Talk| {
        let _ = talk.read_head();
        let _ = talk.read_exactly(5);
    });
    let server = proxy("", &backend);
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nbegin");
    client
        .read_response("POST")
        .must_be("502 Gateway Error\n\nI/O error");
    let _ = client.time_to_close(Duration::from_secs(5));
    let mut client = Http2::open(server.port(), &[]);
    client.send_frames(&[
        Frame::request_with_content(1, post("/")),
        Frame::data(1, 0, "begin"),
    ]);
    let answer = client.read_answer(1);
    assert_eq!(
        (answer.status(), answer.text()),
        (502, "I/O error".to_owned())
    );
}
