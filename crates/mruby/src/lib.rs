//! Ruby for scripts: the library mruby behind a shim in C (`shim.c`), values and functions across the border, strands (fibers
//! that can wait), and what mruby lacks of the Ruby environment.
//!
//! Two rules hold everywhere. No exception of Ruby skips a frame of Rust: what may raise runs protected and returns the exception
//! as a value. No panic unwinds through a frame of C: each function that C calls catches it.
//!
//! A [`Value`] is valid only while something of Ruby refers to it: a variable, an object, or for the time of one call the
//! collector's arena. What Rust keeps longer is [`Rooted`].

mod border;
mod digest;
mod environ;
mod environment;
mod errno;
mod ffi;
mod files;
mod function;
mod json;
mod limits;
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
pub use strand::{Finish, Ticket};
pub use value::{Kind, Value};
pub use vm::{CompileFault, Error, Options, Part, Rooted, Vm, check, version};
pub use watchdog::{Report, report_to};
