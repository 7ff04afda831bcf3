//! Memory that Rust allocates on behalf of a VM: what patterns are compiled to. The library allocates through `limits.c`.

#![expect(unsafe_code, reason = "the interface of allocators is unsafe")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread has allocated and not freed. Negative where it has freed what others had allocated.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

/// A global allocator that counts what each thread holds, so that the memory of patterns is part of a VM's limit. In a program
/// with another one, patterns count as nothing.
pub struct Metered<A>(pub A);

/// Sizes of layouts are at most `isize::MAX`.
const fn signed(size: usize) -> isize {
    size.cast_signed()
}

fn count(change: isize) {
    HELD.set(HELD.get().wrapping_add(change));
}

// SAFETY: every call is passed on as it is.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Metered<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: as promised by the caller.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: as promised by the caller.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: as promised by the caller.
        unsafe { self.0.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(signed(size) - signed(layout.size()));
        // SAFETY: as promised by the caller.
        unsafe { self.0.realloc(memory, layout, size) }
    }
}

/// Bytes that this thread holds. Only differences mean something.
pub(crate) fn held() -> isize {
    HELD.get()
}
