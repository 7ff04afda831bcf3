//! The first bytes that a TLS listener receives from a client.

/// The bytes are understood the same however they are cut. An SNI that rustls would refuse is hidden from rustls, and only such an SNI.
///
/// # Panics
/// If an invariant does not hold.
pub fn client_hello(input: &[u8]) {
    h2o_tls::fuzzing::client_hello(input);
}
