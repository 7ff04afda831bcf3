//! Tests of responses: heads, content, trailers, interim responses, and the memory of the latest head.

use h2o_http::StatusCode;
use h2o_http3::LocalStream;
use h2o_testkit::http3::{Frame, instruction};

use crate::kit::server::{Conversation, fields};
use crate::kit::{CONTROL, DECODER, GET, POST, control, data, headers};

#[test]
fn heads_have_their_fields_in_the_order_of_h2o() {
    let mut talk = Conversation::new();
    talk.gets(0);
    let given = [
        ("content-type", "text/plain"),
        ("connection", "close"),
        ("x-a", "b"),
    ];
    let said = talk.responds(0, 200, &given, Some(5), false);
    let want = "HEADERS :status=200 server=h2o content-length=5 content-type=text/plain x-a=b";
    assert_eq!(
        said,
        [want],
        "connection-specific fields of HTTP/1 are left out"
    );
    for (id, status) in [(4, 418), (8, 103), (12, 999), (16, 304), (20, 503)] {
        talk.gets(id);
        let said = talk.responds(id, status, &[], None, true);
        assert_eq!(said, [format!("HEADERS :status={status} server=h2o")]);
    }
}

#[test]
fn values_with_line_ends_are_mended() {
    let mut talk = Conversation::new();
    talk.gets(0);
    let said = talk.responds(0, 200, &[("x", "a\r\nb: c")], None, true);
    assert_eq!(said, ["HEADERS :status=200 server=h2o x=a  b: c"]);
}

#[test]
fn content_is_written_in_frames_and_ends_with_the_stream() {
    let mut talk = Conversation::new();
    talk.gets(0);
    talk.responds(0, 200, &[], None, false);
    let (key, mut out) = (talk.key(0), Vec::new());
    talk.connection.send_data(key, b"hello", false, &mut out);
    talk.connection.send_data(key, b"", false, &mut out);
    assert!(talk.connection.begin_data(key, 7, true, &mut out));
    out.extend_from_slice(b", world");
    assert_eq!(talk.read(0, &out), ["DATA hello", "DATA , world"]);
    let streams: Vec<_> = talk.connection.streams().collect();
    assert_eq!((streams[0].sent, streams[0].id.get()), (12, 0));
    assert_eq!(streams.len(), 1);
}

#[test]
fn large_frames_have_long_lengths() {
    let mut talk = Conversation::new();
    talk.gets(0);
    let key = talk.key(0);
    for len in [63, 64, 16_383, 16_384, 1 << 30] {
        let mut out = Vec::new();
        assert!(talk.connection.begin_data(key, len, false, &mut out));
        out.resize(out.len() + 1, 0);
        let header = out.len() - 1;
        assert!(
            Frame::parse(&out[..header]).is_none(),
            "the header of a DATA frame comes before its {len} bytes"
        );
    }
    let long = "v".repeat(20_000);
    let said = talk.responds(0, 200, &[("x", &long)], None, true);
    assert_eq!(said, [format!("HEADERS :status=200 server=h2o x={long}")]);
}

#[test]
fn trailers_follow_the_content() {
    let mut talk = Conversation::new();
    talk.gets(0);
    talk.responds(0, 200, &[], None, false);
    let (key, mut out) = (talk.key(0), Vec::new());
    talk.connection.send_data(key, b"hello", false, &mut out);
    let trailers = fields(&[("server-timing", "total;dur=1")]);
    talk.connection.finish(key, Some(&trailers), &mut out);
    let said = talk.read(0, &out);
    assert_eq!(said, ["DATA hello", "HEADERS server-timing=total;dur=1"]);
    assert!(matches!(talk.state(0), h2o_http3::StreamState::Closed));
}

#[test]
fn interim_responses_come_before_the_final_one() {
    let mut talk = Conversation::new();
    talk.gets(0);
    let (key, mut out) = (talk.key(0), Vec::new());
    let links = fields(&[("link", "</a.css>; rel=preload")]);
    let hints = StatusCode::new(103).expect("the number is a valid status code");
    assert!(talk.connection.inform(key, hints, &links, &mut out) > 0);
    assert_eq!(
        talk.read(0, &out),
        ["HEADERS :status=103 link=</a.css>; rel=preload"]
    );
    talk.responds(0, 200, &[], None, false);
    out.clear();
    assert_eq!(talk.connection.inform(key, hints, &links, &mut out), 0);
    assert_eq!(out, b"", "no interim response is sent after the final head");
}

#[test]
fn a_response_before_the_request_is_complete_stops_the_rest() {
    let mut talk = Conversation::new();
    talk.sends(0, headers(POST));
    talk.responds(0, 413, &[], Some(0), true);
    talk.release(0);
    let want = ["0 POST https://a.example/", "STOP_SENDING 0 H3_NO_ERROR"];
    talk.expect(
        "RFC 9114 §4.1: the server stops the rest of the request",
        &want,
    );
    talk.sends(0, data(b"more"));
    talk.expect("further bytes of the request are dropped", &[]);
}

/// A connection whose client allows a QPACK table.
fn with_table() -> Conversation {
    let mut talk = Conversation::unopened(h2o_http3::Settings::default());
    talk.sends(CONTROL, control(&[(1, 16_384), (7, 0)]));
    talk.sends(DECODER, [3]);
    talk.pending(LocalStream::Control);
    talk
}

#[test]
fn heads_that_come_again_shrink_and_are_the_same() {
    let mut talk = with_table();
    let given = [
        ("content-type", "text/x-own"),
        ("x-a", "a value of some length"),
    ];
    let want = "HEADERS :status=200 server=h2o content-length=5 content-type=text/x-own \
                x-a=a value of some length";
    let mut inserted = 0;
    let mut sizes = Vec::new();
    for round in 0..20 {
        let id = 4 * round;
        talk.gets(id);
        let headers = fields(&given);
        let head = h2o_http::ResponseHead {
            status: StatusCode::OK,
            reason: None,
            headers: &headers,
            length: Some(5),
            server: Some(b"h2o"),
        };
        let (key, mut out) = (talk.key(id), Vec::new());
        let len = talk.connection.respond(key, &head, true, &mut out);
        sizes.push(len);
        assert_eq!(talk.read(id, &out), [want], "response {round}");
        // The client acknowledges the insertions that it has received.
        let new = talk.decoder.inserted() - inserted;
        inserted += new;
        if new > 0 {
            talk.sends(DECODER, instruction::increment(new));
        }
        if len < sizes[0] {
            let stream = usize::try_from(id).expect("the stream id fits into a usize");
            talk.sends(DECODER, instruction::acknowledge(stream));
            talk.decoder.acknowledged(id);
        }
        talk.release(id);
    }
    assert_eq!(inserted, 3, "content-length is not inserted into the table");
    assert!(sizes[19] < 12 && sizes[0] > 40, "{sizes:?}");
    assert_eq!(
        sizes[3..].iter().max(),
        sizes[3..].iter().min(),
        "{sizes:?}"
    );
    assert!(
        talk.events.iter().all(|event| !event.starts_with("close")),
        "{:?}",
        talk.events
    );
}

#[test]
fn a_response_is_sent_again_while_its_section_means_the_same() {
    let mut talk = with_table();
    let other = |talk: &mut Conversation, id, name| {
        talk.gets(id);
        talk.responds(id, 200, &[(name, "a value of some length")], None, true);
        let new = talk.decoder.inserted();
        talk.release(id);
        new
    };
    // The table gets the fields, and the client acknowledges them.
    let mut id = 0;
    for _ in 0..4 {
        let before = talk.decoder.inserted();
        let new = other(&mut talk, id, "x-a") - before;
        if new > 0 {
            talk.sends(DECODER, instruction::increment(new));
        }
        id += 4;
    }
    let headers = fields(&[("x-a", "a value of some length")]);
    let head = h2o_http::ResponseHead {
        status: StatusCode::OK,
        reason: None,
        headers: &headers,
        length: None,
        server: Some(b"h2o"),
    };
    let want = ["HEADERS :status=200 server=h2o x-a=a value of some length"];
    talk.gets(id);
    let (key, mut out) = (talk.key(id), Vec::new());
    assert!(talk.connection.respond(key, &head, true, &mut out) < 12);
    let section = talk.connection.section_of(&head).expect("is remembered");
    assert!(
        !talk.connection.respond_again(key, &section, 0),
        "the stream has its response"
    );
    for _ in 0..5 {
        id += 4;
        talk.gets(id);
        assert!((talk.connection).respond_again(talk.key(id), &section, 7));
        assert!(matches!(talk.state(id), h2o_http3::StreamState::Closed));
        let sent = talk.connection.streams().find(|one| one.id.get() == id);
        assert_eq!(sent.map(|stream| stream.sent), Some(7));
        assert_eq!(talk.read(id, &out), want);
        // The section refers to the table, so the client acknowledges it on each stream.
        let stream = usize::try_from(id).expect("the stream id fits into a usize");
        talk.sends(DECODER, instruction::acknowledge(stream));
        talk.decoder.acknowledged(id);
        talk.release(id);
    }
    id += 4;
    other(&mut talk, id, "x-b");
    id += 4;
    other(&mut talk, id, "x-b");
    id += 4;
    talk.gets(id);
    assert!(
        !(talk.connection).respond_again(talk.key(id), &section, 0),
        "the table has another field since then"
    );
    assert!(
        talk.connection.section_of(&head).is_none(),
        "another head is the latest one"
    );
    assert!(
        talk.events.iter().all(|event| !event.starts_with("close")),
        "{:?}",
        talk.events
    );
}

#[test]
fn the_latest_head_is_not_taken_for_another() {
    let mut talk = with_table();
    type Head<'a> = (u16, &'a [(&'a str, &'a str)], Option<u64>);
    let heads: [Head<'_>; 5] = [
        (200, &[("x-a", "1")], Some(5)),
        (404, &[("x-a", "1")], Some(5)),
        (200, &[("x-a", "2")], Some(5)),
        (200, &[("x-a", "1")], Some(6)),
        (200, &[("x-b", "1")], None),
    ];
    let mut id = 0;
    for _ in 0..4 {
        for (status, given, length) in heads {
            for _ in 0..2 {
                talk.gets(id);
                let length_said =
                    length.map_or(String::new(), |len| format!(" content-length={len}"));
                let (name, value) = given[0];
                let want =
                    format!("HEADERS :status={status} server=h2o{length_said} {name}={value}");
                assert_eq!(talk.responds(id, status, given, length, true), [want]);
                talk.release(id);
                id += 4;
            }
        }
        talk.connection.shrink();
    }
}

#[test]
fn requests_that_are_alike_are_read_alike() {
    let mut talk = Conversation::new();
    for round in 0..12_u64 {
        // From the third on, request heads that differ only in their paths are copied from the remembered one.
        let path = format!("/part/{}", round / 2);
        let fields = [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "a.example"),
            (":path", &path),
            ("accept", "*/*"),
        ];
        let id = 4 * round;
        talk.ends(id, headers(&fields));
        talk.expect(
            "each path is read twice",
            &[&format!("{id} GET https://a.example{path} accept=*/* END")],
        );
        talk.is_done_with(id);
    }
    talk.ends(100, headers(GET));
    assert_eq!(
        talk.events.last().map(String::as_str),
        Some("100 GET https://a.example/ END")
    );
}
