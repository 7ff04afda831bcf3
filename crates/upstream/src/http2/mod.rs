//! HTTP/2 to backends: many concurrent requests over one connection ([`crate::multiplexed`]). Each connection has a task
//! of its own ([`driver`]), which owns the socket.

mod driver;
mod engine;
mod receiving;

#[cfg(test)]
pub(crate) mod tests;

use std::rc::Rc;

use h2o_exchange::Worker;
use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) use driver::Scratch;
pub(crate) use engine::Http2;

use crate::UpstreamSettings;
use crate::multiplexed::{Connection, StreamSettings};

/// Starts HTTP/2 on a new connection to a backend. The stream must not hold back writes until a flush.
///
/// Must be called where tasks of the worker can be [spawned](Worker::spawn).
pub(crate) fn open<S>(
    worker: &Worker,
    settings: &UpstreamSettings,
    backend: usize,
    stream: S,
    scratch: &Scratch,
) -> Rc<Connection<Http2>>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (connection, driver) = driver::open(
        StreamSettings::new(settings),
        backend,
        stream,
        Rc::clone(scratch),
        &worker.timers,
    );
    worker.spawn(driver);
    connection
}
