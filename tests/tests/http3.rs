//! HTTP/3 with a client made with the library aioquic.

use std::fs::Permissions;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;

use std::time::Duration;

use h2o_tests::{
    Backend, Folder, Server, Setup, Talk, certs, curl, eventually, free_port, run, tool,
};

fn start() -> Server {
    start_with("", "")
}

/// Starts a server with these directives at the global level and these attributes of its QUIC listener.
fn start_with(settings: &str, attributes: &str) -> Server {
    start_with_paths(settings, attributes, "")
}

/// As [`start_with`], with `paths` in addition to `/`.
fn start_with_paths(settings: &str, attributes: &str, paths: &str) -> Server {
    let large: String = (0..50_000).map(|n| format!("{n:07x} ")).collect();
    let settings = format!("num-threads: 2\n{settings}");
    let rest = format!(
        "{paths}\naccess-log: {{ path: @DIR@/access_log, format: '%m %U %H %s %b id=%{{http3.stream-id}}x v=%{{http3.quic-version}}x in=%{{http3.request-stream-bytes}}x waited=%{{http3.qpack-blocked}}x head=%{{request-header-count}}x/%{{request-header-text-bytes}}x/%{{request-header-bytes}}x sent=%{{response-header-count}}x/%{{response-header-text-bytes}}x %{{ssl.protocol-version}}x %{{ssl.negotiated-protocol}}x' }}"
    );
    Setup::http3(&settings, attributes, &rest)
        .file("www/hello.txt", "hello, world")
        .file("www/large", large)
        .start()
}

/// Runs one conversation of the client `http3.py`, which fails if the server does not answer as expected.
fn talk(server: &Server, conversation: &str, argument: Option<&str>) {
    talk_to(server, server.port(), conversation, argument);
}

/// As [`talk`], with a client that connects to another port.
fn talk_to(server: &Server, port: u16, conversation: &str, argument: Option<&str>) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/http3.py");
    let port = port.to_string();
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
    assert_eq!(behind[1], "waited=0", "{log}");
    assert_eq!(behind[4..].join(" "), "TLSv1.3 h3", "{log}");
}

#[test]
fn one_connection_carries_more_requests_than_streams_at_a_time() {
    talk(&start(), "many", None);
}

#[test]
fn incremental_responses_begin_in_their_turn_and_then_wait_for_the_others() {
    talk(&start(), "turns", None);
}

#[test]
fn the_rest_of_content_that_nobody_reads_is_not_wanted() {
    let backend = Backend::start(|talk| {
        while talk.read_request().is_some() {
            std::thread::sleep(Duration::from_secs(2));
            talk.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlate");
        }
    });
    let paths = format!(
        "
      /late: {{ proxy.reverse.url: {} }}",
        backend.url("/")
    );
    talk(&start_with_paths("", "", &paths), "stopped", None);
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
fn a_listener_that_a_reload_has_removed_can_be_added_again_while_clients_are_connected() {
    let server = start();
    let config = server.folder.read("h2o.conf");
    let (before, rest) = config
        .split_once("listen:\n  <<: *tls\n  type: quic\n")
        .expect("the configuration has a QUIC listener");
    let (held, again) = (server.folder.at("held"), server.folder.at("again"));
    let argument = format!("{},{}", held.display(), again.display());
    std::thread::scope(|scope| {
        scope.spawn(|| talk(&server, "while_listening_again", Some(&argument)));
        eventually("an open connection", || held.exists().then_some(()));
        server.folder.write("h2o.conf", format!("{before}{rest}"));
        server.reload();
        server.folder.write("h2o.conf", &config);
        server.reload();
        std::fs::write(&again, "").expect("the folder is writable");
    });
}

#[test]
fn clients_show_their_address_where_retry_is_on() {
    let server = start_with("", "quic: { retry: ON }");
    talk(&server, "retry", None);
    talk(&server, "tokens", None);
}

#[test]
fn settings_of_the_transport_serve_clients_and_those_without_effect_are_warned_of() {
    for settings in [
        "quic: { ecn: OFF, jumpstart-max: 100, amp-limit: 2, pacing: OFF, respect-app-limited: OFF }",
        "cc: cubic\n  quic: { ecn: 3, rapid-start: ON, jumpstart-default: 60, jumpstart-max: 100, non-resume-jumpstart-ratio: 200, resume-jumpstart-ratio: OFF, pacing: 250, respect-app-limited: 100 }",
    ] {
        let server = start_with("", settings);
        talk(&server, "files", None);
        let messages = server.messages();
        assert!(!messages.contains("[warning]"), "{messages}");
    }
    let attributes = "quic: { amp-limit: 7, rapid-start: ON, jumpstart-default: 20, pacing: OFF }";
    let server = start_with("", attributes);
    talk(&server, "files", None);
    for text in [
        "`amp-limit` is 1 to 3: 3 is used",
        "`rapid-start` has no effect without `cc: reno` or `cc: cubic`",
        "`jumpstart-default` has no effect with `pacing: OFF`",
    ] {
        let messages = server.messages();
        assert!(messages.contains(text), "{text}: {messages}");
    }
}

#[test]
fn attributes_of_quic_are_ignored_on_listeners_of_another_type() {
    let server = Setup::new(
        "listen: { host: 127.0.0.1, port: @PORT@, type: tcp, quic: { nonsense: ON } }\nhosts: { default: { paths: { /: { redirect: /a } } } }",
    )
    .start();
    assert_eq!(server.ask("GET /").code(), 302);
    let text = "in command listen, `quic` has no effect with `type: tcp`";
    assert!(server.messages().contains(text), "{}", server.messages());
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
        let want = format!("h3=\":{port}\"");
        assert_eq!(response.field("alt-svc"), Some(&*want), "{version}");
    }
}

/// A backend that sends back the content of each request, and the bytes of a WebSocket.
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
            Some(len) => talk.read_exactly(len.parse().expect("the text is a number")),
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

    // The log counts the bytes received on the stream: the content, the head and the frame headers.
    let log = server.folder.read("access_log");
    for (line, content) in log.lines().zip([0, 1, 1000, 65_536, 1_000_000]) {
        let (_, bytes) = line
            .split_once(" in=")
            .expect("the log format has the field `in=`");
        let (bytes, _) = bytes
            .split_once(' ')
            .expect("more fields follow `in=` in the log line");
        let bytes: usize = bytes.parse().expect("the text is a number");
        assert!(
            (content + 1..content + 300).contains(&bytes),
            "{content}: {line}"
        );
    }
    assert!(log.lines().count() >= 5, "{log}");
}

#[test]
fn content_behind_a_head_that_waits_for_the_table_is_not_lost() {
    let backend = Backend::start(echo);
    let server = start_before(&backend);
    talk(&server, "waiting_uploads", None);
    let log = server.folder.read("access_log");
    assert!(log.contains(" waited=1 "), "{log}");
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

/// Starts a server that tunnels UDP to the port ALLOWEDPORT of 127.0.0.1.
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
    // The log counts datagrams as content: the second tunnel carried 1, 100 and 1,000 bytes, each behind a context id of one byte.
    let log = server.read_until("access_log", "id=8");
    assert!(log.contains(" 200 1104 id=4 "), "{log}");
}

#[test]
fn the_draft_of_connect_udp_names_its_datagrams() {
    let server = start_for_udp();
    let port = server.port_of("ALLOWEDPORT").to_string();
    talk(&server, "udp_draft", Some(&port));
}

/// Two servers of a fleet, which have the same ticket keys, and their ports.
fn start_fleet() -> ([Server; 2], [u16; 2]) {
    // A port is chosen that is free for both TCP and UDP.
    let ports = [(); 2].map(|()| {
        loop {
            let port = free_port();
            if UdpSocket::bind(("127.0.0.1", port)).is_ok() {
                break port;
            }
        }
    });
    let key = format!(
        "- name: {}\n  cipher: AES-256-CBC\n  hash: SHA256\n  key: {}\n  not_before: 0\n  not_after: 9000000000\n",
        "07".repeat(16),
        "0a".repeat(96),
    );
    let servers = [(1, "one"), (2, "two")].map(|(number, name)| {
        let folder = Folder::new();
        certs::self_signed(&folder, "site", certs::Key::EcPkcs8, "localhost");
        let port = ports[number - 1];
        let config = format!(
            "
num-threads: {number}
ssl-session-resumption: {{ mode: ticket, ticket-store: file, ticket-file: @DIR@/tickets }}
quic-nodes: {{ self: {number}, mapping: {{ 1: '127.0.0.1:{}', 2: '127.0.0.1:{}' }} }}
listen: &tls
  host: 127.0.0.1
  port: {port}
  ssl: {{ certificate-file: @DIR@/site.crt, key-file: @DIR@/site.key }}
listen:
  <<: *tls
  type: quic
hosts:
  default:
    paths:
      /: {{ file.dir: @DIR@/www }}
",
            ports[0], ports[1],
        );
        let large: String = (0..50_000).map(|n| format!("{n:07x} ")).collect();
        Setup::in_folder(folder, &config)
            .file("tickets", &key)
            .file("www/who", name)
            .file("www/large", large)
            .start()
    });
    (servers, ports)
}

/// A relay of datagrams between one client at a time and two servers. Words that the client sends to it choose the server that gets the
/// next datagram. Returns the port of the relay.
fn relay(servers: [u16; 2]) -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    let port = socket.local_addr().expect("the socket is bound").port();
    std::thread::spawn(move || {
        let (mut datagram, mut client) = ([0; 2000], None);
        let (mut turns, mut server) = (false, 0);
        while let Ok((len, from)) = socket.recv_from(&mut datagram) {
            let bytes = &datagram[..len];
            match bytes {
                b"turn after each" => turns = true,
                b"stay" => turns = false,
                b"turn" => server = 1 - server,
                b"go to one" => (turns, server) = (false, 0),
                b"go to two" => (turns, server) = (false, 1),
                _ if servers.contains(&from.port()) => {
                    if let Some(client) = client {
                        let _ = socket.send_to(bytes, client);
                    }
                }
                _ => {
                    client = Some(from);
                    let _ = socket.send_to(bytes, ("127.0.0.1", servers[server]));
                    if turns {
                        server = 1 - server;
                    }
                }
            }
        }
    });
    port
}

#[test]
fn packets_that_reach_another_server_of_the_fleet_find_their_connection() {
    let (servers, ports) = start_fleet();
    talk_to(&servers[0], relay(ports), "nodes", None);
    for server in &servers {
        assert!(!server.messages().contains("panicked"));
    }
}

#[test]
fn only_servers_of_the_fleet_may_forward() {
    let ([server, other], [port, other_port]) = start_fleet();
    // The second server ends, and a socket of the client takes its port: the first server accepts forwarded packets from there only.
    drop(other);
    talk_to(&server, port, "forged", Some(&other_port.to_string()));
}

#[test]
fn a_fleet_without_common_keys_is_warned_of() {
    let server = start_with("quic-nodes: { self: 1, mapping: { 2: 192.0.2.2 } }", "");
    let messages = server.messages();
    let want = "the servers of `quic-nodes` cannot read each other's connection ids";
    assert!(messages.contains(want), "{messages}");
    talk(&server, "files", None);
}

#[test]
fn more_quic_connections_than_allowed_have_to_wait_and_tcp_has_not() {
    let server = start_with("max-quic-connections: 2", "");
    talk(&server, "most", None);
    let url = format!("https://localhost:{}/hello.txt", server.port());
    let certificate = server.folder.name_of("site.crt");
    let response = curl(&["--http2", "--cacert", &certificate, &url]);
    assert!(response.status.starts_with("200"), "{response:?}");
}

/// Number of UDP sockets that are bound to this port of 127.0.0.1.
fn udp_sockets(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/udp").expect("/proc exists on Linux");
    let address = format!(" 0100007F:{port:04X} ");
    table.lines().filter(|line| line.contains(&address)).count()
}

#[test]
fn as_many_threads_serve_quic_as_are_wanted() {
    let capped = "`num-quic-threads` is 5, but there are 2 threads: all of them serve QUIC";
    for (setting, sockets) in [("0", 2), ("1", 1), ("2", 2), ("5", 2)] {
        let server = start_with(&format!("num-quic-threads: {setting}"), "");
        assert_eq!(udp_sockets(server.port()), sockets, "{setting}");
        talk(&server, "files", None);
        let messages = server.messages();
        assert_eq!(messages.contains(capped), setting == "5", "{messages}");
    }
}

#[test]
fn connections_are_traced_where_that_is_wanted() {
    let server = start_with("", "quic: { qlog: @DIR@/www }");
    // The server may run as another user, who must be able to write traces into the directory.
    let directory = server.folder.name_of("www");
    std::fs::set_permissions(&directory, Permissions::from_mode(0o777))
        .expect("the test owns the file");
    talk(&server, "files", None);
    let traces = || -> Vec<_> {
        let entries = std::fs::read_dir(&directory).expect("the directory exists");
        let paths = entries.map(|entry| entry.expect("the entry can be read").path());
        paths
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "sqlog")
            })
            .collect()
    };
    let text = eventually("a trace with an end", || {
        let texts = traces().into_iter().map(std::fs::read_to_string);
        texts
            .flatten()
            .find(|text| text.contains("connection_closed"))
    });
    for name in [
        "connectivity:connection_started",
        "transport:datagrams_received",
        "transport:datagrams_sent",
        "recovery:metrics_updated",
        "connectivity:connection_closed",
    ] {
        assert!(text.contains(name), "{name}: {text}");
    }
    // Each record of the trace is a JSON text, and the records are in the order of time.
    let script = "import json,sys
records = [json.loads(record) for record in open(sys.argv[1]).read().split('\\x1e')[1:]]
assert records[0]['qlog_version'] == '0.3', records[0]
times = [record['time'] for record in records[1:]]
assert times == sorted(times) and len(times) > 10, times
print('ok')";
    for path in traces() {
        let path = path.to_str().expect("the bytes are UTF-8").to_owned();
        let checked = run("python3", &["-c", script, &path]);
        assert_eq!(checked.success(), b"ok\n");
    }
}

#[test]
fn a_trace_that_cannot_be_written_is_told_of_and_harms_nobody() {
    let server = start_with("", "quic: { qlog: @DIR@/missing }");
    talk(&server, "files", None);
    server.wait_for_message("cannot write the trace ");
}
