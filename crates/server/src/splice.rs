//! Content that goes from a backend's socket to a client's by way of a pipe, within the kernel (`splice(2)`).

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::{Context as TaskContext, Poll};

use h2o_exchange::BodySource;
use h2o_http1::ServerConnection;
use h2o_log::report;
use rustix::pipe::PipeFlags;

use crate::flow::Turn;
use crate::sending::{Pumped, Step, send_stream};

/// Octets that a pipe is made to hold, where the kernel allows it.
const CAPACITY: usize = 256 * 1024;
/// And has to hold, to be worth it.
const LEAST: usize = 64 * 1024;

/// A stream for a connection that takes the octets as they are.
pub(crate) struct Splicing {
    source: Box<dyn BodySource>,
    /// There from the first octets that were spliced.
    pipe: Option<Pipe>,
    pipes: Rc<Pipes>,
    /// There was no pipe to be had: the rest is copied.
    copies: bool,
}

impl Splicing {
    pub(crate) const fn new(source: Box<dyn BodySource>, pipes: Rc<Pipes>) -> Self {
        Self {
            source,
            pipe: None,
            pipes,
            copies: false,
        }
    }

    /// The socket takes nothing for now.
    pub(crate) fn poll_ahead(&mut self, task: &mut TaskContext<'_>) {
        self.source.poll_ahead(task);
    }

    /// Octets of memory held for content that was not sent.
    pub(crate) fn retained(&self) -> usize {
        self.source.retained()
    }

    /// Sends the next piece: spliced where the source can do that.
    pub(crate) fn send(
        &mut self,
        turn: &mut Turn<'_>,
        engine: &mut ServerConnection,
        task: &mut TaskContext<'_>,
        written: &mut u64,
    ) -> Step {
        if let Some(pipe) = self.pipe.as_mut().filter(|pipe| pipe.held > 0) {
            let Some(sent) = turn
                .connection
                .io
                .send_piped(pipe.read.as_fd(), pipe.held)?
            else {
                return Ok(Some(Pumped::Blocked));
            };
            pipe.held -= sent;
            // The length is known, so there are no chunks: this only counts.
            let counted = engine.begin_data(sent, &mut Vec::new());
            debug_assert_eq!(counted, sent, "a backend's content has its length");
            *written += sent as u64;
            return Ok(None);
        }
        if !self.copies
            && let Some(source) = self.source.splice()
        {
            let Some(pipe) = self.pipes.lend(&mut self.pipe) else {
                self.copies = true;
                return Ok(None);
            };
            return match source.poll_splice(task, pipe.write.as_fd(), pipe.capacity) {
                Poll::Pending => Ok(Some(Pumped::Waiting)),
                Poll::Ready(moved) => {
                    pipe.held = moved?;
                    Ok(None)
                }
            };
        }
        send_stream(turn, engine, self.source.as_mut(), task, written)
    }
}

impl Drop for Splicing {
    fn drop(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            self.pipes.put(pipe);
        }
    }
}

/// How many pipes the process has.
static OPEN: AtomicUsize = AtomicUsize::new(0);
/// It has been said that there are none to be had.
static FAILED: AtomicBool = AtomicBool::new(false);

/// The pipes of a worker.
#[derive(Default)]
pub(crate) struct Pipes {
    /// Those that nobody uses.
    spare: RefCell<Vec<Pipe>>,
    /// `max-spare-pipes`
    most_spare: usize,
}

/// A pipe.
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// Octets it can hold.
    capacity: usize,
    /// Octets in it.
    held: usize,
    _counted: Counted,
}

impl Pipes {
    /// Most pipes of the process at a time. They cost two descriptors and memory of the kernel each, of which users without
    /// privileges have 64 MiB; where many clients are slow, copying is not what limits.
    const MOST: usize = 200;

    /// None yet; `most_spare` may be kept when nobody uses them.
    pub(crate) fn new(most_spare: usize) -> Rc<Self> {
        Rc::new(Self {
            most_spare,
            ..Self::default()
        })
    }

    /// The pipe in `slot`; if there is none, an empty one, unless there are too many.
    fn lend<'a>(&self, slot: &'a mut Option<Pipe>) -> Option<&'a mut Pipe> {
        if slot.is_none() {
            *slot = self.take();
        }
        slot.as_mut()
    }

    fn take(&self) -> Option<Pipe> {
        if let Some(pipe) = self.spare.borrow_mut().pop() {
            return Some(pipe);
        }
        match Pipe::new() {
            // A small one costs more than copying.
            Ok(pipe) => pipe.filter(|pipe| pipe.capacity >= LEAST),
            Err(error) => {
                if !FAILED.swap(true, Relaxed) {
                    report!(
                        warning,
                        "failed to allocate zero-copy pipe; falling back to read/write: {error}"
                    );
                }
                None
            }
        }
    }

    fn put(&self, pipe: Pipe) {
        let mut spare = self.spare.borrow_mut();
        if pipe.held == 0 && spare.len() < self.most_spare {
            spare.push(pipe);
        }
    }
}

impl Pipe {
    /// A new one, unless there are too many.
    fn new() -> io::Result<Option<Self>> {
        let Some(counted) = Counted::new() else {
            return Ok(None);
        };
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Beyond what a user may have in pipes this is refused, and what there is has to do.
        let capacity = rustix::pipe::fcntl_setpipe_size(&write, CAPACITY)
            .or_else(|_| rustix::pipe::fcntl_getpipe_size(&write))?;
        Ok(Some(Self {
            read,
            write,
            capacity,
            held: 0,
            _counted: counted,
        }))
    }
}

/// A pipe in [`OPEN`].
struct Counted;

impl Counted {
    fn new() -> Option<Self> {
        let counted = Self;
        (OPEN.fetch_add(1, Relaxed) < Pipes::MOST).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Relaxed);
    }
}
