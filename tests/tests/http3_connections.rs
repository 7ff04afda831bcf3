//! The life of HTTP/3 connections and their requests: packets that reach another worker, replayed early data, changes of the client's
//! address, slow clients, shutdown of the server. The client sends exactly the frames that a test makes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use h2o_tests::http3::{Frame, varint};
use h2o_tests::quic::{Header, Options, Quic, control_streams, get, request};
use h2o_tests::{Backend, Deadline, Request, Server, Setup, eventually};

const REQUEST_CANCELLED: u64 = 0x10c;

fn start(settings: &str, paths: &str) -> Server {
    let rest = format!(
        "
      /status: {{ status: ON }}
{paths}
access-log: {{ path: @DIR@/access_log, format: '%m %U %s' }}
"
    );
    Setup::http3(settings, "", &rest)
        .file("www/a.txt", "hello")
        .file("www/medium", vec![b'x'; 200_000])
        .file("www/large", vec![b'x'; 2_000_000])
        .start()
}

/// The value of a counter in the server's status.
fn counter(client: &mut Quic, name: &str) -> u64 {
    let answer = client.ask("/status/json");
    let text = String::from_utf8(answer.content).expect("the JSON of the status report is UTF-8");
    let (_, rest) =
        (text.split_once(&format!("\"{name}\":"))).expect("the status report has the counter");
    let digits: String = (rest.trim_start().chars())
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().expect("a counter is a number")
}

// --- addresses -----------------------------------------------------------------------------------------------------

#[test]
fn packets_that_reach_another_worker_find_their_connection() {
    let server = start("num-threads: 4", "");
    let mut client = Quic::open(server.port());
    // Each worker has its own socket, and the kernel chooses one by the addresses and ports of client and server.
    for n in 1..=40 {
        client.move_to([127, 0, 0, 1 + n % 5]);
        assert_eq!(client.ask("/a.txt").status, 200);
    }
    assert!(counter(&mut client, "http3.packet-forwarded") > 0);
    assert!(counter(&mut client, "http3.forwarded-packet-received") > 0);
}

#[test]
fn a_hundred_downloads_survive_new_addresses() {
    const COUNT: usize = 100;
    let server = start("num-threads: 2", "");
    let port = server.port();
    let mut clients: Vec<(Quic, u64, bool)> = (0..COUNT)
        .map(|_| {
            let mut client = Quic::open(port);
            let stream = client.send_request(&get("/medium"));
            (client, stream, false)
        })
        .collect();
    let deadline = Deadline::after_secs(60);
    let is_done = |(client, stream, _): &(Quic, u64, bool)| client.has_ended(*stream);
    while !clients.iter().all(is_done) && !deadline.has_passed() {
        for (n, (client, stream, has_moved)) in clients.iter_mut().enumerate() {
            client.read(Duration::ZERO);
            if !*has_moved && client.received(*stream).len() > 10_000 {
                *has_moved = true;
                // Half of the clients change their port only, the other half their address.
                let last = u8::try_from(2 + n).expect("the number fits into the type");
                client.move_to([127, 0, 0, if n % 2 == 0 { 1 } else { last }]);
                // A client that knows of its new address sends a packet at once.
                client.send(&h2o_tests::quic::frame::ping());
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let whole = clients.iter().filter(|(client, stream, _)| {
        client
            .answer(*stream)
            .is_some_and(|answer| answer.content.len() == 200_000)
    });
    assert_eq!(whole.count(), COUNT, "the downloads are complete");
    assert!(
        clients.iter().all(|(_, _, has_moved)| *has_moved),
        "every client changed its port during the download"
    );
}

// --- round trips and early data ------------------------------------------------------------------------------------

/// STREAM frames with the beginning of the client's control streams, and with a request for `path` on stream 0.
fn first_streams(client: &mut Quic, path: &str) -> Vec<u8> {
    let mut frames = Vec::new();
    for (id, data) in control_streams(&[]) {
        frames.extend(client.stream_frame(id, &data, false));
    }
    let stream = client.next_request_unlimited();
    frames.extend(client.stream_frame(stream, &get(path), true));
    frames
}

/// Receives packets, without sending any, until `is_so` holds.
fn listen(client: &mut Quic, what: &str, is_so: impl Fn(&Quic) -> bool) {
    let deadline = Deadline::after_secs(20);
    while !is_so(client) {
        assert!(!deadline.has_passed(), "{what} needs more of the client");
        client.receive_only(Duration::from_millis(50));
    }
}

#[test]
fn a_hello_of_two_packets_is_answered_after_two_round_trips() {
    let server = start("", "");
    let options = Options {
        hello_piece: 180,
        ..Options::default()
    };
    let mut client = Quic::new(server.port(), options);
    let flight = client.handshake_datagrams();
    assert!(flight.len() >= 2, "the ClientHello is in several packets");
    for datagram in &flight {
        client.send_datagram(datagram);
    }
    listen(&mut client, "the handshake", Quic::can_send);
    // The client's second flight: its last TLS messages, and a request.
    for datagram in client.handshake_datagrams() {
        client.send_datagram(&datagram);
    }
    let frames = first_streams(&mut client, "/a.txt");
    client.send_once(&frames);
    listen(&mut client, "the response on stream 0", |client| {
        client.has_ended(0)
    });
    assert_eq!(client.answer(0).expect("the response has come").status, 200);
}

/// The options of a client whose TLS has a session with the server that can be resumed.
fn resumable(server: &Server) -> Options {
    let options = Options::default();
    let mut client = Quic::open_with(server.port(), options.clone());
    let _ = client.ask("/a.txt");
    eventually("a session that the client can resume", || {
        client.read(Duration::from_millis(10));
        let next = Quic::new(
            server.port(),
            Options {
                tls: Arc::clone(&options.tls),
                ..Options::default()
            },
        );
        next.can_send_early().then_some(())
    });
    // The check has used up the session, so another connection gets a new one.
    let mut client = Quic::open_with(server.port(), options.clone());
    let _ = client.ask("/a.txt");
    client.read(Duration::from_millis(100));
    client.send_once(&h2o_tests::quic::frame::close(0x100));
    options
}

/// The datagrams of a client's first flight, with a request for `path` in early data.
fn early_flight(client: &mut Quic, path: &str) -> Vec<Vec<u8>> {
    assert!(client.can_send_early(), "the client has a session");
    let mut flight = client.handshake_datagrams();
    let frames = first_streams(client, path);
    flight.push(client.packet(Header::ZeroRtt, &frames));
    flight
}

#[test]
fn early_data_is_answered_after_one_round_trip() {
    let server = start("", "");
    let options = resumable(&server);
    let mut client = Quic::new(server.port(), options);
    for datagram in early_flight(&mut client, "/a.txt") {
        client.send_datagram(&datagram);
    }
    listen(&mut client, "the response on stream 0", |client| {
        client.has_ended(0)
    });
    assert!(client.is_early_accepted());
    assert_eq!(
        client.answer(0).expect("the response has come").content,
        b"hello"
    );
}

#[test]
fn early_data_sent_twice_is_processed_once() {
    let server = start("", "");
    let options = resumable(&server);
    let mut client = Quic::new(server.port(), options);
    let flight = early_flight(&mut client, "/medium");
    for datagram in &flight {
        client.send_datagram(datagram);
    }
    client.wait_for("the response on stream 0", |client| client.has_ended(0));
    client.send_once(&h2o_tests::quic::frame::close(0x100));
    // An attacker who recorded the first flight sends it again: first while the server still knows the connection, then later.
    for _ in 0..3 {
        let mut recorder = Quic::new(server.port(), Options::default());
        for datagram in &flight {
            recorder.send_datagram(datagram);
        }
        recorder.receive_only(Duration::from_secs(1));
    }
    // When the server answers this request, it has read all datagrams that the attacker has sent.
    let mut other = Quic::open(server.port());
    assert_eq!(other.ask("/a.txt").status, 200);
    let log = server.read_until("access_log", "GET /medium 200");
    assert_eq!(log.matches("/medium").count(), 1, "{log}");
}

#[test]
fn a_backend_that_answers_425_to_early_data_is_asked_again_after_the_handshake() {
    let backend = Backend::by_request(|request: &Request| match request.field("early-data") {
        Some("1") => "HTTP/1.1 425 Too Early\r\ncontent-length: 0\r\n\r\n".to_owned(),
        _ => "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nsafe".to_owned(),
    });
    let paths = format!(
        "      /back: {{ proxy.reverse.url: '{}' }}",
        backend.url("/")
    );
    let server = start("", &paths);
    let options = resumable(&server);
    let mut client = Quic::new(server.port(), options);
    for datagram in early_flight(&mut client, "/back") {
        client.send_datagram(&datagram);
    }
    backend.wait_for("early-data: 1");
    client.wait_for("the response on stream 0", |client| client.has_ended(0));
    assert!(client.is_early_accepted());
    let answer = client.answer(0).expect("the response has come");
    assert_eq!((answer.status, &answer.content[..]), (200, &b"safe"[..]));
}

#[test]
fn early_data_is_served_after_the_handshake_where_the_clients_address_decides() {
    let backend = Backend::by_request(|request: &Request| {
        let text = request.field("early-data").unwrap_or("none");
        format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        )
    });
    let url = backend.url("/");
    let paths = format!(
        "      /back: {{ proxy.reverse.url: '{url}', allow: 127.0.0.1 }}
      /open: {{ proxy.reverse.url: '{url}' }}"
    );
    let server = start("num-threads: 1", &paths);
    for (path, seen) in [("/open", "1"), ("/back", "none")] {
        let options = resumable(&server);
        let mut client = Quic::new(server.port(), options);
        for datagram in early_flight(&mut client, path) {
            client.send_datagram(&datagram);
        }
        // When the server answers this request, it has read all datagrams of the client, which completes its handshake only now.
        assert_eq!(Quic::open(server.port()).ask("/a.txt").status, 200);
        if seen == "1" {
            backend.wait_for("early-data: 1");
        }
        client.wait_for("the response on stream 0", |client| client.has_ended(0));
        assert!(client.is_early_accepted());
        let answer = client.answer(0).expect("the response has come");
        let content = String::from_utf8_lossy(&answer.content);
        assert_eq!((answer.status, &*content), (200, seen), "{path}");
    }
}

#[test]
fn a_script_that_answers_425_to_early_data_is_asked_again_after_the_handshake() {
    let paths = r#"      /script:
        mruby.handler: |
          was_early = false
          proc do |env|
            if env["HTTP_EARLY_DATA"] == "1"
              was_early = true
              [425, {}, []]
            else
              [200, {}, ["was early: #{was_early}"]]
            end
          end"#;
    let server = start("num-threads: 1", paths);
    let options = resumable(&server);
    let mut client = Quic::new(server.port(), options);
    for datagram in early_flight(&mut client, "/script") {
        client.send_datagram(&datagram);
    }
    // When the server answers this request, it has read all datagrams of the client, which completes its handshake only now.
    assert_eq!(Quic::open(server.port()).ask("/a.txt").status, 200);
    client.wait_for("the response on stream 0", |client| client.has_ended(0));
    let answer = client.answer(0).expect("the response has come");
    let content = String::from_utf8_lossy(&answer.content);
    assert_eq!((answer.status, &*content), (200, "was early: true"));
}

// --- slow clients --------------------------------------------------------------------------------------------------

const RATE: &str = "client-min-rate: 20000\nclient-min-rate.grace: 1";

#[test]
fn who_takes_a_response_slower_than_the_least_rate_loses_it() {
    let server = start(RATE, "");
    let options = Options {
        max_stream_data: 1000,
        ..Options::default()
    };
    let mut client = Quic::open_with(server.port(), options);
    let stream = client.send_request(&get("/large"));
    let mut window = 1000;
    let deadline = Deadline::after_secs(30);
    while client.reset_code(stream).is_none() {
        assert!(
            !deadline.has_passed() && client.closed.is_none(),
            "{client:?}"
        );
        client.read(Duration::ZERO);
        // The pause makes the client slow; the test waits for nothing here.
        std::thread::sleep(Duration::from_millis(50));
        window += 100;
        client.send(&h2o_tests::quic::frame::max_stream_data(stream, window));
    }
    assert_eq!(client.reset_code(stream), Some(REQUEST_CANCELLED));
    // The limit ends the response only: another request on the connection is answered.
    let stream = client.send_request(&get("/a.txt"));
    client.wait_for("the end of the response", |client| client.has_ended(stream));
}

#[test]
fn who_takes_a_response_fast_enough_gets_it_whole() {
    let server = start(RATE, "");
    let options = Options {
        max_stream_data: 20_000,
        ..Options::default()
    };
    let mut client = Quic::open_with(server.port(), options);
    let stream = client.send_request(&get("/medium"));
    let deadline = Deadline::after_secs(60);
    while !client.has_ended(stream) {
        assert!(
            !deadline.has_passed() && client.reset_code(stream).is_none(),
            "{client:?}"
        );
        client.read(Duration::from_millis(50));
        let window = client.received(stream).len() as u64 + 20_000;
        client.send(&h2o_tests::quic::frame::max_stream_data(stream, window));
    }
    assert_eq!(
        client
            .answer(stream)
            .expect("the response has come")
            .content
            .len(),
        200_000
    );
}

#[test]
fn who_sends_a_body_slower_than_the_least_rate_is_refused() {
    let backend = Backend::answering("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine");
    let paths = format!(
        "      /back: {{ proxy.reverse.url: '{}' }}",
        backend.url("/")
    );
    let server = start(RATE, &paths);
    let mut client = Quic::open(server.port());
    let stream = client.next_request();
    let head = request("POST", "/back", &[("content-length", "100000")]);
    client.send_stream(stream, &head, false);
    let deadline = Deadline::after_secs(30);
    while client.reset_code(stream).is_none() && !client.has_ended(stream) {
        assert!(
            !deadline.has_passed() && client.closed.is_none(),
            "{client:?}"
        );
        client.send_stream(stream, &Frame::data(vec![b'x'; 300]).bytes(), false);
        client.read(Duration::ZERO);
        // The pause makes the client slow; the test waits for nothing here.
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(client.reset_code(stream), Some(REQUEST_CANCELLED));
    assert_eq!(client.ask("/a.txt").status, 200);
}

#[test]
fn heads_that_come_a_byte_at_a_time_use_up_the_budget() {
    let server = start("", "");
    let mut client = Quic::open(server.port());
    let head = [varint(1), varint(100_000)].concat();
    let streams: Vec<u64> = (0..50).map(|_| client.next_request()).collect();
    for stream in &streams {
        client.send_stream(*stream, &head, false);
    }
    let deadline = Deadline::after_secs(30);
    while client.closed.is_none() && !deadline.has_passed() {
        let bytes = streams
            .iter()
            .map(|stream| client.stream_frame(*stream, &[0], false));
        let bytes = bytes.collect::<Vec<_>>().concat();
        client.send(&bytes);
        client.read(Duration::from_millis(1));
    }
    let mut other = Quic::open(server.port());
    assert_eq!(counter(&mut other, "connections.overdrawn"), 1);
}

// --- the end -------------------------------------------------------------------------------------------------------

/// Sends requests until the server sends GOAWAY, then waits for the responses. Returns how many requests were answered, and how many were
/// lost although GOAWAY said that they would be answered.
fn ask_until_goaway(mut client: Quic, has_begun: &AtomicBool) -> (usize, usize) {
    let mut asked: Vec<u64> = Vec::new();
    while client.goaway().is_none() && client.closed.is_none() {
        // Four requests are open at a time, one of them for a larger file.
        let open = asked
            .iter()
            .filter(|stream| !client.has_ended(**stream))
            .count();
        for n in open..4 {
            let path = if n == 0 { "/medium" } else { "/a.txt" };
            asked.push(client.send_request(&get(path)));
        }
        if asked.len() > 8 {
            has_begun.store(true, Ordering::Relaxed);
        }
        client.read(Duration::from_millis(5));
    }
    // The first GOAWAY excludes no request; the second has the id of the first request that is not answered.
    client.comes(Duration::from_secs(20), |client| {
        asked.iter().all(|stream| client.has_ended(*stream))
    });
    let last = client.goaway().unwrap_or(0);
    let is_lost = |stream: &&u64| !client.has_ended(**stream) && **stream < last;
    let lost = asked.iter().filter(is_lost).count();
    let answered = asked
        .iter()
        .filter(|stream| client.has_ended(**stream))
        .count();
    (answered, lost + usize::from(client.goaway().is_none()))
}

#[test]
fn no_request_of_clients_that_obey_goaway_is_lost_at_the_end() {
    // A client that leaves before the server has its last acknowledgement keeps the server until the idle timeout.
    let mut server = start("num-threads: 2\nhttp3-idle-timeout: 5", "");
    let port = server.port();
    let begun: Vec<AtomicBool> = (0..8).map(|_| AtomicBool::new(false)).collect();
    let results: Vec<(usize, usize)> = std::thread::scope(|scope| {
        let clients: Vec<_> = (begun.iter())
            .map(|begun| scope.spawn(move || ask_until_goaway(Quic::open(port), begun)))
            .collect();
        eventually("every client to have sent requests", || {
            begun
                .iter()
                .all(|begun| begun.load(Ordering::Relaxed))
                .then_some(())
        });
        server.terminate();
        clients
            .into_iter()
            .map(|client| {
                client
                    .join()
                    .expect("the thread of a client does not panic")
            })
            .collect()
    });
    let lost: usize = results.iter().map(|(_, lost)| lost).sum();
    assert_eq!(lost, 0, "{results:?}");
    assert!(
        results.iter().all(|(answered, _)| *answered >= 8),
        "{results:?}"
    );
    assert!(
        server.wait(Duration::from_secs(20)).success(),
        "{}",
        server.messages()
    );
}
