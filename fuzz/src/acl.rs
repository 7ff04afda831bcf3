//! Address lists of `proxy.connect`.

/// Each line of the input is an entry. An accepted entry means the same after it has been written out in full and parsed again.
///
/// # Panics
/// If an invariant does not hold.
pub fn acl(input: &[u8]) {
    String::from_utf8_lossy(input)
        .lines()
        .for_each(h2o_handlers::fuzzing::acl);
}
