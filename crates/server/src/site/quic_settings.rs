//! Settings of HTTP/3 and QUIC: of the whole process, of one listener, and of the fleet.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use h2o_quic::Ratio;

/// Smallest `http3-input-window-size`: how many bytes of a request may wait in memory until the request is served (H2O
/// compatibility: H2O has the same minimum).
pub(crate) const MIN_INPUT_WINDOW: u32 = 417_808;

/// Settings of all HTTP/3 connections.
#[derive(Clone, Debug, PartialEq)]
pub struct Http3Settings {
    /// `http3-idle-timeout`.
    pub idle_timeout: Duration,
    /// `http3-graceful-shutdown-timeout`; `None`: no limit.
    pub graceful_shutdown_timeout: Option<Duration>,
    /// `http3-input-window-size`, bytes.
    pub input_window_size: u32,
    /// `http3-max-concurrent-streaming-requests-per-connection`.
    pub max_concurrent_streaming_requests: usize,
    /// `http3-gso`.
    pub segmentation_offload: bool,
    /// `http3-ack-frequency`: the part of a round trip after which clients are asked to acknowledge; 0: not asked.
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
    /// `sndbuf`, in bytes; `None`: the kernel's default.
    pub send_buffer: Option<usize>,
    /// `rcvbuf`, in bytes; `None`: the kernel's default.
    pub receive_buffer: Option<usize>,
    /// `amp-limit`: bytes sent for each byte received from an address that is not validated, 1 to 3.
    pub amplification_limit: u16,
    /// `max-streams-bidi`: how many requests a client may have open at a time.
    pub max_streams: u64,
    /// `max-udp-payload-size`, bytes.
    pub max_udp_payload: u16,
    /// `handshake-timeout-rtt-multiplier`; 0: only `handshake-timeout` limits a handshake.
    pub handshake_rtts: u32,
    /// `max-initial-handshake-packets`.
    pub max_handshake_packets: u64,
    /// `qpack-encoder-table-capacity`, bytes.
    pub encoder_table: u32,
    /// `qpack-decoder-table-capacity`, bytes.
    pub decoder_table: u32,
    /// `ecn`: whether packets are marked as ECN-capable.
    pub ecn: Ratio,
    /// `jumpstart-default`: the number of packets that may be under way to a new client once its round trip time is known; 0:
    /// `initcwnd` alone decides.
    pub first_jump: u32,
    /// `non-resume-jumpstart-ratio`.
    pub first_jumps: Ratio,
    /// `jumpstart-max`: the most packets that may be under way at first to a client that returns; 0: `initcwnd` alone decides.
    pub max_jump: u32,
    /// `resume-jumpstart-ratio`.
    pub known_path_jumps: Ratio,
    /// `rapid-start`.
    pub rapid_start: Ratio,
    /// `pacing`.
    pub pacing: Ratio,
    /// `respect-app-limited`.
    pub respect_app_limited: Ratio,
    /// `qlog`: the directory of traces.
    pub qlog: Option<Arc<Path>>,
    /// `cc`.
    pub controller: Controller,
    /// `initcwnd`: packets of the first window.
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

/// `cc` of a QUIC listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Controller {
    /// The server chooses.
    #[default]
    Auto,
    /// RFC 9002, section 7.
    Reno,
    /// RFC 9438.
    Cubic,
    /// Estimates bandwidth and round-trip time from acknowledgements instead of waiting for losses. H2O compatibility: named
    /// after H2O's `pico`.
    Model,
}

/// The value of `quic-nodes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicNodes {
    /// The number of this server; 0: its connection ids name no server, and it forwards nothing.
    pub this: u64,
    /// The other servers, by number.
    pub others: Vec<(u64, NodeAddress)>,
}

/// The address at which a server of the fleet receives QUIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// Its address.
    pub ip: IpAddr,
    /// The port of that server; `None`: the port of the listener that forwards.
    pub port: Option<u16>,
}

impl NodeAddress {
    /// The address to which a listener with this port forwards.
    pub(crate) fn for_listener(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, self.port.unwrap_or(port))
    }
}

impl QuicNodes {
    /// Where the packets of that server go.
    pub(crate) fn address(&self, node: u64) -> Option<&NodeAddress> {
        let found = self.others.iter().find(|(other, _)| *other == node);
        found.map(|(_, address)| address)
    }

    /// Whether a server of the fleet sends from `remote` what it forwards to a listener with that port.
    pub(crate) fn is_known(&self, remote: SocketAddr, port: u16) -> bool {
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let mut others = self.others.iter();
        others.any(|(_, address)| address.for_listener(port) == remote)
    }

    /// The numbers of the other servers.
    pub(crate) fn numbers(&self) -> Arc<[u64]> {
        self.others.iter().map(|(number, _)| *number).collect()
    }
}
