//! The TLS side of a listener: which configuration answers which client.

use std::sync::Arc;

use h2o_exchange::{Host, HostName, HostTable};
use h2o_http::Scheme;
use rustls::ServerConfig;

use crate::resumption::Resumption;
use crate::server::client_hello::ClientHello;
use crate::server::configs::HostConfigs;
use crate::server::connection::TlsConnection;
use crate::settings::TlsSettings;

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
        let nameless = HostConfigs::new(&entries[0], &resumption, &alpn, true)?;
        let entries: Result<Vec<_>, String> = entries
            .iter()
            .map(|settings| HostConfigs::new(settings, &resumption, &alpn, false))
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
