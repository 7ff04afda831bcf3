//! Readiness of a worker's sockets.
//!
//! All connections of a worker are in one epoll set of their own, edge-triggered, and that set is one
//! descriptor of the runtime. Compared with a task and a registration of the runtime per connection, an
//! idle connection costs a third of the memory, and a request no scheduling and no atomic operation.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use rustix::event::epoll;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Events taken from the kernel at once.
const BATCH: usize = 256;

/// What a socket is ready for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    /// The token it was registered with.
    pub(crate) token: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer has ended its direction, or the connection is broken: reading must go on to the end.
    pub(crate) closed: bool,
    /// The connection is gone in both directions: nothing that is sent arrives.
    pub(crate) broken: bool,
}

/// An epoll set.
pub(crate) struct Reactor {
    set: Rc<AsyncFd<OwnedFd>>,
    events: Vec<epoll::Event>,
}

/// Where sockets are registered with a reactor.
pub(crate) struct Registry(Rc<AsyncFd<OwnedFd>>);

impl Reactor {
    pub(crate) fn new() -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        #[expect(
            unsafe_code,
            reason = "the runtime wants a promise about the descriptor"
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

    /// Fills `ready` with the next batch of events; pending if there are none.
    pub(crate) fn poll_events(
        &mut self,
        context: &mut Context<'_>,
        ready: &mut Vec<Ready>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = match self.set.poll_read_ready(context) {
                Poll::Ready(guard) => guard?,
                Poll::Pending => return Poll::Pending,
            };
            take_events(self.set.get_ref(), &mut self.events)?;
            if self.events.len() < BATCH {
                // What comes from now on is a new edge for the runtime.
                guard.clear_ready();
            }
            if !self.events.is_empty() {
                break;
            }
        }
        ready.extend(self.events.iter().map(Ready::new));
        Poll::Ready(Ok(()))
    }

    /// Fills `ready` with what has come in the meantime, past the runtime: while a batch was worked on, the
    /// next one has mostly arrived, and the runtime need not be asked for each. False if nothing has come.
    pub(crate) fn take_more(&mut self, ready: &mut Vec<Ready>) -> io::Result<bool> {
        take_events(self.set.get_ref(), &mut self.events)?;
        ready.extend(self.events.iter().map(Ready::new));
        Ok(!self.events.is_empty())
    }
}

impl Registry {
    /// Watches a connection; edge-triggered, for both directions at once.
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

    /// Watches a listener; level-triggered, one of the workers that share it is woken.
    pub(crate) fn add_listener(&self, socket: &impl AsFd, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        Ok(epoll::add(
            self.0.get_ref(),
            socket,
            epoll::EventData::new_u64(token),
            flags,
        )?)
    }

    /// Stops watching a listener.
    pub(crate) fn remove_listener(&self, socket: &impl AsFd) {
        // It is watched as long as it is listed; nothing is lost if the kernel disagrees.
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

impl Ready {
    fn new(event: &epoll::Event) -> Self {
        let (flags, data) = (event.flags, event.data);
        let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        Self {
            token: data.u64(),
            readable: broken || flags.contains(epoll::EventFlags::IN),
            writable: broken || flags.contains(epoll::EventFlags::OUT),
            closed: broken || flags.contains(epoll::EventFlags::RDHUP),
            broken,
        }
    }
}
