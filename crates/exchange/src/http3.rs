//! What is particular to requests that came by HTTP/3.

use h2o_http::priority::PriorityParameters;

/// The stream of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Http3Stream {
    /// Its identifier (RFC 9000 §2.1).
    pub id: u64,
    /// Whether the head of the request could not be decoded at once, because entries of its client's dynamic table had not come
    /// yet (RFC 9204 §2.1.2).
    pub was_blocked: bool,
    /// Number of bytes of the stream that were read until the request was logged, frame headers included.
    pub received: u64,
    /// Number of bytes of the stream that were handed to the transport until the request was logged.
    pub sent: u64,
    /// The priority of the response when the request was logged (RFC 9218).
    pub priority: PriorityParameters,
}
