//! What applies to all connections and requests of an upstream.

use std::sync::Arc;
use std::time::Duration;

use h2o_tls::TlsClient;

use crate::NameOrigin;

/// What applies to all connections and requests of an upstream.
#[derive(Clone, PartialEq)]
pub struct UpstreamSettings {
    /// `proxy.timeout.connect`: name resolution, connecting (all attempts together) and TLS handshake.
    pub connect_timeout: Duration,
    /// `proxy.timeout.first_byte`: from the complete request to the first byte of the response.
    pub first_byte_timeout: Duration,
    /// `proxy.timeout.io`: between two steps forward of anything else.
    pub io_timeout: Duration,
    /// `proxy.timeout.keepalive`: how long an idle connection is kept; zero: not at all.
    pub keepalive: Duration,
    /// `proxy.max-buffer-size`: most bytes of a response that are held; the backend waits for the client then. Unset: responses
    /// are taken ahead of slow clients and kept.
    pub max_buffer_size: Option<u64>,
    /// `proxy.max-temp-file-size`: bytes of a response that are kept in a file. 0: no file.
    pub max_temp_file_size: u64,
    /// `proxy.zerocopy`: content goes from socket to socket within the kernel, where it can.
    pub zerocopy: bool,
    /// `proxy.proxy-protocol`: connections begin with a PROXY line. Goes with a `keepalive` of zero only.
    pub proxy_protocol: bool,
    /// `proxy.http2.ratio`: percentage of requests sent by HTTP/2; unset: what the server chooses by ALPN.
    pub http2_ratio: Option<u8>,
    /// `proxy.http2.force-cleartext`: `http` backends are spoken to in HTTP/2.
    pub http2_force_cleartext: bool,
    /// `proxy.http2.max-concurrent-streams`: most streams of ours on an HTTP/2 connection.
    pub http2_max_streams: u32,
    /// Who named the backends.
    pub name_origin: NameOrigin,
    /// What `https` backends are connected to with.
    pub tls: Arc<TlsClient>,
}
