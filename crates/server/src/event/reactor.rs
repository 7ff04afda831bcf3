//! Readiness of a worker's sockets.
//!
//! All TCP connections of a worker are in one edge-triggered epoll set, which the runtime sees as one descriptor. Compared with a task
//! and a runtime registration per connection, an idle connection takes a third of the memory, and a request needs no scheduling and
//! no atomic operation.
//!
//! The few UDP sockets, which serve all QUIC connections, are registered with the runtime: that saves the system call that fetches an
//! event from the set, and the kernel the work for a set within a set.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use rustix::event::epoll;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::event::socket::Socket;

/// Largest number of events fetched from the kernel per call.
const BATCH: usize = 256;

/// The bit of a token in the epoll set that says that the kernel repeats the events of the socket. The tokens of tables do not use it.
pub(crate) const REPEATS: u64 = 1 << 63;

/// A readiness event of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readiness {
    /// The token with which the socket was registered.
    pub(crate) token: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// Whether the peer has ended its direction, or the connection is broken, so that the input must be read to its end.
    pub(crate) closed: bool,
    /// Whether the connection is lost in both directions, so that sent bytes do not arrive.
    pub(crate) broken: bool,
    /// Whether the kernel repeats the event until the socket is no longer ready, as for a listener. Other events come once.
    pub(crate) repeats: bool,
}

/// The sockets of a worker that are watched.
pub(crate) struct Reactor {
    watched: Rc<Watched>,
    /// The last batch of events of the epoll set.
    events: Vec<epoll::Event>,
}

/// A handle that registers sockets with a reactor.
pub(crate) struct Registry(Rc<Watched>);

struct Watched {
    set: AsyncFd<OwnedFd>,
    /// The UDP sockets that are watched for input, with their tokens.
    datagram_sockets: RefCell<Vec<(u64, AsyncFd<OpenSocket>)>>,
}

/// A socket that is open for as long as this value lives.
struct OpenSocket(Rc<Socket>);

impl AsRawFd for OpenSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Reactor {
    pub(crate) fn new() -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        #[expect(
            unsafe_code,
            reason = "the caller promises that the descriptor stays open while the runtime uses it"
        )]
        // SAFETY: an `OwnedFd` is the same open descriptor for as long as it lives, and it lives in `set`.
        let set = unsafe { AsyncFd::register_with_interest(set, Interest::READABLE) }?;
        Ok(Self {
            watched: Rc::new(Watched {
                set,
                datagram_sockets: RefCell::default(),
            }),
            events: Vec::with_capacity(BATCH),
        })
    }

    pub(crate) fn registry(&self) -> Registry {
        Registry(Rc::clone(&self.watched))
    }

    /// Fills `ready` with the next batch of events; pending if there are no events.
    pub(crate) fn poll_events(
        &mut self,
        context: &mut Context<'_>,
        ready: &mut Vec<Readiness>,
    ) -> Poll<io::Result<()>> {
        let Watched {
            set,
            datagram_sockets,
        } = &*self.watched;
        self.events.clear();
        while self.events.is_empty()
            && let Poll::Ready(guard) = set.poll_read_ready(context)
        {
            let mut guard = guard?;
            take_events(set.get_ref(), &mut self.events)?;
            if self.events.len() < BATCH {
                // The kernel has no more events for the epoll set: the next event wakes the runtime again.
                guard.clear_ready();
            }
        }
        ready.extend(self.events.iter().map(Readiness::new));
        for (token, socket) in &*datagram_sockets.borrow() {
            if let Poll::Ready(guard) = socket.poll_read_ready(context) {
                guard?.clear_ready();
                ready.push(Readiness::input(*token));
            }
        }
        if ready.is_empty() {
            Poll::Pending
        } else {
            Poll::Ready(Ok(()))
        }
    }

    /// Fills `ready` with events of the epoll set that arrived in the meantime, by a system call that bypasses the runtime: while the
    /// loop handles one batch the next usually arrives, and to ask the runtime for each would cost more. Returns `false` if there are
    /// no events.
    pub(crate) fn take_more(&mut self, ready: &mut Vec<Readiness>) -> io::Result<bool> {
        take_events(self.watched.set.get_ref(), &mut self.events)?;
        ready.extend(self.events.iter().map(Readiness::new));
        Ok(!self.events.is_empty())
    }

    /// Whether the last batch had no events of the epoll set, but only of UDP sockets. The runtime tells of further events of both.
    pub(crate) fn is_set_quiet(&self) -> bool {
        self.events.is_empty()
    }
}

impl Registry {
    /// Watches the socket of a connection for input and for space for output, edge-triggered.
    pub(crate) fn add_connection(&self, socket: &impl AsFd, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        Ok(epoll::add(
            self.0.set.get_ref(),
            socket,
            epoll::EventData::new_u64(token),
            flags,
        )?)
    }

    /// Watches a UDP socket for input: an event tells that datagrams have arrived since the one before. It is not watched for space
    /// for output: each datagram that leaves the kernel would make an event.
    pub(crate) fn add_datagram_socket(&self, socket: &Rc<Socket>, token: u64) -> io::Result<()> {
        let socket = OpenSocket(Rc::clone(socket));
        #[expect(
            unsafe_code,
            reason = "the caller promises that the descriptor stays open while the runtime uses it"
        )]
        // SAFETY: an `OpenSocket` keeps its socket, whose descriptor does not change, and it lives in the registration.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?;
        self.0.datagram_sockets.borrow_mut().push((token, socket));
        Ok(())
    }

    /// Stops watching a UDP socket.
    pub(crate) fn remove_datagram_socket(&self, token: u64) {
        let mut sockets = self.0.datagram_sockets.borrow_mut();
        sockets.retain(|(other, _)| *other != token);
    }

    /// Watches a UDP socket for space for output. If there is space already, an event tells so.
    pub(crate) fn watch_output(&self, socket: &impl AsFd, token: u64) -> io::Result<()> {
        Ok(epoll::add(
            self.0.set.get_ref(),
            socket,
            epoll::EventData::new_u64(token),
            epoll::EventFlags::OUT | epoll::EventFlags::ET,
        )?)
    }

    /// Watches a listening socket, level-triggered. An event wakes one of the workers that share the listener.
    pub(crate) fn add_listener(&self, socket: &impl AsFd, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        Ok(epoll::add(
            self.0.set.get_ref(),
            socket,
            epoll::EventData::new_u64(token | REPEATS),
            flags,
        )?)
    }

    /// Stops watching a socket of the epoll set: one that other workers may watch as well, since closing this worker's descriptor would not
    /// stop it, or a UDP socket that is watched for space for output.
    pub(crate) fn remove(&self, socket: &impl AsFd) {
        // The result is ignored: the call only fails if the socket is not watched.
        let _ = epoll::delete(self.0.set.get_ref(), socket);
    }
}

fn take_events(set: &OwnedFd, events: &mut Vec<epoll::Event>) -> io::Result<()> {
    const ZERO: rustix::event::Timespec = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    events.clear();
    match epoll::wait(set, rustix::buffer::spare_capacity(events), Some(&ZERO)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Readiness {
    fn new(event: &epoll::Event) -> Self {
        let (flags, data) = (event.flags, event.data.u64());
        let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        Self {
            token: data & !REPEATS,
            readable: broken || flags.contains(epoll::EventFlags::IN),
            writable: broken || flags.contains(epoll::EventFlags::OUT),
            closed: broken || flags.contains(epoll::EventFlags::RDHUP),
            broken,
            repeats: data & REPEATS != 0,
        }
    }

    /// The event of a UDP socket that has datagrams.
    const fn input(token: u64) -> Self {
        Self {
            token,
            readable: true,
            writable: false,
            closed: false,
            broken: false,
            repeats: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::{Ipv4Addr, UdpSocket};

    use super::*;

    #[test]
    fn space_in_a_udp_socket_makes_events_only_while_it_is_asked_for() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut reactor = Reactor::new().unwrap();
            let registry = reactor.registry();
            let here = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let (near, far) = (here(), here());
            let watched = Rc::new(Socket::new(near.try_clone().unwrap().into(), false));
            registry.add_datagram_socket(&watched, 7).unwrap();
            const NONE: &[(u64, bool, bool)] = &[];
            let mut events = async || {
                // The runtime fetches the events of the kernel when all tasks have had their turn.
                tokio::task::yield_now().await;
                let mut ready = Vec::new();
                let _ = poll_fn(|task| Poll::Ready(reactor.poll_events(task, &mut ready))).await;
                let seen = ready.iter();
                seen.map(|event| (event.token, event.readable, event.writable))
                    .collect::<Vec<_>>()
            };
            let exchange = || {
                near.send_to(b"there", far.local_addr().unwrap()).unwrap();
                far.recv(&mut [0; 8]).unwrap();
            };
            let answer = || {
                far.send_to(b"back", near.local_addr().unwrap()).unwrap();
            };
            exchange();
            assert_eq!(events().await, NONE);
            registry.watch_output(&watched, 7).unwrap();
            assert_eq!(events().await, [(7, false, true)]);
            assert_eq!(events().await, NONE);
            exchange();
            assert_eq!(events().await, [(7, false, true)]);
            registry.remove(&watched);
            exchange();
            assert_eq!(events().await, NONE);
            for _ in 0..2 {
                // The first datagram is not read, and still there is an event for the second.
                answer();
                assert_eq!(events().await, [(7, true, false)]);
                assert_eq!(events().await, NONE);
            }
            registry.remove_datagram_socket(7);
            answer();
            assert_eq!(events().await, NONE);
        });
    }
}
