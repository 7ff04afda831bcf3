//! The settings of the proxy at a configuration level, for requests to upstreams.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use h2o_config::Level;
use h2o_tls::{TlsClient, TlsClientError, TlsClientSettings};
use h2o_upstream::{NameOrigin, UpstreamSettings};

use super::health_policy::CheckSettings;
use super::request::RequestRules;
use super::response::ResponseRules;

/// The settings of the proxy at a configuration level.
#[derive(Clone, Debug)]
pub(crate) struct ProxySettings {
    pub(super) request: RequestRules,
    pub(super) response: ResponseRules,
    /// The settings of `proxy.timeout.*`.
    pub(crate) timeouts: Timeouts,
    /// The settings of `proxy.ssl.*`, shared by levels that do not change them.
    pub(super) tls: Arc<Tls>,
    /// The setting of `proxy.tunnel`.
    pub(super) tunnels: bool,
    /// Whether the setting is `proxy.expect: ON`: requests with a body are sent with `expect: 100-continue`.
    pub(super) expects_continue: bool,
    /// The setting of `proxy.proxy-protocol`.
    pub(super) proxy_protocol: bool,
    /// The setting of `proxy.max-buffer-size` in bytes.
    pub(super) max_buffer_size: Option<u64>,
    /// The setting of `proxy.max-temp-file-size` in bytes.
    pub(super) max_temp_file_size: u64,
    /// The setting of `proxy.zerocopy`.
    pub(super) zerocopy: bool,
    /// The setting of `proxy.http2.ratio`, in percent.
    pub(super) http2_ratio: Option<u8>,
    /// The setting of `proxy.http3.ratio`, in percent.
    pub(super) http3_ratio: u8,
    /// The setting of `proxy.http3.ecn`.
    pub(super) http3_ecn: bool,
    /// The setting of `proxy.http2.force-cleartext`.
    pub(super) http2_force_cleartext: bool,
    /// The setting of `proxy.http2.max-concurrent-streams`.
    pub(super) http2_max_streams: u32,
    /// Whether the names of the servers come from the configuration, or from requests and responses.
    pub(super) name_origin: NameOrigin,
    /// The settings `proxy.health-check`, `proxy.passive-health-check` and `proxy.retry`.
    pub(super) checks: CheckSettings,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            request: RequestRules {
                preserve_host: false,
                emit_x_forwarded: true,
                preserve_x_forwarded_proto: false,
                emit_via: true,
                forwards_expectations: false,
                edits: Vec::new(),
            },
            response: ResponseRules {
                emit_missing_date: true,
                forward_close: false,
                relocates: true,
            },
            timeouts: Timeouts::default(),
            tls: Arc::default(),
            tunnels: false,
            expects_continue: false,
            proxy_protocol: false,
            max_buffer_size: None,
            max_temp_file_size: 1 << 30,
            zerocopy: true,
            http2_ratio: None,
            http3_ratio: 0,
            http3_ecn: true,
            http2_force_cleartext: false,
            http2_max_streams: 100,
            name_origin: NameOrigin::Configured,
            checks: CheckSettings::default(),
        }
    }
}

impl ProxySettings {
    /// The settings of an upstream, from those of this level.
    ///
    /// # Errors
    /// The reason why the CA certificates cannot be read.
    pub(crate) fn upstream(&self) -> Result<UpstreamSettings, TlsClientError> {
        Ok(UpstreamSettings {
            connect_timeout: self.timeouts.connect,
            first_byte_timeout: self.timeouts.first_byte,
            io_timeout: self.timeouts.io,
            keepalive: self.timeouts.keepalive,
            max_buffer_size: self.max_buffer_size,
            max_temp_file_size: self.max_temp_file_size,
            zerocopy: self.zerocopy,
            proxy_protocol: self.proxy_protocol,
            http2_ratio: self.http2_ratio,
            http3_ratio: self.http3_ratio,
            http3_ecn: self.http3_ecn,
            http2_force_cleartext: self.http2_force_cleartext,
            http2_max_streams: self.http2_max_streams,
            fastcgi: None,
            name_origin: self.name_origin,
            tls: self.tls.client()?,
        })
    }

    /// The part of the global level's settings that the built-in proxy uses.
    pub(super) fn of_built_in(&self) -> Self {
        Self {
            request: RequestRules {
                preserve_host: false,
                forwards_expectations: false,
                edits: Vec::new(),
                ..self.request
            },
            response: ResponseRules {
                forward_close: false,
                relocates: false,
                ..self.response
            },
            tls: Arc::clone(&self.tls),
            tunnels: false,
            expects_continue: false,
            proxy_protocol: false,
            http2_force_cleartext: false,
            checks: CheckSettings::default(),
            name_origin: NameOrigin::Requested,
            ..*self
        }
    }

    /// Changes the settings of `proxy.ssl.*`. H2O compatibility: as in H2O, a level that changes them has a TLS session
    /// cache of its own.
    pub(super) fn edit_tls(&mut self, edit: impl FnOnce(&mut TlsRules)) {
        let mut rules = self.tls.rules.clone();
        edit(&mut rules);
        let client = OnceLock::new();
        // The file of CA certificates is read now, also for the built-in proxy, because the running user may not be
        // able to read it later. The directive that names the file has checked that it can be read.
        if rules.ca_file.is_some()
            && let Ok(made) = rules.client()
        {
            client.get_or_init(|| made);
        }
        self.tls = Arc::new(Tls { rules, client });
    }
}

/// The time limits of the proxy at a configuration level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// The setting of `proxy.timeout.connect`.
    pub(crate) connect: Duration,
    /// The setting of `proxy.timeout.first_byte`.
    pub(crate) first_byte: Duration,
    /// The setting of `proxy.timeout.io`.
    pub(crate) io: Duration,
    /// The setting of `proxy.timeout.keepalive`.
    pub(crate) keepalive: Duration,
    /// The configuration level that has set the limit for connecting last.
    connect_set: Option<Level>,
    first_byte_set: Option<Level>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            first_byte: Duration::from_secs(30),
            io: Duration::from_secs(30),
            keepalive: Duration::from_secs(2),
            connect_set: None,
            first_byte_set: None,
        }
    }
}

impl Timeouts {
    /// Sets the limit for I/O. It also becomes the limit for connecting and for the first byte, unless the same level
    /// sets these.
    pub(crate) fn set_io(&mut self, level: Level, limit: Duration) {
        self.io = limit;
        // The settings of an inner level begin as a copy of the outer level's settings, including the levels noted in
        // them.
        if self.connect_set != Some(level) {
            self.connect = limit;
        }
        if self.first_byte_set != Some(level) {
            self.first_byte = limit;
        }
    }

    pub(crate) fn set_connect(&mut self, level: Level, limit: Duration) {
        (self.connect, self.connect_set) = (limit, Some(level));
    }

    pub(crate) fn set_first_byte(&mut self, level: Level, limit: Duration) {
        (self.first_byte, self.first_byte_set) = (limit, Some(level));
    }
}

/// The settings of `proxy.ssl.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TlsRules {
    /// The setting of `proxy.ssl.verify-peer`.
    pub(super) verify_peer: bool,
    /// The setting of `proxy.ssl.cafile`.
    pub(super) ca_file: Option<PathBuf>,
    /// The setting of `proxy.ssl.session-cache`: how long sessions are kept, and how many.
    pub(super) session_cache: Option<(Duration, usize)>,
}

impl TlsRules {
    /// How long and how many sessions are kept with `proxy.ssl.session-cache: ON`.
    pub(super) const CACHE: (Duration, usize) = (Duration::from_secs(86_400), 4096);

    /// Reads the CA certificates, and makes a TLS client of the rules.
    pub(super) fn client(&self) -> Result<Arc<TlsClient>, TlsClientError> {
        TlsClient::new(TlsClientSettings {
            verify_peer: self.verify_peer,
            ca_file: self.ca_file.clone(),
            session_cache: self.session_cache,
        })
    }
}

impl Default for TlsRules {
    fn default() -> Self {
        Self {
            verify_peer: true,
            ca_file: None,
            session_cache: Some(Self::CACHE),
        }
    }
}

/// The rules for TLS towards backends, with the TLS client that is made from them when the first backend needs it.
#[derive(Default)]
pub(super) struct Tls {
    pub(super) rules: TlsRules,
    client: OnceLock<Arc<TlsClient>>,
}

impl Tls {
    fn client(&self) -> Result<Arc<TlsClient>, TlsClientError> {
        if let Some(client) = self.client.get() {
            return Ok(Arc::clone(client));
        }
        let made = self.rules.client()?;
        Ok(Arc::clone(self.client.get_or_init(|| made)))
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.rules.fmt(f)
    }
}
