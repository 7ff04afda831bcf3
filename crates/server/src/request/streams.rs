//! What the table of requests needs from the connection of each protocol version.

use std::rc::Rc;
use std::task::{Context as TaskContext, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2o_exchange::{
    BodyError, Counter, DatagramPipe, Exchange, ExchangeRef, FileReader, Protocol, Response,
};
use h2o_http::{Headers, RequestHead, StatusCode};

use super::Requests;
use crate::flow::Turn;
use crate::setup::Setup;

/// The streams of one connection, as the request table uses them: one implementation per protocol version.
///
/// All output goes to [`Turn::out`]; nothing here waits or fails. A stream exists from the head of its request until
/// [`Streams::close`]. The calls for a response come in this order: any number of `send_interim`; `send_head`; unless that has
/// sent the whole response: `set_ready`, then `send_data` and `finish`, as often as the driver has the table
/// [pull](Requests::pull). `close` can come at any time, and ends the stream if its response is not complete.
pub(crate) trait Streams: Sized {
    const RULES: VersionRules;

    /// What the configuration allows the requests of this connection.
    fn limits(setup: &Setup) -> RequestLimits;

    /// Writes an interim response. Returns the length of its encoded head.
    fn send_interim(
        &mut self,
        turn: &mut Turn<'_>,
        id: SlotId,
        status: StatusCode,
        headers: &Headers,
    ) -> usize;

    /// Writes the head of a response, in which it may change fields as its protocol version requires, and all of the body if
    /// that is better than having the body pulled.
    fn send_head(
        &mut self,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: &Exchange,
        response: &mut Response,
        shape: ResponseShape,
    ) -> HeadSent;

    /// Notes whether a response has a body to be pulled now: while `is_ready`, the driver has to [pull](Requests::pull).
    fn set_ready(&mut self, id: SlotId, is_ready: bool);

    /// Sends a piece of a body; `is_end`: the last one.
    fn send_data(&mut self, turn: &mut Turn<'_>, id: SlotId, piece: &Bytes, is_end: bool);

    /// Sends up to `max` bytes of a file. Returns how many, and whether they are the last ones. `None`: they have to be read
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

    /// Allows the client to send more of the body of a request: flow control.
    fn open_window(&mut self, turn: &mut Turn<'_>, id: SlotId, window: Window);

    /// The pipe for the datagrams of a new request for a tunnel, if the connection has datagrams. `owner` makes the connection
    /// run.
    fn open_datagrams(&mut self, _id: SlotId, _owner: Waker) -> Option<Rc<DatagramPipe>> {
        None
    }

    /// The rest of a request's body has no use.
    fn stop_input(&mut self, id: SlotId, reason: StopReason);

    /// Whether the client may still send on a stream whose response has been sent to its end.
    fn is_input_open(&self, id: SlotId) -> bool;

    /// Adds to an exchange, of which the log line is about to be written, what only this protocol version knows.
    fn before_log(&self, _id: SlotId, _exchange: &ExchangeRef) {}

    /// Told when a request is over: ends its stream at once if its response is not complete.
    fn close(&mut self, turn: &mut Turn<'_>, id: SlotId, reason: CloseReason);

    /// Whether a push can be promised with the response of a stream (RFC 9113 §8.4).
    fn can_promise(&self, _id: SlotId) -> bool {
        false
    }

    /// Writes the promise of a push with the response of stream `with`. Returns the promised stream, if there can be one.
    fn promise(
        &mut self,
        _turn: &mut Turn<'_>,
        _with: SlotId,
        _head: &RequestHead,
        _is_critical: bool,
    ) -> Option<(SlotId, Protocol)> {
        None
    }

    /// Fills in the response of the handler `http2-debug-state`, where `exchange` asks for it.
    fn show_state(
        &self,
        _table: &Requests,
        _turn: &Turn<'_>,
        _id: SlotId,
        _exchange: &mut Exchange,
        _response: &mut Response,
    ) {
    }
}

/// How the requests of a protocol version differ from those of others.
pub(crate) struct VersionRules {
    /// Whether a request is over only when its last bytes have left: the driver then calls [`Requests::on_flushed`].
    pub(crate) ends_when_flushed: bool,
    /// Whether a response ends only when its source does, even if all of its announced length was sent before: the client
    /// cannot tell the difference, and the source may still have to send the request's body to a backend.
    pub(crate) ends_with_source: bool,
    /// Whether the driver reads bodies when there is room for them ([`Requests::poll_body_room`]), and starts requests that
    /// [wait](Requests::start_awaiting) for the first bytes of theirs. Otherwise clients send as much as they have window for.
    pub(crate) reads_on_demand: bool,
    /// Whether clients that wait for 100 (Continue) get it although they get no other interim response. H2O compatibility:
    /// H2O sends it over HTTP/1 whatever `send-informational` and `no-early-hints` say.
    pub(crate) always_continues: bool,
    /// Whether 101 (Switching Protocols) opens a tunnel. Versions without it (RFC 9113 §8.6, RFC 9114 §4.5) answer with 200.
    pub(crate) switches_protocols: bool,
    /// Counts the requests whose bodies are pulled by handlers.
    pub(crate) streaming_counter: Option<Counter>,
}

/// What the configuration allows the requests of one connection.
pub(crate) struct RequestLimits {
    /// Number of requests whose handlers may run at the same time.
    pub(crate) running: usize,
    /// Number of these whose handlers may pull the body.
    pub(crate) streaming: usize,
    /// How many more requests the client may reset than were answered, before new ones are delayed.
    pub(crate) resets: usize,
    /// How long new requests have to wait then; zero: not at all.
    pub(crate) reset_delay: Duration,
    /// Whether clients get the interim responses that handlers make.
    pub(crate) sends_interims: bool,
}

/// What follows the head of a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseShape {
    /// Whether the response has a body, as far as its method, status and length say.
    pub(crate) has_body: bool,
    /// Whether the response opens the tunnel that the request has asked for.
    pub(crate) opens_tunnel: bool,
    /// Whether a promised response has to be sent before this one's body.
    pub(crate) is_behind_push: bool,
}

/// What [`Streams::send_head`] has sent.
pub(crate) struct HeadSent {
    /// Bytes of the encoded head.
    pub(crate) head_len: usize,
    /// Bytes of the body, if the whole response is sent. `None`: the body is to be pulled.
    pub(crate) body_len: Option<usize>,
}

/// How much more of a request's body the client may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    /// As much as the protocol version allows by default: some handler wants the body.
    Body,
    /// So many bytes more than the handler of a tunnel has taken.
    Tunnel(u32),
    /// As many bytes again as these, which the server has processed.
    Credit(usize),
}

/// Why the server has no use for the rest of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// No handler asks for it.
    Unwanted,
    /// The handler that pulled it has stopped.
    Abandoned,
    /// The response does not open the tunnel that the request has asked for.
    NoTunnel,
    /// The request is refused.
    Refused,
    /// The connection has used up its budget with requests that are answered with errors.
    Overdrawn,
}

/// Which slot of a connection a request has: a small number that is used again once the request is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(u32);

impl SlotId {
    /// The slot of a connection that carries one request at a time.
    pub(crate) const ONLY: Self = Self(0);

    pub(crate) const fn new(index: u32) -> Self {
        Self(index)
    }

    pub(crate) const fn index(self) -> u32 {
        self.0
    }
}

/// Why a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The response was sent to its end, and the client has ended its side.
    Complete,
    /// The response was sent to its end, and the server does not wait for the client's end: the handler has closed, or the time
    /// has passed.
    EnoughRead,
    /// The client has reset the stream, or the engine has.
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
    /// The body of the response cannot be completed, because of a backend.
    BodyBroken,
}
