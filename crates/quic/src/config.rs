//! Settings of QUIC endpoints and connections.

use std::sync::Arc;
use std::time::Duration;

use quinn_proto::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

use crate::congestion::{ControllerChannel, Factory, KnownPaths};
use crate::id::Placement;
use crate::keys::Keys;
use crate::tls::TlsChooser;
use crate::token::UsedTokens;

/// Limit of the DATAGRAM frames that wait to be sent on a connection, in bytes. It has room for a few packets only: content
/// of datagrams that wait longer is out of date.
const DATAGRAM_SEND_BUFFER: usize = 16 * 1024;

/// Congestion control: how the sending rate follows the state of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// The congestion controller NewReno (RFC 9002 §7).
    Reno,
    /// The congestion controller Cubic (RFC 9438).
    Cubic,
    /// A model of the path's bandwidth and round trip time (BBR). Random loss does not slow it down, and on a path without
    /// loss it is not slower than the other controllers.
    #[default]
    Model,
}

/// The share of connections that use a feature, in 255ths. Which connections use it is random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio(pub u8);

impl Ratio {
    /// The ratio with which all connections use the feature.
    pub const ALWAYS: Self = Self(255);
    /// The ratio with which no connection uses the feature.
    pub const NEVER: Self = Self(0);

    /// Whether a connection for which the random number `drawn` was drawn uses the feature.
    pub(crate) fn includes(self, drawn: u64) -> bool {
        drawn % 255 < u64::from(self.0)
    }
}

impl From<bool> for Ratio {
    fn from(is_done: bool) -> Self {
        if is_done { Self::ALWAYS } else { Self::NEVER }
    }
}

/// Settings of QUIC connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportSettings {
    /// `max_idle_timeout`: a connection on which no packet arrives for this time is dropped. Zero means never.
    pub idle_timeout: Duration,
    /// After this time without a packet from the peer, a PING frame is sent to it, so that neither side drops the connection
    /// as idle (RFC 9000 §10.1.2); `None` for no such PING.
    pub keep_alive: Option<Duration>,
    /// Bytes that the peer may send on all streams of a connection together before the application reads them
    /// (`initial_max_data`).
    pub receive_window: u64,
    /// Bytes that the peer may send on each stream before the application reads them (`initial_max_stream_data_*`).
    pub stream_receive_window: u64,
    /// Bytes that the application may write before the peer acknowledges them, on all streams of a connection together.
    pub send_window: u64,
    /// Bidirectional streams the peer may have open (`initial_max_streams_bidi`).
    pub max_streams_bidi: u64,
    /// Unidirectional streams the peer may have open (`initial_max_streams_uni`).
    pub max_streams_uni: u64,
    /// The longest UDP payload in bytes that is received and sent (`max_udp_payload_size`), at least 1200.
    pub max_udp_payload_size: u16,
    /// The round trip time that is assumed before it was measured (RFC 9002 §6.2.2).
    pub initial_rtt: Duration,
    /// The congestion controller that connections use.
    pub congestion_control: CongestionControl,
    /// Size of the initial congestion window in packets, at least 2. On paced connections, the pacer spreads these packets
    /// over time.
    pub initial_window_packets: u32,
    /// Share of the connections whose congestion window does not grow while the application does not fill it (RFC 7661).
    pub respects_underuse: Ratio,
    /// Limit in packets of the window that a client's connection jumps to, if its path is known from an earlier connection;
    /// 0 for no jump.
    pub max_jump_packets: u32,
    /// Share of the connections on known paths that jump.
    pub known_path_jumps: Ratio,
    /// Size in packets that the congestion window jumps to once the round trip time is measured, on a path that is not
    /// known; 0 for no jump.
    pub first_jump_packets: u32,
    /// Share of the paced connections on unknown paths that jump.
    pub first_jumps: Ratio,
    /// Share of the connections whose congestion window triples every round trip at the start, until the path's queue begins
    /// to fill. [`CongestionControl::Model`] ignores this: it has a start of its own.
    pub rapid_start: Ratio,
    /// Share of the connections that mark their packets as ECN-capable (RFC 9000 §13.4). Marks on received packets are
    /// reported to the peer in any case.
    pub ecn: Ratio,
    /// Share of the connections that send packets at the controller's rate (pacing), rather than as soon as the congestion
    /// window has room.
    pub is_paced: Ratio,
    /// Limit in bytes of the received DATAGRAM frames (RFC 9221) that wait for the application to take them; `None` if the
    /// peer may not send any.
    pub datagram_receive_buffer: Option<usize>,
    /// Whether several datagrams can be sent by one system call (generic segmentation offload).
    pub gso: bool,
    /// Number of packets after which the peer is asked to acknowledge at once (draft-ietf-quic-ack-frequency); `None` to
    /// leave it to the peer.
    pub ack_threshold: Option<u32>,
}

impl Default for TransportSettings {
    fn default() -> Self {
        Self {
            idle_timeout: Duration::from_secs(30),
            keep_alive: None,
            receive_window: 16 << 20,
            stream_receive_window: 417_808,
            send_window: 16 << 20,
            max_streams_bidi: 100,
            max_streams_uni: 10,
            max_udp_payload_size: 1472,
            initial_rtt: Duration::from_millis(66),
            congestion_control: CongestionControl::default(),
            initial_window_packets: 32,
            respects_underuse: Ratio::ALWAYS,
            max_jump_packets: 0,
            known_path_jumps: Ratio::ALWAYS,
            first_jump_packets: 0,
            first_jumps: Ratio::ALWAYS,
            rapid_start: Ratio::NEVER,
            ecn: Ratio::ALWAYS,
            is_paced: Ratio::ALWAYS,
            datagram_receive_buffer: Some(64 * 1024),
            gso: true,
            ack_threshold: None,
        }
    }
}

pub(crate) fn var_int(value: u64) -> VarInt {
    VarInt::from_u64(value).unwrap_or(VarInt::MAX)
}

impl TransportSettings {
    /// Bytes that one packet stands for in settings that give windows in packets.
    pub(crate) fn packet_len(&self) -> u64 {
        self.max_udp_payload_size.clamp(1200, 1472).into()
    }

    pub(crate) fn to_quinn(&self, channel: &Arc<ControllerChannel>) -> TransportConfig {
        let mut config = TransportConfig::default();
        let idle = IdleTimeout::try_from(self.idle_timeout).ok();
        config
            .max_idle_timeout(idle.filter(|_| !self.idle_timeout.is_zero()))
            .keep_alive_interval(self.keep_alive)
            .receive_window(var_int(self.receive_window))
            .stream_receive_window(var_int(self.stream_receive_window))
            .send_window(self.send_window)
            .max_concurrent_bidi_streams(var_int(self.max_streams_bidi))
            .max_concurrent_uni_streams(var_int(self.max_streams_uni))
            .initial_rtt(self.initial_rtt)
            .datagram_receive_buffer_size(self.datagram_receive_buffer)
            .datagram_send_buffer_size(DATAGRAM_SEND_BUFFER)
            .enable_segmentation_offload(self.gso)
            .allow_spin(false)
            .congestion_controller_factory(Arc::new(Factory {
                channel: Arc::clone(channel),
                control: self.congestion_control,
                initial_packets: self.initial_window_packets.into(),
                packet_len: self.packet_len(),
                initial_rtt: self.initial_rtt,
            }));
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(self.max_udp_payload_size.max(1200));
        config.mtu_discovery_config(Some(discovery));
        if let Some(threshold) = self.ack_threshold {
            let mut frequency = AckFrequencyConfig::default();
            frequency.ack_eliciting_threshold(threshold.into());
            config.ack_frequency_config(Some(frequency));
        }
        config
    }
}

/// Settings of an endpoint that accepts connections, which one that only connects does not have.
#[derive(Clone)]
pub struct ServerRole {
    /// Picks the TLS configuration of each client.
    pub tls: Arc<dyn TlsChooser>,
    /// Settings of the connections that the endpoint accepts.
    pub transport: TransportSettings,
    /// Whether every client must validate its address with a Retry packet before its handshake begins (RFC 9000 §8.1.2).
    pub retry: bool,
    /// How long the token of a Retry packet is accepted.
    pub retry_token_lifetime: Duration,
    /// How long a token that an earlier connection's NEW_TOKEN frame gave to a client validates the client's address.
    pub token_lifetime: Duration,
    /// The tokens that clients have used. Endpoints that accept each other's tokens share it.
    pub used_tokens: Arc<UsedTokens>,
    /// Bytes that may be sent to a client for each byte received from it, as long as its address is not validated (RFC 9000
    /// §8.1); at most 3.
    pub amplification_limit: u16,
    /// With more handshakes in progress than this, new clients must validate their addresses with a Retry packet, as with
    /// `retry`. One handshake takes 25 to 35 KB of memory.
    pub retry_above: usize,
    /// With more handshakes in progress than this, packets that would begin another one are ignored.
    pub max_handshakes: usize,
    /// A handshake that takes longer than this number of round trip times is given up; 0 for no limit.
    pub handshake_rtts: u32,
    /// Whether connections are traced: see [`crate::Connection::take_trace`].
    pub traces: bool,
    /// A handshake for which more datagrams than this were sent is given up.
    pub max_handshake_datagrams: u64,
}

impl ServerRole {
    /// Makes the settings with the default values that the manual names.
    pub fn new(tls: Arc<dyn TlsChooser>, transport: TransportSettings) -> Self {
        Self {
            tls,
            transport,
            retry: false,
            retry_token_lifetime: Duration::from_secs(30),
            token_lifetime: Duration::from_secs(600),
            used_tokens: Arc::default(),
            amplification_limit: 3,
            retry_above: 24,
            max_handshakes: 1 << 12,
            handshake_rtts: 400,
            traces: false,
            max_handshake_datagrams: 1000,
        }
    }
}

/// The workers and servers that may own a connection which this endpoint does not know. A packet whose connection id could
/// be a client's own invention is handed over only to these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// Number of workers of this server, this one included; 0 or 1 for an endpoint that is alone.
    pub workers: u16,
    /// The other servers of the fleet.
    pub nodes: Arc<[u64]>,
}

/// Settings of a QUIC endpoint.
#[derive(Clone)]
pub struct EndpointConfig {
    /// Keys for connection ids, tokens and stateless resets, newest first; at least one.
    pub keys: Vec<Keys>,
    /// The server, process and worker that this endpoint's connection ids name.
    pub placement: Placement,
    /// The other endpoints to which a packet's connection may belong.
    pub neighbours: Neighbours,
    /// Settings for accepting connections; `None` for an endpoint that only connects.
    pub server: Option<ServerRole>,
    /// Whether the socket sends no datagram in fragments, so that connections can discover the path's MTU.
    pub finds_mtu: bool,
    /// What earlier connections have measured of their paths; endpoints that serve the same clients share it.
    pub known_paths: KnownPaths,
    /// A seed for all random numbers, to make tests repeatable.
    pub seed: Option<[u8; 32]>,
}

impl EndpointConfig {
    /// Settings of an endpoint that only connects. Its keys are random: no other endpoint needs to read its connection ids.
    pub fn client(finds_mtu: bool) -> Self {
        Self {
            keys: Vec::new(),
            placement: Placement::default(),
            neighbours: Neighbours::default(),
            server: None,
            finds_mtu,
            known_paths: KnownPaths::default(),
            seed: None,
        }
    }
}
