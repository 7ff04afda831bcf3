//! Benchmark of the steps between parsing a request's head and sending its response: the handler, the filters, the log line.

#[path = "../../../bench/micro/kit.rs"]
mod kit;

mod site;

use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use h2o_exchange::{Exchange, FilterResult, Outcome, Protocol};
use h2o_http::{Known, StatusCode};

use site::Setup;

/// An access-log format with all kinds of items: times, both addresses of the connection, fields of the request and the
/// response, TLS.
const LONG_FORMAT: &str = r#"%h %{remote}p %A %p %u %t %{%Y-%m-%dT%H:%M:%S}t.%{msec_frac}t %m %U %q %H %V %v \"%r\" %s %b \"%{Referer}i\" \"%{User-agent}i\" \"%{Accept-Language}i\" \"%{Content-Type}o\" %{connection-id}x %{request-id}x %{connect-time}x %{request-total-time}x %{response-time}x %{duration}x %{response-header-bytes}x %{ssl.protocol-version}x %{ssl.cipher}x %{ssl.server-name}x %{error}x"#;
const JSON_FORMAT: &str = r#"{\"at\":\"%{sec}t.%{msec_frac}t\",\"client\":\"%h\",\"request\":\"%r\",\"status\":%s,\"bytes\":%b,\"agent\":\"%{User-agent}i\",\"referer\":\"%{Referer}i\",\"time\":%{duration}x}"#;

fn main() {
    let bench = kit::Bench::from_arguments();
    let files = "file.dir: @root@";
    for (name, title, path, fields, status) in [
        (
            "file",
            "File of 1 KB, held in memory",
            "/1k.txt",
            &[][..],
            StatusCode::OK,
        ),
        (
            "not-modified",
            "File that has not changed (304)",
            "/1k.txt",
            &[(Known::IfModifiedSince, "Sun, 06 Nov 1994 08:49:37 GMT")][..],
            StatusCode::NOT_MODIFIED,
        ),
        (
            "range",
            "Range of a file (206)",
            "/1k.txt",
            &[(Known::Range, "bytes=100-199")][..],
            StatusCode::PARTIAL_CONTENT,
        ),
    ] {
        bench.case(name, title, || answer(files, path, fields, status));
    }
    bench.case("redirect", "Redirect (302)", || {
        answer(
            "redirect: https://www.example.com/new",
            "/page",
            &[],
            StatusCode::FOUND,
        )
    });
    bench.case(
        "file-two-filters",
        "File of 1 KB, two fields set by filters",
        || {
            let config = "file.dir: @root@, header.set: \"x-frame-options: DENY\", expires: 1 day";
            answer(config, "/1k.txt", &[], StatusCode::OK)
        },
    );
    #[cfg(feature = "mruby")]
    bench.case("script", "Script that answers with one field (200)", || {
        let script = r#"proc { |env| [200, {"content-type" => "text/plain"}, ["hello\n"]] }"#;
        let config = format!("mruby.handler: '{script}'");
        script_answer(&config)
    });
    bench.case(
        "exchange",
        "Exchange begun and given back",
        begin_and_release,
    );

    for (name, title, config) in [
        (
            "log-default",
            "Access log: line in the default format",
            "access-log: /log".to_owned(),
        ),
        (
            "log-long",
            "Access log: line of 32 specifiers",
            format!("access-log: {{path: /log, format: \"{LONG_FORMAT}\"}}"),
        ),
        (
            "log-json",
            "Access log: line in JSON",
            format!("access-log: {{path: /log, escape: json, format: \"{JSON_FORMAT}\"}}"),
        ),
        (
            "metrics",
            "Metrics: a request counted",
            "metrics: ON".to_owned(),
        ),
    ] {
        bench.case(name, title, || log(&config));
    }
}

/// Measures the handlers and filters of a path, within one turn of the event loop, so that the server does not check whether files
/// that it holds in memory have changed.
fn answer(
    config: &str,
    target: &str,
    fields: &[(Known, &str)],
    status: StatusCode,
) -> impl FnMut() {
    answer_to(Setup::new("", config), target, fields, status)
}

fn answer_to(
    setup: Setup,
    target: &str,
    fields: &[(Known, &str)],
    status: StatusCode,
) -> impl FnMut() + use<> {
    let reference = setup.request(target, fields);
    move || {
        black_box(&setup.root);
        let exchange = &mut *reference.borrow_mut();
        let route = exchange.route;
        exchange.rewind();
        exchange.route = route;
        respond(exchange, status);
    }
}

/// Measures the handlers of a path as [`answer`] does, where the handler is a script: the first request waits until the script is
/// evaluated.
#[cfg(feature = "mruby")]
fn script_answer(config: &str) -> impl FnMut() + use<> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build_local(tokio::runtime::LocalOptions::default())
        .expect("a runtime starts");
    let setup = Setup::new("", config);
    let first = setup.request("/hello", &[]);
    let ask = async {
        let handler = &setup.site.path(first.borrow().route).handlers[0];
        let outcome = handler.on_request(&mut first.borrow_mut());
        if let Outcome::Later(response) = outcome {
            response.await;
        }
    };
    runtime.block_on(setup.worker.run(ask));
    let mut next = answer_to(setup, "/hello", &[], StatusCode::OK);
    move || {
        black_box(&runtime);
        next();
    }
}

fn respond(exchange: &mut Exchange, status: StatusCode) {
    let site = Rc::clone(&exchange.site);
    let path = site.path(exchange.route);
    match path.handlers[0].on_request(exchange) {
        Outcome::Done(mut response) => {
            for filter in &path.filters {
                let filtered = filter.on_response(exchange, &mut response);
                assert!(matches!(filtered, FilterResult::Continue));
            }
            assert_eq!(response.status, status);
            black_box(&response);
            exchange.sent.headers = response.headers;
        }
        Outcome::Declined | Outcome::Later(_) | Outcome::Reroute(_) | Outcome::Next(_) => {
            panic!("the handler answers at once")
        }
    }
}

fn begin_and_release() -> impl FnMut() {
    let setup = Setup::new("", "file.dir: @root@");
    move || {
        let reference = setup.worker.exchange(&setup.site, &setup.connection);
        setup.worker.release(black_box(reference));
    }
}

/// Measures the loggers on a request that has ended. The logs are not opened: log lines are formatted but not written.
fn log(config: &str) -> impl FnMut() {
    let setup = Setup::new(config, "file.dir: @root@");
    let reference = setup.request(
        "/1k.txt?page=2",
        &[
            (Known::Referer, "https://www.example.com/"),
            (
                Known::UserAgent,
                "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36",
            ),
            (Known::AcceptLanguage, "en-GB,en;q=0.9"),
        ],
    );
    {
        let exchange = &mut *reference.borrow_mut();
        let after = |micros| Some(setup.connection.accepted + Duration::from_micros(micros));
        let timings = &mut exchange.timings;
        timings.begun = setup.connection.accepted;
        timings.head = after(69);
        timings.processed = after(69);
        timings.processed_at = Duration::from_micros(1_136_239_445_007_089);
        timings.response_start = after(1_500);
        timings.response_end = after(2_500);
        exchange.protocol = Protocol::Http1 { index: 4 };
        exchange.sent.status = Some(StatusCode::OK);
        exchange.sent.first_status = Some(StatusCode::OK);
        exchange.sent.header_bytes = 228;
        exchange.sent.body_bytes = 1024;
        exchange
            .sent
            .headers
            .push(Known::ContentType, b"text/plain");
    }
    move || {
        let exchange = reference.borrow();
        for logger in &exchange.site.path(exchange.route).loggers {
            logger.log(black_box(&exchange));
        }
    }
}
