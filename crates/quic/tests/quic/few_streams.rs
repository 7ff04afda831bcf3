//! Tests that clients may open all streams that the server announces, although quinn-proto begins a connection with tables for few
//! streams. No timer expires in these tests, so every packet that arrives was sent only once.

use h2o_quic::{Event, Read, StreamId};
use quinn_proto::Dir;

use crate::kit::Pair;

/// How many bidirectional and unidirectional streams the server announces: the defaults of `TransportSettings`.
const BIDI: usize = 100;
const UNI: usize = 10;

/// Opens streams of this direction at the client until the server allows no more, and writes a request on each. Returns how many were
/// opened.
fn open_all(pair: &mut Pair, dir: Dir) -> usize {
    let mut opened = 0;
    while let Some(id) = pair.client().streams().open(dir) {
        pair.client_write(id, b"question", true);
        opened += 1;
    }
    opened
}

/// Lets the server read the request on each new stream of both directions, and end its side of the bidirectional ones. Returns the
/// number of requests.
fn answer(pair: &mut Pair) -> usize {
    let mut answered = 0;
    pair.run(|pair, event| {
        let Event::StreamOpened(stream) = event else {
            return;
        };
        answered += 1;
        let server = pair.server();
        while let Read::Data(data) | Read::Last(data) = server.read(stream, usize::MAX) {
            assert_eq!(&data[..], b"question");
        }
        if stream.number() % 4 == 0 {
            assert!(server.finish(stream));
        }
    });
    assert_eq!(pair.client_lost, "");
    answered
}

fn ask(pair: &mut Pair) {
    let id = pair.client_open();
    pair.client_write(id, b"question", true);
    assert_eq!(answer(pair), 1);
    let _ = pair.client_read(id);
}

#[test]
fn all_streams_that_are_announced_can_be_opened_at_once() {
    let mut pair = Pair::new();
    pair.connect();
    pair.run(|_, _| {});
    assert_eq!(open_all(&mut pair, Dir::Bi), BIDI);
    assert_eq!(open_all(&mut pair, Dir::Uni), UNI);
    assert_eq!(answer(&mut pair), BIDI + UNI);
}

#[test]
fn the_last_stream_announced_can_be_the_first_to_be_used() {
    for dir in [Dir::Bi, Dir::Uni] {
        let mut pair = Pair::new();
        pair.connect();
        pair.run(|_, _| {});
        let mut last = None;
        while let Some(id) = pair.client().streams().open(dir) {
            last = Some(id);
        }
        let last = last.expect("the server allows at least one stream");
        pair.client_write(last, b"question", true);
        let mut opened = Vec::new();
        pair.run(|_, event| {
            if let Event::StreamOpened(stream) = event {
                opened.push(stream);
            }
        });
        let number = quinn_proto::VarInt::from(last).into_inner();
        assert_eq!(opened.last(), Some(&StreamId::new(number)), "{dir:?}");
        assert_eq!(pair.client_lost, "");
    }
}

#[test]
fn a_client_may_always_open_nearly_as_many_as_were_announced() {
    for requests in [1, 3, 4, 5, 6, 12, 25, 130] {
        let mut pair = Pair::new();
        pair.connect();
        for _ in 0..requests {
            ask(&mut pair);
        }
        let more = open_all(&mut pair, Dir::Bi);
        // quinn-proto raises the limit by a MAX_STREAMS frame only when an eighth of the streams is used up.
        assert!(
            more >= BIDI - BIDI / 8,
            "{more} more streams are allowed after {requests} requests"
        );
        assert_eq!(answer(&mut pair), more);
    }
}
