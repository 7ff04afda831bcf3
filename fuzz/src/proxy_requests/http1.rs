//! Checks the proxy's request over HTTP/1 with a strict reader, and with the server role of `h2o-http1`.

use std::sync::Arc;

use h2o_http::{BodyLength, ClientResponse, Method, authority};
use h2o_http1::{ClientConnection, ClientReceived, ClientRequest, Settings};

use super::Outgoing;
use crate::server::{Driven, Event};
use crate::strict_http1::{self, Content};

impl Outgoing<'_> {
    pub(super) fn over_http1(&self) {
        let mut client = ClientConnection::new(Arc::default());
        let head = &self.head;
        let request = ClientRequest {
            method: &head.method,
            target: head.target(),
            host: head.authority(),
            headers: &head.headers,
            body: head.body,
            keep_alive: self.options.keeps_connection(),
            upgrade: Some(head.upgrade()).filter(|token| !token.is_empty()),
            expects_continue: self.holds_content,
        };
        let mut out = Vec::new();
        client.send_request(&request, &mut out);
        if self.asks_for_tunnel() {
            self.check_http1_tunnel(&mut client, &out);
        } else {
            for piece in self.incoming.content.chunks(self.options.piece()) {
                client.send_data(piece, &mut out);
            }
            if self.incoming.is_whole {
                client.finish(None, &mut out);
            } else {
                client.abort(&mut out);
            }
        }
        assert!(self.asks_for_tunnel() || client.is_request_done());
        self.check_http1(&out);
        self.check_http1_by_engine(&out);
    }

    /// After the head of a request for a tunnel, only bytes of the tunnel follow.
    pub(super) fn check_http1_tunnel(&self, client: &mut ClientConnection, head: &[u8]) {
        assert_eq!(&head[head.len() - 4..], b"\r\n\r\n");
        let response: &[u8] = if self.is_connect() {
            b"HTTP/1.1 200 OK\r\n\r\n"
        } else {
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\r\n"
        };
        let received = client.receive(response, &mut ClientResponse::new());
        let taken = response.len();
        assert_eq!(received, Ok(ClientReceived::Response { taken }));
        let mut out = Vec::new();
        client.send_data(b"\r\nGET / HTTP/1.1\r\n\r\n", &mut out);
        client.finish(None, &mut out);
        assert_eq!(out, b"\r\nGET / HTTP/1.1\r\n\r\n");
    }

    pub(super) fn check_http1(&self, out: &[u8]) {
        const FRAMING: [&str; 6] = [
            "host",
            "connection",
            "upgrade",
            "expect",
            "content-length",
            "transfer-encoding",
        ];
        let sent = strict_http1::request(out);
        assert!(sent.rest.is_empty() && sent.trailers.is_empty());
        assert_eq!(sent.line[0], self.method().as_bytes());
        if self.is_connect() {
            assert_eq!(sent.line[1], self.authority());
        } else {
            assert!(sent.line[1].starts_with(b"/"));
            self.check_target(sent.line[1]);
        }
        assert_eq!(sent.values("host"), [self.authority()]);
        let token = self.request.upgrade();
        let is_upgrade = self.asks_for_tunnel() && !self.is_connect();
        let connection: &[u8] = match self.options.keeps_connection() {
            _ if is_upgrade => b"upgrade",
            true => b"keep-alive",
            false => b"close",
        };
        assert_eq!(sent.values("connection"), [connection]);
        match *sent.values("upgrade") {
            [sent] if is_upgrade => self.check_token(sent),
            [] => assert!(!is_upgrade),
            ref sent => panic!("{sent:?}"),
        }
        self.check_expect(&sent.values("expect"));
        let lengths = sent.values("content-length");
        let codings = sent.values("transfer-encoding");
        // Only a request with content may have the field `expect` (RFC 9110 §10.1.1).
        let has_content = !codings.is_empty() || !matches!(&*lengths, [] | [b"0"]);
        assert!(has_content || sent.values("expect").is_empty());
        let may_be_chunked = matches!(self.incoming.head.body, BodyLength::Unknown);
        assert!(codings.is_empty() || (may_be_chunked && !self.is_complete));
        if self.asks_for_tunnel() {
            assert!(lengths.is_empty() && codings.is_empty());
        } else {
            let anticipates = matches!(self.request.method, Method::Post | Method::Put);
            let has_framing = !lengths.is_empty() || !codings.is_empty();
            assert!(has_framing || !anticipates || !token.is_empty());
            match &sent.content {
                Content::Whole(content) => self.check_content(content, true),
                Content::CutOff(content) => self.check_content(content, false),
                Content::UntilClose(_) => {
                    panic!("a request cannot have content that ends with the connection")
                }
            }
        }
        self.check_fields(sent.fields, &FRAMING);
    }

    /// The server role of `h2o-http1` must read the same request from the bytes.
    pub(super) fn check_http1_by_engine(&self, out: &[u8]) {
        let port = authority::split(self.authority()).map(|(_, port)| port);
        let is_address = match port {
            // Without a port in the backend's URL, the server role would refuse CONNECT (RFC 9110 §9.3.6).
            Some(port) => port.is_some_and(|port| port > 0) || !self.is_connect(),
            // The server role would refuse the authority that stands for a Unix socket.
            None => false,
        };
        if !is_address {
            return;
        }
        let mut server = Driven::new(Settings {
            strict: true,
            max_fields: 200,
            max_head: usize::MAX,
            ..Settings::default()
        });
        server.receive(out);
        let Some(Event::Request(got)) = server.events.first() else {
            panic!(
                "the server did not read the proxied request: {} {:?}",
                out.escape_ascii(),
                server.events
            );
        };
        assert_eq!(server.heads.len(), 1, "one request became several");
        assert_eq!(got.method, self.method());
        assert_eq!(got.target, self.head.target());
        assert_eq!(got.authority, self.authority());
        if self.asks_for_tunnel() {
            return;
        }
        let content = match server.events.get(1) {
            Some(Event::Data(content)) => &content[..],
            _ => b"",
        };
        let is_whole = matches!(server.events.last(), Some(Event::Kept | Event::Closed));
        self.check_content(content, is_whole);
    }
}
