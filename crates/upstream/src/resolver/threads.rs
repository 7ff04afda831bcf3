//! The threads that wait for the system's resolver.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use dns_lookup::{AddrInfoHints, getaddrinfo};
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use super::{LookUp, NameOrigin, Query, ResolveError};

/// Threads of the process that wait for the system's resolver, unless [`limit_threads`] says otherwise (H2O compatibility: the
/// default of `num-name-resolution-threads`). Further look-ups wait for one of them.
const MAX_THREADS: usize = 32;
/// Addresses of a name that are kept.
const MAX_ADDRESSES: usize = 64;

pub(super) static THREADS: LazyLock<Threads> = LazyLock::new(|| Threads::new(LIMIT.load(Relaxed)));
static LIMIT: AtomicUsize = AtomicUsize::new(MAX_THREADS);

/// Sets how many threads of the process look names up at a time, at least two. To be called before the first look-up.
pub fn limit_threads(count: u32) {
    LIMIT.store(count as usize, Relaxed);
}

/// How many look-ups may run at a time.
pub(super) struct Threads {
    all: Semaphore,
    /// Of these, those for names that requests bring: their name servers may be made not to answer.
    requested: Semaphore,
}

/// A place among the look-ups that run.
pub(super) struct Permit {
    _all: SemaphorePermit<'static>,
    _requested: Option<SemaphorePermit<'static>>,
}

impl Threads {
    /// `count` threads, half of them for names that requests bring; at least one for each origin.
    pub(super) fn new(count: usize) -> Self {
        let requested = (count / 2).max(1);
        Self {
            all: Semaphore::new(count.max(requested + 1)),
            requested: Semaphore::new(requested),
        }
    }

    /// Waits for a thread; `None` if there will be none.
    pub(super) async fn permit(&'static self, origin: NameOrigin) -> Option<Permit> {
        let requested = match origin {
            NameOrigin::Configured => None,
            NameOrigin::Requested => Some(self.requested.acquire().await.ok()?),
        };
        Some(Permit {
            _all: self.all.acquire().await.ok()?,
            _requested: requested,
        })
    }
}

/// Runs a look-up on a thread.
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
        // Nobody waits any more if the worker has ended.
        let _ = sender.send(result);
    });
    spawned.map_err(|_| ResolveError::Memory)?;
    result.await.unwrap_or(Err(ResolveError::Other))
}

/// `getaddrinfo` for TCP, in families that the machine has addresses of (RFC 3493 §6.1, `AI_ADDRCONFIG`). The port is part of
/// the question and of each answer, as in H2O.
pub(super) fn ask_system(query: &Query) -> Result<Vec<SocketAddr>, ResolveError> {
    let hints = AddrInfoHints {
        flags: libc::AI_ADDRCONFIG | libc::AI_NUMERICSERV,
        address: query.family.number(),
        socktype: libc::SOCK_STREAM,
        protocol: libc::IPPROTO_TCP,
    };
    let service = query.port.to_string();
    let mut addresses = Vec::new();
    // Entries of families that are not of the Internet have no address and are passed over.
    for found in getaddrinfo(Some(&query.host), Some(&service), Some(hints))?.flatten() {
        let address = found.sockaddr;
        if addresses.len() < MAX_ADDRESSES && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}
