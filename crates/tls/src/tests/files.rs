//! Certificates and keys in files, and the `ssl` mappings that name them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use h2o_config::{Error, Memory};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::kit::Pair;
use crate::{TlsSettings, parse};

/// A directory that is removed when the test ends.
pub(super) struct Files(tempfile::TempDir);

impl Files {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Returns the path of a file in the directory, which need not exist.
    pub(super) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file, and returns its path.
    pub(super) fn write(&self, name: &str, content: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Writes a certificate and its key. Returns the attributes `certificate-file` and `key-file` with their paths.
    pub(super) fn pair(&self, name: &str, pair: &Pair) -> String {
        let certificate = self.write(&format!("{name}.crt"), &pair.certificate.pem());
        let key = self.write(&format!("{name}.key"), &pair.key.serialize_pem());
        format!("certificate-file: {certificate}\nkey-file: {key}\n")
    }

    /// Writes a raw public key and its private key. Returns the attributes `certificate-file` and `key-file` with their paths.
    pub(super) fn raw_pair(&self, name: &str, pair: &Pair) -> String {
        let public = self.write(&format!("{name}.pub"), &pair.key.public_key_pem());
        let key = self.write(&format!("{name}.key"), &pair.key.serialize_pem());
        format!("certificate-file: {public}\nkey-file: {key}\n")
    }

    /// Parses an `ssl` mapping that must be valid.
    pub(super) fn settings(&self, mapping: &str) -> TlsSettings {
        let (settings, _) = self.parse(mapping);
        settings.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Parses an `ssl` mapping. In errors and warnings, the directory is replaced by `DIR`.
    pub(super) fn parse(&self, mapping: &str) -> (Result<TlsSettings, String>, Vec<String>) {
        let mut warnings = Vec::new();
        let result = parse_text(mapping, &mut warnings);
        let shorten = |text: String| text.replace(self.0.path().to_str().unwrap(), "DIR");
        (
            result.map_err(|error| shorten(error.to_string())),
            warnings.into_iter().map(shorten).collect(),
        )
    }
}

fn parse_text(mapping: &str, warnings: &mut Vec<String>) -> Result<TlsSettings, Error> {
    let node = h2o_config::load("f", &Memory::new().file("f", mapping))?;
    parse(&node, None, warnings)
}

/// An authority that issues client certificates.
pub(super) struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    certificate: rcgen::Certificate,
}

impl Authority {
    pub(super) fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self {
            issuer: rcgen::Issuer::new(params, key),
            certificate,
        }
    }

    pub(super) fn pem(&self) -> String {
        self.certificate.pem()
    }

    pub(super) fn issue(&self, name: &str) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        (certificate.der().clone(), key)
    }
}

/// Encodes DER as a PEM section with this label.
pub(super) fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).unwrap())
        .collect();
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        lines.join("\n")
    )
}
