//! An HTTP/2 connection as requests see it.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Weak;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use h2o_exchange::{Clock, RequestBody, TlsInfo};
use h2o_http::{BodyLength, ClientResponse, Headers, Method, RequestHead};
use h2o_http2::{ClientConnection, ErrorCode, StreamKey};

use super::Http2Settings;
use super::stream::{End, Stream, StreamFailure};
use super::upload::Upload;
use crate::Upstream;

/// An HTTP/2 connection to a backend.
pub(crate) struct Connection {
    /// Index of the backend.
    backend: usize,
    tls: OnceCell<Box<TlsInfo>>,
    /// For messages.
    upstream: OnceCell<Weak<Upstream>>,
    /// Whether a response has arrived over it.
    pub(crate) has_answered: Cell<bool>,
    pub(super) state: RefCell<State>,
}

/// State shared by the connection's task and its requests.
pub(super) struct State {
    pub(super) clock: Rc<Clock>,
    pub(super) engine: ClientConnection,
    pub(super) settings: Http2Settings,
    /// Output; the first `written` bytes have been sent.
    pub(super) out: Vec<u8>,
    pub(super) written: usize,
    /// By [`StreamKey::index`].
    pub(super) streams: Vec<Option<Stream>>,
    /// Streams whose body has no data at present and has not ended.
    pub(super) starved: Vec<StreamKey>,
    /// Requests that are complete in `out`: their response timeout starts when that has been written.
    pub(super) unwritten: Vec<StreamKey>,
    /// A lower bound of the earliest deadline of all streams.
    pub(super) earliest: Option<Instant>,
    /// Whether a request was begun.
    pub(super) has_begun: bool,
    /// When a request last made progress.
    pub(super) moved_at: Instant,
    /// Wakers of requests that wait for the backend's SETTINGS.
    pub(super) waiting: Vec<Waker>,
    /// Whether the socket is closed or about to be.
    pub(super) is_over: bool,
    /// The head of a response, reused for each.
    pub(super) head: ClientResponse,
    /// Waker of the connection's task, while it waits.
    pub(super) task: Option<Waker>,
}

impl Connection {
    pub(super) fn new(settings: Http2Settings, backend: usize, clock: Rc<Clock>) -> Self {
        let mut out = Vec::new();
        let now = clock.now();
        let engine = ClientConnection::new(settings.engine.clone(), now, &mut out);
        Self {
            backend,
            tls: OnceCell::new(),
            upstream: OnceCell::new(),
            has_answered: Cell::new(false),
            state: RefCell::new(State {
                clock,
                engine,
                settings,
                out,
                written: 0,
                streams: Vec::new(),
                starved: Vec::new(),
                unwritten: Vec::new(),
                earliest: None,
                has_begun: false,
                moved_at: now,
                waiting: Vec::new(),
                is_over: false,
                head: ClientResponse::new(),
                task: None,
            }),
        }
    }

    /// Index of the backend.
    pub(crate) const fn backend(&self) -> usize {
        self.backend
    }

    /// Sets the upstream, for messages.
    pub(crate) fn set_upstream(&self, upstream: Weak<Upstream>) {
        self.upstream.get_or_init(|| upstream);
    }

    /// Logs that the backend truncated a response.
    pub(super) fn report_failure(&self, failure: StreamFailure) {
        if failure != StreamFailure::Content
            && let Some(upstream) = self.upstream.get().and_then(Weak::upgrade)
        {
            upstream.report_failure(self.backend, None, failure.text());
        }
    }

    /// TLS parameters; `None` for clear text.
    pub(crate) fn tls(&self) -> Option<&TlsInfo> {
        self.tls.get().map(|info| &**info)
    }

    /// Sets the TLS parameters.
    pub(crate) fn set_tls(&self, info: TlsInfo) {
        self.tls.get_or_init(|| Box::new(info));
    }

    /// Whether another request can be begun now.
    pub(crate) fn can_request(&self) -> bool {
        let state = self.state.borrow();
        !state.is_over && state.engine.can_request()
    }

    /// Whether requests can be begun now or later.
    pub(super) fn is_reusable(&self) -> bool {
        let state = self.state.borrow();
        !state.is_over && state.engine.is_reusable()
    }

    /// Closes the connection once the requests in progress have ended.
    pub(super) fn retire(&self) {
        // If it is borrowed, its task is running and closes it after the idle timeout.
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.settings.keepalive = Duration::ZERO;
            state.wake_task();
        }
    }

    /// Number of requests in progress.
    pub(super) fn request_count(&self) -> usize {
        self.state.borrow().engine.open_streams()
    }

    /// Most requests in progress at a time.
    pub(super) fn max_requests(&self) -> usize {
        self.state.borrow().engine.most_streams()
    }

    /// Ready when the backend's SETTINGS have arrived, or the connection has ended.
    pub(crate) fn poll_settings(&self, task: &Context<'_>) -> Poll<()> {
        let mut state = self.state.borrow_mut();
        if state.is_over || state.engine.has_settings() {
            return Poll::Ready(());
        }
        state.waiting.push(task.waker().clone());
        Poll::Pending
    }
}

impl State {
    /// Wakes the connection's task.
    pub(super) fn wake_task(&mut self) {
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }

    pub(super) fn stream(&mut self, key: StreamKey) -> Option<&mut Stream> {
        self.streams.get_mut(key.index())?.as_mut()
    }

    /// Begins a request. `headers` is memory for the fields of its response.
    pub(super) fn begin(
        &mut self,
        head: &RequestHead,
        body: RequestBody,
        expects_continue: bool,
        headers: Headers,
    ) -> Result<StreamKey, StreamFailure> {
        if self.is_over {
            return Err(StreamFailure::Io);
        }
        let announced = match head.body {
            BodyLength::Known(length) => Some(length),
            BodyLength::None | BodyLength::Unknown | BodyLength::Tunnel => None,
        };
        let upload = Upload::new(body, announced, expects_continue);
        let is_complete = upload.is_none();
        let Some(key) = self.engine.request(head, is_complete, &mut self.out) else {
            let is_extended = head.method == Method::Connect && !head.upgrade().is_empty();
            return Err(if is_extended && !self.engine.takes_extended_connect() {
                StreamFailure::NoExtendedConnect
            } else {
                StreamFailure::Refused
            });
        };
        let is_held = upload.as_ref().is_some_and(Upload::is_held);
        self.engine.set_content(key, !is_complete && !is_held);
        let mut stream = Stream::new(key, upload, headers);
        // A tunnel's request has no end to wait for.
        stream.asks_for_tunnel = head.body == BodyLength::Tunnel;
        if stream.is_sent() {
            self.unwritten.push(key);
        }
        if self.streams.len() <= key.index() {
            self.streams.resize_with(key.index() + 1, || None);
        }
        self.streams[key.index()] = Some(stream);
        self.has_begun = true;
        self.moved_at = self.clock.now();
        self.wake_task();
        Ok(key)
    }

    /// The owner drops the stream. After a complete response the upload continues, unless its body may be resent
    /// elsewhere; and an end of the response in a separate frame is awaited, because servers take a reset for a
    /// cancelled request. Otherwise the stream is reset with CANCEL.
    pub(super) fn on_owner_dropped(&mut self, key: StreamKey) {
        let is_over = self.is_over;
        let until = self.clock.now() + self.settings.io_timeout;
        let Some(stream) = self.stream(key) else {
            return;
        };
        let is_wanted = (stream.upload.as_ref()).is_none_or(|upload| !upload.is_kept());
        stream.is_detached = stream.is_taken() && !is_over && is_wanted;
        if !stream.is_detached || stream.is_forgettable() {
            self.forget(key);
        } else if stream.is_open() {
            stream.deadline = Some((until, StreamFailure::IoTimeout));
            self.note_deadline(until);
            self.wake_task();
        }
    }

    /// Records the end of a response.
    pub(super) fn end(&mut self, key: StreamKey, end: End) {
        let Some(stream) = self.stream(key) else {
            return;
        };
        stream.on_end(end);
        if stream.is_forgettable() {
            self.forget(key);
        }
    }

    /// Forgets a stream and its upload.
    pub(super) fn forget(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(key.index()).and_then(Option::take) else {
            return;
        };
        drop(stream);
        let before = self.out.len();
        if !self.is_over {
            self.engine.release(key, &mut self.out);
        }
        // A stream was released: the task may be waiting for the last one.
        if self.out.len() > before || !self.engine.has_streams() {
            self.wake_task();
        }
    }

    /// Fails a stream: tells its owner, and the backend if it still takes part.
    pub(super) fn fail(&mut self, key: StreamKey, failure: StreamFailure) {
        let Some(stream) = self.stream(key) else {
            return;
        };
        stream.upload = None;
        if !self.is_over {
            self.engine.reset(key, ErrorCode::CANCEL, &mut self.out);
        }
        self.end(key, Err(failure));
    }

    /// Fails all streams: nothing more will be received.
    pub(super) fn fail_all(&mut self, failure: impl Fn(&Stream) -> StreamFailure) {
        self.is_over = true;
        let keys: Vec<_> = self.streams.iter().flatten().map(|s| s.key).collect();
        for key in keys {
            if let Some(stream) = self.stream(key) {
                let failure = failure(stream);
                self.fail(key, failure);
            }
        }
        for waker in self.waiting.drain(..) {
            waker.wake();
        }
    }

    /// Whether requests are in progress.
    pub(super) fn is_busy(&self) -> bool {
        self.engine.has_streams() || !self.waiting.is_empty()
    }
}
