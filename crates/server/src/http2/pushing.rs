//! Server push (RFC 9113 §8.4): what is promised with a response, and what is not because the client is believed to
//! have it.
//!
//! A push is asked for as any request is, before it is promised: what turns out not to be there needs no promise. The
//! promises are written ahead of the head of the response they come with, the pushed responses behind it.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::task::{Context as TaskContext, Waker};

use h2o_exchange::{Exchange, ExchangeRef, Http2Stream, Protocol, PushOrder, Response, Timings};
use h2o_http::{Known, Method, Name, RequestHead, Scheme, Version};
use h2o_http2::{SchedulingHint, State, StreamKey};

use super::streams::{Http2Streams, blocks_rendering, scheduling_hint, slot};
use crate::flow::Turn;
use crate::request::routing;
use crate::request::serve::{self, Progress};
use crate::request::{Promised, Requests, retire};
use h2o_handlers::push::cache_digest::Digests;
use h2o_handlers::push::casper::{Casper, FORGET};
use h2o_handlers::push::{CasperSettings, PushSettings};

/// Resources remembered as pushed; beyond that the oldest is forgotten, and may be pushed again.
const MAX_SEEN: usize = 256;
/// `cookie` fields of CASPer looked at. A client has one; each costs as much as its capacity says.
const MAX_COOKIES: usize = 4;
/// The fields that a promised request has from the one it comes with.
const COPIED: [Known; 5] = [
    Known::Accept,
    Known::AcceptCharset,
    Known::AcceptEncoding,
    Known::AcceptLanguage,
    Known::UserAgent,
];
/// Tells logs and clients what became of a push (H2O compatibility).
const OUTCOME: Name<'static> = Name::Other("x-http2-push");

/// What a connection knows of its pushes. Made when it first has something to push to a client that wants it.
#[derive(Default)]
pub(super) struct Pushing {
    /// What the client has; made when a host with `http2-casper` has something to push.
    casper: Option<Casper>,
    /// Hashes of what was pushed, or could not be, oldest first.
    seen: VecDeque<u64>,
    /// Promised streams whose handlers have not answered.
    awaited: Vec<StreamKey>,
    /// Promised streams to go on with once the response they come with is written.
    due: Vec<StreamKey>,
    /// One of `due` is there and goes ahead of the response it comes with.
    has_urgent: bool,
}

/// A resource that is to be pushed.
struct Push {
    /// The stream of the response that it comes with.
    parent: StreamKey,
    head: RequestHead,
    /// Whether it goes ahead of all others.
    is_critical: bool,
}

impl Pushing {
    /// Bytes of memory held.
    pub(super) fn retained(&self) -> usize {
        let casper = self.casper.as_ref().map_or(0, Casper::retained);
        size_of::<Self>() + casper + self.seen.capacity() * size_of::<u64>()
    }

    /// True if what is written next is to be a pushed response.
    pub(super) const fn is_ahead(&self) -> bool {
        self.has_urgent
    }

    /// A stream was reset.
    pub(super) fn forget(&mut self, stream: StreamKey) {
        self.awaited.retain(|&awaited| awaited != stream);
    }

    /// Remembers that a resource is pushed; false if it was before.
    fn begin(&mut self, head: &RequestHead) -> bool {
        let mut hasher = DefaultHasher::new();
        (head.authority(), head.target()).hash(&mut hasher);
        let hash = hasher.finish();
        if self.seen.contains(&hash) {
            return false;
        }
        if self.seen.len() >= MAX_SEEN {
            self.seen.pop_front();
        }
        self.seen.push_back(hash);
        true
    }

    /// The client's cookies say what it has.
    fn read_cookies(&mut self, settings: CasperSettings, request: &RequestHead) {
        let casper = self
            .casper
            .get_or_insert_with(|| Casper::new(settings.capacity_bits));
        let fields = request.headers.get_all(Known::Cookie);
        let ours = fields.filter(|field| Casper::is_cookie(field));
        for field in ours.take(MAX_COOKIES) {
            casper.consume_cookie(field);
        }
    }

    /// True if the client has the resource already. If it has not and its type counts, it has from now on.
    fn is_cached(&mut self, exchange: &Exchange, response: &Response) -> bool {
        let (Some(casper), Some(settings)) = (&mut self.casper, settings(exchange).casper) else {
            return false;
        };
        let counts = !is_failure(response)
            && *exchange.original_method() == Method::Get
            && (settings.tracks_all || blocks_rendering(exchange, &response.headers));
        counts && casper.lookup_and_add(exchange.original_target())
    }

    /// As far as that can be known before there is a response.
    fn may_be_cached(&self, exchange: &Exchange) -> bool {
        let target = exchange.original_target();
        settings(exchange).casper.is_some()
            && (self.casper.as_ref()).is_some_and(|casper| casper.contains(target))
    }

    /// Has the client remember all it has.
    fn set_cookie(&self, response: &mut Response) {
        if let Some(cookie) = self.casper.as_ref().and_then(Casper::cookie) {
            response.headers.push(Known::SetCookie, cookie.as_bytes());
        }
    }
}

impl Http2Streams {
    /// Adds pushes, the CASPer cookie and debug state to a response. Returns `false` for a push that is not to be sent.
    #[cold]
    pub(super) fn add_http2_fields(
        &mut self,
        table: &mut Requests,
        turn: &mut Turn<'_>,
        stream: StreamKey,
        exchange: &mut Exchange,
        response: &mut Response,
    ) -> bool {
        let asked = exchange.protocol.http2_mut();
        if let Some(detail) = asked.and_then(|http2| http2.debug_state.take()) {
            self.show_state(table, turn, stream, detail, exchange, response);
        }
        if !self.engine.stream_id(stream).is_client() {
            return self.amend_pushed(stream, exchange, response);
        }
        let orders = std::mem::take(&mut exchange.pushes);
        if !orders.is_empty() && self.may_push(table, turn, stream) {
            self.push_all(table, turn, stream, exchange, &orders);
        }
        if let Some(pushing) = &mut self.pushing
            && settings(exchange).casper.is_some()
        {
            pushing.is_cached(exchange, response);
            if digests(exchange).is_present() {
                // It says itself what it has.
                response.headers.push(Known::SetCookie, FORGET.as_bytes());
            } else if pushing.awaited.is_empty() {
                pushing.set_cookie(response);
            }
        }
        true
    }

    /// Pushes what an interim response has ordered, ahead of that response (RFC 9113 §8.4.1).
    pub(super) fn push_early(
        &mut self,
        table: &mut Requests,
        turn: &mut Turn<'_>,
        stream: StreamKey,
        exchange: &mut Exchange,
    ) {
        let orders = std::mem::take(&mut exchange.pushes);
        if self.may_push(table, turn, stream) {
            self.push_all(table, turn, stream, exchange, &orders);
        }
    }

    /// The handler of a push may have answered only now.
    fn amend_pushed(
        &mut self,
        stream: StreamKey,
        exchange: &mut Exchange,
        response: &mut Response,
    ) -> bool {
        let Some(pushing) = &mut self.pushing else {
            return true;
        };
        let Some(at) = pushing.awaited.iter().position(|&other| other == stream) else {
            return true;
        };
        pushing.awaited.swap_remove(at);
        if is_failure(response) || pushing.is_cached(exchange, response) {
            note_cancelled(exchange, response);
            return false;
        }
        response.headers.push(OUTCOME, b"pushed");
        let is_last = pushing.awaited.is_empty() && settings(exchange).casper.is_some();
        if is_last && !self.engine.streams().any(|open| open.id.is_client()) {
            // No response that is asked for is left to set it.
            pushing.set_cookie(response);
        }
        true
    }

    /// True if a push may come with the response of `stream` now. Requests go before pushes.
    fn may_push(&mut self, table: &Requests, turn: &Turn<'_>, stream: StreamKey) -> bool {
        self.engine.can_push()
            && matches!(
                self.engine.state(stream),
                State::Open | State::HalfClosedRemote
            )
            && !table.has_queue()
            && table.has_place(self, turn, false)
            && !turn.context.memory.is_tight()
    }

    /// Pushes what was ordered as far as that is possible.
    fn push_all(
        &mut self,
        table: &mut Requests,
        turn: &mut Turn<'_>,
        stream: StreamKey,
        page: &Exchange,
        orders: &[PushOrder],
    ) {
        let mut pushing = self.pushing.take().unwrap_or_default();
        let digests = digests(page);
        if let Some(casper) = settings(page).casper
            && !digests.is_present()
        {
            pushing.read_cookies(casper, &page.request);
        }
        for order in orders {
            let head = promised_head(page, &order.target);
            if self.may_push(table, turn, stream)
                && !digests.is_fresh(&url(&head))
                && pushing.begin(&head)
            {
                let push = Push {
                    parent: stream,
                    head,
                    is_critical: order.critical,
                };
                self.push(table, turn, &mut pushing, page, push);
            }
        }
        self.pushing = Some(pushing);
    }

    /// Asks for a resource, and promises it unless it is known already that it will not be sent.
    fn push(
        &mut self,
        table: &mut Requests,
        turn: &mut Turn<'_>,
        pushing: &mut Pushing,
        page: &Exchange,
        push: Push,
    ) {
        let Push {
            parent,
            head,
            is_critical,
        } = push;
        let exchange = turn
            .context
            .worker
            .exchange(&page.site, &turn.connection.info());
        self.prepare_push(turn, &exchange, page, &head);
        let mut progress = serve::start(turn.context, &exchange);
        if let Progress::Waiting(waiting) = progress {
            // There may be an answer at once after all. Whoever waits is asked again, with a waker, once there is a
            // stream.
            let mut task = TaskContext::from_waker(Waker::noop());
            progress = serve::resume(turn.context, &exchange, waiting, &mut task);
        }
        let is_unwanted = match &progress {
            // One that came too early for its handler is a failure like others.
            Progress::Response(response) | Progress::TooEarly(response) => {
                is_failure(response) || pushing.is_cached(&exchange.borrow(), response)
            }
            Progress::Waiting(_) => pushing.may_be_cached(&exchange.borrow()),
        };
        let promised = if is_unwanted {
            None
        } else {
            self.engine.promise(parent, &head, &mut turn.out)
        };
        let Some(stream) = promised else {
            match progress {
                Progress::Response(mut response) | Progress::TooEarly(mut response) => {
                    note_cancelled(&mut exchange.borrow_mut(), &mut response);
                }
                Progress::Waiting(waiting) => {
                    drop(waiting);
                    exchange
                        .borrow_mut()
                        .sent
                        .headers
                        .push(OUTCOME, b"cancelled");
                }
            }
            retire(&exchange);
            return;
        };
        if let Some(http2) = exchange.borrow_mut().protocol.http2_mut() {
            http2.id = self.engine.stream_id(stream).get();
        }
        if is_critical {
            let hint = SchedulingHint {
                is_critical: true,
                ..SchedulingHint::default()
            };
            self.engine.schedule(stream, hint);
        }
        let is_urgent = match &progress {
            Progress::Response(response) | Progress::TooEarly(response) => {
                let exchange = exchange.borrow();
                is_critical || scheduling_hint(&exchange, &response.headers).blocks_rendering
            }
            Progress::Waiting(_) => false,
        };
        let promised = match progress {
            Progress::Response(mut response) | Progress::TooEarly(mut response) => {
                response.headers.push(OUTCOME, b"pushed");
                pushing.has_urgent |= is_urgent;
                Promised::Response(Box::new(response))
            }
            Progress::Waiting(waiting) => {
                pushing.awaited.push(stream);
                Promised::Running(waiting)
            }
        };
        table.promise(slot(stream), exchange, promised);
        pushing.due.push(stream);
    }

    /// The exchange of a promised request begins.
    fn prepare_push(
        &self,
        turn: &Turn<'_>,
        exchange: &ExchangeRef,
        page: &Exchange,
        head: &RequestHead,
    ) {
        let now = turn.now;
        let exchange = &mut *exchange.borrow_mut();
        // Handlers may change it by internal redirects; what is promised stays what it was.
        exchange.request.clone_from(head);
        exchange.timings = Timings::starting(now);
        exchange.timings.head = Some(now);
        exchange.timings.processed = Some(now);
        exchange.timings.processed_at = turn.context.worker.clock.unix();
        exchange.is_early = page.is_early;
        // Not the number of a stream of the client's: pushes push nothing.
        exchange.protocol = Protocol::Http2(Http2Stream::default());
        routing::route(exchange, &turn.connection.listener);
    }

    /// The responses that promises came with are written: the pushed ones follow.
    pub(super) fn send_pushes(&mut self, table: &mut Requests, turn: &mut Turn<'_>) {
        let Some(pushing) = &mut self.pushing else {
            return;
        };
        pushing.has_urgent = false;
        for stream in std::mem::take(&mut pushing.due) {
            table.send_promised(self, turn, slot(stream));
        }
    }
}

/// The request that is promised (RFC 9113 §8.4.1).
fn promised_head(page: &Exchange, target: &[u8]) -> RequestHead {
    let mut head = RequestHead::default();
    head.method = Method::Get;
    head.scheme = scheme(page);
    head.version = Version::Http2;
    let authority = head.headers.store(page.original_authority());
    head.set_authority(authority);
    let target = head.headers.store(target);
    head.set_target(target);
    for name in COPIED {
        for value in page.request.headers.get_all(name) {
            head.headers.push(name, value);
        }
    }
    head
}

/// The scheme the client asked by. An internal redirect may have changed it.
fn scheme(page: &Exchange) -> Scheme {
    match (&page.original, &page.connection.tls) {
        (None, _) => page.request.scheme,
        (Some(_), Some(_)) => Scheme::Https,
        (Some(_), None) => Scheme::Http,
    }
}

/// What digests know a resource by.
fn url(head: &RequestHead) -> Vec<u8> {
    let scheme = head.scheme.as_str().as_bytes();
    [scheme, b"://", head.authority(), head.target()].concat()
}

/// What the client says that it has.
fn digests(exchange: &Exchange) -> Digests {
    Digests::parse(exchange.request.headers.get_all(Known::CacheDigest))
}

fn settings(exchange: &Exchange) -> Arc<PushSettings> {
    exchange.site.path(exchange.route).settings.get()
}

fn is_failure(response: &Response) -> bool {
    response.status.as_u16() >= 400
}

/// Leaves in an exchange what the log tells of a push that is not sent.
fn note_cancelled(exchange: &mut Exchange, response: &mut Response) {
    response.headers.push(OUTCOME, b"cancelled");
    exchange.sent.status = Some(response.status);
    exchange.sent.headers = std::mem::take(&mut response.headers);
}
