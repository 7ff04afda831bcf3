//! Tests of the server's QPACK table: sections that wait for insertions, acknowledgements, cancellations.

use h2o_http3::{LocalStream, Settings, StreamId};
use h2o_testkit::http3::{Frame, instruction, section_prefix};

use crate::kit::server::{Conversation, outcome};
use crate::kit::{DECODER, ENCODER, GET, POST, assert_said, data, headers};

const CAPACITY: usize = 16_384;

/// A HEADERS frame for `GET /` with a reference to the entry `entry` of the dynamic table.
fn refers_to(entry: usize) -> Vec<u8> {
    refers(b"\xd1\xd7\xc1", entry)
}

fn refers(begin: &[u8], entry: usize) -> Vec<u8> {
    let prefix = section_prefix(CAPACITY, entry + 1, entry + 1);
    Frame::headers([&prefix[..], begin, &[0x80]].concat()).bytes()
}

fn insertions(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = vec![2];
    bytes.extend(instruction::capacity(4096));
    for (name, value) in fields {
        bytes.extend(instruction::insert(name.as_bytes(), value.as_bytes()));
    }
    bytes
}

#[test]
fn a_section_waits_for_its_entries() {
    let mut talk = Conversation::new();
    talk.ends(0, refers_to(0));
    talk.expect("the table entry has not arrived", &["blocked"]);
    talk.ends(4, headers(GET));
    talk.expect(
        "other streams are not held up",
        &["4 GET https://a.example/ END"],
    );
    talk.sends(ENCODER, insertions(&[("x-a", "1")]));
    talk.expect(
        "the table entry arrives",
        &["0 unblocked", "0 GET https:/// x-a=1 END"],
    );
    let waited = |id| {
        talk.connection
            .find(StreamId::new(id))
            .map(|key| talk.connection.has_waited(key))
    };
    assert_eq!([waited(0), waited(4)], [Some(true), Some(false)]);
    let first = talk
        .connection
        .find(StreamId::new(0))
        .expect("stream 0 is open");
    assert_eq!(
        talk.connection.bytes_taken(first),
        refers_to(0).len() as u64
    );
    assert_eq!(talk.pending(LocalStream::QpackDecoder), [0x01, 0x80]);
}

#[test]
fn what_follows_a_section_that_waits_waits_with_it() {
    let mut talk = Conversation::new();
    let post = refers(b"\xd4\xd7\xc1", 0);
    talk.ends(0, [&post[..], &data(b"hello")].concat());
    talk.ends(4, [headers(POST), data(b"a"), refers(b"", 1)].concat());
    let want = [
        "blocked",
        "4 POST https://a.example/",
        "4 data a",
        "blocked",
    ];
    talk.expect("trailers wait for table entries, too", &want);
    talk.sends(ENCODER, insertions(&[("x-a", "1")]));
    let want = ["0 unblocked", "0 POST https:/// x-a=1", "0 data hello END"];
    talk.expect("head, content and trailers are reported in order", &want);
    talk.sends(ENCODER, instruction::insert(b"x-b", b"2"));
    talk.expect(
        "head, content and trailers are reported in order",
        &["4 unblocked", "4 trailers x-b=2"],
    );
}

#[test]
fn sections_are_read_however_they_are_cut() {
    let begin = || {
        let mut talk = Conversation::new();
        talk.sends(ENCODER, insertions(&[("x-a", "1"), ("x-b", "2")]));
        talk
    };
    let input = [refers(b"\xd4\xd7\xc1", 0), data(b"a"), refers(b"", 1)].concat();
    let want = ["0 POST https:/// x-a=1", "0 data a", "0 trailers x-b=2"];
    assert_said(&outcome(begin, 0, &input, true), &want, "both sections");
    let instructions = insertions(&[("x-a", "1"), ("x-b", "2")]);
    let begin = || {
        let mut talk = Conversation::new();
        talk.ends(0, refers_to(1));
        talk
    };
    let want = ["0 unblocked", "0 GET https:/// x-b=2 END"];
    assert_said(
        &outcome(begin, ENCODER, &instructions, false),
        &want,
        "the instructions",
    );
}

#[test]
fn a_section_that_waits_is_dropped_with_its_stream() {
    let reset = |talk: &mut Conversation| {
        talk.resets(0, 0x10c);
    };
    let stop = |talk: &mut Conversation| {
        talk.stops(0, 0x10c);
    };
    for (why, gives_up) in [
        ("RESET_STREAM", &reset as &dyn Fn(&mut _)),
        ("STOP_SENDING", &stop),
    ] {
        let mut talk = Conversation::new();
        talk.ends(0, refers_to(0));
        talk.events.clear();
        gives_up(&mut talk);
        talk.events.clear();
        assert_eq!(
            talk.pending(LocalStream::QpackDecoder),
            [0x40],
            "{why}: the server sends a Stream Cancellation"
        );
        talk.sends(ENCODER, insertions(&[("x-a", "1")]));
        // The engine reports the stream as unblocked, so that the driver passes on the bytes that it has kept for the stream.
        talk.expect(why, &["0 unblocked"]);
        assert!(!talk.connection.has_streams());
        assert_eq!(talk.connection.poll_unblocked(), None);
    }
}

#[test]
fn as_many_streams_wait_as_may_be_open_and_none_without_a_table() {
    let mut talk = Conversation::with(Settings {
        max_streams: 3,
        ..Settings::default()
    });
    for id in [0, 4, 8] {
        talk.ends(id, refers_to(0));
    }
    talk.expect("as many streams as may be open", &["blocked"; 3]);
    talk.ends(12, refers_to(0));
    let want = [
        "rejected H3_REQUEST_REJECTED",
        "STOP_SENDING 12 H3_REQUEST_REJECTED",
        "RESET_STREAM 12 H3_REQUEST_REJECTED",
    ];
    talk.expect(
        "one stream more than may be open, which a transport would refuse",
        &want,
    );
    let mut talk = Conversation::with(Settings {
        qpack_decoder_capacity: 0,
        ..Settings::default()
    });
    talk.ends(0, refers_to(0));
    talk.expect(
        "a field section that refers to a table of no capacity",
        &["close QPACK_DECOMPRESSION_FAILED"],
    );
    let mut talk = Conversation::with(Settings {
        qpack_decoder_capacity: 0,
        ..Settings::default()
    });
    talk.sends(ENCODER, insertions(&[]));
    talk.expect(
        "an insertion into a table of no capacity",
        &["close QPACK_ENCODER_STREAM_ERROR"],
    );
}

#[test]
fn streams_that_end_early_are_cancelled() {
    let mut talk = Conversation::new();
    talk.sends(4, headers(POST));
    talk.resets(4, 0x10c);
    assert_eq!(talk.pending(LocalStream::QpackDecoder), [0x44]);
    talk.gets(8);
    talk.release(8);
    assert_eq!(
        talk.pending(LocalStream::QpackDecoder),
        b"",
        "no acknowledgement waits to be sent"
    );
    let mut talk = Conversation::with(Settings {
        qpack_decoder_capacity: 0,
        ..Settings::default()
    });
    talk.sends(4, headers(POST)).resets(4, 0x10c);
    assert_eq!(
        talk.pending(LocalStream::QpackDecoder),
        b"",
        "a decoder without a table acknowledges nothing"
    );
}

#[test]
fn wrong_instructions_and_acknowledgements_end_the_connection() {
    let cases: &[(u64, &str, Vec<u8>, &str)] = &[
        (
            ENCODER,
            "a capacity above the server's maximum",
            [vec![2], instruction::capacity(16_385)].concat(),
            "close QPACK_ENCODER_STREAM_ERROR",
        ),
        (
            ENCODER,
            "a duplicate of an entry that does not exist",
            [vec![2], instruction::duplicate(0)].concat(),
            "close QPACK_ENCODER_STREAM_ERROR",
        ),
        (
            DECODER,
            "an acknowledgement of a section that was not sent",
            [vec![3], instruction::acknowledge(0)].concat(),
            "close QPACK_DECODER_STREAM_ERROR",
        ),
        (
            DECODER,
            "an acknowledgement of an insertion that was not made",
            [vec![3], instruction::increment(1)].concat(),
            "close QPACK_DECODER_STREAM_ERROR",
        ),
    ];
    for (stream, why, input, want) in cases {
        assert_said(
            &outcome(Conversation::new, *stream, input, false),
            &[want],
            why,
        );
    }
    let input = [vec![3], instruction::cancel(40)].concat();
    assert_said(
        &outcome(Conversation::new, DECODER, &input, false),
        &[],
        "a cancellation",
    );
}

#[test]
fn requests_that_are_alike_are_acknowledged_each() {
    let mut talk = Conversation::new();
    talk.sends(ENCODER, insertions(&[("x-a", "1")]));
    talk.pending(LocalStream::QpackDecoder);
    for round in 0..6_u8 {
        let id = 4 * u64::from(round);
        talk.ends(id, refers_to(0));
        talk.expect(
            "the same section on another stream",
            &[&format!("{id} GET https:/// x-a=1 END")],
        );
        assert_eq!(
            talk.pending(LocalStream::QpackDecoder),
            [0x80 | (4 * round)]
        );
        talk.is_done_with(id);
    }
    // Once the entry is evicted, the engine must not answer the section with the head that it remembers for these bytes.
    let mut bytes = instruction::capacity(0);
    bytes.extend(instruction::capacity(4096));
    bytes.extend(instruction::insert(b"x-b", b"2"));
    talk.sends(ENCODER, bytes);
    talk.ends(100, refers_to(0));
    talk.expect(
        "the section refers to an evicted entry",
        &["close QPACK_DECOMPRESSION_FAILED"],
    );
}
