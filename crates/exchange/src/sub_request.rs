//! Requests that a handler makes of this server itself.

use std::cell::OnceCell;
use std::rc::Rc;

use crate::{ExchangeRef, LocalBoxFuture, Response};

/// How an exchange that a handler has made differs from that of a client.
pub struct SubRequest {
    /// Where it begins.
    pub start: SubRequestStart,
    /// What gets the lines about the request's errors. `None`: the error log gets them.
    pub on_error: Option<ErrorSink>,
}

/// Gets the lines about the errors of a request.
pub type ErrorSink = Box<dyn Fn(&str)>;

/// Where a sub-request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubRequestStart {
    /// The request begins at the handler with this number of the path that the exchange is routed to. No filters run.
    Handler(usize),
    /// The request begins at the host and path that its authority and target lead to, as a delegation. Their variables, filters
    /// and loggers apply.
    Routing,
}

/// Answers sub-requests. The server provides it to the handlers of each worker.
pub trait SubRequests {
    /// Runs the handlers of an exchange with [`crate::Exchange::sub_request`] until there is a response. Its body is to be
    /// dropped where request or status forbid one. The caller keeps the exchange until the body is through.
    fn answer(&self, exchange: ExchangeRef) -> LocalBoxFuture<Response>;
}

/// State of a worker ([`crate::Worker::local`]): what answers sub-requests. Set when the event loop begins.
#[derive(Default)]
pub struct SubRequestService(pub OnceCell<Rc<dyn SubRequests>>);
