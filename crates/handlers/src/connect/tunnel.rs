//! What tunnels have in common, wherever they lead.
//!
//! What comes from the far end is the content of the response, read only as it is pulled. What the client sends is moved by
//! a task of its own, as a client that does not read may still have something to say. The task also sees to it that a
//! tunnel in which nothing moves comes to an end.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2o_exchange::{BodyError, BodyPipe, Descriptor, Timer, Worker};
use tokio::task::AbortHandle;

/// Where the bytes of the client go.
pub(super) trait Sink: Unpin + 'static {
    /// Takes bytes from the beginning of `piece`; ready when all are taken and sent. Else it is asked again, with what is
    /// left.
    ///
    /// # Errors
    /// Nothing more is taken; [`io::ErrorKind::InvalidData`]: because the client has sent nonsense.
    fn poll_send(&mut self, piece: &mut Bytes, context: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// How a tunnel is, as seen by what carries its content to the client, which holds this.
pub(super) struct Tunnel {
    moves: Rc<Moves>,
    task: AbortHandle,
    /// The far end has sent all it had to send.
    is_complete: bool,
}

struct Moves {
    /// Fires when no bytes have gone either way for `io_timeout`.
    idle: Timer,
    io_timeout: Duration,
    upload: Cell<Upload>,
    /// Who waits for the far end.
    reader: Cell<Option<Waker>>,
    /// What the socket of the far end counts as.
    _descriptor: Descriptor,
}

/// The direction of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upload {
    Open,
    /// The client has sent all it had to send: the tunnel ends (H2O compatibility).
    Ended,
    /// The far end takes no more. What it has sent is still for the client.
    Refused,
}

impl Moves {
    /// Bytes went either way.
    fn note(&self) {
        self.idle.set_after(self.io_timeout);
    }
}

impl Tunnel {
    /// Begins to move what comes out of `pipe` to `sink`. When nothing moves for `io_timeout` the pipe is given up. Must be
    /// called within the worker's runtime.
    pub(super) fn open(
        worker: &Worker,
        sink: impl Sink,
        descriptor: Descriptor,
        pipe: Rc<BodyPipe>,
        io_timeout: Duration,
    ) -> Self {
        let moves = Rc::new(Moves {
            idle: Timer::new(&worker.timers),
            io_timeout,
            upload: Cell::new(Upload::Open),
            reader: Cell::default(),
            _descriptor: descriptor,
        });
        moves.note();
        let mover = Mover {
            moves: Rc::clone(&moves),
            sink,
            pipe,
            piece: Bytes::new(),
            is_sending: false,
        };
        Self {
            moves,
            task: worker.spawn(mover).abort_handle(),
            is_complete: false,
        }
    }

    /// Bytes have come from the far end.
    pub(super) fn on_received(&self) {
        self.moves.note();
    }

    /// The far end will send no more.
    pub(super) const fn on_end(&mut self) {
        self.is_complete = true;
    }

    /// There is nothing from the far end now. False if nothing is to be waited for; else the caller is woken when that
    /// changes.
    pub(super) fn may_wait(&self, context: &Context<'_>) -> bool {
        let waker = self.moves.reader.take();
        let waker = waker.filter(|waker| waker.will_wake(context.waker()));
        let waker = waker.unwrap_or_else(|| context.waker().clone());
        self.moves.reader.set(Some(waker));
        self.moves.upload.get() != Upload::Ended
    }
}

/// The client is gone, or the tunnel over: nothing is moved any more. If only the far end has come to its end, the client
/// may go on sending.
impl Drop for Tunnel {
    fn drop(&mut self) {
        if !self.is_complete || self.moves.upload.get() != Upload::Open {
            self.task.abort();
        }
    }
}

/// The far end has cut the connection.
pub(super) fn broken(_: &io::Error) -> BodyError {
    BodyError::Failed("I/O error".into())
}

/// Moves what the client sends, and guards both directions.
struct Mover<S> {
    moves: Rc<Moves>,
    sink: S,
    pipe: Rc<BodyPipe>,
    /// Not sent yet.
    piece: Bytes,
    /// The sink may hold bytes that are not sent, also if the piece is at its end.
    is_sending: bool,
}

impl<S: Sink> Future for Mover<S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.moves.upload.get() == Upload::Open
            && let Poll::Ready(ended) = this.poll_move(context)
        {
            let is_response_over = Rc::strong_count(&this.moves) == 1;
            let Some(ended) = ended.filter(|_| !is_response_over) else {
                return Poll::Ready(());
            };
            if ended == Upload::Refused {
                this.pipe.abandon();
            }
            this.moves.upload.set(ended);
            if let Some(reader) = this.moves.reader.take() {
                reader.wake();
            }
        }
        if this.moves.idle.poll_fired(context).is_pending() {
            return Poll::Pending;
        }
        this.pipe.give_up("I/O timeout");
        Poll::Ready(())
    }
}

impl<S: Sink> Mover<S> {
    /// Moves what can be moved. `None`: the client is gone.
    fn poll_move(&mut self, context: &mut Context<'_>) -> Poll<Option<Upload>> {
        loop {
            while !self.is_sending && self.piece.is_empty() {
                match self.pipe.poll_next(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(piece))) => self.piece = piece,
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(None),
                    Poll::Ready(None) => return Poll::Ready(Some(Upload::Ended)),
                }
            }
            let had = self.piece.len();
            self.is_sending = true;
            let sent = self.sink.poll_send(&mut self.piece, context);
            if self.piece.len() < had {
                self.moves.note();
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
                Poll::Ready(Err(_)) => return Poll::Ready(Some(Upload::Refused)),
            }
        }
    }
}

/// However the task ends: nobody takes what the client sends any more.
impl<S> Drop for Mover<S> {
    fn drop(&mut self) {
        self.pipe.abandon();
    }
}
