//! What a connection has done so far, for logs and for what its peer is charged.

use std::time::Duration;

use quinn_proto::ConnectionStats;

/// Counters of a connection, from its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Bytes of the datagrams received.
    pub bytes_received: u64,
    /// Bytes of the datagrams sent.
    pub bytes_sent: u64,
    /// Packets sent.
    pub packets_sent: u64,
    /// Packets that were lost.
    pub packets_lost: u64,
    /// Bytes of the packets lost.
    pub bytes_lost: u64,
    /// Times the congestion window was reduced.
    pub congestion_events: u64,
    /// Smoothed round trip time (RFC 9002 §5.3).
    pub rtt: Duration,
    /// Least round trip time (RFC 9002 §5.2).
    pub min_rtt: Duration,
    /// Bytes that may be in flight.
    pub congestion_window: u64,
    /// Bytes of a datagram that the path carries.
    pub mtu: u16,
    /// Frames received, by kind.
    pub frames_received: Frames,
    /// Frames sent, by kind.
    pub frames_sent: Frames,
}

/// Frames by kind (RFC 9000 §19, RFC 9221).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the RFC")]
pub struct Frames {
    pub ping: u64,
    pub ack: u64,
    pub reset_stream: u64,
    pub stop_sending: u64,
    pub crypto: u64,
    pub new_token: u64,
    pub stream: u64,
    pub max_data: u64,
    pub max_stream_data: u64,
    pub max_streams_bidi: u64,
    pub max_streams_uni: u64,
    pub data_blocked: u64,
    pub stream_data_blocked: u64,
    pub streams_blocked: u64,
    pub new_connection_id: u64,
    pub retire_connection_id: u64,
    pub path_challenge: u64,
    pub path_response: u64,
    pub handshake_done: u64,
    pub datagram: u64,
    pub ack_frequency: u64,
    pub immediate_ack: u64,
}

impl Stats {
    pub(crate) fn of(stats: &ConnectionStats) -> Self {
        Self {
            datagrams_received: stats.udp_rx.datagrams,
            bytes_received: stats.udp_rx.bytes,
            bytes_sent: stats.udp_tx.bytes,
            packets_sent: stats.path.sent_packets,
            packets_lost: stats.path.lost_packets,
            bytes_lost: stats.path.lost_bytes,
            congestion_events: stats.path.congestion_events,
            rtt: stats.path.rtt,
            min_rtt: stats.path.min_rtt,
            congestion_window: stats.path.cwnd,
            mtu: stats.path.current_mtu,
            frames_received: Frames::of(&stats.frame_rx),
            frames_sent: Frames::of(&stats.frame_tx),
        }
    }
}

impl Frames {
    fn of(frames: &quinn_proto::FrameStats) -> Self {
        Self {
            ping: frames.ping,
            ack: frames.acks,
            reset_stream: frames.reset_stream,
            stop_sending: frames.stop_sending,
            crypto: frames.crypto,
            new_token: frames.new_token,
            stream: frames.stream,
            max_data: frames.max_data,
            max_stream_data: frames.max_stream_data,
            max_streams_bidi: frames.max_streams_bidi,
            max_streams_uni: frames.max_streams_uni,
            data_blocked: frames.data_blocked,
            stream_data_blocked: frames.stream_data_blocked,
            streams_blocked: frames.streams_blocked_bidi + frames.streams_blocked_uni,
            new_connection_id: frames.new_connection_id,
            retire_connection_id: frames.retire_connection_id,
            path_challenge: frames.path_challenge,
            path_response: frames.path_response,
            handshake_done: frames.handshake_done.into(),
            datagram: frames.datagram,
            ack_frequency: frames.ack_frequency,
            immediate_ack: frames.immediate_ack,
        }
    }
}
