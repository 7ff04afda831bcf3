//! HTTP/2 to backends: many requests at a time over one connection.
//!
//! A [`Connection`] is what calls hold of it: the engine, the bytes to be sent and the streams, in one cell. The socket
//! belongs to a task of the worker's thread ([`driver`]), which takes in what the server sends, sends what is there to
//! be sent, and minds the time. Whoever changes something in the cell wakes the task; the task wakes the owner of a
//! stream for which something has come. Nothing is copied between the two but bytes of content, once.
//!
//! Content flows by windows in both directions. The server may send as much of a response as its stream's window allows
//! and gets window back when the client has taken what came, so a slow client holds up its own stream only and costs one
//! window. Content of a request is pulled out of the client's connection when the stream has its turn and window.

mod body;
mod call;
mod connection;
mod driver;
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

/// The window of a stream where `proxy.max-buffer-size` is not set, bytes. What is in it is part of what may be kept in memory
/// ([`crate::read_ahead::MEMORY`]).
const DEFAULT_WINDOW: u32 = 192 * 1024;

/// What the HTTP/2 connections of an upstream obey.
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

/// The window of a stream for `proxy.max-buffer-size`; the engine announces no more than there can be.
fn window(max_buffer_size: Option<u64>) -> u32 {
    max_buffer_size.map_or(DEFAULT_WINDOW, |size| {
        u32::try_from(size).unwrap_or(u32::MAX)
    })
}

/// The HTTP/2 connections of one upstream on one worker.
pub(crate) struct Connections {
    all: RefCell<Vec<Rc<Connection>>>,
    scratch: Scratch,
    /// By backend.
    openings: Box<[Openings]>,
}

/// The connections to a backend that are being opened.
#[derive(Default)]
struct Openings {
    /// Requests that open a connection now.
    opening: Cell<usize>,
    /// Requests that wait for one of these.
    waiting: Cell<usize>,
    opened: Notify,
    opened_so_far: Cell<u64>,
}

impl Drop for Connections {
    /// The upstream is forgotten: no request finds them any more.
    fn drop(&mut self) {
        for connection in self.all.get_mut() {
            connection.retire();
        }
    }
}

/// A connection is being opened that may become one of HTTP/2. When this is dropped, whoever waits for it looks again.
pub(crate) struct Opening<'c>(&'c Openings);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.opening.update(|opening| opening - 1);
        self.0.opened.notify_waiters();
    }
}

/// A request waits for a connection that another one opens.
struct Waiting<'c>(&'c Openings);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.update(|waiting| waiting - 1);
    }
}

impl Connections {
    /// Those to so many backends, of which there are none yet.
    pub(crate) fn new(backends: usize) -> Self {
        Self {
            all: RefCell::default(),
            scratch: Scratch::default(),
            openings: (0..backends).map(|_| Openings::default()).collect(),
        }
    }

    /// Of the connections to backends that `suits` is true for, the one with the fewest streams, if one takes another now; the
    /// first of equals (H2O compatibility).
    pub(crate) fn pick(&self, suits: impl Fn(usize) -> bool) -> Option<Rc<Connection>> {
        let mut all = self.all.borrow_mut();
        all.retain(|connection| connection.is_reusable());
        all.iter()
            .filter(|connection| connection.can_request() && suits(connection.backend()))
            .min_by_key(|connection| connection.used())
            .cloned()
    }

    /// The caller opens a connection to the backend with this index.
    pub(crate) fn begin_opening(&self, backend: usize) -> Opening<'_> {
        let openings = &self.openings[backend];
        openings.opening.update(|opening| opening + 1);
        Opening(openings)
    }

    /// If connections to `backend` are being opened that will have room, waits for one: requests that come all at once do not each
    /// open their own. `None` also if none could be opened meanwhile; the caller then does not wait again.
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
            // Those who open them take a stream each.
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

    /// How much is in use of what the connections to backends can do that `suits` is true for.
    pub(crate) fn load(&self, suits: impl Fn(usize) -> bool) -> Http2Load {
        let mut load = Http2Load::default();
        for connection in self.all.borrow().iter() {
            if suits(connection.backend()) && connection.is_reusable() {
                load.used += connection.used();
                load.most += connection.most();
            }
        }
        load
    }

    /// Begins HTTP/2 on a connection to the backend with this index, over which nothing was sent yet. Other requests
    /// find it from now on. The stream must not hold back what it was handed to write.
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
