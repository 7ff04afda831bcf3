//! Connections to backends, tested against rustls servers and against records that the tests make.

mod chains;
mod connections;

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Mutex;

use crate::Reader;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, DnValue, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, NameConstraints, PKCS_RSA_SHA256, RsaKeySize,
    SigningKey, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, ServerConnection};
use tempfile::NamedTempFile;

use super::*;
use crate::record::framing::ContentType;
use crate::record::protection::Protection;
use crate::versions::Version;

const NAME: &str = "name.example";
const KEY: &str = "name.example:443";
const VERSIONS: [&rustls::SupportedProtocolVersion; 2] =
    [&rustls::version::TLS12, &rustls::version::TLS13];

type Authority = CertifiedIssuer<'static, KeyPair>;
type Chain = Vec<CertificateDer<'static>>;
type Leaf = (CertificateDer<'static>, KeyPair);

fn params(common_name: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<_> = names.iter().map(|name| (*name).to_string()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = params(name, &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

fn root(name: &str) -> Authority {
    let key = KeyPair::generate().unwrap();
    CertifiedIssuer::self_signed(authority_params(name), key).unwrap()
}

/// A leaf certificate for [`NAME`], and its key. `tune` changes its parameters.
fn leaf(issuer: &Issuer<'_, KeyPair>, tune: impl FnOnce(&mut CertificateParams)) -> Leaf {
    let mut params = params("leaf", &[NAME]);
    tune(&mut params);
    let key = KeyPair::generate().unwrap();
    let leaf = params.signed_by(&key, issuer).unwrap();
    (leaf.der().clone(), key)
}

fn self_signed(tune: impl FnOnce(&mut CertificateParams)) -> Leaf {
    let mut params = params("own", &[NAME]);
    tune(&mut params);
    let key = KeyPair::generate().unwrap();
    let leaf = params.self_signed(&key).unwrap();
    (leaf.der().clone(), key)
}

fn expire(params: &mut CertificateParams) {
    params.not_after = date_time_ymd(2020, 1, 1);
}

fn begin_later(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(4000, 1, 1);
}

fn pem_file(certificates: &[&CertificateDer<'_>]) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    for certificate in certificates {
        let pem = pem_of(certificate);
        file.write_all(pem.as_bytes()).unwrap();
    }
    file
}

fn pem_of(der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let bits = (0..3).fold(0, |bits, at| {
                bits << 8 | usize::from(*group.get(at).unwrap_or(&0))
            });
            for at in 0..4 {
                let digit = char::from(DIGITS[bits >> (18 - 6 * at) & 63]);
                text.push(if at <= group.len() { digit } else { '=' });
            }
        }
        text.push('\n');
    }
    text + "-----END CERTIFICATE-----\n"
}

fn client_of(settings: TlsClientSettings) -> Arc<TlsClient> {
    TlsClient::new(settings).unwrap()
}

fn trusting(certificates: &[&CertificateDer<'_>]) -> Arc<TlsClient> {
    let file = pem_file(certificates);
    client_of(TlsClientSettings {
        verify_peer: true,
        ca_file: Some(file.path().to_owned()),
        session_cache: None,
    })
}

fn careless(session_cache: Option<(Duration, usize)>) -> Arc<TlsClient> {
    client_of(TlsClientSettings {
        verify_peer: false,
        ca_file: None,
        session_cache,
    })
}

/// Presents one certificate chain to every client, and records the server name that the client sent.
#[derive(Debug)]
struct PresentingResolver {
    key: Arc<CertifiedKey>,
    server_name: Mutex<Option<String>>,
}

impl ResolvesServerCert for PresentingResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        *self.server_name.lock().unwrap() = hello.server_name().map(str::to_owned);
        Some(Arc::clone(&self.key))
    }
}

struct Server {
    config: Arc<ServerConfig>,
    shown: Arc<PresentingResolver>,
}

impl Server {
    fn new(chain: Chain, key: &KeyPair) -> Self {
        Self::with(chain, key, &VERSIONS, &[])
    }

    fn with(
        chain: Chain,
        key: &KeyPair,
        versions: &[&'static rustls::SupportedProtocolVersion],
        alpn: &[&str],
    ) -> Self {
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = aws_lc_rs::sign::any_supported_type(&key).unwrap();
        let shown = Arc::new(PresentingResolver {
            key: Arc::new(CertifiedKey::new(chain, key)),
            server_name: Mutex::default(),
        });
        let provider = Arc::new(aws_lc_rs::default_provider());
        let resolver: Arc<dyn ResolvesServerCert> = Arc::clone(&shown) as _;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        let alpn = alpn.iter().map(|protocol| protocol.as_bytes().to_vec());
        config.alpn_protocols = alpn.collect();
        Self {
            config: Arc::new(config),
            shown,
        }
    }

    /// Completes a handshake and sends one byte of data to the client, so that it has received the server's tickets.
    fn meet(
        &self,
        client: &TlsClient,
        name: &str,
        key: &str,
        alpn: &[&[u8]],
    ) -> Result<ClientConnection, &'static str> {
        Talk::begin(self, client, name, key, alpn).map(|talk| talk.client)
    }
}

/// An established connection: the client under test, and a rustls server.
struct Talk {
    client: ClientConnection,
    server: ServerConnection,
}

impl Talk {
    fn begin(
        server: &Server,
        client: &TlsClient,
        name: &str,
        key: &str,
        alpn: &[&[u8]],
    ) -> Result<Self, &'static str> {
        let mut out = OutputBuffer::default();
        let mut talk = Self {
            client: client.connect(name, key, alpn, &mut out)?,
            server: ServerConnection::new(Arc::clone(&server.config)).unwrap(),
        };
        let mut is_done = false;
        loop {
            talk.server_hears(&out);
            let mut input = talk.server_says();
            out.clear();
            let progress = talk.client.receive(&mut input, &mut Vec::new(), &mut out);
            is_done |= progress
                .map_err(|error| handshake_text(&error))?
                .handshake_done_now;
            if is_done && out.is_empty() && !talk.server.is_handshaking() {
                break;
            }
        }
        talk.server.writer().write_all(b"!").unwrap();
        assert_eq!(talk.client_hears(), Ok(b"!".to_vec()));
        Ok(talk)
    }

    fn server_hears(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        while !bytes.is_empty() {
            self.server.read_tls(&mut bytes).unwrap();
            // The client under test reports the errors that matter, or has sent the alert.
            let _ = self.server.process_new_packets();
        }
    }

    /// Takes the bytes that the server wants to send.
    fn server_says(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.server.wants_write() {
            self.server.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    /// Delivers the server's output to the client, and the client's reply to the server. Returns the plaintext that the client
    /// received.
    fn client_hears(&mut self) -> Result<Vec<u8>, TlsError> {
        let (mut plain, mut out) = (Vec::new(), OutputBuffer::default());
        let mut input = self.server_says();
        let received = self.client.receive(&mut input, &mut plain, &mut out);
        self.server_hears(&out);
        received.map(|_| plain)
    }

    /// Encrypts data at the client, and returns the data that the server decrypted.
    fn server_hears_data(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut out = OutputBuffer::default();
        self.client.encrypt(plain, &mut out).unwrap();
        let mut heard = Vec::new();
        for piece in out.chunks(4096) {
            self.server_hears(piece);
            let _ = self.server.reader().read_to_end(&mut heard);
        }
        heard
    }
}
