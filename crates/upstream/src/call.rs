//! A request to a backend, and the reply.

use std::net::SocketAddr;
use std::rc::Rc;

use h2o_exchange::{Body, ConnectionInfo, RequestBody, Trace, Worker};
use h2o_http::{Headers, RequestHead, StatusCode};

use crate::{BackendUrl, FastcgiRequest};

/// The protocol of a request to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The request uses HTTP/1.1.
    Http1,
    /// The request uses HTTP/2.
    Http2,
    /// The request uses HTTP/3.
    Http3,
    /// The request uses FastCGI.
    Fastcgi,
}

/// A function that is called with status and fields of an interim response.
pub type OnInformational<'a> = &'a mut dyn FnMut(StatusCode, &Headers);

/// A request to be sent to a backend.
pub struct Call<'a> {
    /// The worker that the request runs on.
    pub worker: &'a Rc<Worker>,
    /// The client's connection, whose addresses the PROXY header contains.
    pub client: Rc<ConnectionInfo>,
    /// The client's address for the PROXY header, if a proxy in front of this server reported one. Boxed to keep `Call`
    /// small: most calls have none, and each call is moved.
    pub client_address: Option<Box<SocketAddr>>,
    /// Fills in the head of the request for the chosen backend. The head passed in is empty and keeps its memory from earlier
    /// requests.
    ///
    /// The function sets method, target, authority, body length, upgrade token and the fields in the order to send, without
    /// hop-by-hop fields. The body length [`h2o_http::BodyLength::Tunnel`] marks a request for a tunnel. With an upgrade token, the
    /// method is CONNECT over HTTP/2 and HTTP/3, and another one (mostly GET) over HTTP/1. If the whole body arrives before the
    /// request is sent, its length replaces `BodyLength::Unknown`.
    ///
    /// The function is called once per attempt to connect: normally once. It is not called for FastCGI.
    pub build: &'a mut dyn FnMut(&BackendUrl, Protocol, &mut RequestHead),
    /// What a FastCGI application gets in place of the head of a request; set if and only if [`crate::UpstreamSettings::fastcgi`] is.
    pub fastcgi: Option<&'a FastcgiRequest<'a>>,
    /// The body of the request; for tunnels, the bytes from the client.
    pub body: RequestBody,
    /// Whether to wait for the first bytes of a streamed body before sending the request (H2O compatibility: H2O waits). False for
    /// tunnels, and if the request's `expect` field is forwarded.
    pub waits_for_content: bool,
    /// Whether the body of the response ends only when the request's body has been sent: needed for clients whose connection
    /// carries one request at a time. If false, the rest of the request's body may be sent after the response has ended.
    pub ends_with_upload: bool,
    /// Whether the backend is asked to close its connection after the response. Without effect over HTTP/2 and HTTP/3.
    pub closes_connection: bool,
    /// Whether the upgrade that the client asks for exists over HTTP/1 only. `websocket` also exists over HTTP/2 and HTTP/3.
    pub needs_http1: bool,
    /// Whether to add `expect: 100-continue` and hold the body until an interim or final response arrives.
    pub expects_continue: bool,
    /// A function to be called for every interim response, except the 100 that `expects_continue` asked for.
    pub on_informational: Option<OnInformational<'a>>,
    /// Records the times of the request, if an access log or filter has asked for them.
    pub trace: Option<Rc<Trace>>,
    /// Memory for the fields of the response; see [`h2o_exchange::Exchange::headers`].
    pub headers: Headers,
}

/// A backend's response.
pub struct Reply {
    /// The status code: 2xx to 9xx, or 101 for a tunnel.
    pub status: StatusCode,
    /// The reason phrase; `None` if it is the standard phrase. Empty over HTTP/2 and HTTP/3.
    pub reason: Option<Box<str>>,
    /// All fields except `content-length` and `transfer-encoding`, as received.
    pub headers: Headers,
    /// The announced length of the body, even if none follows (HEAD, 304).
    pub length: Option<u64>,
    /// The body: in memory if it arrived with the head, otherwise pulled from the connection. For a tunnel, the bytes from the
    /// backend.
    pub body: Body,
    /// The index of the backend that answered.
    pub backend: usize,
    /// Whether the response had `connection: close`.
    pub closes: bool,
    /// Whether the body came in chunked coding (RFC 9112 §7.1).
    pub is_chunked: bool,
    /// Whether a tunnel is open: `body` and the body of the request are its two directions.
    pub is_tunnel: bool,
    /// The protocol over which the response arrived.
    pub protocol: Protocol,
}
