//! Health checks, retries and time limits of FastCGI applications.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use h2o_tests::{Backend, Deadline, Server, Setup, free_port};

use super::kit::{Received, application, ask, body, record, response};

/// A server that distributes its requests over these FastCGI applications.
fn balanced(settings: &str, backends: &[&Backend]) -> Server {
    let ports: Vec<_> = backends
        .iter()
        .map(|backend| backend.port().to_string())
        .collect();
    let config = format!(
        "
listen: @PORT@
num-threads: 1
{settings}
hosts:
  default:
    paths:
      /status: {{ status: ON }}
      /: {{ fastcgi.connect: [ {} ] }}
",
        ports.join(", ")
    );
    Setup::new(&config).start()
}

/// A FastCGI application whose responses are its name; its health checks succeed while `is_well` is true.
fn named(name: &'static str, is_well: &Arc<AtomicBool>) -> Backend {
    let is_well = Arc::clone(is_well);
    application(move |request| {
        let is_check = request.value("PATH_INFO") == "/check";
        if is_check && !is_well.load(SeqCst) {
            return response("Status: 500 Oh\n\n");
        }
        response(format!("\n{name}"))
    })
}

/// A FastCGI application that reads a request and closes the connection without a response.
fn mute() -> Backend {
    Backend::start(|talk| {
        Received::read(talk);
    })
}

fn name_of(backend: &Backend) -> String {
    format!("127.0.0.1:{}", backend.port())
}

fn texts(server: &Server, times: usize) -> String {
    (0..times).map(|_| body(&ask(server, "/", &[]))).collect()
}

#[test]
fn an_application_whose_checks_fail_gets_no_requests_until_they_succeed() {
    let (is_well, always) = (Arc::new(AtomicBool::new(true)), Arc::new(true.into()));
    let (a, b) = (named("a", &is_well), named("b", &always));
    let settings = "fastcgi.timeout.keepalive: 60000
fastcgi.health-check: { path: '/check?full', interval: 50 }";
    let server = balanced(settings, &[&a, &b]);
    assert_eq!(texts(&server, 4), "abab");
    a.wait_for("/check?full");
    a.wait_for("h2o health check");

    is_well.store(false, SeqCst);
    let name = name_of(&a);
    server.wait_for_message(&format!(
        "backend {name} is down: health check got status 500\n"
    ));
    // The connection to application `a` that the server has kept is not used either.
    assert_eq!(texts(&server, 4), "bbbb");
    let report = body(&ask(&server, "/status/json?show=backends", &[]));
    assert!(
        report.contains(&format!(
            "{{\"url\":\"fastcgi://{name}/\",\"host\":\"default\",\"path\":\"/\",\"weight\":1,\"up\":false}}"
        )),
        "{report}"
    );

    is_well.store(true, SeqCst);
    server.wait_for_message(&format!("backend {name} is up again\n"));
    let after = texts(&server, 4);
    assert!(after == "abab" || after == "baba", "{after}");
}

/// The application answers with the names of the script that it was asked for.
#[test]
fn scripts_are_checked_by_their_names() {
    let backend = application(|request| {
        response(format!(
            "\n{} {}",
            request.value("SCRIPT_NAME"),
            request.value("SCRIPT_FILENAME")
        ))
    });
    let port = backend.port();
    let config = format!(
        "
listen: @PORT@
fastcgi.document_root: /srv
hosts:
  default:
    paths:
      /:
        file.dir: @DIR@/www
        file.custom-handler:
          extension: .php
          fastcgi.health-check: {{ path: /ping, interval: 50 }}
          fastcgi.connect: {port}
"
    );
    let _server = Setup::new(&config).file("www/a.php", "").start();
    backend.wait_for("SCRIPT_FILENAME/srv/ping");
    backend.wait_for("SCRIPT_NAME/ping");
}

#[test]
fn requests_that_got_no_response_are_sent_again_where_that_is_safe() {
    let (mute, well) = (mute(), application(|_| response("\nwell")));
    for (settings, method, want) in [
        ("fastcgi.retry: ON", "GET", "200 OK"),
        ("", "GET", "503 Internal Server Error"),
        // A POST is not sent again, because the application may have acted on it.
        ("fastcgi.retry: ON", "POST", "503 Internal Server Error"),
    ] {
        let server = balanced(settings, &[&mute, &well]);
        let status = |_| ask(&server, "/", &["-X", method]).status;
        let statuses: Vec<_> = (0..2).map(status).collect();
        // One of the two requests went to the application that does not answer.
        assert!(
            statuses.contains(&"200 OK".to_owned()) && statuses.contains(&want.to_owned()),
            "{settings} {method}: {statuses:?}"
        );
        let text = format!(
            "backend {}: fastcgi connection closed unexpectedly",
            name_of(&mute)
        );
        server.wait_for_message(&text);
    }
}

#[test]
fn an_overloaded_application_has_not_begun_so_any_request_is_sent_again() {
    // The record END_REQUEST with the status FCGI_OVERLOADED.
    let full = application(|_| record(3, &[0, 0, 0, 0, 2, 0, 0, 0]));
    let well = application(|_| response("\nwell"));
    let server = balanced("fastcgi.retry: ON", &[&full, &well]);
    for number in 0..4 {
        let response = ask(&server, "/", &["--data", "x"]);
        assert_eq!(body(&response), "well", "{number}");
    }
}

#[test]
fn the_budget_ends_retries() {
    // Both applications take requests and close the connections without a response.
    let (one, two) = (mute(), mute());
    let server = balanced("fastcgi.retry: { tries: 5, budget: 0 }", &[&one, &two]);
    let clock = Deadline::after_secs(60);
    let requests = 40;
    for _ in 0..requests {
        assert_eq!(ask(&server, "/", &[]).code(), 503);
    }
    let retries = one.connections() + two.connections() - requests;
    // With the budget 0, ten retries are allowed in each second of the server's clock; the requests may begin and end in the middle of
    // a second. Without the budget each request would be retried five times.
    let seconds = usize::try_from(clock.elapsed().as_secs()).unwrap() + 2;
    assert!(
        (10..=10 * seconds).contains(&retries),
        "{retries} in {seconds}"
    );
}

#[test]
fn an_application_that_requests_fail_at_pauses() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let mute = Backend::start(move |talk| {
        Received::read(talk);
        counted.fetch_add(1, SeqCst);
    });
    let well = application(|_| response("\nwell"));
    let server = balanced(
        "fastcgi.passive-health-check: { fall: 2, pause: 60000 }",
        &[&mute, &well],
    );
    for _ in 0..12 {
        assert_eq!(body(&ask(&server, "/", &[])), "well");
    }
    assert_eq!(calls.load(SeqCst), 2);
    server.wait_for_message(&format!("backend {} is down", name_of(&mute)));
}

#[test]
fn the_next_application_is_asked_if_there_is_no_connection_to_the_first() {
    let well = application(|_| response("\nwell"));
    let config = format!(
        "
listen: @PORT@
hosts:
  default:
    paths:
      /:
        fastcgi.connect:
          - {}
          - {{ port: {}, weight: 2 }}
",
        free_port(),
        well.port()
    );
    let server = Setup::new(&config).start();
    assert_eq!(texts(&server, 4), "wellwellwellwell");
}

#[test]
fn each_wait_has_a_limit_of_its_own() {
    // The application reads the request, answers with half a response if the path is `/half`, and then waits.
    let backend = Backend::start(|talk| {
        let Some(request) = Received::read(talk) else {
            return;
        };
        if request.value("PATH_INFO") == "/half" {
            talk.send(record(6, b"\nhalf"));
        }
        talk.read_to_end();
    });
    let settings = "fastcgi.timeout.first_byte: 100";
    let server = balanced(settings, &[&backend]);
    assert_eq!(ask(&server, "/", &[]).code(), 503);
    let line = "/:I/O timeout";
    server.wait_for_message(line);
    let server = balanced(
        "fastcgi.timeout.first_byte: 60000\nfastcgi.timeout.io: 100",
        &[&backend],
    );
    // The first byte of the response has come in time, and the rest does not come within `fastcgi.timeout.io`.
    let got = h2o_tests::run("curl", &["-s", &server.url("/half")]);
    assert_eq!(got.stdout, b"half");
}

#[test]
fn a_reload_keeps_connections_and_what_is_known_of_applications() {
    let is_well = Arc::new(AtomicBool::new(true));
    let backend = named("a", &is_well);
    let config = format!(
        "
listen: @PORT@
num-threads: 1
fastcgi.timeout.keepalive: 60000
hosts:
  default:
    paths:
      /: {{ fastcgi.connect: {} }}
",
        backend.port()
    );
    let mut server = Setup::new(&config).start();
    assert_eq!(texts(&server, 2), "aa");
    server.write_config(&config.replace("num-threads: 1", "num-threads: 1\nserver-name: next"));
    server.hup("reloaded the configuration");
    assert_eq!(ask(&server, "/", &[]).field("server"), Some("next"));
    assert_eq!(backend.connections(), 1);
}
