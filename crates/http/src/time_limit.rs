//! The time limits that end HTTP/1, HTTP/2 and HTTP/3 connections.

/// The time limit that ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLimit {
    /// The connection had no request under way for too long.
    Idle,
    /// The client began the head of a request and did not complete it in time.
    Head {
        /// Whether it would have been the first request of the connection; the access log records that case.
        first_request: bool,
    },
    /// The client sent no byte of a request's content for too long.
    Read,
    /// The client did not read any of a response for too long.
    Write,
    /// The graceful shutdown of the connection took too long.
    Shutdown,
}
