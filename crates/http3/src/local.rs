//! The three unidirectional streams that this side opens (RFC 9114 §6.2, RFC 9204 §4.2), and the bytes to send on them.

use crate::error::PeerError;

/// A unidirectional stream that this side opens. It stays open as long as the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalStream {
    /// The control stream: SETTINGS and GOAWAY.
    Control,
    /// The QPACK encoder stream: instructions for the peer's table.
    QpackEncoder,
    /// The QPACK decoder stream: acknowledgements of the peer's encoder instructions and field sections.
    QpackDecoder,
}

impl LocalStream {
    /// All three streams, in the order in which they are to be opened.
    pub const ALL: [Self; 3] = [Self::Control, Self::QpackEncoder, Self::QpackDecoder];

    /// The type with which the stream begins (RFC 9114 §6.2).
    pub(crate) const fn kind(self) -> u8 {
        match self {
            Self::Control => 0,
            Self::QpackEncoder => 2,
            Self::QpackDecoder => 3,
        }
    }
}

/// Maximum number of bytes that wait to be sent on one of these streams. A peer that receives responses but whose flow
/// control does not let as many bytes through is not in good faith: RFC 9114 §6.2 asks it to allow 1,024 bytes.
const MAX_PENDING: usize = 16 * 1024;

/// Once this number of bytes waits on the encoder stream, nothing more is inserted into the QPACK table.
const MAX_VOLUNTARY: usize = 4096;

/// The bytes that wait to be sent on one stream.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    bytes: Vec<u8>,
    sent: usize,
}

impl Pending {
    /// The buffer to which more bytes are appended.
    pub(crate) const fn out(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The buffer for bytes that need not be sent now; `None` if many bytes wait already.
    #[inline]
    pub(crate) fn with_room(&mut self) -> Option<&mut Vec<u8>> {
        (self.bytes.len() < MAX_VOLUNTARY).then_some(&mut self.bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(self.sent..).unwrap_or_default()
    }

    pub(crate) fn advance(&mut self, len: usize) {
        self.sent = (self.sent + len).min(self.bytes.len());
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        }
    }

    pub(crate) fn check(&self) -> Result<(), PeerError> {
        if self.bytes().len() > MAX_PENDING {
            return Err(PeerError::Stalled);
        }
        Ok(())
    }

    pub(crate) fn shrink(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
        }
    }

    pub(crate) const fn retained(&self) -> usize {
        self.bytes.capacity()
    }
}
