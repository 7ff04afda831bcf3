//! Requests whose target has another scheme than the transport of their connection.

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::http2::{Decoder, Frame, Http2, PREFACE, encode, flag, kind};
use h2o_tests::{Backend, FINE, Folder, Response, Server, Setup, run};

/// A Python program that sends bytes over TLS, and prints what it receives until the server closes the connection or stream 1 has ended.
const ASK: &str = "
import socket, ssl, sys
port, protocol, message = sys.argv[1:]
context = ssl._create_unverified_context()
context.set_alpn_protocols([protocol])
connection = context.wrap_socket(socket.create_connection(('127.0.0.1', int(port)), 20), server_hostname='a.test')
connection.sendall(bytes.fromhex(message))
got = b''
def is_over():
    at = 0
    while protocol == 'h2' and len(got) >= at + 9:
        end = at + 9 + int.from_bytes(got[at:at + 3], 'big')
        if got[at + 3] < 2 and got[at + 4] & 1 and int.from_bytes(got[at + 5:at + 9], 'big') == 1 and len(got) >= end:
            return True
        at = end
    return False
while not is_over():
    more = connection.recv(65536)
    if not more:
        break
    got += more
print(got.hex())
";

fn over_tls(server: &Server, protocol: &str, bytes: &[u8]) -> Vec<u8> {
    let port = server.port_of("TLSPORT").to_string();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let output = run("python3", &["-c", ASK, &port, protocol, &hex]);
    let text = output.text();
    let digits = text.trim();
    assert!(output.code == 0 && !digits.is_empty(), "{output}");
    (0..digits.len() / 2)
        .filter_map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok())
        .collect()
}

/// The status of the response on stream 1 in these HTTP/2 frames.
fn status_of(bytes: &[u8]) -> String {
    let mut frames = Frame::parse_all(bytes).into_iter();
    let head = frames.find(|frame| frame.kind == kind::HEADERS && frame.stream == 1);
    let Some(head) = head else {
        return "no response".to_owned();
    };
    Decoder::default().decode_text(&head.payload).remove(0).1
}

/// A server with two hosts: `a.test:80` redirects to https, and `a.test:443` is forwarded to the backend.
fn start(backend: &Backend) -> Server {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "a.test");
    let config = format!(
        "
num-threads: 1
listen: @PORT@
listen: {{ port: @FRONTPORT@, proxy-protocol: ON }}
listen:
  port: @TLSPORT@
  ssl: {{ certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key }}
error-doc: {{ status: 421, url: /421.html }}
header.add: 'x-filtered: 1'
hosts:
  'a.test:80':
    paths:
      /: {{ redirect: 'https://a.test/' }}
      /421.html: {{ file.file: @DIR@/421.html }}
  'a.test:443':
    paths:
      /: {{ proxy.reverse.url: '{}' }}
      /421.html: {{ file.file: @DIR@/421.html }}
",
        backend.url("/")
    );
    Setup::in_folder(folder, &config)
        .file("421.html", "wrong way")
        .start()
}

fn pseudo(scheme: &str) -> Vec<u8> {
    encode(&[
        (":method", "GET"),
        (":scheme", scheme),
        (":path", "/"),
        (":authority", "a.test"),
    ])
}

const MISDIRECTED: &str = "421 Misdirected Request\nx-filtered: 1\n\nwrong way";

#[test]
fn the_scheme_of_a_target_is_not_believed_against_the_transport() {
    let backend = Backend::answering(FINE);
    let server = start(&backend);
    // Requests over HTTP/1 in cleartext.
    let mut client = server.connect();
    client.send("GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n");
    client.read_response("GET").must_be(MISDIRECTED);
    // The connection remains usable after the 421.
    client.send("GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n");
    client
        .read_response("GET")
        .must_be("302 Redirected\nlocation: https://a.test/");
    client.send(
        "POST https://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
    );
    client.read_response("POST").must_be(MISDIRECTED);
    let mut http2 = Http2::open(server.port(), &[]);
    for (stream, scheme, want) in [(1, "https", 421), (3, "HTTPS", 421), (5, "http", 302)] {
        assert_eq!(
            http2.ask(stream, &pseudo(scheme)).status(),
            want,
            "{scheme}"
        );
    }
    // Requests over HTTP/1 with TLS.
    let asked = |target: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
        let answer = over_tls(&server, "http/1.1", request.as_bytes());
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        Response::parse_head(&answer[..end.unwrap_or(answer.len())]).code()
    };
    assert_eq!(asked("http://a.test/"), 421);
    for scheme in ["http", "Http", "HTTP", "ftp"] {
        let bytes = [
            PREFACE.to_vec(),
            Frame::settings(&[]).bytes(),
            Frame::request(1, pseudo(scheme)).bytes(),
        ];
        let answer = over_tls(&server, "h2", &bytes.concat());
        assert_eq!(status_of(&answer), "421", "{scheme}");
    }
    assert_eq!(backend.connections(), 0);
    // Requests whose scheme agrees with the transport are served.
    assert_eq!(asked("https://a.test/"), 200);
    assert_eq!(asked("/"), 200);
    for scheme in ["https", "Https"] {
        let bytes = [
            PREFACE.to_vec(),
            Frame::settings(&[]).bytes(),
            Frame::request(1, pseudo(scheme)).bytes(),
        ];
        let answer = over_tls(&server, "h2", &bytes.concat());
        assert_eq!(status_of(&answer), "200", "{scheme}");
    }
    // A plain CONNECT has no scheme, so it is not refused for it: the server answers 405, because no handler here opens tunnels.
    let connect = encode(&[(":method", "CONNECT"), (":authority", "a.test:443")]);
    let bytes = [
        PREFACE.to_vec(),
        Frame::settings(&[]).bytes(),
        Frame::request_with_content(1, connect).bytes(),
        Frame::data(1, flag::END_STREAM, "").bytes(),
    ];
    assert_eq!(status_of(&over_tls(&server, "h2", &bytes.concat())), "405");
    let received = String::from_utf8_lossy(&backend.received_by_all()).into_owned();
    assert_eq!(
        received.matches("x-forwarded-proto: https\r\n").count(),
        4,
        "{received}"
    );
}

#[test]
fn a_server_in_front_says_by_which_scheme_the_client_has_asked() {
    let backend = Backend::answering(FINE);
    let server = start(&backend);
    let mut client = h2o_tests::Raw::connect(server.port_of("FRONTPORT"));
    client.send("PROXY TCP4 192.0.2.7 192.0.2.1 4711 443\r\nGET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n");
    client.read_response("GET").must_be("200 OK\n\nfine");
    let mut client = Http2::open(server.port_of("FRONTPORT"), &[]);
    assert_eq!(client.ask(1, &pseudo("https")).status(), 200);
    let received = String::from_utf8_lossy(&backend.received_by_all()).into_owned();
    assert_eq!(
        received.matches("x-forwarded-proto: https\r\n").count(),
        2,
        "{received}"
    );
}

#[test]
fn a_proxy_that_hands_an_upgrade_on_is_not_got_round() {
    let backend = Backend::answering(FINE);
    let server = start(&backend);
    let upgrade = |more: &str| {
        let mut client = server.connect();
        client.send(format!(
            "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n{more}\r\n"
        ));
        client.read_head().code()
    };
    assert_eq!(upgrade(""), 101);
    for field in [
        "Via: 1.1 front\r\n",
        "Forwarded: for=192.0.2.1\r\n",
        "X-Forwarded-For: 192.0.2.1\r\n",
        "X-Forwarded-Proto: https\r\n",
    ] {
        assert_eq!(upgrade(field), 302, "{field}");
    }
}

#[test]
fn a_connection_without_proxy_header_is_not_served_where_one_is_required() {
    let server = Setup::new(
        "
num-threads: 1
listen: { port: @PORT@, proxy-protocol: REQUIRED }
hosts: { default: { paths: { /: { redirect: /to } } } }
",
    )
    .start();
    for start in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "PROXYTCP4\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut client = server.connect();
        client.send(start);
        assert_eq!(
            client.read_to_end().escape_ascii().to_string(),
            "",
            "{start}"
        );
    }
    let mut client = server.connect();
    client.send("PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    client
        .read_response("GET")
        .must_be("302 Redirected\nlocation: /to/");
}
