//! Runs the program in a thread, and tests it through sockets.

use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use h2o_http::huffman;
use rustls::crypto::aws_lc_rs as provider;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned, version};

use crate::options::{Mode, Options};
use crate::server::Server;

struct Floor {
    addresses: [SocketAddr; 3],
    cert: CertificateDer<'static>,
}

const HTTP: usize = 0;
const HTTPS: usize = 1;
const H2C: usize = 2;

/// One program for all tests; it ends with the test process.
static FLOOR: LazyLock<Floor> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    };
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let cert = file("tls/cert.pem", certified.cert.pem().as_bytes());
    let key = file(
        "tls/key.pem",
        certified.signing_key.serialize_pem().as_bytes(),
    );
    file("root/a.txt", b"hello\n");
    file("root/many/00000.txt", b"zero\n");
    file("root/16k.bin", &[b'#'; 16 * 1024]);
    file("root/large.bin", &[b'#'; 16 * 1024 + 1]);
    let (root, [http, https, h2c]) = (dir.path().join("root"), [0; 3]);
    let server = Server::bind(&Options {
        root,
        cert,
        key,
        http,
        https,
        h2c,
    })
    .unwrap();
    let addresses = server.addresses();
    thread::spawn(|| server.run());
    let cert = certified.cert.der().clone();
    Floor { addresses, cert }
});

fn connect(listener: usize) -> TcpStream {
    let socket = TcpStream::connect(FLOOR.addresses[listener]).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    socket
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

fn last(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
}

fn to_end(mut socket: impl Read) -> String {
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn http1_answers_pipelined_requests_and_closes_when_asked() {
    let mut socket = connect(HTTP);
    let requests = [
        get("/a.txt"),
        get("/none"),
        get("/moved"),
        last("/many/00000.txt"),
    ]
    .concat();
    socket.write_all(requests.as_bytes()).unwrap();
    let text = to_end(socket);
    let mut answers = text.split("HTTP/1.1 ").skip(1);
    let ok = answers.next().unwrap();
    assert!(
        ok.starts_with("200 OK\r\n") && ok.ends_with("content-length: 6\r\n\r\nhello\n"),
        "{ok}"
    );
    assert!(answers.next().unwrap().starts_with("404 "));
    let moved = answers.next().unwrap();
    assert!(moved.starts_with("301 ") && moved.contains("location: http://example.invalid/\r\n"));
    assert!(answers.next().unwrap().ends_with("\r\n\r\nzero\n"));
    assert_eq!(answers.next(), None);
}

#[test]
fn http1_keeps_the_beginning_of_a_request() {
    let mut socket = connect(HTTP);
    socket.set_nodelay(true).unwrap();
    let requests = get("/a.txt") + &last("/a.txt");
    for piece in requests.as_bytes().chunks(7) {
        socket.write_all(piece).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(to_end(socket).matches("\r\n\r\nhello\n").count(), 2);
}

#[test]
fn http1_sends_the_rest_when_there_is_room() {
    let mut socket = connect(HTTP);
    let mut writer = socket.try_clone().unwrap();
    const COUNT: usize = 200;
    let asking = thread::spawn(move || {
        for _ in 0..2 {
            writer
                .write_all(get("/16k.bin").repeat(COUNT).as_bytes())
                .unwrap();
            thread::sleep(Duration::from_millis(20));
        }
        writer.write_all(last("/a.txt").as_bytes()).unwrap();
    });
    thread::sleep(Duration::from_millis(50));
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    asking.join().unwrap();
    assert_eq!(text.matches("200 OK").count(), 2 * COUNT + 1);
    assert_eq!(text.matches('#').count(), 2 * COUNT * 16 * 1024);
}

#[test]
fn files_above_16_kib_are_not_there() {
    let mut socket = connect(HTTP);
    socket.write_all(last("/large.bin").as_bytes()).unwrap();
    assert!(to_end(socket).starts_with("HTTP/1.1 404 "));
}

#[test]
fn what_is_not_http_closes_the_connection() {
    for (listener, bytes) in [
        (HTTP, "\r\n\r\n".to_owned()),
        (HTTP, "x".repeat(20_000)),
        (HTTPS, "GET / HTTP/1.1\r\n\r\n".to_owned()),
        (H2C, "GET / HTTP/1.1\r\n\r\n".to_owned()),
    ] {
        let mut socket = connect(listener);
        socket.write_all(bytes.as_bytes()).unwrap();
        // The server must end or reset the connection without an answer.
        let read = socket.read(&mut [0; 100]);
        let is_closed = match &read {
            Ok(len) => *len == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        };
        assert!(is_closed, "{read:?}");
    }
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GET: u8 = 0x82;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [.., middle, low] = payload.len().to_be_bytes();
    [&[0, middle, low, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// A HEADERS frame with a request whose path is a literal field without indexing.
fn request(stream: u8, path: &[u8], is_huffman: bool) -> Vec<u8> {
    let mut value = path.to_vec();
    let mut mark = 0;
    if is_huffman {
        value.clear();
        huffman::encode(path, &mut value);
        mark = 0x80;
    }
    let len = u8::try_from(value.len()).unwrap();
    let block = [&[GET, 0x86, 0x04, mark | len], &value[..]].concat();
    frame(HEADERS, 5, stream, &block)
}

fn begin(settings: &[u8]) -> Vec<u8> {
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &frame(SETTINGS, 0, 0, settings)[..],
    ]
    .concat()
}

/// Type, flags, stream and payload of the next frame.
fn read_frame(socket: &mut impl Read) -> (u8, u8, u8, Vec<u8>) {
    let mut head = [0; 9];
    socket.read_exact(&mut head).unwrap();
    let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
    socket.read_exact(&mut payload).unwrap();
    (head[3], head[4], head[8], payload)
}

/// The field block and the body of the response on `stream`.
fn read_answer(socket: &mut impl Read, stream: u8) -> (Vec<u8>, Vec<u8>) {
    loop {
        let (kind, flags, on, block) = read_frame(socket);
        if kind == HEADERS {
            assert_eq!((flags, on), (4, stream));
            let (kind, flags, on, body) = read_frame(socket);
            assert_eq!((kind, flags, on), (DATA, 1, stream));
            return (block, body);
        }
    }
}

#[test]
fn http2_repeats_fields_by_their_index() {
    let mut socket = connect(H2C);
    let mut bytes = begin(&[]);
    bytes.extend(request(1, b"/a.txt", false));
    bytes.extend(request(3, b"/a.txt", true));
    bytes.extend(request(5, b"/many/00000.txt", true));
    bytes.extend(request(7, b"/none", true));
    bytes.extend(request(9, b"/a.txt", false));
    bytes.extend(frame(PING, 0, 0, b"12345678"));
    socket.write_all(&bytes).unwrap();
    let (first, body) = read_answer(&mut socket, 1);
    assert_eq!((first[0], &body[..]), (0x88, &b"hello\n"[..]));
    let repeat = (
        vec![0x88, 0xc4, 0xc3, 0xc2, 0xc1, 0xc0, 0xbf, 0xbe],
        b"hello\n".to_vec(),
    );
    assert_eq!(read_answer(&mut socket, 3), repeat);
    let (other, body) = read_answer(&mut socket, 5);
    assert_eq!(
        (&other[..3], &body[..]),
        (&[0x88, 0xc4, 0xc3][..], &b"zero\n"[..])
    );
    assert_eq!(read_answer(&mut socket, 7).0[..3], [0x8d, 0xc4, 0xc3]);
    assert_eq!(read_answer(&mut socket, 9), repeat);
    assert_eq!(read_frame(&mut socket), (PING, 1, 0, b"12345678".to_vec()));
}

#[test]
fn http2_takes_frames_in_pieces() {
    let mut socket = connect(H2C);
    socket.set_nodelay(true).unwrap();
    for piece in [begin(&[]), request(1, b"/moved", true)].concat().chunks(5) {
        socket.write_all(piece).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    let (settings, ack) = (read_frame(&mut socket), read_frame(&mut socket));
    assert_eq!(
        (settings.0, settings.1, ack.0, ack.1),
        (SETTINGS, 0, SETTINGS, 1)
    );
    let (block, body) = read_answer(&mut socket, 1);
    assert_eq!(block[0], 0x48);
    assert!(body.starts_with(b"<!DOCTYPE"));
}

#[test]
fn http2_never_sends_more_than_the_window() {
    for (settings, count) in [(&[0, 4, 0, 0, 0, 5][..], 1), (&[], 5)] {
        let mut socket = connect(H2C);
        let mut bytes = begin(settings);
        for number in 0..count {
            bytes.extend(request(2 * number + 1, b"/16k.bin", false));
        }
        bytes.extend(request(99, b"/a.txt", false));
        socket.write_all(&bytes).unwrap();
        let mut received = Vec::new();
        let _ = socket.read_to_end(&mut received);
        assert!(received.len() < 66_000, "{}", received.len());
    }
}

fn client_config(
    version: &'static rustls::SupportedProtocolVersion,
    alpn: &[u8],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(FLOOR.cert.clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config)
}

fn connect_tls(config: &Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
    let connection =
        ClientConnection::new(Arc::clone(config), "localhost".try_into().unwrap()).unwrap();
    StreamOwned::new(connection, connect(HTTPS))
}

#[test]
fn tls_of_both_versions_resumes_and_ends_in_order() {
    for version in [&version::TLS12, &version::TLS13] {
        let config = client_config(version, b"http/1.1");
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let mut stream = connect_tls(&config);
            // The responses are longer than a TLS record.
            let requests = get("/a.txt") + &get("/16k.bin").repeat(3) + &last("/a.txt");
            stream.write_all(requests.as_bytes()).unwrap();
            let mut text = String::new();
            // If the server did not send close_notify, the read would fail.
            stream.read_to_string(&mut text).unwrap();
            assert_eq!(text.matches("200 OK").count(), 5);
            assert_eq!(text.matches('#').count(), 3 * 16 * 1024);
            assert_eq!(stream.conn.handshake_kind(), Some(kind), "{version:?}");
        }
    }
}

#[test]
fn tls_with_alpn_gives_http2() {
    let mut stream = connect_tls(&client_config(&version::TLS13, b"h2"));
    let bytes = [begin(&[]), request(1, b"/a.txt", true)].concat();
    let (start, end) = bytes.split_at(bytes.len() - 3);
    stream.write_all(start).unwrap();
    stream.flush().unwrap();
    stream.write_all(end).unwrap();
    assert_eq!(read_answer(&mut stream, 1).1, b"hello\n");
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
}

fn parse(words: &str) -> Result<Mode, String> {
    Mode::parse(words.split(' ').map(OsString::from))
}

#[test]
fn every_option_is_needed() {
    let all = "--root r --cert c --key k --http 1 --https 2 --h2c 3";
    let Ok(Mode::Files(options)) = parse(all) else {
        panic!("files are to be served")
    };
    assert_eq!(options.h2c, 3);
    let (http, application) = (1, 4);
    let fastcgi = Mode::Fastcgi { http, application };
    assert_eq!(parse("--http 1 --fastcgi 4"), Ok(fastcgi));
    for (words, problem) in [
        ("--root r --cert c", "--key is missing"),
        (
            "--root r --cert c --key k --http x",
            "--http: x is not a port",
        ),
        ("--root", "--root needs a value"),
        ("--fastcgi 4", "--http is missing"),
        ("--port 1", "unknown argument --port"),
    ] {
        assert!(parse(words).unwrap_err().starts_with(problem));
    }
}
