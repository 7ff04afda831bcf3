//! Ticket keys and sessions in memcached and Redis.

/// Whatever a store answers, keys that are taken from it can be written and read again.
///
/// # Panics
/// If an invariant does not hold.
pub fn ticket_store(input: &[u8]) {
    h2o_tls::fuzzing::ticket_store(input);
}

/// Whatever a store has as a session, one that is taken is the same after it was written and read again.
///
/// # Panics
/// If an invariant does not hold.
pub fn stored_session(input: &[u8]) {
    h2o_tls::fuzzing::stored_session(input);
}
