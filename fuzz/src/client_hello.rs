//! The first bytes of a client of a TLS listener.

/// However they come in they are seen alike, and a name that rustls would refuse is hidden from it and from nobody else.
///
/// # Panics
/// If an invariant does not hold.
pub fn client_hello(input: &[u8]) {
    h2o_tls::fuzzing::client_hello(input);
}
