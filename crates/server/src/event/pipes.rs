//! Pipes through which the kernel moves bytes from socket to socket.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use h2o_log::report;
use rustix::pipe::PipeFlags;

/// Bytes that a pipe is made to hold, where the kernel allows it.
const CAPACITY: usize = 256 * 1024;
/// And has to hold, to be worth it.
const LEAST: usize = 64 * 1024;

/// How many pipes the process has.
static OPEN: AtomicUsize = AtomicUsize::new(0);
/// It has been said that there are none to be had.
static FAILED: AtomicBool = AtomicBool::new(false);

/// The pipes of a worker.
#[derive(Default)]
pub(crate) struct Pipes {
    /// Those that are not in use.
    spare: RefCell<Vec<Pipe>>,
    /// `max-spare-pipes`
    most_spare: usize,
}

/// A pipe.
pub(crate) struct Pipe {
    pub(crate) read: OwnedFd,
    pub(crate) write: OwnedFd,
    /// Bytes it can hold.
    pub(crate) capacity: usize,
    /// Bytes in it.
    pub(crate) held: usize,
    _counted: Counted,
}

impl Pipes {
    /// Most pipes of the process at a time. They cost two descriptors and memory of the kernel each, of which users without
    /// privileges have 64 MiB; where many clients are slow, copying is not what limits.
    const MOST: usize = 200;

    /// None yet; `most_spare` may be kept unused.
    pub(crate) fn new(most_spare: usize) -> Rc<Self> {
        Rc::new(Self {
            most_spare,
            ..Self::default()
        })
    }

    /// The pipe in `slot`; if there is none, an empty one, unless there are too many.
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

    pub(crate) fn put(&self, pipe: Pipe) {
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
