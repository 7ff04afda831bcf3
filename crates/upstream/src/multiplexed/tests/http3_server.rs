//! An HTTP/3 server made of our own QUIC and HTTP/3, over UDP on the loopback interface. A task of its own handles the datagrams.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2o_http::{RequestHead, StatusCode};
use h2o_http3::{Command, ErrorCode, LocalStream, Received, ServerConnection, Settings, StreamKey};
use h2o_quic::udp::{self, ReceiveBuffers};
use h2o_quic::{
    ConnectionIndex, Datagram, Endpoint, EndpointConfig, Event, Output, Read, ServerRole, StreamId,
    TransportSettings, Write,
};
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::{Instant, Sleep};

use super::kit::{Reset, Server, ServerEvent, fields_of, head_of, settle, worker};
use crate::http3::{self, Http3};
use crate::multiplexed::{Connection, StreamIndex, StreamSettings};
use crate::upstream::tests::settings as upstream_settings;
use crate::{BackendUrl, UpstreamSettings};

pub(super) struct Http3Server(Rc<RefCell<State>>);

struct State {
    io: Rc<UdpSocket>,
    udp: udp::UdpSocket,
    buffers: ReceiveBuffers,
    quic: Endpoint,
    connection: Option<ConnectionIndex>,
    engine: ServerConnection,
    local: Vec<StreamId>,
    /// The output of each stream, indexed as the engine does.
    outputs: Vec<Output>,
    events: VecDeque<ServerEvent>,
    /// The waker of the server's task.
    task: Option<Waker>,
    /// The waker of the test that waits for an event.
    waiting: Option<Waker>,
    is_silent: bool,
}

fn tls() -> Arc<ServerConfig> {
    let key = KeyPair::generate().expect("a key pair can be made");
    let params =
        CertificateParams::new(vec!["localhost".to_owned()]).expect("the host name is valid");
    let certificate = params.self_signed(&key).expect("a certificate can be made");
    let chain = vec![CertificateDer::from(certificate.der().to_vec())];
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key pair can be made");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("the key belongs to the certificate");
    config.alpn_protocols = vec![b"h3".to_vec()];
    Arc::new(config)
}

fn key(stream: StreamIndex) -> StreamKey {
    StreamKey::from_index(u32::try_from(stream.0).expect("the index fits into 32 bits"))
}

fn index(key: StreamKey) -> StreamIndex {
    StreamIndex(key.index())
}

fn engine_id(id: StreamId) -> h2o_http3::StreamId {
    h2o_http3::StreamId::new(id.number())
}

impl State {
    fn turn(&mut self, task: &mut Context<'_>) -> Option<Instant> {
        let mut batch = Vec::new();
        while self.io.poll_recv_ready(task).is_ready() {
            let (io, udp, buffers) = (&self.io, &self.udp, &mut self.buffers);
            let _ = io.try_io(Interest::READABLE, || {
                udp.receive(io, buffers, |datagram| batch.push(datagram))
            });
        }
        if self.is_silent {
            return None;
        }
        let now = Instant::now().into_std();
        for datagram in batch {
            self.take_in(datagram);
        }
        let connection = self.connection?;
        if (self.quic.timeout(connection)).is_some_and(|at| at <= now) {
            self.quic.on_timeout(connection, now);
        }
        while let Some(event) = self.quic.poll_event(connection) {
            self.on_event(event);
        }
        self.send();
        if !self.events.is_empty()
            && let Some(waiting) = self.waiting.take()
        {
            waiting.wake();
        }
        self.quic.timeout(connection).map(Instant::from_std)
    }

    fn take_in(&mut self, datagram: Datagram) {
        let now = Instant::now().into_std();
        let mut answer = Vec::new();
        match self.quic.receive(now, datagram, &mut answer) {
            h2o_quic::Received::Accepted(connection) => self.connection = Some(connection),
            h2o_quic::Received::Answered(transmit) => {
                let _ = self.udp.send(&self.io, &transmit, &answer[..transmit.len]);
            }
            _ => {}
        }
    }

    fn with_quic<R>(&mut self, use_it: impl FnOnce(&mut h2o_quic::Connection) -> R) -> Option<R> {
        self.quic.connection(self.connection?).map(use_it)
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Connected | Event::HandshakeAgreed | Event::StreamsAvailable { .. } => {
                while self.local.len() < LocalStream::ALL.len() {
                    let opened = self.with_quic(h2o_quic::Connection::open_unidirectional);
                    let Some(Some(id)) = opened else { break };
                    self.local.push(id);
                }
            }
            Event::StreamOpened(id) => {
                self.engine
                    .open(engine_id(id))
                    .expect("the client may open the stream");
                self.read(id);
            }
            Event::Readable(id) => self.read(id),
            Event::Writable(id) => {
                if let Some(key) = self.engine.find(engine_id(id)) {
                    self.with_output(index(key), Output::flush);
                }
            }
            Event::Stopped { stream, code } => {
                let stopped = self
                    .engine
                    .on_stop_sending(engine_id(stream), ErrorCode(code));
                if let Ok(Some(Received::Reset { stream, .. })) = stopped {
                    self.on_cancelled(stream);
                }
            }
            Event::Closed(_) => self.events.push_back(ServerEvent::Closed),
            _ => {}
        }
    }

    fn on_cancelled(&mut self, stream: StreamKey) {
        self.engine.release(stream);
        self.events.push_back(ServerEvent::Cancelled(index(stream)));
    }

    fn read(&mut self, id: StreamId) {
        loop {
            match self.with_quic(|quic| quic.read(id, usize::MAX)) {
                Some(Read::Data(piece)) => self.receive(id, &piece, false),
                Some(Read::Last(piece)) => {
                    self.receive(id, &piece, true);
                    return;
                }
                Some(Read::End) => {
                    self.receive(id, &[], true);
                    return;
                }
                Some(Read::Reset(code)) => {
                    let reset = self.engine.on_reset(engine_id(id), ErrorCode(code));
                    if let Ok(Some(Received::Reset { stream, .. })) = reset {
                        self.on_cancelled(stream);
                    }
                    return;
                }
                _ => return,
            }
        }
    }

    fn receive(&mut self, id: StreamId, mut input: &[u8], has_ended: bool) {
        let mut head = RequestHead::default();
        loop {
            let step = self
                .engine
                .receive(engine_id(id), input, has_ended, &mut head)
                .expect("the client sends valid HTTP/3");
            self.engine.take_costs();
            match step.received {
                Received::NeedMore => return,
                Received::Request {
                    stream, refusal, ..
                } => {
                    assert_eq!(refusal, None);
                    if self.outputs.len() <= stream.index() {
                        self.outputs
                            .resize_with(stream.index() + 1, Output::default);
                    }
                    self.outputs[stream.index()] = Output::default();
                    let request = Box::new(head.clone());
                    self.events
                        .push_back(ServerEvent::Request(index(stream), request));
                }
                Received::Data {
                    stream,
                    data,
                    end_stream,
                } => {
                    let piece = input[data].to_vec();
                    self.events
                        .push_back(ServerEvent::Data(index(stream), piece, end_stream));
                }
                Received::Reset { stream, .. } => self.on_cancelled(stream),
                _ => {}
            }
            input = &input[step.taken..];
        }
    }

    fn with_output(
        &mut self,
        stream: StreamIndex,
        use_it: impl FnOnce(&mut Output, &mut h2o_quic::Connection, StreamId),
    ) {
        let Some(id) = self.engine.stream_id(key(stream)) else {
            return;
        };
        let quic = self
            .quic
            .connection(self.connection.expect("the connection is open"));
        let output = &mut self.outputs[stream.0];
        use_it(
            output,
            quic.expect("the connection is open"),
            StreamId::new(id.get()),
        );
    }

    fn write(&mut self, stream: StreamIndex, out: Vec<u8>, end: bool) {
        self.with_output(stream, |output, quic, id| {
            output.write(quic, id, Bytes::from(out));
            if end {
                output.finish(quic, id);
            }
        });
    }

    fn send(&mut self) {
        let Some(connection) = self.connection else {
            return;
        };
        for at in 0..self.local.len() {
            let (stream, id) = (LocalStream::ALL[at], self.local[at]);
            let pending = self.engine.pending(stream).to_vec();
            if pending.is_empty() {
                continue;
            }
            if let Some(Write::Taken(len)) = self.with_quic(|quic| quic.write_copy(id, &pending)) {
                self.engine.advance(stream, len);
            }
        }
        while let Some(command) = self.engine.poll_command() {
            self.with_quic(|quic| match command {
                Command::Reset { stream, code } => {
                    quic.reset(StreamId::new(stream.get()), code.0);
                }
                Command::StopSending { stream, code } => {
                    quic.stop_sending(StreamId::new(stream.get()), code.0);
                }
            });
        }
        let now = Instant::now().into_std();
        let mut buffer = Vec::new();
        while let Some(transmit) = self.quic.transmit(connection, now, 1, &mut buffer) {
            let _ = self.udp.send(&self.io, &transmit, &buffer[..transmit.len]);
            buffer.clear();
        }
    }
}

impl Http3Server {
    /// The server answers no more from now on, as if it did not know the connection.
    pub(super) fn fall_silent(&self) {
        self.0.borrow_mut().is_silent = true;
    }

    /// Starts a server that no client has connected to yet. Returns its URL and the server.
    pub(super) fn listen() -> (BackendUrl, Self) {
        let io = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address: SocketAddr = io.local_addr().expect("the socket is bound");
        let udp = udp::UdpSocket::new(&io).expect("the socket is a UDP socket");
        io.set_nonblocking(true)
            .expect("the socket is a UDP socket");
        let io = UdpSocket::from_std(io).expect("the function is called within a runtime");
        let transport = TransportSettings {
            idle_timeout: Duration::from_secs(300),
            stream_receive_window: 65_535,
            ..TransportSettings::default()
        };
        let quic = Endpoint::new(EndpointConfig {
            server: Some(ServerRole::new(Arc::new(tls()), transport)),
            ..EndpointConfig::client(false)
        });
        let state = State {
            io: Rc::new(io),
            udp,
            buffers: ReceiveBuffers::default(),
            quic,
            connection: None,
            engine: ServerConnection::new(Arc::new(Settings::default()), true),
            local: Vec::new(),
            outputs: Vec::new(),
            events: VecDeque::new(),
            task: None,
            waiting: None,
            is_silent: false,
        };
        let state = Rc::new(RefCell::new(state));
        let weak = Rc::downgrade(&state);
        tokio::task::spawn_local(async move {
            let mut sleep: Option<Pin<Box<Sleep>>> = None;
            poll_fn(|task| {
                let Some(state) = weak.upgrade() else {
                    return Poll::Ready(());
                };
                let mut state = state.borrow_mut();
                loop {
                    let next = state.turn(task);
                    sleep = next.map(|at| Box::pin(tokio::time::sleep_until(at)));
                    let is_due = |sleep: &mut Pin<Box<Sleep>>| sleep.as_mut().poll(task).is_ready();
                    if !sleep.as_mut().is_some_and(is_due) {
                        break;
                    }
                }
                state.task = Some(task.waker().clone());
                Poll::Pending
            })
            .await;
        });
        let url = format!("https://127.0.0.1:{}/", address.port());
        let url = BackendUrl::parse(&url).expect("the URL is valid");
        (url, Self(state))
    }
}

/// Closes the connection, and tells the client unless the server is silent.
impl Drop for Http3Server {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        let now = Instant::now().into_std();
        state.with_quic(|quic| quic.close(now, 0x100, b""));
        if !state.is_silent {
            state.send();
        }
        if let Some(task) = state.task.take() {
            task.wake();
        }
    }
}

impl Server for Http3Server {
    type Engine = Http3;

    async fn start(settings: StreamSettings) -> (Rc<Connection<Http3>>, Self) {
        let (url, server) = Self::listen();
        let settings = UpstreamSettings {
            http2_max_streams: settings.max_streams,
            max_buffer_size: Some(settings.window.into()),
            first_byte_timeout: settings.first_byte_timeout,
            io_timeout: settings.io_timeout,
            keepalive: settings.keepalive,
            ..upstream_settings()
        };
        let limit = Duration::from_secs(60);
        let connection = http3::connect(&worker(), &settings, &url, 7, limit).await;
        (
            connection.expect("the server accepts the connection"),
            server,
        )
    }

    async fn next(&mut self) -> ServerEvent {
        poll_fn(|task| {
            let mut state = self.0.borrow_mut();
            match state.events.pop_front() {
                Some(event) => Poll::Ready(event),
                None => {
                    state.waiting = Some(task.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    async fn flush(&mut self) {
        {
            let mut state = self.0.borrow_mut();
            state.send();
            if let Some(task) = state.task.take() {
                task.wake();
            }
        }
        settle().await;
    }

    fn respond(
        &mut self,
        stream: StreamIndex,
        status: u16,
        fields: &[(&str, &str)],
        length: Option<u64>,
        end: bool,
    ) {
        let headers = fields_of(fields);
        let head = head_of(status, &headers, length);
        let (state, mut out) = (&mut *self.0.borrow_mut(), Vec::new());
        state.engine.respond(key(stream), &head, end, &mut out);
        state.write(stream, out, end);
    }

    fn inform(&mut self, stream: StreamIndex, status: u16, fields: &[(&str, &str)]) {
        let status = StatusCode::new(status).expect("the number is a valid status code");
        let (state, mut out) = (&mut *self.0.borrow_mut(), Vec::new());
        let headers = fields_of(fields);
        state.engine.inform(key(stream), status, &headers, &mut out);
        state.write(stream, out, false);
    }

    fn send(&mut self, stream: StreamIndex, data: &[u8], end: bool) {
        let (state, mut out) = (&mut *self.0.borrow_mut(), Vec::new());
        state.engine.send_data(key(stream), data, end, &mut out);
        state.write(stream, out, end);
    }

    fn end(&mut self, stream: StreamIndex, trailers: &[(&str, &str)]) {
        let (state, mut out) = (&mut *self.0.borrow_mut(), Vec::new());
        let trailers = fields_of(trailers);
        state.engine.finish(key(stream), Some(&trailers), &mut out);
        state.write(stream, out, true);
    }

    fn reset(&mut self, stream: StreamIndex, reset: Reset) {
        let code = match reset {
            Reset::Refused => ErrorCode::REQUEST_REJECTED,
            Reset::Failed => ErrorCode::INTERNAL_ERROR,
        };
        self.0.borrow_mut().engine.reset(key(stream), code);
    }

    fn release(&mut self, stream: StreamIndex) {
        self.0.borrow_mut().engine.release(key(stream));
    }

    fn leave(&mut self) {
        let now = Instant::now().into_std();
        self.0.borrow_mut().engine.shut_down(now);
    }
}
