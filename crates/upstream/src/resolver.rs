//! Resolves names to addresses by `getaddrinfo`.
//!
//! `getaddrinfo` obeys `/etc/hosts`, `nsswitch.conf` and the system's other settings, but it blocks. It runs on threads
//! of its own: on the disk threads, a dead name server would delay files.
//!
//! Names from requests are kept apart from those of the configuration, with their own table and a share of the threads:
//! a client can choose names that are answered as slowly as it likes.

mod error;
mod threads;

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use h2o_exchange::{Clock, TimedOut, Worker};
use tokio::sync::watch;

pub use error::ResolveError;
pub use threads::limit_threads;
use threads::{THREADS, Threads, ask_system};

/// How long the addresses of a name are used. H2O looks the name up for every connection; a time as short as this hardly delays a
/// change of address, and saves a look-up per connection where connections are not kept.
const POSITIVE_LIFE: Duration = Duration::from_secs(5);
/// How long a failed look-up is remembered, so that the name is not looked up again.
const NEGATIVE_LIFE: Duration = Duration::from_secs(1);
/// How long to wait for the look-up of a configured name before the previous answer is used instead (RFC 8767 §5,
/// client response timer; recommended: at most 1.8 seconds).
const MAX_WAIT: Duration = Duration::from_millis(500);
/// How long a previous answer may be used while look-ups fail (RFC 8767 §5, maximum stale timer).
const STALE_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// Limit of the names in the table, per worker and origin. If the table is full of look-ups in progress, looking up another name
/// fails.
const MAX_NAMES: usize = 1024;
/// Longest name to look up, in bytes: the limit of DNS, with a trailing dot (RFC 1035 §2.3.4).
const MAX_NAME_LEN: usize = 254;

/// The address family in which a name is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// All address families for which the machine has an address.
    Any,
    /// IPv4 addresses only.
    V4,
    /// IPv6 addresses only.
    V6,
}

impl Family {
    /// Whether `address` is of this family. IPv4-mapped addresses are IPv6 addresses.
    #[must_use]
    pub const fn has(self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }

    const fn number(self) -> i32 {
        match self {
            Self::Any => libc::AF_UNSPEC,
            Self::V4 => libc::AF_INET,
            Self::V6 => libc::AF_INET6,
        }
    }
}

/// Where a name comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameOrigin {
    /// The name is in the configuration. While a new look-up is slow, the previous answer is used.
    #[default]
    Configured,
    /// A client's request or a backend's response contained the name. Look-ups of such names get half of the threads.
    Requested,
}

/// A name to look up. The port is copied into the addresses of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Query {
    host: Box<str>,
    port: u16,
    family: Family,
}

/// The function that performs a look-up; it runs on a thread of its own.
type LookUp = dyn Fn(&Query) -> Result<Vec<SocketAddr>, ResolveError> + Send + Sync;

/// The names that a worker looks up: look-ups in progress, and recent answers.
pub struct Resolver {
    look_up: Arc<LookUp>,
    threads: &'static Threads,
    configured: RefCell<Names>,
    requested: RefCell<Names>,
}

#[derive(Default)]
struct Names(HashMap<Query, NameEntry>);

/// A name that is being looked up or has an answer.
struct NameEntry {
    /// Receives the answer of the look-up.
    answer: watch::Receiver<Option<Answer>>,
    /// When the look-up began.
    asked: Instant,
    /// The addresses of an earlier answer. Only names of the configuration have them.
    last: Option<KnownAddresses>,
}

#[derive(Clone)]
struct Answer {
    result: Result<KnownAddresses, ResolveError>,
    expires: Instant,
}

/// The addresses of a name, and when they were found.
#[derive(Clone)]
struct KnownAddresses {
    addresses: Rc<[SocketAddr]>,
    since: Instant,
}

/// The state of a name, for a caller that waits for its addresses.
struct NameState {
    answer: watch::Receiver<Option<Answer>>,
    fallback: Option<Fallback>,
}

/// A previous answer, which is used if the look-up is slow or fails.
struct Fallback {
    addresses: Rc<[SocketAddr]>,
    /// The time from which the previous answer may be used.
    from: Instant,
}

impl Default for Resolver {
    fn default() -> Self {
        Self::new(Arc::new(ask_system), &THREADS)
    }
}

impl Resolver {
    fn new(look_up: Arc<LookUp>, threads: &'static Threads) -> Self {
        Self {
            look_up,
            threads,
            configured: RefCell::default(),
            requested: RefCell::default(),
        }
    }

    /// The addresses of `host` with this port, in random rotation (H2O compatibility: H2O chooses one at random). The list is
    /// never empty.
    ///
    /// Must be called where tasks of `worker` can be [spawned](Worker::spawn). The look-up is a task of its own, which ends by itself if the caller is
    /// dropped.
    ///
    /// # Errors
    /// The errors of the system's resolver.
    pub async fn resolve(
        &self,
        worker: &Worker,
        host: &str,
        port: u16,
        origin: NameOrigin,
    ) -> Result<Rc<[SocketAddr]>, ResolveError> {
        let addresses = self.resolve_family(worker, host, port, Family::Any, origin);
        let addresses = addresses.await?;
        let at = fastrand::usize(..addresses.len());
        if at == 0 {
            return Ok(addresses);
        }
        let (behind, first) = addresses.split_at(at);
        Ok(first.iter().chain(behind).copied().collect())
    }

    /// The addresses of `host` with this port in one family, in the resolver's order. The list is never empty.
    ///
    /// # Errors
    /// The errors of the system's resolver; [`ResolveError::AddressFamily`] for a numeric address of the other family.
    pub async fn resolve_family(
        &self,
        worker: &Worker,
        host: &str,
        port: u16,
        family: Family,
        origin: NameOrigin,
    ) -> Result<Rc<[SocketAddr]>, ResolveError> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return if family.has(address) {
                Ok(Rc::new([SocketAddr::new(address, port)]))
            } else {
                Err(ResolveError::AddressFamily)
            };
        }
        if host.len() > MAX_NAME_LEN {
            return Err(ResolveError::NoName);
        }
        let query = Query {
            host: host.into(),
            port,
            family,
        };
        let NameState { answer, fallback } = self.ask(worker, query, origin)?;
        let Some(fallback) = fallback else {
            return wait_for(answer).await;
        };
        let patience = (fallback.from).saturating_duration_since(worker.clock.now());
        match worker.timeout(patience, wait_for(answer)).await {
            Ok(Err(error)) if error.is_inconclusive() => Ok(fallback.addresses),
            Ok(answer) => answer,
            Err(TimedOut) => Ok(fallback.addresses),
        }
    }

    /// Starts a look-up of a name, unless one is in progress or there is an answer that has not expired.
    fn ask(
        &self,
        worker: &Worker,
        query: Query,
        origin: NameOrigin,
    ) -> Result<NameState, ResolveError> {
        let names = match origin {
            NameOrigin::Configured => &self.configured,
            NameOrigin::Requested => &self.requested,
        };
        let now = worker.clock.now();
        let names = &mut names.borrow_mut();
        if let Some(name) = names.0.get(&query).filter(|name| name.is_usable(now)) {
            return Ok(name.looked_up(now));
        }
        let last = match (origin, names.0.get(&query)) {
            (NameOrigin::Configured, Some(name)) => name.latest(),
            (NameOrigin::Configured, None) | (NameOrigin::Requested, _) => None,
        };
        if !names.0.contains_key(&query) {
            names.make_room(now)?;
        }
        let (sender, answer) = watch::channel(None);
        let name = NameEntry {
            answer,
            asked: now,
            last,
        };
        let looked_up = name.looked_up(now);
        names.0.insert(query.clone(), name);
        let look_up = Arc::clone(&self.look_up);
        let clock = Rc::clone(&worker.clock);
        worker.spawn(find(self.threads, look_up, query, origin, sender, clock));
        Ok(looked_up)
    }
}

async fn wait_for(
    mut answer: watch::Receiver<Option<Answer>>,
) -> Result<Rc<[SocketAddr]>, ResolveError> {
    match answer.wait_for(Option::is_some).await.as_deref() {
        Ok(Some(answer)) => answer.result.clone().map(|known| known.addresses),
        // The runtime is shutting down, so that no answer will arrive.
        Ok(None) | Err(_) => Err(ResolveError::Other),
    }
}

impl NameEntry {
    /// Whether the look-up is in progress, or its answer has not expired.
    fn is_usable(&self, now: Instant) -> bool {
        let answer = self.answer.borrow();
        answer.as_ref().is_none_or(|answer| now < answer.expires)
    }

    fn is_under_way(&self) -> bool {
        self.answer.borrow().is_none()
    }

    /// The latest addresses of the name, unless a later answer says that it has none.
    fn latest(&self) -> Option<KnownAddresses> {
        match self.answer.borrow().as_ref().map(|answer| &answer.result) {
            Some(Ok(known)) => Some(known.clone()),
            Some(Err(error)) if !error.is_inconclusive() => None,
            Some(Err(_)) | None => self.last.clone(),
        }
    }

    /// The state of the name for a caller that asks at the time `now`.
    fn looked_up(&self, now: Instant) -> NameState {
        let last = self.last.as_ref();
        let last = last.filter(|last| now.saturating_duration_since(last.since) < STALE_LIFE);
        NameState {
            answer: self.answer.clone(),
            fallback: last.map(|last| Fallback {
                addresses: Rc::clone(&last.addresses),
                from: self.asked + MAX_WAIT,
            }),
        }
    }
}

impl Names {
    /// Makes room for another name. Removes all expired answers at once, or all answers if none has expired, so that
    /// the cost per name is small.
    fn make_room(&mut self, now: Instant) -> Result<(), ResolveError> {
        if self.0.len() >= MAX_NAMES {
            self.0.retain(|_, name| name.is_usable(now));
        }
        if self.0.len() >= MAX_NAMES {
            self.0.retain(|_, name| name.is_under_way());
        }
        if self.0.len() >= MAX_NAMES {
            return Err(ResolveError::Again);
        }
        Ok(())
    }
}

/// Looks a name up as soon as a thread is free.
async fn find(
    threads: &'static Threads,
    look_up: Arc<LookUp>,
    query: Query,
    origin: NameOrigin,
    sender: watch::Sender<Option<Answer>>,
    clock: Rc<Clock>,
) {
    let permit = threads.permit(origin).await;
    // The table of names holds one receiver of the answer; each caller that waits holds another.
    let is_awaited = sender.receiver_count() > 1;
    let result = match permit {
        None => Err(ResolveError::Other),
        Some(permit) if is_awaited || origin == NameOrigin::Configured => {
            threads::run(permit, look_up, query).await
        }
        Some(_) => {
            // No caller waits any more, so the look-up is skipped: clients that disconnect leave no work behind. A new caller
            // starts another.
            sender.send_replace(Some(Answer {
                result: Err(ResolveError::Again),
                expires: clock.now(),
            }));
            return;
        }
    };
    let since = clock.now();
    let life = match result {
        Ok(_) => POSITIVE_LIFE,
        Err(_) => NEGATIVE_LIFE,
    };
    sender.send_replace(Some(Answer {
        result: result.map(|addresses| KnownAddresses {
            addresses: addresses.into(),
            since,
        }),
        expires: since + life,
    }));
}

#[cfg(test)]
mod tests;
