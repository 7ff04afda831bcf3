//! The TLS side of a listener: which configuration answers which client.

use std::sync::Arc;

use h2o_exchange::{Host, HostName, HostTable, TlsInfo};
use h2o_http::Scheme;
use rustls::{CipherSuite, ServerConfig};

use crate::alpn;
use crate::resumption::Resumption;
use crate::server::client_hello::ClientHello;
use crate::server::configs::{Carrier, HostConfigs};
use crate::server::connection::TlsConnection;
use crate::server::server_name;
use crate::settings::TlsSettings;
use crate::suites;
use crate::versions::Version;

/// Makes the TLS connections of one listener.
pub struct TlsAcceptor {
    /// At least one, in order of definition.
    entries: Vec<HostConfigs>,
    /// The names of all entries.
    names: HostTable,
    /// For each name, by its place in `names`, the index of its entry.
    entry_of: Vec<usize>,
    /// The first entry once more, for clients with a name that rustls would refuse: it counts as none and is hidden from rustls.
    nameless: HostConfigs,
    alpn: Vec<Vec<u8>>,
    resumption: Arc<Resumption>,
    may_offload: bool,
}

/// The configuration for one client.
pub(crate) struct ChosenConfig {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) server_name: Option<Box<str>>,
    /// Where the type of the `server_name` extension stands in the ClientHello, if the name is to be hidden.
    pub(crate) odd_name_at: Option<usize>,
    /// The `client-ca-file` that the client must show a certificate of.
    pub(crate) client_authority: Option<Arc<str>>,
    /// Whether the kernel may encrypt what is sent once the handshake is complete.
    pub(crate) may_offload: bool,
}

/// The configuration for one client of QUIC.
#[derive(Clone, Debug)]
pub struct QuicChoice {
    /// For `rustls::quic`.
    pub config: Arc<ServerConfig>,
    /// The name the client has asked for.
    pub server_name: Option<Box<str>>,
    /// The `client-ca-file` that the client must show a certificate of.
    pub client_authority: Option<Arc<str>>,
}

impl QuicChoice {
    /// What a handshake with this choice has negotiated.
    pub fn info(&self, suite: CipherSuite, alpn: Option<&[u8]>, resumed: bool) -> TlsInfo {
        TlsInfo {
            server_name: self.server_name.clone(),
            client_authority: self.client_authority.clone(),
            ..quic_client_info(suite, alpn, resumed)
        }
    }
}

/// What a handshake with a backend over QUIC has negotiated.
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
    }
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
        Self::with_carrier(entries, names, resumption, alpn, Carrier::Records)
    }

    /// The same for QUIC: [`Self::choose_for_quic`] is asked.
    ///
    /// # Errors
    /// What is wrong with an entry as a whole, such as that it has no TLS 1.3.
    pub fn for_quic(
        entries: &[Arc<TlsSettings>],
        names: Vec<(HostName, usize)>,
        resumption: Arc<Resumption>,
        alpn: &[&[u8]],
    ) -> Result<Self, String> {
        let acceptor = Self::with_carrier(entries, names, resumption, alpn, Carrier::Quic)?;
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
        carrier: Carrier,
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

    /// Whether the kernel may encrypt what is sent on established connections, once the driver asks for it.
    pub fn offload(self, may_offload: bool) -> Self {
        Self {
            may_offload,
            ..self
        }
    }

    /// A connection that has received nothing yet.
    pub fn accept(self: &Arc<Self>) -> TlsConnection {
        TlsConnection::new(Arc::clone(self))
    }

    /// The entry for the name a client asks for; the first one for other names and for none (H2O compatibility: no
    /// `unrecognized_name` alert).
    fn entry(&self, server_name: Option<&[u8]>) -> &HostConfigs {
        server_name
            .and_then(|name| self.names.select(name, Scheme::Https))
            .map_or(&self.entries[0], |place| {
                &self.entries[self.entry_of[place as usize]]
            })
    }

    /// The configuration for the client of that ClientHello.
    pub(crate) fn choose(&self, hello: &ClientHello<'_>) -> ChosenConfig {
        let entry = match hello.odd_name_at {
            Some(_) => &self.nameless,
            None => self.entry(hello.server_name),
        };
        let config = entry.select(hello, &self.resumption, &self.alpn);
        let server_name = hello
            .server_name
            .and_then(|name| std::str::from_utf8(name).ok());
        ChosenConfig {
            config: Arc::clone(config),
            server_name: server_name.map(Into::into),
            odd_name_at: hello.odd_name_at,
            client_authority: entry.client_authority.clone(),
            may_offload: self.may_offload,
        }
    }

    /// The configuration for the client of QUIC that has sent this ClientHello (RFC 8446 §4.1.2), message header and all. A name that
    /// rustls would refuse is hidden in it. rustls refuses a malformed message, whatever configuration it gets.
    pub fn choose_for_quic(&self, client_hello: &mut [u8]) -> QuicChoice {
        let hello = ClientHello::parse(client_hello).unwrap_or_default();
        let entry = match hello.odd_name_at {
            Some(_) => &self.nameless,
            None => self.entry(hello.server_name),
        };
        let name = hello.server_name.map(std::str::from_utf8);
        let choice = QuicChoice {
            config: Arc::clone(entry.select_tls13(&hello, &self.resumption)),
            server_name: name.and_then(Result::ok).map(Into::into),
            client_authority: entry.client_authority.clone(),
        };
        if let Some(at) = hello.odd_name_at {
            server_name::hide(client_hello, at);
        }
        choice
    }

    /// The configuration for what does not look like a ClientHello.
    pub(crate) fn default_choice(&self) -> ChosenConfig {
        ChosenConfig {
            config: Arc::clone(self.entries[0].for_malformed()),
            server_name: None,
            odd_name_at: None,
            client_authority: self.entries[0].client_authority.clone(),
            may_offload: self.may_offload,
        }
    }
}
