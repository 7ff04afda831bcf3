//! Idle connections, kept for the next requests on their worker.
//!
//! H2O has one pool for all threads. Here each worker has its own, so that no request waits for another thread; what other
//! workers have idle is not seen. Within a worker it is as there: the connection that was idle for longest is taken first,
//! whatever its backend, and the balancer is asked for new ones only.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use h2o_http::RequestHead;
use h2o_http1::ClientSettings;
use h2o_log::report;

use crate::Upstream;
use crate::http1::Connection;
use crate::http2;
use crate::protocol_choice::{Http1Load, ProtocolChoice};
use crate::stream::Idle;

/// Idle connections are looked at no more often than that (H2O compatibility).
const SWEEP: Duration = Duration::from_secs(1);
/// They are looked at no more seldom than that.
const LONGEST_SWEEP: Duration = Duration::from_secs(60);

/// What a worker keeps for its upstreams.
#[derive(Default)]
pub(crate) struct Pools {
    /// By the number of the upstream.
    locals: RefCell<Vec<Option<Rc<Local>>>>,
    scratch: Rc<Scratch>,
}

/// What a worker keeps for one upstream.
pub(crate) struct Local {
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) scratch: Rc<Scratch>,
    idle: RefCell<VecDeque<Kept>>,
    /// Somebody looks after those that nobody takes.
    is_swept: Cell<bool>,
    /// HTTP/1 connections there are, idle ones included.
    http1: Rc<Cell<usize>>,
    pub(crate) http2: http2::Connections,
    pub(crate) choice: ProtocolChoice,
    /// The last backend that was offered HTTP/2 chose HTTP/1.
    pub(crate) declines_http2: Cell<bool>,
    /// Requests that the budget for repeating them has not heard of.
    pub(crate) unpaid: Cell<u32>,
}

/// A connection of HTTP/1 for as long as there is one.
pub(crate) struct Counted(Rc<Cell<usize>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

struct Kept {
    connection: Box<Connection>,
    since: Instant,
}

/// Which idle connections a request can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Whatever their backend.
    Any,
    /// Those to one backend.
    Of(usize),
    /// None of them.
    None,
}

/// Memory lent to whichever exchange has its turn.
#[derive(Default)]
pub(crate) struct Scratch {
    /// What connections obey as HTTP/1 sees it.
    pub(crate) engine: Arc<ClientSettings>,
    input: Cell<Vec<u8>>,
    output: Cell<Vec<u8>>,
    head: Cell<RequestHead>,
}

impl Scratch {
    /// Octets received at once.
    pub(crate) const INPUT: usize = 64 * 1024;
    /// Buffers that have grown beyond this are let go.
    const KEPT: usize = 256 * 1024;

    /// Room for [`Scratch::INPUT`] octets.
    pub(crate) fn take_input(&self) -> Vec<u8> {
        let mut input = self.input.take();
        input.resize(Self::INPUT, 0);
        input
    }

    pub(crate) fn put_input(&self, input: Vec<u8>) {
        self.input.set(input);
    }

    /// An empty buffer.
    pub(crate) fn take_output(&self) -> Vec<u8> {
        self.output.take()
    }

    pub(crate) fn put_output(&self, mut output: Vec<u8>) {
        if output.capacity() <= Self::KEPT {
            output.clear();
            self.output.set(output);
        }
    }

    /// An empty head.
    pub(crate) fn take_head(&self) -> RequestHead {
        self.head.take()
    }

    pub(crate) fn put_head(&self, mut head: RequestHead) {
        head.clear();
        head.headers.shrink(Self::KEPT);
        self.head.set(head);
    }
}

impl Pools {
    /// What this worker keeps for `upstream`, made on first use.
    pub(crate) fn of(&self, upstream: &Arc<Upstream>) -> Rc<Local> {
        let mut locals = self.locals.borrow_mut();
        if let Some(Some(local)) = locals.get(upstream.id) {
            return Rc::clone(local);
        }
        // Those that nobody else knows any more are forgotten.
        for slot in locals.iter_mut() {
            let is_known = |local: &Rc<Local>| {
                Rc::strong_count(local) > 1 || Arc::strong_count(&local.upstream) > 1
            };
            *slot = slot.take().filter(is_known);
        }
        if locals.len() <= upstream.id {
            locals.resize_with(upstream.id + 1, || None);
        }
        let local = locals[upstream.id].insert(Rc::new(Local {
            upstream: Arc::clone(upstream),
            scratch: Rc::clone(&self.scratch),
            idle: RefCell::default(),
            is_swept: Cell::new(false),
            http1: Rc::default(),
            http2: http2::Connections::default(),
            choice: ProtocolChoice::default(),
            declines_http2: Cell::new(false),
            unpaid: Cell::new(0),
        }));
        Rc::clone(local)
    }
}

impl Local {
    /// The connection that was idle for longest, if it can be used. `thoroughly`: the kernel is asked whether the backend
    /// has closed it.
    pub(crate) fn take(
        &self,
        now: Instant,
        thoroughly: bool,
        wanted: Wanted,
    ) -> Option<Box<Connection>> {
        self.expire(now);
        loop {
            let mut connection = self.next(wanted)?;
            if self.upstream.avoids(connection.backend) {
                continue;
            }
            match connection.stream.check(thoroughly) {
                Idle::Quiet => return Some(connection),
                Idle::Closed => warn_once(
                    &CLOSED,
                    "detected close by upstream before the expected timeout",
                ),
                Idle::Talks => {
                    warn_once(&TALKED, "unexpectedly received data to a pooled socket");
                }
            }
        }
    }

    /// Takes the next idle connection out.
    fn next(&self, wanted: Wanted) -> Option<Box<Connection>> {
        let mut idle = self.idle.borrow_mut();
        let kept = match wanted {
            Wanted::Any => idle.pop_front(),
            Wanted::Of(backend) => {
                let at = idle
                    .iter()
                    .position(|kept| kept.connection.backend == backend)?;
                idle.remove(at)
            }
            Wanted::None => None,
        };
        Some(kept?.connection)
    }

    /// Closes idle connections to backends that are to be left alone.
    fn drop_avoided(&self) {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|kept| !self.upstream.avoids(kept.connection.backend));
    }

    /// Keeps a connection on which nothing is outstanding.
    ///
    /// Must run in a local runtime of tokio.
    pub(crate) fn put(self: &Rc<Self>, connection: Box<Connection>, now: Instant) {
        self.expire(now);
        if !self.is_swept.replace(true) {
            let life = self.upstream.settings.keepalive;
            tokio::task::spawn_local(sweep(Rc::downgrade(self), life));
        }
        let kept = Kept {
            connection,
            since: now,
        };
        self.idle.borrow_mut().push_back(kept);
    }

    /// Another HTTP/1 connection, until what is returned is dropped.
    pub(crate) fn count_http1(&self) -> Counted {
        self.http1.set(self.http1.get() + 1);
        Counted(Rc::clone(&self.http1))
    }

    /// How many HTTP/1 connections there are.
    pub(crate) fn http1_load(&self) -> Http1Load {
        let idle = self.idle();
        Http1Load {
            busy: self.http1.get() - idle,
            idle,
        }
    }

    /// Number of idle connections.
    pub(crate) fn idle(&self) -> usize {
        self.idle.borrow().len()
    }

    fn expire(&self, now: Instant) {
        let mut idle = self.idle.borrow_mut();
        let life = self.upstream.settings.keepalive;
        while (idle.front()).is_some_and(|kept| now.saturating_duration_since(kept.since) >= life) {
            idle.pop_front();
        }
    }
}

/// Closes connections that were idle for too long, until none is left. Keeps nothing that is forgotten otherwise.
async fn sweep(forgettable: Weak<Local>, life: Duration) {
    let mut pause = SWEEP;
    loop {
        tokio::time::sleep(pause.clamp(SWEEP, LONGEST_SWEEP)).await;
        let Some(local) = forgettable.upgrade() else {
            return;
        };
        // The worker's clock stands while the worker waits.
        let now = tokio::time::Instant::now().into_std();
        local.expire(now);
        local.drop_avoided();
        let Some(since) = local.idle.borrow().front().map(|kept| kept.since) else {
            local.is_swept.set(false);
            return;
        };
        pause = if local.upstream.health.is_some() {
            // A backend may have to be left alone at any time.
            SWEEP
        } else {
            (since + life).saturating_duration_since(now)
        };
    }
}

static CLOSED: AtomicBool = AtomicBool::new(false);
static TALKED: AtomicBool = AtomicBool::new(false);

/// Says it the first time it happens in the process. The texts are H2O's to the letter, the number of its own tracker
/// among them: scripts that read logs look for them (H2O compatibility).
fn warn_once(said: &AtomicBool, text: &str) {
    if !said.swap(true, Relaxed) {
        report!(warning, "{text} (see issue #679)");
    }
}
