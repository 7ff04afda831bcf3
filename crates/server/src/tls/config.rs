//! The `ssl` mapping of `listen`.

use std::fs;
use std::sync::Arc;

use aws_lc_rs::digest;
use h2o_config::{Attribute, Error, Kinds, Node};
use rustls::crypto::SupportedKxGroup;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, SupportedCipherSuite};

use super::identity::{self, Identity, io_reason};
use super::versions::Versions;
use super::{cipher_list, groups, suites};

/// Tickets for a client that asks for several (RFC 9149).
const DEFAULT_MAX_TICKETS: usize = 4;

/// The checked content of an `ssl` mapping, certificates and keys loaded.
#[derive(Clone, Debug)]
pub(crate) struct TlsSettings {
    /// In order of preference; the last is the fallback.
    pub(super) identities: Vec<Identity>,
    pub(super) versions: Versions,
    pub(super) tls12_suites: Vec<SupportedCipherSuite>,
    pub(super) tls13_suites: Vec<SupportedCipherSuite>,
    pub(super) groups: Vec<&'static dyn SupportedKxGroup>,
    /// Our order of cipher suites counts, not the client's.
    pub(super) prefer_our_order: bool,
    pub(super) client_ca: Option<ClientCa>,
    pub(super) max_tickets: usize,
    ocsp: OcspSettings,
    origins: Vec<Box<str>>,
}

/// `ocsp-update-interval` and its companions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OcspSettings {
    /// Seconds; 0 disables stapling.
    pub(crate) update_interval_secs: u64,
    pub(crate) max_failures: u32,
    /// Resolved like other commands of the installation if it is not absolute.
    pub(crate) update_command: Box<str>,
}

impl Default for OcspSettings {
    fn default() -> Self {
        Self {
            update_interval_secs: 14_400,
            max_failures: 3,
            update_command: "share/h2o/fetch-ocsp-response".into(),
        }
    }
}

/// The authorities that client certificates must come from.
#[derive(Clone, Debug)]
pub(super) struct ClientCa {
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    /// Of the certificates, to keep sessions of other requirements apart.
    pub(super) digest: [u8; 32],
}

const ATTRIBUTES: [Attribute; 18] = [
    Attribute::optional("certificate-file", Kinds::SCALAR),
    Attribute::optional("key-file", Kinds::SCALAR),
    Attribute::optional("identity", Kinds::SEQUENCE),
    Attribute::optional("min-version", Kinds::SCALAR).aliases(&["minimum-version"]),
    Attribute::optional("max-version", Kinds::SCALAR).aliases(&["maximum-version"]),
    Attribute::optional("cipher-suite", Kinds::SCALAR),
    Attribute::optional("cipher-suite-tls1.3", Kinds::SEQUENCE),
    Attribute::optional("cipher-preference", Kinds::SCALAR),
    Attribute::optional("key-exchange-tls1.3", Kinds::SEQUENCE),
    Attribute::optional("dh-file", Kinds::SCALAR),
    Attribute::optional("client-ca-file", Kinds::SCALAR),
    Attribute::optional("ocsp-update-interval", Kinds::SCALAR),
    Attribute::optional("ocsp-max-failures", Kinds::SCALAR),
    Attribute::optional("ocsp-update-cmd", Kinds::SCALAR),
    Attribute::optional("neverbleed", Kinds::SCALAR),
    Attribute::optional("max-tickets", Kinds::SCALAR),
    Attribute::optional("http2-origin-frame", Kinds::SCALAR.or(Kinds::SEQUENCE)),
    Attribute::optional("ech", Kinds::SEQUENCE),
];

impl TlsSettings {
    /// The defaults, for a certificate that was made in memory.
    ///
    /// # Errors
    /// What is wrong with the chain or the key.
    pub(crate) fn from_der(
        chain: Vec<CertificateDer<'static>>,
        key: &PrivateKeyDer<'_>,
    ) -> Result<Self, String> {
        Ok(Self::new(vec![Identity::from_der(chain, key)?]))
    }

    fn new(identities: Vec<Identity>) -> Self {
        Self {
            identities,
            versions: Versions::default(),
            tls12_suites: cipher_list::default_suites(),
            tls13_suites: suites::default_tls13(),
            groups: groups::default_groups(),
            prefer_our_order: false,
            client_ca: None,
            max_tickets: DEFAULT_MAX_TICKETS,
            ocsp: OcspSettings::default(),
            origins: Vec::new(),
        }
    }

    /// True if certificates and keys were read from the same files: then the second mapping only adds a name.
    pub(crate) fn same_identity(&self, other: &Self) -> bool {
        self.identities.len() == other.identities.len()
            && self
                .identities
                .iter()
                .zip(&other.identities)
                .all(|(one, other)| one.same_files(other))
    }

    /// The files that certificates were read from, in order.
    pub(crate) fn certificate_files(&self) -> impl Iterator<Item = &str> {
        self.identities
            .iter()
            .filter_map(Identity::certificate_file)
    }

    /// How OCSP responses are obtained.
    pub(crate) fn ocsp(&self) -> &OcspSettings {
        &self.ocsp
    }

    /// What an ORIGIN frame of HTTP/2 announces, lower case.
    pub(crate) fn origins(&self) -> &[Box<str>] {
        &self.origins
    }
}

/// Reads an `ssl` mapping.
///
/// # Errors
/// What the configuration says wrong, at its place.
pub(crate) fn parse(node: &Node, warnings: &mut Vec<String>) -> Result<TlsSettings, Error> {
    let attributes = node.attributes(&ATTRIBUTES)?;
    let warn: &mut dyn FnMut(&Node, &str) = &mut |node: &Node, text: &str| {
        warnings.push(format!(
            "[warning] [{}:{}] in command listen, {text}",
            node.pos.file(),
            node.pos.line()
        ));
    };
    let mut settings = TlsSettings::new(identity::parse(node, &attributes)?);
    settings.versions = Versions::parse(
        attributes.get("min-version"),
        attributes.get("max-version"),
        warn,
    )?;
    if let Some(node) = attributes.get("cipher-suite") {
        settings.tls12_suites = cipher_list::parse(node, warn)?;
    }
    if let Some(node) = attributes.get("cipher-suite-tls1.3") {
        settings.tls13_suites = suites::parse_tls13(node, warn)?;
    }
    if let Some(node) = attributes.get("cipher-preference") {
        settings.prefer_our_order = node.one_of(&["client", "server"])? == 1;
    }
    if let Some(node) = attributes.get("key-exchange-tls1.3") {
        settings.groups = groups::parse(node)?;
    }
    if let Some(node) = attributes.get("dh-file") {
        warn(
            node,
            "`dh-file` has no effect: finite-field Diffie-Hellman is not supported",
        );
    }
    if let Some(node) = attributes.get("client-ca-file") {
        settings.client_ca = Some(ClientCa::load(node)?);
    }
    if let Some(node) = attributes.get("ocsp-update-interval") {
        settings.ocsp.update_interval_secs = node.integer("%lu", 0..=u64::MAX)?;
    }
    if let Some(node) = attributes.get("ocsp-max-failures") {
        settings.ocsp.max_failures = node.integer("%u", 0..=u64::from(u32::MAX))?;
    }
    if let Some(node) = attributes.get("ocsp-update-cmd") {
        settings.ocsp.update_command = node.scalar()?.into();
    }
    if let Some(node) = attributes.get("neverbleed") {
        // Keys stay in the process either way.
        node.on_off()?;
    }
    if let Some(node) = attributes.get("max-tickets") {
        settings.max_tickets = match node.integer("%u", 0..=255)? {
            0 => DEFAULT_MAX_TICKETS,
            count => count,
        };
    }
    if let Some(node) = attributes.get("http2-origin-frame") {
        for origin in node.one_or_more() {
            settings
                .origins
                .push(origin.scalar()?.to_ascii_lowercase().into());
        }
    }
    if let Some(node) = attributes.get("ech") {
        warn(
            node,
            "`ech` has no effect: Encrypted Client Hello is not supported yet",
        );
    }
    Ok(settings)
}

impl ClientCa {
    fn load(node: &Node) -> Result<Self, Error> {
        let path = node.scalar()?;
        let fault = |reason: String| {
            node.error(format!("failed to load client CA file:{path}"))
                .with_hint(reason)
        };
        let text = fs::read(path).map_err(|error| fault(io_reason(&error)))?;
        let mut roots = RootCertStore::empty();
        let mut digest = digest::Context::new(&digest::SHA256);
        for certificate in CertificateDer::pem_slice_iter(&text) {
            let certificate = certificate.map_err(|error| fault(error.to_string()))?;
            digest.update(&certificate);
            roots
                .add(certificate)
                .map_err(|error| fault(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(fault("no certificate in PEM form".to_owned()));
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| fault(error.to_string()))?;
        let mut octets = [0; 32];
        octets.copy_from_slice(digest.finish().as_ref());
        Ok(Self {
            verifier,
            digest: octets,
        })
    }
}
