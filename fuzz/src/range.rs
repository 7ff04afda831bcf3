//! The `Range` field.

/// What is sent lies in the file, once, and asking for it again gives the same. Eight bytes are the size of the
/// file, the rest is the value of the field.
///
/// # Panics
/// If an invariant does not hold.
pub fn range(input: &[u8]) {
    h2o_handlers::fuzzing::range(input);
}
