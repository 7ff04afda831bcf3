//! Tests of rules for requests in every HTTP version: each test runs over HTTP/1, HTTP/2 and HTTP/3.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod any_version;
mod embedded;
mod http2_client;
mod http3_client;
mod identity;
mod trick;

use std::future::poll_fn;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use any_version::{Client, RIGHT, Request, VERSIONS, Version, answered};
use embedded::Embedded;
use h2o_config::Directive;
use h2o_exchange::{
    Body, BodyUse, Exchange, Handler, Outcome, Premise, RequestBody, Response, Scope, Worker,
};
use h2o_http::{Headers, StatusCode};
use h2o_testkit::{eventually, patient};
use identity::quic_listener;
use trick::handlers;

/// A handler that answers with the length of the request body, which it needs as a whole.
struct Measure;

impl Handler for Measure {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let text = match &exchange.body {
            RequestBody::None => "no body".to_owned(),
            RequestBody::Bytes(bytes) => format!("{} bytes", bytes.len()),
            RequestBody::File(_) | RequestBody::Stream(_) => "another body".to_owned(),
        };
        let body = Body::Bytes(text.into());
        Outcome::Done(Response::new(StatusCode::OK, Headers::new(), body))
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::Whole
    }
}

/// A handler that answers with the length of the request body, which it pulls as it comes.
struct Pull;

impl Handler for Pull {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let RequestBody::Stream(pipe) = std::mem::take(&mut exchange.body) else {
            return Outcome::Declined;
        };
        Outcome::Later(Box::pin(async move {
            let mut count = 0;
            while let Some(Ok(piece)) = poll_fn(|task| pipe.poll_next(task)).await {
                count += piece.len();
            }
            let body = Body::Bytes(format!("{count} bytes").into());
            Outcome::Done(Response::new(StatusCode::OK, Headers::new(), body))
        }))
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::Stream
    }
}

/// A handler that asks to see the response of later handlers, and puts it in brackets.
struct Wrap;

impl Handler for Wrap {
    fn on_request(&self, _: &mut Exchange) -> Outcome {
        Outcome::Next(Box::new(|_, response| {
            let Body::Bytes(text) = &response.body else {
                return Outcome::Declined;
            };
            let text = format!("[{} {}]", response.status.as_u16(), text.escape_ascii());
            let body = Body::Bytes(text.into());
            Outcome::Done(Response::new(StatusCode::OK, Headers::new(), body))
        }))
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::None
    }
}

/// A handler that waits at its first poll and answers at the second.
struct Later;

impl Handler for Later {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let reference = exchange
            .reference()
            .expect("the exchange belongs to a worker");
        Outcome::Later(Box::pin(async move {
            tokio::task::yield_now().await;
            let body = Body::Bytes(reference.borrow().request.target().to_vec().into());
            Outcome::Done(Response::new(
                StatusCode::PARTIAL_CONTENT,
                Headers::new(),
                body,
            ))
        }))
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::None
    }
}

/// A handler that declines, unless the response of later handlers has a text.
struct NoText;

impl Handler for NoText {
    fn on_request(&self, _: &mut Exchange) -> Outcome {
        Outcome::Done(Response::new(StatusCode::OK, Headers::new(), Body::Empty))
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::None
    }
}

/// A handler whose responses hold as long as the test wants. It answers with the number of its calls.
struct Counted;

static CALLS: AtomicUsize = AtomicUsize::new(0);
static HOLDS: AtomicBool = AtomicBool::new(true);

thread_local! {
    static PREMISE: Rc<dyn Premise> = Rc::new(Counted);
}

impl Premise for Counted {
    fn holds(&self, _: &Worker) -> bool {
        HOLDS.load(SeqCst)
    }
}

impl Handler for Counted {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let call = CALLS.fetch_add(1, SeqCst) + 1;
        exchange.premise = Some(PREMISE.with(Rc::clone));
        let body = Body::Bytes(call.to_string().into());
        Outcome::Done(Response::new(StatusCode::OK, Headers::new(), body))
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::None
    }
}

const DIRECTIVES: &[Directive<Scope>] = &[handlers("test.handlers", |scope, command| {
    for name in command.node.scalar()?.split(' ') {
        scope.handlers.push(match name {
            "pull" => Box::new(Pull),
            "wrap" => Box::new(Wrap),
            "later" => Box::new(Later),
            "no-text" => Box::new(NoText),
            "counted" => Box::new(Counted),
            _ => Box::new(Measure),
        });
    }
    Ok(())
})];

fn start(settings: &str) -> Embedded {
    start_with(settings, "")
}

/// Starts a server; `settings` are global directives, `paths` are lines of the configuration with additional paths.
fn start_with(settings: &str, paths: &str) -> Embedded {
    let settings = format!("header.add: 'x-rule: seen by filters'\n{settings}");
    start_bare(&settings, paths)
}

/// Like [`start_with`], but without a filter that applies to all paths.
fn start_bare(settings: &str, paths: &str) -> Embedded {
    static IDENTITY: OnceLock<tempfile::TempDir> = OnceLock::new();
    let identity = IDENTITY.get_or_init(identity::folder).path();
    Embedded::start(DIRECTIVES, |port| {
        let quic = quic_listener(identity, port);
        format!(
            "num-threads: 1
listen: {{ host: 127.0.0.1, port: {port} }}
{quic}{settings}
hosts:
  default:
    paths:
      /measure: {{ test.handlers: measure }}
      /wrapped: {{ test.handlers: wrap measure }}
      /twice: {{ test.handlers: wrap wrap later }}
      /alone: {{ test.handlers: wrap }}
      /declined: {{ test.handlers: wrap no-text }}
{paths}
"
        )
    })
}

#[test]
fn requests_that_no_handler_is_asked_about_are_answered_through_the_filters() {
    for version in VERSIONS {
        let server = start("max-memory: 1048576\ntemp-buffer-threshold: OFF");
        let connect = Request::Connect("b.test:443");
        let refused = Client::connect(&server, version).ask(connect);
        assert_eq!(
            refused,
            answered(&[405], "Method Not Allowed"),
            "{version:?}"
        );
        // Another client's request body is held in memory, so that the server is near `max-memory`.
        let mut holder = patient(TcpStream::connect(("127.0.0.1", server.port)).unwrap());
        let head = "POST /measure HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000000\r\n\r\n";
        holder.write_all(head.as_bytes()).unwrap();
        holder.write_all(&vec![b'x'; 990_000]).unwrap();
        let refused = eventually("the memory to be used up", || {
            let answer = Client::connect(&server, version).ask(Request::Get("/measure"))?;
            (answer.statuses == [503]).then_some(answer)
        });
        let want = answered(&[503], "please try again later");
        assert_eq!(Some(refused), want, "{version:?}");
    }
}

#[test]
fn answers_with_errors_use_the_budget_up_and_others_restore_it() {
    for version in VERSIONS {
        let server = start("connection-budget: 100\nconnection-budget.per-second: 0");
        let mut client = Client::connect(&server, version);
        // Each error response costs the client 5 units of its abuse budget; each other response restores 2.
        for round in 0..60 {
            let found = client.ask(Request::Get("/measure"));
            assert_eq!(found, answered(&[200], "no body"), "{version:?}, {round}");
            if round % 3 == 2 {
                let missing = client.ask(Request::Get("/missing"));
                assert_eq!(
                    missing,
                    answered(&[404], "not found"),
                    "{version:?}, {round}"
                );
            }
        }
        let missing = (0..40).map_while(|_| client.ask(Request::Get("/missing")));
        // Until here, error responses have cost 100 units, the whole abuse budget, and the other responses have restored nearly all of
        // them. The response that exceeds the budget is still sent, as the last one. Over HTTP/3, QUIC probes of a client that waits long
        // cost some units, too.
        let count = missing.count();
        assert!((10..=20).contains(&count), "{version:?}: {count}");
    }
}

#[test]
fn a_body_that_waits_for_100_is_collected_once_it_was_told() {
    for version in VERSIONS {
        // Over HTTP/2 and HTTP/3 the setting `send-informational: none` would also suppress 100 (Continue), so it is
        // not tested.
        let settings: &[&str] = match version {
            Version::Http1 => &["", "send-informational: none"],
            Version::Http2 | Version::Http3 => &[""],
        };
        for settings in settings {
            let server = start(settings);
            let mut client = Client::connect(&server, version);
            let counted = client.ask(Request::Expect("/measure", 3000));
            let want = answered(&[100, 200], "3000 bytes");
            assert_eq!(counted, want, "{version:?}, {settings}");
            let empty = client.ask(Request::Empty("/measure"));
            assert_eq!(
                empty,
                answered(&[200], "0 bytes"),
                "{version:?}, {settings}"
            );
            let none = client.ask(Request::Get("/measure"));
            assert_eq!(none, answered(&[200], "no body"), "{version:?}, {settings}");
        }
    }
}

#[test]
fn a_handler_gets_the_response_of_those_behind_it_before_the_filters() {
    for version in VERSIONS {
        let server = start("");
        let mut client = Client::connect(&server, version);
        for (path, status, body) in [
            ("/wrapped", 200, "[200 no body]"),
            ("/twice", 200, "[200 [206 /twice]]"),
            ("/alone", 200, "[404 not found]"),
            // The handler of this path declines after later handlers have responded, so their response is discarded.
            ("/declined", 404, "not found"),
        ] {
            let answer = client.ask(Request::Get(path));
            assert_eq!(answer, answered(&[status], body), "{version:?}, {path}");
        }
    }
}

#[test]
fn the_log_tells_the_same_of_a_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let log = VERSIONS.map(|version| {
        let settings = format!(
            "access-log: {{ path: {}, format: '%m %U %s %b %{{remote-user}}x %{{error}}x' }}",
            path.display()
        );
        let mut server = start(&settings);
        let mut client = Client::connect(&server, version);
        client.ask(Request::Expect("/measure", 70_000)).unwrap();
        client.ask(Request::Get("/missing")).unwrap();
        client.ask(Request::Empty("/measure")).unwrap();
        drop(client);
        server.stop();
        let lines = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        lines
    });
    assert_eq!(log[0].lines().count(), 3, "{log:?}");
    assert_eq!(log[0], log[1]);
    assert_eq!(log[0], log[2]);
}

#[test]
fn guards_answer_before_the_body_is_collected() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let page = file("page.html", "closed for today");
    let users = file("users", "ann:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n");
    let missing = folder.path().join("none.html");
    let root = folder.path().display();
    let paths = format!(
        "      /denied: {{ deny: all, test.handlers: measure }}
      /closed: {{ maintenance: {page}, test.handlers: measure }}
      /users: {{ auth.basic: {{ file: {users}, realm: staff }}, test.handlers: measure }}
      /to-denied: {{ rewrite: {{ match: '^', to: /denied }} }}
      /to-users: {{ allow: all, rewrite: {{ match: '^', to: /users }} }}
      /users-first: {{ auth.basic: {{ file: {users}, realm: staff }}, rewrite: {{ match: '^', to: /measure }} }}
      /in-circles: {{ rewrite: {{ match: '^', to: /in-circles }} }}
      /to-measure: {{ rewrite: {{ match: '^', to: /measure }} }}
      /try-denied: {{ file.try-files: [ '$path.html', /denied ], file.dir: {root} }}
      /try-users: {{ allow: all, file.try-files: [ '$path.html', /users ], file.dir: {root} }}
      /try-users-first: {{ auth.basic: {{ file: {users}, realm: staff }}, file.try-files: /measure, file.dir: {root} }}
      /try-behind: {{ file.dir: {root}, file.try-files: /users }}
      /try-twice: {{ file.try-files: /to-users/$path, file.dir: {root} }}
      /try-measure: {{ file.try-files: /measure, file.dir: {root} }}
      /pull-denied: {{ deny: all, test.handlers: pull }}
      /pull-closed: {{ maintenance: {page}, test.handlers: pull }}
      /pull-users: {{ auth.basic: {{ file: {users}, realm: staff }}, test.handlers: pull }}
      /to-pull-users: {{ rewrite: {{ match: '^', to: /pull-users }} }}
      /try-pull-users: {{ file.try-files: [ '$path.html', /pull-users ], file.dir: {root} }}
      /pull: {{ allow: all, auth.basic: {{ file: {users}, realm: staff }}, test.handlers: pull }}
      /open: {{ allow: all, maintenance: {}, auth.basic: {{ file: {users}, realm: staff }}, test.handlers: measure }}
",
        missing.display()
    );
    let wrong = ("authorization", "Basic YW5uOm90aGVy");
    for version in VERSIONS {
        for (path, want) in [
            ("/denied", "403 [] forbidden"),
            ("/closed", "503 [] closed for today"),
            ("/users", "401 [\"www-authenticate\"] "),
            ("/open", "401 [\"www-authenticate\"] "),
            // These paths rewrite requests to other paths: the guards of the path before the rewrite run first, then those of the target.
            ("/to-denied", "403 [] forbidden"),
            ("/to-users", "401 [\"www-authenticate\"] "),
            ("/users-first", "401 [\"www-authenticate\"] "),
            ("/in-circles", "502 [] too many internal reprocesses"),
            // These paths redirect by `file.try-files`: here, too, guards run before and after. The first look-up of a file name needs the
            // disk, later ones do not.
            ("/try-denied/a", "403 [] forbidden"),
            ("/try-users/b", "401 [\"www-authenticate\"] "),
            ("/try-users-first/c", "401 [\"www-authenticate\"] "),
            ("/try-behind/e", "401 [\"www-authenticate\"] "),
            ("/try-twice/d", "401 [\"www-authenticate\"] "),
            // The last handler would pull the body as it comes.
            ("/pull-denied", "403 [] forbidden"),
            ("/pull-closed", "503 [] closed for today"),
            ("/pull-users", "401 [\"www-authenticate\"] "),
            ("/to-pull-users", "401 [\"www-authenticate\"] "),
            ("/try-pull-users/f", "401 [\"www-authenticate\"] "),
        ] {
            for expect in [&[][..], &[("expect", "100-continue")]] {
                let server = start_with("", &paths);
                // The client announces a body, but sends no byte of the body.
                let fields = [&[wrong, ("content-length", "3000000")], expect].concat();
                let answer =
                    Client::connect(&server, version).ask(Request::Promised(path, &fields));
                let line = answer.map(|answer| answer.line()).unwrap_or_default();
                assert!(line.starts_with(want), "{version:?} {path}: {line}");
            }
        }
        // A client that the guards let through gets 100 (Continue), whether the guards read password files or have the files in a
        // cache.
        let server = start_with("", &paths);
        let mut client = Client::connect(&server, version);
        let fresh = format!("/try-measure/{version:?}");
        let paths = [
            "/open",
            "/pull",
            "/pull",
            "/open",
            "/to-measure",
            &fresh,
            &fresh,
        ];
        for path in paths {
            let counted = client.ask(Request::Expect(path, 30_000));
            assert_eq!(counted, answered(&[100, 200], "30000 bytes"), "{version:?}");
        }
    }
}

#[test]
fn a_connection_is_not_announced_to_last_if_the_rest_of_a_body_is_not_read() {
    // The first handler answers; the body would have been pulled by the second one.
    let server = start_with("", "      /answered: { test.handlers: counted pull }\n");
    let mut socket = patient(TcpStream::connect(("127.0.0.1", server.port)).unwrap());
    let head = "POST /answered HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n";
    socket.write_all(head.as_bytes()).unwrap();
    socket.write_all(&[b'x'; 200_000]).unwrap();
    let mut lines = BufReader::new(socket).lines().map_while(Result::ok);
    let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    assert!(head[0].starts_with("HTTP/1.1 200 "), "{head:?}");
    let closes = |line: &String| line.eq_ignore_ascii_case("connection: close");
    assert!(head.iter().any(closes), "{head:?}");
}

#[test]
fn a_handler_is_not_asked_again_while_its_response_to_a_repeated_request_holds() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let paths = format!(
        "      /counted: {{ test.handlers: counted }}
      /second: {{ allow: 127.0.0.1, test.handlers: counted }}
      /logged: {{ test.handlers: counted, access-log: {} }}
      /filtered: {{ test.handlers: counted, header.add: 'x-rule: seen by filters' }}
",
        log.display()
    );
    const TIMES: usize = 40;
    for version in VERSIONS {
        let server = start_bare("", &paths);
        let mut client = Client::connect(&server, version);
        // Sends a request many times. Returns how often the handler was asked.
        let mut calls = |request: Request<'_>| {
            let before = CALLS.load(SeqCst);
            let mut latest = before;
            for _ in 0..TIMES {
                let answer = client.ask(request).unwrap();
                assert_eq!(answer.statuses, [200], "{version:?}, {request:?}");
                let call = answer.body.parse().unwrap();
                assert!(latest <= call && call <= CALLS.load(SeqCst), "{version:?}");
                latest = call;
            }
            CALLS.load(SeqCst) - before
        };
        HOLDS.store(true, SeqCst);
        let field = [("x-field", "of the request")];
        for request in [
            Request::Get("/counted"),
            Request::Get("/counted?query"),
            Request::With("GET", "/counted", &field),
            Request::With("OPTIONS", "/counted", &field),
        ] {
            // The first one or two responses are made, and one more in each second, since the `date` field changes.
            let made = calls(request);
            assert!(
                (1..TIMES / 2).contains(&made),
                "{version:?}, {request:?}: {made}"
            );
        }
        // Something else than the handler would have to see each request or response.
        for path in ["/second", "/logged", "/filtered"] {
            assert_eq!(calls(Request::Get(path)), TIMES, "{version:?}, {path}");
        }
        assert_eq!(calls(Request::Empty("/counted")), TIMES, "{version:?}");
        assert!(calls(Request::Get("/counted")) < TIMES, "{version:?}");
        HOLDS.store(false, SeqCst);
        assert_eq!(calls(Request::Get("/counted")), TIMES, "{version:?}");
    }
    let lines = std::fs::read_to_string(&log).unwrap();
    assert_eq!(lines.lines().count(), VERSIONS.len() * TIMES);
}

#[test]
fn a_file_that_changes_is_seen_by_the_next_of_repeated_requests() {
    let folder = tempfile::tempdir().unwrap();
    let (file, other) = (folder.path().join("file"), folder.path().join("other"));
    std::fs::write(&file, "of before the test").unwrap();
    // Only a file that has not changed in the last second is cached.
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let paths = format!("      /: {{ file.dir: {} }}\n", folder.path().display());
    for version in VERSIONS {
        let server = start_bare("", &paths);
        let mut client = Client::connect(&server, version);
        for round in 0..8 {
            let content = format!("content {version:?} of round {round}");
            std::fs::write(&other, &content).unwrap();
            let times = std::fs::FileTimes::new().set_modified(old);
            let opened = std::fs::File::options().write(true).open(&other).unwrap();
            opened.set_times(times).unwrap();
            std::fs::rename(&other, &file).unwrap();
            for _ in 0..5 {
                let answer = client.ask(Request::Get("/file")).unwrap();
                assert_eq!((&*answer.statuses, &*answer.body), (&[200][..], &*content));
            }
        }
        std::fs::remove_file(&file).unwrap();
        let answer = client.ask(Request::Get("/file")).unwrap();
        assert_eq!(answer.statuses, [404], "{version:?}");
    }
}

#[test]
fn repeated_responses_are_the_same_as_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    for (name, len) in [("empty", 0), ("short", 9), ("page", 1024), ("long", 3000)] {
        let file = std::fs::File::create(folder.path().join(name)).unwrap();
        (&file).write_all(&vec![b'x'; len]).unwrap();
        let times = std::fs::FileTimes::new().set_modified(old);
        file.set_times(times).unwrap();
    }
    let paths = format!(
        "      /: {{ file.dir: {} }}
      /state: {{ status: ON }}
",
        folder.path().display()
    );
    let since = [("if-modified-since", "Fri, 01 Jan 2021 00:00:00 GMT")];
    let part = [("range", "bytes=2-5")];
    for version in VERSIONS {
        let server = start_bare("", &paths);
        let mut client = Client::connect(&server, version);
        let requests = [
            Request::Get("/empty"),
            Request::Get("/short"),
            Request::Get("/page"),
            Request::Get("/long"),
            Request::With("GET", "/page", &since),
            Request::With("GET", "/page", &part),
        ];
        for request in requests {
            let first = client.ask(request).unwrap();
            assert!(first.statuses[0] < 400, "{version:?}, {request:?}");
            for _ in 0..8 {
                let again = client.ask(request).unwrap();
                assert_eq!(again, first, "{version:?}, {request:?}");
            }
        }
        let state = client.ask(Request::Get("/state/json?show=traffic"));
        let want = format!("\"traffic.requests\": {}", requests.len() * 9);
        let state = state.unwrap().body;
        assert!(state.contains(&want), "{version:?}: {state}");
    }
}

#[test]
fn additions_are_the_same_over_every_version() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let page = file("page.html", "closed for today");
    let users = file("users", "ann:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n");
    file("there.txt", "a file");
    let root = folder.path().display();
    let paths = format!(
        "      /denied: {{ deny: all, test.handlers: measure }}
      /allowed: {{ allow: 127.0.0.1, test.handlers: measure }}
      /closed: {{ maintenance: {{ file: {page}, retry-after: 60 }}, test.handlers: measure }}
      /users: {{ auth.basic: {{ file: {users}, realm: staff }}, test.handlers: measure }}
      /cors: {{ cors: {{ origins: https://a.test, methods: [GET, PUT] }}, test.handlers: measure }}
      /old: {{ rewrite: {{ match: '^/old/(.*)$', to: '/new/$1', status: 301 }} }}
      /inside: {{ rewrite: {{ match: '^/inside', to: /measure }} }}
      /files: {{ file.try-files: [$path, /measure], file.dir: {root} }}
"
    );
    let from = ("origin", "https://a.test");
    let asked = ("access-control-request-method", "PUT");
    let lines = VERSIONS.map(|version| {
        let server = start_with("", &paths);
        let mut client = Client::connect(&server, version);
        let mut line = |method, path, fields: &[_]| {
            let answer = client.ask(Request::With(method, path, fields));
            answer.map(|answer| answer.line()).unwrap_or_default()
        };
        [
            line("GET", "/denied", &[]),
            line("GET", "/allowed", &[]),
            line("GET", "/closed", &[]),
            line("GET", "/users", &[("authorization", RIGHT)]),
            line("GET", "/cors", &[from]),
            line("GET", "/cors", &[("origin", "https://b.test")]),
            line("OPTIONS", "/cors", &[from, asked]),
            line("GET", "/old/x", &[])
                .split(" <")
                .next()
                .unwrap_or_default()
                .to_owned(),
            line("GET", "/inside", &[]),
            line("GET", "/files/there.txt", &[]),
            line("GET", "/files/missing", &[]),
        ]
    });
    let origin = "[\"access-control-allow-origin\"]";
    let want = [
        "403 [] forbidden",
        "200 [] no body",
        "503 [\"retry-after\"] closed for today",
        "200 [] no body",
        &format!("200 {origin} no body"),
        "200 [] no body",
        "204 [\"access-control-allow-methods\", \"access-control-allow-origin\"] ",
        "301 [\"location\"]",
        "200 [] no body",
        "200 [] a file",
        "200 [] no body",
    ];
    for (version, lines) in VERSIONS.iter().zip(&lines) {
        assert_eq!(lines.each_ref().map(|line| &**line), want, "{version:?}");
    }
}
