//! Making, reading and changing values of Ruby in Rust.

#![expect(
    unsafe_code,
    reason = "the shim has the unsafe interface of C functions"
)]

use std::mem::MaybeUninit;

use crate::border;
use crate::ffi::{self, Op, RawResponse, Work};
use crate::{Kind, Value};

use super::Vm;

/// Maximum number of entries of a Hash that [`Vm::each_text`] reads.
const FEW_ENTRIES: usize = 16;

/// How a lazy Hash is made: a Hash whose method `default` makes its entries when they are first read, from an object that owns a source in
/// Rust, as [`Vm::object`] says.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LazyHash {
    /// The class of the Hash, a subclass of `Hash`.
    pub class: Value,
    /// The class of the object, from [`Vm::object_class`].
    pub source_class: Value,
}

/// A response of a script whose parts are Strings.
pub struct PlainResponse<'a>(&'a RawResponse);

impl PlainResponse<'_> {
    /// The status, which can be any Integer.
    #[must_use]
    pub const fn status(&self) -> i64 {
        self.0.status
    }

    /// The name and the value of each header field.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        let fields = self.0.field_texts.get(..self.0.fields).unwrap_or_default();
        fields.iter().map(|field| {
            // SAFETY: the shim has set this field, and its Strings stay where they are as long as Ruby does not run.
            let [name, value] = unsafe {
                let [name, value] = field.assume_init_ref();
                [name, value].map(|text| border::slice_of(text.start, text.len))
            };
            (name, value)
        })
    }

    /// The parts of the body.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let pieces = self.0.piece_texts.get(..self.0.pieces).unwrap_or_default();
        pieces.iter().map(|piece| {
            // SAFETY: the shim has set this text, and the String stays where it is as long as Ruby does not run.
            unsafe {
                let text = piece.assume_init_ref();
                border::slice_of(text.start, text.len)
            }
        })
    }
}

impl Vm {
    /// A new String with these octets.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn string(&self, text: impl AsRef<[u8]>) -> Result<Value, Value> {
        let text = text.as_ref();
        self.run(Op::String, |work| {
            work.text = text.as_ptr();
            work.len = text.len();
        })
    }

    /// A new frozen String with these octets.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn frozen_string(&self, text: impl AsRef<[u8]>) -> Result<Value, Value> {
        let text = self.string(text)?;
        self.run(Op::Freeze, |work| work.a = text.0)
    }

    /// A new Integer.
    ///
    /// # Errors
    /// Raises `NoMemoryError`: large Integers are objects.
    pub fn integer(&self, number: i64) -> Result<Value, Value> {
        self.run(Op::Integer, |work| work.a = number.cast_unsigned())
    }

    /// A new Float.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn float(&self, number: f64) -> Result<Value, Value> {
        self.run(Op::Float, |work| work.number = number)
    }

    /// The Symbol with this name.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn symbol(&self, name: &str) -> Result<Value, Value> {
        self.run_named(Op::Symbol, name, |_| ())
    }

    /// A new Array of these values.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn array(&self, values: &[Value]) -> Result<Value, Value> {
        self.run(Op::Array, |work| {
            work.values = values.as_ptr().cast();
            work.count = values.len();
        })
    }

    /// Appends a value to an Array.
    ///
    /// # Errors
    /// Raises `NoMemoryError` or `FrozenError`; `TypeError` if `array` is not an Array.
    pub fn push(&self, array: Value, value: Value) -> Result<(), Value> {
        self.expect_kind(array, Kind::Array)?;
        self.run(Op::Push, |work| (work.a, work.b) = (array.0, value.0))
            .map(drop)
    }

    /// A new empty Hash with room for this number of entries.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn hash(&self, entries: usize) -> Result<Value, Value> {
        self.run(Op::Hash, |work| work.count = entries)
    }

    /// Sets an entry of a Hash.
    ///
    /// # Errors
    /// Raises `NoMemoryError`, `FrozenError` or the exception of the key's method `hash`; `TypeError` if `hash` is not a
    /// Hash.
    pub fn hash_set(&self, hash: Value, key: Value, value: Value) -> Result<(), Value> {
        self.expect_kind(hash, Kind::Hash)?;
        let set = |work: &mut Work| (work.a, work.b, work.c) = (hash.0, key.0, value.0);
        self.run(Op::HashSet, set).map(drop)
    }

    /// The value of an entry of a Hash, or the Hash's default.
    ///
    /// # Errors
    /// Raises the exception of the key's methods or of the default; `TypeError` if `hash` is not a Hash.
    pub fn hash_get(&self, hash: Value, key: Value) -> Result<Value, Value> {
        self.expect_kind(hash, Kind::Hash)?;
        self.run(Op::HashGet, |work| (work.a, work.b) = (hash.0, key.0))
    }

    /// The source from which a [lazy Hash](LazyHash) makes its entries; nil once it is a plain Hash.
    ///
    /// # Errors
    /// Raises `TypeError` if `hash` is not a Hash.
    pub fn source_of(&self, hash: Value) -> Result<Value, Value> {
        self.expect_kind(hash, Kind::Hash)?;
        self.run(Op::Source, |work| {
            (work.a, work.c) = (hash.0, self.source_name.get());
        })
    }

    /// Turns a [lazy Hash](LazyHash) into a plain one of class `Hash`, empty and without a source. Returns an Array of
    /// the keys and an Array of the values that it had.
    ///
    /// # Errors
    /// Raises `FrozenError`; `TypeError` if `hash` is not a Hash.
    pub fn make_plain(&self, hash: Value) -> Result<Value, Value> {
        self.expect_kind(hash, Kind::Hash)?;
        self.run(Op::PlainHash, |work| {
            (work.a, work.c) = (hash.0, self.source_name.get());
        })
    }

    /// The value of the entry of a Hash whose key is the Symbol with this name.
    ///
    /// # Errors
    /// The exceptions are those of [`Vm::hash_get`].
    pub fn option(&self, hash: Value, name: &str) -> Result<Value, Value> {
        let name = self.symbol(name)?;
        self.hash_get(hash, name)
    }

    /// The keys of a Hash as an Array.
    ///
    /// # Errors
    /// Raises `NoMemoryError`; `TypeError` if `hash` is not a Hash.
    pub fn hash_keys(&self, hash: Value) -> Result<Value, Value> {
        self.expect_kind(hash, Kind::Hash)?;
        self.run(Op::HashKeys, |work| work.a = hash.0)
    }

    /// Calls `see` with the key and the value of each entry of a Hash, if it has at most [`FEW_ENTRIES`] and all keys and
    /// values are Strings. Otherwise returns `None` and does not call `see`, which must not run Ruby.
    ///
    /// # Errors
    /// Returns the first error of `see`, which is not called any more then.
    pub fn each_text<E>(
        &self,
        hash: Value,
        mut see: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let mut values = [Value::nil(); 2 * FEW_ENTRIES];
        if hash.kind() != Kind::Hash {
            return None;
        }
        // SAFETY: the value is a Hash, there is room for this number of values, and the shim neither raises nor runs Ruby.
        let count = unsafe {
            let values = values.as_mut_ptr().cast::<u64>();
            ffi::shim_text_entries(self.raw, hash.0, values, FEW_ENTRIES)
        };
        let (entries, _) = values.as_chunks::<2>();
        let entries = entries.get(..count)?;
        Some(entries.iter().try_for_each(|&[key, value]| {
            let seen = self.with_bytes(key, |key| self.with_bytes(value, |value| see(key, value)));
            seen.flatten().unwrap_or(Ok(()))
        }))
    }

    /// Calls `read` with a response that is an Array of an Integer, a Hash of a few Strings, and an Array of a few Strings. Returns `None`
    /// for any other value. `read` must not run Ruby.
    pub fn with_plain_response<T>(
        &self,
        value: Value,
        read: impl FnOnce(&PlainResponse<'_>) -> T,
    ) -> Option<T> {
        let mut parts = MaybeUninit::<RawResponse>::uninit();
        // SAFETY: there is room for a response, and the shim neither raises nor runs Ruby.
        let is_plain =
            unsafe { ffi::shim_plain_response(self.raw, value.0, parts.as_mut_ptr()) } != 0;
        // SAFETY: the shim has set the numbers, and as many texts as they say; the other texts may stay unset.
        let parts = is_plain.then(|| unsafe { parts.assume_init_ref() })?;
        Some(read(&PlainResponse(parts)))
    }

    pub(super) fn expect_kind(&self, value: Value, kind: Kind) -> Result<(), Value> {
        if value.kind() == kind {
            return Ok(());
        }
        Err(self.exception(
            "TypeError",
            &format!(
                "{} cannot be converted to {kind:?}",
                self.name_in_messages(value)
            ),
        ))
    }

    /// Calls `read` with the octets of a String or the name of a Symbol. `read` must not run Ruby. Returns `None` for any
    /// other value.
    pub fn with_bytes<T>(&self, value: Value, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let mut len = 0;
        // SAFETY: the value is a String or Symbol. Its text stays where it is as long as Ruby does not run.
        let bytes = unsafe {
            let start = match value.kind() {
                Kind::String => ffi::shim_string(value.0, &raw mut len),
                Kind::Symbol => ffi::shim_symbol(self.raw, value.0, &raw mut len),
                _ => return None,
            };
            if start.is_null() || len == 0 {
                &[]
            } else {
                std::slice::from_raw_parts(start, len)
            }
        };
        Some(read(bytes))
    }

    /// A copy of the octets of a String, or of the name of a Symbol; `None` for any other value.
    #[must_use]
    pub fn bytes(&self, value: Value) -> Option<Vec<u8>> {
        self.with_bytes(value, <[u8]>::to_vec)
    }

    /// The octets of `value.to_s`.
    ///
    /// # Errors
    /// Returns the exception that `to_s` raises.
    pub fn text_of(&self, value: Value) -> Result<Vec<u8>, Value> {
        if let Some(bytes) = self.bytes(value) {
            return Ok(bytes);
        }
        let text = self.call(value, "to_s", &[])?;
        Ok(self.bytes(text).unwrap_or_default())
    }

    /// A copy of the elements of an Array; `None` for any other value.
    #[must_use]
    pub fn elements(&self, array: Value) -> Option<Vec<Value>> {
        self.with_elements(array, <[Value]>::to_vec)
    }

    /// Calls `read` with the elements of an Array. `read` must not run Ruby. Returns `None` for any other value.
    pub fn with_elements<T>(&self, array: Value, read: impl FnOnce(&[Value]) -> T) -> Option<T> {
        if array.kind() != Kind::Array {
            return None;
        }
        let mut len = 0;
        // SAFETY: the value is an Array, whose elements stay where they are as long as Ruby does not run.
        let elements = unsafe {
            let start = ffi::shim_array(array.0, &raw mut len);
            if start.is_null() || len == 0 {
                &[]
            } else {
                std::slice::from_raw_parts(start.cast::<Value>(), len)
            }
        };
        Some(read(elements))
    }
}
