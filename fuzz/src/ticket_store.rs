//! Ticket keys in memcached and Redis.

/// Whatever a store answers, keys that are taken from it can be written and read again.
///
/// # Panics
/// If an invariant does not hold.
pub fn ticket_store(input: &[u8]) {
    h2o_tls::fuzzing::ticket_store(input);
}
