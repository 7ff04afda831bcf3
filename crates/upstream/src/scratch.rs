//! Buffers that all exchanges of a worker with backends share.

use std::cell::Cell;
use std::sync::Arc;

use h2o_http::RequestHead;
use h2o_http1::ClientSettings;

/// Buffers that all exchanges of a worker with backends share.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Settings of the HTTP/1 client engine.
    pub(crate) engine: Arc<ClientSettings>,
    input: Cell<Vec<u8>>,
    output: Cell<Vec<u8>>,
    head: Cell<RequestHead>,
}

impl Scratch {
    /// Length in bytes of the space for one read.
    pub(crate) const INPUT: usize = 64 * 1024;
    /// Size in bytes above which a buffer is dropped instead of being kept.
    const KEPT: usize = 256 * 1024;

    /// Takes an empty buffer for input, with capacity for [`Scratch::INPUT`] bytes.
    pub(crate) fn take_input(&self) -> Vec<u8> {
        let mut input = self.input.take();
        input.resize(Self::INPUT, 0);
        input
    }

    pub(crate) fn put_input(&self, input: Vec<u8>) {
        self.input.set(input);
    }

    /// Takes an empty buffer for output.
    pub(crate) fn take_output(&self) -> Vec<u8> {
        self.output.take()
    }

    pub(crate) fn put_output(&self, mut output: Vec<u8>) {
        if output.capacity() <= Self::KEPT {
            output.clear();
            self.output.set(output);
        }
    }

    /// Takes an empty head for a request.
    pub(crate) fn take_head(&self) -> RequestHead {
        self.head.take()
    }

    pub(crate) fn put_head(&self, mut head: RequestHead) {
        head.clear();
        head.headers.shrink(Self::KEPT);
        self.head.set(head);
    }
}
