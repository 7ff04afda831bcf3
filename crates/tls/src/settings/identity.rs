//! Certificates with their private keys, read and checked while the configuration is read.

use std::sync::Arc;

use crate::{AlternativeName, Certificate, same_public_key};
use h2o_config::{Attribute, Attributes, Error, Kinds, Node};
use h2o_exchange::CertificateInfo;
use rustls::SignatureScheme;
use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};

/// A certificate chain and its private key.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    files: IdentityFiles,
    /// Position of the certificate in the configuration: `FILE:LINE`.
    place: Box<str>,
    pub(crate) certified_key: Arc<CertifiedKey>,
}

/// The files of an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IdentityFiles {
    certificate: Box<str>,
    key: Box<str>,
}

/// Why a pair of files cannot be used.
struct IdentityError {
    /// Whether the key is at fault, and not the certificate.
    is_of_key: bool,
    message: String,
    /// The error of the system or a parser, where it is not part of the message.
    reason: Option<String>,
}

/// The attributes of an element of `identity`.
pub(crate) const PAIR: [Attribute; 2] = [
    Attribute::required(
        "certificate-file",
        Kinds::SCALAR,
        "FILE",
        "Certificates in PEM form: the server's own first, then intermediate ones.",
    ),
    Attribute::required(
        "key-file",
        Kinds::SCALAR,
        "FILE",
        "Private key of the certificate in PEM form.",
    ),
];

impl Identity {
    /// Whether both were read from the same files.
    pub(crate) fn same_files(&self, other: &Self) -> bool {
        self.files == other.files
    }

    /// The files of certificate and key.
    pub(crate) fn files(&self) -> [&str; 2] {
        [&self.files.certificate, &self.files.key]
    }

    /// The server's own certificate.
    pub(crate) fn leaf(&self) -> Option<&CertificateDer<'static>> {
        self.certified_key.cert.first()
    }

    /// Position of the certificate in the configuration.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// Facts about that certificate, without listeners and hosts.
    pub(crate) fn info(&self) -> Option<CertificateInfo> {
        let leaf = Certificate::parse(self.leaf()?)?;
        Some(CertificateInfo {
            file: self.files.certificate.clone(),
            place: self.place.clone(),
            listeners: Vec::new(),
            hosts: Vec::new(),
            names: names_of(&leaf),
            not_before: leaf.not_before,
            not_after: leaf.not_after,
        })
    }

    /// Reads the files again. `None` if they are unchanged.
    ///
    /// # Errors
    /// The message to show.
    pub(crate) fn reload(&self) -> Result<Option<Self>, String> {
        let key = load_pair(&self.files).map_err(|fault| match fault.reason {
            Some(reason) => format!("{}: {reason}", fault.message),
            None => fault.message,
        })?;
        // The key must match the certificate, so an unchanged certificate means an unchanged key.
        let is_same = key.cert == self.certified_key.cert;
        Ok((!is_same).then(|| Self {
            certified_key: Arc::new(key),
            ..self.clone()
        }))
    }

    fn load(certificate_file: &Node, key_file: &Node) -> Result<Self, Error> {
        let files = IdentityFiles {
            certificate: certificate_file.scalar()?.into(),
            key: key_file.scalar()?.into(),
        };
        let certified_key = load_pair(&files).map_err(|fault| {
            let node = if fault.is_of_key {
                key_file
            } else {
                certificate_file
            };
            let error = node.error(fault.message);
            match fault.reason {
                Some(reason) => error.with_hint(reason),
                None => error,
            }
        })?;
        let pos = &certificate_file.pos;
        Ok(Self {
            files,
            place: format!("{}:{}", pos.file(), pos.line()).into(),
            certified_key: Arc::new(certified_key),
        })
    }
}

/// The names of a certificate, in their order in it.
fn names_of(certificate: &Certificate<'_>) -> Vec<Box<str>> {
    let text = |bytes: &[u8]| Box::from(String::from_utf8_lossy(bytes));
    match certificate.alternative_names() {
        Some(names) => names
            .flatten()
            .filter_map(|name| match name {
                AlternativeName::Dns(name) => Some(text(name)),
                AlternativeName::Ip(address) => Some(address.to_string().into()),
                AlternativeName::Other => None,
            })
            .collect(),
        None => certificate.common_name().map(text).into_iter().collect(),
    }
}

/// Reads the identities of an `ssl` mapping; the last one is the fallback.
///
/// # Errors
/// Those of `certificate-file`, `key-file` and `identity`.
pub(crate) fn parse(ssl: &Node, attributes: &Attributes<'_>) -> Result<Vec<Identity>, Error> {
    let certificate_file = attributes.get("certificate-file");
    let key_file = attributes.get("key-file");
    match (attributes.get("identity"), certificate_file.or(key_file)) {
        (Some(_), Some(node)) => Err(node.error(
            "when `identity` is used, all `certificate-file`-`key-file` pairs must be stored within that `identity`",
        )),
        (Some(identity), None) => {
            let pairs = identity.sequence()?;
            if pairs.is_empty() {
                return Err(identity.error("at least one identity must be specified"));
            }
            pairs.iter().map(parse_pair).collect()
        }
        (None, Some(_)) => {
            let certificate_file = attributes.require("certificate-file")?;
            let key_file = attributes.require("key-file")?;
            Ok(vec![Identity::load(certificate_file, key_file)?])
        }
        (None, None) => {
            let text = "missing TLS identity - certificate file is not specified, ACME configuration could not be found";
            Err(ssl
                .error(text)
                .with_hint("write `certificate-file` and `key-file`"))
        }
    }
}

fn parse_pair(node: &Node) -> Result<Identity, Error> {
    let attributes = node.attributes(&PAIR)?;
    Identity::load(
        attributes.require("certificate-file")?,
        attributes.require("key-file")?,
    )
}

fn load_pair(files: &IdentityFiles) -> Result<CertifiedKey, IdentityError> {
    let chain = load_chain(&files.certificate)?;
    let key = load_key(&files.key)?;
    let Some(leaf) = chain.first().and_then(|leaf| Certificate::parse(leaf)) else {
        return Err(certificate_fault(
            &files.certificate,
            "malformed certificate",
        ));
    };
    if !belongs_to(&*key, leaf.subject_public_key_info) {
        return Err(IdentityError {
            is_of_key: true,
            message: format!(
                "private key file:{} does not belong to certificate file:{}",
                files.key, files.certificate
            ),
            reason: None,
        });
    }
    Ok(CertifiedKey::new(chain, key))
}

fn certificate_fault(path: &str, reason: &str) -> IdentityError {
    IdentityError {
        is_of_key: false,
        message: format!("failed to load certificate file:{path}"),
        reason: Some(reason.to_owned()),
    }
}

fn load_chain(path: &str) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let fault = |reason: &str| certificate_fault(path, reason);
    let text = h2o_opener::read(path.as_ref()).map_err(|error| fault(&h2o_log::reason(&error)))?;
    let mut chain = Vec::new();
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(&text) {
        match section.map_err(|error| fault(&error.to_string()))? {
            (SectionKind::Certificate, der) => chain.push(CertificateDer::from(der)),
            (SectionKind::PublicKey, _) if chain.is_empty() => {
                return Err(fault("raw public keys are not supported yet"));
            }
            _ => {}
        }
    }
    if chain.is_empty() {
        return Err(fault("no certificate in PEM form"));
    }
    Ok(chain)
}

fn load_key(path: &str) -> Result<Arc<dyn SigningKey>, IdentityError> {
    let fault = |reason: &str| IdentityError {
        is_of_key: true,
        message: format!("failed to load private key file:{path}:{reason}"),
        reason: None,
    };
    let text = h2o_opener::read(path.as_ref()).map_err(|error| fault(&h2o_log::reason(&error)))?;
    if is_encrypted(&text) {
        return Err(fault(
            "encrypted keys are not supported; decrypt it with `openssl pkey`",
        ));
    }
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => fault("no private key in PEM form"),
        error => fault(&error.to_string()),
    })?;
    rustls::crypto::aws_lc_rs::sign::any_supported_type(&key)
        .map_err(|_| fault("not an RSA (2048 to 8192 bits), ECDSA or Ed25519 key"))
}

/// PKCS#8 has a separate label for encrypted keys, the older formats a header line (RFC 1421 §4.6.1.1).
fn is_encrypted(pem: &[u8]) -> bool {
    let contains = |needle: &[u8]| pem.windows(needle.len()).any(|window| window == needle);
    contains(b"-----BEGIN ENCRYPTED PRIVATE KEY-----") || contains(b"Proc-Type: 4,ENCRYPTED")
}

fn belongs_to(key: &dyn SigningKey, public_key: &[u8]) -> bool {
    // A key without access to its public half is assumed to match, as rustls does.
    key.public_key()
        .is_none_or(|known| same_public_key(&known, public_key))
}

/// Chooses among the identities of an entry.
#[derive(Debug)]
pub(crate) struct Resolver {
    /// TLS 1.3: the first identity whose key the client can verify. TLS 1.2: the fallback only (H2O compatibility: H2O
    /// uses one certificate there).
    pub(crate) preferred: Vec<Arc<CertifiedKey>>,
    pub(crate) fallback: Arc<CertifiedKey>,
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let offered: Vec<SignatureScheme> = hello
            .signature_schemes()
            .iter()
            .copied()
            .filter(is_for_tls13)
            .collect();
        let fitting = self
            .preferred
            .iter()
            .find(|identity| identity.key.choose_scheme(&offered).is_some());
        Some(Arc::clone(fitting.unwrap_or(&self.fallback)))
    }
}

/// RFC 8446 §4.2.3: PKCS#1 and SHA-1 are only for certificates.
fn is_for_tls13(scheme: &SignatureScheme) -> bool {
    !matches!(
        *scheme,
        SignatureScheme::RSA_PKCS1_SHA1
            | SignatureScheme::RSA_PKCS1_SHA256
            | SignatureScheme::RSA_PKCS1_SHA384
            | SignatureScheme::RSA_PKCS1_SHA512
            | SignatureScheme::ECDSA_SHA1_Legacy
    )
}
