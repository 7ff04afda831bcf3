//! Requests without a response, and whether a retry is safe.

use h2o_http::Method;

use crate::backend_choice::BackendChoice;
use crate::ready_body::ReadyBody;
use crate::{Failure, FailureCause};

/// Whether responses had arrived over the connection of a request before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// The request was sent over a connection over which no response has arrived.
    New,
    /// The request was sent over an HTTP/1 connection that was idle before.
    Idle,
    /// The request was sent over an HTTP/3 connection over which responses have arrived, but that the backend does not know any
    /// more.
    Lost,
    /// The request was sent over an HTTP/2 or HTTP/3 connection over which responses have arrived.
    Shared,
}

/// A request that got no response.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) failure: Failure,
    /// The backend that the request was sent to; `None` if connecting failed.
    pub(crate) backend: Option<usize>,
    pub(crate) reuse: Reuse,
    pub(crate) is_idempotent: bool,
}

/// Makes the failure of a request from a failure to connect.
impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            backend: None,
            reuse: Reuse::New,
            is_idempotent: false,
        }
    }
}

impl Unanswered {
    /// The backend to which passive health checks attribute the failure.
    pub(crate) fn backend_at_fault(&self) -> Option<usize> {
        let is_fault = match self.failure.cause {
            FailureCause::TimedOut | FailureCause::NotAnswered => true,
            // A healthy backend may close a connection at any time; only the close of a new connection means that the backend is
            // down.
            FailureCause::NotSent | FailureCause::Silent => {
                self.reuse == Reuse::New && !self.failure.refused
            }
            // A failure to connect was counted at once. Missing descriptors, failures of the client and invalid responses do not
            // count for health checks.
            FailureCause::NotConnected
            | FailureCause::NoDescriptor
            | FailureCause::Client
            | FailureCause::Other => false,
        };
        self.backend.filter(|_| is_fault)
    }

    /// The backend whose failure belongs in the error log. A failure to connect was already logged; the backend's close of a
    /// reused connection is no failure if the request can be retried.
    pub(crate) fn backend_to_report(&self) -> Option<usize> {
        let is_reported = match self.failure.cause {
            FailureCause::NotConnected | FailureCause::NoDescriptor | FailureCause::Client => false,
            FailureCause::NotSent | FailureCause::Silent => {
                !self.hit_closed_connection() && !self.failure.refused
            }
            FailureCause::NotAnswered | FailureCause::TimedOut | FailureCause::Other => true,
        };
        self.backend.filter(|_| is_reported)
    }

    /// Whether the backend closed a reused connection while the request was on its way.
    pub(crate) fn hit_closed_connection(&self) -> bool {
        let is_silent = matches!(
            self.failure.cause,
            FailureCause::NotSent | FailureCause::Silent
        );
        self.reuse != Reuse::New && is_silent && self.is_idempotent && !self.failure.refused
    }

    /// Whether the backend refused a stream of a reused connection: it is closing the connection, or its stream limit
    /// is lower now.
    pub(crate) fn hit_closing_connection(&self) -> bool {
        self.failure.refused && self.reuse == Reuse::Shared
    }

    /// Whether a retry is safe: the backend cannot have processed the request, or the request is idempotent. The body is made
    /// ready to be sent again.
    pub(crate) fn is_safe(&self, backends: &BackendChoice, body: &ReadyBody) -> bool {
        match self.failure.cause {
            FailureCause::NotConnected => backends.has_untried(),
            FailureCause::NotSent => body.rewind(),
            FailureCause::Silent | FailureCause::NotAnswered => self.is_idempotent && body.rewind(),
            FailureCause::NoDescriptor
            | FailureCause::TimedOut
            | FailureCause::Client
            | FailureCause::Other => false,
        }
    }
}

/// Whether a method is idempotent (RFC 9110 §9.2.2).
pub(crate) fn is_idempotent(method: &Method) -> bool {
    match method {
        Method::Get
        | Method::Head
        | Method::Put
        | Method::Delete
        | Method::Options
        | Method::Trace => true,
        Method::Post | Method::Connect | Method::Patch | Method::ConnectUdp | Method::Other(_) => {
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    fn unanswered(cause: FailureCause, reuse: Reuse, is_idempotent: bool) -> Unanswered {
        Unanswered {
            failure: Failure::sent("x").with_cause(cause),
            backend: Some(1),
            reuse,
            is_idempotent,
        }
    }

    #[test]
    fn what_was_sent_is_retried_only_if_that_changes_nothing() {
        use h2o_exchange::{BodyPipe, RequestBody};
        let kept = ReadyBody::from(RequestBody::Bytes(bytes::Bytes::from_static(b"x")));
        let stream = ReadyBody::from(RequestBody::Stream(Rc::new(BodyPipe::default())));
        let pipe = Rc::new(BodyPipe::default());
        pipe.keep();
        let kept_stream = ReadyBody::from(RequestBody::Stream(Rc::clone(&pipe)));
        let cases = [
            // Each case: the cause of the failure, and whether a retry is safe for an idempotent method, for another method, and
            // with a streamed body.
            (FailureCause::NotConnected, true, true, true),
            (FailureCause::NotSent, true, true, false),
            (FailureCause::Silent, true, false, false),
            (FailureCause::NotAnswered, true, false, false),
            (FailureCause::TimedOut, false, false, false),
            (FailureCause::Client, false, false, false),
            (FailureCause::Other, false, false, false),
        ];
        let two = crate::backend_choice::tests::upstream(2);
        let mut backends = BackendChoice::default();
        backends.prefer_another(Some(0), &two);
        for (cause, idempotent, not, streamed) in cases {
            let is_safe = |is_idempotent, body| {
                unanswered(cause, Reuse::New, is_idempotent).is_safe(&backends, body)
            };
            let got = (
                is_safe(true, &kept),
                is_safe(false, &kept),
                is_safe(true, &stream),
            );
            assert_eq!(got, (idempotent, not, streamed), "{cause:?}");
            pipe.abandon();
            assert_eq!(is_safe(true, &kept_stream), idempotent, "{cause:?}");
        }
        while backends
            .next(&two, tokio::time::Instant::now().into_std())
            .is_some()
        {}
        let exhausted = unanswered(FailureCause::NotConnected, Reuse::New, true);
        assert!(!exhausted.is_safe(&backends, &kept));
    }

    #[test]
    fn failures_are_reported_unless_they_are_in_the_log_or_nobodys() {
        let cases = [
            // Each case: the cause of the failure, and whether the failure of a request over a new, an idle, a lost and a shared
            // connection belongs in the error log.
            (FailureCause::NotConnected, [false; 4]),
            (FailureCause::NotSent, [true, false, false, false]),
            (FailureCause::Silent, [true, false, false, false]),
            (FailureCause::NotAnswered, [true; 4]),
            (FailureCause::TimedOut, [true; 4]),
            (FailureCause::Client, [false; 4]),
            (FailureCause::Other, [true; 4]),
        ];
        for (cause, want) in cases {
            let backend_to_report = [Reuse::New, Reuse::Idle, Reuse::Lost, Reuse::Shared]
                .map(|reuse| unanswered(cause, reuse, true).backend_to_report().is_some());
            assert_eq!(backend_to_report, want, "{cause:?}");
        }
        // The failure of a request that is not idempotent is logged, because the request is not retried.
        let lost = unanswered(FailureCause::Silent, Reuse::Idle, false);
        assert_eq!(lost.backend_to_report(), Some(1));
        let mut refused = unanswered(FailureCause::NotSent, Reuse::New, true);
        refused.failure.refused = true;
        assert_eq!(refused.backend_to_report(), None);
    }

    #[test]
    fn backends_are_blamed_for_what_is_their_fault() {
        let cases = [
            // Each case: the cause of the failure, and whether the failure of a request over a new, an idle, a lost and a shared
            // connection counts against the backend's health.
            (FailureCause::NotConnected, [false; 4]),
            (FailureCause::NotSent, [true, false, false, false]),
            (FailureCause::Silent, [true, false, false, false]),
            (FailureCause::NotAnswered, [true; 4]),
            (FailureCause::TimedOut, [true; 4]),
            (FailureCause::Client, [false; 4]),
            (FailureCause::Other, [false; 4]),
        ];
        for (cause, want) in cases {
            let backend_at_fault = [Reuse::New, Reuse::Idle, Reuse::Lost, Reuse::Shared]
                .map(|reuse| unanswered(cause, reuse, true).backend_at_fault().is_some());
            assert_eq!(backend_at_fault, want, "{cause:?}");
        }
        let mut refused = unanswered(FailureCause::NotSent, Reuse::New, true);
        refused.failure.refused = true;
        assert_eq!(refused.backend_at_fault(), None);
    }
}
