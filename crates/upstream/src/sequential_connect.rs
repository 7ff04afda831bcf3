//! Connects to a name that may have addresses of both families: one address after another, IPv6 first. An attempt has a short time
//! limit as long as another address is left. H2O compatibility: H2O does the same; attempts do not overlap as in RFC 8305.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use h2o_exchange::{Timer, Worker};

use crate::plain_stream::PlainStream;
use crate::resolver::{Family, NameOrigin, ResolveError, Resolver};

/// Limit of the addresses that are tried per family. H2O compatibility: H2O tries four.
const MAX_ADDRESSES: usize = 4;

/// Time limits of [`connect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectLimits {
    /// How long to wait for IPv6 addresses after IPv4 addresses are known.
    pub name_resolution_delay: Duration,
    /// How long an attempt to connect may take while another address is left.
    pub connection_attempt_delay: Duration,
    /// Time limit for resolving the name and all attempts together.
    pub connect_timeout: Duration,
}

/// Why connecting failed.
#[derive(Debug)]
pub enum ConnectError {
    /// The access list permits none of the addresses of the name.
    Prohibited,
    /// The name has no address, or could not be resolved.
    Unresolved(ResolveError),
    /// The time limit `connect_timeout` has passed.
    TimedOut {
        /// The address that was tried last, or the first one that would have been tried; `None` if no address was known.
        next_hop: Option<IpAddr>,
    },
    /// All attempts to connect failed; the values are those of the last one.
    Failed {
        /// The address that was tried last.
        next_hop: IpAddr,
        /// The error of the operating system.
        error: io::Error,
    },
}

impl ConnectError {
    /// The message for the client. H2O compatibility: the texts are H2O's.
    #[must_use]
    pub fn text(&self) -> &'static str {
        match self {
            Self::Prohibited => "Destination IP Prohibited",
            Self::Unresolved(error) => error.text(),
            Self::TimedOut { .. } => "I/O timeout",
            Self::Failed { error, .. } => connect_error_text(error),
        }
    }

    /// The address for the parameter `next-hop` of the field `proxy-status`, if an address was tried.
    #[must_use]
    pub const fn next_hop(&self) -> Option<IpAddr> {
        match self {
            Self::Prohibited | Self::Unresolved(_) => None,
            Self::TimedOut { next_hop } => *next_hop,
            Self::Failed { next_hop, .. } => Some(*next_hop),
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.text())
    }
}

impl std::error::Error for ConnectError {}

/// The message for a system error of `connect`. H2O compatibility: the texts are H2O's.
#[must_use]
pub fn connect_error_text(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::TimedOut => "connection timed out",
        io::ErrorKind::NetworkUnreachable => "network unreachable",
        io::ErrorKind::HostUnreachable => "host unreachable",
        _ => "connection failure",
    }
}

/// Connects to `host`, a name or a numeric address without brackets, trying only addresses that `is_permitted` accepts.
/// Dropping the future closes the current attempt.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect(
    worker: &Worker,
    host: &str,
    port: u16,
    limits: ConnectLimits,
    is_permitted: impl Fn(SocketAddr) -> bool,
) -> Result<(PlainStream, SocketAddr), ConnectError> {
    let resolver = worker.local::<Resolver>();
    let look_up =
        |family| resolver.resolve_family(worker, host, port, family, NameOrigin::Requested);
    let open = |address| PlainStream::connect(worker, address);
    connect_in_turn(worker, limits, look_up, is_permitted, open).await
}

/// As [`connect`], with the look-up and the opening of a socket as parameters, for tests.
async fn connect_in_turn<T, L, C>(
    worker: &Worker,
    limits: ConnectLimits,
    look_up: impl Fn(Family) -> L,
    is_permitted: impl Fn(SocketAddr) -> bool,
    open: impl Fn(SocketAddr) -> C,
) -> Result<(T, SocketAddr), ConnectError>
where
    L: Future<Output = Result<Rc<[SocketAddr]>, ResolveError>>,
    C: Future<Output = io::Result<T>>,
{
    let mut look_ups = [pin!(look_up(Family::V6)), pin!(look_up(Family::V4))];
    let mut attempt = pin!(None::<C>);
    // The timer is used for the wait for IPv6 addresses at first, and then for each attempt.
    let delay = Timer::new(&worker.timers);
    delay.set_after(limits.name_resolution_delay);
    let deadline = Timer::new(&worker.timers);
    deadline.set_after(limits.connect_timeout);
    let mut addresses = Addresses::default();
    // The address of the current attempt to connect, or of the last one.
    let mut tried = None;
    // The last attempt that failed, with its error.
    let mut failure = None;
    poll_fn(|task| {
        for (family, look_up) in look_ups.iter_mut().enumerate() {
            if addresses.is_awaited(family)
                && let Poll::Ready(found) = look_up.as_mut().poll(task)
            {
                addresses.on_response(family, found, &is_permitted);
                if tried.is_none() {
                    delay.set_after(limits.name_resolution_delay);
                }
            }
        }
        loop {
            if let (Some(running), Some(address)) = (attempt.as_mut().as_pin_mut(), tried) {
                match running.poll(task) {
                    Poll::Ready(Ok(stream)) => return Poll::Ready(Ok((stream, address))),
                    Poll::Ready(Err(error)) => {
                        attempt.set(None);
                        failure = Some((address, error));
                    }
                    Poll::Pending => {}
                }
            }
            let is_delay_over = delay.poll_fired(task).is_ready();
            let may_start = if attempt.is_some() {
                is_delay_over
            } else {
                tried.is_some() || addresses.may_start(is_delay_over)
            };
            let Some(address) = addresses.next_if(may_start) else {
                break;
            };
            tried = Some(address);
            // Closes the attempt that took too long: attempts never overlap.
            attempt.set(None);
            attempt.set(Some(open(address)));
            delay.set_after(limits.connection_attempt_delay);
        }
        if attempt.is_none() && addresses.is_exhausted() {
            return Poll::Ready(Err(match failure.take() {
                Some((address, error)) => ConnectError::Failed {
                    next_hop: address.ip(),
                    error,
                },
                None => addresses.error(),
            }));
        }
        deadline.poll_fired(task).map(|()| {
            let next_hop = tried.or_else(|| addresses.peek());
            let next_hop = next_hop.map(|address| address.ip());
            Err(ConnectError::TimedOut { next_hop })
        })
    })
    .await
}

/// Number of address families: IPv6 at index [`V6`], and IPv4.
const FAMILIES: usize = 2;
/// The index of IPv6, which is tried first if a name has addresses of both families.
const V6: usize = 0;

/// The results of the look-ups, and which address family is tried next.
#[derive(Default)]
struct Addresses {
    families: [LookUpState; FAMILIES],
    /// The index of the family to try next, which is not that of the last attempt.
    due: usize,
}

#[derive(Default)]
enum LookUpState {
    #[default]
    Awaited,
    /// The permitted addresses that were not tried yet.
    Permitted(VecDeque<SocketAddr>),
    Prohibited,
    Unresolved(ResolveError),
}

impl LookUpState {
    fn peek(&self) -> Option<SocketAddr> {
        match self {
            Self::Permitted(addresses) => addresses.front().copied(),
            Self::Awaited | Self::Prohibited | Self::Unresolved(_) => None,
        }
    }

    fn next(&mut self) -> Option<SocketAddr> {
        match self {
            Self::Permitted(addresses) => addresses.pop_front(),
            Self::Awaited | Self::Prohibited | Self::Unresolved(_) => None,
        }
    }
}

impl Addresses {
    fn is_awaited(&self, family: usize) -> bool {
        matches!(self.families[family], LookUpState::Awaited)
    }

    fn on_response(
        &mut self,
        family: usize,
        found: Result<Rc<[SocketAddr]>, ResolveError>,
        is_permitted: impl Fn(SocketAddr) -> bool,
    ) {
        self.families[family] = match found {
            Ok(found) => {
                let permitted = found
                    .iter()
                    .copied()
                    .filter(|address| is_permitted(*address));
                let permitted: VecDeque<_> = permitted.take(MAX_ADDRESSES).collect();
                if permitted.is_empty() {
                    LookUpState::Prohibited
                } else {
                    LookUpState::Permitted(permitted)
                }
            }
            Err(error) => LookUpState::Unresolved(error),
        };
    }

    /// Whether the first attempt to connect may begin: IPv6 addresses are known, or not waited for any more.
    fn may_start(&self, is_delay_over: bool) -> bool {
        self.families[V6].peek().is_some() || !self.is_awaited(V6) || is_delay_over
    }

    /// The next address to try; `None` if none is known now.
    fn peek(&self) -> Option<SocketAddr> {
        let other = FAMILIES - 1 - self.due;
        self.families[self.due]
            .peek()
            .or_else(|| self.families[other].peek())
    }

    /// Takes the next address to try, alternating families as long as both have addresses.
    fn next_if(&mut self, may_start: bool) -> Option<SocketAddr> {
        if !may_start {
            return None;
        }
        let order = [self.due, FAMILIES - 1 - self.due];
        let (family, address) = order
            .into_iter()
            .find_map(|family| Some((family, self.families[family].next()?)))?;
        self.due = FAMILIES - 1 - family;
        Some(address)
    }

    /// Whether no address is left and no look-up is in progress.
    fn is_exhausted(&self) -> bool {
        (0..FAMILIES).all(|family| !self.is_awaited(family)) && self.peek().is_none()
    }

    /// Why no address was tried. A denial takes precedence over failed look-ups; of two failures the more specific one
    /// is reported, since on a machine without IPv6 every name is unknown in that family.
    fn error(&self) -> ConnectError {
        let mut errors = Vec::new();
        for found in &self.families {
            match found {
                LookUpState::Prohibited => return ConnectError::Prohibited,
                LookUpState::Unresolved(error) => errors.push(*error),
                LookUpState::Awaited | LookUpState::Permitted(_) => {}
            }
        }
        let telling = |error: &ResolveError| match error {
            ResolveError::AddressFamily => 0,
            ResolveError::NoName => 1,
            ResolveError::NoData => 2,
            _ => 3,
        };
        let error = errors.into_iter().max_by_key(telling);
        ConnectError::Unresolved(error.unwrap_or(ResolveError::Other))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use tokio::time::sleep;

    use super::*;

    const LIMITS: ConnectLimits = ConnectLimits {
        name_resolution_delay: Duration::from_millis(50),
        connection_attempt_delay: Duration::from_millis(250),
        connect_timeout: Duration::from_millis(3000),
    };

    type Resolved = (u64, Result<&'static [&'static str], ResolveError>);

    /// A simulated network for a test: the results of the look-ups of IPv6 and IPv4 addresses and of the attempts to connect, with
    /// times in milliseconds.
    struct Net {
        v6: Resolved,
        v4: Resolved,
        denied: &'static [&'static str],
        /// For each address: how long the attempt takes, and its result. Attempts to other addresses never end.
        attempts: &'static [(&'static str, u64, Result<(), io::ErrorKind>)],
    }

    const NOTHING: Net = Net {
        v6: (0, Err(ResolveError::NoData)),
        v4: (0, Err(ResolveError::NoData)),
        denied: &[],
        attempts: &[],
    };

    /// An attempt to connect, whose begin and end are recorded.
    struct Attempt<'a> {
        address: IpAddr,
        log: &'a dyn Fn(String),
    }

    impl Drop for Attempt<'_> {
        fn drop(&mut self) {
            (self.log)(format!("-{}", self.address));
        }
    }

    /// Runs [`connect_in_turn`] on the simulated network. Returns the attempts (`TIME+ADDRESS` at the begin, `TIME-ADDRESS` at the
    /// end), and the result with its time.
    fn play(net: &Net) -> (String, String) {
        let log = RefCell::new(Vec::new());
        let outcome = run(async |worker| {
            let begin = worker.clock.now();
            let now = || (worker.clock.now() - begin).as_millis();
            let note = |line: String| log.borrow_mut().push(format!("{}{line}", now()));
            let look_up = |family| {
                let (ms, found) = if family == Family::V6 { net.v6 } else { net.v4 };
                async move {
                    if ms > 0 {
                        sleep(Duration::from_millis(ms)).await;
                    }
                    let address = |text: &&str| SocketAddr::new(text.parse().unwrap(), 80);
                    found.map(|found| found.iter().map(address).collect())
                }
            };
            let open = |address: SocketAddr| {
                let address = address.ip();
                note(format!("+{address}"));
                let attempt = Attempt {
                    address,
                    log: &note,
                };
                async move {
                    let plan = net.attempts.iter();
                    let plan = plan
                        .copied()
                        .find(|(text, ..)| *text == address.to_string());
                    let Some((_, ms, result)) = plan else {
                        return std::future::pending().await;
                    };
                    sleep(Duration::from_millis(ms)).await;
                    drop(attempt);
                    result.map_err(io::Error::from)
                }
            };
            let is_permitted =
                |address: SocketAddr| !net.denied.contains(&&*address.ip().to_string());
            let outcome = connect_in_turn(worker, LIMITS, look_up, is_permitted, open).await;
            match outcome {
                Ok(((), address)) => format!("{}={}", now(), address.ip()),
                Err(error) => match error.next_hop() {
                    Some(next_hop) => format!("{}!{error}@{next_hop}", now()),
                    None => format!("{}!{error}", now()),
                },
            }
        });
        (log.into_inner().join(" "), outcome)
    }

    fn run<T>(test: impl AsyncFnOnce(&Rc<Worker>) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build_local(tokio::runtime::LocalOptions::default())
            .unwrap();
        runtime.block_on(async {
            let worker = Worker::new(0, Arc::default(), Arc::default());
            worker.run(test(&worker)).await
        })
    }

    #[test]
    fn the_first_attempt_waits_for_ipv6_for_a_moment() {
        let cases = [
            // Both answers arrive at once, or the one for IPv6 first: the attempt starts at once.
            (0, 0, "0+::6 1-::6", "1=::6"),
            (10, 20, "10+::6 11-::6", "11=::6"),
            (10, 2000, "10+::6 11-::6", "11=::6"),
            // The answer for IPv4 arrives first: the attempt waits 50 ms, or until the answer for IPv6 arrives.
            (30, 10, "30+::6 31-::6", "31=::6"),
            (59, 10, "59+::6 60-::6", "60=::6"),
            (61, 10, "60+1.0.0.1 61-1.0.0.1", "61=1.0.0.1"),
            (2000, 100, "150+1.0.0.1 151-1.0.0.1", "151=1.0.0.1"),
        ];
        for (v6, v4, attempts, outcome) in cases {
            let net = Net {
                v6: (v6, Ok(&["::6"])),
                v4: (v4, Ok(&["1.0.0.1"])),
                attempts: &[("::6", 1, Ok(())), ("1.0.0.1", 1, Ok(()))],
                ..NOTHING
            };
            let want = (attempts.to_string(), outcome.to_string());
            assert_eq!(play(&net), want, "{v6} {v4}");
        }
    }

    #[test]
    fn nobody_waits_for_a_family_that_has_nothing() {
        for v6 in [Ok(&["::9"][..]), Err(ResolveError::NoData)] {
            for (v6_ms, v4_ms, at) in [(0, 0, 0), (5, 20, 20), (20, 5, 20)] {
                let net = Net {
                    v6: (v6_ms, v6),
                    v4: (v4_ms, Ok(&["1.0.0.1"])),
                    denied: &["::9"],
                    attempts: &[("1.0.0.1", 1, Ok(()))],
                };
                let end = at + 1;
                let attempts = format!("{at}+1.0.0.1 {end}-1.0.0.1");
                assert_eq!(play(&net), (attempts, format!("{end}=1.0.0.1")));
            }
        }
    }

    #[test]
    fn attempts_alternate_families_and_four_addresses_of_each_are_tried() {
        const FAIL: Result<(), io::ErrorKind> = Err(io::ErrorKind::ConnectionRefused);
        let net = Net {
            v6: (0, Ok(&["::1", "::9", "::2"])),
            v4: (
                0,
                Ok(&[
                    "1.0.0.9", "1.0.0.1", "1.0.0.2", "1.0.0.3", "1.0.0.4", "1.0.0.5",
                ]),
            ),
            denied: &["::9", "1.0.0.9"],
            attempts: &[
                ("::1", 1, FAIL),
                ("::2", 1, FAIL),
                ("1.0.0.1", 1, FAIL),
                ("1.0.0.2", 1, FAIL),
                ("1.0.0.3", 1, FAIL),
                ("1.0.0.4", 1, FAIL),
            ],
        };
        let (attempts, outcome) = play(&net);
        assert_eq!(
            attempts,
            "0+::1 1-::1 1+1.0.0.1 2-1.0.0.1 2+::2 3-::2 3+1.0.0.2 4-1.0.0.2 4+1.0.0.3 5-1.0.0.3 5+1.0.0.4 6-1.0.0.4"
        );
        assert_eq!(outcome, "6!connection refused@1.0.0.4");
    }

    #[test]
    fn an_attempt_that_takes_long_is_closed_for_the_next_address() {
        let net = Net {
            v6: (0, Ok(&["::1"])),
            v4: (0, Ok(&["1.0.0.1"])),
            attempts: &[("::1", 257, Ok(())), ("1.0.0.1", 2000, Ok(()))],
            ..NOTHING
        };
        // The timer of 250 ms fires at 256 ms, because the timing wheel rounds it up to a multiple of 8 ms. The last attempt may
        // use all of the remaining time.
        let (attempts, outcome) = play(&net);
        assert_eq!(attempts, "0+::1 256-::1 256+1.0.0.1 2256-1.0.0.1");
        assert_eq!(outcome, "2256=1.0.0.1");
        let net = Net {
            attempts: &[("::1", 249, Ok(()))],
            ..net
        };
        assert_eq!(play(&net).1, "249=::1");
    }

    #[test]
    fn a_late_address_replaces_an_attempt_that_had_its_time() {
        // The IPv6 answer arrives before and after the current attempt's timer (250 ms) has fired.
        for (v6, starts) in [(100, 304), (304, 304), (305, 305), (1000, 1000)] {
            let net = Net {
                v6: (v6, Ok(&["::1"])),
                v4: (0, Ok(&["1.0.0.1"])),
                attempts: &[("::1", 1, Ok(()))],
                ..NOTHING
            };
            let (attempts, outcome) = play(&net);
            let end = starts + 1;
            let want = format!("50+1.0.0.1 {starts}-1.0.0.1 {starts}+::1 {end}-::1");
            assert_eq!((attempts, outcome), (want, format!("{end}=::1")), "{v6}");
        }
        // An IPv6 answer without addresses does not end the current attempt to connect over IPv4.
        let net = Net {
            v6: (1000, Err(ResolveError::NoData)),
            v4: (0, Ok(&["1.0.0.1"])),
            attempts: &[("1.0.0.1", 2000, Ok(()))],
            ..NOTHING
        };
        assert_eq!(play(&net).1, "2050=1.0.0.1");
    }

    #[test]
    fn when_all_attempts_failed_a_look_up_under_way_is_waited_for() {
        let net = Net {
            v6: (1000, Ok(&["::1"])),
            v4: (0, Ok(&["1.0.0.1"])),
            attempts: &[
                ("::1", 1, Ok(())),
                ("1.0.0.1", 1, Err(io::ErrorKind::HostUnreachable)),
            ],
            ..NOTHING
        };
        assert_eq!(play(&net).1, "1001=::1");
        let net = Net {
            v6: (1000, Err(ResolveError::Again)),
            ..net
        };
        assert_eq!(play(&net).1, "1000!host unreachable@1.0.0.1");
    }

    #[test]
    fn everything_is_limited_together() {
        let never = 1_000_000;
        // The timer of 3000 ms fires at 3008 ms, because the timing wheel rounds it up to a multiple of 64 ms.
        let cases: [(Resolved, Resolved, &str); 5] = [
            ((never, Ok(&[])), (never, Ok(&[])), "3008!I/O timeout"),
            (
                (never, Ok(&[])),
                (0, Err(ResolveError::NoName)),
                "3008!I/O timeout",
            ),
            ((0, Ok(&["::1"])), (never, Ok(&[])), "3008!I/O timeout@::1"),
            (
                (0, Ok(&["::1"])),
                (0, Ok(&["1.0.0.1"])),
                "3008!I/O timeout@1.0.0.1",
            ),
            // The address is known, but was not tried before the time limit.
            (
                (never, Ok(&[])),
                (2990, Ok(&["1.0.0.1"])),
                "3008!I/O timeout@1.0.0.1",
            ),
        ];
        for (v6, v4, outcome) in cases {
            let net = Net { v6, v4, ..NOTHING };
            assert_eq!(play(&net).1, outcome);
        }
    }

    #[test]
    fn without_an_address_the_reason_that_says_most_is_reported() {
        use ResolveError::{AddressFamily, Again, NoData, NoName};
        const DENIED: Result<&[&str], ResolveError> = Ok(&["::9", "1.0.0.9"]);
        let cases = [
            (DENIED, DENIED, "Destination IP Prohibited"),
            (DENIED, Err(NoName), "Destination IP Prohibited"),
            (Err(Again), DENIED, "Destination IP Prohibited"),
            (Err(NoName), Err(NoName), NoName.text()),
            (Err(NoName), Err(NoData), NoData.text()),
            (Err(NoData), Err(NoName), NoData.text()),
            (Err(Again), Err(NoData), Again.text()),
            (Err(AddressFamily), Err(NoName), NoName.text()),
        ];
        for (v6, v4, text) in cases {
            let net = Net {
                v6: (0, v6),
                v4: (0, v4),
                denied: &["::9", "1.0.0.9"],
                attempts: &[],
            };
            let (attempts, outcome) = play(&net);
            assert_eq!((attempts.as_str(), outcome), ("", format!("0!{text}")));
        }
    }

    #[test]
    fn errors_of_the_system_have_their_texts() {
        let cases = [
            (libc::ECONNREFUSED, "connection refused"),
            (libc::ETIMEDOUT, "connection timed out"),
            (libc::ENETUNREACH, "network unreachable"),
            (libc::EHOSTUNREACH, "host unreachable"),
            (libc::ENOENT, "connection failure"),
            (libc::EACCES, "connection failure"),
        ];
        for (number, text) in cases {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(connect_error_text(&error), text);
        }
    }

    #[test]
    fn sockets_are_connected_where_the_list_permits() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build_local(tokio::runtime::LocalOptions::default())
            .unwrap();
        let worker = Worker::new(0, Arc::default(), Arc::default());
        runtime.block_on(worker.run(async {
            let (stream, address) = connect(&worker, "127.0.0.1", port, LIMITS, |_| true)
                .await
                .unwrap();
            let peer = rustix::net::getpeername(&stream).unwrap().unwrap();
            assert_eq!(SocketAddr::try_from(peer).unwrap(), address);
            assert!(rustix::net::sockopt::tcp_nodelay(&stream).unwrap());
            let allows_another_port = |address: SocketAddr| address.port() != port;
            let refused = connect(&worker, "127.0.0.1", port, LIMITS, allows_another_port).await;
            assert!(matches!(refused, Err(ConnectError::Prohibited)));
            drop(listener);
            let refused = connect(&worker, "127.0.0.1", port, LIMITS, |_| true).await;
            assert_eq!(refused.unwrap_err().text(), "connection refused");
        }));
    }
}
