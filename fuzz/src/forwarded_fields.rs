//! The fields `x-forwarded-for` and `forwarded`, in which proxies name the client.

/// Whatever a client writes into the field, the address that a proxy appends to it is found.
///
/// # Panics
/// If an invariant does not hold.
pub fn forwarded_fields(input: &[u8]) {
    h2o_handlers::fuzzing::forwarded_fields(input);
}
