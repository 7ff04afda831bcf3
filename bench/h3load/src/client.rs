//! The QUIC connections of the load generator, over one UDP socket.

use std::collections::HashMap;
use std::io::{self, IoSliceMut, Read};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use quinn_proto::{
    ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, IdleTimeout, StreamId,
    TransportConfig, VarInt,
};
use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::net::sockopt;

use crate::Fault;
use crate::http3::{NO_ERROR, Response};
use crate::link::{now, wait_for};
use crate::tls::{Certificates, config};

/// Flow-control windows so large that they never limit the server.
const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes of the socket's receive buffer. The kernel grants less to a process without root's rights.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Number of batches of datagrams that are received before connections are processed.
const BATCHES: usize = 4;

/// A connection with its requests.
pub(crate) struct Connection {
    pub(crate) quic: quinn_proto::Connection,
    pub(crate) began: Instant,
    pub(crate) is_connected: bool,
    /// Whether the client has closed the connection.
    pub(crate) is_over: bool,
    /// Number of requests still to be sent and (`done`) of responses received.
    pub(crate) left: u64,
    pub(crate) done: u64,
    pub(crate) exchanges: HashMap<StreamId, (Instant, Response)>,
    is_dirty: bool,
}

/// All connections of the load generator.
pub(crate) struct Client {
    remote: SocketAddr,
    pub(crate) authority: String,
    socket: UdpSocket,
    state: UdpSocketState,
    endpoint: Endpoint,
    config: quinn_proto::ClientConfig,
    pub(crate) certificates: Arc<Certificates>,
    /// All connections; the index of one is the number in its handle.
    connections: Vec<Option<Connection>>,
    dirty: Vec<ConnectionHandle>,
    buffers: Vec<Vec<u8>>,
    out: Vec<u8>,
}

/// Gives the socket as large a receive buffer as the kernel grants.
pub(crate) fn receive_much(socket: &UdpSocket) -> Result<(), Fault> {
    if sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER).is_err() {
        sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BUFFER)?;
    }
    Ok(())
}

impl Client {
    pub(crate) fn new(remote: SocketAddr, resumes: bool, authority: String) -> Result<Self, Fault> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        receive_much(&socket)?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        let (tls, certificates) = config(resumes)?;
        let mut transport = TransportConfig::default();
        transport
            .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
            .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
            .max_idle_timeout(Some(IdleTimeout::try_from(IDLE_TIMEOUT)?));
        let mut config = quinn_proto::ClientConfig::new(tls);
        config.transport_config(Arc::new(transport));
        let buffers = vec![vec![0; 65_536]; BATCH_SIZE];
        Ok(Self {
            remote,
            authority,
            socket,
            state,
            endpoint: Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None),
            config,
            certificates,
            connections: Vec::new(),
            dirty: Vec::new(),
            buffers,
            out: Vec::new(),
        })
    }

    /// Opens a connection, on which `requests` requests are to be sent.
    pub(crate) fn connect(&mut self, requests: u64) -> Result<(), Fault> {
        let began = now();
        let name = "localhost";
        let (handle, quic) =
            self.endpoint
                .connect(began, self.config.clone(), self.remote, name)?;
        if self.connections.len() <= handle.0 {
            self.connections.resize_with(handle.0 + 1, || None);
        }
        self.connections[handle.0] = Some(Connection {
            quic,
            began,
            is_connected: false,
            is_over: false,
            left: requests,
            done: 0,
            exchanges: HashMap::new(),
            is_dirty: true,
        });
        self.dirty.push(handle);
        Ok(())
    }

    /// The connections that are not closed.
    fn each(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.connections.iter_mut().flatten()
    }

    /// Marks every connection, so that it is processed in the next turn.
    pub(crate) fn run_all(&mut self) {
        let handles = (0..self.connections.len()).map(ConnectionHandle);
        for handle in handles {
            mark(&mut self.connections, &mut self.dirty, handle);
        }
    }

    /// Waits if no connection is marked, receives datagrams, and processes the marked connections with `run`.
    pub(crate) fn turn(
        &mut self,
        mut run: impl FnMut(&mut Connection, Instant) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        if self.dirty.is_empty() {
            let wait = self.each().filter_map(|one| one.quic.poll_timeout()).min();
            wait_for(&[self.socket.as_fd()], wait)?;
        }
        self.take_in()?;
        let at = now();
        for handle in std::mem::take(&mut self.dirty) {
            self.run_one(handle, at, &mut run)?;
        }
        Ok(())
    }

    fn run_one(
        &mut self,
        handle: ConnectionHandle,
        at: Instant,
        run: &mut impl FnMut(&mut Connection, Instant) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let Some(connection) = self.connections.get_mut(handle.0).and_then(Option::as_mut) else {
            return Ok(());
        };
        connection.is_dirty = false;
        run(connection, at)?;
        let most = self.state.max_gso_segments();
        while let Some(transmit) = connection.quic.poll_transmit(at, most, &mut self.out) {
            let sent = Transmit {
                destination: transmit.destination,
                ecn: transmit
                    .ecn
                    .and_then(|ecn| EcnCodepoint::from_bits(ecn as u8)),
                contents: &self.out[..transmit.size],
                segment_size: transmit.segment_size,
                src_ip: None,
            };
            // If the kernel has no room for a datagram, or refuses a large one that probes the path MTU, it is lost as on a network.
            let _ = self.state.try_send(UdpSockRef::from(&self.socket), &sent);
            self.out.clear();
        }
        while let Some(event) = connection.quic.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(handle, event) {
                connection.quic.handle_event(event);
            }
        }
        if connection.quic.is_drained() {
            self.connections[handle.0] = None;
        }
        Ok(())
    }

    fn take_in(&mut self) -> Result<(), Fault> {
        let at = now();
        for _ in 0..BATCHES {
            let mut slices: [IoSliceMut<'_>; BATCH_SIZE] = {
                let mut buffers = self.buffers.iter_mut();
                std::array::from_fn(|_| {
                    IoSliceMut::new(buffers.next().map_or(&mut [], Vec::as_mut_slice))
                })
            };
            let mut metas = [RecvMeta::default(); BATCH_SIZE];
            let socket = UdpSockRef::from(&self.socket);
            let count = match self.state.recv(socket, &mut slices, &mut metas) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            };
            for (meta, buffer) in metas.iter().zip(&self.buffers).take(count) {
                for data in buffer[..meta.len].chunks(meta.stride.max(1)) {
                    let ecn = meta
                        .ecn
                        .and_then(|ecn| quinn_proto::EcnCodepoint::from_bits(ecn as u8));
                    let data = BytesMut::from(data);
                    let event = self
                        .endpoint
                        .handle(at, meta.addr, None, ecn, data, &mut self.out);
                    self.out.clear();
                    if let Some(DatagramEvent::ConnectionEvent(handle, event)) = event
                        && let Some(Some(connection)) = self.connections.get_mut(handle.0)
                    {
                        connection.quic.handle_event(event);
                        mark(&mut self.connections, &mut self.dirty, handle);
                    }
                }
            }
        }
        for index in 0..self.connections.len() {
            if let Some(connection) = &mut self.connections[index]
                && connection.quic.poll_timeout().is_some_and(|due| due <= at)
            {
                connection.quic.handle_timeout(at);
                mark(
                    &mut self.connections,
                    &mut self.dirty,
                    ConnectionHandle(index),
                );
            }
        }
        Ok(())
    }

    /// Keeps the connections open until standard input ends, then closes them.
    pub(crate) fn stay(&mut self) -> Result<(), Fault> {
        let mut stdin = io::stdin().lock();
        loop {
            let at = now();
            for handle in std::mem::take(&mut self.dirty) {
                self.run_one(handle, at, &mut ignore)?;
            }
            let wait = self.each().filter_map(|one| one.quic.poll_timeout()).min();
            let ready = wait_for(&[self.socket.as_fd(), stdin.as_fd()], wait)?;
            if ready[1] && stdin.read(&mut [0; 64])? == 0 {
                break;
            }
            self.take_in()?;
        }
        self.run_all();
        for handle in std::mem::take(&mut self.dirty) {
            self.run_one(handle, now(), &mut |connection, at| {
                connection.close(at);
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl Connection {
    pub(crate) fn close(&mut self, at: Instant) {
        self.is_over = true;
        self.quic
            .close(at, VarInt::from_u32(NO_ERROR), Bytes::new());
    }
}

fn ignore(connection: &mut Connection, _: Instant) -> Result<(), Fault> {
    while connection.quic.poll().is_some() {}
    Ok(())
}

fn mark(
    connections: &mut [Option<Connection>],
    dirty: &mut Vec<ConnectionHandle>,
    handle: ConnectionHandle,
) {
    if let Some(Some(connection)) = connections.get_mut(handle.0)
        && !std::mem::replace(&mut connection.is_dirty, true)
    {
        dirty.push(handle);
    }
}
