//! Tests of the status report and the status page, as clients request them.

use std::rc::Rc;
use std::sync::Arc;

use h2o_exchange::{
    Body, Counter, Exchange, Handler, Http2Stream, LocalSite, Order, Outcome, Protocol, Response,
    Shared, Worker, WorkerHandle,
};
use h2o_http::Known;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{DIRECTIVES, Status};
use crate::access_log::kit;
use crate::testing::{Setup, shown};

const SETUP: Setup = Setup {
    host: "www.example",
    path: "/s",
    ..Setup::new(DIRECTIVES, None)
};

fn ask(worker: &Rc<Worker>, method: &str, target: &str) -> (Exchange, Outcome) {
    ask_with(worker, method, target, None)
}

fn ask_with(
    worker: &Rc<Worker>,
    method: &str,
    target: &str,
    if_none_match: Option<&str>,
) -> (Exchange, Outcome) {
    let mut exchange = kit::begun(worker);
    exchange.site = Rc::new(LocalSite(Arc::new(
        SETUP.read(["", "", "status: ON"]).unwrap(),
    )));
    kit::ask(&mut exchange, method, "www.example", target);
    if let Some(tags) = if_none_match {
        let headers = &mut exchange.request.headers;
        headers.push(Known::IfNoneMatch, tags.as_bytes());
    }
    exchange.route = exchange.site.select_path(0, exchange.request.path());
    let outcome = Status.on_request(&mut exchange);
    (exchange, outcome)
}

fn done(outcome: Outcome) -> Response {
    match outcome {
        Outcome::Done(response) => response,
        Outcome::Declined => panic!("the handler declined the request"),
        Outcome::Later(_) => panic!("the handler does not answer at once"),
        Outcome::Reroute(_) => panic!("the handler rerouted the request"),
        Outcome::Next(_) => panic!("the request was passed to the next handler"),
    }
}

fn text(response: Response) -> String {
    match response.body {
        Body::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        Body::Empty => String::new(),
        Body::File(_) | Body::Stream(_) => panic!("the body of a report is in memory"),
    }
}

fn lone_worker() -> Rc<Worker> {
    kit::worker(0, &Arc::new(kit::shared()))
}

fn report(worker: &Rc<Worker>, query: &str) -> String {
    text(done(ask(worker, "GET", &format!("/s/json{query}")).1))
}

fn names(report: &str) -> Vec<&str> {
    report
        .lines()
        .filter_map(|line| line.strip_prefix(" \"")?.split('"').next())
        .collect()
}

#[test]
fn on_adds_a_handler_and_off_none() {
    for (text, want) in [("status: ON", 1), ("status: off", 0)] {
        let site = SETUP.read(["", "", text]).unwrap();
        assert_eq!(site.hosts[0].paths[0].handlers.len(), want);
    }
    assert_eq!(
        SETUP.refusal("status: yes"),
        "[f:1] in command status, argument must be one of: OFF,ON (column 9; did you mean `ON`?)"
    );
}

#[test]
fn page_and_report_have_their_places_and_the_rest_is_declined() {
    let worker = lone_worker();
    for target in ["/s", "/s/", "/s?x", "/s/json", "/s/json?show=main"] {
        assert!(
            matches!(ask(&worker, "GET", target).1, Outcome::Done(_)),
            "{target}"
        );
    }
    for target in ["/s/page.css", "/s/page.js?x", "/s/icon.svg"] {
        let asset = done(ask(&worker, "GET", target).1);
        assert_eq!(
            asset.headers.get(Known::CacheControl),
            Some(&b"no-cache"[..])
        );
    }
    for target in ["/s/json/", "/s/index.html", "/s//", "/s/x"] {
        assert!(
            matches!(ask(&worker, "GET", target).1, Outcome::Declined),
            "{target}"
        );
    }
}

#[test]
fn the_page_is_answered_like_a_static_file() {
    let worker = lone_worker();
    let page = done(ask(&worker, "GET", "/s").1);
    let etag = page.headers.get(Known::Etag).unwrap().to_vec();
    let etag = String::from_utf8(etag).unwrap();
    let names: Vec<_> = page
        .headers
        .iter()
        .map(|field| field.name.as_str())
        .collect();
    assert_eq!(names, ["cache-control", "etag", "content-type"]);
    let get = |name| page.headers.get(name);
    assert_eq!(get(Known::CacheControl), Some(&b"no-cache"[..]));
    assert_eq!(
        get(Known::ContentType),
        Some(&b"text/html; charset=utf-8"[..])
    );
    assert!(text(page).starts_with("<!DOCTYPE html>"));

    for (tags, want) in [
        (etag.clone(), 304),
        (format!("\"other\", W/{etag}"), 304),
        ("*".to_owned(), 304),
        ("\"other\"".to_owned(), 200),
    ] {
        let response = done(ask_with(&worker, "GET", "/s", Some(&tags)).1);
        assert_eq!(response.status.as_u16(), want, "{tags}");
        assert_eq!(text(response).is_empty(), want == 304);
    }

    let response = done(ask(&worker, "POST", "/s").1);
    assert_eq!(response.status.as_u16(), 405);
    assert_eq!(response.headers.get(Known::Allow), Some(&b"GET, HEAD"[..]));
    assert_eq!(text(response), "method not allowed");
}

#[test]
fn the_report_is_plain_text_and_not_cached_for_any_method() {
    let worker = lone_worker();
    for method in ["GET", "HEAD", "POST", "BREW"] {
        let response = done(ask(&worker, method, "/s/json").1);
        assert_eq!(response.status.as_u16(), 200);
        assert_eq!(
            shown(&response.headers),
            "content-type: text/plain; charset=utf-8\ncache-control: no-cache, no-store"
        );
    }
}

#[test]
fn metrics_have_the_format_that_the_client_accepts() {
    let worker = lone_worker();
    worker.counters.count(Counter::SslHandshakeResume);
    for (accept, content_type, total) in [
        ("*/*", "text/plain; version=0.0.4; charset=utf-8", "_total"),
        (
            "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.1",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            "",
        ),
    ] {
        let mut exchange = kit::begun(&worker);
        exchange.site = Rc::new(LocalSite(Arc::new(
            SETUP.read(["", "", "status: ON"]).unwrap(),
        )));
        kit::ask(&mut exchange, "GET", "www.example", "/s/metrics");
        let headers = &mut exchange.request.headers;
        headers.push(Known::Accept, accept.as_bytes());
        exchange.route = exchange.site.select_path(0, exchange.request.path());
        let response = done(Status.on_request(&mut exchange));
        assert_eq!(
            response.headers.get(Known::ContentType),
            Some(content_type.as_bytes())
        );
        let text = text(response);
        let family = format!("# TYPE h2o_tls_handshakes{total} counter\n");
        assert!(text.contains(&family), "{text}");
        assert!(text.contains("\nh2o_tls_handshakes_total{kind=\"resumed\"} 1\n"));
        assert_eq!(text.ends_with("\n# EOF\n"), total.is_empty());
        // Without the directive `metrics`, nothing is counted by host and path.
        assert!(!text.contains("h2o_http_requests"), "{text}");
    }
}

#[test]
fn show_chooses_modules_only_at_the_start_of_the_query() {
    let worker = lone_worker();
    let first = |query| {
        names(&report(&worker, query))
            .first()
            .map(ToString::to_string)
    };
    for (query, want) in [
        ("", Some("server-version")),
        ("?x&show=ssl", Some("server-version")),
        ("?show=ssl", Some("ssl.alpn.h1")),
        ("?show=memory,ssl", Some("ssl.alpn.h1")),
        ("?show=requests", Some("requests")),
        ("?show=events", Some("status-errors.400")),
        ("?show=errors", Some("status-errors.400")),
        ("?show=durations", Some("connect-time-0")),
        ("?show=memory", Some("memory.mem_pool.chunks")),
        ("?show=traffic", Some("traffic.requests")),
        ("?show=certificates,backends", Some("backends")),
        ("?show=ssl&x", None),
    ] {
        assert_eq!(first(query).as_deref(), want, "{query}");
    }
    assert_eq!(report(&worker, "?show=nothing"), "{\n\n}\n");
    assert_eq!(report(&worker, "?show="), "{\n\n}\n");
}

#[test]
fn main_tells_what_the_server_is() {
    let worker = lone_worker();
    worker.counters.add(Counter::Sessions, 9);
    let report = report(&worker, "?show=main");
    let start = format!(
        "{{\n \"server-version\": \"{}\",\n \"openssl-version\": \"{}\",\n \"current-time\": \"",
        crate::SERVER_VERSION,
        crate::TLS_LIBRARY
    );
    assert!(report.starts_with(&start), "{report}");
    let end = " \"generation\": null,\n \"connections\": 3,\n \"max-connections\": 1024,\n \
               \"soft-connection-limit\": 2147483647,\n \"soft-connection-limit.min-age\": 30,\n \
               \"listeners\": 2,\n \"worker-threads\": 1,\n \"num-sessions\": 9\n}\n";
    assert!(report.ends_with(end), "{report}");
    assert!(report.contains("\n \"restart-time\": \"0"), "{report}");
    assert!(report.contains("\n \"uptime\": "), "{report}");
}

#[test]
fn all_modules_come_in_their_order_with_every_name() {
    let worker = lone_worker();
    worker.counters.count(Counter::Status404);
    worker.counters.count(Counter::SslHandshakeFull);
    worker.counters.count_http2_error(11);
    worker.counters.count(Counter::Http2StreamingRequests);
    worker.counters.add(Counter::Http1Active, 3);
    worker.counters.uncount(Counter::Http1Active);
    worker.counters.count(Counter::ConnectionsOpening);
    worker.counters.count(Counter::Http2Idle);
    let report = report(&worker, "");
    let names = names(&report);
    let at = |name| names.iter().position(|found| *found == name).expect(name);
    let order = [
        "server-version",
        "num-sessions",
        "requests",
        "status-errors.400",
        "http2-errors.enhance-your-calm",
        "connections.shutdown",
        "quic.num-packets.delayed-used",
        "quic.num-frames-received.immediate_ack",
        "quic.num-frames-sent.padding",
        "quic.num-respected-app-limited",
        "ssl.errors",
        "memory.mmap_errors",
        "h2olog.lost",
        "ssl.alpn.h1",
        "ssl.handshake.accumulated-time.resume",
        "connect-time-0",
        "duration-99",
        "evloop-latency-nanosec",
        "memory.mem_pool.chunks",
        "memory.socket.zerocopy.inflight",
        "traffic.requests",
        "traffic.bytes-sent",
        "backends",
        "certificates",
    ];
    assert!(order.windows(2).all(|pair| at(pair[0]) < at(pair[1])));
    assert_eq!(
        names.len(),
        names.iter().collect::<std::collections::HashSet<_>>().len()
    );
    for line in [
        " \"status-errors.404\": 1,",
        " \"ssl.handshake.full\": 1,",
        " \"http2-errors.enhance-your-calm\": 1,",
        " \"http2.streaming-requests\": 1,",
        " \"connections.active\": 3,",
        " \"evloop-latency-nanosec\": [],",
    ] {
        assert!(report.lines().any(|found| found == line), "{line}");
    }
}

#[test]
fn what_the_page_refers_to_is_there_and_may_be_kept() {
    let worker = lone_worker();
    let page = text(done(ask(&worker, "GET", "/s").1));
    let urls: Vec<_> = page.split("\"./s/").skip(1).collect();
    assert_eq!(urls.len(), 4, "{page}");
    for url in urls.iter().filter(|url| !url.starts_with("json")) {
        let url = url.split('"').next().unwrap();
        let asset = done(ask(&worker, "GET", &format!("/s/{url}")).1);
        assert_eq!(asset.status.as_u16(), 200, "{url}");
        let kept = asset.headers.get(Known::CacheControl);
        assert_eq!(kept, Some(&b"max-age=31536000, immutable"[..]), "{url}");
    }
}

#[test]
fn no_request_is_left_out_of_the_count() {
    let worker = lone_worker();
    for status in [200, 206, 304, 404, 500, 101] {
        let status = h2o_http::StatusCode::new(status);
        worker.counters.count_request(status);
    }
    worker.counters.count_request(None);
    let report = report(&worker, "?show=traffic");
    assert_eq!(
        report,
        "{\n \"traffic.requests\": 7,\n \"traffic.responses.2xx\": 2,\n \"traffic.responses.3xx\": 1,\n \
         \"traffic.responses.4xx\": 1,\n \"traffic.responses.5xx\": 1,\n \"traffic.bytes-received\": 0,\n \
         \"traffic.bytes-sent\": 0\n}\n"
    );
}

#[test]
fn a_request_is_shown_with_strings_or_null() {
    let worker = lone_worker();
    let site = kit::site();
    let connection = Rc::new(kit::tls_connection(&worker));
    let other = worker.exchange(&site, &connection);
    kit::ask(&mut other.borrow_mut(), "GET", "a\"b", "/x?y");
    other.borrow_mut().protocol = Protocol::Http1 { index: 4 };
    let report = report(&worker, "?show=requests");
    let lines: Vec<_> = report.lines().collect();
    assert_eq!(lines.len(), 6, "{report}");
    assert_eq!((lines[0], lines[1]), ("{", " \"requests\": ["));
    assert_eq!((lines[4], lines[5]), (" ]", "}"));
    assert!(lines[2].starts_with("  {\"host\":\"localhost\",\"user\":null,\"at\":\"20"));
    assert!(
        lines[2].contains("\"method\":\"GET\",\"path\":\"/s/json\",\"query\":\"?show=requests\"")
    );
    assert!(lines[2].ends_with("\"authority\":\"www.example\"},"));
    assert!(lines[3].starts_with("  {\"host\":\"192.0.2.1\","));
    let (_, rest) = lines[3].split_once("\"method\":").unwrap();
    assert_eq!(
        rest,
        "\"GET\",\"path\":\"/x\",\"query\":\"?y\",\"protocol\":\"HTTP/1.1\",\"referer\":null,\"user-agent\":null,\
         \"connect-time\":\"0\",\"request-header-time\":null,\"request-body-time\":null,\
         \"request-total-time\":null,\"process-time\":null,\"response-time\":null,\"connection-id\":\"17\",\
         \"ssl.protocol-version\":\"TLSv1.3\",\"ssl.session-reused\":\"1\",\
         \"ssl.cipher\":\"TLS_AES_256_GCM_SHA384\",\"ssl.cipher-bits\":\"256\",\"ssl.session-ticket\":null,\
         \"ssl.server-name\":\"sni.example\",\"http1.request-index\":\"4\",\"http2.stream-id\":null,\
         \"http2.priority.received.exclusive\":null,\"http2.priority.received.parent\":null,\
         \"http2.priority.received.weight\":null,\"http2.priority.actual.parent\":null,\
         \"http2.priority.actual.weight\":null,\"authority\":\"a\\\"b\"}"
    );
}

#[test]
fn a_request_over_http_2_is_shown_with_its_stream() {
    let worker = lone_worker();
    let connection = Rc::new(kit::tls_connection(&worker));
    let other = worker.exchange(&kit::site(), &connection);
    kit::ask(&mut other.borrow_mut(), "GET", "a", "/x");
    other.borrow_mut().protocol = Protocol::Http2(Http2Stream {
        id: 9,
        ..Http2Stream::default()
    });
    let report = report(&worker, "?show=requests");
    let shown = "\"http1.request-index\":null,\"http2.stream-id\":\"9\",\
         \"http2.priority.received.exclusive\":\"0\",\"http2.priority.received.parent\":\"0\",\
         \"http2.priority.received.weight\":\"16\",\"http2.priority.actual.parent\":\"0\",\
         \"http2.priority.actual.weight\":\"16\",";
    assert!(report.contains(shown), "{report}");
}

/// Creates two workers of one process. Also returns the tasks sent to the second worker.
fn two_workers() -> ([Rc<Worker>; 2], UnboundedReceiver<Order>, Arc<Shared>) {
    let shared = Arc::new(kit::shared());
    let workers = [kit::worker(0, &shared), kit::worker(1, &shared)];
    let mut inboxes = Vec::new();
    let handles = workers.iter().map(|worker| {
        let (orders, inbox) = tokio::sync::mpsc::unbounded_channel();
        inboxes.push(inbox);
        WorkerHandle::new(Arc::clone(&worker.counters), orders)
    });
    assert!(shared.workers.set(handles.collect()).is_ok());
    (workers, inboxes.pop().unwrap(), shared)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

#[test]
fn requests_and_counters_of_all_workers_are_gathered() {
    let (workers, mut inbox, shared) = two_workers();
    (0..2).for_each(|_| shared.descriptors.end_client());
    for worker in &workers {
        worker.counters.add(Counter::Sessions, 5);
    }
    let connection = Rc::new(kit::unix_connection(&workers[1]));
    let other = workers[1].exchange(&kit::site(), &connection);
    kit::ask(&mut other.borrow_mut(), "PUT", "", "/other");
    let Outcome::Later(waiting) = ask(&workers[0], "GET", "/s/json?show=main,requests").1 else {
        panic!("the report waits for the other worker")
    };
    let answer = runtime().block_on(async {
        let Some(Order::Run(question)) = inbox.recv().await else {
            panic!("the other worker got no question");
        };
        question(&workers[1]);
        waiting.await
    });
    let report = text(done(answer));
    assert!(report.contains("\"num-sessions\": 10"), "{report}");
    assert!(report.contains("\"path\":\"/s/json\""), "{report}");
    assert!(report.contains("},\n  {\"host\":\"localhost\""), "{report}");
    assert!(
        report.contains("\"method\":\"PUT\",\"path\":\"/other\""),
        "{report}"
    );
    assert!(matches!(
        ask(&workers[0], "GET", "/s/json?show=main").1,
        Outcome::Done(_)
    ));
}

#[test]
fn a_worker_that_does_not_answer_is_left_out_after_a_second() {
    for is_gone in [true, false] {
        let (workers, inbox, _shared) = two_workers();
        let Outcome::Later(waiting) = ask(&workers[0], "GET", "/s/json?show=requests").1 else {
            panic!("the report waits for the other worker")
        };
        let inbox = (!is_gone).then_some(inbox);
        let (answer, waited) = runtime().block_on(async {
            let start = tokio::time::Instant::now();
            (workers[0].run(waiting).await, start.elapsed())
        });
        assert_eq!(waited >= super::ANSWER_TIME, !is_gone);
        let report = text(done(answer));
        assert_eq!(report.matches("\"host\"").count(), 1, "{report}");
        drop(inbox);
    }
}
