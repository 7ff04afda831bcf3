//! Ruby for scripts: the library mruby behind a shim in C (`shim.c`), conversion of values and calls of functions between
//! Rust and Ruby, strands (fibers that can wait), and the parts of the Ruby environment that mruby lacks.
//!
//! Two rules hold everywhere. No exception of Ruby skips a frame of Rust: an operation that may raise runs protected, and
//! the exception is returned as a value. No panic unwinds through a frame of C: each function that C calls catches it.
//!
//! A [`Value`] is valid only while something in Ruby refers to it: a variable, an object or, for the time of one call, the
//! garbage collector's arena. A value that Rust keeps longer must be [`Rooted`].

mod border;
mod digest;
mod environ;
mod environment;
mod errno;
#[cfg(any(test, feature = "faults"))]
pub mod faults;
mod ffi;
mod files;
mod function;
mod json;
mod limits;
mod meter;
mod random;
mod regexp;
mod require;
mod strand;
mod value;
mod vm;
mod watchdog;

#[cfg(test)]
mod environment_list;
#[cfg(test)]
mod environment_tests;
#[cfg(test)]
mod library_tests;
#[cfg(test)]
mod shipped_tests;
#[cfg(test)]
mod tests;

pub use function::{Arguments, Call, Function, Leave};
pub use limits::Limit;
pub use meter::Metered;
pub use strand::{Finish, Ticket};
pub use value::{Kind, Value};
pub use vm::{
    CompileFault, Error, LazyHash, Options, Part, PlainResponse, Rooted, Vm, check, version,
};
pub use watchdog::{Report, report_to};
