//! Server push (RFC 9113 §8.4): which resources the server promises with a response, and which it does not because the client
//! probably has them.
//!
//! The handlers for a pushed resource run before the promise, so that no missing resource is promised. Promises are written before
//! the head of the response that they belong to, the pushed responses after it.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::task::{Context as TaskContext, Waker};

use h2o_exchange::{Exchange, ExchangeRef, Http2Stream, Protocol, Response, Timings};
use h2o_http::{Known, Method, Name, RequestHead, Scheme, Version};

use super::blocking::{blocks_rendering, goes_first};
use super::serve::{self, Progress};
use super::slots::{Mark, Phase, retire};
use super::{Requests, SlotId, Streams, routing};
use crate::flow::Turn;
use h2o_handlers::push::cache_digest::Digests;
use h2o_handlers::push::casper::{Casper, FORGET};
use h2o_handlers::push::{CasperSettings, PushSettings};

/// Number of pushed resources that the server remembers for a connection; when there are more, the server forgets the oldest one,
/// and may push it again.
const MAX_SEEN: usize = 256;
/// Largest number of CASPer cookies (such a cookie says which resources the browser has in its cache) that are decoded per request.
/// A client has one cookie; decoding one costs time in proportion to its capacity.
const MAX_COOKIES: usize = 4;
/// Header fields that a promised request copies from the client's request.
const COPIED: [Known; 5] = [
    Known::Accept,
    Known::AcceptCharset,
    Known::AcceptEncoding,
    Known::AcceptLanguage,
    Known::UserAgent,
];
/// Field of a pushed response that tells logs and clients the outcome of the push. H2O compatibility: H2O adds this field, too.
const OUTCOME: Name<'static> = Name::Other("x-http2-push");

/// State of the server pushes of a connection. Created at the first push to a client that accepts pushes.
#[derive(Default)]
pub(super) struct Pushes {
    /// Which resources the client has in its cache, by its CASPer cookie; created when a host with `http2-casper` pushes for the
    /// first time.
    casper: Option<Casper>,
    /// Hashes of the resources that were pushed, or could not be pushed, oldest first.
    seen: VecDeque<u64>,
    /// Promised streams whose handlers have not answered yet.
    awaited: Vec<SlotId>,
    /// Promised streams whose responses must be sent after the head of the client's response.
    due: Vec<SlotId>,
    /// Whether the response of a promised stream is ready and must be sent before the body of the client's response.
    has_urgent: bool,
}

/// A resource that the server will push.
struct Push {
    /// The slot of the client's request. The response to that request promises the push (PUSH_PROMISE).
    with: SlotId,
    head: RequestHead,
    /// Whether the pushed response must be sent before all other responses.
    is_critical: bool,
}

impl Pushes {
    /// Bytes of memory that the state of the pushes holds.
    pub(super) fn retained(&self) -> usize {
        let casper = self.casper.as_ref().map_or(0, Casper::retained);
        size_of::<Self>() + casper + self.seen.capacity() * size_of::<u64>()
    }

    /// Whether a pushed response has to be sent before any other body.
    pub(super) const fn has_urgent(&self) -> bool {
        self.has_urgent
    }

    /// Drops what is kept for the request `id`, because the request is over.
    pub(super) fn forget(&mut self, id: SlotId) {
        self.awaited.retain(|&awaited| awaited != id);
    }

    /// Remembers a resource as pushed. Returns `false` if it was pushed before.
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

    /// Reads from the client's CASPer cookies which resources it has in its cache.
    fn read_cookies(&mut self, settings: CasperSettings, request: &RequestHead) {
        let casper = self
            .casper
            .get_or_insert_with(|| Casper::new(settings.capacity_bits));
        // Clients send each cookie in a field of its own or all in one; the engine has joined them to one (RFC 9113 §8.2.3).
        let fields = request.headers.get_all(Known::Cookie);
        let cookies = fields.flat_map(|field| field.split(|byte| *byte == b';'));
        let cookies = cookies.map(<[u8]>::trim_ascii);
        for cookie in cookies
            .filter(|cookie| Casper::is_cookie(cookie))
            .take(MAX_COOKIES)
        {
            casper.consume_cookie(cookie);
        }
    }

    /// Whether the client already has the resource of this response. If it has not, and CASPer tracks resources of this type, the
    /// resource counts as sent from now on.
    fn is_cached(&mut self, exchange: &Exchange, response: &Response) -> bool {
        let (Some(casper), Some(settings)) = (&mut self.casper, settings(exchange).casper) else {
            return false;
        };
        let counts = !is_failure(response)
            && *exchange.original_method() == Method::Get
            && (settings.tracks_all || blocks_rendering(exchange, &response.headers));
        counts && casper.lookup_and_add(exchange.original_target())
    }

    /// Whether the client may already have the requested resource, judged before its response is known (see [`Pushes::is_cached`]).
    fn may_be_cached(&self, exchange: &Exchange) -> bool {
        let target = exchange.original_target();
        settings(exchange).casper.is_some()
            && (self.casper.as_ref()).is_some_and(|casper| casper.contains(target))
    }

    /// Adds to a response the CASPer cookie, in which the client stores which resources it has in its cache.
    fn set_cookie(&self, response: &mut Response) {
        if let Some(cookie) = self.casper.as_ref().and_then(Casper::cookie) {
            response.headers.push(Known::SetCookie, cookie.as_bytes());
        }
    }
}

impl Requests {
    /// Adds to a response the things that few responses have: pushes, the CASPer cookie, the state of the connection for
    /// `http2-debug-state`. Returns `false` for a pushed response that must not be sent.
    #[inline]
    pub(super) fn amend<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: &mut Exchange,
        response: &mut Response,
    ) -> bool {
        let is_plain = self.pushes.is_none()
            && exchange.pushes.is_empty()
            && exchange
                .protocol
                .http2()
                .is_none_or(|http2| http2.debug_state.is_none());
        is_plain || self.amend_special(streams, turn, id, exchange, response)
    }

    #[cold]
    fn amend_special<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: &mut Exchange,
        response: &mut Response,
    ) -> bool {
        streams.show_state(self, turn, id, exchange, response);
        if self
            .slots
            .get(id)
            .is_some_and(|slot| slot.is(Mark::Promised))
        {
            return self.amend_pushed(id, exchange, response);
        }
        self.push_ordered(streams, turn, id, exchange);
        if let Some(pushes) = &mut self.pushes
            && settings(exchange).casper.is_some()
        {
            pushes.is_cached(exchange, response);
            if digests(exchange).is_present() {
                // The client sends a cache digest itself, so it needs no CASPer cookie, and an old one is removed.
                response.headers.push(Known::SetCookie, FORGET.as_bytes());
            } else if pushes.awaited.is_empty() {
                pushes.set_cookie(response);
            }
        }
        true
    }

    /// Decides whether to send a pushed response whose handler has answered after the promise.
    fn amend_pushed(
        &mut self,
        id: SlotId,
        exchange: &mut Exchange,
        response: &mut Response,
    ) -> bool {
        let Some(pushes) = &mut self.pushes else {
            return true;
        };
        let Some(at) = pushes.awaited.iter().position(|&other| other == id) else {
            return true;
        };
        pushes.awaited.swap_remove(at);
        if is_failure(response) || pushes.is_cached(exchange, response) {
            note_cancelled(exchange, response);
            return false;
        }
        response.headers.push(OUTCOME, b"pushed");
        let is_last = pushes.awaited.is_empty() && settings(exchange).casper.is_some();
        if is_last && self.slots.iter().all(|slot| slot.is(Mark::Promised)) {
            // All requests left on the connection are pushes, so that only a pushed response can carry the CASPer cookie.
            pushes.set_cookie(response);
        }
        true
    }

    /// Whether a push may come with the response of a request now. Requests of the client take precedence over pushes.
    fn may_push<S: Streams>(&self, streams: &S, turn: &Turn<'_>, id: SlotId) -> bool {
        streams.can_promise(id)
            && !self.has_queue()
            && self.has_place::<S>(turn, false)
            && !turn.context.memory.is_tight()
    }

    /// Promises the pushes that handlers have ordered. This happens before the next head of the response, interim or final, is sent
    /// (RFC 9113 §8.4.1).
    pub(super) fn push_ordered<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        page: &mut Exchange,
    ) {
        let orders = std::mem::take(&mut page.pushes);
        if orders.is_empty() || !self.may_push(streams, turn, id) {
            return;
        }
        let mut pushes = self.pushes.take().unwrap_or_default();
        let digests = digests(page);
        if let Some(casper) = settings(page).casper
            && !digests.is_present()
        {
            pushes.read_cookies(casper, &page.request);
        }
        for order in &orders {
            let head = promised_head(page, &order.target);
            if self.may_push(streams, turn, id)
                && !digests.is_fresh(&url(&head))
                && pushes.begin(&head)
            {
                let push = Push {
                    with: id,
                    head,
                    is_critical: order.critical,
                };
                self.push(streams, turn, &mut pushes, page, push);
            }
        }
        self.pushes = Some(pushes);
    }

    /// Runs the handlers for a resource to push, and promises the push unless it is already clear that the pushed response will not
    /// be sent.
    fn push<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        pushes: &mut Pushes,
        page: &Exchange,
        push: Push,
    ) {
        let Push {
            with,
            head,
            is_critical,
        } = push;
        // The pushed request is routed by the listener's present configuration. The client's request for the page may have begun under an
        // earlier one.
        let info = turn.connection.info();
        let site = &turn.connection.listener.setup.site;
        let exchange = turn.context.worker.exchange(site, &info);
        prepare_push(turn, &exchange, page, &head);
        let mut progress = serve::start(&turn.context.worker, &exchange);
        if let Progress::Waiting(waiting) = progress {
            // The handler of the pushed request may answer at once. If it does not, it is polled again, with a waker, once there is
            // a stream.
            let mut task = TaskContext::from_waker(Waker::noop());
            progress = serve::resume(&turn.context.worker, &exchange, waiting, &mut task);
        }
        let is_unwanted = match &progress {
            // A response 425 to a pushed request counts as a failure.
            Progress::Response(response) | Progress::TooEarly(response) => {
                is_failure(response) || pushes.is_cached(&exchange.borrow(), response)
            }
            Progress::Waiting(_) => pushes.may_be_cached(&exchange.borrow()),
        };
        let promised = if is_unwanted {
            None
        } else {
            streams.promise(turn, with, &head, is_critical)
        };
        let Some((id, protocol)) = promised else {
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
        exchange.borrow_mut().protocol = protocol;
        if let Progress::Response(response) | Progress::TooEarly(response) = &progress {
            let exchange = exchange.borrow();
            pushes.has_urgent |= is_critical || goes_first(&exchange, &response.headers);
        }
        let slot = self.slots.occupy(id);
        slot.exchange = Some(exchange);
        match progress {
            Progress::Response(mut response) | Progress::TooEarly(mut response) => {
                response.headers.push(OUTCOME, b"pushed");
                slot.phase = Phase::Promised(Box::new(response));
            }
            Progress::Waiting(waiting) => {
                slot.phase = Phase::Running(waiting);
                self.slots.mark(id, Mark::Running, true);
                self.slots.mark(id, Mark::Waiting, true);
                pushes.awaited.push(id);
            }
        }
        self.slots.mark(id, Mark::Promised, true);
        pushes.due.push(id);
    }

    /// Sends the pushed responses whose promises went out with responses of which the head has been sent.
    pub(crate) fn send_pushes<S: Streams>(&mut self, streams: &mut S, turn: &mut Turn<'_>) {
        let Some(pushes) = &mut self.pushes else {
            return;
        };
        pushes.has_urgent = false;
        for id in std::mem::take(&mut pushes.due) {
            self.send_promised(streams, turn, id);
        }
    }

    fn send_promised<S: Streams>(&mut self, streams: &mut S, turn: &mut Turn<'_>, id: SlotId) {
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        match std::mem::replace(&mut slot.phase, Phase::InStep) {
            Phase::Promised(response) => {
                if let Some(exchange) = slot.exchange.take() {
                    self.respond(streams, turn, id, exchange, *response);
                }
            }
            phase @ Phase::Running(_) => {
                slot.phase = phase;
                self.resume(streams, turn, id);
            }
            // Nothing is sent: the client has reset the promised stream, and another request may have its slot.
            phase @ (Phase::InStep
            | Phase::Collecting(_)
            | Phase::AwaitingBody(_)
            | Phase::Queued
            | Phase::Sending(_)
            | Phase::Flushing
            | Phase::HalfClosed(_)
            | Phase::InGrace) => slot.phase = phase,
        }
    }
}

/// Prepares the exchange of a promised request.
fn prepare_push(turn: &Turn<'_>, exchange: &ExchangeRef, page: &Exchange, head: &RequestHead) {
    let now = turn.now;
    let exchange = &mut *exchange.borrow_mut();
    // The exchange gets a copy of the promised head: internal redirects may change the request of the exchange, but must not change
    // the promise.
    exchange.request.clone_from(head);
    exchange.timings = Timings::starting(now);
    exchange.timings.head = Some(now);
    exchange.timings.processed = Some(now);
    exchange.timings.processed_at = turn.context.worker.clock.unix();
    exchange.is_early = page.is_early;
    // The id 0 is no stream of the client, so the pushed response cannot push further resources.
    exchange.protocol = Protocol::Http2(Http2Stream::default());
    routing::route(exchange, &turn.connection.listener);
    // A promised request has no field that tells the client's address, so the address is that of the request for the page.
    exchange.client = page.client;
}

/// Makes the head of the promised request for `target` (RFC 9113 §8.4.1).
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

/// The scheme of the client's request for the page, before internal redirects.
fn scheme(page: &Exchange) -> Scheme {
    match (&page.original, &page.connection.tls) {
        (None, _) => page.request.scheme,
        (Some(_), Some(_)) => Scheme::Https,
        (Some(_), None) => Scheme::Http,
    }
}

/// The URL of a resource, by which cache digests name it.
fn url(head: &RequestHead) -> Vec<u8> {
    let scheme = head.scheme.as_str().as_bytes();
    [scheme, b"://", head.authority(), head.target()].concat()
}

/// The cache digests in the fields of the client's request.
fn digests(exchange: &Exchange) -> Digests {
    Digests::parse(exchange.request.headers.get_all(Known::CacheDigest))
}

fn settings(exchange: &Exchange) -> Arc<PushSettings> {
    exchange.site.path(exchange.route).settings.get()
}

fn is_failure(response: &Response) -> bool {
    response.status.as_u16() >= 400
}

/// Stores in the exchange what the access log shows of a push that was not sent.
fn note_cancelled(exchange: &mut Exchange, response: &mut Response) {
    response.headers.push(OUTCOME, b"cancelled");
    exchange.sent.status = Some(response.status);
    exchange.sent.headers = std::mem::take(&mut response.headers);
}
