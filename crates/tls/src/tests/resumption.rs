//! Session resumption: tickets, identifiers, early data, and sessions that must not be resumed.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use h2o_config::{Directive, Level, Memory, Registry};
use h2o_exchange::{Features, Scope};
use rustls::client::Tls12Resumption::{self, SessionIdOnly, SessionIdOrTickets};
use rustls::client::{
    ClientSessionStore, TicketRequest, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::pki_types::ServerName;
use rustls::server::StoresServerSessions;
use rustls::{ClientConfig, NamedGroup};

use super::files::Files;
use super::kit::{Offer, Pair, TLS12, TLS13, Talk, acceptor_with, listener, settings};
use crate::OutputBuffer;
use crate::resumption::{CacheUse, HostSessions, TicketUse};
use crate::server::configs::{Carrier, binding};
use crate::{DIRECTIVES, Resumption, ResumptionSettings, TlsAcceptor};

/// Parses an `ssl-session-resumption` mapping.
fn parse(mapping: &str) -> Result<ResumptionSettings, String> {
    let directives: &'static [Directive<Scope>] = DIRECTIVES;
    let features = Arc::new(Features {
        guards: Vec::new(),
        sweeps: Vec::new(),
        registry: Registry::new(&[directives]),
        filters: Vec::new(),
    });
    let text = format!("ssl-session-resumption: {mapping}\n");
    let node = h2o_config::load("f", &Memory::new().file("f", text.as_str()))
        .map_err(|error| error.to_string())?;
    let mut scope = Scope::new(Arc::clone(&features));
    features
        .registry
        .run(Level::Global, &node, &mut scope)
        .map_err(|error| error.to_string())?;
    Ok(ResumptionSettings::clone(&scope.settings.get()))
}

fn resumption(mapping: &str) -> Arc<Resumption> {
    Resumption::new(&parse(mapping).unwrap())
}

/// Whether the second of two connections resumes the session of the first.
fn resumes(acceptor: &Arc<TlsAcceptor>, offer: &Offer) -> bool {
    let config = offer.config();
    let mut resumed = Vec::new();
    for _ in 0..2 {
        let mut talk = Talk::with_config(acceptor, Arc::clone(&config), "a.test");
        talk.run().unwrap();
        talk.client_says(b"x");
        assert_eq!(talk.received, b"x");
        talk.server_says(b"y");
        assert_eq!(talk.heard(), b"y");
        resumed.push(talk.server.info().resumed);
    }
    assert!(!resumed[0]);
    resumed[1]
}

#[test]
fn each_mode_resumes_what_it_says() {
    let cases = [
        // For each mode: whether TLS 1.2 resumes by session identifier, whether TLS 1.2 resumes by ticket, and whether TLS 1.3
        // resumes.
        ("off", false, false, false),
        ("cache", true, true, false),
        ("ticket", false, true, true),
        ("all", true, true, true),
    ];
    for (mode, by_id, by_ticket, tls13) in cases {
        let resumption = resumption(&format!("{{mode: {mode}}}"));
        let acceptor = acceptor_with(settings("a.test"), &resumption);
        let offer = |tls12: Tls12Resumption| Offer::resuming(TLS12, tls12);
        assert_eq!(resumes(&acceptor, &offer(SessionIdOnly)), by_id, "{mode}");
        assert_eq!(
            resumes(&acceptor, &offer(SessionIdOrTickets)),
            by_ticket,
            "{mode}"
        );
        let offer = Offer::resuming(TLS13, SessionIdOnly);
        assert_eq!(resumes(&acceptor, &offer), tls13, "{mode}");
    }
}

#[test]
fn sessions_end_with_the_certificate() {
    let resumption = resumption("{mode: all}");
    let (one, other) = (settings("a.test"), settings("a.test"));
    for offer in [
        Offer::resuming(TLS13, SessionIdOnly),
        Offer::resuming(TLS12, SessionIdOnly),
        Offer::resuming(TLS12, SessionIdOrTickets),
    ] {
        let config = offer.config();
        for (settings, want) in [(&one, false), (&one, true), (&other, false), (&one, false)] {
            let acceptor = acceptor_with(settings.clone(), &resumption);
            let mut talk = Talk::with_config(&acceptor, Arc::clone(&config), "a.test");
            talk.run().unwrap();
            assert_eq!(talk.server.info().resumed, want);
        }
    }
}

#[test]
fn sessions_end_with_what_clients_must_prove() {
    let resumption = resumption("{mode: all}");
    let files = Files::new();
    let pair = files.pair("a", &Pair::new("a.test"));
    let authority = super::files::Authority::new();
    let ca = files.write("ca.pem", &authority.pem());
    let open = files.settings(&pair);
    let closed = files.settings(&format!("{pair}client-ca-file: {ca}\n"));
    for versions in [TLS12, TLS13] {
        let offer = Offer::resuming(versions, SessionIdOrTickets);
        let config = offer.config();
        let mut talk = Talk::with_config(
            &acceptor_with(open.clone(), &resumption),
            Arc::clone(&config),
            "a.test",
        );
        talk.run().unwrap();
        // The client has a session of the `ssl` mapping without `client-ca-file`, and no certificate, so it is refused.
        let mut talk = Talk::with_config(
            &acceptor_with(closed.clone(), &resumption),
            config,
            "a.test",
        );
        assert!(talk.run().is_err());
        // Sessions of clients with a certificate are resumed.
        let offer = Offer {
            identity: Some(Arc::new(authority.issue("client.test"))),
            ..Offer::resuming(versions, SessionIdOrTickets)
        };
        assert!(resumes(&acceptor_with(closed.clone(), &resumption), &offer));
    }
}

#[test]
fn sessions_of_two_certificates_are_not_those_of_one_with_a_client_authority() {
    let files = Files::new();
    let (one, other) = (Pair::new("a.test"), Pair::new("b.test"));
    let attributes = |name: &str, pair: &Pair| {
        let lines = files.pair(name, pair);
        let lines = lines.lines().collect::<Vec<_>>().join(", ");
        format!("{{ {lines} }}")
    };
    let two = files.settings(&format!(
        "identity: [ {}, {} ]\n",
        attributes("one", &one),
        attributes("other", &other)
    ));
    let ca = files.write("ca.crt", &other.certificate.pem());
    let pair = files.pair("one", &one);
    let one_with_ca = files.settings(&format!("{pair}client-ca-file: {ca}\n"));
    let alone = files.settings(&pair);
    let bindings = [two, one_with_ca, alone].map(|settings| binding(&settings, Carrier::Records));
    assert_ne!(bindings[0], bindings[1]);
    assert_ne!(bindings[0], bindings[2]);
    assert_ne!(bindings[1], bindings[2]);
}

#[test]
fn entries_of_a_listener_share_keys_but_not_sessions() {
    let entries = [settings("a.test"), settings("b.test")];
    let resumption = resumption("{mode: all}");
    let acceptor = listener(
        &[
            (&["a.test"], entries[0].clone()),
            (&["b.test"], entries[1].clone()),
        ],
        &resumption,
    );
    let config = Offer::resuming(TLS13, SessionIdOnly).config();
    for (name, want) in [
        ("a.test", false),
        ("b.test", false),
        ("a.test", true),
        ("b.test", true),
    ] {
        let mut talk = Talk::with_config(&acceptor, Arc::clone(&config), name);
        talk.run().unwrap();
        assert_eq!(talk.server.info().resumed, want, "{name}");
    }
}

#[test]
fn early_data_is_marked_and_answered_before_the_handshake_ends() {
    let acceptor = acceptor_with(settings("a.test"), &resumption("{mode: all}"));
    let offer = Offer {
        early_data: true,
        ..Offer::resuming(TLS13, SessionIdOnly)
    };
    let config = offer.config();
    Talk::with_config(&acceptor, Arc::clone(&config), "a.test")
        .run()
        .unwrap();

    let mut talk = Talk::with_config(&acceptor, Arc::clone(&config), "a.test");
    let text = vec![7; 8192];
    talk.client.early_data().unwrap().write_all(&text).unwrap();
    let flight = talk.client_flight();
    talk.give_server(&flight).unwrap();
    assert!(talk.progress.handshaking && talk.progress.early);
    assert_eq!(talk.received, text);
    let info = talk.server.info();
    assert_eq!((info.protocol, info.alpn), ("TLSv1.3", Some("http/1.1")));
    assert!(info.resumed && info.server_name.as_deref() == Some("a.test"));
    // The response arrives after one round trip.
    let wire = talk.server_says(&[8; 3000]);
    let lens: Vec<usize> = super::kit::records(&wire)
        .iter()
        .map(|record| record.len())
        .collect();
    assert_eq!(lens, [1400, 1400, 3000 - 2 * 1378 + 22]);
    assert_eq!(talk.heard(), [8; 3000]);
    assert!(talk.client.is_early_data_accepted());
    talk.run().unwrap();
    assert!(!talk.progress.handshaking && !talk.progress.early);
    assert!(talk.progress.handshake_done_now);
    assert!(talk.server.info().resumed);
    talk.client_says(b"late");
    assert_eq!(&talk.received[8192..], b"late");
    talk.server_says(b"end");
    assert_eq!(talk.heard(), b"end");
}

#[test]
fn the_answer_to_early_data_may_be_all_there_is_to_say() {
    let acceptor = acceptor_with(settings("a.test"), &resumption("{mode: all}"));
    let offer = Offer {
        early_data: true,
        ..Offer::resuming(TLS13, SessionIdOnly)
    };
    let config = offer.config();
    Talk::with_config(&acceptor, Arc::clone(&config), "a.test")
        .run()
        .unwrap();
    let mut talk = Talk::with_config(&acceptor, config, "a.test");
    talk.client.early_data().unwrap().write_all(b"x").unwrap();
    let flight = talk.client_flight();
    talk.give_server(&flight).unwrap();
    talk.server_says(b"y");
    let mut alert = OutputBuffer::default();
    talk.server.close_notify(&mut alert);
    assert!(!alert.is_empty());
    talk.give_client(&alert);
    assert_eq!(talk.heard(), b"y");
    // The client has received close_notify.
    assert_eq!(talk.client.reader().read(&mut [0]).unwrap(), 0);
    assert!(talk.server.encrypt(b"z", &mut alert).is_err());
}

#[test]
fn early_data_and_the_end_of_the_handshake_in_one_read_need_no_mark() {
    let acceptor = acceptor_with(settings("a.test"), &resumption("{mode: all}"));
    let offer = Offer {
        early_data: true,
        ..Offer::resuming(TLS13, SessionIdOnly)
    };
    let config = offer.config();
    Talk::with_config(&acceptor, Arc::clone(&config), "a.test")
        .run()
        .unwrap();
    let mut talk = Talk::with_config(&acceptor, config, "a.test");
    talk.client
        .early_data()
        .unwrap()
        .write_all(b"early")
        .unwrap();
    let flight = talk.client_flight();
    // The server gets the ClientHello alone, and then the rest of the early data together with the client's Finished.
    let hello = super::kit::records(&flight)[0].len();
    talk.give_server(&flight[..hello]).unwrap();
    assert!(!talk.progress.early);
    let mut rest = flight[hello..].to_vec();
    rest.extend(talk.client_flight());
    talk.give_server(&rest).unwrap();
    assert!(talk.progress.handshake_done_now && !talk.progress.early);
    assert_eq!(talk.received, b"early");
}

#[test]
fn replayed_early_data_is_not_taken() {
    let acceptor = acceptor_with(settings("a.test"), &resumption("{mode: all}"));
    let offer = Offer {
        early_data: true,
        ..Offer::resuming(TLS13, SessionIdOnly)
    };
    let config = offer.config();
    Talk::with_config(&acceptor, Arc::clone(&config), "a.test")
        .run()
        .unwrap();
    let mut talk = Talk::with_config(&acceptor, config, "a.test");
    talk.client.early_data().unwrap().write_all(b"buy").unwrap();
    let flight = talk.client_flight();
    for want in [&b"buy"[..], b"", b""] {
        let mut server = acceptor.accept();
        let (mut plain, mut out) = (Vec::new(), OutputBuffer::default());
        let progress = server
            .receive(&mut flight.clone(), &mut plain, &mut out)
            .unwrap();
        assert_eq!(plain, want);
        assert_eq!(progress.early, !want.is_empty());
    }
    // When a ticket with early data is used again, neither the early data nor the session is taken. The handshake completes all
    // the same.
    talk.give_server(&flight).unwrap();
    talk.run().unwrap();
    assert!(!talk.client.is_early_data_accepted());
    talk.client_says(b"buy again");
    assert_eq!(talk.received, b"buy again");
}

#[test]
fn too_much_early_data_ends_the_connection() {
    let acceptor = acceptor_with(settings("a.test"), &resumption("{mode: all}"));
    let offer = Offer {
        early_data: true,
        ..Offer::resuming(TLS13, SessionIdOnly)
    };
    let config = offer.config();
    Talk::with_config(&acceptor, Arc::clone(&config), "a.test")
        .run()
        .unwrap();
    let mut talk = Talk::with_config(&acceptor, config, "a.test");
    let mut early = talk.client.early_data().unwrap();
    assert_eq!(early.bytes_left(), 8192);
    early.write_all(&[1; 8192]).unwrap();
    let flight = talk.client_flight();
    let last = *super::kit::records(&flight).last().unwrap();
    talk.give_server(&flight).unwrap();
    // The client sends one record more of early data than the ticket allows. It does not authenticate either.
    assert!(talk.give_server(last).is_err());
}

#[test]
fn keys_in_a_file_are_shared_between_processes() {
    let files = Files::new();
    let path = files.write("tickets", &key_file(&[(1, 0, u64::MAX / 4)]));
    let mapping = format!("{{mode: ticket, ticket-store: file, ticket-file: {path}}}");
    let settings = settings("a.test");
    for versions in [TLS12, TLS13] {
        let config = Offer::resuming(versions, SessionIdOrTickets).config();
        for want in [false, true, true] {
            // Each of these acceptors stands for a process of its own.
            let acceptor = acceptor_with(settings.clone(), &resumption(&mapping));
            let mut talk = Talk::with_config(&acceptor, Arc::clone(&config), "a.test");
            talk.run().unwrap();
            assert_eq!(talk.server.info().resumed, want);
        }
    }
    // Without a usable key, clients get no tickets.
    for content in ["", "x: 1\n", &key_file(&[(1, 0, 1)])] {
        let path = files.write("bad", content);
        let mapping = format!("{{mode: ticket, ticket-store: file, ticket-file: {path}}}");
        let acceptor = acceptor_with(settings.clone(), &resumption(&mapping));
        for versions in [TLS12, TLS13] {
            assert!(!resumes(
                &acceptor,
                &Offer::resuming(versions, SessionIdOrTickets)
            ));
        }
    }
}

fn key_file(keys: &[(u8, u64, u64)]) -> String {
    keys.iter()
        .map(|(number, not_before, not_after)| {
            let byte = format!("{number:02x}");
            format!(
                "- name: {}\n  cipher: AES-256-CBC\n  hash: SHA256\n  key: {}\n  not_before: {not_before}\n  not_after: {not_after}\n",
                byte.repeat(16),
                byte.repeat(96),
            )
        })
        .collect()
}

#[test]
fn the_directive_is_checked() {
    let ok = |mapping: &str| parse(mapping).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(ok("{}"), ResumptionSettings::default());
    assert_eq!(
        ok(
            "{mode: ALL, lifetime: 3600, cache-store: internal, ticket-store: internal, ticket-cipher: AES-256-CBC, ticket-hash: SHA-256}"
        ),
        ResumptionSettings::default()
    );
    assert_ne!(ok("{mode: cache}"), ok("{mode: ticket}"));
    // The attributes of a method that is off are ignored.
    assert_eq!(
        ok("{mode: off, cache-store: memcached, ticket-store: redis, ticket-cipher: rot13}"),
        ok("{mode: off}")
    );
    assert_eq!(ok("{mode: cache, ticket-store: file}"), ok("{mode: cache}"));
    assert_eq!(
        ok(
            "{mode: ticket, cache-store: redis, cache-memcached-num-threads: 2, cache-memcached-prefix: x, cache-redis-prefix: y, ticket-memcached-key: k, ticket-redis-prefix: z, memcached: {host: h}, redis: {host: h}}"
        ),
        ok("{mode: ticket}")
    );
    for shared in [
        "{ticket-store: memcached, memcached: {host: h, port: 1, protocol: ascii}}",
        "{ticket-store: redis, redis: {host: h}, ticket-redis-prefix: fleet}",
    ] {
        assert!(ok(shared).shares_ticket_keys(), "{shared}");
    }
    assert_eq!(
        ok("{ticket-store: memcached, memcached: {host: h}}"),
        ok(
            "{ticket-store: memcached, ticket-memcached-prefix: 'h2o:ssl-session-key', memcached: {host: h, port: 11211, protocol: BINARY}}"
        )
    );
    assert_eq!(
        ok("{cache-store: memcached, memcached: {host: h}}"),
        ok(
            "{cache-store: memcached, cache-memcached-num-threads: 1, cache-memcached-prefix: 'h2o:ssl-session-cache:', memcached: {host: h, port: 11211, protocol: BINARY}}"
        )
    );
    let p = "[f:1] in command ssl-session-resumption, ";
    let cases = [
        (
            "{mode: some}",
            "argument must be one of: off,cache,ticket,all (column 32)",
        ),
        (
            "{lifetime: 0}",
            "`lifetime` must be a positive number (column 36)",
        ),
        (
            "{lifetime: 1h}",
            "`lifetime` must be a positive number (column 36)",
        ),
        (
            "{cache-store: memcached}",
            "configuration of memcached is missing (column 39; write `memcached: { host: HOST }`)",
        ),
        (
            "{cache-store: redis, memcached: {host: h}}",
            "configuration of redis is missing (column 39; write `redis: { host: HOST }`)",
        ),
        (
            "{cache-store: file}",
            "argument must be one of: internal,memcached,redis (column 39)",
        ),
        (
            "{cache-store: redis, cache-redis-prefix: '', redis: {host: h}}",
            "the key must have 1 to 207 characters of ASCII, without spaces (column 66)",
        ),
        (
            "{ticket-store: redis}",
            "configuration of redis is missing (column 40; write `redis: { host: HOST }`)",
        ),
        (
            "{ticket-store: memcached}",
            "configuration of memcached is missing (column 40; write `memcached: { host: HOST }`)",
        ),
        (
            "{ticket-store: memcached, ticket-memcached-prefix: a b, memcached: {host: h}}",
            "the key must have 1 to 250 characters of ASCII, without spaces (column 76)",
        ),
        (
            "{ticket-store: redis, redis: {port: 1}}",
            "cannot find mandatory attribute: host (column 54)",
        ),
        (
            "{ticket-store: file}",
            "mandatory attribute `file` is missing (column 40; write `ticket-file: FILE`)",
        ),
        (
            "{ticket-cipher: rot13}",
            "unknown cipher algorithm (column 41; `aes-128-cbc` or `aes-256-cbc`)",
        ),
        (
            "{ticket-hash: md5}",
            "unknown hash algorithm (column 39; `sha1`, `sha256`, `sha384` or `sha512`)",
        ),
        (
            "{ticket-memcached-key: a, ticket-memcached-prefix: b}",
            "duplicate key found (column 51; `ticket-memcached-prefix` is also on line 1)",
        ),
        (
            "{memcached: x}",
            "attribute `memcached` must be a mapping (column 37)",
        ),
    ];
    for (mapping, want) in cases {
        assert_eq!(parse(mapping), Err(format!("{p}{want}")), "{mapping}");
    }
}

/// A client's session store that counts tickets without storing them.
#[derive(Debug, Default)]
struct Counter(AtomicUsize);

impl ClientSessionStore for Counter {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, _: Tls13ClientSessionValue) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        None
    }
}

#[test]
fn a_client_gets_one_ticket_or_as_many_as_it_asks_for_and_we_allow() {
    // A client can ask for a number of tickets (RFC 9149).
    let request = |new_session_count| {
        Some(TicketRequest {
            new_session_count,
            resumption_count: 1,
        })
    };
    let cases = [
        ("all", None, 1),
        ("all", request(0), 0),
        ("all", request(3), 3),
        ("all", request(200), 4),
        ("cache", request(3), 0),
        ("off", request(3), 0),
    ];
    for (mode, send_ticket_request, want) in cases {
        let resumption = resumption(&format!("{{mode: {mode}}}"));
        let acceptor = acceptor_with(settings("a.test"), &resumption);
        let counter = Arc::new(Counter::default());
        let offer = Offer {
            resumption: rustls::client::Resumption::store(Arc::clone(&counter) as _),
            ..Offer::version(TLS13)
        };
        let mut config = ClientConfig::clone(&offer.config());
        config.send_ticket_request = send_ticket_request;
        let mut talk = Talk::with_config(&acceptor, Arc::new(config), "a.test");
        talk.run().unwrap();
        assert_eq!(counter.0.load(Ordering::Relaxed), want, "{mode}");
    }
}

#[test]
fn tickets_are_encrypted_ones_when_there_is_no_room_to_keep_more() {
    let resumption = resumption("{mode: all}");
    let acceptor = acceptor_with(settings("a.test"), &resumption);
    let binding = [0; 32];
    let ticket_use = || resumption.ticket_use(None, false, &binding);
    assert_eq!(ticket_use(), TicketUse::Kept);
    let sessions = HostSessions {
        resumption: Arc::clone(&resumption),
        binding,
        purpose: CacheUse::Tickets { once: false },
    };
    let mut number = 0u32;
    while ticket_use() == TicketUse::Kept {
        number += 1;
        assert!(number < 100_000);
        sessions.put(number.to_be_bytes().to_vec(), vec![0; 100]);
    }
    assert_eq!(ticket_use(), TicketUse::Encrypted);
    let offer = Offer {
        early_data: true,
        ..Offer::resuming(TLS13, SessionIdOnly)
    };
    let config = offer.config();
    for want in [false, true, true] {
        let mut talk = Talk::with_config(&acceptor, Arc::clone(&config), "a.test");
        assert!(talk.client.early_data().is_none());
        talk.run().unwrap();
        assert_eq!(talk.server.info().resumed, want);
    }
}
