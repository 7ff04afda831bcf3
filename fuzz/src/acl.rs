//! Access control lists of `proxy.connect`.

/// Each line is an entry. What is accepted says the same when it is written out in full, and no more than that.
///
/// # Panics
/// If an invariant does not hold.
pub fn acl(input: &[u8]) {
    String::from_utf8_lossy(input)
        .lines()
        .for_each(h2o_handlers::fuzzing::acl);
}
