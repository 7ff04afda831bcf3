//! Scheduling of an HTTP/2 connection: priorities from the client, and the turns of the streams to send.

use h2o_http::priority::PriorityParameters;

use crate::connection::{Connection, MAX_DUE_UPDATES, cost};
use crate::error::PeerError;
use crate::frame::{self, FrameHeader, FrameType, StreamId};
use crate::scheduler::Priority;
use crate::stream::StreamKey;

/// A DATA frame with fewer bytes than this is charged to the client if the client's flow control window is the reason for
/// its size.
const DRIBBLE_LEN: usize = 64;

impl Connection {
    /// Handles a PRIORITY frame (RFC 7540 §6.3).
    pub(crate) fn on_priority(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        newest: StreamId,
    ) -> Result<(), PeerError> {
        let kind = FrameType::PRIORITY;
        if header.stream == StreamId::CONNECTION {
            return Err(PeerError::StreamIdOf(kind));
        }
        let Some((priority, [])) = frame::parse_priority(payload) else {
            return Err(PeerError::FrameSize(kind));
        };
        if priority.dependency == header.stream.get() {
            return Err(PeerError::SelfDependency);
        }
        self.charge(cost::CONTROL);
        self.place(header.stream);
        self.place(StreamId::new(priority.dependency));
        self.scheduler
            .reprioritize(header.stream.get(), priority, newest.get())
            .map_err(priority_error)
    }

    /// Adds the stream with this identifier to the scheduler, if it is open and not there yet.
    fn place(&mut self, id: StreamId) {
        if let Some(key) = self.streams.find(id) {
            self.ensure_placed(key);
        }
    }

    fn ensure_placed(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        if stream.node.is_some() {
            return;
        }
        // Opening a stream in the scheduler fails only for a faulty priority, and none is given here.
        stream.node = self
            .scheduler
            .open(stream.id.get(), key.to_user(), None)
            .ok();
        if let (Some(node), Some(parameters)) = (stream.node, stream.parameters) {
            self.scheduler.set_parameters(node, parameters);
        }
    }

    /// Adds a stream whose HEADERS frame has a priority to the scheduler.
    pub(crate) fn place_at(&mut self, key: StreamKey, priority: Priority) -> Result<(), PeerError> {
        self.place(StreamId::new(priority.dependency));
        let Some(stream) = self.streams.get_mut(key) else {
            return Ok(());
        };
        let opened = self
            .scheduler
            .open(stream.id.get(), key.to_user(), Some(priority));
        let node = opened.map_err(priority_error)?;
        if let Some(parameters) = stream.parameters {
            self.scheduler.set_parameters(node, parameters);
        }
        stream.node = Some(node);
        Ok(())
    }

    /// Handles a PRIORITY_UPDATE frame for a stream (RFC 9218 §7.1): from now on urgencies decide the order.
    pub(crate) fn on_priority_update(
        &mut self,
        id: StreamId,
        parameters: PriorityParameters,
        newest: StreamId,
    ) -> Result<(), PeerError> {
        self.scheduler.use_urgencies();
        self.place(id);
        self.scheduler
            .priority_update(id.get(), parameters, newest.get())
            .map_err(priority_error)
    }

    /// The stream's node in the scheduler, which is added if there is none.
    pub(crate) fn node(&mut self, key: StreamKey) -> Option<crate::scheduler::NodeKey> {
        self.ensure_placed(key);
        self.streams.get(key)?.node
    }

    /// Reports whether the caller has content to send on the stream.
    pub(crate) fn set_content(&mut self, key: StreamKey, has_content: bool) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        stream.has_content = has_content && stream.state.can_send();
        self.update_ready(key);
    }

    pub(crate) fn update_ready(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get(key) else {
            return;
        };
        let is_ready = stream.is_sendable();
        if let Some(node) = stream.node {
            self.scheduler.set_ready(node, is_ready);
        } else if is_ready {
            self.ensure_placed(key);
            if let Some(node) = self.streams.get(key).and_then(|stream| stream.node) {
                self.scheduler.set_ready(node, true);
            }
        }
    }

    /// How many bytes of content the stream may send in one frame now, if it were its turn.
    #[inline]
    pub(crate) fn sendable(&self, key: StreamKey) -> usize {
        let Some(stream) = self.streams.get(key) else {
            return 0;
        };
        self.peer
            .frame_size()
            .min(stream.send_window.available())
            .min(self.send_window.available())
    }

    /// Whether any stream can send content now.
    #[inline]
    pub(crate) fn has_sendable(&self) -> bool {
        self.scheduler.has_ready() && self.send_window.available() > 0
    }

    /// The stream whose turn it is to send, and how many bytes of content it may send in one frame.
    pub(crate) fn poll_send(&mut self) -> Option<(StreamKey, usize)> {
        if self.send_window.available() == 0 {
            return None;
        }
        let key = StreamKey::from_user(self.scheduler.next()?);
        let max = self.sendable(key);
        debug_assert!(
            max > 0,
            "a stream that is ready to send has a flow-control window"
        );
        Some((key, max))
    }

    /// Deducts `len` bytes of content that were put into a DATA frame from the send windows, and charges the client for a
    /// frame that its window made small.
    #[inline]
    pub(crate) fn on_sent(&mut self, key: StreamKey, len: usize, is_end: bool) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        stream.send_window.spend(len);
        stream.sent += len as u64;
        self.send_window.spend(len);
        self.due_updates = (self.due_updates + 2).min(MAX_DUE_UPDATES);
        let is_cut = stream.send_window.available() == 0 || self.send_window.available() == 0;
        if !is_end {
            if is_cut && len < DRIBBLE_LEN {
                self.charge(cost::DRIBBLE);
            }
            if is_cut {
                self.update_ready(key);
            }
        }
    }
}

pub(crate) const fn priority_error(error: crate::scheduler::PriorityError) -> PeerError {
    match error {
        crate::scheduler::PriorityError::SelfDependency => PeerError::SelfDependency,
        crate::scheduler::PriorityError::TooManyPlaceholders => PeerError::TooManyIdle,
    }
}
