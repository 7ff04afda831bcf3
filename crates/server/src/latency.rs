//! The latency optimisation of HTTP/2 over TCP (H2O compatibility: H2O does the same): on a path with a long round trip
//! and a small congestion window, output is produced only as fast as packets leave, in records of one packet each. A
//! more urgent response then need not wait behind megabytes in the kernel.

use std::time::Duration;

use crate::event::socket::TcpInfo;
use crate::site::http2_settings::LatencySettings;

/// A DATA frame is cut to fit what a write to the socket still has room for, but not to fewer bytes than this.
const LEAST_PIECE: usize = 512;

/// State of the latency optimisation on one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Latency {
    /// Whether the optimisation applies is not decided yet: no response has had to wait so far, so the kernel was not asked for its
    /// figures.
    #[default]
    Unknown,
    /// The optimisation does not apply for the rest of the connection.
    Off,
    /// Each write to the socket has this size until the next decision.
    Write(Round),
    /// Writes have their usual size until the next decision, because the congestion window is large.
    Unlimited,
}

/// The amount of output for one write to the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    /// Number of bytes of plaintext per TLS record.
    pub(crate) record_payload: u32,
    /// Number of bytes of output per write to the socket.
    pub(crate) bytes: u32,
}

/// Value of `TCP_NOTSENT_LOWAT`: with this value the socket is writable once the kernel has sent everything it holds.
pub(crate) const LOW_WATER: u32 = 1;

impl Latency {
    /// Whether to read the kernel's figures (`TCP_INFO`) before more content is sent. Without TLS they are read once per connection.
    pub(crate) const fn is_due(self, is_tls: bool) -> bool {
        match self {
            Self::Unknown => true,
            Self::Off => false,
            Self::Write(_) | Self::Unlimited => is_tls,
        }
    }

    /// Number of bytes of output per write; never more than `usual`, the value without this optimisation (packets are large on loopback).
    pub(crate) fn round(self, usual: usize) -> usize {
        match self {
            Self::Write(round) => usual.min(round.bytes as usize),
            Self::Unknown | Self::Off | Self::Unlimited => usual,
        }
    }

    /// Number of bytes of a body in the next DATA frame. `max` is the largest that the client accepts, `room` the number of bytes that
    /// the next write to the socket still has room for.
    pub(crate) fn piece(self, max: usize, room: usize) -> usize {
        match self {
            Self::Write(_) => max.min(room.max(LEAST_PIECE)),
            Self::Unknown | Self::Off | Self::Unlimited => max,
        }
    }

    /// Decides whether the latency optimisation applies, by the kernel's figures `tcp`, by the duration of a turn of the event
    /// loop, and by the bytes that a TLS record adds to its payload.
    pub(crate) fn decide(
        settings: &LatencySettings,
        tcp: Option<&TcpInfo>,
        turn: Duration,
        overhead: u32,
    ) -> Self {
        let (Some(min_rtt), Some(tcp)) = (settings.min_rtt, tcp) else {
            return Self::Off;
        };
        let allowed = u128::from(settings.max_additional_delay_percent) * tcp.rtt.as_micros();
        if tcp.rtt < min_rtt || turn.as_micros() * 100 > allowed {
            return Self::Off;
        }
        if u64::from(tcp.mss) * u64::from(tcp.cwnd_packets) >= u64::from(settings.max_cwnd) {
            return Self::Unlimited;
        }
        let record_payload = tcp.mss.saturating_sub(overhead).max(1);
        // Two packets more than the congestion window lets leave now are allowed, so that the kernel has something to send until the next
        // turn.
        let packets = tcp.cwnd_packets.saturating_sub(tcp.unacked_packets) + 2;
        Self::Write(Round {
            record_payload,
            bytes: packets.saturating_mul(record_payload),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_with_a_small_window_is_written_to_packet_by_packet() {
        let settings = LatencySettings {
            min_rtt: Some(Duration::from_millis(50)),
            max_additional_delay_percent: 10,
            max_cwnd: 65_535,
        };
        let write = |record_payload, bytes| {
            Latency::Write(Round {
                record_payload,
                bytes,
            })
        };
        let cases = [
            // The columns: rtt in µs, duration of a turn in µs, mss, congestion window and unacknowledged packets (both in packets), bytes
            // that TLS adds to a record.
            ([49_999, 0, 1448, 10, 0, 22], Latency::Off),
            ([50_000, 0, 1448, 10, 0, 22], write(1426, 12 * 1426)),
            ([50_000, 0, 1448, 10, 0, 0], write(1448, 12 * 1448)),
            ([50_000, 0, 1448, 10, 10, 22], write(1426, 2 * 1426)),
            // A congestion window that has shrunk may have more packets in flight than it allows.
            ([50_000, 0, 1448, 10, 12, 22], write(1426, 2 * 1426)),
            ([50_000, 5000, 1448, 10, 3, 29], write(1419, 9 * 1419)),
            ([50_000, 5001, 1448, 10, 3, 29], Latency::Off),
            ([500_000, 5001, 1448, 10, 3, 29], write(1419, 9 * 1419)),
            ([50_000, 0, 1448, 45, 0, 22], write(1426, 47 * 1426)),
            ([50_000, 0, 1448, 46, 0, 22], Latency::Unlimited),
            ([50_000, 0, 13_107, 5, 0, 22], Latency::Unlimited),
            ([50_000, 0, 48, u32::MAX, 0, 22], Latency::Unlimited),
            // Extreme figures that no kernel reports must not overflow.
            ([50_000, 0, 0, u32::MAX - 2, 0, 22], write(1, u32::MAX)),
        ];
        for ([rtt, turn, mss, cwnd_packets, unacked_packets, overhead], want) in cases {
            let micros = |micros: u32| Duration::from_micros(micros.into());
            let tcp = TcpInfo {
                rtt: micros(rtt),
                mss,
                cwnd_packets,
                unacked_packets,
                delivery_rate: 0,
            };
            let got = Latency::decide(&settings, Some(&tcp), micros(turn), overhead);
            assert_eq!(got, want, "{tcp:?}");
            let off = LatencySettings {
                min_rtt: None,
                ..settings.clone()
            };
            let got = Latency::decide(&off, Some(&tcp), micros(turn), overhead);
            assert_eq!(got, Latency::Off);
        }
        let unix = Latency::decide(&settings, None, Duration::ZERO, 22);
        assert_eq!(unix, Latency::Off);
    }

    #[test]
    fn the_kernel_is_asked_once_unless_the_answer_may_change() {
        let write = Latency::Write(Round {
            record_payload: 1000,
            bytes: 2000,
        });
        for (latency, clear, tls, rounds, pieces) in [
            (Latency::Unknown, true, true, [1000, 16_384], [9000; 3]),
            (Latency::Off, false, false, [1000, 16_384], [9000; 3]),
            (Latency::Unlimited, false, true, [1000, 16_384], [9000; 3]),
            (write, false, true, [1000, 2000], [1900, 512, 512]),
        ] {
            assert_eq!(latency.is_due(false), clear, "{latency:?}");
            assert_eq!(latency.is_due(true), tls, "{latency:?}");
            let got = [1000, 16_384].map(|usual| latency.round(usual));
            assert_eq!(got, rounds, "{latency:?}");
            let got = [1900, 511, 0].map(|room| latency.piece(9000, room));
            assert_eq!(got, pieces, "{latency:?}");
        }
        assert_eq!(write.piece(80, 1900), 80);
    }
}
