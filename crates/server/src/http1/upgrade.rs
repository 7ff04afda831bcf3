//! `Upgrade: h2c` (RFC 7540 §3.2): the connection goes on with HTTP/2, and the request becomes stream 1.

use h2o_exchange::{Exchange, ExchangeRef, Response};
use h2o_http::{BodyLength, Known, StatusCode, Version, base64url};

use super::Http1;
use crate::flow::{Flow, Turn};
use crate::http2::Http2;
use crate::request::SlotId;

/// Whether the client asks to upgrade to HTTP/2 and may do so: in clear text, without a body, and not through a proxy. `Upgrade` is
/// for the next hop (RFC 9110 §7.8): a proxy that forwards it does not know HTTP/2, so the proxy would not treat the following
/// bytes as HTTP/2.
pub(super) fn is_wanted(exchange: &Exchange, turn: &Turn<'_>) -> bool {
    const OF_PROXIES: [Known; 4] = [
        Known::Via,
        Known::Forwarded,
        Known::XForwardedFor,
        Known::XForwardedProto,
    ];
    let request = &exchange.request;
    let is_of_proxy = |name: &Known| request.headers.get(*name).is_some();
    matches!(request.upgrade(), b"h2c" | b"h2c-14" | b"h2c-16")
        && turn.connection.io.tls.is_none()
        && request.body == BodyLength::None
        && !OF_PROXIES.iter().any(is_of_proxy)
}

/// Returns the decoded `HTTP2-Settings` field, if there is exactly one and `Connection` names it.
fn settings(exchange: &Exchange) -> Option<Vec<u8>> {
    let headers = &exchange.request.headers;
    let is_named = headers.get_all(Known::Connection).any(|value| {
        value
            .split(|&byte| byte == b',')
            .any(|option| option.trim_ascii().eq_ignore_ascii_case(b"http2-settings"))
    });
    let mut values = headers.get_all(Known::Http2Settings);
    let value = values.next().filter(|_| is_named)?;
    if values.next().is_some() {
        return None;
    }
    base64url::decode(value)
}

impl Http1 {
    /// Switches the connection to HTTP/2, or answers 400 if the client's settings are invalid.
    pub(super) fn upgrade(&mut self, turn: &mut Turn<'_>, exchange: ExchangeRef) -> Flow {
        turn.out
            .extend_from_slice(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n");
        if let Some(server) = &exchange.borrow().site.server_field {
            turn.out.extend_from_slice(b"Server: ");
            turn.out.extend_from_slice(server);
            turn.out.extend_from_slice(b"\r\n");
        }
        turn.out.extend_from_slice(b"upgrade: h2c\r\n\r\n");
        let payload = settings(&exchange.borrow());
        let http2 =
            payload.and_then(|payload| Http2::upgraded(turn, &payload, &exchange).map(Box::new));
        let Some(http2) = http2 else {
            turn.out.clear();
            let status = StatusCode::BAD_REQUEST;
            turn.context.worker.counters.count_status(status);
            let text = "Broken upgrade request to HTTP/2";
            let response = Response::error(status, "Invalid Request", text);
            self.requests
                .answer(&mut self.streams, turn, SlotId::ONLY, exchange, response);
            return self.send_output(turn);
        };
        {
            let request = &mut exchange.borrow_mut().request;
            request.version = Version::Http2;
            // The fields that concern only the HTTP/1.1 connection are removed from the request.
            for name in [Known::Connection, Known::Http2Settings, Known::KeepAlive] {
                request.headers.remove(name);
            }
            request.set_upgrade(h2o_http::Span::default());
        }
        self.successor = Some(http2);
        if turn.send().is_err() {
            self.successor = None;
        }
        Flow::Close
    }
}
