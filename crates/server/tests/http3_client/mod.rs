//! An HTTP/3 client for tests. It uses the QUIC transport of this project, but has its own code for HTTP/3 frames and QPACK,
//! independent of the server's.

#![allow(dead_code, reason = "each test file uses a part of this module")]
#![allow(
    clippy::disallowed_methods,
    reason = "a client over a socket goes by the clock of the machine"
)]

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use h2o_quic::{
    ClientTls, ConnectionIndex, Datagram, Endpoint, EndpointConfig, Event, KnownPaths, Neighbours,
    Placement, Read, StreamId, TransportSettings, Write,
};
use h2o_testkit::http3::{Decoder, Frame, encode};
use h2o_testkit::tls::AnyCertificate;
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::ServerName;

/// How long the client waits for any event before the test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// The part of a response that has come on a stream.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// The header field sections received on the stream, in order.
    pub(crate) heads: Vec<Vec<(String, String)>>,
    pub(crate) content: Vec<u8>,
    pub(crate) has_ended: bool,
    /// The error code with which the server has reset the stream.
    pub(crate) reset: Option<u64>,
    unread: Vec<u8>,
}

impl Answer {
    /// The status codes of the heads received.
    pub(crate) fn statuses(&self) -> Vec<u16> {
        let of = |head: &Vec<(String, String)>| head[0].1.parse().expect("`:status` comes first");
        self.heads.iter().map(of).collect()
    }

    fn receive(&mut self, stream: StreamId, bytes: &[u8], decoder: &mut Decoder) {
        self.unread.extend_from_slice(bytes);
        while let Some((frame, len)) = Frame::parse(&self.unread) {
            self.unread.drain(..len);
            match frame.kind {
                0 => self.content.extend_from_slice(&frame.payload),
                1 => {
                    let decoded = decoder.decode(stream.number(), &frame.payload);
                    let Ok((fields, _)) = decoded else {
                        panic!("a decoder without a table never waits for entries");
                    };
                    let text = |bytes: Vec<u8>| {
                        String::from_utf8(bytes).expect("names and values of the fields are UTF-8")
                    };
                    let fields = fields.into_iter();
                    self.heads.push(
                        fields
                            .map(|(name, value)| (text(name), text(value)))
                            .collect(),
                    );
                }
                kind => panic!("a frame of type {kind} on a request stream"),
            }
        }
    }
}

/// One connection of the client.
pub(crate) struct Client {
    socket: UdpSocket,
    endpoint: Endpoint,
    index: ConnectionIndex,
    decoder: Decoder,
    answers: HashMap<StreamId, Answer>,
    is_connected: bool,
    pub(crate) is_closed: bool,
    /// Whether the client reads the data that comes on streams.
    reads: bool,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects to a port of this machine, and sends SETTINGS without a QPACK dynamic table.
    pub(crate) fn connect(port: u16) -> Self {
        Self::connect_with(port, TransportSettings::default())
    }

    /// Like [`Client::connect`], with a flow control window of `window` bytes for each stream, which the client does
    /// not enlarge.
    pub(crate) fn stalled(port: u16, window: u64) -> Self {
        let transport = TransportSettings {
            stream_receive_window: window,
            receive_window: 1 << 30,
            ..TransportSettings::default()
        };
        let mut client = Self::connect_with(port, transport);
        client.reads = false;
        client
    }

    fn connect_with(port: u16, transport: TransportSettings) -> Self {
        let mut client = Self::begin(port, transport);
        client.until(|client| client.is_connected);
        let settings = [&[0][..], &Frame::settings(&[]).bytes()].concat();
        let control = client.quic(|quic| quic.open_unidirectional());
        client.write(
            control.expect("the server allows three unidirectional streams"),
            &settings,
            false,
        );
        client
    }

    /// Sends a ClientHello and waits for an answer, to which it says nothing: the handshake never ends.
    pub(crate) fn half_open(port: u16) -> Self {
        let mut client = Self::begin(port, TransportSettings::default());
        client.send_datagrams();
        let set = client.socket.set_read_timeout(Some(PATIENCE));
        set.expect("the time is not zero");
        let answer = client.socket.recv(&mut [0; 2048]);
        answer.expect("the server answers");
        client
    }

    fn begin(port: u16, transport: TransportSettings) -> Self {
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate::default()))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h3".to_vec()];
        let tls = ClientTls {
            config: Arc::new(config),
            server_name: ServerName::try_from("a.test").expect("a.test is a host name"),
        };
        let mut endpoint = Endpoint::new(EndpointConfig {
            keys: Vec::new(),
            placement: Placement::default(),
            neighbours: Neighbours::default(),
            known_paths: KnownPaths::default(),
            server: None,
            finds_mtu: false,
            seed: None,
        });
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a UDP port is free");
        let remote = ([127, 0, 0, 1], port).into();
        let transport = TransportSettings {
            idle_timeout: Duration::from_secs(600),
            ..transport
        };
        let index = endpoint
            .connect(Instant::now(), remote, tls, &transport)
            .expect("the configuration is good");
        Self {
            socket,
            endpoint,
            index,
            decoder: Decoder::new(0),
            answers: HashMap::new(),
            is_connected: false,
            is_closed: false,
            reads: true,
            buffer: Vec::new(),
        }
    }

    fn quic<R>(&mut self, use_it: impl FnOnce(&mut h2o_quic::Connection) -> R) -> R {
        let quic = self.endpoint.connection(self.index);
        use_it(quic.expect("the connection is not drained"))
    }

    fn write(&mut self, stream: StreamId, mut bytes: &[u8], is_end: bool) {
        while !bytes.is_empty() && !self.is_closed {
            match self.quic(|quic| quic.write_copy(stream, bytes)) {
                Write::Taken(len) => bytes = &bytes[len..],
                Write::Blocked => self.turn(),
                Write::Stopped(_) | Write::Unknown => return,
            }
        }
        if is_end && !self.is_closed {
            self.quic(|quic| quic.finish(stream));
        }
    }

    /// Sends the head of a request; `fields` has all of its pseudo-header fields.
    pub(crate) fn ask(&mut self, fields: &[(&str, &str)], is_end: bool) -> StreamId {
        let stream = self.quic(|quic| quic.open_bidirectional());
        let stream = stream.expect("the server allows another request");
        self.answers.insert(stream, Answer::default());
        let head = Frame::headers(encode(fields)).bytes();
        self.write(stream, &head, is_end);
        stream
    }

    /// Asks the server to send nothing more on a stream.
    pub(crate) fn stop(&mut self, stream: StreamId) {
        const REQUEST_CANCELLED: u64 = 0x10c;
        self.quic(|quic| quic.stop_sending(stream, REQUEST_CANCELLED));
    }

    /// Sends bytes of a request's body.
    pub(crate) fn send(&mut self, stream: StreamId, content: &[u8], is_end: bool) {
        let frame = Frame::data(content).bytes();
        self.write(stream, &frame, is_end);
    }

    /// The part of the response that has come on a stream.
    pub(crate) fn answer(&self, stream: StreamId) -> &Answer {
        &self.answers[&stream]
    }

    /// Exchanges datagrams with the server until `is_so` is true, or the connection is closed.
    pub(crate) fn until(&mut self, mut is_so: impl FnMut(&Self) -> bool) {
        let limit = Instant::now() + PATIENCE;
        while !is_so(self) && !self.is_closed {
            assert!(
                Instant::now() < limit,
                "the server has not sent in time what the test waits for"
            );
            self.turn();
        }
    }

    /// Sends the datagrams that the transport has now, without reading.
    pub(crate) fn flush(&mut self) {
        self.send_datagrams();
    }

    /// Sends the datagrams that the transport has, and waits a while for a datagram from the server.
    pub(crate) fn exchange(&mut self) {
        self.turn();
    }

    /// Reads and acknowledges datagrams from the server, until none comes for 60 ms.
    pub(crate) fn settle(&mut self) {
        let set = self
            .socket
            .set_read_timeout(Some(Duration::from_millis(60)));
        set.expect("the time is not zero");
        while self.receive() && !self.is_closed {}
    }

    /// Sends the datagrams that the transport has, and waits for a datagram or the transport's next timer.
    fn turn(&mut self) {
        self.send_datagrams();
        let timeout = self.endpoint.timeout(self.index);
        let wait = timeout.map_or(PATIENCE, |at| at.saturating_duration_since(Instant::now()));
        let wait = wait.clamp(Duration::from_millis(1), Duration::from_secs(1));
        let set = self.socket.set_read_timeout(Some(wait));
        set.expect("the time is not zero");
        self.receive();
    }

    /// Reads a datagram if one comes within the socket's timeout, and sends the transport's answers to it. Returns whether one
    /// came.
    fn receive(&mut self) -> bool {
        let mut has_come = false;
        let mut data = [0; 2048];
        match self.socket.recv_from(&mut data) {
            Ok((len, remote)) => {
                has_come = true;
                let datagram = Datagram {
                    remote,
                    local: None,
                    ecn: None,
                    data: BytesMut::from(&data[..len]),
                };
                let now = Instant::now();
                self.endpoint.receive(now, datagram, &mut self.buffer);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            // The server has closed its socket.
            Err(_) => self.is_closed = true,
        }
        self.endpoint.on_timeout(self.index, Instant::now());
        self.take_events();
        self.send_datagrams();
        has_come
    }

    fn send_datagrams(&mut self) {
        loop {
            self.buffer.clear();
            let (index, now) = (self.index, Instant::now());
            let Some(transmit) = self.endpoint.transmit(index, now, 1, &mut self.buffer) else {
                return;
            };
            let _ = self
                .socket
                .send_to(&self.buffer[..transmit.len], transmit.remote);
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event(self.index) {
            match event {
                Event::Connected => self.is_connected = true,
                Event::Readable(stream) if self.reads => self.read(stream),
                Event::Closed(_) | Event::Drained => self.is_closed = true,
                _ => {}
            }
        }
    }

    fn read(&mut self, stream: StreamId) {
        loop {
            let read = self.quic(|quic| quic.read(stream, usize::MAX));
            let Some(answer) = self.answers.get_mut(&stream) else {
                return;
            };
            match read {
                Read::Data(bytes) => answer.receive(stream, &bytes, &mut self.decoder),
                Read::Last(bytes) => {
                    answer.receive(stream, &bytes, &mut self.decoder);
                    answer.has_ended = true;
                }
                Read::End => answer.has_ended = true,
                Read::Reset(code) => answer.reset = Some(code),
                Read::Blocked | Read::Unknown => return,
            }
            if answer.has_ended || answer.reset.is_some() {
                return;
            }
        }
    }
}

/// Closes the connection with CONNECTION_CLOSE, so that the server need not wait for the idle timeout.
impl Drop for Client {
    fn drop(&mut self) {
        if !self.is_closed {
            self.quic(|quic| quic.close(Instant::now(), 0x100, b""));
            self.send_datagrams();
        }
    }
}
