//! Conditional requests.

/// A file counts as unchanged only if the client names its entity-tag or a date. The lines of the input are the values of `If-None-Match`,
/// `If-Modified-Since`, `If-Range` and a second `If-None-Match`.
///
/// # Panics
/// If an invariant does not hold.
pub fn conditional(input: &[u8]) {
    h2o_handlers::fuzzing::conditional(input);
}
