//! An HTTP/2 or HTTP/3 connection to a backend, as requests see it.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Weak;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use h2o_exchange::{Clock, RequestBody, TlsInfo};
use h2o_http::{BodyLength, ClientResponse, Headers, Method, RequestHead};

use super::StreamSettings;
use super::engine::{Engine, StreamIndex};
use super::stream::{End, Stream, StreamFailure};
use super::upload::Upload;
use crate::Upstream;

/// An HTTP/2 or HTTP/3 connection to a backend.
pub(crate) struct Connection<E: Engine> {
    /// The index of the backend.
    backend: usize,
    tls: OnceCell<Box<TlsInfo>>,
    /// The upstream that the backend belongs to, for messages.
    upstream: OnceCell<Weak<Upstream>>,
    /// Whether a response has arrived over the connection.
    pub(crate) has_answered: Cell<bool>,
    /// Whether the backend has fallen silent, as if it knew nothing of the connection.
    pub(crate) is_lost: Cell<bool>,
    pub(crate) state: RefCell<State<E>>,
}

/// State shared by the connection's task and its requests.
pub(crate) struct State<E: Engine> {
    pub(crate) clock: Rc<Clock>,
    pub(crate) engine: E,
    pub(super) settings: StreamSettings,
    /// The streams, indexed by [`StreamIndex`].
    pub(super) streams: Vec<Option<Stream>>,
    /// Streams whose request body has no data at present and has not ended.
    pub(super) starved: Vec<StreamIndex>,
    /// Streams whose request the engine has taken completely. The timeout of their response starts when the engine's output has
    /// been written.
    pub(super) unwritten: Vec<StreamIndex>,
    /// A time that is not later than the earliest deadline of all streams.
    pub(super) earliest: Option<Instant>,
    /// Whether a request was ever begun over the connection.
    pub(super) has_begun: bool,
    /// When a request last made progress.
    pub(super) moved_at: Instant,
    /// Wakers of requests that wait for the backend's SETTINGS.
    pub(super) waiting: Vec<Waker>,
    /// Whether the connection is closed or about to be.
    pub(crate) is_over: bool,
    /// The head that the engine reads a response into; reused for each response.
    pub(crate) head: ClientResponse,
    /// The waker of the connection's task, while the task waits.
    pub(crate) task: Option<Waker>,
}

impl<E: Engine> Connection<E> {
    pub(crate) fn new(
        settings: StreamSettings,
        backend: usize,
        clock: Rc<Clock>,
        engine: E,
    ) -> Self {
        let now = clock.now();
        Self {
            backend,
            tls: OnceCell::new(),
            upstream: OnceCell::new(),
            has_answered: Cell::new(false),
            is_lost: Cell::new(false),
            state: RefCell::new(State {
                clock,
                engine,
                settings,
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

    /// The index of the backend.
    pub(crate) const fn backend(&self) -> usize {
        self.backend
    }

    /// Sets the upstream, which is needed for messages.
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

    /// The TLS parameters of the connection; `None` for clear text.
    pub(crate) fn tls(&self) -> Option<&TlsInfo> {
        self.tls.get().map(|info| &**info)
    }

    /// Sets the TLS parameters of the connection.
    pub(crate) fn set_tls(&self, info: TlsInfo) {
        self.tls.get_or_init(|| Box::new(info));
    }

    /// Whether another request can be begun over the connection now.
    pub(crate) fn can_request(&self) -> bool {
        let state = self.state.borrow();
        !state.is_over && state.engine.can_request()
    }

    /// Whether requests can be begun over the connection, now or later.
    pub(crate) fn is_reusable(&self) -> bool {
        let state = self.state.borrow();
        !state.is_over && state.engine.is_reusable()
    }

    /// Closes the connection once the requests in progress have ended.
    pub(crate) fn retire(&self) {
        // If the state is borrowed, the connection's task is running, and closes the connection after the idle timeout.
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.settings.keepalive = Duration::ZERO;
            state.wake_task();
        }
    }

    /// Number of requests in progress over the connection.
    pub(crate) fn request_count(&self) -> usize {
        self.state.borrow().engine.open_streams()
    }

    /// Whether the backend has said how many requests can be in progress over the connection at a time.
    pub(super) fn knows_limit(&self) -> bool {
        self.state.borrow().engine.knows_limit()
    }

    /// Limit of the requests that can be in progress over the connection at a time.
    pub(crate) fn max_requests(&self) -> usize {
        self.state.borrow().engine.most_streams()
    }

    /// Ready when the backend's SETTINGS have arrived, or the connection has ended.
    pub(crate) fn poll_settings(&self, task: &Context<'_>) -> Poll<()> {
        let mut state = self.state.borrow_mut();
        if state.is_over || state.engine.has_settings() {
            return Poll::Ready(());
        }
        state.watch(task);
        Poll::Pending
    }
}

impl<E: Engine> State<E> {
    /// Wakes the connection's task.
    pub(crate) fn wake_task(&mut self) {
        if let Some(task) = self.task.take() {
            self.engine.on_change();
            task.wake();
        }
    }

    pub(super) fn stream(&mut self, key: StreamIndex) -> Option<&mut Stream> {
        self.streams.get_mut(key.0)?.as_mut()
    }

    /// Number of bytes of a response that the client's side has not taken.
    pub(crate) fn queued(&self, key: StreamIndex) -> usize {
        let stream = self.streams.get(key.0).and_then(Option::as_ref);
        stream.map_or(0, Stream::queued)
    }

    /// Whether uploads wait for data from their clients.
    pub(crate) const fn has_starved(&self) -> bool {
        !self.starved.is_empty()
    }

    /// Registers a task to be woken by [`State::wake_waiting`].
    pub(crate) fn watch(&mut self, task: &Context<'_>) {
        let waker = task.waker();
        if !self.waiting.iter().any(|other| other.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }

    /// Begins a request. `headers` is memory for the fields of its response. Returns the stream, and the length in bytes of the
    /// encoded head.
    pub(super) fn begin(
        &mut self,
        head: &RequestHead,
        body: RequestBody,
        expects_continue: bool,
        headers: Headers,
    ) -> Result<(StreamIndex, usize), StreamFailure> {
        if self.is_over {
            return Err(StreamFailure::Io);
        }
        let announced = match head.body {
            BodyLength::Known(length) => Some(length),
            BodyLength::None | BodyLength::Unknown | BodyLength::Tunnel => None,
        };
        let upload = Upload::new(body, announced, expects_continue);
        let is_complete = upload.is_none();
        let Some((key, head_len)) = self.engine.request(head, is_complete) else {
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
        // A request for a tunnel counts as sent after its head: the client's bytes are held back until the backend opens the
        // tunnel.
        stream.asks_for_tunnel = head.body == BodyLength::Tunnel;
        if stream.is_sent() {
            self.unwritten.push(key);
        }
        if self.streams.len() <= key.0 {
            self.streams.resize_with(key.0 + 1, || None);
        }
        self.streams[key.0] = Some(stream);
        self.has_begun = true;
        self.moved_at = self.clock.now();
        self.wake_task();
        Ok((key, head_len))
    }

    /// Handles the drop of a stream's owner (the request or response body that holds it). If the owner had taken the whole
    /// response, the upload continues, and an end of the response in a separate frame is awaited, because servers take a reset for
    /// a cancelled request. Otherwise, or if another handler may send the request body again, the stream is cancelled.
    pub(super) fn on_owner_dropped(&mut self, key: StreamIndex) {
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

    /// Records the end of a response: complete, or failed.
    pub(super) fn end(&mut self, key: StreamIndex, end: End) {
        let Some(stream) = self.stream(key) else {
            return;
        };
        stream.on_end(end);
        if stream.is_forgettable() {
            self.forget(key);
        }
    }

    /// Drops a stream and its upload.
    pub(super) fn forget(&mut self, key: StreamIndex) {
        let Some(stream) = self.streams.get_mut(key.0).and_then(Option::take) else {
            return;
        };
        drop(stream);
        let has_output = !self.is_over && self.engine.release(key);
        // The connection's task may be waiting for the last stream to be released, or has a reset to send.
        if has_output || !self.engine.has_streams() {
            self.wake_task();
        }
    }

    /// Fails a stream: tells the request or response body that holds it, and cancels the stream at the backend if the connection is
    /// open.
    pub(super) fn fail(&mut self, key: StreamIndex, failure: StreamFailure) {
        let Some(stream) = self.stream(key) else {
            return;
        };
        stream.upload = None;
        if !self.is_over {
            self.engine.cancel(key);
        }
        self.end(key, Err(failure));
    }

    /// Fails all streams, because nothing more will be received.
    pub(crate) fn fail_all(&mut self, failure: StreamFailure) {
        self.fail_each(|_| failure);
    }

    /// Fails all streams as [`State::fail_all`] does, with a failure for each stream.
    pub(super) fn fail_each(&mut self, failure: impl Fn(&Stream) -> StreamFailure) {
        self.is_over = true;
        let keys: Vec<_> = self.streams.iter().flatten().map(|s| s.key).collect();
        for key in keys {
            if let Some(stream) = self.stream(key) {
                let failure = failure(stream);
                self.fail(key, failure);
            }
        }
        self.wake_waiting();
    }

    /// Whether requests are in progress over the connection.
    pub(crate) fn is_busy(&self) -> bool {
        self.engine.has_streams() || !self.waiting.is_empty()
    }
}
