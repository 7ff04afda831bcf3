//! Clients whose SNI is not a valid host name: the server treats them as clients without SNI.

use h2o_tests::certs::{Key, client, self_signed};
use h2o_tests::{Folder, Output, Server, Setup, run_with_input};

const REQUEST: &str = "GET /hello.txt HTTP/1.1\r\nHost: second.test\r\nConnection: close\r\n\r\n";

/// Names that clients send as SNI, and that rustls does not accept as host names.
const ODD: [&str; 14] = [
    "localhost:8443",
    "second.test:443",
    "*.example.com",
    "-bad.example",
    "bad-.example",
    "a..b",
    "b\u{fc}cher.example",
    "a b",
    ".",
    ".leading",
    "[::1]",
    "a/b",
    "user@host",
    "a-label-of-more-than-sixty-three-bytes-which-no-name-in-the-dns-can-have.test",
];

/// Starts a server with two hosts with a certificate each; `first` has further attributes of the first host's `ssl`, one in a line.
fn start(first: &str, global: &str) -> Server {
    let folder = Folder::new();
    self_signed(&folder, "first", Key::EcPkcs8, "first.test");
    self_signed(&folder, "second", Key::RsaPkcs8, "second.test");
    self_signed(&folder, "ca", Key::EcPkcs8, "Client CA");
    client(&folder, "friend", "ca");
    let host = |name: &str, ssl: &str| {
        let ssl: String = ssl
            .lines()
            .map(|line| format!("\n        {line}"))
            .collect();
        format!(
            "  '{name}.test':
    listen:
      port: @PORT@
      ssl:
        certificate-file: @DIR@/{name}.crt
        key-file: @DIR@/{name}.key{ssl}
    paths: {{ /: {{ file.dir: @DIR@/www }} }}
"
        )
    };
    let hosts = format!(
        "{global}\nhosts:\n{}{}",
        host("first", first),
        host("second", "")
    );
    Setup::in_folder(folder, &hosts)
        .file("www/hello.txt", "hello")
        .start()
}

fn s_client(server: &Server, args: &[&str], request: &str) -> Output {
    let address = format!("127.0.0.1:{}", server.port());
    let fixed = ["s_client", "-ign_eof", "-connect", &address];
    run_with_input("openssl", &[&fixed[..], args].concat(), request)
}

/// Makes a handshake with this SNI, which must succeed, and requests the file. Returns what `openssl s_client` prints.
fn talk(server: &Server, name: &str, args: &[&str]) -> String {
    let output = s_client(server, &[&["-servername", name], args].concat(), REQUEST);
    let text = output.text();
    assert!(
        output.code == 0 && text.contains("HTTP/1.1 200 OK") && text.contains("hello"),
        "{name} {args:?}: {output}"
    );
    text
}

#[test]
fn names_that_are_none_do_not_end_a_handshake() {
    let server = start("", "");
    for version in ["-tls1_2", "-tls1_3"] {
        for name in ODD {
            let text = talk(&server, name, &[version]);
            let subject = text.replace(' ', "");
            // The client gets the certificate that clients without SNI get, even if the name contains that of a host.
            assert!(
                subject.contains("subject=CN=first.test\n"),
                "{name}: {text}"
            );
        }
        // A valid name still gets the certificate of its host.
        let text = talk(&server, "second.test", &[version]).replace(' ', "");
        assert!(text.contains("subject=CN=second.test\n"), "{text}");
    }
}

#[test]
fn names_of_any_bytes_do_not_end_a_handshake() {
    let server = start("", "");
    let address = format!("127.0.0.1:{}", server.port());
    for bytes in [r"b\374cher.test", r"\001\377", r"\200"] {
        for version in ["-tls1_2", "-tls1_3"] {
            let script = format!(
                "exec openssl s_client -ign_eof -connect {address} {version} -servername \"$(printf '{bytes}')\""
            );
            let output = run_with_input("sh", &["-c", &script], REQUEST);
            assert!(
                output.text().contains("HTTP/1.1 200 OK"),
                "{bytes} {version}: {output}"
            );
        }
    }
}

#[test]
fn names_that_are_none_do_not_end_a_handshake_after_a_retry() {
    let server = start("key-exchange-tls1.3: [ secp384r1 ]", "");
    for name in ODD {
        // The client's key share is for X25519, which this server does not use, so the handshake needs a HelloRetryRequest.
        let text = talk(&server, name, &["-tls1_3", "-groups", "X25519:P-384"]);
        assert!(text.contains("secp384r1"), "{name}: {text}");
    }
    let trace = talk(
        &server,
        ODD[0],
        &["-tls1_3", "-groups", "X25519:P-384", "-msg"],
    );
    assert_eq!(trace.matches(", ClientHello").count(), 2, "{trace}");
}

#[test]
fn names_that_are_none_do_not_prevent_resumption() {
    let server = start("", "");
    let session = server.folder.name_of("session");
    for (version, option) in [
        ("-tls1_3", &[][..]),
        ("-tls1_2", &[]),
        ("-tls1_2", &["-no_ticket"]),
    ] {
        for name in [ODD[0], ODD[6]] {
            let args = [&[version], option].concat();
            let first = talk(
                &server,
                name,
                &[&args[..], &["-sess_out", &session]].concat(),
            );
            assert!(first.contains("New, TLS"), "{first}");
            let second = talk(
                &server,
                name,
                &[&args[..], &["-sess_in", &session]].concat(),
            );
            assert!(second.contains("Reused, TLS"), "{version} {name}: {second}");
            // A session of a client whose SNI is not a DNS name can be resumed by a client without SNI, too.
            let args = [&["-noservername", "-sess_in", &session], &args[..]].concat();
            let third = s_client(&server, &args, REQUEST).text();
            assert!(
                third.contains("200 OK") && third.contains("Reused, TLS"),
                "{third}"
            );
        }
    }
    // Resumption also works after a HelloRetryRequest, where the PSK binder covers both ClientHello messages.
    let server = start("key-exchange-tls1.3: [ secp384r1 ]", "");
    let session = server.folder.name_of("session");
    let args = ["-tls1_3", "-groups", "X25519:P-384"];
    let _ = talk(
        &server,
        ODD[0],
        &[&args[..], &["-sess_out", &session]].concat(),
    );
    let text = talk(
        &server,
        ODD[0],
        &[&args[..], &["-sess_in", &session]].concat(),
    );
    assert!(text.contains("Reused, TLSv1.3"), "{text}");
}

#[test]
fn names_that_are_none_do_not_prevent_early_data() {
    let server = start("", "");
    let session = server.folder.name_of("session");
    let early = server.folder.name_of("early");
    server.folder.write("early", REQUEST);
    let _ = talk(&server, ODD[0], &["-tls1_3", "-sess_out", &session]);
    let args = [
        "-tls1_3",
        "-servername",
        ODD[0],
        "-sess_in",
        &session,
        "-early_data",
        &early,
    ];
    let text = s_client(&server, &args, "").text();
    assert!(
        text.contains("Early data was accepted") && text.contains("HTTP/1.1 200 OK"),
        "{text}"
    );
}

#[test]
fn names_that_are_none_do_not_let_clients_in_without_a_certificate() {
    let server = start("client-ca-file: @DIR@/ca.crt", "");
    let [friend, key] = ["friend.crt", "friend.key"].map(|name| server.folder.name_of(name));
    // Clients without SNI get the host first.test.
    let request = REQUEST.replace("second.test", "first.test");
    for version in ["-tls1_2", "-tls1_3"] {
        for name in ODD {
            let args = [version, "-servername", name, "-cert", &friend, "-key", &key];
            let output = s_client(&server, &args, &request);
            assert!(
                output.text().contains("HTTP/1.1 200 OK"),
                "{version} {name}: {output}"
            );
        }
        let args = [version, "-servername", ODD[0]];
        let output = s_client(&server, &args, &request);
        assert!(!output.text().contains("HTTP/1.1 "), "{output}");
    }
}

#[test]
fn names_that_are_none_are_taken_from_messages_in_pieces() {
    let server = start("", "");
    // The ClientHello is so long that it needs several records of 512 bytes.
    let protocols: Vec<String> = (0..60).map(|n| format!("protocol-number-{n}")).collect();
    let protocols = format!("{},http/1.1", protocols.join(","));
    for version in ["-tls1_2", "-tls1_3"] {
        let args = [
            version,
            "-alpn",
            &protocols,
            "-max_send_frag",
            "512",
            "-msg",
        ];
        let text = talk(&server, ODD[0], &args);
        assert!(text.contains("ALPN protocol: http/1.1"), "{text}");
        let hello = text.find("ClientHello").unwrap_or_default();
        let records = text[..hello].matches(">>> TLS 1.0, RecordHeader").count();
        assert!(records > 1, "{text}");
    }
}

#[test]
fn names_that_are_none_are_not_logged_as_server_names() {
    let server = start(
        "",
        "access-log: { path: @DIR@/log, format: '%{ssl.server-name}x' }",
    );
    let _ = talk(&server, ODD[0], &[]);
    let _ = talk(&server, "second.test", &[]);
    assert_eq!(
        server.read_until("log", "second.test\n"),
        "-\nsecond.test\n"
    );
}
