//! A request to a backend, and the reply.

use std::net::SocketAddr;
use std::rc::Rc;

use h2o_exchange::{Body, ConnectionInfo, RequestBody, Trace, Worker};
use h2o_http::{Headers, RequestHead, StatusCode};

use crate::BackendUrl;

/// The protocol of a request to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/3.
    Http3,
}

/// Called with status and fields of an interim response.
pub type OnInformational<'a> = &'a mut dyn FnMut(StatusCode, &Headers);

/// A request to send.
pub struct Call<'a> {
    /// The worker that the request runs on.
    pub worker: &'a Rc<Worker>,
    /// The client's connection, for the PROXY header.
    pub client: Rc<ConnectionInfo>,
    /// The client's address for the PROXY header, if a proxy in front of this server reported one. Boxed to keep `Call`
    /// small: most calls have none, and each call is moved.
    pub client_address: Option<Box<SocketAddr>>,
    /// Fills in the head for the chosen backend; the head passed in is empty and keeps its memory from earlier
    /// requests.
    ///
    /// Sets method, target, authority, body length, upgrade token and the fields in the order to send, without
    /// hop-by-hop fields. [`h2o_http::BodyLength::Tunnel`] marks a request for a tunnel; with an upgrade token the
    /// method is an ordinary one on HTTP/1. If the whole body arrives before the request is sent, its length replaces
    /// `Unknown`.
    ///
    /// Called once per attempt to connect: normally once.
    pub build: &'a mut dyn FnMut(&BackendUrl, Protocol, &mut RequestHead),
    /// The body; for tunnels the bytes from the client.
    pub body: RequestBody,
    /// Whether to wait for the first bytes of a streamed body before sending the request (H2O compatibility: H2O
    /// waits). False for tunnels and where `expect` is forwarded.
    pub waits_for_content: bool,
    /// Whether the body of the response ends only when the request's body has been sent: for clients whose connection carries one
    /// request at a time. Without it the rest of the request's body may be sent after the response has ended.
    pub ends_with_upload: bool,
    /// Whether the upgrade exists over HTTP/1 only; `websocket`, for one, can also use HTTP/2 and HTTP/3.
    pub needs_http1: bool,
    /// Whether to add `expect: 100-continue` and hold the body until an interim or final response arrives.
    pub expects_continue: bool,
    /// Called for every interim response, except the 100 that `expects_continue` asked for.
    pub on_informational: Option<OnInformational<'a>>,
    /// Records timings of the request, if an access log or filter asked for them.
    pub trace: Option<Rc<Trace>>,
    /// Memory for the fields of the response; see [`h2o_exchange::Exchange::headers`].
    pub headers: Headers,
}

/// A backend's response.
pub struct Reply {
    /// The status, 2xx to 9xx; 101 for a tunnel.
    pub status: StatusCode,
    /// The reason phrase; `None` if it is the standard one. Empty over HTTP/2 and HTTP/3.
    pub reason: Option<Box<str>>,
    /// All fields except `content-length` and `transfer-encoding`, as received.
    pub headers: Headers,
    /// The announced length of the body, even if none follows (HEAD, 304).
    pub length: Option<u64>,
    /// The body: in memory if it came with the head, otherwise pulled from the connection. For a tunnel the bytes from
    /// the backend.
    pub body: Body,
    /// Index of the backend that answered.
    pub backend: usize,
    /// Whether the response had `connection: close`.
    pub closes: bool,
    /// Whether a tunnel is open: `body` and the request's body are its two directions.
    pub is_tunnel: bool,
    /// The protocol of the response.
    pub protocol: Protocol,
}
