//! The client's request that the backend's response answers.

use std::rc::Rc;
use std::sync::Arc;

use h2o_exchange::{Body, BodyPipe, Exchange, Outcome, RequestBody};
use h2o_handlers::fuzzing;
use h2o_http::{RequestHead, Scheme, StatusCode};
use h2o_http2::{Received, StreamKey};
use h2o_testkit::any_moment;
use h2o_upstream::{Protocol, Reply};

use super::backend::Read;
use super::handed::{Handed, headers};
use super::options::{Asks, Options};
use crate::http2_messages::{self, Framing};
use crate::proxied::Proxied;

/// A client's request.
pub(super) struct Request<'a> {
    pub(super) proxied: &'a Proxied,
    pub(super) options: Options,
    pub(super) client: Protocol,
    pub(super) request: RequestHead,
    /// The head of the request that is sent to the backend.
    pub(super) head: RequestHead,
}

pub(super) fn ask(proxied: &Proxied, options: Options, client: Protocol) -> Option<Request<'_>> {
    let asks = options.asks();
    if asks == Asks::WebSocket && options.backend() == Protocol::Http2 {
        // The upgrade to WebSocket exists over HTTP/1 only.
        return None;
    }
    let request = match client {
        Protocol::Http1 => {
            let (_, request) = http1_server(asks);
            request
        }
        Protocol::Http2 | Protocol::Http3 => {
            let (_, _, request) = http2_server(asks);
            request
        }
        Protocol::Fastcgi => unreachable!("no client speaks FastCGI"),
    };
    let mut asked = Request {
        proxied,
        options,
        client,
        request,
        head: RequestHead::default(),
    };
    let mut exchange = asked.exchange();
    let backend = &proxied.backend;
    let head = fuzzing::proxied_request(&mut exchange, backend, options.backend());
    asked.head = head.expect("the proxy accepts the request");
    Some(asked)
}

/// The server role of HTTP/1 after it has received the request, and the request's head.
pub(super) fn http1_server(asks: Asks) -> (h2o_http1::ServerConnection, RequestHead) {
    let now = any_moment();
    let mut head = RequestHead::default();
    let mut server = h2o_http1::ServerConnection::new(Arc::default(), Scheme::Http, now);
    let bytes = asks.http1().as_bytes();
    let received = server.receive(bytes, now, &mut head);
    let taken = bytes.len();
    assert_eq!(received, Ok(h2o_http1::Received::Request { taken }));
    (server, head)
}

/// The server role of HTTP/2 after it has received the request, with the request's stream and head.
pub(super) fn http2_server(asks: Asks) -> (h2o_http2::ServerConnection, StreamKey, RequestHead) {
    let now = any_moment();
    let mut head = RequestHead::default();
    let mut server = h2o_http2::ServerConnection::new(Arc::default(), None, now);
    let (text, is_end) = asks.http2();
    let framing = Framing {
        ends_apart: false,
        has_no_end: !is_end,
        piece: 1,
    };
    let bytes = http2_messages::write(text.as_bytes(), framing);
    let step = server
        .receive(&bytes, &mut head, now, &mut Vec::new())
        .expect("the server accepts the request");
    let Received::Request { stream, .. } = step.received else {
        panic!("the server read no request: {:?}", step.received);
    };
    (server, stream, head)
}

impl Request<'_> {
    pub(super) fn exchange(&self) -> Exchange {
        let mut exchange = self
            .proxied
            .exchange(&self.request)
            .expect("the request is for the proxied path");
        if self.request.asks_for_tunnel() {
            exchange.body = RequestBody::Stream(Rc::new(BodyPipe::default()));
        }
        exchange
    }

    /// Sends the client what the proxy makes of the backend's response, and checks it.
    pub(super) fn hand_on(&self, read: &Read) {
        let sections = read.interims.iter().map(|(_, fields)| fields);
        let mut sections = sections.chain(read.head.iter().map(|head| &head.fields));
        if sections.any(|fields| fields.iter().any(|(name, _)| name == "close")) {
            // `close` is an option of `connection` and must not be a field (RFC 9110 §9.6), so such responses are not checked.
            return;
        }
        let mut exchange = self.exchange();
        for (status, fields) in &read.interims {
            let status = std::str::from_utf8(status).expect("the text consists of digits");
            let status = status.parse().ok().and_then(StatusCode::new);
            let status = status.expect("the digits came from a status");
            // The proxy did not send `expect`, so it does not forward a 100 (Continue).
            if status != StatusCode::CONTINUE {
                fuzzing::proxied_informational(&mut exchange, status, &headers(fields));
            }
        }
        let Some(head) = &read.head else {
            return;
        };
        let reply = Reply {
            status: head.status,
            reason: head.reason.clone().map(Into::into),
            headers: headers(&head.fields),
            length: head.length,
            body: Body::Empty,
            backend: 0,
            closes: head.closes,
            is_chunked: false,
            is_tunnel: head.is_tunnel,
            protocol: self.options.backend(),
        };
        let outcome = fuzzing::proxied_response(&mut exchange, &self.proxied.backend, reply);
        let Outcome::Done(response) = outcome else {
            panic!("the proxy answers with a response");
        };
        if response.status == StatusCode::BAD_GATEWAY && head.status != response.status {
            // The response is successful, but does not accept the protocol that was asked for, so the client gets 502.
            assert!(!head.is_tunnel && self.client == Protocol::Http2);
            assert!(self.options.asks().is_upgrade());
            assert!(exchange.errors.contains("did not switch protocols"));
            return;
        }
        let handed = Handed {
            asked: self,
            read,
            head,
        };
        match self.client {
            Protocol::Http1 => handed.by_http1(&exchange, response),
            Protocol::Http2 | Protocol::Http3 => handed.by_http2(&exchange, response),
            Protocol::Fastcgi => unreachable!("no client speaks FastCGI"),
        }
    }
}
