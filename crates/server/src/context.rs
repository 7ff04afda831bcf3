//! The state that all connection drivers of one worker share, independent of the configuration: the worker, its memory account, and
//! reusable buffers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use h2o_exchange::Worker;

use crate::event::event_loop::EventLoop;
use crate::event::memory::MemoryAccount;
use crate::event::pipes::Pipes;
use crate::event::wake_queue::WakeQueue;
use crate::request::KeptNumber;
use h2o_tls::OutputBuffer;

/// Number of bytes after which a connection's turn in the event loop ends: `bytes`, but fewer in tests, so that simulations
/// reach this limit.
pub(crate) const fn per_turn(bytes: usize) -> usize {
    if cfg!(test) { bytes / 64 } else { bytes }
}

/// With more open connections than this, idle connections free memory that can be allocated again.
const MANY: usize = 256;

/// Largest number of bytes per read of a socket, or of a QUIC stream.
pub(crate) const READ_SIZE: usize = 64 * 1024;

/// The state that all connection drivers of one worker share.
pub(crate) struct Context {
    pub(crate) worker: Rc<Worker>,
    pub(crate) memory: Rc<MemoryAccount>,
    wakes: Arc<WakeQueue>,
    /// Tokens of the connections whose turn in the event loop ended with work left.
    pub(crate) unfinished: Rc<RefCell<Vec<u64>>>,
    /// While a connection is accepted: the number of connections including the new one; otherwise 0 (see [`EventLoop::wanted`]).
    pub(crate) wanted: Rc<Cell<usize>>,
    pub(crate) scratch: Scratch,
    pub(crate) pipes: Rc<Pipes>,
    /// Number of responses that connections of the worker have kept so far.
    kept: Cell<u64>,
}

/// Buffers that the event loop lends to a connection during its turn, so that idle connections need none.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) input: Reusable<Vec<u8>>,
    pub(crate) output: Reusable<Vec<u8>>,
    pub(crate) cipher_in: Reusable<Vec<u8>>,
    pub(crate) cipher_out: Reusable<OutputBuffer>,
    /// The beginning of the response that was sent last over HTTP/3: its head, the header of a DATA frame, and a short body.
    pub(crate) beginning: LastBytes,
}

/// A value (a buffer) that a driver takes out, uses and puts back.
#[derive(Default)]
pub(crate) struct Reusable<T>(RefCell<T>);

impl<T: Default> Reusable<T> {
    pub(crate) fn take(&self) -> T {
        self.0.take()
    }

    pub(crate) fn put(&self, value: T) {
        self.0.replace(value);
    }
}

/// The bytes that were sent last, kept because the next ones are often equal.
#[derive(Default)]
pub(crate) struct LastBytes(RefCell<Bytes>);

impl LastBytes {
    /// Returns `bytes` as shared memory. If they equal those of the call before, they share its memory, and nothing is allocated.
    #[inline]
    pub(crate) fn share(&self, bytes: &[u8]) -> Bytes {
        let mut last = self.0.borrow_mut();
        if *last != bytes {
            *last = Bytes::copy_from_slice(bytes);
        }
        last.clone()
    }
}

impl Reusable<Vec<u8>> {
    /// Empties the buffer and puts it back for reuse; a buffer of more than 1 MiB is dropped.
    pub(crate) fn give_back(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= 16 * READ_SIZE {
            buffer.clear();
            self.put(buffer);
        }
    }
}

impl Reusable<OutputBuffer> {
    /// Empties the buffer and puts it back for reuse; a buffer that has grown far too large is dropped.
    pub(crate) fn give_back(&self, mut buffer: OutputBuffer) {
        if buffer.capacity() <= 16 * READ_SIZE {
            buffer.clear();
            self.put(buffer);
        }
    }
}

impl Context {
    /// Whether the server has so many connections that idle ones free memory that can be allocated again.
    #[inline]
    pub(crate) fn has_many_connections(&self) -> bool {
        self.worker.shared.connections() > MANY
    }

    /// The context of the drivers whose connections run in `event_loop`.
    pub(crate) fn new(event_loop: &EventLoop) -> Self {
        Self {
            worker: Rc::clone(event_loop.worker()),
            memory: Rc::clone(event_loop.memory()),
            wakes: Arc::clone(event_loop.wakes()),
            unfinished: Rc::clone(event_loop.unfinished()),
            wanted: Rc::clone(event_loop.wanted()),
            scratch: Scratch::default(),
            pipes: Pipes::new(&event_loop.worker().shared),
            kept: Cell::default(),
        }
    }

    /// The number of the next response that a connection keeps.
    pub(crate) fn next_kept(&self) -> KeptNumber {
        self.kept.set(self.kept.get() + 1);
        KeptNumber(self.kept.get())
    }

    /// Returns a waker for stream `stream` (0 over HTTP/1) of the connection with this token. A connection needs a waker only when it waits
    /// for something other than its socket; a static file from memory needs none.
    pub(crate) fn waker(&self, token: u64, stream: u32) -> Waker {
        WakeQueue::waker(&self.wakes, (token, stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bytes_in_a_row_share_their_memory() {
        let buffer = LastBytes::default();
        let first = buffer.share(b"head");
        let second = buffer.share(b"head");
        assert_eq!(
            (&first[..], first.as_ptr()),
            (&b"head"[..], second.as_ptr())
        );
        assert_eq!(buffer.share(b"other"), &b"other"[..]);
        let again = buffer.share(b"head");
        assert_eq!(again, first);
        assert_ne!(again.as_ptr(), first.as_ptr());
    }
}
