//! HTTP/3 between the proxy and real backends: Caddy, one made with aioquic, and servers without HTTP/3.

use std::net::UdpSocket;
use std::time::Duration;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Raw, Server, Service, Setup, curl, eventually, free_port, run};

use super::kit::{config, read_final};
use super::real::large;

/// A folder with a certificate for the backend.
fn folder() -> Folder {
    let folder = Folder::new();
    self_signed(&folder, "backend", Key::EcPkcs8, "127.0.0.1");
    folder
}

/// Starts a server that forwards requests over HTTP/3 to the backend at this port.
fn before(folder: &Folder, port: u16, settings: &str) -> Server {
    let ca = folder.at("backend.crt").display().to_string();
    let settings = format!(
        "proxy.http3.ratio: 100\nproxy.ssl.cafile: {ca}\naccess-log: {{ path: @DIR@/access_log, format: '%U \
         %s %{{proxy.ssl.protocol-version}}x %{{proxy.response.bytes}}x' }}\n{settings}"
    );
    Setup::new(&config(&settings, &format!("https://127.0.0.1:{port}/"))).start()
}

/// The configuration of a Caddy that answers with the protocol version at `/proto`, and serves files.
const CADDY: &str = "
    respond /proto {http.request.proto}
    root * @DIR@/www
    file_server
";

fn proto(server: &Server) -> String {
    curl(&[&server.url("/proto")]).text()
}

#[test]
fn caddy_is_asked_by_http3() {
    let folder = folder();
    folder.write("www/large", large());
    let port = free_port();
    let _caddy = Service::caddy(&folder, "backend", CADDY, port);
    let server = before(&folder, port, "");
    assert_eq!(proto(&server), "HTTP/3.0");
    let response = curl(&[&server.url("/large")]);
    assert!(response.body == large(), "{} bytes", response.body.len());
    let missing = curl(&[&server.url("/missing")]);
    assert_eq!(missing.code(), 404, "{}", server.messages());
    let log = server.read_until("access_log", "/missing");
    assert!(log.starts_with("/proto 200 TLSv1.3 "), "{log}");
}

#[test]
fn five_hundred_requests_at_a_time_are_answered() {
    let folder = folder();
    folder.write("www/large", large());
    let port = free_port();
    let _caddy = Service::caddy(&folder, "backend", CADDY, port);
    let server = before(&folder, port, "");
    let out = folder.make_dir("out");
    let out = format!("{}/#1", out.display());
    let options = [
        "--silent",
        "--show-error",
        "--fail",
        "--parallel",
        "--parallel-immediate",
        "--parallel-max",
        "500",
        "--range",
        "1000000-1019999",
        "--output",
        &out,
        &server.url("/large?[1-500]"),
    ];
    let _ = run("curl", &options).success();
    let large = large();
    for number in 1..=500 {
        let got = folder.read(&format!("out/{number}"));
        assert!(got.as_bytes() == &large[1_000_000..1_020_000], "{number}");
    }
}

#[test]
fn a_back_end_that_was_restarted_is_asked_again() {
    let folder = folder();
    let port = free_port();
    let caddy = Service::caddy(&folder, "backend", CADDY, port);
    let settings = "proxy.timeout.keepalive: 60000";
    let server = before(&folder, port, settings);
    assert_eq!(proto(&server), "HTTP/3.0");
    // A killed backend does not close its connections. The restarted one does not know them, so the proxy must find out.
    caddy.kill();
    let _caddy = Service::caddy(&folder, "backend", CADDY, port);
    assert_eq!(proto(&server), "HTTP/3.0", "{}", server.messages());
}

#[test]
fn without_quic_other_versions_are_used() {
    let folder = folder();
    let (_go, _, port) = Service::go(&folder, "backend");
    for (settings, want) in [("", "HTTP/2.0"), ("proxy.http2.ratio: 0", "HTTP/1.1")] {
        let server = before(&folder, port, settings);
        for _ in 0..3 {
            let told = curl(&[&server.url("/echo")]).text();
            assert!(told.contains(&format!("\"proto\":\"{want}\"")), "{told}");
        }
        server.wait_for_message("no HTTP/3 connection");
        let messages = server.messages();
        let warnings = messages.matches("HTTP/3 is not tried again for 10 seconds");
        assert_eq!(warnings.count(), 1, "{messages}");
    }
}

#[test]
fn a_certificate_is_verified_over_quic_as_over_tcp() {
    let folder = folder();
    let port = free_port();
    let _caddy = Service::caddy(&folder, "backend", CADDY, port);
    self_signed(&folder, "other", Key::EcPkcs8, "127.0.0.1");
    let ca = folder.at("other.crt").display().to_string();
    let settings = format!("proxy.http3.ratio: 100\nproxy.ssl.cafile: {ca}");
    let server = Setup::new(&config(&settings, &format!("https://127.0.0.1:{port}/"))).start();
    let response = curl(&[&server.url("/proto")]);
    assert_eq!(response.code(), 502, "{}", response.text());
    server.wait_for_message("no HTTP/3 connection");
}

#[test]
fn uploads_and_responses_come_whole() {
    let folder = folder();
    let (_backend, port) = Service::aioquic(&folder, "backend");
    let server = before(&folder, port, "");
    let path = folder.write("upload", large().repeat(3));
    let sum = run("sha256sum", &[&path.display().to_string()]).text();
    let sum = sum.split(' ').next().expect("sha256sum prints a hash");
    for chunked in [&[][..], &["--header", "transfer-encoding: chunked"]] {
        let upload = format!("@{}", path.display());
        let options = ["--data-binary", &upload, &server.url("/echo")];
        let told = curl(&[chunked, &options].concat()).text();
        assert_eq!(told, format!("9000000 {sum}"), "{chunked:?}");
    }
    let response = curl(&[&server.url("/large")]);
    let want = b"0123456789abcdef".repeat(200 * 1024);
    assert!(response.body == want, "{} bytes", response.body.len());
}

#[test]
fn trailers_and_interim_responses_are_forwarded() {
    let folder = folder();
    let (_backend, port) = Service::aioquic(&folder, "backend");
    let server = before(&folder, port, "send-informational: all");
    let section = h2o_tests::http2::encode(&[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/trailers"),
        (":authority", "www.example.com"),
        ("te", "trailers"),
    ]);
    let mut client = h2o_tests::http2::Http2::open(server.port(), &[]);
    client.send_frame(&h2o_tests::http2::Frame::request(1, section));
    let answer = client.read_answer(1);
    assert_eq!(
        (answer.status(), answer.text()),
        (200, "content".to_owned())
    );
    let want = [("x-checksum".to_owned(), "12".to_owned())];
    assert_eq!(answer.trailers, want);
    let mut raw = server.connect();
    raw.send("GET /early-hints HTTP/1.1\r\nhost: a\r\n\r\n");
    let first = raw.read_response("GET");
    assert_eq!(first.code(), 103);
    assert_eq!(first.field("link"), Some("</style.css>; rel=preload"));
    assert_eq!(read_final(&mut raw, "GET").text(), "after hints");
}

#[test]
fn slow_and_silent_back_ends_have_their_time() {
    let folder = folder();
    let (_backend, port) = Service::aioquic(&folder, "backend");
    let server = before(&folder, port, "proxy.timeout.first_byte: 3000");
    assert_eq!(curl(&[&server.url("/slow")]).text(), "late");
    let silent = curl(&[&server.url("/silent")]);
    assert_eq!(
        (silent.code(), silent.text()),
        (502, "first byte timeout".to_owned())
    );
    assert_eq!(curl(&[&server.url("/slow")]).text(), "late");
}

#[test]
fn resets_of_the_back_end_are_errors_of_their_request_alone() {
    let folder = folder();
    let (_backend, port) = Service::aioquic(&folder, "backend");
    let server = before(&folder, port, "");
    let ask = |path: &str| -> Raw {
        let mut raw = server.connect();
        raw.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
        raw
    };
    let reset = ask("/reset").read_response("GET");
    assert_eq!((reset.code(), reset.text()), (502, "I/O error".to_owned()));
    let options = ["--silent", "--output", "/dev/null", &server.url("/cut")];
    let cut = run("curl", &options);
    assert_eq!(cut.code, 18, "the response is broken off: {cut}");
    let refused = run("curl", &["--silent", "--http1.1", &server.url("/refuse")]);
    assert_eq!(refused.code, 52, "the client may ask again: {refused}");
    assert_eq!(
        curl(&[&server.url("/connection")]).text(),
        "1",
        "all requests used one connection"
    );
}

#[test]
fn an_upload_that_is_not_wanted_ends_with_its_response() {
    let folder = folder();
    let (_backend, port) = Service::aioquic(&folder, "backend");
    let server = before(&folder, port, "");
    let path = folder.write("upload", large());
    let upload = format!("@{}", path.display());
    for way in ["--http1.1", "--http2-prior-knowledge"] {
        let options = [way, "--data-binary", &upload, &server.url("/enough")];
        assert_eq!(curl(&options).text(), "enough", "{way}");
    }
    assert_eq!(curl(&[&server.url("/connection")]).text(), "1");
}

#[test]
fn after_goaway_another_connection_is_opened() {
    let folder = folder();
    let (_backend, port) = Service::aioquic(&folder, "backend");
    let server = before(&folder, port, "proxy.timeout.keepalive: 60000");
    assert_eq!(curl(&[&server.url("/connection")]).text(), "1");
    assert_eq!(curl(&[&server.url("/goaway")]).text(), "1");
    eventually("a request on a second connection", || {
        (curl(&[&server.url("/connection")]).text() == "2").then_some(())
    });
}

#[test]
fn a_back_end_that_dies_within_a_response_breaks_it_off() {
    let folder = folder();
    folder.write("www/large", large());
    let port = free_port();
    let caddy = Service::caddy(&folder, "backend", CADDY, port);
    let server = before(&folder, port, "proxy.max-buffer-size: 65536");
    let mut raw = server.connect();
    raw.send("GET /large HTTP/1.1\r\nhost: a\r\n\r\n");
    raw.read_head();
    // The rest of the response is longer than buffers and windows, so the killed backend cannot have sent it all.
    caddy.kill();
    let rest = raw.read_to_end();
    assert!(rest.len() < large().len(), "{} bytes", rest.len());
    eventually("a 502 for requests after the backend was killed", || {
        let response = curl(&[&server.url("/proto")]);
        (response.code() == 502 && response.text() == "connection refused").then_some(())
    });
}

/// What an HTTP/3 backend sends back through a tunnel for UDP comes in capsules, since the server takes no QUIC datagrams for it.
#[test]
fn udp_goes_both_ways_through_an_http3_backend() {
    let folder = folder();
    let far = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    far.set_read_timeout(Some(Duration::from_secs(20)))
        .expect("the time is not zero");
    let target = far.local_addr().expect("the socket is bound").port();
    let port = free_port();
    let (certificate, key) = (folder.at("backend.crt"), folder.at("backend.key"));
    let _backend = Setup::new(&format!(
        "listen: @PORT@
listen:
  type: quic
  host: 127.0.0.1
  port: {port}
  ssl: {{ certificate-file: {}, key-file: {} }}
hosts:
  default: {{ paths: {{ /udp: {{ proxy.connect-udp: [ '+127.0.0.1:{target}' ] }} }} }}
",
        certificate.display(),
        key.display()
    ))
    .start();
    let server = before(&folder, port, "proxy.tunnel: ON");
    let mut connection = server.connect();
    connection.send(format!(
        "GET /udp/127.0.0.1/{target}/ HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\nCapsule-Protocol: ?1\r\n\r\n"
    ));
    assert_eq!(connection.read_head().code(), 101);
    for _ in 0..3 {
        connection.send(b"\0\x05\0ping");
        let mut datagram = [0; 100];
        let (len, near) = far.recv_from(&mut datagram).expect("the bytes arrive");
        assert_eq!(&datagram[..len], b"ping");
        far.send_to(b"pong!", near)
            .expect("the address of the sender can be reached");
        assert_eq!(connection.read_exactly(8), b"\0\x06\0pong!");
    }
}

#[test]
fn a_backend_that_allows_no_request_at_first_is_waited_for() {
    let folder = folder();
    let (_backend, port) = Service::aioquic_with(&folder, "backend", &["late"]);
    let server = before(&folder, port, "");
    let answers = std::thread::scope(|scope| {
        let ask = || curl(&[&server.url("/connection")]).text();
        let asked = [(); 5].map(|()| scope.spawn(ask));
        asked.map(|answer| answer.join().expect("curl gets an answer"))
    });
    assert_eq!(answers, ["1"; 5], "{}", server.messages());
}
