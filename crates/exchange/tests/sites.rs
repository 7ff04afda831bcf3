//! Choice of host and path for a request, and which clients a host refuses.

use std::rc::Rc;
use std::sync::Arc;

use h2o_exchange::{
    Address, ConnectionInfo, Counters, Endpoint, Host, HostName, NoTransport, PathRoute, Route,
    Shared, Site, TlsInfo, Worker,
};
use h2o_http::Scheme;

fn name(name: &str, port: Option<u16>) -> HostName {
    HostName {
        name: name.into(),
        port,
    }
}

#[test]
fn hosts_match_by_name_and_port() {
    use Scheme::{Http, Https};
    // Each row: name and port of the configured host, host and port of the request, its scheme, and whether they match.
    type Case = (
        &'static str,
        Option<u16>,
        &'static str,
        Option<u16>,
        Scheme,
        bool,
    );
    let cases: &[Case] = &[
        ("a.example", None, "a.example", None, Http, true),
        ("a.example", None, "A.EXAMPLE", None, Http, true),
        ("A.Example", None, "a.example", None, Http, true),
        ("a.example", None, "b.example", None, Http, false),
        ("a.example", None, "xa.example", None, Http, false),
        ("a.example", None, "a.example.", None, Http, false),
        ("a.example", None, "", None, Http, false),
        // A missing port is the default of the scheme, both in the configuration and in the request.
        ("a.example", None, "a.example", Some(80), Http, true),
        ("a.example", None, "a.example", Some(443), Https, true),
        ("a.example", None, "a.example", Some(443), Http, false),
        ("a.example", None, "a.example", Some(8080), Http, false),
        ("a.example", Some(80), "a.example", None, Http, true),
        ("a.example", Some(80), "a.example", None, Https, false),
        (
            "a.example",
            Some(8080),
            "a.example",
            Some(8080),
            Https,
            true,
        ),
        ("a.example", Some(8080), "a.example", None, Http, false),
        // `*` alone matches everything; before a suffix it needs at least one character.
        ("*", None, "a.example", None, Http, true),
        ("*", None, "", None, Http, true),
        ("*", Some(81), "a.example", None, Http, false),
        ("*.example", None, "a.example", None, Http, true),
        ("*.example", None, "a.b.EXAMPLE", None, Http, true),
        ("*.example", None, ".example", None, Http, false),
        ("*.example", None, "example", None, Http, false),
        ("*.example", None, "a.examples", None, Http, false),
        ("*.example", Some(81), "a.example", Some(81), Http, true),
        ("*.example", Some(81), "a.example", Some(82), Http, false),
        ("[::1]", None, "[::1]", None, Http, true),
    ];
    for &(entry, entry_port, host, port, scheme, want) in cases {
        let got = name(entry, entry_port).matches(host.as_bytes(), port, scheme);
        assert_eq!(
            got, want,
            "{entry} {entry_port:?}, asked for {host} {port:?} by {scheme:?}"
        );
        if want {
            assert!(
                name(entry, entry_port).matches_name(host.as_bytes()),
                "{entry}, {host}"
            );
        }
    }
    assert_eq!(name("a.example", None).to_authority(), "a.example");
    assert_eq!(
        name("a.example", Some(8080)).to_authority(),
        "a.example:8080"
    );
}

fn host_of(paths: &[&str]) -> Host {
    let paths = paths.iter().map(|path| PathRoute {
        path: (*path).into(),
        ..PathRoute::default()
    });
    Host {
        paths: paths.collect(),
        ..Host::default()
    }
}

/// Whether a configured path matches the path of a request, according to the manual.
fn is_taken(key: &str, path: &str) -> bool {
    match path.strip_prefix(key) {
        Some(rest) => key.ends_with('/') || rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

#[test]
fn a_path_takes_what_is_below_it() {
    let parts = [
        "", "/", "/a", "/a/", "/a/b", "/ab", "/b", "/a/b/", "/a//", "/A", "/a/b/c",
    ];
    for key in parts {
        let route = PathRoute {
            path: key.into(),
            ..PathRoute::default()
        };
        for path in parts {
            assert_eq!(
                route.matches(path.as_bytes()),
                is_taken(key, path),
                "{key:?} and {path:?}"
            );
            if is_taken(key, path) {
                assert_eq!(
                    [key.as_bytes(), route.rest(path.as_bytes())].concat(),
                    path.as_bytes()
                );
            }
        }
        assert_eq!(
            route.rest(b""),
            b"",
            "a request path that is shorter than the key has an empty rest"
        );
    }
}

#[test]
fn the_first_path_that_matches_serves_and_else_the_last() {
    let site = Site {
        hosts: vec![
            host_of(&["/a/b", "/a", "/"]),
            host_of(&["/only"]),
            host_of(&["/x", ""]),
        ],
        ..Site::default()
    };
    let cases = [
        (0, "/a/b/c", "/a/b"),
        (0, "/a/bc", "/a"),
        (0, "/abc", "/"),
        (0, "*", "/"),
        (1, "/elsewhere", "/only"),
        (2, "/x/y", "/x"),
        (2, "", ""),
        (2, "/", ""),
    ];
    for (host, path, want) in cases {
        let route = site.select_path(host, path.as_bytes());
        assert_eq!(&*site.path(route).path, want, "host {host}, {path}");
        assert!(std::ptr::eq(
            site.host(route),
            &raw const site.hosts[host as usize]
        ));
    }
    let nowhere = site.path(Route::default());
    assert!(
        nowhere.handlers.is_empty(),
        "a request that was never routed has no handlers"
    );
    assert!(std::ptr::eq(
        site.host(Route::default()),
        &raw const site.nowhere
    ));
}

/// The address of the test's listener with this number.
fn endpoint(number: usize) -> Endpoint {
    Endpoint::Unix(format!("/run/{number}").into())
}

/// A connection to a listener; the client has presented a certificate of the given authority.
fn connection(listener: usize, shown: Option<&str>) -> ConnectionInfo {
    let worker = Worker::new(
        0,
        Arc::new(Counters::default()),
        Arc::new(Shared::default()),
    );
    ConnectionInfo {
        id: 1,
        peer: Address::Unix,
        accepted: worker.clock.now(),
        tls: Some(Box::new(TlsInfo {
            client_authority: shown.map(Into::into),
            session_id: None,
            ..TlsInfo::default()
        })),
        transport: Rc::new(NoTransport),
        listener: Rc::new(endpoint(listener)),
    }
}

#[test]
fn a_host_is_closed_to_clients_without_the_certificate_that_it_wants() {
    let wants = |authorities: &[(usize, Option<&str>)]| Host {
        client_authorities: authorities
            .iter()
            .map(|&(listener, name)| (endpoint(listener), name.map(Into::into)))
            .collect(),
        ..Host::default()
    };
    // Each row: the client certificate authorities that the host requires by listener, the listener of the connection,
    // the authority of the client's certificate, and whether the request is refused.
    type Case = (
        &'static [(usize, Option<&'static str>)],
        usize,
        Option<&'static str>,
        bool,
    );
    let cases: &[Case] = &[
        (&[], 0, None, false),
        (&[(0, Some("A"))], 0, Some("A"), false),
        (&[(0, Some("A"))], 0, None, true),
        (&[(0, Some("A"))], 0, Some("B"), true),
        // Each listener has its own requirement of client certificates.
        (&[(0, Some("A")), (1, None)], 1, None, false),
        (&[(0, Some("A")), (1, None)], 0, None, true),
        (&[(0, Some("A")), (1, Some("B"))], 1, Some("A"), true),
        (&[(0, Some("A")), (1, Some("B"))], 1, Some("B"), false),
        // A request on a listener that does not serve the host is refused only if all listeners of the host require a
        // certificate.
        (&[(0, Some("A"))], 7, None, true),
        (&[(0, Some("A"))], 7, Some("A"), false),
        (&[(0, Some("A")), (1, None)], 7, None, false),
        (&[(0, Some("A")), (1, Some("B"))], 7, Some("B"), false),
        (&[(0, Some("A")), (1, Some("B"))], 7, Some("C"), true),
    ];
    for &(authorities, listener, shown, want) in cases {
        let is_closed = wants(authorities).is_closed_to(&connection(listener, shown));
        assert_eq!(
            is_closed, want,
            "{authorities:?}: listener {listener}, shown {shown:?}"
        );
    }
    // A client of a clear-text connection cannot present a certificate.
    let mut clear = connection(0, None);
    clear.tls = None;
    assert!(wants(&[(0, Some("A"))]).is_closed_to(&clear));
    assert!(!wants(&[(0, None)]).is_closed_to(&clear));
}
