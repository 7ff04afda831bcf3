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

/// What hosts and paths say about HTTP/2: `http2-push-preload` and its like, inherited as all settings are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http2SiteSettings {
    /// `http2-reprioritize-blocking-assets`: style sheets and scripts go ahead of what else a client without
    /// dependencies of its own asked for.
    pub reprioritize_blocking_assets: bool,
    /// `http2-push-preload`: `link` fields with `rel=preload` start pushes.
    pub push_preload: bool,
    /// `http2-casper`; `None` for off.
    pub casper: Option<CasperSettings>,
    /// `http2-allow-cross-origin-push` of the global level, the only one that counts (H2O compatibility).
    pub allow_cross_origin_push: bool,
}

impl Default for Http2SiteSettings {
    fn default() -> Self {
        Self {
            reprioritize_blocking_assets: true,
            push_preload: true,
            casper: None,
            allow_cross_origin_push: false,
        }
    }
}

/// How the cookie that remembers a client's cache is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CasperSettings {
    /// Bits of a key, 1 to 15: how many resources can be told apart.
    pub capacity_bits: u8,
    /// Every response is remembered, not only those that block rendering.
    pub tracks_all: bool,
}

impl Default for CasperSettings {
    fn default() -> Self {
        Self {
            capacity_bits: 13,
            tracks_all: false,
        }
    }
}
