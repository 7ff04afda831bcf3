//! Connections that carry many requests at a time: what HTTP/2 and HTTP/3 to backends have in common.
//!
//! Requests hold a [`Connection`], which has the engine and the streams in one `RefCell`. A task on the worker's thread receives,
//! sends, and watches the timeouts. A request that changes this state wakes the task; when something has arrived for a stream, the
//! task wakes the stream's owner (its request or response body). Only body bytes are copied between task and owner, once.
//!
//! Flow control works in both directions. The backend may send as much of a response as the stream's window allows; the window is
//! restored when the client has taken the bytes, so a slow client delays its own stream only and costs a bounded amount of memory.
//! The body of a request is pulled from the client's connection when the stream's turn has come and its window has room.

mod activity;
mod body;
mod connection;
mod engine;
mod owned_stream;
mod receiving;
mod request;
mod send_request;
mod sending;
mod stream;
mod upload;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use h2o_exchange::Worker;
use tokio::sync::Notify;

pub(crate) use activity::Activity;
pub(crate) use connection::{Connection, State};
pub(crate) use engine::{Engine, StreamIndex};
pub(crate) use send_request::send;
pub(crate) use stream::StreamFailure;

use crate::UpstreamSettings;
use crate::protocol_choice::Load;

/// The flow-control window of a stream in bytes, if `proxy.max-buffer-size` is not set. The window is part of the memory for
/// buffering ([`crate::read_ahead::MAX_MEMORY`]).
const DEFAULT_WINDOW: u32 = 192 * 1024;

/// The settings of the streams of a connection.
#[derive(Clone, Debug)]
pub(crate) struct StreamSettings {
    /// Limit of the open streams of a connection.
    pub(crate) max_streams: u32,
    /// The flow-control window of a stream, in bytes.
    pub(crate) window: u32,
    pub(crate) first_byte_timeout: Duration,
    pub(crate) io_timeout: Duration,
    pub(crate) keepalive: Duration,
}

impl StreamSettings {
    pub(crate) fn new(settings: &UpstreamSettings) -> Self {
        Self {
            max_streams: settings.http2_max_streams.max(1),
            window: window(settings.max_buffer_size),
            first_byte_timeout: settings.first_byte_timeout,
            io_timeout: settings.io_timeout,
            keepalive: settings.keepalive,
        }
    }
}

/// The flow-control window of a stream for this `proxy.max-buffer-size`, limited by HTTP/2's largest window.
fn window(max_buffer_size: Option<u64>) -> u32 {
    max_buffer_size.map_or(DEFAULT_WINDOW, |size| {
        u32::try_from(size).unwrap_or(u32::MAX)
    })
}

/// A worker's connections to the backends of an upstream, of one protocol version.
pub(crate) struct Connections<E: Engine> {
    all: RefCell<Vec<Rc<Connection<E>>>>,
    /// For each backend, the connections to it that are being opened.
    openings: Box<[Rc<Openings>]>,
}

/// The connections to one backend that are being opened.
#[derive(Default)]
struct Openings {
    /// Number of connections that are being opened to the backend.
    opening: Cell<usize>,
    /// Number of requests that wait for a connection that another request is opening.
    waiting: Cell<usize>,
    opened: Notify,
    opened_so_far: Cell<u64>,
    /// The limit of open streams that the last opened connection had; `None` if none was opened yet.
    most_streams: Cell<Option<usize>>,
}

impl<E: Engine> Drop for Connections<E> {
    /// Closes the connections when their upstream was dropped, because no request will use them any more.
    fn drop(&mut self) {
        for connection in self.all.get_mut() {
            connection.retire();
        }
    }
}

/// Marks that a connection is being opened that may become one of the [`Connections`]. When this is dropped, requests that wait for
/// the connection look again.
pub(crate) struct Opening(Rc<Openings>);

impl Opening {
    /// Records that the connection is open, and that it allows `most_streams` requests at a time.
    fn succeed(self, most_streams: usize) {
        self.0.opened_so_far.update(|opened| opened + 1);
        self.0.most_streams.set(Some(most_streams));
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.opening.update(|opening| opening - 1);
        self.0.opened.notify_waiters();
    }
}

/// A request that waits for a connection being opened by another request.
struct Waiting<'c>(&'c Openings);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.update(|waiting| waiting - 1);
    }
}

impl<E: Engine> Connections<E> {
    /// Makes a table for this number of backends, with no connections yet.
    pub(crate) fn new(backends: usize) -> Self {
        Self {
            all: RefCell::default(),
            openings: (0..backends).map(|_| Rc::default()).collect(),
        }
    }

    /// Among the connections that accept another request, to backends for which `suits` is true, picks the one with the fewest
    /// streams; the first of several (H2O compatibility: H2O also takes the least loaded).
    pub(crate) fn pick(&self, suits: impl Fn(usize) -> bool) -> Option<Rc<Connection<E>>> {
        let mut all = self.all.borrow_mut();
        all.retain(|connection| connection.is_reusable());
        all.iter()
            .filter(|connection| connection.can_request() && suits(connection.backend()))
            .min_by_key(|connection| connection.request_count())
            .cloned()
    }

    /// Marks that the caller is opening a connection to this backend, until the returned value is dropped.
    pub(crate) fn begin_opening(&self, backend: usize) -> Opening {
        let openings = &self.openings[backend];
        openings.opening.update(|opening| opening + 1);
        Opening(Rc::clone(openings))
    }

    /// If other requests are opening connections to `backend` that will have room, waits for one of these, so that simultaneous
    /// requests do not open one each. `None` if there is no such connection, or if none of them succeeded; the caller then does
    /// not wait again.
    pub(crate) async fn join(
        &self,
        backend: usize,
        max_streams: usize,
        suits: impl Fn(usize) -> bool,
    ) -> Option<Rc<Connection<E>>> {
        let openings = &self.openings[backend];
        openings.waiting.update(|waiting| waiting + 1);
        let _waiting = Waiting(openings);
        loop {
            let opening = openings.opening.get();
            let most =
                (openings.most_streams.get()).map_or(max_streams, |most| most.min(max_streams));
            // Each request that opens a connection will itself use one of its streams.
            if openings.waiting.get() + opening > opening * most {
                return None;
            }
            let before = openings.opened_so_far.get();
            openings.opened.notified().await;
            if let Some(connection) = self.pick(&suits) {
                return Some(connection);
            }
            if openings.opened_so_far.get() == before {
                return None;
            }
        }
    }

    /// The number of streams in use, and their limit, on the connections to backends for which `suits` is true.
    pub(crate) fn load(&self, suits: impl Fn(usize) -> bool) -> Load {
        let mut load = Load::default();
        for connection in self.all.borrow().iter() {
            if suits(connection.backend()) && connection.is_reusable() {
                load.used += connection.request_count();
                load.most += connection.max_requests();
            }
        }
        load
    }

    /// Adds a new connection. Other requests can use it from then on, or, if the backend's limit of streams is not known yet, once
    /// its SETTINGS have arrived. Requests that wait for it wait for no longer than `limit`.
    pub(crate) fn add(
        &self,
        worker: &Rc<Worker>,
        connection: &Rc<Connection<E>>,
        opening: Opening,
        limit: Duration,
    ) {
        self.all.borrow_mut().push(Rc::clone(connection));
        if connection.knows_limit() {
            opening.succeed(connection.max_requests());
            return;
        }
        let (own, connection) = (Rc::clone(worker), Rc::clone(connection));
        worker.spawn(async move {
            let settings = poll_fn(|task| connection.poll_settings(task));
            let _ = own.timeout(limit, settings).await;
            if connection.knows_limit() {
                opening.succeed(connection.max_requests());
            }
        });
    }
}

#[cfg(test)]
impl<E: Engine> Connections<E> {
    /// Adds a connection that no request waits for.
    pub(crate) fn add_opened(&self, connection: &Rc<Connection<E>>) {
        self.all.borrow_mut().push(Rc::clone(connection));
    }
}

#[cfg(test)]
pub(crate) mod tests;
