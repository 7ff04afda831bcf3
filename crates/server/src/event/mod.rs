//! The event loop of a worker and what it is made of: readiness of sockets, wakers, memory account. It knows nothing of
//! HTTP.

pub(crate) mod event_loop;
pub(crate) mod memory;
pub(crate) mod pipes;
pub(crate) mod reactor;
pub(crate) mod socket;
pub(crate) mod wake_queue;
