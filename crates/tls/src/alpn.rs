//! Names of application protocols (RFC 7301).

/// The protocols that this server may choose.
const NAMES: [&str; 6] = ["h2", "h2-16", "h2-14", "http/1.1", "h3", "h3-29"];

/// The protocol's name for logs and scripts.
pub(crate) fn name(protocol: &[u8]) -> Option<&'static str> {
    NAMES.into_iter().find(|name| name.as_bytes() == protocol)
}
