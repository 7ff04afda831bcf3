//! Facts about requests that came by HTTP/3, for logs.

use h2o_http::priority::PriorityParameters;

/// The HTTP/3 stream of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Http3Stream {
    /// The identifier of the request's stream (RFC 9000 §2.1).
    pub id: u64,
    /// Whether the request was blocked on QPACK: its head refers to entries of the client's dynamic table that had not
    /// arrived (RFC 9204 §2.1.2).
    pub was_blocked: bool,
    /// Bytes of the request's encoded field section (RFC 9204 §4.5), without the header of its HEADERS frame.
    pub header_bytes: u64,
    /// Bytes that were read from the request's stream until the request was logged, frame headers included.
    pub received: u64,
    /// Bytes that were handed to the QUIC transport for the request's stream until the request was logged.
    pub sent: u64,
    /// The priority of the response when the request was logged (RFC 9218).
    pub priority: PriorityParameters,
}
