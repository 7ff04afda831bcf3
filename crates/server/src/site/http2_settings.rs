//! Settings of HTTP/2. [`Http2Settings`] apply to the whole process; [`ReprioritizesBlockingAssets`] may differ between hosts.

use std::time::Duration;

/// Settings of all HTTP/2 connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http2Settings {
    /// Value of the directive `http2-idle-timeout`.
    pub idle_timeout: Duration,
    /// Value of the directive `http2-graceful-shutdown-timeout`; `None` for no limit.
    pub graceful_shutdown_timeout: Option<Duration>,
    /// Value of the directive `http2-max-streams`.
    pub max_streams: u32,
    /// Value of the directive `http2-max-concurrent-requests-per-connection`.
    pub max_concurrent_requests: usize,
    /// Value of the directive `http2-max-concurrent-streaming-requests-per-connection`.
    pub max_concurrent_streaming_requests: usize,
    /// Value of the directive `http2-input-window-size`, in bytes.
    pub input_window_size: u32,
    /// Values of the directives `http2-latency-optimization-*`.
    pub latency: LatencySettings,
    /// Value of the directive `http2-dos-delay`; 0 turns the delay off.
    pub dos_delay: Duration,
}

/// Settings of the latency optimisation: when output is kept out of the kernel, so that a more urgent response can overtake it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencySettings {
    /// The optimisation applies to connections with at least this round-trip time; `None` turns it off.
    pub min_rtt: Option<Duration>,
    /// Longest turn of the event loop, as a percentage of the round-trip time; with longer turns the optimisation is
    /// off.
    pub max_additional_delay_percent: u32,
    /// The optimisation applies to connections with a smaller congestion window than this, in bytes.
    pub max_cwnd: u32,
}

/// `http2-reprioritize-blocking-assets`: whether style sheets and scripts are sent ahead of other responses, for clients that send
/// no stream dependencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReprioritizesBlockingAssets(pub(crate) bool);

impl Default for ReprioritizesBlockingAssets {
    fn default() -> Self {
        Self(true)
    }
}

impl Default for Http2Settings {
    fn default() -> Self {
        Self {
            idle_timeout: Duration::from_secs(10),
            graceful_shutdown_timeout: None,
            max_streams: 100,
            max_concurrent_requests: 100,
            max_concurrent_streaming_requests: 1,
            input_window_size: 16_777_216,
            latency: LatencySettings {
                min_rtt: Some(Duration::from_millis(50)),
                max_additional_delay_percent: 10,
                max_cwnd: 65_535,
            },
            dos_delay: Duration::from_millis(100),
        }
    }
}
