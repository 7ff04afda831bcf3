//! Readiness of a worker's sockets.
//!
//! All sockets of a worker are in one edge-triggered epoll set, and the worker's thread waits for events of that set. Compared with a task
//! and a registration in an async runtime for each connection, an idle connection takes a third of the memory, and a request needs no
//! scheduling and no atomic operation.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::event::{Timespec, epoll};

/// Largest number of events fetched from the kernel per call.
const BATCH: usize = 256;

/// Longest time of one wait. Older kernels cannot wait for longer than some weeks, and say so.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The token of the descriptor by which other threads wake the worker; no table has it.
const WAKE_TOKEN: u64 = u64::MAX;

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
}

/// The sockets of a worker that are watched.
pub(crate) struct Reactor {
    set: Rc<OwnedFd>,
    /// The events that [`Reactor::wait`] has fetched.
    events: Vec<epoll::Event>,
}

/// A handle that registers sockets with a reactor.
pub(crate) struct Registry(Rc<OwnedFd>);

impl Reactor {
    /// Makes a reactor whose [`wait`](Self::wait) ends when something is written to the eventfd `wake`.
    pub(crate) fn new(wake: &impl AsFd) -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // An edge-triggered event comes with every write, so the counter of the eventfd need not be read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&set, wake, epoll::EventData::new_u64(WAKE_TOKEN), flags)?;
        Ok(Self {
            set: Rc::new(set),
            events: Vec::with_capacity(BATCH),
        })
    }

    pub(crate) fn registry(&self) -> Registry {
        Registry(Rc::clone(&self.set))
    }

    /// Waits until there are events, but no longer than `limit` and [`LONGEST_WAIT`]; `None`: without a limit.
    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.min(LONGEST_WAIT).as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        });
        self.events.clear();
        let space = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&*self.set, space, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves the events that the last [`wait`](Self::wait) has fetched to `ready`.
    pub(crate) fn take_events(&mut self, ready: &mut Vec<Readiness>) {
        let of_sockets = |event: &epoll::Event| event.data.u64() != WAKE_TOKEN;
        ready.extend(
            self.events
                .drain(..)
                .filter(of_sockets)
                .map(|event| Readiness::new(&event)),
        );
    }
}

/// The epoll set, for tests that wait for its events themselves.
#[cfg(test)]
impl AsFd for Reactor {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.set.as_fd()
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
            &*self.0,
            socket,
            epoll::EventData::new_u64(token),
            flags,
        )?)
    }

    /// Watches a UDP socket for input: an event tells that datagrams have arrived since the one before. It is not watched for space
    /// for output: each datagram that leaves the kernel would make an event.
    pub(crate) fn add_datagram_socket(&self, socket: &impl AsFd, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(
            &*self.0,
            socket,
            epoll::EventData::new_u64(token),
            flags,
        )?)
    }

    /// Watches a UDP socket that was added also for space for output, or no longer. If there is space already, an event tells so.
    pub(crate) fn watch_output(
        &self,
        socket: &impl AsFd,
        token: u64,
        is_watched: bool,
    ) -> io::Result<()> {
        let mut flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        flags.set(epoll::EventFlags::OUT, is_watched);
        Ok(epoll::modify(
            &*self.0,
            socket,
            epoll::EventData::new_u64(token),
            flags,
        )?)
    }

    /// Watches a listening socket, level-triggered. An event wakes one of the workers that share the listener.
    pub(crate) fn add_listener(&self, socket: &impl AsFd, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        Ok(epoll::add(
            &*self.0,
            socket,
            epoll::EventData::new_u64(token),
            flags,
        )?)
    }

    /// Stops watching a socket of which other descriptors may be open, in this process or others: closing this worker's descriptor would
    /// not stop it.
    pub(crate) fn remove(&self, socket: &impl AsFd) {
        // The result is ignored: the call only fails if the socket is not watched.
        let _ = epoll::delete(&*self.0, socket);
    }
}

impl Readiness {
    fn new(event: &epoll::Event) -> Self {
        let (flags, data) = (event.flags, event.data.u64());
        let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        Self {
            token: data,
            readable: broken || flags.contains(epoll::EventFlags::IN),
            writable: broken || flags.contains(epoll::EventFlags::OUT),
            closed: broken || flags.contains(epoll::EventFlags::RDHUP),
            broken,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn space_in_a_udp_socket_makes_events_only_while_it_is_asked_for() {
        let mut reactor = Reactor::new(&eventfd(0, EventfdFlags::empty()).unwrap()).unwrap();
        let registry = reactor.registry();
        let here = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (near, far) = (here(), here());
        registry.add_datagram_socket(&near, 7).unwrap();
        const NONE: &[(u64, bool, bool)] = &[];
        let mut events = || {
            let mut ready = Vec::new();
            reactor.wait(Some(Duration::ZERO)).unwrap();
            reactor.take_events(&mut ready);
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
        assert_eq!(events(), NONE);
        registry.watch_output(&near, 7, true).unwrap();
        assert_eq!(events(), [(7, false, true)]);
        assert_eq!(events(), NONE);
        exchange();
        assert_eq!(events(), [(7, false, true)]);
        registry.watch_output(&near, 7, false).unwrap();
        exchange();
        assert_eq!(events(), NONE);
        for _ in 0..2 {
            // The first datagram is not read, and still there is an event for the second.
            answer();
            assert_eq!(events(), [(7, true, false)]);
            assert_eq!(events(), NONE);
        }
        registry.remove(&near);
        answer();
        assert_eq!(events(), NONE);
    }
}
