//! Statistics of connections and endpoints, for logs and for the costs that are charged to peers.

use std::time::Duration;

use quinn_proto::ConnectionStats;

/// Counters of a connection since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of datagrams received.
    pub datagrams_received: u64,
    /// Bytes of the datagrams received.
    pub bytes_received: u64,
    /// Bytes of the datagrams sent.
    pub bytes_sent: u64,
    /// Number of packets sent.
    pub packets_sent: u64,
    /// Number of packets that were declared lost.
    pub packets_lost: u64,
    /// Bytes of the packets that were declared lost.
    pub bytes_lost: u64,
    /// Bytes written to streams.
    pub stream_bytes_sent: u64,
    /// Number of probes sent because acknowledgements did not arrive (RFC 9002 §6.2).
    pub probes: u64,
    /// How often the peer has changed its address.
    pub migrations: u64,
    /// Times the congestion window was reduced.
    pub congestion_events: u64,
    /// Smoothed round trip time (RFC 9002 §5.3).
    pub rtt: Duration,
    /// Least round trip time (RFC 9002 §5.2).
    pub min_rtt: Duration,
    /// Bytes that may be in flight.
    pub congestion_window: u64,
    /// The path's MTU: length in bytes of the datagrams that it is known to carry.
    pub mtu: u16,
    /// Frames received, by kind.
    pub frames_received: Frames,
    /// Frames sent, by kind.
    pub frames_sent: Frames,
}

/// Frames by kind (RFC 9000 §19, RFC 9221).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the fields have the names that the RFC gives to the frames"
)]
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
    pub transport_close: u64,
    pub application_close: u64,
}

/// Statistics of an endpoint since it began, including all its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Sums over all connections. Times, windows and MTU are left out of the sums.
    pub connections: Stats,
    /// Number of datagrams received.
    pub datagrams: u64,
    /// Number of datagrams received that belonged to a connection.
    pub processed: u64,
    /// Number of Initial packets received, valid or not.
    pub initial: u64,
    /// Number of 0-RTT packets received.
    pub zero_rtt: u64,
    /// Number of Handshake packets received.
    pub handshake: u64,
    /// Number of datagrams received with the ECN mark ECT(0).
    pub ect0: u64,
    /// Number of datagrams received with the ECN mark ECT(1).
    pub ect1: u64,
    /// Number of datagrams received with the ECN mark CE.
    pub ce: u64,
    /// Number of packets that peers have acknowledged.
    pub packets_acked: u64,
    /// Bytes of the packets that peers have acknowledged.
    pub bytes_acked: u64,
    /// Number of connections that have begun.
    pub begun: u64,
    /// Number of connections chosen to jump to a larger congestion window once their round trip time is known.
    pub jumps: u64,
    /// Number of connections with a rapid start.
    pub rapid_starts: u64,
    /// Number of connections with pacing.
    pub paced: u64,
    /// Number of connections whose congestion window does not grow while the application does not fill it.
    pub respecting_underuse: u64,
    /// Number of handshakes that were given up because they took too long.
    pub handshake_timeouts: u64,
    /// Number of handshakes that were given up because they took too many packets.
    pub handshakes_exceeded: u64,
}

impl Stats {
    /// Adds the counters of another connection.
    pub(crate) fn add(&mut self, other: &Self) {
        self.datagrams_received += other.datagrams_received;
        self.bytes_received += other.bytes_received;
        self.bytes_sent += other.bytes_sent;
        self.packets_sent += other.packets_sent;
        self.packets_lost += other.packets_lost;
        self.bytes_lost += other.bytes_lost;
        self.stream_bytes_sent += other.stream_bytes_sent;
        self.probes += other.probes;
        self.migrations += other.migrations;
        self.congestion_events += other.congestion_events;
        self.frames_received.add(&other.frames_received);
        self.frames_sent.add(&other.frames_sent);
    }

    pub(crate) fn of(stats: &ConnectionStats) -> Self {
        Self {
            datagrams_received: stats.udp_rx.datagrams,
            bytes_received: stats.udp_rx.bytes,
            bytes_sent: stats.udp_tx.bytes,
            packets_sent: stats.path.sent_packets,
            packets_lost: stats.path.lost_packets,
            bytes_lost: stats.path.lost_bytes,
            stream_bytes_sent: 0,
            probes: 0,
            migrations: 0,
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
    fn add(&mut self, other: &Self) {
        self.ping += other.ping;
        self.ack += other.ack;
        self.reset_stream += other.reset_stream;
        self.stop_sending += other.stop_sending;
        self.crypto += other.crypto;
        self.new_token += other.new_token;
        self.stream += other.stream;
        self.max_data += other.max_data;
        self.max_stream_data += other.max_stream_data;
        self.max_streams_bidi += other.max_streams_bidi;
        self.max_streams_uni += other.max_streams_uni;
        self.data_blocked += other.data_blocked;
        self.stream_data_blocked += other.stream_data_blocked;
        self.streams_blocked += other.streams_blocked;
        self.new_connection_id += other.new_connection_id;
        self.retire_connection_id += other.retire_connection_id;
        self.path_challenge += other.path_challenge;
        self.path_response += other.path_response;
        self.handshake_done += other.handshake_done;
        self.datagram += other.datagram;
        self.ack_frequency += other.ack_frequency;
        self.immediate_ack += other.immediate_ack;
        self.transport_close += other.transport_close;
        self.application_close += other.application_close;
    }

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
            // quinn-proto counts both kinds of CONNECTION_CLOSE frames together; [`crate::Connection::stats`] sets these counters.
            transport_close: 0,
            application_close: 0,
        }
    }
}
