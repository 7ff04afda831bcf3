//! The unidirectional streams that the peer opens (RFC 9114 §6.2).

use crate::frame::FrameReader;
use crate::stream_id::StreamId;
use crate::varint;

/// Maximum number of open streams of the peer whose type is not known yet. QUIC allows the peer ten such streams at a time,
/// and each begins with its type.
const MAX_UNTYPED: usize = 16;

/// What a unidirectional stream of the peer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Control,
    Push,
    QpackEncoder,
    QpackDecoder,
    /// The type of the stream is unknown.
    Unknown,
}

/// The unidirectional streams of the peer.
#[derive(Debug)]
pub(crate) struct RemoteStreams {
    pub(crate) control: Option<StreamId>,
    pub(crate) encoder: Option<StreamId>,
    pub(crate) decoder: Option<StreamId>,
    /// The reader of the frames on the peer's control stream.
    pub(crate) reader: FrameReader,
    /// Streams whose type has not arrived completely, with the bytes of the type that have arrived.
    untyped: Vec<Untyped>,
}

#[derive(Debug)]
struct Untyped {
    id: StreamId,
    bytes: [u8; 8],
    len: u8,
}

impl RemoteStreams {
    pub(crate) const fn new() -> Self {
        Self {
            control: None,
            encoder: None,
            decoder: None,
            reader: FrameReader::new(),
            untyped: Vec::new(),
        }
    }

    /// Notes that the peer has opened a stream. Returns false if there are too many streams without a type.
    pub(crate) fn open(&mut self, id: StreamId) -> bool {
        if self.untyped.len() == MAX_UNTYPED {
            return false;
        }
        self.untyped.push(Untyped {
            id,
            bytes: [0; 8],
            len: 0,
        });
        true
    }

    /// The role of a critical stream whose type is known; `None` for any other stream.
    pub(crate) fn role(&self, id: StreamId) -> Option<Role> {
        let is = |stream: Option<StreamId>| stream == Some(id);
        if is(self.control) {
            Some(Role::Control)
        } else if is(self.encoder) {
            Some(Role::QpackEncoder)
        } else if is(self.decoder) {
            Some(Role::QpackDecoder)
        } else {
            None
        }
    }

    /// Removes the bytes of a stream's type from `input`. Returns the stream's role once the type is complete.
    pub(crate) fn take_type(&mut self, id: StreamId, input: &mut &[u8]) -> Option<Role> {
        let at = self.untyped.iter().position(|stream| stream.id == id)?;
        let stream = self.untyped.get_mut(at)?;
        while let Some((&byte, rest)) = input.split_first() {
            *input = rest;
            *stream.bytes.get_mut(usize::from(stream.len))? = byte;
            stream.len += 1;
            if let Some((kind, _)) = varint::decode(stream.bytes.get(..usize::from(stream.len))?) {
                self.untyped.swap_remove(at);
                return Some(match kind {
                    0 => Role::Control,
                    1 => Role::Push,
                    2 => Role::QpackEncoder,
                    3 => Role::QpackDecoder,
                    _ => Role::Unknown,
                });
            }
        }
        None
    }

    /// Removes a stream that ended before its type arrived.
    pub(crate) fn forget(&mut self, id: StreamId) {
        self.untyped.retain(|stream| stream.id != id);
    }

    pub(crate) fn shrink(&mut self) {
        self.untyped.shrink_to_fit();
    }

    pub(crate) fn retained(&self) -> usize {
        self.untyped.capacity() * size_of::<Untyped>() + self.reader.retained()
    }
}
