//! WebSockets through the reverse proxy: with a browser, and when the server shuts down.

use std::time::Duration;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::http2::{Frame, Http2, encode, flag};
use h2o_tests::{Backend, Folder, Server, Service, Setup, Talk, browse};

use super::kit::{config_of_paths, proxy};

/// A page that sends messages of several lengths through a WebSocket, and writes the outcome into its title. Its image loads only after
/// that, so that the browser waits.
const PAGE: &str = "<!DOCTYPE html><title>wait</title><img src=/go/hold><script>
const texts = [0, 1, 125, 126, 65535, 65536, 300000].map(length => 'm'.repeat(length));
const scheme = location.protocol === 'https:' ? 'wss:' : 'ws:';
const socket = new WebSocket(`${scheme}//${location.host}/ws`);
let good = 0;
socket.onopen = () => texts.forEach(text => socket.send(text));
socket.onmessage = event => {
  good += event.data === texts[good] ? 1 : 1000;
  if (good === texts.length) socket.close(1000);
};
socket.onclose = event => {
  document.title = `${good} of ${texts.length}, closed with ${event.code}`;
  fetch('/go/release');
};
</script>";

/// Opens the page in a browser, over TLS or in cleartext, and checks the title and the access log.
fn speak(is_secure: bool) {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "localhost");
    let (_service, http, _) = Service::go(&folder, "server");
    folder.write("www/index.html", PAGE);
    let go = format!("http://127.0.0.1:{http}");
    let paths = [("/ws", &*format!("{go}/ws")), ("/go/", &*format!("{go}/"))];
    let config = config_of_paths("proxy.tunnel: ON", &paths)
        + "      /: { file.dir: @DIR@/www }\n"
        + "access-log: { path: @DIR@/access-log, format: '%H %m %s %U' }\n"
        + "listen: { port: @TLS_PORT@, ssl: { certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key } }\n";
    let server = Setup::in_folder(folder, &config).start();
    let (url, want) = if is_secure {
        let url = format!("https://localhost:{}/", server.port_of("TLS_PORT"));
        (url, "HTTP/2 CONNECT 200 /ws")
    } else {
        (server.url("/"), "HTTP/1.1 GET 101 /ws")
    };
    let output = browse(&server.folder, &url);
    let text = output.text();
    assert!(
        text.contains("<title>7 of 7, closed with 1000<"),
        "{url}: {output}\n{}\n{}",
        server.folder.read("access-log"),
        server.messages()
    );
    let _ = server.read_until("access-log", want);
}

#[test]
fn a_browser_speaks_websocket_over_http1() {
    speak(false);
}

#[test]
fn a_browser_speaks_websocket_over_a_stream_of_http2() {
    // Over HTTP/2 the browser sends no `sec-websocket-key` (RFC 8441), which the HTTP/1 backend needs, so the proxy makes one.
    speak(true);
}

/// A close frame with the code 1001 (going away), and a client's answer to it.
const GOING_AWAY: &[u8] = &[0x88, 2, 0x03, 0xe9];
const ANSWER: &[u8] = &[0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9];

/// A backend that sends a frame and half of another, and the rest of it with one more frame when the client has sent `word`. It closes the
/// connection when it gets a close frame.
fn chatty() -> Backend {
    Backend::start(|talk: &mut Talk| {
        let _ = talk.read_head();
        talk.send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        );
        talk.send(b"\x81\x05hello\x81\x05wo");
        let _ = talk.read_exactly(4);
        talk.send(b"rld\x81\x05never");
        let _ = talk.read_until(ANSWER);
    })
}

fn must_have_ended(mut server: Server, backend: &Backend) {
    let status = server.wait(Duration::from_secs(15));
    assert_eq!(status.code(), Some(0), "{}", server.messages());
    // The client's close frame has reached the backend, which has then closed the connection.
    assert!(backend.received(0).ends_with(&[b"word", ANSWER].concat()));
}

#[test]
fn the_end_of_the_server_is_not_kept_from_a_websocket_over_http1() {
    let backend = chatty();
    let server = proxy("proxy.tunnel: ON", &backend);
    let mut client = server.connect();
    client
        .send("GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(client.read_head().code(), 101);
    let begun = b"\x81\x05hello\x81\x05wo";
    assert_eq!(client.read_exactly(begun.len()), begun);
    server.terminate();
    server.wait_for_message("gracefully shutting down");
    // The server cannot send its close frame in the middle of the backend's frame.
    client.send("word");
    let rest = [b"rld", GOING_AWAY].concat();
    assert_eq!(client.read_exactly(rest.len()), rest);
    client.send(ANSWER);
    assert_eq!(client.read_to_end(), b"");
    must_have_ended(server, &backend);
}

#[test]
fn the_end_of_the_server_is_not_kept_from_a_websocket_over_http2() {
    let backend = chatty();
    let server = proxy("proxy.tunnel: ON", &backend);
    let mut client = Http2::open(server.port(), &[]);
    client.send_frame(&Frame::request_with_content(
        1,
        encode(&[
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "http"),
            (":path", "/chat"),
            (":authority", "www.example.com"),
        ]),
    ));
    let begun = b"\x81\x05hello\x81\x05wo";
    client.read_until("the first frames", |client| client.answer(1).body == begun);
    server.terminate();
    server.wait_for_message("gracefully shutting down");
    client.send_frame(&Frame::data(1, 0, "word"));
    let all = [&begun[..], b"rld", GOING_AWAY].concat();
    client.read_until("the close frame", |client| client.answer(1).body == all);
    client.send_frame(&Frame::data(1, flag::END_STREAM, ANSWER));
    client.read_until("the end", |client| client.answer(1).is_over());
    assert_eq!(client.answer(1).body, all);
    drop(client);
    must_have_ended(server, &backend);
}
