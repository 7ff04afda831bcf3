//! Idle connections, kept for the next requests on their worker.
//!
//! H2O has one pool for all threads, and takes the connection that was idle for longest whatever its backend. Here each worker has
//! its own, so that no request waits for another thread; what other workers have idle is not seen. The balancer chooses the backend
//! of every request; of the connections to that the one that was idle for longest is taken.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use h2o_exchange::{Timer, Worker};
use h2o_http::RequestHead;
use h2o_http1::ClientSettings;
use h2o_log::report;

use crate::health::Chosen;
use crate::http1::Connection;
use crate::http2;
use crate::protocol_choice::{Http1Load, ProtocolChoice};
use crate::stream::Idle;
use crate::tls_stream::TlsScratch;
use crate::{Failure, Upstream};

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
    tls_scratch: Rc<TlsScratch>,
}

/// What a worker keeps for one upstream.
pub(crate) struct Local {
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) scratch: Rc<Scratch>,
    pub(crate) tls_scratch: Rc<TlsScratch>,
    backends: Box<[LocalBackend]>,
    /// Somebody looks after idle connections that nobody takes.
    is_swept: Cell<bool>,
    pub(crate) http2: http2::Connections,
    pub(crate) choice: ProtocolChoice,
    /// Requests that the budget for repeating them has not heard of.
    pub(crate) unpaid: Cell<u32>,
}

/// What a worker keeps for one backend.
#[derive(Default)]
struct LocalBackend {
    /// Idle HTTP/1 connections, the oldest first.
    idle: RefCell<VecDeque<Kept>>,
    /// HTTP/1 connections there are, idle ones included.
    http1: Rc<Cell<usize>>,
    /// Whether it chose HTTP/1 when it was last offered HTTP/2.
    declines_http2: Cell<bool>,
    reach: Cell<Reach>,
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
        // Upstreams of earlier configurations are forgotten.
        for slot in locals.iter_mut() {
            let is_known =
                |local: &Rc<Local>| Rc::strong_count(local) > 1 || !local.upstream.is_forgotten();
            *slot = slot.take().filter(is_known);
        }
        if locals.len() <= upstream.id {
            locals.resize_with(upstream.id + 1, || None);
        }
        let count = upstream.backends.len();
        upstream.locals.fetch_add(1, Relaxed);
        let local = locals[upstream.id].insert(Rc::new(Local {
            upstream: Arc::clone(upstream),
            scratch: Rc::clone(&self.scratch),
            tls_scratch: Rc::clone(&self.tls_scratch),
            backends: (0..count).map(|_| LocalBackend::default()).collect(),
            is_swept: Cell::new(false),
            http2: http2::Connections::new(count),
            choice: ProtocolChoice::default(),
            unpaid: Cell::new(0),
        }));
        Rc::clone(local)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.upstream.locals.fetch_sub(1, Relaxed);
    }
}

impl Local {
    /// The backend of the next request: the one whose turn it is. One that cannot be connected to, or not soon, is passed over for
    /// the next unless there is a connection to it already. `None` if there is only one to choose from.
    pub(crate) fn choose(&self, now: Instant) -> Option<Chosen> {
        let upstream = &self.upstream;
        if self.backends.len() == 1 {
            let health = upstream.health.as_ref();
            health.filter(|health| health.asks(now))?;
        }
        let chosen = upstream.choose(&[], now)?;
        if upstream.health.is_none()
            && self.is_doubtful(chosen.backend, now)
            && !self.has_connection(chosen.backend)
        {
            let backends = 0..self.backends.len();
            let doubtful: Vec<bool> = backends
                .map(|backend| self.is_doubtful(backend, now))
                .collect();
            return upstream.choose(&doubtful, now).or(Some(chosen));
        }
        Some(chosen)
    }

    fn is_doubtful(&self, backend: usize, now: Instant) -> bool {
        self.backends[backend].reach.get().is_doubtful(now)
    }

    /// True if a request to `backend` needs no new connection.
    fn has_connection(&self, backend: usize) -> bool {
        let is_to = |other| other == backend;
        !self.backends[backend].idle.borrow().is_empty() || self.http2.pick(is_to).is_some()
    }

    /// A connection to `backend` is being opened, until what is returned is dropped.
    pub(crate) fn begin_attempt(&self, backend: usize, now: Instant) -> Attempt<'_> {
        let reach = &self.backends[backend].reach;
        reach.update(|reach| reach.begin(now));
        Attempt(reach)
    }

    /// A backend could not be connected to.
    pub(crate) fn on_unreachable(&self, backend: usize, failure: &Failure, now: Instant) {
        self.backends[backend].reach.update(|reach| Reach {
            failed: Some(now),
            ..reach
        });
        if let Some(health) = &self.upstream.health {
            health.on_failure(backend, &failure.text, now);
        }
    }

    /// Of the connections to `backend` the one that was idle for longest, if it can be used. `thoroughly`: the kernel is asked
    /// whether the backend has closed it.
    pub(crate) fn take(
        &self,
        backend: usize,
        now: Instant,
        thoroughly: bool,
    ) -> Option<Box<Connection>> {
        let idle = &self.backends[backend].idle;
        self.expire(idle, now);
        if self.upstream.avoids(backend) {
            idle.borrow_mut().clear();
        }
        loop {
            let mut connection = idle.borrow_mut().pop_front()?.connection;
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

    /// Keeps a connection on which nothing is outstanding.
    ///
    /// Must run in a local runtime of tokio.
    pub(crate) fn put(self: &Rc<Self>, connection: Box<Connection>, worker: &Worker) {
        let now = worker.clock.now();
        if !self.is_swept.replace(true) {
            let life = self.upstream.settings.keepalive;
            let timer = Timer::new(&worker.timers);
            worker.spawn(sweep(Rc::downgrade(self), life, timer));
        }
        let idle = &self.backends[connection.backend].idle;
        self.expire(idle, now);
        idle.borrow_mut().push_back(Kept {
            connection,
            since: now,
        });
    }

    /// Another HTTP/1 connection to `backend`, until what is returned is dropped.
    pub(crate) fn count_http1(&self, backend: usize) -> Counted {
        let http1 = &self.backends[backend].http1;
        http1.update(|count| count + 1);
        Counted(Rc::clone(http1))
    }

    /// How many HTTP/1 connections there are to the backends that `suits` is true for.
    pub(crate) fn http1_load(&self, suits: impl Fn(usize) -> bool) -> Http1Load {
        let mut load = Http1Load { busy: 0, idle: 0 };
        for (index, backend) in self.backends.iter().enumerate() {
            if suits(index) {
                let idle = backend.idle.borrow().len();
                load.idle += idle;
                load.busy += backend.http1.get() - idle;
            }
        }
        load
    }

    /// Whether a backend chose HTTP/1 when it was last offered HTTP/2.
    pub(crate) fn declines_http2(&self, backend: usize) -> &Cell<bool> {
        &self.backends[backend].declines_http2
    }

    fn expire(&self, idle: &RefCell<VecDeque<Kept>>, now: Instant) {
        let life = self.upstream.settings.keepalive;
        let mut idle = idle.borrow_mut();
        while (idle.front()).is_some_and(|kept| now.saturating_duration_since(kept.since) >= life) {
            idle.pop_front();
        }
    }

    /// Closes all idle connections.
    pub(crate) fn close_idle(&self) {
        for backend in &self.backends {
            backend.idle.borrow_mut().clear();
        }
    }

    /// Closes idle connections that nobody is to use any more.
    fn clean(&self, now: Instant) {
        for (index, backend) in self.backends.iter().enumerate() {
            self.expire(&backend.idle, now);
            if self.upstream.avoids(index) {
                backend.idle.borrow_mut().clear();
            }
        }
    }
}

/// What is known of whether a backend can be connected to: others are preferred for a while to one that could not. With health
/// checks those decide.
#[derive(Clone, Copy, Default)]
struct Reach {
    /// Connections that are being opened.
    attempts: u32,
    /// When the first of them began, or when one was last established since.
    since: Option<Instant>,
    /// When the last attempt failed, if none has succeeded since.
    failed: Option<Instant>,
}

impl Reach {
    /// How long others are preferred after a failure.
    const PAUSE: Duration = Duration::from_secs(1);
    /// How long an attempt may take until others are preferred.
    const PATIENCE: Duration = Duration::from_millis(100);

    fn is_doubtful(self, now: Instant) -> bool {
        let age = |at: Instant| now.saturating_duration_since(at);
        let has_failed = self.failed.is_some_and(|at| age(at) < Self::PAUSE);
        let is_slow = || self.since.is_some_and(|at| age(at) >= Self::PATIENCE);
        has_failed || (self.attempts > 0 && is_slow())
    }

    fn begin(self, now: Instant) -> Self {
        Self {
            attempts: self.attempts + 1,
            since: self.since.filter(|_| self.attempts > 0).or(Some(now)),
            failed: self.failed,
        }
    }
}

/// A connection that is being opened.
pub(crate) struct Attempt<'l>(&'l Cell<Reach>);

impl Attempt<'_> {
    pub(crate) fn on_established(&self, now: Instant) {
        self.0.update(|reach| Reach {
            since: Some(now),
            failed: None,
            ..reach
        });
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.0.update(|reach| Reach {
            attempts: reach.attempts - 1,
            ..reach
        });
    }
}

/// Closes connections that were idle for too long, until none is left. Keeps nothing that is forgotten otherwise.
async fn sweep(forgettable: Weak<Local>, life: Duration, timer: Timer) {
    let mut pause = SWEEP;
    loop {
        timer.set_after(pause.clamp(SWEEP, LONGEST_SWEEP));
        timer.fired().await;
        let Some(local) = forgettable.upgrade() else {
            return;
        };
        let now = timer.clock().now();
        local.clean(now);
        let idle = local.backends.iter().map(|backend| backend.idle.borrow());
        let Some(since) = idle.filter_map(|idle| Some(idle.front()?.since)).min() else {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_forget_upstreams_that_only_they_know() {
        let upstream = || {
            let url = crate::BackendUrl::parse("http://a/").expect("a URL");
            let settings = crate::upstream::tests::settings();
            Upstream::new(vec![(url, 1)], crate::Balancing::RoundRobin, settings)
        };
        let workers = [Pools::default(), Pools::default()];
        let (first, second) = (upstream(), upstream());
        let is_there = Arc::downgrade(&first);
        for worker in &workers {
            worker.of(&first);
            worker.of(&second);
        }
        // Connections are kept while somebody holds the upstream, here a third one that is new.
        let third = upstream();
        let in_use = workers[0].of(&first);
        drop(first);
        workers.iter().for_each(|worker| drop(worker.of(&third)));
        assert!(is_there.upgrade().is_some(), "a request is under way");
        drop(in_use);
        let fourth = upstream();
        workers.iter().for_each(|worker| drop(worker.of(&fourth)));
        assert!(is_there.upgrade().is_none());
        for worker in &workers {
            assert_eq!(worker.locals.borrow().iter().flatten().count(), 3);
        }
    }

    #[test]
    fn a_backend_is_doubtful_after_a_failure_and_while_an_attempt_takes_long() {
        let begin = tokio::time::Instant::now().into_std();
        let after = |milliseconds| begin + Duration::from_millis(milliseconds);
        let reach = Cell::new(Reach::default());
        let doubts = |milliseconds| reach.get().is_doubtful(after(milliseconds));
        let attempt = |milliseconds| {
            reach.update(|reach| reach.begin(after(milliseconds)));
            Attempt(&reach)
        };
        assert!(!doubts(0));
        let first = attempt(0);
        let second = attempt(50);
        assert!(!doubts(99) && doubts(100), "the first takes long");
        drop(first);
        assert!(doubts(100), "the second came while it was not known");
        second.on_established(after(110));
        assert!(!doubts(110) && !doubts(209) && doubts(210));
        drop(second);
        assert!(!doubts(210), "there is nothing to wait for");
        let third = attempt(300);
        assert!(!doubts(399), "it is a new beginning");
        reach.update(|reach| Reach {
            failed: Some(after(400)),
            ..reach
        });
        drop(third);
        assert!(doubts(400) && doubts(1399) && !doubts(1400));
        let fourth = attempt(1400);
        fourth.on_established(after(1400));
        assert!(!doubts(1400));
    }
}
