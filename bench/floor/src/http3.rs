//! HTTP/3: `quinn-proto` does QUIC, and only the path of a request is read.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::{
    ConnectionHandle, DatagramEvent, Dir, EcnCodepoint, Endpoint, EndpointConfig, Event,
    StreamEvent, StreamId, VarInt,
};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};

use rustc_hash::FxHashMap;

use crate::Fault;
use crate::http2::{INDEX_4, integer, string};
use crate::site::Site;

/// Number of batches of datagrams that are received before anything is sent.
const BATCHES: usize = 4;
/// The first bytes of the server's control stream: its type, and SETTINGS without parameters.
const CONTROL: &[u8] = &[0, 4, 0];
const HEADERS: u8 = 1;
/// H3_INTERNAL_ERROR (RFC 9114 §8.1).
const INTERNAL_ERROR: u32 = 0x102;
const TRUNCATED: Fault = Fault("a request ends too early");
/// Bytes of an incomplete request that are kept at most.
const MAX_HEAD_LEN: usize = 16 * 1024;

/// The UDP socket with all QUIC connections.
pub(crate) struct Quic {
    socket: UdpSocket,
    state: UdpSocketState,
    endpoint: Endpoint,
    /// All connections; the index of one is the number in its handle.
    connections: Vec<Option<Connection>>,
    listed: Vec<ConnectionHandle>,
    buffers: Vec<Vec<u8>>,
    out: Vec<u8>,
}

struct Connection {
    quic: quinn_proto::Connection,
    /// Requests whose field section has not arrived completely.
    pieces: FxHashMap<StreamId, Bytes>,
    is_listed: bool,
}

impl Quic {
    pub(crate) fn bind(address: SocketAddr, tls: &rustls::ServerConfig) -> io::Result<Self> {
        let mut tls = tls.clone();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let crypto = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
        let server = quinn_proto::ServerConfig::with_crypto(Arc::new(crypto));
        let socket = UdpSocket::bind(address)?;
        Ok(Self {
            state: UdpSocketState::new(UdpSockRef::from(&socket))?,
            socket,
            endpoint: Endpoint::new(
                Arc::new(EndpointConfig::default()),
                Some(Arc::new(server)),
                true,
                None,
            ),
            connections: Vec::new(),
            listed: Vec::new(),
            buffers: vec![vec![0; 65_536]; BATCH_SIZE],
            out: Vec::new(),
        })
    }

    pub(crate) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Time until the next timer of a connection expires.
    pub(crate) fn wait(&mut self) -> Option<Duration> {
        let due = self.connections.iter_mut().flatten();
        let due = due.filter_map(|one| one.quic.poll_timeout()).min()?;
        Some(due.saturating_duration_since(now()))
    }

    /// Receives datagrams, then answers requests and sends.
    pub(crate) fn turn(&mut self, site: &mut Site) {
        let at = now();
        for _ in 0..BATCHES {
            if !self.receive(at) {
                break;
            }
        }
        for index in 0..self.connections.len() {
            if let Some(connection) = &mut self.connections[index]
                && connection.quic.poll_timeout().is_some_and(|due| due <= at)
            {
                connection.quic.handle_timeout(at);
                self.list(ConnectionHandle(index));
            }
        }
        for handle in std::mem::take(&mut self.listed) {
            self.run(handle, at, site);
        }
    }

    /// Receives a batch of datagrams. Returns whether there may be more.
    fn receive(&mut self, at: Instant) -> bool {
        let mut metas = [RecvMeta::default(); BATCH_SIZE];
        let count = {
            let mut buffers = self.buffers.iter_mut();
            let mut slices: [_; BATCH_SIZE] = std::array::from_fn(|_| {
                IoSliceMut::new(buffers.next().map_or(&mut [], Vec::as_mut_slice))
            });
            let socket = UdpSockRef::from(&self.socket);
            self.state
                .recv(socket, &mut slices, &mut metas)
                .unwrap_or(0)
        };
        let buffers = std::mem::take(&mut self.buffers);
        for (meta, buffer) in metas.iter().zip(&buffers).take(count) {
            for data in buffer[..meta.len].chunks(meta.stride.max(1)) {
                self.take_in(at, meta, BytesMut::from(data));
            }
        }
        self.buffers = buffers;
        count == BATCH_SIZE
    }

    fn take_in(&mut self, at: Instant, meta: &RecvMeta, data: BytesMut) {
        let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
        self.out.clear();
        let (endpoint, out) = (&mut self.endpoint, &mut self.out);
        match endpoint.handle(at, meta.addr, meta.dst_ip, ecn, data, out) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(Some(connection)) = self.connections.get_mut(handle.0) {
                    connection.quic.handle_event(event);
                    self.list(handle);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                // A connection that cannot be accepted is ignored, and the client tries again.
                if let Ok((handle, quic)) = endpoint.accept(incoming, at, out, None) {
                    if self.connections.len() <= handle.0 {
                        self.connections.resize_with(handle.0 + 1, || None);
                    }
                    self.connections[handle.0] = Some(Connection {
                        quic,
                        pieces: FxHashMap::default(),
                        is_listed: false,
                    });
                    self.list(handle);
                }
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
    }

    fn list(&mut self, handle: ConnectionHandle) {
        if let Some(Some(connection)) = self.connections.get_mut(handle.0)
            && !std::mem::replace(&mut connection.is_listed, true)
        {
            self.listed.push(handle);
        }
    }

    fn run(&mut self, handle: ConnectionHandle, at: Instant, site: &mut Site) {
        let Some(Some(connection)) = self.connections.get_mut(handle.0) else {
            return;
        };
        connection.is_listed = false;
        if let Err(Fault(problem)) = connection.serve(site) {
            eprintln!("h2o-floor: a connection is closed: {problem}");
            let code = VarInt::from_u32(INTERNAL_ERROR);
            connection.quic.close(at, code, Bytes::new());
        }
        let most = self.state.max_gso_segments();
        self.out.clear();
        while let Some(transmit) = connection.quic.poll_transmit(at, most, &mut self.out) {
            let sent = Transmit {
                destination: transmit.destination,
                ecn: (transmit.ecn).and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
                contents: &self.out[..transmit.size],
                segment_size: transmit.segment_size,
                src_ip: transmit.src_ip,
            };
            // If the kernel has no room for a datagram, it is lost as on a network.
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
    }
}

impl Connection {
    fn serve(&mut self, site: &mut Site) -> Result<(), Fault> {
        const NO_STREAM: Fault = Fault("the client allows no control stream");
        while let Some(event) = self.quic.poll() {
            match event {
                Event::Connected => {
                    let control = self.quic.streams().open(Dir::Uni).ok_or(NO_STREAM)?;
                    let written = self.quic.send_stream(control).write(CONTROL);
                    written.map_err(|_| NO_STREAM)?;
                }
                Event::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(stream) = self.quic.streams().accept(dir) {
                        self.read(stream, site)?;
                    }
                }
                Event::Stream(StreamEvent::Readable { id }) => self.read(id, site)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Answers a request as soon as its field section has arrived; what follows is ignored.
    fn read(&mut self, stream: StreamId, site: &mut Site) -> Result<(), Fault> {
        let mut number = None;
        let mut reader = self.quic.recv_stream(stream);
        let Ok(mut chunks) = reader.read(true) else {
            return Ok(());
        };
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            if stream.dir() == Dir::Uni {
                continue;
            }
            let rest = self.pieces.remove(&stream);
            if chunk.offset > 0 && rest.is_none() {
                continue;
            }
            let head = rest.map_or_else(
                || chunk.bytes.clone(),
                |rest| [rest, chunk.bytes.clone()].concat().into(),
            );
            match path(&head) {
                Ok(path) => number = Some(site.by_string(path)),
                // The request continues in another packet.
                Err(TRUNCATED) if head.len() < MAX_HEAD_LEN => {
                    self.pieces.insert(stream, head);
                }
                Err(fault) => return Err(fault),
            }
        }
        // The windows that this read has opened are announced with the next packet.
        let _ = chunks.finalize();
        let Some(number) = number else {
            return Ok(());
        };
        let mut answer = site.answer(number).http3.clone();
        let len = answer.len();
        let mut sender = self.quic.send_stream(stream);
        match sender.write_chunks(std::slice::from_mut(&mut answer)) {
            Ok(written) if written.bytes == len => {}
            _ => return Err(Fault("an answer is longer than the window of HTTP/3")),
        }
        sender
            .finish()
            .map_err(|_| Fault("the client has refused the rest of an answer"))
    }
}

/// Finds the value of `:path`, as a string with its length, in a HEADERS frame without references to the QPACK dynamic table.
fn path(mut frame: &[u8]) -> Result<&[u8], Fault> {
    let (&[kind, first], _) = frame.split_first_chunk().ok_or(TRUNCATED)?;
    // The length of the frame, as a variable-length integer of one or two bytes (RFC 9000 §16).
    let (len, at) = match (first >> 6, frame.get(2)) {
        (0, _) => (usize::from(first), 2),
        (1, Some(second)) => (usize::from(first & 0x3f) << 8 | usize::from(*second), 3),
        _ => return Err(TRUNCATED),
    };
    if kind != HEADERS {
        return Err(Fault("a request does not begin with a HEADERS frame"));
    }
    frame = frame.get(at..at + len).ok_or(TRUNCATED)?;
    // Required Insert Count and Base must be 0.
    let [0, 0, rest @ ..] = frame else {
        return Err(Fault(
            "the fields of a request refer to the dynamic table of QPACK",
        ));
    };
    let mut section = rest;
    while let Some(&first) = section.first() {
        if first & 0x80 != 0 {
            if integer(&mut section, 0x3f)? == 1 {
                return Ok(INDEX_4);
            }
        } else if first & 0x40 != 0 {
            let name = integer(&mut section, 0x0f)?;
            let value = string(&mut section)?;
            if name == 1 {
                return Ok(value);
            }
        } else {
            let len = integer(&mut section, 0x07)?;
            section = section.get(len..).ok_or(TRUNCATED)?;
            string(&mut section)?;
        }
    }
    Err(Fault("a request has no path"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "QUIC needs the current time in each turn of the event loop"
)]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_found_in_every_form_without_a_table() {
        let literal_name = [0x23, b'a', b'-', b'b', 1, b'c'];
        let named = [0x51, 2, b'/', b'x'];
        let section = [&[0, 0, 0xd1][..], &literal_name, &named].concat();
        let frame = |section: &[u8]| {
            let len = u8::try_from(section.len()).unwrap();
            [&[HEADERS, 0x40, len][..], section].concat()
        };
        assert_eq!(path(&frame(&section)), Ok(&[2, b'/', b'x'][..]));
        assert_eq!(path(&frame(&[0, 0, 0xd1, 0xc1])), Ok(INDEX_4));
        let whole = frame(&section);
        assert_eq!(path(&whole[..whole.len() - 1]), Err(TRUNCATED));
        assert!(path(&frame(&[2, 0, 0x80])).is_err());
        assert!(path(&frame(&[0, 0, 0xd1])).is_err());
    }
}
