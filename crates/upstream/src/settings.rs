//! Settings of an upstream.

use std::sync::Arc;
use std::time::Duration;

use h2o_tls::TlsClient;

use crate::{FastcgiTarget, NameOrigin};

/// Settings of all connections and requests of an upstream.
#[derive(Clone, PartialEq)]
pub struct UpstreamSettings {
    /// `proxy.timeout.connect`: the time limit for name resolution, all attempts to connect, and the TLS handshake together.
    pub connect_timeout: Duration,
    /// `proxy.timeout.first_byte`: the time limit from the end of the request to the first byte of the response.
    pub first_byte_timeout: Duration,
    /// `proxy.timeout.io`: the longest time without progress, in all other cases.
    pub io_timeout: Duration,
    /// `proxy.timeout.keepalive`: how long an idle connection is kept; zero for no keep-alive.
    pub keepalive: Duration,
    /// `proxy.max-buffer-size`: limit in bytes of the part of a response in memory; when it is reached, the backend waits for the
    /// client. `None`: responses are buffered for slow clients.
    pub max_buffer_size: Option<u64>,
    /// `proxy.max-temp-file-size`: limit in bytes of the part of a response in a temporary file; 0 for no file.
    pub max_temp_file_size: u64,
    /// `proxy.zerocopy`: whether to splice bodies from socket to socket.
    pub zerocopy: bool,
    /// `proxy.proxy-protocol`: whether connections begin with a PROXY header. Requires a `keepalive` of zero.
    pub proxy_protocol: bool,
    /// `proxy.http2.ratio`: percentage of requests sent over HTTP/2; `None`: the backend chooses by ALPN.
    pub http2_ratio: Option<u8>,
    /// `proxy.http2.force-cleartext`: whether HTTP/2 is used with `http` backends.
    pub http2_force_cleartext: bool,
    /// `proxy.http3.ratio`: percentage of requests sent over HTTP/3; together with `http2_ratio` at most 100.
    pub http3_ratio: u8,
    /// `proxy.http3.ecn`: whether packets to backends are marked as ECN-capable.
    pub http3_ecn: bool,
    /// `proxy.http2.max-concurrent-streams`: limit of the open streams on an HTTP/2 or HTTP/3 connection.
    pub http2_max_streams: u32,
    /// How health checks address the backends if these are FastCGI applications; `None` if the backends speak HTTP.
    pub fastcgi: Option<FastcgiTarget>,
    /// Where the names of the backends come from.
    pub name_origin: NameOrigin,
    /// The TLS client for `https` backends.
    pub tls: Arc<TlsClient>,
}
