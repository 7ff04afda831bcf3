//! The settings of the `ssl` mapping of `listen`.

pub(crate) mod cipher_list;
mod client_verifier;
pub(crate) mod identity;

use std::sync::Arc;

use aws_lc_rs::digest;
use h2o_config::{Attribute, Attributes, Error, Kinds, Node};
use h2o_exchange::CertificateInfo;
use rustls::crypto::SupportedKxGroup;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, SupportedCipherSuite};

use crate::settings::client_verifier::ClientVerifier;
use crate::settings::identity::{Identity, ObtainedFiles};
use crate::stapling::Staple;
use crate::versions::{Version, Versions};
use crate::{groups, suites};

/// Number of tickets that a TLS 1.3 client gets at most by default, if it asks for several (RFC 9149).
const DEFAULT_MAX_TICKETS: usize = 4;

/// A valid `ssl` mapping, with certificates and keys loaded.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// The certificates with their keys, in order of preference; the last one is the fallback.
    pub(crate) identities: Vec<Identity>,
    pub(crate) versions: Versions,
    pub(crate) tls12_suites: Vec<SupportedCipherSuite>,
    pub(crate) tls13_suites: Vec<SupportedCipherSuite>,
    pub(crate) groups: Vec<&'static dyn SupportedKxGroup>,
    /// Whether the server's order of cipher suites decides, rather than the client's.
    pub(crate) prefer_our_order: bool,
    pub(crate) client_ca: Option<ClientCa>,
    pub(crate) max_tickets: usize,
    /// The origins for ORIGIN frames (RFC 8336), in lower case.
    pub origins: Option<Arc<[Box<str>]>>,
}

/// The authorities that issue client certificates (`client-ca-file`).
#[derive(Clone, Debug)]
pub(crate) struct ClientCa {
    pub(crate) path: Arc<str>,
    pub(crate) verifier: Arc<dyn ClientCertVerifier>,
    /// A digest of the authorities of client certificates, by which sessions under different requirements are kept apart.
    pub(crate) digest: [u8; 32],
}

/// The attributes of an `ssl` mapping.
pub const ATTRIBUTES: [Attribute; 19] = [
    Attribute::optional(
        "acme-names",
        Kinds::SCALAR.or(Kinds::SEQUENCE),
        "NAME, or a sequence of those",
        "",
        "Further names for the certificate that is obtained by [`acme`](#acme). No certificate can be obtained for a name with a \
         wildcard: the certificate of a host with such a name has only the names given here.",
    ),
    Attribute::optional(
        "certificate-file",
        Kinds::SCALAR,
        "FILE",
        "mandatory unless `identity` or [`acme`](#acme) is given",
        identity::CERTIFICATE_HELP,
    ),
    Attribute::optional(
        "key-file",
        Kinds::SCALAR,
        "FILE",
        "mandatory unless `identity` or [`acme`](#acme) is given",
        "Private key of the certificate in PEM form (PKCS#8, PKCS#1 or SEC1), not encrypted.",
    ),
    Attribute::optional(
        "identity",
        Kinds::SEQUENCE.with_attributes(&identity::PAIR),
        "a sequence of mappings",
        "",
        "Several certificates for the same names, an ECDSA and an RSA one for example. The first one that the client can verify is \
         used; if the client can verify none of them, the last one.",
    ),
    Attribute::optional(
        "min-version",
        Kinds::SCALAR,
        "TLSv1.2|TLSv1.3",
        "TLSv1.2",
        "Lowest TLS version that clients may use. Names of older versions, such as `TLSv1`, mean `TLSv1.2`, with a warning.",
    )
    .aliases(&["minimum-version"]),
    Attribute::optional(
        "max-version",
        Kinds::SCALAR,
        "TLSv1.2|TLSv1.3",
        "TLSv1.3",
        "Highest TLS version that clients may use.",
    )
    .aliases(&["maximum-version"]),
    Attribute::optional(
        "cipher-suite",
        Kinds::SCALAR,
        "LIST",
        "all suites with ECDHE and AES-GCM or ChaCha20-Poly1305",
        "Cipher suites of TLS 1.2, as OpenSSL writes them. Suites that are not supported are left out with a warning.",
    ),
    Attribute::optional(
        "cipher-suite-tls1.3",
        Kinds::SEQUENCE,
        "a sequence of names",
        "`TLS_AES_256_GCM_SHA384`, `TLS_AES_128_GCM_SHA256`, `TLS_CHACHA20_POLY1305_SHA256`",
        "Cipher suites of TLS 1.3 in order of preference.",
    ),
    Attribute::optional(
        "cipher-preference",
        Kinds::SCALAR,
        "client|server",
        "client",
        "Whose order of cipher suites decides.",
    ),
    Attribute::optional(
        "key-exchange-tls1.3",
        Kinds::SEQUENCE,
        "a sequence of names",
        "`x25519mlkem768`, `x25519`, `secp256r1`, `secp384r1`",
        "Key exchange groups of TLS 1.3 in order of preference; `h2o --version` lists all.",
    ),
    Attribute::optional(
        "dh-file",
        Kinds::SCALAR,
        "FILE",
        "",
        "Ignored with a warning: finite-field Diffie-Hellman is not supported.",
    ),
    Attribute::optional(
        "client-ca-file",
        Kinds::SCALAR,
        "FILE",
        "clients need no certificate",
        "Clients must present a certificate (PEM) that the file contains or that one of its authorities has signed; the handshake fails otherwise.",
    ),
    Attribute::optional(
        "ocsp-update-interval",
        Kinds::SCALAR,
        "SECONDS",
        "14400",
        "How often the status of the certificate is fetched from its OCSP responder, to be stapled to handshakes; `0`: never. \
         Nothing is fetched for certificates that name no responder.",
    ),
    Attribute::optional(
        "ocsp-max-failures",
        Kinds::SCALAR,
        "NUMBER",
        "3",
        "How many fetches in a row may fail before the last response is no longer stapled. A response that has expired \
         is never stapled.",
    ),
    Attribute::optional(
        "ocsp-update-cmd",
        Kinds::SCALAR,
        "COMMAND",
        "the server asks the responder itself",
        "A program that fetches a response: it gets the certificate file on standard input and writes the response in DER to \
         standard output. Exit status 75: a later attempt may succeed; any other except 0: no later one will, so the command is \
         not run again until the certificate changes. What the program writes is checked like a response that the server has \
         fetched itself.",
    ),
    Attribute::optional(
        "neverbleed",
        Kinds::SCALAR,
        "ON|OFF",
        "OFF",
        "Whether private keys are kept in a process of their own, which signs for the server.",
    ),
    Attribute::optional(
        "max-tickets",
        Kinds::SCALAR,
        "0 to 255",
        "4",
        "How many tickets of TLS 1.3 a client that asks for several gets at most on a connection. `0` stands for the default.",
    ),
    Attribute::optional(
        "http2-origin-frame",
        Kinds::ANY,
        "ORIGIN, or a sequence of those",
        "",
        "Origins such as `https://example.com` that HTTP/2 clients may ask for over the same connection (ORIGIN frame, \
         RFC 8336). If several `ssl` mappings have the same address, the origins of the first are used.",
    ),
    Attribute::optional(
        "ech",
        Kinds::SEQUENCE,
        "a sequence of mappings",
        "",
        "Ignored with a warning: Encrypted Client Hello is not supported yet.",
    ),
];

/// The message for a `cipher-suite` without supported suites.
const SUITES_OF_TLS12: &str = "of the suites for TLS 1.2, those with ECDHE and AES-GCM or ChaCha20-Poly1305 are supported, and `cipher-suite` has none of them";

impl TlsSettings {
    fn new(identities: Vec<Identity>) -> Self {
        Self {
            identities,
            versions: Versions::default(),
            tls12_suites: cipher_list::default_suites(),
            tls13_suites: suites::default_tls13(),
            groups: groups::default_groups(),
            prefer_our_order: false,
            client_ca: None,
            origins: None,
            max_tickets: DEFAULT_MAX_TICKETS,
        }
    }

    /// Whether certificates and keys of two mappings were read from the same files: the second mapping then only adds a host name.
    pub fn same_identity(&self, other: &Self) -> bool {
        self.identities.len() == other.identities.len()
            && self
                .identities
                .iter()
                .zip(&other.identities)
                .all(|(one, other)| one.same_files(other))
    }

    /// Whether both `ssl` mappings have the same values of all attributes, and their certificate files the same content.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        let names = |groups: &[&'static dyn SupportedKxGroup]| -> Vec<_> {
            groups.iter().map(|group| group.name()).collect()
        };
        let authority =
            |ca: &Option<ClientCa>| ca.as_ref().map(|ca| (Arc::clone(&ca.path), ca.digest));
        self.same_identity(other)
            && (self.identities.iter().zip(&other.identities))
                .all(|(one, other)| one.presents_same(other))
            && self.versions == other.versions
            && self.tls12_suites == other.tls12_suites
            && self.tls13_suites == other.tls13_suites
            && names(&self.groups) == names(&other.groups)
            && self.prefer_our_order == other.prefer_our_order
            && authority(&self.client_ca) == authority(&other.client_ca)
            && self.max_tickets == other.max_tickets
            && self.origins == other.origins
    }

    /// The paths of the files of certificates, keys and client authorities.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let authority = self.client_ca.as_ref().map(|ca| &*ca.path);
        let identities = self.identities.iter().flat_map(Identity::files);
        identities.chain(authority)
    }

    /// Whether clients may use TLS 1.3.
    #[must_use]
    pub fn has_tls13(&self) -> bool {
        self.versions.contains(Version::Tls13)
    }

    /// The `client-ca-file`, if clients must present a certificate.
    pub fn client_authority(&self) -> Option<&Arc<str>> {
        self.client_ca.as_ref().map(|ca| &ca.path)
    }

    /// Position of the first certificate in the configuration: `FILE:LINE`.
    pub fn place(&self) -> &str {
        self.identities.first().map_or("", Identity::place)
    }

    /// Compares the `client-ca-file` of this mapping with that of an earlier mapping, which is used in the place of this one.
    /// `ssl` is the configuration node of this mapping.
    ///
    /// # Errors
    /// If they differ: one of them would have no effect.
    pub fn must_agree_on_clients(&self, earlier: &Self, ssl: &Node) -> Result<(), Error> {
        if self.client_authority() == earlier.client_authority() {
            return Ok(());
        }
        let name = |settings: &Self| match settings.client_authority() {
            Some(path) => format!("`client-ca-file: {path}`"),
            None => "no `client-ca-file`".to_owned(),
        };
        let attributes = ssl.attributes(&ATTRIBUTES)?;
        let node = attributes.get("client-ca-file").unwrap_or(ssl);
        let error = node.error(format!(
            "the `ssl` at {} has the same address and is used for this host as well: that `ssl` has {}, this `ssl` has {}",
            earlier.place(),
            name(earlier),
            name(self),
        ));
        Err(error.with_hint(
            "write the same `client-ca-file` in both, or give the hosts different certificates or addresses",
        ))
    }

    /// Warns of settings of this mapping that have no effect because an earlier mapping with the same certificates is used in its
    /// place. `ssl` is the configuration node of this mapping.
    pub fn warn_of_lost(&self, earlier: &Self, ssl: &Node, warnings: &mut Vec<String>) {
        let Ok(attributes) = ssl.attributes(&ATTRIBUTES) else {
            return;
        };
        let names = |groups: &[&'static dyn SupportedKxGroup]| {
            let names = groups.iter().map(|group| group.name());
            names.collect::<Vec<_>>()
        };
        let cases = [
            ("min-version", self.versions != earlier.versions),
            ("max-version", self.versions != earlier.versions),
            ("cipher-suite", self.tls12_suites != earlier.tls12_suites),
            (
                "cipher-suite-tls1.3",
                self.tls13_suites != earlier.tls13_suites,
            ),
            (
                "cipher-preference",
                self.prefer_our_order != earlier.prefer_our_order,
            ),
            (
                "key-exchange-tls1.3",
                names(&self.groups) != names(&earlier.groups),
            ),
            ("max-tickets", self.max_tickets != earlier.max_tickets),
            ("http2-origin-frame", self.origins != earlier.origins),
        ];
        for (name, is_lost) in cases {
            if let Some(node) = attributes.get(name).filter(|_| is_lost) {
                warnings.push(format!(
                    "[warning] [{}:{}] in command listen, `{name}` has no effect: the `ssl` at {} has the same address and certificate, and its settings are used",
                    node.pos.file(),
                    node.pos.line(),
                    earlier.place(),
                ));
            }
        }
    }

    /// Facts about the certificates; their listeners and hosts are left empty.
    pub fn certificates(&self) -> impl Iterator<Item = CertificateInfo> {
        self.identities.iter().filter_map(Identity::info)
    }

    /// The OCSP responses that are stapled to the certificates.
    pub fn staples(&self) -> impl Iterator<Item = &Arc<Staple>> {
        self.identities.iter().filter_map(Identity::staple)
    }

    /// Reads the files of certificates, keys and authorities again. A file that cannot be used keeps its loaded
    /// content, and adds a message to `failures`. Returns the new settings if anything has changed.
    pub fn reload(&self, failures: &mut Vec<String>) -> Option<Self> {
        let mut renewed = self.clone();
        let mut is_changed = false;
        for identity in &mut renewed.identities {
            match identity.reload() {
                Ok(None) => {}
                Ok(Some(new)) => {
                    *identity = new;
                    is_changed = true;
                }
                Err(text) => failures.push(text),
            }
        }
        if let Some(ca) = &mut renewed.client_ca {
            match ClientCa::load(&ca.path) {
                Ok(new) if new.digest == ca.digest => {}
                Ok(new) => {
                    *ca = new;
                    is_changed = true;
                }
                Err(reason) => failures.push(format!("{}: {reason}", ClientCa::fault(&ca.path))),
            }
        }
        is_changed.then_some(renewed)
    }
}

/// Reads an `ssl` mapping. If it has no certificate, the one that the server obtains by ACME is used.
///
/// # Errors
/// A message with its position in the configuration.
pub fn parse(
    node: &Node,
    obtained: Option<&ObtainedFiles>,
    warnings: &mut Vec<String>,
) -> Result<TlsSettings, Error> {
    let attributes = node.attributes(&ATTRIBUTES)?;
    let identities = identity::parse(node, &attributes, obtained, warnings)?;
    let warn: &mut dyn FnMut(&Node, &str) = &mut |node: &Node, text: &str| {
        warnings.push(format!(
            "[warning] [{}:{}] in command listen, {text}",
            node.pos.file(),
            node.pos.line()
        ));
    };
    let mut settings = TlsSettings::new(identities);
    settings.versions = Versions::parse(
        attributes.get("min-version"),
        attributes.get("max-version"),
        warn,
    )?;
    if settings.identities.iter().any(Identity::is_raw_key) && !settings.has_tls13() {
        let error = attributes.get("max-version").unwrap_or(node);
        return Err(error.error("a raw public key needs TLS 1.3"));
    }
    if let Some(node) = attributes.get("cipher-suite") {
        settings.tls12_suites = cipher_list::parse(node, warn)?;
        if settings.tls12_suites.is_empty() {
            settings.versions = settings.versions.without_tls12().ok_or_else(|| {
                node.error("failed to setup SSL cipher suite")
                    .with_hint(format!(
                        "{SUITES_OF_TLS12}, and `max-version` leaves no TLS 1.3"
                    ))
            })?;
            warn(
                node,
                &format!("{SUITES_OF_TLS12}: only clients with TLS 1.3 are served"),
            );
        }
    }
    if let Some(node) = attributes.get("cipher-suite-tls1.3") {
        settings.tls13_suites = suites::parse_tls13(node, warn)?;
    }
    if let Some(node) = attributes.get("cipher-preference") {
        settings.prefer_our_order = node.one_of(&["client", "server"])? == 1;
    }
    if let Some(node) = attributes.get("key-exchange-tls1.3") {
        settings.groups = groups::parse(node, warn)?;
    }
    if let Some(node) = attributes.get("client-ca-file") {
        let path = node.scalar()?;
        let fault = |reason: String| node.error(ClientCa::fault(path)).with_hint(reason);
        settings.client_ca = Some(ClientCa::load(path).map_err(fault)?);
    }
    if let Some(node) = attributes.get("max-tickets") {
        settings.max_tickets = match node.integer("%u", 0..=255)? {
            0 => DEFAULT_MAX_TICKETS,
            count => count,
        };
    }
    if let Some(node) = attributes.get("http2-origin-frame") {
        // H2O compatibility: the messages are H2O's.
        let wrong = if node.as_sequence().is_some() {
            "element of a sequence passed to http2-origin-frame must be a scalar"
        } else {
            "argument to `http2-origin-frame` must be either a scalar or a sequence"
        };
        let read = |origin: &Node| {
            let text = origin.scalar().map_err(|_| origin.error(wrong))?;
            Ok(text.to_ascii_lowercase().into())
        };
        let origins: Result<Vec<Box<str>>, Error> = node.one_or_more().iter().map(read).collect();
        settings.origins = Some(origins?.into());
    }
    check_without_effect(&attributes, warn)?;
    Ok(settings)
}

/// Checks the values of attributes that have no effect yet, and warns that they have none.
fn check_without_effect(
    attributes: &Attributes<'_>,
    warn: &mut dyn FnMut(&Node, &str),
) -> Result<(), Error> {
    type Check = fn(&Node) -> Result<(), Error>;
    let cases: [(&str, Check, &str); 2] = [
        (
            "dh-file",
            |node| node.scalar().map(drop),
            "finite-field Diffie-Hellman is not supported",
        ),
        (
            "ech",
            |node| node.sequence().map(drop),
            "Encrypted Client Hello is not supported yet",
        ),
    ];
    for (name, check, reason) in cases {
        if let Some(node) = attributes.get(name) {
            check(node)?;
            warn(node, &format!("`{name}` has no effect: {reason}"));
        }
    }
    Ok(())
}

impl ClientCa {
    fn fault(path: &str) -> String {
        format!("failed to load client CA file:{path}")
    }

    /// Reads a file of client authorities.
    ///
    /// # Errors
    /// The reason, for use after [`Self::fault`].
    fn load(path: &str) -> Result<Self, String> {
        let text = h2o_opener::read(path.as_ref()).map_err(|error| h2o_log::reason(&error))?;
        let mut roots = RootCertStore::empty();
        let mut listed = Vec::new();
        let mut digest = digest::Context::new(&digest::SHA256);
        for certificate in CertificateDer::pem_slice_iter(&text) {
            let certificate = certificate.map_err(|error| error.to_string())?;
            digest.update(&certificate);
            let text = |error: rustls::Error| error.to_string();
            roots.add(certificate.clone()).map_err(text)?;
            listed.push(certificate);
        }
        if roots.is_empty() {
            return Err("no certificate in PEM form".to_owned());
        }
        let verifier = Arc::new(ClientVerifier::new(roots, listed)?);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.finish().as_ref());
        Ok(Self {
            path: path.into(),
            verifier,
            digest: bytes,
        })
    }
}
