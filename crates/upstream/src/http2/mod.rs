//! HTTP/2 to backends: many concurrent requests over one connection.
//!
//! Requests hold a [`Connection`]: engine, output and streams in one cell. The socket belongs to a task on the worker's
//! thread ([`driver`]), which receives, sends, and watches the timeouts. A request that changes the cell wakes the
//! task; the task wakes the owner of a stream for which something has arrived. Only body bytes are copied between the
//! two, once.
//!
//! Flow control works in both directions. The backend may send as much of a response as the stream's window allows; the
//! window is restored when the client has taken the bytes, so a slow client delays its own stream only and costs at
//! most one window of memory. The body of a request is pulled from the client's connection when the stream's turn has
//! come and its window has room.

mod body;
mod call;
mod connection;
mod driver;
mod owned_stream;
mod receiving;
mod send_request;
mod sending;
mod stream;
mod upload;

#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use h2o_exchange::Worker;
use h2o_http2::ClientSettings;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;

pub(crate) use connection::Connection;
use driver::Scratch;
pub(crate) use send_request::send;

use crate::UpstreamSettings;
use crate::protocol_choice::Http2Load;

/// The window of a stream without `proxy.max-buffer-size`, in bytes. It is part of the memory for buffering
/// ([`crate::read_ahead::MAX_MEMORY`]).
const DEFAULT_WINDOW: u32 = 192 * 1024;

/// Settings of an upstream's HTTP/2 connections.
#[derive(Clone)]
pub(crate) struct Http2Settings {
    pub(super) engine: Arc<ClientSettings>,
    pub(super) first_byte_timeout: Duration,
    pub(super) io_timeout: Duration,
    pub(super) keepalive: Duration,
}

impl Http2Settings {
    fn new(settings: &UpstreamSettings) -> Self {
        Self {
            engine: Arc::new(ClientSettings {
                max_streams: settings.http2_max_streams.max(1),
                window: window(settings.max_buffer_size),
            }),
            first_byte_timeout: settings.first_byte_timeout,
            io_timeout: settings.io_timeout,
            keepalive: settings.keepalive,
        }
    }
}

/// The window of a stream for `proxy.max-buffer-size`, limited by HTTP/2's largest window.
fn window(max_buffer_size: Option<u64>) -> u32 {
    max_buffer_size.map_or(DEFAULT_WINDOW, |size| {
        u32::try_from(size).unwrap_or(u32::MAX)
    })
}

/// A worker's HTTP/2 connections to the backends of an upstream.
pub(crate) struct Connections {
    all: RefCell<Vec<Rc<Connection>>>,
    scratch: Scratch,
    /// By backend.
    openings: Box<[Openings]>,
}

/// The connections to one backend that are being opened.
#[derive(Default)]
struct Openings {
    /// Requests that are opening a connection.
    opening: Cell<usize>,
    /// Requests that wait for one of these.
    waiting: Cell<usize>,
    opened: Notify,
    opened_so_far: Cell<u64>,
}

impl Drop for Connections {
    /// The upstream was dropped: no request will use these connections.
    fn drop(&mut self) {
        for connection in self.all.get_mut() {
            connection.retire();
        }
    }
}

/// A connection is being opened that may become an HTTP/2 one. When this is dropped, requests that wait for it look
/// again.
pub(crate) struct Opening<'c>(&'c Openings);

impl Drop for Opening<'_> {
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

impl Connections {
    /// No connections yet, to this many backends.
    pub(crate) fn new(backends: usize) -> Self {
        Self {
            all: RefCell::default(),
            scratch: Scratch::default(),
            openings: (0..backends).map(|_| Openings::default()).collect(),
        }
    }

    /// Of the connections to backends for which `suits` is true, the one with the fewest streams, if it accepts
    /// another; the first of equals (H2O compatibility: H2O also takes the least loaded).
    pub(crate) fn pick(&self, suits: impl Fn(usize) -> bool) -> Option<Rc<Connection>> {
        let mut all = self.all.borrow_mut();
        all.retain(|connection| connection.is_reusable());
        all.iter()
            .filter(|connection| connection.can_request() && suits(connection.backend()))
            .min_by_key(|connection| connection.request_count())
            .cloned()
    }

    /// Announces that the caller opens a connection to this backend.
    pub(crate) fn begin_opening(&self, backend: usize) -> Opening<'_> {
        let openings = &self.openings[backend];
        openings.opening.update(|opening| opening + 1);
        Opening(openings)
    }

    /// If connections to `backend` are being opened that will have room, waits for one, so that simultaneous requests
    /// do not open one each. `None` also if none of them succeeded; the caller then does not wait again.
    pub(crate) async fn join(
        &self,
        backend: usize,
        max_streams: u32,
        suits: impl Fn(usize) -> bool,
    ) -> Option<Rc<Connection>> {
        let openings = &self.openings[backend];
        openings.waiting.update(|waiting| waiting + 1);
        let _waiting = Waiting(openings);
        loop {
            let opening = openings.opening.get();
            // Requests that open a connection also use one stream each.
            if openings.waiting.get() + opening > opening * max_streams as usize {
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

    /// Load of the connections to backends for which `suits` is true.
    pub(crate) fn load(&self, suits: impl Fn(usize) -> bool) -> Http2Load {
        let mut load = Http2Load::default();
        for connection in self.all.borrow().iter() {
            if suits(connection.backend()) && connection.is_reusable() {
                load.used += connection.request_count();
                load.most += connection.max_requests();
            }
        }
        load
    }

    /// Starts HTTP/2 on a new connection to this backend. Other requests can use it from then on. Writes to the stream
    /// must not be held back until a flush.
    ///
    /// Must run in a local runtime of tokio.
    pub(crate) fn open<S>(
        &self,
        worker: &Worker,
        settings: &UpstreamSettings,
        backend: usize,
        stream: S,
    ) -> Rc<Connection>
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let (connection, driver) = driver::open(
            Http2Settings::new(settings),
            backend,
            stream,
            Rc::clone(&self.scratch),
            &worker.timers,
        );
        worker.spawn(driver);
        self.all.borrow_mut().push(Rc::clone(&connection));
        let openings = &self.openings[backend];
        openings.opened_so_far.update(|opened| opened + 1);
        connection
    }
}
