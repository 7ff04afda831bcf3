//! One request with its response.

use std::cell::RefCell;
use std::fmt::Write;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use h2o_http::{Headers, Method, RequestHead, Scheme, StatusCode};
use h2o_log::LineLimit;

use crate::{
    Address, BodyError, ClientOrigin, ConnectionInfo, ExchangeRef, ForwardedRequest, LocalSite,
    Premise, Protocol, PushOrder, RequestBody, RerouteKind, Reroutes, Response, Restore, Route,
    SubRequest, Worker,
};

/// Limits the number of lines about requests with too many internal redirects in the error log.
static REROUTED_TOO_OFTEN: LineLimit = LineLimit::per_minute(6);

/// One request with its response, from the first byte of the head to the log line.
pub struct Exchange {
    /// The request as it is now: internal redirects may have changed it.
    pub request: RequestHead,
    /// Method, authority and target as received from the client, if an internal redirect has changed them.
    pub original: Option<Box<OriginalRequest>>,
    /// The request body.
    pub body: RequestBody,
    /// The connection over which the client sent the request.
    pub connection: Rc<ConnectionInfo>,
    /// How the client's address is known: from the connection, or from a trusted proxy.
    pub client: ClientOrigin,
    /// The worker of the connection.
    pub worker: Rc<Worker>,
    /// The site configuration that was in force when the request began. A reload does not change it.
    pub site: Rc<LocalSite>,
    /// The host and path chosen for the request.
    pub route: Route,
    /// Request variables, set by `setenv` directives and scripts.
    pub env: Vec<(Arc<str>, Arc<[u8]>)>,
    /// Times of the request's steps, such as the arrival of its head.
    pub timings: Timings,
    /// Authority and target of the request as it was sent to a backend; empty if it was sent to none.
    pub forwarded: ForwardedRequest,
    /// Text of the request's errors that [`Exchange::note_error`] recorded; access logs print it by `%{error}x`.
    pub errors: String,
    /// Status, fields and size of the response as it was sent to the client.
    pub sent: SentResponse,
    /// The protocol version of the request.
    pub protocol: Protocol,
    /// Whether the request was received as TLS early data (RFC 8470) and the handshake is not complete: it may be a
    /// replay.
    pub is_early: bool,
    /// Whether the request's scheme contradicts that of its connection. Such a request is answered with 421 without
    /// running handlers (RFC 9110 §7.4).
    pub is_misdirected: bool,
    /// Interim responses (1xx) that the handler wants to send, in order. The connection takes them after polling the
    /// handler.
    pub informational: Vec<(StatusCode, Headers)>,
    /// Whether a `103 Early Hints` response was sent, with the hints that are configured for the path.
    pub is_hinted: bool,
    /// Whether the guards of the path (such as access control) have run and let the request through before its body was
    /// collected. They are then skipped when the handlers run.
    pub has_passed_guards: bool,
    /// Resources to push over HTTP/2 with the response.
    pub pushes: Vec<PushOrder>,
    /// Number of internal redirects that the request has made so far.
    pub reroutes: Reroutes,
    /// Whether the request was delegated: a request for another resource has taken its place.
    pub is_delegated: bool,
    /// Whether the request is forwarded to a server that was named not in the configuration but by a redirect, an error
    /// document or a backend. Responses of such a server cannot cause internal redirects.
    pub has_unconfigured_target: bool,
    /// Number of bytes of the request body that have arrived.
    pub request_body_bytes: u64,
    /// Whether an error document is being fetched to replace the response. This happens at most once per request.
    pub awaits_error_document: bool,
    /// All header fields of the client's request, saved while the request is rerun with only some of them.
    pub saved_headers: Option<Headers>,
    /// A function that is applied to the final response of a rerun request, before the filters run.
    pub restore: Option<Restore>,
    /// MIME attributes of the response's body, set by a handler that knows them better than the `content-type` field
    /// tells.
    pub mime: Option<MimeHint>,
    /// The script file of the request. Only set while `file.custom-handler` runs a handler for that file.
    pub script: Option<ScriptPath>,
    /// The value of `error-log.emit-request-errors` of the `file.custom-handler` that has taken the request; `None`: that
    /// of the path counts.
    pub emit_request_errors: Option<bool>,
    /// What the response depends on besides the request, if the handler knows that. Filters and redirects clear it.
    pub premise: Option<Rc<dyn Premise>>,
    /// Index of the handler that is running or ran last, among the handlers of the path.
    pub handler: usize,
    /// Set if the request was made by a handler of this server, not by a client.
    pub sub_request: Option<Box<SubRequest>>,
    /// A field block whose memory the next response reuses.
    spare: Headers,
    /// Weak reference to this exchange itself, if a worker created it.
    this: Weak<RefCell<Self>>,
}

/// MIME attributes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MimeHint {
    /// Whether the content of the file is worth compressing.
    pub compressible: bool,
    /// Whether browsers need files of this type before they render the page; such files are sent before others.
    pub highest_priority: bool,
}

/// The file for which `file.custom-handler` runs a handler. Valid during [`crate::Handler::on_request`]; a handler that
/// responds later takes or copies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptPath {
    /// `SCRIPT_NAME`: the part of the normalised path that names the file, including the name of an index file.
    pub name: Vec<u8>,
    /// The path of the script file, for `SCRIPT_FILENAME`.
    pub file: Vec<u8>,
    /// `PATH_INFO`: the rest of the normalised path of the request, after the part in `name`.
    pub path_info: Option<Vec<u8>>,
}

/// Method, scheme, authority and target of a request as the client sent them.
#[derive(Debug)]
pub struct OriginalRequest {
    /// The method that the client sent.
    pub method: Method,
    /// The scheme that the client sent.
    pub scheme: Scheme,
    /// The authority that the client sent; empty if it sent none.
    pub authority: Vec<u8>,
    /// The path and query that the client sent.
    pub target: Vec<u8>,
}

/// Times of a request's steps, for logs and `server-timing`, by the worker's coarse clock.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// When the first byte of the request was received.
    pub begun: Instant,
    /// When the head of the request was complete.
    pub head: Option<Instant>,
    /// When the handlers started: the request body was complete then, or was streamed to them.
    pub processed: Option<Instant>,
    /// Wall-clock time of `processed`, since the Unix epoch.
    pub processed_at: Duration,
    /// When the response to the client began.
    pub response_start: Option<Instant>,
    /// When the response to the client was sent completely or was truncated.
    pub response_end: Option<Instant>,
}

/// The response as sent, for logs.
#[derive(Default)]
pub struct SentResponse {
    /// Status of the response as sent; `None` if no response was sent.
    pub status: Option<StatusCode>,
    /// Status of the handler's response, before filters and error documents changed it.
    pub first_status: Option<StatusCode>,
    /// Header fields of the response as sent to the client.
    pub headers: Headers,
    /// Header fields of the response before the filters changed them; kept only if a logger uses them.
    pub unfiltered: Option<Headers>,
    /// Bytes of the encoded response head, including interim (1xx) responses before it.
    pub header_bytes: u64,
    /// Number of bytes of the response body that were sent.
    pub body_bytes: u64,
}

impl Exchange {
    /// Creates an exchange. Normally exchanges are reused: see [`Worker::exchange`].
    #[must_use]
    pub fn new(worker: Rc<Worker>, site: Rc<LocalSite>, connection: Rc<ConnectionInfo>) -> Self {
        let timings = Timings::starting(worker.clock.now());
        Self {
            request: RequestHead::default(),
            original: None,
            body: RequestBody::None,
            connection,
            client: ClientOrigin::Peer,
            worker,
            site,
            route: Route::default(),
            env: Vec::new(),
            timings,
            forwarded: ForwardedRequest::default(),
            errors: String::new(),
            sent: SentResponse::default(),
            protocol: Protocol::default(),
            is_early: false,
            is_misdirected: false,
            informational: Vec::new(),
            is_hinted: false,
            has_passed_guards: false,
            pushes: Vec::new(),
            reroutes: Reroutes::default(),
            is_delegated: false,
            has_unconfigured_target: false,
            awaits_error_document: false,
            request_body_bytes: 0,
            saved_headers: None,
            restore: None,
            mime: None,
            script: None,
            emit_request_errors: None,
            premise: None,
            handler: 0,
            sub_request: None,
            spare: Headers::new(),
            this: Weak::new(),
        }
    }

    /// Creates an exchange that can return its own [reference](Self::reference).
    pub(crate) fn shared(
        worker: Rc<Worker>,
        site: Rc<LocalSite>,
        connection: Rc<ConnectionInfo>,
    ) -> ExchangeRef {
        Rc::new_cyclic(|this| {
            let mut exchange = Self::new(worker, site, connection);
            exchange.this = Weak::clone(this);
            RefCell::new(exchange)
        })
    }

    /// A reference to this exchange, for the futures of [`crate::Outcome::Later`]. `None` if no
    /// [worker](Worker::exchange) created it.
    #[must_use]
    pub fn reference(&self) -> Option<ExchangeRef> {
        self.this.upgrade()
    }

    /// Prepares the exchange for the next request of `connection` and keeps its memory. The engine then fills in the
    /// request head.
    pub fn reset(&mut self, site: &Rc<LocalSite>, connection: &Rc<ConnectionInfo>) {
        self.rewind();
        if !Rc::ptr_eq(&self.connection, connection) {
            self.connection = Rc::clone(connection);
        }
        if !Rc::ptr_eq(&self.site, site) {
            self.site = Rc::clone(site);
        }
    }

    /// Frees header field blocks whose memory has grown above `limit` bytes.
    pub(crate) fn shrink(&mut self, limit: usize) {
        self.request.headers.shrink(limit);
        self.sent.headers.shrink(limit);
        self.spare.shrink(limit);
    }

    /// Bytes of memory that the exchange holds: request and response head, and a request body in memory.
    #[must_use]
    pub fn retained(&self) -> usize {
        self.request.headers.retained() + self.sent.headers.retained() + self.body.retained()
    }

    /// Like [`Exchange::reset`], for another request of the same connection and site configuration.
    #[inline]
    pub fn rewind(&mut self) {
        self.original = None;
        self.client = ClientOrigin::Peer;
        self.body = RequestBody::None;
        self.route = Route::default();
        self.env.clear();
        self.forwarded.clear();
        self.errors.clear();
        // Keeps the memory of the last response's fields for the next one. If the last request had no response, the
        // memory of an earlier one stays.
        if self.sent.headers.retained() > 0 {
            self.spare = std::mem::take(&mut self.sent.headers);
            self.spare.clear();
        }
        self.sent = SentResponse::default();
        self.protocol = Protocol::default();
        self.is_early = false;
        self.is_misdirected = false;
        self.informational.clear();
        self.is_hinted = false;
        self.has_passed_guards = false;
        self.pushes.clear();
        self.reroutes = Reroutes::default();
        self.is_delegated = false;
        self.has_unconfigured_target = false;
        self.awaits_error_document = false;
        self.request_body_bytes = 0;
        self.saved_headers = None;
        self.restore = None;
        self.mime = None;
        self.script = None;
        self.emit_request_errors = None;
        self.premise = None;
        self.sub_request = None;
    }

    /// An empty block of header fields for the response. It reuses the memory of an earlier response's fields.
    #[must_use]
    pub fn headers(&mut self) -> Headers {
        let mut headers = std::mem::take(&mut self.spare);
        headers.clear();
        headers
    }

    /// The client's address, for logs, access lists and backends: the one that a trusted proxy has sent, or else the
    /// peer's address.
    #[must_use]
    pub fn client_address(&self) -> Address {
        match self.client {
            ClientOrigin::Proxy {
                client: Some(client),
            } => Address::Ip(client),
            ClientOrigin::Peer | ClientOrigin::Proxy { client: None } => self.connection.peer,
        }
    }

    /// The method that the client sent, before internal redirects.
    #[must_use]
    pub fn original_method(&self) -> &Method {
        self.original
            .as_ref()
            .map_or(&self.request.method, |original| &original.method)
    }

    /// The scheme that the client sent.
    #[must_use]
    pub fn original_scheme(&self) -> Scheme {
        self.original
            .as_ref()
            .map_or(self.request.scheme, |original| original.scheme)
    }

    /// The authority that the client sent; empty if it sent none.
    #[must_use]
    pub fn original_authority(&self) -> &[u8] {
        self.original
            .as_ref()
            .map_or_else(|| self.request.authority(), |original| &original.authority)
    }

    /// The path and query that the client sent.
    #[must_use]
    pub fn original_target(&self) -> &[u8] {
        self.original
            .as_ref()
            .map_or_else(|| self.request.target(), |original| &original.target)
    }

    /// Counts an internal redirect: a rerun of the request, or its forwarding to a backend. H2O compatibility: as in
    /// H2O, once a request was delegated, all of its further redirects count against `max-delegations`.
    ///
    /// # Errors
    /// The error response to send, if the request has exceeded the limit of internal redirects.
    pub fn count_reroute(&mut self, kind: RerouteKind) -> Result<(), Box<Response>> {
        let limits = &self.site.reroute_limits;
        let is_delegation = self.is_delegated || kind == RerouteKind::Delegation;
        let (count, limit) = if is_delegation {
            (&mut self.reroutes.delegations, limits.delegations)
        } else {
            (&mut self.reroutes.reprocesses, limits.reprocesses)
        };
        *count += 1;
        if *count > limit {
            return Err(self.rerouted_too_often(is_delegation));
        }
        self.is_delegated = is_delegation;
        Ok(())
    }

    #[cold]
    fn rerouted_too_often(&mut self, is_delegation: bool) -> Box<Response> {
        let text = if is_delegation {
            "too many internal delegations"
        } else {
            "too many internal reprocesses"
        };
        let status = StatusCode::BAD_GATEWAY;
        self.worker.counters.count_status(status);
        self.note_error_within(&REROUTED_TOO_OFTEN, "core", text);
        Box::new(Response::error(status, "Gateway Error", text))
    }

    /// The value of the request variable `name`.
    #[must_use]
    pub fn env(&self, name: &str) -> Option<&[u8]> {
        self.env
            .iter()
            .find(|(key, _)| &**key == name)
            .map(|(_, value)| &**value)
    }

    /// Sets the request variable `name`.
    pub fn set_env(&mut self, name: &Arc<str>, value: &Arc<[u8]>) {
        match self.env.iter_mut().find(|(key, _)| key == name) {
            Some((_, old)) => *old = Arc::clone(value),
            None => self.env.push((Arc::clone(name), Arc::clone(value))),
        }
    }

    /// Removes the request variable `name`.
    pub fn unset_env(&mut self, name: &str) {
        self.env.retain(|(key, _)| &**key != name);
    }

    /// Records an error of this request. Access logs print it by `%{error}x` (H2O compatibility: as in H2O, several
    /// errors are concatenated without separator), and it goes to the error log unless `error-log.emit-request-errors`
    /// is off. `label` names the component. If the request was forwarded, the line has authority and target as sent to
    /// the backend.
    pub fn note_error(&mut self, label: &str, message: &str) {
        let start = self.describe_error(label, message);
        self.report_error(&self.errors[start..], None);
    }

    /// Passes an error on to the handler that has made this sub-request, or to the error log, where `limit` limits the number of lines.
    fn report_error(&self, line: &str, limit: Option<&LineLimit>) {
        let sink = self.sub_request.as_ref();
        if let Some(sink) = sink.and_then(|request| request.on_error.as_ref()) {
            sink(line);
        } else if self.emits_request_errors() {
            match limit.map(LineLimit::admit) {
                None => h2o_log::report!(error, "{line}"),
                Some(Some(held_back)) => h2o_log::report!(error, "{line}{held_back}"),
                Some(None) => {}
            }
        }
    }

    /// Whether errors of this request go to the error log (`error-log.emit-request-errors`).
    #[must_use]
    pub fn emits_request_errors(&self) -> bool {
        self.emit_request_errors
            .unwrap_or_else(|| self.site.path(self.route).emit_request_errors)
    }

    /// Records a line that a script has written for the error log: like [`Exchange::note_error`], without a label.
    pub fn note_line(&mut self, line: &str) {
        self.errors.push_str(line);
        self.report_error(line, None);
    }

    /// Like [`Exchange::note_error`], for errors that clients can cause as often as they like: `limit` limits the
    /// number of lines in the error log.
    pub fn note_error_within(&mut self, limit: &LineLimit, label: &str, message: &str) {
        let start = self.describe_error(label, message);
        self.report_error(&self.errors[start..], Some(limit));
    }

    /// Appends a line to the recorded errors of this request. Returns the offset at which it begins.
    fn describe_error(&mut self, label: &str, message: &str) -> usize {
        let is_connect =
            matches!(self.request.method, Method::Connect if self.request.upgrade().is_empty());
        // A CONNECT request has no path: its target is the authority, which the error line has already.
        let target = if is_connect {
            &[][..]
        } else {
            self.request.target()
        };
        let request = (self.request.authority(), target);
        let (authority, target) = self.forwarded.place().unwrap_or(request);
        let (authority, path) = (cut(authority, 64), cut(target, 32));
        let start = self.errors.len();
        let text = format_args!("[{label}] in request:{authority}{path}:{message}");
        // Writing to a `String` cannot fail.
        let _ = self.errors.write_fmt(text);
        start
    }

    /// The label of errors of CONNECT and CONNECT-UDP in the log. H2O compatibility: the name of H2O's file.
    pub const CONNECT_LABEL: &str = "lib/handler/connect.c";

    /// Like [`Exchange::note_error`], for a tunnel that its handler has given up.
    pub fn note_tunnel_error(&mut self, reason: &str) {
        let label = match self.forwarded.place() {
            Some(_) => ForwardedRequest::LABEL,
            None => Self::CONNECT_LABEL,
        };
        self.note_error(label, reason);
    }

    /// Like [`Exchange::note_error`], for a response whose body cannot be completed.
    pub fn note_body_error(&mut self, error: &BodyError) {
        if let BodyError::Reported(_) = error {
            return;
        }
        let label = match self.forwarded.place() {
            Some(_) => ForwardedRequest::LABEL,
            None => "core",
        };
        self.note_error(label, &error.to_string());
    }
}

/// The first bytes of `text`, with dots at its end if it has `limit` bytes or more. Other bytes than printable ASCII
/// characters are escaped.
fn cut(text: &[u8], limit: usize) -> String {
    if text.len() < limit {
        return text.escape_ascii().to_string();
    }
    format!("{}...", text[..limit - 3].escape_ascii())
}

impl Timings {
    /// The times of a request whose first byte has arrived at the time `now`.
    #[must_use]
    pub const fn starting(now: Instant) -> Self {
        Self {
            begun: now,
            head: None,
            processed: None,
            processed_at: Duration::ZERO,
            response_start: None,
            response_end: None,
        }
    }
}

/// The `setenv` and `unsetenv` commands that apply to one path, outermost configuration level first. H2O compatibility:
/// as in H2O, each level applies its unsets before its sets.
#[derive(Clone, Debug, Default)]
pub struct EnvCommands {
    levels: Vec<EnvLevel>,
}

#[derive(Clone, Debug, Default)]
struct EnvLevel {
    unset: Vec<Arc<str>>,
    set: Vec<(Arc<str>, Arc<[u8]>)>,
}

impl EnvCommands {
    /// Begins the commands of an inner configuration level.
    pub fn push_level(&mut self) {
        self.levels.push(EnvLevel::default());
    }

    fn innermost(&mut self) -> &mut EnvLevel {
        if self.levels.is_empty() {
            self.push_level();
        }
        self.levels
            .last_mut()
            .expect("a level was pushed above if the list had none")
    }

    /// Adds a `setenv` command to the innermost configuration level.
    pub fn set(&mut self, name: &str, value: &str) {
        (self.innermost().set).push((name.into(), value.as_bytes().into()));
    }

    /// Adds an `unsetenv` command to the innermost configuration level.
    pub fn unset(&mut self, name: &str) {
        self.innermost().unset.push(name.into());
    }

    /// Whether there are no `setenv` and `unsetenv` commands.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.levels
            .iter()
            .all(|level| level.unset.is_empty() && level.set.is_empty())
    }

    /// Applies the `setenv` and `unsetenv` commands to the variables of a request.
    pub fn apply(&self, exchange: &mut Exchange) {
        for level in &self.levels {
            for name in &level.unset {
                exchange.unset_env(name);
            }
            for (name, value) in &level.set {
                exchange.set_env(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_limit_are_cut() {
        assert_eq!(cut(&[b'a'; 31], 32), "a".repeat(31));
        assert_eq!(cut(&[b'a'; 32], 32), "a".repeat(29) + "...");
        assert_eq!(cut(&[b'a'; 99], 64), "a".repeat(61) + "...");
    }
}
