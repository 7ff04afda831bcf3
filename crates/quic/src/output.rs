//! Data that the application has written to a QUIC stream and that waits for QUIC to take it.

use bytes::Bytes;

use crate::connection::Connection;
use crate::stream::{StreamId, Write};

/// The bytes of a stream that QUIC has not taken, and whether the stream ends after them. The caller limits their
/// number: once something waits here, it writes no more before [`crate::Event::Writable`] and [`Output::flush`].
#[derive(Debug, Default)]
pub struct Output {
    /// The bytes that wait, in few pieces: the caller writes nothing more while bytes wait.
    pieces: Vec<Bytes>,
    /// Whether the stream ends after the bytes that wait.
    ends: bool,
}

impl Output {
    /// Whether neither bytes nor the end of the stream wait.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && !self.ends
    }

    /// Whether the end of the stream waits to be written.
    pub const fn ends(&self) -> bool {
        self.ends
    }

    /// Number of bytes that wait.
    pub fn retained(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// Writes `bytes` after the bytes that wait already. If the peer wants no more of the stream, `bytes` are dropped.
    pub fn write_copy(&mut self, connection: &mut Connection, stream: StreamId, mut bytes: &[u8]) {
        while self.is_empty() && !bytes.is_empty() {
            match connection.write_copy(stream, bytes) {
                Write::Taken(len) => bytes = bytes.get(len..).unwrap_or_default(),
                Write::Blocked => break,
                Write::Stopped(_) | Write::Unknown => return,
            }
        }
        if !bytes.is_empty() {
            self.pieces.push(Bytes::copy_from_slice(bytes));
        }
    }

    /// As [`Output::write_copy`], but without a copy.
    pub fn write(&mut self, connection: &mut Connection, stream: StreamId, bytes: Bytes) {
        self.write_all(connection, stream, [bytes]);
    }

    /// As [`Output::write`], for bytes in several pieces. Empty pieces are left out.
    pub fn write_all<const N: usize>(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
        mut pieces: [Bytes; N],
    ) {
        while self.is_empty() && pieces.iter().any(|piece| !piece.is_empty()) {
            match connection.write_pieces(stream, &mut pieces) {
                Write::Taken(_) => {}
                Write::Blocked => break,
                Write::Stopped(_) | Write::Unknown => return,
            }
        }
        let left = pieces.into_iter().filter(|piece| !piece.is_empty());
        self.pieces.extend(left);
    }

    /// Ends the stream after the bytes that wait.
    pub fn finish(&mut self, connection: &mut Connection, stream: StreamId) {
        if self.is_empty() {
            connection.finish(stream);
        } else {
            self.ends = true;
        }
    }

    /// Writes as many of the waiting bytes as QUIC takes, and then the end of the stream if it waits.
    pub fn flush(&mut self, connection: &mut Connection, stream: StreamId) {
        while let Some(piece) = self.pieces.first_mut() {
            match connection.write(stream, piece) {
                Write::Taken(_) if piece.is_empty() => {
                    self.pieces.remove(0);
                }
                Write::Taken(_) => {}
                Write::Blocked => return,
                Write::Stopped(_) | Write::Unknown => {
                    *self = Self::default();
                    return;
                }
            }
        }
        if std::mem::take(&mut self.ends) {
            connection.finish(stream);
        }
    }
}

/// The last bytes of streams that the server has written to their end, which QUIC has not taken yet.
#[derive(Debug, Default)]
pub struct Tails(Vec<(StreamId, Output)>);

impl Tails {
    /// Keeps the last output of a stream until QUIC takes it.
    pub fn push(&mut self, stream: StreamId, output: Output) {
        self.0.push((stream, output));
    }

    /// Writes as much of a stream's last bytes as QUIC takes, and forgets the stream if these were all. Returns
    /// whether the stream had bytes here.
    pub fn flush(&mut self, connection: &mut Connection, stream: StreamId) -> bool {
        let Some(at) = self.0.iter().position(|(other, _)| *other == stream) else {
            return false;
        };
        let output = &mut self.0[at].1;
        output.flush(connection, stream);
        if output.is_empty() {
            self.0.swap_remove(at);
        }
        true
    }

    /// Drops the waiting output of a stream.
    pub fn forget(&mut self, stream: StreamId) {
        self.0.retain(|(other, _)| *other != stream);
    }

    /// Whether no stream has output that waits.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of bytes that wait, on all streams together.
    pub fn retained(&self) -> usize {
        self.0.iter().map(|(_, output)| output.retained()).sum()
    }

    /// Frees memory that the list does not need.
    pub fn shrink(&mut self) {
        self.0.shrink_to_fit();
    }
}
