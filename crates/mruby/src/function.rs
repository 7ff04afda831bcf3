//! Functions of Rust that Ruby calls.

use crate::{Kind, Value, Vm};

/// A function of Rust that is a method in Ruby. Panics become exceptions.
pub type Function = fn(&Vm, &Call<'_>) -> Result<Value, Leave>;

/// How a function leaves without a value.
#[derive(Debug)]
pub enum Leave {
    /// This exception is raised.
    Raise(Value),
    /// An exception of the class with this name (`A::B` for nested ones) is raised with the message.
    New(&'static str, String),
    /// The running fiber waits: [`Vm::suspend`] has been called for it. The value with which it is resumed becomes the value of the
    /// method.
    Wait,
}

impl Leave {
    /// An `ArgumentError`.
    pub fn argument(message: impl Into<String>) -> Self {
        Self::New("ArgumentError", message.into())
    }

    /// A `TypeError`.
    pub fn type_error(message: impl Into<String>) -> Self {
        Self::New("TypeError", message.into())
    }

    /// A `RuntimeError`.
    pub fn runtime(message: impl Into<String>) -> Self {
        Self::New("RuntimeError", message.into())
    }
}

/// A call of a function by Ruby.
pub struct Call<'a> {
    /// The receiver: `self` of the method.
    pub receiver: Value,
    /// The block; `nil` if there is none.
    pub block: Value,
    /// The arguments. Keywords are a Hash at the end.
    pub arguments: Arguments<'a>,
}

/// The arguments of a call.
#[derive(Clone, Copy)]
pub struct Arguments<'a>(pub(crate) &'a [Value]);

impl<'a> Arguments<'a> {
    /// All of them.
    #[must_use]
    pub const fn all(self) -> &'a [Value] {
        self.0
    }

    /// Argument number `index`, or `nil`.
    #[must_use]
    pub fn get(self, index: usize) -> Value {
        self.0.get(index).copied().unwrap_or_else(Value::nil)
    }

    /// Exactly this many arguments.
    ///
    /// # Errors
    /// `ArgumentError` if there are more or fewer.
    pub fn exactly<const N: usize>(self) -> Result<[Value; N], Leave> {
        self.0.try_into().map_err(|_| {
            Leave::argument(format!(
                "wrong number of arguments (given {}, expected {N})",
                self.0.len()
            ))
        })
    }

    /// Checks that there are at least `least` and at most `most`.
    ///
    /// # Errors
    /// `ArgumentError` otherwise.
    pub fn between(self, least: usize, most: usize) -> Result<Self, Leave> {
        if (least..=most).contains(&self.0.len()) {
            return Ok(self);
        }
        let given = self.0.len();
        Err(Leave::argument(format!(
            "wrong number of arguments (given {given}, expected {least}..{most})"
        )))
    }
}

/// An exception that a step raised is passed on.
impl From<Value> for Leave {
    fn from(exception: Value) -> Self {
        Self::Raise(exception)
    }
}

/// The octets of an argument that must be a String.
///
/// # Errors
/// `TypeError`.
pub(crate) fn text_argument(vm: &Vm, value: Value) -> Result<Vec<u8>, Leave> {
    if value.kind() == Kind::String {
        return Ok(vm.bytes(value).unwrap_or_default());
    }
    let what = if value.is_nil() {
        "nil".to_owned()
    } else {
        vm.class_name(value)
    };
    Err(Leave::type_error(format!(
        "{what} cannot be converted to String"
    )))
}
