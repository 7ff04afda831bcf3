//! Requests that the proxy forwards: the backend understands what the client's request means.

mod http1;
mod http2;
mod meant;
mod options;

use std::rc::Rc;

use bytes::Bytes;
use h2o_exchange::{BodyPipe, Exchange, RequestBody};
use h2o_handlers::fuzzing;
use h2o_http::{BodyLength, Method, RequestHead, authority};
use h2o_http1::Settings;
use h2o_upstream::Protocol;

use crate::http2_messages::{self, Incoming};
use crate::proxied::Proxied;
use crate::server::{Driven, Event};
use options::Options;

/// The input is three bytes of [`Options`], then what a client sends: bytes over HTTP/1, or text from which [`http2_messages::write`] makes
/// frames. Each accepted request is sent to a backend over HTTP/1 and over HTTP/2, and read there by other code.
///
/// # Panics
/// If an invariant does not hold.
pub fn proxy_requests(input: &[u8]) {
    let Some((&options, bytes)) = input.split_first_chunk() else {
        return;
    };
    let options = Options(options);
    let proxied = options.proxied();
    let requests = if options.is_http2() {
        http2_messages::read(&http2_messages::write(bytes, options.framing()))
    } else {
        over_http1(bytes)
    };
    for request in requests {
        for protocol in [Protocol::Http1, Protocol::Http2] {
            forward(&proxied, options, &request, protocol);
        }
    }
}

/// The requests of an HTTP/1 connection, as the server role reads them.
fn over_http1(bytes: &[u8]) -> Vec<Incoming> {
    let mut driven = Driven::new(Settings {
        limit_request_body: 100_000,
        ..Settings::default()
    });
    driven.receive(bytes);
    let mut heads = std::mem::take(&mut driven.heads).into_iter();
    let mut requests: Vec<Incoming> = Vec::new();
    for event in driven.events {
        if matches!(event, Event::Request(_)) {
            requests.push(Incoming {
                head: heads.next().expect("each request has a head"),
                ..Incoming::default()
            });
        }
        let Some(request) = requests.last_mut() else {
            return Vec::new();
        };
        match event {
            Event::Data(data) => request.content = data,
            Event::BodyEnd | Event::Kept | Event::Closed => request.is_whole = true,
            Event::Request(_) | Event::Http2 | Event::Refused(_) => {}
        }
    }
    requests
}

/// A request that is sent to the backend.
struct Outgoing<'a> {
    proxied: &'a Proxied,
    options: Options,
    incoming: &'a Incoming,
    /// The client's request; a missing authority has been replaced.
    request: RequestHead,
    protocol: Protocol,
    head: RequestHead,
    forwards_expectation: bool,
    holds_content: bool,
    /// Whether all of the content is known when the request is sent.
    is_complete: bool,
}

fn forward(proxied: &Proxied, options: Options, incoming: &Incoming, protocol: Protocol) {
    let Some(mut exchange) = proxied.exchange(&incoming.head) else {
        return;
    };
    let Some(is_complete) = give_content(&mut exchange, options, incoming) else {
        return;
    };
    exchange.is_early = options.is_early();
    let forwards_expectation = options.forwards_expectations()
        && !incoming.head.expect().is_empty()
        && !incoming.head.asks_for_tunnel()
        && matches!(exchange.body, RequestBody::Stream(_));
    let head = fuzzing::proxied_request(&mut exchange, &proxied.backend, protocol);
    let request = exchange.request;
    let mut head = match head {
        Ok(head) => head,
        Err(status) => {
            let is_plain = !matches!(request.method, Method::Connect | Method::ConnectUdp)
                && request.upgrade().is_empty();
            let is_host_wrong =
                options.preserves_host() && !authority::is_valid(request.authority());
            assert!(!is_plain || is_host_wrong, "{}", status.as_u16());
            return;
        }
    };
    let asks_for_tunnel = head.body == BodyLength::Tunnel;
    if asks_for_tunnel && protocol == Protocol::Http2 {
        // The proxy sends upgrades to protocols that exist over HTTP/1 only by HTTP/1.
        let token = request.upgrade();
        if !token.is_empty() && !token.eq_ignore_ascii_case(b"connect-udp") {
            return;
        }
    }
    let is_complete = is_complete && !forwards_expectation;
    if is_complete && head.body == BodyLength::Unknown {
        head.body = BodyLength::Known(incoming.content.len() as u64);
    }
    let holds_content = options.expects_continue()
        && matches!(head.body, BodyLength::Unknown | BodyLength::Known(1..));
    let outgoing = Outgoing {
        proxied,
        options,
        incoming,
        request,
        protocol,
        head,
        forwards_expectation,
        holds_content,
        is_complete,
    };
    match protocol {
        Protocol::Http1 => outgoing.over_http1(),
        Protocol::Http2 | Protocol::Http3 => outgoing.over_http2(),
        Protocol::Fastcgi => unreachable!("no fuzz target sends requests by FastCGI"),
    }
}

/// Puts the content into the exchange as the server would. Returns whether it is complete when the request is sent; `None` if no handler
/// would run.
fn give_content(exchange: &mut Exchange, options: Options, incoming: &Incoming) -> Option<bool> {
    let content = Bytes::copy_from_slice(&incoming.content);
    exchange.body = match incoming.head.body {
        _ if incoming.head.asks_for_tunnel() => RequestBody::Stream(Rc::new(BodyPipe::default())),
        BodyLength::None | BodyLength::Tunnel => RequestBody::None,
        _ if options.collects() && !incoming.is_whole => return None,
        _ if options.collects() => RequestBody::Bytes(content),
        BodyLength::Known(0) if incoming.is_whole => RequestBody::Bytes(content),
        BodyLength::Known(_) | BodyLength::Unknown => {
            RequestBody::Stream(Rc::new(BodyPipe::default()))
        }
    };
    let is_stream = matches!(exchange.body, RequestBody::Stream(_));
    Some(incoming.is_whole && (!is_stream || options.is_at_once()))
}
