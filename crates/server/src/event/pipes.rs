//! Pipes for `splice`: the kernel moves bytes from socket to socket.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use h2o_exchange::Shared;
use h2o_log::report;
use rustix::pipe::PipeFlags;

/// Capacity that the server asks the kernel for when it makes a pipe, in bytes.
const CAPACITY: usize = 256 * 1024;
/// Smallest useful capacity of a pipe, in bytes: with less, copying through user space is cheaper.
const LEAST: usize = 64 * 1024;

/// Number of open pipes in the process.
static OPEN: AtomicUsize = AtomicUsize::new(0);
/// Whether a failure to create a pipe was already logged.
static FAILED: AtomicBool = AtomicBool::new(false);

/// The pipes of a worker for `splice`.
pub(crate) struct Pipes {
    /// Pipes of the worker that are not in use.
    spare: RefCell<Vec<Pipe>>,
    /// The state that all workers share; the [`h2o_exchange::BufferLimits`] in it hold `max-spare-pipes`.
    shared: Arc<Shared>,
}

/// A pipe through which the kernel moves bytes between sockets.
pub(crate) struct Pipe {
    pub(crate) read: OwnedFd,
    pub(crate) write: OwnedFd,
    /// Capacity of the pipe in bytes.
    pub(crate) capacity: usize,
    /// Number of bytes in the pipe.
    pub(crate) held: usize,
    _counted: PipeCount,
}

impl Pipes {
    /// Largest number of pipes of the process. Each pipe costs two file descriptors and memory of the kernel, which grants an unprivileged
    /// user 64 MiB in pipes. Transfers without a pipe are copied through user space, which is fast enough while so many others wait for
    /// slow clients.
    const MOST: usize = 200;

    /// Makes the set of pipes of a worker, which is empty at first.
    pub(crate) fn new(shared: &Arc<Shared>) -> Rc<Self> {
        Rc::new(Self {
            spare: RefCell::default(),
            shared: Arc::clone(shared),
        })
    }

    /// Returns the pipe in `slot`; if the slot is empty, it gets a pipe first. Returns `None` if the process has too many pipes, or
    /// the kernel refuses another one.
    pub(crate) fn lend<'a>(&self, slot: &'a mut Option<Pipe>) -> Option<&'a mut Pipe> {
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
            // A pipe of less than the capacity [`LEAST`] is of no use.
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

    pub(crate) fn put(&self, pipe: Pipe) {
        let mut spare = self.spare.borrow_mut();
        if pipe.held == 0 {
            spare.push(pipe);
        }
        spare.truncate(self.shared.buffers.spare_pipes());
    }
}

impl Pipe {
    /// Makes a pipe. Returns `None` if the process has too many pipes.
    fn new() -> io::Result<Option<Self>> {
        let Some(counted) = PipeCount::new() else {
            return Ok(None);
        };
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // The kernel refuses to enlarge the pipe for a user whose pipes already hold too much; the pipe then keeps its default
        // capacity.
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

/// Counts one pipe in [`OPEN`] for as long as the pipe exists.
struct PipeCount;

impl PipeCount {
    fn new() -> Option<Self> {
        let counted = Self;
        (OPEN.fetch_add(1, Relaxed) < Pipes::MOST).then_some(counted)
    }
}

impl Drop for PipeCount {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_spare_pipes_are_kept_as_the_limit_says_now() {
        let shared = Arc::new(Shared::default());
        let pipes = Pipes::new(&shared);
        // `limit` is `max-spare-pipes`; `kept` is how many of three pipes the worker keeps for reuse when they are given back.
        for (limit, kept) in [(0, 0), (2, 2), (5, 3), (1, 1)] {
            shared.buffers.set(usize::MAX, limit);
            let lent: Vec<Pipe> = std::iter::from_fn(|| pipes.take()).take(3).collect();
            assert_eq!(lent.len(), 3);
            lent.into_iter().for_each(|pipe| pipes.put(pipe));
            assert_eq!(
                pipes.spare.borrow().len(),
                kept,
                "as many spare pipes are kept as the limit {limit} and three lent pipes allow"
            );
        }
    }

    #[test]
    fn a_pipe_that_holds_bytes_is_not_kept() {
        let shared = Arc::new(Shared::default());
        shared.buffers.set(usize::MAX, 5);
        let pipes = Pipes::new(&shared);
        let mut slot = None;
        let pipe = pipes
            .lend(&mut slot)
            .expect("fewer pipes are open than the limit");
        pipe.held = 1;
        pipes.put(slot.expect("the slot has the pipe"));
        assert!(pipes.spare.borrow().is_empty());
    }
}
