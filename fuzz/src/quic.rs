//! QUIC before a connection is established.

/// Any datagrams to a server, from four ports, as time goes by; see the function in the crate for their form.
///
/// # Panics
/// If the server does, or sends more than address validation allows.
pub fn quic_datagrams(input: &[u8]) {
    h2o_quic::fuzzing::quic_datagrams(input);
}

/// Any bytes as a connection id and as an address token.
///
/// # Panics
/// If an id that is read does not say the same once more, or a token opens that nobody has sealed.
pub fn quic_ids_and_tokens(input: &[u8]) {
    h2o_quic::fuzzing::quic_ids_and_tokens(input);
}
