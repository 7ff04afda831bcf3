//! The event loop: one thread, one epoll set.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, socket_with, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use slab::Slab;

use crate::Fault;
use crate::connection::{Connection, Next, Protocol, Shared};
use crate::http2::Http2;
use crate::http3::Quic;
use crate::options::Options;
use crate::site::Site;
use crate::tls;

/// Events that are taken from the kernel with one system call at most.
const BATCH: usize = 512;
const BACKLOG: i32 = 4096;

const HTTP: u64 = 0;
const HTTPS: u64 = 1;
const QUIC: u64 = 3;
const LISTENERS: u64 = 4;

pub(crate) struct Server {
    epoll: OwnedFd,
    /// Listeners for HTTP/1, for TLS, and for HTTP/2 in cleartext. A listener's index is its token in the epoll set; tokens of connections
    /// follow.
    listeners: [TcpListener; 3],
    connections: Slab<Connection>,
    quic: Quic,
    shared: Shared,
}

impl Server {
    /// Reads the files and opens the listeners.
    pub(crate) fn bind(options: &Options) -> Result<Self, String> {
        let tls = Arc::new(tls::config(&options.cert, &options.key)?);
        let shared = Shared::new(Site::load(&options.root)?, tls);
        let limit = getrlimit(Resource::Nofile);
        // If the limit of descriptors cannot be raised, the error appears when a connection cannot be accepted.
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                ..limit
            },
        );
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| format!("epoll: {error}"))?;
        let listen =
            |port| listen(port).map_err(|error| format!("cannot listen on port {port}: {error}"));
        let listeners = [
            listen(options.http)?,
            listen(options.https)?,
            listen(options.h2c)?,
        ];
        for (token, listener) in (0..).zip(&listeners) {
            epoll::add(&epoll, listener, EventData::new_u64(token), EventFlags::IN)
                .map_err(|error| format!("epoll: {error}"))?;
        }
        let port = listeners[1]
            .local_addr()
            .map_err(|error| error.to_string())?;
        let quic = Quic::bind(port, &shared.tls)
            .map_err(|error| format!("cannot serve QUIC on port {}: {error}", port.port()))?;
        epoll::add(
            &epoll,
            quic.socket(),
            EventData::new_u64(QUIC),
            EventFlags::IN,
        )
        .map_err(|error| format!("epoll: {error}"))?;
        Ok(Self {
            epoll,
            listeners,
            quic,
            connections: Slab::new(),
            shared,
        })
    }

    /// The addresses of the listeners.
    #[cfg(test)]
    pub(crate) fn addresses(&self) -> [SocketAddr; 3] {
        self.listeners
            .each_ref()
            .map(|listener| listener.local_addr().expect("the listener socket is bound"))
    }

    /// Serves until a system call fails in a way that concerns all connections.
    pub(crate) fn run(mut self) -> Result<Infallible, String> {
        let mut events = Vec::with_capacity(BATCH);
        loop {
            events.clear();
            let wait = self.quic.wait().map(|wait| Timespec {
                tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(wait.subsec_nanos()),
            });
            match epoll::wait(&self.epoll, spare_capacity(&mut events), wait.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(format!("epoll: {error}")),
            }
            for event in &events {
                let (flags, data) = (event.flags, event.data);
                match data.u64().checked_sub(LISTENERS) {
                    None if data.u64() == QUIC => {}
                    None => self.accept(data.u64())?,
                    Some(key) => self.turn(usize::try_from(key).unwrap_or(usize::MAX), flags),
                }
            }
            self.quic.turn(&mut self.shared.site);
        }
    }

    /// Accepts one connection; if more are waiting, the listener is ready again in the next turn.
    fn accept(&mut self, token: u64) -> Result<(), String> {
        let listener = &self.listeners[usize::try_from(token).unwrap_or(0)];
        let socket = match accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                return Err("the floor program has as many connections as it can hold".to_owned());
            }
            // The client has closed the connection before it was accepted.
            Err(_) => return Ok(()),
        };
        let connection = match token {
            HTTP => Ok(Connection::clear(socket, Protocol::Http1)),
            HTTPS => Connection::encrypted(socket, &self.shared.tls),
            _ => Ok(Connection::clear(socket, Protocol::Http2(Http2::new()))),
        };
        match connection {
            Ok(connection) => {
                let entry = self.connections.vacant_entry();
                let data = connection_data(entry.key());
                epoll::add(&self.epoll, &connection.socket, data, READ)
                    .map_err(|error| format!("epoll: {error}"))?;
                entry.insert(connection);
            }
            Err(Fault(problem)) => eprintln!("h2o-floor: {problem}"),
        }
        Ok(())
    }

    /// Lets a connection read and write. A connection is closed only here and has at most one event in a batch, so no event is for a closed
    /// connection.
    #[inline]
    fn turn(&mut self, key: usize, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let next = if flags.intersects(EventFlags::ERR | EventFlags::HUP) {
            Ok(Next::Close)
        } else if flags.contains(EventFlags::OUT) {
            both(connection, flags, &mut self.shared)
        } else {
            connection.readable(flags.contains(EventFlags::RDHUP), &mut self.shared)
        };
        match next {
            Ok(Next::Read) => {}
            Ok(Next::Write) => {
                // The connection is registered for writability only when it is needed: most connections never need it.
                if !flags.contains(EventFlags::OUT) {
                    let data = connection_data(key);
                    let armed = epoll::modify(
                        &self.epoll,
                        &connection.socket,
                        data,
                        READ | EventFlags::OUT,
                    );
                    if armed.is_err() {
                        self.connections.remove(key);
                    }
                }
            }
            Ok(Next::Close) => drop(self.connections.remove(key)),
            Err(Fault(problem)) => {
                eprintln!("h2o-floor: a connection is closed: {problem}");
                self.connections.remove(key);
            }
        }
    }
}

/// Sends first, because a connection does not read while it has bytes to send.
fn both(
    connection: &mut Connection,
    flags: EventFlags,
    shared: &mut Shared,
) -> Result<Next, Fault> {
    let next = connection.writable(shared)?;
    if next != Next::Close && flags.intersects(EventFlags::IN | EventFlags::RDHUP) {
        return connection.readable(flags.contains(EventFlags::RDHUP), shared);
    }
    Ok(next)
}

const READ: EventFlags = EventFlags::IN
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

fn connection_data(key: usize) -> EventData {
    EventData::new_u64(LISTENERS + u64::try_from(key).unwrap_or(u64::MAX - LISTENERS))
}

/// Opens a listener on a port of 127.0.0.1.
pub(crate) fn listen(port: u16) -> io::Result<TcpListener> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    // Accepted connections inherit TCP_NODELAY from the listener.
    sockopt::set_tcp_nodelay(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}
