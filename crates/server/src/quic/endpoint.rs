//! Translates the server's configuration into that of the QUIC transport, [`h2o_quic`].

use std::sync::Arc;

use h2o_quic::{
    CongestionControl, EndpointConfig, Keys, KnownPaths, Neighbours, Placement, ServerRole,
    TlsChooser, TransportSettings, UsedTokens, forward,
};
use h2o_tls::{QuicChoice, Resumption};

use super::handover::OtherGenerations;
use super::mail::Mailbox;
use crate::ServerSettings;
use crate::site::certificates::AcceptorSlot;
use crate::site::quic_settings::{Controller, Http3Settings, QuicNodes, QuicSettings};

/// Flow-control window of a stream: number of bytes that a client may send before the server has read them. It is enough for 100
/// Mbit/s over a round-trip time of 80 ms.
const STREAM_WINDOW: u32 = 1 << 20;
/// Largest number of unidirectional streams that a client may open: the three of HTTP/3, and some of unknown types (RFC 9114 §6.2).
const MAX_UNIDIRECTIONAL: u64 = 10;

/// Longest UDP payload in bytes that fits into an Ethernet frame (an MTU of 1500 bytes) over IPv4.
const DEFAULT_MAX_PAYLOAD: u16 = 1472;

/// The state that the QUIC listeners of all workers share.
pub(crate) struct QuicShared {
    /// The network paths to clients that all workers remember, with figures such as round-trip times.
    pub(crate) known_paths: KnownPaths,
    /// The address validation tokens that clients have used.
    pub(crate) used_tokens: Arc<UsedTokens>,
    /// The mailboxes for datagrams, by the index of the worker.
    pub(crate) mailboxes: Arc<[Mailbox]>,
    /// Channels to the other generations of this server (processes before and after an upgrade of the binary).
    pub(crate) other_generations: Arc<OtherGenerations>,
}

/// Chooses the TLS configuration for a client, from the listener's current acceptor.
struct Chooser(Arc<AcceptorSlot>);

impl TlsChooser for Chooser {
    fn choose(&self, client_hello: &mut [u8]) -> QuicChoice {
        self.0.current().choose_for_quic(client_hello)
    }
}

/// Derives the keys of connection ids and tokens, which change together with the keys of TLS session tickets.
pub(super) fn keys(resumption: &Resumption) -> Vec<Keys> {
    let secrets = resumption.quic_secrets();
    let derive = |secret: &h2o_tls::QuicSecret| Keys::derive(secret.number, &secret.secret);
    secrets.iter().map(derive).collect()
}

/// The settings of the QUIC transport for the connections of a listener.
fn transport(settings: &QuicSettings, http3: &Http3Settings) -> TransportSettings {
    TransportSettings {
        idle_timeout: http3.idle_timeout,
        receive_window: http3.input_window_size.into(),
        stream_receive_window: http3.input_window_size.min(STREAM_WINDOW).into(),
        max_streams_bidi: settings.max_streams,
        max_streams_uni: MAX_UNIDIRECTIONAL,
        max_udp_payload_size: settings.max_udp_payload,
        congestion_control: match settings.controller {
            Controller::Reno => CongestionControl::Reno,
            Controller::Cubic => CongestionControl::Cubic,
            Controller::Auto | Controller::Model => CongestionControl::Model,
        },
        initial_window_packets: settings.initial_window,
        ecn: settings.ecn,
        max_jump_packets: settings.max_jump,
        known_path_jumps: settings.known_path_jumps,
        first_jump_packets: settings.first_jump,
        first_jumps: settings.first_jumps,
        rapid_start: settings.rapid_start,
        is_paced: settings.pacing,
        respects_underuse: settings.respect_app_limited,
        gso: http3.segmentation_offload,
        ack_threshold: ack_threshold(http3.ack_frequency, settings.initial_window),
        ..TransportSettings::default()
    }
}

/// The settings with which a QUIC listener accepts new connections.
pub(super) fn server_role(
    settings: &QuicSettings,
    configured: &ServerSettings,
    shared: &QuicShared,
    tls: Arc<AcceptorSlot>,
) -> ServerRole {
    let nodes = configured.quic_nodes.as_deref();
    let mut transport = transport(settings, &configured.http3);
    if nodes.is_some_and(|nodes| !nodes.others.is_empty()) {
        // The size of clients' datagrams is limited, so that they still fit into a packet after this server has wrapped them for
        // another server of the fleet.
        let max = DEFAULT_MAX_PAYLOAD - forward::MAX_OVERHEAD;
        transport.max_udp_payload_size = transport.max_udp_payload_size.min(max);
    }
    ServerRole {
        retry: settings.retry,
        used_tokens: Arc::clone(&shared.used_tokens),
        amplification_limit: settings.amplification_limit,
        traces: settings.qlog.is_some(),
        handshake_rtts: settings.handshake_rtts,
        max_handshake_datagrams: settings.max_handshake_packets,
        ..ServerRole::new(Arc::new(Chooser(tls)), transport)
    }
}

/// The settings of the QUIC endpoint of a listener on one worker.
pub(super) fn config(
    server: ServerRole,
    configured: &ServerSettings,
    shared: &QuicShared,
    keys: Vec<Keys>,
    worker: usize,
    finds_mtu: bool,
) -> EndpointConfig {
    let nodes = configured.quic_nodes.as_deref();
    EndpointConfig {
        keys,
        placement: Placement {
            node: nodes.map_or(0, |nodes| nodes.this),
            generation: shared.other_generations.generation,
            worker: u16::try_from(worker).unwrap_or(u16::MAX),
        },
        neighbours: Neighbours {
            workers: u16::try_from(shared.mailboxes.len()).unwrap_or(u16::MAX),
            nodes: nodes.map(QuicNodes::numbers).unwrap_or_default(),
        },
        server: Some(server),
        finds_mtu,
        known_paths: shared.known_paths.clone(),
        seed: None,
    }
}

/// Returns the number of packets after which a client is asked to acknowledge at once: a fraction of the initial congestion window.
fn ack_threshold(frequency: f64, window: u32) -> Option<u32> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and the ratio is at most 1"
    )]
    let packets = (frequency * f64::from(window)).ceil() as u32;
    (packets > 0).then_some(packets)
}

#[cfg(test)]
mod tests {
    use h2o_quic::Ratio;

    use super::*;

    #[test]
    fn connections_obey_the_settings_of_their_listener() {
        let defaults = transport(&QuicSettings::default(), &Http3Settings::default());
        assert_eq!(
            defaults,
            TransportSettings {
                stream_receive_window: defaults.stream_receive_window,
                send_window: defaults.send_window,
                ..TransportSettings::default()
            }
        );
        assert_eq!(defaults.max_jump_packets, 0);
        assert_eq!(defaults.initial_window_packets, 32);

        let settings = QuicSettings {
            ecn: Ratio(1),
            max_jump: 100,
            known_path_jumps: Ratio(2),
            first_jump: 50,
            first_jumps: Ratio(3),
            rapid_start: Ratio(4),
            pacing: Ratio(5),
            respect_app_limited: Ratio(6),
            controller: Controller::Cubic,
            initial_window: 10,
            ..QuicSettings::default()
        };
        let obeyed = transport(&settings, &Http3Settings::default());
        let ratios = [
            obeyed.ecn,
            obeyed.known_path_jumps,
            obeyed.first_jumps,
            obeyed.rapid_start,
            obeyed.is_paced,
            obeyed.respects_underuse,
        ];
        assert_eq!(ratios, [1, 2, 3, 4, 5, 6].map(Ratio));
        assert_eq!(obeyed.first_jump_packets, 50);
        assert_eq!(obeyed.max_jump_packets, 100);
        assert_eq!(obeyed.initial_window_packets, 10);
        assert_eq!(obeyed.congestion_control, CongestionControl::Cubic);
    }
}
