//! The time limits that end connections.

/// The time limit that ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLimit {
    /// No request was under way for too long.
    Idle,
    /// The head of a request has begun and was not completed in time.
    Head {
        /// Whether it is the first request of the connection, which the access log records.
        first_request: bool,
    },
    /// The client sent no content of a request for too long.
    Read,
    /// The client did not read a response for too long.
    Write,
    /// Graceful shutdown took too long.
    Shutdown,
}
