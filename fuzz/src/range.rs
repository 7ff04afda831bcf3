//! The `Range` field.

/// The ranges that are sent lie within the file and do not overlap, and requesting them again gives the same. The first eight bytes of the
/// input are the size of the file, the rest is the value of the field.
///
/// # Panics
/// If an invariant does not hold.
pub fn range(input: &[u8]) {
    h2o_handlers::fuzzing::range(input);
}
