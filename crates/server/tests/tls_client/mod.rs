//! A server with TLS and a handler of the test's own, and a client that does as the test says: rustls over a socket,
//! with the handshake and HTTP/2 step by step.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "helpers of several tests, which may fail them"
)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use super::embedded::Embedded;
use h2o_config::Directive;
use h2o_exchange::Scope;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};

/// A running server.
pub struct Running {
    server: Embedded,
    /// The certificate, and whatever a test wants to keep there.
    pub folder: tempfile::TempDir,
}

impl Running {
    /// `settings` are global directives, `paths` those of the default host, each line with its newline.
    pub fn start(directives: &'static [Directive<Scope>], settings: &str, paths: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(["a.test".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("a.crt"), certificate.pem()).unwrap();
        std::fs::write(folder.path().join("a.key"), key.serialize_pem()).unwrap();
        let at = folder.path().to_str().unwrap().to_owned();
        let settings = settings.replace("FOLDER", &at);
        let paths = paths.replace("FOLDER", &at);
        let server = Embedded::start(directives, |port| {
            format!(
                "num-threads: 1\n{settings}listen:\n  host: 127.0.0.1\n  port: {port}\n  ssl: {{ certificate-file: {at}/a.crt, key-file: {at}/a.key }}\nhosts:\n  default:\n    paths:\n{paths}"
            )
        });
        Self { server, folder }
    }

    pub const fn port(&self) -> u16 {
        self.server.port
    }

    pub fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
        patient(&socket);
        socket
    }
}

/// A test that waits in vain fails.
pub fn patient(socket: &TcpStream) {
    let limit = Some(Duration::from_secs(20));
    socket.set_read_timeout(limit).unwrap();
    socket.set_nodelay(true).unwrap();
}

/// A client that remembers sessions and sends early data where it may.
pub fn client_config(alpn: &[u8]) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting))
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    config.enable_early_data = true;
    Arc::new(config)
}

/// Any certificate will do; signatures are checked.
#[derive(Debug)]
struct Trusting;

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// One connection of the client.
pub struct Client {
    pub tls: ClientConnection,
    pub socket: TcpStream,
    /// What the server has said, in clear text.
    pub heard: Vec<u8>,
    /// What it has said, as it came.
    pub wire: Vec<u8>,
    /// True once the server has closed.
    pub is_over: bool,
}

impl Client {
    pub fn new(config: &Arc<ClientConfig>, socket: TcpStream) -> Self {
        let name = ServerName::try_from("a.test").unwrap();
        Self {
            tls: ClientConnection::new(Arc::clone(config), name).unwrap(),
            socket,
            heard: Vec::new(),
            wire: Vec::new(),
            is_over: false,
        }
    }

    /// Sends what TLS has for the server.
    pub fn flush(&mut self) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket).unwrap();
        }
    }

    /// Says something and sends it, with whatever else TLS has to send.
    pub fn say(&mut self, text: &[u8]) {
        self.tls.writer().write_all(text).unwrap();
        self.flush();
    }

    /// Says something before the handshake.
    pub fn say_early(&mut self, text: &[u8]) {
        self.tls.early_data().unwrap().write_all(text).unwrap();
        self.flush();
    }

    /// Receives once. What TLS would answer is held back.
    pub fn hear(&mut self) {
        let mut octets = vec![0; 65_536];
        let len = self.socket.read(&mut octets).unwrap();
        self.is_over = len == 0;
        self.wire.extend_from_slice(&octets[..len]);
        let mut octets = &octets[..len];
        while !octets.is_empty() {
            self.tls.read_tls(&mut octets).unwrap();
            self.tls.process_new_packets().unwrap();
            // An error is only that there is no more now.
            let _ = self.tls.reader().read_to_end(&mut self.heard);
        }
    }

    /// Receives until the server has said what is waited for.
    pub fn hear_until(&mut self, is_there: impl Fn(&[u8]) -> bool) {
        while !is_there(&self.heard) {
            self.hear();
            assert!(!self.is_over, "{}", self.heard.escape_ascii());
        }
    }

    /// A whole handshake. A second connection then has a ticket.
    pub fn shake_hands(&mut self) {
        while self.tls.is_handshaking() {
            self.flush();
            self.hear();
        }
        self.flush();
    }
}

/// A config with a ticket of the server, so that the next connection sends early data.
pub fn with_ticket(server: &Running, alpn: &[u8]) -> Arc<ClientConfig> {
    let config = client_config(alpn);
    let mut client = Client::new(&config, server.connect());
    client.shake_hands();
    // The ticket comes before the first answer, whichever that is.
    client.say(b"GET / HTTP/1.0\r\n\r\n");
    while !client.is_over {
        client.hear();
    }
    config
}

/// The client preface with settings that allow a lot.
pub fn preface() -> Vec<u8> {
    let mut octets = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS_INITIAL_WINDOW_SIZE, and WINDOW_UPDATE for the connection: a megabyte.
    octets.extend(frame(4, 0, 0, &[0, 4, 0, 16, 0, 0]));
    octets.extend(frame(8, 0, 0, &[0, 16, 0, 0]));
    octets
}

/// A frame (RFC 9113 §4.1).
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut octets = len[1..].to_vec();
    octets.extend([kind, flags]);
    octets.extend(stream.to_be_bytes());
    octets.extend(payload);
    octets
}

/// HEADERS of a GET that ends its stream, with further fields.
pub fn get(stream: u32, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| {
        let mut octets = vec![u8::try_from(text.len()).unwrap()];
        octets.extend(text.as_bytes());
        octets
    };
    // `:method: GET`, `:scheme: https`, then literals (RFC 7541 §6.2.2).
    let mut block = vec![0x82, 0x87, 0x01];
    block.extend(text("a.test"));
    block.push(0x04);
    block.extend(text(path));
    for (name, value) in fields {
        block.push(0);
        block.extend(text(name));
        block.extend(text(value));
    }
    frame(1, 5, stream, &block)
}

/// A frame of the server.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// The complete frames in what the server has said.
pub fn frames(mut octets: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let [a, b, c, kind, flags, s0, s1, s2, s3, rest @ ..] = octets {
        let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some((payload, rest)) = rest.split_at_checked(len) else {
            break;
        };
        frames.push(Frame {
            kind: *kind,
            flags: *flags,
            stream: u32::from_be_bytes([*s0, *s1, *s2, *s3]),
            payload: payload.to_vec(),
        });
        octets = rest;
    }
    frames
}

/// The content of a stream so far, and whether it is complete.
pub fn content(octets: &[u8], stream: u32) -> (Vec<u8>, bool) {
    let mut content = Vec::new();
    let mut is_complete = false;
    for frame in frames(octets) {
        if frame.stream == stream && matches!(frame.kind, 0 | 1) {
            is_complete |= frame.flags & 1 == 1;
            if frame.kind == 0 {
                content.extend(frame.payload);
            }
        }
    }
    (content, is_complete)
}

/// Lengths of the complete TLS records of octets, with their headers.
pub fn record_lens(mut octets: &[u8]) -> Vec<usize> {
    let mut lens = Vec::new();
    while let [_, _, _, a, b, ..] = octets {
        let len = 5 + usize::from(u16::from_be_bytes([*a, *b]));
        let Some((_, rest)) = octets.split_at_checked(len) else {
            break;
        };
        lens.push(len);
        octets = rest;
    }
    lens
}
