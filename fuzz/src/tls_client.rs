//! What a backend sends during and after the handshake of a TLS connection to it.

use std::sync::{Arc, OnceLock};

use h2o_tls::fuzzing::RecordWriter;
use h2o_tls::{ClientConnection, OutputBuffer, TlsClient, TlsClientSettings};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::cuts;

const NAME: &str = "backend.example";

fn client() -> &'static TlsClient {
    static CLIENT: OnceLock<Arc<TlsClient>> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let settings = TlsClientSettings {
            verify_peer: false,
            ca_file: None,
            session_cache: None,
        };
        TlsClient::new(settings).expect("settings without files are valid")
    })
}

/// A new connection, and the buffer with its ClientHello.
fn connect() -> (ClientConnection, OutputBuffer) {
    let mut out = OutputBuffer::default();
    let connection = client().connect(NAME, NAME, &[b"http/1.1"], &mut out);
    (connection.expect("the host name is valid"), out)
}

/// What a connection shows after it has received something.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    plain: Vec<u8>,
    /// Number of bytes sent in answer: alerts and key updates, whose bytes differ from connection to connection.
    sent: usize,
    error: Option<String>,
    is_closed: bool,
}

fn receive(connection: &mut ClientConnection, input: &[u8], cuts: &[usize]) -> Seen {
    let mut seen = Seen::default();
    let mut out = OutputBuffer::default();
    let mut at = 0;
    for &end in cuts.iter().chain([&input.len()]) {
        let mut piece = input[at..end].to_vec();
        at = end;
        match connection.receive(&mut piece, &mut seen.plain, &mut out) {
            Ok(progress) if progress.closed_by_peer => {
                seen.is_closed = true;
                break;
            }
            Ok(_) => {}
            Err(error) => {
                seen.error = Some(error.to_string());
                break;
            }
        }
    }
    seen.sent = out.len();
    seen
}

/// The input is what comes instead of a ServerHello: it has the same effect in one piece and in many, no byte is reported as data, no data
/// can be sent, and nothing is accepted after an error.
///
/// # Panics
/// If an invariant does not hold.
pub fn tls_handshake(input: &[u8]) {
    let (mut connection, _) = connect();
    let whole = receive(&mut connection, input, &[]);
    assert_eq!(
        whole.plain, b"",
        "data was accepted although the backend has proved no identity"
    );
    let mut out = OutputBuffer::default();
    assert!(connection.encrypt(b"secret", &mut out).is_err());
    connection.close_notify(&mut out);
    assert_eq!(out.len(), 0);
    if whole.error.is_some() {
        let more = receive(&mut connection, b"more", &[]);
        assert!(more.error.is_some() && more.sent == 0, "{more:?}");
    }
    for cuts in cuts(input) {
        let (mut connection, _) = connect();
        let in_pieces = receive(&mut connection, input, &cuts);
        assert_eq!(in_pieces.error, whole.error, "input cut at {cuts:?}");
        assert_eq!(
            in_pieces.is_closed, whole.is_closed,
            "input cut at {cuts:?}"
        );
    }
}

/// The configurations of a TLS server: one for TLS 1.2, one for TLS 1.3.
fn servers() -> &'static [Arc<ServerConfig>; 2] {
    static SERVERS: OnceLock<[Arc<ServerConfig>; 2]> = OnceLock::new();
    SERVERS.get_or_init(|| {
        let own = rcgen::generate_simple_self_signed([NAME.to_owned()])
            .expect("a self-signed certificate can be made");
        let key = own.signing_key.serialize_der();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        [&rustls::version::TLS12, &rustls::version::TLS13].map(|version| {
            let chain = vec![CertificateDer::from(own.cert.der().to_vec())];
            let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.clone()));
            let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[version])
                .expect("the provider has the TLS version")
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .expect("the key belongs to the certificate");
            config.enable_secret_extraction = true;
            // The server sends no session tickets: they would be records that the test does not expect.
            config.send_tls13_tickets = 0;
            Arc::new(config)
        })
    })
}

/// A connection after a complete handshake, and the writer that encrypts the backend's records.
fn established(is_tls13: bool) -> (ClientConnection, RecordWriter) {
    let config = Arc::clone(&servers()[usize::from(is_tls13)]);
    let mut server = rustls::ServerConnection::new(config).expect("the configuration is good");
    let (mut connection, mut out) = connect();
    let mut is_done = false;
    while !is_done || !out.is_empty() || server.is_handshaking() {
        let mut sent = &out[..];
        while !sent.is_empty() {
            server
                .read_tls(&mut sent)
                .expect("memory can always be read and written");
            server
                .process_new_packets()
                .expect("the client sends valid records");
        }
        out.clear();
        let mut answer = Vec::new();
        while server.wants_write() {
            server
                .write_tls(&mut answer)
                .expect("memory can always be read and written");
        }
        let progress = connection.receive(&mut answer, &mut Vec::new(), &mut out);
        is_done |= progress
            .expect("the server sends valid records")
            .handshake_done_now;
    }
    let secrets = server.dangerous_extract_secrets();
    let (sequence, secrets) = secrets
        .expect("the configuration allows the extraction of secrets")
        .tx;
    let writer = RecordWriter::new(is_tls13, sequence, &secrets);
    (connection, writer.expect("the suite is supported"))
}

/// The input is a byte that selects the TLS version, then records of the backend: type, length, payload. Only payloads of application data
/// are reported, in their order and up to the first violation, however the records are cut.
///
/// # Panics
/// If an invariant does not hold.
pub fn tls_records(input: &[u8]) {
    let Some((&options, mut rest)) = input.split_first() else {
        return;
    };
    let is_tls13 = options % 2 == 1;
    let mut records: Vec<(u8, &[u8])> = Vec::new();
    while let [kind, len, payload @ ..] = rest {
        let (payload, behind) = payload.split_at(usize::from(*len).min(payload.len()));
        records.push((*kind, payload));
        rest = behind;
    }
    let data: Vec<u8> = (records.iter())
        .filter(|(kind, _)| kind % 4 == 3)
        .flat_map(|(_, payload)| payload.iter().copied())
        .collect();
    let play = |ways: usize| {
        let (mut connection, mut writer) = established(is_tls13);
        let mut wire = OutputBuffer::default();
        for (kind, payload) in &records {
            writer.write(*kind, payload, &mut wire);
        }
        let cuts = cuts(&wire).into_iter().nth(ways).unwrap_or_default();
        let seen = receive(&mut connection, &wire, &cuts);
        assert!(data.starts_with(&seen.plain), "{seen:?}");
        if seen.error.is_some() {
            let more = receive(&mut connection, b"more", &[]);
            assert!(more.error.is_some() && more.plain.is_empty(), "{more:?}");
        } else if !seen.is_closed {
            assert_eq!(seen.plain, data);
        }
        let mut out = OutputBuffer::default();
        let sent = connection.encrypt(b"answer", &mut out);
        assert_eq!(sent.is_ok(), seen.error.is_none(), "{seen:?}");
        seen
    };
    let whole = play(usize::MAX);
    assert_eq!(play(usize::from(options) / 2 % 3), whole);
}
