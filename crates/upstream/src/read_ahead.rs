//! Buffers a response for a client that is slower than the backend, so that the backend is done sooner.
//!
//! While the client takes everything, the body passes through unbuffered. When the client takes nothing for a moment,
//! the connection calls [`BodySource::poll_ahead`], which reads from the backend
//! * into memory, if the rest of the body fits or its length is unknown, or if the client has proved slow;
//! * from memory into a temporary file, if the client has proved slow and memory is full.
//!
//! If both are full, the backend waits.

use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2o_exchange::{
    Body, BodyError, BodySource, Counter, SpliceSource, Spool, Timer, Trailers, Worker,
};

use crate::UpstreamSettings;
use crate::failure::broken_off;

/// Limit in bytes of the part of a response that is kept in memory.
pub(crate) const MAX_MEMORY: usize = 256 * 1024;
/// Once the temporary file is open, memory is written to it as soon as it has this number of bytes.
const WRITE_SIZE: usize = 128 * 1024;
/// At the end of the response, fewer bytes than this stay in memory, although a temporary file is open.
const WORTH_WRITING: usize = 16 * 1024;
/// Limit in bytes of one read.
const MAX_READ: usize = 64 * 1024;
/// Limit of the reads per poll of the task.
const READS_PER_TURN: usize = 16;
/// A client is slow if it takes less than [`FAST`] bytes in this time while more was available.
const MEASURING_TIME: Duration = Duration::from_millis(100);
/// Number of bytes that a fast client takes in [`MEASURING_TIME`]: 40 MiB per second. Such a client does not occupy a backend
/// for long.
const FAST: u64 = 4 << 20;

/// The body of a response that can be read ahead of the client.
pub(crate) trait Origin: BodySource {
    /// Number of bytes of the body still to come; `None` if unknown.
    fn remaining(&self) -> Option<u64>;

    /// Limit in bytes of the part of the body that the origin itself may hold in memory, such as in the receive window of its
    /// connection.
    fn max_held(&self) -> usize {
        0
    }

    /// Wakes the caller when more data has arrived.
    fn watch(&mut self, _: &Context<'_>) {}
}

/// The settings for the buffering of a response.
pub(crate) struct Buffering {
    worker: Rc<Worker>,
    /// Limit in bytes of the temporary file; 0 for no file.
    max_file: u64,
}

impl Buffering {
    /// The settings for the buffering of responses, from those of an upstream; `None` if responses are not buffered.
    pub(crate) fn of(worker: &Rc<Worker>, settings: &UpstreamSettings) -> Option<Self> {
        settings.max_buffer_size.is_none().then(|| Self {
            worker: Rc::clone(worker),
            max_file: settings.max_temp_file_size,
        })
    }
}

/// Makes the body of a response, which is buffered for a slow client if `buffering` is set.
pub(crate) fn body(origin: impl Origin + 'static, buffering: Option<Buffering>) -> Body {
    match buffering {
        Some(buffering) => Body::Stream(Box::new(ReadAhead {
            origin: Some(origin),
            buffering,
            backlog: None,
        })),
        None => Body::Stream(Box::new(origin)),
    }
}

/// The body of a response for a client that may be slow.
struct ReadAhead<S> {
    /// The origin of the body. `None` after its end, so that its connection is free for other requests.
    origin: Option<S>,
    buffering: Buffering,
    /// What was read ahead of the client; set once the client has been slower than the backend.
    backlog: Option<Box<Backlog>>,
}

/// Data read ahead of the client.
#[derive(Default)]
struct Backlog {
    spool: Spool,
    /// How the origin has ended, which the client is told after the buffered data.
    end: Option<Result<(), BodyError>>,
    trailers: Trailers,
    pace: Option<ClientPace>,
    is_counted: bool,
}

/// How fast the client takes data.
enum ClientPace {
    /// The speed is being measured; `taken` is the number of bytes that the client has taken since the timer was set.
    Measured { taken: u64, limit: Timer },
    /// The client is slow.
    Slow,
}

impl ClientPace {
    /// Starts to measure the client's speed.
    fn measured(worker: &Rc<Worker>) -> Self {
        let limit = Timer::new(&worker.timers);
        limit.set_after(MEASURING_TIME);
        Self::Measured { taken: 0, limit }
    }
}

impl Backlog {
    /// Whether the client has proved slow. While that is undecided, the caller is woken when the measurement ends.
    fn is_slow(&mut self, context: &Context<'_>, worker: &Rc<Worker>) -> bool {
        let pace = (self.pace).get_or_insert_with(|| ClientPace::measured(worker));
        let ClientPace::Measured { taken, limit } = pace else {
            return true;
        };
        if limit.poll_fired(context).is_pending() {
            return false;
        }
        if *taken < FAST {
            self.pace = Some(ClientPace::Slow);
            return true;
        }
        *taken = 0;
        limit.set_after(MEASURING_TIME);
        limit.poll_fired(context).is_ready()
    }

    /// Records that the client has taken data.
    fn note_taken(&mut self, bytes: usize) {
        match &mut self.pace {
            Some(ClientPace::Measured { taken, .. }) => *taken += bytes as u64,
            // The client has taken everything that was buffered, so it is measured anew.
            Some(ClientPace::Slow) if self.spool.is_empty() => self.pace = None,
            Some(ClientPace::Slow) | None => {}
        }
    }

    fn spill(&mut self, buffering: &Buffering) -> bool {
        let files = &buffering.worker.shared.temp_files;
        self.spool.spill(files, buffering.max_file)
    }

    /// Handles the buffer after the end of the origin: writes the bytes in memory to the temporary file, if one is open.
    fn poll_last(&mut self, context: &mut Context<'_>, buffering: &Buffering) -> Poll<()> {
        let mut result = ready!(self.spool.poll_spilled(context));
        let is_worth_it = self.spool.has_file() && self.spool.waiting() >= WORTH_WRITING;
        if result.is_ok() && is_worth_it && self.spill(buffering) {
            result = ready!(self.spool.poll_spilled(context));
        }
        if let Err(error) = result {
            self.end = Some(Err(error));
        }
        Poll::Pending
    }

    /// Number of bytes that may be read from `origin` now. If the number is 0, the caller is woken when there may be room.
    fn room(
        &mut self,
        context: &mut Context<'_>,
        origin: &mut impl Origin,
        buffering: &Buffering,
    ) -> Result<usize, BodyError> {
        loop {
            let is_written = self.spool.poll_spilled(context)?.is_ready();
            let room = MAX_MEMORY.saturating_sub(self.spool.memory() + origin.max_held());
            let fits = origin.remaining().is_none_or(|left| left <= room as u64);
            let has_file = self.spool.has_file();
            if room > 0 && fits && !has_file {
                return Ok(room);
            }
            if !self.is_slow(context, &buffering.worker) {
                origin.watch(context);
                return Ok(0);
            }
            let is_full = room == 0 || has_file && self.spool.waiting() >= WRITE_SIZE;
            if is_full && is_written && self.spill(buffering) {
                continue;
            }
            if room == 0 {
                // There may be room once the rest of the response has arrived: then the origin holds less memory for bytes still to
                // come.
                origin.watch(context);
            }
            return Ok(room);
        }
    }
}

impl<S: Origin> ReadAhead<S> {
    /// Reads the next piece ahead of the client. Ready if another piece may follow.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let backlog = self.backlog.get_or_insert_default();
        let Some(origin) = &mut self.origin else {
            return backlog.poll_last(context, &self.buffering);
        };
        let room = match backlog.room(context, origin, &self.buffering) {
            Ok(0) => return Poll::Pending,
            Ok(room) => room,
            Err(error) => {
                backlog.end = Some(Err(error));
                self.origin = None;
                return Poll::Pending;
            }
        };
        let end = match ready!(origin.poll_next(context, room.min(MAX_READ))) {
            Some(Ok(piece)) => {
                if !std::mem::replace(&mut backlog.is_counted, true) {
                    self.buffering
                        .worker
                        .counters
                        .count(Counter::ResponsesBuffered);
                }
                backlog.spool.push(piece);
                return Poll::Ready(());
            }
            Some(Err(error)) => Err(error),
            None => Ok(()),
        };
        backlog.trailers = origin.trailers();
        backlog.end = Some(end);
        self.origin = None;
        Poll::Ready(())
    }
}

impl<S: Origin> BodySource for ReadAhead<S> {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Some(backlog) = &mut self.backlog {
            if let Some(piece) = ready!(backlog.spool.poll_next(context, max)) {
                if let Ok(piece) = &piece {
                    backlog.note_taken(piece.len());
                }
                return Poll::Ready(Some(piece));
            }
            if let Some(end) = backlog.end.take() {
                return Poll::Ready(end.err().map(Err));
            }
        }
        let Some(origin) = &mut self.origin else {
            return Poll::Ready(None);
        };
        let next = origin.poll_next(context, max);
        if let (Some(backlog), Poll::Ready(Some(Ok(piece)))) = (&mut self.backlog, &next) {
            backlog.note_taken(piece.len());
        }
        next
    }

    fn trailers(&mut self) -> Trailers {
        match (&mut self.origin, &mut self.backlog) {
            (Some(origin), _) => origin.trailers(),
            (None, Some(backlog)) => std::mem::take(&mut backlog.trailers),
            (None, None) => Trailers::None,
        }
    }

    fn is_complete(&self) -> bool {
        let is_empty = |backlog: &Backlog| backlog.spool.is_empty() && backlog.end.is_none();
        self.backlog.as_deref().is_none_or(is_empty)
            && self.origin.as_ref().is_some_and(BodySource::is_complete)
    }

    fn poll_ahead(&mut self, context: &mut Context<'_>) {
        for _ in 0..READS_PER_TURN {
            if self.poll_piece(context).is_pending() {
                return;
            }
        }
        context.waker().wake_by_ref();
    }

    fn retained(&self) -> usize {
        let origin = self.origin.as_ref().map_or(0, BodySource::retained);
        let backlog = self
            .backlog
            .as_ref()
            .map_or(0, |backlog| backlog.spool.memory());
        origin + backlog
    }

    fn splice(&mut self) -> Option<&mut dyn SpliceSource> {
        let has_backlog = |backlog: &Backlog| !backlog.spool.is_empty() || backlog.end.is_some();
        if self.backlog.as_deref().is_some_and(has_backlog) {
            return None;
        }
        self.origin.as_mut()?.splice()?;
        Some(self)
    }
}

impl<S: Origin> SpliceSource for ReadAhead<S> {
    fn poll_splice(
        &mut self,
        context: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        max: usize,
    ) -> Poll<Result<usize, BodyError>> {
        let Some(source) = self.origin.as_mut().and_then(BodySource::splice) else {
            return Poll::Ready(Err(broken_off(crate::Failure::IO)));
        };
        let moved = ready!(source.poll_splice(context, pipe, max))?;
        if let Some(backlog) = &mut self.backlog {
            backlog.note_taken(moved);
        }
        Poll::Ready(Ok(moved))
    }
}

#[cfg(test)]
mod tests;
