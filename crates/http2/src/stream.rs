//! Streams of an HTTP/2 connection: their states (RFC 9113 §5.1), and their storage.

use h2o_http::priority::PriorityParameters;
use slab::Slab;

use crate::flow_control::{RecvWindow, SendWindow};
use crate::frame::StreamId;
use crate::scheduler::{self, Place, Priority};

/// Identifies a stream of one connection, from the event that opened the stream until it is released.
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

    pub(crate) const fn from_user(user: u32) -> Self {
        Self(user)
    }

    pub(crate) const fn to_user(self) -> u32 {
        self.0
    }
}

/// The states of a stream (RFC 9113 §5.1). Idle streams are not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// This side has promised the stream with PUSH_PROMISE; its response has not begun.
    ReservedLocal,
    /// Both sides may send on the stream.
    Open,
    /// This side has sent END_STREAM.
    HalfClosedLocal,
    /// The peer has sent END_STREAM.
    HalfClosedRemote,
    /// Neither side may send on the stream; the caller has not released it yet.
    Closed,
}

impl StreamState {
    /// Whether this side may send content on the stream.
    pub(crate) const fn can_send(self) -> bool {
        matches!(self, Self::Open | Self::HalfClosedRemote)
    }

    /// Whether the peer may send content on the stream.
    pub(crate) const fn can_recv(self) -> bool {
        matches!(self, Self::Open | Self::HalfClosedLocal)
    }
}

/// The state of one stream, as the engine stores it.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) state: StreamState,
    pub(crate) send_window: SendWindow,
    pub(crate) recv_window: RecvWindow,
    /// Whether the receive window was raised from its initial size.
    pub(crate) is_accepted: bool,
    /// The `content-length` of the received message, if it has one.
    pub(crate) declared: Option<u64>,
    pub(crate) received: u64,
    /// Number of content bytes that were received and not yet used by the caller.
    pub(crate) held: usize,
    pub(crate) sent: u64,
    /// Whether the stream is a tunnel (CONNECT): bytes are passed through in both directions, and there are no trailers.
    pub(crate) is_tunnel: bool,
    /// Whether nothing follows the response head: the request was HEAD, or the status has no content (client role).
    pub(crate) is_bodyless: bool,
    /// Whether the final response head was received (client role) or sent (server role).
    pub(crate) has_response: bool,
    /// Whether the caller has content to send on the stream.
    pub(crate) has_content: bool,
    /// The stream's node in the scheduler; a stream that is answered at once has none.
    pub(crate) node: Option<scheduler::NodeKey>,
    /// The parameters of the request's `priority` field.
    pub(crate) parameters: Option<PriorityParameters>,
    /// For a closed stream, the place that the client requested for it and its last place in the scheduler.
    pub(crate) last_place: Option<(Priority, Place)>,
}

impl Stream {
    pub(crate) const fn new(id: StreamId, state: StreamState, send: u32, recv: u32) -> Self {
        Self {
            id,
            state,
            send_window: SendWindow::new(send),
            recv_window: RecvWindow::new(recv),
            is_accepted: false,
            declared: None,
            received: 0,
            held: 0,
            sent: 0,
            is_tunnel: false,
            is_bodyless: false,
            has_response: false,
            has_content: false,
            node: None,
            parameters: None,
            last_place: None,
        }
    }

    pub(crate) fn is_sendable(&self) -> bool {
        self.has_content && self.state.can_send() && self.send_window.available() > 0
    }
}

/// The streams of a connection that were not released yet.
#[derive(Debug)]
pub(crate) struct Streams {
    slots: Slab<Stream>,
    /// Identifier and index in `slots` of each stream that is not closed, in the order of identifiers: new streams are
    /// appended.
    open: Vec<(StreamId, u32)>,
    /// Number of streams in `slots` that the client opened.
    held: u32,
}

impl Streams {
    pub(crate) const fn new() -> Self {
        Self {
            slots: Slab::new(),
            open: Vec::new(),
            held: 0,
        }
    }

    /// Number of streams that the client opened and the caller has not released, including closed ones.
    pub(crate) const fn held(&self) -> u32 {
        self.held
    }

    /// Number of streams that are not closed.
    pub(crate) fn open_count(&self) -> usize {
        self.open.len()
    }

    #[inline]
    pub(crate) fn insert(&mut self, stream: Stream) -> StreamKey {
        let id = stream.id;
        let index = u32::try_from(self.slots.insert(stream))
            .expect("stream ids have 31 bits, so the number of streams fits into 32 bits");
        self.held += u32::from(id.is_client());
        match self.open.last() {
            Some(&(last, _)) if last > id => {
                let at = self.open.partition_point(|&(other, _)| other < id);
                self.open.insert(at, (id, index));
            }
            _ => self.open.push((id, index)),
        }
        StreamKey(index)
    }

    /// The key of the stream with this identifier, unless it is closed.
    #[inline]
    pub(crate) fn find(&self, id: StreamId) -> Option<StreamKey> {
        let at = self.open.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        Some(StreamKey(self.open[at].1))
    }

    #[inline]
    pub(crate) fn get(&self, key: StreamKey) -> Option<&Stream> {
        self.slots.get(key.index())
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        self.slots.get_mut(key.index())
    }

    /// Closes a stream. Frames that arrive for it later are errors or discarded, as RFC 9113 §5.1 says for closed streams.
    #[inline]
    pub(crate) fn close(&mut self, key: StreamKey) {
        let Some(stream) = self.get_mut(key) else {
            return;
        };
        stream.state = StreamState::Closed;
        stream.has_content = false;
        let id = stream.id;
        if self.open.last().is_some_and(|&(last, _)| last == id) {
            self.open.pop();
        } else if let Ok(at) = self.open.binary_search_by_key(&id, |&(id, _)| id) {
            self.open.remove(at);
        }
    }

    /// Removes a closed stream: its key may be used again for another stream.
    #[inline]
    pub(crate) fn release(&mut self, key: StreamKey) {
        if let Some(stream) = self.slots.try_remove(key.index()) {
            self.held -= u32::from(stream.id.is_client());
        }
    }

    /// All streams that are not closed, in the order of identifiers.
    pub(crate) fn iter_open(&self) -> impl Iterator<Item = (StreamKey, &Stream)> {
        self.open.iter().filter_map(|&(_, index)| {
            let key = StreamKey(index);
            self.get(key).map(|stream| (key, stream))
        })
    }

    pub(crate) fn open_keys(&self) -> Vec<StreamKey> {
        self.open
            .iter()
            .map(|&(_, index)| StreamKey(index))
            .collect()
    }

    /// Frees the memory if no stream is left.
    pub(crate) fn shrink(&mut self) {
        if self.slots.is_empty() {
            self.slots = Slab::new();
            self.open = Vec::new();
        }
    }

    pub(crate) fn retained(&self) -> usize {
        self.slots.capacity() * size_of::<Stream>()
            + self.open.capacity() * size_of::<(StreamId, u32)>()
    }
}
