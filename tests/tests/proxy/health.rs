//! Health of backends: failures, health checks, pauses and returns; and requests that are retried.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::http2::{Frame, code, encode};
use h2o_tests::{
    Backend, ClosedPort, Deadline, FINE, Folder, Server, Service, Setup, Talk, eventually,
    free_port, run,
};

use super::http2_upstream::Frames;

/// The configuration of a server whose `proxy.reverse.url` has the value `value`.
fn config(settings: &str, value: &str) -> String {
    super::kit::config(settings, "URL").replace("'URL'", value)
}

/// The configuration of a server that distributes requests among the backends of these URLs.
fn balanced_config(settings: &str, urls: &[String]) -> String {
    config(settings, &format!("[ '{}' ]", urls.join("', '")))
}

/// Starts a server that distributes requests among the backends of these URLs.
fn balanced(settings: &str, urls: &[String]) -> Server {
    Setup::new(&balanced_config(settings, urls)).start()
}

fn urls(backends: &[&Backend]) -> Vec<String> {
    backends.iter().map(|backend| backend.url("/")).collect()
}

/// A backend that answers with its name, and to health checks with 500 while `is_well` is false.
fn named(name: &'static str, is_well: &Arc<AtomicBool>) -> Backend {
    let is_well = Arc::clone(is_well);
    Backend::by_request(move |request| {
        let status = if request.target() == "/check" && !is_well.load(SeqCst) {
            "500 Oh"
        } else {
            "200 OK"
        };
        format!("HTTP/1.1 {status}\r\ncontent-length: 1\r\n\r\n{name}")
    })
}

/// A backend that reads a request and closes the connection without an answer.
fn mute() -> Backend {
    Backend::start(|talk| {
        talk.read_request();
    })
}

/// Number of requests with this request line that the backend has received.
fn count(backend: &Backend, line: &str) -> usize {
    let received = String::from_utf8_lossy(&backend.received_by_all()).into_owned();
    received.matches(line).count()
}

fn name_of(backend: &Backend) -> String {
    format!("127.0.0.1:{}", backend.port())
}

const CHECKED: &str =
    "proxy.timeout.keepalive: 0\nproxy.health-check: { path: /check, interval: 50 }";

#[test]
fn a_backend_whose_checks_fail_is_left_alone_until_they_succeed() {
    let (is_well, always) = (Arc::new(AtomicBool::new(true)), Arc::new(true.into()));
    let (a, b) = (named("a", &is_well), named("b", &always));
    let server = balanced(CHECKED, &urls(&[&a, &b]));
    let ask = |times: usize| -> String { (0..times).map(|_| server.ask("GET /").text()).collect() };
    assert_eq!(ask(4), "abab");
    a.wait_for("GET /check HTTP/1.1\r\nhost: 127.0.0.1:");
    let request = String::from_utf8_lossy(&a.received_by_all()).into_owned();
    assert!(
        request.contains("user-agent: h2o health check\r\n"),
        "{request}"
    );

    is_well.store(false, SeqCst);
    let before = count(&a, "GET /check");
    let name = name_of(&a);
    server.wait_for_message(&format!(
        "backend {name} is down: health check got status 500\n"
    ));
    // The backend is down after several failed checks; it may have got the first one before `before` was counted.
    assert!(count(&a, "GET /check") >= before + 2);
    assert_eq!(ask(6), "bbbbbb");

    is_well.store(true, SeqCst);
    server.wait_for_message(&format!("backend {name} is up again\n"));
    assert!(ask(4).contains("abab") || ask(4).contains("baba"));
    // The server ends although health checks are running.
    let _folder = server.stop();
}

#[test]
fn kept_connections_do_not_keep_a_backend_from_its_share() {
    let (is_well, always) = (Arc::new(AtomicBool::new(true)), Arc::new(true.into()));
    let (a, b) = (named("a", &is_well), named("b", &always));
    let settings =
        "proxy.timeout.keepalive: 60000\nproxy.health-check: { path: /check, interval: 50 }";
    let server = balanced(settings, &urls(&[&a, &b]));
    let ask = |times: usize| -> String { (0..times).map(|_| server.ask("GET /").text()).collect() };
    assert_eq!(ask(4), "abab");
    assert_eq!((count(&a, "GET / "), count(&b, "GET / ")), (2, 2));
    is_well.store(false, SeqCst);
    server.wait_for_message(" is down");
    // The server's idle connection to the failed backend is not used.
    assert_eq!(ask(4), "bbbb");
    is_well.store(true, SeqCst);
    server.wait_for_message(" is up again");
    let after = ask(8);
    assert_eq!(
        (after.matches('a').count(), after.matches('b').count()),
        (4, 4),
        "{after}"
    );
}

#[test]
fn when_all_are_down_all_are_used() {
    let is_well = Arc::new(AtomicBool::new(false));
    let (a, b) = (named("a", &is_well), named("b", &is_well));
    let server = balanced(CHECKED, &urls(&[&a, &b]));
    for backend in [&a, &b] {
        server.wait_for_message(&format!("backend {} is down", name_of(backend)));
    }
    let answers: String = (0..4).map(|_| server.ask("GET /").text()).collect();
    assert!(answers.contains('a') && answers.contains('b'), "{answers}");
}

#[test]
fn a_backend_can_have_checks_of_its_own_or_none() {
    let unwell = Arc::new(AtomicBool::new(false));
    let (a, b, c) = (
        named("a", &unwell),
        named("b", &unwell),
        named("c", &unwell),
    );
    let value = format!(
        "[ {{ url: '{}', health-check: OFF }}, {{ url: '{}', health-check: {{ path: /other, interval: 50 }} }}, '{}' ]",
        a.url("/"),
        b.url("/"),
        c.url("/")
    );
    let server = Setup::new(&config(CHECKED, &value)).start();
    server.wait_for_message(&format!("backend {} is down", name_of(&c)));
    b.wait_for("GET /other HTTP/1.1");
    assert_eq!((count(&a, "GET /check"), count(&b, "GET /check")), (0, 0));
    let answers: String = (0..4).map(|_| server.ask("GET /").text()).collect();
    assert!(["abab", "baba"].contains(&&*answers), "{answers}");
}

#[test]
fn requests_that_fail_take_a_backend_down_until_one_succeeds() {
    let is_well = Arc::new(AtomicBool::new(false));
    let a = {
        let is_well = Arc::clone(&is_well);
        Backend::start(move |talk| {
            if talk.read_request().is_some() && is_well.load(SeqCst) {
                talk.send("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na");
            }
        })
    };
    let b = named("b", &Arc::new(true.into()));
    let settings =
        "proxy.timeout.keepalive: 0\nproxy.passive-health-check: { fall: 2, pause: 1000 }";
    let server = balanced(settings, &urls(&[&a, &b]));
    let down = format!("backend {} is down: I/O error\n", name_of(&a));
    // Clients do not see the failures: a request without an answer is retried with the other backend.
    eventually("two failures of the backend", || {
        assert_eq!(server.ask("GET /").text(), "b");
        server.messages().contains(&down).then_some(())
    });
    assert_eq!(count(&a, "GET / "), 2);
    // After each pause the server sends one request to the backend, as a trial.
    eventually("a trial request at the backend that was down", || {
        assert_eq!(server.ask("GET /").text(), "b");
        (count(&a, "GET / ") > 2).then_some(())
    });
    is_well.store(true, SeqCst);
    let up = format!("backend {} is up again\n", name_of(&a));
    eventually("the backend to be up", || {
        assert_eq!(server.ask("GET /").code(), 200);
        server.messages().contains(&up).then_some(())
    });
    let answers: String = (0..4).map(|_| server.ask("GET /").text()).collect();
    assert_eq!(answers.matches('a').count(), 2, "{answers}");
    assert_eq!(server.messages().matches(&down).count(), 1);
}

#[test]
fn only_what_changes_nothing_is_made_again_once_it_was_sent() {
    for (request, want) in [
        ("GET /", "200 OK"),
        ("PUT /\nContent-Length: 1\n\nx", "200 OK"),
        ("DELETE /", "200 OK"),
        ("POST /\nContent-Length: 1\n\nx", "502 Gateway Error"),
        ("PATCH /\nContent-Length: 1\n\nx", "502 Gateway Error"),
    ] {
        let (a, b) = (mute(), Backend::answering(FINE));
        for (settings, want) in [("proxy.retry: ON", want), ("", "502 Gateway Error")] {
            let server = balanced(settings, &urls(&[&a, &b]));
            let before = b.connections();
            assert_eq!(server.ask(request).status, want, "{settings} {request}");
            let tries = usize::from(want == "200 OK");
            assert_eq!(b.connections() - before, tries, "{settings} {request}");
        }
    }
}

#[test]
fn what_was_not_sent_is_made_again_whatever_it_is() {
    let post = "POST /\nContent-Length: 1\n\nx";
    // A backend with which the TLS handshake fails.
    let a = Backend::start(|talk| {
        talk.read_some();
    });
    let b = Backend::answering(FINE);
    let https = format!("https://127.0.0.1:{}/", a.port());
    for (settings, want) in [("proxy.retry: ON", "200 OK"), ("", "502 Gateway Error")] {
        let server = balanced(settings, &[https.clone(), b.url("/")]);
        assert_eq!(server.ask(post).status, want, "{settings}");
    }
    // A backend that refuses connections: the request is sent to the other one, even without `proxy.retry`.
    let server = balanced("", &[ClosedPort::new().url(), b.url("/")]);
    assert_eq!(server.ask(post).status, "200 OK");
}

/// A backend over HTTP/2 in cleartext that answers each request with the frame that `answer` returns.
fn http2(answer: impl Fn(u32, &str) -> Frame + Send + Sync + 'static) -> Backend {
    Backend::start(move |talk: &mut Talk| {
        let Some(mut connection) = Frames::new(talk) else {
            return;
        };
        connection.send(&[Frame::settings(&[])]);
        while let Some((stream, fields)) = connection.read_request() {
            let path = fields.iter().find(|(name, _)| name == ":path");
            let path = path.map(|(_, value)| value.clone()).unwrap_or_default();
            connection.send(&[answer(stream, &path)]);
        }
    })
}

const HTTP2: &str = "proxy.http2.force-cleartext: ON\nproxy.http2.ratio: 100";

fn status(stream: u32, status: &str) -> Frame {
    Frame::request(stream, encode(&[(":status", status)]))
}

#[test]
fn streams_that_were_refused_are_made_again_elsewhere() {
    for refuses_by in ["RST_STREAM", "GOAWAY"] {
        let a = http2(move |stream, _| match refuses_by {
            "GOAWAY" => Frame::goaway(0, code::NO_ERROR, ""),
            _ => Frame::rst_stream(stream, code::REFUSED_STREAM),
        });
        let b = http2(|stream, _| status(stream, "204"));
        let settings = format!("{HTTP2}\nproxy.retry: ON");
        let server = balanced(&settings, &urls(&[&a, &b]));
        for _ in 0..3 {
            let response = server.ask("POST /\nContent-Length: 1\n\nx");
            assert_eq!(response.code(), 204, "{refuses_by}");
        }
    }
}

#[test]
fn what_an_http2_backend_closes_between_two_requests_is_made_again() {
    let backend = Backend::start(|talk: &mut Talk| {
        let Some(mut connection) = Frames::new(talk) else {
            return;
        };
        connection.send(&[Frame::settings(&[])]);
        if let Some((stream, _)) = connection.read_request() {
            connection.send(&[status(stream, "204")]);
            connection.read_request();
        }
    });
    let server = balanced(HTTP2, &urls(&[&backend]));
    for number in 0..6 {
        assert_eq!(server.ask("GET /").code(), 204, "{number}");
    }
    // The connection of the last request is open, and is closed by the next one, whose method is not idempotent.
    assert_eq!(server.ask("POST /").code(), 502);
}

#[test]
fn a_stream_that_an_http2_backend_resets_is_not_made_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let backend = {
        let asked = Arc::clone(&asked);
        http2(move |stream, path| {
            if path == "/" {
                return status(stream, "204");
            }
            asked.fetch_add(1, SeqCst);
            Frame::rst_stream(stream, code::INTERNAL_ERROR)
        })
    };
    let server = balanced(HTTP2, &urls(&[&backend]));
    assert_eq!(server.ask("GET /").code(), 204);
    assert_eq!(server.ask("DELETE /reset").code(), 502);
    assert_eq!(server.ask("GET /").code(), 204);
    assert_eq!((asked.load(SeqCst), backend.connections()), (1, 1));
    server.wait_for_message("/reset:I/O error\n");
}

#[test]
fn what_a_connection_in_use_refuses_is_not_given_up_soon() {
    let asked = Arc::new(AtomicUsize::new(0));
    let backend = {
        let asked = Arc::clone(&asked);
        http2(move |stream, path| {
            let is_fifth = path == "/fifth" && asked.fetch_add(1, SeqCst) == 5;
            if path == "/" || is_fifth {
                return status(stream, "204");
            }
            Frame::rst_stream(stream, code::REFUSED_STREAM)
        })
    };
    let settings = format!("{HTTP2}\nproxy.retry: {{ tries: 1 }}");
    let server = balanced(&settings, &urls(&[&backend]));
    assert_eq!(server.ask("GET /").code(), 204);
    assert_eq!(server.ask("POST /fifth").code(), 204);
    assert_eq!(asked.swap(0, SeqCst), 6);
    // The number of attempts is limited: a request that is refused each time fails.
    let mut client = server.connect();
    client.send("GET /fifth/never HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_to_end(), b"");
    server.wait_for_message("/fifth/never:refused stream\n");
}

#[test]
fn backends_of_http2_are_checked_by_http2() {
    let is_well = Arc::new(AtomicBool::new(true));
    let checks = Arc::new(AtomicUsize::new(0));
    let a = {
        let (is_well, checks) = (Arc::clone(&is_well), Arc::clone(&checks));
        http2(move |stream, path| {
            if path == "/check" {
                checks.fetch_add(1, SeqCst);
            }
            let code = if path == "/check" && !is_well.load(SeqCst) {
                "503"
            } else {
                "201"
            };
            status(stream, code)
        })
    };
    let b = http2(|stream, _| status(stream, "202"));
    let settings = format!("{HTTP2}\nproxy.health-check: {{ path: /check, interval: 50 }}");
    let server = balanced(&settings, &urls(&[&a, &b]));
    assert_eq!(server.ask("GET /").code(), 201);
    eventually("checks", || (checks.load(SeqCst) > 2).then_some(()));
    assert!(
        !server.messages().contains("is down"),
        "{}",
        server.messages()
    );
    is_well.store(false, SeqCst);
    server.wait_for_message("is down: health check got status 503\n");
    // The open connection to the backend gets no more requests while the backend is down.
    for _ in 0..3 {
        assert_eq!(server.ask("GET /").code(), 202);
    }
    is_well.store(true, SeqCst);
    server.wait_for_message("is up again\n");
    let codes: Vec<u16> = (0..4).map(|_| server.ask("GET /").code()).collect();
    assert!(codes.contains(&201) && codes.contains(&202), "{codes:?}");
}

#[test]
fn backends_are_checked_as_they_are_asked() {
    let folder = Folder::new();
    self_signed(&folder, "backend", Key::EcPkcs8, "localhost");
    let (_go, _, https) = Service::go(&folder, "backend");
    let url = format!("https://localhost:{https}/");
    let ca = format!("proxy.ssl.cafile: {}", folder.name_of("backend.crt"));
    for (settings, path, why) in [
        (&*ca, "/none", "health check got status 404"),
        (
            &format!("{ca}\nproxy.http2.ratio: 0"),
            "/none",
            "health check got status 404",
        ),
        ("", "/echo", "certificate"),
    ] {
        let settings = format!("{settings}\nproxy.health-check: {{ path: {path}, interval: 50 }}");
        let server = balanced(&settings, std::slice::from_ref(&url));
        server.wait_for_message(&format!("backend localhost:{https} is down: "));
        assert!(server.messages().contains(why), "{}", server.messages());
    }
    let backend = Backend::answering(FINE);
    let settings = "proxy.proxy-protocol: ON\nproxy.timeout.keepalive: 0\n\
                    proxy.health-check: { interval: 50, timeout: 900 }";
    let server = balanced(settings, &urls(&[&backend]));
    backend.wait_for("PROXY UNKNOWN\r\nGET / HTTP/1.1\r\n");
    // The backend does not close the connections after checks, and need not do so.
    eventually("checks", || (count(&backend, "PROXY") > 5).then_some(()));
    assert!(!server.messages().contains("is down"));
    // A backend that does not answer a check in time.
    let silent = Backend::start(Talk::read_to_end);
    let settings = "proxy.health-check: { interval: 50, timeout: 50, fall: 1 }";
    let server = balanced(settings, &urls(&[&silent]));
    server.wait_for_message("is down: health check timed out\n");
}

/// The first `count` requests that come at a Unix socket; each is answered with success.
fn requests_at(listener: &UnixListener, count: usize) -> Vec<String> {
    let answer = |stream: std::io::Result<UnixStream>| {
        let mut stream = stream.expect("the server connects");
        let mut request = Vec::new();
        let mut byte = [0];
        while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read > 0) {
            request.extend_from_slice(&byte);
        }
        stream
            .write_all(FINE.as_bytes())
            .expect("the proxy reads the response");
        String::from_utf8_lossy(&request).into_owned()
    };
    listener.incoming().take(count).map(answer).collect()
}

#[test]
fn checks_name_a_host_that_servers_know() {
    for (setting, want) in [
        ("", "\r\nhost: localhost\r\n"),
        (", host: 'App.test:81'", "\r\nhost: App.test:81\r\n"),
    ] {
        let folder = Folder::new();
        let listener = UnixListener::bind(folder.at("socket")).expect("the test owns the folder");
        // The server runs as another user, who must be able to connect to the socket.
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(folder.at("socket"), everybody).expect("the test owns the file");
        let settings = format!("proxy.health-check: {{ interval: 50{setting} }}");
        let url = format!("http://[unix:{}]/", folder.at("socket").display());
        let server = balanced(&settings, &[url]);
        for request in requests_at(&listener, 3) {
            assert!(
                request.starts_with("GET / HTTP/1.1\r\n") && request.contains(want),
                "{request}"
            );
        }
        assert!(
            !server.messages().contains("is down"),
            "{}",
            server.messages()
        );
    }
}

#[test]
fn there_is_a_limit_to_making_requests_again() {
    const REQUESTS: usize = 200;
    let (a, b) = (mute(), mute());
    let settings = "proxy.timeout.keepalive: 0\nproxy.retry: { tries: 5, budget: 10 }";
    let server = balanced(settings, &urls(&[&a, &b]));
    let clock = Deadline::after_secs(0);
    for _ in 0..REQUESTS {
        assert_eq!(server.ask("GET /").status, "502 Gateway Error");
    }
    let seconds = usize::try_from(clock.elapsed().as_secs()).unwrap_or(usize::MAX);
    let tries = count(&a, "GET / ") + count(&b, "GET / ") - REQUESTS;
    // Retries are limited to a tenth of the requests, and ten more for each second that has begun.
    let most = REQUESTS / 10 + 10 * (seconds + 2);
    assert!((10..=most).contains(&tries), "{tries}, of {most}");
}

/// Number of requests in a run of h2load with these options that did not get a status 2xx or 3xx.
fn failures(server: &Server, options: &[&str]) -> usize {
    let url = server.url("/a.txt");
    let output = run("h2load", &[options, &["-n", "3000", &url]].concat());
    let text = output.text();
    let number = |word: &str| -> usize {
        let before = text.split(word).next().unwrap_or_default().trim_end();
        let digits = before.rsplit(' ').next().unwrap_or_default();
        digits
            .parse()
            .unwrap_or_else(|_| panic!("the client printed no {word}: {output}"))
    };
    number("total,") - number("succeeded,")
}

/// Number of established TCP connections whose local port is this one.
fn connections_at(port: u16) -> usize {
    const ESTABLISHED: &str = "01";
    let table = std::fs::read_to_string("/proc/net/tcp").expect("/proc exists on Linux");
    let port = format!(":{port:04X}");
    let is_there = |line: &&str| {
        let mut columns = line.split_whitespace().skip(1);
        let local = columns.next().unwrap_or_default();
        local.ends_with(&port) && columns.nth(1) == Some(ESTABLISHED)
    };
    table.lines().filter(is_there).count()
}

/// Number of requests that clients lose while one of three nginx processes is killed and started again. `is_noticed` says whether health
/// checks notice it. `listen` is the rest of nginx's directive `listen` and further directives; `options` are those of h2load.
fn lost(settings: &str, listen: &str, options: &[&str], is_noticed: bool) -> usize {
    let folders = [Folder::new(), Folder::new(), Folder::new()];
    let ports = [free_port(), free_port(), free_port()];
    let begin = |index: usize| {
        let server = format!(
            "server {{ root @DIR@/www; keepalive_requests 500; listen 127.0.0.1:@PORT@{listen} }}"
        );
        Service::lone_nginx(&folders[index], &server, ports[index])
    };
    for folder in &folders {
        folder.write("www/a.txt", "hello");
        folder.write("www/check", "fine");
    }
    let (first, _second, _third) = (begin(0), begin(1), begin(2));
    let served_by = |index: usize| {
        let log = folders[index].read("nginx/access.log");
        log.matches("/a.txt").count()
    };
    let served = || served_by(0);
    let urls = ports.map(|port| format!("http://127.0.0.1:{port}/"));
    let config = balanced_config(settings, &urls).replace("num-threads: 1", "num-threads: 2");
    let server = Setup::new(&config).start();
    let (is_over, lost) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            while !is_over.load(SeqCst) {
                lost.fetch_add(failures(&server, options), SeqCst);
            }
            // One more run of h2load while all backends are well.
            lost.fetch_add(failures(&server, options), SeqCst);
        });
        eventually("requests at the first backend", || {
            (served() > 500).then_some(())
        });
        // nginx is stopped first, so that it is killed while it has a request of each client.
        first.freeze();
        let others = || served_by(1) + served_by(2);
        eventually("every client to wait for the frozen backend", || {
            let before = others();
            std::thread::sleep(Duration::from_millis(50));
            let is_asked = connections_at(ports[0]) > 0;
            (is_asked && others() == before).then_some(())
        });
        first.kill();
        if is_noticed {
            server.wait_for_message(&format!("backend 127.0.0.1:{} is down: ", ports[0]));
        }
        let before = served();
        let _first = begin(0);
        if is_noticed {
            server.wait_for_message(&format!("backend 127.0.0.1:{} is up again", ports[0]));
        }
        eventually("requests at the first backend", || {
            (served() > before + 100).then_some(())
        });
        is_over.store(true, SeqCst);
        load.join().expect("h2load runs");
    });
    let lost = lost.into_inner();
    if lost > 0 {
        eprintln!("{lost} lost:\n{}", server.messages());
    }
    lost
}

#[test]
fn no_request_is_lost_with_a_backend_that_is_killed_and_comes_back() {
    let settings = "proxy.health-check: { path: /check, interval: 100 }";
    assert_eq!(lost(settings, ";", &["--h1", "-c", "24"], true), 0);
    let without_keep_alive = format!("proxy.timeout.keepalive: 0\n{settings}");
    assert_eq!(
        lost(&without_keep_alive, ";", &["--h1", "-c", "24"], true),
        0
    );
    // HTTP/2 on both sides, because h2load cannot parse a status line with an empty reason, which HTTP/1 clients get from HTTP/2 backends.
    let settings = format!("{HTTP2}\n{settings}");
    // The responses have no content, because nginx over HTTP/2 sends content after the head: a response that has begun cannot be retried.
    let http2 = " http2; location = /a.txt { return 204; }";
    assert_eq!(lost(&settings, http2, &["-c", "6", "-m", "4"], true), 0);
}

#[test]
fn without_checks_each_client_loses_at_most_two_requests() {
    let settings = "proxy.timeout.keepalive: 0";
    let lost = lost(settings, ";", &["--h1", "-c", "24"], false);
    // The kernel may close the connections of a killed process before its listening socket. A client whose connection was closed first then
    // loses a second request, which the kernel had still accepted for the dead process.
    assert!((1..=2 * 24).contains(&lost), "{lost}");
}

#[test]
fn what_is_wrong_with_checks_is_told() {
    let rows = [
        // Columns: directive, message.
        (
            "proxy.health-check: MAYBE",
            "argument must be one of: OFF,ON",
        ),
        (
            "proxy.health-check: [ 1 ]",
            "node must be a scalar or a mapping",
        ),
        (
            "proxy.health-check: { path: x }",
            "path must begin with `/`",
        ),
        (
            "proxy.health-check: { path: '/a b' }",
            "path must only consist of visible ASCII characters",
        ),
        (
            "proxy.health-check: { host: 'a b' }",
            "host must be a name or an address, with a port or without",
        ),
        (
            "proxy.health-check: { host: 'a:b' }",
            "host must be a name or an address, with a port or without",
        ),
        (
            "proxy.health-check: { interval: 0 }",
            "argument must be between 1 and 86400000",
        ),
        (
            "proxy.health-check: { timeout: -1 }",
            "argument must match the format: %lu",
        ),
        (
            "proxy.health-check: { rise: 0 }",
            "argument must be between 1 and 1000",
        ),
        (
            "proxy.health-check: { fall: x }",
            "argument must match the format: %u",
        ),
        (
            "proxy.health-check: { slow-start: 1s }",
            "argument must match the format: %lu",
        ),
        ("proxy.health-check: { pause: 1 }", "unexpected key:pause"),
        (
            "proxy.passive-health-check: 3",
            "argument must be one of: OFF,ON",
        ),
        (
            "proxy.passive-health-check: { pause: 0 }",
            "argument must be between 1 and 86400000",
        ),
        (
            "proxy.passive-health-check: { rise: 1 }",
            "unexpected key:rise",
        ),
        ("proxy.retry: 3", "argument must be one of: OFF,ON"),
        (
            "proxy.retry: { tries: 0 }",
            "argument must be between 1 and 1000",
        ),
        (
            "proxy.retry: { budget: 101 }",
            "argument must be between 0 and 100",
        ),
        ("proxy.retry: { percent: 1 }", "unexpected key:percent"),
    ];
    let url = "http://127.0.0.1:1/";
    for (setting, want) in rows {
        let said = match Setup::new(&super::kit::config(setting, url)).try_start() {
            Ok(_) => "nothing".to_owned(),
            Err(refused) => refused.stderr,
        };
        let (name, _) = setting.split_once(':').unwrap_or_default();
        let want = format!("in command {name}, {want}");
        assert!(said.contains(&want), "{setting}: {said}");
    }
    let value = format!("[ {{ url: '{url}', health-check: {{ rise: 0 }} }} ]");
    let setup = Setup::new(&config("", &value));
    let refused = setup
        .try_start()
        .expect_err("the configuration has an error");
    let want = "in command proxy.reverse.url, argument must be between 1 and 1000";
    assert!(refused.stderr.contains(want), "{}", refused.stderr);
}
