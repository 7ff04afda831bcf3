//! One endpoint: assigns received datagrams to connections, and owns the connections of one socket.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use aws_lc_rs::rand;
use bytes::BytesMut;
use quinn_proto::{
    ConnectionHandle, DatagramEvent, EcnCodepoint, EndpointEvent, ValidationTokenConfig,
};

use crate::close::ConnectError;
use crate::config::{EndpointConfig, Neighbours, ServerRole, TransportSettings};
use crate::congestion::{ControllerChannel, Jump, KnownPaths, Observation, Start};
use crate::connection::{Connection, Event, Exceeded, HandshakeLimit, Sending};
use crate::few_streams::{StreamLimits, StreamWatch};
use crate::id::{IdGenerator, Placement, RecentIds};
use crate::keys::{KeyRing, Keys, ResetKey, TokenKey};
use crate::stats::Totals;
use crate::tls::{ClientSide, ClientTls, ServerTls, VERSIONS};
use crate::token::UsedTokens;

/// The index of a connection within its endpoint. It may be reused after [`Event::Drained`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionIndex(pub usize);

/// Explicit congestion notification of a datagram (RFC 3168 §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// The ECN mark ECT(1).
    Ect1,
    /// The ECN mark ECT(0).
    Ect0,
    /// The ECN mark CE: a router on the path is congested.
    Ce,
}

impl Ecn {
    fn to_quinn(self) -> EcnCodepoint {
        match self {
            Self::Ect0 => EcnCodepoint::Ect0,
            Self::Ect1 => EcnCodepoint::Ect1,
            Self::Ce => EcnCodepoint::Ce,
        }
    }

    fn of(codepoint: EcnCodepoint) -> Self {
        match codepoint {
            EcnCodepoint::Ect0 => Self::Ect0,
            EcnCodepoint::Ect1 => Self::Ect1,
            EcnCodepoint::Ce => Self::Ce,
        }
    }
}

/// A datagram that was received.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// The address that the datagram came from.
    pub remote: SocketAddr,
    /// The local address that the datagram was sent to, if the socket has several.
    pub local: Option<IpAddr>,
    /// The ECN mark of the datagram.
    pub ecn: Option<Ecn>,
    /// The UDP payload.
    pub data: BytesMut,
}

/// One or more datagrams to send. Their bytes are in the buffer that the call which returned this has filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The address to send the datagrams to.
    pub remote: SocketAddr,
    /// The local address to send from, if the socket has several.
    pub local: Option<IpAddr>,
    /// The ECN mark of the datagrams.
    pub ecn: Option<Ecn>,
    /// Length in bytes of all datagrams together.
    pub len: usize,
    /// If there are several datagrams, the length of each but the last, which may be shorter.
    pub segment_len: Option<usize>,
}

impl Transmit {
    pub(crate) fn of(transmit: &quinn_proto::Transmit) -> Self {
        Self {
            remote: transmit.destination,
            local: transmit.src_ip,
            ecn: transmit.ecn.map(Ecn::of),
            len: transmit.size,
            segment_len: transmit.segment_size,
        }
    }

    /// Number of datagrams to send.
    pub fn datagrams(&self) -> usize {
        match self.segment_len {
            Some(len) if len > 0 => self.len.div_ceil(len),
            Some(_) | None => 1,
        }
    }
}

/// What the endpoint did with a received datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// The datagram belongs to this connection, which may now have events and packets to send.
    Connection(ConnectionIndex),
    /// The datagram has begun this new connection, which may now have events and packets to send.
    Accepted(ConnectionIndex),
    /// The datagram needs an answer without a connection (version negotiation, Retry, refusal, stateless reset). The answer
    /// is in the buffer.
    Answered(Transmit),
    /// The datagram belongs to a connection of another server, process or worker, to which the caller hands it over.
    Elsewhere(Placement, BytesMut),
    /// The datagram was ignored.
    Ignored,
}

/// How the endpoint treats packets that would begin a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// The packets are accepted, and begin connections.
    #[default]
    Open,
    /// New connections' packets are ignored: there are too many connections.
    Full,
    /// New connections are refused in a way that makes clients use TCP: the server shuts down.
    Closed,
}

/// The connection id by which a packet is routed, and whether a server must have made it: clients make up the ids of their
/// first packets. `None`: the packet has no id of this length to route it by.
pub(crate) fn routing_id(data: &[u8], len: usize) -> Option<(&[u8], bool)> {
    let (first, rest) = data.split_first()?;
    if first & 0x80 == 0 {
        // A packet with a short header (RFC 9000 §17.3).
        return Some((rest.get(..len)?, true));
    }
    // Initial and Handshake packets (RFC 9000 §17.2) carry an id made by the server once the client has received a packet
    // from it. 0-RTT packets never do, and are not routed.
    let (version, rest) = rest.split_first_chunk::<4>()?;
    let is_routed = matches!(first & 0x30, 0x00 | 0x20) && *version != [0; 4];
    let (&id_len, rest) = rest.split_first()?;
    let id = rest.get(..len)?;
    (is_routed && usize::from(id_len) == len).then_some((id, false))
}

/// The QUIC connections over one socket.
pub struct Endpoint {
    library: quinn_proto::Endpoint,
    /// The connections, indexed by quinn-proto's handle.
    connections: Vec<Option<Box<Connection>>>,
    /// Number of accepted connections whose handshakes are not complete.
    handshakes: usize,
    server: Option<ServerRole>,
    admission: Admission,
    key_ring: Arc<KeyRing>,
    placement: Placement,
    neighbours: Neighbours,
    channel: Arc<ControllerChannel>,
    recent_ids: RecentIds,
    /// Statistics of the connections that have ended, and of all datagrams.
    totals: Totals,
    known_paths: KnownPaths,
    watch: Arc<StreamWatch>,
    /// Number of connections for which quinn-proto has entries for few streams only (`few_streams.rs`).
    few_streams: usize,
    /// A copy of the datagram that is being received, to hand it to quinn-proto a second time; empty if the datagram cannot be for
    /// a connection with entries for few streams only.
    copy: Vec<u8>,
    /// How many random numbers were drawn so far; the counter from which the next one is computed.
    drawn: u64,
    hasher: RandomState,
}

impl Endpoint {
    /// Makes an endpoint without connections.
    pub fn new(config: EndpointConfig) -> Self {
        let key_ring = KeyRing::new(&config.keys);
        let EndpointConfig {
            keys: _,
            placement,
            neighbours,
            server,
            finds_mtu,
            known_paths,
            seed,
        } = config;
        let mut endpoint =
            quinn_proto::EndpointConfig::new(Arc::new(ResetKey(Arc::clone(&key_ring))));
        let first = seed.map_or_else(random, |seed| {
            let [a, b, c, d, e, f, g, h, ..] = seed;
            [a, b, c, d, e, f, g, h]
        });
        let ids = Arc::clone(&key_ring);
        endpoint
            .supported_versions(VERSIONS.to_vec())
            .rng_seed(seed)
            .cid_generator(move || {
                let first = u64::from_be_bytes(first);
                Box::new(IdGenerator::new(Arc::clone(&ids), placement, first))
            });
        if let Some(server) = &server {
            let size = server.transport.max_udp_payload_size.clamp(1200, 65_527);
            // The call cannot fail: quinn-proto allows these payload sizes.
            let _ = endpoint.max_udp_payload_size(size);
        }
        let channel = Arc::new(ControllerChannel::default());
        let watch = watch_of(server.as_ref());
        let library_server = server.as_ref().map(|server| {
            let library = library_server(server, &key_ring, &channel, &watch);
            Arc::new(library)
        });
        Self {
            library: quinn_proto::Endpoint::new(
                Arc::new(endpoint),
                library_server,
                finds_mtu,
                None,
            ),
            connections: Vec::new(),
            handshakes: 0,
            server,
            admission: Admission::Open,
            key_ring,
            placement,
            neighbours,
            channel,
            recent_ids: RecentIds::default(),
            totals: Totals::default(),
            known_paths,
            watch,
            few_streams: 0,
            copy: Vec::new(),
            drawn: 0,
            hasher: RandomState::new(),
        }
    }

    /// Handles a received datagram. `answer` is overwritten if the datagram is answered without a connection.
    pub fn receive(&mut self, now: Instant, datagram: Datagram, answer: &mut Vec<u8>) -> Received {
        let Datagram {
            remote,
            local,
            ecn,
            data,
        } = datagram;
        if let Some(placement) = self.elsewhere(&data) {
            return Received::Elsewhere(placement, data);
        }
        answer.clear();
        let negotiation = match self.admission {
            Admission::Closed => negotiation_without_versions(&data),
            Admission::Open | Admission::Full => None,
        };
        self.totals.count(&data, ecn);
        let ecn = ecn.map(Ecn::to_quinn);
        let id = match destination_id(&data) {
            [] => 0,
            id => self.hasher.hash_one(id),
        };
        let len = data.len();
        self.copy.clear();
        // The datagram is copied if a connection with small tables of streams may get it: an existing one, or a new one, which a
        // packet with a long header may begin.
        if self.few_streams > 0 || data.first().is_some_and(|first| first & 0x80 != 0) {
            self.copy.extend_from_slice(&data);
        }
        match self.library.handle(now, remote, local, ecn, data, answer) {
            None => Received::Ignored,
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let Some(connection) = self.connections.get_mut(handle.0).and_then(Option::as_mut)
                else {
                    return Received::Ignored;
                };
                self.totals.processed += 1;
                let server = self.server.as_ref();
                let amplification = server.map(|server| server.amplification_limit);
                let was_accepting = connection.is_being_accepted();
                let was_closed = connection.library.is_closed();
                connection.on_datagram(remote.ip(), id, len, amplification);
                if let Some(watch) = &connection.few_streams {
                    watch.begin();
                }
                connection.library.handle_event(event);
                self.repeat_refused(now, handle, (remote, local, ecn), answer);
                let Some(connection) = self.connections.get_mut(handle.0).and_then(Option::as_mut)
                else {
                    return Received::Ignored;
                };
                connection.on_received(&self.channel, now);
                connection.trace_received(&self.channel, now, len);
                if was_accepting && !connection.is_being_accepted() {
                    self.handshakes -= 1;
                }
                if !was_closed && connection.library.is_closed() {
                    self.remember_path(ConnectionIndex(handle.0), now);
                }
                self.exchange_events(handle);
                Received::Connection(ConnectionIndex(handle.0))
            }
            Some(DatagramEvent::NewConnection(incoming)) => match negotiation {
                Some(negotiation) => {
                    self.library.ignore(incoming);
                    answer.clear();
                    answer.extend_from_slice(&negotiation);
                    Received::Answered(Transmit {
                        remote,
                        local,
                        ecn: None,
                        len: answer.len(),
                        segment_len: None,
                    })
                }
                None => self.admit(now, incoming, (id, len), ecn, answer),
            },
            Some(DatagramEvent::Response(transmit)) => Received::Answered(Transmit::of(&transmit)),
        }
    }

    /// The server, process and worker that owns a datagram's connection; `None` if it is this endpoint, or not known.
    fn elsewhere(&mut self, data: &[u8]) -> Option<Placement> {
        let (id, is_ours) = routing_id(data, IdGenerator::id_len(self.placement))?;
        if self.recent_ids.contains(id) {
            return None;
        }
        let placement = self.key_ring.decode_id(id)?;
        if placement == self.placement {
            self.recent_ids.insert(id);
            return None;
        }
        (is_ours || self.is_neighbour(placement)).then_some(placement)
    }

    /// Whether a worker or server that can receive datagrams exists at `place`.
    fn is_neighbour(&self, place: Placement) -> bool {
        if place.node != self.placement.node {
            return self.neighbours.nodes.contains(&place.node);
        }
        place.generation == self.placement.generation && place.worker < self.neighbours.workers
    }

    fn admit(
        &mut self,
        now: Instant,
        incoming: quinn_proto::Incoming,
        (first_id, len): (u64, usize),
        ecn: Option<EcnCodepoint>,
        answer: &mut Vec<u8>,
    ) -> Received {
        match self.admission {
            Admission::Full => {
                self.library.ignore(incoming);
                return Received::Ignored;
            }
            Admission::Closed => {
                // This client should have got a Version Negotiation packet that makes it use TCP, but the header of its packet
                // could not be read for that. It gets a refusal instead.
                let transmit = self.library.refuse(incoming, answer);
                return Received::Answered(Transmit::of(&transmit));
            }
            Admission::Open => {}
        }
        let server = self.server.as_ref();
        let max_handshakes = server.map_or(0, |server| server.max_handshakes);
        if self.handshakes >= max_handshakes {
            self.library.ignore(incoming);
            return Received::Ignored;
        }
        // A Retry stops clients with forged source addresses: they do not receive its token.
        let wants_retry =
            server.is_some_and(|server| server.retry || self.handshakes >= server.retry_above);
        if wants_retry && !incoming.remote_address_validated() {
            return match self.library.retry(incoming, answer) {
                Ok(transmit) => Received::Answered(Transmit::of(&transmit)),
                Err(error) => {
                    self.library.ignore(error.into_incoming());
                    Received::Ignored
                }
            };
        }
        let is_validated = incoming.remote_address_validated();
        let settings = self.server.as_ref().map(|server| server.transport.clone());
        let settings = settings.unwrap_or_default();
        let sending = Sending::of(&settings, || self.draw());
        let known = (incoming.remote_address_validated())
            .then(|| self.known_paths.recall(incoming.remote_address().ip(), now))
            .flatten();
        self.set_start(&settings, sending, known);
        let first_name = *incoming.orig_dst_cid();
        let (remote, local) = (incoming.remote_address(), incoming.local_ip());
        self.watch.begin();
        let accepted = self.library.accept(incoming, now, answer, None);
        self.channel.set_start(None);
        self.watch.end();
        match accepted {
            Ok((handle, connection)) => {
                let server = self.server.as_ref();
                let limit = server.map(|server| HandshakeLimit {
                    began: now,
                    round_trips: server.handshake_rtts,
                    datagrams: server.max_handshake_datagrams,
                    amplification: (!is_validated).then_some(server.amplification_limit.into()),
                    received: len as u64,
                    first_id,
                });
                let traces = server.is_some_and(|server| server.traces);
                self.insert(handle, connection, sending, limit);
                let inserted = self.connections.get_mut(handle.0);
                let Some(connection) = inserted.and_then(Option::as_mut) else {
                    return Received::Ignored;
                };
                if traces {
                    connection.begin_trace(now, &first_name, len);
                }
                if self.watch.is_needed() {
                    connection.keep_few_streams(&self.watch);
                    self.few_streams += 1;
                }
                // The datagram that has begun the connection may also contain early data, which can name streams that the tables
                // lack.
                self.repeat_refused(now, handle, (remote, local, ecn), answer);
                Received::Accepted(ConnectionIndex(handle.0))
            }
            Err(error) => error.response.map_or(Received::Ignored, |transmit| {
                Received::Answered(Transmit::of(&transmit))
            }),
        }
    }

    /// Hands quinn-proto the last datagram once more, if a packet in it was refused because it names a stream that the
    /// connection's tables lacked. The tables have entries for all announced streams by then.
    fn repeat_refused(
        &mut self,
        now: Instant,
        handle: ConnectionHandle,
        (remote, local, ecn): (SocketAddr, Option<IpAddr>, Option<EcnCodepoint>),
        answer: &mut Vec<u8>,
    ) {
        let Some(connection) = self.connections.get_mut(handle.0).and_then(Option::as_mut) else {
            return;
        };
        if !connection.grow_if_refused() {
            return;
        }
        self.few_streams -= 1;
        let again = BytesMut::from(&self.copy[..]);
        let again = self.library.handle(now, remote, local, ecn, again, answer);
        if let Some(DatagramEvent::ConnectionEvent(same, event)) = again
            && same == handle
        {
            connection.library.handle_event(event);
        }
    }

    /// Draws a random number.
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.hasher.hash_one(self.drawn)
    }

    /// Draws at random how the next connection's congestion controller begins. `known`: what an earlier connection has
    /// measured of its path.
    fn set_start(
        &mut self,
        settings: &TransportSettings,
        sending: Sending,
        known: Option<Observation>,
    ) {
        let max = u64::from(settings.max_jump_packets) * settings.packet_len();
        let known = known.filter(|_| max > 0 && settings.known_path_jumps.includes(self.draw()));
        let first = u64::from(settings.first_jump_packets) * settings.packet_len();
        let jump = match known {
            Some(seen) => Some(Jump::to_known(&seen, max)),
            // A connection without pacing does not jump: it would send the whole window at once.
            None if first > 0 && sending.is_paced && settings.first_jumps.includes(self.draw()) => {
                Some(Jump::to(first))
            }
            None => None,
        };
        let start = Start {
            jump,
            respects_underuse: settings.respects_underuse.includes(self.draw()),
            is_rapid: settings.rapid_start.includes(self.draw()),
        };
        self.totals.jumps += u64::from(jump.is_some());
        self.totals.rapid_starts += u64::from(start.is_rapid);
        self.totals.paced += u64::from(sending.is_paced);
        self.totals.respecting_underuse += u64::from(start.respects_underuse);
        self.channel.set_start(Some(start));
    }

    /// Remembers what a connection has measured of its path, if it has sent enough for that.
    fn remember_path(&mut self, index: ConnectionIndex, now: Instant) {
        let Some(server) = &self.server else {
            return;
        };
        let transport = &server.transport;
        if transport.max_jump_packets == 0 {
            return;
        }
        let initial = u64::from(transport.initial_window_packets) * 1200;
        let Some(connection) = self.connections.get(index.0).and_then(Option::as_ref) else {
            return;
        };
        let stats = connection.stats();
        if stats.bytes_sent < 4 * initial {
            return;
        }
        let seen = Observation {
            window: stats.congestion_window,
            min_rtt: stats.min_rtt,
            at: now,
        };
        self.known_paths
            .remember(connection.validated_address().ip(), seen);
    }

    fn insert(
        &mut self,
        handle: ConnectionHandle,
        connection: quinn_proto::Connection,
        sending: Sending,
        limit: Option<HandshakeLimit>,
    ) {
        if self.connections.len() <= handle.0 {
            self.connections.resize_with(handle.0 + 1, || None);
        }
        self.totals.begun += 1;
        self.handshakes += usize::from(limit.is_some());
        self.connections[handle.0] = Some(Box::new(Connection::new(connection, sending, limit)));
        self.exchange_events(handle);
    }

    /// Begins a connection to a server.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        tls: ClientTls,
        transport: &TransportSettings,
    ) -> Result<ConnectionIndex, ConnectError> {
        let name = tls.server_name.to_str().into_owned();
        let mut config = quinn_proto::ClientConfig::new(Arc::new(ClientSide(tls)));
        config.transport_config(Arc::new(transport.to_quinn(&self.channel)));
        let sending = Sending::of(transport, || self.draw());
        self.set_start(transport, sending, None);
        let (handle, connection) =
            self.library
                .connect(now, config, remote, &name)
                .map_err(|error| match error {
                    quinn_proto::ConnectError::InvalidRemoteAddress(_) => ConnectError::Address,
                    other => ConnectError::Tls(other.to_string()),
                })?;
        self.insert(handle, connection, sending, None);
        Ok(ConnectionIndex(handle.0))
    }

    /// Passes the events of quinn-proto's connection to quinn-proto's endpoint, and the answers back.
    fn exchange_events(&mut self, handle: ConnectionHandle) {
        let Some(connection) = self.connections.get_mut(handle.0).and_then(Option::as_mut) else {
            return;
        };
        while let Some(event) = connection.library.poll_endpoint_events() {
            if event.is_drained() {
                connection.is_drained = true;
            } else if let Some(answer) = self.library.handle_event(handle, event) {
                connection.library.handle_event(answer);
            }
        }
    }

    /// The connection with this index; `None` after [`Event::Drained`].
    pub fn connection(&mut self, index: ConnectionIndex) -> Option<&mut Connection> {
        self.connections.get_mut(index.0)?.as_deref_mut()
    }

    /// Takes the next event of a connection. Returning [`Event::Drained`] deletes the connection.
    pub fn poll_event(&mut self, index: ConnectionIndex) -> Option<Event> {
        let slot = self.connections.get_mut(index.0)?;
        let connection = slot.as_mut()?;
        if let Some(event) = connection.poll_event() {
            return Some(event);
        }
        if !connection.is_drained {
            return None;
        }
        self.handshakes -= usize::from(connection.is_being_accepted());
        self.few_streams -= usize::from(connection.few_streams.is_some());
        self.totals.add(connection);
        *slot = None;
        self.library
            .handle_event(ConnectionHandle(index.0), EndpointEvent::drained());
        Some(Event::Drained)
    }

    /// Appends up to `max_datagrams` datagrams that a connection wants to send now to `buffer`, which is empty.
    pub fn transmit(
        &mut self,
        index: ConnectionIndex,
        now: Instant,
        max_datagrams: usize,
        buffer: &mut Vec<u8>,
    ) -> Option<Transmit> {
        self.exchange_events(ConnectionHandle(index.0));
        let connection = self.connections.get_mut(index.0)?.as_deref_mut()?;
        let transmit = connection.transmit(&self.channel, now, max_datagrams, buffer)?;
        connection.trace_sent(&self.channel, now, &transmit);
        Some(transmit)
    }

    /// The time at which [`Self::on_timeout`] is to be called for a connection; `None` if it waits for no timer.
    pub fn timeout(&mut self, index: ConnectionIndex) -> Option<Instant> {
        self.connection(index)?.timeout()
    }

    /// Handles the passing of time for a connection, which may then have events and packets to send. A call before the
    /// connection's timeout does nothing.
    pub fn on_timeout(&mut self, index: ConnectionIndex, now: Instant) {
        if let Some(connection) = self.connection(index) {
            let was_closed = connection.library.is_closed();
            connection.on_timeout(now);
            if !was_closed && connection.library.is_closed() {
                self.remember_path(index, now);
            }
        }
        self.exchange_events(ConnectionHandle(index.0));
    }

    /// Sets how packets that would begin a connection are treated from now on.
    pub fn set_admission(&mut self, admission: Admission) {
        self.admission = admission;
    }

    /// Replaces the settings for connections that are accepted from now on.
    pub fn set_server(&mut self, server: ServerRole) {
        self.watch = watch_of(Some(&server));
        let library = library_server(&server, &self.key_ring, &self.channel, &self.watch);
        self.library.set_server_config(Some(Arc::new(library)));
        self.server = Some(server);
    }

    /// Replaces the keys by those of other secrets, newest first. Connection ids made before can still be read if their key
    /// is among them.
    pub fn set_keys(&mut self, keys: &[Keys]) {
        self.key_ring.replace(keys);
    }

    /// Statistics of the endpoint so far, with those of all its connections.
    pub fn totals(&self) -> Totals {
        let mut totals = self.totals;
        for connection in self.connections.iter().flatten() {
            totals.add(connection);
        }
        (totals.packets_acked, totals.bytes_acked) = self.channel.acknowledged();
        totals
    }

    /// Number of connections that are not drained.
    pub fn open_connections(&self) -> usize {
        self.connections.iter().flatten().count()
    }
}

impl Totals {
    /// Counts a received datagram, and its packets with long headers by type.
    fn count(&mut self, data: &[u8], ecn: Option<Ecn>) {
        self.datagrams += 1;
        match ecn {
            Some(Ecn::Ect0) => self.ect0 += 1,
            Some(Ecn::Ect1) => self.ect1 += 1,
            Some(Ecn::Ce) => self.ce += 1,
            None => {}
        }
        // One datagram can contain several packets (RFC 9000 §12.2).
        let mut rest = Some(data);
        while let Some(packet @ [first, ..]) = rest
            && first & 0x80 != 0
        {
            match first >> 4 & 0b11 {
                0b00 => self.initial += 1,
                0b01 => self.zero_rtt += 1,
                0b10 => self.handshake += 1,
                _ => {}
            }
            rest = behind_long_packet(packet);
        }
    }

    /// Adds the counters of a connection, and whether its handshake exceeded a limit.
    fn add(&mut self, connection: &Connection) {
        self.connections.add(&connection.stats());
        match connection.exceeded() {
            Some(Exceeded::Time) => self.handshake_timeouts += 1,
            Some(Exceeded::Packets) => self.handshakes_exceeded += 1,
            None => {}
        }
    }
}

/// Returns the bytes of a datagram after its first packet, which has a long header (RFC 9000 §17.2) of version 1 or draft 29.
fn behind_long_packet(packet: &[u8]) -> Option<&[u8]> {
    let (&[first, ..], rest) = packet.split_first_chunk::<5>()?;
    let skip = |bytes: &'_ [u8]| -> Option<usize> {
        let (&len, _) = bytes.split_first()?;
        Some(1 + usize::from(len))
    };
    let rest = rest.get(skip(rest)?..)?;
    let mut rest = rest.get(skip(rest)?..)?;
    if first >> 4 & 0b11 == 0 {
        let (token_len, behind) = var_int(rest)?;
        rest = behind.get(token_len..)?;
    }
    let (len, behind) = var_int(rest)?;
    behind.get(len..)
}

/// Reads a variable-length integer (RFC 9000 §16). Returns it and the bytes after it.
fn var_int(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (&first, _) = bytes.split_first()?;
    let (number, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    let value = (number[1..].iter()).fold(u64::from(first & 0x3f), |value, &byte| {
        value << 8 | u64::from(byte)
    });
    Some((usize::try_from(value).ok()?, rest))
}

/// The Destination Connection ID of a packet with a long header (RFC 9000 §17.2); empty for other packets.
fn destination_id(packet: &[u8]) -> &[u8] {
    match packet {
        [first, _, _, _, _, len, rest @ ..] if first & 0x80 != 0 => {
            rest.get(..usize::from(*len)).unwrap_or_default()
        }
        _ => &[],
    }
}

/// Makes a Version Negotiation packet (RFC 9000 §17.2.1) that offers only a version which does not exist, in answer to a
/// packet with a long header. H2O compatibility: a server that shuts down sends this; clients then use TCP.
fn negotiation_without_versions(packet: &[u8]) -> Option<Vec<u8>> {
    let (&[first, _, _, _, _, id_len], rest) = packet.split_first_chunk()?;
    if first & 0x80 == 0 {
        return None;
    }
    let (destination, rest) = rest.split_at_checked(id_len.into())?;
    let (&id_len, rest) = rest.split_first()?;
    let source = rest.get(..id_len.into())?;
    let mut answer = vec![0xc0, 0, 0, 0, 0];
    // RFC 9000 §17.2.1: the answer's destination id is the packet's source id, and the other way round.
    for id in [source, destination] {
        answer.push(u8::try_from(id.len()).ok()?);
        answer.extend_from_slice(id);
    }
    // A version that RFC 9000 §15 reserves, so that no client supports it.
    answer.extend_from_slice(&[0x0a, 0x1a, 0x2a, 0x3a]);
    Some(answer)
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // If the system has no random numbers, TLS does not work either, so these bytes do not matter.
    let _ = rand::fill(&mut bytes);
    bytes
}

/// Makes the search for streams that the tables of accepted connections lack. It knows how many streams these connections
/// announce: none at an endpoint that accepts no connections.
fn watch_of(server: Option<&ServerRole>) -> Arc<StreamWatch> {
    let settings = server.map(|server| &server.transport);
    let announced = settings.map_or(StreamLimits::NONE, StreamLimits::announced);
    Arc::new(StreamWatch::new(announced))
}

fn library_server(
    server: &ServerRole,
    keys: &Arc<KeyRing>,
    channel: &Arc<ControllerChannel>,
    watch: &Arc<StreamWatch>,
) -> quinn_proto::ServerConfig {
    let mut config = quinn_proto::ServerConfig::new(
        Arc::new(ServerTls {
            chooser: Arc::clone(&server.tls),
            watch: Arc::clone(watch),
        }),
        Arc::new(TokenKey(Arc::clone(keys))),
    );
    let mut tokens = ValidationTokenConfig::default();
    tokens
        .lifetime(server.token_lifetime)
        .log(Arc::<UsedTokens>::clone(&server.used_tokens))
        .sent(1);
    let mut transport = server.transport.to_quinn(channel);
    watch.announced().few().apply(&mut transport);
    config
        .transport_config(Arc::new(transport))
        .retry_token_lifetime(server.retry_token_lifetime)
        .validation_token_config(tokens)
        .max_incoming(server.max_handshakes);
    config
}
