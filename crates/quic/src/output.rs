//! Data that was written to a stream and waits for the transport to take it.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::connection::Connection;
use crate::stream::{StreamId, Write};

/// The bytes of a stream that the transport has not taken, and whether the stream ends after them. The caller limits their
/// number: once something waits here, it writes no more before [`crate::Event::Writable`] and [`Output::flush`].
#[derive(Debug, Default)]
pub struct Output {
    pieces: VecDeque<Bytes>,
    /// The stream ends behind that.
    ends: bool,
}

impl Output {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && !self.ends
    }

    /// Whether the end of the stream waits.
    pub const fn ends(&self) -> bool {
        self.ends
    }

    /// Bytes that wait.
    pub fn retained(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// Writes `bytes` after the bytes that wait already. If the peer wants no more of the stream, they are dropped.
    pub fn write_copy(&mut self, connection: &mut Connection, stream: StreamId, mut bytes: &[u8]) {
        while self.is_empty() && !bytes.is_empty() {
            match connection.write_copy(stream, bytes) {
                Write::Taken(len) => bytes = bytes.get(len..).unwrap_or_default(),
                Write::Blocked => break,
                Write::Stopped(_) | Write::Unknown => return,
            }
        }
        if !bytes.is_empty() {
            self.pieces.push_back(Bytes::copy_from_slice(bytes));
        }
    }

    /// As [`Output::write_copy`], but without a copy.
    pub fn write(&mut self, connection: &mut Connection, stream: StreamId, mut bytes: Bytes) {
        while self.is_empty() && !bytes.is_empty() {
            match connection.write(stream, &mut bytes) {
                Write::Taken(_) => {}
                Write::Blocked => break,
                Write::Stopped(_) | Write::Unknown => return,
            }
        }
        if !bytes.is_empty() {
            self.pieces.push_back(bytes);
        }
    }

    /// Ends the stream behind what waits.
    pub fn finish(&mut self, connection: &mut Connection, stream: StreamId) {
        if self.is_empty() {
            connection.finish(stream);
        } else {
            self.ends = true;
        }
    }

    /// Writes as much as the transport takes.
    pub fn flush(&mut self, connection: &mut Connection, stream: StreamId) {
        while let Some(piece) = self.pieces.front_mut() {
            match connection.write(stream, piece) {
                Write::Taken(_) if piece.is_empty() => {
                    self.pieces.pop_front();
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

/// The last bytes of streams that the server has written to their end, which the transport has not taken yet.
#[derive(Debug, Default)]
pub struct Tails(Vec<(StreamId, Output)>);

impl Tails {
    /// Keeps the output of a stream.
    pub fn push(&mut self, stream: StreamId, output: Output) {
        self.0.push((stream, output));
    }

    /// Writes as much of a stream's last bytes as the transport takes, and forgets the stream if these were all. Returns
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

    /// Drops what waits of a stream.
    pub fn forget(&mut self, stream: StreamId) {
        self.0.retain(|(other, _)| *other != stream);
    }

    /// Whether nothing waits.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes that wait.
    pub fn retained(&self) -> usize {
        self.0.iter().map(|(_, output)| output.retained()).sum()
    }

    /// Gives memory back.
    pub fn shrink(&mut self) {
        self.0.shrink_to_fit();
    }
}
