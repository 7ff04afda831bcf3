//! The table of the sockets of handlers, such as those to backends: its events wake the requests that wait for them.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use h2o_exchange::{SocketWatch, Worker};

use crate::event::event_loop::ConnectionTable;
use crate::event::reactor::{Readiness, Registry};
use crate::event::wake_queue::WakeTarget;
use crate::generation::LocalGeneration;

/// The sockets of handlers on a worker. They belong to the requests and pools that use them, so the table neither counts nor closes any.
pub(crate) struct WatchedSockets {
    sockets: Rc<SocketWatch>,
    /// The worker refers to it, too, but may outlive the event loop: the epoll set ends with this table.
    _registry: Rc<Registry>,
}

impl WatchedSockets {
    /// Makes the table of a worker, whose handlers can have sockets watched from now on.
    pub(crate) fn new(worker: &Worker, registry: Registry, first_token: u64) -> Self {
        let sockets = worker.local::<SocketWatch>();
        let registry = Rc::new(registry);
        let weak = Rc::downgrade(&registry);
        sockets.set(Box::new(move |socket, number| {
            let registry = weak.upgrade().ok_or(io::ErrorKind::NotFound)?;
            registry.add_connection(&socket, first_token | u64::from(number))
        }));
        Self {
            sockets,
            _registry: registry,
        }
    }
}

impl ConnectionTable for WatchedSockets {
    fn on_ready(&mut self, event: &Readiness) {
        // The lower half of a token is the number of the socket.
        if let Ok(number) = u32::try_from(event.token & u64::from(u32::MAX)) {
            (self.sockets).on_ready(number, event.readable, event.writable, event.closed);
        }
    }

    fn run(&mut self, _: u64) {}

    fn wake(&mut self, _: &[WakeTarget]) {}

    fn on_timeout(&mut self, _: u32, _: Instant) {}

    fn len(&self) -> usize {
        0
    }

    fn drain(&mut self) {}

    fn close_all(&mut self) {}

    fn list_idle(&self, _: Instant, _: &mut Vec<(Instant, u64)>) {}

    fn close_idle(&mut self, _: u64) {}

    fn costliest(&self) -> Option<(u64, usize)> {
        None
    }

    fn evict(&mut self, _: u64) {}

    fn adopt(&mut self, _: &mut LocalGeneration) {}

    #[cfg(test)]
    fn run_all(&mut self) {}
}
