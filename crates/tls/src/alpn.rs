//! Names of application protocols (RFC 7301).

/// The protocol of authorities that check a name (RFC 8737). Nothing is sent over its connections.
pub const CHALLENGE: &str = "acme-tls/1";

/// The protocols that this server may choose.
const NAMES: [&str; 7] = ["h2", "h2-16", "h2-14", "http/1.1", "h3", "h3-29", CHALLENGE];

/// The protocol's name for logs and scripts.
pub(crate) fn name(protocol: &[u8]) -> Option<&'static str> {
    NAMES.into_iter().find(|name| name.as_bytes() == protocol)
}
