//! A request on its way to a backend, and what comes back.

use std::rc::Rc;

use h2o_exchange::{Body, ConnectionInfo, RequestBody, Trace, Worker};
use h2o_http::{Headers, RequestHead, StatusCode};

use crate::BackendUrl;

/// The protocol a request is sent by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Is told of an interim response: its status and fields.
pub type OnInformational<'a> = &'a mut dyn FnMut(StatusCode, &Headers);

/// A request to be sent.
pub struct Call<'a> {
    /// The worker everything runs on.
    pub worker: &'a Rc<Worker>,
    /// The client's connection, for the PROXY line.
    pub client: Rc<ConnectionInfo>,
    /// Fills in the head for the backend that was chosen; the head it is handed is empty, its memory kept from earlier
    /// requests.
    ///
    /// It sets method, target, authority, body length, upgrade token and the fields in the order to be sent; no field
    /// that concerns one connection only is among them. [`h2o_http::BodyLength::Tunnel`] is for requests that ask for a
    /// tunnel; with an upgrade token the method is then an ordinary one on HTTP/1. If the content turns out to be complete
    /// before the request is sent, `Unknown` becomes its length.
    ///
    /// Called once per connection that is tried: normally once.
    pub build: &'a mut dyn FnMut(&BackendUrl, Protocol, &mut RequestHead),
    /// The content. For tunnels the bytes from the client.
    pub body: RequestBody,
    /// True: a streamed body is waited for until its first piece is there (H2O compatibility). False for tunnels and where
    /// `expect` is forwarded.
    pub waits_for_content: bool,
    /// True for upgrades that only HTTP/1 has, such as those to `websocket`; others may go by HTTP/2.
    pub needs_http1: bool,
    /// Adds `expect: 100-continue`, and holds the content back until an interim or final response is there.
    pub expects_continue: bool,
    /// Is told of every interim response: status and fields. The 100 that `expects_continue` asked for is left out.
    pub on_informational: Option<OnInformational<'a>>,
    /// Is told when what happens.
    pub trace: Option<Rc<Trace>>,
    /// Memory for the fields of the response; see [`h2o_exchange::Exchange::headers`].
    pub headers: Headers,
}

/// The response of a backend.
pub struct Reply {
    /// The status, 2xx to 9xx; 101 for a tunnel.
    pub status: StatusCode,
    /// The reason phrase; `None` if it is the status's own. Empty over HTTP/2.
    pub reason: Option<Box<str>>,
    /// All fields except `content-length` and `transfer-encoding`, as received.
    pub headers: Headers,
    /// The length of the content as announced, also where none follows (HEAD, 304).
    pub length: Option<u64>,
    /// The content: in memory if it came with the head, otherwise pulled from the connection. For a tunnel the bytes
    /// from the backend.
    pub body: Body,
    /// Index of the backend that answered.
    pub backend: usize,
    /// True if the response had `connection: close`.
    pub closes: bool,
    /// True if a tunnel is open: `body` and the request's body are its two directions.
    pub is_tunnel: bool,
    /// The protocol it came by.
    pub protocol: Protocol,
}
