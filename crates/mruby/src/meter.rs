//! Counts the memory that Rust allocates on behalf of a VM: that of compiled regular expressions. What the library mruby allocates is
//! counted in `limits.c`.

#![expect(unsafe_code, reason = "the interface of allocators is unsafe")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread has allocated and not freed. Negative if the thread has freed memory that other threads had allocated.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

/// A global allocator that counts the bytes that each thread holds, so that the memory of compiled regular expressions counts towards a
/// VM's limit. In a program with another global allocator, this memory is not counted.
pub struct Metered<A>(pub A);

/// Converts the size of a layout, which is at most `isize::MAX`.
const fn signed(size: usize) -> isize {
    size.cast_signed()
}

fn count(change: isize) {
    HELD.set(HELD.get().wrapping_add(change));
}

// SAFETY: every call is passed on to the inner allocator with the same arguments.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Metered<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: the caller keeps the promises that the inner allocator demands.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: the caller keeps the promises that the inner allocator demands.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: the caller keeps the promises that the inner allocator demands.
        unsafe { self.0.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(signed(size) - signed(layout.size()));
        // SAFETY: the caller keeps the promises that the inner allocator demands.
        unsafe { self.0.realloc(memory, layout, size) }
    }
}

/// Bytes that this thread has allocated and not freed. Only the difference between two results has a meaning.
pub(crate) fn held() -> isize {
    HELD.get()
}
