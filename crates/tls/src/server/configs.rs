//! The rustls configurations of a listener, several for each of its `ssl` mappings.

use std::sync::Arc;

use aws_lc_rs::digest;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs as provider};
use rustls::pki_types::DnsName;
use rustls::server::{NoServerSessionStorage, StoresServerSessions};

use crate::groups;
use crate::quic_keys::with_small_keys;
use crate::resumption::{
    Binding, CacheUse, HostSessions, HostTickets, Lookup, Resumption, TicketUse, Wanted,
};
use crate::server::client_hello::{CertificateTypes, ClientHello};
use crate::server::server_name::{RestoringVerifier, restoring};
use crate::settings::TlsSettings;
use crate::settings::identity::{Identity, Resolver};
use crate::stapling::PresentedKey;
use crate::versions::Version;

/// Limit in bytes of the early data that a client may send. H2O compatibility: H2O has the same limit.
const MAX_EARLY_DATA_LEN: u32 = 8192;

/// What carries TLS messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier<'a> {
    /// Records over a stream (RFC 8446 §5).
    Records,
    /// QUIC (RFC 9001 §4). QUIC's flow control limits early data, and the tickets must not state a limit (§4.6.1). `terms` is what clients
    /// remember of the server's settings for early data (RFC 9000 §7.4.1, RFC 9114 §7.2.4.2): sessions of other terms are not resumed.
    Quic { terms: &'a [u8] },
}

impl Carrier<'_> {
    fn max_early_data_len(self) -> u32 {
        match self {
            Self::Records => MAX_EARLY_DATA_LEN,
            Self::Quic { .. } => u32::MAX,
        }
    }
}

/// The rustls configurations of one `ssl` mapping: one for each kind of client. They differ in settings that rustls
/// cannot choose per client; certificates, client authentication, suites and groups are the same in all.
pub(crate) struct HostConfigs {
    binding: Binding,
    /// The `client-ca-file` for which clients must present a certificate.
    pub(crate) client_authority: Option<Arc<str>>,
    has_tls13: bool,
    /// The configurations for TLS 1.3 with certificates, or with raw public keys if the mapping has no certificates.
    tls13: Tls13Configs,
    /// Whether the mapping has certificates, and not only raw public keys.
    has_certificates: bool,
    /// The configurations for TLS 1.3 with raw public keys (RFC 7250), for clients that prefer these.
    raw_keys: Option<Tls13Configs>,
    /// The configuration for TLS 1.2, with certificates.
    tls12: Arc<ServerConfig>,
    /// The configuration for TLS 1.2 clients that offer only unknown application protocols: they are served without one. H2O
    /// compatibility: H2O serves them, although RFC 7301 §3.2 asks for a refusal.
    tls12_without_alpn: Arc<ServerConfig>,
}

/// The configurations for TLS 1.3, one for each case of [`TicketUse`].
struct Tls13Configs {
    encrypted_tickets: Arc<ServerConfig>,
    kept_tickets: Arc<ServerConfig>,
    early_data: Arc<ServerConfig>,
}

impl HostConfigs {
    /// Builds the configurations of an `ssl` mapping. `hides_name`: whether they are for clients whose server name must be hidden
    /// from rustls.
    ///
    /// # Errors
    /// A message that says what is wrong with the mapping as a whole.
    pub(crate) fn new(
        settings: &TlsSettings,
        resumption: &Arc<Resumption>,
        alpn: &[Vec<u8>],
        carrier: Carrier<'_>,
        hides_name: bool,
    ) -> Result<Self, String> {
        let identities = settings.identities.iter();
        let (raw_keys, certificates): (Vec<_>, Vec<_>) =
            identities.partition(|identity| identity.is_raw_key());
        let has_certificates = !certificates.is_empty();
        let (identities, raw_keys) = if has_certificates {
            (certificates, raw_keys)
        } else {
            (raw_keys, Vec::new())
        };
        let configs = ConfigBuilder {
            settings,
            identities,
            resumption,
            binding: binding(settings, carrier),
            alpn,
            carrier,
            hides_name,
        };
        Ok(Self {
            binding: configs.binding,
            client_authority: settings.client_authority().cloned(),
            has_tls13: settings.versions.contains(Version::Tls13),
            tls13: configs.all_tls13()?,
            tls12: configs.tls12(alpn)?,
            tls12_without_alpn: configs.tls12(&[])?,
            has_certificates,
            raw_keys: if raw_keys.is_empty() {
                None
            } else {
                let configs = ConfigBuilder {
                    identities: raw_keys,
                    ..configs
                };
                Some(configs.all_tls13()?)
            },
        })
    }

    /// Whether the client and this mapping have a type of certificate in common.
    pub(crate) fn suits(&self, hello: &ClientHello<'_>) -> bool {
        let has_tls13 = hello.offers_tls13 && self.has_tls13;
        let has_raw_key = has_tls13 && (!self.has_certificates || self.raw_keys.is_some());
        hello.client_certificate != CertificateTypes::RawKey
            && match hello.server_certificate {
                CertificateTypes::Certificate => self.has_certificates,
                CertificateTypes::CertificateOrRawKey | CertificateTypes::RawKeyOrCertificate => {
                    self.has_certificates || has_raw_key
                }
                CertificateTypes::RawKey => has_raw_key,
            }
    }

    /// Chooses the configuration for the client that has sent this ClientHello; `alpn` are the protocols of the listener.
    pub(crate) fn select(
        &self,
        hello: &ClientHello<'_>,
        resumption: &Resumption,
        alpn: &[Vec<u8>],
    ) -> &Arc<ServerConfig> {
        if hello.offers_tls13 && self.has_tls13 {
            self.select_tls13(hello, resumption)
        } else if hello.alpn_mismatch(alpn) {
            &self.tls12_without_alpn
        } else {
            &self.tls12
        }
    }

    /// Begins the lookup of the session that the client wants to resume, if it is a session of TLS 1.2 that another server may
    /// have.
    pub(crate) fn look_up(
        &self,
        hello: &ClientHello<'_>,
        resumption: &Resumption,
    ) -> Option<Lookup> {
        if hello.has_ticket || (hello.offers_tls13 && self.has_tls13) {
            return None;
        }
        resumption.look_up(|| {
            // The name as rustls sees it, which compares it with that of the session: rustls ignores addresses, and other invalid
            // names are hidden from it.
            let name = hello
                .server_name
                .and_then(|name| DnsName::try_from(name).ok());
            Some(Wanted {
                id: hello.session_id.try_into().ok()?,
                binding: self.binding,
                takes_unbound: self.client_authority.is_none(),
                server_name: name.map(|name| name.as_ref().to_ascii_lowercase().into()),
            })
        })
    }

    /// Chooses the configuration for a QUIC client, which must use TLS 1.3. rustls refuses other clients with its alert.
    pub(crate) fn select_tls13(
        &self,
        hello: &ClientHello<'_>,
        resumption: &Resumption,
    ) -> &Arc<ServerConfig> {
        let raw_keys = match hello.server_certificate {
            CertificateTypes::RawKeyOrCertificate | CertificateTypes::RawKey => {
                self.raw_keys.as_ref()
            }
            CertificateTypes::Certificate | CertificateTypes::CertificateOrRawKey => None,
        };
        let configs = raw_keys.unwrap_or(&self.tls13);
        match resumption.ticket_use(hello.first_ticket, hello.early_data, &self.binding) {
            TicketUse::Encrypted => &configs.encrypted_tickets,
            TicketUse::Kept => &configs.kept_tickets,
            TicketUse::EarlyData => &configs.early_data,
        }
    }

    pub(crate) fn has_tls13(&self) -> bool {
        self.has_tls13
    }

    /// The configuration for bytes that are not a ClientHello: rustls refuses them with its alert.
    pub(crate) fn for_malformed(&self) -> &Arc<ServerConfig> {
        &self.tls12
    }
}

/// Builds the rustls configurations of one `ssl` mapping.
struct ConfigBuilder<'a> {
    settings: &'a TlsSettings,
    /// Either the certificates or the raw public keys of the mapping, with their private keys.
    identities: Vec<&'a Identity>,
    resumption: &'a Arc<Resumption>,
    binding: Binding,
    alpn: &'a [Vec<u8>],
    carrier: Carrier<'a>,
    /// Whether the clients' server name is hidden from rustls.
    hides_name: bool,
}

impl ConfigBuilder<'_> {
    fn all_tls13(&self) -> Result<Tls13Configs, String> {
        Ok(Tls13Configs {
            encrypted_tickets: self.tls13(TicketUse::Encrypted)?,
            kept_tickets: self.tls13(TicketUse::Kept)?,
            early_data: self.tls13(TicketUse::EarlyData)?,
        })
    }

    fn tls13(&self, ticket_use: TicketUse) -> Result<Arc<ServerConfig>, String> {
        let identities = self.identities.iter();
        let preferred = identities.map(|identity| identity.presented());
        let mut config = self.base(&self.settings.groups, preferred.collect())?;
        config.alpn_protocols = self.alpn.to_vec();
        if self.resumption.has_tickets() {
            config.send_tls13_tickets = 1;
            config.max_tls13_tickets = self.settings.max_tickets;
        } else {
            config.send_tls13_tickets = 0;
        }
        let sessions = |once| self.sessions(CacheUse::Tickets { once });
        match ticket_use {
            TicketUse::Encrypted => config.ticketer = self.tickets(self.resumption.has_tickets()),
            TicketUse::Kept => {
                config.session_storage = sessions(false);
                config.max_early_data_size = self.carrier.max_early_data_len();
            }
            TicketUse::EarlyData => {
                config.session_storage = sessions(true);
                config.max_early_data_size = self.carrier.max_early_data_len();
                // The response to early data may be sent before the client's Finished message has come.
                config.send_half_rtt_data = true;
            }
        }
        Ok(Arc::new(config))
    }

    fn tls12(&self, alpn: &[Vec<u8>]) -> Result<Arc<ServerConfig>, String> {
        let mut config = self.base(&groups::tls12_groups(), Vec::new())?;
        config.alpn_protocols = alpn.to_vec();
        config.ticketer = self.tickets(self.resumption.has_tickets());
        if self.resumption.has_ids() {
            config.session_storage = self.sessions(CacheUse::Ids);
        }
        Ok(Arc::new(config))
    }

    /// Every configuration allows all versions of the entry, although each serves one: only then does rustls mark a
    /// downgrade correctly (RFC 8446 §4.1.3).
    fn base(
        &self,
        groups: &[&'static dyn SupportedKxGroup],
        preferred: Vec<Arc<PresentedKey>>,
    ) -> Result<ServerConfig, String> {
        let settings = self.settings;
        let suites = settings.tls13_suites.iter().chain(&settings.tls12_suites);
        let suites = suites.copied().map(|suite| {
            if self.hides_name {
                restoring(suite)
            } else {
                with_small_keys(suite)
            }
        });
        let cipher_suites = suites.collect();
        let crypto = CryptoProvider {
            cipher_suites,
            kx_groups: groups.to_vec(),
            ..provider::default_provider()
        };
        let builder = ServerConfig::builder_with_provider(Arc::new(crypto))
            .with_protocol_versions(&settings.versions.rustls())
            .map_err(|error| error.to_string())?;
        let builder = match &settings.client_ca {
            Some(ca) if self.hides_name => builder
                .with_client_cert_verifier(Arc::new(RestoringVerifier(Arc::clone(&ca.verifier)))),
            Some(ca) => builder.with_client_cert_verifier(Arc::clone(&ca.verifier)),
            None => builder.with_no_client_auth(),
        };
        let fallback = self
            .identities
            .last()
            .ok_or("at least one identity must be specified")?;
        let mut config = builder.with_cert_resolver(Arc::new(Resolver {
            preferred,
            fallback: fallback.presented(),
            has_raw_keys: fallback.is_raw_key(),
        }));
        config.ignore_client_order = settings.prefer_our_order;
        config.enable_secret_extraction = true;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = self.tickets(false);
        Ok(config)
    }

    fn tickets(&self, is_enabled: bool) -> Arc<HostTickets> {
        Arc::new(HostTickets {
            resumption: Arc::clone(self.resumption),
            binding: self.binding,
            is_enabled,
        })
    }

    fn sessions(&self, purpose: CacheUse) -> Arc<dyn StoresServerSessions> {
        Arc::new(HostSessions {
            resumption: Arc::clone(self.resumption),
            binding: self.binding,
            purpose,
        })
    }
}

/// A digest of the leaf certificates and raw public keys, of the client authorities, and of the terms of QUIC. It includes the number of leaf
/// certificates, so that no other combination of these gives the same digest.
pub(crate) fn binding(settings: &TlsSettings, carrier: Carrier<'_>) -> Binding {
    let mut context = digest::Context::new(&digest::SHA256);
    let leaves = settings
        .identities
        .iter()
        .filter_map(|identity| identity.leaf());
    let leaves: Vec<_> = leaves.collect();
    context.update(&leaves.len().to_be_bytes());
    for leaf in leaves {
        context.update(digest::digest(&digest::SHA256, leaf).as_ref());
    }
    if let Some(ca) = &settings.client_ca {
        context.update(b"client authorities");
        context.update(&ca.digest);
    }
    if let Carrier::Quic { terms } = carrier {
        context.update(b"QUIC");
        context.update(terms);
    }
    let mut binding = Binding::default();
    binding.copy_from_slice(context.finish().as_ref());
    binding
}
