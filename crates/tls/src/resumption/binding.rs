//! The digest that binds a TLS session to the server's certificates.

/// A digest of the certificates and client authorities of an `ssl` mapping. A session can be resumed only under the
/// same digest (RFC 8446 §4.6.1): client authentication must not carry over to a host with other authorities.
pub(crate) type Binding = [u8; 32];
