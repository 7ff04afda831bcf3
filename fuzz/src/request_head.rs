//! The server role of HTTP/1 with any bytes from a client.

use std::sync::Arc;

use h2o_http::{BodyLength, Known, Name, RequestHead};
use h2o_http1::{ClientConnection, ClientRequest, Settings};

use crate::server::{Driven, Event, Summary};
use crate::{cuts, pieces};

/// Requests are read the same however the bytes are cut, and the next server reads the same if they are forwarded.
///
/// # Panics
/// If an invariant does not hold.
pub fn request_head(input: &[u8]) {
    for strict in [false, true] {
        let settings = || Settings {
            strict,
            limit_request_body: 100_000,
            ..Settings::default()
        };
        let mut whole = Driven::new(settings());
        whole.receive(input);
        for cuts in cuts(input) {
            let mut parts = Driven::new(settings());
            pieces(input, &cuts).for_each(|piece| parts.receive(piece));
            assert_eq!(parts.events, whole.events, "input cut at {cuts:?}");
        }
        for head in &whole.heads {
            forward(head);
        }
    }
}

/// Sends the request as the proxy would, and reads it as the next server would. If the two differed, requests could be smuggled.
fn forward(head: &RequestHead) {
    if head.body == BodyLength::Tunnel || head.authority().is_empty() {
        return;
    }
    let mut client = ClientConnection::new(Arc::default());
    let request = ClientRequest {
        method: &head.method,
        target: head.target(),
        host: head.authority(),
        headers: &head.headers,
        body: head.body,
        keep_alive: true,
        upgrade: None,
        expects_continue: false,
    };
    let mut out = Vec::new();
    client.send_request(&request, &mut out);
    // The proxy's own fields may exceed the limit of fields that the request was read with.
    let mut server = Driven::new(Settings {
        strict: true,
        max_fields: 200,
        ..Settings::default()
    });
    server.receive(&out);
    let Some(Event::Request(got)) = server.events.first() else {
        panic!(
            "the server did not read the encoded request: {} {:?}",
            out.escape_ascii(),
            server.events
        );
    };
    let hop = [Known::Connection, Known::KeepAlive].map(|known| Name::Known(known).as_str());
    let end_to_end = |mut summary: Summary| {
        summary
            .fields
            .retain(|(name, _)| !hop.contains(&name.as_str()));
        summary.upgrade.clear();
        summary
    };
    assert_eq!(end_to_end(got.clone()), end_to_end(Summary::of(head)));
    assert_eq!(server.heads.len(), 1, "one request became several");
}
