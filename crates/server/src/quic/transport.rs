//! Facts about a QUIC connection, for handlers and logs.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::rc::Rc;

use h2o_exchange::{Address, Transport};
use h2o_quic::{ConnectionIndex, Endpoint, Stats};

use crate::site::quic_settings::Controller;

/// A connection, for queries.
pub(crate) struct QuicTransport {
    pub(crate) endpoint: Rc<RefCell<Endpoint>>,
    pub(crate) index: ConnectionIndex,
    pub(crate) local: SocketAddr,
    pub(crate) version: u32,
    pub(crate) controller: Controller,
}

impl QuicTransport {
    fn stats(&self) -> Option<Stats> {
        let mut endpoint = self.endpoint.try_borrow_mut().ok()?;
        Some(endpoint.connection(self.index)?.stats())
    }
}

impl Transport for QuicTransport {
    fn local_address(&self) -> Option<Address> {
        Some(Address::Ip(self.local))
    }

    fn congestion_controller(&self) -> Option<String> {
        let name = match self.controller {
            Controller::Reno => "reno",
            Controller::Cubic => "cubic",
            Controller::Auto | Controller::Model => "pico",
        };
        Some(name.to_owned())
    }

    fn delivery_rate(&self) -> Option<u64> {
        let stats = self.stats()?;
        let micros = u64::try_from(stats.rtt.as_micros()).ok()?;
        stats
            .congestion_window
            .saturating_mul(1_000_000)
            .checked_div(micros)
    }

    fn quic_version(&self) -> Option<u32> {
        Some(self.version)
    }

    fn quic_stats(&self) -> Option<String> {
        Some(render(&self.stats()?))
    }
}

/// Counters under H2O's names.
fn render(stats: &Stats) -> String {
    let mut out = String::with_capacity(512);
    let mut pair = |name: &str, value: u64| {
        let comma = if out.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(out, "{comma}{name}={value}");
    };
    pair("num-packets.received", stats.datagrams_received);
    pair("num-packets.sent", stats.packets_sent);
    pair("num-packets.lost", stats.packets_lost);
    pair("num-bytes.received", stats.bytes_received);
    pair("num-bytes.sent", stats.bytes_sent);
    pair("num-bytes.lost", stats.bytes_lost);
    let (received, sent) = (&stats.frames_received, &stats.frames_sent);
    for (side, frames) in [("received", received), ("sent", sent)] {
        let frames = [
            ("ping", frames.ping),
            ("ack", frames.ack),
            ("reset_stream", frames.reset_stream),
            ("stop_sending", frames.stop_sending),
            ("crypto", frames.crypto),
            ("new_token", frames.new_token),
            ("stream", frames.stream),
            ("max_data", frames.max_data),
            ("max_stream_data", frames.max_stream_data),
            ("max_streams_bidi", frames.max_streams_bidi),
            ("max_streams_uni", frames.max_streams_uni),
            ("data_blocked", frames.data_blocked),
            ("stream_data_blocked", frames.stream_data_blocked),
            ("streams_blocked", frames.streams_blocked),
            ("new_connection_id", frames.new_connection_id),
            ("retire_connection_id", frames.retire_connection_id),
            ("path_challenge", frames.path_challenge),
            ("path_response", frames.path_response),
            ("handshake_done", frames.handshake_done),
            ("datagram", frames.datagram),
            ("ack_frequency", frames.ack_frequency),
            ("immediate_ack", frames.immediate_ack),
        ];
        for (name, count) in frames {
            pair(&format!("num-frames-{side}.{name}"), count);
        }
    }
    let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    pair("rtt.smoothed", micros(stats.rtt));
    pair("rtt.minimum", micros(stats.min_rtt));
    pair("cc.cwnd", stats.congestion_window);
    pair("cc.num-loss-episodes", stats.congestion_events);
    out
}
