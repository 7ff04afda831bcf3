//! FastCGI applications that answer before they have read the content of the request, and requests with much content.

use std::io::Read;
use std::process::Command;

use h2o_tests::{Backend, Server, Setup, Talk, eventually, tool};

use super::kit::{Received, end, read_record, record, response};

/// Largest number of bytes by which the server's memory may grow, however long the content of a request is.
const HELD: usize = 24 << 20;
/// Bytes of a request's content.
const MUCH: usize = 100_000_000;

fn start(backend: &Backend) -> Server {
    let paths = format!("/app: {{ fastcgi.connect: {} }}", backend.port());
    let settings =
        "num-threads: 1\nlimit-request-body: 200000000\nfastcgi.timeout.keepalive: 10000";
    let rest = format!("      {paths}");
    Setup::http3(settings, "", &rest).start()
}

/// Sends a POST request with `len` bytes of content over HTTP/1.1, HTTP/2 and HTTP/3. The client must print `want`; `check` runs after each
/// request. The server's memory must stay within bounds.
fn post(server: &Server, len: usize, want: &str, check: impl Fn(&str)) {
    let path = server.folder.at("content");
    let file = std::fs::File::create(&path).expect("the folder can be written to");
    file.set_len(len as u64)
        .expect("the file system supports sparse files");
    let data = path.display().to_string();
    let before = server.memory();
    let url = format!("https://127.0.0.1:{}/app", server.port());
    for version in ["--http1.1", "--http2"] {
        let args = [
            "-sk",
            version,
            "-H",
            "Expect:",
            "-T",
            &data,
            "-X",
            "POST",
            "-w",
            " %{http_code}",
            &url,
        ];
        assert_eq!(output("curl", &args), want, "{version}");
        check(version);
    }
    let port = server.port().to_string();
    let argument = format!("{len} /app");
    let got = output(&tool("quic-go"), &["post", &port, &argument]);
    assert_eq!(got.lines().next(), Some(want), "HTTP/3: {got}");
    check("HTTP/3");
    let grown = server.memory_at_rest().saturating_sub(before);
    assert!(grown < HELD, "{grown} bytes");
}

/// Runs a program without a time limit and returns its output: sending the content takes as long as the machine needs.
fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.expect("the client program is installed");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Reads the content of a request record by record; returns its length, or `None` if the connection ends first.
fn count_content(talk: &mut Talk) -> Option<usize> {
    let mut sum = 0;
    loop {
        match read_record(talk)? {
            (5, content) if content.is_empty() => return Some(sum),
            (5, content) => sum += content.len(),
            _ => {}
        }
    }
}

#[test]
fn content_of_any_size_passes_through_with_little_memory() {
    let backend = Backend::start(|talk| {
        while let Some(len) = count_content(talk) {
            if !talk.send(response(format!("\n{len}"))) {
                return;
            }
        }
    });
    let server = start(&backend);
    post(&server, MUCH, &format!("{MUCH} 200"), |_| {});
    assert_eq!(
        backend.connections(),
        1,
        "all requests use one connection to the application"
    );
}

/// The application does not read the content, and waits longer than the sockets' buffers can take content.
#[test]
fn an_answer_that_ends_before_the_content_ends_the_request() {
    let backend = Backend::start(|talk| {
        // The application reads only the parameters.
        while let Some((kind, content)) = read_record(talk) {
            if kind == 4 && content.is_empty() {
                talk.send([record(6, b"Status: 413 Too Much\n\nno"), end()].concat());
                // The application keeps the connection open; the server must not use it for another request.
                talk.read_to_end();
                return;
            }
        }
    });
    let server = start(&backend);
    let before = backend.connections();
    post(&server, MUCH, "no 413", |version| {
        eventually(version, || {
            (backend.ended() == backend.connections()).then_some(())
        });
    });
    assert_eq!(backend.connections(), before + 3);
}

/// The client reads the beginning of the response while it still sends, and the application gets all of the content.
#[test]
fn an_application_that_answers_while_it_reads_gets_the_rest_of_the_content() {
    let backend = Backend::start(|talk| {
        while let Some((kind, content)) = read_record(talk) {
            if kind == 4 && content.is_empty() {
                talk.send(record(6, b"\nearly "));
                let Some(len) = count_content(talk) else {
                    return;
                };
                talk.send([record(6, len.to_string().as_bytes()), end()].concat());
            }
        }
    });
    let server = start(&backend);
    post(&server, MUCH, &format!("early {MUCH} 200"), |_| {});
}

/// A client that gets the response early may go on sending on its connection: the server takes no part of the content for a request.
#[test]
fn the_rest_of_a_content_is_no_request() {
    let backend = Backend::start(|talk| {
        while let Some((kind, content)) = read_record(talk) {
            if kind == 4 && content.is_empty() {
                talk.send(response("Content-Length: 2\n\nno"));
                talk.read_to_end();
                return;
            }
        }
    });
    let port = backend.port();
    let config = format!(
        "listen: @PORT@\nhosts:\n  default:\n    paths:\n      /: {{ fastcgi.connect: {port} }}\n"
    );
    let server = Setup::new(&config).start();
    let inner = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut client = server.connect();
    let len = 1_000_000 + inner.len();
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\nx"
    ));
    assert_eq!(client.read_response("POST").body, b"no");
    client.try_send(vec![b'x'; 999_999]);
    client.try_send(inner);
    client.try_send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut rest = Vec::new();
    let _ = client.stream().read_to_end(&mut rest);
    let received = backend.received_by_all();
    let received = String::from_utf8_lossy(&received);
    assert!(!received.contains("smuggled"), "{received}");
}

#[test]
fn a_client_that_breaks_off_ends_the_request_at_the_application() {
    let backend = Backend::start(|talk| {
        Received::read(talk);
    });
    let port = backend.port();
    let config = format!(
        "listen: @PORT@\nhosts:\n  default:\n    paths:\n      /: {{ fastcgi.connect: {port} }}\n"
    );
    let server = Setup::new(&config).start();
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    backend.wait_for("hello");
    drop(client);
    backend.wait_for_ended(1);
}
