//! A simulated HTTP/3 client over a network that loses datagrams. It stalls, does not read, resets requests, and leaves
//! at random, as the seed decides.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use h2o_quic::{
    ClientTls, ConnectionIndex, Datagram, Endpoint, EndpointConfig, Event, KnownPaths, Neighbours,
    Placement, Read, StreamId, TransportSettings, Write,
};
use h2o_testkit::Random;
use h2o_testkit::http3::{Decoder, Frame, encode};
use rustls::ClientConfig;

use super::{Ended, Run};

/// The error code H3_REQUEST_CANCELLED (RFC 9114 §8.1).
const CANCELLED: u64 = 0x10c;

pub(super) struct Http3 {
    socket: UdpSocket,
    endpoint: Endpoint,
    index: ConnectionIndex,
    todo: VecDeque<usize>,
    streams: BTreeMap<StreamId, Stream>,
    decoder: Decoder,
    /// Datagrams from the server that the client has not processed.
    inbox: RefCell<VecDeque<Vec<u8>>>,
    buffer: Vec<u8>,
    /// One in this many datagrams is lost, in either direction; with 0 none is lost.
    loses: usize,
    is_connected: bool,
    has_left: bool,
    is_closed: bool,
}

#[derive(Debug)]
struct Stream {
    id: usize,
    /// Encoded bytes of the request that were not handed to the transport yet.
    out: Vec<u8>,
    /// Number of bytes of the request's body that were encoded.
    sent: usize,
    /// Whether the whole request is encoded; the next field says whether the end of the stream was handed to the transport.
    is_sent: bool,
    is_ended: bool,
    input: Vec<u8>,
    /// Bytes of content left in the current DATA frame.
    in_frame: u64,
    received: usize,
    has_response: bool,
    is_received: bool,
}

/// The simulated time.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Http3 {
    pub(super) fn new(
        port: u16,
        tls: Arc<ClientConfig>,
        todo: VecDeque<usize>,
        window: u64,
        loses: usize,
    ) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut endpoint = Endpoint::new(EndpointConfig {
            keys: Vec::new(),
            placement: Placement::default(),
            known_paths: KnownPaths::default(),
            neighbours: Neighbours::default(),
            server: None,
            finds_mtu: false,
            seed: None,
        });
        let tls = ClientTls {
            config: tls,
            server_name: "sim.test".try_into().unwrap(),
        };
        let transport = TransportSettings {
            stream_receive_window: window,
            ..TransportSettings::default()
        };
        let remote = ([127, 0, 0, 1], port).into();
        let index = endpoint.connect(now(), remote, tls, &transport).unwrap();
        Self {
            socket,
            endpoint,
            index,
            todo,
            streams: BTreeMap::new(),
            decoder: Decoder::new(0),
            inbox: RefCell::default(),
            buffer: Vec::new(),
            loses,
            is_connected: false,
            has_left: false,
            is_closed: false,
        }
    }

    /// Receives the datagrams from the server, and returns the number of those that the client has not processed.
    pub(super) fn waiting(&self) -> usize {
        let mut inbox = self.inbox.borrow_mut();
        let mut data = [0; 2048];
        loop {
            match self.socket.recv(&mut data) {
                Ok(len) => inbox.push_back(data[..len].to_vec()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return inbox.len(),
                // The kernel reports an error (ICMP) of a datagram that the client has sent earlier.
                Err(_) => {}
            }
        }
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "HTTP/3: to do {:?}, connected: {}, left: {}, closed: {}, datagrams wait: {:?}, streams {:#?}",
            self.todo,
            self.is_connected,
            self.has_left,
            self.is_closed,
            {
                self.waiting();
                self.inbox.borrow().iter().map(Vec::len).collect::<Vec<_>>()
            },
            self.streams,
        )
    }

    pub(super) fn remaining(&mut self) -> Option<VecDeque<usize>> {
        let is_over = self.is_closed && !self.has_left && !self.todo.is_empty();
        is_over.then(|| std::mem::take(&mut self.todo))
    }

    fn quic(&mut self) -> Option<&mut h2o_quic::Connection> {
        self.endpoint.connection(self.index)
    }

    pub(super) fn act(&mut self, run: &mut Run, random: &mut Random) {
        match random.below(50) {
            0..10 => {
                self.begin(run);
            }
            10..20 => {
                let most = random.pick(&[1, 50, 5000, 100_000]);
                let len = random.below(most) + 1;
                let open: Vec<StreamId> = self.streams.keys().copied().collect();
                if !open.is_empty() {
                    self.produce(run, random.pick(&open), len);
                }
            }
            20..28 => {
                self.send(random);
            }
            28..38 => {
                let most = random.pick(&[1, 3, 20]);
                self.take_in(run, random.below(most) + 1, Some(random));
            }
            38..46 => {
                let open: Vec<StreamId> = self.streams.keys().copied().collect();
                if !open.is_empty() {
                    let most = random.pick(&[1, 50, 5000, 200_000]);
                    let len = random.below(most) + 1;
                    self.read(run, random.pick(&open), len);
                }
            }
            46 | 47 => self.cancel(run, random),
            _ if random.once_in(20) => self.leave(run, random),
            _ => {}
        }
    }

    /// Sends and receives as many bytes as possible. Returns whether anything happened.
    pub(super) fn cooperate(&mut self, run: &mut Run) -> bool {
        let mut has_moved = false;
        loop {
            let mut moved = false;
            while self.begin(run) {
                moved = true;
            }
            let open: Vec<StreamId> = self.streams.keys().copied().collect();
            for stream in open {
                moved |= self.produce(run, stream, 20_000);
                moved |= self.read(run, stream, usize::MAX);
            }
            moved |= self.take_in(run, usize::MAX, None);
            moved |= self.transmit(|| false);
            if !moved {
                return has_moved;
            }
            has_moved = true;
        }
    }

    /// When the client's transport must run next because of a timer.
    pub(super) fn timeout(&mut self) -> Option<Instant> {
        self.endpoint.timeout(self.index)
    }

    fn begin(&mut self, run: &Run) -> bool {
        if self.has_left || self.is_closed || !self.is_connected || self.streams.len() >= 90 {
            return false;
        }
        let Some(&id) = self.todo.front() else {
            return false;
        };
        let Some(Some(stream)) = self.quic().map(h2o_quic::Connection::open_bidirectional) else {
            return false;
        };
        self.todo.pop_front();
        let plan = &run.plans[id];
        let method = match plan.upload {
            Some(_) => "POST",
            None if plan.is_head => "HEAD",
            None => "GET",
        };
        let path = format!("/{id}");
        let len = plan.upload.unwrap_or(0).to_string();
        let mut fields = vec![
            (":method", method),
            (":scheme", "https"),
            (":authority", "sim.test"),
            (":path", &path),
        ];
        if plan.upload.is_some() && plan.is_announced {
            fields.push(("content-length", &len));
        }
        if plan.expects {
            fields.push(("expect", "100-continue"));
        }
        let state = Stream {
            id,
            out: Frame::headers(encode(&fields)).bytes(),
            sent: 0,
            is_sent: plan.upload.is_none(),
            is_ended: false,
            input: Vec::new(),
            in_frame: 0,
            received: 0,
            has_response: false,
            is_received: false,
        };
        self.streams.insert(stream, state);
        self.write(stream);
        true
    }

    /// Encodes up to `most` more bytes of a request body, and hands as much of the output to the transport as it
    /// accepts.
    fn produce(&mut self, run: &Run, id: StreamId, most: usize) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else {
            return false;
        };
        if !stream.is_sent && stream.out.len() < 100_000 {
            let plan = &run.plans[stream.id];
            let total = plan.upload.unwrap_or(0);
            let len = most.min(total - stream.sent);
            let piece: Vec<u8> = (stream.sent..stream.sent + len)
                .map(|at| plan.request_byte(at))
                .collect();
            if len > 0 {
                stream.out.extend_from_slice(&Frame::data(piece).bytes());
            }
            stream.sent += len;
            stream.is_sent = stream.sent == total;
        }
        self.write(id)
    }

    fn write(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else {
            return false;
        };
        let Some(quic) = self.endpoint.connection(self.index) else {
            return false;
        };
        let mut moved = false;
        while !stream.out.is_empty() {
            match quic.write_copy(id, &stream.out) {
                Write::Taken(len) => {
                    stream.out.drain(..len);
                    moved = true;
                }
                Write::Blocked => return moved,
                // The server does not want the rest of the request's body.
                Write::Stopped(_) | Write::Unknown => {
                    stream.out.clear();
                    stream.is_sent = true;
                }
            }
        }
        if stream.is_sent && !std::mem::replace(&mut stream.is_ended, true) {
            quic.finish(id);
            moved = true;
        }
        if stream.is_ended && stream.is_received {
            self.streams.remove(&id);
        }
        moved
    }

    fn cancel(&mut self, run: &mut Run, random: &mut Random) {
        let open: Vec<StreamId> = self.streams.keys().copied().collect();
        if open.is_empty() {
            return;
        }
        let id = random.pick(&open);
        if let Some(quic) = self.quic() {
            quic.reset(id, CANCELLED);
            quic.stop_sending(id, CANCELLED);
        }
        if let Some(stream) = self.streams.remove(&id)
            && !stream.is_received
        {
            run.end(stream.id, Ended::Cut);
        }
    }

    /// The client ends the connection: it either sends CONNECTION_CLOSE or falls silent.
    fn leave(&mut self, run: &mut Run, random: &mut Random) {
        self.has_left = true;
        for id in self.todo.drain(..) {
            run.end(id, Ended::Cut);
        }
        if random.once_in(2)
            && let Some(quic) = self.endpoint.connection(self.index)
        {
            quic.close(now(), 0x100, b"");
            self.transmit(|| false);
        }
        self.is_closed = true;
        self.end_all(run);
    }

    fn end_all(&mut self, run: &mut Run) {
        for (_, stream) in std::mem::take(&mut self.streams) {
            if !stream.is_received {
                run.end(stream.id, Ended::Cut);
            }
        }
    }

    fn send(&mut self, random: &mut Random) {
        let loses = self.loses;
        self.transmit(|| loses > 0 && random.once_in(loses));
    }

    /// Sends the transport's datagrams; `is_lost` decides for each of them whether it is lost.
    fn transmit(&mut self, mut is_lost: impl FnMut() -> bool) -> bool {
        let mut moved = false;
        loop {
            self.buffer.clear();
            let (index, buffer) = (self.index, &mut self.buffer);
            let Some(transmit) = self.endpoint.transmit(index, now(), 1, buffer) else {
                return moved;
            };
            moved = true;
            if !is_lost() {
                let data = &self.buffer[..transmit.len];
                // An error is ignored: the server's socket may be closed.
                let _ = self.socket.send_to(data, transmit.remote);
            }
        }
    }

    /// Processes up to `most` datagrams from the server, and the timers that are due.
    fn take_in(&mut self, run: &mut Run, most: usize, mut random: Option<&mut Random>) -> bool {
        self.waiting();
        if self.is_closed {
            self.inbox.borrow_mut().clear();
            return false;
        }
        let mut moved = false;
        for _ in 0..most {
            let Some(data) = self.inbox.borrow_mut().pop_front() else {
                break;
            };
            moved = true;
            let loses = self.loses;
            if let Some(random) = &mut random
                && loses > 0
                && random.once_in(loses)
            {
                continue;
            }
            let datagram = Datagram {
                remote: self.remote(),
                local: None,
                ecn: None,
                data: BytesMut::from(&data[..]),
            };
            let mut answer = Vec::new();
            self.endpoint.receive(now(), datagram, &mut answer);
        }
        if self.timeout().is_some_and(|at| at <= now()) {
            self.endpoint.on_timeout(self.index, now());
        }
        while let Some(event) = self.endpoint.poll_event(self.index) {
            moved = true;
            match event {
                Event::Connected => self.on_connected(),
                Event::Closed(reason) => {
                    self.is_closed = true;
                    assert!(
                        self.streams.is_empty() || run.times_out,
                        "closed before the end of {:?}: {reason}",
                        self.streams.keys()
                    );
                    self.end_all(run);
                }
                Event::Drained => break,
                _ => {}
            }
        }
        moved
    }

    fn remote(&mut self) -> std::net::SocketAddr {
        let quic = self.endpoint.connection(self.index);
        quic.expect("the connection is not drained")
            .remote_address()
    }

    fn on_connected(&mut self) {
        self.is_connected = true;
        let settings = [&[0][..], &Frame::settings(&[]).bytes()].concat();
        let quic = self.quic().expect("the connection is open");
        let control = quic
            .open_unidirectional()
            .expect("the server allows three unidirectional streams");
        assert_eq!(
            quic.write_copy(control, &settings),
            Write::Taken(settings.len())
        );
    }

    /// Reads up to `most` bytes of a response from its stream.
    fn read(&mut self, run: &mut Run, id: StreamId, most: usize) -> bool {
        let mut left = most;
        let mut moved = false;
        while left > 0 {
            let Some(stream) = self.streams.get_mut(&id).filter(|it| !it.is_received) else {
                break;
            };
            let Some(quic) = self.endpoint.connection(self.index) else {
                break;
            };
            let (bytes, has_ended) = match quic.read(id, left) {
                Read::Data(bytes) => (bytes, false),
                Read::Last(bytes) => (bytes, true),
                Read::End => (Bytes::new(), true),
                Read::Reset(code) => {
                    let plan = &run.plans[stream.id];
                    assert!(
                        plan.fails() || run.times_out,
                        "stream {id:?} was reset: {code:#x}"
                    );
                    run.end(stream.id, Ended::Cut);
                    self.streams.remove(&id);
                    return true;
                }
                Read::Blocked | Read::Unknown => break,
            };
            left -= bytes.len();
            stream.input.extend_from_slice(&bytes);
            self.parse(run, id);
            moved = true;
            if has_ended {
                self.on_end(run, id);
                break;
            }
        }
        moved
    }

    /// Checks a response that has ended.
    fn on_end(&mut self, run: &mut Run, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let plan = &run.plans[stream.id];
        assert!(stream.has_response, "stream {id:?}");
        if !plan.is_head {
            assert_eq!(stream.received, plan.response_len(), "stream {id:?}");
        }
        stream.is_received = true;
        run.end(stream.id, Ended::Complete);
        if stream.is_ended {
            self.streams.remove(&id);
        }
    }

    /// Parses the frames of a response that have come completely.
    fn parse(&mut self, run: &Run, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        loop {
            if stream.in_frame > 0 {
                let len = usize::try_from(stream.in_frame).unwrap();
                let len = len.min(stream.input.len());
                let plan = &run.plans[stream.id];
                for byte in stream.input.drain(..len) {
                    assert_eq!(byte, plan.response_byte(stream.received), "stream {id:?}");
                    stream.received += 1;
                }
                stream.in_frame -= len as u64;
                if stream.in_frame > 0 {
                    return;
                }
            }
            let Some((kind, behind)) = var_int(&stream.input) else {
                return;
            };
            let Some((len, payload)) = var_int(behind) else {
                return;
            };
            let head_len = stream.input.len() - payload.len();
            if kind == 0 {
                stream.in_frame = len;
                stream.input.drain(..head_len);
                continue;
            }
            let len = usize::try_from(len).unwrap();
            let Some(payload) = payload.get(..len) else {
                return;
            };
            if kind == 1 {
                let decoded = self.decoder.decode(id.number(), payload);
                let Ok((fields, _)) = decoded else {
                    panic!("a decoder without a table never waits for entries");
                };
                // A second HEADERS frame holds the trailers, which have no status.
                if let Some((_, status)) = fields.iter().find(|(name, _)| name == b":status") {
                    let is_interim = status.starts_with(b"1");
                    assert!(is_interim || status == b"200", "stream {id:?}");
                    stream.has_response |= !is_interim;
                }
            }
            stream.input.drain(..head_len + len);
        }
    }
}

/// Reads a variable-length integer (RFC 9000 §16). Returns the integer and the bytes after it.
fn var_int(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (&first, _) = bytes.split_first()?;
    let (number, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    let value = (number[1..].iter()).fold(u64::from(first & 0x3f), |value, &byte| {
        value << 8 | u64::from(byte)
    });
    Some((value, rest))
}
