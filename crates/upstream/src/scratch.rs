//! Buffers of a worker that all its exchanges with backends share.

use std::cell::Cell;
use std::sync::Arc;

use h2o_http::RequestHead;
use h2o_http1::ClientSettings;

/// Buffers of a worker that all its exchanges with backends share.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Settings of the HTTP/1 client engine.
    pub(crate) engine: Arc<ClientSettings>,
    input: Cell<Vec<u8>>,
    output: Cell<Vec<u8>>,
    head: Cell<RequestHead>,
}

impl Scratch {
    /// Bytes per read.
    pub(crate) const INPUT: usize = 64 * 1024;
    /// Size in bytes above which a buffer is dropped instead of being kept.
    const KEPT: usize = 256 * 1024;

    /// An empty buffer with capacity for [`Scratch::INPUT`] bytes.
    pub(crate) fn take_input(&self) -> Vec<u8> {
        let mut input = self.input.take();
        input.resize(Self::INPUT, 0);
        input
    }

    pub(crate) fn put_input(&self, input: Vec<u8>) {
        self.input.set(input);
    }

    /// An empty buffer.
    pub(crate) fn take_output(&self) -> Vec<u8> {
        self.output.take()
    }

    pub(crate) fn put_output(&self, mut output: Vec<u8>) {
        if output.capacity() <= Self::KEPT {
            output.clear();
            self.output.set(output);
        }
    }

    /// An empty head.
    pub(crate) fn take_head(&self) -> RequestHead {
        self.head.take()
    }

    pub(crate) fn put_head(&self, mut head: RequestHead) {
        head.clear();
        head.headers.shrink(Self::KEPT);
        self.head.set(head);
    }
}
