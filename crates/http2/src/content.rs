//! Writing of content and of its end, for both roles.

use h2o_http::Headers;

use crate::connection::Connection;
use crate::encode::encode_fields;
use crate::field_block::{begin_section, end_section};
use crate::frame::{self, FrameType, HEADER_LEN, StreamId, flags};
use crate::stream::StreamKey;

impl Connection {
    /// Appends a DATA frame with the content `data` to `out`. The caller passes no more bytes than the flow control windows
    /// and the frame size allow.
    #[inline]
    pub(crate) fn write_data(
        &mut self,
        key: StreamKey,
        data: &[u8],
        end_stream: bool,
        out: &mut Vec<u8>,
    ) {
        let id = self.id_of(key);
        let end = if end_stream { flags::END_STREAM } else { 0 };
        out.extend_from_slice(&frame::header(data.len(), FrameType::DATA, end, id));
        out.extend_from_slice(data);
        self.on_sent(key, data.len(), end_stream);
    }

    /// Writes a DATA frame whose content `fill` appends to `out`, up to `max` bytes. `fill` returns how many bytes it
    /// appended, and whether they are the last. If it returns `None`, or 0 bytes that are not the last, no frame is
    /// written.
    #[inline]
    pub(crate) fn write_data_with<E>(
        &mut self,
        key: StreamKey,
        max: usize,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<Option<(usize, bool)>, E>,
    ) -> Result<Option<(usize, bool)>, E> {
        let at = out.len();
        out.extend_from_slice(&[0; HEADER_LEN]);
        let end_stream = match fill(out) {
            Ok(Some((len, end))) if len > 0 || end => end,
            other => {
                out.truncate(at);
                return other;
            }
        };
        let len = out.len() - at - HEADER_LEN;
        debug_assert!(len <= max, "`fill` appends no more bytes than its limit");
        let id = self.id_of(key);
        let end = if end_stream { flags::END_STREAM } else { 0 };
        let header = frame::header(len, FrameType::DATA, end, id);
        out[at..at + HEADER_LEN].copy_from_slice(&header);
        self.on_sent(key, len, end_stream);
        Ok(Some((len, end_stream)))
    }

    /// Ends the message on a stream: writes `trailers`, or an empty DATA frame, with END_STREAM. Returns false if nothing
    /// can be sent on the stream.
    pub(crate) fn write_end(
        &mut self,
        key: StreamKey,
        trailers: Option<&Headers>,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(stream) = self.streams.get(key) else {
            return false;
        };
        if !stream.state.can_send() {
            return false;
        }
        let id = stream.id;
        if let Some(trailers) = trailers {
            let at = begin_section(out, FrameType::HEADERS, flags::END_STREAM, id);
            self.encoder.begin(out);
            encode_fields(&mut self.encoder, trailers, out);
            end_section(out, at, id, self.peer.frame_size());
        } else {
            let header = frame::header(0, FrameType::DATA, flags::END_STREAM, id);
            out.extend_from_slice(&header);
        }
        true
    }

    /// The identifier of a stream; 0 if the stream was released.
    #[inline]
    pub(crate) fn id_of(&self, key: StreamKey) -> StreamId {
        self.streams
            .get(key)
            .map_or(StreamId::CONNECTION, |stream| stream.id)
    }
}
