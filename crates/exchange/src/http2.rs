//! What handlers, filters and logs share with the HTTP/2 driver about a stream.

/// The HTTP/2 stream of an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Http2Stream {
    /// The stream identifier.
    pub id: u32,
    /// The priority that the client's HEADERS frame gives the stream (RFC 7540 §5.3).
    pub received: StreamPriority,
    /// The stream's current position in the dependency tree; its `exclusive` is never set.
    pub actual: StreamPriority,
    /// Set by the handler of `http2-debug-state`, with the level of detail: the HTTP/2 driver then writes the response
    /// body.
    pub debug_state: Option<DebugState>,
}

/// A position in the dependency tree of HTTP/2 streams (RFC 7540 §5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPriority {
    /// Whether the stream is the only child of its parent.
    pub exclusive: bool,
    /// Identifier of the parent stream; 0 for the root of the tree.
    pub parent: u32,
    /// The stream's weight: 1 to 256 as the client sent it, or 257 for streams that the server sends before all others.
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

/// Level of detail of the response to `http2-debug-state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugState {
    /// The response lists settings, windows and streams.
    Minimum,
    /// The response lists the dynamic tables of HPACK as well.
    Hpack,
}

/// A resource to push with the response (RFC 9113 §8.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushOrder {
    /// Path and query of the pushed resource; its authority is that of the request.
    pub target: Vec<u8>,
    /// Whether the pushed response is sent before all other streams.
    pub critical: bool,
}
