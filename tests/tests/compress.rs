//! Compression of responses over every protocol version, checked with decoders of other projects.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::channel;

use h2o_tests::{Backend, Random, Raw, Setup, Talk, curl, run, tool};
use rustix::net::sockopt::set_socket_recv_buffer_size;

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
    let paths: String = ["gzip", "br", "zstd"]
        .map(|coding| {
            let url = backend.url("/");
            format!("      /{coding}: {{ proxy.reverse.url: '{url}', compress: [{coding}] }}\n")
        })
        .concat();
    let server = Setup::http3("", "", &paths).start();
    let port = server.port().to_string();
    let mut clients = Vec::new();
    for coding in ["gzip", "br", "zstd"] {
        for version in ["--http1.1", "--http2"] {
            let mut client = Command::new("curl");
            client.args(["-skN", "--compressed", "--max-time", "60", version]);
            client.arg(format!("https://localhost:{port}/{coding}"));
            clients.push((format!("{version} {coding}"), client, None));
        }
    }
    let mut over_http3 = Command::new(tool("aioquic/bin/python3"));
    over_http3.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/clients/http3.py"));
    over_http3.args(["compressed_lines", &port, "/gzip"]);
    // `http3.py` prints `ok` in the end if the response was as it expected; curl prints nothing more.
    clients.push(("HTTP/3 gzip".to_owned(), over_http3, Some("ok")));
    for (name, mut client, last) in clients {
        let mut client = client
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client is installed");
        let output = client.stdout.take().expect("the client's output is a pipe");
        let mut lines = BufReader::new(output).lines();
        for line in 0..3 {
            go.send(()).expect("the backend runs");
            let got = lines.next().map(|line| line.expect("the bytes are UTF-8"));
            assert_eq!(got, Some(format!("line {line}")), "{name}");
        }
        let rest = lines.next().map(|line| line.expect("the bytes are UTF-8"));
        assert_eq!(rest.as_deref(), last, "{name}");
        assert!(client.wait().is_ok_and(|status| status.success()), "{name}");
    }
}

#[test]
fn clients_that_read_nothing_take_little_memory_and_are_accounted() {
    const CLIENTS: usize = 300;
    const MOST: usize = 400_000;
    let mut random = Random::new(3);
    let text: String = (0..400_000)
        .map(|_| format!("{:07x} ", random.below(1 << 28)))
        .collect();
    for coding in ["br", "zstd", "gzip"] {
        // The small send buffer makes the server hold most of each response, because the client does not read.
        let config = "
listen: { host: 127.0.0.1, port: @PORT@, sndbuf: 16384 }
num-threads: 1
compress: [ br, zstd, gzip ]
hosts:
  default:
    paths:
      /: { file.dir: @DIR@/www }
      /status: { status: ON }
";
        let server = Setup::new(config).file("www/large.txt", &text).start();
        let request = format!(
            "GET /large.txt HTTP/1.1\r\nhost: a\r\nconnection: close\r\naccept-encoding: {coding}\r\n\r\n"
        );
        // A first response, read to its end, makes the worker allocate what it keeps between requests, before its memory is measured.
        let mut first = server.connect();
        first.send(&request);
        assert!(first.read_to_end().len() < text.len(), "{coding}");
        let before = server.memory_at_rest();
        let clients: Vec<Raw> = (0..CLIENTS)
            .map(|_| {
                let mut client = server.connect();
                set_socket_recv_buffer_size(client.stream(), 4096).expect("it is a socket");
                client.send(&request);
                client
            })
            .collect();
        let taken = server.memory_at_rest().saturating_sub(before) / CLIENTS;
        let status = server.ask("GET /status/json").text();
        let accounted = status.split("\"memory.buffers-bytes\":").nth(1);
        let accounted =
            accounted.and_then(|rest| rest.split([',', '\n']).next()?.trim().parse().ok());
        let accounted: usize = accounted.expect("the status has the number");
        let accounted = accounted / CLIENTS;
        let seen = format!("{coding}: {taken} bytes taken, {accounted} accounted");
        println!("{seen}");
        assert!(taken <= MOST && accounted <= MOST, "{seen}");
        // 100,000 bytes for each client show that the responses have begun. The status must account for nearly all of their memory.
        assert!(taken > 100_000 && accounted > taken * 4 / 5, "{seen}");
        drop(clients);
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
