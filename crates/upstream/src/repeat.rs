//! Requests that got no response, and whether they are made again.
//!
//! H2O connects to the next backend if one cannot be connected to, and no more; [`connect`](mod@crate::connect) does that. Here one
//! thing is added always: an idempotent request that went out on a kept HTTP/1 connection, which the backend closed before it said
//! anything, is made once more (RFC 9112 §9.3.1). With `proxy.retry` others are, too, as far as that is safe and its budget goes.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use crate::health::{Chosen, Trial};
use crate::pool::Local;
use crate::ready_body::ReadyBody;
use crate::{Call, Cause, Failure, Reply, Upstream, dispatch, http1};

/// How often a request may be refused by connections that come to their end just then, besides the tries it has.
const MOST_REFUSALS: u32 = 8;

/// Where an attempt goes, and where earlier ones went.
#[derive(Debug, Default)]
pub(crate) struct Aim {
    /// The backend to begin with; `None`: the only one, unless all that there are were tried.
    pub(crate) chosen: Option<Chosen>,
    /// The attempt shows whether its backend is well again, for as long as this value lives.
    pub(crate) trial: Option<Box<Trial>>,
    /// The backends that were tried for this request; empty: none.
    pub(crate) tried: Vec<bool>,
    /// The attempt goes by HTTP/1, whatever the backend offers.
    pub(crate) by_http1: bool,
}

impl Aim {
    /// The backend to begin with.
    pub(crate) fn first(&self) -> usize {
        self.chosen.as_ref().map_or(0, |chosen| chosen.backend)
    }

    /// The backend whose kept connections will do. One on trial is connected to.
    pub(crate) fn kept(&self) -> Option<usize> {
        match &self.chosen {
            Some(Chosen { trial: Some(_), .. }) => None,
            Some(Chosen { trial: None, .. }) | None => Some(self.first()),
        }
    }

    /// True if a connection to `backend` will do.
    pub(crate) fn suits(&self, upstream: &Upstream, backend: usize) -> bool {
        self.kept() == Some(backend) && !upstream.avoids(backend)
    }

    /// The next backend to be connected to, which then counts as tried.
    pub(crate) fn next(&mut self, upstream: &Arc<Upstream>, now: Instant) -> Option<usize> {
        self.tried.resize(upstream.backends.len(), false);
        let chosen = match self.chosen.take() {
            Some(chosen) => chosen,
            None => upstream.choose(&self.tried, now)?,
        };
        self.tried[chosen.backend] = true;
        self.trial = chosen.trial;
        Some(chosen.backend)
    }

    fn has_untried(&self) -> bool {
        self.tried.contains(&false)
    }

    /// After `asked` was asked: another one is preferred. When all that can be have been tried, they can be once more.
    fn turn_away_from(&mut self, asked: Option<usize>, upstream: &Upstream) {
        let backends = upstream.backends.len();
        self.chosen = None;
        self.trial = None;
        self.tried.resize(backends, false);
        let usable = || (0..backends).filter(|&backend| !upstream.avoids(backend));
        if let Some(asked) = asked {
            self.tried[asked] = true;
        }
        if usable().all(|backend| self.tried[backend]) {
            let has_others = usable().any(|backend| Some(backend) != asked);
            self.tried.fill(false);
            if let Some(asked) = asked {
                self.tried[asked] = has_others;
            }
        }
    }
}

/// What a request went out on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// A connection that nothing has come over yet.
    New,
    /// An HTTP/1 connection that was idle before.
    Kept,
    /// An HTTP/2 connection that responses have come over.
    Shared,
}

/// A request that got no response.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) failure: Failure,
    /// The backend that was asked; `None` if none could be connected to.
    pub(crate) asked: Option<usize>,
    pub(crate) link: Link,
    pub(crate) is_idempotent: bool,
}

/// No backend could be connected to.
impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            asked: None,
            link: Link::New,
            is_idempotent: false,
        }
    }
}

impl Unanswered {
    /// The backend that this speaks against.
    pub(crate) fn blamed(&self) -> Option<usize> {
        let is_fault = match self.failure.cause {
            Cause::TimedOut | Cause::NotAnswered => true,
            // Connections that are kept are closed now and then; whether the backend is well, the next one shows.
            Cause::NotSent | Cause::Silent => self.link == Link::New && !self.failure.refused,
            // Who could not be connected to has been blamed for that.
            Cause::NotConnected | Cause::NoDescriptor | Cause::Client | Cause::Other => false,
        };
        self.asked.filter(|_| is_fault)
    }

    /// The backend whose failure the error log is to be told of. Who could not be connected to is in it already; connections
    /// that come to their end are no failures if the request can be made again.
    pub(crate) fn reported(&self) -> Option<usize> {
        let is_told = match self.failure.cause {
            Cause::NotConnected | Cause::NoDescriptor | Cause::Client => false,
            Cause::NotSent | Cause::Silent => !self.was_late() && !self.failure.refused,
            Cause::NotAnswered | Cause::TimedOut | Cause::Other => true,
        };
        self.asked.filter(|_| is_told)
    }

    /// The backend closed a connection that had been of use, while the request was on its way.
    fn was_late(&self) -> bool {
        let is_silent = matches!(self.failure.cause, Cause::NotSent | Cause::Silent);
        self.link != Link::New && is_silent && self.is_idempotent && !self.failure.refused
    }

    /// The backend refused a stream of a connection that had been of use: the connection ends, or is full for the moment.
    fn was_refused_late(&self) -> bool {
        self.failure.refused && self.link == Link::Shared
    }

    /// True if the backend cannot have done what it was asked for, or may be asked for it twice.
    fn is_safe(&self, aim: &Aim, body: &ReadyBody) -> bool {
        match self.failure.cause {
            Cause::NotConnected => aim.has_untried(),
            Cause::NotSent => body.can_repeat(),
            Cause::Silent | Cause::NotAnswered => self.is_idempotent && body.can_repeat(),
            Cause::NoDescriptor | Cause::TimedOut | Cause::Client | Cause::Other => false,
        }
    }
}

/// Makes a request again that got no response, with the content `body`; `None`: there is none to make it with.
pub(crate) async fn after(
    local: &Rc<Local>,
    call: &mut Call<'_>,
    body: Option<ReadyBody>,
    mut aim: Aim,
    mut unanswered: Unanswered,
) -> Result<Reply, Failure> {
    let upstream = &local.upstream;
    let Some(body) = body else {
        return Err(unanswered.failure);
    };
    let is_free = unanswered.was_late() && body.can_repeat();
    let Some((retry, budget)) = &upstream.retry else {
        if !is_free || unanswered.link != Link::Kept {
            return Err(unanswered.failure);
        }
        // A trial that it is lives until it is judged.
        let mut aim = Aim::default();
        let tried = http1::send_fresh(local, call, body, &mut aim).await;
        dispatch::judge(local, call, &tried);
        return tried.map_err(|unanswered| unanswered.failure);
    };
    let mut tries = retry.tries + u32::from(is_free);
    for number in 0..retry.tries + MOST_REFUSALS {
        let counts = !unanswered.was_refused_late();
        let may_repeat = (tries > 0 || !counts) && unanswered.is_safe(&aim, &body);
        let is_paid = || {
            budget.pay_in(local.unpaid.take());
            budget.take(call.worker.clock.now())
        };
        let is_free = is_free && number == 0;
        if !may_repeat || !(is_free || is_paid()) {
            break;
        }
        aim.turn_away_from(unanswered.asked, upstream);
        match dispatch::send_again(local, call, body.clone(), &mut aim).await {
            Ok(reply) => return Ok(reply),
            Err(failed) => unanswered = failed,
        }
        tries -= u32::from(counts);
    }
    Err(unanswered.failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::tests::settings;
    use crate::{BackendCare, BackendUrl, Balancing, Care, PassiveCheck};

    /// So many backends, which one failure takes down.
    fn upstream(count: usize) -> Arc<Upstream> {
        let url = BackendUrl::parse("http://a/").expect("a URL");
        let care = BackendCare {
            active: None,
            passive: Some(PassiveCheck {
                fall: 1,
                ..PassiveCheck::default()
            }),
        };
        let care = Care {
            backends: vec![care; count],
            retry: None,
        };
        let backends = vec![(url, 1); count];
        Upstream::with_care(backends, Balancing::RoundRobin, settings(), care)
    }

    fn unanswered(cause: Cause, link: Link, is_idempotent: bool) -> Unanswered {
        Unanswered {
            failure: Failure::sent("x").with_cause(cause),
            asked: Some(1),
            link,
            is_idempotent,
        }
    }

    #[test]
    fn what_was_sent_is_repeated_only_if_that_changes_nothing() {
        use h2o_exchange::{BodyPipe, RequestBody};
        let kept = ReadyBody::from(RequestBody::Bytes(bytes::Bytes::from_static(b"x")));
        let stream = ReadyBody::from(RequestBody::Stream(Rc::new(BodyPipe::default())));
        let cases = [
            // Cause; idempotent or not, then with a stream in place of a content that is kept.
            (Cause::NotConnected, true, true, true),
            (Cause::NotSent, true, true, false),
            (Cause::Silent, true, false, false),
            (Cause::NotAnswered, true, false, false),
            (Cause::TimedOut, false, false, false),
            (Cause::Client, false, false, false),
            (Cause::Other, false, false, false),
        ];
        let mut aim = Aim::default();
        aim.turn_away_from(Some(0), &upstream(2));
        for (cause, idempotent, not, streamed) in cases {
            let is_safe = |is_idempotent, body| {
                unanswered(cause, Link::New, is_idempotent).is_safe(&aim, body)
            };
            let got = (
                is_safe(true, &kept),
                is_safe(false, &kept),
                is_safe(true, &stream),
            );
            assert_eq!(got, (idempotent, not, streamed), "{cause:?}");
        }
        aim.tried.fill(true);
        let exhausted = unanswered(Cause::NotConnected, Link::New, true);
        assert!(!exhausted.is_safe(&aim, &kept));
    }

    #[test]
    fn failures_are_reported_unless_they_are_in_the_log_or_nobodys() {
        let cases = [
            // Cause; on a new, a kept, a shared connection.
            (Cause::NotConnected, [false; 3]),
            (Cause::NotSent, [true, false, false]),
            (Cause::Silent, [true, false, false]),
            (Cause::NotAnswered, [true; 3]),
            (Cause::TimedOut, [true; 3]),
            (Cause::Client, [false; 3]),
            (Cause::Other, [true; 3]),
        ];
        for (cause, want) in cases {
            let reported = [Link::New, Link::Kept, Link::Shared]
                .map(|link| unanswered(cause, link, true).reported().is_some());
            assert_eq!(reported, want, "{cause:?}");
        }
        // It is not made again.
        let lost = unanswered(Cause::Silent, Link::Kept, false);
        assert_eq!(lost.reported(), Some(1));
        let mut refused = unanswered(Cause::NotSent, Link::New, true);
        refused.failure.refused = true;
        assert_eq!(refused.reported(), None);
    }

    #[test]
    fn backends_are_blamed_for_what_is_their_fault() {
        let cases = [
            // Cause; on a new, a kept, a shared connection.
            (Cause::NotConnected, [false; 3]),
            (Cause::NotSent, [true, false, false]),
            (Cause::Silent, [true, false, false]),
            (Cause::NotAnswered, [true; 3]),
            (Cause::TimedOut, [true; 3]),
            (Cause::Client, [false; 3]),
            (Cause::Other, [false; 3]),
        ];
        for (cause, want) in cases {
            let blamed = [Link::New, Link::Kept, Link::Shared]
                .map(|link| unanswered(cause, link, true).blamed().is_some());
            assert_eq!(blamed, want, "{cause:?}");
        }
        let mut refused = unanswered(Cause::NotSent, Link::New, true);
        refused.failure.refused = true;
        assert_eq!(refused.blamed(), None);
    }

    #[test]
    fn another_backend_is_preferred() {
        let three = upstream(3);
        let mut aim = Aim::default();
        let mut seen = Vec::new();
        for backend in [Some(0), Some(2), Some(1), None] {
            aim.turn_away_from(backend, &three);
            seen.push(aim.tried.clone());
        }
        let want = [
            [true, false, false],
            [true, false, true],
            // All have been: all but the last can be again.
            [false, true, false],
            [false, true, false],
        ];
        assert_eq!(seen, want);
        let mut only = Aim::default();
        only.turn_away_from(Some(0), &upstream(1));
        assert_eq!(only.tried, [false]);
        // One that is down is no better than the one that failed.
        let health = three.health.as_ref().expect("they are looked after");
        let now = tokio::time::Instant::now().into_std();
        health.on_failure(1, "test", now);
        for (asked, want) in [(0, [true, false, false]), (2, [false, false, true])] {
            let mut aim = Aim::default();
            aim.turn_away_from(Some(asked), &three);
            assert_eq!(aim.tried, want);
        }
        health.on_failure(2, "test", now);
        let mut aim = Aim::default();
        aim.turn_away_from(Some(0), &three);
        assert_eq!(aim.tried, [false; 3]);
    }
}
