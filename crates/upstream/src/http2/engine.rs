//! The HTTP/2 engine of a connection to a backend, and its output.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use h2o_http::RequestHead;
use h2o_http2::{ClientConnection, ClientSettings, ErrorCode, StreamKey};

use crate::Protocol;
use crate::multiplexed::{Engine, StreamIndex, StreamSettings};

/// While at least this number of bytes of output waits to be written, no more DATA frames are made.
const ROUND: usize = 64 * 1024;

/// Length in bytes of a frame's header (RFC 9113 §4.1).
const FRAME_HEADER: usize = 9;

/// The HTTP/2 engine of a connection, and its output.
pub(crate) struct Http2 {
    pub(super) engine: ClientConnection,
    /// The output; its first `written` bytes have been sent.
    pub(super) out: Vec<u8>,
    pub(super) written: usize,
    /// Number of sent bytes that were removed from `out`.
    drained: u64,
    window: u32,
}

pub(super) const fn index(key: StreamKey) -> StreamIndex {
    StreamIndex(key.index())
}

fn key(stream: StreamIndex) -> StreamKey {
    StreamKey::from_index(u32::try_from(stream.0).unwrap_or(u32::MAX))
}

impl Http2 {
    /// Makes the engine of a connection that was just established. The output begins with the client's preface.
    pub(super) fn new(settings: &StreamSettings, now: Instant) -> Self {
        let mut out = Vec::new();
        let client = ClientSettings {
            max_streams: settings.max_streams,
            window: settings.window,
        };
        Self {
            engine: ClientConnection::new(Arc::new(client), now, &mut out),
            out,
            written: 0,
            drained: 0,
            window: settings.window,
        }
    }

    /// Number of bytes that wait to be written to the socket.
    pub(super) const fn backlog(&self) -> usize {
        self.out.len() - self.written
    }

    /// Removes the bytes that have been sent from the output.
    pub(super) fn drop_written(&mut self) {
        self.drained += self.written as u64;
        self.out.drain(..self.written);
        self.written = 0;
    }
}

impl Engine for Http2 {
    const PROTOCOL: Protocol = Protocol::Http2;

    fn can_request(&self) -> bool {
        self.engine.can_request()
    }

    fn is_reusable(&self) -> bool {
        self.engine.is_reusable()
    }

    fn is_over(&self) -> bool {
        self.engine.is_over()
    }

    fn has_streams(&self) -> bool {
        self.engine.has_streams()
    }

    fn open_streams(&self) -> usize {
        self.engine.open_streams()
    }

    fn most_streams(&self) -> usize {
        self.engine.most_streams()
    }

    fn knows_limit(&self) -> bool {
        self.engine.has_settings()
    }

    fn has_settings(&self) -> bool {
        self.engine.has_settings()
    }

    fn takes_extended_connect(&self) -> bool {
        self.engine.takes_extended_connect()
    }

    fn request(&mut self, head: &RequestHead, is_complete: bool) -> Option<(StreamIndex, usize)> {
        let before = self.out.len();
        let key = self.engine.request(head, is_complete, &mut self.out)?;
        Some((index(key), self.out.len() - before))
    }

    fn set_content(&mut self, stream: StreamIndex, has_content: bool) {
        self.engine.set_content(key(stream), has_content);
    }

    fn poll_send(&mut self) -> Option<(StreamIndex, usize)> {
        if self.backlog() >= ROUND {
            return None;
        }
        let (key, max) = self.engine.poll_send()?;
        Some((index(key), max))
    }

    fn send_data(&mut self, stream: StreamIndex, piece: Bytes, is_end: bool) {
        let out = &mut self.out;
        self.engine.send_data(key(stream), &piece, is_end, out);
    }

    fn send_data_with<E>(
        &mut self,
        stream: StreamIndex,
        max: usize,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<Option<(usize, bool)>, E>,
    ) -> Result<Option<(usize, bool)>, E> {
        let out = &mut self.out;
        self.engine.send_data_with(key(stream), max, out, fill)
    }

    fn finish(&mut self, stream: StreamIndex) {
        self.engine.finish(key(stream), None, &mut self.out);
    }

    fn cancel(&mut self, stream: StreamIndex) {
        let out = &mut self.out;
        self.engine.reset(key(stream), ErrorCode::CANCEL, out);
    }

    fn release(&mut self, stream: StreamIndex) -> bool {
        let before = self.out.len();
        self.engine.release(key(stream), &mut self.out);
        self.out.len() > before
    }

    fn release_content(&mut self, stream: StreamIndex, len: usize, _queued: usize) -> bool {
        let before = self.out.len();
        let out = &mut self.out;
        self.engine.release_content(key(stream), len, out);
        self.out.len() > before
    }

    fn go_away(&mut self) {
        self.engine.go_away(&mut self.out);
    }

    fn bytes_made(&self) -> u64 {
        self.drained + self.out.len() as u64
    }

    fn has_backlog(&self) -> bool {
        self.backlog() > 0
    }

    /// The connection's task calls this only when all output has been written.
    fn is_written(&self, _: StreamIndex) -> bool {
        true
    }

    fn frame_len(payload: usize) -> usize {
        FRAME_HEADER + payload
    }

    fn stream_window(&self) -> usize {
        usize::try_from(self.window).unwrap_or(usize::MAX)
    }
}
