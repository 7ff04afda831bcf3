//! Runs a TLS server with a test handler, and encodes HTTP/2 requests for a TLS client.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "helpers of several tests, which may fail them"
)]

use std::net::TcpStream;
use std::sync::Arc;

use super::embedded::Embedded;
use super::identity;
use h2o_config::Directive;
use h2o_exchange::Scope;
use h2o_testkit::http2::{Frame, PREFACE, encode, flag, kind, setting};
use h2o_testkit::patient;
use h2o_testkit::tls::{Client, client_config};
use rustls::ClientConfig;

/// A running TLS server.
pub struct Running {
    server: Embedded,
    /// Directory with the server's certificate; tests may put other files there.
    pub folder: tempfile::TempDir,
}

impl Running {
    /// Starts a server. `settings` are global directives, `paths` the directives of the default host; each line ends with a
    /// newline.
    pub fn start(directives: &'static [Directive<Scope>], settings: &str, paths: &str) -> Self {
        let folder = identity::folder();
        let at = folder.path().to_str().unwrap().to_owned();
        let settings = settings.replace("FOLDER", &at);
        let paths = paths.replace("FOLDER", &at);
        let server = Embedded::start(directives, |port| {
            let listener = identity::tls_listener(folder.path(), port);
            format!("num-threads: 1\n{settings}{listener}hosts:\n  default:\n    paths:\n{paths}")
        });
        Self { server, folder }
    }

    pub const fn port(&self) -> u16 {
        self.server.port
    }

    pub fn connect(&self) -> TcpStream {
        patient(TcpStream::connect(("127.0.0.1", self.port())).unwrap())
    }
}

/// Gets a session ticket from the server. Returns a client configuration that holds the ticket, so that its next connection can
/// send early data.
pub fn with_ticket(server: &Running, alpn: &[u8]) -> Arc<ClientConfig> {
    let config = client_config(alpn);
    let mut client = Client::new(&config, server.connect());
    client.handshake();
    // The server sends the ticket before the first response, so reading the response also reads the ticket.
    client.send(b"GET / HTTP/1.0\r\n\r\n");
    client.receive_rest();
    config
}

/// The HTTP/2 connection preface, with settings for large windows.
pub fn preface() -> Vec<u8> {
    let megabyte = 1 << 20;
    let settings = Frame::settings(&[(setting::INITIAL_WINDOW_SIZE, megabyte)]);
    let window = Frame::window_update(0, megabyte);
    [PREFACE, &settings.bytes(), &window.bytes()].concat()
}

/// Encodes the HEADERS frame of a GET request, with additional fields.
pub fn get(stream: u32, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut head = vec![
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a.test"),
        (":path", path),
    ];
    head.extend(fields);
    Frame::request(stream, encode(&head)).bytes()
}

/// Returns the response body received on a stream so far, and whether the body is complete.
pub fn content(bytes: &[u8], stream: u32) -> (Vec<u8>, bool) {
    let mut content = Vec::new();
    let mut is_complete = false;
    for frame in Frame::parse_all(bytes) {
        if frame.stream == stream && matches!(frame.kind, kind::DATA | kind::HEADERS) {
            is_complete |= frame.has(flag::END_STREAM);
            if frame.kind == kind::DATA {
                content.extend(frame.payload);
            }
        }
    }
    (content, is_complete)
}
