//! TLS handshakes that fail or are never completed: the memory they take, and what is logged of them.

use h2o_tests::certs::{Key, client, self_signed};
use h2o_tests::{Folder, Server, Setup, openssl, run};

/// Starts a server whose listener uses TLS. `global` has directives of the global level, `ssl` further attributes of `ssl`.
fn start(global: &str, ssl: &str) -> Server {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "a.test");
    self_signed(&folder, "ca", Key::EcPkcs8, "Client CA");
    client(&folder, "friend", "ca");
    let config = format!(
        "{global}
num-threads: 1
listen:
  port: @PORT@
  ssl: {{ certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key{ssl} }}
hosts:
  default:
    paths:
      /: {{ file.dir: @DIR@ }}
"
    );
    Setup::in_folder(folder, &config).start()
}

/// The server's messages about TLS handshakes.
fn failures(server: &Server) -> Vec<String> {
    let messages = server.messages();
    let lines = messages
        .lines()
        .filter(|line| line.contains("TLS handshake"));
    lines.map(str::to_owned).collect()
}

#[test]
fn handshakes_that_are_never_completed_do_not_escape_max_memory() {
    // A script with forty clients that each send some 70,000 bytes of a handshake, until the server has closed all but a few of them.
    const CLIENT: &str = r#"
import select, socket, ssl, sys, time
mode, port = sys.argv[1], int(sys.argv[2])
message = b"\1\0\xff\xff" + bytes(70000)
def hello(size):
    pieces = [message[at:at + size] for at in range(0, 65000, size)]
    return b"".join(b"\x16\3\1" + len(piece).to_bytes(2, "big") + piece for piece in pieces)
def connect():
    return socket.create_connection(("127.0.0.1", port), 30)
def begin():
    tcp = connect()
    try:
        if mode == "small":
            tcp.sendall(hello(16))
        elif mode == "large":
            tcp.sendall(hello(16384))
        else:
            # Most of one record after another handshake: four of these are as much as one of the others.
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = ssl._create_unverified_context().wrap_bio(incoming, outgoing)
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    tcp.sendall(outgoing.read())
                    incoming.write(tcp.recv(65536))
            tls.write(bytes(16384))
            tcp.sendall(outgoing.read()[:-1])
    except (ConnectionError, ssl.SSLError):
        pass
    return tcp
count = 40 if mode in ("small", "large") else 160
clients = [begin() for _ in range(count)]
poll = select.poll()
for client in clients:
    poll.register(client, select.POLLRDHUP)
limit = time.monotonic() + 20
while len(poll.poll(1000)) < count / 2:
    if time.monotonic() > limit:
        sys.exit("most are open")
    time.sleep(0.01)
"#;
    let server = start(
        "max-memory: 1048576
handshake-timeout: 100
http1-request-timeout: 100
http1-request-io-timeout: 100",
        "",
    );
    let port = server.port().to_string();
    for mode in ["small", "large", "record"] {
        let output = run("python3", &["-c", CLIENT, mode, &port]);
        assert_eq!(output.code, 0, "{mode}: {output}");
    }
}

#[test]
fn a_failed_handshake_is_not_missing_from_the_error_log() {
    let server = start(
        "handshake-timeout: 1",
        ", client-ca-file: @DIR@/ca.crt, min-version: TLSv1.2",
    );
    let address = format!("127.0.0.1:{}", server.port());
    let attempt = |args: &[&str]| {
        let fixed = ["s_client", "-connect", &address];
        let _ = openssl(&[&fixed[..], args].concat());
    };
    attempt(&["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"]);
    server.wait_for_message("failed: the client offers TLS 1.1 at most");
    attempt(&["-tls1_2"]);
    server.wait_for_message("failed: peer sent no certificates");
    // A client that does not trust the server's certificate sends an alert that says so.
    let [friend, key] = ["friend.crt", "friend.key"].map(|name| server.folder.name_of(name));
    attempt(&[
        "-verify_return_error",
        "-verify",
        "1",
        "-cert",
        &friend,
        "-key",
        &key,
    ]);
    server.wait_for_message("failed: peer sent TLS alert 48 (UnknownCA)");
    // Clients that send the beginning of a handshake and then stay silent, or close the connection.
    let mut silent = server.connect();
    silent.send([22, 3, 1, 0, 200, 1]);
    server.wait_for_message("failed: handshake-timeout has passed");
    let mut gone = server.connect();
    gone.send([22, 3, 1, 0, 200, 1]);
    gone.finish();
    server.wait_for_message("failed: the client closed the connection");
    for line in failures(&server) {
        assert!(line.contains("TLS handshake with 127.0.0.1:"), "{line}");
    }
    // A connection on which the client sends nothing before it ends is not logged.
    let count = failures(&server).len();
    assert!(server.connect().read_to_end().is_empty());
    drop(server.connect());
    attempt(&["-tls1_2"]);
    assert_eq!(failures(&server).len(), count + 1);
}

#[test]
fn a_flood_of_failed_handshakes_does_not_flood_the_error_log() {
    let server = start("", "");
    for _ in 0..300 {
        let mut client = server.connect();
        client.send([22, 3, 1, 0xff, 0xff]);
        let _ = client.read_to_end();
    }
    let lines = failures(&server);
    // The server logs at most twenty failures a minute; a minute may have ended while the clients failed.
    assert!((20..=40).contains(&lines.len()), "{lines:#?}");
}

#[test]
fn connections_whose_handshake_is_not_completed_take_no_number() {
    let server = start(
        "access-log: { path: @DIR@/log, format: '%{connection-id}x' }\nhandshake-timeout: 1",
        "",
    );
    let url = format!("https://127.0.0.1:{}/", server.port());
    let ask = || {
        let _ = run("curl", &["-sk", &url]);
    };
    ask();
    // Four clients: one sends nothing, one the beginning of a handshake, one a wrong handshake, and one closes the connection halfway.
    let silent = server.connect();
    let mut begun = server.connect();
    begun.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc");
    let mut wrong = server.connect();
    wrong.send(b"\x16\x03\x01\x00\x04\x0b\x00\x00\x00");
    let _ = wrong.read_to_end();
    drop((silent, begun));
    ask();
    assert_eq!(server.read_until("log", "2"), "1\n2\n");
}
