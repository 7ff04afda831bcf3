//! Who sends next: the dependency tree of RFC 7540 and the urgencies of RFC 9218.

mod field;

pub use field::{Update, Urgency, parse_priority};
