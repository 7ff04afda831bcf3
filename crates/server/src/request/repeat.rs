//! The latest response of a connection, for requests that are repeated: polls and health checks send one request again and again.
//!
//! The response to a request that equals the one before is not made again while its [premise](Premise) holds. Only responses that
//! depend on nothing else are kept: the first handler of the path has made it, and no filter or logger sees it.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use bytes::Bytes;
use h2o_exchange::{Body, Exchange, ExchangeRef, LocalSite, MimeHint, Premise, Response, Route};
use h2o_http::{BodyLength, RequestHead};

use super::respond::EARNED_BY_REQUEST;
use super::{KeptNumber, Requests, ResponseShape, SlotId, Streams};
use crate::flow::Turn;

/// Largest number of bytes of a body that is kept with its response.
const MAX_BODY: usize = 8 * 1024;
/// Largest number of bytes that the head of a request may take in memory if its response is kept.
const MAX_HEAD: usize = 4 * 1024;

/// What a connection knows of its latest response.
#[derive(Default)]
pub(super) enum Latest {
    /// The latest response cannot be repeated.
    #[default]
    Nothing,
    /// The latest response can be repeated if its request comes again. It is kept from the second time on.
    Once(Weak<dyn Premise>),
    Kept(Box<Kept>),
}

/// A response with the request that it answers.
pub(crate) struct Kept {
    request: RequestHead,
    response: Response,
    body: Bytes,
    shape: ResponseShape,
    number: KeptNumber,
    premise: Weak<dyn Premise>,
    /// The site configuration that has made the response.
    site: Weak<LocalSite>,
    route: Route,
    mime: Option<MimeHint>,
    /// The second, since the Unix epoch, that the `date` field of the response names.
    second: u64,
    /// The round of the event loop in which the premise was found to hold.
    checked_in: Cell<u64>,
}

impl Latest {
    /// Bytes of memory that are held.
    pub(super) fn retained(&self) -> usize {
        match self {
            Self::Nothing | Self::Once(_) => 0,
            Self::Kept(kept) => {
                size_of::<Kept>()
                    + kept.request.headers.retained()
                    + kept.response.headers.retained()
                    + h2o_exchange::retained(&kept.body)
            }
        }
    }
}

impl Requests {
    /// Notes the response to a request; its head is as it will be sent. `premise` is what the handler has set.
    #[inline]
    pub(super) fn note_latest(
        &mut self,
        turn: &Turn<'_>,
        exchange: &Exchange,
        response: &Response,
        shape: ResponseShape,
        premise: &Rc<dyn Premise>,
    ) {
        let is_again = match &self.latest {
            Latest::Nothing => false,
            Latest::Once(latest) => is_of(latest, premise),
            Latest::Kept(kept) => is_of(&kept.premise, premise),
        };
        let premise = Rc::downgrade(premise);
        self.latest =
            if is_again && self.pushes.is_none() && is_repeatable(turn, exchange, response) {
                Latest::Kept(Kept::new(turn, exchange, response, shape, premise))
            } else {
                Latest::Once(premise)
            };
    }

    /// The latest response if it answers the new request `request`, too, which has no body.
    #[inline]
    fn kept_for<S: Streams>(&self, turn: &Turn<'_>, request: &RequestHead) -> Option<&Kept> {
        let Latest::Kept(kept) = &self.latest else {
            return None;
        };
        let is_for_it = kept.answers(turn, request)
            && self.early.is_none()
            && self.pushes.is_none()
            && self.queue.is_empty()
            && !turn.context.memory.is_tight()
            && self.has_place::<S>(turn, false);
        is_for_it.then_some(kept)
    }

    /// Returns the latest response if it answers the new request `request`, too, which has no body. The caller has to send it with
    /// [`Requests::repeat`].
    #[inline]
    pub(crate) fn take_kept<S: Streams>(
        &mut self,
        turn: &Turn<'_>,
        request: &RequestHead,
    ) -> Option<Box<Kept>> {
        self.kept_for::<S>(turn, request)?;
        match std::mem::take(&mut self.latest) {
            Latest::Kept(kept) => Some(kept),
            Latest::Nothing | Latest::Once(_) => None,
        }
    }

    /// Answers the new request `request`, which has no body, with the encoded form of the latest response, if that is its response and the
    /// connection has the encoded form. The request then needs no exchange. Returns whether it was answered.
    #[inline]
    pub(crate) fn send_kept<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        request: &RequestHead,
    ) -> bool {
        let Some(kept) = self.kept_for::<S>(turn, request) else {
            return false;
        };
        let status = kept.response.status;
        let Some(len) = streams.send_kept(id, kept.number) else {
            return false;
        };
        turn.context.worker.counters.count_request(Some(status));
        turn.earn(EARNED_BY_REQUEST);
        self.sent += len as u64;
        self.resets.on_finished();
        true
    }

    /// Sends the kept response to a request whose exchange has begun, but is not routed.
    pub(crate) fn repeat<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: ExchangeRef,
        mut kept: Box<Kept>,
    ) {
        let sent = {
            let exchange = &mut *exchange.borrow_mut();
            exchange.route = kept.route;
            exchange.mime = kept.mime;
            exchange.sent.first_status = Some(kept.response.status);
            kept.response.body = Body::Bytes(kept.body.clone());
            let shape = ResponseShape {
                kept: Some(kept.number),
                ..kept.shape
            };
            self.send_head(streams, turn, id, exchange, &mut kept.response, shape)
        };
        let body = std::mem::take(&mut kept.response.body);
        let length = kept.response.length;
        self.latest = Latest::Kept(kept);
        self.send_rest(streams, turn, id, exchange, body, length, sent);
    }
}

/// Whether nothing else than the first handler of the path has to see a request that equals this one.
fn is_repeatable(turn: &Turn<'_>, exchange: &Exchange, response: &Response) -> bool {
    let is_short = match &response.body {
        Body::Empty => true,
        Body::Bytes(body) => body.len() <= MAX_BODY,
        Body::File(_) | Body::Stream(_) => false,
    };
    is_short
        && exchange.handler == 0
        && !exchange.is_early
        && !exchange.is_delegated
        && exchange.original.is_none()
        && exchange.sub_request.is_none()
        && exchange.request.body == BodyLength::None
        && exchange.request.headers.retained() <= MAX_HEAD
        && exchange.site.path(exchange.route).loggers.is_empty()
        && response.status.as_u16() < 400
        && response.reason.is_none()
        && !response.closes
        && !turn.context.has_many_connections()
}

impl Kept {
    #[inline(never)]
    fn new(
        turn: &Turn<'_>,
        exchange: &Exchange,
        response: &Response,
        shape: ResponseShape,
        premise: Weak<dyn Premise>,
    ) -> Box<Self> {
        let body = match &response.body {
            Body::Bytes(body) => body.clone(),
            Body::Empty | Body::File(_) | Body::Stream(_) => Bytes::new(),
        };
        let headers = response.headers.clone();
        let mut kept = Response::new(response.status, headers, Body::Empty);
        kept.length = response.length;
        let worker = &turn.context.worker;
        Box::new(Self {
            request: exchange.request.clone(),
            response: kept,
            body,
            shape,
            number: turn.context.next_kept(),
            premise,
            site: Rc::downgrade(&exchange.site),
            route: exchange.route,
            mime: exchange.mime,
            second: worker.clock.unix().as_secs(),
            checked_in: Cell::new(worker.clock.turn()),
        })
    }

    /// Whether the response answers this request, too.
    #[inline]
    fn answers(&self, turn: &Turn<'_>, request: &RequestHead) -> bool {
        self.request == *request
            && !turn.connection.is_early()
            && (self.checked_in.get() == turn.context.worker.clock.turn() || self.is_current(turn))
    }

    /// Whether the response would be made again as it is. If it would, that is true for the rest of the round.
    #[inline]
    fn is_current(&self, turn: &Turn<'_>) -> bool {
        let worker = &turn.context.worker;
        let site = &turn.connection.listener.setup.site;
        let is_current = self.second == worker.clock.unix().as_secs()
            && std::ptr::eq(self.site.as_ptr(), Rc::as_ptr(site))
            && (self.premise.upgrade()).is_some_and(|premise| premise.holds(worker));
        if is_current {
            self.checked_in.set(worker.clock.turn());
        }
        is_current
    }
}

/// Whether `weak` refers to `premise`.
#[inline]
fn is_of(weak: &Weak<dyn Premise>, premise: &Rc<dyn Premise>) -> bool {
    std::ptr::addr_eq(weak.as_ptr(), Rc::as_ptr(premise))
}
