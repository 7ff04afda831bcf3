//! Tests of the client role: what it sends, and how it handles what a server sends.

use h2o_http::{BodyLength, Headers, Known, Method, Name};
use h2o_http1::{
    AwaitedPart, BodyMode, ChunkError, ClientRequest, ClientSettings, EndedPart, FramingError,
    UpstreamError,
};

use crate::kit::client::{Conversation, Event, GET, data, interim, response};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[track_caller]
fn expect_sent(request: &ClientRequest<'_>, want: &str) {
    let mut talk = Conversation::new();
    talk.connection.send_request(request, &mut talk.out);
    assert_eq!(
        talk.out.escape_ascii().to_string(),
        want.as_bytes().escape_ascii().to_string()
    );
}

#[test]
fn request_heads_have_the_fields_of_the_reference_in_its_order() {
    let mut headers = Headers::new();
    headers.push(Known::Host, b"other");
    headers.push(Known::Connection, b"x");
    let spelt = headers.store(b"User-Agentcurl/8");
    headers.push_stored(spelt.prefix(10), spelt.suffix(10));
    headers.push(Known::Upgrade, b"x");
    headers.push(Name::Other("x-a"), b"b");
    let request = ClientRequest {
        headers: &headers,
        ..GET
    };
    let tail = "User-Agent: curl/8\r\nx-a: b\r\n\r\n";
    let start = "GET / HTTP/1.1\r\nhost: a.example\r\n";
    expect_sent(
        &request,
        &format!("{start}connection: keep-alive\r\n{tail}"),
    );
    let closing = ClientRequest {
        keep_alive: false,
        ..request
    };
    expect_sent(&closing, &format!("{start}connection: close\r\n{tail}"));
    let upgrade = ClientRequest {
        upgrade: Some(b"websocket"),
        ..request
    };
    expect_sent(
        &upgrade,
        &format!("{start}connection: upgrade\r\nupgrade: websocket\r\n{tail}"),
    );
    let sized = ClientRequest {
        body: BodyLength::Known(0),
        expects_continue: true,
        ..request
    };
    let framing = "connection: keep-alive\r\nexpect: 100-continue\r\ncontent-length: 0\r\n";
    expect_sent(&sized, &format!("{start}{framing}{tail}"));
    let chunked = ClientRequest {
        body: BodyLength::Unknown,
        ..request
    };
    let framing = "connection: keep-alive\r\ntransfer-encoding: chunked\r\n";
    expect_sent(&chunked, &format!("{start}{framing}{tail}"));
}

#[test]
fn targets_and_values_cannot_split_a_request() {
    let mut headers = Headers::new();
    headers.push(Name::Other("x-a"), b"b\r\nc: d");
    let request = ClientRequest {
        target: b"/a b\r\n\x7f\xff",
        host: b"a\r\nb",
        headers: &headers,
        ..GET
    };
    let mut talk = Conversation::new();
    talk.connection.send_request(&request, &mut talk.out);
    let want = b"GET /a%20b%0D%0A%7F\xff HTTP/1.1\r\nhost: a  b\r\nconnection: keep-alive\r\nx-a: b  c: d\r\n\r\n";
    assert_eq!(
        talk.out.escape_ascii().to_string(),
        want.escape_ascii().to_string()
    );
}

#[test]
fn request_bodies_are_framed() {
    let mut talk = Conversation::new();
    let mode = talk.asks(&ClientRequest {
        body: BodyLength::Unknown,
        ..GET
    });
    assert_eq!(mode, BodyMode::Chunked);
    talk.connection.send_data(b"abc", &mut talk.out);
    talk.connection.finish(None, &mut talk.out);
    assert_eq!(talk.out, b"3\r\nabc\r\n0\r\n\r\n");

    let mut talk = Conversation::new();
    talk.asks(&ClientRequest {
        body: BodyLength::Known(4),
        ..GET
    });
    assert_eq!(talk.connection.begin_data(3, &mut talk.out), 3);
    talk.connection.end_data(&mut talk.out);
    talk.connection.send_data(b"xyz", &mut talk.out);
    talk.connection.finish(None, &mut talk.out);
    assert_eq!(talk.out, b"x");
    talk.server_sends(HELLO);
    assert!(talk.is_reusable());

    let mut talk = Conversation::new();
    talk.asks(&ClientRequest {
        body: BodyLength::Known(4),
        ..GET
    });
    talk.connection.finish(None, &mut talk.out);
    talk.server_sends(HELLO);
    assert!(
        !talk.is_reusable(),
        "the server waits for the rest of the request, so the connection cannot be used again"
    );

    let mut talk = Conversation::new();
    talk.asks(&ClientRequest {
        body: BodyLength::Unknown,
        ..GET
    });
    talk.connection.abort(&mut talk.out);
    assert_eq!(talk.out, b"\r\n1\r\n");
    talk.server_sends(HELLO);
    assert!(!talk.is_reusable());
}

#[test]
fn connections_are_reused_while_both_sides_keep_to_it() {
    let mut talk = Conversation::new();
    assert_eq!(talk.connection.awaited(), AwaitedPart::Nothing);
    for request_index in 1..=3 {
        talk.asks(&GET);
        assert_eq!(talk.connection.request_index(), request_index);
        assert_eq!(talk.connection.awaited(), AwaitedPart::Head);
        talk.server_sends(HELLO);
        talk.expect(
            "each request gets a response",
            &[response("200 OK"), data("hello"), Event::BodyEnd],
        );
        assert!(talk.is_reusable());
    }
    for (request, answer) in [
        (
            GET,
            HELLO.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"),
        ),
        (GET, HELLO.replace("\r\n\r\n", "\r\nConnection: TE\r\n\r\n")),
        (GET, HELLO.replace("1.1", "1.0")),
        (
            ClientRequest {
                keep_alive: false,
                ..GET
            },
            HELLO.to_owned(),
        ),
    ] {
        let mut talk = Conversation::new();
        talk.asks(&request);
        talk.server_sends(&answer);
        assert!(talk.connection.is_response_done());
        assert!(!talk.is_reusable(), "{answer}");
    }
}

#[test]
fn what_comes_after_a_response_spoils_the_connection() {
    let mut talk = Conversation::new();
    talk.asks(&GET);
    talk.server_sends(format!("{HELLO}HTTP/1.1 200 OK\r\n\r\n"));
    talk.expect(
        "only the first response is read",
        &[response("200 OK"), data("hello"), Event::BodyEnd],
    );
    assert!(
        !talk.is_reusable(),
        "the bytes behind the response would be taken for the next response"
    );

    let mut talk = Conversation::new();
    talk.server_sends("HTTP/1.1 408 Request Timeout\r\n\r\n");
    talk.expect(
        "a response without a request",
        &[Event::Error(UpstreamError::Unsolicited)],
    );
    assert!(!talk.is_reusable());
}

#[test]
fn interim_responses_come_before_the_final_one() {
    let mut talk = Conversation::new();
    talk.asks(&GET);
    talk.server_sends(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: a\r\nContent-Length: 9\r\n\r\n",
    );
    talk.expect(
        "two interim responses",
        &[interim("100 Continue"), interim("103 Early")],
    );
    assert_eq!(talk.head.headers.get(Known::Link), Some(&b"a"[..]));
    talk.server_sends(HELLO);
    talk.expect(
        "the final response",
        &[response("200 OK"), data("hello"), Event::BodyEnd],
    );
    assert!(talk.is_reusable());

    let mut talk = Conversation::with(ClientSettings {
        max_interims: 2,
        ..ClientSettings::default()
    });
    talk.asks(&GET);
    let interim_head = "HTTP/1.1 102 x\r\n\r\n";
    talk.server_sends(interim_head.repeat(2)).events.clear();
    talk.server_sends(interim_head);
    talk.expect(
        "one interim response more than allowed",
        &[Event::Error(UpstreamError::TooManyInterims)],
    );
}

#[test]
fn some_responses_have_no_content() {
    let head = Method::Head;
    for (request, answer, length) in [
        (
            ClientRequest {
                method: &head,
                ..GET
            },
            "HTTP/1.1 200 x\r\nContent-Length: 5\r\n\r\n",
            Some(5),
        ),
        (
            ClientRequest {
                method: &head,
                ..GET
            },
            "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n",
            None,
        ),
        (GET, "HTTP/1.1 304 x\r\nContent-Length: 5\r\n\r\n", Some(5)),
        (GET, "HTTP/1.1 204\r\n\r\n", None),
        (GET, "HTTP/1.1 200 x\r\nContent-Length: 0\r\n\r\n", Some(0)),
    ] {
        let mut talk = Conversation::new();
        talk.asks(&request);
        talk.server_sends(answer);
        assert_eq!(talk.events.len(), 1, "{answer}");
        assert!(talk.is_reusable(), "{answer}");
        assert_eq!(talk.head.length, length, "{answer}");
    }
}

#[test]
fn the_end_of_the_connection_ends_some_content_and_truncates_other() {
    let until_close = "HTTP/1.1 200 OK\r\n\r\nab";
    let chunks = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let cases: &[(String, Result<EndedPart, UpstreamError>)] = &[
        (String::new(), Err(UpstreamError::ClosedBeforeResponse)),
        ("HTTP/1.1 2".into(), Err(UpstreamError::HeadTruncated)),
        (
            "HTTP/1.1 100 x\r\n\r\n".into(),
            Err(UpstreamError::HeadTruncated),
        ),
        (
            HELLO[..HELLO.len() - 1].into(),
            Err(UpstreamError::BodyTruncated),
        ),
        (HELLO.into(), Ok(EndedPart::Nothing)),
        (until_close.into(), Ok(EndedPart::Body)),
        (
            format!("{chunks}3\r\nab"),
            Err(UpstreamError::BodyTruncated),
        ),
        (
            format!("{chunks}3\r\nabc\r\n"),
            Err(UpstreamError::BodyTruncated),
        ),
        (format!("{chunks}0\r\n"), Err(UpstreamError::BodyTruncated)),
        (format!("{chunks}0\r\n\r\n"), Ok(EndedPart::Nothing)),
    ];
    for (input, want) in cases {
        let mut talk = Conversation::new();
        talk.asks(&GET);
        talk.server_sends(input);
        assert_eq!(talk.connection.on_closed(), *want, "{input:?}");
        assert!(!talk.is_reusable());
    }
}

#[test]
fn the_end_between_two_chunks_can_be_told_from_one_within() {
    let chunks = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let cases = [
        ("", false),
        ("3", false),
        ("3\r\nab", false),
        ("3\r\nabc", true),
        ("3\r\nabc\r", true),
        ("3\r\nabc\r\n", true),
        ("3\r\nabc\r\n1", false),
        ("3\r\nabc\r\n1;x", false),
        ("3\r\nabc\r\n0\r\n", true),
        ("3\r\nabc\r\n0\r\nx: y", true),
    ];
    for (content, want) in cases {
        let mut talk = Conversation::new();
        talk.asks(&GET);
        talk.server_sends(format!("{chunks}{content}"));
        assert_eq!(talk.connection.is_between_chunks(), want, "{content:?}");
    }
}

#[test]
fn broken_responses_have_different_errors() {
    let cases: &[(&str, UpstreamError)] = &[
        ("\x15\x03\x03", UpstreamError::StatusLineInvalid),
        (
            "HTTP/1.1 200 OK\r\nA : b\r\n",
            UpstreamError::Field(h2o_http1::FieldError::BlankBeforeColon),
        ),
        (
            "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n",
            UpstreamError::Field(h2o_http1::FieldError::Folded),
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            UpstreamError::Framing(FramingError::LengthAndCoding),
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            UpstreamError::Framing(FramingError::ContentLengthsDiffer),
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            UpstreamError::Framing(FramingError::TransferEncodingUnknown),
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx",
            UpstreamError::Chunk(ChunkError::SizeInvalid),
        ),
        ("HTTP/1.1 101 x\r\n\r\n", UpstreamError::UnexpectedSwitch),
    ];
    for (input, error) in cases {
        let mut talk = Conversation::new();
        talk.asks(&GET);
        talk.server_sends(input);
        assert_eq!(talk.events.last(), Some(&Event::Error(*error)), "{input:?}");
        assert!(!talk.is_reusable());
        assert_eq!(talk.connection.awaited(), AwaitedPart::Nothing);
    }
    let small = ClientSettings {
        max_head: 30,
        max_fields: 1,
        ..ClientSettings::default()
    };
    for (input, error) in [
        (
            "HTTP/1.1 200 OK\r\nA: b\r\nC: d\r\n\r\n",
            UpstreamError::HeadTooLarge,
        ),
        (
            "HTTP/1.1 200\r\nA:\r\nB:\r\n\r\n",
            UpstreamError::TooManyFields,
        ),
    ] {
        let mut talk = Conversation::with(small.clone());
        talk.asks(&GET);
        talk.server_sends(input);
        talk.expect(input, &[Event::Error(error)]);
    }
}

#[test]
fn tunnels_pass_bytes_both_ways() {
    let connect = ClientRequest {
        method: &Method::Connect,
        target: b"a.example:443",
        body: BodyLength::Tunnel,
        ..GET
    };
    let upgrade = ClientRequest {
        upgrade: Some(b"websocket"),
        ..GET
    };
    for (request, answer) in [
        (connect, "HTTP/1.1 200 x\r\n\r\n"),
        (upgrade, "HTTP/1.1 101 x\r\n\r\n"),
    ] {
        let mut talk = Conversation::new();
        talk.asks(&request);
        talk.connection.send_data(b"early", &mut talk.out);
        assert_eq!(
            talk.out, b"",
            "no content is sent before the server opens the tunnel"
        );
        talk.server_sends(format!("{answer}abc\r\n"));
        assert_eq!(talk.events[1..], [data("abc\r\n")]);
        assert_eq!(talk.connection.awaited(), AwaitedPart::Tunnel);
        talk.connection.send_data(b"def", &mut talk.out);
        assert_eq!(talk.out, b"def");
        assert_eq!(talk.connection.on_closed(), Ok(EndedPart::Tunnel));
    }
    let mut talk = Conversation::new();
    talk.asks(&upgrade);
    talk.server_sends(HELLO);
    talk.expect(
        "the server does not accept the upgrade",
        &[response("200 OK"), data("hello"), Event::BodyEnd],
    );
    assert!(talk.is_reusable());
}

#[test]
fn a_response_may_come_before_the_request_is_complete() {
    let mut talk = Conversation::new();
    talk.asks(&ClientRequest {
        body: BodyLength::Known(5),
        ..GET
    });
    talk.server_sends(HELLO);
    assert!(talk.connection.is_response_done() && !talk.connection.is_request_done());
    assert!(
        !talk.is_reusable(),
        "the rest of the request body must still be sent"
    );
    talk.connection.send_data(b"abcde", &mut talk.out);
    talk.connection.finish(None, &mut talk.out);
    assert!(talk.is_reusable());
}

#[test]
fn responses_read_alike_when_cut_anywhere() {
    let inputs = [
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200\nA: b\nTransfer-Encoding: chunked\n\n3;x\r\nabc\r\n2\r\nde\r\n0\r\nT: u\r\n\r\n",
        "HTTP/1.0 200 OK\r\n\r\nall of this",
        "HTTP/1.1 200 OK\r\nA: b\r\nbroken\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd",
    ];
    for input in inputs {
        let read = |pieces: &[&str]| {
            let mut talk = Conversation::new();
            talk.asks(&GET);
            for piece in pieces {
                talk.server_sends(piece);
            }
            (talk.events.clone(), talk.connection.on_closed())
        };
        let whole = read(&[input]);
        for at in 0..=input.len() {
            assert_eq!(
                read(&[&input[..at], &input[at..]]),
                whole,
                "{input:?} in two pieces, cut at {at}"
            );
        }
        let bytes: Vec<_> = input.split("").collect();
        assert_eq!(read(&bytes), whole, "{input:?} byte by byte");
    }
}
