//! The QUIC client of tests: its connection, sending and receiving.

mod receiving;
mod requests;

use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::Side;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::pki_types::ServerName;
use rustls::quic::{
    ClientConnection, DirectionalKeys, KeyChange, Keys, PacketKey, PacketKeySet, Secrets, Version,
};

use super::frame::{self, Reader};
use super::packet::{self, Header, VERSION_1};
use super::stream::{Incoming, Numbers};
use crate::Deadline;
use crate::http3;

pub use requests::{Answer, control_streams, get, request};

/// Length in bytes to which datagrams with an Initial packet are padded (RFC 9000 §14.1).
const INITIAL: usize = 1200;
/// How long to wait for an acknowledgement before frames are sent again.
const REPEAT: Duration = Duration::from_millis(400);
/// How long to wait for any event before the test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// A number that is part of every connection id, so that no id is used twice.
static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

/// The transport parameters of a client, and other choices for its handshake.
#[derive(Clone, Debug)]
pub struct Options {
    /// The TLS configuration, which also stores the TLS sessions that later connections resume.
    pub tls: Arc<ClientConfig>,
    /// Transport parameter `initial_max_data`.
    pub max_data: u64,
    /// Transport parameters `initial_max_stream_data_*`.
    pub max_stream_data: u64,
    /// Transport parameter `max_datagram_frame_size`; 0 leaves it out.
    pub max_datagram: u64,
    /// Token that Initial packets carry.
    pub token: Vec<u8>,
    /// Number of bytes of the ClientHello per CRYPTO frame; each such frame is in a datagram of its own.
    pub hello_piece: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tls: crate::tls::client_config(b"h3"),
            max_data: 1 << 40,
            max_stream_data: 1 << 40,
            max_datagram: 1200,
            token: Vec::new(),
            hello_piece: 1000,
        }
    }
}

/// How the server has closed the connection: error code and reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Close {
    /// By CONNECTION_CLOSE of type 0x1c, for an error of QUIC.
    Transport(u64, String),
    /// By CONNECTION_CLOSE of type 0x1d, for an error of the application.
    Application(u64, String),
}

/// State of one packet number space (RFC 9000 §12.3).
#[derive(Default)]
struct Space {
    keys: Option<Keys>,
    next_number: u64,
    received: Numbers,
    /// Whether packets were received that are still to be acknowledged.
    owes_ack: bool,
    /// Bytes of the TLS handshake that are still to be sent.
    crypto: Vec<u8>,
    crypto_sent: u64,
    crypto_received: Incoming,
    /// How many of the received bytes of the handshake were passed to TLS.
    crypto_read: usize,
    /// The frames of packets that the server has not acknowledged, by packet number.
    unacknowledged: BTreeMap<u64, Vec<u8>>,
}

const INITIAL_SPACE: usize = 0;
const HANDSHAKE_SPACE: usize = 1;
const DATA_SPACE: usize = 2;

/// The keys of the present key phase (RFC 9001 §6).
struct Phase {
    is_odd: bool,
    previous: Option<Box<dyn PacketKey>>,
    next: PacketKeySet,
    secrets: Secrets,
}

/// A connection of the QUIC client.
pub struct Quic {
    /// The server's address.
    pub server: SocketAddr,
    /// The client's socket. A test puts another one here to change the client's address.
    pub socket: UdpSocket,
    /// Whether the client acknowledges packets.
    pub acknowledges: bool,
    /// Number of bytes sent, in UDP datagrams.
    pub bytes_sent: usize,
    /// Number of bytes received, in UDP datagrams.
    pub bytes_received: usize,
    /// Whether HANDSHAKE_DONE has been received.
    pub is_confirmed: bool,
    /// How the server has closed the connection; `None` while it is open.
    pub closed: Option<Close>,
    /// The versions that the server offered in a Version Negotiation packet.
    pub versions: Option<Vec<u32>>,
    /// Number of Retry packets received.
    pub retries: usize,
    /// Payloads of the DATAGRAM frames received.
    pub datagrams: Vec<Vec<u8>>,
    /// The connection ids that the server has issued, with their sequence numbers.
    pub ids: Vec<(u64, Vec<u8>)>,
    /// Number of bidirectional streams (requests) that the server allows.
    pub max_streams: u64,
    /// Number of unidirectional streams that the server allows.
    pub max_unidirectional: u64,
    /// How often frames of each type were received.
    pub frames: HashMap<u64, usize>,
    options: Options,
    tls: ClientConnection,
    /// The connection id that the server uses for this client.
    source: Vec<u8>,
    /// The connection id of the server that the client's packets carry.
    pub destination: Vec<u8>,
    token: Vec<u8>,
    spaces: [Space; 3],
    early: Option<DirectionalKeys>,
    phase: Option<Phase>,
    streams: HashMap<u64, Incoming>,
    /// Number of bytes sent on each stream.
    sent: HashMap<u64, u64>,
    next_request: u64,
    next_unidirectional: u64,
    quiet_since: Deadline,
}

impl std::fmt::Debug for Quic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (f.debug_struct("Quic").field("closed", &self.closed)).finish_non_exhaustive()
    }
}

/// Opens a UDP socket on any port of the loopback address `host`.
fn socket(host: [u8; 4]) -> UdpSocket {
    UdpSocket::bind(SocketAddr::from((host, 0))).expect("a port is free")
}

impl Quic {
    /// Makes a connection to a port of this machine; nothing is sent yet.
    ///
    /// # Panics
    /// If no socket can be opened.
    #[must_use]
    pub fn new(port: u16, options: Options) -> Self {
        let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        let id = |tag: u8| {
            let mut id = number.to_be_bytes();
            id[0] = tag;
            id[1..3].copy_from_slice(&std::process::id().to_be_bytes()[2..]);
            id.to_vec()
        };
        let (source, destination) = (id(0xc1), id(0x5e));
        let name = ServerName::try_from("localhost").expect("the host name is valid");
        let parameters = transport_parameters(&options, &source);
        let tls = ClientConnection::new(Arc::clone(&options.tls), Version::V1, name, parameters)
            .expect("the TLS configuration is valid");
        let mut quic = Self {
            server: SocketAddr::from(([127, 0, 0, 1], port)),
            socket: socket([127, 0, 0, 1]),
            acknowledges: true,
            bytes_sent: 0,
            bytes_received: 0,
            is_confirmed: false,
            closed: None,
            versions: None,
            retries: 0,
            datagrams: Vec::new(),
            ids: Vec::new(),
            max_streams: 0,
            max_unidirectional: 0,
            frames: HashMap::new(),
            token: options.token.clone(),
            options,
            tls,
            source,
            destination,
            spaces: Default::default(),
            early: None,
            phase: None,
            streams: HashMap::new(),
            sent: HashMap::new(),
            next_request: 0,
            next_unidirectional: 14,
            quiet_since: Deadline::after(REPEAT),
        };
        quic.set_initial_keys();
        quic.write_handshake();
        quic.early = quic.tls.zero_rtt_keys();
        quic
    }

    /// Opens a connection: completes the handshake, and sends SETTINGS whose values are all zero.
    ///
    /// # Panics
    /// If the handshake fails.
    #[must_use]
    pub fn open(port: u16) -> Self {
        Self::open_with(port, Options::default())
    }

    /// Does the same as [`Quic::open`], with these options.
    ///
    /// # Panics
    /// If the handshake fails.
    #[must_use]
    pub fn open_with(port: u16, options: Options) -> Self {
        let mut quic = Self::new(port, options);
        quic.flush();
        quic.wait_for("the handshake", |quic| quic.is_confirmed);
        for (id, data) in control_streams(&[]) {
            quic.send_stream(id, &data, false);
        }
        quic
    }

    /// Moves the client to another address: another port of `host`.
    pub fn move_to(&mut self, host: [u8; 4]) {
        self.socket = socket(host);
    }

    fn set_initial_keys(&mut self) {
        let suite = TLS13_AES_128_GCM_SHA256
            .tls13()
            .expect("the suite belongs to TLS 1.3");
        let quic = suite.quic.expect("the suite can be used with QUIC");
        let keys = Keys::initial(Version::V1, suite, quic, &self.destination, Side::Client);
        self.spaces[INITIAL_SPACE].keys = Some(keys);
    }

    /// Takes from TLS the messages that it wants to send, and the keys that it has derived.
    fn write_handshake(&mut self) {
        loop {
            let level = match (&self.phase, &self.spaces[HANDSHAKE_SPACE].keys) {
                (Some(_), _) => DATA_SPACE,
                (None, Some(_)) => HANDSHAKE_SPACE,
                (None, None) => INITIAL_SPACE,
            };
            let mut bytes = Vec::new();
            let change = self.tls.write_hs(&mut bytes);
            let is_done = bytes.is_empty() && change.is_none();
            self.spaces[level].crypto.extend(bytes);
            match change {
                Some(KeyChange::Handshake { keys }) => {
                    self.spaces[HANDSHAKE_SPACE].keys = Some(keys);
                }
                Some(KeyChange::OneRtt { keys, mut next }) => {
                    self.spaces[DATA_SPACE].keys = Some(keys);
                    self.phase = Some(Phase {
                        is_odd: false,
                        previous: None,
                        next: next.next_packet_keys(),
                        secrets: next,
                    });
                }
                None => {}
            }
            if is_done {
                return;
            }
        }
    }

    // --- Sending packets -------------------------------------------------------------------------------------------

    /// Makes a packet with exactly these frames, without sending it.
    ///
    /// # Panics
    /// If TLS has not derived the keys of that kind of packet yet.
    #[must_use]
    pub fn packet(&mut self, kind: Header<'_>, frames: &[u8]) -> Vec<u8> {
        let level = match kind {
            Header::Initial(_) => INITIAL_SPACE,
            Header::Handshake => HANDSHAKE_SPACE,
            Header::ZeroRtt | Header::Short(_) => DATA_SPACE,
        };
        let mut frames = frames.to_vec();
        // The packet is padded: it must have bytes for the sample of header protection, and an Initial packet must fill its
        // datagram (RFC 9000 §14.1).
        let least = match kind {
            Header::Initial(token) => {
                let ids = self.destination.len() + self.source.len();
                let token = http3::varint(token.len() as u64).len() + token.len();
                INITIAL - (7 + ids + token + 2 + 4 + 16)
            }
            Header::ZeroRtt | Header::Handshake | Header::Short(_) => 4,
        };
        frames.resize(frames.len().max(least), 0);
        let number = self.spaces[level].next_number;
        self.spaces[level].next_number += 1;
        let keys = match kind {
            Header::ZeroRtt => self.early.as_ref(),
            _ => self.spaces[level].keys.as_ref().map(|keys| &keys.local),
        };
        let keys = keys.expect("the client has the keys of the packet's level");
        let payload = frames.len() + keys.packet.tag_len();
        let header = packet::header(kind, VERSION_1, &self.destination, &self.source, payload);
        packet::seal(&*keys.header, &*keys.packet, number, header, &frames)
    }

    /// Sends a datagram unchanged; if the kernel does not take it, it is lost.
    pub fn send_datagram(&mut self, datagram: &[u8]) {
        if self.socket.send_to(datagram, self.server).is_ok() {
            self.bytes_sent += datagram.len();
        }
    }

    /// Sends frames in a packet of their own, once: they are not sent again if they are lost.
    pub fn send_once(&mut self, frames: &[u8]) {
        let kind = self.short();
        let packet = self.packet(kind, frames);
        self.send_datagram(&packet);
    }

    /// Sends frames in a packet of their own, and sends them again until they are acknowledged.
    pub fn send(&mut self, frames: &[u8]) {
        let space = &mut self.spaces[DATA_SPACE];
        (space.unacknowledged).insert(space.next_number, frames.to_vec());
        self.send_once(frames);
    }

    fn short(&self) -> Header<'static> {
        Header::Short(self.phase.as_ref().is_some_and(|phase| phase.is_odd))
    }

    /// Sends the next bytes of a stream, in as many packets as they need.
    pub fn send_stream(&mut self, stream: u64, data: &[u8], fin: bool) {
        let mut pieces: Vec<&[u8]> = data.chunks(1000).collect();
        if pieces.is_empty() {
            pieces.push(&[]);
        }
        let last = pieces.len() - 1;
        for (n, piece) in pieces.into_iter().enumerate() {
            let frame = self.stream_frame(stream, piece, fin && n == last);
            self.send(&frame);
        }
    }

    /// Makes a STREAM frame with the next bytes of a stream.
    #[must_use]
    pub fn stream_frame(&mut self, stream: u64, data: &[u8], fin: bool) -> Vec<u8> {
        let offset = self.sent.entry(stream).or_default();
        let frame = frame::stream(stream, *offset, data, fin);
        *offset += data.len() as u64;
        frame
    }

    /// Returns the stream for the next request. Waits until the server allows one more stream, or closes the connection.
    pub fn next_request(&mut self) -> u64 {
        let stream = self.next_request;
        self.next_request += 4;
        self.comes(PATIENCE, |quic| stream / 4 < quic.max_streams);
        stream
    }

    /// Returns the stream for the next request without waiting, even if the server has not said how many streams it allows.
    pub const fn next_request_unlimited(&mut self) -> u64 {
        let stream = self.next_request;
        self.next_request += 4;
        stream
    }

    /// Returns the client's next unidirectional stream, after its control and QPACK streams. Waits for the server as
    /// [`Quic::next_request`] does.
    pub fn next_unidirectional(&mut self) -> u64 {
        let stream = self.next_unidirectional;
        self.next_unidirectional += 4;
        self.comes(PATIENCE, |quic| stream / 4 < quic.max_unidirectional);
        stream
    }

    /// Sends `request`, the frames of a request without a body. Returns its stream.
    pub fn send_request(&mut self, request: &[u8]) -> u64 {
        let stream = self.next_request();
        self.send_stream(stream, request, true);
        stream
    }

    /// Makes the datagrams with the due TLS messages and acknowledgements, without sending them.
    #[must_use]
    pub fn handshake_datagrams(&mut self) -> Vec<Vec<u8>> {
        let mut datagrams: Vec<Vec<u8>> = Vec::new();
        for level in [INITIAL_SPACE, HANDSHAKE_SPACE] {
            if self.spaces[level].keys.is_none() {
                continue;
            }
            let token = self.token.clone();
            let kind = match level {
                INITIAL_SPACE => Header::Initial(&token),
                _ => Header::Handshake,
            };
            for frames in self.handshake_frames(level) {
                datagrams.push(self.packet(kind, &frames));
            }
        }
        datagrams
    }

    /// Makes the frames of the handshake at one encryption level: a list of packets, each as the bytes of its frames.
    fn handshake_frames(&mut self, level: usize) -> Vec<Vec<u8>> {
        let piece = self.options.hello_piece;
        let space = &mut self.spaces[level];
        let mut packets = Vec::new();
        let crypto = std::mem::take(&mut space.crypto);
        for data in crypto.chunks(piece) {
            let mut frames = Vec::new();
            if space.owes_ack {
                space.owes_ack = false;
                frames.extend(frame::ack(space.received.newest()));
            }
            frames.extend(frame::crypto(space.crypto_sent, data));
            space.crypto_sent += data.len() as u64;
            let number = space.next_number + packets.len() as u64;
            space.unacknowledged.insert(number, frames.clone());
            packets.push(frames);
        }
        if space.owes_ack && self.acknowledges {
            space.owes_ack = false;
            packets.push(frame::ack(space.received.newest()));
        }
        packets
    }

    /// Sends what is due now: messages of the handshake, and acknowledgements.
    pub fn flush(&mut self) {
        for datagram in self.handshake_datagrams() {
            self.send_datagram(&datagram);
        }
        if self.spaces[DATA_SPACE].owes_ack && self.acknowledges && self.phase.is_some() {
            self.spaces[DATA_SPACE].owes_ack = false;
            let frames = frame::ack(self.spaces[DATA_SPACE].received.newest());
            self.send_once(&frames);
        }
    }

    /// Sends again the frames that the server has not acknowledged.
    fn repeat(&mut self) {
        for level in [INITIAL_SPACE, HANDSHAKE_SPACE, DATA_SPACE] {
            if self.spaces[level].keys.is_none() || (self.is_confirmed && level != DATA_SPACE) {
                continue;
            }
            for (_, frames) in std::mem::take(&mut self.spaces[level].unacknowledged) {
                let token = self.token.clone();
                let kind = match level {
                    INITIAL_SPACE => Header::Initial(&token),
                    HANDSHAKE_SPACE => Header::Handshake,
                    _ => self.short(),
                };
                let number = self.spaces[level].next_number;
                let packet = self.packet(kind, &frames);
                self.spaces[level].unacknowledged.insert(number, frames);
                self.send_datagram(&packet);
            }
        }
    }

    /// Begins the next key phase (RFC 9001 §6.1).
    ///
    /// # Panics
    /// If the handshake is not complete.
    pub fn update_keys(&mut self) {
        let phase = self.phase.as_mut().expect("the handshake is complete");
        let next = phase.secrets.next_packet_keys();
        let next = std::mem::replace(&mut phase.next, next);
        let keys = self.spaces[DATA_SPACE]
            .keys
            .as_mut()
            .expect("the client has the keys of 1-RTT packets");
        keys.local.packet = next.local;
        phase.previous = Some(std::mem::replace(&mut keys.remote.packet, next.remote));
        phase.is_odd = !phase.is_odd;
    }

    // --- Receiving packets -----------------------------------------------------------------------------------------

    /// Processes the datagrams that have arrived, and waits at most `pause` for one, without sending anything. Returns whether one
    /// arrived.
    ///
    /// # Panics
    /// If the socket fails.
    pub fn receive_only(&mut self, pause: Duration) -> bool {
        let mut buffer = [0; 65_536];
        let mut has_any = false;
        for _ in 0..64 {
            // First a read without waiting, for the case that a datagram has already arrived: the kernel rounds short waits up to
            // some milliseconds.
            (self.socket.set_nonblocking(true)).expect("the descriptor is a socket");
            let mut received = self.socket.recv_from(&mut buffer);
            if received.is_err() && !has_any && !pause.is_zero() {
                (self.socket.set_nonblocking(false)).expect("the descriptor is a socket");
                (self.socket.set_read_timeout(Some(pause))).expect("the time is not zero");
                received = self.socket.recv_from(&mut buffer);
            }
            let Ok((len, sender)) = received else {
                break;
            };
            // Datagrams from another server are ignored: it may be answering a client of an earlier test that had this port.
            if sender != self.server {
                continue;
            }
            self.bytes_received += len;
            self.on_datagram(&buffer[..len]);
            has_any = true;
        }
        has_any
    }

    /// Processes the datagrams of the server, for which it waits at most `pause`, and sends what is due. Returns whether a datagram
    /// arrived.
    pub fn read(&mut self, pause: Duration) -> bool {
        let has_any = self.receive_only(pause);
        self.flush();
        if has_any {
            self.quiet_since = Deadline::after(REPEAT);
        } else if self.quiet_since.has_passed() {
            self.quiet_since = Deadline::after(REPEAT);
            if self.closed.is_none() {
                self.repeat();
            }
        }
        has_any
    }

    /// Reads until `is_so` returns true.
    ///
    /// # Panics
    /// If that takes more than twenty seconds, or if the server closes the connection before; `what` describes what was awaited.
    pub fn wait_for(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let came = self.comes(PATIENCE, &is_so);
        assert!(
            came,
            "{what} did not come; the server closed: {:?}",
            self.closed
        );
    }

    /// Reads until `is_so` returns true, or the server closes the connection, or `limit` has passed. Returns the last result of
    /// `is_so`.
    pub fn comes(&mut self, limit: Duration, is_so: impl Fn(&Self) -> bool) -> bool {
        let deadline = Deadline::after(limit);
        while !is_so(self) {
            if deadline.has_passed() || self.closed.is_some() {
                return is_so(self);
            }
            self.read(Duration::from_millis(50));
        }
        true
    }

    /// The bytes received of a stream so far, from its beginning.
    #[must_use]
    pub fn received(&self, stream: u64) -> &[u8] {
        self.streams.get(&stream).map_or(&[], |stream| &stream.data)
    }

    /// Whether a stream was received completely.
    #[must_use]
    pub fn has_ended(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_some_and(Incoming::is_whole)
    }

    /// The error code with which the server has reset a stream.
    #[must_use]
    pub fn reset_code(&self, stream: u64) -> Option<u64> {
        self.streams.get(&stream)?.reset
    }

    /// Whether the client has all keys of the connection, so that it can send requests that are not early data.
    #[must_use]
    pub const fn can_send(&self) -> bool {
        self.phase.is_some()
    }

    /// Whether the server has acknowledged all frames that the client would otherwise send again.
    #[must_use]
    pub fn is_acknowledged(&self) -> bool {
        self.spaces[DATA_SPACE].unacknowledged.is_empty()
    }

    /// The numbers of the 1-RTT packets received, in ascending order.
    #[must_use]
    pub fn received_numbers(&self) -> Vec<u64> {
        self.spaces[DATA_SPACE].received.all().collect()
    }

    /// Whether the client can send early data.
    #[must_use]
    pub const fn can_send_early(&self) -> bool {
        self.early.is_some()
    }

    /// Whether the server has accepted early data.
    #[must_use]
    pub fn is_early_accepted(&self) -> bool {
        self.tls.is_early_data_accepted()
    }
}

fn transport_parameters(options: &Options, source: &[u8]) -> Vec<u8> {
    let mut parameters = Vec::new();
    let mut add = |id: u64, value: &[u8]| {
        parameters.extend(http3::varint(id));
        parameters.extend(http3::varint(value.len() as u64));
        parameters.extend(value);
    };
    add(0x0f, source);
    let numbers = [
        (0x01, 30_000),
        (0x04, options.max_data),
        (0x05, options.max_stream_data),
        (0x06, options.max_stream_data),
        (0x07, options.max_stream_data),
        (0x09, 3),
        (0x0e, 8),
        (0x20, options.max_datagram),
    ];
    for (id, value) in numbers {
        add(id, &http3::varint(value));
    }
    parameters
}

/// Finds a transport parameter whose value is a number (RFC 9000 §18.2), and returns the number.
fn parameter(parameters: &[u8], wanted: u64) -> Option<u64> {
    let mut reader = Reader(parameters);
    while !reader.0.is_empty() {
        let id = reader.number()?;
        let value = reader.prefixed()?;
        if id == wanted {
            return Reader(value).number();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_datagrams_of_the_server_are_taken_in() {
        let (server, other) = (socket([127, 0, 0, 1]), socket([127, 0, 0, 1]));
        let port = server.local_addr().expect("the socket is bound").port();
        let mut client = Quic::new(port, Options::default());
        let address = client.socket.local_addr().expect("the socket is bound");
        for (sender, len) in [(&other, 100), (&server, 30)] {
            sender
                .send_to(&vec![0; len], address)
                .expect("the datagram is sent");
        }
        while client.receive_only(Duration::from_secs(1)) {}
        assert_eq!(client.bytes_received, 30);
    }
}
