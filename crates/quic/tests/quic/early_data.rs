//! Resumption and early data over QUIC, with the session store of a listener's TLS acceptor.

use std::sync::Arc;

use h2o_quic::{Event, Read, Received, ServerRole, TransportSettings};
use h2o_tls::{Resumption, ResumptionSettings, TlsAcceptor, TlsSettings};
use quinn_proto::Dir;

use crate::kit::{Pair, endpoint_config, to_server};

/// TLS settings with a certificate of their own.
fn settings() -> Arc<TlsSettings> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])
        .expect("a certificate can be made");
    let files = tempfile::tempdir().expect("a temporary directory can be made");
    let path = |name: &str| files.path().join(name).display().to_string();
    std::fs::write(path("crt"), made.cert.pem())
        .expect("the test can write into its temporary directory");
    std::fs::write(path("key"), made.signing_key.serialize_pem())
        .expect("the test can write into its temporary directory");
    let mapping = format!(
        "certificate-file: {}\nkey-file: {}\n",
        path("crt"),
        path("key")
    );
    let node = h2o_config::load("f", &h2o_config::Memory::new().file("f", mapping.as_str()));
    let settings = h2o_tls::parse(
        &node.expect("the mapping is valid YAML"),
        None,
        &mut Vec::new(),
    );
    Arc::new(settings.expect("the settings are valid"))
}

/// A server role with the TLS of a listener. `transport` has the limits that clients remember, and `terms` names them.
fn role(
    settings: &Arc<TlsSettings>,
    resumption: &Arc<Resumption>,
    transport: TransportSettings,
    terms: &[u8],
) -> ServerRole {
    let acceptor = TlsAcceptor::for_quic(
        &[Arc::clone(settings)],
        Vec::new(),
        Arc::clone(resumption),
        &[b"h3"],
        terms,
    );
    let acceptor = acceptor.expect("the acceptor accepts the certificate");
    ServerRole::new(Arc::new(acceptor), transport)
}

/// A server with the TLS of a listener, and `quinn-proto`'s client.
fn pair() -> Pair {
    let resumption = Resumption::new(&ResumptionSettings::default());
    let transport = TransportSettings::default();
    let mut config = endpoint_config();
    config.server = Some(role(&settings(), &resumption, transport, b""));
    Pair::with(config)
}

#[test]
fn early_data_is_refused_if_the_limits_that_the_client_remembers_have_changed() {
    let (settings, resumption) = (settings(), Resumption::new(&ResumptionSettings::default()));
    let role = |streams: u64| {
        let transport = TransportSettings {
            max_streams_bidi: streams,
            ..TransportSettings::default()
        };
        role(&settings, &resumption, transport, &streams.to_be_bytes())
    };
    let mut config = endpoint_config();
    config.server = Some(role(20));
    let mut pair = Pair::with(config);
    pair.connect();
    pair.run(|_, _| {});
    for (streams, is_accepted) in [(20, true), (10, false), (10, true)] {
        pair.endpoint.set_server(role(streams));
        pair.connect();
        let mut opened = 0;
        while let Some(id) = pair.client().streams().open(Dir::Bi) {
            pair.client_write(id, b"early", true);
            opened += 1;
        }
        assert!(opened >= streams, "the client remembers its limit");
        let mut early = 0;
        pair.run(|pair, event| {
            if let Event::StreamOpened(_) = event {
                early += u64::from(pair.server().is_handshaking());
            }
        });
        assert_eq!(pair.client().accepted_0rtt(), is_accepted, "{streams}");
        assert_eq!(pair.client_lost, "", "{streams}");
        assert_eq!(early, if is_accepted { opened } else { 0 }, "{streams}");
    }
}

#[test]
fn a_client_that_comes_again_resumes_its_session_and_sends_early_data() {
    let mut pair = pair();
    pair.connect();
    pair.run(|_, _| {});
    let handshake = pair
        .server()
        .handshake()
        .expect("the handshake is complete");
    assert!(!handshake.tls.resumed);
    assert_eq!(handshake.tls.protocol, "TLSv1.3");
    pair.seen.clear();

    pair.connect();
    let id = pair
        .client()
        .streams()
        .open(Dir::Bi)
        .expect("the session has the server's stream limits");
    pair.client_write(id, b"early", true);
    let first = pair.on_the_way();
    let mut early = Vec::new();
    pair.run(|pair, event| {
        if let Event::StreamOpened(stream) = event {
            assert!(
                pair.server().is_handshaking(),
                "the handshake is complete before early data is read"
            );
            while let Read::Data(data) | Read::Last(data) = pair.server().read(stream, usize::MAX) {
                early.extend_from_slice(&data);
            }
        }
    });
    assert_eq!(early, b"early");
    assert!(pair.client().accepted_0rtt());
    assert!(
        pair.server()
            .handshake()
            .expect("the handshake is complete")
            .tls
            .resumed
    );
    let place = |wanted: fn(&Event) -> bool| pair.seen.iter().position(wanted);
    let opened = place(|event| matches!(event, Event::StreamOpened(_)));
    assert!(
        opened < place(|event| *event == Event::Connected),
        "{:?}",
        pair.seen
    );

    // The client's datagrams of the resumed connection are sent a second time: their session ticket has been used.
    let mut replayed = None;
    for data in first {
        let datagram = to_server(&data);
        if let Received::Accepted(index) =
            pair.endpoint.receive(pair.now, datagram, &mut Vec::new())
        {
            replayed = Some(index);
        }
    }
    // If the copies did not begin a new connection, the server took them for packets of the resumed connection, by their
    // connection id.
    if let Some(index) = replayed {
        while let Some(event) = pair.endpoint.poll_event(index) {
            assert!(
                !matches!(event, Event::StreamOpened(_)),
                "the server has read replayed early data"
            );
        }
    }
}

#[test]
fn early_data_may_use_as_many_streams_as_the_earlier_connection_announced() {
    let mut pair = pair();
    pair.connect();
    pair.run(|_, _| {});
    pair.connect();
    let mut opened = 0;
    while let Some(id) = pair.client().streams().open(Dir::Bi) {
        pair.client_write(id, b"early", true);
        opened += 1;
    }
    assert_eq!(opened, 100);
    let mut early = 0;
    pair.run(|pair, event| {
        if let Event::StreamOpened(stream) = event {
            early += usize::from(pair.server().is_handshaking());
            assert!(matches!(pair.server().read(stream, 9), Read::Last(data) if data == "early"));
        }
    });
    assert!(pair.client().accepted_0rtt());
    assert_eq!((early, pair.client_lost.as_str()), (opened, ""));
}

#[test]
fn early_data_that_is_replayed_to_another_process_is_not_read() {
    let mut pair = pair();
    pair.connect();
    pair.run(|_, _| {});
    pair.connect();
    let id = pair
        .client()
        .streams()
        .open(Dir::Bi)
        .expect("the session has the server's stream limits");
    pair.client_write(id, b"early", true);
    // The server is replaced by one that does not know the session.
    pair.endpoint = h2o_quic::Endpoint::new(endpoint_config());
    pair.index = None;
    pair.seen.clear();
    let mut is_early = false;
    pair.run(|pair, event| {
        if let Event::StreamOpened(_) = event {
            is_early |= pair.server().is_handshaking();
        }
    });
    assert!(pair.seen.contains(&Event::Connected));
    assert!(!is_early);
    assert!(!pair.client().accepted_0rtt());
}
