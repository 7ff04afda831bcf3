//! A tunnel to a backend over an HTTP/1 connection: bytes in both directions, each independent of the other.

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

/// The direction from the backend to the client, read as the client's side pulls it. The other direction is moved by a task of its
/// own, because a client that does not read may still send.
pub(super) struct TunnelSource {
    shared: Rc<Shared>,
    /// Bytes of the tunnel that arrived together with the head of the response.
    ready: Bytes,
    task: AbortHandle,
}

/// State that both directions of a tunnel share.
struct Shared {
    /// The exchange that carries the tunnel; `None` once the tunnel has ended.
    exchange: RefCell<Option<UpstreamExchange>>,
    /// The message for the reader if the tunnel failed.
    broken: Cell<Option<&'static str>>,
    /// The waker of the client's side, which reads; `None` while the client takes nothing.
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
    /// Opens the tunnel; `ready` are the bytes received after the head of the response.
    ///
    /// Must be called where tasks of the worker can be [spawned](h2o_exchange::Worker::spawn).
    pub(super) fn open(exchange: UpstreamExchange, ready: Bytes) -> Self {
        exchange.note_transfer();
        let worker = Rc::clone(&exchange.worker);
        let pipe = exchange.upload.pipe();
        let shared = Rc::new(Shared {
            exchange: RefCell::new(Some(exchange)),
            broken: Cell::new(None),
            reader: Cell::new(None),
        });
        let mover = UpstreamMover {
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

/// Task that moves bytes from the client to the backend, and ends an idle tunnel.
struct UpstreamMover {
    shared: Rc<Shared>,
    /// The bytes that the client sends.
    pipe: Option<Rc<BodyPipe>>,
    /// Whether the end of the client's direction was passed on to the backend.
    is_shut: bool,
}

impl Future for UpstreamMover {
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
            // The backend may still send data after the client's end (RFC 9113 §8.5); the tunnel ends when the backend ends its
            // direction.
            let shut = Pin::new(&mut exchange.connection.stream).poll_shutdown(context);
            this.is_shut = shut.is_ready();
        }
        if exchange.connection.timer.poll_fired(context).is_pending() {
            return Poll::Pending;
        }
        match (shared.reader.take(), &this.pipe) {
            // A client that takes nothing from the tunnel learns only from the pipe, into which its own bytes go, that the tunnel
            // has ended.
            (None, Some(pipe)) => pipe.give_up(Failure::IO_TIMEOUT),
            (reader, _) => {
                shared.reader.set(reader);
                shared.break_off(Failure::IO_TIMEOUT);
            }
        }
        Poll::Ready(())
    }
}
