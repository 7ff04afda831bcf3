//! Settings of HTTP/2. Those of [`Http2Settings`] hold for the whole process; hosts may differ in
//! [`ReprioritizesBlockingAssets`].

use std::time::Duration;

/// What every HTTP/2 connection obeys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http2Settings {
    /// `http2-idle-timeout`.
    pub idle_timeout: Duration,
    /// `http2-graceful-shutdown-timeout`; `None`: the peer is waited for.
    pub graceful_shutdown_timeout: Option<Duration>,
    /// `http2-max-streams`.
    pub max_streams: u32,
    /// `http2-max-concurrent-requests-per-connection`.
    pub max_concurrent_requests: usize,
    /// `http2-max-concurrent-streaming-requests-per-connection`.
    pub max_concurrent_streaming_requests: usize,
    /// `http2-input-window-size`.
    pub input_window_size: u32,
    /// `http2-latency-optimization-*`.
    pub latency: LatencySettings,
    /// `http2-dos-delay`; zero for off.
    pub dos_delay: Duration,
}

/// When responses are kept back from the kernel so that a more urgent one can overtake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencySettings {
    /// Connections with a shorter round trip are left alone; `None`: all are.
    pub min_rtt: Option<Duration>,
    /// How much longer than the round trip the event loop may take to come around, in percent.
    pub max_additional_delay_percent: u32,
    /// Bytes; connections whose congestion window has grown that far are left alone.
    pub max_cwnd: u32,
}

/// `http2-reprioritize-blocking-assets`: whether style sheets and scripts go ahead of what else a client without dependencies
/// of its own asked for.
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
