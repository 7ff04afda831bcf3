//! A TLS client over a socket, which a test drives step by step.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::verify_tls13_signature_with_raw_key;
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};

/// A certificate verifier that accepts any certificate for any name; it still checks signatures.
#[derive(Debug)]
pub struct AnyCertificate {
    /// Signature schemes that the client offers to the server.
    pub schemes: Vec<SignatureScheme>,
    /// Whether the client asks for a raw public key (RFC 7250) in place of a certificate.
    pub raw_public_keys: bool,
}

impl Default for AnyCertificate {
    /// A verifier that offers all signature schemes of the TLS library, and asks for certificates.
    fn default() -> Self {
        let provider = default_provider();
        Self {
            schemes: provider
                .signature_verification_algorithms
                .supported_schemes(),
            raw_public_keys: false,
        }
    }
}

impl ServerCertVerifier for AnyCertificate {
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
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = default_provider().signature_verification_algorithms;
        if self.raw_public_keys {
            let key = SubjectPublicKeyInfoDer::from(certificate.as_ref());
            return verify_tls13_signature_with_raw_key(message, &key, signature, &algorithms);
        }
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.raw_public_keys
    }
}

/// The configuration of a TLS 1.3 client that stores sessions, and sends early data to servers that allow it.
///
/// # Panics
/// If the library does not support TLS 1.3.
#[must_use]
pub fn client_config(alpn: &[u8]) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate::default()))
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    config.enable_early_data = true;
    Arc::new(config)
}

/// A TLS client's connection, with the server name (SNI) `a.test`.
#[derive(Debug)]
pub struct Client {
    /// The TLS library's state of the connection.
    pub tls: ClientConnection,
    /// The client's socket.
    pub socket: TcpStream,
    /// Decrypted data received from the server.
    pub received: Vec<u8>,
    /// All bytes received from the server, as they were on the network.
    pub wire: Vec<u8>,
    /// Whether the server has closed the connection.
    pub is_closed: bool,
}

impl Client {
    /// Makes a TLS connection over a socket; nothing is sent yet.
    ///
    /// # Panics
    /// If the configuration is invalid.
    #[must_use]
    pub fn new(config: &Arc<ClientConfig>, socket: TcpStream) -> Self {
        let name = ServerName::try_from("a.test").expect("the host name is valid");
        Self {
            tls: ClientConnection::new(Arc::clone(config), name)
                .expect("the configuration is valid"),
            socket,
            received: Vec::new(),
            wire: Vec::new(),
            is_closed: false,
        }
    }

    /// Sends pending TLS records.
    ///
    /// # Panics
    /// If the server does not take the records.
    pub fn flush(&mut self) {
        while self.tls.wants_write() {
            let sent = self.tls.write_tls(&mut self.socket);
            sent.expect("the server reads what the client sends");
        }
    }

    /// Encrypts and sends data, together with pending TLS records.
    ///
    /// # Panics
    /// If the server does not take the records.
    pub fn send(&mut self, bytes: &[u8]) {
        let written = self.tls.writer().write_all(bytes);
        written.expect("the TLS buffer has room");
        self.flush();
    }

    /// Sends data as TLS early data, together with the ClientHello.
    ///
    /// # Panics
    /// If no ticket allows it, or the server does not take the records.
    pub fn send_early(&mut self, bytes: &[u8]) {
        let mut early = self
            .tls
            .early_data()
            .expect("the session ticket allows early data");
        early.write_all(bytes).expect("the TLS buffer has room");
        self.flush();
    }

    /// Reads once from the socket. Replies of TLS are sent by the next [`Client::flush`].
    ///
    /// # Panics
    /// If nothing arrives in time, or the received bytes are invalid.
    pub fn receive(&mut self) {
        let mut bytes = vec![0; 65_536];
        let len = self
            .socket
            .read(&mut bytes)
            .expect("the server sends bytes");
        self.is_closed = len == 0;
        self.wire.extend_from_slice(&bytes[..len]);
        let mut bytes = &bytes[..len];
        while !bytes.is_empty() {
            let taken = self.tls.read_tls(&mut bytes);
            taken.expect("the TLS buffer has room");
            let done = self.tls.process_new_packets();
            done.expect("the server sends valid TLS records");
            // The result is ignored: an error only means that there is no more decrypted data now.
            let _ = self.tls.reader().read_to_end(&mut self.received);
        }
    }

    /// Reads until `is_enough` returns true for the decrypted data.
    ///
    /// # Panics
    /// If the connection ends first.
    pub fn receive_until(&mut self, is_enough: impl Fn(&[u8]) -> bool) {
        while !is_enough(&self.received) {
            self.receive();
            assert!(!self.is_closed, "{}", self.received.escape_ascii());
        }
    }

    /// Reads until the server closes the connection.
    pub fn receive_rest(&mut self) {
        while !self.is_closed {
            self.receive();
        }
    }

    /// Completes the TLS handshake.
    pub fn handshake(&mut self) {
        while self.tls.is_handshaking() {
            self.flush();
            self.receive();
        }
        self.flush();
    }
}

/// Returns the lengths of the complete TLS records in `bytes`, with their headers (RFC 8446 §5.1).
#[must_use]
pub fn record_lens(mut bytes: &[u8]) -> Vec<usize> {
    let mut lens = Vec::new();
    while let [_, _, _, a, b, ..] = bytes {
        let len = 5 + usize::from(u16::from_be_bytes([*a, *b]));
        let Some((_, rest)) = bytes.split_at_checked(len) else {
            break;
        };
        lens.push(len);
        bytes = rest;
    }
    lens
}
