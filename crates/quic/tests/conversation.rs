//! Our server role and the library's own client, in memory.

#![allow(
    clippy::disallowed_methods,
    reason = "the beginning of a virtual clock"
)]

mod kit;

use bytes::Bytes;
use h2o_quic::{Event, Read, StreamId, Write};

use kit::Pair;

#[test]
fn a_request_is_answered_on_its_stream() {
    let mut pair = Pair::new();
    let mut stream = None;
    let mut request = Vec::new();
    pair.connect();
    let id = pair.client_open();
    pair.client_write(id, b"question", true);
    pair.run(|pair, event| {
        let Event::StreamOpened(opened) = event else {
            return;
        };
        stream = Some(opened);
        let server = pair.server();
        loop {
            match server.read(opened, usize::MAX) {
                Read::Data(data) => request.extend_from_slice(&data),
                Read::End => break,
                other => panic!("{other:?}"),
            }
        }
        let mut answer = Bytes::from_static(b"answer");
        assert_eq!(server.write(opened, &mut answer), Write::Taken(6));
        assert!(server.finish(opened));
    });
    assert_eq!(stream, Some(StreamId::new(0)));
    assert_eq!(request, b"question");
    assert_eq!(pair.client_read(id), (b"answer".to_vec(), true));
    assert!(pair.seen.contains(&Event::Connected));
}

#[test]
fn the_handshake_tells_name_and_protocol() {
    let mut pair = Pair::new();
    pair.connect();
    pair.run(|_, _| {});
    let handshake = pair.server().handshake().expect("it is done");
    assert_eq!(handshake.alpn.as_deref(), Some(&b"h3"[..]));
    assert_eq!(handshake.server_name.as_deref(), Some("localhost"));
    assert_eq!(handshake.version, 1);
    assert!(!handshake.is_resumed);
}

#[test]
fn a_closed_connection_is_drained_and_its_index_is_free() {
    let mut pair = Pair::new();
    pair.connect();
    pair.run(|_, _| {});
    let now = pair.now;
    pair.server().close(now, 0x100, b"bye");
    pair.run_to_the_end();
    assert!(pair.seen.ends_with(&[Event::Drained]), "{:?}", pair.seen);
    assert_eq!(pair.endpoint.open_connections(), 0);
    assert!(pair.client_lost.contains("256"), "{}", pair.client_lost);
}
