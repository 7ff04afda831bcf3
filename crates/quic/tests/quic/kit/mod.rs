//! A QUIC server of ours and a client of `quinn-proto`, with a clock that only the test moves.

pub(crate) mod link;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use h2o_quic::{
    Connection, ConnectionIndex, Datagram, Endpoint, EndpointConfig, Event, Keys, KnownPaths,
    Neighbours, Placement, Received, ServerRole, TransportSettings,
};
use h2o_testkit::tls::AnyCertificate;
use quinn_proto::{ConnectionHandle, DatagramEvent, Dir};

pub(crate) const CLIENT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 1000);
pub(crate) const SERVER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 443);

/// A server configuration with a self-signed certificate.
pub(crate) fn server_tls() -> Arc<rustls::ServerConfig> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])
        .expect("a self-signed certificate can be made");
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der())
        .expect("the key of the certificate is valid");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("the key belongs to the certificate");
    config.alpn_protocols = vec![b"h3".to_vec()];
    config.max_early_data_size = u32::MAX;
    Arc::new(config)
}

/// A client configuration that trusts every certificate.
pub(crate) fn client_tls() -> rustls::ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate::default()))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h3".to_vec()];
    config.enable_early_data = true;
    config
}

pub(crate) fn endpoint_config() -> EndpointConfig {
    let transport = TransportSettings::default();
    EndpointConfig {
        keys: vec![Keys::derive(7, b"secret")],
        placement: Placement::default(),
        neighbours: Neighbours::default(),
        known_paths: KnownPaths::default(),
        server: Some(ServerRole::new(Arc::new(server_tls()), transport)),
        finds_mtu: true,
        seed: Some([1; 32]),
    }
}

/// Makes a received datagram from bytes that the client has sent.
pub(crate) fn to_server(data: &[u8]) -> Datagram {
    Datagram {
        remote: CLIENT,
        local: None,
        ecn: None,
        data: BytesMut::from(data),
    }
}

/// A server and a client; each datagram takes one millisecond from one to the other.
pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) endpoint: Endpoint,
    pub(crate) index: Option<ConnectionIndex>,
    /// All events of the server's connection so far.
    pub(crate) seen: Vec<Event>,
    client: quinn_proto::Endpoint,
    connection: Option<(ConnectionHandle, quinn_proto::Connection)>,
    /// The client's TLS configuration, which keeps the sessions of earlier connections.
    client_tls: Arc<quinn_proto::crypto::rustls::QuicClientConfig>,
    /// The QUIC version that the client uses.
    pub(crate) version: u32,
    /// Number of datagrams that the server has answered without a connection.
    pub(crate) answered: usize,
    /// The reason for which the client's connection has ended; empty if it has not.
    pub(crate) client_lost: String,
    to_server: VecDeque<Vec<u8>>,
    pub(crate) to_client: VecDeque<Vec<u8>>,
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::with(endpoint_config())
    }

    pub(crate) fn with(config: EndpointConfig) -> Self {
        let client = quinn_proto::EndpointConfig::new(Arc::new(aws_lc_rs::hmac::Key::new(
            aws_lc_rs::hmac::HMAC_SHA256,
            b"client",
        )));
        Self {
            now: Instant::now(),
            endpoint: Endpoint::new(config),
            index: None,
            seen: Vec::new(),
            client: quinn_proto::Endpoint::new(Arc::new(client), None, true, Some([2; 32])),
            connection: None,
            client_tls: Arc::new(client_tls().try_into().expect("the configuration is valid")),
            version: 1,
            answered: 0,
            client_lost: String::new(),
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
        }
    }

    pub(crate) fn connect(&mut self) {
        let mut config = quinn_proto::ClientConfig::new(self.client_tls.clone());
        config.version(self.version);
        self.connection = Some(
            self.client
                .connect(self.now, config, SERVER, "localhost")
                .expect("the configuration of the client is valid"),
        );
    }

    pub(crate) fn server(&mut self) -> &mut Connection {
        let index = self.index.expect("a connection was accepted");
        self.endpoint
            .connection(index)
            .expect("the connection is open")
    }

    pub(crate) fn client(&mut self) -> &mut quinn_proto::Connection {
        &mut self
            .connection
            .as_mut()
            .expect("the test has begun a connection")
            .1
    }

    pub(crate) fn client_open(&mut self) -> quinn_proto::StreamId {
        // The client can open streams once it has received the server's limits.
        self.run(|_, _| {});
        self.client()
            .streams()
            .open(Dir::Bi)
            .expect("the server allows another stream")
    }

    pub(crate) fn client_write(&mut self, id: quinn_proto::StreamId, data: &[u8], end: bool) {
        let mut stream = self.client().send_stream(id);
        assert_eq!(stream.write(data), Ok(data.len()));
        if end {
            stream.finish().expect("the stream is open");
        }
    }

    /// Reads the bytes of a stream that the client has received. Returns them, and whether the stream has ended.
    pub(crate) fn client_read(&mut self, id: quinn_proto::StreamId) -> (Vec<u8>, bool) {
        let mut stream = self.client().recv_stream(id);
        let mut chunks = stream.read(true).expect("the stream is open");
        let mut data = Vec::new();
        let is_ended = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => data.extend_from_slice(&chunk.bytes),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        let _ = chunks.finalize();
        (data, is_ended)
    }

    /// Exchanges datagrams until neither side sends any more, without waiting for timers.
    pub(crate) fn run(&mut self, mut on_event: impl FnMut(&mut Self, Event)) {
        loop {
            self.client_step();
            let sent = self.to_server.len() + self.to_client.len();
            self.now += Duration::from_millis(1);
            while let Some(data) = self.to_server.pop_front() {
                let datagram = to_server(&data);
                let mut answer = Vec::new();
                match self.endpoint.receive(self.now, datagram, &mut answer) {
                    Received::Accepted(index) => self.index = Some(index),
                    Received::Answered(transmit) => {
                        self.answered += 1;
                        self.to_client.push_back(answer[..transmit.len].to_vec());
                    }
                    Received::Connection(_) | Received::Ignored => {}
                    Received::Elsewhere(placement, _) => panic!("{placement:?}"),
                }
            }
            let Some(index) = self.index else {
                if sent == 0 && self.to_client.is_empty() {
                    return;
                }
                continue;
            };
            while let Some(event) = self.endpoint.poll_event(index) {
                self.seen.push(event.clone());
                on_event(self, event);
            }
            let mut buffer = Vec::new();
            while let Some(transmit) = self.endpoint.transmit(index, self.now, 10, &mut buffer) {
                let len = transmit.segment_len.unwrap_or(transmit.len);
                for data in buffer.chunks(len) {
                    self.to_client.push_back(data.to_vec());
                }
                buffer.clear();
            }
            if sent == 0 && self.to_client.is_empty() {
                return;
            }
        }
    }

    /// Sends a datagram to the server. Returns the answer that the server gives without a connection; empty if there is none.
    pub(crate) fn send_to_server(&mut self, data: &[u8]) -> Vec<u8> {
        let mut answer = Vec::new();
        match self
            .endpoint
            .receive(self.now, to_server(data), &mut answer)
        {
            Received::Answered(transmit) => answer[..transmit.len].to_vec(),
            _ => Vec::new(),
        }
    }

    /// Returns the datagrams that the client sends now. They stay queued for delivery to the server.
    pub(crate) fn on_the_way(&mut self) -> Vec<Vec<u8>> {
        self.client_step();
        self.to_server.iter().cloned().collect()
    }

    /// Takes the next datagram that the client sends.
    pub(crate) fn next_of_client(&mut self) -> Vec<u8> {
        self.client_step();
        self.to_server
            .pop_front()
            .expect("the client has a datagram to send")
    }

    fn client_step(&mut self) {
        let Some((handle, connection)) = &mut self.connection else {
            return;
        };
        let mut answer = Vec::new();
        while let Some(data) = self.to_client.pop_front() {
            let data = BytesMut::from(&data[..]);
            let event = self
                .client
                .handle(self.now, SERVER, None, None, data, &mut answer);
            if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
                connection.handle_event(event);
            }
        }
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.client.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        while let Some(event) = connection.poll() {
            if let quinn_proto::Event::ConnectionLost { reason } = event {
                self.client_lost = format!("{reason:?}");
            }
        }
        let mut buffer = Vec::new();
        while let Some(transmit) = connection.poll_transmit(self.now, 10, &mut buffer) {
            for data in buffer.chunks(transmit.segment_size.unwrap_or(transmit.size)) {
                self.to_server.push_back(data.to_vec());
            }
            buffer.clear();
        }
    }

    /// Exchanges datagrams and lets timers expire until the server's connection is drained.
    pub(crate) fn run_to_the_end(&mut self) {
        while !self.seen.contains(&Event::Drained) {
            self.run(|_, _| {});
            let Some(index) = self.index else { return };
            let Some(timeout) = self.endpoint.timeout(index) else {
                continue;
            };
            self.now = self.now.max(timeout);
            self.endpoint.on_timeout(index, self.now);
        }
    }
}
