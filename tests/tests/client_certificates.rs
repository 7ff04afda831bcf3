//! Hosts that require client certificates (`client-ca-file`) beside hosts that do not, at one address.

use h2o_tests::certs::{Key, client, self_signed};
use h2o_tests::{Folder, Output, Server, Setup, run, run_with_input};

/// Makes certificates for two hosts, one client certificate, and the files that the hosts serve.
fn folder() -> Folder {
    let folder = Folder::new();
    self_signed(&folder, "open", Key::EcPkcs8, "open.test");
    self_signed(&folder, "closed", Key::EcPkcs8, "closed.test");
    self_signed(&folder, "ca", Key::EcPkcs8, "Client CA");
    client(&folder, "friend", "ca");
    folder.write("open/page", "for everybody");
    folder.write("closed/page", "for friends");
    folder
}

/// The configuration of one host. `ssl` has attributes of its listener besides the certificate.
fn host(name: &str, certificate: &str, ssl: &str, paths: &str) -> String {
    format!(
        "  '{name}':
    listen:
      port: @PORT@
      ssl:
        certificate-file: @DIR@/{certificate}.crt
        key-file: @DIR@/{certificate}.key
{ssl}    paths:
      /: {{ file.dir: @DIR@/{} }}
{paths}",
        name.split('.').next().unwrap_or_default(),
    )
}

const CA: &str = "        client-ca-file: @DIR@/ca.crt\n";

fn two_hosts() -> Server {
    let inside = "      /inside: { redirect: { url: 'https://closed.test:@PORT@/page', status: 302, internal: YES } }\n";
    let config = format!(
        "hosts:\n{}{}",
        host("open.test:@PORT@", "open", "", inside),
        host("closed.test:@PORT@", "closed", CA, "")
    );
    Setup::in_folder(folder(), &config).start()
}

/// Requests `page` of the host `name` with curl. The output is the content, `:` and the status.
fn ask(server: &Server, name: &str, page: &str, args: &[&str]) -> Output {
    let port = server.port();
    let resolve = format!("{name}:{port}:127.0.0.1");
    let url = format!("https://{name}:{port}{page}");
    let fixed = ["-sSk", "--max-time", "30", "-w", "%{http_code}:"];
    let tail = ["--resolve", &resolve, &url, "-o", "-"];
    run("curl", &[&fixed[..], args, &tail].concat())
}

/// The status that curl printed; `000` if there was no response.
fn status(output: &Output) -> String {
    let text = output.text();
    let end = text.rfind(':').unwrap_or_else(|| panic!("{output}"));
    let start = end.saturating_sub(3);
    text[start..end].to_owned()
}

#[test]
fn a_host_with_client_ca_file_is_not_reached_through_another_name() {
    let server = two_hosts();
    let friend = server.folder.name_of("friend.crt");
    let key = server.folder.name_of("friend.key");
    let shown: &[&str] = &["--cert", &friend, "--key", &key];
    let closed = format!("Host: closed.test:{}", server.port());
    for version in ["--http1.1", "--http2"] {
        let ask = |name: &str, args: &[&str]| {
            let args = [&[version], args].concat();
            ask(&server, name, "/page", &args)
        };
        // Each host answers on a connection with its own SNI name; closed.test does so only if the client presents a certificate.
        assert_eq!(ask("open.test", &[]).text(), "for everybody200:");
        assert_eq!(ask("closed.test", shown).text(), "for friends200:");
        assert_eq!(status(&ask("closed.test", &[])), "000");
        // Requests for closed.test are refused on connections with the SNI name open.test, and on those without SNI: curl sends no SNI
        // for an address.
        for name in ["open.test", "127.0.0.1"] {
            let output = ask(name, &["-H", &closed]);
            assert_eq!(status(&output), "421", "{version} {name}: {output}");
            assert!(!output.text().contains("for friends"), "{output}");
        }
        // A client certificate does not help if the handshake was for open.test, which does not ask for one.
        let output = ask("open.test", &[&["-H", &closed], shown].concat());
        assert_eq!(status(&output), "421", "{version}: {output}");
        // A client that presented its certificate to closed.test may request pages of open.test on that connection.
        let open = format!("Host: open.test:{}", server.port());
        let output = ask("closed.test", &[&["-H", &open], shown].concat());
        assert_eq!(output.text(), "for everybody200:");
    }
}

#[test]
fn certificates_that_openssl_accepts_are_accepted() {
    let folder = folder();
    let at = |name: &str| folder.name_of(name);
    let openssl = |args: &[&str]| drop(run("openssl", args).success());
    // A request without extensions becomes a certificate of version 1.
    let subject = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        "/CN=x",
    ];
    let old = ["-keyout", &at("old.key"), "-out", &at("old.csr")];
    openssl(&[&["req"][..], &subject, &old].concat());
    let by = [
        "-CA",
        &at("ca.crt"),
        "-CAkey",
        &at("ca.key"),
        "-CAcreateserial",
    ];
    let signed = [
        "x509",
        "-req",
        "-in",
        &at("old.csr"),
        "-out",
        &at("old.crt"),
    ];
    openssl(&[&signed[..], &by].concat());
    // A certificate that a client has signed itself, in the file; and one with the same name and another key, which is not.
    for name in ["own", "other"] {
        let files = [
            "-keyout",
            &at(&format!("{name}.key")),
            "-out",
            &at(&format!("{name}.crt")),
        ];
        openssl(&[&["req", "-x509"][..], &subject, &files].concat());
    }
    let list = folder.read("ca.crt") + &folder.read("own.crt");
    folder.write("ca.crt", list);
    let config = format!("hosts:\n{}", host("closed.test:@PORT@", "closed", CA, ""));
    let server = Setup::in_folder(folder, &config).start();
    for version in ["1.2", "1.3"] {
        for (name, want) in [
            ("friend", "200"),
            ("old", "200"),
            ("own", "200"),
            ("other", "000"),
        ] {
            let certificate = server.folder.name_of(&format!("{name}.crt"));
            let key = server.folder.name_of(&format!("{name}.key"));
            let args = ["--tls-max", version, "--cert", &certificate, "--key", &key];
            let output = ask(&server, "closed.test", "/page", &args);
            assert_eq!(status(&output), want, "{version} {name}: {output}");
        }
    }
}

#[test]
fn a_later_request_of_a_connection_does_not_reach_a_host_with_client_ca_file() {
    let server = two_hosts();
    let port = server.port();
    let address = format!("127.0.0.1:{port}");
    let request = format!(
        "GET /page HTTP/1.1\r\nHost: open.test:{port}\r\n\r\nGET /page HTTP/1.1\r\nHost: closed.test:{port}\r\nConnection: close\r\n\r\n"
    );
    for name in [&["-servername", "open.test"][..], &["-noservername"]] {
        let args = ["s_client", "-quiet", "-ign_eof", "-connect", &address];
        let output = run_with_input("openssl", &[&args[..], name].concat(), &request);
        let text = output.text();
        assert!(
            text.contains("HTTP/1.1 200 OK") && text.contains("HTTP/1.1 421 Misdirected Request"),
            "{output}"
        );
        assert!(!text.contains("for friends"), "{output}");
    }
}

#[test]
fn an_internal_redirect_does_not_reach_a_host_with_client_ca_file() {
    let server = two_hosts();
    let output = ask(&server, "open.test", "/inside", &[]);
    assert_eq!(status(&output), "421", "{output}");
    let friend = server.folder.name_of("friend.crt");
    let key = server.folder.name_of("friend.key");
    let closed = format!("Host: open.test:{}", server.port());
    let args = ["--cert", &friend, "--key", &key, "-H", &closed];
    let output = ask(&server, "closed.test", "/inside", &args);
    assert_eq!(output.text(), "for friends200:");
}

#[test]
fn host_without_authority_does_not_reach_a_host_with_client_ca_file() {
    // A client that sends one HTTP/2 request on stream 1, with fields as literals without Huffman coding, and reads until the stream ends.
    const CLIENT: &str = r#"
import socket, ssl, struct, sys
context = ssl._create_unverified_context()
context.set_alpn_protocols(["h2"])
port, name = int(sys.argv[1]), sys.argv[2] or None
tls = context.wrap_socket(socket.create_connection(("127.0.0.1", port), 30), server_hostname=name)
def frame(kind, flags, stream, payload):
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload
def text(content):
    return bytes([len(content)]) + content
fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/page"), (b"host", sys.argv[3].encode())]
block = b"".join(b"\0" + text(name) + text(value) for name, value in fields)
tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 5, 1, block))
buffer = b""
def read(count):
    global buffer
    while len(buffer) < count:
        piece = tls.recv(65536)
        if not piece:
            sys.exit("closed")
        buffer += piece
    taken, buffer = buffer[:count], buffer[count:]
    return taken
while True:
    head = read(9)
    payload = read(int.from_bytes(head[:3], "big"))
    if head[3] == 0:
        sys.stdout.write(payload.decode())
    if head[5:] == b"\0\0\0\1" and head[4] & 1:
        break
"#;
    let server = two_hosts();
    let port = server.port().to_string();
    for (name, host, want) in [
        ("open.test", "open.test", "for everybody"),
        (
            "open.test",
            "closed.test",
            "this host requires a client certificate",
        ),
        ("", "closed.test", "this host requires a client certificate"),
    ] {
        let host = format!("{host}:{port}");
        let output = run("python3", &["-c", CLIENT, &port, name, &host]);
        assert!(
            output.code == 0 && output.text().starts_with(want),
            "{name} {host}: {output}"
        );
    }
}

#[test]
fn a_global_listener_with_client_ca_file_is_not_opened_by_a_host_with_its_own_certificate() {
    let global = "listen:
  port: @PORT@
  ssl:
    certificate-file: @DIR@/closed.crt
    key-file: @DIR@/closed.key
    client-ca-file: @DIR@/ca.crt
";
    let config = format!(
        "{global}hosts:\n{}  'closed.test:@PORT@':\n    paths: {{ /: {{ file.dir: @DIR@/closed }} }}\n",
        host("open.test:@PORT@", "open", "", "")
    );
    let server = Setup::in_folder(folder(), &config).start();
    let closed = format!("Host: closed.test:{}", server.port());
    assert_eq!(
        ask(&server, "open.test", "/page", &[]).text(),
        "for everybody200:"
    );
    assert_eq!(status(&ask(&server, "closed.test", "/page", &[])), "000");
    let output = ask(&server, "open.test", "/page", &["-H", &closed]);
    assert_eq!(status(&output), "421", "{output}");
    let friend = server.folder.name_of("friend.crt");
    let key = server.folder.name_of("friend.key");
    let shown = ["--cert", &friend, "--key", &key];
    let output = ask(&server, "closed.test", "/page", &shown);
    assert_eq!(output.text(), "for friends200:");
}

/// What the server writes when it refuses to start with this configuration.
fn refusal(config: &str) -> String {
    let started = Setup::in_folder(folder(), config).try_start();
    let refused = started.expect_err("the server must refuse the configuration");
    assert_eq!(refused.code, Some(78), "{}", refused.stderr);
    refused.stderr
}

#[test]
fn client_ca_file_is_not_dropped_for_a_certificate_that_is_known_already() {
    let with = |first: &str, second: &str| {
        format!(
            "hosts:\n{}{}",
            host("open.test", "open", first, ""),
            host("closed.test", "open", second, "")
        )
    };
    let text = refusal(&with("", CA));
    assert!(
        text.contains("/h2o.conf:16] in command listen, the `ssl` at ")
            && text.contains("/h2o.conf:6 has the same address and is used for this host as well")
            && text
                .contains("that `ssl` has no `client-ca-file`, this `ssl` has `client-ca-file: /"),
        "{text}"
    );
    let text = refusal(&with(CA, ""));
    assert!(
        text.contains("/h2o.conf:15] in command listen, the `ssl` at ")
            && text.contains("ca.crt`, this `ssl` has no `client-ca-file`"),
        "{text}"
    );
    // A host that is configured with two certificates at one address uses the first.
    let twice = "hosts:
  closed.test:
    listen:
      - port: @PORT@
        ssl: { certificate-file: @DIR@/open.crt, key-file: @DIR@/open.key }
      - port: @PORT@
        ssl: { certificate-file: @DIR@/closed.crt, key-file: @DIR@/closed.key, client-ca-file: @DIR@/ca.crt }
    paths: { /: { file.dir: @DIR@/closed } }
";
    let text = refusal(twice);
    assert!(text.contains("/h2o.conf:7] in command listen, "), "{text}");

    // Two hosts may share a certificate if both require client certificates of the same authority.
    let server = Setup::in_folder(folder(), &with(CA, CA)).start();
    assert_eq!(status(&ask(&server, "open.test", "/page", &[])), "000");
    assert_eq!(status(&ask(&server, "closed.test", "/page", &[])), "000");
    assert!(
        !server.messages().contains("has no effect"),
        "{}",
        server.messages()
    );
}

#[test]
fn attributes_that_have_no_effect_are_not_dropped_without_a_word() {
    let second =
        "        min-version: TLSv1.3\n        max-tickets: 4\n        cipher-preference: server\n";
    let config = format!(
        "hosts:\n{}{}",
        host("open.test", "open", "", ""),
        host("closed.test", "open", second, "")
    );
    let server = Setup::in_folder(folder(), &config).start();
    let messages = server.messages();
    let warnings: Vec<_> = messages
        .lines()
        .filter(|line| line.contains("[warning]") && line.contains("has no effect"))
        .collect();
    assert_eq!(warnings.len(), 2, "{messages}");
    assert!(
        warnings[0].contains("/h2o.conf:16] in command listen, `min-version` has no effect")
            && warnings[1].contains("/h2o.conf:18] in command listen, `cipher-preference` has"),
        "{messages}"
    );
}
