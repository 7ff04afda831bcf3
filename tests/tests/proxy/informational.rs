//! Informational (1xx) responses of backends.

use std::time::Duration;

use h2o_tests::http2::{Frame, Http2, Received, encode, flag, get, kind, post, setting};
use h2o_tests::{Backend, FINE, Server, Setup, Talk};

use super::kit::proxy;
use super::streaming::gate;

#[test]
fn hints_come_before_the_answer() {
    let backend = Backend::answering(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n\
         HTTP/1.1 103 Early Hints\r\nx-hint: 2\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine",
    );
    let server = proxy("", &backend);
    let mut client = Http2::open(server.port(), &[(setting::ENABLE_PUSH, 0)]);
    let answer = client.ask(1, &get("/"));
    assert_eq!(answer.text(), "fine");
    let status = (":status".to_owned(), "103".to_owned());
    assert_eq!(answer.interim.len(), 2, "{:?}", answer.interim);
    assert!(answer.interim.iter().all(|fields| fields.contains(&status)));
    assert!(answer.interim[1].contains(&("x-hint".to_owned(), "2".to_owned())));
    // Clients of HTTP/1 get informational responses only with `send-informational: all`.
    server.ask("GET /").must_be("200 OK\n\nfine");
    let server = proxy("send-informational: all", &backend);
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    for want in ["link: </a>; rel=preload", "x-hint: 2"] {
        let hint = client.read_response("GET");
        assert_eq!(hint.code(), 103, "{hint}");
        hint.must_be(&format!("{}\n{want}", hint.status));
    }
    client.read_response("GET").must_be("200 OK\n\nfine");
}

#[test]
fn the_size_of_heads_in_the_access_log_does_not_leave_interim_ones_out() {
    let backend = Backend::answering(
        "HTTP/1.1 103 Early Hints\r\nx-hint: 1\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine",
    );
    let settings = "send-informational: all\naccess-log: { path: @DIR@/log, format: '%{response-header-bytes}x' }";
    let server = proxy(settings, &backend);
    let mut client = server.connect();
    client.send(
        "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\nConnection: close\r\n\r\n",
    );
    let mut heads = client.read_until(b"\r\n\r\n");
    assert!(heads.starts_with(b"HTTP/1.1 100 "));
    client.send("x");
    heads.extend(client.read_to_end());
    let want = heads.len() - b"fine".len();
    let log = server.read_until("log", "\n");
    assert_eq!(log, format!("{want}\n"));

    let mut client = Http2::open(server.port(), &[(setting::ENABLE_PUSH, 0)]);
    let section = [post("/"), encode(&[("expect", "100-continue")])].concat();
    client.send_frames(&[
        Frame::request_with_content(1, section),
        Frame::data(1, flag::END_STREAM, "x"),
    ]);
    let (mut len, mut heads) = (0, 0);
    while !client.answer(1).is_over() {
        match client.read(Duration::from_secs(20)) {
            Received::Frame(frame) if frame.kind == kind::HEADERS => {
                len += frame.payload.len();
                heads += 1;
            }
            Received::Frame(_) => {}
            end @ (Received::Closed | Received::Nothing) => panic!("{end:?}"),
        }
    }
    assert_eq!(heads, 3);
    let log = server.read_until("log", &format!("\n{len}"));
    assert_eq!(log, format!("{want}\n{len}\n"));
}

/// Header directives for 103 (Early Hints) at the global level, which apply to all paths.
const HINTS: &str = "
header.add: { header: 'link: </a.css>; rel=preload', when: early }
header.set: { header: 'x-all: 1', when: all }
header.unset: { header: x-final, when: early }
";

/// Starts a server that sends 103 (Early Hints), and a backend that answers `/wait` when the test sends a value to the channel.
fn hinting(settings: &str) -> (Server, Backend, std::sync::mpsc::Sender<()>) {
    let (open, pass) = gate();
    let backend = Backend::start(move |talk: &mut Talk| {
        while let Some(request) = talk.read_request() {
            if request.target() == "/wait" {
                pass();
            }
            talk.send(FINE);
        }
    });
    let config = format!(
        "{HINTS}{settings}
num-threads: 1
listen: @PORT@
hosts:
  default:
    paths:
      /moved: {{ redirect: {{ url: /elsewhere, status: 302 }} }}
      /files: {{ file.dir: '@DIR@' }}
      /: {{ proxy.reverse.url: '{}' }}
",
        backend.url("/")
    );
    let server = Setup::new(&config).file("small", "small").start();
    (server, backend, open)
}

#[test]
fn a_client_that_waits_for_an_answer_gets_the_hints_of_its_path() {
    let (server, _backend, open) = hinting("send-informational: all");
    let mut client = Http2::open(server.port(), &[]);
    client.send_frame(&Frame::request(1, get("/wait")));
    client.read_until("the 103 (Early Hints) response", |client| {
        !client.answer(1).interim.is_empty()
    });
    open.send(()).unwrap();
    let answer = client.read_answer(1);
    let hints = [
        (":status", "103"),
        ("link", "</a.css>; rel=preload"),
        ("x-all", "1"),
    ];
    let hints = hints.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(answer.interim, [hints.to_vec()]);
    assert_eq!(answer.text(), "fine");
    assert_eq!(answer.field("link"), None);
    assert_eq!(answer.field("x-all"), Some("1"));
    // Clients of HTTP/1.1 get the hints too, because the configuration allows informational responses over HTTP/1.1.
    let mut client = server.connect();
    for _ in 0..2 {
        client.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
        let hints = client.read_head();
        assert_eq!(hints.code(), 103);
        hints.must_be(&format!(
            "{}\nlink: </a.css>; rel=preload\nx-all: 1",
            hints.status
        ));
        open.send(()).unwrap();
        let answer = client.read_response("GET");
        assert_eq!((answer.code(), answer.text()), (200, "fine".to_owned()));
    }
}

#[test]
fn hints_are_not_made_for_clients_that_do_not_wait_or_do_not_want_them() {
    let (server, _backend, open) = hinting("");
    // The server answers requests for a redirect, a file, and a missing file at once, so it sends no hints.
    let mut client = Http2::open(server.port(), &[]);
    for (stream, path) in [(1, "/moved"), (3, "/files/small"), (5, "/files/missing")] {
        assert_eq!(client.ask(stream, &get(path)).interim.len(), 0, "{path}");
    }
    let hush = [get("/wait"), encode(&[("no-early-hints", "1")])].concat();
    open.send(()).unwrap();
    assert_eq!(client.ask(7, &hush).interim.len(), 0);
    // Clients of HTTP/1.1 get hints only if the configuration allows it, and those of HTTP/1.0 never.
    open.send(()).unwrap();
    assert_eq!(server.ask("GET /wait").code(), 200);
    let (server, _backend, open) = hinting("send-informational: all");
    let mut client = server.connect();
    open.send(()).unwrap();
    client.send("GET /wait HTTP/1.0\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_head().code(), 200);
    let (server, _backend, open) = hinting("send-informational: none");
    let mut client = Http2::open(server.port(), &[]);
    open.send(()).unwrap();
    assert_eq!(client.ask(1, &get("/wait")).interim.len(), 0);
}
