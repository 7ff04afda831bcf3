//! Settings of HTTP/3 and QUIC: those of the whole process, of one listener, and of a fleet of servers.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use h2o_quic::Ratio;

/// Smallest `http3-input-window-size`: this many bytes of a request may wait in memory until the request is served (H2O
/// compatibility: H2O has the same minimum).
pub(crate) const MIN_INPUT_WINDOW: u32 = 417_808;

/// Settings of all HTTP/3 connections.
#[derive(Clone, Debug, PartialEq)]
pub struct Http3Settings {
    /// Value of the directive `http3-idle-timeout`.
    pub idle_timeout: Duration,
    /// Value of the directive `http3-graceful-shutdown-timeout`; `None` for no limit.
    pub graceful_shutdown_timeout: Option<Duration>,
    /// Value of the directive `http3-input-window-size`, in bytes.
    pub input_window_size: u32,
    /// Value of the directive `http3-max-concurrent-streaming-requests-per-connection`.
    pub max_concurrent_streaming_requests: usize,
    /// Value of the directive `http3-gso`.
    pub segmentation_offload: bool,
    /// `http3-ack-frequency`: the fraction of a round-trip time after which clients are asked to send an acknowledgement; 0 asks
    /// for nothing.
    pub ack_frequency: f64,
}

impl Default for Http3Settings {
    fn default() -> Self {
        Self {
            idle_timeout: Duration::from_secs(30),
            graceful_shutdown_timeout: None,
            input_window_size: 16_777_216,
            max_concurrent_streaming_requests: 1,
            segmentation_offload: true,
            ack_frequency: 0.0,
        }
    }
}

/// Settings of the QUIC connections of one listener: its `quic` mapping, `cc` and `initcwnd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicSettings {
    /// `retry`: whether clients must prove by a Retry packet that they own their address before the handshake begins.
    pub retry: bool,
    /// `sndbuf`, in bytes; `None` for the kernel's default.
    pub send_buffer: Option<usize>,
    /// `rcvbuf`, in bytes; `None` for the kernel's default.
    pub receive_buffer: Option<usize>,
    /// `amp-limit`: largest number of bytes sent for each byte received from an address that is not validated, 1 to 3.
    pub amplification_limit: u16,
    /// `max-streams-bidi`: how many requests a client may have open at the same time.
    pub max_streams: u64,
    /// `max-udp-payload-size`: largest UDP payload that the server sends, in bytes.
    pub max_udp_payload: u16,
    /// `handshake-timeout-rtt-multiplier`: time limit of a handshake in round-trip times; with 0 only `handshake-timeout` limits a
    /// handshake.
    pub handshake_rtts: u32,
    /// `max-initial-handshake-packets`: how many packets the server sends for one handshake.
    pub max_handshake_packets: u64,
    /// `qpack-encoder-table-capacity`, in bytes.
    pub encoder_table: u32,
    /// `qpack-decoder-table-capacity`, in bytes.
    pub decoder_table: u32,
    /// `ecn`: on which part of the connections packets are marked as ECN-capable.
    pub ecn: Ratio,
    /// `jumpstart-default`: the number of packets that may be under way to a new client once its round-trip time is known; with 0
    /// `initcwnd` alone decides.
    pub first_jump: u32,
    /// `non-resume-jumpstart-ratio`: on which part of the connections of new clients `jumpstart-default` applies.
    pub first_jumps: Ratio,
    /// `jumpstart-max`: the largest number of packets that may be under way at first to a client that returns; with 0 `initcwnd`
    /// alone decides.
    pub max_jump: u32,
    /// `resume-jumpstart-ratio`: on which part of the connections of returning clients `jumpstart-max` applies.
    pub known_path_jumps: Ratio,
    /// `rapid-start`: on which part of the connections the congestion window triples, instead of doubling, per round trip of slow start.
    pub rapid_start: Ratio,
    /// `pacing`: on which part of the connections packets are paced.
    pub pacing: Ratio,
    /// `respect-app-limited`: on which part of the connections the congestion window does not grow while the server does not use it fully.
    pub respect_app_limited: Ratio,
    /// `qlog`: the directory for traces of connections.
    pub qlog: Option<Arc<Path>>,
    /// `cc`: the congestion controller.
    pub controller: Controller,
    /// `initcwnd`: the initial congestion window, in packets.
    pub initial_window: u32,
}

impl Default for QuicSettings {
    fn default() -> Self {
        Self {
            retry: false,
            send_buffer: None,
            receive_buffer: None,
            amplification_limit: 3,
            max_streams: 100,
            max_udp_payload: 1472,
            handshake_rtts: 400,
            max_handshake_packets: 1000,
            encoder_table: 16_384,
            decoder_table: 16_384,
            ecn: Ratio::ALWAYS,
            first_jump: 0,
            first_jumps: Ratio::ALWAYS,
            max_jump: 0,
            known_path_jumps: Ratio::ALWAYS,
            rapid_start: Ratio::NEVER,
            pacing: Ratio::ALWAYS,
            respect_app_limited: Ratio::ALWAYS,
            qlog: None,
            controller: Controller::Auto,
            initial_window: 32,
        }
    }
}

/// Congestion controller (`cc`) of a QUIC listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Controller {
    /// `auto`: the server chooses the controller.
    #[default]
    Auto,
    /// `reno`: NewReno as in RFC 9002, section 7.
    Reno,
    /// `cubic`: CUBIC (RFC 9438).
    Cubic,
    /// `pico`: estimates bandwidth and round-trip time from acknowledgements instead of waiting for losses. H2O compatibility: the
    /// name is that of a controller of H2O.
    Model,
}

/// The value of the directive `quic-nodes`: the servers of a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicNodes {
    /// The number of this server in the fleet; 0 if its connection ids name no server and it forwards no packets.
    pub this: u64,
    /// The other servers of the fleet, with their numbers.
    pub others: Vec<(u64, NodeAddress)>,
}

/// The address at which a server of the fleet receives QUIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// IP address of that server.
    pub ip: IpAddr,
    /// The port of that server; `None` for the port of the listener that forwards the packet.
    pub port: Option<u16>,
}

impl NodeAddress {
    /// The address to which a listener with this port forwards the packets of that server.
    pub(crate) fn for_listener(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, self.port.unwrap_or(port))
    }
}

impl QuicNodes {
    /// The address of the server with the number `node`.
    pub(crate) fn address(&self, node: u64) -> Option<&NodeAddress> {
        let found = self.others.iter().find(|(other, _)| *other == node);
        found.map(|(_, address)| address)
    }

    /// Whether `remote` is the address from which another server of the fleet forwards packets to a listener with this port.
    pub(crate) fn is_known(&self, remote: SocketAddr, port: u16) -> bool {
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let mut others = self.others.iter();
        others.any(|(_, address)| address.for_listener(port) == remote)
    }

    /// The numbers of the other servers of the fleet.
    pub(crate) fn numbers(&self) -> Arc<[u64]> {
        self.others.iter().map(|(number, _)| *number).collect()
    }
}
