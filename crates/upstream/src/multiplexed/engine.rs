//! What a protocol version does for the streams of a connection.

use bytes::Bytes;
use h2o_http::RequestHead;

use crate::Protocol;

/// A stream of a connection: a small number, reused once the stream is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamIndex(pub(crate) usize);

/// An engine in the client role, with the output that it has made: what is to be sent is with the connection's task.
pub(crate) trait Engine: 'static {
    /// The protocol that it speaks.
    const PROTOCOL: Protocol;

    /// Whether another request can be begun now.
    fn can_request(&self) -> bool;
    /// Whether requests can be begun now or later.
    fn is_reusable(&self) -> bool;
    /// Whether no more requests can be begun, and none is left.
    fn is_over(&self) -> bool;
    /// Streams that were not released, whether open or not.
    fn has_streams(&self) -> bool;
    /// Requests in progress.
    fn open_streams(&self) -> usize;
    /// Most requests in progress at a time.
    fn most_streams(&self) -> usize;
    /// Whether the backend's SETTINGS have arrived.
    fn has_settings(&self) -> bool;
    /// Whether the backend's SETTINGS allow extended CONNECT (RFC 8441, RFC 9220).
    fn takes_extended_connect(&self) -> bool;

    /// Writes the head of a request; `is_complete` if no content follows. Returns the stream, and the bytes of the head; `None`
    /// if the request cannot be begun.
    fn request(&mut self, head: &RequestHead, is_complete: bool) -> Option<(StreamIndex, usize)>;
    /// Tells whether there is content to send on the stream.
    fn set_content(&mut self, stream: StreamIndex, has_content: bool);
    /// The stream that sends next, and the most bytes of content of its next frame; `None` if enough output is waiting.
    fn poll_send(&mut self) -> Option<(StreamIndex, usize)>;
    /// Writes a DATA frame; `is_end` if it is the last one.
    fn send_data(&mut self, stream: StreamIndex, piece: Bytes, is_end: bool);
    /// Writes a DATA frame with what `fill` appends, at most `max` bytes: `fill` returns their number, and whether they are the
    /// last ones; `None` for no frame.
    ///
    /// # Errors
    /// That of `fill`; no frame is written.
    fn send_data_with<E>(
        &mut self,
        stream: StreamIndex,
        max: usize,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<Option<(usize, bool)>, E>,
    ) -> Result<Option<(usize, bool)>, E>;
    /// Ends the content.
    fn finish(&mut self, stream: StreamIndex);
    /// Ends a stream whose response is not wanted any more.
    fn cancel(&mut self, stream: StreamIndex);
    /// The caller is done with a stream; one that is not over is cancelled. Returns whether the connection's task has
    /// something to do.
    fn release(&mut self, stream: StreamIndex) -> bool;
    /// The client has taken `len` bytes of content, and `queued` are left. Returns whether the connection's task has something
    /// to do.
    fn release_content(&mut self, stream: StreamIndex, len: usize, queued: usize) -> bool;
    /// Announces the end of the connection, if the protocol has something for that.
    fn go_away(&mut self);

    /// Bytes of all frames written so far, heads included.
    fn bytes_made(&self) -> u64;
    /// Whether output waits for the backend to read.
    fn has_backlog(&self) -> bool;
    /// Whether everything that was written on a stream has left for the backend.
    fn is_written(&self, stream: StreamIndex) -> bool;
    /// Length in bytes of a whole DATA frame, header included, with a payload of this many bytes.
    fn frame_len(payload: usize) -> usize;
    /// Bytes that the backend may still send on a stream before we extend its flow-control window, besides those
    /// already received.
    fn stream_window(&self) -> usize;

    /// A request has changed something, and the connection's task is being woken.
    fn on_change(&mut self) {}
}
