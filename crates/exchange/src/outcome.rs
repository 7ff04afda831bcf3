//! Results of handlers and filters.

use std::borrow::Cow;
use std::pin::Pin;

use bytes::Bytes;
use h2o_http::{Headers, Known, Method, StatusCode};

use crate::{Body, Exchange};

/// A boxed future that stays on its worker.
pub type LocalBoxFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// The result of a handler.
pub enum Outcome {
    /// The handler does not take the request: the next handler of the path runs.
    Declined,
    /// The handler has a response.
    Done(Response),
    /// The response comes later: the connection that owns the exchange polls this future, without borrowing the
    /// exchange. The future may borrow it (see [`Exchange::reference`]), but not across an await.
    Later(LocalBoxFuture<Self>),
    /// The server runs the request again with another URL.
    Reroute(Reroute),
    /// The handlers after this one run, and the server passes their response to this function before any filter sees
    /// it. The result of the function replaces the response.
    Next(Continuation),
}

/// What a handler does with the response of later handlers.
pub type Continuation = Box<dyn FnOnce(&mut Exchange, Response) -> Outcome>;

/// The final response of a handler.
pub struct Response {
    /// The status code of the response.
    pub status: StatusCode,
    /// The reason phrase of the response; `None` for the standard phrase of its status.
    pub reason: Option<Cow<'static, str>>,
    /// The header fields of the response, without `content-length`, `connection`, `transfer-encoding` and `server`.
    pub headers: Headers,
    /// Length of the body in bytes, if known. It is also sent in responses without body, such as those to HEAD.
    pub length: Option<u64>,
    /// The body of the response. Engines drop it where the request or the status forbids one.
    pub body: Body,
    /// What the server does with the `link` fields of the response.
    pub links: LinkHeaderUse,
    /// Whether the server should compress the response, as its backend requested.
    pub compress_hint: CompressHint,
    /// Whether to close an HTTP/1 connection after this response.
    pub closes: bool,
    /// Whether to send no response but report that the request was not processed, so that the client may retry (RFC
    /// 9113 §8.7). H2O compatibility: as in H2O, an HTTP/1 connection is closed without a response.
    pub is_refusal: bool,
    /// Whether the body is a short error text written by the server. For clients that prefer HTML the server replaces
    /// it by a page.
    pub is_plain_error: bool,
    /// Whether to send no `date` field if the response has none.
    pub is_undated: bool,
}

/// What the server does with the `link` fields of a response. H2O compatibility: as in H2O, it depends on the kind of
/// handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkHeaderUse {
    /// The `link` fields only go to the client: static files, redirects, errors.
    #[default]
    Plain,
    /// Links with `rel=preload` make the server push the resource they name (responses of FastCGI backends).
    Push,
    /// Like [`LinkHeaderUse::Push`]; links with `x-http2-push-only` are removed from the field (proxy, scripts).
    PushAndFilter,
}

/// Value of `x-compress-hint` in a backend's response: whether the server should compress it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressHint {
    /// The server decides by the length and the type of the response.
    #[default]
    Auto,
    /// The response is compressed, whatever its length and type.
    Always,
    /// Like [`CompressHint::Always`], but by brotli only.
    Brotli,
    /// Like [`CompressHint::Always`], but by zstd only.
    Zstd,
    /// Like [`CompressHint::Always`], but by gzip only.
    Gzip,
    /// The response is not compressed.
    Never,
}

impl CompressHint {
    /// Reads the value of an `x-compress-hint` field; letter case is ignored, unknown values are read as `auto`.
    #[must_use]
    pub fn parse(value: &[u8]) -> Self {
        match value.to_ascii_lowercase().as_slice() {
            b"on" => Self::Always,
            b"br" => Self::Brotli,
            b"zstd" => Self::Zstd,
            b"gzip" => Self::Gzip,
            b"off" => Self::Never,
            _ => Self::Auto,
        }
    }
}

impl Response {
    /// Creates a response with this body. Its length is that of the body, if known.
    #[must_use]
    pub fn new(status: StatusCode, headers: Headers, body: Body) -> Self {
        Self {
            status,
            reason: None,
            headers,
            length: body.len(),
            body,
            links: LinkHeaderUse::Plain,
            compress_hint: CompressHint::Auto,
            closes: false,
            is_refusal: false,
            is_plain_error: false,
            is_undated: false,
        }
    }

    /// The reason phrase to send: the one set, or else the standard phrase of the status.
    #[must_use]
    pub fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or(self.status.reason())
    }

    /// The response 425 of a handler that does not serve requests in TLS early data (RFC 8470 §5.2).
    #[must_use]
    pub fn too_early() -> Self {
        let text = "Too Early";
        Self::error(StatusCode::TOO_EARLY, text, text)
    }

    /// An error response whose body is a short text (H2O compatibility: it has H2O's form).
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

    /// The 404 response, for requests that no handler takes (H2O compatibility: its text is H2O's).
    #[must_use]
    pub fn not_found() -> Self {
        Self::error(StatusCode::NOT_FOUND, "File Not Found", "not found")
    }

    /// A redirect to `url`, with a small HTML page as its body (H2O compatibility: the page is H2O's). The redirect's
    /// fields are added to `headers`.
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

    /// Like [`Response::redirect`], for a URL that the function `write` appends to the page; `len` is about its length.
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
        // The estimated size is usually the exact size of the page, so that its memory is not copied again to grow or
        // shrink.
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

/// The limit that an internal redirect counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RerouteKind {
    /// `max-delegations`: a request for another resource takes the place of this one.
    Delegation,
    /// `max-reprocesses`: the request is forwarded to a backend under another URL.
    Reprocess,
}

/// Number of internal redirects that a request has made so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reroutes {
    /// Number of redirects counted against `max-delegations`.
    pub delegations: u32,
    /// Number of redirects counted against `max-reprocesses`.
    pub reprocesses: u32,
}

/// Which header fields the request keeps when it is rerun after an internal redirect. The removed ones are restored for
/// the final response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RerouteFields {
    /// All header fields are kept.
    All,
    /// All fields are kept but `authorization` and `cookie`, which the client meant for another origin.
    WithoutCredentials,
    /// No header field is kept: the rerun request fetches an error document.
    None,
}

/// Whether the configuration or a response chose the URL of an internal redirect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// The configuration chose the URL. Such URLs may name Unix sockets.
    Configuration,
    /// A response chose the URL. Such URLs may not name Unix sockets.
    Response,
}

/// A function that is applied to the final response of a rerun request, before its filters run.
pub type Restore = Box<dyn FnOnce(&mut Exchange, &mut Response)>;

/// A function that runs in place of the handlers of a path.
pub type Successor = Box<dyn FnOnce(&mut Exchange) -> Outcome>;

/// A handler's order to rerun the request with another URL: on this site, or on another server if no host of the site
/// has the URL's name.
pub struct Reroute {
    /// The limit that the internal redirect counts against.
    pub kind: RerouteKind,
    /// The method of the rerun request.
    pub method: Method,
    /// The URL of the rerun request: an absolute URL, an absolute path, or a path relative to the current one (to the
    /// backend's path, if the request was forwarded).
    pub url: Vec<u8>,
    /// The function that handles the rerun request, set if a backend's redirect points to that backend; only the path
    /// of `url` matters then. `None`: the host and path for `url` are looked up.
    pub successor: Option<Successor>,
    /// Whether the rerun request has the request's body.
    pub keep_body: bool,
    /// Which header fields the rerun request keeps.
    pub fields: RerouteFields,
    /// Whether the configuration or a response chose `url`.
    pub named_by: NamedBy,
    /// A function that is applied to the final response of the rerun request, before its filters run.
    pub restore: Option<Restore>,
    /// The response to the client if `url` is not a valid URL.
    pub unresolved: fn() -> Response,
}

impl Reroute {
    /// Creates an order to fetch the resource at `url` in place of the requested one, with the body of the request.
    #[must_use]
    pub fn to(url: Vec<u8>, method: Method) -> Self {
        Self {
            kind: RerouteKind::Delegation,
            method,
            url,
            successor: None,
            keep_body: true,
            fields: RerouteFields::All,
            named_by: NamedBy::Configuration,
            restore: None,
            unresolved: || {
                Response::error(StatusCode::BAD_GATEWAY, "Gateway Error", "internal error")
            },
        }
    }
}

/// What a handler needs of the request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyUse {
    /// The handler needs no byte of the body: it responds or declines without it.
    None,
    /// The handler needs the whole body before it runs.
    Whole,
    /// The handler pulls the body while it arrives ([`crate::RequestBody::Stream`]). Only such handlers can open
    /// tunnels.
    Stream,
}

/// The internal redirect that a handler orders on the head of a request, before the body has arrived.
pub enum EarlyReroute {
    /// The handler orders no redirect, or one that does not lead to a path of the site, or it cannot tell without the
    /// body.
    None,
    /// The handler declines the request, whatever the body contains.
    Declines,
    /// The handler orders this redirect.
    Now(Reroute),
    /// The handler has to look at the disk first. The future returns one of the other variants.
    Later(LocalBoxFuture<Self>),
}

/// A handler, which answers requests. It is created from the configuration and shared by all workers; state of a worker
/// belongs in [`crate::Worker::local`].
pub trait Handler: Send + Sync {
    /// Responds to a request, or declines it. Must not block.
    fn on_request(&self, exchange: &mut Exchange) -> Outcome;

    /// For guards that let only some clients through: a number that identifies the rules by which they decide. Guards of paths that inherit
    /// the same rules have the same number. `None` for all other handlers.
    fn access_rules(&self) -> Option<usize> {
        None
    }

    /// Whether the handler looks up paths of requests in a file system, which takes `//name` for `/name`.
    fn reads_files(&self) -> bool {
        false
    }

    /// What the handler needs of the body of this request, whose head and route are known. The first handler of the
    /// path that needs the body decides whether handlers run before or after the body has arrived. If no handler needs
    /// the body, handlers run at once and it is not read.
    fn body_use(&self, _exchange: &Exchange) -> BodyUse {
        BodyUse::Whole
    }

    /// Returns the internal redirect that this handler orders for a request with this head, whatever the body contains.
    /// The server carries out the redirect before it receives the body, if the guards of the path let the request
    /// through and all handlers between the guards and this one return [`EarlyReroute::Declines`].
    fn early_reroute(&self, _: &Exchange) -> EarlyReroute {
        EarlyReroute::None
    }

    /// Whether a streaming handler runs before a client that expects `100 Continue` sends its body: the handler then
    /// puts the interim response into [`Exchange::informational`].
    fn handles_expect(&self) -> bool {
        false
    }

    /// Whether a response of [`Outcome::Later`] waits for another party, such as a backend or a script, so that it is worth sending
    /// the early hints of the path meanwhile ([`Filter::early_hints`]). Waiting for the disk is too short for that.
    fn waits_for_backend(&self) -> bool {
        false
    }
}

/// The result of a filter.
pub enum FilterResult {
    /// The next filter runs.
    Continue,
    /// The server drops the response and reruns the request. Later filters do not see the dropped response.
    Reroute(Reroute),
}

/// A filter, which changes responses before they are sent.
pub trait Filter: Send + Sync {
    /// Changes the head of the response, and may wrap its body. Called once per response; filters run in a fixed order.
    fn on_response(&self, exchange: &mut Exchange, response: &mut Response) -> FilterResult;

    /// Whether [`Filter::on_response`] uses the timing trace of requests to backends.
    fn wants_trace(&self) -> bool {
        false
    }

    /// Header fields of the `103 Early Hints` response (RFC 8297) that is sent to clients while they wait for the final
    /// one.
    fn early_hints(&self) -> Option<&Headers> {
        None
    }
}

/// A logger, which writes a log line about each finished exchange.
pub trait Logger: Send + Sync {
    /// Writes the log line. Called once per request, when the response has been sent or truncated.
    fn log(&self, exchange: &Exchange);

    /// Whether [`Logger::log`] uses the response's header fields as they were before the filters.
    fn wants_unfiltered_headers(&self) -> bool {
        false
    }

    /// Whether [`Logger::log`] uses the timing trace of requests to backends.
    fn wants_trace(&self) -> bool {
        false
    }
}
