//! TLS, tested with `openssl s_client` and curl.

use h2o_tests::certs::{Key, client, key, self_signed};
use h2o_tests::{Folder, Output, Server, Setup, curl, openssl, run, run_with_input};

const HOSTS: &str = "
hosts:
  default:
    paths: { /: { file.dir: @DIR@/www } }
";

/// Starts a server with one TLS listener. `ssl` has further attributes of `ssl` besides the certificate, one in a line.
fn start(kind: Key, ssl: &str, global: &str) -> Server {
    let folder = Folder::new();
    self_signed(&folder, "server", kind, "www.example.com");
    start_in(folder, ssl, global)
}

fn start_in(folder: Folder, ssl: &str, global: &str) -> Server {
    setup(folder, ssl, global).start()
}

fn setup(folder: Folder, ssl: &str, global: &str) -> Setup {
    let ssl: String = ssl.lines().map(|line| format!("\n    {line}")).collect();
    let listen = format!(
        "listen:\n  port: @PORT@\n  ssl:\n    certificate-file: @DIR@/server.crt\n    key-file: @DIR@/server.key{ssl}\n"
    );
    Setup::in_folder(folder, &format!("{global}\n{listen}{HOSTS}")).file("www/hello.txt", "hello")
}

/// Makes a handshake and sends one request with `openssl s_client`.
fn s_client(server: &Server, args: &[&str]) -> Output {
    let address = format!("127.0.0.1:{}", server.port());
    let fixed = ["s_client", "-ign_eof", "-connect", &address];
    let request = "GET /hello.txt HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n";
    run_with_input("openssl", &[&fixed[..], args].concat(), request)
}

/// Makes a handshake that must succeed, and requests the file. Returns what `openssl s_client` prints.
fn talk(server: &Server, args: &[&str]) -> String {
    let output = s_client(server, args);
    let text = output.text();
    assert!(
        output.code == 0 && text.contains("HTTP/1.1 200 OK") && text.contains("hello"),
        "{args:?}: {output}"
    );
    text
}

/// Makes a handshake that must fail. Returns what `openssl s_client` prints.
fn fail(server: &Server, args: &[&str]) -> String {
    let output = s_client(server, args);
    assert!(
        !output.text().contains("HTTP/1.1 200 OK"),
        "{args:?}: {output}"
    );
    format!("{}{}", output.text(), output.stderr)
}

/// Sends a request with curl, which verifies the certificate.
fn curl_checked(server: &Server, args: &[&str]) -> h2o_tests::Response {
    let port = server.port();
    let resolve = format!("www.example.com:{port}:127.0.0.1");
    let certificate = server.folder.name_of("server.crt");
    let url = format!("https://www.example.com:{port}/hello.txt");
    let fixed = ["--cacert", &certificate, "--resolve", &resolve, &url];
    curl(&[args, &fixed].concat())
}

#[test]
fn both_versions_are_spoken() {
    let server = start(Key::EcPkcs8, "", "");
    let modern = talk(&server, &["-tls1_3"]);
    assert!(modern.contains("New, TLSv1.3, Cipher is TLS_"), "{modern}");
    let older = talk(&server, &["-tls1_2"]);
    assert!(
        older.contains("New, TLSv1.2, Cipher is ECDHE-ECDSA-"),
        "{older}"
    );
    assert!(older.contains("Compression: NONE"), "{older}");
    // The alert is `protocol_version`.
    let refused = fail(&server, &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"]);
    assert!(refused.contains("SSL alert number 70"), "{refused}");
    for args in [&["--tlsv1.3"][..], &["--tls-max", "1.2"], &[]] {
        curl_checked(&server, args).must_be("200 OK\n\nhello");
    }
}

#[test]
fn keys_of_every_kind_are_read() {
    for kind in Key::ALL {
        let server = start(kind, "", "");
        let _ = talk(&server, &["-tls1_3"]);
        let _ = talk(&server, &["-tls1_2"]);
    }
}

#[test]
fn key_and_certificate_may_come_in_chains_with_other_text() {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::RsaPkcs1, "www.example.com");
    self_signed(&folder, "other", Key::EcPkcs8, "other.example");
    let chain = format!(
        "Bag Attributes\n{}\ntext between\n{}",
        folder.read("server.crt"),
        folder.read("other.crt")
    );
    folder.write("server.crt", chain);
    let server = start_in(folder, "", "");
    let text = talk(&server, &["-showcerts"]);
    assert_eq!(text.matches("BEGIN CERTIFICATE").count(), 2, "{text}");
}

#[test]
fn a_key_of_another_certificate_is_refused_with_its_place() {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "www.example.com");
    key(&folder, "server", Key::EcPkcs8);
    let path = folder.name_of("h2o.conf");
    let refused = setup(folder, "", "").try_start().unwrap_err();
    assert_eq!(refused.code, Some(78), "{}", refused.stderr);
    assert!(
        refused
            .stderr
            .lines()
            .any(|line| line.starts_with(&format!("[{path}:"))
                && line.contains("in command listen, ")),
        "{}",
        refused.stderr
    );
}

#[test]
fn sessions_are_resumed_in_tls_1_3() {
    let server = start(Key::EcPkcs8, "", "");
    let session = server.folder.name_of("session");
    let first = talk(&server, &["-tls1_3", "-sess_out", &session]);
    assert!(first.contains("New, TLSv1.3"), "{first}");
    let second = talk(&server, &["-tls1_3", "-sess_in", &session]);
    assert!(second.contains("Reused, TLSv1.3"), "{second}");
}

#[test]
fn sessions_are_resumed_in_tls_1_2_by_ticket_and_by_id() {
    let server = start(Key::EcPkcs8, "", "");
    for (name, option) in [("ticket", None), ("id", Some("-no_ticket"))] {
        let session = server.folder.name_of(name);
        let mut args = vec!["-tls1_2"];
        args.extend(option);
        let first = talk(&server, &[&args[..], &["-sess_out", &session]].concat());
        assert!(first.contains("New, TLSv1.2"), "{first}");
        assert_eq!(
            first.contains("TLS session ticket:"),
            option.is_none(),
            "{first}"
        );
        let second = talk(&server, &[&args[..], &["-sess_in", &session]].concat());
        assert!(second.contains("Reused, TLSv1.2"), "{name}: {second}");
    }
}

#[test]
fn reconnecting_clients_are_recognised_every_time() {
    let server = start(Key::EcPkcs8, "", "");
    for option in [None, Some("-no_ticket")] {
        let mut args = vec!["-tls1_2", "-reconnect"];
        args.extend(option);
        let text = s_client(&server, &args).text();
        assert_eq!(text.matches("New, TLSv1.2").count(), 1, "{text}");
        assert_eq!(text.matches("Reused, TLSv1.2").count(), 5, "{text}");
    }
}

#[test]
fn resumption_obeys_its_mode() {
    for (mode, ticket, id) in [
        ("off", false, false),
        ("cache", false, true),
        ("ticket", true, false),
        ("all", true, true),
    ] {
        let global = format!("ssl-session-resumption: {{ mode: {mode}, lifetime: 14400 }}");
        let server = start(Key::EcPkcs8, "", &global);
        for (option, want) in [(&[][..], ticket || id), (&["-no_ticket"][..], id)] {
            let session = server.folder.name_of("session");
            let args = [&["-tls1_2"], option].concat();
            let first = talk(&server, &[&args[..], &["-sess_out", &session]].concat());
            if option.is_empty() {
                assert_eq!(
                    first.contains("TLS session ticket:"),
                    ticket,
                    "{mode}: {first}"
                );
            }
            if !want && !server.folder.at("session").exists() {
                // The server gave the client no session, so there is nothing to resume.
                continue;
            }
            let second = talk(&server, &[&args[..], &["-sess_in", &session]].concat());
            assert_eq!(
                second.contains("Reused, TLSv1.2"),
                want,
                "{mode} {option:?}: {second}"
            );
        }
    }
}

#[test]
fn sessions_are_resumed_by_whichever_worker_takes_the_connection() {
    let server = start(Key::EcPkcs8, "", "num-threads: 4");
    for version in ["-tls1_2", "-tls1_3"] {
        let session = server.folder.name_of("session");
        let _ = talk(&server, &[version, "-sess_out", &session]);
        for _ in 0..8 {
            let text = talk(&server, &[version, "-sess_in", &session]);
            assert!(text.contains("Reused, "), "{version}: {text}");
        }
    }
}

#[test]
fn the_server_name_selects_the_certificate() {
    let folder = Folder::new();
    for (name, host) in [
        ("first", "first.example"),
        ("second", "second.example"),
        ("wild", "*.wild.example"),
    ] {
        self_signed(&folder, name, Key::EcPkcs8, host);
    }
    let host = |name: &str, certificate: &str| {
        format!(
            "  '{name}':
    listen:
      port: @PORT@
      ssl: {{ certificate-file: @DIR@/{certificate}.crt, key-file: @DIR@/{certificate}.key }}
    paths: {{ /: {{ file.dir: @DIR@/www }} }}
"
        )
    };
    let config = format!(
        "hosts:\n{}{}{}",
        host("first.example", "first"),
        host("second.example:443", "second"),
        host("*.wild.example", "wild")
    );
    let server = Setup::in_folder(folder, &config)
        .file("www/hello.txt", "hello")
        .start();
    for (name, want) in [
        (Some("first.example"), "first.example"),
        (Some("second.example"), "second.example"),
        (Some("SECOND.example"), "second.example"),
        (Some("a.wild.example"), "*.wild.example"),
        (Some("a.b.wild.example"), "*.wild.example"),
        (Some("wild.example"), "first.example"),
        (Some("unknown.example"), "first.example"),
        (None, "first.example"),
    ] {
        for version in ["-tls1_2", "-tls1_3"] {
            let sni = name.map_or(vec!["-noservername"], |name| vec!["-servername", name]);
            let text = talk(&server, &[&[version], &sni[..]].concat());
            assert!(
                text.replace(' ', "")
                    .contains(&format!("subject=CN={want}\n")),
                "{name:?} {version}: {text}"
            );
        }
    }
}

#[test]
fn versions_below_the_minimum_are_refused() {
    let server = start(Key::EcPkcs8, "min-version: TLSv1.3", "");
    let _ = talk(&server, &[]);
    let text = fail(&server, &["-tls1_2"]);
    assert!(text.contains("alert protocol version"), "{text}");

    let server = start(Key::EcPkcs8, "max-version: tlsv1.2", "");
    let text = talk(&server, &[]);
    assert!(text.contains("TLSv1.2"), "{text}");
    fail(&server, &["-tls1_3"]);
}

#[test]
fn old_minimum_versions_load_and_mean_tls_1_2() {
    for version in ["TLSv1", "SSLv3", "TLSv1.1", "TLSv1.2"] {
        let server = start(Key::EcPkcs8, &format!("minimum-version: {version}"), "");
        let _ = talk(&server, &["-tls1_2"]);
    }
}

#[test]
fn cipher_suites_are_those_chosen() {
    let server = start(
        Key::RsaPkcs8,
        "cipher-suite: ECDHE-RSA-CHACHA20-POLY1305:ECDHE-RSA-AES256-GCM-SHA384\ncipher-preference: server\ncipher-suite-tls1.3: [ TLS_AES_256_GCM_SHA384, TLS_AES_128_GCM_SHA256 ]",
        "",
    );
    let text = talk(&server, &["-tls1_2"]);
    assert!(
        text.contains("Cipher is ECDHE-RSA-CHACHA20-POLY1305"),
        "{text}"
    );
    let text = talk(
        &server,
        &["-tls1_2", "-cipher", "ECDHE-RSA-AES256-GCM-SHA384"],
    );
    assert!(
        text.contains("Cipher is ECDHE-RSA-AES256-GCM-SHA384"),
        "{text}"
    );
    fail(
        &server,
        &["-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256"],
    );
    let text = talk(
        &server,
        &[
            "-tls1_3",
            "-ciphersuites",
            "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384",
        ],
    );
    assert!(
        text.contains("Cipher is TLS_AES_256_GCM_SHA384"),
        "the server's order decides: {text}"
    );
    fail(
        &server,
        &["-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"],
    );
}

#[test]
fn cipher_suites_without_aead_do_not_stop_the_server() {
    let server = start(
        Key::RsaPkcs8,
        "cipher-suite: ECDHE-RSA-AES128-SHA:AES256-SHA",
        "",
    );
    let text = talk(&server, &[]);
    assert!(text.contains("New, TLSv1.3, Cipher is TLS_"), "{text}");
    let text = fail(&server, &["-tls1_2"]);
    assert!(text.contains("alert protocol version"), "{text}");
    assert!(
        server
            .messages()
            .contains("only clients with TLS 1.3 are served"),
        "{}",
        server.messages()
    );
}

#[test]
fn the_client_s_order_decides_by_default() {
    let server = start(Key::RsaPkcs8, "", "");
    for suite in [
        "TLS_AES_128_GCM_SHA256",
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS_AES_256_GCM_SHA384",
    ] {
        let all = "TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
        let order = format!("{suite}:{all}");
        let text = talk(&server, &["-tls1_3", "-ciphersuites", &order]);
        assert!(text.contains(&format!("Cipher is {suite}")), "{text}");
    }
}

#[test]
fn key_exchanges_are_those_chosen() {
    let server = start(
        Key::EcPkcs8,
        "key-exchange-tls1.3: [ secp384r1, X25519 ]",
        "",
    );
    for (groups, want) in [
        ("P-384", "ECDH, secp384r1, 384 bits"),
        ("X25519", "X25519, 253 bits"),
    ] {
        let text = talk(&server, &["-tls1_3", "-groups", groups]);
        assert!(
            text.contains(&format!("Server Temp Key: {want}")),
            "{groups}: {text}"
        );
    }
    fail(&server, &["-tls1_3", "-groups", "P-256"]);
}

#[test]
fn post_quantum_key_exchange_is_accepted() {
    let server = start(
        Key::EcPkcs8,
        "key-exchange-tls1.3: [ x25519mlkem768, x25519 ]",
        "",
    );
    let _ = talk(&server, &["-tls1_3"]);
    let knows_it = openssl(&["list", "-kem-algorithms"])
        .text()
        .to_uppercase()
        .contains("X25519MLKEM768");
    if knows_it {
        let text = talk(&server, &["-tls1_3", "-groups", "X25519MLKEM768"]);
        assert!(text.contains("X25519MLKEM768"), "{text}");
    }
}

#[test]
fn a_client_certificate_is_demanded() {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "www.example.com");
    self_signed(&folder, "ca", Key::EcPkcs8, "Client CA");
    self_signed(&folder, "stranger", Key::EcPkcs8, "stranger.example");
    client(&folder, "friend", "ca");
    let server = start_in(folder, "client-ca-file: @DIR@/ca.crt", "");
    for version in ["-tls1_2", "-tls1_3"] {
        let [friend, friend_key, stranger, stranger_key] =
            ["friend.crt", "friend.key", "stranger.crt", "stranger.key"]
                .map(|name| server.folder.name_of(name));
        let _ = talk(&server, &[version, "-cert", &friend, "-key", &friend_key]);
        fail(&server, &[version]);
        fail(
            &server,
            &[version, "-cert", &stranger, "-key", &stranger_key],
        );
    }
}

#[test]
fn http_1_1_is_agreed_on_by_alpn() {
    let server = start(Key::EcPkcs8, "", "");
    for version in ["-tls1_2", "-tls1_3"] {
        let text = talk(&server, &[version, "-alpn", "http/1.1"]);
        assert!(text.contains("ALPN protocol: http/1.1"), "{text}");
        let text = talk(&server, &[version]);
        assert!(text.contains("No ALPN negotiated"), "{text}");
    }
    let text = fail(&server, &["-tls1_3", "-alpn", "gopher"]);
    assert!(text.contains("alert no application protocol"), "{text}");
}

#[test]
fn clear_text_on_a_tls_port_is_not_answered_by_an_alert() {
    let server = start(
        Key::EcPkcs8,
        "",
        "access-log: { path: @DIR@/log, format: '%s %r' }",
    );
    let byte_by_byte = |request: &str| {
        let mut connection = server.connect();
        for byte in request.bytes() {
            connection.send([byte]);
        }
        connection
    };
    for mut connection in [
        server.connect(),
        server.connect(),
        byte_by_byte("GET / HTTP/1.1\r\n"),
    ] {
        // The client sends more while the server answers; the unread bytes must not make the kernel reset the connection before the
        // response arrives.
        let _ =
            connection.try_send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
        let _ = connection.try_send("x".repeat(100_000));
        let answer = String::from_utf8(connection.read_to_end()).expect("the bytes are UTF-8");
        assert!(
            answer.starts_with("HTTP/1.1 400 Bad Request\r\n")
                && answer.contains("\r\nConnection: close\r\n")
                && answer.ends_with("use https:// in the URL\n"),
            "{answer}"
        );
    }
    let url = server.url("/hello.txt");
    let response = curl(&[&url]);
    assert_eq!(response.code(), 400);
    assert_eq!(
        server.read_until("log", &"400 -\n".repeat(4)),
        "400 -\n".repeat(4)
    );
    // Bytes that are neither TLS nor HTTP get a TLS alert.
    let mut connection = server.connect();
    connection.send("get / http/1.1\r\n");
    assert_eq!(connection.read_to_end(), [21, 3, 3, 0, 2, 2, 50]);
    let _ = talk(&server, &[]);
}

#[test]
fn large_files_arrive_whole_over_tls() {
    let server = start(Key::EcPkcs8, "", "");
    let content: Vec<u8> = (0..10_000_019_u32).map(|n| (n % 251) as u8).collect();
    server.folder.write("www/large", &content);
    let url = format!("https://127.0.0.1:{}/large", server.port());
    let got = run("curl", &["-sSk", "--max-time", "30", &url]).success();
    assert!(got == content, "{} bytes of {}", got.len(), content.len());
}
