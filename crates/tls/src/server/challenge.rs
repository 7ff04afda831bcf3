//! Certificates for the challenge TLS-ALPN-01 (RFC 8737), by which an authority checks that a name leads to this server.
//!
//! These certificates belong to the process, not to a listener: the authority may connect to any listener, and a reload may
//! replace the listeners meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs as provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::alpn::CHALLENGE;
use crate::server::client_hello::ClientHello;
use crate::settings::identity::Resolver;
use crate::stapling::PresentedKey;

type Configs = HashMap<Box<str>, Arc<ServerConfig>>;

/// The configurations with which challenge certificates are presented, by server name in lower case.
static PRESENTED: RwLock<Option<Configs>> = RwLock::new(None);

fn presented() -> RwLockWriteGuard<'static, Option<Configs>> {
    PRESENTED.write().unwrap_or_else(PoisonError::into_inner)
}

/// A certificate that the server presents to checking authorities for as long as this value lives.
#[derive(Debug)]
pub struct ChallengeCertificate {
    name: Box<str>,
}

impl ChallengeCertificate {
    /// Presents a certificate to clients that send the server name `name` and offer nothing but the protocol `acme-tls/1`.
    ///
    /// # Errors
    /// If the key cannot be used.
    pub fn present(
        name: &str,
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, String> {
        let builder = ServerConfig::builder_with_provider(Arc::new(provider::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let key = provider::sign::any_supported_type(&key).map_err(|error| error.to_string())?;
        // `with_single_cert` is not used, because it refuses the critical extension of such a certificate.
        let mut config = builder
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Resolver {
                preferred: Vec::new(),
                fallback: Arc::new(PresentedKey::new(
                    Arc::new(CertifiedKey::new(vec![certificate], key)),
                    None,
                )),
                has_raw_keys: false,
            }));
        config.alpn_protocols = vec![CHALLENGE.into()];
        config.send_tls13_tickets = 0;
        config.enable_secret_extraction = true;
        let name: Box<str> = name.to_ascii_lowercase().into();
        let mut presented = presented();
        presented
            .get_or_insert_default()
            .insert(name.clone(), Arc::new(config));
        Ok(Self { name })
    }
}

impl Drop for ChallengeCertificate {
    fn drop(&mut self) {
        if let Some(configs) = &mut *presented() {
            configs.remove(&self.name);
        }
    }
}

/// The configuration for the client that has sent this ClientHello, if the client is an authority that checks a name now.
pub(crate) fn config(hello: &ClientHello<'_>) -> Option<Arc<ServerConfig>> {
    // An authority that checks a name offers no other protocol (RFC 8737 §3).
    if !hello.offers_only(CHALLENGE.as_bytes()) {
        return None;
    }
    let name = std::str::from_utf8(hello.server_name?).ok()?;
    let presented = PRESENTED.read().unwrap_or_else(PoisonError::into_inner);
    let configs = presented.as_ref()?;
    configs.get(&*name.to_ascii_lowercase()).cloned()
}
