//! What handlers and filters return.

use std::borrow::Cow;
use std::pin::Pin;

use bytes::Bytes;
use h2o_http::{Headers, Known, Method, StatusCode};

use crate::{Body, Exchange};

/// A boxed future that stays on its worker.
pub type LocalBoxFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// All that can follow when a handler is asked.
pub enum Outcome {
    /// The next handler of the path is asked.
    Declined,
    /// Answered without waiting.
    Done(Response),
    /// Will be answered; polled by the connection that owns the exchange. The connection holds no borrow of
    /// the exchange while it polls: the future may borrow it (see [`Exchange::reference`]), though never
    /// across a wait.
    Later(LocalBoxFuture<Self>),
    /// The request is run again at another place.
    Reroute(Reroute),
    /// The handlers behind this one are asked. Their response, which no filter has seen, is handed to the function, and what
    /// that returns counts.
    Next(Continuation),
}

/// What a handler does with the response of the handlers behind it.
pub type Continuation = Box<dyn FnOnce(&mut Exchange, Response) -> Outcome>;

/// The final response of a handler.
pub struct Response {
    /// The status code.
    pub status: StatusCode,
    /// The reason phrase; `None` for the code's own.
    pub reason: Option<Cow<'static, str>>,
    /// The fields, without `content-length`, `connection`, `transfer-encoding` and `server`.
    pub headers: Headers,
    /// Length of the content, if known. Sent also where no content is (HEAD).
    pub length: Option<u64>,
    /// The content. Engines drop it where the request or the status forbids it.
    pub body: Body,
    /// What its `link` fields are good for.
    pub links: Links,
    /// The last one of its connection, where that carries one request at a time (HTTP/1).
    pub closes: bool,
    /// Not to be sent: the client is told instead that nobody has looked at its request, which it may make again (RFC 9113
    /// §8.7). On HTTP/1 the connection is closed without an answer (H2O compatibility).
    pub is_refusal: bool,
    /// Whether the content is a short text that the server made for an error: a client that prefers HTML gets a page in its
    /// place.
    pub is_plain_error: bool,
    /// Whether it goes out without `date` if it has none.
    pub is_undated: bool,
}

/// What the `link` fields of a response are good for (H2O compatibility: it depends on who made it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// They are for the client: static files, redirects, errors.
    #[default]
    Plain,
    /// Those with `rel=preload` start pushes (FastCGI).
    Push,
    /// As [`Links::Push`], and elements with `x-http2-push-only` are taken out of the field (proxy, scripts).
    PushAndFilter,
}

impl Response {
    /// A response with this body, its length as far as the body knows it.
    #[must_use]
    pub fn new(status: StatusCode, headers: Headers, body: Body) -> Self {
        Self {
            status,
            reason: None,
            headers,
            length: body.len(),
            body,
            links: Links::Plain,
            closes: false,
            is_refusal: false,
            is_plain_error: false,
            is_undated: false,
        }
    }

    /// The reason phrase that will be sent.
    #[must_use]
    pub fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or(self.status.reason())
    }

    /// A generated error: a short plain text (H2O compatibility).
    #[must_use]
    pub fn error(status: StatusCode, reason: &'static str, text: &str) -> Self {
        let mut headers = Headers::new();
        headers.push(Known::ContentType, b"text/plain; charset=utf-8");
        let mut response = Self::new(
            status,
            headers,
            Body::Bytes(Bytes::copy_from_slice(text.as_bytes())),
        );
        response.reason = Some(Cow::Borrowed(reason));
        response.is_plain_error = true;
        response
    }

    /// The answer when no handler took the request (H2O compatibility).
    #[must_use]
    pub fn not_found() -> Self {
        Self::error(StatusCode::NOT_FOUND, "File Not Found", "not found")
    }

    /// A redirect to `url` with a small page (H2O compatibility), its fields behind those of `headers`.
    #[must_use]
    pub fn redirect(
        headers: Headers,
        status: StatusCode,
        reason: &'static str,
        url: &[u8],
    ) -> Self {
        Self::redirect_to(headers, status, reason, url.len(), |page| {
            page.extend_from_slice(url);
        })
    }

    /// As [`Response::redirect`], for a URL of about `len` bytes that `write` appends to the page.
    #[inline]
    #[must_use]
    pub fn redirect_to(
        mut headers: Headers,
        status: StatusCode,
        reason: &'static str,
        len: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Self {
        const START: &[u8] =
            b"<!DOCTYPE html><TITLE>Moved</TITLE><P>The document has moved <A HREF=\"";
        const END: &[u8] = b"\">here</A>";
        // Mostly as long as it will be: then it is not copied again.
        let mut page = Vec::with_capacity(START.len() + len + END.len());
        page.extend_from_slice(START);
        write(&mut page);
        headers.push(Known::Location, &page[START.len()..]);
        if !h2o_http::escape::is_plain_html(&page[START.len()..]) {
            let url = page.split_off(START.len());
            h2o_http::escape::html(&url, &mut page);
        }
        page.extend_from_slice(END);
        headers.push(Known::ContentType, b"text/html; charset=utf-8");
        let mut response = Self::new(status, headers, Body::Bytes(page.into()));
        response.reason = Some(Cow::Borrowed(reason));
        response
    }
}

/// Which limit an internal redirect counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RerouteKind {
    /// Another resource is fetched in place of this one (`max-delegations`).
    Delegation,
    /// The request is handed on (`max-reprocesses`).
    Reprocess,
}

/// How many internal redirects a request has gone through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reroutes {
    /// Those that count against `max-delegations`.
    pub delegations: u32,
    /// Those that count against `max-reprocesses`.
    pub reprocesses: u32,
}

/// The fields of the request that stay when it is run again. Those left out are put aside until the final response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RerouteFields {
    /// All of them.
    All,
    /// All but `authorization` and `cookie`: the client has given them to another origin.
    WithoutCredentials,
    /// None (error documents).
    None,
}

/// Who names the place where a request is run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// The configuration, which may name Unix-domain sockets.
    Configuration,
    /// A response, which may not.
    Response,
}

/// Applied to the final response of a rerouted request before its filters run.
pub type Restore = Box<dyn FnOnce(&mut Exchange, &mut Response)>;

/// Asked in place of the handlers of a path.
pub type Successor = Box<dyn FnOnce(&mut Exchange) -> Outcome>;

/// An order to run the request again at another place: of this site, or of another server where no host entry has the
/// name.
pub struct Reroute {
    /// What it counts as.
    pub kind: RerouteKind,
    /// The method from now on.
    pub method: Method,
    /// Absolute URL, absolute path, or path relative to the current one; that is the one an upstream server was asked for, if
    /// one was.
    pub url: Vec<u8>,
    /// Who is asked, where the redirect of an upstream server leads to that server: only the path of `url` is then of
    /// interest. `None`: it is to be found out.
    pub successor: Option<Successor>,
    /// False: the request body is dropped.
    pub keep_body: bool,
    /// The fields that the other resource is asked for with.
    pub fields: RerouteFields,
    /// Who names `url`.
    pub named_by: NamedBy,
    /// Applied to the final response before its filters run.
    pub restore: Option<Restore>,
    /// The answer if `url` cannot be understood.
    pub unresolved: fn() -> Response,
}

impl Reroute {
    /// An order to fetch the resource at `url` in place of this one.
    #[must_use]
    pub fn to(url: Vec<u8>, method: Method, keep_body: bool) -> Self {
        Self {
            kind: RerouteKind::Delegation,
            method,
            url,
            successor: None,
            keep_body,
            fields: RerouteFields::All,
            named_by: NamedBy::Configuration,
            restore: None,
            unresolved: || {
                Response::error(StatusCode::BAD_GATEWAY, "Gateway Error", "internal error")
            },
        }
    }
}

/// What a handler does with the content of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentUse {
    /// Nothing: it answers, or declines, without.
    None,
    /// It needs all of it when it is asked.
    Whole,
    /// It pulls the content while it arrives ([`crate::RequestBody::Stream`]). Only such handlers can open tunnels.
    Stream,
}

/// Answers requests. Built once from the configuration and shared by all workers; what a worker keeps
/// for itself is in [`crate::Worker::local`].
pub trait Handler: Send + Sync {
    /// Takes or declines a request. Must not wait.
    fn on_request(&self, exchange: &mut Exchange) -> Outcome;

    /// What the handler does with the content of a request whose head and route are known. Among the handlers of a path, the
    /// first one that has a use for the content decides whether they are asked before or after it has come; if none has,
    /// they are asked at once, and the content is not taken off the client.
    fn content_use(&self, exchange: &Exchange) -> ContentUse {
        let _ = exchange;
        ContentUse::Whole
    }

    /// Whether a handler that streams is to be asked before the client that expects `100 Continue` sends its content: it
    /// leaves the interim response in [`Exchange::informational`].
    fn meets_expectations(&self) -> bool {
        false
    }

    /// True if a response that is not there at once comes from somebody else, such as a backend: clients get the early hints of
    /// the path meanwhile ([`Filter::early_hints`]). The disk is not worth any.
    fn waits_for_others(&self) -> bool {
        false
    }
}

/// All that can follow when a filter has seen a response.
pub enum Filtered {
    /// The next filter is asked.
    Continue,
    /// The response is dropped and the request run again; the remaining filters do not see it.
    Reroute(Reroute),
}

/// Edits responses.
pub trait Filter: Send + Sync {
    /// Sees the head once, in the fixed order of filters, and may wrap the body.
    fn on_response(&self, exchange: &mut Exchange, response: &mut Response) -> Filtered;

    /// True if [`Filter::on_response`] wants to know what happened at upstream servers, and when.
    fn wants_trace(&self) -> bool {
        false
    }

    /// Fields of a `103 Early Hints` (RFC 8297) that clients get while they wait for a handler's response.
    fn early_hints(&self) -> Option<&Headers> {
        None
    }
}

/// Writes a line about an exchange that is over.
pub trait Logger: Send + Sync {
    /// Called once, when the response has been sent or cut off.
    fn log(&self, exchange: &Exchange);

    /// True if the fields as they were before the filters are to be kept for [`Logger::log`].
    fn wants_unfiltered_headers(&self) -> bool {
        false
    }

    /// True if [`Logger::log`] wants to know what happened at upstream servers, and when.
    fn wants_trace(&self) -> bool {
        false
    }
}
