//! Tests of HTTP/2 server push with different kinds of handlers; the client checks single frames.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod embedded;
mod http2_client;
mod trick;

use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use embedded::Embedded;
use h2o_config::Directive;
use h2o_exchange::{Body, Exchange, Handler, LinkHeaderUse, Outcome, Response, Scope};
use h2o_http::{Headers, Known, StatusCode};
use h2o_testkit::eventually;
use http2_client::Client;
use trick::handlers;

/// What the test handler serves: a resource to push, or a page with this `link` field.
enum Resource {
    Now,
    Later,
    /// A handler that answers 404 only after the response with the page was sent.
    LaterMissing,
    /// A handler that answers 404 asynchronously, but is ready at its first poll.
    ReadyMissing,
    Stuck,
    Page(String),
}

/// How often the client cancelled a push of [`Resource::Stuck`], whose handler never answers.
static GIVEN_UP: AtomicU32 = AtomicU32::new(0);

struct Stuck;

impl Drop for Stuck {
    fn drop(&mut self) {
        GIVEN_UP.fetch_add(1, Ordering::SeqCst);
    }
}

fn style() -> Response {
    let mut headers = Headers::new();
    headers.push(Known::ContentType, b"text/css");
    Response::new(StatusCode::OK, headers, Body::Bytes("a {}".into()))
}

impl Handler for Resource {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let worker = Rc::clone(&exchange.worker);
        let pause = async move || worker.sleep(Duration::from_millis(50)).await;
        match self {
            Self::Now => Outcome::Done(style()),
            Self::Later => Outcome::Later(Box::pin(async move {
                pause().await;
                Outcome::Done(style())
            })),
            Self::LaterMissing => Outcome::Later(Box::pin(async move {
                pause().await;
                Outcome::Done(Response::not_found())
            })),
            Self::ReadyMissing => {
                Outcome::Later(Box::pin(async { Outcome::Done(Response::not_found()) }))
            }
            Self::Stuck => Outcome::Later(Box::pin(async {
                let _stuck = Stuck;
                std::future::pending::<()>().await;
                Outcome::Declined
            })),
            Self::Page(link) => {
                let mut headers = exchange.headers();
                headers.push(Known::Link, link.as_bytes());
                let body = Body::Bytes("page".into());
                let mut response = Response::new(StatusCode::OK, headers, body);
                response.links = LinkHeaderUse::PushAndFilter;
                Outcome::Done(response)
            }
        }
    }
}

const DIRECTIVES: &[Directive<Scope>] = &[handlers("test.resource", |scope, command| {
    let resource = match command.node.scalar()? {
        "now" => Resource::Now,
        "later" => Resource::Later,
        "later-missing" => Resource::LaterMissing,
        "ready-missing" => Resource::ReadyMissing,
        "stuck" => Resource::Stuck,
        link => Resource::Page(link.to_owned()),
    };
    scope.handlers.push(Box::new(resource));
    Ok(())
})];

struct Running {
    server: Embedded,
    folder: tempfile::TempDir,
}

impl Running {
    /// Starts a server with additional configuration lines for its host, and with `pages`: their names and `link` fields.
    fn start(host: &str, pages: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let names = ["now", "later", "later-missing", "ready-missing", "stuck"];
        let resources = names.map(|name| (name, name));
        let paths: String = pages
            .iter()
            .chain(&resources)
            .map(|(name, resource)| format!("      /{name}: {{ test.resource: '{resource}' }}\n"))
            .collect();
        let server = Embedded::start(DIRECTIVES, |port| {
            format!(
                "num-threads: 1\nlisten: {{ host: 127.0.0.1, port: {port} }}\naccess-log:\n  path: {}\n  format: '%U %s %{{http2.stream-id}}x %{{x-http2-push}}o'\nhosts:\n  default:\n    {host}\n    paths:\n{paths}",
                log.display()
            )
        });
        Self { server, folder }
    }

    /// Waits until the access log has `count` lines, and returns them sorted.
    fn log(&self, count: usize) -> Vec<String> {
        eventually(&format!("{count} lines of log"), || {
            let text = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
            let is_there = lines.len() >= count && text.ends_with('\n');
            lines.sort();
            is_there.then_some(lines)
        })
    }
}

fn link(names: &[&str]) -> String {
    let elements = names
        .iter()
        .map(|name| format!("</{name}>; rel=preload; x-http2-push-only"));
    elements.collect::<Vec<_>>().join(", ")
}

#[test]
fn promises_come_first_and_what_is_not_there_is_taken_back() {
    let all = link(&["now", "later", "later-missing", "ready-missing"]);
    let server = Running::start("", &[("page", &all)]);
    let mut client = Client::connect(server.server.port);
    client.ask("/page", &[]);
    let mut seen = client.until("1 4 bytes.");
    // A pushed style sheet that is available is sent before the page; a missing one delays nothing.
    assert_eq!(
        seen[..7],
        [
            "1 promises 2 /now",
            "1 promises 4 /later",
            "1 promises 6 /later-missing",
            "1 200",
            "2 200 x-http2-push=pushed",
            "2 4 bytes.",
            "1 4 bytes.",
        ]
    );
    seen.extend(client.until("6 reset 2"));
    if !seen.iter().any(|frame| frame == "4 4 bytes.") {
        seen.extend(client.until("4 4 bytes."));
    }
    let mut rest = seen.split_off(7);
    rest.sort();
    assert_eq!(
        rest,
        ["4 200 x-http2-push=pushed", "4 4 bytes.", "6 reset 2",]
    );
    assert_eq!(
        server.log(5),
        [
            "/later 200 4 pushed",
            "/later-missing 404 6 cancelled",
            "/now 200 2 pushed",
            "/page 200 1 -",
            "/ready-missing 404 0 cancelled",
        ]
    );
    // Neither the pushed resources nor the missing ones are pushed again.
    client.ask("/page", &[]);
    assert_eq!(client.until("3 4 bytes."), ["3 200", "3 4 bytes."]);
    assert!(client.settle().is_empty());
}

#[test]
fn pushes_push_nothing() {
    let (outer, inner) = (link(&["inner"]), link(&["now"]));
    let server = Running::start("", &[("outer", &outer), ("inner", &inner)]);
    let mut client = Client::connect(server.server.port);
    client.ask("/outer", &[]);
    assert_eq!(
        client.until("2 4 bytes."),
        [
            "1 promises 2 /inner",
            "1 200",
            "1 4 bytes.",
            "2 200 x-http2-push=pushed",
            "2 4 bytes.",
        ]
    );
    assert!(client.settle().is_empty());
}

#[test]
fn a_client_ends_a_push() {
    let page = link(&["stuck", "later"]);
    let server = Running::start("", &[("page", &page)]);
    let mut client = Client::connect(server.server.port);
    client.ask("/page", &[]);
    let seen = client.until("1 4 bytes.");
    assert_eq!(seen[0], "1 promises 2 /stuck");
    client.reset(2);
    // The memory of the cancelled push's stream is used again while the push's handler is still pending.
    client.ask("/now", &[]);
    let seen = client.until("4 4 bytes.");
    if !seen.iter().any(|frame| frame == "3 4 bytes.") {
        // On a slow machine, the response to the client's own request comes after the push.
        client.until("3 4 bytes.");
    }
    let log = server.log(4);
    assert!(
        log.iter()
            .any(|line| line.starts_with("/stuck ") && line.ends_with(" 2 -"))
    );
    assert_eq!(GIVEN_UP.load(Ordering::SeqCst), 1);
}

#[test]
fn the_last_push_sets_the_cookie_of_casper() {
    let page = link(&["now", "later"]);
    let server = Running::start("http2-casper: ON", &[("page", &page)]);
    let mut client = Client::connect(server.server.port);
    client.ask("/page", &[]);
    let seen = client.until("4 4 bytes.");
    assert!(seen.contains(&"1 200".to_owned()), "{seen:?}");
    assert!(
        seen.contains(&"2 200 x-http2-push=pushed".to_owned()),
        "{seen:?}"
    );
    let head = seen.iter().find(|frame| frame.starts_with("4 200"));
    let cookie = head.and_then(|head| head.strip_prefix("4 200 x-http2-push=pushed "));
    let cookie = cookie.unwrap_or_else(|| panic!("the response has no cookie: {seen:?}"));

    // The client's cookie says that it has both resources: neither is pushed, whether its handler answers at once or later.
    let mut client = Client::connect(server.server.port);
    client.ask("/page", &[("cookie", cookie)]);
    let head = format!("1 200 {cookie}");
    assert_eq!(client.until("1 4 bytes."), [&*head, "1 4 bytes."]);
    assert!(client.settle().is_empty());
    let log = server.log(6);
    assert_eq!(
        log.iter()
            .filter(|line| line.ends_with(" cancelled"))
            .count(),
        2
    );
}
