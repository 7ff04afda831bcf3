//! What the request table asks of a protocol version.

use std::task::Context as TaskContext;

use bytes::Bytes;
use h2o_exchange::{Body, BodyError, Exchange, ExchangeRef, FileReader, Response};
use h2o_http::{Headers, StatusCode};

use super::{Requests, SlotId};
use crate::flow::Turn;
use crate::setup::Setup;

/// The streams of one connection, as the request table uses them: one implementation per protocol version.
///
/// All output goes to [`Turn::out`]; nothing here waits or fails. A stream exists from the request's head until
/// [`Streams::release`]. Its calls come in this order: any number of `send_interim`; `amend`, `send_head`, `send_at_once`; then
/// `send_data` and `finish`, as often as the driver has the table [pull](Requests::pull). `reset` can come at any time, and
/// nothing but `release` comes after it.
pub(crate) trait Streams: Sized {
    /// Whether a request is over only when its last bytes have left: the driver then calls [`Requests::on_flushed`].
    const ENDS_WHEN_FLUSHED: bool;
    /// Whether a response ends only when its source does, even if all of its announced length was sent before: the client cannot
    /// tell the difference, and the source may still have to send the request's body to a backend.
    const ENDS_WITH_SOURCE: bool;
    /// Whether the driver reads bodies when there is room for them ([`Requests::poll_body_room`]), and starts requests that
    /// [wait](Requests::start_awaiting) for the first of theirs. Otherwise clients send as much as they are given window.
    const READS_ON_DEMAND: bool;

    /// Whether clients that wait for 100 (Continue) get it although they get no other interim response. H2O compatibility: H2O
    /// sends it over HTTP/1 whatever `send-informational` and `no-early-hints` say.
    const ALWAYS_CONTINUES: bool;

    /// Whether another request may run while `running` others do. If it pulls its body, `streaming` others do that.
    fn may_run(&mut self, turn: &Turn<'_>, running: usize, streaming: Option<usize>) -> bool;

    /// A request that pulls its body is about to run.
    fn on_streaming(&self, turn: &Turn<'_>);

    /// Whether clients get the interim responses that handlers make.
    fn informs(&self, setup: &Setup) -> bool;

    /// A handler has made interim responses, which are sent next.
    fn before_interim(
        &mut self,
        table: &mut Requests,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: &mut Exchange,
    );

    /// Writes an interim response. Returns the length of its encoded head.
    fn send_interim(
        &mut self,
        turn: &mut Turn<'_>,
        id: SlotId,
        status: StatusCode,
        headers: &Headers,
    ) -> usize;

    /// Adds to a response what only this version knows. Returns `false` for a pushed response that is not to be sent.
    fn amend(
        &mut self,
        table: &mut Requests,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: &mut Exchange,
        response: &mut Response,
    ) -> bool;

    /// Adapts the response to a request that asks for a tunnel; `is_open`: the response opens it.
    fn amend_tunnel(&mut self, exchange: &Exchange, response: &mut Response, is_open: bool);

    /// Writes the head of a response, and its end unless it `has_body`. Returns the length of the encoded head, and whether a
    /// body follows.
    fn send_head(
        &mut self,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: &Exchange,
        response: &Response,
        has_body: bool,
    ) -> (usize, bool);

    /// Sends a body right behind its head if that is better than to have it pulled, and returns its length.
    fn send_at_once(&mut self, turn: &mut Turn<'_>, id: SlotId, body: &mut Body) -> Option<u64>;

    /// A response, whose head is sent, is about to have its body pulled.
    fn schedule(&mut self, id: SlotId, exchange: &Exchange);

    /// Whether the body of a response can be pulled.
    fn set_ready(&mut self, id: SlotId, is_ready: bool);

    /// Sends a piece of a body; `is_end`: the last one.
    fn send_data(&mut self, turn: &mut Turn<'_>, id: SlotId, piece: &Bytes, is_end: bool);

    /// Sends up to `max` bytes of a file, and says how many, and whether they are the last ones. `None`: they have to be read
    /// first, and the task will be woken.
    ///
    /// # Errors
    /// If the file cannot be read.
    fn send_file_data(
        &mut self,
        turn: &mut Turn<'_>,
        id: SlotId,
        max: usize,
        reader: &mut FileReader,
        task: &mut TaskContext<'_>,
    ) -> Result<Option<(usize, bool)>, BodyError>;

    /// Ends a response that `send_data` has not ended.
    fn finish(&mut self, turn: &mut Turn<'_>, id: SlotId, trailers: Option<Headers>);

    /// A response was sent to its end.
    fn on_finished(&mut self, turn: &Turn<'_>);

    /// Ends a stream before its response is complete.
    fn reset(&mut self, turn: &mut Turn<'_>, id: SlotId, reason: CloseReason);

    /// The exchange of a request is about to be logged.
    fn before_log(&self, id: SlotId, exchange: &ExchangeRef);

    /// The request is over, and its slot free.
    fn release(&mut self, turn: &mut Turn<'_>, id: SlotId);

    /// Whether the client may still send on a stream whose response has been sent to its end.
    fn is_input_open(&self, id: SlotId) -> bool;

    /// The client may send the body of a request: all of it, or of a tunnel's up to `limit` bytes ahead of the handler.
    fn open_window(&mut self, turn: &mut Turn<'_>, id: SlotId, limit: Option<u32>);

    /// The server is done with `len` bytes of a body: the client may send as many again.
    fn credit(&mut self, turn: &mut Turn<'_>, id: SlotId, len: usize);

    /// No handler has a use for the rest of a body.
    fn drop_rest(&mut self);

    /// The request is refused, and nothing more of it is read.
    fn stop_reading(&mut self);

    /// The connection has used up its budget with requests that are answered with errors.
    fn on_overdrawn(&mut self);
}

/// Why a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The response was sent to its end, and the client has sent what it had to.
    Complete,
    /// The response was sent to its end, and the handler or the time does not allow to wait for the client's.
    EnoughRead,
    /// The client has taken the request back, or the stream is gone for another reason of the engine's.
    Reset,
    /// No handler has looked at the request: the client may send it again.
    Refused,
    /// A push that was promised is not to be sent.
    PushCancelled,
    /// The client is too slow.
    TooSlow,
    /// The handler has broken the tunnel off.
    TunnelBroken,
    /// The body of the response cannot be completed, because of this server.
    BodyLost,
    /// As [`CloseReason::BodyLost`], because of a backend.
    BodyBroken,
}
