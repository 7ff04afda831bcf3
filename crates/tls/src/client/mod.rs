//! TLS with `https` backends: trusted authorities, session cache, and connections without sockets.

pub(crate) mod connection;
mod names;
mod plain_chain;
mod sessions;
mod trust;
mod verifier;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, PeerMisbehaved};

use self::connection::ClientConnection;
use self::sessions::{BackendSessions, SessionCache};
use self::trust::Trust;
use self::verifier::{RejectionText, Verifier};
use crate::error::TlsError;
use crate::record::output::OutputBuffer;
pub(crate) use plain_chain::PlainChain;
pub(crate) use verifier::is_valid_at;

/// The `proxy.ssl.*` settings of one level of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsClientSettings {
    /// Whether certificates of backends are verified (`proxy.ssl.verify-peer`).
    pub verify_peer: bool,
    /// The file with trusted certificates (`proxy.ssl.cafile`); `None`: the system's authorities are trusted.
    pub ca_file: Option<PathBuf>,
    /// `proxy.ssl.session-cache`: how long sessions are kept, and for how many backends; `None`: sessions are not kept.
    pub session_cache: Option<(Duration, usize)>,
}

/// Performs handshakes with `https` backends. Shared by all workers.
pub struct TlsClient {
    settings: TlsClientSettings,
    /// What backends' certificates are verified against; `None`: no verification.
    trust: Option<Arc<Trust>>,
    config: ClientConfig,
    sessions: Option<Arc<SessionCache>>,
}

/// A CA file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsClientError {
    /// The path of the file.
    pub path: PathBuf,
    /// Why the file cannot be used.
    pub reason: String,
}

impl fmt::Display for TlsClientError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        write!(
            formatter,
            "failed to load certificates file:{path}: {}",
            self.reason
        )
    }
}

impl std::error::Error for TlsClientError {}

impl fmt::Debug for TlsClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TlsClient")
            .field("settings", &self.settings)
            .field("sessions", &self.sessions)
            .finish_non_exhaustive()
    }
}

/// Two clients are equal if their settings are equal and their CA files have the same certificates.
impl PartialEq for TlsClient {
    fn eq(&self, other: &Self) -> bool {
        let pinned = |client: &Self| {
            let trust = client.trust.as_ref();
            trust.map_or_else(Vec::new, |trust| trust.pinned.clone())
        };
        self.settings == other.settings && pinned(self) == pinned(other)
    }
}

/// The configuration of a client that verifies servers by the authorities of a file, or by those of the system, for libraries that
/// do their own handshakes.
///
/// # Errors
/// The file cannot be read, or has no usable certificate.
pub fn authority_client(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, TlsClientError> {
    let trust = match ca_file {
        Some(path) => Arc::new(Trust::read(path)?),
        None => Trust::system(),
    };
    let provider = aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for both versions")
        .with_root_certificates(trust.roots.clone())
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Why a handshake by [`authority_client`] failed, in words; `None` if `error` is not from TLS.
#[must_use]
pub fn authority_failure(error: &io::Error) -> Option<String> {
    let error: &rustls::Error = error.get_ref()?.downcast_ref()?;
    Some(match verifier::text_of(error) {
        verifier::INVALID => error.to_string(),
        text => format!("the certificate of the server is not accepted: {text}"),
    })
}

impl TlsClient {
    /// Reads the CA file, even if certificates are not to be verified, so that the configuration reports its errors. The system's
    /// authorities are read once per process; see [`TlsClient::bundle`].
    ///
    /// # Errors
    /// The CA file cannot be read, or has no usable certificate.
    pub fn new(settings: TlsClientSettings) -> Result<Arc<Self>, TlsClientError> {
        let trust = match &settings.ca_file {
            Some(path) => Some(Arc::new(Trust::read(path)?)),
            None if settings.verify_peer => Some(Trust::system()),
            None => None,
        };
        let provider = aws_lc_rs::default_provider();
        let verifier = Verifier::new(
            trust.clone().filter(|_| settings.verify_peer),
            provider.signature_verification_algorithms,
        );
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for both versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        // Lets this crate take the keys from rustls after the handshake: it encrypts and decrypts the records of
        // established connections itself.
        config.enable_secret_extraction = true;
        let cache = |(lifetime, capacity)| Arc::new(SessionCache::new(lifetime, capacity));
        Ok(Arc::new(Self {
            config,
            sessions: settings.session_cache.map(cache),
            trust,
            settings,
        }))
    }

    /// Reads the system's authorities. If no bundle can be read, every handshake that verifies against them fails.
    ///
    /// # Errors
    /// An error with the path of the missing file.
    pub fn bundle() -> Result<(), TlsClientError> {
        match trust::bundle() {
            Ok(_) => Ok(()),
            Err(error) => Err(error.clone()),
        }
    }

    /// Begins a handshake with a backend whose host is `name`, which is sent as SNI unless it is an address, and offers
    /// the protocols `alpn` (none if empty). Sessions are stored under `key` (`HOST:PORT`), or not at all if it is
    /// empty, as for Unix sockets. Appends the ClientHello to `out`.
    ///
    /// # Errors
    /// The message to show; see [`handshake_text`]. Nothing must be sent.
    pub fn connect(
        &self,
        name: &str,
        key: &str,
        alpn: &[&[u8]],
        out: &mut OutputBuffer,
    ) -> Result<ClientConnection, &'static str> {
        let name = self.server_name(name)?;
        // Copying the configuration is cheap compared with a handshake: a few reference counts.
        let mut config = self.config.clone();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        config.resumption = match &self.sessions {
            Some(cache) if !key.is_empty() => Resumption::store(Arc::new(BackendSessions {
                cache: Arc::clone(cache),
                key: key.into(),
            })),
            Some(_) | None => Resumption::disabled(),
        };
        ClientConnection::begin(Arc::new(config), name, out).map_err(|error| handshake_text(&error))
    }

    /// What a QUIC handshake with a backend whose host is `name` needs: certificates are verified as by [`TlsClient::connect`], and HTTP/3
    /// is the only protocol. H2O compatibility: sessions are not stored.
    ///
    /// # Errors
    /// As for [`TlsClient::connect`].
    pub fn quic(
        &self,
        name: &str,
    ) -> Result<(Arc<ClientConfig>, ServerName<'static>), &'static str> {
        let name = self.server_name(name)?;
        let mut config = self.config.clone();
        config.alpn_protocols = vec![b"h3".to_vec()];
        config.resumption = Resumption::disabled();
        Ok((Arc::new(config), name))
    }

    /// The host of a URL as a server name for rustls.
    fn server_name(&self, host: &str) -> Result<ServerName<'static>, &'static str> {
        match server_name(host) {
            Some(name) => Ok(name),
            // No certificate can have such a name, so verification would fail.
            None if self.settings.verify_peer => Err(names::MISMATCH),
            // Any address stands in for the name: rustls sends no SNI for an address, and the certificate is not verified.
            None => Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED).into()),
        }
    }
}

/// The host of a URL as a server name for rustls. A trailing dot belongs neither in SNI nor in the comparison with
/// certificate names.
fn server_name(host: &str) -> Option<ServerName<'static>> {
    let literal = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    ServerName::try_from(literal.unwrap_or(host).to_owned()).ok()
}

/// The message of a failed handshake for client and log. H2O compatibility: H2O shows OpenSSL's text about the
/// certificate, or `ssl handshake failure`.
#[must_use]
pub fn handshake_text(error: &TlsError) -> &'static str {
    let TlsError::Handshake(error) = error else {
        return HANDSHAKE_FAILURE;
    };
    match error {
        rustls::Error::NoCertificatesPresented => "no certificate",
        rustls::Error::InvalidCertificate(CertificateError::BadSignature) => HANDSHAKE_FAILURE,
        rustls::Error::InvalidCertificate(error) => {
            RejectionText::text_in(error).unwrap_or(verifier::INVALID)
        }
        rustls::Error::PeerMisbehaved(PeerMisbehaved::SelectedUnofferedApplicationProtocol) => {
            "unknown alpn protocol"
        }
        _ => HANDSHAKE_FAILURE,
    }
}

const HANDSHAKE_FAILURE: &str = "ssl handshake failure";

#[cfg(test)]
mod tests;
