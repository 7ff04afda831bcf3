//! Names to addresses, by the system's resolver.
//!
//! `getaddrinfo` is what knows of `/etc/hosts`, `nsswitch.conf` and the rest of the system's settings, and it waits. So it runs on
//! threads of its own: those of the disk would keep files waiting for a name server that does not answer.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use dns_lookup::{AddrInfoHints, LookupError, getaddrinfo};
use tokio::sync::{Semaphore, SemaphorePermit, oneshot, watch};
use tokio::time::Instant;

/// Threads of the process that wait for the system's resolver, unless [`limit_threads`] says otherwise (H2O compatibility: the
/// default of `num-name-resolution-threads`). Further look-ups wait for one of them.
const MAX_THREADS: usize = 32;
/// How long an answer is used. H2O asks anew for every connection; so short a time shows nobody an old address for long, and
/// spares a look-up per connection where keep-alive is off.
const POSITIVE_LIFE: Duration = Duration::from_secs(5);
/// How long it is believed that there is no answer.
const NEGATIVE_LIFE: Duration = Duration::from_secs(1);
/// Names that are kept or being looked up, per worker. Clients choose names by CONNECT: when all places are taken by look-ups under
/// way, the next name fails.
const MAX_NAMES: usize = 1024;
/// Longest name that is looked up, in octets: there are no longer ones, even written with a dot at the end (RFC 1035 §2.3.4).
const MAX_NAME_LEN: usize = 254;
/// Addresses of a name that are kept.
const MAX_ADDRESSES: usize = 64;

static THREADS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(LIMIT.load(Relaxed)));
static LIMIT: AtomicUsize = AtomicUsize::new(MAX_THREADS);

/// Sets how many threads of the process look names up at a time. To be called before the first look-up.
pub fn limit_threads(count: u32) {
    LIMIT.store(count as usize, Relaxed);
}

/// Which addresses are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Of any family that the machine has an address of.
    Any,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    const COUNT: usize = 3;

    /// True if `address` is of this family. IPv4-mapped addresses are IPv6.
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

/// Why there is no address: the results of `getaddrinfo` (RFC 3493 §6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolveError {
    /// `EAI_NONAME`
    NoName,
    /// `EAI_NODATA`
    NoData,
    /// `EAI_FAIL`
    Fail,
    /// `EAI_AGAIN`
    Again,
    /// `EAI_ADDRFAMILY`
    AddressFamily,
    /// `EAI_BADFLAGS`
    BadFlags,
    /// `EAI_FAMILY`
    Family,
    /// `EAI_MEMORY`
    Memory,
    /// `EAI_SERVICE`
    Service,
    /// `EAI_SOCKTYPE`
    SocketType,
    /// `EAI_SYSTEM`
    System,
    /// Any other.
    Other,
}

impl ResolveError {
    /// What clients and the log are told (H2O compatibility).
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NoName => "hostname does not exist",
            Self::NoData => "no address associated with hostname",
            Self::Fail => "non-recoverable failure in name resolution",
            Self::Again => "temporary failure in name resolution",
            Self::AddressFamily => "address family for hostname not supported",
            Self::BadFlags => "bad value for ai_flags",
            Self::Family => "ai_family not supported",
            Self::Memory => "memory allocation failure",
            Self::Service => "servname not supported for ai_socktype",
            Self::SocketType => "ai_socktype not supported",
            Self::System => "system error",
            Self::Other => "name resolution failed",
        }
    }

    /// The response code of DNS that stands for this in `proxy-status` (RFC 9209 §2.3.2), where there is one
    /// (H2O compatibility).
    #[must_use]
    pub const fn rcode(self) -> Option<&'static str> {
        match self {
            Self::NoName => Some("NXDOMAIN"),
            Self::NoData => Some("NODATA"),
            Self::Fail => Some("REFUSED"),
            Self::Again => Some("SERVFAIL"),
            Self::AddressFamily
            | Self::BadFlags
            | Self::Family
            | Self::Memory
            | Self::Service
            | Self::SocketType
            | Self::System
            | Self::Other => None,
        }
    }

    const fn from_number(number: i32) -> Self {
        /// Of the GNU C library alone.
        const EAI_ADDRFAMILY: i32 = -9;
        match number {
            libc::EAI_NONAME => Self::NoName,
            libc::EAI_NODATA => Self::NoData,
            libc::EAI_FAIL => Self::Fail,
            libc::EAI_AGAIN => Self::Again,
            EAI_ADDRFAMILY => Self::AddressFamily,
            libc::EAI_BADFLAGS => Self::BadFlags,
            libc::EAI_FAMILY => Self::Family,
            libc::EAI_MEMORY => Self::Memory,
            libc::EAI_SERVICE => Self::Service,
            libc::EAI_SOCKTYPE => Self::SocketType,
            libc::EAI_SYSTEM => Self::System,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for ResolveError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.text())
    }
}

impl std::error::Error for ResolveError {}

impl From<LookupError> for ResolveError {
    fn from(error: LookupError) -> Self {
        // A name that cannot be handed over, as it has a NUL in it, has the number 0.
        match error.error_num() {
            0 => Self::NoName,
            number => Self::from_number(number),
        }
    }
}

/// What a look-up does; runs on a thread of its own.
type LookUp = dyn Fn(&str, Family) -> Result<Vec<IpAddr>, ResolveError> + Send + Sync;

/// The names that a worker looks up, and for a few seconds what came of it.
pub struct Resolver {
    look_up: Arc<LookUp>,
    threads: &'static Semaphore,
    names: RefCell<HashMap<Box<str>, Name>>,
}

/// By [`Family`].
type Name = [Option<watch::Receiver<Option<Answer>>>; Family::COUNT];

#[derive(Clone)]
struct Answer {
    result: Result<Rc<[IpAddr]>, ResolveError>,
    expires: Instant,
}

impl Default for Resolver {
    fn default() -> Self {
        Self::new(Arc::new(ask_system), &THREADS)
    }
}

impl Resolver {
    fn new(look_up: Arc<LookUp>, threads: &'static Semaphore) -> Self {
        Self {
            look_up,
            threads,
            names: RefCell::default(),
        }
    }

    /// The addresses of `host`, beginning with any one of them: H2O chooses one at random. Never empty.
    ///
    /// Must be called within the worker's runtime: the look-up is a task of its own, and goes on if nobody waits for it any more.
    ///
    /// # Errors
    /// Those of the system's resolver.
    pub async fn resolve(&self, host: &str) -> Result<Rc<[IpAddr]>, ResolveError> {
        let addresses = self.resolve_family(host, Family::Any).await?;
        let at = random_below(addresses.len());
        if at == 0 {
            return Ok(addresses);
        }
        let (behind, first) = addresses.split_at(at);
        Ok(first.iter().chain(behind).copied().collect())
    }

    /// The addresses of `host` in one family, in the resolver's order. Never empty.
    ///
    /// # Errors
    /// Those of the system's resolver; [`ResolveError::AddressFamily`] for a numeric address of the other family.
    pub async fn resolve_family(
        &self,
        host: &str,
        family: Family,
    ) -> Result<Rc<[IpAddr]>, ResolveError> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return if family.has(address) {
                Ok(Rc::new([address]))
            } else {
                Err(ResolveError::AddressFamily)
            };
        }
        if host.len() > MAX_NAME_LEN {
            return Err(ResolveError::NoName);
        }
        let mut answer = self.ask(host, family)?;
        let answer = answer.wait_for(Option::is_some).await;
        match answer.as_deref() {
            Ok(Some(answer)) => answer.result.clone(),
            // The runtime comes to its end.
            Ok(None) | Err(_) => Err(ResolveError::Other),
        }
    }

    /// Where the answer is or will be; starts a look-up if there is none.
    fn ask(
        &self,
        host: &str,
        family: Family,
    ) -> Result<watch::Receiver<Option<Answer>>, ResolveError> {
        let now = Instant::now();
        let mut names = self.names.borrow_mut();
        let known = names
            .get(host)
            .and_then(|name| name[family as usize].as_ref());
        if let Some(answer) = known.filter(|answer| is_usable(answer, now)) {
            return Ok(answer.clone());
        }
        if !names.contains_key(host) {
            make_room(&mut names, now)?;
        }
        let (sender, answer) = watch::channel(None);
        names.entry(host.into()).or_default()[family as usize] = Some(answer.clone());
        let look_up = Arc::clone(&self.look_up);
        tokio::task::spawn_local(find(self.threads, look_up, host.into(), family, sender));
        Ok(answer)
    }
}

/// An answer that is to come, or has not expired.
fn is_usable(answer: &watch::Receiver<Option<Answer>>, now: Instant) -> bool {
    answer
        .borrow()
        .as_ref()
        .is_none_or(|answer| now < answer.expires)
}

/// A place for another name. Those with an answer go all at once if none has expired, so that this costs little per name.
fn make_room(names: &mut HashMap<Box<str>, Name>, now: Instant) -> Result<(), ResolveError> {
    if names.len() >= MAX_NAMES {
        names.retain(|_, name| name.iter().flatten().any(|answer| is_usable(answer, now)));
    }
    if names.len() >= MAX_NAMES {
        let is_under_way = |answer: &watch::Receiver<Option<Answer>>| answer.borrow().is_none();
        names.retain(|_, name| name.iter().flatten().any(is_under_way));
    }
    if names.len() >= MAX_NAMES {
        return Err(ResolveError::Again);
    }
    Ok(())
}

async fn find(
    threads: &'static Semaphore,
    look_up: Arc<LookUp>,
    host: Box<str>,
    family: Family,
    sender: watch::Sender<Option<Answer>>,
) {
    let result = on_a_thread(threads, look_up, host, family).await;
    let life = match result {
        Ok(_) => POSITIVE_LIFE,
        Err(_) => NEGATIVE_LIFE,
    };
    sender.send_replace(Some(Answer {
        result: result.map(Rc::from),
        expires: Instant::now() + life,
    }));
}

/// Waits for one of the threads and runs the look-up on it.
async fn on_a_thread(
    threads: &'static Semaphore,
    look_up: Arc<LookUp>,
    host: Box<str>,
    family: Family,
) -> Result<Vec<IpAddr>, ResolveError> {
    let permit: SemaphorePermit<'static> =
        threads.acquire().await.map_err(|_| ResolveError::Other)?;
    let (sender, result) = oneshot::channel();
    let thread = std::thread::Builder::new().name("resolver".to_string());
    let spawned = thread.spawn(move || {
        let mut result = look_up(&host, family);
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

/// `getaddrinfo` for TCP, in families that the machine has addresses of (RFC 3493 §6.1, `AI_ADDRCONFIG`).
fn ask_system(host: &str, family: Family) -> Result<Vec<IpAddr>, ResolveError> {
    let hints = AddrInfoHints {
        flags: libc::AI_ADDRCONFIG,
        address: family.number(),
        socktype: libc::SOCK_STREAM,
        protocol: libc::IPPROTO_TCP,
    };
    let mut addresses = Vec::new();
    // Entries of families that are not of the Internet have no address and are passed over.
    for found in getaddrinfo(Some(host), None, Some(hints))?.flatten() {
        let address = found.sockaddr.ip();
        if addresses.len() < MAX_ADDRESSES && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

/// Good enough to spread connections: the standard library keys each of its hashers differently.
fn random_below(len: usize) -> usize {
    if len < 2 {
        return 0;
    }
    let random = RandomState::new().hash_one(len) % len as u64;
    usize::try_from(random).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc;

    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const TWO: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build_local(tokio::runtime::LocalOptions::default())
            .unwrap()
            .block_on(future)
    }

    fn resolver(look_up: Arc<LookUp>) -> Resolver {
        Resolver::new(look_up, &THREADS)
    }

    type Asked = Arc<Mutex<Vec<(String, Family)>>>;

    /// Answers with `result`, and notes what was asked.
    fn counting(result: Result<Vec<IpAddr>, ResolveError>) -> (Resolver, Asked) {
        let asked = Asked::default();
        let asked_by = Arc::clone(&asked);
        let resolver = resolver(Arc::new(move |host: &str, family| {
            asked_by.lock().unwrap().push((host.to_string(), family));
            result.clone()
        }));
        (resolver, asked)
    }

    #[test]
    fn results_of_getaddrinfo_have_their_texts() {
        let cases = [
            (
                libc::EAI_NONAME,
                "hostname does not exist",
                Some("NXDOMAIN"),
            ),
            (
                libc::EAI_NODATA,
                "no address associated with hostname",
                Some("NODATA"),
            ),
            (
                libc::EAI_FAIL,
                "non-recoverable failure in name resolution",
                Some("REFUSED"),
            ),
            (
                libc::EAI_AGAIN,
                "temporary failure in name resolution",
                Some("SERVFAIL"),
            ),
            (-9, "address family for hostname not supported", None),
            (libc::EAI_BADFLAGS, "bad value for ai_flags", None),
            (libc::EAI_FAMILY, "ai_family not supported", None),
            (libc::EAI_MEMORY, "memory allocation failure", None),
            (
                libc::EAI_SERVICE,
                "servname not supported for ai_socktype",
                None,
            ),
            (libc::EAI_SOCKTYPE, "ai_socktype not supported", None),
            (libc::EAI_SYSTEM, "system error", None),
            (libc::EAI_OVERFLOW, "name resolution failed", None),
        ];
        for (number, text, rcode) in cases {
            let error = ResolveError::from(LookupError::new(number));
            assert_eq!((error.text(), error.rcode()), (text, rcode), "{number}");
        }
    }

    #[test]
    fn numeric_addresses_need_no_look_up() {
        let (resolver, asked) = counting(Err(ResolveError::Fail));
        run(async {
            let addresses = resolver.resolve("192.0.2.1").await;
            assert_eq!(addresses.as_deref(), Ok(&[ONE][..]));
            let six: IpAddr = "2001:db8::1".parse().unwrap();
            let addresses = resolver.resolve_family("2001:db8::1", Family::V6).await;
            assert_eq!(addresses.as_deref(), Ok(&[six][..]));
            for (host, family) in [("192.0.2.1", Family::V6), ("::ffff:1.2.3.4", Family::V4)] {
                let addresses = resolver.resolve_family(host, family).await;
                assert_eq!(addresses, Err(ResolveError::AddressFamily), "{host}");
            }
        });
        assert_eq!(*asked.lock().unwrap(), []);
    }

    #[test]
    fn answers_are_used_for_their_time() {
        for (result, life) in [
            (Ok(vec![ONE]), POSITIVE_LIFE),
            (Err(ResolveError::NoName), NEGATIVE_LIFE),
        ] {
            let (resolver, asked) = counting(result.clone());
            run(async {
                let step = Duration::from_millis(1);
                for (wait, look_ups) in [(Duration::ZERO, 1), (life - step, 1), (step, 2)] {
                    tokio::time::advance(wait).await;
                    let addresses = resolver.resolve("name").await;
                    assert_eq!(addresses.map(|found| found.to_vec()), result);
                    assert_eq!(asked.lock().unwrap().len(), look_ups, "{life:?}");
                }
            });
        }
    }

    #[test]
    fn families_are_asked_for_apart() {
        let (resolver, asked) = counting(Ok(vec![ONE]));
        run(async {
            for family in [Family::V4, Family::V6, Family::Any, Family::V4] {
                let _ = resolver.resolve_family("name", family).await;
            }
        });
        let want = [Family::V4, Family::V6, Family::Any].map(|family| ("name".to_string(), family));
        assert_eq!(*asked.lock().unwrap(), want);
    }

    #[test]
    fn requests_at_the_same_time_share_a_look_up_that_outlives_the_first_of_them() {
        let (go, wait) = mpsc::channel();
        let wait = Mutex::new(wait);
        let resolver = resolver(Arc::new(move |_: &str, _| {
            let address = wait.lock().unwrap().recv();
            address
                .map(|address| vec![address])
                .map_err(|_| ResolveError::Fail)
        }));
        run(async {
            let resolver = Rc::new(resolver);
            let ask = || {
                let resolver = Rc::clone(&resolver);
                tokio::task::spawn_local(async move { resolver.resolve("name").await })
            };
            let (first, second, third) = (ask(), ask(), ask());
            tokio::task::yield_now().await;
            first.abort();
            assert!(first.await.is_err());
            // One value: a second look-up would find the channel closed.
            go.send(TWO).unwrap();
            drop(go);
            for asking in [second, third] {
                assert_eq!(asking.await.unwrap().as_deref(), Ok(&[TWO][..]));
            }
        });
    }

    #[test]
    fn each_address_comes_first_now_and_then_and_the_others_follow_in_order() {
        let three: IpAddr = "192.0.2.3".parse().unwrap();
        let all = [ONE, TWO, three];
        let (resolver, _) = counting(Ok(all.to_vec()));
        let mut came_first = [0; 3];
        run(async {
            for _ in 0..300 {
                let found = resolver.resolve("name").await.unwrap();
                let at = all.iter().position(|address| *address == found[0]).unwrap();
                came_first[at] += 1;
                let mut want = all;
                want.rotate_left(at);
                assert_eq!(*found, want);
            }
        });
        // 100 each; fewer than 30 is not to be expected in the life of this project.
        assert!(came_first.iter().all(|times| *times > 30), "{came_first:?}");
    }

    #[test]
    fn names_that_cannot_be_are_not_looked_up() {
        let (resolver, asked) = counting(Ok(vec![ONE]));
        run(async {
            let longest = "a".repeat(MAX_NAME_LEN);
            assert!(resolver.resolve(&longest).await.is_ok());
            let found = resolver.resolve(&format!("{longest}a")).await;
            assert_eq!(found, Err(ResolveError::NoName));
        });
        assert_eq!(asked.lock().unwrap().len(), 1);
    }

    #[test]
    fn nothing_found_is_an_error() {
        let (resolver, _) = counting(Ok(Vec::new()));
        let found = run(resolver.resolve("name"));
        assert_eq!(found, Err(ResolveError::NoData));
    }

    #[test]
    fn a_look_up_that_panics_is_an_error_and_the_next_is_tried() {
        let times = Mutex::new(0);
        let resolver = resolver(Arc::new(move |_: &str, _| {
            let time = {
                let mut times = times.lock().unwrap();
                *times += 1;
                *times
            };
            assert!(time > 1, "this panic is part of the test");
            Ok(vec![ONE])
        }));
        run(async {
            assert_eq!(resolver.resolve("name").await, Err(ResolveError::Other));
            tokio::time::advance(NEGATIVE_LIFE).await;
            assert_eq!(resolver.resolve("name").await.as_deref(), Ok(&[ONE][..]));
        });
    }

    #[test]
    fn names_are_bounded() {
        let (resolver, asked) = counting(Ok(vec![ONE]));
        run(async {
            for number in 0..=MAX_NAMES {
                let found = resolver.resolve(&format!("name{number}")).await;
                assert!(found.is_ok(), "{number}");
                assert!(resolver.names.borrow().len() <= MAX_NAMES);
            }
            assert_eq!(asked.lock().unwrap().len(), MAX_NAMES + 1);
        });
    }

    #[test]
    fn look_ups_under_way_are_bounded() {
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let resolver = resolver(Arc::new(move |_: &str, _| {
            // Until the other end is gone.
            let _ = wait.lock().unwrap().recv();
            Ok(vec![ONE])
        }));
        run(async {
            let mut answers = Vec::new();
            for number in 0..MAX_NAMES {
                answers.push(resolver.ask(&format!("name{number}"), Family::Any).unwrap());
            }
            let full = resolver.resolve("another").await;
            assert_eq!(full, Err(ResolveError::Again));
            // One that is known can still be waited for.
            assert!(resolver.ask("name0", Family::Any).is_ok());
            drop(go);
            for mut answer in answers {
                assert!(answer.wait_for(Option::is_some).await.is_ok());
            }
            assert!(resolver.resolve("another").await.is_ok());
        });
    }

    #[test]
    fn look_ups_wait_for_a_thread() {
        let (go, wait) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        let wait = Mutex::new(wait);
        let look_up = move |host: &str, _: Family| {
            begun.send(host.to_string()).unwrap();
            let _ = wait.lock().unwrap().recv();
            Ok(vec![ONE])
        };
        let threads: &'static Semaphore = Box::leak(Box::new(Semaphore::new(1)));
        let resolver = Resolver::new(Arc::new(look_up), threads);
        run(async {
            let mut first = resolver.ask("first", Family::Any).unwrap();
            let mut second = resolver.ask("second", Family::Any).unwrap();
            tokio::task::yield_now().await;
            assert_eq!(begins.recv().unwrap(), "first");
            assert_eq!(threads.available_permits(), 0);
            assert!(begins.try_recv().is_err());
            go.send(()).unwrap();
            assert!(first.wait_for(Option::is_some).await.is_ok());
            drop(go);
            assert!(second.wait_for(Option::is_some).await.is_ok());
            assert_eq!(begins.recv().unwrap(), "second");
        });
    }

    #[test]
    fn the_system_is_asked() {
        let found = ask_system("127.0.0.1", Family::Any);
        assert_eq!(found, Ok(vec!["127.0.0.1".parse().unwrap()]));
        assert_eq!(ask_system("a\0b", Family::Any), Err(ResolveError::NoName));
        // From /etc/hosts.
        let found = ask_system("localhost", Family::Any).unwrap();
        assert!(
            !found.is_empty() && found.iter().all(IpAddr::is_loopback),
            "{found:?}"
        );
    }
}
