//! Sub-requests: requests that a handler makes to this server itself.

use std::cell::OnceCell;
use std::rc::Rc;

use crate::{ExchangeRef, LocalBoxFuture, Response};

/// How a sub-request is processed. Present in an exchange that a handler has made, not a client.
pub struct SubRequest {
    /// Where the processing of the sub-request begins.
    pub start: SubRequestStart,
    /// A function that gets the lines about the sub-request's errors. `None`: they go to the error log.
    pub on_error: Option<ErrorSink>,
}

/// A function that gets the lines about the errors of a request.
pub type ErrorSink = Box<dyn Fn(&str)>;

/// Where the processing of a sub-request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubRequestStart {
    /// The sub-request begins at the handler with this index among the handlers of the path that the exchange is routed
    /// to. No filters run.
    Handler(usize),
    /// The sub-request begins at the host and path that match the sub-request's authority and target; it counts as a
    /// delegation. The request variables, filters and loggers of that path apply.
    Routing,
}

/// Answers sub-requests. The server provides it to the handlers of each worker.
pub trait SubRequests {
    /// Runs the handlers of an exchange with [`crate::Exchange::sub_request`] until there is a response. The caller has
    /// to drop the response's body where the request's method or the status forbid one, and keeps the exchange until
    /// the body has ended.
    fn answer(&self, exchange: ExchangeRef) -> LocalBoxFuture<Response>;
}

/// The implementation of [`SubRequests`] that answers the sub-requests of a worker's handlers, kept as state of the
/// worker ([`crate::Worker::local`]). Set when the event loop begins.
#[derive(Default)]
pub struct SubRequestService(pub OnceCell<Rc<dyn SubRequests>>);
