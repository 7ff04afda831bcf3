//! The certificates of the listeners, and reloading them while the server runs.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use h2o_exchange::{CertificateInfo, Certificates, Host, HostName, Site};
use h2o_opener::Stamp;
use rustc_hash::FxHashMap;

use crate::site::listen::{Listener, TlsEntry};
use crate::site::settings::ServerSettings;
use crate::stapling::Staples;
use h2o_tls::{OffloadSettings, Resumption, TlsAcceptor, TlsSettings};

/// The ALPN protocols in order of preference. H2O compatibility: H2O has the same list, with the names of two drafts of HTTP/2.
const ALPN: &[&[u8]] = &[b"h2", b"h2-16", b"h2-14", b"http/1.1"];

/// The ALPN protocols of QUIC: HTTP/3, and its draft 29.
const QUIC_ALPN: &[&[u8]] = &[b"h3", b"h3-29"];

/// The TLS acceptor of a listener, shared by all workers and replaced by a reload. A connection keeps the acceptor that it was
/// accepted with.
pub(crate) struct AcceptorSlot(RwLock<Arc<TlsAcceptor>>);

impl AcceptorSlot {
    /// The acceptor for a new connection.
    pub(crate) fn current(&self) -> Arc<TlsAcceptor> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, acceptor: TlsAcceptor) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(acceptor);
    }
}

/// Result of reloading certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateReload {
    /// Number of `ssl` mappings whose files had changed.
    pub renewed: usize,
    /// A message for each certificate with its key, and each `client-ca-file`, that cannot be used; the previously loaded one stays
    /// in use.
    pub failures: Vec<String>,
}

/// The TLS listeners of a running server.
pub(crate) struct TlsListeners {
    site: Arc<Site>,
    resumption: Arc<Resumption>,
    list: Mutex<Vec<TlsListener>>,
}

struct TlsListener {
    /// The listener. Its entries hold the certificates as of the last reload.
    listener: Listener,
    slot: Arc<AcceptorSlot>,
}

impl TlsListeners {
    pub(crate) fn new(site: Arc<Site>, resumption: Arc<Resumption>) -> Self {
        Self {
            site,
            resumption,
            list: Mutex::default(),
        }
    }

    pub(crate) fn resumption(&self) -> &Arc<Resumption> {
        &self.resumption
    }

    /// Adds a listener. Returns the slot of its TLS acceptor, which is the slot in `running` if nothing has changed for this
    /// listener; returns `None` for a listener without TLS.
    ///
    /// # Errors
    /// What is wrong with the listener's TLS settings.
    pub(crate) fn add(
        &self,
        listener: &Listener,
        running: Option<&Self>,
    ) -> Result<Option<Arc<AcceptorSlot>>, String> {
        if !listener.is_tls() {
            return Ok(None);
        }
        let slot = match running.and_then(|running| self.unchanged(listener, running)) {
            Some(slot) => slot,
            None => {
                let acceptor = self.acceptor(listener, &listener.tls)?;
                Arc::new(AcceptorSlot(RwLock::new(Arc::new(acceptor))))
            }
        };
        self.list().push(TlsListener {
            listener: listener.clone(),
            slot: Arc::clone(&slot),
        });
        Ok(Some(slot))
    }

    /// Returns the slot of the same listener in `running`, if its TLS acceptor would be the same now.
    fn unchanged(&self, listener: &Listener, running: &Self) -> Option<Arc<AcceptorSlot>> {
        let list = running.list();
        let same = list
            .iter()
            .find(|known| known.listener.endpoint == listener.endpoint)?;
        let (ours, theirs) = (&listener.tls, &same.listener.tls);
        let is_same = ours.len() == theirs.len()
            && (ours.iter().zip(theirs))
                .all(|(ours, theirs)| ours.settings.is_same_as(&theirs.settings))
            && self.names(ours) == running.names(theirs)
            && self.may_offload() == running.may_offload()
            && self.early_data_terms(listener) == running.early_data_terms(&same.listener);
        is_same.then(|| Arc::clone(&same.slot))
    }

    /// The settings of a QUIC listener that clients remember for early data; `None` for other listeners.
    fn early_data_terms(&self, listener: &Listener) -> Option<Vec<u8>> {
        let quic = listener.quic.as_ref()?;
        let settings: Arc<ServerSettings> = self.site.settings.get();
        let window = u64::from(settings.http3.input_window_size);
        let terms = [window, quic.max_streams, quic.decoder_table.into()];
        Some(terms.map(u64::to_be_bytes).concat())
    }

    fn list(&self) -> MutexGuard<'_, Vec<TlsListener>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_offload(&self) -> bool {
        self.site.settings.get::<OffloadSettings>().is_possible()
    }

    /// The files of certificates, keys and client authorities.
    pub(crate) fn files(&self) -> BTreeSet<Box<str>> {
        let list = self.list();
        let entries = list.iter().flat_map(|known| &known.listener.tls);
        let files = entries.flat_map(|entry| entry.settings.files());
        files.map(Box::from).collect()
    }

    /// The OCSP responses that are stapled to certificates, each once.
    pub(crate) fn staples(&self) -> Staples {
        let list = self.list();
        staples_of(list.iter().map(|known| &known.listener))
    }

    /// The names of the hosts that the `ssl` mappings `entries` serve, each with the index of its mapping.
    fn names(&self, entries: &[TlsEntry]) -> Vec<(HostName, usize)> {
        let hosts_of = |(index, entry): (usize, &TlsEntry)| -> Vec<_> {
            entry.hosts.iter().map(|&host| (host, index)).collect()
        };
        let mut hosts: Vec<_> = entries.iter().enumerate().flat_map(hosts_of).collect();
        // Hosts are chosen for requests in this order, too, so that a name gets the certificate of the host that serves it.
        hosts.sort_by_key(|&(host, _)| host);
        let names = hosts.into_iter().filter_map(|(host, index)| {
            let host = self.site.hosts.get(host as usize)?;
            Some((host.name.clone(), index))
        });
        names.collect()
    }

    fn acceptor(&self, listener: &Listener, entries: &[TlsEntry]) -> Result<TlsAcceptor, String> {
        let settings: Vec<_> = entries
            .iter()
            .map(|entry| Arc::clone(&entry.settings))
            .collect();
        let (names, resumption) = (self.names(entries), Arc::clone(&self.resumption));
        if let Some(terms) = self.early_data_terms(listener) {
            return TlsAcceptor::for_quic(&settings, names, resumption, QUIC_ALPN, &terms);
        }
        let acceptor = TlsAcceptor::new(&settings, names, resumption, ALPN)?;
        Ok(acceptor.offload(self.may_offload()))
    }

    /// Does what [`crate::Server::reload_certificates`] describes.
    pub(crate) fn reload(&self) -> CertificateReload {
        let mut result = CertificateReload::default();
        let mut list = self.list();
        // Several listeners may share one `ssl` mapping, as those of one `listen` for IPv4 and IPv6 do.
        let mut seen: HashMap<*const TlsSettings, Option<Arc<TlsSettings>>> = HashMap::new();
        for TlsListener { listener, slot } in &mut *list {
            let mut entries = listener.tls.clone();
            let mut is_changed = false;
            for entry in &mut entries {
                let key = Arc::as_ptr(&entry.settings);
                let renewed = seen.entry(key).or_insert_with(|| {
                    let renewed = entry.settings.reload(&mut result.failures).map(Arc::new);
                    result.renewed += usize::from(renewed.is_some());
                    renewed
                });
                if let Some(renewed) = renewed {
                    entry.settings = Arc::clone(renewed);
                    is_changed = true;
                }
            }
            if !is_changed {
                continue;
            }
            match self.acceptor(listener, &entries) {
                Ok(acceptor) => {
                    slot.replace(acceptor);
                    listener.tls = entries;
                }
                Err(error) => {
                    let label = &listener.label;
                    let text = format!("failed to set up TLS for listener {label}: {error}");
                    result.failures.push(text);
                }
            }
        }
        let listeners = list.iter().map(|entry| &entry.listener);
        let certificates = list_certificates(listeners, &self.site.hosts);
        self.site.shared.get::<Certificates>().set(certificates);
        result
    }
}

/// Notices changes of the files of certificates, keys and client authorities.
#[derive(Default)]
pub(crate) struct CertificateWatch {
    stamps: HashMap<Box<str>, Option<Stamp>>,
    /// Whether the last call of `poll` found a changed file.
    is_changed: bool,
}

impl CertificateWatch {
    /// Whether files had changed at the last call and have not changed again since: a certificate and its key are written one after
    /// the other. A file that is seen for the first time counts as changed, since it may have been written after it was read.
    pub(crate) fn poll(&mut self, files: BTreeSet<Box<str>>) -> bool {
        let look = |file: Box<str>| {
            let stamp = h2o_opener::stamp(Path::new(&*file));
            (file, stamp)
        };
        let stamps: HashMap<_, _> = files.into_iter().map(look).collect();
        let is_new = stamps
            .iter()
            .any(|(file, stamp)| self.stamps.get(file) != Some(stamp));
        self.stamps = stamps;
        std::mem::replace(&mut self.is_changed, is_new) && !is_new
    }
}

/// The OCSP responses of the certificates of listeners, each once.
pub(crate) fn staples_of<'a>(listeners: impl Iterator<Item = &'a Listener>) -> Staples {
    let entries = listeners.flat_map(|listener| &listener.tls);
    let staples = entries.flat_map(|entry| entry.settings.staples());
    let keyed = staples.map(|staple| (Arc::as_ptr(staple), Arc::clone(staple)));
    keyed.collect()
}

/// Lists what is known about the certificates of listeners, each file once.
pub(crate) fn list_certificates<'a>(
    listeners: impl Iterator<Item = &'a Listener>,
    hosts: &[Host],
) -> Arc<[CertificateInfo]> {
    let mut list: Vec<(CertificateInfo, BTreeSet<u32>)> = Vec::new();
    let mut by_file: FxHashMap<Box<str>, usize> = FxHashMap::default();
    for listener in listeners {
        let with_own: BTreeSet<u32> = listener
            .tls
            .iter()
            .flat_map(|entry| entry.hosts.iter().copied())
            .collect();
        for entry in &listener.tls {
            for info in entry.settings.certificates() {
                let index = *by_file.entry(info.file.clone()).or_insert_with(|| {
                    list.push((info, BTreeSet::new()));
                    list.len() - 1
                });
                let (info, of_hosts) = &mut list[index];
                if !info.listeners.contains(&listener.label) {
                    info.listeners.push(Arc::clone(&listener.label));
                }
                if entry.hosts.is_empty() {
                    let served = listener.hosts.iter().flatten();
                    of_hosts.extend(served.filter(|host| !with_own.contains(host)));
                } else {
                    of_hosts.extend(&entry.hosts);
                }
            }
        }
    }
    list.into_iter()
        .map(|(mut info, of_hosts)| {
            let names = of_hosts.into_iter().filter_map(|host| {
                let host = hosts.get(host as usize)?;
                Some(host.name.clone())
            });
            info.hosts = names.collect();
            info
        })
        .collect()
}
