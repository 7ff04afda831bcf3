//! HTTP/2 with the clients curl, nghttp and h2load, and with Go's client.

use std::time::Duration;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::http2::{Frame, Http2, flag, post};
use h2o_tests::{
    Backend, Folder, MODIFIED_TEXT, Output, Response, Server, Setup, curl, eventually, openssl,
    run, tool,
};

/// Number of small files: `/files/0`, `/files/1` and so on.
const FILES: usize = 200;

fn start() -> Server {
    start_with("")
}

fn start_with(settings: &str) -> Server {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "localhost");
    let config = format!(
        "
{settings}
listen: @PORT@
listen:
  port: @TLS_PORT@
  ssl: {{ certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key }}
hosts: {{ default: {{ paths: {{ /: {{ file.dir: @DIR@/www }} }} }} }}
access-log: {{ path: @DIR@/access-log, format: '%H %s %b %{{connection-id}}x %U' }}
"
    );
    let setup = Setup::in_folder(folder, &config)
        .file("www/hello.txt", "hello, world")
        .file("www/large", large());
    (0..FILES)
        .fold(setup, |setup, index| {
            setup.file(&format!("www/files/{index}"), small(index))
        })
        .start()
}

/// The content of the small file with this index. Files with neighbouring indices differ everywhere.
fn small(index: usize) -> String {
    format!("{index}: ") + &format!("{:05} ", index * 7).repeat(index * 5)
}

/// The content of the large file: 10 MB in which every 8 bytes are different.
fn large() -> Vec<u8> {
    let numbers = 0..1_250_000_u32;
    numbers
        .flat_map(|n| format!("{n:07x} ").into_bytes())
        .collect()
}

/// How a connection comes to use HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    PriorKnowledge,
    Upgrade,
    Tls,
}

impl Way {
    const ALL: [Self; 3] = [Self::PriorKnowledge, Self::Upgrade, Self::Tls];

    fn url(self, server: &Server, path: &str) -> String {
        match self {
            Self::Tls => format!("https://127.0.0.1:{}{path}", server.port_of("TLS_PORT")),
            Self::PriorKnowledge | Self::Upgrade => server.url(path),
        }
    }

    /// Options of curl for this way.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::PriorKnowledge => &["--http2-prior-knowledge"],
            Self::Upgrade => &["--http2"],
            Self::Tls => &["--http2", "--insecure"],
        }
    }

    /// Sends a request with curl; fails unless the response came over HTTP/2.
    fn ask(self, server: &Server, path: &str, options: &[&str]) -> Response {
        let url = self.url(server, path);
        let fixed = ["--write-out", "over %{http_version}", &url];
        let mut response = curl(&[self.options(), options, &fixed].concat());
        let body = response.body.strip_suffix(b"over 2");
        let body = body.unwrap_or_else(|| panic!("{self:?} {path}: not HTTP/2: {response}"));
        response.body = body.to_vec();
        // HTTP/2 has no reason phrase, so the status ends with a blank that is removed.
        response.status = response.status.trim_end().to_owned();
        response
    }
}

#[test]
fn curl_gets_files_in_each_way() {
    let server = start();
    for way in Way::ALL {
        let hello = way.ask(&server, "/hello.txt", &[]);
        hello.must_be(&format!(
            "200\ncontent-type: text/plain\ncontent-length: 12\nlast-modified: {MODIFIED_TEXT}\netag: *\n!connection\n!transfer-encoding\n\nhello, world"
        ));
        for (name, _) in &hello.fields {
            assert_eq!(*name, name.to_lowercase(), "names are in lower case");
        }
        let etag = hello.field("etag").unwrap_or_default().to_owned();
        way.ask(&server, "/hello.txt", &["--head"])
            .must_be(&format!("200\ncontent-length: 12\netag: {etag}\n\n"));
        way.ask(&server, "/hello.txt", &["--range", "7-9"])
            .must_be("206\ncontent-range: bytes 7-9/12\ncontent-length: 3\n\nwor");
        way.ask(&server, "/hello.txt", &["--range", "12-"])
            .must_be("416\ncontent-range: bytes */12");
        way.ask(
            &server,
            "/hello.txt",
            &["--header", &format!("If-None-Match: {etag}")],
        )
        .must_be("304\n\n");
        let since = format!("If-Modified-Since: {MODIFIED_TEXT}");
        way.ask(&server, "/hello.txt", &["--header", &since])
            .must_be("304\n\n");
        let since = "If-Modified-Since: Mon, 01 Jan 2024 00:00:00 GMT";
        way.ask(&server, "/hello.txt", &["--header", since])
            .must_be("200\n\nhello, world");
        way.ask(&server, "/none", &[]).must_be("404");
        if way == Way::Upgrade {
            // After an upgrade curl 7.88 accepts no more than 32 KB that arrive together with the 101; nghttp accepts more.
            continue;
        }
        let got = way.ask(&server, "/large", &[]).body;
        assert!(got == large(), "{way:?}: {} bytes", got.len());
    }
}

#[test]
fn the_version_is_what_both_sides_want() {
    let server = start();
    let port = server.port_of("TLS_PORT");
    let address = format!("127.0.0.1:{port}");
    for version in ["-tls1_2", "-tls1_3"] {
        for (offer, want) in [
            ("h2", "ALPN protocol: h2"),
            ("h2,http/1.1", "ALPN protocol: h2"),
            ("http/1.1,h2", "ALPN protocol: h2"),
            ("http/1.1", "ALPN protocol: http/1.1"),
        ] {
            let args = ["s_client", version, "-alpn", offer, "-connect", &address];
            let text = openssl(&args).text();
            assert!(text.lines().any(|line| line == want), "{offer}: {text}");
        }
    }
    let url = Way::Tls.url(&server, "/hello.txt");
    for (options, want) in [
        (&["--http2"][..], "2"),
        (&["--http1.1"], "1.1"),
        (&["--http2", "--no-alpn"], "1.1"),
    ] {
        let fixed = ["--insecure", "--write-out", " over %{http_version}", &url];
        let response = curl(&[options, &fixed].concat());
        assert_eq!(response.text(), format!("hello, world over {want}"));
    }
    let server = start_with("http1-upgrade-to-http2: OFF");
    let url = server.url("/hello.txt");
    let response = curl(&["--http2", "--write-out", " over %{http_version}", &url]);
    assert_eq!(response.text(), "hello, world over 1.1");
}

#[test]
fn curl_sends_a_megabyte_that_nobody_wants() {
    let server = start();
    server.folder.write("upload", vec![b'u'; 1_000_000]);
    let upload = format!("@{}", server.folder.name_of("upload"));
    for way in [Way::PriorKnowledge, Way::Tls] {
        way.ask(&server, "/hello.txt", &["--data-binary", &upload])
            .must_be("405");
        // The option `--header Content-Length:` removes this field, so the server does not know the length of the content.
        let chunked = ["--header", "Content-Length:", "--data-binary", &upload];
        way.ask(&server, "/hello.txt", &chunked).must_be("405");
    }
}

#[test]
fn requests_of_one_connection_run_side_by_side() {
    let server = start();
    let out = server.folder.make_dir("out");
    // Over TLS only: in cleartext with prior knowledge, curl 7.88 loses all requests but the first of a connection.
    let url = Way::Tls.url(&server, &format!("/files/[0-{}]", FILES - 1));
    let files = format!("{}/#1", out.display());
    let fixed = [
        "--silent",
        "--show-error",
        "--fail",
        "--parallel",
        "--parallel-max",
        "100",
        "--max-time",
        "30",
        "--output",
        &files,
        &url,
    ];
    let _ = run("curl", &[Way::Tls.options(), &fixed].concat()).success();
    for index in 0..FILES {
        let got = server.folder.read(&format!("out/{index}"));
        assert_eq!(got, small(index), "{index}");
    }
    let log = eventually("all lines of the access log", || {
        let log = server.folder.read("access-log");
        (log.lines().count() == FILES).then_some(log)
    });
    let mut connections: Vec<&str> = log
        .lines()
        .map(|line| {
            assert!(line.starts_with("HTTP/2 200 "), "{line}");
            line.split(' ').nth(3).unwrap_or_default()
        })
        .collect();
    connections.dedup();
    assert_eq!(connections.len(), 1, "{connections:?}");
}

/// Runs nghttp; fails if nghttp reports an error.
fn nghttp(options: &[&str], urls: &[String]) -> Output {
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let output = run("nghttp", &[&["--no-verify-peer"], options, &urls].concat());
    assert!(output.code == 0, "{options:?}: {output}");
    output
}

#[test]
fn nghttp_gets_a_file_whatever_it_does_besides() {
    let server = start();
    let options: &[&[&str]] = &[
        &[],
        &["--no-dep"],
        &["--continuation"],
        &["--weight", "256"],
        &["--weight", "1"],
        // With a window of one byte, the server sends as many DATA frames as the content has bytes.
        &["--window-bits", "8", "--connection-window-bits", "8"],
        &["--window-bits", "14", "--connection-window-bits", "16"],
        &["--padding", "255"],
        &["--header-table-size", "0"],
        &["--header-table-size", "0", "--header-table-size", "64K"],
        &["--encoder-header-table-size", "0"],
        &["--no-rfc7540-pri"],
        &["--no-push"],
        &["--peer-max-concurrent-streams", "1"],
    ];
    // The file is short enough for windows of one byte: after too many tiny WINDOW_UPDATE frames the server would close the connection.
    let want = small(20);
    for options in options {
        for way in Way::ALL {
            let mut options = options.to_vec();
            if way == Way::Upgrade {
                options.push("--upgrade");
            }
            let got = nghttp(&options, &[way.url(&server, "/files/20")]);
            assert_eq!(got.text(), want, "{way:?} {options:?}");
        }
    }
}

/// Path and status code of each response, from the table that `nghttp --stat` prints.
fn statistics(output: &Output) -> Vec<(String, String)> {
    let text = output.text();
    let (_, table) = text
        .split_once("request path\n")
        .unwrap_or_else(|| panic!("the client printed no statistics: {output}"));
    let rows = table.lines().filter_map(|line| {
        // Columns of the table: id responseEnd requestStart process code size request path
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (code, path) = (columns.get(4)?, columns.last()?);
        Some(((*path).to_owned(), (*code).to_owned()))
    });
    rows.collect()
}

#[test]
fn nghttp_gets_a_large_file_in_each_way() {
    let server = start();
    for way in Way::ALL {
        for window in ["12", "16", "30"] {
            let mut options = vec!["--window-bits", window];
            if way == Way::Upgrade {
                options.push("--upgrade");
            }
            let got = nghttp(&options, &[way.url(&server, "/large")]).stdout;
            assert!(got == large(), "{way:?} {window}: {} bytes", got.len());
        }
    }
}

#[test]
fn nghttp_gets_many_files_with_weights_at_once() {
    let server = start();
    for way in Way::ALL {
        let mut urls = vec![
            way.url(&server, "/large"),
            way.url(&server, "/none"),
            way.url(&server, "/hello.txt"),
        ];
        urls.extend((0..FILES).map(|index| way.url(&server, &format!("/files/{index}"))));
        let mut options = vec!["--null-out", "--stat", "-p", "1", "-p", "256", "-p", "16"];
        if way == Way::Upgrade {
            options.push("--upgrade");
        }
        let mut got = statistics(&nghttp(&options, &urls));
        got.sort();
        let mut want: Vec<_> = urls
            .iter()
            .map(|url| {
                let path = &url[url.rfind(":").map_or(0, |at| at + 1)..];
                let path = path.trim_start_matches(|c: char| c.is_ascii_digit());
                let code = if path == "/none" { "404" } else { "200" };
                (path.to_owned(), code.to_owned())
            })
            .collect();
        want.sort();
        assert_eq!(got, want, "{way:?}");
    }
}

#[test]
fn nghttp_sends_content_and_trailers() {
    let server = start();
    server.folder.write("upload", vec![b'u'; 300_000]);
    let upload = server.folder.name_of("upload");
    for way in [Way::PriorKnowledge, Way::Tls] {
        for options in [
            &[][..],
            &["--trailer", "x-check: 1"],
            &["--no-content-length"],
            &["--no-content-length", "--trailer", "x-check: 1"],
            &["--expect-continue"],
            &["--padding", "200"],
        ] {
            let fixed = ["--null-out", "--stat", "--data", &upload];
            let output = nghttp(
                &[&fixed, options].concat(),
                &[way.url(&server, "/hello.txt")],
            );
            let got = statistics(&output);
            let want = [("/hello.txt".to_owned(), "405".to_owned())];
            assert_eq!(got, want, "{way:?} {options:?}");
        }
    }
}

/// The rest of the line of a report that begins with `label`.
fn line_of<'a>(report: &'a str, label: &str) -> &'a str {
    let mut lines = report.lines().filter_map(|line| line.strip_prefix(label));
    lines
        .next()
        .unwrap_or_else(|| panic!("no number {label} in the report {report}"))
        .trim()
}

#[test]
fn h2load_gets_every_byte_of_many_responses() {
    let server = start();
    let requests = 1000;
    for way in [Way::PriorKnowledge, Way::Tls] {
        for (path, length) in [("/hello.txt", 12), ("/files/199", small(199).len())] {
            for threads in ["1", "2"] {
                let url = way.url(&server, path);
                let n = requests.to_string();
                let output = run(
                    "h2load",
                    &["-n", &n, "-c", "10", "-m", "100", "-t", threads, &url],
                );
                let report = output.text();
                assert_eq!(output.code, 0, "{output}");
                let protocol = line_of(&report, "Application protocol:");
                assert!(["h2", "h2c"].contains(&protocol), "{report}");
                assert_eq!(
                    line_of(&report, "requests:"),
                    format!(
                        "{n} total, {n} started, {n} done, {n} succeeded, 0 failed, 0 errored, 0 timeout"
                    )
                );
                assert_eq!(
                    line_of(&report, "status codes:"),
                    format!("{n} 2xx, 0 3xx, 0 4xx, 0 5xx")
                );
                let traffic = line_of(&report, "traffic:");
                let bytes = format!("({}) data", requests * length);
                assert!(traffic.ends_with(&bytes), "{traffic} is not {bytes}");
            }
        }
    }
}

/// The lines that `go-client` has printed for one step.
fn told<'a>(report: &'a str, step: &str) -> Vec<&'a str> {
    let start = format!("{{\"step\":\"{step}\",");
    let lines = report.lines().filter(|line| line.starts_with(&start));
    lines.collect()
}

#[test]
fn go_asks_for_many_things_on_one_connection() {
    let server = start();
    let base = Way::Tls.url(&server, "");
    let output = run(&tool("go-client"), &[&base, &FILES.to_string()]);
    let report = output.text();
    let has_errors = report
        .lines()
        .any(|line| line.starts_with("{\"step\"") && !line.ends_with("\"error\":\"\"}"));
    assert!(output.code == 0 && !has_errors, "{output}");

    // The hashes that the client must have reported, computed by sha256sum.
    let www = server.folder.name_of("www");
    let sums = run(
        "sh",
        &["-c", &format!("cd {www} && sha256sum large files/*")],
    )
    .success();
    let sums = String::from_utf8(sums).expect("the output of sha256sum is UTF-8");
    let told_of = |path: &str, length: usize| {
        let sum = sums.lines().find_map(|line| {
            let (sum, name) = line.split_once("  ")?;
            (format!("/{name}") == path).then_some(sum)
        });
        let sum = sum.unwrap_or_else(|| panic!("the test has no checksum for {path}"));
        format!(
            "\"path\":\"{path}\",\"proto\":\"HTTP/2.0\",\"status\":200,\"length\":{length},\"bytes\":{length},\"sha256\":\"{sum}\","
        )
    };

    let concurrent = told(&report, "concurrent");
    assert_eq!(concurrent.len(), FILES, "{report}");
    for index in 0..FILES {
        let want = told_of(&format!("/files/{index}"), small(index).len());
        assert!(concurrent.iter().any(|line| line.contains(&want)), "{want}");
    }
    let large = told_of("/large", 10_000_000);
    let last = told_of(&format!("/files/{}", FILES - 1), small(FILES - 1).len());
    let head = "\"status\":200,\"length\":10000000,\"bytes\":0,";
    for (step, count, want) in [
        ("large", 1, large.as_str()),
        ("head", 1, head),
        ("missing", 1, "\"proto\":\"HTTP/2.0\",\"status\":404,"),
        ("upload", 1, "\"proto\":\"HTTP/2.0\",\"status\":405,"),
        ("after", 20, &last),
        ("again", 1, &large),
    ] {
        let lines = told(&report, step);
        assert_eq!(lines.len(), count, "{step}: {report}");
        for line in lines {
            assert!(line.contains(want), "{line} does not have {want}");
        }
    }
    assert!(report.ends_with("{\"connections\":1}\n"), "{report}");
}

#[test]
fn a_stream_of_messages_in_both_directions_may_pause_longer_than_an_idle_connection() {
    // The backend pauses for longer than the idle timeout, at first before its response begins.
    let pause = Duration::from_millis(1500);
    let backend = Backend::start(move |talk| {
        let Some(request) = talk.read_head() else {
            return;
        };
        if request.target() == "/silent" {
            std::thread::sleep(pause);
        }
        talk.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n");
        std::thread::sleep(pause);
        talk.send("3\r\ntwo\r\n0\r\n\r\n");
        talk.read_to_end();
    });
    let server = Setup::new(&format!(
        "
listen: @PORT@
http2-idle-timeout: 1
hosts:
  default:
    paths:
      /: {{ proxy.reverse.url: '{0}', client-min-rate: 0 }}
",
        backend.url("/")
    ))
    .start();
    for path in ["/", "/silent"] {
        let mut client = Http2::open(server.port(), &[]);
        client.send_frame(&Frame::request_with_content(1, post(path)));
        client.send_frame(&Frame::data(1, 0, "content"));
        client.read_until("both messages", |client| {
            let answer = client.answers.get(&1);
            answer.is_some_and(|answer| answer.text() == "onetwo")
        });
        client.send_frame(&Frame::data(1, flag::END_STREAM, ""));
        let answer = client.read_answer(1);
        assert_eq!(
            (answer.status(), answer.text()),
            (200, "onetwo".into()),
            "{path}"
        );
    }
}
