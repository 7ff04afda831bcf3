use super::*;
use crate::testing::{Setup, request};

const SETUP: Setup = Setup::new(DIRECTIVES, None);

/// The client of a request from `peer` with these fields, and the addresses that remain in the request's fields.
fn client(setting: &str, peer: &str, fields: &[(Known, &str)]) -> String {
    let text = format!("trusted-proxies: {setting}");
    let site = SETUP.read([&text, "", ""]);
    let site = site.unwrap_or_else(|error| panic!("{error}"));
    let trusted = TrustedProxies::of(&site).expect("the site has trusted proxies");
    let mut exchange = request(site, "GET", "default", "/");
    let connection = std::rc::Rc::get_mut(&mut exchange.connection)
        .expect("the exchange is the only owner of its connection");
    if peer != "unix" {
        connection.peer = Address::Ip(SocketAddr::new(peer.parse().unwrap(), 4000));
    }
    for (name, value) in fields {
        exchange.request.headers.push(*name, value.as_bytes());
    }
    trusted.settle(&mut exchange);
    let told = exchange.request.headers.get(Known::XForwardedFor);
    assert_eq!(exchange.request.headers.get(Known::Forwarded), None);
    match exchange.client {
        ClientOrigin::Proxy {
            client: Some(client),
        } => {
            assert_eq!(exchange.client_address(), Address::Ip(client));
            format!(
                "{client} {}",
                told.expect("the backend gets a field with the client's address")
                    .escape_ascii()
            )
        }
        other => {
            assert_eq!(exchange.client_address(), exchange.connection.peer);
            assert_eq!(told, None);
            match other {
                ClientOrigin::Proxy { .. } => "the proxy".to_owned(),
                ClientOrigin::Peer => "the peer".to_owned(),
            }
        }
    }
}

#[test]
fn the_client_is_the_right_most_address_that_is_not_a_trusted_proxy() {
    let networks = "[10.0.0.0/8, 192.0.2.1, '2001:db8::/32']";
    let cases: &[(&str, &[&str], &str)] = &[
        ("203.0.113.9", &["198.51.100.1"], "the peer"),
        ("unix", &["198.51.100.1"], "the peer"),
        ("11.0.0.1", &["198.51.100.1"], "the peer"),
        ("10.1.2.3", &[], "the proxy"),
        ("10.1.2.3", &["", " , "], "the proxy"),
        (
            "::ffff:10.1.2.3",
            &["198.51.100.1"],
            "198.51.100.1:0 198.51.100.1",
        ),
        ("10.1.2.3", &["198.51.100.1"], "198.51.100.1:0 198.51.100.1"),
        (
            "192.0.2.1",
            &["198.51.100.1:81"],
            "198.51.100.1:81 198.51.100.1",
        ),
        ("192.0.2.2", &["198.51.100.1"], "the peer"),
        // The text that the client has sent itself stands to the left of the proxies' addresses.
        (
            "10.0.0.1",
            &["127.0.0.1, 198.51.100.1"],
            "198.51.100.1:0 198.51.100.1",
        ),
        (
            "10.0.0.1",
            &["127.0.0.1", "198.51.100.1"],
            "198.51.100.1:0 198.51.100.1",
        ),
        (
            "10.0.0.1",
            &["10.0.0.9, 198.51.100.1"],
            "198.51.100.1:0 198.51.100.1",
        ),
        // Several trusted proxies forward the request one after another.
        (
            "10.0.0.1",
            &["127.0.0.1, 198.51.100.1", "10.0.0.3,10.0.0.2"],
            "198.51.100.1:0 198.51.100.1, 10.0.0.3, 10.0.0.2",
        ),
        (
            "10.0.0.1",
            &["10.0.0.3, 10.0.0.2"],
            "10.0.0.3:0 10.0.0.3, 10.0.0.2",
        ),
        (
            "2001:db8::7",
            &["2001:db9::1"],
            "[2001:db9::1]:0 2001:db9::1",
        ),
        (
            "10.0.0.1",
            &["[2001:db9::1]:443"],
            "[2001:db9::1]:443 2001:db9::1",
        ),
        (
            "10.0.0.1",
            &["[2001:db9::1]"],
            "[2001:db9::1]:0 2001:db9::1",
        ),
        (
            "10.0.0.1",
            &["8.8.8.8, ::ffff:10.0.0.2"],
            "8.8.8.8:0 8.8.8.8, 10.0.0.2",
        ),
        // If an address is hidden or missing, the last proxy that is known counts as the client.
        ("10.0.0.1", &["unknown"], "the proxy"),
        ("10.0.0.1", &["127.0.0.1, unknown"], "the proxy"),
        (
            "10.0.0.1",
            &["198.51.100.1, evil, 10.0.0.2"],
            "10.0.0.2:0 10.0.0.2",
        ),
        ("10.0.0.1", &["198.51.100.1 10.0.0.2"], "the proxy"),
        ("10.0.0.1", &["198.51.100.1:99999"], "the proxy"),
        ("10.0.0.1", &["[198.51.100.1]"], "the proxy"),
        ("10.0.0.1", &["\u{e9}"], "the proxy"),
    ];
    for (peer, values, want) in cases {
        let fields: Vec<_> = values.iter().map(|v| (Known::XForwardedFor, *v)).collect();
        assert_eq!(client(networks, peer, &fields), *want, "{peer} {values:?}");
    }
}

#[test]
fn forwarded_is_read_instead_if_it_is_configured() {
    let setting = "{ networks: [10.0.0.0/8], header: forwarded }";
    let cases: &[(&[&str], &str)] = &[
        (&["for=198.51.100.1"], "198.51.100.1:0 198.51.100.1"),
        (
            &["For=\"198.51.100.1:8080\";proto=https"],
            "198.51.100.1:8080 198.51.100.1",
        ),
        (
            &["proto=https;by=10.0.0.1; for = \"[2001:db9::1]\""],
            "[2001:db9::1]:0 2001:db9::1",
        ),
        (
            &["for=127.0.0.1, for=198.51.100.1"],
            "198.51.100.1:0 198.51.100.1",
        ),
        (
            &["for=127.0.0.1", "for=198.51.100.1,for=10.0.0.2"],
            "198.51.100.1:0 198.51.100.1, 10.0.0.2",
        ),
        // An open quote of a client cannot hide the address that a proxy has appended.
        (
            &["for=\"127.0.0.1, for=198.51.100.1"],
            "198.51.100.1:0 198.51.100.1",
        ),
        (
            &["x=\"\\\"", "for=198.51.100.1"],
            "198.51.100.1:0 198.51.100.1",
        ),
        (
            &["host=\"a,for=127.0.0.1\";for=198.51.100.1"],
            "198.51.100.1:0 198.51.100.1",
        ),
        (&["for=127.0.0.1;for=198.51.100.1"], "the proxy"),
        (&["for=_hidden"], "the proxy"),
        (&["for=unknown, for=10.0.0.2"], "10.0.0.2:0 10.0.0.2"),
        (&["by=10.0.0.2"], "the proxy"),
        (&["for=\"198.51.100.\\1\""], "the proxy"),
        (&["for=\""], "the proxy"),
        (&["for"], "the proxy"),
        (&[";=,"], "the proxy"),
    ];
    for (values, want) in cases {
        let mut fields: Vec<_> = values.iter().map(|v| (Known::Forwarded, *v)).collect();
        fields.push((Known::XForwardedFor, "192.0.2.99"));
        assert_eq!(client(setting, "10.0.0.1", &fields), *want, "{values:?}");
    }
}

#[test]
fn unix_sockets_are_trusted_if_they_are_named() {
    let fields = [(Known::XForwardedFor, "198.51.100.1")];
    let want = "198.51.100.1:0 198.51.100.1";
    assert_eq!(client("unix", "unix", &fields), want);
    assert_eq!(client("[unix]", "10.0.0.1", &fields), "the peer");
    assert_eq!(client("[]", "10.0.0.1", &fields), "the peer");
}

#[test]
fn networks_are_checked() {
    let refusal = |text: &str| match SETUP.read([text, "", ""]) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    };
    for text in [
        "10.0.0.0/33",
        "example.com",
        "'[::1]'",
        "10.0.0.0/255.0.0.0",
        "''",
    ] {
        let said = refusal(&format!("trusted-proxies: {text}"));
        assert!(said.contains("is not a network"), "{text}: {said}");
    }
    let said = refusal("trusted-proxies: { networks: [10.0.0.0/8], header: via }");
    assert!(
        said.contains("must be one of: x-forwarded-for,forwarded"),
        "{said}"
    );
    assert!(refusal("trusted-proxies: { header: forwarded }").contains("networks"));
}
