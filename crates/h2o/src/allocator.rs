//! The program's allocator: mimalloc.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;

use libmimalloc_sys as mimalloc;

/// mimalloc's functions without an alignment parameter align blocks of at least this many bytes to this many bytes. They align smaller
/// blocks to the largest power of two that is not above the block's size.
const ALIGNMENT: usize = 16;

/// The allocator of this program, which calls mimalloc.
///
/// The crate `mimalloc` has an allocator as well, but it passes an alignment to mimalloc with every allocation. For sizes above 1 KiB that
/// are no power of two, version 3 of mimalloc then searches longer and allocates more than was asked for.
pub(crate) struct Allocator;

/// Whether mimalloc aligns a block of `size` bytes as `layout` demands even if it is called without an alignment.
#[inline]
const fn is_aligned(layout: Layout, size: usize) -> bool {
    layout.align() <= ALIGNMENT && layout.align() <= size
}

#[expect(
    unsafe_code,
    reason = "the interface of allocators is unsafe: it hands out memory that is not initialised"
)]
// SAFETY: mimalloc returns memory of at least the size asked for, or null. It is aligned as the layout demands: the functions with an
// alignment are used where `is_aligned` does not hold. `mi_free` and `mi_realloc_aligned` take memory of all these functions.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size();
        if is_aligned(layout, size) {
            // SAFETY: `mi_malloc` may be called with any size.
            unsafe { mimalloc::mi_malloc(size).cast() }
        } else {
            // SAFETY: the alignment of a layout is a power of two, as mimalloc requires.
            unsafe { mimalloc::mi_malloc_aligned(size, layout.align()).cast() }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let size = layout.size();
        if is_aligned(layout, size) {
            // SAFETY: `mi_zalloc` may be called with any size.
            unsafe { mimalloc::mi_zalloc(size).cast() }
        } else {
            // SAFETY: the alignment of a layout is a power of two, as mimalloc requires.
            unsafe { mimalloc::mi_zalloc_aligned(size, layout.align()).cast() }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, _: Layout) {
        // SAFETY: the caller promises that this allocator has returned `memory`.
        unsafe { mimalloc::mi_free(memory.cast::<c_void>()) }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let memory = memory.cast::<c_void>();
        if is_aligned(layout, layout.size()) && is_aligned(layout, size) {
            // SAFETY: the caller promises that this allocator has returned `memory`.
            unsafe { mimalloc::mi_realloc(memory, size).cast() }
        } else {
            // SAFETY: the caller promises that this allocator has returned `memory`, for a layout with the same alignment.
            unsafe { mimalloc::mi_realloc_aligned(memory, size, layout.align()).cast() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(
        unsafe_code,
        reason = "the test calls the allocator directly, which is unsafe"
    )]
    fn memory_is_aligned_as_asked_for_and_keeps_its_content() {
        for align in [1, 2, 4, 8, 16, 32, 64, 4096] {
            for size in [
                1, 7, 8, 9, 15, 16, 24, 100, 1000, 1025, 1500, 5000, 70_000, 3_000_000,
            ] {
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: each block of memory is accessed within its size, passed on with the layout it was allocated with, and freed
                // once.
                unsafe {
                    let zeroed = Allocator.alloc_zeroed(layout);
                    assert_eq!(zeroed.addr() % align, 0, "{size} {align}");
                    assert_eq!(zeroed.add(size - 1).read(), 0);
                    Allocator.dealloc(zeroed, layout);
                    // Several blocks are checked, since the first block of a page of mimalloc may be aligned by chance.
                    let several = [(); 9].map(|()| Allocator.alloc(layout));
                    for memory in several {
                        assert_eq!(memory.addr() % align, 0, "{size} {align}");
                        memory.write_bytes(7, size);
                    }
                    for new in [size * 2 + 1, size.div_ceil(3)] {
                        let other = Allocator.alloc(layout);
                        other.write_bytes(9, size);
                        let moved = Allocator.realloc(other, layout, new);
                        assert_eq!(moved.addr() % align, 0, "{size} {align} {new}");
                        assert_eq!(moved.add(size.min(new) - 1).read(), 9);
                        Allocator.dealloc(moved, Layout::from_size_align(new, align).unwrap());
                    }
                    for memory in several {
                        assert_eq!(memory.add(size - 1).read(), 7);
                        Allocator.dealloc(memory, layout);
                    }
                }
            }
        }
    }
}
