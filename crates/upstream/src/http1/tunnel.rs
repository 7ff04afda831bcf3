//! A tunnel to a backend: bytes both ways, each direction on its own.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use h2o_exchange::{BodyError, BodyPipe, BodySource};
use tokio::io::AsyncWrite;
use tokio::task::AbortHandle;

use super::exchange::UpstreamExchange;
use crate::Failure;
use crate::failure::{broken_off, text_of};

/// What comes from the backend, read as it is pulled. What the client sends is moved by a task of its own, as a client that
/// does not read may still have something to say.
pub(super) struct TunnelSource {
    shared: Rc<Shared>,
    /// What came together with the head.
    ready: Bytes,
    task: AbortHandle,
}

/// What both directions share.
struct Shared {
    /// Until the tunnel is over.
    exchange: RefCell<Option<UpstreamExchange>>,
    /// What has broken the tunnel.
    broken: Cell<Option<&'static str>>,
    /// Who waits for the backend; none while the client takes nothing.
    reader: Cell<Option<Waker>>,
}

impl Shared {
    fn break_off(&self, text: &'static str) {
        self.broken.set(Some(text));
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl TunnelSource {
    /// The tunnel is open; `ready` came behind the head.
    ///
    /// Must run in a local runtime of tokio.
    pub(super) fn open(exchange: UpstreamExchange, ready: Bytes) -> Self {
        exchange.note_transfer();
        let worker = Rc::clone(&exchange.worker);
        let pipe = exchange.upload.pipe();
        let shared = Rc::new(Shared {
            exchange: RefCell::new(Some(exchange)),
            broken: Cell::new(None),
            reader: Cell::new(None),
        });
        let mover = Mover {
            shared: Rc::clone(&shared),
            pipe,
            is_shut: false,
        };
        Self {
            shared,
            ready,
            task: worker.spawn(mover).abort_handle(),
        }
    }
}

impl Drop for TunnelSource {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(exchange) = self.shared.exchange.take() {
            exchange.note_end();
        }
    }
}

impl BodySource for TunnelSource {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.shared.reader.set(None);
        let mut exchange = self.shared.exchange.borrow_mut();
        let Some(exchange) = &mut *exchange else {
            return Poll::Ready(None);
        };
        if !self.ready.is_empty() {
            exchange.note_transfer();
            let piece = self.ready.split_to(max.min(self.ready.len()));
            return Poll::Ready(Some(Ok(piece)));
        }
        if let Some(text) = self.shared.broken.get() {
            return Poll::Ready(Some(Err(broken_off(text))));
        }
        let mut piece = BytesMut::new();
        match exchange.poll_piece(context, max, &mut piece) {
            Poll::Pending => {
                self.shared.reader.set(Some(context.waker().clone()));
                Poll::Pending
            }
            Poll::Ready(Ok(1..)) => {
                exchange.note_transfer();
                Poll::Ready(Some(Ok(piece.freeze())))
            }
            Poll::Ready(Ok(0) | Err(_)) => {
                let ended = exchange.connection.engine.on_closed();
                Poll::Ready(ended.err().map(|error| Err(broken_off(text_of(error)))))
            }
        }
    }

    fn retained(&self) -> usize {
        let exchange = self.shared.exchange.try_borrow();
        let exchange = exchange.as_deref().ok().and_then(Option::as_ref);
        self.ready.len() + exchange.map_or(0, |exchange| exchange.upload.retained())
    }
}

/// Moves what the client sends, and ends a tunnel in which nothing moves.
struct Mover {
    shared: Rc<Shared>,
    /// Where the bytes of the client come from.
    pipe: Option<Rc<BodyPipe>>,
    /// The backend knows that the client has sent all it had to send.
    is_shut: bool,
}

impl Future for Mover {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let shared = &this.shared;
        let mut exchange = shared.exchange.borrow_mut();
        let Some(exchange) = &mut *exchange else {
            return Poll::Ready(());
        };
        let before = exchange.upload.written;
        let _ = exchange.poll_upload(context);
        if exchange.upload.written > before {
            exchange.note_transfer();
        }
        if let Some(text) = exchange.upload.broken {
            shared.break_off(text);
        } else if exchange.upload.is_done() && exchange.upload.has_client_left && !this.is_shut {
            // The backend may have something to say to that (RFC 9113 §8.5), and its end is then the end of the tunnel.
            let shut = Pin::new(&mut exchange.connection.stream).poll_shutdown(context);
            this.is_shut = shut.is_ready();
        }
        if exchange.connection.timer.poll_fired(context).is_pending() {
            return Poll::Pending;
        }
        match (shared.reader.take(), &this.pipe) {
            // A client that takes nothing would not hear of it.
            (None, Some(pipe)) => pipe.give_up(Failure::IO_TIMEOUT),
            (reader, _) => {
                shared.reader.set(reader);
                shared.break_off(Failure::IO_TIMEOUT);
            }
        }
        Poll::Ready(())
    }
}
