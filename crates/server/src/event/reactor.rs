//! Readiness of a worker's sockets.
//!
//! All connections of a worker are in one edge-triggered epoll set, which the runtime sees as one descriptor. Compared with a task
//! and a runtime registration per connection, an idle connection takes a third of the memory, and a request needs no scheduling and
//! no atomic operation.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use rustix::event::epoll;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Largest number of events fetched from the kernel per call.
const BATCH: usize = 256;

/// Flags with which a UDP socket is watched for input.
const INPUT: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);

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

/// The epoll set of a worker.
pub(crate) struct Reactor {
    set: Rc<AsyncFd<OwnedFd>>,
    events: Vec<epoll::Event>,
}

/// A handle that registers sockets with a reactor.
pub(crate) struct Registry(Rc<AsyncFd<OwnedFd>>);

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
            set: Rc::new(set),
            events: Vec::with_capacity(BATCH),
        })
    }

    pub(crate) fn registry(&self) -> Registry {
        Registry(Rc::clone(&self.set))
    }

    /// Fills `ready` with the next batch of events; pending if there are no events.
    pub(crate) fn poll_events(
        &mut self,
        context: &mut Context<'_>,
        ready: &mut Vec<Readiness>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = match self.set.poll_read_ready(context) {
                Poll::Ready(guard) => guard?,
                Poll::Pending => return Poll::Pending,
            };
            take_events(self.set.get_ref(), &mut self.events)?;
            if self.events.len() < BATCH {
                // The kernel has no more events for the epoll set: the next event wakes the runtime again.
                guard.clear_ready();
            }
            if !self.events.is_empty() {
                break;
            }
        }
        ready.extend(self.events.iter().map(Readiness::new));
        Poll::Ready(Ok(()))
    }

    /// Fills `ready` with events that arrived in the meantime, by a system call that bypasses the runtime: while the loop handles
    /// one batch the next usually arrives, and to ask the runtime for each would cost more. Returns `false` if there are no events.
    pub(crate) fn take_more(&mut self, ready: &mut Vec<Readiness>) -> io::Result<bool> {
        take_events(self.set.get_ref(), &mut self.events)?;
        ready.extend(self.events.iter().map(Readiness::new));
        Ok(!self.events.is_empty())
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
            self.0.get_ref(),
            socket,
            epoll::EventData::new_u64(token),
            flags,
        )?)
    }

    /// Watches a UDP socket for input, edge-triggered. It is not watched for space for output: each datagram that leaves the
    /// kernel would make an event.
    pub(crate) fn add_datagram_socket(&self, socket: &impl AsFd, token: u64) -> io::Result<()> {
        Ok(epoll::add(
            self.0.get_ref(),
            socket,
            epoll::EventData::new_u64(token),
            INPUT,
        )?)
    }

    /// Watches a UDP socket that is watched for input for space for output as well, or no longer. If there is space already, an
    /// event tells so.
    pub(crate) fn watch_output(
        &self,
        socket: &impl AsFd,
        token: u64,
        output: bool,
    ) -> io::Result<()> {
        let flags = if output {
            INPUT | epoll::EventFlags::OUT
        } else {
            INPUT
        };
        Ok(epoll::modify(
            self.0.get_ref(),
            socket,
            epoll::EventData::new_u64(token),
            flags,
        )?)
    }

    /// Watches a listening socket, level-triggered. An event wakes one of the workers that share the listener.
    pub(crate) fn add_listener(&self, socket: &impl AsFd, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        Ok(epoll::add(
            self.0.get_ref(),
            socket,
            epoll::EventData::new_u64(token | REPEATS),
            flags,
        )?)
    }

    /// Stops watching a socket that other workers may watch as well: closing this worker's descriptor would not stop it.
    pub(crate) fn remove(&self, socket: &impl AsFd) {
        // The result is ignored: the call only fails if the socket is not watched.
        let _ = epoll::delete(self.0.get_ref(), socket);
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
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use super::*;

    #[test]
    fn space_in_a_udp_socket_makes_events_only_while_it_is_asked_for() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let mut reactor = Reactor::new().unwrap();
        let registry = reactor.registry();
        let here = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (near, far) = (here(), here());
        registry.add_datagram_socket(&near, 7).unwrap();
        const NONE: &[(u64, bool, bool)] = &[];
        let mut events = || {
            let mut ready = Vec::new();
            reactor.take_more(&mut ready).unwrap();
            let seen = ready.iter();
            seen.map(|event| (event.token, event.readable, event.writable))
                .collect::<Vec<_>>()
        };
        let exchange = || {
            near.send_to(b"there", far.local_addr().unwrap()).unwrap();
            far.recv(&mut [0; 8]).unwrap();
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
        far.send_to(b"back", near.local_addr().unwrap()).unwrap();
        assert_eq!(events(), [(7, true, false)]);
    }
}
