//! The event loop of a worker and its parts: readiness of sockets, wakers, memory account. The event loop knows nothing of HTTP.

pub(crate) mod event_loop;
#[cfg(test)]
pub(crate) mod in_runtime;
pub(crate) mod memory;
pub(crate) mod pipes;
pub(crate) mod reactor;
pub(crate) mod socket;
pub(crate) mod thread_waker;
pub(crate) mod token;
pub(crate) mod wake_queue;
pub(crate) mod watched_sockets;
