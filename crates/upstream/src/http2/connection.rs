//! A connection as calls see it.

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

/// A connection to a backend.
pub(crate) struct Connection {
    /// Index of the backend.
    backend: usize,
    tls: OnceCell<Box<TlsInfo>>,
    /// For messages.
    upstream: OnceCell<Weak<Upstream>>,
    /// A response has come over it.
    pub(crate) has_answered: Cell<bool>,
    pub(super) state: RefCell<State>,
}

/// What the task and the calls share.
pub(super) struct State {
    pub(super) clock: Rc<Clock>,
    pub(super) engine: ClientConnection,
    pub(super) settings: Http2Settings,
    /// To be sent; the first `written` bytes have been.
    pub(super) out: Vec<u8>,
    pub(super) written: usize,
    /// By [`StreamKey::index`].
    pub(super) streams: Vec<Option<Stream>>,
    /// Streams whose content has run out, and that have not ended.
    pub(super) starved: Vec<StreamKey>,
    /// Requests that are complete in `out`: the time for their responses begins when that is written.
    pub(super) unwritten: Vec<StreamKey>,
    /// Not later than the earliest deadline of a stream.
    pub(super) earliest: Option<Instant>,
    /// A request was made.
    pub(super) has_begun: bool,
    /// When a call last made something go forward.
    pub(super) moved_at: Instant,
    /// Calls that wait for the server's SETTINGS.
    pub(super) waiting: Vec<Waker>,
    /// The socket is closed, or about to be.
    pub(super) is_over: bool,
    /// The head of a response, used again for each.
    pub(super) head: ClientResponse,
    /// The task, if it waits.
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

    /// Index of the backend it leads to.
    pub(crate) const fn backend(&self) -> usize {
        self.backend
    }

    /// Notes whose backend it leads to.
    pub(crate) fn set_upstream(&self, upstream: Weak<Upstream>) {
        self.upstream.get_or_init(|| upstream);
    }

    /// A response was broken off by the backend.
    pub(super) fn report_failure(&self, failure: StreamFailure) {
        if failure != StreamFailure::Content
            && let Some(upstream) = self.upstream.get().and_then(Weak::upgrade)
        {
            upstream.report_failure(self.backend, None, failure.text());
        }
    }

    /// What was agreed on by TLS; `None` for clear text.
    pub(crate) fn tls(&self) -> Option<&TlsInfo> {
        self.tls.get().map(|info| &**info)
    }

    /// Notes what was agreed on by TLS.
    pub(crate) fn set_tls(&self, info: TlsInfo) {
        self.tls.get_or_init(|| Box::new(info));
    }

    /// True if another request can be made now.
    pub(crate) fn can_request(&self) -> bool {
        let state = self.state.borrow();
        !state.is_over && state.engine.can_request()
    }

    /// True if requests can be made now or later.
    pub(super) fn is_reusable(&self) -> bool {
        let state = self.state.borrow();
        !state.is_over && state.engine.is_reusable()
    }

    /// The connection is closed when the requests in progress have ended.
    pub(super) fn retire(&self) {
        // Otherwise it is being worked on, and closed when it has been idle for as long as before.
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.settings.keepalive = Duration::ZERO;
            state.wake_task();
        }
    }

    /// Requests in progress.
    pub(super) fn used(&self) -> usize {
        self.state.borrow().engine.open_streams()
    }

    /// Requests there can be at a time.
    pub(super) fn most(&self) -> usize {
        self.state.borrow().engine.most_streams()
    }

    /// Ready when the server's SETTINGS have come, or never will.
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
    /// The task has something to do.
    pub(super) fn wake_task(&mut self) {
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }

    pub(super) fn stream(&mut self, key: StreamKey) -> Option<&mut Stream> {
        self.streams.get_mut(key.index())?.as_mut()
    }

    /// Makes a request. `headers` is memory for the fields of its response.
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
        // It has no end that could be waited for.
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

    /// The owner of a stream is done with it. If it has had all of the response, the upload goes on, unless its content may be
    /// wanted elsewhere; and an end that comes
    /// in a frame of its own is waited for, as servers take a reset for a request given up. Otherwise the server is told that
    /// nobody is interested any more.
    pub(super) fn leave(&mut self, key: StreamKey) {
        let is_over = self.is_over;
        let until = self.clock.now() + self.settings.io_timeout;
        let Some(stream) = self.stream(key) else {
            return;
        };
        let is_wanted = (stream.upload.as_ref()).is_none_or(|upload| !upload.is_kept());
        stream.is_detached = stream.is_taken() && !is_over && is_wanted;
        if !stream.is_detached || stream.is_left() {
            self.forget(key);
        } else if stream.is_open() {
            stream.deadline = Some((until, StreamFailure::IoTimeout));
            self.note_deadline(until);
            self.wake_task();
        }
    }

    /// A response has ended.
    pub(super) fn end(&mut self, key: StreamKey, end: End) {
        let Some(stream) = self.stream(key) else {
            return;
        };
        stream.on_end(end);
        if stream.is_left() {
            self.forget(key);
        }
    }

    /// Ends what goes on for a stream.
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

    /// The stream fails. Its owner is told; the server, too, if it still takes part.
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

    /// Nothing is to come any more: all streams fail.
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

    /// True while a call or a response goes on.
    pub(super) fn is_busy(&self) -> bool {
        self.engine.has_streams() || !self.waiting.is_empty()
    }
}
