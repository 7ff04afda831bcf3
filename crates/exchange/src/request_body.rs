//! Request bodies: collected before a handler runs, or streamed to it.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};

use crate::ByteQueue;
use crate::body_source::BodyError;
use crate::datagram_pipe::DatagramPipe;
use crate::file::FileRange;

/// The body of a request as its handler sees it.
#[derive(Clone, Default)]
pub enum RequestBody {
    /// The request has no body.
    #[default]
    None,
    /// The body is complete, and in memory.
    Bytes(Bytes),
    /// The body is complete, and in a temporary file without a name (bodies above `temp-buffer-threshold`).
    File(FileRange),
    /// The body is arriving, and the handler pulls it.
    ///
    /// Requests that [ask for a tunnel](h2o_http::RequestHead::asks_for_tunnel) have such a body from the start, if the
    /// first handler of their path can stream. It then carries the client's bytes of the tunnel: for CONNECT at once,
    /// for other upgrades after the handler's 101. A response that opens no tunnel ends it.
    Stream(Rc<BodyPipe>),
}

impl RequestBody {
    /// Number of bytes of memory that a complete body holds.
    #[must_use]
    pub const fn retained(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::None | Self::File(_) | Self::Stream(_) => 0,
        }
    }

    /// The length of a complete body; `None` if there is no body, or if it is arriving.
    #[must_use]
    pub const fn complete_len(&self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes.len() as u64),
            Self::File(range) => Some(range.len),
            Self::None | Self::Stream(_) => None,
        }
    }
}

/// Carries a request body from the connection to the handler. The connection may add some bytes before it notices that
/// the pipe is full, so a handler that does not read costs at most one buffer. The pipe also holds copies of what the
/// handler has taken, if they are [kept](BodyPipe::keep) for a rerun of the request with another handler.
#[derive(Default)]
pub struct BodyPipe {
    inner: RefCell<Inner>,
    datagrams: Option<Rc<DatagramPipe>>,
}

#[derive(Default)]
struct Inner {
    /// Bytes that an earlier handler took, which the next handler gets again before the rest of the body.
    replay: Bytes,
    /// Copies of the bytes that the handler has taken, if they are kept for a rerun of the request.
    kept: Option<BytesMut>,
    /// Whether the handler has taken bytes of which no copy was kept, so that the request cannot be rerun with another
    /// handler.
    is_lost: bool,
    queue: ByteQueue,
    end: Option<Result<(), String>>,
    abandoned: bool,
    given_up: Option<&'static str>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    owner: Option<Waker>,
}

impl Inner {
    /// Takes the next piece of the body for the handler.
    fn pop(&mut self) -> Option<Bytes> {
        let piece = if self.is_empty() {
            return None;
        } else if !self.replay.is_empty() {
            let len = self.replay.len().min(BodyPipe::CAPACITY);
            self.replay.split_to(len)
        } else {
            self.queue.take(usize::MAX)
        };
        self.keep(&piece);
        Some(piece)
    }

    /// Copies a piece that the handler takes, if pieces are kept and there is room; otherwise a rerun becomes
    /// impossible.
    fn keep(&mut self, piece: &[u8]) {
        match &mut self.kept {
            Some(kept) if kept.len() + piece.len() <= BodyPipe::KEPT => {
                kept.extend_from_slice(piece);
            }
            _ => {
                self.kept = None;
                self.is_lost = true;
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.replay.is_empty()
    }
}

impl BodyPipe {
    /// The pipe counts as full when it holds this many bytes.
    pub const CAPACITY: usize = 64 * 1024;
    /// Most bytes of a request body that [`BodyPipe::keep`] keeps for a rerun.
    pub const KEPT: usize = 1024 * 1024;

    /// Creates the pipe of a request for a tunnel, with the pipe of its HTTP datagrams if the connection can carry any.
    /// Called by the connection.
    #[must_use]
    pub fn of_tunnel(datagrams: Option<Rc<DatagramPipe>>) -> Self {
        Self {
            datagrams,
            ..Self::default()
        }
    }

    /// The pipe of the tunnel's HTTP datagrams, if the connection can carry any. Called by the handler.
    #[must_use]
    pub const fn datagrams(&self) -> Option<&Rc<DatagramPipe>> {
        self.datagrams.as_ref()
    }

    /// Waits for the next piece of the body; `None` at its end. Called by the handler.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let mut inner = self.inner.borrow_mut();
        if let Some(piece) = inner.pop() {
            if let Some(writer) = inner.writer.take() {
                writer.wake();
            }
            return Poll::Ready(Some(Ok(piece)));
        }
        match &inner.end {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(text)) => Poll::Ready(Some(Err(BodyError::Failed(text.clone())))),
            None => {
                inner.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Abandons the body: the handler does not need the rest of it. The other direction of a tunnel continues. Called
    /// by the handler.
    pub fn abandon(&self) {
        let mut inner = self.inner.borrow_mut();
        if inner.kept.is_some() {
            while inner.pop().is_some() {}
        }
        inner.is_lost |= inner.kept.is_none();
        inner.abandoned = true;
        inner.replay.clear();
        inner.queue = ByteQueue::default();
        if let Some(writer) = inner.writer.take() {
            writer.wake();
        }
        if let Some(owner) = &inner.owner {
            owner.wake_by_ref();
        }
    }

    /// From now on keeps copies of the bytes that the handler takes, up to [`BodyPipe::KEPT`], so that another handler
    /// can be given the body from its start.
    pub fn keep(&self) {
        let mut inner = self.inner.borrow_mut();
        if !inner.is_lost {
            inner.kept.get_or_insert_default();
        }
    }

    /// Whether copies of the body are kept, because another handler may need it again.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.inner.borrow().kept.is_some()
    }

    /// No other handler will need the body: drops the copies that were kept.
    pub fn stop_keeping(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.is_lost |= inner.kept.take().is_some();
    }

    /// Number of bytes of the body that are kept for another handler.
    #[must_use]
    pub fn kept(&self) -> usize {
        let inner = self.inner.borrow();
        inner.replay.len() + inner.kept.as_ref().map_or(0, BytesMut::capacity)
    }

    /// Rewinds the body for another handler, which gets it from its first byte. Returns false if some bytes were not
    /// kept.
    #[must_use]
    pub fn rewind(&self) -> bool {
        let mut inner = self.inner.borrow_mut();
        if inner.is_lost {
            return false;
        }
        if let Some(kept) = &mut inner.kept {
            let mut taken = std::mem::take(kept);
            taken.extend_from_slice(&inner.replay);
            inner.replay = taken.freeze();
        }
        inner.abandoned = false;
        true
    }

    /// Gives a tunnel up: ends it in both directions. The connection or stream is cut off although the response has not
    /// ended. `reason` is for the error log. Without effect if no tunnel is open. Called by the handler.
    pub fn give_up(&self, reason: &'static str) {
        self.inner.borrow_mut().given_up = Some(reason);
        self.abandon();
    }

    /// The reason that the handler gave to [`BodyPipe::give_up`], if it has called that.
    #[must_use]
    pub fn given_up(&self) -> Option<&'static str> {
        self.inner.borrow().given_up
    }

    /// Registers a waker, which is woken when the handler abandons the pipe or gives its tunnel up. Called by the
    /// connection.
    pub fn set_owner(&self, owner: Waker) {
        self.inner.borrow_mut().owner = Some(owner);
    }

    /// Whether the whole body has arrived in the pipe, so that the client will send no more of it.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(self.inner.borrow().end, Some(Ok(())))
    }

    /// Whether the handler has taken the whole body without an error.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let inner = self.inner.borrow();
        inner.end == Some(Ok(())) && inner.is_empty()
    }

    /// Whether the handler has declared that it does not need the rest of the body.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.inner.borrow().abandoned
    }

    /// Ready with the number of bytes that the pipe has room for; otherwise the caller is woken when there is some
    /// room. Called by the connection.
    pub fn poll_room(&self, context: &mut Context<'_>) -> Poll<usize> {
        let mut inner = self.inner.borrow_mut();
        if inner.abandoned {
            return Poll::Ready(Self::CAPACITY);
        }
        match Self::CAPACITY.saturating_sub(inner.queue.len()) {
            0 => {
                inner.writer = Some(context.waker().clone());
                Poll::Pending
            }
            room => Poll::Ready(room),
        }
    }

    /// Number of bytes in the pipe that the handler has not taken yet.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.inner.borrow().queue.len()
    }

    /// Ready when the handler can take a piece, or the body has ended. Called by the handler.
    pub fn poll_begun(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.inner.borrow_mut();
        if inner.is_empty() && inner.end.is_none() {
            inner.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Takes the rest of the body in one piece, if all of it has arrived without an error. Called by the handler, which
    /// then need not stream the body.
    #[must_use]
    pub fn take_whole(&self) -> Option<Bytes> {
        let mut inner = self.inner.borrow_mut();
        if inner.end != Some(Ok(())) {
            return None;
        }
        if let Some(writer) = inner.writer.take() {
            writer.wake();
        }
        let first = inner.pop().unwrap_or_default();
        if inner.is_empty() {
            return Some(first);
        }
        let mut whole = Vec::with_capacity(first.len() + inner.replay.len() + inner.queue.len());
        whole.extend_from_slice(&first);
        while let Some(piece) = inner.pop() {
            whole.extend_from_slice(&piece);
        }
        Some(whole.into())
    }

    /// Whether the handler has emptied the pipe and waits for the client to send more.
    #[must_use]
    pub fn is_starved(&self) -> bool {
        let inner = self.inner.borrow();
        inner.is_empty() && inner.end.is_none() && !inner.abandoned
    }

    /// Registers a waker, which is woken when the handler takes bytes from the pipe or abandons it. Called by the
    /// connection.
    pub fn watch(&self, context: &mut Context<'_>) {
        self.inner.borrow_mut().writer = Some(context.waker().clone());
    }

    /// Adds bytes of the body to the pipe, for the handler.
    pub fn push(&self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        let mut inner = self.inner.borrow_mut();
        if bytes.is_empty() {
            return;
        }
        if inner.abandoned {
            inner.is_lost = true;
            return;
        }
        inner.queue.push(bytes);
        if let Some(reader) = inner.reader.take() {
            reader.wake();
        }
    }

    /// Ends the body, with or without an error. Only the first call has an effect.
    pub fn finish(&self, result: Result<(), String>) {
        let mut inner = self.inner.borrow_mut();
        inner.end.get_or_insert(result);
        if let Some(reader) = inner.reader.take() {
            reader.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_has_ended_is_taken_as_a_whole() {
        let mut context = Context::from_waker(Waker::noop());
        for pieces in [&["con", "tent"][..], &["content"], &[]] {
            let pipe = BodyPipe::default();
            assert!(pipe.poll_begun(&mut context).is_pending());
            pieces.iter().for_each(|piece| pipe.push(piece));
            assert_eq!(pipe.poll_begun(&mut context).is_ready(), !pieces.is_empty());
            assert_eq!(pipe.take_whole(), None);
            pipe.finish(Ok(()));
            assert!(pipe.poll_begun(&mut context).is_ready());
            assert_eq!(pipe.take_whole(), Some(pieces.concat().into()));
            assert_eq!(pipe.queued(), 0);
        }
        let pipe = BodyPipe::default();
        pipe.finish(Err("gone".into()));
        assert!(pipe.poll_begun(&mut context).is_ready());
        assert_eq!(pipe.take_whole(), None);
    }

    #[test]
    fn pipe_is_full_at_its_capacity_and_delivers_in_order() {
        let pipe = BodyPipe::default();
        let mut context = Context::from_waker(Waker::noop());
        assert!(pipe.poll_next(&mut context).is_pending());
        pipe.push(vec![1; BodyPipe::CAPACITY]);
        assert!(pipe.poll_room(&mut context).is_pending());
        let mut taken = 0;
        while let Poll::Ready(Some(Ok(piece))) = pipe.poll_next(&mut context) {
            taken += piece.len();
        }
        assert_eq!(taken, BodyPipe::CAPACITY);
        assert_eq!(
            pipe.poll_room(&mut context),
            Poll::Ready(BodyPipe::CAPACITY)
        );
        assert!(!pipe.is_complete());
        pipe.push("x");
        pipe.finish(Ok(()));
        pipe.finish(Err("late".into()));
        assert!(pipe.is_complete() && !pipe.is_drained());
        assert_eq!(drained(&pipe), b"x");
        assert!(pipe.is_drained());
        assert!(matches!(pipe.poll_next(&mut context), Poll::Ready(None)));
    }

    /// Takes all bytes that a pipe has left.
    fn drained(pipe: &BodyPipe) -> Vec<u8> {
        let mut context = Context::from_waker(Waker::noop());
        let mut all = Vec::new();
        while let Poll::Ready(Some(Ok(piece))) = pipe.poll_next(&mut context) {
            all.extend_from_slice(&piece);
        }
        all
    }

    #[test]
    fn what_is_kept_can_be_taken_once_more() {
        let content: Vec<u8> = (0..BodyPipe::KEPT).map(|n| n.to_le_bytes()[0]).collect();
        let (first, second) = content.split_at(BodyPipe::CAPACITY + 1);
        let pipe = BodyPipe::default();
        pipe.keep();
        pipe.push(first);
        assert_eq!(drained(&pipe), first);
        pipe.push(&second[..7]);
        pipe.abandon();
        assert_eq!(pipe.queued(), 0);
        assert!(pipe.rewind() && !pipe.is_abandoned());
        assert_eq!((pipe.queued(), pipe.is_starved()), (0, false));
        // After the rerun of the request, the second handler stops in the middle of the bytes that the first handler
        // had taken.
        let mut context = Context::from_waker(Waker::noop());
        assert!(pipe.poll_begun(&mut context).is_ready());
        assert!(matches!(
            pipe.poll_next(&mut context),
            Poll::Ready(Some(Ok(_)))
        ));
        pipe.push(&second[7..]);
        assert!(pipe.rewind());
        assert_eq!(pipe.take_whole(), None);
        assert_eq!(drained(&pipe), content);
        pipe.finish(Ok(()));
        for _ in 0..2 {
            assert!(pipe.rewind() && pipe.kept() >= BodyPipe::KEPT);
            assert_eq!(pipe.take_whole().unwrap(), content);
        }
    }

    #[test]
    fn what_is_not_kept_is_gone() {
        let piece = Bytes::from(vec![0; BodyPipe::KEPT]);
        let untouched = BodyPipe::default();
        untouched.push(&piece);
        assert!(untouched.rewind());
        let taken = BodyPipe::default();
        taken.push(&piece);
        assert_eq!(drained(&taken).len(), piece.len());
        taken.keep();
        let too_large = BodyPipe::default();
        too_large.keep();
        too_large.push(piece);
        too_large.push(b"x");
        assert_eq!(drained(&too_large).len(), BodyPipe::KEPT + 1);
        assert_eq!(too_large.kept(), 0);
        let refused = BodyPipe::default();
        refused.abandon();
        let late = BodyPipe::default();
        late.keep();
        late.abandon();
        late.push(b"x");
        let stopped = BodyPipe::default();
        stopped.keep();
        stopped.push(b"xy");
        assert_eq!(drained(&stopped), b"xy");
        assert!(stopped.rewind());
        stopped.stop_keeping();
        assert_eq!(drained(&stopped), b"xy");
        for pipe in [taken, too_large, refused, late, stopped] {
            assert!(!pipe.rewind());
        }
    }

    #[test]
    fn the_owner_hears_of_each_way_in_which_a_handler_ends_it() {
        struct Bell(std::sync::atomic::AtomicUsize);
        impl std::task::Wake for Bell {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let bell = std::sync::Arc::new(Bell(0.into()));
        let rung = || bell.0.load(std::sync::atomic::Ordering::Relaxed);
        let pipe = BodyPipe::default();
        pipe.set_owner(std::sync::Arc::clone(&bell).into());
        pipe.push("a");
        assert_eq!((rung(), pipe.given_up()), (0, None));
        pipe.abandon();
        assert_eq!((rung(), pipe.given_up(), pipe.queued()), (1, None, 0));
        pipe.give_up("too slow");
        assert_eq!((rung(), pipe.given_up()), (2, Some("too slow")));
        assert!(pipe.is_abandoned());
    }
}
