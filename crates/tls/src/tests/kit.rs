//! A TLS client in memory: rustls as the client exchanges bytes with our server role, without sockets.

use std::io::{Read, Write};
use std::sync::Arc;

use h2o_exchange::HostName;
use h2o_testkit::tls::AnyCertificate;
use rustls::client::{Resumption as ClientResumption, Tls12Resumption};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{
    ClientConfig, ClientConnection, NamedGroup, SignatureScheme, SupportedCipherSuite,
    SupportedProtocolVersion,
};

use super::files::Files;
use crate::OutputBuffer;
use crate::handshake::Progress;
use crate::record::framing::ContentType;
use crate::record::protection::Protection;
use crate::settings::identity::Identity;
use crate::versions::Version;
use crate::{Resumption, ResumptionSettings, TlsAcceptor, TlsConnection, TlsError, TlsSettings};

/// A certificate with its key.
pub(super) struct Pair {
    pub(super) certificate: rcgen::Certificate,
    pub(super) key: rcgen::KeyPair,
}

impl Pair {
    /// Makes a certificate for a name, with a new P-256 key.
    pub(super) fn new(name: &str) -> Self {
        Self::with_algorithm(name, &rcgen::PKCS_ECDSA_P256_SHA256)
    }

    pub(super) fn with_algorithm(
        name: &str,
        algorithm: &'static rcgen::SignatureAlgorithm,
    ) -> Self {
        Self::self_signed(name, rcgen::KeyPair::generate_for(algorithm).unwrap())
    }

    pub(super) fn rsa(name: &str) -> Self {
        let size = rcgen::RsaKeySize::_2048;
        let key = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).unwrap();
        Self::self_signed(name, key)
    }

    fn self_signed(name: &str, key: rcgen::KeyPair) -> Self {
        let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        Self {
            certificate: params.self_signed(&key).unwrap(),
            key,
        }
    }

    pub(super) fn identity(&self) -> Identity {
        self.settings().identities.remove(0)
    }

    /// The default TLS settings with this certificate.
    pub(super) fn settings(&self) -> TlsSettings {
        let files = Files::new();
        files.settings(&files.pair("pair", self))
    }
}

/// The default TLS settings with a new certificate for `name`.
pub(super) fn settings(name: &str) -> TlsSettings {
    Pair::new(name).settings()
}

/// The acceptor of a listener with one `ssl` mapping.
pub(super) fn acceptor(settings: TlsSettings) -> Arc<TlsAcceptor> {
    acceptor_with(settings, &Resumption::new(&ResumptionSettings::default()))
}

pub(super) fn acceptor_with(
    settings: TlsSettings,
    resumption: &Arc<Resumption>,
) -> Arc<TlsAcceptor> {
    listener(&[(&[], settings)], resumption)
}

/// The acceptor of a listener with an `ssl` mapping for each list of host names.
pub(super) fn listener(
    entries: &[(&[&str], TlsSettings)],
    resumption: &Arc<Resumption>,
) -> Arc<TlsAcceptor> {
    let settings: Vec<_> = entries
        .iter()
        .map(|(_, settings)| Arc::new(settings.clone()))
        .collect();
    let mut names = Vec::new();
    for (index, (list, _)) in entries.iter().enumerate() {
        for name in *list {
            let name = HostName {
                name: (*name).into(),
                port: Some(8443),
            };
            names.push((name, index));
        }
    }
    let acceptor = TlsAcceptor::new(&settings, names, Arc::clone(resumption), &[b"http/1.1"]);
    Arc::new(acceptor.unwrap())
}

/// What a client offers in its ClientHello.
#[derive(Clone)]
pub(super) struct Offer {
    pub(super) versions: &'static [&'static SupportedProtocolVersion],
    pub(super) suites: Vec<SupportedCipherSuite>,
    pub(super) groups: Vec<NamedGroup>,
    pub(super) alpn: Vec<&'static [u8]>,
    pub(super) schemes: Vec<SignatureScheme>,
    pub(super) resumption: ClientResumption,
    pub(super) early_data: bool,
    /// Whether the client accepts only a raw public key (RFC 7250), and no certificate.
    pub(super) raw_public_keys: bool,
    pub(super) identity: Option<Arc<(CertificateDer<'static>, PrivateKeyDer<'static>)>>,
}

pub(super) const TLS12: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12];
pub(super) const TLS13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

impl Default for Offer {
    fn default() -> Self {
        Self {
            versions: rustls::ALL_VERSIONS,
            suites: rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES.to_vec(),
            // Small key shares speed up the byte-by-byte tests.
            groups: vec![NamedGroup::X25519],
            alpn: vec![b"http/1.1"],
            schemes: default_provider()
                .signature_verification_algorithms
                .supported_schemes(),
            resumption: ClientResumption::disabled(),
            early_data: false,
            raw_public_keys: false,
            identity: None,
        }
    }
}

impl Offer {
    pub(super) fn version(versions: &'static [&'static SupportedProtocolVersion]) -> Self {
        Self {
            versions,
            ..Self::default()
        }
    }

    pub(super) fn suite(suite: SupportedCipherSuite) -> Self {
        Self {
            suites: vec![suite],
            versions: match suite {
                SupportedCipherSuite::Tls12(_) => TLS12,
                SupportedCipherSuite::Tls13(_) => TLS13,
            },
            ..Self::default()
        }
    }

    /// A client that keeps sessions and resumes them.
    pub(super) fn resuming(
        versions: &'static [&'static SupportedProtocolVersion],
        tls12: Tls12Resumption,
    ) -> Self {
        Self {
            resumption: ClientResumption::in_memory_sessions(64).tls12_resumption(tls12),
            ..Self::version(versions)
        }
    }

    pub(super) fn config(&self) -> Arc<ClientConfig> {
        let mut provider = default_provider();
        provider.cipher_suites = self.suites.clone();
        provider.kx_groups = self
            .groups
            .iter()
            .filter_map(|group| {
                let known = rustls::crypto::aws_lc_rs::ALL_KX_GROUPS.iter();
                known.copied().find(|known| known.name() == *group)
            })
            .collect();
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(self.versions)
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate {
                schemes: self.schemes.clone(),
                raw_public_keys: self.raw_public_keys,
            }));
        let mut config = match &self.identity {
            Some(identity) => builder
                .with_client_auth_cert(vec![identity.0.clone()], identity.1.clone_key())
                .unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.alpn.iter().map(|name| name.to_vec()).collect();
        config.resumption = self.resumption.clone();
        config.enable_early_data = self.early_data;
        config.enable_secret_extraction = true;
        Arc::new(config)
    }
}

/// A client, the server role under test, and what they have exchanged.
pub(super) struct Talk {
    pub(super) client: ClientConnection,
    pub(super) server: TlsConnection,
    /// The plaintext that the server has received.
    pub(super) received: Vec<u8>,
    heard: Vec<u8>,
    /// The result of the last call of the server's `receive`.
    pub(super) progress: Progress,
}

impl Talk {
    pub(super) fn new(acceptor: &Arc<TlsAcceptor>, offer: &Offer, name: &'static str) -> Self {
        Self::with_config(acceptor, offer.config(), name)
    }

    pub(super) fn with_config(
        acceptor: &Arc<TlsAcceptor>,
        config: Arc<ClientConfig>,
        name: &'static str,
    ) -> Self {
        Self {
            client: ClientConnection::new(config, name.try_into().unwrap()).unwrap(),
            server: acceptor.accept(),
            received: Vec::new(),
            heard: Vec::new(),
            progress: Progress::default(),
        }
    }

    /// Makes a connection whose handshake is complete.
    pub(super) fn established(acceptor: &Arc<TlsAcceptor>, offer: &Offer) -> Self {
        let mut talk = Self::new(acceptor, offer, "a.test");
        talk.run().unwrap();
        assert!(!talk.client.is_handshaking());
        assert_ne!(talk.server.info().protocol, "");
        talk
    }

    /// Takes the bytes that the client wants to send.
    pub(super) fn client_flight(&mut self) -> Vec<u8> {
        let mut flight = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut flight).unwrap();
        }
        flight
    }

    /// Delivers bytes to the server, and its reply to the client.
    pub(super) fn give_server(&mut self, bytes: &[u8]) -> Result<(), TlsError> {
        let mut out = OutputBuffer::default();
        let mut bytes = bytes.to_vec();
        let progress = self
            .server
            .receive(&mut bytes, &mut self.received, &mut out);
        self.give_client(&out);
        self.progress = progress?;
        Ok(())
    }

    pub(super) fn give_client(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            self.client.read_tls(&mut bytes).unwrap();
            // The client's reaction to the server's bytes, such as an alert, does not matter here.
            let _ = self.client.process_new_packets();
            // The read fails when no more plaintext has arrived, which is expected.
            let _ = self.client.reader().read_to_end(&mut self.heard);
        }
    }

    /// Exchanges bytes until neither side has more.
    pub(super) fn run(&mut self) -> Result<(), TlsError> {
        loop {
            let flight = self.client_flight();
            if flight.is_empty() {
                return Ok(());
            }
            self.give_server(&flight)?;
        }
    }

    pub(super) fn client_says(&mut self, text: &[u8]) {
        self.client.writer().write_all(text).unwrap();
        self.run().unwrap();
    }

    /// Encrypts data at the server and delivers it to the client. Returns the encrypted bytes.
    pub(super) fn server_says(&mut self, text: &[u8]) -> Vec<u8> {
        let mut out = OutputBuffer::default();
        self.server.encrypt(text, &mut out).unwrap();
        self.give_client(&out);
        out.to_vec()
    }

    /// Takes the plaintext that the client has received since the last call.
    pub(super) fn heard(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.heard)
    }

    /// Turns the client into one whose records the test makes with the client's keys, so that they can violate the protocol.
    pub(super) fn into_raw(self, version: Version) -> Raw {
        let secrets = self.client.dangerous_extract_secrets().unwrap();
        Raw {
            server: self.server,
            opener: Protection::new(version, secrets.rx.0, &secrets.rx.1).unwrap(),
            sealer: Protection::new(version, secrets.tx.0, &secrets.tx.1).unwrap(),
        }
    }
}

/// How the server reacts to received bytes: the result of `receive`, the plaintext that it delivers, and the records that it
/// sends.
pub(super) type Reaction = (
    Result<Progress, TlsError>,
    Vec<u8>,
    Vec<(ContentType, Vec<u8>)>,
);

/// The server of a connection whose client violates the protocol; see [`Talk::into_raw`].
pub(super) struct Raw {
    pub(super) server: TlsConnection,
    pub(super) opener: Protection,
    pub(super) sealer: Protection,
}

impl Raw {
    pub(super) fn seal(&mut self, content_type: ContentType, payload: &[u8]) -> Vec<u8> {
        let mut record = OutputBuffer::default();
        self.sealer
            .seal(content_type, &[payload], &mut record)
            .unwrap();
        record.to_vec()
    }

    /// Sends bytes to the server.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Reaction {
        let (mut plain, mut out) = (Vec::new(), OutputBuffer::default());
        let result = self
            .server
            .receive(&mut bytes.to_vec(), &mut plain, &mut out);
        let mut answers = Vec::new();
        for record in records(&out) {
            let mut record = record.to_vec();
            let (content_type, payload) = self.opener.open(&mut record).unwrap();
            answers.push((content_type, payload.to_vec()));
        }
        (result, plain, answers)
    }

    /// Sends one protected record to the server.
    pub(super) fn send_record(&mut self, content_type: ContentType, payload: &[u8]) -> Reaction {
        let record = self.seal(content_type, payload);
        self.send(&record)
    }
}

/// Splits bytes into records.
pub(super) fn records(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let len = 5 + usize::from(u16::from_be_bytes([bytes[3], bytes[4]]));
        let (record, rest) = bytes.split_at(len);
        records.push(record);
        bytes = rest;
    }
    records
}
