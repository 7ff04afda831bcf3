//! A path between a client and a server, with virtual time: rate, delay, queue, loss, reordering, duplication, MTU, address changes.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use h2o_quic::{
    ClientTls, ConnectionIndex, Datagram, Ecn, Endpoint, EndpointConfig, Event, Keys, KnownPaths,
    Neighbours, Placement, Read, Received, ServerRole, StreamId, Transmit, TransportSettings,
    Write,
};
use h2o_testkit::Random;
use quinn_proto::{ConnectionHandle, DatagramEvent, Dir};

use super::{CLIENT, SERVER, client_tls, server_tls};

/// Length in bytes of the IP and UDP headers of a packet.
const HEADERS: usize = 28;

/// The properties of one direction of a simulated network path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    /// The rate of the path in bytes per second.
    pub(crate) rate: u64,
    pub(crate) delay: Duration,
    /// Number of bytes that wait in the queue before further packets are dropped.
    pub(crate) queue: usize,
    /// `lost`, `late` and `twice`: how many of 1,000 packets are lost, arrive late, and arrive twice.
    pub(crate) lost: usize,
    pub(crate) late: usize,
    pub(crate) twice: usize,
    /// The longest UDP payload in bytes that the path carries; longer datagrams are dropped.
    pub(crate) mtu: usize,
    /// Number of bytes in the queue from which packets are marked as CE.
    pub(crate) marks_at: usize,
}

impl Default for Path {
    /// A path of 1 Gbit/s with a delay of 1 ms.
    fn default() -> Self {
        Self {
            rate: 125_000_000,
            delay: Duration::from_millis(1),
            queue: 1 << 20,
            lost: 0,
            late: 0,
            twice: 0,
            mtu: 1472,
            marks_at: 1 << 30,
        }
    }
}

impl Path {
    /// A slow mobile path: 8 Mbit/s, a round trip of 80 ms, a queue of 64 KB.
    pub(crate) fn mobile() -> Self {
        Self {
            rate: 1_000_000,
            delay: Duration::from_millis(40),
            queue: 64_000,
            ..Self::default()
        }
    }
}

/// One direction of the simulated path, with its state.
struct Direction {
    path: Path,
    busy_until: Instant,
    dropped_by_queue: usize,
}

#[derive(Debug)]
struct Packet {
    to_server: bool,
    from: SocketAddr,
    ecn: Option<Ecn>,
    data: Vec<u8>,
}

/// The client of the simulation: `quinn-proto`'s own, or ours.
pub(crate) enum Client {
    Library {
        endpoint: Box<quinn_proto::Endpoint>,
        handle: ConnectionHandle,
        connection: Box<quinn_proto::Connection>,
    },
    Ours {
        endpoint: Box<Endpoint>,
        index: ConnectionIndex,
    },
}

/// A simulation of a server, a client and the path between them.
pub(crate) struct Simulation {
    pub(crate) now: Instant,
    random: Random,
    up: Direction,
    down: Direction,
    on_the_way: BTreeMap<(Instant, usize), Packet>,
    sequence: usize,
    pub(crate) server: Endpoint,
    pub(crate) connections: Vec<ConnectionIndex>,
    /// Number of bytes left to send on each stream of the server.
    answers: HashMap<(ConnectionIndex, StreamId), usize>,
    pub(crate) client: Client,
    /// The configuration of `quinn-proto`'s client, with the tokens and TLS sessions of earlier connections.
    config: quinn_proto::ClientConfig,
    pub(crate) address: SocketAddr,
    /// `received` counts the bytes that the client has received, `ended` the streams that have ended.
    pub(crate) received: usize,
    pub(crate) ended: usize,
    pub(crate) server_events: Vec<Event>,
    /// Length in bytes of the longest datagram from the server that arrived.
    pub(crate) largest: usize,
    pub(crate) server_sent: usize,
    /// For each client address, the number of bytes that the server has sent to it and received from it.
    pub(crate) bytes: HashMap<IpAddr, (usize, usize)>,
    /// Whether the last datagram of the server's next answer is to be lost.
    pub(crate) loses_tail: bool,
}

impl Simulation {
    /// The address at which the server knows the client of its latest connection to be.
    pub(crate) fn validated(&mut self) -> IpAddr {
        let index = self.connections.last().expect("the client is connected");
        let connection = self.server.connection(*index);
        let connection = connection.expect("the connection is not drained");
        connection.validated_address().ip()
    }

    pub(crate) fn new(seed: u64, path: Path, transport: TransportSettings) -> Self {
        Self::build(seed, path, transport, false)
    }

    pub(crate) fn with_our_client(seed: u64, path: Path, transport: TransportSettings) -> Self {
        Self::build(seed, path, transport, true)
    }

    fn build(seed: u64, path: Path, transport: TransportSettings, is_ours: bool) -> Self {
        let now = Instant::now();
        let mut seeds = [0; 32];
        seeds[..8].copy_from_slice(&seed.to_be_bytes());
        let server = Endpoint::new(EndpointConfig {
            keys: vec![Keys::derive(7, b"secret")],
            placement: Placement::default(),
            neighbours: Neighbours::default(),
            known_paths: KnownPaths::default(),
            server: Some(ServerRole::new(Arc::new(server_tls()), transport.clone())),
            finds_mtu: true,
            seed: Some(seeds),
        });
        seeds[31] = 1;
        let tls = quinn_proto::crypto::rustls::QuicClientConfig::try_from(client_tls());
        let client_config =
            quinn_proto::ClientConfig::new(Arc::new(tls.expect("the configuration is valid")));
        let client = if is_ours {
            let mut endpoint = Endpoint::new(EndpointConfig {
                keys: Vec::new(),
                placement: Placement::default(),
                neighbours: Neighbours::default(),
                known_paths: KnownPaths::default(),
                server: None,
                finds_mtu: true,
                seed: Some(seeds),
            });
            let tls = ClientTls {
                config: Arc::new(client_tls()),
                server_name: "localhost".try_into().expect("the host name is valid"),
            };
            let index = endpoint
                .connect(now, SERVER, tls, &transport)
                .expect("the configuration of the client is valid");
            Client::Ours {
                endpoint: Box::new(endpoint),
                index,
            }
        } else {
            let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, b"client");
            let config = quinn_proto::EndpointConfig::new(Arc::new(key));
            let mut endpoint =
                quinn_proto::Endpoint::new(Arc::new(config), None, true, Some(seeds));
            let (handle, connection) = endpoint
                .connect(now, client_config.clone(), SERVER, "localhost")
                .expect("the configuration of the client is valid");
            Client::Library {
                endpoint: Box::new(endpoint),
                handle,
                connection: Box::new(connection),
            }
        };
        let direction = || Direction {
            path,
            busy_until: now,
            dropped_by_queue: 0,
        };
        Self {
            now,
            random: Random::new(seed),
            up: direction(),
            down: direction(),
            on_the_way: BTreeMap::new(),
            sequence: 0,
            server,
            connections: Vec::new(),
            answers: HashMap::new(),
            client,
            config: client_config,
            address: CLIENT,
            received: 0,
            ended: 0,
            server_events: Vec::new(),
            largest: 0,
            server_sent: 0,
            bytes: HashMap::new(),
            loses_tail: false,
        }
    }

    /// Changes both directions of the path.
    pub(crate) fn set_path(&mut self, path: Path) {
        self.down.path = path;
        self.up.path = path;
    }

    /// Number of packets to the client that were dropped because the queue was full.
    pub(crate) fn dropped(&self) -> usize {
        self.down.dropped_by_queue
    }

    fn send(&mut self, packet: Packet) {
        let random = &mut self.random;
        let direction = if packet.to_server {
            &mut self.up
        } else {
            &mut self.down
        };
        let path = direction.path;
        if packet.data.len() > path.mtu {
            return;
        }
        if random.below(1000) < path.lost {
            return;
        }
        let len = packet.data.len() + HEADERS;
        let waiting = direction.busy_until.saturating_duration_since(self.now);
        let time = |bytes: usize| Duration::from_nanos(bytes as u64 * 1_000_000_000 / path.rate);
        if waiting + time(len) > time(path.queue) {
            direction.dropped_by_queue += 1;
            return;
        }
        let mut packet = packet;
        if waiting > time(path.marks_at) && packet.ecn.is_some() {
            packet.ecn = Some(Ecn::Ce);
        }
        direction.busy_until = direction.busy_until.max(self.now) + time(len);
        let mut arrival = direction.busy_until + path.delay;
        if random.below(1000) < path.late {
            arrival += Duration::from_micros(random.below(20_000) as u64);
        }
        if random.below(1000) < path.twice {
            self.sequence += 1;
            let again = Packet {
                data: packet.data.clone(),
                ..packet
            };
            self.on_the_way.insert((arrival, self.sequence), again);
        }
        self.sequence += 1;
        self.on_the_way.insert((arrival, self.sequence), packet);
    }

    fn deliver(&mut self, packet: Packet) {
        let data = BytesMut::from(&packet.data[..]);
        if !packet.to_server {
            self.largest = self.largest.max(packet.data.len());
        }
        let mut answer = Vec::new();
        if packet.to_server {
            self.bytes.entry(packet.from.ip()).or_default().1 += packet.data.len();
            let datagram = Datagram {
                remote: packet.from,
                local: None,
                ecn: packet.ecn,
                data,
            };
            match self.server.receive(self.now, datagram, &mut answer) {
                Received::Accepted(index) => self.connections.push(index),
                Received::Answered(transmit) => {
                    answer.truncate(transmit.len);
                    self.send_to_client(answer, transmit);
                }
                _ => {}
            }
            return;
        }
        match &mut self.client {
            Client::Library {
                endpoint,
                connection,
                ..
            } => {
                let ecn = packet.ecn.map(|ecn| match ecn {
                    Ecn::Ect0 => quinn_proto::EcnCodepoint::Ect0,
                    Ecn::Ect1 => quinn_proto::EcnCodepoint::Ect1,
                    Ecn::Ce => quinn_proto::EcnCodepoint::Ce,
                });
                let event = endpoint.handle(self.now, SERVER, None, ecn, data, &mut answer);
                if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
                    connection.handle_event(event);
                }
            }
            Client::Ours { endpoint, .. } => {
                let datagram = Datagram {
                    remote: SERVER,
                    local: None,
                    ecn: packet.ecn,
                    data,
                };
                endpoint.receive(self.now, datagram, &mut answer);
            }
        }
    }

    fn send_to_client(&mut self, data: Vec<u8>, transmit: Transmit) {
        self.server_sent += 1;
        self.bytes.entry(transmit.remote.ip()).or_default().0 += data.len();
        self.send(Packet {
            to_server: false,
            from: SERVER,
            ecn: transmit.ecn,
            data,
        });
    }

    /// The client opens a stream and requests a response of `bytes` bytes.
    pub(crate) fn ask(&mut self, bytes: usize) {
        let request = (bytes as u64).to_be_bytes();
        match &mut self.client {
            Client::Library { connection, .. } => {
                let id = connection
                    .streams()
                    .open(Dir::Bi)
                    .expect("the server allows another stream");
                let mut stream = connection.send_stream(id);
                assert_eq!(stream.write(&request), Ok(8));
                stream.finish().expect("the stream is open");
            }
            Client::Ours { endpoint, index } => {
                let connection = endpoint.connection(*index).expect("the connection is open");
                let id = connection
                    .open_bidirectional()
                    .expect("the server allows another stream");
                let mut data = Bytes::copy_from_slice(&request);
                assert_eq!(connection.write(id, &mut data), Write::Taken(8));
                assert!(connection.finish(id));
            }
        }
        self.settle();
    }

    /// Lets the client and the server handle events and send datagrams, without moving the clock.
    pub(crate) fn settle(&mut self) {
        self.run_client();
        for index in self.connections.clone() {
            self.run_server(index);
        }
    }

    fn run_server(&mut self, index: ConnectionIndex) {
        while let Some(event) = self.server.poll_event(index) {
            self.server_events.push(event.clone());
            match event {
                Event::StreamOpened(stream) | Event::Readable(stream) => {
                    let connection = self
                        .server
                        .connection(index)
                        .expect("the connection is open");
                    while let Read::Data(data) | Read::Last(data) =
                        connection.read(stream, usize::MAX)
                    {
                        if let Ok(number) = data[..].try_into() {
                            let bytes = u64::from_be_bytes(number);
                            let bytes =
                                usize::try_from(bytes).expect("the number fits into 64 bits");
                            self.answers.insert((index, stream), bytes);
                        }
                    }
                }
                Event::Drained => self.connections.retain(|&other| other != index),
                _ => {}
            }
        }
        let mut buffer = Vec::new();
        loop {
            let Some(connection) = self.server.connection(index) else {
                return;
            };
            let room = connection.send_room();
            connection.set_send_window(room);
            let has_written = !self.answers.is_empty();
            let mut streams: Vec<_> = self.answers.keys().copied().collect();
            streams.sort_unstable();
            for (_, stream) in streams.into_iter().filter(|(owner, _)| *owner == index) {
                let left = self
                    .answers
                    .get_mut(&(index, stream))
                    .expect("the server has an answer for the stream");
                while *left > 0 {
                    let mut data = Bytes::from(vec![0x55; (*left).min(16_384)]);
                    match connection.write(stream, &mut data) {
                        Write::Taken(len) => *left -= len,
                        Write::Blocked => break,
                        other => panic!("{other:?}"),
                    }
                }
                if *left == 0 {
                    connection.finish(stream);
                    self.answers.remove(&(index, stream));
                }
            }
            buffer.clear();
            let Some(transmit) = self.server.transmit(index, self.now, 10, &mut buffer) else {
                return;
            };
            let mut datagrams: Vec<_> = buffer
                .chunks(transmit.segment_len.unwrap_or(transmit.len))
                .map(<[u8]>::to_vec)
                .collect();
            if has_written && self.answers.is_empty() && std::mem::take(&mut self.loses_tail) {
                datagrams.pop();
            }
            for data in datagrams {
                self.send_to_client(data, transmit);
            }
        }
    }

    fn run_client(&mut self) {
        let mut sent = Vec::new();
        let mut buffer = Vec::new();
        match &mut self.client {
            Client::Library {
                endpoint,
                handle,
                connection,
            } => {
                while let Some(event) = connection.poll_endpoint_events() {
                    if let Some(event) = endpoint.handle_event(*handle, event) {
                        connection.handle_event(event);
                    }
                }
                while let Some(event) = connection.poll() {
                    let quinn_proto::Event::Stream(quinn_proto::StreamEvent::Readable { id }) =
                        event
                    else {
                        continue;
                    };
                    let mut stream = connection.recv_stream(id);
                    let Ok(mut chunks) = stream.read(true) else {
                        continue;
                    };
                    loop {
                        match chunks.next(usize::MAX) {
                            Ok(Some(chunk)) => self.received += chunk.bytes.len(),
                            Ok(None) => {
                                self.ended += 1;
                                break;
                            }
                            Err(_) => break,
                        }
                    }
                    let _ = chunks.finalize();
                }
                while let Some(transmit) = connection.poll_transmit(self.now, 10, &mut buffer) {
                    let ecn = transmit.ecn.map(|_| Ecn::Ect0);
                    for data in buffer.chunks(transmit.segment_size.unwrap_or(transmit.size)) {
                        sent.push((ecn, data.to_vec()));
                    }
                    buffer.clear();
                }
            }
            Client::Ours { endpoint, index } => {
                while let Some(event) = endpoint.poll_event(*index) {
                    let Event::Readable(stream) = event else {
                        continue;
                    };
                    let connection = endpoint.connection(*index).expect("the connection is open");
                    loop {
                        match connection.read(stream, usize::MAX) {
                            Read::Data(data) => self.received += data.len(),
                            Read::Last(data) => {
                                self.received += data.len();
                                self.ended += 1;
                                break;
                            }
                            Read::End => {
                                self.ended += 1;
                                break;
                            }
                            _ => break,
                        }
                    }
                }
                while let Some(transmit) = endpoint.transmit(*index, self.now, 10, &mut buffer) {
                    for data in buffer.chunks(transmit.segment_len.unwrap_or(transmit.len)) {
                        sent.push((transmit.ecn, data.to_vec()));
                    }
                    buffer.clear();
                }
            }
        }
        for (ecn, data) in sent {
            self.send(Packet {
                to_server: true,
                from: self.address,
                ecn,
                data,
            });
        }
    }

    fn client_timeout(&mut self) -> Option<Instant> {
        match &mut self.client {
            Client::Library { connection, .. } => connection.poll_timeout(),
            Client::Ours { endpoint, index } => endpoint.timeout(*index),
        }
    }

    /// Moves the clock to the next arrival or timer, and handles it. Returns whether there was one.
    pub(crate) fn step(&mut self) -> bool {
        let arrival = self.on_the_way.keys().next().map(|&(time, _)| time);
        let mut times = vec![arrival, self.client_timeout()];
        for index in self.connections.clone() {
            times.push(self.server.timeout(index));
        }
        let Some(next) = times.into_iter().flatten().min() else {
            return false;
        };
        self.now = self.now.max(next);
        while let Some(entry) = self.on_the_way.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let packet = entry.remove();
            self.deliver(packet);
        }
        if self.client_timeout().is_some_and(|time| time <= self.now) {
            match &mut self.client {
                Client::Library { connection, .. } => connection.handle_timeout(self.now),
                Client::Ours { endpoint, index } => endpoint.on_timeout(*index, self.now),
            }
        }
        for index in self.connections.clone() {
            let timeout = self.server.timeout(index);
            if timeout.is_some_and(|time| time <= self.now) {
                self.server.on_timeout(index, self.now);
            }
        }
        self.settle();
        true
    }

    /// Handles events until `is_done` returns true.
    ///
    /// # Panics
    /// If no event is left to come, or after five minutes of virtual time.
    pub(crate) fn run_until(&mut self, mut is_done: impl FnMut(&Self) -> bool) {
        let limit = self.now + Duration::from_secs(300);
        let mut steps = 0_u64;
        while !is_done(self) {
            assert!(self.step(), "client and server wait for each other");
            assert!(
                self.now < limit,
                "the transfer takes too long: {} bytes",
                self.received
            );
            steps += 1;
            assert!(steps < 10_000_000, "the simulation takes too many steps");
        }
    }

    /// Runs the handshake of the first connection to its end.
    pub(crate) fn connect(&mut self) {
        self.settle();
        self.run_until(|it| it.server_events.contains(&Event::Connected));
    }

    /// The client closes its connection and opens another one, with the address token and the TLS session that it has received.
    pub(crate) fn connect_again(&mut self) {
        let Client::Library { connection, .. } = &mut self.client else {
            panic!("only the client of the library can connect again");
        };
        connection.close(self.now, 0_u32.into(), Bytes::new());
        self.run_until(|it| it.connections.is_empty());
        self.server_events.clear();
        self.on_the_way.clear();
        let Client::Library {
            endpoint,
            handle,
            connection,
        } = &mut self.client
        else {
            return;
        };
        let (new_handle, new) = endpoint
            .connect(self.now, self.config.clone(), SERVER, "localhost")
            .expect("the configuration of the client is valid");
        (*handle, **connection) = (new_handle, new);
        self.connect();
    }

    /// Requests a response of `bytes` bytes, and returns how long it takes to arrive.
    pub(crate) fn fetch(&mut self, bytes: usize) -> Duration {
        let (start, ended, received) = (self.now, self.ended, self.received);
        self.ask(bytes);
        self.run_until(|it| it.ended > ended);
        assert_eq!(self.received - received, bytes);
        self.now - start
    }
}
