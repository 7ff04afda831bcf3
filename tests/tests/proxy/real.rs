//! The reverse proxy with real backends: nginx, and Go's server.

use std::fmt::Write;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Response, Server, Service, Setup, curl, eventually, free_port, run};

use super::kit::config;

/// 3 MB of text in which every 8 bytes are different.
pub(crate) fn large() -> Vec<u8> {
    let mut text = String::with_capacity(3_000_000);
    for n in 0..375_000 {
        let _ = write!(text, "{n:07} ");
    }
    text.into_bytes()
}

/// The options that make curl use each version of HTTP.
pub(crate) const WAYS: [&[&str]; 2] = [&["--http1.1"], &["--http2-prior-knowledge"]];

/// Fields that may differ between the responses of two servers.
const OWN_FIELDS: &[&str] = &[
    "server",
    "date",
    "connection",
    "keep-alive",
    "transfer-encoding",
];

fn essence(response: &Response) -> Vec<(String, String)> {
    let mut fields: Vec<_> = response
        .fields
        .iter()
        .map(|(name, value)| (name.to_lowercase(), value.clone()))
        .filter(|(name, _)| !OWN_FIELDS.contains(&name.as_str()))
        .collect();
    fields.sort();
    fields
}

#[test]
fn dot_segments_never_leave_the_path_of_a_back_end() {
    let folder = Folder::new();
    folder.write("www/secret", "secret");
    folder.write("www/v2/secret", "below");
    folder.write("www/v2/x/secret", "below x");
    let (_nginx, port) = Service::nginx(
        &folder,
        "
server { listen 127.0.0.1:@PORT@; root @DIR@/www; }
server { listen 127.0.0.1:@PORT@; server_name strict; merge_slashes off; root @DIR@/www; }",
    );
    for host in ["127.0.0.1", "strict"] {
        let server = Setup::new(&format!(
            "
listen: @PORT@
proxy.preserve-host: ON
hosts:
  default:
    paths:
      /: {{ proxy.reverse.url: 'http://127.0.0.1:{port}/v2' }}
      /api: {{ proxy.reverse.url: 'http://127.0.0.1:{port}/v2' }}
      /slash/: {{ proxy.reverse.url: 'http://127.0.0.1:{port}/v2/' }}
"
        ))
        .start();
        for target in [
            "/../secret",
            "/%2e%2e/secret",
            "/a/../../secret",
            "/api/x%2f/../../secret",
            "/api/x%2F%2e./../../secret",
            "/api//../secret",
            "/api//%2e%2e/secret",
            "/api/x//../../secret",
            "/slash/x%2f/../../secret",
            "/slash//../secret",
            "/slash/x//..//../secret",
        ] {
            let response = server.ask(&format!("GET {target}\nHost: {host}"));
            assert_ne!(response.text(), "secret", "{host} {target}");
        }
        for target in ["/api/./secret", "/secret", "/slash/x/..%2fsecret"] {
            let response = server.ask(&format!("GET {target}\nHost: {host}"));
            assert_eq!(response.text(), "below", "{host} {target}");
        }
        let response = server.ask(&format!("GET /api/y/../x/secret\nHost: {host}"));
        assert_eq!(response.text(), "below x", "{host}");
    }
}

#[test]
fn what_nginx_answers_arrives_unchanged() {
    let folder = Folder::new();
    folder.write("www/a.txt", "hello");
    folder.write("www/empty.txt", "");
    folder.write("www/large", large());
    folder.write("www/dir/index.html", "<p>index");
    let (_nginx, port) = Service::nginx(
        &folder,
        "
server {
    listen 127.0.0.1:@PORT@;
    root @DIR@/www;
    index index.html;
    absolute_redirect off;
    location /gzip/ { alias @DIR@/www/; gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any; }
    location /moved { return 301 /a.txt; }
    location /teapot { return 418 'short and stout'; }
}
",
    );
    let server = Setup::new(&config("", &format!("http://127.0.0.1:{port}/"))).start();
    let direct = format!("http://127.0.0.1:{port}");
    for options in [
        &["/a.txt"][..],
        &["/a.txt", "--head"],
        &["/a.txt", "--range", "1-3"],
        &["/a.txt", "--range", "9-"],
        &["/a.txt", "--range", "0-0,2-3"],
        &["/a.txt", "--header", "If-None-Match: \"65937d25-5\""],
        &[
            "/a.txt",
            "--header",
            "If-Modified-Since: Tue, 02 Jan 2024 03:04:05 GMT",
        ],
        &["/a.txt", "--request", "DELETE"],
        &["/empty.txt"],
        &["/large"],
        &["/large", "--range", "1000000-2999999"],
        &["/gzip/large", "--header", "Accept-Encoding: gzip"],
        &["/dir/"],
        &["/moved"],
        &["/teapot"],
        &["/none"],
        &["/a%20b/../a.txt", "--path-as-is"],
    ] {
        let ask = |origin: &str, way: &[&str]| {
            let url = format!("{origin}{}", options[0]);
            curl(&[way, &options[1..], &[&url]].concat())
        };
        let want = ask(&direct, &[]);
        for way in WAYS {
            let got = ask(&server.url(""), way);
            assert_eq!(got.code(), want.code(), "{options:?} {way:?}: {got}");
            let (mut fields, mut wanted) = (essence(&got), essence(&want));
            // Each multipart response has a boundary of its own, so content-type and content are not compared.
            if want
                .field("content-type")
                .is_some_and(|kind| kind.starts_with("multipart"))
            {
                fields.retain(|(name, _)| name != "content-type");
                wanted.retain(|(name, _)| name != "content-type");
            } else {
                assert!(got.body == want.body, "{options:?} {way:?}: {got}");
            }
            // While nginx compresses, the length is not known.
            assert_eq!(fields, wanted, "{options:?} {way:?}");
        }
    }
}

#[test]
fn two_of_nginx_take_turns_and_one_that_is_killed_costs_no_request() {
    let folders = [Folder::new(), Folder::new()];
    let ports = [free_port(), free_port()];
    let start = |index: usize| {
        let name = ["a", "b"][index];
        let block =
            format!("server {{ listen 127.0.0.1:@PORT@; location / {{ return 200 {name}; }} }}");
        Service::lone_nginx(&folders[index], &block, ports[index])
    };
    let (a, _b) = (start(0), start(1));
    let urls = ports.map(|port| format!("'http://127.0.0.1:{port}/'"));
    let config = config("", "X").replace("'X'", &format!("[{}]", urls.join(", ")));
    let server = Setup::new(&config).start();
    let ask = |times: usize| -> String { (0..times).map(|_| server.ask("GET /").text()).collect() };
    assert_eq!(ask(8), "abababab");
    a.kill();
    assert_eq!(ask(8), "bbbbbbbb");
    server.wait_for_message(&format!("backend 127.0.0.1:{}: ", ports[0]));
    let _a = start(0);
    eventually("requests at the backend that runs again", || {
        ["abab", "baba"].contains(&&*ask(4)).then_some(())
    });
}

#[test]
fn redirects_of_nginx_lead_back_to_the_server() {
    let folder = Folder::new();
    folder.write("www/base/dir/index.html", "<p>index");
    let (_nginx, port) = Service::nginx(
        &folder,
        "server { listen 127.0.0.1:@PORT@; root @DIR@/www; index index.html; server_name_in_redirect off; }",
    );
    let url = format!("http://127.0.0.1:{port}/base");
    let server = Setup::new(&super::kit::config_of_paths("", &[("/app", &url)])).start();
    // nginx redirects to its own host and port, with a slash appended; the proxy maps that to its own.
    let authority = format!("127.0.0.1:{}", server.port());
    let response = curl(&[&server.url("/app/dir")]);
    response.must_be(&format!(
        "301 Moved Permanently\nlocation: http://{authority}/app/dir/"
    ));
    let followed = run("curl", &["--silent", "--location", &server.url("/app/dir")]);
    assert_eq!(followed.text(), "<p>index");
}

/// Servers in front of Go's server, each with the version of HTTP that it uses with the backend.
pub(crate) type BeforeGo = Vec<(&'static str, Server)>;

/// Starts Go's server, and servers in front of it: over HTTP/1 with and without TLS, or with `by_http2` over HTTP/2 with TLS.
pub(crate) fn before_go(folder: &Folder, by_http2: bool) -> (Service, BeforeGo) {
    self_signed(folder, "backend", Key::EcPkcs8, "localhost");
    let (service, http, https) = Service::go(folder, "backend");
    let ca = format!("proxy.ssl.cafile: {}", folder.name_of("backend.crt"));
    let url = format!("https://localhost:{https}/");
    let configs = if by_http2 {
        vec![("HTTP/2.0", config(&ca, &url))]
    } else {
        let settings = format!("{ca}\nproxy.http2.ratio: 0");
        vec![
            ("HTTP/1.1", config("", &format!("http://127.0.0.1:{http}/"))),
            ("HTTP/1.1", config(&settings, &url)),
        ]
    };
    let servers = configs.into_iter();
    let servers = servers.map(|(proto, config)| (proto, Setup::new(&config).start()));
    (service, servers.collect())
}

/// The text of a member of a JSON object.
fn member<'a>(json: &'a str, name: &str) -> &'a str {
    let (_, rest) = json
        .split_once(&format!("\"{name}\":"))
        .unwrap_or_else(|| panic!("no field {name} in {json}"));
    let end = rest.find([',', '}']).unwrap_or(rest.len());
    rest[..end].trim_matches('"')
}

#[test]
fn go_understands_what_it_is_sent() {
    let folder = Folder::new();
    let (_service, servers) = before_go(&folder, false);
    must_understand(&folder, &servers);
}

/// Checks that Go's server received what clients sent.
pub(crate) fn must_understand(folder: &Folder, servers: &BeforeGo) {
    let upload = folder.write("upload", large());
    let upload = format!("@{}", upload.display());
    let sum = run("sha256sum", &[&upload[1..]]).text();
    let sum = sum.split(' ').next().unwrap_or_default();
    for (proto, server) in servers {
        for way in WAYS {
            let url = server.url("/echo/a%2Fb?c=d");
            let get = curl(&[way, &["--cookie", "a=1; b=2", "--header", "X-A: b", &url]].concat());
            let text = get.text();
            assert_eq!(member(&text, "proto"), *proto, "{text}");
            assert_eq!(member(&text, "method"), "GET", "{text}");
            assert_eq!(member(&text, "target"), "/echo/a%2Fb?c=d", "{text}");
            assert!(text.contains("\"Cookie\":[\"a=1; b=2\"]"), "{text}");
            assert!(text.contains("\"X-A\":[\"b\"]"), "{text}");
            assert!(
                text.contains("\"X-Forwarded-For\":[\"127.0.0.1\"]"),
                "{text}"
            );
            for more in [
                &[][..],
                &[
                    "--header",
                    "Content-Length:",
                    "--header",
                    "Transfer-Encoding: chunked",
                ],
            ] {
                if way.contains(&"--http2-prior-knowledge") && !more.is_empty() {
                    continue;
                }
                let post = [way, &["--data-binary", &upload], more, &[&url]].concat();
                let text = curl(&post).text();
                assert_eq!(member(&text, "bytes"), "3000000", "{proto} {way:?} {text}");
                assert_eq!(member(&text, "sha256"), sum, "{proto} {way:?} {text}");
            }
        }
    }
}

#[test]
fn content_of_go_arrives_whole() {
    let folder = Folder::new();
    let (_service, servers) = before_go(&folder, false);
    must_bring_content(&servers);
}

/// Checks that content of any length arrives complete.
pub(crate) fn must_bring_content(servers: &BeforeGo) {
    let large = large();
    for (proto, server) in servers {
        for way in WAYS {
            for (path, length) in [
                ("/content/0", 0),
                ("/content/1", 1),
                ("/content/65536", 65_536),
                ("/content/3000000", 3_000_000),
                ("/content/3000000?chunked", 3_000_000),
            ] {
                let response = curl(&[way, &[&server.url(path)]].concat());
                assert_eq!(response.code(), 200, "{proto} {way:?} {path}");
                let want = &large[..length];
                let got = response.body.len();
                assert!(response.body == want, "{proto} {way:?} {path}: {got} bytes");
                let head = curl(&[way, &["--head", &server.url(path)]].concat());
                assert_eq!(
                    (head.code(), head.body.len()),
                    (200, 0),
                    "{proto} {way:?} {path}"
                );
            }
        }
    }
}

#[test]
fn a_response_that_go_breaks_off_is_broken() {
    let folder = Folder::new();
    let (_service, servers) = before_go(&folder, false);
    must_break_off(&servers);
}

/// Checks that a response which Go's server cuts off is cut off for the client, too.
pub(crate) fn must_break_off(servers: &BeforeGo) {
    for (proto, server) in servers {
        for (way, codes) in [
            // Exit codes of curl: transfer closed with outstanding data; HTTP/2 stream was not closed cleanly.
            (WAYS[0], &[18][..]),
            (WAYS[1], &[92]),
        ] {
            let options = ["--silent", "--max-time", "20", &server.url("/abort")];
            let output = run("curl", &[way, &options].concat());
            assert!(codes.contains(&output.code), "{proto} {way:?}: {output}");
            assert!(
                "begin".starts_with(&output.text()),
                "{proto} {way:?}: {output}"
            );
        }
    }
}

#[test]
fn certificates_are_checked_unless_that_is_switched_off() {
    let folder = Folder::new();
    self_signed(&folder, "backend", Key::EcPkcs8, "other.example");
    let (_service, _, https) = Service::go(&folder, "backend");
    let ca = format!("proxy.ssl.cafile: {}", folder.name_of("backend.crt"));
    let url = format!("https://localhost:{https}/echo");
    for (settings, want) in [
        (ca.as_str(), Some(&["certificate name mismatch"][..])),
        (
            "",
            Some(&[
                "self-signed certificate",
                "unable to get local issuer certificate",
            ]),
        ),
        ("proxy.ssl.verify-peer: OFF", None),
    ] {
        let server = Setup::new(&config(settings, &url)).start();
        let response = server.ask("GET /");
        match want {
            Some(texts) => {
                assert_eq!(response.status, "502 Gateway Error", "{settings}");
                let text = response.text();
                assert!(texts.contains(&&*text), "{settings}: {text}");
                server.wait_for_message(&text);
            }
            None => assert_eq!(response.code(), 200, "{settings}: {response}"),
        }
    }
}
