//! What a worker knows about its upstreams: the open connections, and what it has learnt about the backends.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use h2o_exchange::Worker;

use crate::health::ChosenBackend;
use crate::http2::Http2;
use crate::http3::{self, Http3};
use crate::idle_pool::IdlePool;
use crate::local_upstream::LocalUpstream;
use crate::multiplexed::Connections;
use crate::protocol_choice::ProtocolChoice;
use crate::protocol_memory::Http3Memory;
use crate::reach::{Opening, Reachability};
use crate::scratch::Scratch;
use crate::tls_stream::TlsScratch;
use crate::{Failure, Upstream, fastcgi, http1, http2};

/// A worker's state of all upstreams.
#[derive(Default)]
pub(crate) struct LocalStates {
    /// The states, indexed by the upstream's id.
    locals: RefCell<Vec<Option<Rc<LocalState>>>>,
    scratch: Rc<Scratch>,
    tls_scratch: Rc<TlsScratch>,
    http2_scratch: http2::Scratch,
}

/// A worker's state of one upstream.
pub(crate) struct LocalState {
    pub(crate) upstream: Rc<LocalUpstream>,
    pub(crate) scratch: Rc<Scratch>,
    pub(crate) tls_scratch: Rc<TlsScratch>,
    backends: Box<[LocalBackend]>,
    pub(crate) http1: Rc<http1::Connections>,
    /// Idle connections to FastCGI applications.
    pub(crate) fastcgi: Rc<IdlePool<Box<fastcgi::Connection>>>,
    pub(crate) http2_scratch: http2::Scratch,
    pub(crate) http2: Connections<Http2>,
    pub(crate) http3: Connections<Http3>,
    pub(crate) choice: ProtocolChoice,
    /// Number of requests that were not yet reported to the retry budget.
    pub(crate) unreported: Cell<u32>,
}

/// A worker's state of one backend.
#[derive(Default)]
struct LocalBackend {
    /// Whether the backend chose HTTP/1 when it was last offered HTTP/2.
    declines_http2: Cell<bool>,
    http3: Cell<Http3Memory>,
    reach: Cell<Reachability>,
}

/// Closes the connections to backends that no configuration has any more.
pub fn sweep(worker: &Worker) {
    LocalStates::drop_forgotten(&mut worker.local::<LocalStates>().locals.borrow_mut());
}

impl LocalStates {
    /// Drops the state of upstreams that only workers refer to.
    fn drop_forgotten(locals: &mut [Option<Rc<LocalState>>]) {
        for slot in locals {
            let is_known = |local: &Rc<LocalState>| {
                let is_used = Rc::strong_count(local) > 1
                    || Rc::strong_count(&local.http1) > 1
                    || Rc::strong_count(&local.fastcgi) > 1;
                is_used || !local.upstream.is_forgotten()
            };
            *slot = slot.take().filter(is_known);
        }
    }

    /// This worker's state of `upstream`, created on first use.
    pub(crate) fn of(&self, upstream: &Arc<Upstream>) -> Rc<LocalState> {
        let mut locals = self.locals.borrow_mut();
        if let Some(Some(local)) = locals.get(upstream.id) {
            return Rc::clone(local);
        }
        Self::drop_forgotten(&mut locals);
        if locals.len() <= upstream.id {
            locals.resize_with(upstream.id + 1, || None);
        }
        let count = upstream.backends.len();
        let id = upstream.id;
        let upstream = Rc::new(LocalUpstream::new(upstream));
        let local = locals[id].insert(Rc::new(LocalState {
            http1: Rc::new(http1::Connections::new(
                Rc::clone(&upstream),
                Rc::clone(&self.scratch),
            )),
            fastcgi: Rc::new(IdlePool::new(Rc::clone(&upstream))),
            upstream,
            scratch: Rc::clone(&self.scratch),
            tls_scratch: Rc::clone(&self.tls_scratch),
            backends: (0..count).map(|_| LocalBackend::default()).collect(),
            http2_scratch: Rc::clone(&self.http2_scratch),
            http2: Connections::new(count),
            http3: Connections::new(count),
            choice: ProtocolChoice::default(),
            unreported: Cell::new(0),
        }));
        Rc::clone(local)
    }
}

impl LocalState {
    /// Returns the balancer's choice for the next request. A backend that could not be connected to recently, or only slowly, is
    /// skipped unless a connection to it is open. `None` if there is only one backend.
    pub(crate) fn choose(&self, now: Instant) -> Option<ChosenBackend> {
        let upstream = &self.upstream;
        if self.backends.len() == 1 {
            let health = upstream.health.as_ref();
            health.filter(|health| health.needs_balancer(now))?;
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

    /// Whether a request to `backend` needs no new connection.
    fn has_connection(&self, backend: usize) -> bool {
        let is_to = |other| other == backend;
        self.http1.has_idle(backend)
            || self.fastcgi.len(backend) > 0
            || self.http2.pick(is_to).is_some()
            || self.http3.pick(is_to).is_some()
    }

    /// Marks that a connection to `backend` is being opened, until the returned value is dropped.
    pub(crate) fn begin_opening(&self, backend: usize, now: Instant) -> Opening<'_> {
        Opening::begin(&self.backends[backend].reach, now)
    }

    /// Records that connecting to a backend failed.
    pub(crate) fn on_unreachable(&self, backend: usize, failure: &Failure, now: Instant) {
        (self.backends[backend].reach).update(|reach| reach.fail(now));
        if let Some(health) = &self.upstream.health {
            health.on_failure(backend, &failure.text, now);
        }
    }

    /// Whether a backend chose HTTP/1 when it was last offered HTTP/2.
    pub(crate) fn declines_http2(&self, backend: usize) -> &Cell<bool> {
        &self.backends[backend].declines_http2
    }

    /// What is known about HTTP/3 connections to a backend.
    pub(crate) fn http3_memory(&self, backend: usize) -> &Cell<Http3Memory> {
        &self.backends[backend].http3
    }

    /// Whether an HTTP/3 connection to a backend may be opened.
    pub(crate) fn may_open_http3(&self, backend: usize, now: Instant) -> bool {
        http3::is_possible(&self.upstream.backends[backend].url)
            && self.http3_memory(backend).get().may_connect(now)
    }

    /// Whether a request to a backend may use HTTP/3: a connection is open, or may be opened.
    pub(crate) fn may_use_http3(&self, backend: usize, now: Instant) -> bool {
        self.may_open_http3(backend, now) || self.http3.pick(|other| other == backend).is_some()
    }

    /// Closes all idle connections.
    pub(crate) fn close_idle(&self) {
        self.http1.close_idle();
        self.fastcgi.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_forget_upstreams_that_only_they_know() {
        let upstream = || {
            let url = crate::BackendUrl::parse("http://a/").expect("the URL is valid");
            let settings = crate::upstream::tests::settings();
            Upstream::new(vec![(url, 1)], crate::Balancing::RoundRobin, settings)
        };
        let workers = [LocalStates::default(), LocalStates::default()];
        let (first, second) = (upstream(), upstream());
        let is_there = Arc::downgrade(&first);
        for worker in &workers {
            worker.of(&first);
            worker.of(&second);
        }
        // When a worker first uses a new upstream (`third`), it drops its state of upstreams that only workers refer to, except
        // those with requests in progress.
        let third = upstream();
        let in_use = workers[0].of(&first);
        drop(first);
        workers.iter().for_each(|worker| drop(worker.of(&third)));
        assert!(
            is_there.upgrade().is_some(),
            "a request in progress keeps its pool"
        );
        drop(in_use);
        let fourth = upstream();
        workers.iter().for_each(|worker| drop(worker.of(&fourth)));
        assert!(is_there.upgrade().is_none());
        for worker in &workers {
            assert_eq!(worker.locals.borrow().iter().flatten().count(), 3);
        }
    }
}
