//! Tests of HTTP/2 with handlers that wait, stream in either direction, fail or panic; the client checks single frames.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod echo;
mod embedded;
mod http2_client;
mod stage;
mod trick;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use h2o_testkit::Deadline;
use http2_client::WINDOW;
use stage::{Running, checksum, lump};

#[test]
fn requests_beyond_the_limit_wait_in_the_order_of_arrival() {
    let server = Running::start("http2-max-concurrent-requests-per-connection: 2");
    let mut client = server.client();
    for name in ["a", "b", "c", "d"] {
        client.ask(&format!("/wait/{name}"), &[]);
    }
    assert!(client.settle().is_empty());
    assert_eq!(server.events(), "began-a began-b");
    // The test may release the waiting handlers in any order.
    server.go("b");
    assert_eq!(client.until("3 6 bytes."), ["3 200", "3 6 bytes."]);
    client.settle();
    assert_eq!(server.events(), "began-a began-b dropped-b began-c");
    // Releasing a request has no effect while it is queued, since its handler does not run yet.
    server.go("d");
    assert!(client.settle().is_empty());
    server.go("c");
    client.until("7 6 bytes.");
    server.go("a");
    assert_eq!(client.until("1 6 bytes."), ["1 200", "1 6 bytes."]);
    assert_eq!(
        server.events(),
        "began-a began-b dropped-b began-c dropped-c began-d dropped-d dropped-a"
    );
}

#[test]
fn one_upload_streams_at_a_time() {
    let server = Running::start("");
    let mut client = server.client();
    let first = client.post("/pull/a");
    client.send(first, b"first", false);
    let second = client.post("/pull/b");
    client.send(second, &[b'2'; 65_535], false);
    // Other requests are answered, although the body of the third request has not come completely.
    let third = client.post("/pull/c");
    client.send(third, b"third", false);
    let other = client.ask("/now", &[]);
    client.until(&format!("{other} 3 bytes."));
    client.settle();
    assert!(client.window(first) > WINDOW, "{}", client.window(first));
    assert_eq!(client.window(second), 0);
    assert_eq!(client.window(third), WINDOW - 5);
    assert!(!server.events().contains("began-b"));

    client.send(first, b"!", true);
    client.until(&format!("{first} 6 bytes."));
    assert_eq!(
        client.content(first),
        format!("6 {}", checksum(b"first!")).as_bytes()
    );
    server.wait_for("began-b");
    client.settle();
    assert!(client.window(second) > WINDOW, "{}", client.window(second));
    assert_eq!(client.window(third), WINDOW - 5);
    // A request that the client cancels also frees its place for a queued request.
    client.reset(second);
    server.wait_for("dropped-b");
    server.wait_for("began-c");
    client.send(third, b"", true);
    client.until(&format!("{third} 6 bytes."));
    let fourth = client.post("/pull/d");
    client.send(fourth, b"fourth", true);
    client.until(&format!("{fourth} 6 bytes."));
}

#[test]
fn as_many_uploads_stream_at_a_time_as_is_said() {
    let server = Running::start("http2-max-concurrent-streaming-requests-per-connection: 2");
    let mut client = server.client();
    for (stream, name) in [(1, "a"), (3, "b"), (5, "c")] {
        assert_eq!(client.post(&format!("/pull/{name}")), stream);
        client.send(stream, b"content", false);
    }
    client.settle();
    assert!(client.window(1) > WINDOW && client.window(3) > WINDOW);
    assert_eq!(client.window(5), WINDOW - 7);
    assert!(!server.events().contains("began-c"));
    client.send(3, b"", true);
    client.until("3 6 bytes.");
    server.wait_for("began-c");
}

#[test]
fn an_upload_that_has_come_completely_waits_for_no_other() {
    let server = Running::start("");
    let mut client = server.client();
    let first = client.post("/pull/a");
    client.send(first, b"a", false);
    let others = ["b", "c", "d"].map(|name| {
        let stream = client.post(&format!("/swallow/{name}"));
        client.send(stream, name.as_bytes(), true);
        stream
    });
    for stream in others {
        client.until_content(stream, 20);
    }
    // The same if the request is in the queue already.
    let queued = client.post("/swallow/e");
    client.send(queued, b"e", false);
    client.settle();
    assert!(!server.events().contains("began-e"));
    client.send(queued, b"", true);
    client.until_content(queued, 20);
    client.send(first, b"", true);
    client.until(&format!("{first} 4 bytes."));
}

#[test]
fn an_upload_that_had_to_wait_streams_through_a_handler_that_answers_at_once() {
    let server = Running::start("http2-input-window-size: 65535");
    let mut client = server.client();
    let first = client.post("/pull/a");
    client.send(first, b"first", false);
    let second = client.post("/echo/b");
    client.send(second, &[b'2'; 65_535], false);
    client.settle();
    assert_eq!(client.window(second), 0);
    client.send(first, b"", true);
    client.until(&format!("{first} 6 bytes."));
    // The client raises the window of the connection, too, because the first response has used part of it.
    client.allow(second, 1 << 20);
    client.until_content(second, 65_535);
    server.wait_for("began-b");
    client.settle();
    assert_eq!(client.window(second), WINDOW);
    client.send(second, b"end", true);
    client.until(&format!("{second} 0 bytes."));
    assert_eq!(client.content(second).len(), 65_538);
}

#[test]
fn an_upload_is_no_faster_than_the_handler_that_pulls_it() {
    let server = Running::start("http2-input-window-size: 65535");
    let mut client = server.client();
    let content: Vec<u8> = (0u32..1_000_000)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let id = client.post("/paced/p");
    let mut left = content.as_slice();
    let mut taken = 0;
    let mut pieces = 0;
    let mut sent = 0;
    loop {
        let window = usize::try_from(client.window(id)).unwrap();
        assert!(
            sent + window <= taken + 65_535,
            "{sent} bytes were sent, {taken} taken, the window allows {window} more"
        );
        let len = left.len().min(window);
        if len > 0 {
            let (now, later) = left.split_at(len);
            left = later;
            client.send(id, now, left.is_empty());
            sent += len;
            client.settle();
            assert_eq!(client.window(id), i64::try_from(window - len).unwrap());
        }
        if left.is_empty() {
            break;
        }
        pieces += 1;
        server.go("p");
        server.wait_for(&format!("took-p-{pieces}"));
        taken = server.bytes_taken("p");
        client.settle();
    }
    assert!(pieces > 20, "{pieces}");
    // The test releases the handler until it has pulled the rest of the body and answers.
    let mut seen = Vec::new();
    while seen.is_empty() {
        server.go("p");
        seen = client.settle();
    }
    let sum = format!("1000000 {}", checksum(&content));
    if seen.len() < 2 {
        client.until(&format!("{id} {} bytes.", sum.len()));
    }
    assert_eq!(client.content(id), sum.as_bytes());
}

#[test]
fn a_stream_that_is_reset_ends_its_handler_and_leaves_its_place() {
    let server = Running::start("http2-max-streams: 1");
    let mut client = server.client();
    client.ask("/wait/a", &[]);
    server.wait_for("began-a");
    client.ask("/now", &[]);
    assert_eq!(client.until("3 reset 7"), ["3 reset 7"]);
    assert_eq!(server.events(), "began-a");
    client.reset(1);
    server.wait_for("dropped-a");
    client.ask("/wait/b", &[]);
    server.go("b");
    assert_eq!(client.until("5 6 bytes."), ["5 200", "5 6 bytes."]);
    client.ask("/now", &[]);
    assert_eq!(client.until("7 3 bytes."), ["7 200", "7 3 bytes."]);
    let log = server.log();
    let about = |path: &str| log.iter().filter(|line| line.starts_with(path)).count();
    assert_eq!(about("/wait/a "), 1, "{log:?}");
    assert!(log.iter().any(|line| line == "/wait/b 200 5"), "{log:?}");
    assert!(log.iter().any(|line| line == "/now 200 7"), "{log:?}");
}

#[test]
fn content_that_fails_is_no_clean_end() {
    let server = Running::start("");
    let mut client = server.client();
    for (path, end) in [("/local", 2), ("/failed", 1), ("/short", 1)] {
        let id = client.ask(path, &[]);
        let last = format!("{id} reset {end}");
        assert_eq!(
            client.until(&last),
            [
                format!("{id} 200"),
                format!("{id} 10 bytes"),
                format!("{id} 10 bytes"),
                last.clone(),
            ]
        );
    }
    client.ask("/long", &[]);
    assert_eq!(
        client.until("7 5 bytes."),
        ["7 200", "7 10 bytes", "7 5 bytes."]
    );
    assert_eq!(client.content(7), b"012345678901234");
    assert!(client.settle().is_empty());
    client.ask("/now", &[]);
    client.until("9 3 bytes.");
    assert_eq!(
        server.log(),
        [
            "/local 200 1",
            "/failed 200 3",
            "/short 200 5",
            "/long 200 7",
            "/now 200 9",
        ]
    );
}

#[test]
fn a_request_that_nobody_has_looked_at_is_refused() {
    let server = Running::start("");
    let mut client = server.client();
    let id = client.ask("/refuse", &[]);
    let last = format!("{id} reset 7");
    assert_eq!(
        client.until(&last).len(),
        1,
        "the stream is answered by REFUSED_STREAM only"
    );
    client.ask("/now", &[]);
    client.until("3 3 bytes.");
    // Over HTTP/1, the server closes the connection without a response if the handler reports that it has not processed the request.
    let mut stream = TcpStream::connect(("127.0.0.1", server.server.port)).unwrap();
    stream
        .write_all(b"GET /refuse HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"");
    drop(stream);
    assert_eq!(server.log()[0], "/refuse - 1");
}

#[test]
fn trailers_follow_the_content_whether_its_length_is_known_or_not() {
    let server = Running::start("");
    let mut client = server.client();
    for path in ["/trailers", "/trailers-known", "/trailers-later"] {
        let id = client.ask(path, &[]);
        let last = format!("{id} grpc-status=0.");
        assert_eq!(
            client.until(&last),
            [
                format!("{id} 200"),
                format!("{id} 10 bytes"),
                format!("{id} 10 bytes"),
                last.clone(),
            ],
            "{path}"
        );
    }
    // If a body announced as one with trailers turns out to have none, the stream ends without trailers.
    let id = client.ask("/trailers-none", &[]);
    client.until(&format!("{id} 0 bytes."));
    assert_eq!(client.content(id).len(), 20);
    // If a body is longer than its announced length, the stream is reset.
    let id = client.ask("/trailers-long", &[]);
    client.until(&format!("{id} reset 1"));
    // HTTP/1 clients get the response without its trailers.
    let answer = server.get("/trailers");
    assert!(answer.contains("0123456789"), "{answer}");
    assert!(!answer.contains("grpc-status"), "{answer}");
}

#[test]
fn a_source_that_panics_ends_one_stream_and_no_other() {
    let server = Running::start("");
    let mut client = server.client();
    client.ask("/wait/a", &[]);
    let id = client.ask("/panics", &[]);
    let last = format!("{id} reset 1");
    assert_eq!(client.until(&last).len(), 4);
    server.go("a");
    assert_eq!(client.until("1 6 bytes."), ["1 200", "1 6 bytes."]);
}

#[test]
fn a_source_that_gives_more_than_it_is_asked_for_loses_nothing() {
    let server = Running::start("");
    let mut client = server.client();
    let id = client.ask("/lump", &[]);
    client.until_content(id, 65_535);
    client.allow(id, 1_000_000);
    client.until_content(id, lump().len());
    assert_eq!(client.content(id), lump());
}

#[test]
fn an_upload_that_stands_still_does_not_keep_the_connection() {
    let server = Running::start("http2-idle-timeout: 1");
    let mut client = server.client();
    let id = client.post("/pull/a");
    client.send(id, b"some of it", false);
    let seen = client.until_closed();
    assert_eq!(seen.last().map(String::as_str), Some("goaway 0"));
}

#[test]
fn a_panic_ends_one_stream_and_no_other() {
    let server = Running::start("");
    let mut client = server.client();
    client.ask("/wait/a", &[]);
    for path in ["/panic", "/later-panic"] {
        let id = client.ask(path, &[]);
        let seen = client.until(&format!("{id} 21 bytes."));
        assert_eq!(seen, [format!("{id} 500"), format!("{id} 21 bytes.")]);
    }
    // After the handler's panic, request data that is still on its way is dropped, and another upload may start.
    for id in [7, 9] {
        assert_eq!(client.post("/panic"), id);
        client.send(id, b"content", false);
        let seen = client.until(&format!("{id} reset 0"));
        assert_eq!(seen[0], format!("{id} 500"));
    }
    server.go("a");
    assert_eq!(client.until("1 6 bytes."), ["1 200", "1 6 bytes."]);
}

#[test]
fn a_tunnel_goes_both_ways_and_each_ends_on_its_own() {
    let server = Running::start("");
    let mut client = server.client();
    let refused = client.connect_to("/now", "websocket");
    let head = format!("{refused} 405");
    assert_eq!(client.until(&head), [&*head]);

    // The refused request does not count as one of the limited uploads.
    let upload = client.post("/pull/a");
    client.send(upload, b"content", false);
    let id = client.connect_to("/tunnel", "websocket");
    let head = format!("{id} 200");
    let seen = client.until(&head);
    assert_eq!(seen.last(), Some(&head));
    for word in ["hello", "again"] {
        client.send(id, word.as_bytes(), false);
        let echo = format!("{id} 5 bytes");
        assert_eq!(client.until(&echo), [&*echo]);
        assert!(client.content(id).ends_with(word.as_bytes()));
    }
    client.send(id, b"", true);
    server.wait_for("input-ended");
    assert!(client.settle().is_empty());
    server.go("bye");
    let last = format!("{id} 0 bytes.");
    assert_eq!(client.until(&last), [format!("{id} 7 bytes"), last.clone()]);
    assert_eq!(client.content(id), b"helloagaingoodbye");
}

#[test]
fn clients_may_not_keep_the_window_shut_but_may_wait_for_handlers() {
    let server = Running::start("http2-idle-timeout: 1");
    let mut waiting = server.client();
    waiting.ask("/wait/a", &[]);
    server.wait_for("began-a");
    let mut shut = server.client();
    // The test's clock starts before the idle timeout does. Without `http2-idle-timeout` in the settings, the timeout would be ten seconds.
    let clock = Deadline::after_secs(9);
    shut.ask("/big", &[]);
    shut.until_content(1, 65_535);
    let seen = shut.until_closed();
    assert_eq!(seen.last().map(String::as_str), Some("goaway 0"));
    assert!(clock.elapsed() > Duration::from_millis(900), "{clock:?}");
    assert!(!clock.has_passed(), "{clock:?}");
    // The server also closes an idle connection, on which all requests were answered.
    let mut idle = server.client();
    idle.ask("/now", &[]);
    idle.until("1 3 bytes.");
    assert_eq!(idle.until_closed(), ["goaway 0"]);
    server.go("a");
    assert_eq!(waiting.until("1 6 bytes."), ["1 200", "1 6 bytes."]);
}
