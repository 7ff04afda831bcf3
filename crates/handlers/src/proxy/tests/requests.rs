//! Tests of the requests that backends receive.

use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use h2o_exchange::{Address, BodyPipe, ConnectionInfo, Exchange, RequestBody};
use h2o_http::{BodyLength, Known, Method, RequestHead, Scheme, Version};
use h2o_upstream::{BackendUrl, Protocol};

use super::super::settings::ProxySettings;
use super::super::target::PathMapping;
use super::super::tunnel_kind::TunnelKind;
use super::{line, push, request, shown, site};

fn built(
    exchange: &mut Exchange,
    wanted: TunnelKind,
    backend: &str,
    protocol: Protocol,
) -> RequestHead {
    let path = exchange.site.path(exchange.route);
    let settings = path.settings.get::<ProxySettings>();
    let backend = BackendUrl::parse(backend).unwrap();
    let mut head = RequestHead::default();
    let rules = &settings.request;
    rules.build(
        exchange,
        wanted,
        PathMapping::Below,
        &backend,
        protocol,
        &mut head,
    );
    head
}

/// Makes `peer` the peer of the client's connection.
fn from(exchange: &mut Exchange, peer: Address) {
    let connection = &exchange.connection;
    exchange.connection = Rc::new(ConnectionInfo {
        peer,
        tls: None,
        transport: Rc::clone(&connection.transport),
        listener: Rc::clone(&connection.listener),
        ..**connection
    });
}

fn ip(text: &str) -> Address {
    Address::Ip(SocketAddr::new(text.parse().unwrap(), 1234))
}

/// The fields that a backend receives if the client sends the fields `received`, under the configuration `config`.
fn fields(config: &str, received: &str) -> String {
    let mut exchange = request(site("/", config), "GET /", "www.example.com", received);
    from(&mut exchange, ip("192.0.2.7"));
    let head = built(
        &mut exchange,
        TunnelKind::Nothing,
        "http://b",
        Protocol::Http1,
    );
    shown(&head.headers)
}

#[test]
fn a_get_is_forwarded_with_fields_about_the_client() {
    let received = "User-Agent: curl/8\nAccept: */*";
    let mut exchange = request(site("/", ""), "GET /ok", "www.example.com", received);
    from(&mut exchange, ip("192.0.2.7"));
    let backend = "http://127.0.0.1:9000";
    let head = built(&mut exchange, TunnelKind::Nothing, backend, Protocol::Http1);
    assert_eq!(line(&head), "GET /ok 127.0.0.1:9000");
    assert_eq!(head.body, BodyLength::None);
    assert_eq!(
        shown(&head.headers),
        "User-Agent: curl/8\nAccept: */*\nx-forwarded-proto: http\nx-forwarded-for: 192.0.2.7\n\
         via: 1.1 www.example.com"
    );
    let sent = (&b"127.0.0.1:9000"[..], &b"/ok"[..]);
    assert_eq!(exchange.forwarded.place(), Some(sent));
}

#[test]
fn what_concerns_one_connection_stays_there() {
    let config = "proxy.emit-x-forwarded-headers: OFF\nproxy.emit-via-header: OFF";
    let cases = [
        ("Accept: a\nX-B: b", "Accept: a\nX-B: b"),
        (
            "Connection: keep-alive\nKeep-Alive: 5\nProxy-Connection: a\nTE: trailers\nA: 1\nUpgrade: x\n\
             HTTP2-Settings: x\nProxy-Authenticate: x\nProxy-Authorization: x\nDatagram-Flow-Id: 1\n\
             Transfer-Encoding: x\nHost: x\nContent-Length: 1\nExpect: x\nTrailer: t",
            "A: 1\nTrailer: t",
        ),
        // Fields named by `connection` are removed, except well-known end-to-end fields.
        (
            "Connection: close, X-Hop\nX-Hop: 1\nX-End: 2\nConnection: x-other\nx-OTHER: 3",
            "X-End: 2",
        ),
        (
            "Connection: close, x-forwarded-for, authorization\nX-Forwarded-For: a\nAuthorization: b",
            "X-Forwarded-For: a\nAuthorization: b",
        ),
        (
            "Cookie: a=1\nX: 1\nCookie: b=2; c=3\ncookie: d",
            "X: 1\ncookie: a=1; b=2; c=3; d",
        ),
        ("Cookie: \nCookie: a=1\nCookie: ", "cookie: a=1"),
        ("Cookie: ", ""),
        ("Via: 1.0 a\nvia: b", "Via: 1.0 a\nvia: b"),
        (
            "X-Forwarded-For: a\nX-Forwarded-For: b",
            "X-Forwarded-For: a\nX-Forwarded-For: b",
        ),
    ];
    for (received, want) in cases {
        let mut exchange = request(
            super::SETUP.read([config, "", ""]).unwrap(),
            "GET /",
            "h",
            received,
        );
        let head = built(
            &mut exchange,
            TunnelKind::Nothing,
            "http://b",
            Protocol::Http1,
        );
        assert_eq!(shown(&head.headers), want, "{received}");
    }
}

#[test]
fn the_chain_of_proxies_is_continued() {
    let cases = [
        (
            "X-Forwarded-For: a\nVia: 1.0 x\nX: 1\nX-Forwarded-For: b, c\nVia: 2 y",
            "X: 1\nx-forwarded-proto: http\nx-forwarded-for: a, b, c, 192.0.2.7\n\
             via: 1.0 x, 2 y, 1.1 www.example.com",
        ),
        (
            "X-Forwarded-For: \nVia: ",
            "x-forwarded-proto: http\nx-forwarded-for: 192.0.2.7\nvia: 1.1 www.example.com",
        ),
    ];
    for (received, want) in cases {
        assert_eq!(fields("", received), want, "{received}");
    }
    for (version, want) in [
        (Version::Http10, "1.0 h:8"),
        (Version::Http11, "1.1 h:8"),
        (Version::Http2, "2 h:8"),
        (Version::Http3, "3 h:8"),
    ] {
        let mut exchange = request(site("/", ""), "GET /", "h:8", "");
        exchange.request.version = version;
        let head = built(
            &mut exchange,
            TunnelKind::Nothing,
            "http://b",
            Protocol::Http1,
        );
        let via = head.headers.get(h2o_http::Known::Via).unwrap();
        assert_eq!(via.escape_ascii().to_string(), want);
    }
    for (peer, want) in [
        (Address::Unix, "localhost"),
        (ip("255.255.255.255"), "255.255.255.255"),
        (ip("0.0.0.0"), "0.0.0.0"),
        (ip("2001:db8::1"), "2001:db8::1"),
        (
            ip("2001:db8:1111:2222:3333:4444:5555:6666"),
            "2001:db8:1111:2222:3333:4444:5555:6666",
        ),
        (ip("::ffff:192.0.2.1"), "::ffff:192.0.2.1"),
    ] {
        let mut exchange = request(site("/", ""), "GET /", "h", "");
        from(&mut exchange, peer);
        let head = built(
            &mut exchange,
            TunnelKind::Nothing,
            "http://b",
            Protocol::Http1,
        );
        let sent = head.headers.get(h2o_http::Known::XForwardedFor).unwrap();
        assert_eq!(sent.escape_ascii().to_string(), want);
    }
}

#[test]
fn the_scheme_of_the_client_is_told_as_configured() {
    let received = "X-Forwarded-Proto: theirs";
    for (emit, preserve, want) in [
        ("ON", "OFF", "x-forwarded-proto: https"),
        ("ON", "ON", "X-Forwarded-Proto: theirs"),
        ("OFF", "ON", "X-Forwarded-Proto: theirs"),
        ("OFF", "OFF", ""),
    ] {
        let config = format!(
            "proxy.emit-x-forwarded-headers: {emit}\nproxy.preserve-x-forwarded-proto: {preserve}"
        );
        let site = super::SETUP.read([&config, "", ""]).unwrap();
        let mut exchange = request(site, "GET /", "h", received);
        exchange.request.scheme = Scheme::Https;
        let head = built(
            &mut exchange,
            TunnelKind::Nothing,
            "http://b",
            Protocol::Http1,
        );
        let sent = shown(&head.headers);
        let is_proto = |line: &&str| line.to_ascii_lowercase().starts_with("x-forwarded-proto");
        let sent = sent.lines().find(is_proto).unwrap_or_default();
        assert_eq!(sent, want, "{emit} {preserve}");
        assert_eq!(head.scheme, Scheme::Http);
    }
}

#[test]
fn the_host_is_that_of_the_backend_unless_the_clients_is_preserved() {
    let cases = [
        ("", "http://B:81/x", "GET /x/ b:81"),
        ("", "http://[unix:/Run/S]/x", "GET /x/ [unix:/Run/S]"),
        ("proxy.preserve-host: ON", "http://b:81", "GET / Client:8"),
        ("proxy.header.set: 'Host: other'", "http://b", "GET / other"),
        (
            "proxy.preserve-host: ON\nproxy.header.add: 'host: other'",
            "http://b",
            "GET / other",
        ),
        ("proxy.header.unset: host", "http://b", "GET / b"),
        (
            "proxy.preserve-host: ON\nproxy.header.setifempty: 'host: other'",
            "http://b",
            "GET / Client:8",
        ),
        (
            "proxy.header.setifempty: 'host: other'",
            "http://b",
            "GET / b",
        ),
        ("proxy.header.unsetunless: a", "http://b", "GET / b"),
    ];
    for (config, backend, want) in cases {
        let mut exchange = request(site("/", config), "GET /", "Client:8", "");
        let head = built(&mut exchange, TunnelKind::Nothing, backend, Protocol::Http1);
        assert_eq!(line(&head), want, "{config}");
        assert_eq!(head.headers.get(h2o_http::Known::Host), None, "{config}");
    }
}

#[test]
fn rules_edit_the_finished_list() {
    let ours = "x-forwarded-proto: http\nx-forwarded-for: 192.0.2.7\nvia: 1.1 www.example.com";
    let cases = [
        ("proxy.header.add: 'X-A: 1'", "", format!("{ours}\nx-a: 1")),
        (
            "proxy.header.append: 'via: 1.1 b'",
            "",
            format!("{ours}, 1.1 b"),
        ),
        (
            "proxy.header.unset: [ via, X-Forwarded-For ]\nproxy.header.set: 'A: 2'",
            "A: 1\nB: 1",
            "B: 1\nx-forwarded-proto: http\na: 2".to_owned(),
        ),
        (
            "proxy.header.unsetunless: b",
            "A: 1\nB: 1",
            "B: 1".to_owned(),
        ),
        (
            "proxy.header.setifempty: { header: 'x-forwarded-proto: x', when: early }",
            "",
            ours.to_owned(),
        ),
        (
            "proxy.header.merge: { header: 'a: 2', when: early }",
            "A: 1",
            format!("A: 1, 2\n{ours}"),
        ),
        (
            "proxy.header.cookie.unset: b",
            "Cookie: a=1\nCookie: b=2; c=3",
            "cookie: a=1; c=3\n".to_owned() + ours,
        ),
        (
            "proxy.header.cookie.unsetunless: [ z ]",
            "Cookie: a=1",
            ours.to_owned(),
        ),
    ];
    for (config, received, want) in cases {
        assert_eq!(fields(config, received), want, "{config}");
    }
}

#[test]
fn rules_of_all_levels_run_and_leave_neighbours_alone() {
    let levels = [
        "proxy.header.add: 'x: global'",
        "proxy.header.add: 'x: host'",
        "proxy.header.add: 'x: path'",
    ];
    let site = super::SETUP.read(levels).unwrap();
    let count =
        |settings: &h2o_exchange::SettingsMap| settings.get::<ProxySettings>().request.edits.len();
    let paths = &site.hosts[0].paths;
    let counts = (
        count(&site.settings),
        count(&paths[1].settings),
        count(&paths[0].settings),
    );
    assert_eq!(counts, (1, 2, 3));
}

#[test]
fn early_data_is_announced_once() {
    for (is_early, received, want) in [
        (false, "", None),
        (true, "", Some(&b"1"[..])),
        (true, "Early-Data: 2", Some(b"2")),
        (false, "Early-Data: 2", Some(b"2")),
    ] {
        let mut exchange = request(site("/", ""), "GET /", "h", received);
        exchange.is_early = is_early;
        let head = built(
            &mut exchange,
            TunnelKind::Nothing,
            "http://b",
            Protocol::Http1,
        );
        let values: Vec<_> = head.headers.get_all(h2o_http::Known::EarlyData).collect();
        assert_eq!(values, want.into_iter().collect::<Vec<_>>(), "{received}");
    }
    let received = "Cookie: a\nA: 1";
    let mut exchange = request(site("/", ""), "GET /", "h", received);
    exchange.is_early = true;
    let head = built(
        &mut exchange,
        TunnelKind::Nothing,
        "http://b",
        Protocol::Http1,
    );
    assert!(shown(&head.headers).starts_with("A: 1\nearly-data: 1\ncookie: a\nx-forwarded-proto"));
}

#[test]
fn the_length_is_told_as_soon_as_it_is_known() {
    let bytes = |len| RequestBody::Bytes(Bytes::from(vec![0; len]));
    let pipe = || RequestBody::Stream(Rc::new(BodyPipe::default()));
    let cases = [
        ("GET", RequestBody::None, BodyLength::None, BodyLength::None),
        (
            "POST",
            RequestBody::None,
            BodyLength::None,
            BodyLength::Known(0),
        ),
        ("PUT", bytes(0), BodyLength::Known(0), BodyLength::Known(0)),
        ("PATCH", bytes(0), BodyLength::Known(0), BodyLength::None),
        ("GET", bytes(3), BodyLength::Unknown, BodyLength::Known(3)),
        ("POST", pipe(), BodyLength::Known(9), BodyLength::Known(9)),
        ("POST", pipe(), BodyLength::Unknown, BodyLength::Unknown),
    ];
    for (method, body, received, want) in cases {
        let mut exchange = request(site("/", ""), &format!("{method} /"), "h", "");
        exchange.body = body;
        exchange.request.body = received;
        let head = built(
            &mut exchange,
            TunnelKind::Nothing,
            "http://b",
            Protocol::Http1,
        );
        assert_eq!(head.body, want, "{method} {received:?}");
    }
}

#[test]
fn expectations_of_clients_who_wait_are_forwarded_if_asked_for() {
    let pipe = || RequestBody::Stream(Rc::new(BodyPipe::default()));
    let whole = || RequestBody::Bytes(Bytes::from_static(b"x"));
    let cases = [
        ("proxy.expect: FORWARD", "100-continue", pipe(), true),
        ("proxy.expect: FORWARD", "100-continue", whole(), false),
        ("proxy.expect: FORWARD", "", pipe(), false),
        ("proxy.expect: ON", "100-continue", pipe(), false),
        ("", "100-continue", pipe(), false),
    ];
    for (config, expect, body, want) in cases {
        let mut exchange = request(site("/", config), "POST /", "h", "A: 1");
        exchange.body = body;
        exchange.request.body = BodyLength::Known(1);
        let expect = exchange.request.headers.store(expect.as_bytes());
        exchange.request.set_expect(expect);
        let head = built(
            &mut exchange,
            TunnelKind::Nothing,
            "http://b",
            Protocol::Http1,
        );
        let sent = shown(&head.headers).starts_with("A: 1\nexpect: 100-continue\nx-forwarded");
        assert_eq!((sent, !head.expect().is_empty()), (want, want), "{config}");
    }
    let waiting = || {
        let mut exchange = request(site("/", "proxy.expect: FORWARD"), "GET /", "h", "");
        exchange.body = pipe();
        let expect = exchange.request.headers.store(b"100-continue");
        exchange.request.set_expect(expect);
        exchange
    };
    // The expectation of an HTTP/1.0 client is ignored (RFC 9110 §10.1.1).
    let mut old = waiting();
    old.request.version = h2o_http::Version::Http10;
    // The bytes of a tunnel are not content, so the client's expectation is not forwarded (RFC 9110 §10.1.1).
    let mut tunnel = waiting();
    let token = tunnel.request.headers.store(b"websocket");
    tunnel.request.set_upgrade(token);
    for (mut exchange, kind) in [(old, TunnelKind::Nothing), (tunnel, TunnelKind::Protocol)] {
        let head = built(&mut exchange, kind, "http://b", Protocol::Http1);
        assert_eq!(head.headers.get(Known::Expect), None, "{kind:?}");
        assert!(head.expect().is_empty(), "{kind:?}");
    }
}

#[test]
fn tunnels_are_asked_for_in_the_way_of_the_protocol() {
    let cases = [
        // Each row: the client's method, the protocol it asks for, the backend's protocol; the request line and the
        // protocol that the backend gets.
        (
            Method::Get,
            "websocket",
            Protocol::Http1,
            "GET /x/ws b",
            "websocket",
        ),
        (
            Method::Connect,
            "websocket",
            Protocol::Http1,
            "GET /x/ws b",
            "websocket",
        ),
        (
            Method::Connect,
            "websocket",
            Protocol::Http2,
            "CONNECT /x/ws b",
            "websocket",
        ),
        (Method::Connect, "", Protocol::Http1, "CONNECT t:1 t:1", ""),
    ];
    for (method, token, protocol, want, want_token) in cases {
        let is_connect = token.is_empty();
        let (config, target, authority) = if is_connect {
            ("proxy.preserve-host: ON", "", "t:1")
        } else {
            ("", "/ws", "h")
        };
        let mut exchange = request(site("/", config), &format!("GET {target}"), authority, "");
        push(
            &mut exchange.request.headers,
            "Connection: upgrade\nSec-WebSocket-Key: k",
        );
        exchange.request.method = method;
        let span = exchange.request.headers.store(token.as_bytes());
        exchange.request.set_upgrade(span);
        let wanted = if is_connect {
            TunnelKind::Connect
        } else {
            TunnelKind::Protocol
        };
        let head = built(&mut exchange, wanted, "http://b/x", protocol);
        assert_eq!(line(&head), want);
        assert_eq!(head.body, BodyLength::Tunnel);
        assert_eq!(head.upgrade().escape_ascii().to_string(), want_token);
        assert!(shown(&head.headers).starts_with("Sec-WebSocket-Key: k\nx-forwarded-proto"));
    }
    // H2O compatibility: without `proxy.preserve-host`, H2O sends CONNECT with the backend as target.
    let mut exchange = request(site("/", ""), "CONNECT ", "t:1", "");
    let head = built(
        &mut exchange,
        TunnelKind::Connect,
        "http://b:2/x",
        Protocol::Http1,
    );
    assert_eq!(line(&head), "CONNECT b:2 b:2");
}

#[test]
fn trailers_are_asked_for_where_they_reach_the_client() {
    let cases = [
        (Version::Http2, "te: trailers", Protocol::Http2, true),
        (Version::Http2, "te: trailers", Protocol::Http1, false),
        (Version::Http2, "", Protocol::Http2, false),
        (Version::Http11, "te: trailers", Protocol::Http2, false),
    ];
    for (version, received, protocol, want) in cases {
        let mut exchange = request(site("/", ""), "POST /", "www.example.com", received);
        exchange.request.version = version;
        let head = built(&mut exchange, TunnelKind::Nothing, "http://b", protocol);
        let is_asked = head.headers.get(Known::Te) == Some(b"trailers");
        assert_eq!(is_asked, want, "{version:?} {received} {protocol:?}");
    }
}
