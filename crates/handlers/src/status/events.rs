//! The names in the module `events` of the status report. All are shown, even those without a counter in this server,
//! because monitoring expects them.

use h2o_exchange::Counter;

/// Groups of counters: a common prefix, and the rests of the names. H2O compatibility: H2O has these names in this
/// order.
pub(super) const EVENTS: &[(&str, &str)] = &[
    (
        "status-errors.",
        "400 401 403 404 405 416 417 421 500 502 503",
    ),
    ("http1-errors.", "request-timeout request-io-timeout"),
    (
        "http2-errors.",
        "protocol internal flow-control settings-timeout stream-closed frame-size refused-stream cancel compression \
         connect enhance-your-calm inadequate-security",
    ),
    (
        "http2.",
        "read-closed write-closed idle-timeout streaming-requests",
    ),
    ("http3.", "packet-forwarded forwarded-packet-received"),
    ("connections.", "idle-closed idle active shutdown"),
    (
        "quic.",
        "packet-received packet-processed num-sentmap-packets-largest",
    ),
    (
        "quic.num-packets.",
        "received decryption-failed sent lost lost-time-threshold ack-received late-acked initial-received \
         zero-rtt-received handshake-received initial-sent zero-rtt-sent handshake-sent received-out-of-order \
         received-ecn-ect0 received-ecn-ect1 received-ecn-ce acked-ecn-ect0 acked-ecn-ect1 acked-ecn-ce \
         sent-promoted-paths ack-received-promoted-paths max-delayed delayed-used",
    ),
    (
        "quic.num-bytes.",
        "received sent lost ack-received stream-data-sent stream-data-resent",
    ),
    ("quic.num-frames-received.", FRAMES),
    ("quic.num-frames-sent.", FRAMES),
    (
        "quic.num-paths.",
        "created validated validation-failed migration-elicited promoted closed-no-dcid ecn-validated ecn-failed",
    ),
    (
        "quic.",
        "num-ptos num-handshake-timeouts num-initial-handshake-exceeded num-jumpstart-applicable num-rapid-start \
         num-paced num-respected-app-limited",
    ),
    ("ssl.", "errors"),
    ("memory.", "mmap_errors"),
    ("h2olog.", "lost"),
    // H2O does not have the counters from here to the end of the list.
    (
        "http3-errors.",
        "datagram general-protocol stream-creation closed-critical-stream frame-unexpected frame excessive-load id settings \
         missing-settings qpack-decompression-failed qpack-encoder-stream qpack-decoder-stream transport",
    ),
    ("connections.", "overdrawn memory-closed"),
    ("connections.", "opening closing"),
    ("connections.http1.", "idle active shutdown"),
    ("connections.http2.", "idle active shutdown"),
    ("connections.http3.", "idle active shutdown"),
    ("file.", "cache-hits cache-misses"),
    ("proxy.", "responses-buffered retries"),
    ("proxy.connect-udp.", "sent received dropped"),
    (
        "temp-files.",
        "made octets-written write-failures limit-reached",
    ),
    ("", "panics"),
    ("scripts.", "exceptions memory-limit time-limit"),
];

const FRAMES: &str = "padding ping ack reset_stream stop_sending crypto new_token stream max_data max_stream_data \
    max_streams_bidi max_streams_uni data_blocked stream_data_blocked streams_blocked new_connection_id \
    retire_connection_id path_challenge path_response transport_close application_close handshake_done datagram \
    ack_frequency immediate_ack";

/// The counters in the module `ssl` of the status report.
pub(super) const SSL: &[(&str, &str)] = &[
    ("ssl.alpn.", "h1 h2"),
    ("ssl.handshake.", "full resume"),
    ("ssl.handshake.accumulated-time.", "full resume"),
];

/// The counters in the module `traffic` of the status report, which H2O does not have.
pub(super) const TRAFFIC: &[(&str, &str)] = &[
    ("traffic.", "requests"),
    ("traffic.responses.", "2xx 3xx 4xx 5xx"),
    ("traffic.", "bytes-received bytes-sent"),
];

/// The names of the counters of open connections: by protocol (`none` before and after HTTP) and by state.
pub(super) const CONNECTIONS: [(&str, &str, Counter); 11] = [
    ("none", "active", Counter::ConnectionsOpening),
    ("none", "shutdown", Counter::ConnectionsClosing),
    ("http1", "idle", Counter::Http1Idle),
    ("http1", "active", Counter::Http1Active),
    ("http1", "shutdown", Counter::Http1Shutdown),
    ("http2", "idle", Counter::Http2Idle),
    ("http2", "active", Counter::Http2Active),
    ("http2", "shutdown", Counter::Http2Shutdown),
    ("http3", "idle", Counter::Http3Idle),
    ("http3", "active", Counter::Http3Active),
    ("http3", "shutdown", Counter::Http3Shutdown),
];

/// The full names of the counters in `groups`.
pub(super) fn names(
    groups: &'static [(&'static str, &'static str)],
) -> impl Iterator<Item = String> {
    groups.iter().flat_map(|(prefix, names)| {
        names
            .split_ascii_whitespace()
            .map(move |name| format!("{prefix}{name}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_shown_once() {
        let groups = [EVENTS, SSL, TRAFFIC];
        let shown: Vec<_> = groups.into_iter().flat_map(names).collect();
        for counter in Counter::ALL {
            if *counter == Counter::Sessions {
                continue; // This counter is shown in the module `main`.
            }
            if matches!(counter, Counter::BufferBytes | Counter::ScriptBytes) {
                continue; // This counter is shown in the module `memory`.
            }
            let count = shown.iter().filter(|name| *name == counter.name()).count();
            assert_eq!(count, 1, "{}", counter.name());
        }
    }
}
