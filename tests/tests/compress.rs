//! Compression of responses over every protocol version, checked with decoders of other projects.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::channel;

use h2o_tests::{Backend, Setup, Talk, curl, run, tool};

/// A text of 400 KB.
fn text() -> String {
    (0..50_000).map(|n| format!("{n:07x} ")).collect()
}

#[test]
fn decoders_of_other_projects_give_back_the_content() {
    let settings = "num-threads: 1\ncompress: { br: 5, zstd: ON, gzip: ON }";
    let server = Setup::http3(settings, "", "")
        .file("www/large.txt", text())
        .start();
    let url = format!("https://localhost:{}/large.txt", server.port());
    let packed = server.folder.name_of("packed");
    for version in ["--http1.1", "--http2"] {
        for (coding, decoder) in [("br", "brotli"), ("zstd", "zstd"), ("gzip", "gzip")] {
            let accept = format!("accept-encoding: {coding}");
            let args = ["-sk", version, "-H", &accept, "-o", &packed, &url];
            assert_eq!(run("curl", &args).code, 0, "{version} {coding}");
            let length = std::fs::metadata(&packed)
                .expect("curl has written the file")
                .len();
            assert!(length < 200_000, "{version} {coding}: {length}");
            let input = run("sh", &["-c", &format!("{decoder} -dc <{packed}")]);
            assert!(input.success() == text().as_bytes(), "{version} {coding}");
        }
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/http3.py");
    let port = server.port().to_string();
    let python = tool("aioquic/bin/python3");
    let output = run(&python, &[script, "compressed", &port]);
    assert!(output.code == 0 && output.text() == "ok\n", "{output}");
}

#[test]
fn a_streamed_response_arrives_line_by_line() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    // A backend that sends the next line of its response only when the test has received the one before.
    let backend = Backend::start(move |talk: &mut Talk| {
        while talk.read_request().is_some() {
            talk.send(
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n",
            );
            for line in 0..3 {
                let wait = wait.lock().expect("no thread panics");
                if wait.recv().is_err() {
                    return;
                }
                talk.send(format!("7\r\nline {line}\n\r\n"));
            }
            talk.send("0\r\n\r\n");
        }
    });
    let paths: String = ["gzip", "br"]
        .map(|coding| {
            let url = backend.url("/");
            format!("      /{coding}: {{ proxy.reverse.url: '{url}', compress: [{coding}] }}\n")
        })
        .concat();
    let config = format!("listen: @PORT@\nhosts:\n  default:\n    paths:\n{paths}");
    let server = Setup::new(&config).start();
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for coding in ["gzip", "br"] {
            let mut client = Command::new("curl")
                .args(["-sN", "--compressed", "--max-time", "60", version])
                .arg(format!("http://127.0.0.1:{}/{coding}", server.port()))
                .stdout(Stdio::piped())
                .spawn()
                .expect("curl is installed");
            let output = client.stdout.take().expect("the client's output is a pipe");
            let mut lines = BufReader::new(output).lines();
            for line in 0..3 {
                go.send(()).expect("the backend runs");
                let got = lines.next().map(|line| line.expect("the bytes are UTF-8"));
                assert_eq!(got, Some(format!("line {line}")), "{version} {coding}");
            }
            assert!(lines.next().is_none(), "{version} {coding}");
            assert!(client.wait().is_ok_and(|status| status.success()));
        }
    }
}

#[test]
fn backends_steer_compression_by_a_hint_that_clients_do_not_see() {
    let backend = Backend::by_request(|request| {
        let hint = request.target().trim_start_matches('/');
        format!(
            "HTTP/1.1 200 OK\r\nx-compress-hint: {hint}\r\ncontent-type: image/x\r\ncontent-length: 3\r\n\r\nabc"
        )
    });
    let config = format!(
        "listen: @PORT@\ncompress: [ gzip, br ]\nhosts:\n  default:\n    paths:\n      /: {{ proxy.reverse.url: '{}' }}\n",
        backend.url("/")
    );
    let server = Setup::new(&config).start();
    for (hint, coding) in [
        ("on", Some("br")),
        ("GZIP", Some("gzip")),
        ("off", None),
        ("auto", None),
    ] {
        let url = format!("http://127.0.0.1:{}/{hint}", server.port());
        let response = curl(&["-H", "accept-encoding: gzip, br", &url]);
        assert_eq!(response.field("content-encoding"), coding, "{hint}");
        assert_eq!(response.field("x-compress-hint"), None, "{hint}");
    }
}
