//! HTTP/2 server push, checked with the client nghttp.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Backend, Folder, Server, Setup, run};

const PAGE: &str = "<!DOCTYPE html><link rel=stylesheet href=style.css>";

/// The directive by which a page pushes `style.css` in most tests.
const STYLE: &str = "http2-push: \"</style.css>; rel=preload\"";

/// Starts a server; `host` has further lines of its host, `path` further lines of its path.
fn start(host: &str, path: &str) -> Server {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "localhost");
    let indent = |lines: &str, by: &str| -> String {
        let lines = lines.lines().map(|line| format!("{by}{line}\n"));
        lines.collect()
    };
    let config = format!(
        "
listen: @PORT@
listen:
  port: @TLS_PORT@
  ssl: {{ certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key }}
hosts:
  default:
{}    paths:
      /:
{}        file.dir: @DIR@/www
",
        indent(host, "    "),
        indent(path, "        ")
    );
    Setup::in_folder(folder, &config)
        .file("www/index.html", PAGE)
        .file("www/other.html", PAGE)
        .file("www/note.txt", "not a page")
        .file("www/style.css", css())
        .file("www/small.js", "alert(1)")
        .file("www/second.css", "b { color: blue }")
        .start()
}

fn css() -> String {
    "a { color: red }\n".repeat(3000)
}

type Fields = Vec<(String, String)>;

/// What nghttp received on a stream.
#[derive(Debug, Default)]
struct Stream {
    fields: Fields,
    bytes: usize,
    has_ended: bool,
}

impl Stream {
    fn field(&self, name: &str) -> Option<&str> {
        value(&self.fields, name)
    }
}

fn value<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    let mut values = fields.iter().filter(|(known, _)| known == name);
    values.next().map(|(_, value)| value.as_str())
}

/// A PUSH_PROMISE frame: the stream it came on, the stream that it promises, and the fields of the promised request.
#[derive(Debug)]
struct Promise {
    on: u32,
    promised: u32,
    fields: Fields,
}

/// Everything that nghttp received.
#[derive(Debug, Default)]
struct Seen {
    promises: Vec<Promise>,
    streams: BTreeMap<u32, Stream>,
    resets: Vec<String>,
    /// Streams in the order in which their content began and (`ended`) in which it was complete.
    began: Vec<u32>,
    ended: Vec<u32>,
}

impl Seen {
    /// The number behind `label` in a line of nghttp's output.
    fn number(line: &str, label: &str) -> Option<u32> {
        let (_, rest) = line.split_once(label)?;
        let end = rest.find(|c: char| !c.is_ascii_digit());
        rest[..end.unwrap_or(rest.len())].parse().ok()
    }

    /// Parses what `nghttp --verbose` prints.
    fn parse(text: &str) -> Self {
        let mut seen = Self::default();
        // nghttp prints the fields of a frame before the line about the frame.
        let mut fields = Fields::new();
        let mut promise_on = None;
        for line in text.lines() {
            if let Some(on) = promise_on
                && let Some(promised) = Self::number(line, "promised_stream_id=")
            {
                let fields = std::mem::take(&mut fields);
                seen.promises.push(Promise {
                    on,
                    promised,
                    fields,
                });
                promise_on = None;
                continue;
            }
            let Some((_, line)) = line.split_once("] recv ") else {
                continue;
            };
            let Some(id) = Self::number(line, "stream_id=") else {
                continue;
            };
            let ends = line
                .split_once("flags=0x")
                .and_then(|(_, flags)| flags.get(1..2))
                .is_some_and(|flags| ["1", "3", "5", "7", "9", "b", "d", "f"].contains(&flags));
            if let Some((_, field)) = line.split_once(") ").filter(|_| line.starts_with('(')) {
                let at = field[1..].find(": ").map_or(field.len(), |at| at + 1);
                let (name, value) = field.split_at(at);
                let value = value.trim_start_matches(": ").to_owned();
                fields.push((name.to_owned(), value));
            } else if line.starts_with("PUSH_PROMISE") {
                promise_on = Some(id);
            } else if line.starts_with("HEADERS") {
                let stream = seen.streams.entry(id).or_default();
                stream.fields.append(&mut fields);
                stream.has_ended |= ends;
            } else if line.starts_with("DATA") {
                let stream = seen.streams.entry(id).or_default();
                let length = Self::number(line, "length=").unwrap_or(0);
                stream.bytes += usize::try_from(length).unwrap_or(0);
                stream.has_ended |= ends;
                if !seen.began.contains(&id) {
                    seen.began.push(id);
                }
                if ends {
                    seen.ended.push(id);
                }
            } else if line.starts_with("RST_STREAM") {
                seen.resets.push(line.to_owned());
            }
        }
        seen
    }

    /// The paths of all promised requests.
    fn promised(&self) -> Vec<&str> {
        let paths = self.promises.iter().map(|promise| {
            let path = value(&promise.fields, ":path");
            path.unwrap_or_else(|| panic!("a promise has a path: {promise:?}"))
        });
        paths.collect()
    }

    /// The responses on streams that the client opened.
    fn pulled(&self) -> impl Iterator<Item = &Stream> {
        let odd = self.streams.iter().filter(|(id, _)| *id % 2 == 1);
        odd.map(|(_, stream)| stream)
    }

    /// The values of all set-cookie fields.
    fn cookies(&self) -> Vec<&str> {
        let all = self.streams.values().flat_map(|stream| &stream.fields);
        let cookies = all.filter(|(name, _)| name == "set-cookie");
        cookies.map(|(_, value)| value.as_str()).collect()
    }
}

/// Requests pages with nghttp; fails unless every response is complete and no stream was reset.
fn ask(server: &Server, options: &[&str], paths: &[&str]) -> Seen {
    ask_at(&server.url(""), options, paths)
}

fn ask_at(base: &str, options: &[&str], paths: &[&str]) -> Seen {
    let urls: Vec<String> = paths.iter().map(|path| format!("{base}{path}")).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let fixed = ["--verbose", "--null-out", "--no-verify-peer"];
    let output = run("nghttp", &[&fixed, options, &urls].concat());
    assert_eq!(output.code, 0, "{output}");
    let seen = Seen::parse(&output.text());
    assert_eq!(seen.pulled().count(), paths.len(), "{output}");
    assert!(
        seen.streams.values().all(|stream| stream.has_ended),
        "{output}"
    );
    assert_eq!(seen.resets, [""; 0], "{output}");
    seen
}

/// Requests pages and fails if the server pushes something.
fn pushes_nothing(server: &Server, options: &[&str], paths: &[&str]) {
    let seen = ask(server, options, paths);
    assert_eq!(seen.promised(), [""; 0], "{options:?}");
    let even = seen.streams.keys().find(|id| *id % 2 == 0);
    assert_eq!(even, None, "{options:?}");
}

#[test]
fn a_page_brings_its_style_sheet() {
    for (host, path) in [(STYLE, ""), ("", STYLE)] {
        let server = start(host, path);
        let tls = format!("https://127.0.0.1:{}", server.port_of("TLS_PORT"));
        for (scheme, base) in [("http", server.url("")), ("https", tls)] {
            let seen = ask_at(
                &base,
                &["--header", "accept-language: eo", "--header", "x-own: 1"],
                &["/index.html"],
            );
            let [promise] = &seen.promises[..] else {
                panic!("the response does not have exactly one promise: {seen:#?}");
            };
            let (_, authority) = base.split_once("//").expect("the link is a URL");
            for (name, want) in [
                (":method", Some("GET")),
                (":scheme", Some(scheme)),
                (":authority", Some(authority)),
                (":path", Some("/style.css")),
                ("accept", Some("*/*")),
                ("accept-encoding", Some("gzip, deflate")),
                ("accept-language", Some("eo")),
                ("x-own", None),
            ] {
                assert_eq!(value(&promise.fields, name), want, "{name}: {promise:#?}");
            }
            let agent = value(&promise.fields, "user-agent").unwrap_or_default();
            assert!(agent.starts_with("nghttp2/"), "{promise:#?}");
            assert!(promise.promised % 2 == 0, "{promise:#?}");

            let page = &seen.streams[&promise.on];
            assert_eq!(page.field(":status"), Some("200"), "{seen:#?}");
            assert_eq!(page.bytes, PAGE.len(), "{seen:#?}");
            assert_eq!(page.field("x-http2-push"), None, "{seen:#?}");
            let pushed = &seen.streams[&promise.promised];
            for (name, want) in [
                (":status", "200"),
                ("content-type", "text/css"),
                ("content-length", &css().len().to_string()),
                ("x-http2-push", "pushed"),
            ] {
                assert_eq!(pushed.field(name), Some(want), "{seen:#?}");
            }
            assert_eq!(pushed.bytes, css().len(), "{seen:#?}");
            assert_eq!(seen.streams.len(), 2, "{seen:#?}");
        }
    }
}

#[test]
fn other_responses_bring_nothing() {
    let server = start("", STYLE);
    for path in ["/note.txt", "/none", "/style.css"] {
        let seen = ask(&server, &[], &[path]);
        assert_eq!(seen.promised(), [""; 0], "{path}");
    }
}

#[test]
fn clients_that_want_no_push_get_none() {
    let server = start("", STYLE);
    assert_eq!(ask(&server, &[], &["/index.html"]).promised().len(), 1);
    for options in [
        &["--no-push"][..],
        // With 0 as the limit of concurrent streams that the server may open, the client accepts no pushed streams.
        &["--max-concurrent-streams", "0"],
        // The field `x-forwarded-for` says that the request came through a proxy, so the server pushes nothing.
        &["--header", "x-forwarded-for: 192.0.2.1"],
    ] {
        pushes_nothing(&server, options, &["/index.html"]);
    }
}

#[test]
fn hosts_that_push_nothing_push_nothing() {
    for (host, path) in [
        ("http2-push-preload: OFF", STYLE),
        // An empty `http2-push` of the path replaces that of the host.
        (STYLE, "http2-push: []"),
    ] {
        pushes_nothing(&start(host, path), &[], &["/index.html"]);
    }
}

#[test]
fn what_is_not_there_leaves_no_trace() {
    // No file can have a name with a NUL byte, so the server knows without the disk that there is nothing to push.
    let server = start("", "http2-push: \"</none%00.css>; rel=preload\"");
    pushes_nothing(&server, &[], &["/index.html"]);
}

#[test]
fn what_is_elsewhere_is_not_pushed() {
    let elsewhere = "http2-push: \"<http://elsewhere.example/style.css>; rel=preload\"";
    pushes_nothing(&start("", elsewhere), &[], &["/index.html"]);
}

#[test]
fn a_connection_gets_a_url_once() {
    let server = start("", STYLE);
    let pages = ["/index.html", "/other.html", "/index.html?again"];
    let seen = ask(&server, &["--no-dep"], &pages);
    assert_eq!(seen.promised(), ["/style.css"]);
}

#[test]
fn several_things_are_pushed() {
    let both = "http2-push: [ \"</style.css>; rel=preload\", \"<second.css>; rel=preload\" ]";
    let seen = ask(&start("", both), &[], &["/index.html"]);
    assert_eq!(seen.promised(), ["/style.css", "/second.css"]);
}

/// The first 32 bits of the hash of `text`, computed by the program `sum`.
fn hash(sum: &str, text: &str) -> u32 {
    let sum = h2o_tests::run_with_input(sum, &[], text).text();
    u32::from_str_radix(&sum[..8], 16).expect("the hash is hexadecimal")
}

/// The base64url form of bits that are given as digits, padded with zeros to whole bytes.
fn base64url(bits: &str) -> String {
    let bytes = bits.as_bytes().chunks(8).map(|eight| {
        let eight = std::str::from_utf8(eight).expect("the characters are digits");
        u8::from_str_radix(&format!("{eight:0<8}"), 2).expect("the characters are binary digits")
    });
    URL_SAFE_NO_PAD.encode(bytes.collect::<Vec<u8>>())
}

/// The value of the cookie `h2o_casper` for these paths: a set of 13-bit keys in Golomb-Rice coding, with 6 bits of remainder.
fn casper(paths: &[&str]) -> String {
    let key = |path: &&str| hash("sha1sum", path).swap_bytes() & 0x1fff;
    let mut keys: Vec<u32> = paths.iter().map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut bits = String::new();
    let mut next = 0;
    for key in keys {
        let difference = key - next;
        next = key + 1;
        bits += &"0".repeat(difference as usize >> 6);
        bits += &format!("1{:06b}", difference & 63);
    }
    base64url(&bits)
}

#[test]
fn casper_remembers_what_was_pushed() {
    let server = start("http2-casper: ON", STYLE);
    let seen = ask(&server, &[], &["/index.html"]);
    assert_eq!(seen.promised(), ["/style.css"]);
    let want = format!(
        "h2o_casper={}; Path=/; Expires=Tue, 01 Jan 2030 00:00:00 GMT; Secure",
        casper(&["/style.css"])
    );
    assert_eq!(seen.cookies(), [want.as_str()]);

    let (cookie, _) = want.split_once(';').expect("the cookie has attributes");
    // Clients may send all of their cookies in one field.
    let send_back = format!("cookie: other=1; {cookie}");
    pushes_nothing(&server, &["--header", &send_back], &["/index.html"]);
    // The server also remembers what a client requested itself; here the client's cookie does not contain that.
    let other = format!("cookie: h2o_casper={}", casper(&["/second.css"]));
    let seen = ask(&server, &["--header", &other], &["/index.html"]);
    assert_eq!(seen.promised(), ["/style.css"]);
    let both = casper(&["/style.css", "/second.css"]);
    assert!(
        seen.cookies()
            .iter()
            .any(|cookie| cookie.starts_with(&format!("h2o_casper={both};"))),
        "{both}: {:?}",
        seen.cookies()
    );
}

#[test]
fn without_casper_no_cookie_is_set() {
    let seen = ask(&start("", STYLE), &[], &["/index.html"]);
    assert_eq!(seen.cookies(), [""; 0]);
}

#[test]
fn a_digest_says_what_need_not_be_pushed() {
    for (host, want) in [
        ("", &[][..]),
        (
            "http2-casper: ON",
            &["h2o_casper=; Path=/; Expires=Sat, 01 Jan 2000 00:00:00 GMT"],
        ),
    ] {
        let server = start(host, STYLE);
        // A digest with N = 0 and P = 20: it has the first 20 bits of one hash, uncompressed.
        let digest = |path: &str| {
            let number = hash("sha256sum", &server.url(path)) >> 12;
            let bits = format!("00000101001{number:020b}");
            format!("cache-digest: {}", base64url(&bits))
        };
        let fresh = digest("/style.css");
        let seen = ask(&server, &["--header", &fresh], &["/index.html"]);
        assert_eq!(seen.promised(), [""; 0], "{host}");
        assert_eq!(seen.cookies(), want, "{host}");
        for (header, what) in [
            (digest("/second.css"), "another one"),
            (format!("{fresh}; stale"), "an old one"),
        ] {
            let seen = ask(&server, &["--header", &header], &["/index.html"]);
            assert_eq!(seen.promised(), ["/style.css"], "{host} {what}");
        }
    }
}

#[test]
fn critical_pushes_and_style_sheets_go_ahead() {
    for (element, is_ahead) in [
        ("</style.css>; rel=preload", true),
        ("</note.txt>; rel=preload; critical", true),
        ("</note.txt>; rel=preload", false),
    ] {
        let log = "access-log: { path: @DIR@/log, format: 'on %{http2.stream-id}x: %{http2.priority.actual}x' }";
        let server = start(log, &format!("http2-push: \"{element}\""));
        assert_eq!(
            ask(&server, &[], &["/index.html"]).promised().len(),
            1,
            "{element}"
        );
        let log = server.read_until("log", "on 2: ");
        let pushed = log.lines().find(|line| line.starts_with("on 2: "));
        let got = pushed.map(|line| line.ends_with(" 0:257"));
        assert_eq!(got, Some(is_ahead), "{element}: {log}");
    }
}

#[test]
fn hints_of_a_back_end_are_pushed_before_there_is_a_response() {
    // The backend sends the page only after the style sheet has been requested.
    let (asked, is_asked) = std::sync::mpsc::sync_channel(100);
    let is_asked = std::sync::Mutex::new(is_asked);
    let backend = Backend::start(move |talk| {
        while let Some(request) = talk.read_request() {
            if request.target() == "/style.css" {
                asked.send(()).expect("the test receives from the channel");
                talk.send(
                    "HTTP/1.1 200 OK\r\ncontent-type: text/css\r\ncontent-length: 5\r\n\r\na { }",
                );
                continue;
            }
            talk.send("HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload, </n>; rel=preload; nopush\r\n\r\n");
            let waited = is_asked
                .lock()
                .map(|wait| wait.recv_timeout(Duration::from_secs(5)));
            let code = if matches!(waited, Ok(Ok(()))) {
                "200 OK"
            } else {
                "504 Late"
            };
            let head = "content-type: text/html\r\nlink: </style.css>; rel=preload";
            talk.send(format!(
                "HTTP/1.1 {code}\r\n{head}\r\ncontent-length: 4\r\n\r\npage"
            ));
        }
    });
    for informational in ["except-h1", "none"] {
        let config = format!(
            "num-threads: 1
listen: @PORT@
send-informational: {informational}
hosts:
  default:
    paths:
      /: {{ proxy.reverse.url: '{}' }}
",
            backend.url("/")
        );
        let server = Setup::new(&config).start();
        let seen = ask(&server, &[], &["/"]);
        assert_eq!(seen.promised(), ["/style.css"], "{informational}");
        let page = &seen.streams[&seen.promises[0].on];
        assert_eq!(page.bytes, 4);
        let statuses = page.fields.iter().filter(|(name, _)| name == ":status");
        let statuses: Vec<_> = statuses.map(|(_, value)| value.as_str()).collect();
        let want = if informational == "none" {
            &["200"][..]
        } else {
            &["103", "200"]
        };
        assert_eq!(statuses, want);
        let pushed = &seen.streams[&seen.promises[0].promised];
        assert_eq!(
            (pushed.field("x-http2-push"), pushed.bytes),
            (Some("pushed"), 5)
        );
    }
}

#[test]
fn pushes_are_not_lost_after_an_upgrade() {
    let server = start("", STYLE);
    for _ in 0..10 {
        let seen = ask(&server, &["--upgrade"], &["/index.html"]);
        assert_eq!(seen.promised(), ["/style.css"]);
        assert_eq!(seen.promises[0].on, 1);
        assert_eq!(seen.streams[&2].bytes, css().len());
    }
}

#[test]
fn small_pages_do_not_overtake_the_script_they_push() {
    for (element, is_ahead) in [
        ("</small.js>; rel=preload", true),
        ("</style.css>; rel=preload", true),
        ("</note.txt>; rel=preload; critical", true),
        ("</note.txt>; rel=preload", false),
    ] {
        let server = start("", &format!("http2-push: \"{element}\""));
        for options in [&[][..], &["--upgrade"]] {
            let seen = ask(&server, options, &["/index.html"]);
            for order in [seen.began, seen.ended] {
                assert_eq!(order.first() == Some(&2), is_ahead, "{element} {order:?}");
            }
        }
    }
    let server = start("http2-reprioritize-blocking-assets: OFF", STYLE);
    let seen = ask(&server, &[], &["/index.html"]);
    assert_ne!(
        seen.began.first(),
        Some(&2),
        "the style sheet came first although reprioritization is off"
    );
}
