//! QUIC packets before a connection is established.

/// The input is a series of datagrams to a server, from four ports and with pauses; `h2o_quic::fuzzing` describes its form.
///
/// # Panics
/// If the server panics, or sends more than address validation allows.
pub fn quic_datagrams(input: &[u8]) {
    h2o_quic::fuzzing::quic_datagrams(input);
}

/// The input is used as a connection id, and as an address token.
///
/// # Panics
/// If a connection id that was read is different when it is written again, or a token is accepted that the server has not made.
pub fn quic_ids_and_tokens(input: &[u8]) {
    h2o_quic::fuzzing::quic_ids_and_tokens(input);
}
