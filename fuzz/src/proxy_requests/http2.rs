//! Checks the proxy's request over HTTP/2 by its frames, and with the server role of `h2o-http2`.

use std::sync::Arc;

use h2o_http::field_section::MAX_FIELDS;
use h2o_http::{BodyLength, ClientResponse, RequestHead, authority};
use h2o_http2::{ClientConnection, ClientSettings, ErrorCode, ServerConnection};
use h2o_testkit::any_moment;

use super::Outgoing;
use crate::http2_messages;
use crate::http2_output::{Output, Section};

impl Outgoing<'_> {
    pub(super) fn over_http2(&self) {
        let now = any_moment();
        let mut out = Vec::new();
        let settings = Arc::new(ClientSettings::default());
        let mut client = ClientConnection::new(settings, now, &mut out);
        let mut server = ServerConnection::new(Arc::default(), None, now);
        let mut answer = Vec::new();
        server
            .receive(&out, &mut RequestHead::default(), now, &mut answer)
            .expect("the engine accepts the other side's preface");
        client
            .receive(&answer, &mut ClientResponse::new(), now, &mut out)
            .expect("the engine accepts the other side's preface");
        let has_body = self.asks_for_tunnel()
            || match self.head.body {
                BodyLength::None | BodyLength::Tunnel => false,
                BodyLength::Known(length) => length > 0 || !self.is_complete,
                BodyLength::Unknown => true,
            };
        let key = client
            .request(&self.head, !has_body, &mut out)
            .expect("the server allows another request");
        let content = &self.incoming.content[..];
        let mut rest = content;
        if self.asks_for_tunnel() {
            client.set_content(key, false);
        } else if has_body {
            while !rest.is_empty() {
                client.set_content(key, true);
                let Some((_, max)) = client.poll_send() else {
                    // The flow-control window of the request's stream is used up: the rest of the content is not sent.
                    return;
                };
                let len = max.min(self.options.piece()).min(rest.len());
                let (piece, after) = rest.split_at(len);
                let knows_end = matches!(self.head.body, BodyLength::Known(_));
                let is_end = knows_end && after.is_empty() && self.incoming.is_whole;
                client.send_data(key, piece, is_end, &mut out);
                rest = after;
            }
            if !self.incoming.is_whole {
                client.reset(key, ErrorCode::CANCEL, &mut out);
            } else if content.is_empty() || self.head.body == BodyLength::Unknown {
                client.finish(key, None, &mut out);
            }
        }
        let mut output = Output::new();
        output.take(&mut out.clone());
        self.check_http2(&output);
        self.check_http2_by_engine(&out, &output.sections[&1][0]);
    }

    pub(super) fn check_http2(&self, output: &Output) {
        let [(1, sections)] = &*output.sections.iter().collect::<Vec<_>>() else {
            panic!("one request became several streams");
        };
        let [section] = &***sections else {
            panic!("trailers that the client has not sent");
        };
        let is_pseudo = |(name, _): &&(Vec<u8>, Vec<u8>)| name.starts_with(b":");
        let count = section.iter().take_while(is_pseudo).count();
        let (pseudo, fields) = section.split_at(count);
        self.check_pseudo_fields(pseudo);
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| {
                let name = String::from_utf8(name.clone()).expect("a field name is ASCII");
                assert!(!name.starts_with(':') && name == name.to_ascii_lowercase());
                (name, value.clone())
            })
            .collect();
        let values = |name: &str| -> Vec<&[u8]> {
            let named = fields.iter().filter(|(known, _)| known == name);
            named.map(|(_, value)| &**value).collect()
        };
        // HTTP/2 does not allow connection-specific fields (RFC 9113 §8.2.2).
        for name in [
            "connection",
            "proxy-connection",
            "keep-alive",
            "transfer-encoding",
            "upgrade",
            "host",
        ] {
            assert!(values(name).is_empty(), "{name}");
        }
        assert!(matches!(*values("te"), [] | [b"trailers"]));
        self.check_expect(&values("expect"));
        let content = output.content_of(1);
        let is_ended = output.ended.contains(&1);
        assert!(!(is_ended && output.reset.contains(&1)));
        if self.asks_for_tunnel() {
            assert!(!is_ended && content.is_empty() && values("content-length").is_empty());
        } else {
            self.check_content(&content, is_ended);
            if let [length] = *values("content-length") {
                let length: usize = std::str::from_utf8(length)
                    .expect("the text consists of digits")
                    .parse()
                    .expect("the text consists of digits");
                assert!(length == content.len() || !is_ended);
            }
        }
        assert!(values("content-length").len() < 2);
        self.check_fields(fields.clone(), &["expect", "content-length"]);
    }

    /// Checks the pseudo-header fields (RFC 9113 §8.3.1 and §8.5, RFC 8441 §4).
    pub(super) fn check_pseudo_fields(&self, pseudo: &[(Vec<u8>, Vec<u8>)]) {
        let value = |name: &str| {
            let mut named = pseudo
                .iter()
                .filter(|(known, _)| known == name.as_bytes())
                .map(|(_, value)| &**value);
            let value = named.next();
            assert!(named.next().is_none(), "the field {name} was sent twice");
            value
        };
        let names = [":method", ":scheme", ":authority", ":path", ":protocol"];
        assert_eq!(
            names.iter().filter_map(|name| value(name)).count(),
            pseudo.len()
        );
        assert_eq!(value(":method"), Some(self.method().as_bytes()));
        assert_eq!(value(":authority"), Some(self.authority()));
        if self.is_connect() {
            assert_eq!(pseudo.len(), 2);
            return;
        }
        let scheme = self.proxied.backend.scheme.as_str();
        assert_eq!(value(":scheme"), Some(scheme.as_bytes()));
        let path = value(":path").expect("the request has a :path");
        assert!(path.starts_with(b"/"));
        self.check_target(path);
        match value(":protocol") {
            Some(token) => {
                assert!(self.asks_for_tunnel());
                self.check_token(token);
            }
            None => assert!(!self.asks_for_tunnel()),
        }
    }

    /// The server role of `h2o-http2` must read the same request from the frames.
    pub(super) fn check_http2_by_engine(&self, out: &[u8], section: &Section) {
        // The server role would refuse the authority that stands for a Unix socket.
        let has_host = self.is_connect() || authority::is_valid(self.authority());
        if section.len() > MAX_FIELDS as usize || !has_host {
            return;
        }
        let requests = http2_messages::read(out);
        if self.incoming.is_whole || self.asks_for_tunnel() {
            let [got] = &*requests else {
                panic!("the server did not read the proxied request");
            };
            assert_eq!(got.head.method.as_str(), self.method());
            assert_eq!(got.head.authority(), self.authority());
            if !self.asks_for_tunnel() {
                assert_eq!(got.head.target(), self.head.target());
                self.check_content(&got.content, got.is_whole);
            }
        } else {
            assert!(requests.iter().all(|request| !request.is_whole));
        }
    }
}
