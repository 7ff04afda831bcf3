//! The parts of the Ruby environment that scripts rely on and mruby lacks: some in Rust, some in Ruby. Both are loaded into
//! every VM before any script, those in Rust first.

use crate::Part;

/// The parts of the Ruby environment that are written in Rust.
pub(crate) const PARTS: &[Part] = &[
    crate::regexp::define,
    crate::require::define,
    crate::digest::define,
    crate::random::define,
    crate::errno::define,
    crate::environ::define,
    crate::files::define,
    crate::json::define,
];

/// The parts of the Ruby environment that are written in Ruby: the name of each file, as backtraces show it, and its text.
pub(crate) const PRELUDE: &[(&str, &str)] = &[
    ("core.rb", include_str!("prelude/core.rb")),
    ("regexp.rb", include_str!("prelude/regexp.rb")),
    ("require.rb", include_str!("prelude/require.rb")),
    ("digest.rb", include_str!("prelude/digest.rb")),
    ("random.rb", include_str!("prelude/random.rb")),
    ("errno.rb", include_str!("prelude/errno.rb")),
    ("environ.rb", include_str!("prelude/environ.rb")),
    ("files.rb", include_str!("prelude/files.rb")),
    ("kernel.rb", include_str!("prelude/kernel.rb")),
    ("acl.rb", include_str!("prelude/acl.rb")),
];
