//! Content that is taken from a backend at the backend's speed and kept for a client that is slower.
//!
//! As long as the client takes what comes, content passes through without being kept. Once the client takes nothing for the
//! moment, the connection that pulls the content says so ([`BodySource::poll_ahead`]), and what the backend has is taken
//! * into memory, if what is left fits in there or its length is not known, or the client has been found to be slow;
//! * from memory into a temporary file, if the client has been found to be slow and memory is full.
//!
//! Where neither has room, the backend waits.

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

/// Bytes of a response that are kept in memory at most.
pub(crate) const MEMORY: usize = 256 * 1024;
/// Bytes in memory that are written to the file once there is one.
const WRITE: usize = 128 * 1024;
/// Bytes that are written if no more come.
const WORTH_WRITING: usize = 16 * 1024;
/// Bytes taken at once.
const PIECE: usize = 64 * 1024;
/// Pieces taken before others get their turn.
const TURN: usize = 16;
/// A client that is ready for less than [`FAST`] bytes in this time, while there was more for it, is slow.
const PATIENCE: Duration = Duration::from_millis(100);
/// Bytes: 40 MiB per second. Who takes as much does not hold a backend for long.
const FAST: u64 = 4 << 20;

/// Where content comes from.
pub(crate) trait Origin: BodySource {
    /// Bytes that can still be taken; `None` if that is not known.
    fn left(&self) -> Option<u64>;

    /// Bytes that it may come to hold in memory before they are taken.
    fn keeps(&self) -> usize {
        0
    }

    /// The caller is woken when more has come.
    fn watch(&mut self, _: &Context<'_>) {}
}

/// How content is buffered.
pub(crate) struct Buffering {
    worker: Rc<Worker>,
    /// Bytes of the file; 0: there is none.
    max_file: u64,
}

impl Buffering {
    /// As the settings of an upstream say; `None` if content is not buffered.
    pub(crate) fn of(worker: &Rc<Worker>, settings: &UpstreamSettings) -> Option<Self> {
        settings.max_buffer_size.is_none().then(|| Self {
            worker: Rc::clone(worker),
            max_file: settings.max_temp_file_size,
        })
    }
}

/// The content of a response, buffered for a slow client if that is wanted.
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

/// The content of a response on its way to a client that may be slow.
struct ReadAhead<S> {
    /// Let go of at its end, so that its connection can be of use to others.
    origin: Option<S>,
    buffering: Buffering,
    /// There once the client has been slower than the backend.
    backlog: Option<Box<Backlog>>,
}

/// What has been taken ahead of the client.
#[derive(Default)]
struct Backlog {
    spool: Spool,
    /// What follows what is kept, if the origin has ended.
    end: Option<Result<(), BodyError>>,
    trailers: Trailers,
    pace: Option<Pace>,
    is_counted: bool,
}

/// How fast the client takes content.
enum Pace {
    /// Bytes taken since the time limit was set.
    Measured { taken: u64, limit: Timer },
    /// The client was found to be slow.
    Slow,
}

impl Pace {
    /// The measurement begins now.
    fn measured(worker: &Rc<Worker>) -> Self {
        let limit = Timer::new(&worker.timers);
        limit.set_after(PATIENCE);
        Self::Measured { taken: 0, limit }
    }
}

impl Backlog {
    /// Whether the client has been found to be slow. If that is still open, the caller is woken when there is more to say.
    fn is_slow(&mut self, context: &Context<'_>, worker: &Rc<Worker>) -> bool {
        let pace = (self.pace).get_or_insert_with(|| Pace::measured(worker));
        let Pace::Measured { taken, limit } = pace else {
            return true;
        };
        if limit.poll_fired(context).is_pending() {
            return false;
        }
        if *taken < FAST {
            self.pace = Some(Pace::Slow);
            return true;
        }
        *taken = 0;
        limit.set_after(PATIENCE);
        limit.poll_fired(context).is_ready()
    }

    /// The client has taken content.
    fn note_taken(&mut self, bytes: usize) {
        match &mut self.pace {
            Some(Pace::Measured { taken, .. }) => *taken += bytes as u64,
            // It has caught up.
            Some(Pace::Slow) if self.spool.is_empty() => self.pace = None,
            Some(Pace::Slow) | None => {}
        }
    }

    fn spill(&mut self, buffering: &Buffering) -> bool {
        let files = &buffering.worker.shared.temp_files;
        self.spool.spill(files, buffering.max_file)
    }

    /// Nothing more comes. What is left in memory goes to the file, if there is one.
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

    /// Bytes that may be taken from `origin` now. If there are none, the caller is woken when there may be.
    fn room(
        &mut self,
        context: &mut Context<'_>,
        origin: &mut impl Origin,
        buffering: &Buffering,
    ) -> Result<usize, BodyError> {
        loop {
            let is_written = self.spool.poll_spilled(context)?.is_ready();
            let room = MEMORY.saturating_sub(self.spool.memory() + origin.keeps());
            let fits = origin.left().is_none_or(|left| left <= room as u64);
            let has_file = self.spool.has_file();
            if room > 0 && fits && !has_file {
                return Ok(room);
            }
            if !self.is_slow(context, &buffering.worker) {
                origin.watch(context);
                return Ok(0);
            }
            let is_full = room == 0 || has_file && self.spool.waiting() >= WRITE;
            if is_full && is_written && self.spill(buffering) {
                continue;
            }
            if room == 0 {
                // It may need less memory once all has come.
                origin.watch(context);
            }
            return Ok(room);
        }
    }
}

impl<S: Origin> ReadAhead<S> {
    /// Takes the next piece ahead of the client. Ready when another one may follow.
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
        let end = match ready!(origin.poll_next(context, room.min(PIECE))) {
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

    fn poll_ahead(&mut self, context: &mut Context<'_>) {
        for _ in 0..TURN {
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
