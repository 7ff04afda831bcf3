//! Bytes that FastCGI applications send.

/// The input is the header block of a response.
///
/// # Panics
/// If an invariant does not hold.
pub fn fastcgi_head(input: &[u8]) {
    h2o_upstream::fuzzing::fastcgi_head(input);
}

/// The input is read as records, and as encoded parameters.
///
/// # Panics
/// If an invariant does not hold.
pub fn fastcgi_records(input: &[u8]) {
    h2o_upstream::fuzzing::fastcgi_records(input);
}
