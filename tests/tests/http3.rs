//! HTTP/3, by a client on another's stack (aioquic).

use h2o_tests::{Backend, Folder, Server, Setup, Talk, certs, curl, run, tool};

fn start() -> Server {
    start_with("", "")
}

/// With settings of the global level, and attributes of the QUIC listener.
fn start_with(settings: &str, attributes: &str) -> Server {
    start_with_paths(settings, attributes, "")
}

/// As [`start_with`], with paths besides.
fn start_with_paths(settings: &str, attributes: &str, paths: &str) -> Server {
    let large: String = (0..50_000).map(|n| format!("{n:07x} ")).collect();
    let folder = Folder::new();
    certs::self_signed(&folder, "site", certs::Key::EcPkcs8, "localhost");
    let config = format!(
        "
{settings}
num-threads: 2
listen: &tls
  host: 127.0.0.1
  port: @PORT@
  ssl: {{ certificate-file: @DIR@/site.crt, key-file: @DIR@/site.key }}
listen:
  <<: *tls
  type: quic
  {attributes}
hosts:
  default:
    paths:
      /: {{ proxy.connect: [ '+127.0.0.1' ], file.dir: @DIR@/www }}
{paths}
access-log: {{ path: @DIR@/access_log, format: '%m %U %H %s %b id=%{{http3.stream-id}}x v=%{{http3.quic-version}}x in=%{{http3.request-stream-bytes}}x waited=%{{http3.qpack-blocked}}x %{{ssl.protocol-version}}x %{{ssl.negotiated-protocol}}x' }}
"
    );
    Setup::in_folder(folder, &config)
        .file("www/hello.txt", "hello, world")
        .file("www/large", large)
        .start()
}

/// Has a conversation, which must go as it should.
fn talk(server: &Server, conversation: &str, argument: Option<&str>) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/http3.py");
    let port = server.port().to_string();
    let mut args = vec![script, conversation, &port];
    args.extend(argument);
    let output = run(&tool("aioquic/bin/python3"), &args);
    assert!(
        output.code == 0 && output.text() == "ok\n",
        "{conversation}: {output}\n{}",
        server.messages()
    );
    assert!(
        !server.messages().contains("panicked"),
        "{}",
        server.messages()
    );
}

#[test]
fn files_arrive_whole() {
    let server = start();
    talk(&server, "files", None);
    let log = server.folder.read("access_log");
    let first = log.lines().next().unwrap_or_default();
    let fields: Vec<&str> = first.split(' ').collect();
    let (ahead, behind) = fields.split_at(7.min(fields.len()));
    assert_eq!(
        ahead.join(" "),
        "GET /hello.txt HTTP/3 200 12 id=0 v=1",
        "{log}"
    );
    assert_eq!(behind[1..].join(" "), "waited=0 TLSv1.3 h3", "{log}");
}

#[test]
fn one_connection_carries_more_requests_than_streams_at_a_time() {
    talk(&start(), "many", None);
}

#[test]
fn sessions_are_resumed_and_early_data_is_answered() {
    talk(&start(), "resumption", None);
}

#[test]
fn clients_may_change_keys() {
    talk(&start(), "key_update", None);
}

#[test]
fn a_connection_survives_a_change_of_the_clients_port() {
    talk(&start(), "migration", None);
}

#[test]
fn cancelled_responses_do_not_hold_up_others() {
    talk(&start(), "cancelled", None);
}

#[test]
fn nothing_under_way_is_lost_at_the_end() {
    let server = start();
    let pid = server.pid().to_string();
    talk(&server, "shutdown", Some(&pid));
}

#[test]
fn clients_show_their_address_where_retry_is_on() {
    talk(&start_with("", "quic: { retry: ON }"), "retry", None);
}

#[test]
fn settings_of_the_transport_serve_clients_and_those_that_are_rounded_are_warned_of() {
    let server = start_with(
        "",
        "quic: { ecn: OFF, jumpstart-max: 100, amp-limit: 2, pacing: OFF, respect-app-limited: OFF }",
    );
    talk(&server, "files", None);
    assert!(
        !server.messages().contains("[warning]"),
        "{}",
        server.messages()
    );

    let server = start_with("", "quic: { amp-limit: 7, ecn: 3, rapid-start: ON }");
    talk(&server, "files", None);
    for text in [
        "`amp-limit` is 1 to 3: 3 is used",
        "`ecn` is the same for all connections: `OFF` is used",
        "`rapid-start` other than OFF is not supported, and ignored",
    ] {
        assert!(
            server.messages().contains(text),
            "{text}: {}",
            server.messages()
        );
    }
}

#[test]
fn responses_of_every_version_tell_of_http3_and_headers_can_replace_that() {
    let paths = "
      /other: { file.dir: @DIR@/www, header.set: 'alt-svc: clear' }
      /without: { file.dir: @DIR@/www, header.unset: alt-svc }";
    let server = start_with_paths("", "", paths);
    talk(&server, "alternatives", None);
    let (port, certificate) = (server.port(), server.folder.name_of("site.crt"));
    for version in ["--http1.1", "--http2"] {
        let url = format!("https://localhost:{port}/hello.txt");
        let response = curl(&[version, "--cacert", &certificate, &url]);
        let want = format!("h3=\":{port}\"; ma=86400");
        assert_eq!(response.field("alt-svc"), Some(&*want), "{version}");
    }
}

/// Sends the content of requests back, and what comes through a WebSocket.
fn echo(talk: &mut Talk) {
    while let Some(request) = talk.read_head() {
        if request.field("upgrade").is_some() {
            talk.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
            while let Some(bytes) = talk.read_some() {
                talk.send(bytes);
            }
            return;
        }
        let content = match request.field("content-length") {
            Some(len) => talk.read_exactly(len.parse().expect("it is a number")),
            None => talk.read_chunks(),
        };
        let content = content.unwrap_or_default();
        talk.send(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
            content.len()
        ));
        talk.send(content);
    }
}

fn start_before(backend: &Backend) -> Server {
    let paths = format!(
        "
      /echo: {{ proxy.reverse.url: {url}, proxy.tunnel: ON }}",
        url = backend.url("/")
    );
    start_with_paths("", "", &paths)
}

#[test]
fn uploads_reach_backends_whole() {
    let backend = Backend::start(echo);
    let server = start_before(&backend);
    talk(&server, "uploads", None);

    // The log counts the bytes of the stream: the content, and some for the head and the frames.
    let log = server.folder.read("access_log");
    for (line, content) in log.lines().zip([0, 1, 1000, 65_536, 1_000_000]) {
        let (_, bytes) = line.split_once(" in=").expect("it is in the format");
        let (bytes, _) = bytes.split_once(' ').expect("more follows");
        let bytes: usize = bytes.parse().expect("a number");
        assert!(
            (content + 1..content + 300).contains(&bytes),
            "{content}: {line}"
        );
    }
    assert!(log.lines().count() >= 5, "{log}");
}

#[test]
fn tunnels_carry_bytes_both_ways_until_they_end() {
    let backend = Backend::start(echo);
    let plain = Backend::start(|talk| {
        while let Some(bytes) = talk.read_some() {
            talk.send(bytes);
        }
    });
    let argument = format!("127.0.0.1:{},/echo", plain.port());
    talk(&start_before(&backend), "tunnels", Some(&argument));
}

/// Tunnels for UDP to ALLOWEDPORT of this machine.
fn start_for_udp() -> Server {
    let paths = "
      /udp: { proxy.connect-udp: [ '+127.0.0.1:@ALLOWEDPORT@' ] }";
    start_with_paths("proxy.connect.masque-draft-03: ON", "", paths)
}

#[test]
fn udp_goes_through_datagrams_or_capsules() {
    let server = start_for_udp();
    let port = server.port_of("ALLOWEDPORT").to_string();
    talk(&server, "udp", Some(&port));
    // Datagrams count in the log as content: the second tunnel had 1, 100 and 1000 bytes, each behind a context identifier.
    let log = server.read_until("access_log", "id=8");
    assert!(log.contains(" 200 1104 id=4 "), "{log}");
}

#[test]
fn the_draft_of_connect_udp_names_its_datagrams() {
    let server = start_for_udp();
    let port = server.port_of("ALLOWEDPORT").to_string();
    talk(&server, "udp_draft", Some(&port));
}
