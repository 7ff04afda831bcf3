//! Values that Rust keeps for longer than a call.

use std::rc::Weak;

use crate::Value;
use crate::border;
use crate::ffi::Op;

use super::Vm;

impl Vm {
    /// Protects a value from the garbage collector until the result is dropped.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn root(&self, value: Value) -> Result<Rooted, Value> {
        let slot = self.free_roots.borrow_mut().pop().unwrap_or_else(|| {
            let slot = self.root_count.get();
            self.root_count.set(slot + 1);
            slot
        });
        let rooted = Rooted {
            vm: Weak::clone(&self.this),
            slot,
            value,
        };
        self.set_root(slot, value)?;
        Ok(rooted)
    }

    pub(super) fn set_root(&self, slot: usize, value: Value) -> Result<(), Value> {
        self.run(Op::ArraySet, |work| {
            (work.a, work.b, work.count) = (self.roots.get(), value.0, slot);
        })
        .map(drop)
    }

    pub(super) fn release(&self, slot: usize) {
        let _ = self.set_root(slot, Value::nil());
        self.free_roots.borrow_mut().push(slot);
    }

    pub(super) fn take_released(&self) -> Option<usize> {
        self.released.borrow_mut().pop()
    }
}

/// A value that Rust keeps, and that the garbage collector therefore does not take.
pub struct Rooted {
    vm: Weak<Vm>,
    slot: usize,
    value: Value,
}

impl Rooted {
    /// The value, which is protected from the garbage collector as long as this object exists.
    #[must_use]
    pub const fn value(&self) -> Value {
        self.value
    }
}

impl Drop for Rooted {
    fn drop(&mut self) {
        if let Some(vm) = self.vm.upgrade() {
            if border::is_collecting() {
                vm.released.borrow_mut().push(self.slot);
            } else {
                vm.release(self.slot);
            }
        }
    }
}
