//! One QUIC connection: its packets and events.

mod handshake_limit;
mod streams;
mod tracing;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{Dir, StreamEvent, VarInt};

use crate::close::CloseReason;
use crate::config::TransportSettings;
use crate::congestion::{ControllerChannel, Pacer, ReportedWindow};
use crate::costs::{Costs, Deeds};
use crate::endpoint::Transmit;
use crate::few_streams::{StreamLimits, StreamWatch};
use crate::paths::Paths;
use crate::stats::Stats;
use crate::stream::StreamId;
use crate::tail::Tail;
use crate::tls::{Handshake, SessionFacts};
use crate::trace::Trace;
use crate::udp;
pub(crate) use handshake_limit::{Exceeded, HandshakeLimit};

/// What has happened on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The TLS handshake has agreed on what [`Connection::handshake`] returns. A server may receive early data from now on,
    /// and may answer it.
    HandshakeAgreed,
    /// The handshake is complete: data that is read from now on cannot be a replay of an earlier connection's.
    Connected,
    /// The peer has opened this stream, and there may be something to read.
    StreamOpened(StreamId),
    /// The stream has data to read, or the peer has ended or reset it.
    Readable(StreamId),
    /// A stream can be written again, whose last write was [`Write::Blocked`].
    Writable(StreamId),
    /// The peer has sent STOP_SENDING: it wants no more data of this stream (RFC 9000 §19.5).
    Stopped {
        /// The stream whose data the peer does not want.
        stream: StreamId,
        /// The application's error code in the STOP_SENDING frame.
        code: u64,
    },
    /// The peer allows more streams to be opened.
    StreamsAvailable {
        /// Whether bidirectional streams may be opened; if not, unidirectional ones.
        bidirectional: bool,
    },
    /// A DATAGRAM frame has arrived: [`Connection::receive_datagram`] returns its content.
    DatagramReceived,
    /// DATAGRAM frames can be sent again, after [`SendDatagramError::Blocked`].
    DatagramsUnblocked,
    /// The connection has ended and its streams are gone. The endpoint may still send packets that tell the peer about the end.
    Closed(CloseReason),
    /// The connection's state is deleted. Its index may be used for another connection from now on.
    Drained,
}

impl Event {
    /// Whether the event concerns streams or datagrams, and not the connection as a whole.
    #[inline]
    #[must_use]
    pub const fn is_about_streams(&self) -> bool {
        match self {
            Self::StreamOpened(_)
            | Self::Readable(_)
            | Self::Writable(_)
            | Self::Stopped { .. }
            | Self::StreamsAvailable { .. }
            | Self::DatagramReceived
            | Self::DatagramsUnblocked => true,
            Self::HandshakeAgreed | Self::Connected | Self::Closed(_) | Self::Drained => false,
        }
    }
}

/// Why a QUIC datagram cannot be sent (RFC 9221).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendDatagramError {
    /// The peer does not accept DATAGRAM frames, or this side is configured not to use them.
    Unsupported,
    /// The datagram is larger than a packet, or than the peer's `max_datagram_frame_size`.
    TooLarge,
    /// Too many datagrams are queued already; [`Event::DatagramsUnblocked`] tells when to try again.
    Blocked,
}

/// A QUIC connection, which an [`crate::Endpoint`] owns.
pub struct Connection {
    pub(crate) library: quinn_proto::Connection,
    /// Streams opened by the peer, as reported by quinn-proto, for which no [`Event::StreamOpened`] has been returned yet.
    opened: VecDeque<StreamId>,
    is_closed: bool,
    /// The kind and the sender of the CONNECTION_CLOSE frame that has ended the connection.
    close: Option<Close>,
    /// Whether the connection's packets are marked as ECN-capable.
    marks_ecn: bool,
    pacer: Option<Pacer>,
    /// When the pacer allows the next packet; `None` if it does not delay any.
    paced_until: Option<Instant>,
    /// Set while the congestion window is full, packets wait for it, and nothing is received.
    stall: Option<Stall>,
    /// Limits of the handshake; `None` once the handshake is complete, and for connections that this side opened.
    limit: Option<HandshakeLimit>,
    /// The limit that the handshake exceeded, for which the connection was closed.
    exceeded: Option<Exceeded>,
    tail: Tail,
    /// Whether a timer has expired, so that the next packets may be probes.
    may_probe: bool,
    costs: Costs,
    deeds: Deeds,
    /// Limit in bytes of stream content that is not acknowledged, as the application has set it.
    send_window: u64,
    /// Number of bytes that the application has written to streams since the last time that no packet was in flight.
    written: u64,
    /// Number of bytes that the application has written to streams since the connection began.
    stream_bytes_sent: u64,
    unread: Unread,
    /// Number of bytes received since the costs of received datagrams were last added up.
    uncharged: usize,
    remote: SocketAddr,
    /// The last address at which the peer was known to receive.
    validated: SocketAddr,
    /// The client's addresses, once its datagrams have come from more than one.
    paths: Option<Box<Paths>>,
    trace: Option<Box<Trace>>,
    /// Searches the packets of the connection while the tables of quinn-proto have entries for few streams; `None` if they have
    /// entries for all announced streams.
    pub(crate) few_streams: Option<Arc<StreamWatch>>,
    /// Whether quinn-proto has deleted its state of the connection. The endpoint is told when [`Event::Drained`] is taken.
    pub(crate) is_drained: bool,
}

/// Which features a connection uses when it sends packets: pacing and ECN marks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    pub(crate) is_paced: bool,
    marks_ecn: bool,
}

impl Sending {
    /// Draws at random whether a connection uses pacing and ECN marks, with the shares that `settings` has for them.
    pub(crate) fn of(settings: &TransportSettings, mut draw: impl FnMut() -> u64) -> Self {
        Self {
            is_paced: settings.is_paced.includes(draw()),
            marks_ecn: settings.ecn.includes(draw()),
        }
    }
}

/// Bytes of memory that a connection takes during its handshake (`HANDSHAKE_LEN`) and after it (`ESTABLISHED_LEN`) as long as its
/// client uses few streams, and that quinn-proto's tables for 100 streams take in addition (`TABLES_LEN`). Measured with an
/// allocator that counts.
const HANDSHAKE_LEN: usize = 24 * 1024;
const ESTABLISHED_LEN: usize = 11 * 1024;
const TABLES_LEN: usize = 5 * 1024;

/// Bytes of a datagram that are not stream content: connection ids, tags, frame headers, acknowledgements. An estimate.
const DATAGRAM_OVERHEAD: usize = 64;
/// Number of received bytes after which the costs of their datagrams are added up. A frame has at least one byte.
const CHARGED_BYTES: usize = 16 * 1500;
/// Number of bytes as which a shorter datagram counts for [`CHARGED_BYTES`].
const LEAST_CHARGED: usize = 1500;

/// Estimates how much stream content was received and not read by the application. quinn-proto does not tell, so it is
/// computed from the lengths of the datagrams since the peer last had no request open.
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

    /// The estimate in bytes. Beside the bytes that were read, an eighth of them and 1/256 of the bytes sent are subtracted, so
    /// that long acknowledgements and retransmissions of the peer do not add up on a connection that always has a request open.
    const fn bytes(&self) -> u64 {
        let read = self.read + self.read / 8 + self.sent / 256;
        self.received.saturating_sub(read)
    }
}

/// Bytes that must be free in a packet so that quinn-proto adds a PATH_CHALLENGE frame.
const CHALLENGE_ROOM: usize = 10;

/// Which side's CONNECTION_CLOSE frame has ended a connection, and whether it came from QUIC or the application (RFC 9000
/// §19.19).
#[derive(Clone, Copy, Debug)]
enum Close {
    PeerTransport,
    PeerApplication,
    /// This side has sent the frame because the peer broke the protocol.
    Transport,
    /// This side has sent the frame because its application closes the connection.
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

/// The state of a connection whose window is full and for which no acknowledgement comes.
#[derive(Clone, Copy, Debug)]
struct Stall {
    ends: Instant,
    /// How often the wait for an acknowledgement has ended without one.
    count: u32,
}

/// After this time, a congestion window that stayed full without any acknowledgement is opened again: the packets in flight are no
/// longer counted. The time doubles with each stall in a row. The reason: when quinn-proto discards handshake keys, it forgets
/// packets in flight without telling the congestion controller, which would wait for them forever.
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
            validated: library.remote_address(),
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
            few_streams: None,
            is_drained: false,
        }
    }

    /// Keeps quinn-proto's tables of streams as small as they are: when a stream has ended, quinn-proto makes no entry for another
    /// one.
    pub(crate) fn keep_few_streams(&mut self, watch: &Arc<StreamWatch>) {
        self.few_streams = Some(Arc::clone(watch));
        self.limit_streams(StreamLimits::NONE);
    }

    /// Lets quinn-proto make entries for as many streams as were announced, if a packet was refused because it names a stream
    /// without an entry. Returns whether such a packet was refused.
    pub(crate) fn grow_if_refused(&mut self) -> bool {
        let Some(watch) = (self.few_streams).take_if(|watch| watch.end()) else {
            return false;
        };
        self.limit_streams(watch.announced());
        true
    }

    fn limit_streams(&mut self, limits: StreamLimits) {
        let StreamLimits { bidi, uni } = limits;
        (self.library).set_max_concurrent_streams(Dir::Bi, code(bidi));
        (self.library).set_max_concurrent_streams(Dir::Uni, code(uni));
    }

    /// Appends datagrams to send to `buffer`, for [`crate::Endpoint::transmit`].
    pub(crate) fn transmit(
        &mut self,
        channel: &ControllerChannel,
        now: Instant,
        max_datagrams: usize,
        buffer: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let Some(mut paths) = self.paths.take() else {
            return self.transmit_anywhere(channel, now, max_datagrams, buffer);
        };
        let transmit = self.transmit_within(&mut paths, channel, now, max_datagrams, buffer);
        self.paths = Some(paths);
        transmit
    }

    /// Returns packets to send as [`Self::transmit_anywhere`] does, but within the limit for addresses that are not
    /// validated.
    fn transmit_within(
        &mut self,
        paths: &mut Paths,
        channel: &ControllerChannel,
        now: Instant,
        max_datagrams: usize,
        buffer: &mut Vec<u8>,
    ) -> Option<Transmit> {
        loop {
            let remote = self.library.remote_address();
            let mtu = self.library.current_mtu();
            let Ok(allowance) = paths.allowance(remote.ip(), mtu) else {
                // No timer is needed: only the next datagram from this address allows sending more.
                self.paced_until = None;
                self.stall = None;
                return None;
            };
            let Some(allowance) = allowance else {
                let transmit = self.transmit_anywhere(channel, now, max_datagrams, buffer)?;
                if paths.take_credit(&transmit) {
                    return Some(transmit);
                }
                // quinn-proto answers a PATH_CHALLENGE from another address with 1200 bytes, which is within the limit if
                // the client's own packet was as long as the RFC demands. The answer to a shorter packet is dropped.
                buffer.clear();
                continue;
            };
            let before = self.library.stats();
            paths.set_cut(allowance.cut);
            let transmit = self.transmit_anywhere(channel, now, 1, buffer);
            paths.set_cut(0);
            // A packet that was shortened cannot be sent a second time as it was, so no copy of it is kept for a repetition.
            self.tail = Tail::default();
            let mut transmit = transmit?;
            transmit.len = transmit.len.saturating_sub(allowance.cut);
            let after = self.library.stats();
            let is_search = after.path.sent_plpmtud_probes > before.path.sent_plpmtud_probes;
            if is_search && allowance.cut > 0 || !paths.take_credit(&transmit) {
                // A packet that searches for the path's MTU is of no use if it was shortened, so it is dropped.
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

    /// Returns packets to send within the congestion window and the pacing rate. After the handshake, does not check whether
    /// the address is validated.
    fn transmit_anywhere(
        &mut self,
        channel: &ControllerChannel,
        now: Instant,
        max_datagrams: usize,
        buffer: &mut Vec<u8>,
    ) -> Option<Transmit> {
        if let Some(transmit) = self.tail.repeat(buffer) {
            return Some(transmit);
        }
        let mtu = u64::from(self.library.current_mtu());
        let state = channel.read(self.library.congestion_state());
        let room = state.window.saturating_sub(state.in_flight);
        let rate = state.rate.unwrap_or(u64::MAX);
        let credit = match &mut self.pacer {
            Some(pacer) => pacer.credit(now, rate, mtu),
            None => u64::MAX,
        };
        let allowed = if self.library.is_closed() {
            // A closed connection is not held back by its congestion window, which never opens again: while streams have unsent
            // content, a full window would make quinn-proto delay CONNECTION_CLOSE forever.
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
        channel.set(if allowed > 0 {
            ReportedWindow::Unlimited
        } else {
            ReportedWindow::Full
        });
        let max_datagrams = max_datagrams.min(udp::max_datagrams(mtu));
        let datagrams = max_datagrams.clamp(1, allowed.max(1));
        let probes = self.may_probe.then(|| self.probes());
        let transmit = self.library.poll_transmit(now, datagrams, buffer);
        let has_more = channel.has_asked();
        channel.set(ReportedWindow::Actual);
        let is_held_back = allowed == 0 && has_more;
        self.paced_until = None;
        if is_held_back && room >= mtu {
            self.paced_until = self.pacer.as_ref().and_then(|pacer| pacer.next(rate, mtu));
        }
        let has_room = self.note_stall(channel, now, is_held_back && room < mtu);
        if has_room && transmit.is_none() {
            // The stall has just ended, so the window has room. Without another attempt, the waiting packets would stay
            // until the next stall ends.
            return self.transmit_anywhere(channel, now, max_datagrams, buffer);
        }
        self.may_probe &= transmit.is_some();
        if transmit.is_none() && allowed > 0 && state.in_flight == 0 {
            // Nothing is in flight and nothing is left to send, so nothing written is unacknowledged.
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
        } else if has_more && allowed > 0 && self.may_have_tail() {
            self.tail.keep(&transmit, buffer);
        }
        Some(transmit)
    }

    /// Accounts for a datagram of `len` bytes from `from` to this connection; `id` is a hash of its connection id.
    /// `amplification`: a server's limit for addresses that are not validated; `None` for clients, whose servers do not
    /// change addresses.
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
        self.uncharged = (self.uncharged).saturating_add(len.max(LEAST_CHARGED));
        if let Some(limit) = &mut self.limit {
            limit.received += len as u64;
            if limit.first_id != id {
                limit.amplification = None;
            }
        }
    }

    /// Whether the last packet may contain the end of an answer, so that a copy of it is kept for a repetition. During a handshake
    /// it contains none, unless the client has sent early data.
    const fn may_have_tail(&self) -> bool {
        self.limit.is_none() || self.deeds.streams_opened > 0
    }

    /// Number of probe frames sent so far, which make the peer acknowledge (RFC 9002 §6.2.4): PING, or IMMEDIATE_ACK if the
    /// peer supports it.
    fn probes(&self) -> u64 {
        let stats = self.library.stats();
        // Packets that search for the path's MTU contain the same frames and are subtracted.
        let others = stats.path.sent_plpmtud_probes;
        let frames = &stats.frame_tx;
        frames.ping.saturating_sub(others) + frames.immediate_ack.saturating_sub(others)
    }

    /// Notes whether the connection is stalled: packets wait for a full window. Returns whether a stall has just ended, so
    /// that the window has room.
    fn note_stall(&mut self, channel: &ControllerChannel, now: Instant, is_stalled: bool) -> bool {
        if !is_stalled {
            self.stall = None;
            return false;
        }
        let count = match self.stall {
            Some(stall) if now < stall.ends => return false,
            Some(stall) => {
                channel.forget_in_flight(self.library.congestion_state());
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

    /// Handles a received datagram: the peer responds, so the wait of a stall begins anew.
    pub(crate) fn on_received(&mut self, channel: &ControllerChannel, now: Instant) {
        self.stall = None;
        let remote = self.library.remote_address();
        let previous = std::mem::replace(&mut self.remote, remote);
        if previous != remote {
            self.deeds.migrations += 1;
            if self.is_validated(previous) {
                self.validated = previous;
            }
            // The peer has moved: the last packet, which is kept for a repetition, is not sent to the old address again.
            self.tail = Tail::default();
            if let Some(paths) = &mut self.paths {
                paths.on_moved(previous.ip(), &self.library.stats());
            }
        }
        if self.limit.is_some() && !self.library.is_handshaking() {
            self.limit = None;
        }
        self.limit_handshake(now);
        if self.tail.is_kept() && channel.read(self.library.congestion_state()).in_flight == 0 {
            self.tail = Tail::default();
        }
    }

    /// Handles the passing of time, for [`crate::Endpoint::on_timeout`].
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        self.library.handle_timeout(now);
        self.may_probe = self.tail.is_kept();
        self.limit_handshake(now);
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
                    // The application need not know that the peer has acknowledged all of a finished stream.
                    StreamEvent::Finished { .. } => continue,
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

    /// Whether the handshake is not complete: what a server reads now is early data and may be a replay (RFC 9001 §9.2).
    pub fn is_handshaking(&self) -> bool {
        self.library.is_handshaking()
    }

    /// The peer's present address. It may change (RFC 9000 §9).
    pub fn remote_address(&self) -> SocketAddr {
        self.library.remote_address()
    }

    /// The address that the peer is known to have: the one to which packets are sent, or the last one before it while that is not validated
    /// (RFC 9000 §9.3). The source address of a datagram can be forged, so that nobody gets the rights of an address before it has
    /// answered there.
    pub fn validated_address(&self) -> SocketAddr {
        let remote = self.library.remote_address();
        if self.is_validated(remote) {
            remote
        } else {
            self.validated
        }
    }

    /// Whether the peer has shown that it receives at an address since the handshake was complete.
    fn is_validated(&self, address: SocketAddr) -> bool {
        (self.paths.as_ref()).is_none_or(|paths| paths.is_valid(address.ip()))
    }

    /// Closes the connection with this error code of the application. The peer is told `reason` as well.
    pub fn close(&mut self, now: Instant, error_code: u64, reason: &[u8]) {
        self.close = self.close.or(Some(Close::Local));
        self.library
            .close(now, code(error_code), Bytes::copy_from_slice(reason));
    }

    /// Bytes of memory that the connection holds, estimated: a fixed amount, larger during the handshake, the data that was
    /// written and not acknowledged, and the data that was received and not read.
    pub fn retained(&mut self) -> usize {
        if self.library.streams().remote_open_streams(Dir::Bi) == 0 {
            self.unread = Unread::default();
        }
        let base = if self.library.is_handshaking() {
            HANDSHAKE_LEN
        } else {
            ESTABLISHED_LEN
        };
        let tables = if self.few_streams.is_some() {
            0
        } else {
            TABLES_LEN
        };
        let content = self.written.min(self.send_window) + self.unread.bytes();
        let trace = self.trace.as_ref().map_or(0, |trace| trace.retained());
        base + tables + trace + usize::try_from(content).unwrap_or(usize::MAX)
    }

    /// Costs that the peer has caused since the last call, in units of its budget: small frames, empty datagrams, windows
    /// that grow by a byte at a time, new paths, key updates. The application counts reset requests itself. Computed only
    /// once in several datagrams, as that copies all counters: otherwise 0 is returned.
    pub fn take_costs(&mut self) -> u32 {
        if self.uncharged < CHARGED_BYTES {
            return 0;
        }
        self.uncharged = 0;
        if let Some(facts) = self.session_facts() {
            self.deeds.key_updates = facts.key_updates;
        }
        self.costs.take(&self.library.stats(), &self.deeds)
    }

    /// Counters and measurements of the connection since it began.
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
}
