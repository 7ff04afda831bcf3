//! What handlers, filters and logs share with the HTTP/2 driver about one stream.

/// The HTTP/2 stream of an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Http2Stream {
    /// The stream identifier.
    pub id: u32,
    /// The priority the client gave the stream with its HEADERS frame (RFC 7540 §5.3).
    pub received: StreamPriority,
    /// Its place in the dependency tree now; `exclusive` is not kept there.
    pub actual: StreamPriority,
    /// Set by the handler of `http2-debug-state`: the driver fills the response in.
    pub debug_state: Option<DebugState>,
}

/// A place in the dependency tree (RFC 7540 §5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPriority {
    /// Alone below its parent.
    pub exclusive: bool,
    /// The stream depended on; 0 for the root.
    pub parent: u32,
    /// 1 to 256; 257 for a stream the server sends ahead of all others.
    pub weight: u16,
}

impl Default for StreamPriority {
    fn default() -> Self {
        Self {
            exclusive: false,
            parent: 0,
            weight: 16,
        }
    }
}

/// How much `http2-debug-state` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugState {
    /// Settings, windows and streams.
    Minimum,
    /// The tables of header compression too.
    Hpack,
}

/// A resource to be pushed with the response (RFC 9113 §8.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushOrder {
    /// Path and query, on the authority of the request.
    pub target: Vec<u8>,
    /// Sent ahead of all other streams.
    pub critical: bool,
}
