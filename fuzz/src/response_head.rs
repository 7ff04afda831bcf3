//! The client role of HTTP/1 with any bytes from a server.

use std::sync::Arc;

use h2o_http::{BodyLength, ClientResponse, Headers, Method, is_token};
use h2o_http1::{ClientConnection, ClientReceived, ClientRequest, EndedPart, UpstreamError};

use crate::server::fields;
use crate::{cuts, pieces};

/// Responses are read the same however the bytes are cut, and only complete ones are reported as complete.
///
/// # Panics
/// If an invariant does not hold.
pub fn response_head(input: &[u8]) {
    let asks = [
        (Method::Get, None),
        (Method::Head, None),
        (Method::Connect, None),
        (Method::Get, Some(&b"websocket"[..])),
    ];
    for (method, upgrade) in &asks {
        let whole = read([input].into_iter(), method, *upgrade);
        for cuts in cuts(input) {
            let parts = read(pieces(input, &cuts), method, *upgrade);
            assert_eq!(parts, whole, "input cut at {cuts:?}");
        }
    }
}

/// The engine's events, in a form that does not depend on how the input was cut.
#[derive(Debug, PartialEq)]
enum Event {
    Head(u16, Vec<u8>, Option<u64>, Vec<(String, Vec<u8>)>),
    Data(Vec<u8>),
    BodyEnd,
    /// The server has broken the protocol; which of two errors is found first may depend on the cuts.
    Broken,
}

fn read<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    method: &Method,
    upgrade: Option<&[u8]>,
) -> (Vec<Event>, Result<EndedPart, UpstreamError>, bool) {
    let mut client = ClientConnection::new(Arc::default());
    let request = ClientRequest {
        method,
        target: b"/",
        host: b"a.example",
        headers: &Headers::new(),
        body: BodyLength::None,
        keep_alive: true,
        upgrade,
        expects_continue: false,
    };
    client.send_request(&request, &mut Vec::new());
    let mut left = Vec::new();
    let mut events = Vec::new();
    for piece in pieces {
        left.extend_from_slice(piece);
        while !client.is_response_done() && step(&mut client, &mut left, &mut events) {}
    }
    let is_reusable = client.is_reusable(&left);
    let ended = client.on_closed();
    let is_cut_off = ended.is_err() || events.contains(&Event::Broken);
    assert!(
        !(is_reusable && is_cut_off),
        "an incomplete response left the connection reusable"
    );
    (events, ended, is_reusable)
}

fn step(client: &mut ClientConnection, left: &mut Vec<u8>, events: &mut Vec<Event>) -> bool {
    let mut head = ClientResponse::new();
    let (taken, event) = match client.receive(left, &mut head) {
        Ok(ClientReceived::NeedMore { taken }) => (taken, None),
        Ok(ClientReceived::Interim { taken } | ClientReceived::Response { taken }) => {
            check_head(&head);
            let status = head.status.as_u16();
            let event = Event::Head(
                status,
                head.reason().to_vec(),
                head.length,
                fields(&head.headers),
            );
            (taken, Some(event))
        }
        Ok(ClientReceived::Data { taken, data }) => {
            assert!(data.start < data.end && data.end <= taken);
            (taken, Some(Event::Data(left[data].to_vec())))
        }
        Ok(ClientReceived::BodyEnd { taken }) => (taken, Some(Event::BodyEnd)),
        Err(_) => (0, Some(Event::Broken)),
    };
    assert!(taken <= left.len());
    left.drain(..taken);
    let progress = taken > 0 || event.is_some();
    match (event, events.last_mut()) {
        (Some(Event::Data(more)), Some(Event::Data(data))) => data.extend(more),
        (Some(event), _) => events.push(event),
        (None, _) => {}
    }
    progress
}

/// Invariants of every response head that the engine accepts.
fn check_head(head: &ClientResponse) {
    let is_text = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
    assert!(head.reason().iter().all(is_text));
    assert!(head.headers.len() <= 100);
    for field in head.headers.iter() {
        assert!(is_token(field.name.as_str().as_bytes()));
        assert!(field.value.iter().all(is_text));
    }
}
