//! The streams and datagrams of a connection, as the application uses them.

use bytes::Bytes;
use quinn_proto::{Dir, ReadError, ReadableError, WriteError};

use super::{Connection, SendDatagramError, code};
use crate::stream::{Read, StreamId, Write};

impl Connection {
    /// Takes at most `max` bytes of a stream.
    pub fn read(&mut self, stream: StreamId, max: usize) -> Read {
        let mut stream = self.library.recv_stream(stream.to_quinn());
        let mut chunks = match stream.read(true) {
            Ok(chunks) => chunks,
            Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => {
                return Read::Unknown;
            }
        };
        let read = match chunks.next(max) {
            Ok(Some(chunk)) => {
                self.unread.read += chunk.bytes.len() as u64;
                // A read of at most 0 bytes tells whether the stream ends after this chunk.
                if matches!(chunks.next(0), Ok(None)) {
                    Read::Last(chunk.bytes)
                } else {
                    Read::Data(chunk.bytes)
                }
            }
            Ok(None) => Read::End,
            Err(ReadError::Blocked) => Read::Blocked,
            Err(ReadError::Reset(code)) => Read::Reset(code.into_inner()),
        };
        // The raised flow control limit is announced with the next packet that is sent, so the return value is not needed.
        let _ = chunks.finalize();
        read
    }

    /// Sends STOP_SENDING: tells the peer that this side reads no more of the stream. Data that has already arrived is
    /// discarded.
    pub fn stop_sending(&mut self, stream: StreamId, reason: u64) {
        // A stream that no longer exists needs no STOP_SENDING frame, so the error is ignored.
        let _ = self
            .library
            .recv_stream(stream.to_quinn())
            .stop(code(reason));
    }

    /// Opens a bidirectional stream; `None` if the peer does not allow another one now.
    pub fn open_bidirectional(&mut self) -> Option<StreamId> {
        self.library.streams().open(Dir::Bi).map(StreamId::of)
    }

    /// Opens a unidirectional stream; `None` if the peer does not allow another one now.
    pub fn open_unidirectional(&mut self) -> Option<StreamId> {
        self.library.streams().open(Dir::Uni).map(StreamId::of)
    }

    /// Writes as much of `data` as the stream takes, without copying, and removes that from `data`.
    #[inline]
    pub fn write(&mut self, stream: StreamId, data: &mut Bytes) -> Write {
        self.write_pieces(stream, std::slice::from_mut(data))
    }

    /// As [`Self::write`], for data in several pieces. Pieces that the stream takes entirely become empty.
    pub fn write_pieces(&mut self, stream: StreamId, pieces: &mut [Bytes]) -> Write {
        let mut stream = self.library.send_stream(stream.to_quinn());
        match stream.write_chunks(pieces) {
            Ok(written) => {
                self.written += written.bytes as u64;
                self.stream_bytes_sent += written.bytes as u64;
                Write::Taken(written.bytes)
            }
            Err(WriteError::Blocked) => Write::Blocked,
            Err(WriteError::Stopped(code)) => Write::Stopped(code.into_inner()),
            Err(WriteError::ClosedStream) => Write::Unknown,
        }
    }

    /// As [`Self::write`], but copies the data that the stream takes.
    pub fn write_copy(&mut self, stream: StreamId, data: &[u8]) -> Write {
        let mut stream = self.library.send_stream(stream.to_quinn());
        match stream.write(data) {
            Ok(len) => {
                self.written += len as u64;
                self.stream_bytes_sent += len as u64;
                Write::Taken(len)
            }
            Err(WriteError::Blocked) => Write::Blocked,
            Err(WriteError::Stopped(code)) => Write::Stopped(code.into_inner()),
            Err(WriteError::ClosedStream) => Write::Unknown,
        }
    }

    /// Finishes a stream: it ends after the data written so far. Returns false if it was finished or reset before, or if the
    /// peer has stopped it.
    pub fn finish(&mut self, stream: StreamId) -> bool {
        self.library.send_stream(stream.to_quinn()).finish().is_ok()
    }

    /// Resets a stream with this error code: its data is not sent any more (RFC 9000 §19.4).
    pub fn reset(&mut self, stream: StreamId, reason: u64) {
        // A stream that no longer exists needs no RESET_STREAM frame, so the error is ignored.
        let _ = self
            .library
            .send_stream(stream.to_quinn())
            .reset(code(reason));
    }

    /// Sets the priority of a stream. Of all streams that have data to send, those with the highest priority send first, in turns.
    /// Data that is already queued keeps its place in the queue.
    pub fn set_priority(&mut self, stream: StreamId, priority: i32) {
        let mut stream = self.library.send_stream(stream.to_quinn());
        // A stream that no longer exists has nothing to send, so the error is ignored.
        let _ = stream.set_priority(priority);
    }

    /// Number of streams that are not finished, or have data that the peer has not acknowledged.
    pub fn unacknowledged_streams(&mut self) -> usize {
        self.library.streams().send_streams()
    }

    /// Sets how many bytes the application may write before the peer acknowledges them, on all streams of the connection together.
    pub fn set_send_window(&mut self, bytes: u64) {
        self.send_window = bytes;
        self.library.set_send_window(bytes);
    }

    /// The number of unacknowledged bytes up to which the application should write more: two congestion windows, plus 64 KiB to
    /// have the next packets ready. One window is in flight. While a lost packet is sent again, a second window of later packets
    /// can arrive; their bytes count as unacknowledged until the gap is closed.
    pub fn send_room(&self) -> u64 {
        2 * self.library.congestion_state().window() + 64 * 1024
    }

    /// Sends a QUIC datagram (RFC 9221).
    ///
    /// # Errors
    /// [`SendDatagramError`]
    pub fn send_datagram(&mut self, data: Bytes) -> Result<(), SendDatagramError> {
        self.library
            .datagrams()
            .send(data, false)
            .map_err(|error| match error {
                quinn_proto::SendDatagramError::UnsupportedByPeer
                | quinn_proto::SendDatagramError::Disabled => SendDatagramError::Unsupported,
                quinn_proto::SendDatagramError::TooLarge => SendDatagramError::TooLarge,
                quinn_proto::SendDatagramError::Blocked(_) => SendDatagramError::Blocked,
            })
    }

    /// The longest content of a DATAGRAM frame that can be sent now; `None` if the peer accepts none.
    pub fn max_datagram_len(&mut self) -> Option<usize> {
        self.library.datagrams().max_size()
    }

    /// Takes the next QUIC datagram that was received (RFC 9221).
    pub fn receive_datagram(&mut self) -> Option<Bytes> {
        self.library.datagrams().recv()
    }
}
