//! Conditional requests.

/// A file counts as unchanged only for a client that names its tag or a date. A line each is the value of
/// `If-None-Match`, `If-Modified-Since`, `If-Range` and a second `If-None-Match`.
///
/// # Panics
/// If an invariant does not hold.
pub fn conditional(input: &[u8]) {
    h2o_handlers::fuzzing::conditional(input);
}
