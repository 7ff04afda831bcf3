//! Cost of QUIC: requests of 60 bytes and responses of 1 KB over one connection, alone and 100 at a time. Both ends and their
//! acknowledgements are counted. The client is `quinn-proto`'s own, whose share of the cost does not change.

#![expect(
    clippy::disallowed_methods,
    reason = "the virtual time of tests begins at the present instant"
)]

#[path = "../../../bench/micro/kit.rs"]
mod bench;

#[allow(
    dead_code,
    reason = "the tests use more of this module than the benchmark"
)]
#[path = "../tests/quic/kit/mod.rs"]
mod kit;

use h2o_quic::{Event, Read, StreamId, Write};
use kit::Pair;

const REQUEST: [u8; 60] = [b'q'; 60];
const RESPONSE: [u8; 1024] = [b'r'; 1024];

fn main() {
    let bench = bench::Bench::from_arguments();
    for (name, title, streams) in [
        ("turn-1x1", "QUIC: a request and 1 KB, both ends", 1),
        (
            "turn-1x100",
            "QUIC: 100 requests and 1 KB each at a time, both ends",
            100,
        ),
    ] {
        bench.case(name, title, || {
            let mut pair = Pair::new();
            pair.connect();
            pair.run(|_, _| {});
            move || exchange(&mut pair, streams)
        });
    }
}

fn exchange(pair: &mut Pair, streams: usize) {
    let asked: Vec<_> = (0..streams)
        .map(|_| {
            let stream = pair.client().streams().open(quinn_proto::Dir::Bi);
            let stream =
                stream.expect("the server allows another stream, as it has answered all others");
            pair.client_write(stream, &REQUEST, true);
            stream
        })
        .collect();
    pair.run(|pair, event| {
        if let Event::StreamOpened(stream) | Event::Readable(stream) = event {
            answer(pair, stream);
        }
    });
    pair.seen.clear();
    for stream in asked {
        let (response, is_ended) = pair.client_read(stream);
        assert!(is_ended && response.len() == RESPONSE.len());
    }
    // The client announces that it has read the responses, and the server allows it to open further streams.
    pair.run(|_, _| {});
    pair.seen.clear();
}

fn answer(pair: &mut Pair, stream: StreamId) {
    let connection = pair.server();
    loop {
        match connection.read(stream, usize::MAX) {
            Read::Data(_) => {}
            Read::Last(_) | Read::End => break,
            Read::Blocked | Read::Reset(_) | Read::Unknown => return,
        }
    }
    let written = connection.write_copy(stream, &RESPONSE);
    assert_eq!(written, Write::Taken(RESPONSE.len()));
    assert!(connection.finish(stream));
}
