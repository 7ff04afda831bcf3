//! What the table of requests needs from the connection of each HTTP version.

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
/// All output goes to [`Turn::out`]; none of the calls waits or fails, except where it says so. A stream exists from the head of
/// its request until [`Streams::close`]. The calls for a response come in this order: any number of `send_interim`; `send_head`;
/// unless that has sent the whole response: `set_ready`, then `send_data` and `finish`, as often as the driver has the table
/// [pull](Requests::pull). The table may call `close` at any time; it aborts the stream if the response is not complete.
pub(crate) trait Streams: Sized {
    const RULES: VersionRules;

    /// The limits that the configuration sets for the requests of this connection.
    fn limits(setup: &Setup) -> RequestLimits;

    /// Writes an interim (1xx) response. Returns the length of its encoded head in bytes.
    fn send_interim(
        &mut self,
        turn: &mut Turn<'_>,
        id: SlotId,
        status: StatusCode,
        headers: &Headers,
    ) -> usize;

    /// Writes the head of a response, in which it may change fields as its HTTP version requires. It also writes the whole body if
    /// that is better than to have the body pulled.
    fn send_head(
        &mut self,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: &Exchange,
        response: &mut Response,
        shape: ResponseShape,
    ) -> HeadSent;

    /// Answers a new request, which has ended, with a whole kept response in the encoded form of an earlier [`Streams::send_head`], and closes
    /// its stream. Returns the length of the body in bytes; `None`, with the stream as it was, if there is no encoded form, or if it is not
    /// valid any more.
    #[inline]
    fn send_kept(&mut self, _id: SlotId, _number: KeptNumber) -> Option<usize> {
        None
    }

    /// Notes whether the response has a body that can be pulled now: while `is_ready`, the driver has to [pull](Requests::pull).
    fn set_ready(&mut self, id: SlotId, is_ready: bool);

    /// Sends a piece of a response's body; `is_end` says whether it is the last.
    fn send_data(&mut self, turn: &mut Turn<'_>, id: SlotId, piece: &Bytes, is_end: bool);

    /// Sends up to `max` bytes of a file. Returns how many bytes were sent, and whether they were the last ones. `None` means that
    /// they must be read from the disk first; the task will be woken.
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

    /// Raises the flow-control window, so that the client may send more of the request's body.
    fn open_window(&mut self, turn: &mut Turn<'_>, id: SlotId, window: Window);

    /// Opens the pipe for the datagrams (RFC 9297) of a new request for a tunnel, if the connection has datagrams. `owner` is a
    /// waker that makes the connection run.
    fn open_datagrams(&mut self, _id: SlotId, _owner: Waker) -> Option<Rc<DatagramPipe>> {
        None
    }

    /// Told when the server has no use for the rest of a request's body.
    fn stop_input(&mut self, id: SlotId, reason: StopReason);

    /// Whether the client may still send on a stream whose response has been sent completely.
    fn is_input_open(&self, id: SlotId) -> bool;

    /// Adds to an exchange, just before its log line is written, the facts that only this HTTP version knows.
    fn before_log(&self, _id: SlotId, _exchange: &ExchangeRef) {}

    /// Called when a request is over: closes its stream, or resets it at once if its response is not complete.
    fn close(&mut self, turn: &mut Turn<'_>, id: SlotId, reason: CloseReason);

    /// Whether a server push can be promised with the response of a stream (RFC 9113 §8.4).
    fn can_promise(&self, _id: SlotId) -> bool {
        false
    }

    /// Writes the promise of a server push on stream `with`. Returns the promised stream, if there can be one.
    fn promise(
        &mut self,
        _turn: &mut Turn<'_>,
        _with: SlotId,
        _head: &RequestHead,
        _is_critical: bool,
    ) -> Option<(SlotId, Protocol)> {
        None
    }

    /// Writes the state of the connection into the response of the handler `http2-debug-state`, if `exchange` asks for it.
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

/// How the requests of one HTTP version differ from those of the others.
pub(crate) struct VersionRules {
    /// Whether a request is over only when the socket has taken its last bytes: the driver then calls [`Requests::on_flushed`].
    pub(crate) ends_when_flushed: bool,
    /// Whether a response ends only when the source of its body ends, even if the whole announced length was sent before. The
    /// client cannot tell the difference, and the source may still have to send the request's body to a backend.
    pub(crate) ends_with_source: bool,
    /// Whether the driver reads request bodies only when there is room for them ([`Requests::poll_body_room`]), and starts requests
    /// that [wait](Requests::start_awaiting) for the first bytes of their bodies. In other HTTP versions, flow-control windows
    /// limit what clients send.
    pub(crate) reads_on_demand: bool,
    /// Whether clients that wait for 100 (Continue) get it even if they get no other interim response. H2O compatibility: H2O sends
    /// 100 over HTTP/1 whatever `send-informational` and `no-early-hints` say.
    pub(crate) always_continues: bool,
    /// Whether 101 (Switching Protocols) opens a tunnel. HTTP versions without 101 (RFC 9113 §8.6, RFC 9114 §4.5) answer with 200.
    pub(crate) switches_protocols: bool,
    /// Whether the server stops the rest of a request's body as soon as the response has ended. It does where that leaves the response
    /// intact in every client; elsewhere it first gives the client time to send the rest.
    pub(crate) stops_bodies_at_once: bool,
    /// Counter of the requests whose bodies are pulled by handlers.
    pub(crate) streaming_counter: Option<Counter>,
}

/// The limits that the configuration sets for the requests of one connection.
pub(crate) struct RequestLimits {
    /// Number of requests whose handlers may run at the same time.
    pub(crate) running: usize,
    /// Number of running requests whose handlers may pull their bodies.
    pub(crate) streaming: usize,
    /// How many more requests the client may have reset than were answered since, before its new requests are delayed.
    pub(crate) resets: usize,
    /// How long new requests are delayed after too many resets; zero for no delay.
    pub(crate) reset_delay: Duration,
    /// Whether clients get the interim (1xx) responses that handlers make.
    pub(crate) sends_interims: bool,
}

/// What follows the head of a response on its stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseShape {
    /// Whether the response has a body, as far as its method, status and length say.
    pub(crate) has_body: bool,
    /// Whether the response opens the tunnel that the request has asked for.
    pub(crate) opens_tunnel: bool,
    /// Whether the response of a server push has to be sent before this response's body.
    pub(crate) is_behind_push: bool,
    /// The number of a kept response, which [`Streams::send_kept`] may be asked to send again; `None` for other responses.
    pub(crate) kept: Option<KeptNumber>,
}

/// Number of a kept response, which differs from those of all other responses of its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptNumber(pub(crate) u64);

/// What [`Streams::send_head`] has written.
pub(crate) struct HeadSent {
    /// Length of the encoded head, in bytes.
    pub(crate) head_len: usize,
    /// Length of the body in bytes, if the whole response was written. `None` if the body must be pulled.
    pub(crate) body_len: Option<usize>,
}

/// How far to raise the flow-control window for a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    /// Raise the window to the default of the HTTP version, because a handler wants the body.
    Body,
    /// Raise the window to this many bytes beyond those that the handler of a tunnel has taken.
    Tunnel(u32),
    /// Raise the window by this many bytes, which the server has processed.
    Credit(usize),
}

/// Why the server does not want the rest of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// No handler wants the body.
    Unwanted,
    /// The handler that pulled the body has stopped, or a guard has answered in its place.
    Abandoned,
    /// The response does not open the tunnel that the request asks for.
    NoTunnel,
    /// The server refuses the request.
    Refused,
    /// The connection has used up its abuse budget with requests that were answered with errors.
    Overdrawn,
}

impl StopReason {
    /// The reason if a guard has answered the request. A client that waits for 100 (Continue) may leave out the body or send it, so
    /// that nobody knows where its next request would begin.
    pub(super) const fn of_guard(awaits_continue: bool) -> Self {
        if awaits_continue {
            Self::Refused
        } else {
            Self::Abandoned
        }
    }
}

/// Number of a request's slot in the table of its connection: a small number that is used again once the request is over.
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

/// Why the table ends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The response was sent completely, and the client has ended its side.
    Complete,
    /// The response was sent completely, and the server does not wait for the client to end its side: the handler has closed the
    /// tunnel, or the wait has timed out.
    EnoughRead,
    /// The client or the protocol engine has reset the stream.
    Reset,
    /// No handler has processed the request, so that the client may safely send it again.
    Refused,
    /// A server push was promised, but its response will not be sent.
    PushCancelled,
    /// The client sends or takes bytes below the minimum rate.
    TooSlow,
    /// The handler has aborted the tunnel.
    TunnelBroken,
    /// The body of the response cannot be completed, because of a failure in this server.
    BodyLost,
    /// The body of the response cannot be completed, because a backend failed.
    BodyBroken,
}
