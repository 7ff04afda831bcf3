//! Functions of Rust that Ruby calls.

use crate::{Kind, Value, Vm};

/// A function in Rust that is a method in Ruby. A panic in it becomes an exception.
pub type Function = fn(&Vm, &Call<'_>) -> Result<Value, Leave>;

/// What a Rust function that Ruby has called does in place of returning a value: raise an exception, or make the fiber wait.
#[derive(Debug)]
pub enum Leave {
    /// The function raises this exception.
    Raise(Value),
    /// The function raises a new exception with this message. The class is given by its name (`A::B` for a nested class).
    New(&'static str, String),
    /// The function makes the running fiber wait: [`Vm::suspend`] has been called for it. The value with which the fiber is
    /// resumed becomes the value of the method.
    Wait,
}

impl Leave {
    /// Raises an `ArgumentError`.
    pub fn argument(message: impl Into<String>) -> Self {
        Self::New("ArgumentError", message.into())
    }

    /// Raises a `TypeError`.
    pub fn type_error(message: impl Into<String>) -> Self {
        Self::New("TypeError", message.into())
    }

    /// Raises a `RuntimeError`.
    pub fn runtime(message: impl Into<String>) -> Self {
        Self::New("RuntimeError", message.into())
    }
}

/// A call from Ruby of a function in Rust.
pub struct Call<'a> {
    /// The receiver: `self` of the method.
    pub receiver: Value,
    /// The block of the call; `nil` if there is none.
    pub block: Value,
    /// The arguments. Keyword arguments are in a Hash at the end.
    pub arguments: Arguments<'a>,
}

/// The arguments of a call.
#[derive(Clone, Copy)]
pub struct Arguments<'a>(pub(crate) &'a [Value]);

impl<'a> Arguments<'a> {
    /// All arguments of the call.
    #[must_use]
    pub const fn all(self) -> &'a [Value] {
        self.0
    }

    /// The argument with this index, from 0; `nil` if there are fewer.
    #[must_use]
    pub fn get(self, index: usize) -> Value {
        self.0.get(index).copied().unwrap_or_else(Value::nil)
    }

    /// The arguments, if there are exactly `N`.
    ///
    /// # Errors
    /// Raises `ArgumentError` if there are more or fewer.
    pub fn exactly<const N: usize>(self) -> Result<[Value; N], Leave> {
        self.0.try_into().map_err(|_| {
            Leave::argument(format!(
                "wrong number of arguments (given {}, expected {N})",
                self.0.len()
            ))
        })
    }

    /// Checks that there are at least `least` and at most `most` arguments.
    ///
    /// # Errors
    /// Raises `ArgumentError` if there are more or fewer.
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

/// Passes on an exception that an operation in Ruby raised.
impl From<Value> for Leave {
    fn from(exception: Value) -> Self {
        Self::Raise(exception)
    }
}

/// The octets of an argument, which must be a String.
///
/// # Errors
/// Raises `TypeError` if it is something else.
pub(crate) fn text_argument(vm: &Vm, value: Value) -> Result<Vec<u8>, Leave> {
    if value.kind() == Kind::String {
        return Ok(vm.bytes(value).unwrap_or_default());
    }
    let what = vm.name_in_messages(value);
    Err(Leave::type_error(format!(
        "{what} cannot be converted to String"
    )))
}
