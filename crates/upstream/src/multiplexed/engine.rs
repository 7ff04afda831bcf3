//! The interface of the HTTP/2 and HTTP/3 engines, as the streams of a connection use it.

use bytes::Bytes;
use h2o_http::RequestHead;

use crate::Protocol;

/// A stream of a connection: a small number, reused once the stream is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamIndex(pub(crate) usize);

/// An HTTP/2 or HTTP/3 engine in the role of the client, with its output. The connection's task sends the output.
pub(crate) trait Engine: 'static {
    /// The protocol that the engine speaks.
    const PROTOCOL: Protocol;

    /// Whether another request can be begun over the connection now.
    fn can_request(&self) -> bool;
    /// Whether requests can be begun over the connection, now or later.
    fn is_reusable(&self) -> bool;
    /// Whether no more requests can be begun over the connection, and none is in progress.
    fn is_over(&self) -> bool;
    /// Whether there are streams that were not released, open or closed.
    fn has_streams(&self) -> bool;
    /// Number of requests in progress.
    fn open_streams(&self) -> usize;
    /// Limit of the requests that can be in progress at a time.
    fn most_streams(&self) -> usize;
    /// Whether the backend has said how many requests can be in progress at a time.
    fn knows_limit(&self) -> bool;
    /// Whether the backend's SETTINGS have arrived.
    fn has_settings(&self) -> bool;
    /// Whether the backend's SETTINGS allow extended CONNECT (RFC 8441, RFC 9220).
    fn takes_extended_connect(&self) -> bool;

    /// Writes the head of a request; `is_complete` if no content follows. Returns the stream, and the length in bytes of the
    /// encoded head; `None` if the request cannot be begun.
    fn request(&mut self, head: &RequestHead, is_complete: bool) -> Option<(StreamIndex, usize)>;
    /// Tells the engine whether there is content to send on the stream.
    fn set_content(&mut self, stream: StreamIndex, has_content: bool);
    /// The stream that sends next, and the limit in bytes of the content of its next frame; `None` if no stream can send, or
    /// enough output is waiting.
    fn poll_send(&mut self) -> Option<(StreamIndex, usize)>;
    /// Writes a DATA frame; `is_end` if it is the last one.
    fn send_data(&mut self, stream: StreamIndex, piece: Bytes, is_end: bool);
    /// Writes a DATA frame with the bytes that `fill` appends, at most `max`. `fill` returns their number, and whether they are
    /// the last ones of the content; `None` if no frame is to be written.
    ///
    /// # Errors
    /// The error of `fill`; no frame is written.
    fn send_data_with<E>(
        &mut self,
        stream: StreamIndex,
        max: usize,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<Option<(usize, bool)>, E>,
    ) -> Result<Option<(usize, bool)>, E>;
    /// Ends the content of a request.
    fn finish(&mut self, stream: StreamIndex);
    /// Ends a stream whose response is not wanted any more.
    fn cancel(&mut self, stream: StreamIndex);
    /// Releases a stream, which the caller does not use any more; a stream that is not over is cancelled. Returns whether the
    /// connection's task has something to do.
    fn release(&mut self, stream: StreamIndex) -> bool;
    /// Tells the engine that the client has taken `len` bytes of content, and that `queued` bytes are left. Returns whether the
    /// connection's task has something to do.
    fn release_content(&mut self, stream: StreamIndex, len: usize, queued: usize) -> bool;
    /// Announces the end of the connection to the backend, if the protocol has a frame for that.
    fn go_away(&mut self);

    /// Number of bytes of all frames written so far, heads included.
    fn bytes_made(&self) -> u64;
    /// Whether output waits for the backend to read.
    fn has_backlog(&self) -> bool;
    /// Whether everything that was written on a stream has been handed to the socket or to QUIC.
    fn is_written(&self, stream: StreamIndex) -> bool;
    /// Length in bytes of a whole DATA frame, header included, with a payload of this many bytes.
    fn frame_len(payload: usize) -> usize;
    /// Number of bytes that the backend may still send on a stream before this side extends its flow-control window, besides those
    /// already received.
    fn stream_window(&self) -> usize;

    /// Tells the engine that a request has changed something, and that the connection's task is being woken.
    fn on_change(&mut self) {}
}
