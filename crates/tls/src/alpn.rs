//! Names of application protocols (RFC 7301).

/// The ALPN protocol by which a certificate authority checks that this server controls a domain name (ACME, RFC 8737).
/// No application data is sent over such connections.
pub const CHALLENGE: &str = "acme-tls/1";

/// The names of the ALPN protocols that this server may choose.
const NAMES: [&str; 7] = ["h2", "h2-16", "h2-14", "http/1.1", "h3", "h3-29", CHALLENGE];

/// The name of an ALPN protocol, as logs and scripts show it; `None` for a protocol that this server does not know.
pub(crate) fn name(protocol: &[u8]) -> Option<&'static str> {
    NAMES.into_iter().find(|name| name.as_bytes() == protocol)
}
