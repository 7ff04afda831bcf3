//! One connection: its events, streams and datagrams.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{Dir, ReadError, ReadableError, StreamEvent, VarInt, WriteError};

use crate::close::CloseReason;
use crate::config::TransportSettings;
use crate::congestion::{Desk, Gate, Pacer};
use crate::costs::{Costs, Deeds};
use crate::endpoint::Transmit;
use crate::paths::Paths;
use crate::stats::Stats;
use crate::stream::{Read, StreamId, Write};
use crate::tail::Tail;
use crate::tls::{Handshake, SessionFacts};
use crate::trace::{Metrics, Trace};

/// What has happened on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// TLS has agreed on what [`Connection::handshake`] tells. The server may get early data from now on, and may answer it.
    HandshakeAgreed,
    /// The handshake is done: nothing that is read from now on can be a replay.
    Connected,
    /// The peer has opened this stream, and there may be something to read.
    StreamOpened(StreamId),
    /// There is something to read, or the stream has ended or was reset.
    Readable(StreamId),
    /// There is room again for a stream whose write was [`Write::Blocked`].
    Writable(StreamId),
    /// The peer has all of a stream that was finished.
    Finished(StreamId),
    /// The peer wants no more of this stream (RFC 9000 §19.5).
    Stopped {
        /// The stream.
        stream: StreamId,
        /// The peer's reason.
        code: u64,
    },
    /// The peer allows more streams to be opened.
    StreamsAvailable {
        /// Of which kind.
        bidirectional: bool,
    },
    /// A DATAGRAM frame has arrived: [`Connection::receive_datagram`] returns its content.
    DatagramReceived,
    /// There is room again for a datagram that was [`SendDatagramError::Blocked`].
    DatagramsUnblocked,
    /// The connection has ended. Streams are gone; packets about it may still be sent.
    Closed(CloseReason),
    /// Nothing remains of the connection. Its index is free from now on.
    Drained,
}

/// Why a QUIC datagram cannot be sent (RFC 9221).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendDatagramError {
    /// The peer does not take datagrams, or this side was configured without.
    Unsupported,
    /// The datagram is larger than a packet, or than the peer's `max_datagram_frame_size`.
    TooLarge,
    /// Too many datagrams are queued already; [`Event::DatagramsUnblocked`] tells when to try again.
    Blocked,
}

/// One connection.
pub struct Connection {
    pub(crate) library: quinn_proto::Connection,
    /// Streams the library has announced and the caller has not been told of.
    opened: VecDeque<StreamId>,
    is_closed: bool,
    /// The frame that has ended it.
    close: Option<Close>,
    /// Whether its packets are marked as ECN-capable.
    marks_ecn: bool,
    pacer: Option<Pacer>,
    /// When the pacer lets more go; `None` if it does not hold anything back.
    paced_until: Option<Instant>,
    /// Since when the window is full and nothing has happened.
    stall: Option<Stall>,
    /// Of a connection that was accepted, until its handshake is done.
    limit: Option<HandshakeLimit>,
    /// What of that limit it was closed for.
    exceeded: Option<Exceeded>,
    tail: Tail,
    /// Whether a timer has expired, so that the next packets may be probes.
    may_probe: bool,
    costs: Costs,
    deeds: Deeds,
    send_window: u64,
    /// Bytes written since nothing was to be acknowledged, and in all.
    written: u64,
    stream_bytes_sent: u64,
    unread: Unread,
    /// Datagrams received since what they cost was last added up.
    uncharged: u32,
    remote: SocketAddr,
    /// Of a client that datagrams have come of from several addresses.
    paths: Option<Box<Paths>>,
    trace: Option<Box<Trace>>,
    /// Whether the library is done with it; the endpoint is told when [`Event::Drained`] is taken.
    pub(crate) is_drained: bool,
}

/// How packets of a connection are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    pub(crate) is_paced: bool,
    marks_ecn: bool,
}

impl Sending {
    /// What is drawn for a connection.
    pub(crate) fn of(settings: &TransportSettings, mut draw: impl FnMut() -> u64) -> Self {
        Self {
            is_paced: settings.is_paced.includes(draw()),
            marks_ecn: settings.ecn.includes(draw()),
        }
    }
}

/// Memory of a connection during and after its handshake, with 100 streams allowed. Measured with an allocator that counts.
const HANDSHAKE_LEN: usize = 32 * 1024;
const ESTABLISHED_LEN: usize = 11 * 1024;

/// What a datagram has besides content: ids, tags, the headers of frames, acknowledgements.
const DATAGRAM_OVERHEAD: usize = 64;
/// Datagrams received between two looks at what they cost. One of them has at most 1,500 frames.
const CHARGED_DATAGRAMS: u32 = 16;

/// Content that was received and not read. The library does not tell how much that is: it is found out from the length of datagrams,
/// since the last time that the peer had no request open.
#[derive(Clone, Copy, Debug, Default)]
struct Unread {
    received: u64,
    read: u64,
    sent: u64,
}

impl Unread {
    const fn on_datagram(&mut self, len: usize) {
        self.received += len.saturating_sub(DATAGRAM_OVERHEAD) as u64;
    }

    /// The estimate. A part of what was read and sent is taken off, so that long acknowledgements and what came twice do not add up on a
    /// connection that is never without a request.
    const fn bytes(&self) -> u64 {
        let read = self.read + self.read / 8 + self.sent / 256;
        self.received.saturating_sub(read)
    }
}

/// The shortest round trip that the time for a handshake is counted in: the one assumed before there is a sample. Over a short path a
/// client needs most of the time for its computations.
const LEAST_HANDSHAKE_RTT: Duration = Duration::from_millis(66);

/// ACK frames sent during a handshake: for a client that sends early data, a few dozen. The library remembers each packet with one, some
/// hundred bytes, until the client acknowledges it.
const MAX_HANDSHAKE_ACKS: u64 = 64;

/// NEW_TOKEN frames sent during a handshake. The library (quinn-proto 0.11) sends one for each Handshake packet that it gets, and remembers
/// it until the client acknowledges it: about 700 bytes for a packet of 50. A client needs such packets for what it acknowledges of the
/// server's certificates, for its own certificates and for its Finished message, and again for those of them that are lost.
const MAX_HANDSHAKE_TOKENS: u64 = 20;

/// What has to be free in a packet for the library to put PATH_CHALLENGE there.
const CHALLENGE_ROOM: usize = 10;

/// How long a handshake of so many round trips may take.
fn handshake_time(rtt: Duration, round_trips: u32) -> Duration {
    rtt.max(LEAST_HANDSHAKE_RTT) * round_trips
}

/// What a handshake has taken too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exceeded {
    Time,
    Packets,
}

/// Whose CONNECTION_CLOSE has ended a connection, and of which kind (RFC 9000 §19.19).
#[derive(Clone, Copy, Debug)]
enum Close {
    PeerTransport,
    PeerApplication,
    /// Ours, for what the peer did.
    Transport,
    /// That of our application.
    Local,
}

impl Close {
    const fn of(reason: &CloseReason) -> Option<Self> {
        match reason {
            CloseReason::ClosedByTransport { .. } => Some(Self::PeerTransport),
            CloseReason::ClosedByApplication { .. } => Some(Self::PeerApplication),
            CloseReason::PeerError { .. } => Some(Self::Transport),
            CloseReason::Local => Some(Self::Local),
            CloseReason::Version
            | CloseReason::Reset
            | CloseReason::IdleTimeout
            | CloseReason::HandshakeTimeout => None,
        }
    }
}

/// How long a handshake may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandshakeLimit {
    pub(crate) began: Instant,
    /// In round trip times; 0 for no limit.
    pub(crate) round_trips: u32,
    pub(crate) datagrams: u64,
    /// Until the client has shown that it receives at its address (RFC 9000 §8.1): so many bytes are sent for each received. The library
    /// has the same limit, but begins a datagram as long as there is any credit.
    pub(crate) amplification: Option<u64>,
    /// Bytes received from the client, with those of the first datagram, which the count of the library leaves out.
    pub(crate) received: u64,
    /// A hash of the id that the client has made up: one that we have made shows that it receives.
    pub(crate) first_id: u64,
}

/// A full window for which no acknowledgement comes.
#[derive(Clone, Copy, Debug)]
struct Stall {
    ends: Instant,
    /// How often it has ended without one.
    count: u32,
}

/// What is in flight can be forgotten by the library without a word to the controller: when handshake keys are discarded. A window that
/// is full of such bytes is opened after this time, which doubles.
const STALL_TIME: Duration = Duration::from_secs(3);

fn code(value: u64) -> VarInt {
    VarInt::from_u64(value).unwrap_or(VarInt::MAX)
}

impl Connection {
    pub(crate) fn new(
        library: quinn_proto::Connection,
        sending: Sending,
        limit: Option<HandshakeLimit>,
    ) -> Self {
        Self {
            limit,
            exceeded: None,
            tail: Tail::default(),
            may_probe: false,
            costs: Costs::default(),
            deeds: Deeds::default(),
            send_window: u64::MAX,
            written: 0,
            stream_bytes_sent: 0,
            unread: Unread::default(),
            uncharged: 0,
            remote: library.remote_address(),
            paths: None,
            library,
            opened: VecDeque::new(),
            is_closed: false,
            close: None,
            marks_ecn: sending.marks_ecn,
            pacer: sending.is_paced.then(Pacer::new),
            paced_until: None,
            stall: None,
            trace: None,
            is_drained: false,
        }
    }

    /// Begins to trace the connection, whose client has named it `id`, by a datagram of so many bytes.
    pub(crate) fn begin_trace(&mut self, now: Instant, id: &[u8], len: usize) {
        let mut trace = Trace::new(now, id, self.remote);
        trace.on_received(now, len);
        self.trace = Some(Box::new(trace));
    }

    /// The name of the trace, if the connection is traced: the id that the client has given it first.
    pub fn trace_name(&self) -> Option<&str> {
        self.trace.as_ref().map(|trace| trace.name.as_str())
    }

    /// Records for the trace of the connection since the last call, which is due once per turn; records of more than 64 KiB are left
    /// out. A file begins with [`crate::trace_header`].
    pub fn take_trace(&mut self, now: Instant) -> String {
        let records = self.trace.as_mut().map(|trace| trace.take(now));
        records.unwrap_or_default()
    }

    /// Ends the trace: nobody takes it.
    pub fn stop_trace(&mut self) {
        self.trace = None;
    }

    /// Traces the end of the connection.
    pub fn trace_close(&mut self, now: Instant, reason: &CloseReason) {
        if let Some(trace) = &mut self.trace {
            trace.on_closed(now, &reason.to_string());
        }
    }

    /// Traces a datagram of so many bytes that has come.
    pub(crate) fn trace_received(&mut self, desk: &Desk, now: Instant, len: usize) {
        if let Some(trace) = &mut self.trace {
            trace.on_received(now, len);
            self.trace_metrics(desk, now);
        }
    }

    /// Traces what is sent.
    pub(crate) fn trace_sent(&mut self, desk: &Desk, now: Instant, transmit: &Transmit) {
        if let Some(trace) = &mut self.trace {
            let segment = transmit.segment_len.unwrap_or(transmit.len);
            trace.on_sent(now, transmit.len, segment);
            self.trace_metrics(desk, now);
        }
    }

    fn trace_metrics(&mut self, desk: &Desk, now: Instant) {
        let stats = self.stats();
        let metrics = Metrics {
            min_rtt: stats.min_rtt,
            smoothed_rtt: stats.rtt,
            state: desk.read(self.library.congestion_state()),
        };
        if let Some(trace) = &mut self.trace {
            trace.on_metrics(now, metrics, stats.packets_lost);
        }
    }

    /// See [`crate::Endpoint::transmit`].
    pub(crate) fn transmit(
        &mut self,
        desk: &Desk,
        now: Instant,
        max_datagrams: usize,
        buffer: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let Some(mut paths) = self.paths.take() else {
            return self.transmit_anywhere(desk, now, max_datagrams, buffer);
        };
        let transmit = self.transmit_within(&mut paths, desk, now, max_datagrams, buffer);
        self.paths = Some(paths);
        transmit
    }

    /// Transmits no more to an address that is not validated than is allowed to go there.
    fn transmit_within(
        &mut self,
        paths: &mut Paths,
        desk: &Desk,
        now: Instant,
        max_datagrams: usize,
        buffer: &mut Vec<u8>,
    ) -> Option<Transmit> {
        loop {
            let remote = self.library.remote_address();
            let mtu = self.library.current_mtu();
            let Ok(allowance) = paths.allowance(remote.ip(), mtu) else {
                // The next datagram from there gives credit, no timer does.
                self.paced_until = None;
                self.stall = None;
                return None;
            };
            let Some(allowance) = allowance else {
                let transmit = self.transmit_anywhere(desk, now, max_datagrams, buffer)?;
                if paths.take_credit(&transmit) {
                    return Some(transmit);
                }
                // The library answers a PATH_CHALLENGE from another address with 1200 bytes. Clients challenge with as many; whoever
                // did it with fewer gets no answer.
                buffer.clear();
                continue;
            };
            let before = self.library.stats();
            paths.set_cut(allowance.cut);
            let transmit = self.transmit_anywhere(desk, now, 1, buffer);
            paths.set_cut(0);
            // What is cut cannot be sent once more as it was.
            self.tail = Tail::default();
            let mut transmit = transmit?;
            transmit.len = transmit.len.saturating_sub(allowance.cut);
            let after = self.library.stats();
            let is_search = after.path.sent_plpmtud_probes > before.path.sent_plpmtud_probes;
            if is_search && allowance.cut > 0 || !paths.take_credit(&transmit) {
                // A shorter packet says nothing about the path's MTU.
                buffer.clear();
                continue;
            }
            buffer.truncate(transmit.len);
            if transmit.remote == remote && !is_search && !self.library.is_closed() {
                let has_room = transmit.len + CHALLENGE_ROOM < usize::from(mtu) - allowance.cut;
                paths.look(remote.ip(), &before, &after, has_room);
            }
            return Some(transmit);
        }
    }

    /// Transmits without regard to who is at the address, once the handshake is done.
    fn transmit_anywhere(
        &mut self,
        desk: &Desk,
        now: Instant,
        max_datagrams: usize,
        buffer: &mut Vec<u8>,
    ) -> Option<Transmit> {
        if let Some(transmit) = self.tail.repeat(buffer) {
            return Some(transmit);
        }
        let mtu = u64::from(self.library.current_mtu());
        let state = desk.read(self.library.congestion_state());
        let room = state.window.saturating_sub(state.in_flight);
        let rate = state.rate.unwrap_or(u64::MAX);
        let credit = match &mut self.pacer {
            Some(pacer) => pacer.credit(now, rate, mtu),
            None => u64::MAX,
        };
        let allowed = if self.library.is_closed() {
            // With content in the streams the library would keep CONNECTION_CLOSE back as well, and window never opens again.
            usize::MAX
        } else {
            usize::try_from(room.min(credit) / mtu).unwrap_or(usize::MAX)
        };
        let max_datagrams = match self.unvalidated_credit() {
            Some(credit) if credit < mtu => {
                self.paced_until = None;
                return None;
            }
            Some(credit) => max_datagrams.min(usize::try_from(credit / mtu).unwrap_or(1)),
            None => max_datagrams,
        };
        desk.set(if allowed > 0 {
            Gate::Open
        } else {
            Gate::Closed
        });
        let datagrams = max_datagrams.clamp(1, allowed.max(1));
        let probes = self.may_probe.then(|| self.probes());
        let transmit = self.library.poll_transmit(now, datagrams, buffer);
        let has_more = desk.has_asked();
        desk.set(Gate::Report);
        let is_held_back = allowed == 0 && has_more;
        self.paced_until = None;
        if is_held_back && room >= mtu {
            self.paced_until = self.pacer.as_ref().and_then(|pacer| pacer.next(rate, mtu));
        }
        let has_room = self.note_stall(desk, now, is_held_back && room < mtu);
        if has_room && transmit.is_none() {
            // Otherwise what waits would do so until the next stall ends.
            return self.transmit_anywhere(desk, now, max_datagrams, buffer);
        }
        self.may_probe &= transmit.is_some();
        if transmit.is_none() && allowed > 0 && state.in_flight == 0 {
            // There is nothing to send again either.
            self.written = 0;
        }
        let transmit = transmit?;
        self.unread.sent += transmit.size as u64;
        if allowed > 0
            && has_more
            && let Some(pacer) = &mut self.pacer
        {
            pacer.on_sent(transmit.size as u64);
        }
        let transmit = Transmit::of(&transmit);
        let transmit = Transmit {
            ecn: transmit.ecn.filter(|_| self.marks_ecn),
            ..transmit
        };
        if probes.is_some_and(|before| self.probes() > before) {
            self.tail.on_probe(transmit.remote);
        } else if has_more && allowed > 0 {
            self.tail.keep(&transmit, buffer);
        }
        Some(transmit)
    }

    /// Bytes that may be sent to a client that has not shown its address; `None` for no limit.
    fn unvalidated_credit(&self) -> Option<u64> {
        let limit = self.limit?;
        let credit = limit.received.saturating_mul(limit.amplification?);
        Some(credit.saturating_sub(self.library.stats().udp_tx.bytes))
    }

    /// A datagram of so many bytes has come to this connection from there, with that id. `amplification`: a server's limit for addresses
    /// that are not validated; clients' servers do not move.
    pub(crate) fn on_datagram(
        &mut self,
        from: IpAddr,
        id: u64,
        len: usize,
        amplification: Option<u16>,
    ) {
        self.unread.on_datagram(len);
        let current = self.remote.ip();
        if self.paths.is_none()
            && from != current
            && let Some(limit) = amplification
        {
            let keys = self.session_facts().and_then(|facts| facts.shared);
            self.paths = keys.map(|keys| Box::new(Paths::new(current, limit, keys)));
        }
        if let Some(paths) = &mut self.paths {
            paths.on_received(from, current, len);
        }
        self.uncharged = self.uncharged.saturating_add(1);
        if let Some(limit) = &mut self.limit {
            limit.received += len as u64;
            if limit.first_id != id {
                limit.amplification = None;
            }
        }
    }

    /// Frames sent to have lost packets acknowledged (RFC 9002 §6.2.4): PING, or IMMEDIATE_ACK if the peer knows that.
    fn probes(&self) -> u64 {
        let stats = self.library.stats();
        // A search for the path's MTU looks the same.
        let others = stats.path.sent_plpmtud_probes;
        let frames = &stats.frame_tx;
        frames.ping.saturating_sub(others) + frames.immediate_ack.saturating_sub(others)
    }

    /// Returns whether a stall has ended, so that there is room now.
    fn note_stall(&mut self, desk: &Desk, now: Instant, is_stalled: bool) -> bool {
        if !is_stalled {
            self.stall = None;
            return false;
        }
        let count = match self.stall {
            Some(stall) if now < stall.ends => return false,
            Some(stall) => {
                desk.forget_in_flight(self.library.congestion_state());
                stall.count + 1
            }
            None => 0,
        };
        self.stall = Some(Stall {
            ends: now + STALL_TIME * (1 << count.min(8)),
            count,
        });
        count > 0
    }

    /// Something was received: a stall begins anew.
    pub(crate) fn on_received(&mut self, desk: &Desk, now: Instant) {
        self.stall = None;
        let remote = self.library.remote_address();
        let previous = std::mem::replace(&mut self.remote, remote);
        if previous != remote {
            self.deeds.migrations += 1;
            // What was sent to the old address is not repeated to it.
            self.tail = Tail::default();
            if let Some(paths) = &mut self.paths {
                paths.on_moved(previous.ip(), &self.library.stats());
            }
        }
        if self.limit.is_some() && !self.library.is_handshaking() {
            self.limit = None;
        }
        self.limit_handshake(now);
        if self.tail.is_kept() && desk.read(self.library.congestion_state()).in_flight == 0 {
            self.tail = Tail::default();
        }
    }

    /// Whether this connection was accepted and its handshake is not done.
    pub(crate) fn is_being_accepted(&self) -> bool {
        self.limit.is_some()
    }

    /// When the handshake has taken too long.
    fn handshake_ends(&self) -> Option<Instant> {
        let limit = self.limit?;
        if limit.round_trips == 0 || self.library.is_closed() {
            return None;
        }
        Some(limit.began + handshake_time(self.library.rtt(), limit.round_trips))
    }

    /// See [`crate::Endpoint::on_timeout`].
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        self.library.handle_timeout(now);
        self.may_probe = self.tail.is_kept();
        self.limit_handshake(now);
    }

    /// Ends a handshake that has taken too much.
    fn limit_handshake(&mut self, now: Instant) {
        let Some(limit) = self.limit.filter(|_| !self.library.is_closed()) else {
            return;
        };
        let is_late = self.handshake_ends().is_some_and(|ends| ends <= now);
        let stats = self.library.stats();
        let is_too_much = stats.udp_tx.datagrams > limit.datagrams
            || stats.frame_tx.acks > MAX_HANDSHAKE_ACKS
            || stats.frame_tx.new_token > MAX_HANDSHAKE_TOKENS;
        if is_late || is_too_much {
            self.exceeded = Some(if is_late {
                Exceeded::Time
            } else {
                Exceeded::Packets
            });
            self.close(now, 0, b"handshake timeout");
        }
    }

    pub(crate) fn timeout(&mut self) -> Option<Instant> {
        let stall = self.stall.map(|stall| stall.ends);
        let times = [
            self.library.poll_timeout(),
            self.paced_until,
            stall,
            self.handshake_ends(),
        ];
        times.into_iter().flatten().min()
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        loop {
            if let Some(stream) = self.opened.pop_front() {
                return Some(Event::StreamOpened(stream));
            }
            let Some(event) = self.library.poll() else {
                break;
            };
            return Some(match event {
                quinn_proto::Event::HandshakeDataReady => Event::HandshakeAgreed,
                quinn_proto::Event::Connected => Event::Connected,
                quinn_proto::Event::ConnectionLost { reason } => {
                    self.is_closed = true;
                    let reason = CloseReason::of(reason);
                    self.close = self.close.or(Close::of(&reason));
                    Event::Closed(reason)
                }
                quinn_proto::Event::Stream(event) => match event {
                    StreamEvent::Opened { dir } => {
                        while let Some(id) = self.library.streams().accept(dir) {
                            self.deeds.streams_opened += 1;
                            self.opened.push_back(StreamId::of(id));
                        }
                        continue;
                    }
                    StreamEvent::Readable { id } => Event::Readable(StreamId::of(id)),
                    StreamEvent::Writable { id } => Event::Writable(StreamId::of(id)),
                    StreamEvent::Finished { id } => Event::Finished(StreamId::of(id)),
                    StreamEvent::Stopped { id, error_code } => Event::Stopped {
                        stream: StreamId::of(id),
                        code: error_code.into_inner(),
                    },
                    StreamEvent::Available { dir } => Event::StreamsAvailable {
                        bidirectional: dir == Dir::Bi,
                    },
                },
                quinn_proto::Event::DatagramReceived => Event::DatagramReceived,
                quinn_proto::Event::DatagramsUnblocked => Event::DatagramsUnblocked,
            });
        }
        if self.library.is_closed() && !std::mem::replace(&mut self.is_closed, true) {
            return Some(Event::Closed(if self.exceeded.is_some() {
                CloseReason::HandshakeTimeout
            } else {
                CloseReason::Local
            }));
        }
        None
    }

    /// What the handshake has agreed on; `None` before [`Event::HandshakeAgreed`].
    pub fn handshake(&self) -> Option<Arc<Handshake>> {
        Some(self.session_facts()?.handshake)
    }

    fn session_facts(&self) -> Option<SessionFacts> {
        let data = self.library.crypto_session().handshake_data()?;
        data.downcast().ok().map(|facts| *facts)
    }

    /// Whether the handshake is not done: what a server reads now is early data and may be a replay (RFC 9001 §9.2).
    pub fn is_handshaking(&self) -> bool {
        self.library.is_handshaking()
    }

    /// Where the peer's packets come from. It may change (RFC 9000 §9).
    pub fn remote_address(&self) -> SocketAddr {
        self.library.remote_address()
    }

    /// Takes at most `max` bytes of a stream.
    pub fn read(&mut self, stream: StreamId, max: usize) -> Read {
        let mut stream = self.library.recv_stream(stream.library());
        let mut chunks = match stream.read(true) {
            Ok(chunks) => chunks,
            Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => {
                return Read::Unknown;
            }
        };
        let read = match chunks.next(max) {
            Ok(Some(chunk)) => {
                self.unread.read += chunk.bytes.len() as u64;
                Read::Data(chunk.bytes)
            }
            Ok(None) => Read::End,
            Err(ReadError::Blocked) => Read::Blocked,
            Err(ReadError::Reset(code)) => Read::Reset(code.into_inner()),
        };
        // What the peer may send more is announced with the next packet.
        let _ = chunks.finalize();
        read
    }

    /// Tells the peer that no more of the stream is wanted; what has arrived is discarded.
    pub fn stop_sending(&mut self, stream: StreamId, reason: u64) {
        // A stream that is gone needs no such frame.
        let _ = self
            .library
            .recv_stream(stream.library())
            .stop(code(reason));
    }

    /// Opens a stream for both directions, or `None` until the peer allows more.
    pub fn open_bidirectional(&mut self) -> Option<StreamId> {
        self.library.streams().open(Dir::Bi).map(StreamId::of)
    }

    /// Opens a stream to send on, or `None` until the peer allows more.
    pub fn open_unidirectional(&mut self) -> Option<StreamId> {
        self.library.streams().open(Dir::Uni).map(StreamId::of)
    }

    /// Writes from the beginning of `data`, without a copy; what was taken is removed from it.
    pub fn write(&mut self, stream: StreamId, data: &mut Bytes) -> Write {
        let mut stream = self.library.send_stream(stream.library());
        match stream.write_chunks(std::slice::from_mut(data)) {
            Ok(written) => {
                self.written += written.bytes as u64;
                self.stream_bytes_sent += written.bytes as u64;
                Write::Taken(written.bytes)
            }
            Err(WriteError::Blocked) => Write::Blocked,
            Err(WriteError::Stopped(code)) => Write::Stopped(code.into_inner()),
            Err(WriteError::ClosedStream) => Write::Unknown,
        }
    }

    /// As [`Self::write`], with a copy of what is taken.
    pub fn write_copy(&mut self, stream: StreamId, data: &[u8]) -> Write {
        let mut stream = self.library.send_stream(stream.library());
        match stream.write(data) {
            Ok(len) => {
                self.written += len as u64;
                self.stream_bytes_sent += len as u64;
                Write::Taken(len)
            }
            Err(WriteError::Blocked) => Write::Blocked,
            Err(WriteError::Stopped(code)) => Write::Stopped(code.into_inner()),
            Err(WriteError::ClosedStream) => Write::Unknown,
        }
    }

    /// Ends a stream after what was written. Returns whether it could be ended: not if it was before, or the peer has stopped it.
    pub fn finish(&mut self, stream: StreamId) -> bool {
        self.library.send_stream(stream.library()).finish().is_ok()
    }

    /// Gives up sending a stream, for the reason of that code (RFC 9000 §19.4).
    pub fn reset(&mut self, stream: StreamId, reason: u64) {
        // A stream that is gone needs no such frame.
        let _ = self
            .library
            .send_stream(stream.library())
            .reset(code(reason));
    }

    /// Sets the priority of a stream. Of all streams that have data to send, those with the highest priority send first, in turns.
    /// Data that is already queued keeps the place that it was queued at.
    pub fn set_priority(&mut self, stream: StreamId, priority: i32) {
        let mut stream = self.library.send_stream(stream.library());
        // A stream that is gone has nothing to send.
        let _ = stream.set_priority(priority);
    }

    /// Streams on which something may have to be sent again, or that are not finished.
    pub fn unacknowledged_streams(&mut self) -> usize {
        self.library.streams().send_streams()
    }

    /// Limits the bytes that can be written and not acknowledged.
    pub fn set_send_window(&mut self, bytes: u64) {
        self.send_window = bytes;
        self.library.set_send_window(bytes);
    }

    /// The bytes that are worth being written and not acknowledged: two congestion windows, and 64 KiB to have the next packets at
    /// hand. One window is in flight; while a lost packet is repaired, what was sent behind it is acknowledged but counts until
    /// the gap is closed.
    pub fn send_room(&self) -> u64 {
        2 * self.library.congestion_state().window() + 64 * 1024
    }

    /// Sends a QUIC datagram (RFC 9221).
    ///
    /// # Errors
    /// [`SendDatagramError`]
    pub fn send_datagram(&mut self, data: Bytes) -> Result<(), SendDatagramError> {
        self.library
            .datagrams()
            .send(data, false)
            .map_err(|error| match error {
                quinn_proto::SendDatagramError::UnsupportedByPeer
                | quinn_proto::SendDatagramError::Disabled => SendDatagramError::Unsupported,
                quinn_proto::SendDatagramError::TooLarge => SendDatagramError::TooLarge,
                quinn_proto::SendDatagramError::Blocked(_) => SendDatagramError::Blocked,
            })
    }

    /// The longest datagram that can be sent now; `None` if the peer takes none.
    pub fn max_datagram_len(&mut self) -> Option<usize> {
        self.library.datagrams().max_size()
    }

    /// The next QUIC datagram received.
    pub fn receive_datagram(&mut self) -> Option<Bytes> {
        self.library.datagrams().recv()
    }

    /// Ends the connection with the application's error code; `reason` is sent along.
    pub fn close(&mut self, now: Instant, error_code: u64, reason: &[u8]) {
        self.close = self.close.or(Some(Close::Local));
        self.library
            .close(now, code(error_code), Bytes::copy_from_slice(reason));
    }

    /// Bytes of memory that it holds, about: a handshake has more than an established connection, and to that comes what was written and
    /// is not acknowledged, and what was received and is not read.
    pub fn retained(&mut self) -> usize {
        if self.library.streams().remote_open_streams(Dir::Bi) == 0 {
            self.unread = Unread::default();
        }
        let base = if self.library.is_handshaking() {
            HANDSHAKE_LEN
        } else {
            ESTABLISHED_LEN
        };
        let content = self.written.min(self.send_window) + self.unread.bytes();
        let trace = self.trace.as_ref().map_or(0, |trace| trace.retained());
        base + trace + usize::try_from(content).unwrap_or(usize::MAX)
    }

    /// Units of the budget that the peer has cost: small frames and empty datagrams, windows that grow a byte at a time, new paths, key
    /// updates. Requests that are reset are the application's to count. They are added up once in a while, as that takes a copy of all
    /// counters: between two sums the answer is 0.
    pub fn take_costs(&mut self) -> u32 {
        if self.uncharged < CHARGED_DATAGRAMS {
            return 0;
        }
        self.uncharged = 0;
        if let Some(facts) = self.session_facts() {
            self.deeds.key_updates = facts.key_updates;
        }
        self.costs.take(&self.library.stats(), &self.deeds)
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::of(&self.library.stats());
        stats.stream_bytes_sent = self.stream_bytes_sent;
        stats.probes = self.probes();
        stats.migrations = self.deeds.migrations;
        match self.close {
            Some(Close::PeerTransport) => stats.frames_received.transport_close = 1,
            Some(Close::PeerApplication) => stats.frames_received.application_close = 1,
            Some(Close::Transport) => stats.frames_sent.transport_close = 1,
            Some(Close::Local) => stats.frames_sent.application_close = 1,
            None => {}
        }
        stats
    }

    /// Why its handshake was given up.
    pub(crate) const fn exceeded(&self) -> Option<Exceeded> {
        self.exceeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_computes_slowly_is_not_given_up_because_it_is_near() {
        let (near, far) = (Duration::from_micros(50), Duration::from_millis(200));
        assert_eq!(handshake_time(near, 400), Duration::from_millis(26_400));
        assert_eq!(handshake_time(far, 400), Duration::from_secs(80));
    }
}
