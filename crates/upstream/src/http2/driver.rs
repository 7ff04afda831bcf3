//! The task of an HTTP/2 connection to a backend: it owns the socket, and ends with the connection.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use h2o_exchange::{Timer, Timers};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use super::engine::Http2;
use crate::multiplexed::{
    Activity, Connection as Multiplexed, Engine, State as MultiplexedState, StreamFailure,
    StreamSettings,
};

type Connection = Multiplexed<Http2>;
type State = MultiplexedState<Http2>;

/// Length in bytes of the space for one read.
const READ_SIZE: usize = 64 * 1024;
/// Limit of the reads per poll of the task.
const READS: usize = 8;
/// While more bytes of output than this wait for a backend that does not read, nothing is read from the backend.
const MAX_BACKLOG: usize = 256 * 1024;
/// Limit in bytes of the buffers that an idle connection keeps.
const KEPT_BUFFER: usize = 4 * 1024;
/// How long a closing connection may take to send its remaining output.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// A receive buffer that all connections share, so that idle connections need none.
pub(crate) type Scratch = Rc<Cell<Vec<u8>>>;

/// The task of an HTTP/2 connection.
pub(super) struct Driver<S> {
    connection: Rc<Connection>,
    stream: S,
    scratch: Scratch,
    /// Received bytes of an incomplete frame.
    input: Vec<u8>,
    needs_flush: bool,
    is_closing: bool,
    activity: Activity,
    timer: Timer,
}

/// Makes a connection, and the task that drives it.
pub(super) fn open<S>(
    settings: StreamSettings,
    backend: usize,
    stream: S,
    scratch: Scratch,
    timers: &Rc<Timers>,
) -> (Rc<Connection>, Driver<S>) {
    let clock = timers.clock();
    let now = clock.now();
    let engine = Http2::new(&settings, now);
    let connection = Rc::new(Connection::new(settings, backend, Rc::clone(clock), engine));
    let driver = Driver {
        connection: Rc::clone(&connection),
        stream,
        scratch,
        input: Vec::new(),
        needs_flush: false,
        is_closing: false,
        activity: Activity::new(now),
        timer: Timer::new(timers),
    };
    (connection, driver)
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Driver<S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let connection = Rc::clone(&this.connection);
        let state = &mut *connection.state.borrow_mut();
        // While the task runs, its own changes of the connection's state need not wake it.
        state.task = None;
        let now = state.clock.now();
        if !this.is_closing {
            this.drive(state, task, now);
            this.check_deadlines(state, task, now);
        }
        if this.is_closing && this.close(state, task, now).is_ready() {
            return Poll::Ready(());
        }
        state.task = Some(task.waker().clone());
        Poll::Pending
    }
}

/// Fails all requests when the task ends, even if it ends by a panic or with the runtime: no request may keep waiting for it.
impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        if let Ok(mut state) = self.connection.state.try_borrow_mut() {
            state.fail_all(StreamFailure::Io);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    /// Sends output and receives input as far as possible.
    fn drive(&mut self, state: &mut State, task: &mut Context<'_>, now: Instant) {
        state.check_starved();
        for _ in 0..READS {
            state.pump(task, now);
            if self.write(state, task, now).is_err() {
                // Writing failed, but the backend may have sent responses before it closed the connection, so they are read.
                while let Ok(true) = self.read(state, task, now) {}
                state.fail_all(StreamFailure::Io);
                self.begin_closing(now);
                return;
            }
            match self.read(state, task, now) {
                Ok(true) => {}
                Ok(false) if !state.engine.has_backlog() && state.engine.engine.has_sendable() => {}
                Ok(false) => {
                    self.shrink_buffers(state);
                    return;
                }
                Err(failure) => {
                    state.fail_all(failure);
                    self.begin_closing(now);
                    return;
                }
            }
        }
        task.waker().wake_by_ref();
    }

    /// Sends output as far as the socket takes it.
    fn write(
        &mut self,
        state: &mut State,
        task: &mut Context<'_>,
        now: Instant,
    ) -> std::io::Result<()> {
        let output = &mut state.engine;
        while output.backlog() > 0 {
            let rest = &output.out[output.written..];
            match Pin::new(&mut self.stream).poll_write(task, rest) {
                Poll::Pending => {
                    if output.written > output.out.len() / 2 {
                        output.drop_written();
                    }
                    return Ok(());
                }
                Poll::Ready(Ok(0)) => return Err(std::io::ErrorKind::WriteZero.into()),
                Poll::Ready(written) => output.written += written?,
            }
            self.activity.note(now);
            self.needs_flush = true;
        }
        output.drop_written();
        if self.needs_flush
            && let Poll::Ready(flushed) = Pin::new(&mut self.stream).poll_flush(task)
        {
            flushed?;
            self.needs_flush = false;
            state.on_written(now);
        }
        Ok(())
    }

    /// Reads once from the socket. Returns false if there is nothing to read, or no room for replies.
    ///
    /// # Errors
    /// The connection has ended.
    fn read(
        &mut self,
        state: &mut State,
        task: &mut Context<'_>,
        now: Instant,
    ) -> Result<bool, StreamFailure> {
        if state.engine.backlog() > MAX_BACKLOG {
            return Ok(false);
        }
        let mut buffer = self.scratch.take();
        buffer.clear();
        buffer.extend_from_slice(&self.input);
        buffer.reserve(READ_SIZE);
        let read = pin!(self.stream.read_buf(&mut buffer)).poll(task);
        let received = match read {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0) | Err(_)) => Err(StreamFailure::Io),
            Poll::Ready(Ok(_)) => {
                self.activity.note(now);
                let taken = state.receive(&buffer, now);
                self.input.clear();
                if let Ok(taken) = taken {
                    self.input.extend_from_slice(&buffer[taken..]);
                }
                taken.map(|_| true).map_err(StreamFailure::from)
            }
        };
        self.scratch.set(buffer);
        received
    }

    /// Shrinks buffers while the connection is idle.
    fn shrink_buffers(&mut self, state: &mut State) {
        if state.is_busy() || state.engine.has_backlog() {
            return;
        }
        if self.input.capacity() > KEPT_BUFFER && self.input.is_empty() {
            self.input = Vec::new();
        }
        if state.engine.out.capacity() > KEPT_BUFFER {
            state.engine.out = Vec::new();
        }
    }

    /// Fails streams that exceed their deadline, and closes the connection after its idle timeout.
    fn check_deadlines(&mut self, state: &mut State, task: &mut Context<'_>, now: Instant) {
        if self.is_closing {
            return;
        }
        let Some(next) = self.activity.check(state, now) else {
            self.begin_closing(now);
            return;
        };
        self.timer.set(next);
        // The result is ignored: the call only registers the waker. Even a timer that is due fires later, from the worker's event
        // loop.
        let _ = self.timer.poll_fired(task);
    }

    /// Begins to close the connection: the remaining output is sent within a time limit.
    fn begin_closing(&mut self, now: Instant) {
        self.is_closing = true;
        self.timer.set(now + CLOSE_LIMIT);
    }

    /// Sends the remaining output, then closes the connection.
    fn close(&mut self, state: &mut State, task: &mut Context<'_>, now: Instant) -> Poll<()> {
        if !state.is_over {
            state.fail_all(StreamFailure::Io);
        }
        if self.timer.poll_fired(task).is_ready() || self.write(state, task, now).is_err() {
            return Poll::Ready(());
        }
        if state.engine.has_backlog() || self.needs_flush {
            return Poll::Pending;
        }
        // The result does not matter, because the connection is closed in any case.
        let _ = ready!(Pin::new(&mut self.stream).poll_shutdown(task));
        Poll::Ready(())
    }
}
