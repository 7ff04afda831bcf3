//! Settings of endpoints and connections.

use std::sync::Arc;
use std::time::Duration;

use quinn_proto::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

use crate::congestion::{Desk, Factory, KnownPaths};
use crate::id::Placement;
use crate::keys::Keys;
use crate::tls::TlsChooser;

/// Bytes of QUIC datagrams that may wait to be sent: a few packets, as what waits longer is worth less.
const DATAGRAM_SEND_BUFFER: usize = 16 * 1024;

/// How the rate of sending follows the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// NewReno (RFC 9002 §7).
    Reno,
    /// Cubic (RFC 9438).
    Cubic,
    /// A model of the path's bandwidth and round trip time, which random loss does not slow down. On a clean path it is not slower
    /// than the others.
    #[default]
    Model,
}

/// On how many of 255 connections something is done; on which ones, chance decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio(pub u8);

impl Ratio {
    /// On all of them.
    pub const ALWAYS: Self = Self(255);
    /// On none.
    pub const NEVER: Self = Self(0);

    /// Whether it is done on a connection that has drawn that number.
    pub(crate) fn includes(self, drawn: u64) -> bool {
        drawn % 255 < u64::from(self.0)
    }
}

impl From<bool> for Ratio {
    fn from(is_done: bool) -> Self {
        if is_done { Self::ALWAYS } else { Self::NEVER }
    }
}

/// Settings of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportSettings {
    /// `max_idle_timeout`: a connection that hears nothing for so long is dropped. Zero means never.
    pub idle_timeout: Duration,
    /// After this time in which nothing was received, the peer is asked for a sign of life, so that neither side drops the connection
    /// (RFC 9000 §10.1.2); `None` to let it.
    pub keep_alive: Option<Duration>,
    /// Bytes the peer may send on all streams together before they are read (`initial_max_data`).
    pub receive_window: u64,
    /// The same for each stream (`initial_max_stream_data_*`).
    pub stream_receive_window: u64,
    /// Bytes that may be written and not acknowledged, on all streams together.
    pub send_window: u64,
    /// Bidirectional streams the peer may have open (`initial_max_streams_bidi`).
    pub max_streams_bidi: u64,
    /// Unidirectional streams the peer may have open (`initial_max_streams_uni`).
    pub max_streams_uni: u64,
    /// The longest datagram taken and sent (`max_udp_payload_size`), at least 1200.
    pub max_udp_payload_size: u16,
    /// The round trip time assumed before there is a sample (RFC 9002 §6.2.2).
    pub initial_rtt: Duration,
    /// The controller.
    pub congestion_control: CongestionControl,
    /// Packets of the first congestion window, at least 2. They leave paced.
    pub initial_window_packets: u32,
    /// Whether a congestion window that is not filled does not grow (RFC 7661).
    pub respects_underuse: Ratio,
    /// Packets that the congestion window may jump to for a client whose path is known from an earlier connection; 0 for no jump.
    pub max_jump_packets: u32,
    /// Connections of such clients that jump.
    pub known_path_jumps: Ratio,
    /// Packets that the congestion window jumps to once the round trip time is measured, where the path is not known; 0 for no jump.
    pub first_jump_packets: u32,
    /// Connections that jump so, of those that are paced.
    pub first_jumps: Ratio,
    /// Whether the window triples in a round trip until the first sign of a queue. [`CongestionControl::Model`] has a start of its own.
    pub rapid_start: Ratio,
    /// Whether packets are marked as ECN-capable (RFC 9000 §13.4). Marks received are reported in any case.
    pub ecn: Ratio,
    /// Whether packets leave at the controller's rate, not as soon as the window has room.
    pub is_paced: Ratio,
    /// Bytes of received QUIC datagrams (RFC 9221) that may wait to be taken; `None` if they are not accepted.
    pub datagram_receive_buffer: Option<usize>,
    /// Whether several datagrams can be sent by one system call.
    pub gso: bool,
    /// The part of a congestion window that the peer is asked to acknowledge at once (draft-ietf-quic-ack-frequency), as number of
    /// packets that need an acknowledgement; `None` to leave it to the peer.
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

fn var_int(value: u64) -> VarInt {
    VarInt::from_u64(value).unwrap_or(VarInt::MAX)
}

impl TransportSettings {
    /// Bytes that a packet counts where windows are set in packets.
    pub(crate) fn packet_len(&self) -> u64 {
        self.max_udp_payload_size.clamp(1200, 1472).into()
    }

    pub(crate) fn library(&self, desk: &Arc<Desk>) -> TransportConfig {
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
                desk: Arc::clone(desk),
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

/// What an endpoint accepts connections with.
#[derive(Clone)]
pub struct ServerRole {
    /// Picks the TLS configuration of each client.
    pub tls: Arc<dyn TlsChooser>,
    /// Settings of the connections accepted.
    pub transport: TransportSettings,
    /// Whether every client has to show first that it receives at its address (RFC 9000 §8.1.2).
    pub retry: bool,
    /// How long a token of a Retry packet is good for.
    pub retry_token_lifetime: Duration,
    /// How long a token of an earlier connection validates the address.
    pub token_lifetime: Duration,
    /// Bytes sent for each byte of a client that has not shown its address (RFC 9000 §8.1), at most 3.
    pub amplification_limit: u16,
    /// Handshakes that may be under way before new clients have to show first that they receive at their addresses, as with `retry`.
    /// One takes 28 to 35 KB.
    pub retry_above: usize,
    /// Handshakes that may be under way before new ones are ignored.
    pub max_handshakes: usize,
    /// The handshake ends after so many round trip times; 0 for no limit.
    pub handshake_rtts: u32,
    /// Whether connections are traced: see [`crate::Connection::take_trace`].
    pub traces: bool,
    /// The handshake ends when so many datagrams were sent and it is not done.
    pub max_handshake_datagrams: u64,
}

impl ServerRole {
    /// The defaults of the manual.
    pub fn new(tls: Arc<dyn TlsChooser>, transport: TransportSettings) -> Self {
        Self {
            tls,
            transport,
            retry: false,
            retry_token_lifetime: Duration::from_secs(30),
            token_lifetime: Duration::from_secs(600),
            amplification_limit: 3,
            retry_above: 24,
            max_handshakes: 1 << 12,
            handshake_rtts: 400,
            traces: false,
            max_handshake_datagrams: 1000,
        }
    }
}

/// Where connections live that are not of this endpoint. A packet whose id a client may have made up is handed over only to these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// Number of workers of this server, this one included; 0 or 1 for an endpoint that is alone.
    pub workers: u16,
    /// The other servers of the fleet.
    pub nodes: Arc<[u64]>,
}

/// Settings of an endpoint.
#[derive(Clone)]
pub struct EndpointConfig {
    /// Keys of ids, tokens and resets, newest first; at least one.
    pub keys: Vec<Keys>,
    /// Where the connections of this endpoint live.
    pub placement: Placement,
    /// Where else the connection of a packet may live.
    pub neighbours: Neighbours,
    /// `None` for an endpoint that only connects.
    pub server: Option<ServerRole>,
    /// Whether the socket never lets datagrams be fragmented, so that the path's MTU can be found out.
    pub finds_mtu: bool,
    /// What is known of paths; endpoints that serve the same clients share it.
    pub known_paths: KnownPaths,
    /// A seed of all random numbers, for tests.
    pub seed: Option<[u8; 32]>,
}

impl EndpointConfig {
    /// Settings of an endpoint that only connects. Its keys are made up: nobody else reads its ids.
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
