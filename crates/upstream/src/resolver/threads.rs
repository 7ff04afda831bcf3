//! Limits the threads that run `getaddrinfo`.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use dns_lookup::{AddrInfoHints, getaddrinfo};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{LookUp, NameOrigin, Query, ResolveError};

/// The default of [`limit_threads`], for the whole process (H2O compatibility: H2O's default of `num-name-resolution-threads`).
/// Further look-ups wait in a queue.
const MAX_THREADS: usize = 32;
/// Limit of the addresses that are kept for a name.
const MAX_ADDRESSES: usize = 64;

pub(super) static THREADS: LazyLock<Threads> = LazyLock::new(|| Threads::new(MAX_THREADS));

/// Sets how many look-ups may run at a time in the process, at least two. A new configuration may change the limit; look-ups that
/// run or wait at that time do not count towards it.
pub fn limit_threads(count: u32) {
    THREADS.limit(count as usize);
}

/// Limits the number of look-ups that run at a time.
pub(super) struct Threads(Mutex<Places>);

#[derive(Clone)]
struct Places {
    all: Arc<Semaphore>,
    /// Limits the threads for names that requests contain, whose name servers a client may make slow.
    requested: Arc<Semaphore>,
}

/// A permit to run one look-up.
pub(super) struct Permit {
    _all: OwnedSemaphorePermit,
    _requested: Option<OwnedSemaphorePermit>,
}

impl Places {
    /// Allows `count` look-ups at a time, half of them for names from requests; at least one for each origin.
    fn new(count: usize) -> Self {
        let requested = (count / 2).max(1);
        Self {
            all: Arc::new(Semaphore::new(count.max(requested + 1))),
            requested: Arc::new(Semaphore::new(requested)),
        }
    }
}

impl Threads {
    /// Limits look-ups to `count` at a time, as [`Places::new`] does.
    pub(super) fn new(count: usize) -> Self {
        Self(Mutex::new(Places::new(count)))
    }

    /// Changes the limit for look-ups that begin from now on.
    pub(super) fn limit(&self, count: usize) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Places::new(count);
    }

    /// Waits for a free thread; `None` if no thread will become free.
    pub(super) async fn permit(&self, origin: NameOrigin) -> Option<Permit> {
        let places = (self.0.lock().unwrap_or_else(PoisonError::into_inner)).clone();
        let requested = match origin {
            NameOrigin::Configured => None,
            NameOrigin::Requested => Some(places.requested.acquire_owned().await.ok()?),
        };
        Some(Permit {
            _all: places.all.acquire_owned().await.ok()?,
            _requested: requested,
        })
    }
}

/// Runs a look-up on a thread of its own.
pub(super) async fn run(
    permit: Permit,
    look_up: Arc<LookUp>,
    query: Query,
) -> Result<Vec<SocketAddr>, ResolveError> {
    let (sender, result) = oneshot::channel();
    let thread = std::thread::Builder::new().name("resolver".to_string());
    let spawned = thread.spawn(move || {
        let mut result = look_up(&query);
        if let Ok(addresses) = &mut result {
            addresses.truncate(MAX_ADDRESSES);
            if addresses.is_empty() {
                result = Err(ResolveError::NoData);
            }
        }
        drop(permit);
        // Sending the result fails if the worker has ended.
        let _ = sender.send(result);
    });
    spawned.map_err(|_| ResolveError::Memory)?;
    result.await.unwrap_or(Err(ResolveError::Other))
}

/// Looks a name up by `getaddrinfo`, for TCP and in families for which the machine has an address (RFC 3493 §6.1,
/// `AI_ADDRCONFIG`). H2O compatibility: as in H2O, the port is passed on.
pub(super) fn ask_system(query: &Query) -> Result<Vec<SocketAddr>, ResolveError> {
    let hints = AddrInfoHints {
        flags: libc::AI_ADDRCONFIG | libc::AI_NUMERICSERV,
        address: query.family.number(),
        socktype: libc::SOCK_STREAM,
        protocol: libc::IPPROTO_TCP,
    };
    let service = query.port.to_string();
    let mut addresses = Vec::new();
    // Entries of families other than IPv4 and IPv6 are skipped.
    for found in getaddrinfo(Some(&query.host), Some(&service), Some(hints))?.flatten() {
        let address = found.sockaddr;
        if addresses.len() < MAX_ADDRESSES && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}
