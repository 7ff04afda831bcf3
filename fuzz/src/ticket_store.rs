//! Ticket keys and sessions from memcached and Redis.

/// Whatever a store answers, ticket keys that are accepted from it are the same after they have been written and read again.
///
/// # Panics
/// If an invariant does not hold.
pub fn ticket_store(input: &[u8]) {
    h2o_tls::fuzzing::ticket_store(input);
}

/// Whatever a store has as a session, an accepted session is the same after it has been written and read again.
///
/// # Panics
/// If an invariant does not hold.
pub fn stored_session(input: &[u8]) {
    h2o_tls::fuzzing::stored_session(input);
}
