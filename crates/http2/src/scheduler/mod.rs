//! Who sends next: the dependency tree of RFC 7540 and the urgencies of RFC 9218.
