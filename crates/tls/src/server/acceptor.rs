//! The TLS side of a listener: which configuration answers which client.

use std::sync::Arc;

use aws_lc_rs::digest;
use h2o_exchange::{Host, HostName, HostTable};
use h2o_http::Scheme;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs as provider};
use rustls::server::{NoServerSessionStorage, StoresServerSessions};

use crate::groups;
use crate::resumption::{Binding, EntrySessions, EntryTickets, Purpose, Resumption, TicketUse};
use crate::server::client_hello::ClientHello;
use crate::server::connection::TlsConnection;
use crate::server::server_name::{RestoringVerifier, restoring};
use crate::settings::TlsSettings;
use crate::settings::identity::Resolver;
use crate::versions::Version;

/// Early data taken from one client (H2O compatibility).
const MAX_EARLY_DATA_LEN: u32 = 8192;

/// Makes the TLS connections of one listener.
pub struct TlsAcceptor {
    /// At least one, in order of definition.
    entries: Vec<Entry>,
    /// The names of all entries.
    names: HostTable,
    /// For each name, by its place in `names`, the index of its entry.
    entry_of: Vec<usize>,
    /// The first entry, for clients with a name that counts as none and has to be hidden from rustls.
    nameless: Entry,
    alpn: Vec<Vec<u8>>,
    resumption: Arc<Resumption>,
    may_offload: bool,
}

/// One `ssl` mapping, with a configuration of rustls for each kind of client.
struct Entry {
    binding: Binding,
    client_authority: Option<Arc<str>>,
    has_tls13: bool,
    /// TLS 1.3; the ways of [`TicketUse`].
    encrypted_tickets: Arc<ServerConfig>,
    kept_tickets: Arc<ServerConfig>,
    early_data: Arc<ServerConfig>,
    /// Older clients.
    tls12: Arc<ServerConfig>,
    /// Older clients that offer only application protocols we do not have: they are served without (RFC 7301 §3.2
    /// would have us refuse them; H2O compatibility).
    tls12_without_alpn: Arc<ServerConfig>,
}

/// The configuration for a client.
pub(crate) struct Choice {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) server_name: Option<Box<str>>,
    /// Where the type of a `server_name` stands that is to be hidden.
    pub(crate) odd_name_at: Option<usize>,
    /// The `client-ca-file` that the client must show a certificate of.
    pub(crate) client_authority: Option<Arc<str>>,
    /// Whether the kernel may encrypt what is sent once the handshake is complete.
    pub(crate) may_offload: bool,
}

impl TlsAcceptor {
    /// `entries` in order of definition, `names` with the entry of each, the first that matches wins; `alpn` in order of
    /// preference.
    ///
    /// # Errors
    /// What is wrong with an entry as a whole.
    pub fn new(
        entries: &[Arc<TlsSettings>],
        names: Vec<(HostName, usize)>,
        resumption: Arc<Resumption>,
        alpn: &[&[u8]],
    ) -> Result<Self, String> {
        let alpn: Vec<Vec<u8>> = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        if entries.is_empty() {
            return Err("a listener needs at least one certificate".to_owned());
        }
        let mut hosts = Vec::new();
        let mut entry_of = Vec::new();
        for (HostName { name, .. }, entry) in names {
            hosts.push(Host {
                // H2O compatibility: a host's certificate is chosen by its name alone, whatever its port.
                name: HostName { name, port: None },
                strict: true,
                ..Host::default()
            });
            entry_of.push(entry);
        }
        let served: Vec<u32> = (0..).take(hosts.len()).collect();
        let nameless = Entry::new(&entries[0], &resumption, &alpn, true)?;
        let entries: Result<Vec<_>, String> = entries
            .iter()
            .map(|settings| Entry::new(settings, &resumption, &alpn, false))
            .collect();
        Ok(Self {
            entries: entries?,
            names: HostTable::new(&hosts, &served),
            entry_of,
            nameless,
            alpn,
            resumption,
            may_offload: false,
        })
    }

    /// Lets the kernel encrypt what is sent on established connections, where the driver asks for it.
    pub fn offload(self, may_offload: bool) -> Self {
        Self {
            may_offload,
            ..self
        }
    }

    /// A connection that has not received anything.
    pub fn accept(self: &Arc<Self>) -> TlsConnection {
        TlsConnection::new(Arc::clone(self))
    }

    /// The entry for the name a client asks for; the first one for other names and for none (H2O compatibility: no
    /// `unrecognized_name` alert).
    fn entry(&self, server_name: Option<&[u8]>) -> &Entry {
        server_name
            .and_then(|name| self.names.select(name, Scheme::Https))
            .map_or(&self.entries[0], |place| {
                &self.entries[self.entry_of[place as usize]]
            })
    }

    pub(crate) fn choose(&self, hello: &ClientHello<'_>) -> Choice {
        let entry = match hello.odd_name_at {
            Some(_) => &self.nameless,
            None => self.entry(hello.server_name),
        };
        let config = if hello.offers_tls13 && entry.has_tls13 {
            match self
                .resumption
                .ticket_use(hello.first_ticket, hello.early_data, &entry.binding)
            {
                TicketUse::Encrypted => &entry.encrypted_tickets,
                TicketUse::Kept => &entry.kept_tickets,
                TicketUse::EarlyData => &entry.early_data,
            }
        } else if hello.alpn_mismatch(&self.alpn) {
            &entry.tls12_without_alpn
        } else {
            &entry.tls12
        };
        let server_name = hello
            .server_name
            .and_then(|name| std::str::from_utf8(name).ok());
        Choice {
            config: Arc::clone(config),
            server_name: server_name.map(Into::into),
            odd_name_at: hello.odd_name_at,
            client_authority: entry.client_authority.clone(),
            may_offload: self.may_offload,
        }
    }

    /// For what does not look like a ClientHello.
    pub(crate) fn default_choice(&self) -> Choice {
        Choice {
            config: Arc::clone(&self.entries[0].tls12),
            server_name: None,
            odd_name_at: None,
            client_authority: self.entries[0].client_authority.clone(),
            may_offload: self.may_offload,
        }
    }
}

impl Entry {
    fn new(
        settings: &TlsSettings,
        resumption: &Arc<Resumption>,
        alpn: &[Vec<u8>],
        hides_name: bool,
    ) -> Result<Self, String> {
        let configs = Configs {
            settings,
            resumption,
            binding: binding(settings),
            alpn,
            hides_name,
        };
        Ok(Self {
            binding: configs.binding,
            client_authority: settings.client_authority().cloned(),
            has_tls13: settings.versions.contains(Version::Tls13),
            encrypted_tickets: configs.tls13(TicketUse::Encrypted)?,
            kept_tickets: configs.tls13(TicketUse::Kept)?,
            early_data: configs.tls13(TicketUse::EarlyData)?,
            tls12: configs.tls12(alpn)?,
            tls12_without_alpn: configs.tls12(&[])?,
        })
    }
}

/// What the configurations of an entry are made from.
struct Configs<'a> {
    settings: &'a TlsSettings,
    resumption: &'a Arc<Resumption>,
    binding: Binding,
    alpn: &'a [Vec<u8>],
    /// For connections with a hidden name.
    hides_name: bool,
}

impl Configs<'_> {
    fn tls13(&self, ticket_use: TicketUse) -> Result<Arc<ServerConfig>, String> {
        let identities = &self.settings.identities;
        let preferred = identities
            .iter()
            .map(|identity| Arc::clone(&identity.certified_key));
        let mut config = self.base(&self.settings.groups, preferred.collect())?;
        config.alpn_protocols = self.alpn.to_vec();
        if self.resumption.has_tickets() {
            config.send_tls13_tickets = 1;
            config.max_tls13_tickets = self.settings.max_tickets;
        } else {
            config.send_tls13_tickets = 0;
        }
        let sessions = |once| self.sessions(Purpose::Tickets { once });
        match ticket_use {
            TicketUse::Encrypted => config.ticketer = self.tickets(self.resumption.has_tickets()),
            TicketUse::Kept => {
                config.session_storage = sessions(false);
                config.max_early_data_size = MAX_EARLY_DATA_LEN;
            }
            TicketUse::EarlyData => {
                config.session_storage = sessions(true);
                config.max_early_data_size = MAX_EARLY_DATA_LEN;
                // The answer to early data need not wait for the client's Finished.
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
            config.session_storage = self.sessions(Purpose::Ids);
        }
        Ok(Arc::new(config))
    }

    /// Every configuration allows the versions of the entry, whichever it will be used for: rustls then marks a
    /// downgrade as it should (RFC 8446 §4.1.3).
    fn base(
        &self,
        groups: &[&'static dyn SupportedKxGroup],
        preferred: Vec<Arc<rustls::sign::CertifiedKey>>,
    ) -> Result<ServerConfig, String> {
        let settings = self.settings;
        let mut cipher_suites = settings.tls13_suites.clone();
        cipher_suites.extend_from_slice(&settings.tls12_suites);
        if self.hides_name {
            cipher_suites = cipher_suites.into_iter().map(restoring).collect();
        }
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
        let fallback = settings
            .identities
            .last()
            .ok_or("at least one identity must be specified")?;
        let mut config = builder.with_cert_resolver(Arc::new(Resolver {
            preferred,
            fallback: Arc::clone(&fallback.certified_key),
        }));
        config.ignore_client_order = settings.prefer_our_order;
        config.enable_secret_extraction = true;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = self.tickets(false);
        Ok(config)
    }

    fn tickets(&self, is_enabled: bool) -> Arc<EntryTickets> {
        Arc::new(EntryTickets {
            resumption: Arc::clone(self.resumption),
            binding: self.binding,
            is_enabled,
        })
    }

    fn sessions(&self, purpose: Purpose) -> Arc<dyn StoresServerSessions> {
        Arc::new(EntrySessions {
            resumption: Arc::clone(self.resumption),
            binding: self.binding,
            purpose,
        })
    }
}

/// A digest of the leaf certificates and of the authorities for client certificates. How many there are of the former is part of
/// it: no other list of certificates and authorities comes to the same.
pub(crate) fn binding(settings: &TlsSettings) -> Binding {
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
    let mut binding = Binding::default();
    binding.copy_from_slice(context.finish().as_ref());
    binding
}
