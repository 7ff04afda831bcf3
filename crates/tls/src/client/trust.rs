//! The authorities and certificates that backends' certificates are verified against.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::{Certificate, same_name};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::TlsClientError;
use super::names::CommonName;

/// Locations of the system's CA bundle, in order of preference: Debian, Alpine and Arch; Fedora; openSUSE.
const BUNDLES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

/// The certificates that are trusted when backends are verified.
#[derive(Debug)]
pub(super) struct Trust {
    pub(super) roots: RootCertStore,
    /// The certificates of a CA file, including self-signed certificates of backends, which are trusted as they are. Empty if the
    /// system's authorities are trusted, because none of them is a backend.
    pub(super) pinned: Vec<CertificateDer<'static>>,
}

impl Trust {
    /// Reads `proxy.ssl.cafile`.
    ///
    /// # Errors
    /// The file cannot be read, or has no usable certificate.
    pub(super) fn read(path: &Path) -> Result<Self, TlsClientError> {
        let pinned = read_certificates(path)?;
        let roots = roots(&pinned);
        let is_readable =
            |certificate: &CertificateDer<'_>| Certificate::parse(certificate).is_some();
        if roots.is_empty() && !pinned.iter().any(is_readable) {
            return Err(fault(path, "malformed certificate".to_owned()));
        }
        Ok(Self { roots, pinned })
    }

    /// The system's authorities, read on first use; empty if the system has no CA bundle.
    pub(super) fn system() -> Arc<Self> {
        match bundle() {
            Ok(trust) => Arc::clone(trust),
            Err(_) => Arc::new(Self {
                roots: RootCertStore::empty(),
                pinned: Vec::new(),
            }),
        }
    }

    /// Whether the trusted certificates were read from a CA file.
    pub(super) fn is_private(&self) -> bool {
        !self.pinned.is_empty()
    }

    /// Whether the common name of a leaf certificate with a valid chain may be compared with the host. The system's authorities
    /// vouch for alternative names only (CA/Browser Forum Baseline Requirements §7.1.4.3). Name constraints (RFC 5280 §4.2.1.10)
    /// were checked against alternative names only, so in a chain with constraints a common name might be one that its authority
    /// may not sign.
    pub(super) fn use_of_common_name(
        &self,
        leaf: &Certificate<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> CommonName {
        let sent: Option<Vec<_>> = intermediates
            .iter()
            .map(|der| Certificate::parse(der))
            .collect();
        let Some(sent) = sent.filter(|_| self.is_private()) else {
            return CommonName::Ignored;
        };
        let chain = || sent.iter().chain([leaf]);
        let is_in_chain =
            |subject: &[u8]| chain().any(|certificate| same_name(certificate.issuer, subject));
        let mut roots = self.roots.roots.iter();
        let has_constraints = chain().any(Certificate::has_name_constraints)
            || roots.any(|root| root.name_constraints.is_some() && is_in_chain(&root.subject));
        if has_constraints {
            CommonName::Ignored
        } else {
            CommonName::Counts
        }
    }
}

/// Reads the system's authorities, once per process.
pub(super) fn bundle() -> &'static Result<Arc<Trust>, TlsClientError> {
    static BUNDLE: OnceLock<Result<Arc<Trust>, TlsClientError>> = OnceLock::new();
    BUNDLE.get_or_init(|| {
        let path = BUNDLES
            .into_iter()
            .map(Path::new)
            .find(|path| path.exists());
        let path = path.unwrap_or(Path::new(BUNDLES[0]));
        Ok(Arc::new(Trust {
            roots: roots(&read_certificates(path)?),
            pinned: Vec::new(),
        }))
    })
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsClientError> {
    let fault = |reason: String| fault(path, reason);
    let text = h2o_opener::read(path).map_err(|error| fault(h2o_log::reason(&error)))?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let certificates = certificates.map_err(|error| fault(error.to_string()))?;
    if certificates.is_empty() {
        return Err(fault("no certificate found".to_owned()));
    }
    Ok(certificates)
}

/// Selects the certificates that may issue others. rustls would accept any certificate as an authority: the owner of a certificate
/// pinned for one host could then issue certificates for every other host.
fn roots(certificates: &[CertificateDer<'static>]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let may_issue = |certificate: &&CertificateDer<'_>| {
        Certificate::parse(certificate).is_some_and(|certificate| certificate.may_be_root())
    };
    // Certificates that rustls cannot parse are skipped.
    roots.add_parsable_certificates(certificates.iter().filter(may_issue).cloned());
    roots
}

fn fault(path: &Path, reason: String) -> TlsClientError {
    TlsClientError {
        path: PathBuf::from(path),
        reason,
    }
}
