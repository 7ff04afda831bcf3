//! The limits in time that end connections.

/// The time limit by which a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLimit {
    /// No request was under way for too long.
    Idle,
    /// The head of a request has begun, and was not complete in time.
    Head {
        /// Whether it is the first request of the connection, which the access log records.
        first_request: bool,
    },
    /// The client was silent within the content of a request.
    Read,
    /// The client did not take what was sent.
    Write,
    /// Graceful shutdown took too long.
    Shutdown,
}
