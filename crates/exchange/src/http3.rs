//! What is particular to requests that came by HTTP/3.

use h2o_http::priority::PriorityParameters;

/// The stream of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Http3Stream {
    /// Its identifier (RFC 9000 §2.1).
    pub id: u64,
    /// Whether the head of the request had to wait for the dynamic table of its client (RFC 9204 §2.1.2).
    pub was_blocked: bool,
    /// Bytes of the stream that were read until the request was logged, frame headers included.
    pub received: u64,
    /// Bytes handed to the transport for the stream until then.
    pub sent: u64,
    /// The priority of the response then (RFC 9218).
    pub priority: PriorityParameters,
}
