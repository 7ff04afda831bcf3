//! The parts that tunnels over TCP and UDP share.
//!
//! Bytes from the far end (the connection to the target) are the body of the response, read when it is pulled. A
//! separate task moves the client's bytes, since a client that does not read may still send. The task also ends a
//! tunnel that is idle for too long.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2o_exchange::{BodyError, BodyPipe, Descriptor, Timer, Worker};
use tokio::task::AbortHandle;

/// The far end of a tunnel (its connection to the target), which receives the client's bytes.
pub(super) trait Sink: Unpin + 'static {
    /// Consumes bytes from the start of `piece`. Ready once all bytes are consumed and sent. Otherwise this is called
    /// again with the rest.
    ///
    /// # Errors
    /// The system's error, if the far end accepts no more bytes; [`io::ErrorKind::InvalidData`], if the client has sent
    /// malformed bytes.
    fn poll_send(&mut self, piece: &mut Bytes, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Moves HTTP datagrams, which do not pass through the request's pipe and the response's body. Returns whether any
    /// was moved; the task is woken when there are more.
    ///
    /// # Errors
    /// The system's error, if the far end cannot be read any more.
    fn move_datagrams(&mut self, _context: &mut Context<'_>) -> io::Result<bool> {
        Ok(false)
    }
}

/// The state of a tunnel, held by the body that carries bytes to the client.
pub(super) struct Tunnel {
    state: Rc<TunnelState>,
    task: AbortHandle,
    /// Whether the far end has ended its direction.
    is_complete: bool,
}

struct TunnelState {
    /// The timer that fires when no bytes have moved in either direction for `io_timeout`.
    idle: Timer,
    io_timeout: Duration,
    upload: Cell<UploadState>,
    /// The waker of the task that waits for bytes from the far end.
    reader: Cell<Option<Waker>>,
    /// Counts the socket to the far end towards the server's limit of file descriptors.
    _descriptor: Descriptor,
}

/// The state of the direction from the client to the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UploadState {
    Open,
    /// The client has ended its direction. H2O compatibility: H2O then ends the tunnel.
    Ended,
    /// The far end accepts no more bytes. The bytes that it has sent still go to the client.
    Refused,
}

impl TunnelState {
    /// Restarts the idle timeout, because bytes have moved.
    fn note(&self) {
        self.idle.set_after(self.io_timeout);
    }
}

impl Tunnel {
    /// Starts the task that moves bytes from `pipe` to `sink`. It ends when no bytes have moved in either direction for
    /// `io_timeout`. Must be called where tasks of the worker can be [spawned](Worker::spawn).
    pub(super) fn open(
        worker: &Worker,
        sink: impl Sink,
        descriptor: Descriptor,
        pipe: Rc<BodyPipe>,
        io_timeout: Duration,
    ) -> Self {
        let state = Rc::new(TunnelState {
            idle: Timer::new(&worker.timers),
            io_timeout,
            upload: Cell::new(UploadState::Open),
            reader: Cell::default(),
            _descriptor: descriptor,
        });
        state.note();
        let mover = Mover {
            state: Rc::clone(&state),
            sink,
            pipe,
            piece: Bytes::new(),
            is_sending: false,
        };
        Self {
            state,
            task: worker.spawn(mover).abort_handle(),
            is_complete: false,
        }
    }

    /// Called when bytes have arrived from the far end.
    pub(super) fn on_received(&self) {
        self.state.note();
    }

    /// Called when the far end has ended its direction.
    pub(super) const fn on_end(&mut self) {
        self.is_complete = true;
    }

    /// Called when the far end has no bytes now. Returns whether more may follow; the task of `context` is woken when
    /// that changes.
    pub(super) fn may_wait(&self, context: &Context<'_>) -> bool {
        let waker = self.state.reader.take();
        let waker = waker.filter(|waker| waker.will_wake(context.waker()));
        let waker = waker.unwrap_or_else(|| context.waker().clone());
        self.state.reader.set(Some(waker));
        self.state.upload.get() != UploadState::Ended
    }
}

/// Dropping the response body ends the task that moves the client's bytes, unless only the far end has ended its
/// direction: the client may then continue to send.
impl Drop for Tunnel {
    fn drop(&mut self) {
        if !self.is_complete || self.state.upload.get() != UploadState::Open {
            self.task.abort();
        }
    }
}

/// The error of a response body whose far end has aborted the connection.
pub(super) fn broken(_: &io::Error) -> BodyError {
    BodyError::Failed("I/O error".into())
}

/// The task that moves the client's bytes and watches for idle time.
struct Mover<S> {
    state: Rc<TunnelState>,
    sink: S,
    pipe: Rc<BodyPipe>,
    /// Bytes from the client that are not sent yet.
    piece: Bytes,
    /// Whether the sink may hold unsent bytes, even if `piece` is empty.
    is_sending: bool,
}

impl<S: Sink> Future for Mover<S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.state.upload.get() == UploadState::Open {
            match this.sink.move_datagrams(context) {
                Ok(true) => this.state.note(),
                Ok(false) => {}
                Err(_) => {
                    this.pipe.give_up("I/O error");
                    return Poll::Ready(());
                }
            }
        }
        if this.state.upload.get() == UploadState::Open
            && let Poll::Ready(ended) = this.poll_move(context)
        {
            let is_response_over = Rc::strong_count(&this.state) == 1;
            let Some(ended) = ended.filter(|_| !is_response_over) else {
                return Poll::Ready(());
            };
            if ended == UploadState::Refused {
                this.pipe.abandon();
            }
            this.state.upload.set(ended);
            if let Some(reader) = this.state.reader.take() {
                reader.wake();
            }
        }
        if this.state.idle.poll_fired(context).is_pending() {
            return Poll::Pending;
        }
        this.pipe.give_up("I/O timeout");
        Poll::Ready(())
    }
}

impl<S: Sink> Mover<S> {
    /// Moves as many bytes as possible. Returns the new state once the client's direction has ended; `None` if the
    /// client is gone.
    fn poll_move(&mut self, context: &mut Context<'_>) -> Poll<Option<UploadState>> {
        loop {
            while !self.is_sending && self.piece.is_empty() {
                match self.pipe.poll_next(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(piece))) => self.piece = piece,
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(None),
                    Poll::Ready(None) => return Poll::Ready(Some(UploadState::Ended)),
                }
            }
            let had = self.piece.len();
            self.is_sending = true;
            let sent = self.sink.poll_send(&mut self.piece, context);
            if self.piece.len() < had {
                self.state.note();
            }
            match sent {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {
                    self.piece.clear();
                    self.is_sending = false;
                }
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    self.pipe.give_up("malformed capsule");
                    return Poll::Ready(None);
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Some(UploadState::Refused)),
            }
        }
    }
}

/// When the task ends, for whatever reason, the client's bytes are no longer read.
impl<S> Drop for Mover<S> {
    fn drop(&mut self) {
        self.pipe.abandon();
    }
}
