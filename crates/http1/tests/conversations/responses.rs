//! Tests of what the server role sends, and of how the connection continues after a response.

use h2o_http::{Headers, Known, StatusCode, TimeLimit};
use h2o_http1::{BodyMode, ChunkError, Next, PeerError};

use crate::kit::server::{Conversation, Event, data, request};
use crate::{GET, SECOND, post};

#[test]
fn response_heads_have_the_fields_of_the_reference_in_its_order() {
    let mut headers = Headers::new();
    headers.push(Known::Date, b"now");
    headers.push(Known::Connection, b"x");
    headers.push(Known::ContentLength, b"99");
    let spelt = headers.store(b"X-SpeltV");
    headers.push_stored(spelt.prefix(7), spelt.suffix(7));
    headers.push(Known::TransferEncoding, b"chunked");
    let tail = "date: now\r\nX-Spelt: V\r\n";
    let cases = [
        // Each row: the request line, the status, the length, the start of the response head, and the text after the fields
        // `date` and `X-Spelt` of the response.
        (
            "GET / HTTP/1.1",
            200,
            Some(1),
            "200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n",
            "\r\na",
        ),
        (
            "GET / HTTP/1.1",
            200,
            None,
            "200 OK\r\nConnection: keep-alive\r\n",
            "transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        ),
        (
            "GET / HTTP/1.0",
            200,
            Some(1),
            "200 OK\r\nConnection: close\r\nContent-Length: 1\r\n",
            "\r\na",
        ),
        (
            "GET / HTTP/1.0",
            200,
            None,
            "200 OK\r\nConnection: close\r\n",
            "\r\na",
        ),
        (
            "HEAD / HTTP/1.1",
            200,
            Some(1),
            "200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n",
            "\r\n",
        ),
        (
            "HEAD / HTTP/1.1",
            200,
            None,
            "200 OK\r\nConnection: keep-alive\r\n",
            "\r\n",
        ),
        (
            "GET / HTTP/1.1",
            204,
            Some(0),
            "204 No Content\r\nConnection: keep-alive\r\n",
            "\r\n",
        ),
        (
            "GET / HTTP/1.1",
            204,
            None,
            "204 No Content\r\nConnection: keep-alive\r\n",
            "\r\n",
        ),
        (
            "GET / HTTP/1.1",
            304,
            None,
            "304 Not Modified\r\nConnection: keep-alive\r\n",
            "\r\n",
        ),
        (
            "GET / HTTP/1.1",
            304,
            Some(7),
            "304 Not Modified\r\nConnection: keep-alive\r\nContent-Length: 7\r\n",
            "\r\n",
        ),
    ];
    for (line, code, length, head, rest) in cases {
        let mut talk = Conversation::new();
        talk.client_sends(format!("{line}\r\nHost: a.example\r\n\r\n"));
        talk.respond_with(code, length, &headers);
        talk.send("a").finish();
        talk.expect_output(line, format!("HTTP/1.1 {head}{tail}{rest}"));
        let is_kept = head.contains("keep-alive");
        assert_eq!(
            talk.connection.next(talk.now) == Next::Request,
            is_kept,
            "{line} {code}"
        );
    }
}

#[test]
fn http_1_0_keeps_the_connection_only_if_the_end_is_known() {
    let get = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    let mut talk = Conversation::new();
    talk.client_sends(get);
    assert_eq!(talk.answer("a"), Next::Request);
    talk.expect_output(
        "the connection is kept, as the length is known",
        "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na",
    );
    talk.client_sends(get);
    assert_eq!(talk.respond(200, None), BodyMode::UntilClose);
    talk.send("a").finish();
    talk.expect_output(
        "without a length the connection is closed",
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\na",
    );
    assert_eq!(talk.connection.next(talk.now), Next::Close);
}

#[test]
fn responses_that_are_cut_short_close_the_connection() {
    let mut talk = Conversation::new();
    talk.client_sends(GET);
    talk.respond(200, Some(5));
    talk.out.clear();
    talk.send("abc")
        .finish()
        .expect_output("the response has as many bytes as the handler gave", "abc");
    assert_eq!(talk.connection.next(talk.now), Next::Close);

    for (length, want) in [(Some(5), "abc"), (None, "3\r\nabc\r\n\r\n1\r\n")] {
        let mut talk = Conversation::new();
        talk.client_sends(GET);
        talk.respond(200, length);
        talk.out.clear();
        talk.send("abc");
        talk.connection.abort(&mut talk.out);
        talk.expect_output("an invalid chunk tells the client", want);
        assert_eq!(talk.connection.next(talk.now), Next::Close);
    }
}

#[test]
fn content_beyond_the_announced_length_is_left_out() {
    let mut talk = Conversation::new();
    talk.client_sends(GET);
    talk.respond(200, Some(3));
    talk.out.clear();
    talk.send("abcdef")
        .finish()
        .expect_output("only the announced three bytes are sent", "abc");
    assert_eq!(talk.connection.next(talk.now), Next::Request);
}

#[test]
fn framing_for_content_sent_by_other_means() {
    for (length, before, after) in [(None, "a\r\n", "\r\n"), (Some(10), "", "")] {
        let mut talk = Conversation::new();
        talk.client_sends(GET);
        talk.respond(200, length);
        talk.out.clear();
        assert_eq!(talk.connection.begin_data(10, &mut talk.out), 10);
        talk.expect_output("the framing before the content", before);
        talk.connection.end_data(&mut talk.out);
        talk.expect_output("the framing after the content", after);
        assert_eq!(talk.connection.begin_data(0, &mut talk.out), 0);
        talk.connection.end_data(&mut talk.out);
        talk.expect_output("an empty chunk would end the body", "");
    }
}

#[test]
fn trailers_are_sent_after_chunks_only() {
    let mut trailers = Headers::new();
    trailers.push(Known::ServerTiming, b"a;dur=1");
    for (length, want) in [(None, "0\r\nserver-timing: a;dur=1\r\n\r\n"), (Some(0), "")] {
        let mut talk = Conversation::new();
        talk.client_sends(GET);
        talk.respond(200, length);
        talk.out.clear();
        talk.connection.finish(Some(&trailers), &mut talk.out);
        talk.expect_output("trailers follow only chunked content", want);
    }
}

#[test]
fn interim_responses_go_to_http_1_1_before_the_final_response() {
    let mut hints = Headers::new();
    hints.push(Known::Link, b"</a>; rel=preload");
    let mut talk = Conversation::new();
    talk.client_sends(GET);
    let early = StatusCode::EARLY_HINTS;
    talk.connection
        .send_informational(early, &hints, &mut talk.out);
    talk.expect_output(
        "103 is sent before the final response",
        "HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n",
    );
    talk.connection
        .send_informational(StatusCode::OK, &hints, &mut talk.out);
    talk.connection
        .send_informational(StatusCode::SWITCHING_PROTOCOLS, &hints, &mut talk.out);
    talk.expect_output("200 and 101 are not sent as interim responses", "");
    talk.respond(200, Some(0));
    talk.out.clear();
    talk.connection
        .send_informational(early, &hints, &mut talk.out);
    talk.expect_output("no interim response is sent after the final head", "");

    let mut talk = Conversation::new();
    talk.client_sends("GET / HTTP/1.0\r\n\r\n");
    talk.connection
        .send_informational(early, &hints, &mut talk.out);
    talk.expect_output("HTTP/1.0 does not know 1xx (RFC 9110 §15.2)", "");
}

#[test]
fn expectations_are_answered_when_the_handler_wants_the_body() {
    for version in ["1.1", "1.0"] {
        let mut talk = Conversation::new();
        let head =
            format!("POST / HTTP/{version}\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
        talk.client_sends(head);
        assert!(talk.connection.wants_continue());
        assert_eq!(
            talk.wait(100 * SECOND),
            None,
            "no timeout runs while the client waits for 100 (Continue)"
        );
        talk.connection.send_continue(&mut talk.out, talk.now);
        talk.connection.send_continue(&mut talk.out, talk.now);
        talk.expect_output(
            "100 (Continue) is sent once",
            "HTTP/1.1 100 Continue\r\n\r\n",
        );
        assert!(!talk.connection.wants_continue());
        assert_eq!(
            talk.wait(100 * SECOND),
            Some(TimeLimit::Read),
            "the I/O timeout runs while the server waits for the client"
        );
    }
}

#[test]
fn a_final_response_instead_of_100_closes_the_connection() {
    let mut talk = Conversation::new();
    talk.client_sends(post("Expect: 100-continue\r\nContent-Length: 3"));
    talk.respond(403, Some(0));
    talk.expect_output(
        "RFC 9110 §10.1.1",
        "HTTP/1.1 403 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            .replace("OK", "Forbidden"),
    );
    assert_eq!(talk.connection.next(talk.now), Next::Close);
}

#[test]
fn a_response_may_end_before_the_body() {
    let mut talk = Conversation::new();
    talk.client_sends(post("Content-Length: 5")).events.clear();
    talk.respond(200, Some(0));
    assert!(talk.connection.is_response_done() && !talk.connection.is_body_done());
    talk.client_sends("abcde").expect(
        "the handler gets the body although the response has ended",
        &[data("abcde"), Event::BodyEnd],
    );
    assert_eq!(talk.connection.next(talk.now), Next::Request);

    let mut talk = Conversation::new();
    talk.client_sends(post("Content-Length: 5"));
    talk.respond(200, Some(0));
    assert_eq!(
        talk.connection.next(talk.now),
        Next::Close,
        "the server does not wait for the rest of the request body"
    );
}

#[test]
fn a_body_error_within_the_response_only_closes() {
    let mut talk = Conversation::new();
    talk.client_sends(post("Transfer-Encoding: chunked"))
        .events
        .clear();
    talk.respond(200, Some(2));
    talk.send("a").out.clear();
    let error = PeerError::Chunk(ChunkError::SizeInvalid);
    talk.client_sends("x")
        .expect("the chunk is malformed", &[Event::Error(error)]);
    talk.connection
        .error_response(error.answer(), None, None, &mut talk.out);
    talk.expect_output("no error response is sent within another response", "");
    talk.send("b")
        .finish()
        .expect_output("the response in progress is continued", "b");
    assert_eq!(talk.connection.next(talk.now), Next::Close);
}

#[test]
fn errors_are_answered_as_plain_text_without_content_for_head() {
    let mut talk = Conversation::new();
    let bad = "Host: a.example\r\nContent-Length: x\r\n\r\n";
    talk.client_sends(format!("HEAD / HTTP/1.1\r\n{bad}"));
    let Some(Event::Error(error)) = talk.events.last().cloned() else {
        panic!("the request was accepted");
    };
    talk.connection.error_response(
        error.answer(),
        Some(b"h2o"),
        Some(b"Sun, 06 Nov 1994 08:49:37 GMT"),
        &mut talk.out,
    );
    let head = "HTTP/1.1 400 Invalid Request\r\nConnection: close\r\nContent-Length: 28\r\nServer: h2o\r\n\
                date: Sun, 06 Nov 1994 08:49:37 GMT\r\ncontent-type: text/plain; charset=utf-8\r\n\r\n";
    talk.expect_output(
        "the error response to HEAD has no content (RFC 9110 §9.3.2)",
        head,
    );
    talk.connection
        .error_response(error.answer(), None, None, &mut talk.out);
    talk.expect_output("no second error response is sent", "");
    assert_eq!(talk.connection.next(talk.now), Next::Close);
    talk.client_sends(GET)
        .expect("no request is read after an error", &[Event::Error(error)]);
}

#[test]
fn upgrades_become_tunnels_with_101() {
    let ask = "GET /chat HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let mut headers = Headers::new();
    headers.push(Known::Upgrade, b"websocket");
    let mut talk = Conversation::new();
    talk.client_sends(format!("{ask}early")).expect(
        "a request with Upgrade has no body before the tunnel",
        &[request("GET /chat a.example")],
    );
    assert_eq!(talk.head.upgrade(), b"websocket");
    assert_eq!(talk.respond_with(101, None, &headers), BodyMode::UntilClose);
    talk.expect_output(
        "101",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    );
    assert!(talk.connection.is_tunnel());
    talk.client_sends("\0\r\n\r\n").expect(
        "the bytes of a tunnel are not parsed",
        &[data("early\0\r\n\r\n")],
    );
    talk.send("\x01")
        .expect_output("the tunnel carries bytes in both directions", "\x01");
    talk.connection.on_written(1, true, talk.now);
    assert_eq!(
        talk.wait(1000 * SECOND),
        None,
        "no timeout runs in a tunnel"
    );
    talk.finish();
    assert_eq!(talk.connection.next(talk.now), Next::Close);

    let mut talk = Conversation::new();
    talk.client_sends(ask);
    assert_eq!(
        talk.answer("no"),
        Next::Request,
        "an upgrade that the handler does not accept"
    );

    let mut talk = Conversation::new();
    talk.client_sends(GET);
    talk.respond_with(101, None, &headers);
    assert!(
        !talk.connection.is_tunnel(),
        "a 101 without an upgrade request makes no tunnel"
    );
    assert_eq!(talk.connection.next(talk.now), Next::Close);
}

#[test]
fn connect_becomes_a_tunnel_with_2xx() {
    let ask = "CONNECT b.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n";
    let mut talk = Conversation::new();
    talk.client_sends(ask).expect(
        "the request asks for a tunnel",
        &[request("CONNECT b.example:443 b.example:443")],
    );
    assert_eq!(talk.respond(200, Some(0)), BodyMode::UntilClose);
    talk.expect_output(
        "a response that opens a tunnel has no length (RFC 9110 §9.3.6)",
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
    );
    talk.client_sends("abc")
        .expect("the bytes of a tunnel are not parsed", &[data("abc")]);
    assert!(!talk.connection.is_body_done());
    talk.connection.recv_end();
    assert!(
        talk.connection.is_body_done(),
        "the client has closed its direction of the tunnel"
    );
    talk.send("d")
        .expect_output("the other direction of the tunnel is still open", "d");
    talk.finish();
    assert_eq!(talk.connection.next(talk.now), Next::Close);

    let mut talk = Conversation::new();
    talk.client_sends(ask).events.clear();
    talk.respond(405, Some(2));
    talk.send("no")
        .client_sends(GET)
        .expect("no request is read after a refused CONNECT", &[]);
    assert_eq!(talk.connection.next(talk.now), Next::Close);
}

#[test]
fn shutting_down_ends_with_the_response_in_progress() {
    let mut talk = Conversation::new();
    talk.client_sends(GET);
    talk.connection.shut_down();
    assert_eq!(talk.answer("a"), Next::Close);
    talk.expect_output(
        "the response tells the client that the connection closes",
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na",
    );

    let mut talk = Conversation::new();
    talk.client_sends(GET);
    talk.respond(200, Some(1));
    talk.connection.shut_down();
    talk.send("a").finish();
    assert_eq!(
        talk.connection.next(talk.now),
        Next::Close,
        "a shutdown closes the connection although the head of the response said keep-alive"
    );
}

#[test]
fn an_expectation_without_content_holds_nothing_back() {
    let mut talk = Conversation::new();
    talk.client_sends(post("Expect: 100-continue\r\nContent-Length: 0"));
    assert!(talk.connection.is_body_done() && !talk.connection.wants_continue());
    assert_eq!(talk.answer(""), Next::Request);
}
