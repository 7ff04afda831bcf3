//! The client's address behind proxies: which proxies may name it, and where the server uses it, over every version of HTTP.

use h2o_tests::{Backend, Raw, Request, Server, Setup, curl, eventually, run, tool};

/// A backend that answers with the fields about the client that it received.
fn backend() -> Backend {
    Backend::by_request(|request: &Request| {
        let fields = ["x-forwarded-for", "x-forwarded-proto", "forwarded"];
        let fields = fields.map(|name| request.field(name).unwrap_or("none").to_owned());
        let body = fields.join(" | ");
        let len = body.len();
        format!("HTTP/1.1 200 OK\r\ncontent-length: {len}\r\n\r\n{body}")
    })
}

/// Starts a server with TLS and QUIC that trusts the proxies in these networks.
fn start(networks: &str, backend: &Backend) -> Server {
    let settings = format!(
        "num-threads: 2
trusted-proxies: {networks}
access-log: {{ path: @DIR@/access_log, format: '%U %H %h %{{remote}}p' }}"
    );
    let rest = format!(
        r##"
      /script:
        mruby.handler: |
          lambda {{ |env| [200, {{}}, [env["REMOTE_ADDR"], " ", env["HTTP_X_FORWARDED_FOR"].to_s]] }}
      /acl:
        - mruby.handler: |
            acl {{
              allow {{ addr == "198.51.100.1" }}
              deny
            }}
        - mruby.handler: |
            lambda {{ |env| [200, {{}}, ["let in"]] }}
      /backend: {{ proxy.reverse.url: '{}' }}
"##,
        backend.url("/")
    );
    Setup::http3(&settings, "", &rest).start()
}

const VERSIONS: [&str; 3] = ["HTTP/1.1", "HTTP/2", "HTTP/3"];

/// The status and the content of the response to a request with these fields.
fn ask(server: &Server, version: &str, path: &str, fields: &str) -> String {
    if version == "HTTP/3" {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/http3.py");
        let port = server.port().to_string();
        let args = [script, "one", &port, path, fields];
        let output = run(&tool("aioquic/bin/python3"), &args);
        return output.text().trim_end().trim_end_matches("\nok").to_owned();
    }
    let option = if version == "HTTP/2" {
        "--http2"
    } else {
        "--http1.1"
    };
    let url = format!("https://127.0.0.1:{}{path}", server.port());
    let mut args = vec![option, "--insecure", &url];
    for field in fields.lines() {
        args.extend(["--header", field]);
    }
    let response = curl(&args);
    format!("{} {}", response.code(), response.body.escape_ascii())
}

#[test]
fn the_client_that_a_trusted_proxy_names_is_the_client_everywhere() {
    let backend = backend();
    let server = start("127.0.0.0/8", &backend);
    let spoofed = "x-forwarded-for: 192.0.2.66, 198.51.100.1, 127.0.0.5\nx-forwarded-proto: http\nforwarded: for=192.0.2.66";
    let denied = "x-forwarded-for: 198.51.100.1, 203.0.113.9";
    for version in VERSIONS {
        let got = |path, fields| ask(&server, version, path, fields);
        assert_eq!(
            got("/script", spoofed),
            "200 198.51.100.1 198.51.100.1, 127.0.0.5",
            "{version}"
        );
        assert_eq!(
            got("/backend", spoofed),
            "200 198.51.100.1, 127.0.0.5, 127.0.0.1 | http | none",
            "{version}"
        );
        assert_eq!(
            got("/backend", ""),
            "200 127.0.0.1 | https | none",
            "{version}"
        );
        assert_eq!(got("/acl", spoofed), "200 let in", "{version}");
        assert!(got("/acl", denied).starts_with("403 "), "{version}");
        // The client's address holds for one request, not for its connection.
        assert_eq!(got("/script", ""), "200 127.0.0.1 ", "{version}");
        eventually("the request to be logged", || {
            let log = server.folder.read("access_log");
            let lines = ["198.51.100.1 0\n", "127.0.0.1 "];
            let lines = lines.map(|end| format!("/script {version} {end}"));
            lines.iter().all(|line| log.contains(line)).then_some(())
        });
    }
}

#[test]
fn what_others_say_about_clients_is_ignored_and_not_passed_on() {
    let backend = backend();
    let server = start("192.0.2.0/24", &backend);
    let spoofed =
        "x-forwarded-for: 198.51.100.1\nx-forwarded-proto: http\nforwarded: for=198.51.100.1";
    for version in VERSIONS {
        let got = |path| ask(&server, version, path, spoofed);
        assert_eq!(got("/script"), "200 127.0.0.1 ", "{version}");
        assert_eq!(got("/backend"), "200 127.0.0.1 | https | none", "{version}");
        assert!(got("/acl").starts_with("403 "), "{version}");
        // Scripts know header fields by names in which `-` is `_`.
        let look_alike = "x_forwarded_for: 198.51.100.1";
        let got = |path| ask(&server, version, path, look_alike);
        assert_eq!(got("/script"), "200 127.0.0.1 ", "{version}");
        assert!(got("/acl").starts_with("403 "), "{version}");
    }
    let log = server.folder.read("access_log");
    assert!(!log.contains("198.51.100.1"), "{log}");
}

#[test]
fn requests_of_one_connection_may_have_different_clients() {
    let backend = backend();
    let server = Setup::new(&format!(
        "listen: @PORT@\ntrusted-proxies: 127.0.0.1\nhosts: {{ default: {{ paths: {{ /: {{ proxy.reverse.url: '{}' }} }} }} }}",
        backend.url("/")
    ))
    .start();
    let mut client = server.connect();
    for (field, want) in [
        (
            "X-Forwarded-For: 198.51.100.1\r\n",
            "198.51.100.1, 127.0.0.1",
        ),
        ("", "127.0.0.1"),
        ("X-Forwarded-For: 203.0.113.9\r\n", "203.0.113.9, 127.0.0.1"),
    ] {
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n"));
        let response = client.read_response("GET");
        assert_eq!(
            response.body.escape_ascii().to_string(),
            format!("{want} | http | none")
        );
    }
}

#[test]
fn proxy_headers_are_obeyed_from_trusted_proxies_only() {
    let config = |networks: &str, mode: &str| {
        format!(
            "listen: {{ host: 127.0.0.1, port: @PORT@, proxy-protocol: {mode} }}\ntrusted-proxies: {networks}\naccess-log: {{ path: @DIR@/access_log, format: '%h' }}\nhosts: {{ default: {{ paths: {{ /: {{ status: ON }} }} }} }}"
        )
    };
    let head = "PROXY TCP4 198.51.100.1 127.0.0.1 4711 80\r\nGET /json?show=main HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.9\r\nConnection: close\r\n\r\n";
    let cases = [
        // The client that the load balancer names in the PROXY header is not in a trusted network, so its x-forwarded-for is ignored.
        ("127.0.0.0/8", "ON", "HTTP/1.1 200", "198.51.100.1\n"),
        ("127.0.0.0/8", "REQUIRED", "HTTP/1.1 200", "198.51.100.1\n"),
        // That client is trusted too, so its x-forwarded-for is used.
        (
            "[127.0.0.0/8, 198.51.100.1]",
            "ON",
            "HTTP/1.1 200",
            "203.0.113.9\n",
        ),
        // From an address that is not trusted, the PROXY header counts as a malformed request.
        ("192.0.2.1", "ON", "HTTP/1.1 400", "127.0.0.1\n"),
        ("192.0.2.1", "REQUIRED", "", ""),
    ];
    for (networks, mode, status, log) in cases {
        let server = Setup::new(&config(networks, mode)).start();
        let mut client = Raw::connect(server.port());
        client.try_send(head);
        let answer = client.read_to_end();
        assert!(
            answer.starts_with(status.as_bytes()) && answer.is_empty() == status.is_empty(),
            "{networks} {mode}: {}",
            answer.escape_ascii()
        );
        let folder = server.stop();
        assert_eq!(folder.read("access_log"), log, "{networks} {mode}");
    }
}
