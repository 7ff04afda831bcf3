//! `ssl-session-resumption`: how clients resume sessions.
//!
//! TLS 1.2 has session identifiers, with sessions in the server's cache, and tickets, which are encrypted sessions kept
//! by the client. TLS 1.3 has tickets only. With a ticket a TLS 1.3 client may send early data, which an attacker may
//! replay. Tickets that allow early data are therefore single-use: they name a session in the server's memory (RFC 8446
//! §8.1). If that memory is full, or several servers share ticket keys, tickets are encrypted sessions without early
//! data.

mod binding;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod key_format;
mod session_cache;
mod session_format;
mod session_store;
mod shared_keys;
mod stores;
mod ticket_file;
mod tickets;

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use h2o_config::{Attribute, Attributes, Command, Directive, Error, Kinds, Levels, Node, Pass};
use h2o_exchange::{Resources, Scope};
use rustls::server::{ProducesTickets, StoresServerSessions};

use crate::clock::unix_now;
pub(crate) use crate::resumption::binding::Binding;
use crate::resumption::session_cache::SessionCache;
pub(crate) use crate::resumption::session_format::Wanted;
pub(crate) use crate::resumption::session_store::Lookup;
use crate::resumption::session_store::{SessionStore, SessionStoreSettings};
use crate::resumption::shared_keys::{SharedEntry, SharedKeys};
use crate::resumption::stores::SharedStore;
use crate::resumption::ticket_file::{SharedTicketFile, TicketFile};
pub use crate::resumption::tickets::QuicSecret;
use crate::resumption::tickets::{KeyRing, TicketAlgorithms, TicketCipher, TicketHash};

/// Length in bytes of the identifiers that rustls gives to cached sessions; encrypted tickets are longer.
const KEPT_TICKET_LEN: usize = 32;
/// The longest lifetime of a ticket in seconds, a week: clients must not keep tickets for longer (RFC 8446 §4.6.1).
const MAX_LIFETIME_HINT: u64 = 604_800;

/// The settings of the directive `ssl-session-resumption`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumptionSettings {
    cache: Option<CacheStore>,
    tickets: Option<TicketSettings>,
    lifetime_secs: u64,
}

impl ResumptionSettings {
    /// Whether clients get session tickets.
    #[must_use]
    pub const fn has_tickets(&self) -> bool {
        self.tickets.is_some()
    }

    /// Whether other servers may use the same ticket keys, from a file or a shared store.
    #[must_use]
    pub fn shares_ticket_keys(&self) -> bool {
        let tickets = self.tickets.as_ref();
        tickets.is_some_and(|tickets| tickets.store != TicketStore::Internal)
    }
}

/// Where sessions of TLS 1.2 are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CacheStore {
    Internal,
    /// Sessions are kept in a store that servers share, and in memory as well, so that a server finds its own sessions at once.
    Shared(SessionStoreSettings),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct TicketSettings {
    store: TicketStore,
    algorithms: TicketAlgorithms,
}

const DEFAULT_ALGORITHMS: TicketAlgorithms = TicketAlgorithms {
    cipher: TicketCipher::Aes256Cbc,
    hash: TicketHash::Sha256,
};

/// The name of the memcached or Redis entry that holds the ticket keys. H2O uses the same name, so that both servers can share the
/// keys.
const DEFAULT_STORE_KEY: &str = "h2o:ssl-session-key";

/// The beginning of the names of memcached or Redis entries that hold sessions. H2O uses the same names.
const DEFAULT_SESSION_PREFIX: &str = "h2o:ssl-session-cache:";

#[derive(Clone, Debug, PartialEq, Eq)]
enum TicketStore {
    Internal,
    File(SharedTicketFile),
    Shared(SharedEntry),
}

impl Default for ResumptionSettings {
    fn default() -> Self {
        Self {
            cache: Some(CacheStore::Internal),
            tickets: Some(TicketSettings {
                store: TicketStore::Internal,
                algorithms: DEFAULT_ALGORITHMS,
            }),
            lifetime_secs: 3600,
        }
    }
}

/// The directive `ssl-session-resumption`.
pub const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: "ssl-session-resumption",
    levels: Levels::GLOBAL_ONLY,
    pass: Pass::Settings,
    kinds: Kinds::MAPPING.with_attributes(&ATTRIBUTES),
    value: "a mapping",
    default: "`mode: all`, internal stores, `lifetime: 3600`",
    help: "How clients resume TLS sessions. Clients of TLS 1.3 may send early data if tickets are on, with `ticket-store: \
           internal`.",
    apply: |scope, command| {
        let settings = parse(command)?;
        let store = settings.tickets.as_ref().map(|tickets| &tickets.store);
        if let Some(TicketStore::File(file)) = store {
            let resources = scope.shared.edit::<Resources>();
            resources.add(file.place().clone(), Arc::new(file.clone()));
        }
        *scope.edit::<ResumptionSettings>() = settings;
        Ok(())
    },
}];

const ATTRIBUTES: [Attribute; 14] = [
    Attribute::optional(
        "mode",
        Kinds::SCALAR,
        "off|cache|ticket|all",
        "all",
        "`cache` keeps sessions of TLS 1.2 at the server, `ticket` hands them to the client in encrypted form; TLS 1.3 has \
         tickets only.",
    ),
    Attribute::optional(
        "lifetime",
        Kinds::SCALAR,
        "SECONDS",
        "3600",
        "How long a session can be resumed.",
    ),
    Attribute::optional(
        "cache-store",
        Kinds::SCALAR,
        "internal|memcached|redis",
        "internal",
        "Where sessions are kept: in the server's memory, or in a store that several servers share.",
    ),
    Attribute::optional(
        "cache-memcached-num-threads",
        Kinds::SCALAR,
        "NUMBER",
        "1",
        "Number of threads, each with a connection to memcached, that read and write sessions.",
    ),
    Attribute::optional(
        "cache-memcached-prefix",
        Kinds::SCALAR,
        "TEXT",
        DEFAULT_SESSION_PREFIX,
        "The beginning of the keys under which memcached has sessions; the session identifier in base64url follows.",
    ),
    Attribute::optional(
        "cache-redis-prefix",
        Kinds::SCALAR,
        "TEXT",
        DEFAULT_SESSION_PREFIX,
        "The beginning of the keys under which Redis has sessions.",
    ),
    Attribute::optional(
        "ticket-store",
        Kinds::SCALAR,
        "internal|file|memcached|redis",
        "internal",
        "Where ticket keys come from. `internal`: the server makes them and changes them regularly. `file`: from `ticket-file`, \
         which several servers may share. `memcached`, `redis`: from a store, in which the servers that share it put new keys in \
         turn.",
    ),
    Attribute::optional(
        "ticket-cipher",
        Kinds::SCALAR,
        "aes-128-cbc|aes-256-cbc",
        "aes-256-cbc",
        "Encryption of tickets whose keys are made by the server.",
    ),
    Attribute::optional(
        "ticket-hash",
        Kinds::SCALAR,
        "sha1|sha256|sha384|sha512",
        "sha256",
        "Authentication of tickets whose keys are made by the server.",
    ),
    Attribute::optional(
        "ticket-file",
        Kinds::SCALAR.with_attributes(&key_format::ATTRIBUTES),
        "FILE",
        "mandatory with `ticket-store: file`",
        "A YAML file with the keys: a sequence of mappings, see below. It is read again when it changes.",
    ),
    Attribute::optional(
        "ticket-memcached-prefix",
        Kinds::SCALAR,
        "KEY",
        DEFAULT_STORE_KEY,
        "The key under which memcached has the ticket keys.",
    )
    .aliases(&["ticket-memcached-key"]),
    Attribute::optional(
        "ticket-redis-prefix",
        Kinds::SCALAR,
        "KEY",
        DEFAULT_STORE_KEY,
        "The key under which Redis has the ticket keys.",
    ),
    Attribute::optional(
        "memcached",
        Kinds::MAPPING.with_attributes(&stores::MEMCACHED_ATTRIBUTES),
        "a mapping",
        "mandatory with `memcached` as a store",
        "The memcached server that keeps the sessions or ticket keys.",
    ),
    Attribute::optional(
        "redis",
        Kinds::MAPPING.with_attributes(&stores::REDIS_ATTRIBUTES),
        "a mapping",
        "mandatory with `redis` as a store",
        "The Redis server that keeps the sessions or ticket keys.",
    ),
];

fn parse(command: &Command<'_>) -> Result<ResumptionSettings, Error> {
    let attributes = command.node.attributes(&ATTRIBUTES)?;
    let (cache, tickets) = match attributes.get("mode") {
        None => (true, true),
        Some(node) => match node.one_of(&["off", "cache", "ticket", "all"])? {
            0 => (false, false),
            1 => (true, false),
            2 => (false, true),
            _ => (true, true),
        },
    };
    let mut settings = ResumptionSettings {
        cache: None,
        tickets: None,
        ..ResumptionSettings::default()
    };
    if let Some(node) = attributes.get("lifetime") {
        settings.lifetime_secs = node
            .integer("%u", 1..=u64::from(u32::MAX))
            .map_err(|_| node.error("`lifetime` must be a positive number"))?;
    }
    // H2O compatibility: H2O ignores the attributes of a method (`cache` or `ticket`) that the mode does not use.
    if cache {
        settings.cache = Some(cache_store(&attributes)?);
    }
    if !tickets {
        return Ok(settings);
    }
    let store = ticket_store(&attributes)?;
    let mut algorithms = DEFAULT_ALGORITHMS;
    if let Some(node) = attributes.get("ticket-cipher") {
        algorithms.cipher = TicketCipher::by_name(node.scalar()?).ok_or_else(|| {
            node.error("unknown cipher algorithm")
                .with_hint(TicketCipher::NAMES)
        })?;
    }
    if let Some(node) = attributes.get("ticket-hash") {
        algorithms.hash = TicketHash::by_name(node.scalar()?).ok_or_else(|| {
            node.error("unknown hash algorithm")
                .with_hint(TicketHash::NAMES)
        })?;
    }
    settings.tickets = Some(TicketSettings { store, algorithms });
    Ok(settings)
}

fn cache_store(attributes: &Attributes<'_>) -> Result<CacheStore, Error> {
    let Some(node) = attributes.get("cache-store") else {
        return Ok(CacheStore::Internal);
    };
    let (store, prefix, threads) = match node.one_of(&["internal", "memcached", "redis"])? {
        0 => return Ok(CacheStore::Internal),
        1 => {
            let threads = match attributes.get("cache-memcached-num-threads") {
                None => 1,
                Some(node) => node.integer("%hu", 1..=MAX_SESSION_THREADS.into())?,
            };
            (
                memcached(node, attributes)?,
                "cache-memcached-prefix",
                threads,
            )
        }
        _ => (redis(node, attributes)?, "cache-redis-prefix", 1),
    };
    // In the key of an entry, the prefix is followed by the session identifier, which takes 43 characters in base64url.
    let prefix = attributes.get(prefix);
    let prefix = store_key(prefix, DEFAULT_SESSION_PREFIX, MAX_KEY_LEN - 43)?.into();
    Ok(CacheStore::Shared(SessionStoreSettings {
        store,
        prefix,
        threads,
    }))
}

fn ticket_store(attributes: &Attributes<'_>) -> Result<TicketStore, Error> {
    let Some(node) = attributes.get("ticket-store") else {
        return Ok(TicketStore::Internal);
    };
    match node.one_of(&["internal", "file", "memcached", "redis"])? {
        0 => Ok(TicketStore::Internal),
        1 => {
            let Some(file) = attributes.get("ticket-file") else {
                let error = node.error("mandatory attribute `file` is missing");
                return Err(error.with_hint("write `ticket-file: FILE`"));
            };
            let place = file
                .error("")
                .in_command("ssl-session-resumption", &file.pos);
            Ok(TicketStore::File(SharedTicketFile::new(
                file.scalar()?,
                place,
            )))
        }
        index => {
            let (store, key) = match index {
                2 => (memcached(node, attributes)?, "ticket-memcached-prefix"),
                _ => (redis(node, attributes)?, "ticket-redis-prefix"),
            };
            let key = store_key(attributes.get(key), DEFAULT_STORE_KEY, MAX_KEY_LEN)?.into();
            Ok(TicketStore::Shared(SharedEntry { store, key }))
        }
    }
}

/// Returns the memcached store that the attribute `memcached` describes. `node` is the configuration node that needs the store;
/// errors about a missing attribute point to it.
fn memcached(node: &Node, attributes: &Attributes<'_>) -> Result<SharedStore, Error> {
    let Some(memcached) = attributes.get("memcached") else {
        let error = node.error("configuration of memcached is missing");
        return Err(error.with_hint("write `memcached: { host: HOST }`"));
    };
    SharedStore::memcached(memcached)
}

/// Returns the Redis store that the attribute `redis` describes. `node` is the configuration node that needs the store; errors
/// about a missing attribute point to it.
fn redis(node: &Node, attributes: &Attributes<'_>) -> Result<SharedStore, Error> {
    let Some(redis) = attributes.get("redis") else {
        let error = node.error("configuration of redis is missing");
        return Err(error.with_hint("write `redis: { host: HOST }`"));
    };
    SharedStore::redis(redis)
}

/// Limit of the number of threads that read and write sessions in memcached.
const MAX_SESSION_THREADS: u16 = 256;
/// Length in bytes of the longest key that memcached takes.
const MAX_KEY_LEN: usize = 250;

/// Reads the name of an entry that the server writes, or the beginning of such names, in the form that memcached requires.
fn store_key<'a>(
    node: Option<&'a Node>,
    default: &'static str,
    max_len: usize,
) -> Result<&'a str, Error> {
    let Some(node) = node else {
        return Ok(default);
    };
    let key = node.scalar()?;
    if key.is_empty() || key.len() > max_len || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(node.error(format!(
            "the key must have 1 to {max_len} characters of ASCII, without spaces"
        )));
    }
    Ok(key)
}

/// Sessions and ticket keys for resumption, shared by all listeners and workers.
#[derive(Debug)]
pub struct Resumption {
    lifetime_secs: u64,
    /// The sessions of TLS 1.2 in this server's memory, by identifier.
    ids: Option<Arc<SessionCache>>,
    /// The store of TLS 1.2 sessions that this server shares with other servers.
    id_store: Option<SessionStore>,
    tickets: Option<Tickets>,
}

#[derive(Debug)]
struct Tickets {
    ring: Arc<RwLock<KeyRing>>,
    algorithms: TicketAlgorithms,
    source: TicketSource,
}

#[derive(Debug)]
enum TicketSource {
    /// This server generates the keys. `kept` has the sessions of TLS 1.3 tickets that allow early data.
    Internal {
        kept: SessionCache,
    },
    File(Mutex<TicketFile>),
    /// A thread of its own copies the keys from a store that servers share.
    Shared(#[expect(dead_code, reason = "the thread ends when this value is dropped")] SharedKeys),
}

impl Resumption {
    /// Generates or loads the first ticket keys.
    pub fn new(settings: &ResumptionSettings) -> Arc<Self> {
        let lifetime_secs = settings.lifetime_secs;
        let tickets = settings.tickets.as_ref().map(|tickets| {
            let ring = Arc::<RwLock<KeyRing>>::default();
            let algorithms = tickets.algorithms;
            let source = match &tickets.store {
                TicketStore::Internal => TicketSource::Internal {
                    kept: SessionCache::new(lifetime_secs),
                },
                TicketStore::File(file) => {
                    let (file, keys) = file.take();
                    *ring.write().unwrap_or_else(PoisonError::into_inner) = keys;
                    TicketSource::File(Mutex::new(file))
                }
                TicketStore::Shared(entry) => {
                    let ring = Arc::clone(&ring);
                    let keys = SharedKeys::start(entry, algorithms, lifetime_secs, ring);
                    TicketSource::Shared(keys)
                }
            };
            Tickets {
                ring,
                algorithms,
                source,
            }
        });
        let cache = settings.cache.as_ref();
        let ids = cache.map(|_| Arc::new(SessionCache::new(lifetime_secs)));
        let id_store = match (cache, &ids) {
            (Some(CacheStore::Shared(store)), Some(ids)) => {
                Some(SessionStore::start(store, lifetime_secs, ids))
            }
            _ => None,
        };
        let resumption = Self {
            lifetime_secs,
            ids,
            id_store,
            tickets,
        };
        resumption.refresh();
        Arc::new(resumption)
    }

    /// Rotates ticket keys and drops expired sessions, if that is due. Handshakes do the same; a periodic call takes most of this
    /// work from them, and deletes old keys even while there are no handshakes.
    pub fn refresh(&self) {
        let now = unix_now();
        if let Some(ids) = &self.ids {
            ids.drop_expired(now);
        }
        if let Some(tickets) = &self.tickets {
            tickets.refresh(now, self.lifetime_secs);
            if let TicketSource::Internal { kept } = &tickets.source {
                kept.drop_expired(now);
            }
        }
    }

    /// Secrets from which the keys of QUIC tokens and connection ids are derived, one per ticket key, the active one first; empty
    /// without tickets. They change with the ticket keys.
    pub fn quic_secrets(&self) -> Vec<QuicSecret> {
        let Some(tickets) = &self.tickets else {
            return Vec::new();
        };
        let now = unix_now();
        tickets.refresh(now, self.lifetime_secs);
        tickets.with_ring(|ring| {
            let secrets = ring.active_first(now).map(|key| key.quic_secret().clone());
            secrets.collect()
        })
    }

    pub(crate) fn has_tickets(&self) -> bool {
        self.tickets.is_some()
    }

    pub(crate) fn has_ids(&self) -> bool {
        self.ids.is_some()
    }

    /// Begins to look for a session of TLS 1.2 in the store that servers share. `None` if this server's memory has the session
    /// already, and if no store can be asked. A session that is found is put into this server's memory, where rustls looks for it.
    pub(crate) fn look_up(&self, wanted: impl FnOnce() -> Option<Wanted>) -> Option<Lookup> {
        let (ids, store) = (self.ids.as_ref()?, self.id_store.as_ref()?);
        let wanted = wanted()?;
        if ids.contains(&wanted.id, &wanted.binding, unix_now()) {
            return None;
        }
        store.look_up(wanted)
    }

    /// How TLS 1.3 tickets are handled for a client, depending on the first ticket that it offers and on whether it announces
    /// early data.
    pub(crate) fn ticket_use(
        &self,
        first_ticket: Option<&[u8]>,
        early_data: bool,
        binding: &Binding,
    ) -> TicketUse {
        let Some(kept) = self.kept() else {
            return TicketUse::Encrypted;
        };
        let first_is_kept =
            || first_ticket.is_some_and(|ticket| kept.contains(ticket, binding, unix_now()));
        if early_data && first_is_kept() {
            TicketUse::EarlyData
        } else if kept.has_room(unix_now()) {
            TicketUse::Kept
        } else {
            TicketUse::Encrypted
        }
    }

    fn kept(&self) -> Option<&SessionCache> {
        match &self.tickets.as_ref()?.source {
            TicketSource::Internal { kept } => Some(kept),
            TicketSource::File(_) | TicketSource::Shared(_) => None,
        }
    }

    fn seal(&self, plain: &[u8], binding: &Binding) -> Option<Vec<u8>> {
        let tickets = self.tickets.as_ref()?;
        let now = unix_now();
        tickets.refresh(now, self.lifetime_secs);
        let key = tickets.with_ring(|ring| ring.active(now).cloned())?;
        key.seal(plain, binding)
    }

    /// Returns the session of a ticket, which is an encrypted session or names a session in memory. `once`: the ticket came with
    /// early data, and is removed so that it cannot be used again.
    fn open(&self, ticket: &[u8], binding: &Binding, once: bool) -> Option<Vec<u8>> {
        let tickets = self.tickets.as_ref()?;
        let now = unix_now();
        if ticket.len() == KEPT_TICKET_LEN {
            let kept = self.kept()?;
            return if once {
                kept.take(ticket, binding, now)
            } else {
                kept.get(ticket, binding, now)
            };
        }
        tickets.refresh(now, self.lifetime_secs);
        let key = tickets.with_ring(|ring| ring.key_of(ticket, now).cloned())?;
        key.open(ticket, binding)
    }
}

impl Tickets {
    fn with_ring<R>(&self, read: impl FnOnce(&KeyRing) -> R) -> R {
        read(&self.ring.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_ring(&self, ring: KeyRing) {
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = ring;
    }

    fn refresh(&self, now: u64, lifetime_secs: u64) {
        match &self.source {
            TicketSource::Internal { .. } => self.rotate(now, lifetime_secs),
            TicketSource::File(file) => {
                // If another thread is reading the file of ticket keys, this thread does not wait for it.
                let Ok(mut file) = file.try_lock() else {
                    return;
                };
                if !file.is_due(now) {
                    return;
                }
                if let Some(ring) = file.poll_and_report(now) {
                    self.set_ring(ring);
                }
            }
            TicketSource::Shared(_) => {}
        }
    }

    fn rotate(&self, now: u64, lifetime_secs: u64) {
        if !self.with_ring(|ring| ring.is_stale(now, lifetime_secs)) {
            return;
        }
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        // The rotation has no effect if another thread has rotated the keys meanwhile.
        if ring.rotate(now, lifetime_secs, self.algorithms).is_err() {
            h2o_log::report!(
                error,
                "failed to generate new session ticket secrets, the old ones stay in use"
            );
        }
    }
}

/// How the TLS 1.3 tickets of a connection are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketUse {
    /// New tickets are encrypted sessions.
    Encrypted,
    /// New tickets only identify a session kept in this server's memory, and allow early data.
    Kept,
    /// Like `Kept`, for a client that sends early data: the ticket that it offers cannot be used again.
    EarlyData,
}

/// The tickets of an `ssl` mapping, for rustls.
#[derive(Debug)]
pub(crate) struct HostTickets {
    pub(crate) resumption: Arc<Resumption>,
    pub(crate) binding: Binding,
    pub(crate) is_enabled: bool,
}

impl ProducesTickets for HostTickets {
    fn enabled(&self) -> bool {
        self.is_enabled
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.resumption.lifetime_secs.min(MAX_LIFETIME_HINT)).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.resumption.seal(plain, &self.binding)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        if !self.is_enabled {
            // In TLS 1.2, rustls has tickets of clients decrypted without checking `enabled`, so tickets that are off are refused here.
            return None;
        }
        self.resumption.open(ticket, &self.binding, false)
    }
}

/// The cached sessions of an `ssl` mapping, for rustls.
#[derive(Debug)]
pub(crate) struct HostSessions {
    pub(crate) resumption: Arc<Resumption>,
    pub(crate) binding: Binding,
    pub(crate) purpose: CacheUse,
}

/// What rustls uses a session cache for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheUse {
    /// The sessions of TLS 1.2, by session identifier.
    Ids,
    /// The sessions of TLS 1.3 that tickets name; `once`: each ticket can be used only once.
    Tickets { once: bool },
}

impl HostSessions {
    fn cache(&self) -> Option<&SessionCache> {
        match self.purpose {
            CacheUse::Ids => self.resumption.ids.as_deref(),
            CacheUse::Tickets { .. } => self.resumption.kept(),
        }
    }
}

impl StoresServerSessions for HostSessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let Some(cache) = self.cache() else {
            return false;
        };
        cache.put(&key, &self.binding, &value, unix_now());
        if self.purpose == CacheUse::Ids
            && let Some(store) = &self.resumption.id_store
        {
            store.put(&key, &self.binding, &value);
        }
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.cache()?.get(key, &self.binding, unix_now())
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        match self.purpose {
            CacheUse::Ids => self.cache()?.take(key, &self.binding, unix_now()),
            CacheUse::Tickets { once } => self.resumption.open(key, &self.binding, once),
        }
    }

    fn can_cache(&self) -> bool {
        self.cache().is_some()
    }
}
