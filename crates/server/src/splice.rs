//! Content that goes from a backend's socket to a client's by way of a pipe, within the kernel (`splice(2)`).

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};

use h2o_exchange::{BodySource, report};
use h2o_http1::ServerConnection;
use rustix::pipe::PipeFlags;

use crate::context::Context;
use crate::io::Io;
use crate::sending::{Pumped, Step, send_stream};

/// Octets that a pipe is made to hold, where the kernel allows it.
const CAPACITY: usize = 256 * 1024;

/// A stream for a connection that takes the octets as they are.
pub(crate) struct Splicing {
    source: Box<dyn BodySource>,
    /// There from the first octets that were spliced.
    pipe: Option<Pipe>,
}

impl Splicing {
    pub(crate) const fn new(source: Box<dyn BodySource>) -> Self {
        Self { source, pipe: None }
    }

    /// Sends the next piece: spliced where the source can do that.
    pub(crate) fn send(
        &mut self,
        context: &Context,
        io: &mut Io,
        engine: &mut ServerConnection,
        task: &mut TaskContext<'_>,
        written: &mut u64,
    ) -> Step {
        if let Some(pipe) = self.pipe.as_mut().filter(|pipe| pipe.held > 0) {
            let Some(sent) = io.send_piped(pipe.read.as_fd(), pipe.held)? else {
                return Ok(Some(Pumped::Blocked));
            };
            pipe.held -= sent;
            // The length is known, so there are no chunks: this only counts.
            let counted = engine.begin_data(sent, &mut Vec::new());
            debug_assert_eq!(counted, sent, "a backend's content has its length");
            *written += sent as u64;
            return Ok(None);
        }
        if let Some(source) = self.source.splice()
            && let Some(pipe) = Pipe::ensure(&mut self.pipe, &context.pipes)
        {
            return match source.poll_splice(task, pipe.write.as_fd(), pipe.capacity) {
                Poll::Pending => Ok(Some(Pumped::Waiting)),
                Poll::Ready(moved) => {
                    pipe.held = moved?;
                    Ok(None)
                }
            };
        }
        send_stream(context, io, engine, self.source.as_mut(), task, written)
    }
}

/// How many pipes a worker has.
#[derive(Default)]
pub(crate) struct Pipes(Rc<Cell<usize>>);

impl Pipes {
    /// Most pipes at a time. They cost two descriptors and memory of the kernel each; where many clients are slow, copying is
    /// not what limits.
    const MOST: usize = 256;
}

/// A pipe, counted.
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// Octets it can hold.
    capacity: usize,
    /// Octets in it.
    held: usize,
    open: Rc<Cell<usize>>,
}

impl Pipe {
    /// The pipe that is there, or else a new one, if there may be one more.
    fn ensure<'a>(slot: &'a mut Option<Self>, pipes: &Pipes) -> Option<&'a mut Self> {
        if slot.is_none() && pipes.0.get() < Pipes::MOST {
            match Self::new(pipes) {
                Ok(pipe) => *slot = Some(pipe),
                Err(error) => report!(
                    "[WARN] failed to allocate zero-copy pipe; falling back to read/write: {error}"
                ),
            }
        }
        slot.as_mut()
    }

    fn new(pipes: &Pipes) -> io::Result<Self> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Beyond what a user may have in pipes this is refused, and what there is has to do.
        let capacity = rustix::pipe::fcntl_setpipe_size(&write, CAPACITY)
            .or_else(|_| rustix::pipe::fcntl_getpipe_size(&write))?;
        pipes.0.set(pipes.0.get() + 1);
        Ok(Self {
            read,
            write,
            capacity,
            held: 0,
            open: Rc::clone(&pipes.0),
        })
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.open.set(self.open.get() - 1);
    }
}
