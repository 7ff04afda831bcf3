//! The TLS configurations of a listener, and the choice of one for each client.

use std::sync::Arc;

use h2o_exchange::{Host, HostName, HostTable, TlsInfo};
use h2o_http::Scheme;
use rustls::{CipherSuite, ServerConfig};

use crate::alpn;
use crate::error::TlsError;
use crate::resumption::{Lookup, Resumption};
use crate::server::challenge;
use crate::server::client_hello::ClientHello;
use crate::server::configs::{Carrier, HostConfigs};
use crate::server::connection::TlsConnection;
use crate::server::server_name;
use crate::settings::TlsSettings;
use crate::suites;
use crate::versions::Version;

/// The TLS settings of a listener; creates a TLS connection for each client.
pub struct TlsAcceptor {
    /// The configurations of the listener's hosts, in order of definition; at least one.
    entries: Vec<HostConfigs>,
    /// The server names of all entries.
    names: HostTable,
    /// For each name in `names`, by its position there, the index of the entry that it belongs to.
    entry_of: Vec<usize>,
    /// A copy of the first entry for clients whose server name (SNI) rustls would refuse: the name is ignored, and hidden from
    /// rustls.
    nameless: HostConfigs,
    alpn: Vec<Vec<u8>>,
    resumption: Arc<Resumption>,
    may_offload: bool,
}

/// The TLS configuration chosen for a client.
pub(crate) struct ChosenConfig {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) server_name: Option<Box<str>>,
    /// Position in the ClientHello of the type of the `server_name` extension, if the name must be hidden from rustls.
    pub(crate) hidden_name_at: Option<usize>,
    /// The `client-ca-file` for which the client must present a certificate.
    pub(crate) client_authority: Option<Arc<str>>,
    /// Whether the kernel may encrypt sent data after the handshake (kTLS).
    pub(crate) may_offload: bool,
    /// The lookup of the client's session in a store that servers share. The handshake begins when it is done.
    pub(crate) lookup: Option<Lookup>,
    /// The identifier of the session that was looked up, in base64url.
    pub(crate) session_id: Option<Box<str>>,
}

/// The TLS configuration chosen for a QUIC client.
#[derive(Clone, Debug)]
pub struct QuicChoice {
    /// The configuration for the handshake by `rustls::quic`.
    pub config: Arc<ServerConfig>,
    /// The server name that the client sent.
    pub server_name: Option<Box<str>>,
    /// The `client-ca-file` for which the client must present a certificate.
    pub client_authority: Option<Arc<str>>,
}

impl QuicChoice {
    /// The parameters that a handshake with this configuration has negotiated.
    pub fn info(&self, suite: CipherSuite, alpn: Option<&[u8]>, resumed: bool) -> TlsInfo {
        TlsInfo {
            server_name: self.server_name.clone(),
            client_authority: self.client_authority.clone(),
            ..quic_client_info(suite, alpn, resumed)
        }
    }
}

/// The parameters that a QUIC handshake with a backend has negotiated.
pub fn quic_client_info(suite: CipherSuite, alpn: Option<&[u8]>, resumed: bool) -> TlsInfo {
    let (cipher, cipher_bits) = suites::describe(suite);
    TlsInfo {
        protocol: Version::Tls13.name(),
        cipher,
        cipher_bits,
        server_name: None,
        alpn: alpn.and_then(alpn::name),
        resumed,
        client_authority: None,
        session_id: None,
    }
}

impl TlsAcceptor {
    /// `entries`: the TLS settings of the listener's hosts, in order of definition. `names`: host names, each with the index of
    /// its settings; the first name that matches the SNI wins. `alpn`: protocols in order of preference.
    ///
    /// # Errors
    /// The listener has no certificate, or rustls refuses the settings although each directive is valid.
    pub fn new(
        entries: &[Arc<TlsSettings>],
        names: Vec<(HostName, usize)>,
        resumption: Arc<Resumption>,
        alpn: &[&[u8]],
    ) -> Result<Self, String> {
        Self::with_carrier(entries, names, resumption, alpn, Carrier::Records)
    }

    /// Like [`Self::new`], for QUIC: use [`Self::choose_for_quic`]. `terms` describes the limits and settings that clients remember for
    /// early data. If they differ later, old sessions are not resumed, so that no client exceeds new limits with early data.
    ///
    /// # Errors
    /// Those of [`Self::new`], and settings that do not allow TLS 1.3.
    pub fn for_quic(
        entries: &[Arc<TlsSettings>],
        names: Vec<(HostName, usize)>,
        resumption: Arc<Resumption>,
        alpn: &[&[u8]],
        terms: &[u8],
    ) -> Result<Self, String> {
        let carrier = Carrier::Quic { terms };
        let acceptor = Self::with_carrier(entries, names, resumption, alpn, carrier)?;
        if !acceptor.entries.iter().all(HostConfigs::has_tls13) {
            return Err("QUIC needs TLS 1.3".to_owned());
        }
        Ok(acceptor)
    }

    fn with_carrier(
        entries: &[Arc<TlsSettings>],
        names: Vec<(HostName, usize)>,
        resumption: Arc<Resumption>,
        alpn: &[&[u8]],
        carrier: Carrier<'_>,
    ) -> Result<Self, String> {
        let alpn: Vec<Vec<u8>> = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        if entries.is_empty() {
            return Err("a listener needs at least one certificate".to_owned());
        }
        let mut hosts = Vec::new();
        let mut entry_of = Vec::new();
        for (HostName { name, .. }, entry) in names {
            hosts.push(Host {
                // H2O compatibility: H2O chooses a host's certificate by name alone, whatever the port.
                name: HostName { name, port: None },
                strict: true,
                ..Host::default()
            });
            entry_of.push(entry);
        }
        let served: Vec<u32> = (0..).take(hosts.len()).collect();
        let nameless = HostConfigs::new(&entries[0], &resumption, &alpn, carrier, true)?;
        let entries: Result<Vec<_>, String> = entries
            .iter()
            .map(|settings| HostConfigs::new(settings, &resumption, &alpn, carrier, false))
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

    /// Sets whether the kernel may encrypt sent data (kTLS), once the driver asks for it.
    pub fn offload(self, may_offload: bool) -> Self {
        Self {
            may_offload,
            ..self
        }
    }

    /// Makes a new connection, for a client that has sent nothing yet.
    pub fn accept(self: &Arc<Self>) -> TlsConnection {
        TlsConnection::new(Arc::clone(self))
    }

    /// The configuration entry for a client's server name; the first entry for unknown names and for clients without one (H2O
    /// compatibility: like H2O, the server sends no `unrecognized_name` alert).
    fn entry(&self, server_name: Option<&[u8]>) -> &HostConfigs {
        server_name
            .and_then(|name| self.names.select(name, Scheme::Https))
            .map_or(&self.entries[0], |place| {
                &self.entries[self.entry_of[place as usize]]
            })
    }

    /// Chooses the TLS configuration for the client that has sent this ClientHello.
    ///
    /// # Errors
    /// [`TlsError::OldVersion`], [`TlsError::UnsupportedCertificate`].
    pub(crate) fn choose(&self, hello: &ClientHello<'_>) -> Result<ChosenConfig, TlsError> {
        if let Some(config) = challenge::config(hello) {
            return Ok(ChosenConfig {
                config,
                server_name: None,
                hidden_name_at: None,
                client_authority: None,
                may_offload: false,
                lookup: None,
                session_id: None,
            });
        }
        if hello.offers_only_old {
            return Err(TlsError::OldVersion);
        }
        let entry = match hello.hidden_name_at {
            Some(_) => &self.nameless,
            None => self.entry(hello.server_name),
        };
        if !entry.suits(hello) {
            return Err(TlsError::UnsupportedCertificate);
        }
        let config = entry.select(hello, &self.resumption, &self.alpn);
        let server_name = hello
            .server_name
            .and_then(|name| std::str::from_utf8(name).ok());
        Ok(ChosenConfig {
            config: Arc::clone(config),
            server_name: server_name.map(Into::into),
            hidden_name_at: hello.hidden_name_at,
            client_authority: entry.client_authority.clone(),
            may_offload: self.may_offload,
            lookup: entry.look_up(hello, &self.resumption),
            session_id: None,
        })
    }

    /// Chooses the TLS configuration for the QUIC client that has sent this ClientHello (RFC 8446 §4.1.2), which includes the
    /// message header. A server name that rustls would refuse is hidden in `client_hello`. A malformed message gets any
    /// configuration, because rustls refuses it.
    pub fn choose_for_quic(&self, client_hello: &mut [u8]) -> QuicChoice {
        let hello = ClientHello::parse(client_hello).unwrap_or_default();
        let entry = match hello.hidden_name_at {
            Some(_) => &self.nameless,
            None => self.entry(hello.server_name),
        };
        let name = hello.server_name.map(std::str::from_utf8);
        let choice = QuicChoice {
            config: Arc::clone(entry.select_tls13(&hello, &self.resumption)),
            server_name: name.and_then(Result::ok).map(Into::into),
            client_authority: entry.client_authority.clone(),
        };
        if let Some(at) = hello.hidden_name_at {
            server_name::hide(client_hello, at);
        }
        choice
    }

    /// The configuration for a client whose first bytes are not a ClientHello.
    pub(crate) fn default_choice(&self) -> ChosenConfig {
        ChosenConfig {
            config: Arc::clone(self.entries[0].for_malformed()),
            server_name: None,
            hidden_name_at: None,
            client_authority: self.entries[0].client_authority.clone(),
            may_offload: self.may_offload,
            lookup: None,
            session_id: None,
        }
    }
}
