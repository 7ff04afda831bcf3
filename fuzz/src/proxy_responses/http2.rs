//! Checks a response to a client over HTTP/2 by its frames.

use h2o_exchange::{Exchange, Response};
use h2o_http::{Method, ResponseHead, StatusCode};
use h2o_http2::ErrorCode;

use super::handed::{Handed, headers};
use super::request::http2_server;
use crate::http2_output::Output;

impl Handed<'_> {
    pub(super) fn by_http2(&self, exchange: &Exchange, mut response: Response) {
        let (mut server, key, request) = http2_server(self.asked.options.asks());
        let mut out = Vec::new();
        for (status, headers) in &exchange.informational {
            server.send_informational(key, *status, headers, &mut out);
        }
        if request.is_tunnel_opened_by(response.status) {
            if response.status == StatusCode::SWITCHING_PROTOCOLS {
                response.status = StatusCode::OK;
            }
            response.length = None;
        }
        let is_bodyless = response.status.is_bodyless() && !self.head.is_tunnel;
        let has_body = !is_bodyless && request.method != Method::Head;
        let is_empty = self.read.is_complete
            && self.read.content.is_empty()
            && self.read.trailers.is_empty()
            && self.asked.options.is_at_once();
        let head = ResponseHead {
            status: response.status,
            reason: None,
            headers: &response.headers,
            length: response.length.filter(|_| !is_bodyless),
            server: Some(b"h2o"),
        };
        let ends = is_empty || !has_body;
        server.respond(key, &head, ends, &mut out);
        let mut rest = &*self.read.content;
        while !ends && !rest.is_empty() {
            server.set_content(key, true);
            let Some((_, max)) = server.poll_send() else {
                // The flow-control window of the response's stream is used up: the rest of the content is not sent.
                return;
            };
            let len = max.min(self.asked.options.piece()).min(rest.len());
            let (piece, after) = rest.split_at(len);
            server.send_data(key, piece, false, &mut out);
            rest = after;
        }
        if !ends && self.read.is_complete {
            let trailers = headers(&self.read.trailers);
            let trailers = (!trailers.is_empty()).then_some(&trailers);
            server.finish(key, trailers, &mut out);
        } else if !ends {
            server.reset(key, ErrorCode::INTERNAL_ERROR, &mut out);
        }
        let mut output = Output::new();
        output.take(&mut out);
        self.check_http2(&output, has_body);
    }

    pub(super) fn check_http2(&self, output: &Output, has_body: bool) {
        let mut sections = Vec::new();
        for section in &output.sections[&1] {
            let mut fields: Vec<_> = section
                .iter()
                .map(|(name, value)| {
                    let name =
                        String::from_utf8(name.clone()).expect("the name is a token and so ASCII");
                    assert_eq!(name, name.to_ascii_lowercase());
                    // HTTP/2 does not allow connection-specific fields (RFC 9113 §8.2.2).
                    assert!(!is_connection_specific(&name), "{name}");
                    (name, value.clone())
                })
                .collect();
            let status = match fields.first() {
                Some((name, _)) if name == ":status" => fields.remove(0).1,
                _ => Vec::new(),
            };
            assert!(!fields.iter().any(|(name, _)| name.starts_with(':')));
            sections.push((status, fields));
        }
        let is_interim = |(status, _): &(Vec<u8>, _)| status.starts_with(b"1");
        let count = sections.iter().take_while(|head| is_interim(head)).count();
        let (interims, rest) = sections.split_at(count);
        self.check_interims(interims);
        let ((status, fields), trailers) = rest.split_first().expect("the output has a final head");
        assert_eq!(*status, self.status());
        let values = |name: &str| -> Vec<&[u8]> {
            let named = fields.iter().filter(|(known, _)| known == name);
            named.map(|(_, value)| &**value).collect()
        };
        assert_eq!(values("server"), [b"h2o"]);
        let content = output.content_of(1);
        let is_ended = output.ended.contains(&1);
        if has_body {
            assert_eq!(is_ended, self.read.is_complete);
            self.check_content(&content, is_ended);
        } else {
            assert!(is_ended && content.is_empty());
        }
        match *values("content-length") {
            [] => {}
            [length] if has_body => {
                let length = String::from_utf8_lossy(length);
                assert!(!is_ended || length == content.len().to_string());
                assert!(!self.head.is_tunnel);
            }
            [_] => assert!(!matches!(&**status, b"204" | b"304")),
            ref lengths => panic!("{lengths:?}"),
        }
        self.check_fields(fields, &["server", "content-length"]);
        let meant = self.read.trailers.iter();
        let meant: Vec<_> = meant
            .filter(|(name, _)| !is_connection_specific(name) && name != "content-length")
            .collect();
        let sent: Vec<_> = trailers.iter().flat_map(|(_, fields)| fields).collect();
        if is_ended && has_body {
            assert_eq!(sent, meant);
        } else {
            assert!(sent.is_empty());
        }
    }
}

/// Whether a field of this name is connection-specific, so that HTTP/2 does not allow it.
pub(super) fn is_connection_specific(name: &str) -> bool {
    const SPECIFIC: [&str; 6] = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
    ];
    SPECIFIC.contains(&name)
}
