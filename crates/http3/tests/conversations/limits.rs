//! Tests of the limits of what a client can cost: memory, work, streams.

use h2o_http3::{LocalStream, Settings};
use h2o_testkit::http3::{Frame, encode, instruction, varint};

use crate::kit::server::Conversation;
use crate::kit::{CONTROL, DECODER, ENCODER, GET, POST, control, data, frame, headers};

#[test]
fn an_idle_connection_holds_little() {
    let mut talk = Conversation::new();
    for id in 0..100 {
        talk.gets(4 * id);
    }
    for id in 0..100 {
        talk.responds(4 * id, 200, &[], Some(0), true);
        talk.release(4 * id);
    }
    talk.connection.shrink();
    let retained = talk.connection.retained();
    assert!(retained < 200, "the connection holds {retained} bytes");
    let size = size_of_val(&talk.connection);
    assert!(size < 1250, "the struct of a connection has {size} bytes");
}

#[test]
fn a_request_in_one_piece_allocates_no_more_than_its_slot() {
    let mut talk = Conversation::new();
    talk.gets(0);
    let before = talk.connection.retained();
    for id in 1..100 {
        talk.responds(4 * (id - 1), 200, &[], None, true);
        talk.release(4 * (id - 1));
        talk.gets(4 * id);
    }
    let after = talk.connection.retained();
    assert!(
        after <= before + 1024,
        "the connection held {before} bytes before, {after} after"
    );
}

#[test]
fn memory_is_what_has_come_and_not_what_is_announced() {
    let mut talk = Conversation::new();
    let announced = [varint(1), varint(400_000)].concat();
    for id in 0..100 {
        talk.sends(4 * id, &announced);
    }
    assert!(
        talk.connection.retained() < 32 * 1024,
        "{}",
        talk.connection.retained()
    );
    talk.sends(0, vec![0; 100_000]);
    let retained = talk.connection.retained();
    assert!((100_000..300_000).contains(&retained), "{retained}");
    talk.resets(0, 0x10c);
    assert!(
        talk.connection.retained() < 32 * 1024,
        "the memory of a reset stream is freed"
    );
}

#[test]
fn streams_beyond_the_limit_are_rejected() {
    let mut talk = Conversation::with(Settings {
        max_streams: 2,
        ..Settings::default()
    });
    talk.gets(0).gets(4);
    talk.ends(8, headers(GET));
    let want = [
        "rejected H3_REQUEST_REJECTED",
        "STOP_SENDING 8 H3_REQUEST_REJECTED",
        "RESET_STREAM 8 H3_REQUEST_REJECTED",
    ];
    talk.expect(
        "requests whose handlers still work count towards the limit",
        &want,
    );
    talk.release(0);
    talk.events.clear();
    talk.ends(12, headers(GET));
    talk.expect(
        "after a response another request is allowed",
        &["12 GET https://a.example/ END"],
    );
}

#[test]
fn what_makes_us_work_for_nothing_costs() {
    let head = headers(POST);
    type Case<'a> = (&'a str, u32, &'a dyn Fn(&mut Conversation));
    let cases: &[Case<'_>] = &[
        ("a request", 0, &|talk| {
            talk.ends(0, headers(GET));
        }),
        ("content", 0, &|talk| {
            talk.sends(0, [&head[..], &data(b"a"), &data(b"b")].concat());
        }),
        ("empty DATA", 3, &|talk| {
            talk.sends(0, [&head[..], &data(b""), &data(b""), &data(b"")].concat());
        }),
        ("unknown frames", 2, &|talk| {
            talk.sends(
                0,
                [&frame(0x21, b"x")[..], &frame(0x21, b""), &head].concat(),
            );
        }),
        ("a request that the client resets", 5, &|talk| {
            talk.sends(0, &head).resets(0, 0x10c);
        }),
        ("a response that the client stops", 5, &|talk| {
            talk.gets(0).stops(0, 0x10c);
        }),
        ("a request that the server has to reset", 10, &|talk| {
            talk.sends(0, headers(&[(":method", "GET")]));
        }),
        ("a hundred and one fields", 25, &|talk| {
            let many: Vec<_> = std::iter::repeat_n(("a", ""), 101).collect();
            talk.ends(0, headers(&[GET, &many].concat()));
        }),
        ("PRIORITY_UPDATE", 1, &|talk| {
            talk.sends(CONTROL, Frame::priority_update(0, "u=1").bytes());
        }),
        ("MAX_PUSH_ID", 1, &|talk| {
            talk.sends(CONTROL, Frame::with_id(0x0d, 1).bytes());
        }),
        ("a stream of an unknown type", 1, &|talk| {
            talk.sends(ENCODER, varint(0x21));
        }),
        (
            "a unidirectional stream that the client resets",
            1,
            &|talk| {
                talk.resets(ENCODER, 0x100);
            },
        ),
    ];
    for (why, want, happens) in cases {
        let mut talk = Conversation::new();
        happens(&mut talk);
        assert_eq!(talk.costs, *want, "{why}");
    }
}

#[test]
fn costs_are_reported_in_the_middle_of_a_flood() {
    let mut talk = Conversation::new();
    let flood = frame(0x21, b"").repeat(1000);
    let mut head = h2o_http::RequestHead::default();
    talk.opens(0);
    let step = talk
        .connection
        .receive(h2o_http3::StreamId::new(0), &flood, false, &mut head)
        .expect("the engine accepts the input");
    assert_eq!(step.received, h2o_http3::Received::Charged);
    assert!(step.taken < 200, "{} bytes", step.taken);
    assert!(talk.connection.take_costs() >= 32);
}

#[test]
fn a_client_that_does_not_let_us_acknowledge_is_closed() {
    let mut talk = Conversation::new();
    let table = [
        vec![2],
        instruction::capacity(4096),
        instruction::insert(b"x", b"y"),
    ];
    talk.sends(ENCODER, table.concat());
    let section = [
        &h2o_testkit::http3::section_prefix(16_384, 1, 1)[..],
        b"\xd1\xd7\xc1\x80",
    ];
    let request = Frame::headers(section.concat()).bytes();
    let mut id = 0;
    while talk
        .events
        .last()
        .is_none_or(|event| !event.starts_with("close"))
    {
        talk.ends(id, &request);
        if let Some(key) = talk.keys.remove(&id) {
            talk.connection.release(key);
        }
        id += 4;
        let waiting = talk.connection.pending(LocalStream::QpackDecoder).len();
        assert!(waiting < 17_000, "{waiting} bytes wait to be sent");
    }
    let last = talk.events.last().map(String::as_str);
    assert_eq!(
        last,
        Some("close H3_EXCESSIVE_LOAD the peer's flow control blocks the control streams")
    );
}

#[test]
fn nothing_is_inserted_for_a_client_that_lets_nothing_be_sent() {
    let mut talk = Conversation::unopened(Settings::default());
    talk.sends(CONTROL, control(&[(1, 1 << 20)]))
        .sends(DECODER, [3]);
    for round in 0..4000_u64 {
        let id = 4 * round;
        talk.gets(id);
        let headers = crate::kit::server::fields(&[("x-a", &format!("some value {}", round / 4))]);
        let head = h2o_http::ResponseHead {
            status: h2o_http::StatusCode::OK,
            reason: None,
            headers: &headers,
            length: None,
            server: None,
        };
        let (key, mut out) = (talk.key(id), Vec::new());
        talk.connection.respond(key, &head, true, &mut out);
        talk.release(id);
    }
    let waiting = talk.connection.pending(LocalStream::QpackEncoder).len();
    assert!(waiting < 4200, "{waiting} bytes wait to be sent");
    assert!(talk.connection.retained() < 64 * 1024);
}

#[test]
fn streams_without_a_type_are_few() {
    let mut talk = Conversation::new();
    talk.opens(2 + 4 * 16);
    talk.expect("sixteen streams without a type", &[]);
    talk.opens(2 + 4 * 17);
    talk.expect(
        "a seventeenth stream without a type",
        &["close H3_EXCESSIVE_LOAD the abuse budget is used up"],
    );
}

#[test]
fn fields_and_text_are_limited_as_over_http_2() {
    // A hundred fields are accepted. The limit of their text depends on the length of the section and on the size of the
    // dynamic table.
    let hundred: Vec<_> = std::iter::repeat_n(("a", "b"), 100).collect();
    let mut talk = Conversation::new();
    talk.ends(0, headers(&[GET, &hundred].concat()));
    assert!(talk.events[0].ends_with(" END") && !talk.events[0].contains("TooMany"));
    // A section that refers to one large entry again and again ("QPACK bomb") is refused.
    let mut talk = Conversation::new();
    let table = [
        vec![2],
        instruction::capacity(4096),
        instruction::insert(b"x", &[b'v'; 3000]),
    ];
    talk.sends(ENCODER, table.concat());
    let mut section = h2o_testkit::http3::section_prefix(16_384, 1, 1);
    section.extend_from_slice(b"\xd1\xd7\xc1");
    section.extend([0x80; 50]);
    talk.ends(0, Frame::headers(section).bytes());
    assert!(
        talk.events[0].ends_with("TooManyFields END"),
        "a small section that refers to large table entries many times"
    );
    assert!(talk.head.headers.retained() < 40_000);
    let fields: Vec<(String, String)> = (0..90)
        .map(|n| (format!("x-{n}"), "v".repeat(60)))
        .collect();
    let mut all: Vec<(&str, &str)> = GET.to_vec();
    all.extend(
        fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str())),
    );
    talk.ends(4, Frame::headers(encode(&all)).bytes());
    assert!(
        !talk.events[1].contains("TooMany"),
        "the same size in literal fields is within the limit"
    );
}
