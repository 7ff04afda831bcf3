//! Counts the memory of a brotli compressor, which does not tell how much it holds.

use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use brotli::enc::{Allocator, BrotliAlloc};
use brotli::{SliceWrapper, SliceWrapperMut};

/// Bytes of memory that a compressor holds. Compressors move between threads, so the count is atomic.
#[derive(Clone, Default)]
pub(super) struct BrotliMemory(Arc<AtomicUsize>);

impl BrotliMemory {
    pub(super) fn allocator(&self) -> CountingAllocator {
        CountingAllocator(self.clone())
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.load(Relaxed)
    }
}

/// The allocator of one brotli compressor, which counts the bytes it allocates.
pub(super) struct CountingAllocator(BrotliMemory);

impl BrotliAlloc for CountingAllocator {}

impl<T: Clone + Default> Allocator<T> for CountingAllocator {
    type AllocatedMemory = CountedCells<T>;

    fn alloc_cell(&mut self, len: usize) -> CountedCells<T> {
        self.0.0.fetch_add(len * size_of::<T>(), Relaxed);
        CountedCells {
            cells: vec![T::default(); len],
            memory: Some(self.0.clone()),
        }
    }

    fn free_cell(&mut self, _: CountedCells<T>) {}
}

/// Memory that a brotli compressor has allocated. It is counted until it is dropped.
pub(super) struct CountedCells<T> {
    cells: Vec<T>,
    memory: Option<BrotliMemory>,
}

impl<T> Default for CountedCells<T> {
    fn default() -> Self {
        Self {
            cells: Vec::new(),
            memory: None,
        }
    }
}

impl<T> Drop for CountedCells<T> {
    fn drop(&mut self) {
        if let Some(memory) = &self.memory {
            memory
                .0
                .fetch_sub(self.cells.len() * size_of::<T>(), Relaxed);
        }
    }
}

impl<T> SliceWrapper<T> for CountedCells<T> {
    fn slice(&self) -> &[T] {
        &self.cells
    }
}

impl<T> SliceWrapperMut<T> for CountedCells<T> {
    fn slice_mut(&mut self) -> &mut [T] {
        &mut self.cells
    }
}

impl<T> Index<usize> for CountedCells<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.cells[index]
    }
}

impl<T> IndexMut<usize> for CountedCells<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.cells[index]
    }
}
