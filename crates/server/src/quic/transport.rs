//! What handlers and logs may ask about a QUIC connection, and the worker's counters of QUIC.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::rc::Rc;

use h2o_exchange::{Address, Counter, Counters, Transport};
use h2o_quic::{ConnectionIndex, Endpoint, Stats, Totals};

use crate::site::quic_settings::Controller;

/// A QUIC connection, as handlers and logs query it.
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

/// Calls `count` with each counter of a QUIC connection, in the order of H2O's status report.
fn each(stats: &Stats, mut count: impl FnMut(Counter, u64)) {
    count(Counter::QuicPacketsReceived, stats.datagrams_received);
    count(Counter::QuicPacketsSent, stats.packets_sent);
    count(Counter::QuicPacketsLost, stats.packets_lost);
    count(Counter::QuicBytesReceived, stats.bytes_received);
    count(Counter::QuicBytesSent, stats.bytes_sent);
    count(Counter::QuicBytesLost, stats.bytes_lost);
    count(Counter::QuicBytesStreamDataSent, stats.stream_bytes_sent);
    let (received, sent) = (&stats.frames_received, &stats.frames_sent);
    let received_path_responses = received.path_response;
    let received = [
        (Counter::QuicFramesReceivedPing, received.ping),
        (Counter::QuicFramesReceivedAck, received.ack),
        (
            Counter::QuicFramesReceivedResetStream,
            received.reset_stream,
        ),
        (
            Counter::QuicFramesReceivedStopSending,
            received.stop_sending,
        ),
        (Counter::QuicFramesReceivedCrypto, received.crypto),
        (Counter::QuicFramesReceivedNewToken, received.new_token),
        (Counter::QuicFramesReceivedStream, received.stream),
        (Counter::QuicFramesReceivedMaxData, received.max_data),
        (
            Counter::QuicFramesReceivedMaxStreamData,
            received.max_stream_data,
        ),
        (
            Counter::QuicFramesReceivedMaxStreamsBidi,
            received.max_streams_bidi,
        ),
        (
            Counter::QuicFramesReceivedMaxStreamsUni,
            received.max_streams_uni,
        ),
        (
            Counter::QuicFramesReceivedDataBlocked,
            received.data_blocked,
        ),
        (
            Counter::QuicFramesReceivedStreamDataBlocked,
            received.stream_data_blocked,
        ),
        (
            Counter::QuicFramesReceivedStreamsBlocked,
            received.streams_blocked,
        ),
        (
            Counter::QuicFramesReceivedNewConnectionId,
            received.new_connection_id,
        ),
        (
            Counter::QuicFramesReceivedRetireConnectionId,
            received.retire_connection_id,
        ),
        (
            Counter::QuicFramesReceivedPathChallenge,
            received.path_challenge,
        ),
        (
            Counter::QuicFramesReceivedPathResponse,
            received.path_response,
        ),
        (
            Counter::QuicFramesReceivedTransportClose,
            received.transport_close,
        ),
        (
            Counter::QuicFramesReceivedApplicationClose,
            received.application_close,
        ),
        (
            Counter::QuicFramesReceivedHandshakeDone,
            received.handshake_done,
        ),
        (Counter::QuicFramesReceivedDatagram, received.datagram),
        (
            Counter::QuicFramesReceivedAckFrequency,
            received.ack_frequency,
        ),
        (
            Counter::QuicFramesReceivedImmediateAck,
            received.immediate_ack,
        ),
    ];
    let sent = [
        (Counter::QuicFramesSentPing, sent.ping),
        (Counter::QuicFramesSentAck, sent.ack),
        (Counter::QuicFramesSentResetStream, sent.reset_stream),
        (Counter::QuicFramesSentStopSending, sent.stop_sending),
        (Counter::QuicFramesSentCrypto, sent.crypto),
        (Counter::QuicFramesSentNewToken, sent.new_token),
        (Counter::QuicFramesSentStream, sent.stream),
        (Counter::QuicFramesSentMaxData, sent.max_data),
        (Counter::QuicFramesSentMaxStreamData, sent.max_stream_data),
        (Counter::QuicFramesSentMaxStreamsBidi, sent.max_streams_bidi),
        (Counter::QuicFramesSentMaxStreamsUni, sent.max_streams_uni),
        (Counter::QuicFramesSentDataBlocked, sent.data_blocked),
        (
            Counter::QuicFramesSentStreamDataBlocked,
            sent.stream_data_blocked,
        ),
        (Counter::QuicFramesSentStreamsBlocked, sent.streams_blocked),
        (
            Counter::QuicFramesSentNewConnectionId,
            sent.new_connection_id,
        ),
        (
            Counter::QuicFramesSentRetireConnectionId,
            sent.retire_connection_id,
        ),
        (Counter::QuicFramesSentPathChallenge, sent.path_challenge),
        (Counter::QuicFramesSentPathResponse, sent.path_response),
        (Counter::QuicFramesSentTransportClose, sent.transport_close),
        (
            Counter::QuicFramesSentApplicationClose,
            sent.application_close,
        ),
        (Counter::QuicFramesSentHandshakeDone, sent.handshake_done),
        (Counter::QuicFramesSentDatagram, sent.datagram),
        (Counter::QuicFramesSentAckFrequency, sent.ack_frequency),
        (Counter::QuicFramesSentImmediateAck, sent.immediate_ack),
    ];
    for (counter, value) in received.into_iter().chain(sent) {
        count(counter, value);
    }
    // PATH_RESPONSE frames count as validated paths: each PATH_RESPONSE answers a PATH_CHALLENGE of this server (RFC 9000 §8.2).
    count(Counter::QuicPathsValidated, received_path_responses);
    count(Counter::QuicPathsMigrationElicited, stats.migrations);
    count(Counter::QuicPtos, stats.probes);
}

/// The QUIC endpoints of a worker. Their statistics are copied into the worker's counters when these are read.
#[derive(Default)]
pub(super) struct Endpoints {
    open: RefCell<Vec<Rc<RefCell<Endpoint>>>>,
    /// The statistics of the endpoints that were closed.
    closed: RefCell<Vec<(Counter, u64)>>,
}

impl Endpoints {
    pub(super) fn add(&self, endpoint: &Rc<RefCell<Endpoint>>) {
        self.open.borrow_mut().push(Rc::clone(endpoint));
    }

    /// Removes a closed endpoint; its statistics stay in `closed`.
    pub(super) fn remove(&self, endpoint: &Rc<RefCell<Endpoint>>) {
        (self.open.borrow_mut()).retain(|other| !Rc::ptr_eq(other, endpoint));
        let mut closed = self.closed.borrow_mut();
        for (counter, value) in sums(&endpoint.borrow().totals()) {
            match closed.iter_mut().find(|(other, _)| *other == counter) {
                Some((_, sum)) => *sum += value,
                None => closed.push((counter, value)),
            }
        }
    }

    /// Sets the worker's counters of QUIC to the present statistics of all endpoints.
    pub(super) fn publish(&self, counters: &Counters) {
        let mut all = self.closed.borrow().clone();
        for endpoint in &*self.open.borrow() {
            let Ok(endpoint) = endpoint.try_borrow() else {
                // The endpoint is in use, so the counters stay as they were.
                return;
            };
            all.extend(sums(&endpoint.totals()));
        }
        for &(counter, _) in &all {
            counters.set(counter, 0);
        }
        for (counter, value) in all {
            counters.add(counter, value);
        }
    }
}

/// The statistics of an endpoint, as values of counters.
fn sums(totals: &Totals) -> Vec<(Counter, u64)> {
    let mut sums = Vec::new();
    each(&totals.connections, |counter, value| {
        sums.push((counter, value))
    });
    sums.extend([
        (Counter::QuicDatagrams, totals.datagrams),
        (Counter::QuicDatagramsProcessed, totals.processed),
        (Counter::QuicPacketsAckReceived, totals.packets_acked),
        (Counter::QuicPacketsInitialReceived, totals.initial),
        (Counter::QuicPacketsZeroRttReceived, totals.zero_rtt),
        (Counter::QuicPacketsHandshakeReceived, totals.handshake),
        (Counter::QuicPacketsReceivedEcnEct0, totals.ect0),
        (Counter::QuicPacketsReceivedEcnEct1, totals.ect1),
        (Counter::QuicPacketsReceivedEcnCe, totals.ce),
        (Counter::QuicBytesAckReceived, totals.bytes_acked),
        (
            Counter::QuicPathsCreated,
            totals.begun + totals.connections.migrations,
        ),
        (Counter::QuicHandshakeTimeouts, totals.handshake_timeouts),
        (Counter::QuicHandshakesExceeded, totals.handshakes_exceeded),
        (Counter::QuicJumpstartApplicable, totals.jumps),
        (Counter::QuicRapidStart, totals.rapid_starts),
        (Counter::QuicPaced, totals.paced),
        (Counter::QuicRespectedAppLimited, totals.respecting_underuse),
    ]);
    sums
}

/// Lists the counters of a connection under H2O's names.
fn render(stats: &Stats) -> String {
    let mut out = String::with_capacity(512);
    let mut pair = |name: &str, value: u64| {
        let comma = if out.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(out, "{comma}{name}={value}");
    };
    each(stats, |counter, value| {
        let name = counter.name();
        pair(name.strip_prefix("quic.").unwrap_or(name), value);
    });
    let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    pair("rtt.smoothed", micros(stats.rtt));
    pair("rtt.minimum", micros(stats.min_rtt));
    pair("cc.cwnd", stats.congestion_window);
    pair("cc.num-loss-episodes", stats.congestion_events);
    out
}
