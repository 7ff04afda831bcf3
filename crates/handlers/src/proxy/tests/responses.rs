//! Tests of the responses that clients receive from backends.

use h2o_exchange::{
    Body, BodyUse, Exchange, Handler, LinkHeaderUse, Outcome, RequestBody, Response,
};
use h2o_http::{BodyLength, Known, Method, Scheme, StatusCode};
use h2o_upstream::{BackendUrl, Failure, Protocol, Reply};

use super::super::response;
use super::super::settings::ProxySettings;
use super::super::target::PathMapping;
use super::super::tunnel_kind::TunnelKind;
use super::{push, request, shown, site};

fn reply(status: u16, fields: &str) -> Reply {
    let mut headers = h2o_http::Headers::new();
    push(&mut headers, fields);
    Reply {
        status: StatusCode::new(status).unwrap(),
        reason: None,
        headers,
        length: Some(0),
        body: Body::Empty,
        backend: 0,
        closes: false,
        is_chunked: false,
        is_tunnel: false,
        protocol: Protocol::Http1,
    }
}

fn answered(
    exchange: &mut Exchange,
    wanted: TunnelKind,
    keeps_server: bool,
    reply: Reply,
) -> Outcome {
    let path = exchange.site.path(exchange.route);
    let rules = path.settings.get::<ProxySettings>().response;
    let backend = BackendUrl::parse("http://b:81/base").unwrap();
    rules.answer(
        exchange,
        wanted,
        backend.scheme,
        &backend,
        keeps_server,
        reply,
    )
}

fn done(outcome: Outcome) -> Response {
    match outcome {
        Outcome::Done(response) => response,
        Outcome::Declined | Outcome::Later(_) | Outcome::Reroute(_) | Outcome::Next(_) => {
            panic!("the proxy answers the request at once")
        }
    }
}

fn fields(received: &str) -> String {
    let mut exchange = request(site("/a", ""), "GET /a/x", "Client:8", "");
    let received = format!("date: d\n{received}");
    let reply = reply(200, &received);
    let response = done(answered(&mut exchange, TunnelKind::Nothing, false, reply));
    let shown = shown(&response.headers);
    shown["date: d".len()..].trim_start().to_owned()
}

#[test]
fn responses_are_forwarded_without_hop_by_hop_fields() {
    let cases = [
        (
            "X-A: 1\nSet-Cookie: a\nset-cookie: b",
            "X-A: 1\nSet-Cookie: a\nset-cookie: b",
        ),
        (
            "Connection: close\nKeep-Alive: 5\nProxy-Connection: x\nTransfer-Encoding: x\nUpgrade: h2\n\
             Datagram-Flow-Id: 1\nContent-Length: 3\nServer: theirs\nX-Compress-Hint: on",
            "",
        ),
        // Fields named by `connection` are removed, except well-known end-to-end fields.
        (
            "X-Hop: 1\nConnection: close, X-Hop\nX-End: 2\nConnection: x-other\nx-OTHER: 3",
            "X-End: 2",
        ),
        ("Connection: close, ETag\nETag: a", "ETag: a"),
        (
            "Via: 1.1 x\nTrailer: t\nProxy-Status: s\nProxy-Authenticate: p",
            "Via: 1.1 x\nTrailer: t\nProxy-Status: s\nProxy-Authenticate: p",
        ),
        (
            "Location: http://B:81/base/y",
            "Location: http://Client:8/a/y",
        ),
        (
            "Location: http://b:82/base/y",
            "Location: http://b:82/base/y",
        ),
        ("Location: y", "Location: y"),
    ];
    for (received, want) in cases {
        assert_eq!(fields(received), want, "{received}");
    }
    let mut exchange = request(site("/", ""), "GET /", "h", "");
    let reply = reply(200, "Server: theirs\nDate: d");
    let kept = done(answered(&mut exchange, TunnelKind::Nothing, true, reply));
    assert_eq!(shown(&kept.headers), "Server: theirs\nDate: d");
}

#[test]
fn a_response_without_date_gets_one_unless_configured_otherwise() {
    for (config, want) in [("", true), ("proxy.emit-missing-date-header: OFF", false)] {
        let site = super::SETUP.read([config, "", ""]).unwrap();
        let mut exchange = request(site, "GET /", "h", "");
        let response = done(answered(
            &mut exchange,
            TunnelKind::Nothing,
            false,
            reply(200, ""),
        ));
        assert!(response.headers.get(Known::Date).is_none());
        assert_eq!(response.is_undated, !want, "{config}");
    }
}

#[test]
fn status_reason_length_and_links_are_those_of_the_backend() {
    let mut exchange = request(site("/", ""), "HEAD /", "h", "");
    let mut received = reply(299, "Link: </a>; rel=preload");
    received.reason = Some("Quite".into());
    received.length = Some(7);
    let response = done(answered(
        &mut exchange,
        TunnelKind::Nothing,
        false,
        received,
    ));
    assert_eq!(
        (response.status.as_u16(), response.reason(), response.length),
        (299, "Quite", Some(7))
    );
    assert_eq!(
        (response.links, response.closes),
        (LinkHeaderUse::PushAndFilter, false)
    );
    let mut received = reply(200, "");
    received.reason = Some("".into());
    let response = done(answered(
        &mut exchange,
        TunnelKind::Nothing,
        false,
        received,
    ));
    assert_eq!(
        (response.reason(), response.links),
        ("", LinkHeaderUse::Plain)
    );
}

#[test]
fn interim_responses_are_handed_on_as_rules_leave_them() {
    let config = "header.add: { header: 'x: 1', when: early }\nheader.unset: { header: y, when: all }\n\
                  header.unset: link";
    let cases = [
        ("", 100, "", vec![(100, "".to_owned())]),
        ("", 102, "", vec![(102, "".to_owned())]),
        ("", 103, "", vec![]),
        ("", 103, "Connection: close", vec![]),
        ("", 103, "X: 1\nConnection: x", vec![]),
        (
            "",
            103,
            "Link: a\nY: z",
            vec![(103, "Link: a\nY: z".to_owned())],
        ),
        (
            config,
            103,
            "Link: a\nY: z",
            vec![(103, "Link: a\nx: 1".to_owned())],
        ),
        (config, 102, "Y: z", vec![(102, "Y: z".to_owned())]),
    ];
    for (config, status, fields, want) in cases {
        let setup = crate::testing::Setup {
            directives: crate::header::DIRECTIVES,
            ..super::SETUP
        };
        let site = setup.read(["", "", config]).unwrap();
        let mut exchange = request(site, "GET /", "h", "");
        let interim = reply(status, fields);
        response::add_informational(&mut exchange, interim.status, &interim.headers);
        let got = exchange.informational.iter();
        let got: Vec<_> = got
            .map(|(status, headers)| (status.as_u16(), shown(headers)))
            .collect();
        assert_eq!(got, want, "{status} {fields}");
    }
}

#[test]
fn closing_is_forwarded_if_asked_for() {
    for (config, closes, want) in [
        ("", true, false),
        ("proxy.forward.close-connection: ON", true, true),
        ("proxy.forward.close-connection: ON", false, false),
    ] {
        let mut exchange = request(site("/", config), "GET /", "h", "");
        let mut received = reply(200, "Connection: close");
        received.closes = closes;
        let response = done(answered(
            &mut exchange,
            TunnelKind::Nothing,
            false,
            received,
        ));
        assert_eq!(response.closes, want, "{config}");
    }
}

#[test]
fn tunnels_open_only_where_the_backend_opens_one() {
    let cases = [
        // Each row: the client's method, the tunnel it asks for, the backend's status, whether the backend opens a
        // tunnel, the status for the client.
        (Method::Get, TunnelKind::Protocol, 101, true, 101),
        (Method::Get, TunnelKind::Protocol, 200, true, 101),
        (Method::Get, TunnelKind::Protocol, 200, false, 200),
        (Method::Get, TunnelKind::Protocol, 404, false, 404),
        (Method::Connect, TunnelKind::Protocol, 101, true, 101),
        (Method::Connect, TunnelKind::Protocol, 200, false, 502),
        (Method::Connect, TunnelKind::Protocol, 404, false, 404),
        (Method::Connect, TunnelKind::Connect, 204, true, 204),
    ];
    for (method, wanted, status, is_tunnel, want) in cases {
        let mut exchange = request(site("/", ""), "GET /", "h", "");
        exchange.request.method = method;
        let mut received = reply(status, "Upgrade: x\nConnection: upgrade");
        received.is_tunnel = is_tunnel;
        let response = done(answered(&mut exchange, wanted, false, received));
        assert_eq!(
            response.status.as_u16(),
            want,
            "{wanted:?} {status} {is_tunnel}"
        );
        assert_eq!(response.headers.get(Known::Upgrade), None);
        let reason = "the upstream server did not switch protocols";
        assert_eq!(exchange.errors.contains(reason), want == 502);
    }
}

#[test]
fn redirects_of_delegated_requests_are_followed_here() {
    let cases = [
        // Each row: the request's method, the response's status and `location`; the method and URL of the request that
        // follows the redirect.
        (
            "POST",
            302,
            "http://b:81/base/y?q",
            Some("GET http://b:81/base/y?q"),
        ),
        ("POST", 307, "/y", Some("POST /y")),
        ("HEAD", 301, "/y", Some("HEAD /y")),
        ("GET", 304, "/y", None),
        ("GET", 200, "/y", None),
        ("GET", 302, "", None),
    ];
    for (method, status, location, want) in cases {
        let mut exchange = request(site("/a", ""), &format!("{method} /a"), "h", "");
        exchange.request.scheme = Scheme::Https;
        let fields = if location.is_empty() {
            String::new()
        } else {
            format!("Location: {location}")
        };
        for delegated in [false, true] {
            exchange.is_delegated = delegated;
            let outcome = answered(
                &mut exchange,
                TunnelKind::Nothing,
                false,
                reply(status, &fields),
            );
            let followed = match outcome {
                Outcome::Reroute(order) => {
                    assert_eq!(order.keep_body, order.method == exchange.request.method);
                    let url = String::from_utf8(order.url).unwrap();
                    Some(format!("{} {url}", order.method.as_str()))
                }
                _ => None,
            };
            let want = want.filter(|_| delegated);
            assert_eq!(followed.as_deref(), want, "{method} {status} {location}");
        }
    }
}

#[test]
fn failures_are_502_and_noted_where_the_request_was_sent() {
    let failure = Failure {
        text: "invalid response from upstream".into(),
        log: Some("more".into()),
        refused: false,
        cause: h2o_upstream::FailureCause::Other,
    };
    let site = site("/nx", "");
    let mut exchange = request(site, "GET /nx/z?q", "www.example.com", "");
    let response = response::failed(&mut exchange, PathMapping::Below, &failure);
    assert_eq!(
        (response.status.as_u16(), response.reason()),
        (502, "Gateway Error")
    );
    assert_eq!(
        shown(&response.headers),
        "content-type: text/plain; charset=utf-8"
    );
    assert!(matches!(&response.body, Body::Bytes(text) if text == &failure.text[..]));
    let noted = "[lib/core/proxy.c] in request:www.example.com/z?q:more";
    assert_eq!(exchange.errors, noted);
    // No backend was contacted: the log shows the client's authority and path.
    let place = (&b"www.example.com"[..], &b"/z?q"[..]);
    assert_eq!(exchange.forwarded.place(), Some(place));
    let counted = exchange
        .worker
        .counters
        .get(h2o_exchange::Counter::Status502);
    assert_eq!(counted, 1);
    assert!(!response.is_refusal);
    // A request that the backend has refused without processing it is not counted as a response 502.
    let refused = Failure {
        refused: true,
        ..failure.clone()
    };
    assert!(response::failed(&mut exchange, PathMapping::Below, &refused).is_refusal);
    let counters = &exchange.worker.counters;
    assert_eq!(counters.get(h2o_exchange::Counter::Status502), 1);
    exchange.forwarded.set(b"b:81", [&b"/base"[..]]);
    response::failed(&mut exchange, PathMapping::Below, &failure);
    assert_eq!(
        exchange.forwarded.place(),
        Some((&b"b:81"[..], &b"/base"[..]))
    );
}

#[test]
fn what_no_backend_is_asked_for_is_refused_and_closes() {
    let cases = [
        // Each row: configuration, method, protocol asked for, authority; status, reason and text of the response.
        (
            "",
            "CONNECT",
            "",
            "h:1",
            (405, "Method Not Allowed", "refusing CONNECT"),
        ),
        (
            "",
            "GET",
            "x",
            "h",
            (403, "Forbidden", "The proxy act as a gateway."),
        ),
        (
            "proxy.preserve-host: ON",
            "GET",
            "",
            "h/x",
            (400, "Invalid Request", "Invalid Request"),
        ),
    ];
    for (config, method, token, authority, (status, reason, text)) in cases {
        let config = format!("{config}\nproxy.reverse.url: 'http://127.0.0.1:1'");
        let mut exchange = request(site("/", &config), &format!("{method} /"), authority, "");
        let token = exchange.request.headers.store(token.as_bytes());
        exchange.request.set_upgrade(token);
        if method == "CONNECT" {
            exchange.request.body = BodyLength::Tunnel;
        }
        exchange.body = RequestBody::None;
        let site = std::rc::Rc::clone(&exchange.site);
        let handler: &dyn Handler = &*site.path(exchange.route).handlers[0];
        assert_eq!(handler.body_use(&exchange), BodyUse::Stream);
        let response = done(handler.on_request(&mut exchange));
        assert_eq!(
            (response.status.as_u16(), response.reason()),
            (status, reason)
        );
        assert!(matches!(&response.body, Body::Bytes(body) if body == text));
        assert!(response.closes);
    }
}
