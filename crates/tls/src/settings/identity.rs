//! Certificates with their private keys, read and checked while the configuration is read.

use std::path::Path;
use std::sync::Arc;

use crate::stapling::{PresentedKey, Staple, StaplingSettings};
use crate::{AlternativeName, Certificate, same_public_key};
use h2o_config::{Attribute, Attributes, Error, Kinds, Node};
use h2o_exchange::CertificateInfo;
use rustls::SignatureScheme;
use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};

/// A certificate chain, or a raw public key (RFC 7250), and its private key.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    files: IdentityFiles,
    /// Position of the certificate in the configuration: `FILE:LINE`.
    place: Box<str>,
    /// The certificate chain and the private key. If [`Self::is_raw_key`], the chain has one element, which is the raw public key.
    certified_key: Arc<CertifiedKey>,
    is_raw_key: bool,
    stapling: StaplingSettings,
    staple: Option<Arc<Staple>>,
    /// Whether ACME obtains the files, and a self-signed certificate is used until they are there.
    is_obtained: bool,
    /// Whether the certificate is this self-signed one.
    is_stand_in: bool,
}

/// The files of a certificate that the server obtains by ACME.
#[derive(Clone, Debug)]
pub struct ObtainedFiles {
    /// The names that the certificate is for.
    pub names: Vec<Box<str>>,
    /// The path of the file with the certificates, in PEM form.
    pub certificate: Box<str>,
    /// The path of the file with the private key, in PEM form.
    pub key: Box<str>,
}

/// The paths of the files of an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IdentityFiles {
    certificate: Box<str>,
    key: Box<str>,
    /// Whether the private key is kept in the key process (`neverbleed`).
    is_isolated: bool,
}

/// What was read from the files of an identity.
struct LoadedPair {
    certified_key: CertifiedKey,
    /// Whether the certificate file has a raw public key in the place of a certificate.
    is_raw_key: bool,
}

/// What an `ssl` mapping sets for all its identities.
struct IdentityOptions {
    /// Whether private keys are kept in the key process (`neverbleed`).
    is_isolated: bool,
    stapling: StaplingSettings,
}

/// Why a certificate file and a key file cannot be used.
struct IdentityError {
    /// Whether the error is in the key file, and not in the certificate file.
    is_of_key: bool,
    message: String,
    /// The error of the system or a parser, if `message` does not contain it.
    reason: Option<String>,
}

/// The help text of the attribute `certificate-file`.
pub(super) const CERTIFICATE_HELP: &str = "Certificates in PEM form: the server's own first, then intermediate ones. Or a `PUBLIC KEY` in PEM form, which clients of TLS \
     1.3 get as it is (raw public key, RFC 7250).";

/// The attributes of an element of `identity`.
pub(crate) const PAIR: [Attribute; 2] = [
    Attribute::required("certificate-file", Kinds::SCALAR, "FILE", CERTIFICATE_HELP),
    Attribute::required(
        "key-file",
        Kinds::SCALAR,
        "FILE",
        "Private key of the certificate in PEM form.",
    ),
];

impl Identity {
    /// Whether both identities were read from the same files.
    pub(crate) fn same_files(&self, other: &Self) -> bool {
        self.files == other.files
    }

    /// The paths of the files with the certificate and the key.
    pub(crate) fn files(&self) -> [&str; 2] {
        [&self.files.certificate, &self.files.key]
    }

    /// Whether both identities present the same certificate, with OCSP responses of the same settings.
    pub(crate) fn presents_same(&self, other: &Self) -> bool {
        self.certified_key.cert == other.certified_key.cert && self.stapling == other.stapling
    }

    /// The certificate and key that clients get, with the OCSP response that is stapled.
    pub(crate) fn presented(&self) -> Arc<PresentedKey> {
        let key = Arc::clone(&self.certified_key);
        Arc::new(PresentedKey::new(key, self.staple.clone()))
    }

    /// The OCSP response that is stapled to the certificate.
    pub(crate) const fn staple(&self) -> Option<&Arc<Staple>> {
        self.staple.as_ref()
    }

    /// Whether clients get a raw public key in the place of a certificate.
    pub(crate) const fn is_raw_key(&self) -> bool {
        self.is_raw_key
    }

    fn with_staple(mut self) -> Self {
        if self.is_raw_key {
            self.staple = None;
            return self;
        }
        let (file, chain) = (&self.files.certificate, &self.certified_key.cert);
        self.staple = Staple::of(file, chain, &self.stapling);
        self
    }

    /// The server's own certificate, or its raw public key.
    pub(crate) fn leaf(&self) -> Option<&CertificateDer<'static>> {
        self.certified_key.cert.first()
    }

    /// The position at which the configuration names the certificate, as `FILE:LINE`.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// Facts about the server's own certificate; its listeners and hosts are left empty.
    pub(crate) fn info(&self) -> Option<CertificateInfo> {
        let leaf = Certificate::parse(self.leaf()?)?;
        Some(CertificateInfo {
            file: self.files.certificate.clone(),
            place: self.place.clone(),
            listeners: Vec::new(),
            hosts: Vec::new(),
            names: names_of(&leaf),
            is_obtained: self.is_obtained,
            is_stand_in: self.is_stand_in,
            not_before: leaf.not_before,
            not_after: leaf.not_after,
        })
    }

    /// Reads the files again. `None` if they are unchanged.
    ///
    /// # Errors
    /// The message for the error log.
    pub(crate) fn reload(&self) -> Result<Option<Self>, String> {
        let is_missing = || {
            let files = self.files();
            files.iter().any(|file| !Path::new(file).exists())
        };
        if self.is_obtained && is_missing() {
            return Ok(None);
        }
        let LoadedPair {
            certified_key: key,
            is_raw_key,
        } = load_pair(&self.files).map_err(IdentityError::text)?;
        // The key must match the certificate, so an unchanged certificate means an unchanged key.
        let is_same = key.cert == self.certified_key.cert;
        Ok((!is_same).then(|| {
            let renewed = Self {
                certified_key: Arc::new(key),
                is_raw_key,
                is_stand_in: false,
                ..self.clone()
            };
            renewed.with_staple()
        }))
    }

    fn load(
        certificate_file: &Node,
        key_file: &Node,
        options: &IdentityOptions,
    ) -> Result<Self, Error> {
        let files = IdentityFiles {
            certificate: certificate_file.scalar()?.into(),
            key: key_file.scalar()?.into(),
            is_isolated: options.is_isolated,
        };
        let pair = load_pair(&files).map_err(|fault| {
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
            certified_key: Arc::new(pair.certified_key),
            is_raw_key: pair.is_raw_key,
            stapling: options.stapling.clone(),
            staple: None,
            is_obtained: false,
            is_stand_in: false,
        }
        .with_staple())
    }

    /// Loads the files that ACME has obtained. As long as the files do not exist, or cannot be used, clients get a self-signed
    /// certificate.
    fn load_obtained(
        ssl: &Node,
        obtained: &ObtainedFiles,
        options: &IdentityOptions,
        warnings: &mut Vec<String>,
    ) -> Result<Self, Error> {
        let files = IdentityFiles {
            certificate: obtained.certificate.clone(),
            key: obtained.key.clone(),
            is_isolated: options.is_isolated,
        };
        let is_there = Path::new(&*files.certificate).exists();
        let loaded = match load_pair(&files) {
            Ok(pair) => Some(pair.certified_key),
            Err(fault) => {
                if is_there {
                    let text = format!(
                        "{}; the server uses a certificate of its own until a new one is obtained",
                        fault.text()
                    );
                    warnings.push(ssl.error(text).in_command("listen", &ssl.pos).to_warning());
                }
                None
            }
        };
        let is_stand_in = loaded.is_none();
        let certified_key = match loaded {
            Some(pair) => pair,
            None => self_signed(&obtained.names).map_err(|text| ssl.error(text))?,
        };
        Ok(Self {
            files,
            place: format!("{}:{}", ssl.pos.file(), ssl.pos.line()).into(),
            certified_key: Arc::new(certified_key),
            is_raw_key: false,
            stapling: options.stapling.clone(),
            staple: None,
            is_obtained: true,
            is_stand_in,
        }
        .with_staple())
    }
}

impl IdentityError {
    fn text(self) -> String {
        match self.reason {
            Some(reason) => format!("{}: {reason}", self.message),
            None => self.message,
        }
    }
}

/// Whether a certificate file and a key file exist and belong together.
#[must_use]
pub fn is_pair(certificate: &Path, key: &Path) -> bool {
    let text = |path: &Path| path.to_str().map(Box::from);
    let (Some(certificate), Some(key)) = (text(certificate), text(key)) else {
        return false;
    };
    let files = IdentityFiles {
        certificate,
        key,
        is_isolated: false,
    };
    load_pair(&files).is_ok()
}

/// Makes a self-signed certificate, which no client trusts.
fn self_signed(names: &[Box<str>]) -> Result<CertifiedKey, String> {
    let failed = |error: &dyn std::fmt::Display| format!("failed to make a certificate: {error}");
    let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    let made = rcgen::generate_simple_self_signed(names).map_err(|error| failed(&error))?;
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key);
    let key = key.map_err(|error| failed(&error))?;
    Ok(CertifiedKey::new(vec![made.cert.der().clone()], key))
}

/// The names that a certificate is for, in the order in which the certificate has them.
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

/// Whether an `ssl` mapping names a certificate.
///
/// # Errors
/// If the mapping has unknown attributes.
pub fn has_identity(ssl: &Node) -> Result<bool, Error> {
    let attributes = ssl.attributes(&crate::settings::ATTRIBUTES)?;
    let names = ["certificate-file", "key-file", "identity"];
    Ok(names.iter().any(|name| attributes.get(name).is_some()))
}

/// The `acme-names` of an `ssl` mapping.
///
/// # Errors
/// If the mapping has unknown attributes.
pub fn acme_names(ssl: &Node) -> Result<Vec<&Node>, Error> {
    let attributes = ssl.attributes(&crate::settings::ATTRIBUTES)?;
    let names = attributes.get("acme-names").map(Node::one_or_more);
    Ok(names.unwrap_or_default().iter().collect())
}

/// Reads the identities of an `ssl` mapping; the last one is the fallback.
///
/// # Errors
/// Those of `certificate-file`, `key-file` and `identity`.
pub(crate) fn parse(
    ssl: &Node,
    attributes: &Attributes<'_>,
    obtained: Option<&ObtainedFiles>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Identity>, Error> {
    let is_isolated = attributes.get("neverbleed").map(Node::on_off).transpose()?;
    let options = &IdentityOptions {
        is_isolated: is_isolated.unwrap_or(false),
        stapling: StaplingSettings::parse(attributes)?,
    };
    if let Some(node) = attributes.get("acme-names").filter(|_| obtained.is_none()) {
        let error = node.error("`acme-names` is for certificates that are obtained by ACME");
        return Err(
            error.with_hint("write `acme` at the global level, and no `certificate-file` here")
        );
    }
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
            pairs.iter().map(|pair| parse_pair(pair, options)).collect()
        }
        (None, Some(_)) => {
            let certificate_file = attributes.require("certificate-file")?;
            let key_file = attributes.require("key-file")?;
            Ok(vec![Identity::load(certificate_file, key_file, options)?])
        }
        (None, None) => {
            if let Some(obtained) = obtained {
                return Ok(vec![Identity::load_obtained(ssl, obtained, options, warnings)?]);
            }
            let text = "missing TLS identity - certificate file is not specified, ACME configuration could not be found";
            Err(ssl
                .error(text)
                .with_hint("write `certificate-file` and `key-file`, or `acme` at the global level"))
        }
    }
}

fn parse_pair(node: &Node, options: &IdentityOptions) -> Result<Identity, Error> {
    let attributes = node.attributes(&PAIR)?;
    Identity::load(
        attributes.require("certificate-file")?,
        attributes.require("key-file")?,
        options,
    )
}

fn load_pair(files: &IdentityFiles) -> Result<LoadedPair, IdentityError> {
    let (chain, is_raw_key) = load_chain(&files.certificate)?;
    let key = load_key(&files.key, files.is_isolated)?;
    let leaf = chain.first().map_or(&[][..], |leaf| leaf);
    let public_key = if is_raw_key {
        Some(leaf)
    } else {
        Certificate::parse(leaf).map(|leaf| leaf.subject_public_key_info)
    };
    let Some(public_key) = public_key else {
        return Err(certificate_fault(
            &files.certificate,
            "malformed certificate",
        ));
    };
    if !belongs_to(&*key, public_key) {
        return Err(IdentityError {
            is_of_key: true,
            message: format!(
                "private key file:{} does not belong to certificate file:{}",
                files.key, files.certificate
            ),
            reason: None,
        });
    }
    Ok(LoadedPair {
        certified_key: CertifiedKey::new(chain, key),
        is_raw_key,
    })
}

fn certificate_fault(path: &str, reason: &str) -> IdentityError {
    IdentityError {
        is_of_key: false,
        message: format!("failed to load certificate file:{path}"),
        reason: Some(reason.to_owned()),
    }
}

/// Reads certificates from a file, or a raw public key, which is returned as the only certificate. The second value is whether it
/// is a raw public key.
fn load_chain(path: &str) -> Result<(Vec<CertificateDer<'static>>, bool), IdentityError> {
    let fault = |reason: &str| certificate_fault(path, reason);
    let text = h2o_opener::read(path.as_ref()).map_err(|error| fault(&h2o_log::reason(&error)))?;
    let mut chain = Vec::new();
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(&text) {
        match section.map_err(|error| fault(&error.to_string()))? {
            (SectionKind::Certificate, der) => chain.push(CertificateDer::from(der)),
            (SectionKind::PublicKey, der) if chain.is_empty() => {
                return Ok((vec![CertificateDer::from(der)], true));
            }
            _ => {}
        }
    }
    if chain.is_empty() {
        return Err(fault("no certificate in PEM form"));
    }
    Ok((chain, false))
}

fn load_key(path: &str, is_isolated: bool) -> Result<Arc<dyn SigningKey>, IdentityError> {
    let fault = |reason: String| IdentityError {
        is_of_key: true,
        message: format!("failed to load private key file:{path}:{reason}"),
        reason: None,
    };
    if is_isolated && let Some(isolated) = h2o_keys::isolate(path.as_ref()) {
        return isolated.map_err(fault);
    }
    let text = h2o_opener::read(path.as_ref()).map_err(|error| fault(h2o_log::reason(&error)))?;
    h2o_keys::parse(&text).map_err(fault)
}

fn belongs_to(key: &dyn SigningKey, public_key: &[u8]) -> bool {
    // A key without access to its public half is assumed to match, as rustls does.
    key.public_key()
        .is_none_or(|known| same_public_key(&known, public_key))
}

/// Chooses the certificate that a client gets among the identities of an `ssl` mapping.
#[derive(Debug)]
pub(crate) struct Resolver {
    /// A client of TLS 1.3 gets the first of these whose key it can verify. A client of TLS 1.2 gets the fallback only (H2O
    /// compatibility: H2O uses one certificate there).
    pub(crate) preferred: Vec<Arc<PresentedKey>>,
    pub(crate) fallback: Arc<PresentedKey>,
    /// Whether all identities have raw public keys in the place of certificates.
    pub(crate) has_raw_keys: bool,
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
            .find(|identity| identity.key().key.choose_scheme(&offered).is_some());
        Some(fitting.unwrap_or(&self.fallback).present())
    }

    fn only_raw_public_keys(&self) -> bool {
        self.has_raw_keys
    }
}

/// Whether a handshake of TLS 1.3 may be signed by this scheme: PKCS#1 and SHA-1 are only for certificates (RFC 8446 §4.2.3).
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
