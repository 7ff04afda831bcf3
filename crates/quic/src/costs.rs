//! Counts useless work that a peer causes, which is cheap for the peer and expensive for us, for the connection's budget.
//! The QUIC library only limits memory.

use quinn_proto::ConnectionStats;

/// Number of empty or small frames (such as PING, RESET_STREAM and window updates) that cost nothing on a connection: a
/// well-behaved client sends fewer of them.
const FREE_FRAMES: u64 = 64;
/// Cost in units of a client's move to a new address: this side has to validate it and begins with slow start on it.
const MIGRATION: u64 = 20;
/// Cost of a key update in units: this side derives four keys.
const KEY_UPDATE: u64 = 20;
/// For this number of bytes sent, the peer may send one MAX_DATA or MAX_STREAM_DATA frame without cost.
const BYTES_PER_UPDATE: u64 = 4096;
/// For this number of bytes received, the peer may send one STREAM frame without cost.
const BYTES_PER_STREAM_FRAME: u64 = 256;
/// Number of useless datagrams that cost one unit together; the same holds for ACK frames beyond one for each packet sent.
const USELESS_DATAGRAMS: u64 = 16;

/// The number of units that were charged to the peer's budget since the beginning of the connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    charged: u64,
}

/// Events of a connection that quinn-proto does not count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deeds {
    pub(crate) streams_opened: u64,
    pub(crate) migrations: u64,
    pub(crate) key_updates: u64,
}

impl Costs {
    /// Returns the units that have not been charged yet, and counts them as charged.
    pub(crate) fn take(&mut self, stats: &ConnectionStats, deeds: &Deeds) -> u32 {
        let total = total(stats, deeds);
        let units = total.saturating_sub(self.charged);
        self.charged = self.charged.max(total);
        u32::try_from(units).unwrap_or(u32::MAX)
    }
}

/// Units of everything that the peer has done since the connection began.
fn total(stats: &ConnectionStats, deeds: &Deeds) -> u64 {
    let (frames, received, sent) = (&stats.frame_rx, &stats.udp_rx, &stats.udp_tx);
    // Number of empty or very small STREAM frames.
    let stream = frames
        .stream
        .saturating_sub(2 * deeds.streams_opened + received.bytes / BYTES_PER_STREAM_FRAME);
    // Number of frames that raise a window by a few bytes only.
    let windows = (frames.max_data + frames.max_stream_data)
        .saturating_sub(2 * deeds.streams_opened + sent.bytes / BYTES_PER_UPDATE);
    let acks = frames.acks.saturating_sub(stats.path.sent_packets) / USELESS_DATAGRAMS;
    let others = frames.ping
        + frames.reset_stream
        + frames.stop_sending
        + frames.max_streams_bidi
        + frames.max_streams_uni
        + frames.data_blocked
        + frames.stream_data_blocked
        + frames.streams_blocked_bidi
        + frames.streams_blocked_uni
        + frames.path_challenge
        + frames.new_connection_id
        + frames.retire_connection_id
        + frames.immediate_ack
        + frames.ack_frequency;
    // Number of datagrams that contain only padding or that cannot be decrypted.
    let useful = frames.stream + frames.datagram + frames.acks + frames.crypto + others;
    let useless = received.datagrams.saturating_sub(useful) / USELESS_DATAGRAMS;
    let small = (stream + windows + others).saturating_sub(FREE_FRAMES);
    small + acks + useless + MIGRATION * deeds.migrations + KEY_UPDATE * deeds.key_updates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_asks_and_downloads_costs_nothing() {
        let mut stats = ConnectionStats::default();
        stats.frame_rx.stream = 1000;
        stats.frame_rx.max_stream_data = 900;
        stats.frame_rx.acks = 20_000;
        stats.frame_rx.ping = 20;
        stats.udp_rx.datagrams = 21_000;
        stats.udp_rx.bytes = 2_000_000;
        stats.udp_tx.bytes = 50_000_000;
        stats.path.sent_packets = 40_000;
        let deeds = Deeds {
            streams_opened: 1000,
            ..Deeds::default()
        };
        assert_eq!(Costs::default().take(&stats, &deeds), 0);
    }

    #[test]
    fn each_flood_costs_units_once() {
        type Flood = fn(&mut ConnectionStats);
        let floods: [(&str, Flood); 7] = [
            ("empty STREAM frames", |it| it.frame_rx.stream += 10_000),
            ("RESET_STREAM", |it| it.frame_rx.reset_stream += 10_000),
            ("STOP_SENDING", |it| it.frame_rx.stop_sending += 10_000),
            ("trickle", |it| it.frame_rx.max_stream_data += 10_000),
            ("PING", |it| it.frame_rx.ping += 10_000),
            ("PADDING", |it| it.udp_rx.datagrams += 100_000),
            ("ACK", |it| it.frame_rx.acks += 100_000),
        ];
        for (name, flood) in floods {
            let (mut costs, mut stats) = (Costs::default(), ConnectionStats::default());
            flood(&mut stats);
            assert!(costs.take(&stats, &Deeds::default()) > 2000, "{name}");
            assert_eq!(costs.take(&stats, &Deeds::default()), 0, "{name}");
        }
        let deeds = Deeds {
            migrations: 60,
            key_updates: 60,
            ..Deeds::default()
        };
        let units = Costs::default().take(&ConnectionStats::default(), &deeds);
        assert!(units > 2000);
    }
}
