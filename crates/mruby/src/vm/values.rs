//! Values of Ruby: made, read and changed by Rust.

#![expect(unsafe_code, reason = "the interface of the shim is C's")]

use crate::ffi::{self, Op, Work};
use crate::{Kind, Value};

use super::Vm;

/// Number of entries that a Hash has at most for [`Vm::each_text`].
const FEW_ENTRIES: usize = 16;

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

    /// A new frozen String.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn frozen_string(&self, text: impl AsRef<[u8]>) -> Result<Value, Value> {
        let text = self.string(text)?;
        self.run(Op::Freeze, |work| work.a = text.0)
    }

    /// An Integer.
    ///
    /// # Errors
    /// `NoMemoryError`: large ones are objects.
    pub fn integer(&self, number: i64) -> Result<Value, Value> {
        self.run(Op::Integer, |work| work.a = number.cast_unsigned())
    }

    /// A Float.
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

    /// A new Array.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn array(&self, values: &[Value]) -> Result<Value, Value> {
        self.run(Op::Array, |work| {
            work.values = values.as_ptr().cast();
            work.count = values.len();
        })
    }

    /// Appends to an Array.
    ///
    /// # Errors
    /// `NoMemoryError`, `FrozenError`; `TypeError` if it is none.
    pub fn push(&self, array: Value, value: Value) -> Result<(), Value> {
        self.expect_kind(array, Kind::Array)?;
        self.run(Op::Push, |work| (work.a, work.b) = (array.0, value.0))
            .map(drop)
    }

    /// A new Hash with room for so many entries.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn hash(&self, entries: usize) -> Result<Value, Value> {
        self.run(Op::Hash, |work| work.count = entries)
    }

    /// Sets an entry of a Hash.
    ///
    /// # Errors
    /// `NoMemoryError`, `FrozenError`, what `hash` of the key raises; `TypeError` if it is none.
    pub fn hash_set(&self, hash: Value, key: Value, value: Value) -> Result<(), Value> {
        self.expect_kind(hash, Kind::Hash)?;
        let set = |work: &mut Work| (work.a, work.b, work.c) = (hash.0, key.0, value.0);
        self.run(Op::HashSet, set).map(drop)
    }

    /// An entry of a Hash, or its default.
    ///
    /// # Errors
    /// What the key or the default raises; `TypeError` if it is none.
    pub fn hash_get(&self, hash: Value, key: Value) -> Result<Value, Value> {
        self.expect_kind(hash, Kind::Hash)?;
        self.run(Op::HashGet, |work| (work.a, work.b) = (hash.0, key.0))
    }

    /// An empty Hash of a subclass whose method `default` makes the entries when they are asked for, from `source`.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn lazy_hash(&self, class: Value, source: Value) -> Result<Value, Value> {
        self.run(Op::LazyHash, |work| {
            (work.a, work.b, work.c) = (class.0, source.0, self.source_name.get());
        })
    }

    /// What a [lazy Hash](Vm::lazy_hash) makes its entries from; nil once it is plain.
    ///
    /// # Errors
    /// `TypeError` if it is none.
    pub fn source_of(&self, hash: Value) -> Result<Value, Value> {
        self.expect_kind(hash, Kind::Hash)?;
        self.run(Op::Source, |work| {
            (work.a, work.c) = (hash.0, self.source_name.get());
        })
    }

    /// Makes a [lazy Hash](Vm::lazy_hash) one of class `Hash`, empty and without a source. Returns an Array of the keys and an Array
    /// of the values that it had.
    ///
    /// # Errors
    /// `FrozenError`; `TypeError` if it is none.
    pub fn make_plain(&self, hash: Value) -> Result<Value, Value> {
        self.expect_kind(hash, Kind::Hash)?;
        self.run(Op::PlainHash, |work| {
            (work.a, work.c) = (hash.0, self.source_name.get());
        })
    }

    /// The entry of a Hash whose key is this Symbol.
    ///
    /// # Errors
    /// As [`Vm::hash_get`].
    pub fn option(&self, hash: Value, name: &str) -> Result<Value, Value> {
        let name = self.symbol(name)?;
        self.hash_get(hash, name)
    }

    /// The keys of a Hash, as an Array.
    ///
    /// # Errors
    /// `NoMemoryError`; `TypeError` if it is none.
    pub fn hash_keys(&self, hash: Value) -> Result<Value, Value> {
        self.expect_kind(hash, Kind::Hash)?;
        self.run(Op::HashKeys, |work| work.a = hash.0)
    }

    /// Calls `see` with the key and the value of each entry of a Hash, if it has at most [`FEW_ENTRIES`] and all keys and values are
    /// Strings. Otherwise calls nothing and returns `None`. `see` must not run Ruby.
    ///
    /// # Errors
    /// The first one of `see`, after which it is not called any more.
    pub fn each_text<E>(
        &self,
        hash: Value,
        mut see: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let mut values = [Value::nil(); 2 * FEW_ENTRIES];
        if hash.kind() != Kind::Hash {
            return None;
        }
        // SAFETY: the kind is checked, there is room for so many values, and the shim neither raises nor runs Ruby.
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

    pub(super) fn expect_kind(&self, value: Value, kind: Kind) -> Result<(), Value> {
        if value.kind() == kind {
            return Ok(());
        }
        Err(self.exception(
            "TypeError",
            &format!("{} cannot be converted to {kind:?}", self.class_name(value)),
        ))
    }

    /// The octets of a String, or the name of a Symbol. `read` must not run Ruby.
    pub fn with_bytes<T>(&self, value: Value, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let mut len = 0;
        // SAFETY: the kind is checked. The text stays where it is while Ruby does not run.
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

    /// A copy of the octets of a String or Symbol.
    #[must_use]
    pub fn bytes(&self, value: Value) -> Option<Vec<u8>> {
        self.with_bytes(value, <[u8]>::to_vec)
    }

    /// The octets of `value.to_s`.
    ///
    /// # Errors
    /// What `to_s` raises.
    pub fn text_of(&self, value: Value) -> Result<Vec<u8>, Value> {
        if let Some(bytes) = self.bytes(value) {
            return Ok(bytes);
        }
        let text = self.call(value, "to_s", &[])?;
        Ok(self.bytes(text).unwrap_or_default())
    }

    /// The elements of an Array, copied.
    #[must_use]
    pub fn elements(&self, array: Value) -> Option<Vec<Value>> {
        self.with_elements(array, <[Value]>::to_vec)
    }

    /// The elements of an Array. `read` must not run Ruby.
    pub fn with_elements<T>(&self, array: Value, read: impl FnOnce(&[Value]) -> T) -> Option<T> {
        if array.kind() != Kind::Array {
            return None;
        }
        let mut len = 0;
        // SAFETY: it is an Array, which stays as it is while Ruby does not run.
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
