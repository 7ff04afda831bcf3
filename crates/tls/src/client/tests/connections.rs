//! Connections to backends: server names, application protocols, sessions, data, closing, and messages that a backend must not
//! send.

use super::*;

#[test]
fn names_are_sent_and_addresses_are_not() {
    let (own, key) = self_signed(|_| {});
    let server = Server::new(vec![own], &key);
    let client = careless(None);
    for (name, sent) in [
        (NAME, Some(NAME)),
        ("name.example.", Some(NAME)),
        ("192.0.2.1", None),
        ("2001:db8::1", None),
        ("[2001:db8::1]", None),
        ("[unix:/path]", None),
    ] {
        let met = server.meet(&client, name, KEY, &[]);
        assert!(met.is_ok(), "{name}: {:?}", met.err());
        let got = server.shown.server_name.lock().unwrap().clone();
        assert_eq!(got.as_deref(), sent, "{name}");
    }
}

#[test]
fn protocols_are_offered_by_alpn() {
    const BOTH: &[&[u8]] = &[b"h2", b"http/1.1"];
    let (own, key) = self_signed(|_| {});
    let client = careless(None);
    type Chosen = Result<Option<&'static [u8]>, &'static str>;
    type Case<'a> = (&'a [&'a str], &'a [&'a [u8]], Chosen);
    let cases: [Case<'_>; 6] = [
        (&["h2", "http/1.1"], BOTH, Ok(Some(b"h2"))),
        (&["http/1.1"], BOTH, Ok(Some(b"http/1.1"))),
        (&["h2", "http/1.1"], &[b"http/1.1"], Ok(Some(b"http/1.1"))),
        (&["h2"], &[], Ok(None)),
        (&[], BOTH, Ok(None)),
        (&["spdy/1"], BOTH, Err(HANDSHAKE_FAILURE)),
    ];
    for (served, offered, want) in cases {
        let server = Server::with(vec![own.clone()], &key, &VERSIONS, served);
        let met = server.meet(&client, NAME, KEY, offered);
        let met = met.as_ref().map(ClientConnection::alpn);
        assert_eq!(met.map_err(|text| *text), want);
    }
}

#[test]
fn sessions_are_resumed_by_host_and_port() {
    let (own, key) = self_signed(|_| {});
    for version in VERSIONS {
        let server = Server::with(vec![own.clone()], &key, &[version], &[]);
        let day = Duration::from_secs(86400);
        let resumes = |client: &TlsClient, key: &str| {
            let met = server.meet(client, NAME, key, &[]).unwrap();
            met.info().resumed
        };
        let client = careless(Some((day, 4096)));
        for (key, want) in [
            (KEY, false),
            (KEY, true),
            ("name.example:444", false),
            ("name.example:444", true),
            (KEY, true),
            ("", false),
            ("", false),
        ] {
            assert_eq!(resumes(&client, key), want, "{version:?} {key}");
        }
        // Each client has its own session cache.
        assert!(!resumes(&careless(Some((day, 4096))), KEY));
        let without = careless(None);
        assert!(!resumes(&without, KEY));
        assert!(!resumes(&without, KEY));
        // The client does not offer expired sessions.
        let client = careless(Some((Duration::ZERO, 4096)));
        assert!(!resumes(&client, KEY));
        assert!(!resumes(&client, KEY));
        let client = careless(Some((day, 1)));
        for (key, want) in [
            ("a:1", false),
            ("b:1", false),
            ("b:1", true),
            ("a:1", false),
        ] {
            assert_eq!(resumes(&client, key), want, "{key}");
        }
    }
}

#[test]
fn sessions_of_one_thread_are_resumed_by_another() {
    let (own, key) = self_signed(|_| {});
    let server = Server::new(vec![own], &key);
    let client = careless(Some((Duration::from_secs(60), 1)));
    for want in [false, true] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let met = server.meet(&client, NAME, KEY, &[]).unwrap();
                assert_eq!(met.info().resumed, want);
            });
        });
    }
}

#[test]
fn what_is_no_handshake_is_told_by_its_text() {
    let client = careless(None);
    for answer in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        // The fatal alert `handshake_failure`.
        &[21, 3, 3, 0, 2, 2, 40],
    ] {
        let mut out = OutputBuffer::default();
        let mut connection = client.connect(NAME, KEY, &[], &mut out).unwrap();
        let mut input = answer.to_vec();
        let received = connection.receive(&mut input, &mut Vec::new(), &mut out);
        assert_eq!(handshake_text(&received.unwrap_err()), HANDSHAKE_FAILURE);
        let received = connection.receive(&mut [], &mut Vec::new(), &mut out);
        assert_eq!(received, Err(TlsError::Closed));
    }
}

#[test]
fn a_backend_may_close_during_the_handshake() {
    let client = careless(None);
    let mut out = OutputBuffer::default();
    let mut connection = client.connect(NAME, KEY, &[], &mut out).unwrap();
    let mut close_notify = [21, 3, 3, 0, 2, 2, 0];
    let progress = connection.receive(&mut close_notify, &mut Vec::new(), &mut out);
    assert!(progress.unwrap().closed_by_peer);
    assert_eq!(connection.encrypt(b"x", &mut out), Err(TlsError::Closed));
}

#[test]
fn nothing_is_sent_before_the_handshake_is_complete() {
    let mut out = OutputBuffer::default();
    let mut connection = careless(None).connect(NAME, KEY, &[], &mut out).unwrap();
    let hello_len = out.len();
    assert_eq!(connection.encrypt(b"x", &mut out), Err(TlsError::NotReady));
    connection.close_notify(&mut out);
    assert_eq!(out.len(), hello_len);
}

#[test]
fn errors_of_handshakes_have_their_texts() {
    let cases = [
        (rustls::Error::NoCertificatesPresented, "no certificate"),
        (CertificateError::BadEncoding.into(), "invalid certificate"),
        (
            PeerMisbehaved::SelectedUnofferedApplicationProtocol.into(),
            "unknown alpn protocol",
        ),
        (rustls::Error::DecryptError, "ssl handshake failure"),
    ];
    for (error, want) in cases {
        assert_eq!(handshake_text(&TlsError::Handshake(error)), want);
    }
    assert_eq!(handshake_text(&TlsError::PeerAlert(40)), HANDSHAKE_FAILURE);
}

#[test]
fn failures_of_an_authority_are_told_in_words() {
    let text = |error: rustls::Error| authority_failure(&io::Error::other(error)).unwrap();
    let of_ca = rustls::OtherError(Arc::new(webpki::Error::CaUsedAsEndEntity));
    for (error, want) in [
        (
            CertificateError::Other(of_ca),
            "unsuitable certificate purpose",
        ),
        (CertificateError::Expired, "certificate has expired"),
        (
            CertificateError::UnknownIssuer,
            "unable to get local issuer certificate",
        ),
    ] {
        let want = format!("the certificate of the server is not accepted: {want}");
        assert_eq!(text(error.into()), want);
    }
    let other = text(CertificateError::NotValidForName.into());
    assert!(other.contains("NotValidForName"), "{other}");
    assert_eq!(authority_failure(&io::ErrorKind::BrokenPipe.into()), None);
}

#[test]
fn data_is_carried_both_ways_however_it_arrives() {
    let (own, key) = self_signed(|_| {});
    for version in VERSIONS {
        let server = Server::with(vec![own.clone()], &key, &[version], &[]);
        let mut talk = Talk::begin(&server, &careless(None), NAME, KEY, &[]).unwrap();
        let text: Vec<u8> = (0..100_000_u32).map(|at| at.to_le_bytes()[0]).collect();
        assert_eq!(talk.server_hears_data(&text), text);
        talk.server.set_buffer_limit(None);
        talk.server.writer().write_all(&text).unwrap();
        let mut heard = Vec::new();
        let bytes = talk.server_says();
        for piece in bytes.chunks(1000) {
            let (mut piece, mut out) = (piece.to_vec(), OutputBuffer::default());
            let progress = talk.client.receive(&mut piece, &mut heard, &mut out);
            assert!(!progress.unwrap().closed_by_peer && out.is_empty());
        }
        assert_eq!(heard, text);
    }
}

#[test]
fn records_to_backends_are_full_from_the_first_one() {
    let (own, key) = self_signed(|_| {});
    let server = Server::new(vec![own], &key);
    let mut talk = Talk::begin(&server, &careless(None), NAME, KEY, &[]).unwrap();
    let mut out = OutputBuffer::default();
    talk.client.encrypt(&[0; 20_000], &mut out).unwrap();
    assert_eq!(out[3..5], (16_384_u16 + 17).to_be_bytes());
}

#[test]
fn close_notify_ends_either_direction() {
    let (own, key) = self_signed(|_| {});
    for version in VERSIONS {
        let server = Server::with(vec![own.clone()], &key, &[version], &[]);
        let mut talk = Talk::begin(&server, &careless(None), NAME, KEY, &[]).unwrap();
        talk.server.send_close_notify();
        let (mut input, mut out) = (talk.server_says(), OutputBuffer::default());
        let progress = talk.client.receive(&mut input, &mut Vec::new(), &mut out);
        assert!(progress.unwrap().closed_by_peer && out.is_empty());
        assert_eq!(talk.server_hears_data(b"more"), b"more");
        for _ in 0..2 {
            talk.client.close_notify(&mut out);
        }
        assert_eq!(talk.client.encrypt(b"x", &mut out), Err(TlsError::Closed));
        talk.server_hears(&out);
        let state = talk.server.process_new_packets().unwrap();
        assert!(state.peer_has_closed() && talk.server.process_new_packets().is_ok());
    }
}

#[test]
fn keys_are_updated_when_the_backend_asks_for_it() {
    let (own, key) = self_signed(|_| {});
    let server = Server::with(vec![own], &key, &[&rustls::version::TLS13], &[]);
    let mut talk = Talk::begin(&server, &careless(None), NAME, KEY, &[]).unwrap();
    for round in [b"1", b"2"] {
        talk.server.refresh_traffic_keys().unwrap();
        talk.server.writer().write_all(round).unwrap();
        assert_eq!(talk.client_hears(), Ok(round.to_vec()));
        assert_eq!(talk.server_hears_data(round), round);
    }
}

/// A client with a completed handshake, and the keys with which the test makes the server's records.
struct RawServer {
    client: ClientConnection,
    sealer: Protection,
}

/// Completes a handshake of a client with a server whose records the test makes from then on.
fn raw_server(version: Version) -> RawServer {
    let (own, key) = self_signed(|_| {});
    let versions: &[&'static rustls::SupportedProtocolVersion] = match version {
        Version::Tls12 => &[&rustls::version::TLS12],
        Version::Tls13 => &[&rustls::version::TLS13],
    };
    let mut server = Server::with(vec![own], &key, versions, &[]);
    let config = Arc::make_mut(&mut server.config);
    config.enable_secret_extraction = true;
    let cache = Some((Duration::from_secs(60), 1));
    let talk = Talk::begin(&server, &careless(cache), NAME, KEY, &[]).unwrap();
    let (sequence, secrets) = talk.server.dangerous_extract_secrets().unwrap().tx;
    RawServer {
        client: talk.client,
        sealer: Protection::new(version, sequence, &secrets).unwrap(),
    }
}

impl RawServer {
    fn send_record(
        &mut self,
        content_type: ContentType,
        payload: &[u8],
    ) -> Result<usize, TlsError> {
        let mut record = OutputBuffer::default();
        self.sealer
            .seal(content_type, &[payload], &mut record)
            .unwrap();
        let (mut input, mut out) = (record.to_vec(), OutputBuffer::default());
        let mut plain = Vec::new();
        self.client.receive(&mut input, &mut plain, &mut out)?;
        assert!(content_type == ContentType::ApplicationData || plain.is_empty());
        Ok(out.len())
    }
}

/// The body of a NewSessionTicket with a ticket of `len` bytes (RFC 8446 §4.6.1): lifetime, age_add, nonce, ticket, extensions.
fn ticket(len: usize) -> Vec<u8> {
    let [high, low] = u16::try_from(len).unwrap().to_be_bytes();
    let mut body = vec![0, 0, 1, 0, 1, 2, 3, 4, 1, 0, high, low];
    body.resize(body.len() + len, 7);
    body.extend_from_slice(&[0, 0]);
    let [_, high, middle, low] = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[4, high, middle, low], &body[..]].concat()
}

#[test]
fn tickets_may_come_in_pieces_and_several_at_once() {
    let mut server = raw_server(Version::Tls13);
    let two = [ticket(3), ticket(1)].concat();
    assert_eq!(server.send_record(ContentType::Handshake, &two), Ok(0));
    let long = ticket(60_000);
    for piece in long.chunks(16_384) {
        assert_eq!(server.send_record(ContentType::Handshake, piece), Ok(0));
    }
    let (half, rest) = two.split_at(two.len() - 5);
    assert_eq!(server.send_record(ContentType::Handshake, half), Ok(0));
    assert_eq!(server.send_record(ContentType::Handshake, rest), Ok(0));
    assert_eq!(
        server.send_record(ContentType::ApplicationData, b"x"),
        Ok(0)
    );
}

#[test]
fn what_a_backend_may_not_send_after_the_handshake_ends_the_connection() {
    use TlsError::{Decode, Flood, UnexpectedMessage};
    let update = [24, 0, 0, 1, 0];
    let update_then_ticket = [&update[..], &ticket(1)].concat();
    let cases: &[(Version, &[u8], TlsError)] = &[
        (Version::Tls13, &[], UnexpectedMessage),
        // CertificateRequest is allowed only if the client has offered it (RFC 8446 §4.6.2).
        (Version::Tls13, &[13, 0, 0, 0], UnexpectedMessage),
        (Version::Tls13, &[0, 0, 0, 0], UnexpectedMessage),
        (Version::Tls13, &update_then_ticket, UnexpectedMessage),
        (Version::Tls13, &[4, 0, 0, 1, 0], Decode),
        // The header of a NewSessionTicket whose length exceeds the limit.
        (Version::Tls13, &[4, 1, 0, 0], Decode),
        (Version::Tls12, &[4, 0, 0, 0], UnexpectedMessage),
        (Version::Tls12, &[0, 0, 0, 1, 0], Decode),
    ];
    for (version, message, want) in cases {
        let mut server = raw_server(*version);
        let result = server.send_record(ContentType::Handshake, message);
        assert_eq!(result, Err(want.clone()), "{version:?} {message:?}");
    }
    let mut server = raw_server(Version::Tls13);
    for _ in 0..32 {
        assert!(
            server
                .send_record(ContentType::Handshake, &ticket(1))
                .is_ok()
        );
    }
    let result = server.send_record(ContentType::Handshake, &ticket(1));
    assert_eq!(result, Err(Flood));
}

#[test]
fn requests_to_renegotiate_are_refused_with_a_warning() {
    let mut server = raw_server(Version::Tls12);
    let alert_len = 5 + 8 + 2 + 16;
    let asked = server.send_record(ContentType::Handshake, &[0, 0, 0, 0]);
    assert_eq!(asked, Ok(alert_len));
    assert_eq!(
        server.send_record(ContentType::ApplicationData, b"x"),
        Ok(0)
    );
}
