//! The event loop of a worker, apart from what its connections are: readiness of sockets, wakers, memory.

pub(crate) mod event_loop;
pub(crate) mod memory;
pub(crate) mod pipes;
pub(crate) mod reactor;
pub(crate) mod socket;
pub(crate) mod wake_queue;
