//! An exchange and its worker: no data of a request remains for the next one, internal redirects are counted, and
//! errors are recorded.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use h2o_exchange::{
    Address, ConnectionInfo, Counters, EnvCommands, Exchange, ExchangeRef, Host, Http2Stream,
    LinkHeaderUse, LocalSite, MimeHint, NamedBy, NoTransport, OriginalRequest, PathRoute, Protocol,
    PushOrder, RequestBody, Reroute, RerouteFields, RerouteKind, RerouteLimits, Reroutes, Response,
    ScriptPath, Shared, Site, SubRequest, SubRequestStart, Worker,
};
use h2o_http::{Headers, Known, Method, Scheme, StatusCode};
use h2o_log::LineLimit;

fn worker() -> Rc<Worker> {
    Worker::new(
        0,
        Arc::new(Counters::default()),
        Arc::new(Shared::default()),
    )
}

fn connection(worker: &Worker) -> Rc<ConnectionInfo> {
    Rc::new(ConnectionInfo {
        id: 7,
        peer: Address::Unix,
        accepted: worker.clock.now(),
        tls: None,
        transport: Rc::new(NoTransport),
        listener: Rc::default(),
    })
}

fn site(limits: RerouteLimits) -> Rc<LocalSite> {
    let path = PathRoute {
        path: "/".into(),
        ..PathRoute::default()
    };
    let host = Host {
        paths: vec![path],
        ..Host::default()
    };
    Rc::new(LocalSite(Arc::new(Site {
        hosts: vec![host],
        reroute_limits: limits,
        ..Site::default()
    })))
}

/// Creates a worker with an exchange for `GET http://a.example/x?y`.
fn asked() -> (Rc<Worker>, ExchangeRef) {
    let worker = worker();
    let exchange = worker.exchange(&site(RerouteLimits::default()), &connection(&worker));
    {
        let mut exchange = exchange.borrow_mut();
        let authority = exchange.request.headers.store(b"a.example");
        exchange.request.set_authority(authority);
        let target = exchange.request.headers.store(b"/x?y");
        exchange.request.set_target(target);
    }
    (worker, exchange)
}

#[test]
fn errors_of_a_sub_request_go_to_its_sink_alone_and_have_no_limit_there() {
    static LIMIT: LineLimit = LineLimit::per_minute(1);
    let (_worker, exchange) = asked();
    let lines = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&lines);
    let exchange = &mut *exchange.borrow_mut();
    exchange.sub_request = Some(Box::new(SubRequest {
        start: SubRequestStart::Routing,
        on_error: Some(Box::new(move |line: &str| {
            sink.borrow_mut().push(line.to_owned())
        })),
    }));
    exchange.note_error("core", "one");
    exchange.note_error_within(&LIMIT, "core", "two");
    exchange.note_error_within(&LIMIT, "core", "three");
    let lines = lines.borrow();
    let ends = lines.iter().map(|line| line.rsplit(':').next());
    assert_eq!(
        ends.collect::<Vec<_>>(),
        [Some("one"), Some("two"), Some("three")]
    );
}

/// Sets every field of the exchange that a request can set.
fn fill(exchange: &mut Exchange) {
    let secret: Arc<str> = "secret".into();
    exchange.original = Some(Box::new(OriginalRequest {
        method: Method::Post,
        scheme: Scheme::Https,
        authority: b"secret.example".to_vec(),
        target: b"/secret".to_vec(),
    }));
    exchange.body = RequestBody::Bytes(Bytes::from_static(b"secret"));
    exchange.set_env(&secret, &secret.as_bytes().into());
    exchange.forwarded.set(b"secret.example", [&b"/secret"[..]]);
    exchange.note_error("secret", "secret");
    exchange.sent.status = Some(StatusCode::OK);
    exchange.sent.first_status = Some(StatusCode::OK);
    exchange.sent.headers.push(Known::SetCookie, b"secret");
    exchange.sent.unfiltered = Some(exchange.sent.headers.clone());
    exchange.sent.header_bytes = 1;
    exchange.sent.body_bytes = 1;
    exchange.protocol = Protocol::Http2(Http2Stream::default());
    exchange.is_early = true;
    exchange.is_misdirected = true;
    exchange
        .informational
        .push((StatusCode::CONTINUE, Headers::new()));
    exchange.is_hinted = true;
    exchange.pushes.push(PushOrder {
        target: b"/secret".to_vec(),
        critical: true,
    });
    exchange.reroutes = Reroutes {
        delegations: 3,
        reprocesses: 3,
    };
    exchange.is_delegated = true;
    exchange.has_unconfigured_target = true;
    exchange.awaits_error_document = true;
    exchange.request_body_bytes = 5;
    exchange.saved_headers = Some(Headers::new());
    exchange.restore = Some(Box::new(|_, _| {
        panic!("the hook of the request before is called")
    }));
    exchange.mime = Some(MimeHint {
        compressible: true,
        highest_priority: true,
    });
    exchange.script = Some(ScriptPath {
        name: b"/secret".to_vec(),
        file: b"/secret".to_vec(),
        path_info: None,
    });
}

/// The names of the exchange's fields that are set.
fn traces(exchange: &Exchange) -> Vec<&'static str> {
    let sent = &exchange.sent;
    let fields = [
        ("original", exchange.original.is_some()),
        ("body", !matches!(exchange.body, RequestBody::None)),
        (
            "env",
            !exchange.env.is_empty() || exchange.env("secret").is_some(),
        ),
        ("forwarded", exchange.forwarded.place().is_some()),
        ("errors", !exchange.errors.is_empty()),
        (
            "sent status",
            sent.status.is_some() || sent.first_status.is_some(),
        ),
        (
            "sent fields",
            !sent.headers.is_empty() || sent.unfiltered.is_some(),
        ),
        ("sent bytes", sent.header_bytes + sent.body_bytes > 0),
        ("protocol", exchange.protocol != Protocol::default()),
        ("is_early", exchange.is_early),
        ("is_misdirected", exchange.is_misdirected),
        ("informational", !exchange.informational.is_empty()),
        ("is_hinted", exchange.is_hinted),
        ("pushes", !exchange.pushes.is_empty()),
        ("reroutes", exchange.reroutes != Reroutes::default()),
        ("is_delegated", exchange.is_delegated),
        ("has_unconfigured_target", exchange.has_unconfigured_target),
        ("awaits_error_document", exchange.awaits_error_document),
        ("request_body_bytes", exchange.request_body_bytes > 0),
        ("saved_headers", exchange.saved_headers.is_some()),
        ("restore", exchange.restore.is_some()),
        ("mime", exchange.mime.is_some()),
        ("script", exchange.script.is_some()),
    ];
    fields
        .into_iter()
        .filter(|(_, is_left)| *is_left)
        .map(|(name, _)| name)
        .collect()
}

#[test]
fn nothing_of_a_request_is_left_for_the_next() {
    let (worker, exchange) = asked();
    fill(&mut exchange.borrow_mut());
    assert_eq!(
        traces(&exchange.borrow()).len(),
        23,
        "the test sees a change in each field of the exchange"
    );

    // Prepares the exchange for the next request on the same connection.
    exchange.borrow_mut().rewind();
    assert_eq!(traces(&exchange.borrow()), Vec::<&str>::new());

    // The worker gives the exchange to another client.
    fill(&mut exchange.borrow_mut());
    worker.release(exchange);
    let (site, connection) = (site(RerouteLimits::default()), connection(&worker));
    let next = worker.exchange(&site, &connection);
    assert_eq!(traces(&next.borrow()), Vec::<&str>::new());
    assert!(next.borrow().request.target().is_empty());
    assert!(next.borrow().request.authority().is_empty());
    assert!(Worker::is_begun(&next.borrow(), &site, &connection));
    let fields = next.borrow_mut().headers();
    assert_eq!(
        fields.len(),
        0,
        "the memory for fields is used again, the fields are not"
    );
}

#[test]
fn memory_of_response_fields_is_used_again_up_to_a_limit() {
    // An exchange keeps the memory of 100 bytes of fields for the next request, but not that of 100,000 bytes.
    for (len, is_kept) in [(100, true), (100_000, false)] {
        let (worker, exchange) = asked();
        let mut fields = exchange.borrow_mut().headers();
        fields.push(Known::Link, &vec![b'x'; len]);
        let held = fields.retained();
        exchange.borrow_mut().sent.headers = fields;
        // The exchange is rewound when its request is over, and once more before the next request.
        exchange.borrow_mut().rewind();
        worker.release(exchange);
        let next = worker.exchange(&site(RerouteLimits::default()), &connection(&worker));
        let fields = next.borrow_mut().headers();
        assert!(fields.is_empty());
        assert_eq!(fields.retained(), if is_kept { held } else { 0 }, "{len}");
    }
}

#[test]
fn exchanges_are_used_again_and_hold_nothing_of_their_site_meanwhile() {
    let worker = worker();
    let (site, connection) = (site(RerouteLimits::default()), connection(&worker));
    let first = worker.exchange(&site, &connection);
    let address = first.as_ptr();
    assert_eq!(
        (Rc::strong_count(&site), Rc::strong_count(&connection)),
        (2, 2)
    );
    worker.release(first);
    assert_eq!(
        (Rc::strong_count(&site), Rc::strong_count(&connection)),
        (1, 1)
    );
    let second = worker.exchange(&site, &connection);
    assert_eq!(
        second.as_ptr(),
        address,
        "the second request uses the exchange of the first one"
    );
    let third = worker.exchange(&site, &connection);
    assert_ne!(third.as_ptr(), address);
}

#[test]
fn a_worker_knows_the_exchanges_that_are_under_way() {
    let worker = worker();
    let (site, connection) = (site(RerouteLimits::default()), connection(&worker));
    let live = |worker: &Worker| {
        let mut seen = Vec::new();
        worker.each_live(|exchange| seen.push(exchange.protocol.request_id()));
        seen.sort_unstable();
        seen
    };
    let exchanges: Vec<ExchangeRef> = (1..=4)
        .map(|index| {
            let exchange = worker.exchange(&site, &connection);
            exchange.borrow_mut().protocol = Protocol::Http1 { index };
            exchange
        })
        .collect();
    assert_eq!(live(&worker), [1, 2, 3, 4]);
    for exchange in &exchanges {
        let found = exchange
            .borrow()
            .reference()
            .expect("the exchange belongs to a worker");
        assert!(Rc::ptr_eq(&found, exchange));
    }
    let mut exchanges = exchanges.into_iter();
    let second = exchanges.nth(1).expect("the test has four exchanges");
    worker.release(second);
    assert_eq!(live(&worker), [1, 3, 4]);
    let third = exchanges.next().expect("the test has four exchanges");
    let borrowed = third.borrow_mut();
    assert_eq!(
        live(&worker),
        [1, 4],
        "an exchange that is in use is skipped without a panic"
    );
    drop(borrowed);
    // This exchange was not created by a worker, so it has no reference to itself.
    let stranger = Exchange::new(Rc::clone(&worker), site, connection);
    assert!(stranger.reference().is_none());
}

#[test]
fn internal_redirects_are_limited_each_kind_by_its_own() {
    use RerouteKind::{Delegation, Reprocess};
    let limits = RerouteLimits {
        delegations: 2,
        reprocesses: 3,
    };
    // Each row: internal redirects in order, and which of them exceeds the limit.
    let cases: &[(&[RerouteKind], Option<usize>, &str)] = &[
        (&[Delegation, Delegation], None, ""),
        (&[Delegation; 3], Some(2), "too many internal delegations"),
        (&[Reprocess; 3], None, ""),
        (&[Reprocess; 4], Some(3), "too many internal reprocesses"),
        // After a delegation, every further reroute counts as a delegation.
        (
            &[Delegation, Reprocess, Reprocess],
            Some(2),
            "too many internal delegations",
        ),
        (
            &[Reprocess, Reprocess, Reprocess, Delegation, Delegation],
            None,
            "",
        ),
        (
            &[Reprocess, Delegation, Delegation, Delegation],
            Some(3),
            "too many internal delegations",
        ),
    ];
    for (kinds, refused, text) in cases {
        let worker = worker();
        let exchange = worker.exchange(&site(limits), &connection(&worker));
        let mut exchange = exchange.borrow_mut();
        let counted: Vec<_> = kinds
            .iter()
            .map(|kind| exchange.count_reroute(*kind))
            .collect();
        let at = counted.iter().position(Result::is_err);
        assert_eq!(at, *refused, "{kinds:?}");
        if let Some(Err(response)) = counted.into_iter().find(Result::is_err) {
            assert_eq!(response.status, StatusCode::BAD_GATEWAY);
            let h2o_exchange::Body::Bytes(body) = &response.body else {
                panic!("the body is not in memory");
            };
            assert_eq!(body, text);
        }
    }
}

#[test]
fn the_original_request_is_what_the_client_sent() {
    let (_worker, exchange) = asked();
    let mut exchange = exchange.borrow_mut();
    assert_eq!(exchange.original_method(), &Method::Get);
    assert_eq!(exchange.original_authority(), b"a.example");
    assert_eq!(exchange.original_target(), b"/x?y");
    exchange.original = Some(Box::new(OriginalRequest {
        method: Method::Post,
        scheme: Scheme::Https,
        authority: b"b.example".to_vec(),
        target: b"/before".to_vec(),
    }));
    assert_eq!(exchange.original_method(), &Method::Post);
    assert_eq!(exchange.original_scheme(), Scheme::Https);
    assert_eq!(exchange.original_authority(), b"b.example");
    assert_eq!(exchange.original_target(), b"/before");
}

#[test]
fn errors_name_the_request_or_the_place_it_was_handed_to() {
    let (_worker, exchange) = asked();
    let mut exchange = exchange.borrow_mut();
    exchange.note_error("core", "it broke");
    assert_eq!(exchange.errors, "[core] in request:a.example/x?y:it broke");
    exchange.errors.clear();
    exchange.forwarded.set(b"backend:80", [&b"/a"[..], b"/b\n"]);
    exchange.note_body_error(&h2o_exchange::BodyError::Failed("cut off".into()));
    assert_eq!(
        exchange.errors,
        "[lib/core/proxy.c] in request:backend:80/a/b\\n:cut off"
    );
    exchange.errors.clear();
    exchange.forwarded.forget_place();
    exchange.note_body_error(&h2o_exchange::BodyError::file_shrunk());
    let want = "[core] in request:a.example/x?y:the file became shorter while it was being sent";
    assert_eq!(exchange.errors, want);
    exchange.errors.clear();
    exchange.forwarded.set(&[b'h'; 100], [&[b'p'; 100][..]]);
    exchange.note_error("core", "x");
    let want = format!(
        "[core] in request:{}...{}...:x",
        "h".repeat(61),
        "p".repeat(29)
    );
    assert_eq!(exchange.errors, want);
}

#[test]
fn variables_are_set_and_unset_from_the_outermost_level_inwards() {
    type Act = fn(&mut EnvCommands);
    type Case = (
        &'static str,
        &'static [Act],
        &'static [(&'static str, &'static str)],
    );
    let cases: &[Case] = &[
        ("nothing", &[], &[("kept", "before")]),
        (
            "one",
            &[|env| env.set("a", "1")],
            &[("kept", "before"), ("a", "1")],
        ),
        (
            "the last value of a level counts",
            &[|env| env.set("a", "1"), |env| env.set("a", "2")],
            &[("kept", "before"), ("a", "2")],
        ),
        (
            "an inner level replaces the value of the outer one",
            &[
                |env| env.set("a", "1"),
                EnvCommands::push_level,
                |env| env.set("a", "2"),
            ],
            &[("kept", "before"), ("a", "2")],
        ),
        (
            "an inner level unsets a variable of the outer one",
            &[
                |env| env.set("a", "1"),
                EnvCommands::push_level,
                |env| env.unset("a"),
            ],
            &[("kept", "before")],
        ),
        (
            "a level unsets before it sets, in any order of its commands",
            &[|env| env.set("a", "1"), |env| env.unset("a")],
            &[("kept", "before"), ("a", "1")],
        ),
        (
            "an outer level does not unset a variable that an inner level sets",
            &[
                |env| env.unset("a"),
                EnvCommands::push_level,
                |env| env.set("a", "3"),
            ],
            &[("kept", "before"), ("a", "3")],
        ),
        (
            "a level unsets a variable that was set before",
            &[|env| env.unset("kept")],
            &[],
        ),
        (
            "a level unsets a variable that was never set",
            &[|env| env.unset("other")],
            &[("kept", "before")],
        ),
    ];
    for (what, acts, want) in cases {
        let (_worker, exchange) = asked();
        let mut exchange = exchange.borrow_mut();
        exchange.set_env(&"kept".into(), &(*b"before").into());
        let mut env = EnvCommands::default();
        env.push_level();
        assert!(env.is_empty(), "a level without commands does not count");
        acts.iter().for_each(|act| act(&mut env));
        assert_eq!(env.is_empty(), acts.is_empty(), "{what}");
        env.apply(&mut exchange);
        let got: Vec<(&str, &str)> = exchange
            .env
            .iter()
            .map(|(name, value)| {
                (
                    &**name,
                    std::str::from_utf8(value).expect("the value is UTF-8"),
                )
            })
            .collect();
        assert_eq!(got, *want, "{what}");
        for (name, value) in *want {
            assert_eq!(exchange.env(name), Some(value.as_bytes()), "{what}");
        }
    }
}

/// The text of a response in memory.
fn text(response: &Response) -> &str {
    match &response.body {
        h2o_exchange::Body::Bytes(bytes) => std::str::from_utf8(bytes).expect("the body is UTF-8"),
        _ => panic!("the body is not in memory"),
    }
}

#[test]
fn responses_say_how_long_they_are_and_what_they_are() {
    let error = Response::error(StatusCode::FORBIDDEN, "Forbidden", "no entry");
    assert_eq!(
        (error.status, error.reason(), error.length),
        (StatusCode::FORBIDDEN, "Forbidden", Some(8))
    );
    assert_eq!(
        error.headers.get(Known::ContentType),
        Some(&b"text/plain; charset=utf-8"[..])
    );
    assert!(error.is_plain_error && !error.closes && !error.is_refusal && !error.is_undated);
    assert_eq!(
        (text(&error), error.links),
        ("no entry", LinkHeaderUse::Plain)
    );

    let missing = Response::not_found();
    assert_eq!(
        (missing.status.as_u16(), missing.reason(), text(&missing)),
        (404, "File Not Found", "not found")
    );

    let plain = Response::new(StatusCode::OK, Headers::new(), h2o_exchange::Body::Empty);
    assert_eq!(
        (plain.reason(), plain.length, plain.is_plain_error),
        ("OK", Some(0), false)
    );
    let streamed = h2o_exchange::Body::Stream(h2o_exchange::Body::Empty.into_source());
    let streamed = Response::new(StatusCode::OK, Headers::new(), streamed);
    assert_eq!(
        streamed.length, None,
        "the length of a stream is unknown before it is read"
    );
}

#[test]
fn the_page_of_a_redirect_cannot_be_broken_out_of() {
    const START: &str = "<!DOCTYPE html><TITLE>Moved</TITLE><P>The document has moved <A HREF=\"";
    const END: &str = "\">here</A>";
    let cases: &[(&str, &str)] = &[
        ("https://a.example/x?y=z", "https://a.example/x?y=z"),
        ("/a?b&c", "/a?b&amp;c"),
        ("/\"><script>", "/&quot;&gt;&lt;script&gt;"),
        ("/it's", "/it&#39;s"),
        ("", ""),
    ];
    for (url, in_page) in cases {
        let response = Response::redirect(
            Headers::new(),
            StatusCode::new(301).expect("the number is a valid status code"),
            "Moved",
            url.as_bytes(),
        );
        assert_eq!(text(&response), format!("{START}{in_page}{END}"), "{url}");
        assert_eq!(
            response.headers.get(Known::Location),
            Some(url.as_bytes()),
            "{url}: the location is the URL unchanged"
        );
        assert_eq!(
            response.length,
            Some((START.len() + in_page.len() + END.len()) as u64)
        );
        assert_eq!(response.reason(), "Moved");
    }
}

#[test]
fn a_reroute_takes_the_request_along_unless_it_says_otherwise() {
    let reroute = Reroute::to(b"/elsewhere".to_vec(), Method::Get);
    assert_eq!(
        (reroute.kind, reroute.fields, reroute.named_by),
        (
            RerouteKind::Delegation,
            RerouteFields::All,
            NamedBy::Configuration
        )
    );
    assert!(reroute.keep_body && reroute.successor.is_none() && reroute.restore.is_none());
    let unresolved = (reroute.unresolved)();
    assert_eq!(
        (unresolved.status, text(&unresolved)),
        (StatusCode::BAD_GATEWAY, "internal error")
    );
}

#[test]
fn a_worker_keeps_account_of_its_exchanges_whatever_their_order() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let worker = worker();
        let (site, connection) = (site(RerouteLimits::default()), connection(&worker));
        let mut busy: Vec<(u64, ExchangeRef)> = Vec::new();
        let mut made = std::collections::BTreeSet::new();
        let mut most = 0;
        for number in 1..200 {
            match random.u8(..5) {
                0..=2 => {
                    let exchange = worker.exchange(&site, &connection);
                    assert_eq!(
                        traces(&exchange.borrow()),
                        Vec::<&str>::new(),
                        "seed {seed}"
                    );
                    let address = exchange.as_ptr().addr();
                    let is_in_use = busy.iter().any(|(_, other)| Rc::ptr_eq(other, &exchange));
                    assert!(
                        !is_in_use,
                        "seed {seed}: two requests have the same exchange"
                    );
                    made.insert(address);
                    exchange.borrow_mut().protocol = Protocol::Http1 { index: number };
                    busy.push((number, exchange));
                }
                3 if !busy.is_empty() => {
                    let (_, exchange) = busy.swap_remove(random.usize(..busy.len()));
                    fill(&mut exchange.borrow_mut());
                    worker.release(exchange);
                }
                _ => {
                    // A connection takes an exchange for a request head that never arrives.
                    let spare = worker.spare_exchange();
                    made.insert(spare.as_ptr().addr());
                    most = most.max(busy.len() + 1);
                    worker.put_back(spare);
                }
            }
            most = most.max(busy.len());
            let mut live = Vec::new();
            worker.each_live(|exchange| live.push(exchange.protocol.request_id()));
            live.sort_unstable();
            let mut want: Vec<u64> = busy.iter().map(|(number, _)| *number).collect();
            want.sort_unstable();
            assert_eq!(live, want, "seed {seed}");
            for (number, exchange) in &busy {
                let found = exchange
                    .borrow()
                    .reference()
                    .expect("the exchange belongs to a worker");
                assert_eq!(found.borrow().protocol.request_id(), *number, "seed {seed}");
            }
        }
        assert_eq!(
            made.len(),
            most,
            "seed {seed}: the worker made as many exchanges as were used at the same time"
        );
    }
}
