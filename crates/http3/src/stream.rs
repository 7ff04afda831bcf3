//! Request streams of an HTTP/3 connection: their states, and their storage.

use h2o_http::priority::PriorityParameters;
use slab::Slab;

use crate::frame::FrameReader;
use crate::stream_id::StreamId;

/// Identifies a request stream of one connection, from the event that opened the stream until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamKey(u32);

impl StreamKey {
    /// The stream's slot, a small number that is used again once the stream is released: an index for the caller's own data
    /// on streams.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The key of the stream with this [index](Self::index).
    #[must_use]
    pub const fn from_index(index: u32) -> Self {
        Self(index)
    }

    pub(crate) const fn slot(self) -> u32 {
        self.0
    }
}

/// The states of a stream that is not released (RFC 9000 §3.4, both directions in one).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// Both sides may send on the stream.
    Open,
    /// This side has ended its direction of the stream.
    HalfClosedLocal,
    /// The peer has ended its direction of the stream.
    HalfClosedRemote,
    /// Both directions have ended; the caller has not released the stream yet.
    Closed,
}

impl StreamState {
    /// Whether any side may still send on the stream.
    pub(crate) const fn is_open(self) -> bool {
        !matches!(self, Self::Closed)
    }

    /// Whether this side may still send on the stream.
    pub(crate) const fn can_send(self) -> bool {
        matches!(self, Self::Open | Self::HalfClosedRemote)
    }

    /// Whether the peer may still send on the stream.
    pub(crate) const fn can_recv(self) -> bool {
        matches!(self, Self::Open | Self::HalfClosedLocal)
    }

    /// The state after this side has ended its direction.
    pub(crate) const fn end_send(self) -> Self {
        match self {
            Self::Open => Self::HalfClosedLocal,
            Self::HalfClosedRemote => Self::Closed,
            Self::HalfClosedLocal | Self::Closed => self,
        }
    }

    /// The state after the peer has ended its direction.
    pub(crate) const fn end_recv(self) -> Self {
        match self {
            Self::Open => Self::HalfClosedRemote,
            Self::HalfClosedLocal => Self::Closed,
            Self::HalfClosedRemote | Self::Closed => self,
        }
    }
}

/// How much of the peer's message was received on a stream, and which parts may follow (RFC 9114 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The head of the message is expected.
    Head,
    /// Content or trailers are expected.
    Content,
    /// The trailers were received.
    Trailers,
}

/// The state of one stream, as the engine stores it.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) state: StreamState,
    pub(crate) stage: Stage,
    pub(crate) reader: FrameReader,
    /// The field section that waits for insertions into the QPACK table.
    pub(crate) blocked: Option<Box<BlockedSection>>,
    /// Whether the head's field section had to wait for the QPACK table.
    pub(crate) has_waited: bool,
    /// Bytes of the head's encoded field section.
    pub(crate) head_len: u32,
    /// Number of bytes of the stream that were consumed, framing included.
    pub(crate) taken: u64,
    /// The `content-length` of the received message, if it has one.
    pub(crate) declared: Option<u64>,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// Whether the stream is a tunnel: bytes are passed through in both directions in DATA frames, and there are no
    /// trailers.
    pub(crate) is_tunnel: bool,
    /// The number that datagrams of the tunnel begin with: a quarter of the stream's identifier (RFC 9297 §2.1), or the
    /// number in the request (draft 03 of RFC 9298).
    pub(crate) datagram_id: u64,
    /// Whether nothing follows the response head: the request was HEAD, or the status has no content (client role).
    pub(crate) is_bodyless: bool,
    /// Whether the stream's request was reported to the caller.
    pub(crate) is_reported: bool,
    /// Whether the final response head was received (client role) or sent (server role).
    pub(crate) has_response: bool,
    pub(crate) priority: PriorityParameters,
    /// Whether a PRIORITY_UPDATE frame has set the priority, so that the request's `priority` field does not count (RFC 9218
    /// §7.2).
    pub(crate) has_priority: bool,
}

/// A field section that refers to QPACK table entries which have not arrived.
#[derive(Debug)]
pub(crate) struct BlockedSection {
    pub(crate) bytes: Vec<u8>,
    /// Number of insertions after which the section can be decoded.
    pub(crate) required: u64,
}

impl Stream {
    pub(crate) const fn new(id: StreamId) -> Self {
        Self {
            id,
            state: StreamState::Open,
            stage: Stage::Head,
            reader: FrameReader::new(),
            blocked: None,
            has_waited: false,
            head_len: 0,
            taken: 0,
            declared: None,
            received: 0,
            sent: 0,
            is_tunnel: false,
            datagram_id: id.get() / 4,
            is_bodyless: false,
            is_reported: false,
            has_response: false,
            priority: PriorityParameters::DEFAULT,
            has_priority: false,
        }
    }

    /// Bytes of memory that the stream has allocated, besides its place in `Streams::slots`.
    fn retained(&self) -> usize {
        let blocked = self.blocked.as_ref();
        self.reader.retained() + blocked.map_or(0, |section| section.bytes.capacity())
    }
}

/// The request streams of a connection that the caller has not released.
#[derive(Debug)]
pub(crate) struct Streams {
    slots: Slab<Stream>,
    /// Identifier of each stream and its index in `slots`, in the order of identifiers: new streams are usually appended.
    order: Vec<(StreamId, u32)>,
}

impl Streams {
    pub(crate) const fn new() -> Self {
        Self {
            slots: Slab::new(),
            order: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    #[inline]
    pub(crate) fn insert(&mut self, stream: Stream) -> StreamKey {
        let id = stream.id;
        let index = u32::try_from(self.slots.insert(stream))
            .expect("the limit of open streams per connection fits into 32 bits");
        match self.order.last() {
            Some(&(last, _)) if last > id => {
                let at = self.order.partition_point(|&(other, _)| other < id);
                self.order.insert(at, (id, index));
            }
            _ => self.order.push((id, index)),
        }
        StreamKey(index)
    }

    #[inline]
    pub(crate) fn find(&self, id: StreamId) -> Option<StreamKey> {
        let at = self.order.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        Some(StreamKey(self.order[at].1))
    }

    #[inline]
    pub(crate) fn get(&self, key: StreamKey) -> Option<&Stream> {
        self.slots.get(key.index())
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        self.slots.get_mut(key.index())
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: StreamKey) -> Option<Stream> {
        let stream = self.slots.try_remove(key.index())?;
        if self
            .order
            .last()
            .is_some_and(|&(last, _)| last == stream.id)
        {
            self.order.pop();
        } else if let Ok(at) = self.order.binary_search_by_key(&stream.id, |&(id, _)| id) {
            self.order.remove(at);
        }
        Some(stream)
    }

    /// All streams, in the order of identifiers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (StreamKey, &Stream)> {
        self.order.iter().filter_map(|&(_, index)| {
            let key = StreamKey(index);
            self.get(key).map(|stream| (key, stream))
        })
    }

    /// Frees the memory if no stream is left.
    pub(crate) fn shrink(&mut self) {
        if self.slots.is_empty() {
            self.slots = Slab::new();
            self.order = Vec::new();
        }
    }

    pub(crate) fn retained(&self) -> usize {
        let held: usize = self.slots.iter().map(|(_, stream)| stream.retained()).sum();
        held + self.slots.capacity() * size_of::<Stream>()
            + self.order.capacity() * size_of::<(StreamId, u32)>()
    }
}
