//! Buffering of responses: a backend is free for other requests although its client reads slowly.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::http2::{Frame, Http2, encode, flag, get, kind, setting};
use h2o_tests::{Backend, FINE, Folder, Raw, Server, Service, Setup, Talk, curl, eventually};
use rustix::process::{Pid, Resource, Rlimit, geteuid, prlimit};

use super::http2_upstream::Frames;
use super::kit::config;
use super::streaming::{at_rest, gate, pattern};

/// Bytes of a response, more than the kernel's socket buffers hold when no one reads.
const LARGE: usize = 40_000_000;

/// Directives by which the proxy uses HTTP/2 with its backends.
const HTTP2: &str = "proxy.http2.force-cleartext: ON\nproxy.http2.ratio: 100";

/// Starts a server that forwards every request to `url`, writes temporary files into its folder, and waits long for slow clients.
fn proxy(settings: &str, url: &str) -> Server {
    let folder = Folder::new();
    folder.make_dir("temp");
    let settings = format!(
        "temp-buffer-path: '@DIR@/temp'\nhttp1-request-io-timeout: 60\nhttp2-idle-timeout: 60\n{settings}"
    );
    Setup::in_folder(folder, &config(&settings, url)).start()
}

/// The lengths of the temporary files that the server has open.
fn files(server: &Server) -> Vec<u64> {
    let directory = server.folder.at("temp").display().to_string();
    let descriptors = fs::read_dir(format!("/proc/{}/fd", server.pid()));
    let descriptors = descriptors.expect("the server runs").flatten();
    let is_temporary = |entry: &fs::DirEntry| {
        let target = fs::read_link(entry.path());
        target.is_ok_and(|target| target.to_string_lossy().starts_with(&directory))
    };
    let files = descriptors.filter(is_temporary);
    let files = files.filter_map(|entry| fs::metadata(entry.path()).ok());
    files.map(|file| file.len()).collect()
}

fn no_files(server: &Server) {
    eventually("the temporary files to be closed", || {
        files(server).is_empty().then_some(())
    });
}

/// A client that requests a path and reads only the head of the response.
enum Slow {
    Http1(Raw),
    Http2(Http2),
}

impl Slow {
    /// Functions that make such a client: one over HTTP/1, and one over HTTP/2 with small windows.
    const EACH: [fn(&Server, &str) -> Self; 2] = [Self::http1, Self::http2];

    fn http1(server: &Server, path: &str) -> Self {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(client.read_head().code(), 200);
        Self::Http1(client)
    }

    fn http2(server: &Server, path: &str) -> Self {
        let mut client = Http2::open(server.port(), &[(setting::INITIAL_WINDOW_SIZE, 10_000)]);
        client.send_frame(&Frame::request(1, get(path)));
        client.read_until("the window to be full", |client| {
            client.answer(1).body.len() == 10_000
        });
        Self::Http2(client)
    }

    /// Reads the rest of the response. Returns its content and whether it is complete; `length` is that of the content, unless it is
    /// chunked.
    fn finish(self, length: usize, is_chunked: bool) -> (Vec<u8>, bool) {
        match self {
            Self::Http1(mut client) if is_chunked => client.read_chunks_that_may_break(),
            Self::Http1(mut client) => {
                let body = client.read_at_most(length);
                let is_complete = body.len() == length;
                (body, is_complete)
            }
            Self::Http2(mut client) => {
                client.send_frames(&[
                    Frame::window_update(0, 1 << 30),
                    Frame::window_update(1, 1 << 30),
                ]);
                let answer = client.read_answer(1);
                let is_complete = answer.reset.is_none();
                (answer.body, is_complete)
            }
        }
    }
}

/// The content that the backends in Go and Python send.
fn numbers(length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    for number in 0..length.div_ceil(8) {
        bytes.extend_from_slice(format!("{number:07} ").as_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[test]
fn a_slow_client_does_not_hold_a_back_end_that_serves_one_at_a_time() {
    let (_service, port) = Service::one_at_a_time(LARGE);
    let server = proxy("", &format!("http://127.0.0.1:{port}/"));
    let content = numbers(LARGE);
    for path in ["/large", "/chunked"] {
        for make in Slow::EACH {
            let client = make(&server, path);
            // The backend serves one request at a time, so this response shows that it is done with the slow client's request.
            assert_eq!(curl(&[&server.url("/")]).text(), "fine");
            let (body, is_complete) = client.finish(LARGE, path == "/chunked");
            assert!(is_complete && body == content, "{path}");
        }
        no_files(&server);
    }
}

#[test]
fn a_slow_client_over_tls_does_not_hold_a_back_end() {
    let (_service, port) = Service::one_at_a_time(LARGE);
    let folder = Folder::new();
    folder.make_dir("temp");
    self_signed(&folder, "server", Key::EcPkcs8, "localhost");
    let settings = "temp-buffer-path: '@DIR@/temp'
listen:
  port: @TLS_PORT@
  ssl: { certificate-file: '@DIR@/server.crt', key-file: '@DIR@/server.key' }";
    let url = format!("http://127.0.0.1:{port}/");
    let server = Setup::in_folder(folder, &config(settings, &url)).start();
    for version in ["--http1.1", "--http2"] {
        let url = format!("https://localhost:{}/large", server.port_of("TLS_PORT"));
        let mut slow = std::process::Command::new("curl")
            .args(["-sko", "/dev/null", "--limit-rate", "100k", version, &url])
            .spawn()
            .expect("curl is installed");
        eventually("a file", || {
            files(&server).iter().any(|len| *len > 0).then_some(())
        });
        assert_eq!(curl(&[&server.url("/")]).text(), "fine", "{version}");
        let ended = slow.try_wait().expect("the process is a child of the test");
        assert_eq!(
            ended, None,
            "{version}: the client has ended, although it reads slowly"
        );
        slow.kill().expect("the process is a child of the test");
        slow.wait().expect("the process is a child of the test");
        no_files(&server);
    }
}

#[test]
fn the_connection_serves_others_while_a_slow_client_reads() {
    for (framing, is_chunked) in [
        (format!("content-length: {LARGE}"), false),
        ("transfer-encoding: chunked".to_owned(), true),
    ] {
        let backend = Backend::start(move |talk: &mut Talk| {
            while let Some(request) = talk.read_request() {
                if request.target() != "/large" {
                    talk.send(h2o_tests::FINE);
                    continue;
                }
                talk.send(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n"));
                for piece in pattern(LARGE).chunks(100_000) {
                    if is_chunked {
                        talk.send(format!("{:x}\r\n", piece.len()));
                    }
                    talk.send(piece);
                    if is_chunked {
                        talk.send("\r\n");
                    }
                }
                if is_chunked {
                    talk.send("0\r\n\r\n");
                }
            }
        });
        let server = proxy("proxy.timeout.keepalive: 20000", &backend.url("/"));
        for make in Slow::EACH {
            let client = make(&server, "/large");
            eventually("the connection to be free", || {
                let before = backend.connections();
                server.ask("GET /").must_be("200 OK\n\nfine");
                (backend.connections() == before).then_some(())
            });
            let (body, is_complete) = client.finish(LARGE, is_chunked);
            assert!(is_complete && body == pattern(LARGE));
        }
        no_files(&server);
    }
}

#[test]
fn nginx_is_done_before_a_slow_client_is() {
    let folder = Folder::new();
    let content = pattern(LARGE);
    folder.write("www/large", &content);
    let (_nginx, port) = Service::nginx(
        &folder,
        "server { listen 127.0.0.1:@PORT@; root @DIR@/www; }
         server { listen unix:@DIR@/http2 http2; root @DIR@/www; }",
    );
    let unix = format!("http://[unix:{}]/", folder.at("http2").display());
    let http2 = format!("{HTTP2}\nproxy.preserve-host: ON");
    let served = || folder.read("nginx/access.log").lines().count();
    for (settings, url) in [("", format!("http://127.0.0.1:{port}/")), (&http2, unix)] {
        let server = proxy(settings, &url);
        for make in Slow::EACH {
            let before = served();
            let client = make(&server, "/large");
            // nginx writes the log line of a request when the response has been sent completely.
            eventually("nginx to be done", || (served() > before).then_some(()));
            let (body, is_complete) = client.finish(LARGE, false);
            assert!(is_complete && body == content, "{url}");
        }
        // A range of the file, and responses without content.
        let mut client = server.connect();
        client.send("GET /large HTTP/1.1\r\nHost: a\r\nRange: bytes=5-20000004\r\n\r\n");
        let head = client.read_head();
        assert_eq!(head.code(), 206);
        let before = served();
        eventually("nginx to be done", || (served() >= before).then_some(()));
        assert!(client.read_exactly(20_000_000) == content[5..20_000_005]);
        client.send("HEAD /large HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = client.read_response("HEAD");
        assert_eq!(
            head.field("content-length"),
            Some(LARGE.to_string().as_str())
        );
        let modified = head
            .field("last-modified")
            .expect("a response from a file has last-modified")
            .to_owned();
        client.send(format!(
            "GET /large HTTP/1.1\r\nHost: a\r\nIf-Modified-Since: {modified}\r\n\r\n"
        ));
        assert_eq!(client.read_response("GET").code(), 304);
        no_files(&server);
    }
}

#[test]
fn go_is_done_before_a_slow_client_is() {
    let folder = Folder::new();
    self_signed(&folder, "backend", Key::EcPkcs8, "localhost");
    let (_service, http, https) = Service::go(&folder, "backend");
    let by_http2 = format!("proxy.ssl.cafile: {}", folder.name_of("backend.crt"));
    let by_http1 = format!("{by_http2}\nproxy.http2.ratio: 0");
    let https = format!("https://localhost:{https}/");
    let content = numbers(LARGE);
    for (settings, url) in [
        ("", format!("http://127.0.0.1:{http}/")),
        (&by_http1, https.clone()),
        (&by_http2, https),
    ] {
        let server = proxy(settings, &url);
        let plain = format!("/content/{LARGE}");
        for path in [format!("{plain}?chunked"), plain] {
            for make in Slow::EACH {
                let client = make(&server, &path);
                eventually("Go to be done", || {
                    let writing = curl(&[&server.url("/contents")]).text();
                    (writing == "0").then_some(())
                });
                let (body, is_complete) = client.finish(LARGE, path.ends_with("chunked"));
                assert!(is_complete && body == content, "{settings} {path}");
            }
        }
    }
}

/// Sends a response with content and a trailer, as far as the stream's window allows; the connection's window is larger.
fn send_with_trailer(frames: &mut Frames<'_>, content: &[u8]) -> Option<()> {
    frames.send(&[Frame::settings(&[])]);
    // The client's first frame is SETTINGS, with the initial window of streams.
    let settings = frames.read()?;
    let (stream, _) = frames.read_request()?;
    let head = encode(&[(":status", "200")]);
    frames.send(&[Frame::new(kind::HEADERS, flag::END_HEADERS, stream, head)]);
    let number = |bytes: &[u8]| Some(i64::from(u32::from_be_bytes(bytes.try_into().ok()?)));
    let name = setting::INITIAL_WINDOW_SIZE.to_be_bytes();
    let mut settings = settings.payload.chunks(6);
    let of_streams = settings.find(|setting| setting.starts_with(&name))?;
    let mut window = number(&of_streams[2..])?;
    let mut pieces = content.chunks(16_000).peekable();
    while let Some(piece) = pieces.peek() {
        let bytes = i64::try_from(piece.len()).ok()?;
        if bytes <= window {
            window -= bytes;
            frames.send(&[Frame::data(stream, 0, *piece)]);
            pieces.next();
            continue;
        }
        let frame = frames.read()?;
        if frame.kind == kind::WINDOW_UPDATE && frame.stream == stream {
            window += number(&frame.payload)?;
        }
    }
    let trailer = encode(&[("x-last", "word")]);
    frames.send(&[Frame::new(kind::HEADERS, flag::WHOLE, stream, trailer)]);
    frames.talk.read_to_end();
    Some(())
}

#[test]
fn trailers_reach_a_slow_client() {
    let content = pattern(1_000_000);
    let backend = {
        let content = content.clone();
        Backend::start(move |talk: &mut Talk| {
            if let Some(mut frames) = Frames::new(talk) {
                // The result is ignored: the proxy may close the connection.
                let _ = send_with_trailer(&mut frames, &content);
            }
        })
    };
    let server = proxy(HTTP2, &backend.url("/"));
    let client = Slow::http2(&server, "/");
    eventually("most of the response in a temporary file", || {
        let most = files(&server).into_iter().max();
        most.is_some_and(|len| len > 700_000).then_some(())
    });
    let Slow::Http2(mut client) = client else {
        unreachable!("the test has started an HTTP/2 client");
    };
    client.send_frames(&[
        Frame::window_update(0, 1 << 30),
        Frame::window_update(1, 1 << 30),
    ]);
    let answer = client.read_answer(1);
    assert!(answer.body == content);
    assert_eq!(answer.trailers, [("x-last".to_owned(), "word".to_owned())]);
}

/// A backend that answers with this head and `length` bytes of content. Also returns the number of bytes that its socket has accepted.
fn sending(head: &str, length: usize) -> (Backend, Arc<AtomicUsize>) {
    let head = head.replace('\n', "\r\n") + "\r\n\r\n";
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&taken);
    let backend = Backend::start(move |talk: &mut Talk| {
        let content = pattern(length);
        while talk.read_request().is_some() {
            talk.send(&head);
            for piece in content.chunks(65_536) {
                if !talk.send(piece) {
                    break;
                }
                counter.fetch_add(piece.len(), Ordering::Relaxed);
            }
        }
        talk.read_to_end();
    });
    (backend, taken)
}

#[test]
fn a_client_that_goes_away_leaves_neither_a_file_nor_a_connection() {
    let (backend, _) = sending("HTTP/1.1 200 OK\nx: until the end", LARGE);
    let server = proxy("", &backend.url("/"));
    for (number, make) in Slow::EACH.into_iter().enumerate() {
        let client = make(&server, "/");
        eventually("a file", || {
            files(&server).iter().any(|len| *len > 0).then_some(())
        });
        drop(client);
        backend.wait_for_ended(number + 1);
        no_files(&server);
    }
}

/// Number of lines in the server's messages that contain this text.
fn lines(server: &Server, text: &str) -> usize {
    let messages = server.messages();
    messages.lines().filter(|line| line.contains(text)).count()
}

#[test]
fn where_no_file_can_be_written_back_ends_wait_and_nothing_is_lost() {
    let much = 48_000_000;
    let head = format!("HTTP/1.1 200 OK\ncontent-length: {much}");
    let (backend, taken) = sending(&head, much);
    let server = proxy("", &backend.url("/"));
    fs::remove_dir(server.folder.at("temp")).expect("the directory of temporary files is empty");
    for (number, make) in Slow::EACH.into_iter().enumerate() {
        let client = make(&server, "/");
        let before = number * much;
        server.wait_for_message("(temp-buffer-path): No such file or directory");
        let held = at_rest(&taken) - before;
        assert!(
            held < much,
            "the backend has to wait, as the buffer is full"
        );
        let (body, is_complete) = client.finish(much, false);
        assert!(is_complete && body == pattern(much));
    }
    assert_eq!(lines(&server, "failed to write a temporary file in "), 1);
}

#[test]
fn at_a_ceiling_back_ends_wait_and_nothing_is_lost() {
    let much = 64_000_000;
    for settings in [
        "proxy.max-temp-file-size: 2000000",
        "proxy.max-temp-file-size: 0",
        "temp-buffer-max-total: 2000000",
        "temp-buffer-threshold: OFF",
    ] {
        let head = format!("HTTP/1.1 200 OK\ncontent-length: {much}");
        let (backend, taken) = sending(&head, much);
        let server = proxy(settings, &backend.url("/"));
        let client = Slow::http1(&server, "/");
        let held = at_rest(&taken);
        assert!(
            held < much,
            "{settings}: the backend has to wait, as the buffer is full"
        );
        let most = files(&server).into_iter().max().unwrap_or(0);
        assert!(most <= 2_000_000, "{settings}: {most}");
        let (body, is_complete) = client.finish(much, false);
        assert!(is_complete && body == pattern(much), "{settings}");
        no_files(&server);
        let is_of_process = settings.contains("total");
        let said = lines(&server, "temp-buffer-max-total");
        assert_eq!(said, usize::from(is_of_process), "{settings}");
    }
}

#[test]
fn content_that_breaks_off_does_not_look_complete_to_a_slow_client() {
    for (framing, is_chunked) in [
        ("content-length: 48000000", false),
        ("transfer-encoding: chunked", true),
    ] {
        let backend = Backend::start(move |talk: &mut Talk| {
            let _ = talk.read_request();
            talk.send(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n"));
            if is_chunked {
                // A chunk that is announced longer than the data that follows.
                talk.send("2dc6c00\r\n");
            }
            talk.send(pattern(LARGE));
        });
        let server = proxy("", &backend.url("/"));
        for (number, make) in Slow::EACH.into_iter().enumerate() {
            let client = make(&server, "/");
            eventually("a file", || {
                files(&server).iter().any(|len| *len > 0).then_some(())
            });
            let (body, is_complete) = client.finish(2 * LARGE, is_chunked);
            assert!(!is_complete, "{framing} {number}");
            assert!(pattern(LARGE).starts_with(&body), "{framing} {number}");
            no_files(&server);
        }
    }
}

#[test]
fn events_are_handed_on_as_they_come_also_behind_what_was_kept() {
    let (open, pass) = gate();
    let backend = Backend::start(move |talk: &mut Talk| {
        let _ = talk.read_request();
        talk.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n");
        talk.send("data: first\n\n");
        pass();
        talk.send(pattern(LARGE));
        talk.send("data: second\n\n");
        pass();
        talk.send("data: third\n\n");
        pass();
    });
    let server = proxy("", &backend.url("/"));
    let mut client = server.connect();
    client.send("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
    client.read_until(b"data: first\n\n");
    // The backend sends much while the client does not read.
    open.send(()).unwrap();
    eventually("a file", || {
        files(&server).iter().any(|len| *len > 0).then_some(())
    });
    assert!(client.read_exactly(LARGE) == pattern(LARGE));
    client.read_until(b"data: second\n\n");
    open.send(()).unwrap();
    client.read_until(b"data: third\n\n");
    no_files(&server);
    open.send(()).unwrap();
}

#[test]
fn what_comes_through_a_tunnel_is_not_kept() {
    let much = 64_000_000;
    let head = "HTTP/1.1 101 Switching Protocols\nupgrade: flood\nconnection: upgrade";
    let (backend, taken) = sending(head, much);
    let server = proxy("proxy.tunnel: ON", &backend.url("/"));
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: flood\r\nConnection: upgrade\r\n\r\n");
    assert_eq!(client.read_head().code(), 101);
    assert!(
        at_rest(&taken) < much,
        "the backend has to wait, as the buffer is full"
    );
    assert!(files(&server).is_empty());
    assert!(client.read_exactly(much) == pattern(much));
}

/// Starts a server that forwards requests to the backend and has a status report; `settings` are further directives.
fn with_report(settings: &str, backend: &Backend) -> Server {
    let config = format!(
        "{settings}
num-threads: 1
http1-request-io-timeout: 60
listen: @PORT@
hosts: {{ default: {{ paths: {{ /s: {{ status: ON }}, /: {{ proxy.reverse.url: '{}' }} }} }} }}
",
        backend.url("/")
    );
    Setup::new(&config).start()
}

/// The value of a number in the status report.
fn number(server: &Server, name: &str) -> usize {
    let report = curl(&[&server.url("/s/json?show=events,memory")]).text();
    let (_, rest) = report.split_once(&format!("\"{name}\": ")).expect(name);
    let end = rest
        .find([',', '\n'])
        .expect("the number is followed by a comma or a line end");
    rest[..end].parse().expect("the text is a number")
}

#[test]
fn what_is_kept_in_memory_counts_for_max_memory() {
    let (backend, _) = sending("HTTP/1.1 200 OK\nx: until the end", LARGE);
    let settings = "max-memory: 4194304\nproxy.max-temp-file-size: 0";
    let server = with_report(settings, &backend);
    // The clients' sockets take a part of the responses. The rest, which the server keeps in memory, exceeds `max-memory`.
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let mut client = server.connect();
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            client
        })
        .collect();
    eventually("requests to be turned away", || {
        (server.ask("GET /s/json").code() == 503).then_some(())
    });
    drop(clients);
    eventually("memory to be free", || {
        (server.ask("GET /s/json").code() == 200).then_some(())
    });
}

/// Whether the server refuses requests or has closed connections because of `max-memory`.
fn is_short_of_memory(server: &Server) -> bool {
    let report = server.ask("GET /s/json?show=events");
    report.code() == 503 || !report.text().contains("\"connections.memory-closed\": 0")
}

#[test]
fn what_http2_clients_leave_behind_is_not_left_out_of_max_memory() {
    for version in ["", HTTP2] {
        for buffering in [
            "proxy.max-temp-file-size: 0",
            "proxy.max-buffer-size: 250000",
        ] {
            if version.is_empty() && buffering.contains("max-buffer-size") {
                // With HTTP/1 and a limited buffer, the rest of the response stays in the sockets, and the server holds nothing.
                continue;
            }
            let (open, gate) = gate();
            let backend = Backend::start(move |talk: &mut Talk| {
                if version.is_empty() {
                    while talk.read_request().is_some() {
                        talk.send("HTTP/1.1 200 OK\r\ncontent-length: 180000\r\n\r\n");
                        talk.send(pattern(10_000));
                        gate();
                        talk.send(pattern(170_000));
                    }
                    return;
                }
                let Some(mut connection) = Frames::new(talk) else {
                    return;
                };
                connection.send(&[Frame::settings(&[])]);
                let mut streams = Vec::new();
                while streams.len() < 40 {
                    let Some((stream, _)) = connection.read_request() else {
                        return;
                    };
                    let head = encode(&[(":status", "200"), ("content-length", "180000")]);
                    let first = Frame::data(stream, 0, pattern(10_000));
                    connection.send(&[Frame::request_with_content(stream, head), first]);
                    streams.push(stream);
                }
                gate();
                for stream in streams {
                    let mut frames = Vec::new();
                    for piece in pattern(170_000).chunks(16_384) {
                        frames.push(Frame::data(stream, 0, piece));
                    }
                    connection.send(&frames);
                }
                connection.talk.read_to_end();
            });
            let settings =
                format!("max-memory: 4194304\nhttp2-idle-timeout: 60\n{version}\n{buffering}");
            let server = with_report(&settings, &backend);
            let mut client = Http2::open(server.port(), &[(setting::INITIAL_WINDOW_SIZE, 10_000)]);
            client.send_frame(&Frame::window_update(0, 1 << 30));
            for number in 0..40 {
                client.send_frame(&Frame::request(2 * number + 1, get("/")));
            }
            client.read_until("the windows to be full", |client| {
                (0..40).all(|number| client.answer(2 * number + 1).body.len() == 10_000)
            });
            assert!(!is_short_of_memory(&server), "{version} {buffering}");
            // From now on no event comes from the client's connection.
            (0..40).for_each(|_| open.send(()).unwrap_or_default());
            eventually(
                &format!("memory to be short: {version} {buffering}"),
                || is_short_of_memory(&server).then_some(()),
            );
        }
    }
}

#[test]
fn what_is_kept_is_counted() {
    let (backend, _) = sending("HTTP/1.1 200 OK\nx: until the end", LARGE);
    let server = with_report("", &backend);
    let number = |name: &str| number(&server, name);
    assert_eq!(number("proxy.responses-buffered"), 0);
    let client = Slow::http1(&server, "/");
    eventually("a part of the response in a temporary file", || {
        (number("memory.temp-files-bytes") > 1_000_000).then_some(())
    });
    assert_eq!(number("proxy.responses-buffered"), 1);
    assert_eq!(number("temp-files.made"), 1);
    assert!(number("temp-files.octets-written") > 1_000_000);
    drop(client);
    eventually("the temporary file to be closed", || {
        (number("memory.temp-files-bytes") == 0).then_some(())
    });
    assert_eq!(number("temp-files.write-failures"), 0);
}

/// Limits the size of files that the server writes, as if its disk were full; `None` removes the limit.
fn fill_disk(server: &Server, bytes: Option<u64>) {
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw);
    let limit = Rlimit {
        current: bytes,
        maximum: None,
    };
    prlimit(pid, Resource::Fsize, limit).expect("the limit of a child can be set");
}

/// Starts a server that forwards requests to `backend`; those below `/up` only after it has collected their content.
fn collecting(threshold: usize, backend: &Backend) -> Server {
    let folder = Folder::new();
    folder.make_dir("temp");
    // A process that has changed its user could not be given other limits by the test.
    let user = if geteuid().is_root() {
        "user: root\n"
    } else {
        ""
    };
    let config = format!(
        "{user}temp-buffer-path: '@DIR@/temp'
temp-buffer-threshold: {threshold}
num-threads: 1
http1-request-io-timeout: 60
http2-idle-timeout: 60
listen: @PORT@
hosts:
  default:
    paths:
      /s: {{ status: ON }}
      /up: {{ redirect: {{ url: /, internal: YES, status: 307 }} }}
      /: {{ proxy.reverse.url: '{}' }}
",
        backend.url("/")
    );
    Setup::in_folder(folder, &config).start()
}

#[test]
fn a_full_disk_neither_breaks_a_response_nor_ends_the_server() {
    let head = format!("HTTP/1.1 200 OK\ncontent-length: {LARGE}");
    let (backend, taken) = sending(&head, LARGE);
    let server = collecting(1 << 20, &backend);
    for (round, make) in Slow::EACH.into_iter().enumerate() {
        let failures = number(&server, "temp-files.write-failures");
        fill_disk(&server, Some(1_000_000));
        let client = make(&server, "/");
        eventually("a write to fail", || {
            (number(&server, "temp-files.write-failures") > failures).then_some(())
        });
        // Content for which the file has no room stays with the backend, which has to wait.
        assert!(
            at_rest(&taken) < (round + 1) * LARGE,
            "the backend has to wait, as the buffer is full"
        );
        fill_disk(&server, None);
        let (body, is_complete) = client.finish(LARGE, false);
        assert!(is_complete && body == pattern(LARGE));
        no_files(&server);
    }
    server.wait_for_message("failed to write a temporary file in ");
}

#[test]
fn a_request_for_which_the_disk_is_full_is_refused_and_no_other_one() {
    let backend = Backend::answering(FINE);
    let server = collecting(1 << 20, &backend);
    let post = |length: usize| {
        let content = server.folder.at("content");
        fs::write(&content, pattern(length)).expect("the disk has room");
        let data = format!("@{}", content.display());
        curl(&["-X", "POST", "--data-binary", &data, &server.url("/up")])
    };
    assert_eq!(post(3_000_000).text(), "fine");
    fill_disk(&server, Some(1_500_000));
    assert_eq!(post(3_000_000).code(), 502);
    assert_eq!(post(1_200_000).text(), "fine");
    assert_eq!(post(100_000).text(), "fine");
    server.wait_for_message("failed to write the request body to a temporary file");
    fill_disk(&server, None);
    assert_eq!(post(3_000_000).text(), "fine");
    no_files(&server);
}

/// Peak of the server's resident memory, in bytes.
fn most_memory(server: &Server) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid()));
    let status = status.expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    number.expect("the kernel accounts memory") * 1024
}

#[test]
fn content_that_grows_beyond_its_memory_is_not_there_twice() {
    const THRESHOLD: usize = 16 << 20;
    let backend = Backend::answering(FINE);
    let server = collecting(THRESHOLD, &backend);
    let content = server.folder.at("content");
    let data = format!("@{}", content.display());
    let url = server.url("/up");
    let upload = |length: usize| {
        fs::write(&content, pattern(length)).expect("the disk has room");
        let chunked = "transfer-encoding: chunked";
        let answer = curl(&["-H", chunked, "-X", "POST", "--data-binary", &data, &url]);
        assert_eq!(answer.text(), "fine");
    };
    upload(10);
    let before = most_memory(&server);
    upload(THRESHOLD + 2_000_000);
    let more = most_memory(&server) - before;
    assert!(more < THRESHOLD / 2 * 3, "{more} more bytes");
}

#[test]
fn uploads_that_are_collected_at_once_do_not_fill_the_memory() {
    const LENGTH: usize = 20_000_000;
    let backend = Backend::start(|talk: &mut Talk| {
        while let Some(request) = talk.read_request() {
            talk.send(if request.field("content-length") == Some("20000000") {
                FINE
            } else {
                "HTTP/1.1 500 Not All\r\ncontent-length: 0\r\n\r\n"
            });
        }
    });
    let server = collecting(1 << 20, &backend);
    let content = server.folder.at("content");
    fs::write(&content, pattern(LENGTH)).expect("the disk has room");
    let data = format!("@{}", content.display());
    let url = server.url("/up");
    let ask = |options: &[&str]| {
        let base = ["-X", "POST", "--data-binary", &data, &url];
        assert_eq!(curl(&[options, &base].concat()).text(), "fine");
    };
    for options in [
        &["--http1.1"][..],
        &["-H", "transfer-encoding: chunked"],
        &["--http2-prior-knowledge"],
    ] {
        // One upload first, so that code is loaded and kept buffers are allocated before the memory is measured.
        ask(options);
        let before = most_memory(&server);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| ask(options));
            }
        });
        let more = most_memory(&server) - before;
        assert!(more < 2 * LENGTH, "{options:?}: {more} more bytes");
    }
}

#[test]
fn responses_without_content_wait_behind_one_that_is_buffered_and_have_none() {
    let backend = Backend::start(|talk: &mut Talk| {
        while let Some(request) = talk.read_request() {
            let head = match request.target() {
                "/204" => "HTTP/1.1 204 No Content\r\nx-no: content\r\n\r\n".to_owned(),
                "/304" => "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n".to_owned(),
                "/fine" => FINE.to_owned(),
                _ => format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\n\r\n"),
            };
            talk.send(&head);
            if request.target() == "/large" {
                talk.send(pattern(LARGE));
            }
        }
    });
    let server = proxy("", &backend.url("/"));
    let mut client = server.connect();
    for path in ["/large", "/204", "/304", "/fine"] {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
    assert_eq!(client.read_head().code(), 200);
    eventually("a part of the response in a temporary file", || {
        files(&server).iter().any(|len| *len > 0).then_some(())
    });
    assert!(client.read_exactly(LARGE) == pattern(LARGE));
    for (code, length) in [(204, None), (304, Some("5"))] {
        let response = client.read_response("GET");
        assert_eq!(response.code(), code);
        assert_eq!(response.field("content-length"), length);
    }
    assert_eq!(client.read_response("GET").text(), "fine");
    // Over HTTP/2 responses without content do not wait for the one that is buffered.
    let Slow::Http2(mut client) = Slow::http2(&server, "/large") else {
        return;
    };
    for (stream, path, status) in [(3, "/204", 204), (5, "/304", 304)] {
        let answer = client.ask(stream, &get(path));
        assert_eq!((answer.status(), answer.body.len()), (status, 0));
        assert_eq!(answer.reset, None);
    }
    let (body, is_complete) = Slow::Http2(client).finish(LARGE, false);
    assert!(is_complete && body == pattern(LARGE));
    no_files(&server);
}
