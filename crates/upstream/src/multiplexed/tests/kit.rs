//! What a server of either protocol (HTTP/2, HTTP/3) does in a conversation, and how requests are made.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use h2o_exchange::RequestBody;
use h2o_http::{Headers, Method, RequestHead, StatusCode};
use tokio::task::JoinHandle;

pub(super) use crate::http2::tests::kit::{
    content, failure, fields_of, get, head_of, piece, pipe, post, reply, run, settle, source,
    worker,
};
use crate::multiplexed::{Connection, Engine, StreamIndex, StreamSettings};
use crate::{Failure, OnInformational, Reply};

/// Something that the client has done, as the server sees it.
#[derive(Debug)]
pub(super) enum ServerEvent {
    Request(StreamIndex, Box<RequestHead>),
    Data(StreamIndex, Vec<u8>, bool),
    /// The client has cancelled a stream.
    Cancelled(StreamIndex),
    Closed,
}

/// How the server resets a stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reset {
    /// The server refuses the request without processing it.
    Refused,
    Failed,
}

/// A server made of our engine, with one connection.
pub(super) trait Server: Sized + 'static {
    type Engine: Engine;

    /// Starts a server, and opens a connection to it.
    async fn start(settings: StreamSettings) -> (Rc<Connection<Self::Engine>>, Self);
    /// Waits for the client's next action.
    async fn next(&mut self) -> ServerEvent;
    /// Sends everything that was written.
    async fn flush(&mut self);
    fn respond(
        &mut self,
        stream: StreamIndex,
        status: u16,
        fields: &[(&str, &str)],
        length: Option<u64>,
        end: bool,
    );
    fn inform(&mut self, stream: StreamIndex, status: u16, fields: &[(&str, &str)]);
    fn send(&mut self, stream: StreamIndex, data: &[u8], end: bool);
    fn end(&mut self, stream: StreamIndex, trailers: &[(&str, &str)]);
    fn reset(&mut self, stream: StreamIndex, reset: Reset);
    /// Releases a stream, whether the client has ended it or not.
    fn release(&mut self, stream: StreamIndex);
    /// Announces that the server takes no requests beyond those that it has seen.
    fn leave(&mut self);

    async fn request(&mut self) -> (StreamIndex, Box<RequestHead>) {
        match self.next().await {
            ServerEvent::Request(stream, head) => (stream, head),
            other => panic!("{other:?} instead of a request"),
        }
    }

    async fn cancelled(&mut self, stream: StreamIndex) {
        loop {
            match self.next().await {
                ServerEvent::Cancelled(of) if of == stream => return,
                ServerEvent::Data(..) => {}
                other => panic!("{other:?} instead of a reset"),
            }
        }
    }

    /// Waits until at least `least` bytes of a request's content have arrived. Returns them, and whether they are all.
    async fn content(&mut self, stream: StreamIndex, least: usize) -> (Vec<u8>, bool) {
        let mut all = Vec::new();
        loop {
            match self.next().await {
                ServerEvent::Data(of, data, end) if of == stream => {
                    all.extend(data);
                    if end || all.len() >= least {
                        return (all, end);
                    }
                }
                other => panic!("{other:?} instead of content"),
            }
        }
    }

    /// Sends a response with status 200 and this text.
    async fn answer(&mut self, stream: StreamIndex, text: &str) {
        self.respond(stream, 200, &[], None, false);
        self.send(stream, text.as_bytes(), true);
        self.release(stream);
        self.flush().await;
    }
}

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn settings() -> StreamSettings {
    StreamSettings {
        max_streams: 100,
        window: 65_535,
        first_byte_timeout: 5 * SECOND,
        io_timeout: 30 * SECOND,
        keepalive: 2 * SECOND,
    }
}

pub(crate) fn head(method: Method) -> RequestHead {
    let mut head = get("/");
    head.method = method;
    head
}

/// The interim responses that a call has received: status and number of fields of each.
pub(super) type InterimResponses = Rc<RefCell<Vec<(u16, usize)>>>;

pub(crate) type Call = JoinHandle<Result<Reply, Failure>>;

/// Sends a request in its own task.
pub(crate) fn call<E: Engine>(
    connection: &Rc<Connection<E>>,
    head: RequestHead,
    body: RequestBody,
) -> Call {
    call_with(connection, head, body, false, None)
}

pub(super) fn call_with<E: Engine>(
    connection: &Rc<Connection<E>>,
    head: RequestHead,
    body: RequestBody,
    expects_continue: bool,
    told: Option<InterimResponses>,
) -> Call {
    let connection = Rc::clone(connection);
    tokio::task::spawn_local(async move {
        if head.method == Method::Connect && !head.upgrade().is_empty() {
            std::future::poll_fn(|task| connection.poll_settings(task)).await;
        }
        let request = connection.request(&head, body, expects_continue, Headers::new())?;
        let mut tell = |status: StatusCode, headers: &Headers| {
            let told = told.as_ref().expect("the test collects interim responses");
            told.borrow_mut().push((status.as_u16(), headers.len()));
        };
        let mut on_informational: Option<OnInformational<'_>> = None;
        if told.is_some() {
            on_informational = Some(&mut tell);
        }
        request.response(&mut on_informational, None).await
    })
}

pub(crate) fn ask<E: Engine>(connection: &Rc<Connection<E>>, path: &str) -> Call {
    call(connection, get(path), RequestBody::None)
}
