//! What access logs and status pages show of HTTP/2.

use h2o_tests::http2::{Frame, Http2, get};
use h2o_tests::{Server, Setup, curl, eventually, run, run_with_input};

fn start(host: &str) -> Server {
    Setup::new(&format!(
        "
listen: @PORT@
hosts:
  default:
    {host}
    paths: {{ /: {{ file.dir: @DIR@/www }} }}
access-log:
  path: @DIR@/access-log
  format: '%U %H %{{http2.stream-id}}x %{{http2.priority.received}}x %{{http2.priority.actual}}x'
access-log:
  path: @DIR@/parts-log
  format: '%U %{{http2.priority.received.exclusive}}x %{{http2.priority.received.parent}}x %{{http2.priority.received.weight}}x %{{http2.priority.actual.parent}}x %{{http2.priority.actual.weight}}x'
"
    ))
    .file("www/a.txt", "a")
    .file("www/b.txt", "b")
    .file("www/c.css", "c")
    .start()
}

/// Waits until the log `name` has as many lines as `want`, and compares both, sorted.
fn logs(server: &Server, name: &str, want: &[&str]) {
    let mut got: Vec<String> = eventually(name, || {
        let log = server.folder.read(name);
        let is_complete = log.lines().count() >= want.len() && log.ends_with('\n');
        is_complete.then(|| log.lines().map(str::to_owned).collect())
    });
    got.sort();
    assert_eq!(got, want, "{name}");
}

type Texts = &'static [&'static str];

#[test]
fn the_access_log_tells_streams_and_priorities() {
    // Each case: options of nghttp, paths that it requests, lines expected in `access-log`, lines expected in `parts-log`.
    let cases: &[(Texts, Texts, Texts, Texts)] = &[
        (
            &["--no-dep", "-p", "42"],
            &["/a.txt"],
            &["/a.txt HTTP/2 1 0:0:42 0:42"],
            &["/a.txt 0 0 42 0 42"],
        ),
        // nghttp announces a tree of priorities with idle streams; its requests depend on stream 11 of that tree.
        (
            &["-p", "3", "-p", "200"],
            &["/a.txt", "/b.txt", "/c.css"],
            &[
                "/a.txt HTTP/2 13 0:11:3 11:3",
                "/b.txt HTTP/2 15 0:11:200 11:200",
                "/c.css HTTP/2 17 0:11:200 11:200",
            ],
            &[
                "/a.txt 0 11 3 11 3",
                "/b.txt 0 11 200 11 200",
                "/c.css 0 11 200 11 200",
            ],
        ),
        // nghttp announces no tree of priorities: the server gives the style sheet a weight of 257, above all that clients can ask for.
        (
            &["--no-dep", "-p", "256", "-p", "1"],
            &["/a.txt", "/b.txt", "/c.css"],
            &[
                "/a.txt HTTP/2 1 0:0:256 0:256",
                "/b.txt HTTP/2 3 0:0:1 0:1",
                "/c.css HTTP/2 5 0:0:1 0:257",
            ],
            &[
                "/a.txt 0 0 256 0 256",
                "/b.txt 0 0 1 0 1",
                "/c.css 0 0 1 0 257",
            ],
        ),
        // A request that upgrades from HTTP/1.1 becomes stream 1.
        (
            &["--upgrade"],
            &["/a.txt"],
            &["/a.txt HTTP/2 1 0:0:16 0:16"],
            &["/a.txt 0 0 16 0 16"],
        ),
    ];
    for (options, paths, lines, parts) in cases {
        let server = start("");
        let urls: Vec<String> = paths.iter().map(|path| server.url(path)).collect();
        let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
        let _ = run("nghttp", &[&["--null-out"], *options, &urls].concat()).success();
        logs(&server, "access-log", lines);
        logs(&server, "parts-log", parts);
    }
}

/// A browser of Chromium orders its streams in a chain.
#[test]
fn the_access_log_tells_the_priority_that_a_response_asks_for() {
    let server = start("header.add: 'priority: u=1'");
    let mut client = Http2::open(server.port(), &[]);
    client.send_frame(&Frame::request_after(1, true, 0, 147, &get("/a.txt")));
    assert_eq!(client.read_answer(1).status(), 200);
    drop(client);
    logs(&server, "access-log", &["/a.txt HTTP/2 1 1:0:147 0:220"]);
}

#[test]
fn the_access_log_has_no_streams_for_http_1() {
    let server = start("");
    assert_eq!(server.ask("GET /a.txt").code(), 200);
    logs(&server, "access-log", &["/a.txt HTTP/1.1 - - -"]);
    logs(&server, "parts-log", &["/a.txt - - - - -"]);
}

/// A Python program that prints each member of a JSON text in its order: a line with the path of its names and its value.
const FLATTEN: &str = "
import json, sys
def tell(value, path):
    if isinstance(value, dict):
        for key in value: tell(value[key], f'{path}.{key}' if path else key)
    else:
        print(path, json.dumps(value))
tell(json.load(sys.stdin), '')
";

/// The page `/.well-known/h2/state` about the connection that requests it, printed by [`FLATTEN`].
fn state(server: &Server, options: &[&str]) -> Vec<String> {
    let url = server.url("/.well-known/h2/state");
    let response = curl(&[options, &["--http2-prior-knowledge", &url]].concat());
    assert_eq!(response.code(), 200, "{response}");
    for (name, want) in [
        ("content-type", "application/json; charset=utf-8"),
        ("cache-control", "no-cache, no-store"),
    ] {
        assert_eq!(response.field(name), Some(want), "{response}");
    }
    for name in ["conn-flow-in", "conn-flow-out"] {
        let value = response.field(name).and_then(|value| value.parse().ok());
        assert!(value.is_some_and(|value: i64| value > 0), "{response}");
    }
    let text = response.text();
    assert!(text.starts_with("{\n  \"version\": "), "{text}");
    let flat = run_with_input("/usr/bin/python3", &["-c", FLATTEN], &text).success();
    let flat = String::from_utf8(flat).expect("the flattened JSON is ASCII");
    flat.lines().map(str::to_owned).collect()
}

/// Compares line by line; a `*` at the end of an expected line stands for any text.
fn must_be(got: &[String], want: &[&str]) {
    let agrees = |got: &String, want: &&str| match want.strip_suffix('*') {
        Some(start) => got.starts_with(start),
        None => got == want,
    };
    let all_agree = got.iter().zip(want).all(|(got, want)| agrees(got, want));
    assert!(
        got.len() == want.len() && all_agree,
        "{got:#?} is not {want:#?}"
    );
}

/// Seconds since the epoch, as the program `date` prints them.
fn seconds() -> u64 {
    let text = run("date", &["+%s"]).text();
    text.trim().parse().expect("date tells a number")
}

const STATE: &[&str] = &[
    "version \"draft-01\"",
    "settings.SETTINGS_HEADER_TABLE_SIZE 4096",
    "settings.SETTINGS_ENABLE_PUSH 0",
    "settings.SETTINGS_MAX_CONCURRENT_STREAMS 100",
    "settings.SETTINGS_INITIAL_WINDOW_SIZE 65535",
    "settings.SETTINGS_MAX_FRAME_SIZE 16384",
    "peerSettings.SETTINGS_HEADER_TABLE_SIZE 4096",
    "peerSettings.SETTINGS_ENABLE_PUSH 0",
    "peerSettings.SETTINGS_MAX_CONCURRENT_STREAMS 100",
    "peerSettings.SETTINGS_INITIAL_WINDOW_SIZE *",
    "peerSettings.SETTINGS_MAX_FRAME_SIZE 16384",
    "connFlowIn *",
    "connFlowOut *",
    "streams.1.state \"HALF_CLOSED_REMOTE\"",
    "streams.1.flowIn *",
    "streams.1.flowOut *",
    "streams.1.dataIn 0",
    "streams.1.dataOut 0",
    "streams.1.created *",
];

#[test]
fn the_state_of_a_connection_is_shown() {
    let minimum = state(&start("http2-debug-state: minimum"), &[]);
    must_be(&minimum, STATE);

    let server = start("http2-debug-state: hpack");
    let began = seconds();
    let all = state(
        &server,
        &["--header", "x-check: 1", "--user-agent", "check"],
    );
    let (common, hpack) = all.split_at(STATE.len());
    must_be(common, STATE);
    let authority = format!("[\":authority\", \"127.0.0.1:{}\"]", server.port());
    // The dynamic table is printed with its newest entry first.
    let inbound = "hpack.inboundDynamicHeaderTable [[\"x-check\", \"1\"], [\"accept\", \"*/*\"], [\"user-agent\", \"check\"], *";
    must_be(
        hpack,
        &[
            "hpack.inboundTableSize *",
            inbound,
            "hpack.outboundTableSize *",
            "hpack.outboundDynamicHeaderTable [*",
        ],
    );
    assert!(hpack[1].contains(&authority), "{hpack:#?}");
    let entries = hpack[1].matches("\", \"").count();
    assert_eq!(hpack[0], format!("hpack.inboundTableSize {entries}"));
    let created = common.last().and_then(|line| line.rsplit(' ').next());
    let created: u64 = created
        .and_then(|created| created.parse().ok())
        .unwrap_or_default();
    assert!((began..=seconds()).contains(&created), "{created}");
}

#[test]
fn the_state_is_for_http_2_and_for_hosts_that_show_it() {
    let server = start("http2-debug-state: hpack");
    server
        .ask("GET /.well-known/h2/state")
        .must_be("404 File Not Found");
    let url = server.url("/.well-known/h2/state");
    let head = curl(&["--http2-prior-knowledge", "--head", &url]);
    assert_eq!(head.code(), 200, "{head}");
    assert_eq!(head.body, b"", "{head}");
    let server = start("");
    let url = server.url("/.well-known/h2/state");
    let response = curl(&["--http2-prior-knowledge", &url]);
    assert_eq!(response.code(), 404, "{response}");
}
