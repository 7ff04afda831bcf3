//! The brotli compressor: a safe interface to the C library, with a count of the memory that a compressor holds.

#![expect(unsafe_code, reason = "the compressor is a C library")]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use compu_brotli_sys as sys;

use super::operation::{EncoderError, Operation};

/// A compressor of the C library. The library has no function to reset it, so each response needs a new one.
pub(crate) struct BrotliEncoder {
    state: NonNull<sys::BrotliEncoderState>,
    /// Number of bytes of memory that the compressor holds. The functions [`allocate`] and [`free`] of the compressor count them.
    memory: Arc<AtomicUsize>,
    /// Whether the level is one at which the library compresses each piece on its own, and writes where it is told to.
    is_fast: bool,
}

// SAFETY: the C library keeps no data of its own beside the compressor and refers to no thread; the memory of the compressor comes
// from the allocator of Rust, which frees memory on any thread.
unsafe impl Send for BrotliEncoder {}

impl BrotliEncoder {
    /// Creates a compressor of this level with a window of 2 to the power of `window_bits` bytes, for content of `len` bytes, if the
    /// length is known.
    pub(super) fn new(level: u8, window_bits: u8, len: Option<u64>) -> Result<Self, EncoderError> {
        let memory = Arc::new(AtomicUsize::new(0));
        let count = Arc::as_ptr(&memory).cast_mut().cast();
        // SAFETY: the functions meet what the library expects of an allocator, and `count` is what they expect; it is valid as long as
        // the compressor, because `Self` holds the `Arc`.
        let state = unsafe { sys::BrotliEncoderCreateInstance(Some(allocate), Some(free), count) };
        let encoder = Self {
            state: NonNull::new(state).ok_or(EncoderError)?,
            memory,
            is_fast: level <= 1,
        };
        let len = len.map_or(0, |len| u32::try_from(len).unwrap_or(u32::MAX));
        for (parameter, value) in [
            (
                sys::BrotliEncoderParameter_BROTLI_PARAM_QUALITY,
                u32::from(level),
            ),
            (
                sys::BrotliEncoderParameter_BROTLI_PARAM_LGWIN,
                u32::from(window_bits),
            ),
            (sys::BrotliEncoderParameter_BROTLI_PARAM_SIZE_HINT, len),
        ] {
            // SAFETY: the compressor was created above.
            let is_set =
                unsafe { sys::BrotliEncoderSetParameter(encoder.state.as_ptr(), parameter, value) };
            if is_set == 0 {
                return Err(EncoderError);
            }
        }
        Ok(encoder)
    }

    /// Number of bytes of memory that the compressor holds.
    pub(super) fn memory(&self) -> usize {
        self.memory.load(Relaxed)
    }

    /// Compresses all of `input`, and appends the output of the compressor to `output`.
    pub(super) fn encode(
        &mut self,
        input: &[u8],
        operation: Operation,
        output: &mut Vec<u8>,
    ) -> Result<(), EncoderError> {
        let operation = match operation {
            Operation::Continue => sys::BrotliEncoderOperation_BROTLI_OPERATION_PROCESS,
            Operation::Flush => sys::BrotliEncoderOperation_BROTLI_OPERATION_FLUSH,
            Operation::Finish => sys::BrotliEncoderOperation_BROTLI_OPERATION_FINISH,
        };
        let (mut left, mut next) = (input.len(), input.as_ptr());
        if self.is_fast {
            output.reserve(most_output(input.len()));
        }
        loop {
            let spare = output.spare_capacity_mut();
            let (mut room, mut place) = if self.is_fast {
                (spare.len(), spare.as_mut_ptr().cast())
            } else {
                (0, ptr::null_mut())
            };
            let before = room;
            // SAFETY: `left` bytes are readable at `next`: at first the whole input, later what the library has not taken of it. `room`
            // bytes at `place` are the spare capacity of `output`, where the library only writes.
            let is_done = unsafe {
                sys::BrotliEncoderCompressStream(
                    self.state.as_ptr(),
                    operation,
                    &raw mut left,
                    &raw mut next,
                    &raw mut room,
                    &raw mut place,
                    ptr::null_mut(),
                )
            };
            if is_done == 0 {
                return Err(EncoderError);
            }
            let written = before - room;
            // SAFETY: the library has written this many bytes to the beginning of the spare capacity.
            unsafe {
                output.set_len(output.len() + written);
            }
            if !self.take_output(output) && written == 0 {
                if self.is_fast {
                    output.shrink_to_fit();
                }
                return if left == 0 { Ok(()) } else { Err(EncoderError) };
            }
        }
    }

    /// Appends what the compressor has for the client to `output`. Returns whether there was anything.
    fn take_output(&mut self, output: &mut Vec<u8>) -> bool {
        let before = output.len();
        loop {
            let mut len = 0;
            // SAFETY: the compressor is valid. With a length of 0 the library returns as much output as it has in one piece.
            let made = unsafe { sys::BrotliEncoderTakeOutput(self.state.as_ptr(), &raw mut len) };
            if len == 0 {
                return output.len() > before;
            }
            // SAFETY: `made` points to `len` bytes of output, which the library does not change before its next call.
            output.extend_from_slice(unsafe { slice::from_raw_parts(made, len) });
        }
    }
}

impl Drop for BrotliEncoder {
    fn drop(&mut self) {
        // SAFETY: the compressor was created by the library, and nothing uses it any more.
        unsafe { sys::BrotliEncoderDestroyInstance(self.state.as_ptr()) }
    }
}

/// The room for output with which the library compresses a piece of `len` bytes at a fast level without memory of its own for the output,
/// which it would allocate and keep.
const fn most_output(len: usize) -> usize {
    2 * len + 503
}

/// Bytes in front of each block of memory, which hold the length of the block and keep its alignment.
const HEADER: usize = 16;

/// The layout of a block of memory of `len` bytes, its header included. Every type of C fits the alignment.
fn layout(len: usize) -> Option<Layout> {
    Layout::from_size_align(len, HEADER).ok()
}

/// Allocates memory for a compressor, whose count of bytes `count` is.
unsafe extern "C" fn allocate(count: *mut c_void, len: usize) -> *mut c_void {
    let Some(layout) = len.checked_add(HEADER).and_then(layout) else {
        return ptr::null_mut();
    };
    // SAFETY: the layout is not empty.
    let block = unsafe { alloc(layout) };
    if block.is_null() {
        // As where Rust code allocates. The library itself would end the process without a message.
        handle_alloc_error(layout);
    }
    // SAFETY: the block begins with `HEADER` bytes that are aligned for a `usize`. `count` is the counter of the compressor, which
    // outlives it.
    unsafe {
        block.cast::<usize>().write(layout.size());
        (*count.cast::<AtomicUsize>()).fetch_add(layout.size(), Relaxed);
        block.add(HEADER).cast()
    }
}

/// Frees memory that [`allocate`] has returned for the compressor with the same `count`.
unsafe extern "C" fn free(count: *mut c_void, memory: *mut c_void) {
    if memory.is_null() {
        return;
    }
    // SAFETY: `allocate` has returned the memory, so the header in front of it holds the length with which the block was allocated.
    // `count` is the counter of the compressor, which outlives it.
    unsafe {
        let block = memory.cast::<u8>().sub(HEADER);
        let len = block.cast::<usize>().read();
        (*count.cast::<AtomicUsize>()).fetch_sub(len, Relaxed);
        if let Some(layout) = layout(len) {
            dealloc(block, layout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_memory_is_counted_until_it_is_freed() {
        for (level, least) in [(1, 50_000), (5, 1_000_000), (11, 1_000_000)] {
            let mut encoder = BrotliEncoder::new(level, 18, None).unwrap();
            let count = Arc::clone(&encoder.memory);
            let empty = encoder.memory();
            assert!(empty > 0);
            let mut output = Vec::new();
            let content = b"A line of text.\n".repeat(10_000);
            encoder
                .encode(&content, Operation::Flush, &mut output)
                .unwrap();
            assert!(encoder.memory() > least, "{level}: {}", encoder.memory());
            // The compressor has not ended its content, as when a client goes away.
            drop(encoder);
            assert_eq!(count.load(Relaxed), 0, "{level}");
        }
    }

    #[test]
    fn content_after_the_end_is_an_error() {
        let mut encoder = BrotliEncoder::new(1, 16, None).unwrap();
        let mut output = Vec::new();
        let content = b"content";
        encoder
            .encode(content, Operation::Finish, &mut output)
            .unwrap();
        // The library takes nothing after the end.
        let after = encoder.encode(content, Operation::Continue, &mut output);
        assert!(after.is_err());
    }
}
