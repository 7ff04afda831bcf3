//! The three unidirectional streams that we open (RFC 9114 §6.2, RFC 9204 §4.2), and the bytes to send on them.

use crate::error::PeerError;

/// One of our unidirectional streams. It is open as long as the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalStream {
    /// Settings and GOAWAY.
    Control,
    /// Instructions for the peer's table.
    QpackEncoder,
    /// The QPACK decoder stream: acknowledgements of the peer's encoder instructions and field sections.
    QpackDecoder,
}

impl LocalStream {
    /// All three streams, in the order in which they are to be opened.
    pub const ALL: [Self; 3] = [Self::Control, Self::QpackEncoder, Self::QpackDecoder];

    /// The type that the stream begins with.
    pub(crate) const fn kind(self) -> u8 {
        match self {
            Self::Control => 0,
            Self::QpackEncoder => 2,
            Self::QpackDecoder => 3,
        }
    }
}

/// Limit of the bytes that wait to be sent on one of our streams. A peer that receives responses but does not let us send
/// that much on these streams is not in good faith: RFC 9114 §6.2 asks it to allow 1,024 bytes.
const MAX_PENDING: usize = 16 * 1024;

/// From this number of waiting bytes on the encoder stream, nothing more is inserted into the QPACK table.
const MAX_VOLUNTARY: usize = 4096;

/// Bytes that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    bytes: Vec<u8>,
    sent: usize,
}

impl Pending {
    /// Where more is to be appended.
    pub(crate) const fn out(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The buffer to append to if few bytes wait already, for bytes that need not be sent now; else `None`.
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
