//! What a response was made from, so that the response to an equal request need not be made again.

use crate::Worker;

/// What a response depends on besides its request, such as a file.
///
/// A handler that sets [`Exchange::premise`](crate::Exchange::premise) says: while the premise [holds](Premise::holds), the
/// handler responds to every equal request on this path with equal bytes, except for the `date` field.
pub trait Premise {
    /// Whether a response made now would still be the same. If so, the response counts as one more use of what it was made from.
    fn holds(&self, worker: &Worker) -> bool;
}
