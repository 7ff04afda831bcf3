//! Values of Ruby, as Rust handles them.

use crate::ffi;

/// A value of Ruby: 64 bits, without a lifetime. The documentation of the crate says how long it is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Value(pub(crate) u64);

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `nil`.
    Nil,
    /// `false`.
    False,
    /// `true`.
    True,
    /// An Integer of 64 bits.
    Integer,
    /// A Float.
    Float,
    /// A Symbol.
    Symbol,
    /// A String, which consists of octets.
    String,
    /// An Array.
    Array,
    /// A Hash.
    Hash,
    /// A Proc or lambda.
    Proc,
    /// An exception object.
    Exception,
    /// An object of a class whose objects own data of C or Rust.
    Data,
    /// A class or module.
    Class,
    /// Any other object.
    Object,
}

#[expect(
    unsafe_code,
    reason = "C functions of the shim read the bits of a value"
)]
impl Value {
    /// The value `nil`.
    #[must_use]
    pub fn nil() -> Self {
        // SAFETY: the function returns a constant of the library.
        Self(unsafe { ffi::shim_nil() })
    }

    /// The value `true` or `false`.
    #[must_use]
    pub fn boolean(value: bool) -> Self {
        // SAFETY: the function returns a constant of the library.
        Self(unsafe { ffi::shim_bool(value.into()) })
    }

    /// The kind of the value.
    #[must_use]
    pub fn kind(self) -> Kind {
        // SAFETY: the value is valid, as the documentation of the crate demands.
        match unsafe { ffi::shim_kind(self.0) } {
            0 => Kind::Nil,
            1 => Kind::False,
            2 => Kind::True,
            3 => Kind::Integer,
            4 => Kind::Float,
            5 => Kind::Symbol,
            6 => Kind::String,
            7 => Kind::Array,
            8 => Kind::Hash,
            9 => Kind::Proc,
            10 => Kind::Exception,
            11 => Kind::Data,
            12 => Kind::Class,
            _ => Kind::Object,
        }
    }

    /// Whether the value is `nil`.
    #[must_use]
    pub fn is_nil(self) -> bool {
        self == Self::nil()
    }

    /// Whether the value counts as true in a condition: it is neither `nil` nor `false`.
    #[must_use]
    pub fn is_true(self) -> bool {
        !matches!(self.kind(), Kind::Nil | Kind::False)
    }

    /// The number, if the value is an Integer.
    #[must_use]
    pub fn as_integer(self) -> Option<i64> {
        // SAFETY: the value is an Integer.
        (self.kind() == Kind::Integer).then(|| unsafe { ffi::shim_integer(self.0) })
    }

    /// The number, if the value is an Integer or a Float.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "Integer#to_f does the same")]
    pub fn as_float(self) -> Option<f64> {
        match self.kind() {
            Kind::Integer => self.as_integer().map(|number| number as f64),
            // SAFETY: the value is a Float.
            Kind::Float => Some(unsafe { ffi::shim_float(self.0) }),
            _ => None,
        }
    }
}
