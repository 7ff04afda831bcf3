//! The language of `h2o.conf`: a YAML dialect whose nodes know their positions in the file, and the table of directives
//! that gives them meaning.
//!
//! [`load`] reads a file into a tree of [`Node`]s in which `!file`, `!env`, aliases and merge keys are resolved. A
//! [`Registry`] executes such a tree: it looks up each [`Directive`] by its name, checks its level and the kind of its
//! argument, and calls the code that applies it to a context, in the three passes of the language. Every [`Error`] names a
//! file, line and column.
//!
//! Files and environment variables are read through [`Source`], so that a configuration can also be in memory:
//!
//! ```
//! use h2o_config::{Directive, Kinds, Level, Levels, Memory, Pass, Registry, load};
//!
//! static DIRECTIVES: [Directive<u16>; 1] = [Directive {
//!     name: "max-connections",
//!     levels: Levels::GLOBAL,
//!     pass: Pass::Settings,
//!     kinds: Kinds::SCALAR,
//!     value: "NUMBER",
//!     default: "1024",
//!     help: "How many connections are served at a time.",
//!     apply: |limit, command| {
//!         *limit = command.node.integer("%zu", 1..=65535)?;
//!         Ok(())
//!     },
//! }];
//!
//! let files = Memory::new().file("h2o.conf", "max-connections: 10abc\n");
//! let registry = Registry::new(&[&DIRECTIVES]);
//! let top = load("h2o.conf", &files).unwrap();
//! let error = registry.run(Level::Global, &top, &mut 0).unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "[h2o.conf:1] in command max-connections, argument must match the format: %zu \
//!      (column 18; `10abc` is not a whole number; write digits only)",
//! );
//! ```

mod attributes;
mod directive;
mod document;
mod error;
mod explain;
mod kinds;
mod known;
mod levels;
mod load;
mod markdown;
mod merge;
mod nearest;
mod node;
mod pos;
mod registry;
mod resolve;
mod source;
mod tree;
mod value;
mod yaml;

pub use attributes::Attributes;
pub use directive::{Command, Directive, Pass};
pub use error::Error;
pub use kinds::{Attribute, Kinds};
pub use known::KNOWN;
pub use levels::{Level, Levels};
pub use load::{UnmatchedPatterns, load, load_noting};
pub use nearest::nearest;
pub use node::{Kind, Node, Value};
pub use pos::Pos;
pub use registry::Registry;
pub use source::{Memory, OsSource, Source};
pub use value::Unit;
