//! The task of an HTTP/2 connection: owns the socket, and ends with the connection.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use h2o_exchange::{Timer, Timers};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use super::Http2Settings;
use super::connection::{Connection, State};
use super::stream::{Stream, StreamFailure};

/// Bytes per read.
const READ_SIZE: usize = 64 * 1024;
/// Reads per turn of the task.
const READS: usize = 8;
/// While more bytes than this wait for a backend that does not read, nothing is read from it.
const MAX_BACKLOG: usize = 256 * 1024;
/// Idle connections keep no larger buffer than this.
const KEPT_BUFFER: usize = 4 * 1024;
/// How long a closing connection may take to send its remaining output.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// A receive buffer that all connections share, so that idle ones need none.
pub(super) type Scratch = Rc<Cell<Vec<u8>>>;

/// The task of an HTTP/2 connection.
pub(super) struct Driver<S> {
    connection: Rc<Connection>,
    stream: S,
    scratch: Scratch,
    /// Received bytes of an incomplete frame.
    input: Vec<u8>,
    needs_flush: bool,
    is_closing: bool,
    /// When bytes were last received or sent.
    last_io: Instant,
    /// When the last request ended.
    idle_since: Option<Instant>,
    timer: Timer,
}

/// A new connection, and its task.
pub(super) fn open<S>(
    settings: Http2Settings,
    backend: usize,
    stream: S,
    scratch: Scratch,
    timers: &Rc<Timers>,
) -> (Rc<Connection>, Driver<S>) {
    let clock = timers.clock();
    let last_io = clock.now();
    let connection = Rc::new(Connection::new(settings, backend, Rc::clone(clock)));
    let driver = Driver {
        connection: Rc::clone(&connection),
        stream,
        scratch,
        input: Vec::new(),
        needs_flush: false,
        is_closing: false,
        last_io,
        idle_since: None,
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
        // Changes made by this task need not wake it.
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

/// However the task ends, even by a panic or with the runtime, no request may keep waiting for it.
impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        if let Ok(mut state) = self.connection.state.try_borrow_mut() {
            state.fail_all(|_| StreamFailure::Io);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    /// Sends and receives as much as possible.
    fn drive(&mut self, state: &mut State, task: &mut Context<'_>, now: Instant) {
        state.check_starved();
        for _ in 0..READS {
            state.pump(task, now);
            if self.write(state, task, now).is_err() {
                // The backend may have sent responses before it closed.
                while let Ok(true) = self.read(state, task, now) {}
                state.fail_all(|_| StreamFailure::Io);
                self.begin_closing(now);
                return;
            }
            match self.read(state, task, now) {
                Ok(true) => {}
                Ok(false) if state.backlog() == 0 && state.engine.has_sendable() => {}
                Ok(false) => {
                    self.shrink_buffers(state);
                    return;
                }
                Err(failure) => {
                    state.fail_all(|_| failure);
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
        while state.backlog() > 0 {
            let rest = &state.out[state.written..];
            match Pin::new(&mut self.stream).poll_write(task, rest) {
                Poll::Pending => {
                    if state.written > state.out.len() / 2 {
                        state.out.drain(..state.written);
                        state.written = 0;
                    }
                    return Ok(());
                }
                Poll::Ready(Ok(0)) => return Err(std::io::ErrorKind::WriteZero.into()),
                Poll::Ready(written) => state.written += written?,
            }
            self.last_io = now;
            self.needs_flush = true;
        }
        state.out.clear();
        state.written = 0;
        if self.needs_flush
            && let Poll::Ready(flushed) = Pin::new(&mut self.stream).poll_flush(task)
        {
            flushed?;
            self.needs_flush = false;
            state.on_written(now);
        }
        Ok(())
    }

    /// Reads once. Returns false if there is nothing to read, or no room for replies.
    ///
    /// # Errors
    /// The connection has ended.
    fn read(
        &mut self,
        state: &mut State,
        task: &mut Context<'_>,
        now: Instant,
    ) -> Result<bool, StreamFailure> {
        if state.backlog() > MAX_BACKLOG {
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
                self.last_io = now;
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

    /// Shrinks buffers while the connection waits.
    fn shrink_buffers(&mut self, state: &mut State) {
        if state.is_busy() || state.backlog() > 0 {
            return;
        }
        if self.input.capacity() > KEPT_BUFFER && self.input.is_empty() {
            self.input = Vec::new();
        }
        if state.out.capacity() > KEPT_BUFFER {
            state.out = Vec::new();
        }
    }

    /// Fails streams that exceed their deadline, and closes the connection after its idle timeout.
    fn check_deadlines(&mut self, state: &mut State, task: &mut Context<'_>, now: Instant) {
        if self.is_closing {
            return;
        }
        if state.engine.is_over() {
            // The backend accepts no more requests (GOAWAY), and none is in progress.
            self.begin_closing(now);
            return;
        }
        if state.is_busy() {
            self.idle_since = None;
        } else {
            self.idle_since.get_or_insert(now);
        }
        if self.next_deadline(state) <= now {
            self.on_timer(state, now);
        }
        if !self.is_closing {
            self.timer.set(self.next_deadline(state));
            // Registers the waker; a due timer fires in a later turn.
            let _ = self.timer.poll_fired(task);
        }
    }

    /// Sends the remaining output within a time limit, then closes.
    fn begin_closing(&mut self, now: Instant) {
        self.is_closing = true;
        self.timer.set(now + CLOSE_LIMIT);
    }

    /// When the next deadline may expire.
    fn next_deadline(&self, state: &State) -> Instant {
        if let Some(since) = self.idle_since {
            return since + idle_limit(state);
        }
        let io = self.last_io + state.settings.io_timeout;
        state.earliest.map_or(io, |earliest| earliest.min(io))
    }

    fn on_timer(&mut self, state: &mut State, now: Instant) {
        if let Some(since) = self.idle_since {
            if since + idle_limit(state) <= now {
                state.engine.go_away(&mut state.out);
                self.begin_closing(now);
            }
            return;
        }
        state.expire(now);
        let mut streams = state.streams.iter().flatten();
        let is_up_to_server = state.backlog() > 0
            || !state.waiting.is_empty()
            || streams.any(Stream::waits_for_server);
        self.last_io = if is_up_to_server {
            self.last_io.max(state.moved_at)
        } else {
            now
        };
        if self.last_io + state.settings.io_timeout <= now {
            // H2O compatibility: the texts are H2O's.
            state.fail_all(|stream| {
                if stream.is_headless() {
                    StreamFailure::FirstByteTimeout
                } else {
                    StreamFailure::IoTimeout
                }
            });
            state.engine.go_away(&mut state.out);
            self.begin_closing(now);
        }
    }

    /// Sends the remaining output, then closes.
    fn close(&mut self, state: &mut State, task: &mut Context<'_>, now: Instant) -> Poll<()> {
        if !state.is_over {
            state.fail_all(|_| StreamFailure::Io);
        }
        if self.timer.poll_fired(task).is_ready() || self.write(state, task, now).is_err() {
            return Poll::Ready(());
        }
        if state.backlog() > 0 || self.needs_flush {
            return Poll::Pending;
        }
        // The result does not matter any more.
        let _ = ready!(Pin::new(&mut self.stream).poll_shutdown(task));
        Poll::Ready(())
    }
}

/// Idle timeout of the connection.
fn idle_limit(state: &State) -> Duration {
    if state.has_begun {
        state.settings.keepalive
    } else {
        // No request was begun yet.
        state.settings.io_timeout
    }
}
