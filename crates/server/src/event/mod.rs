//! What the event loop of a worker is made of: readiness of sockets, wakers, timers, system calls on accepted sockets.

pub(crate) mod reactor;
pub(crate) mod socket;
pub(crate) mod timers;
pub(crate) mod wake_queue;
