//! QUIC before a connection is established.

/// Any datagrams to a server, from four ports, as time goes by; see the function in the crate for their form.
///
/// # Panics
/// If the server does, or sends more than address validation allows.
pub fn quic_datagrams(input: &[u8]) {
    h2o_quic::fuzzing::quic_datagrams(input);
}
