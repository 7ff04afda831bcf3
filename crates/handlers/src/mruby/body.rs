//! Response bodies whose chunks a script yields by its method `each`.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2o_exchange::{Body, BodyError, BodySource, Response, Trailers, Worker};
use h2o_mruby::{Finish, Kind, Leave, Ticket, Value, Vm};

use super::machine::{self, Host};
use super::objects::RequestState;

/// With this many bytes queued, the script's `each` waits until the client has taken some, if the script runs where it
/// can wait.
const FULL: usize = 256 * 1024;

/// How long a script may go on to yield chunks that nobody gets: after a request with HEAD, or beyond its `content-length`.
const DISCARD_TIME: Duration = Duration::from_secs(30);
/// How many such chunks a script may yield: nothing else makes a script wait that yields without end.
const MAX_DISCARDED: u32 = 20_000;
/// How many scripts of a worker may go on so at the same time. A further one ends the oldest, so that clients cannot pile them up.
const MAX_DISCARDING: usize = 100;

/// The bodies of a worker whose scripts go on although nobody gets their chunks, the oldest first.
#[derive(Default)]
struct Discarding(RefCell<VecDeque<Weak<RefCell<Queue>>>>);

impl Discarding {
    /// Adds a body, and ends the oldest ones beyond [`MAX_DISCARDING`]: their next chunk raises, as if the client had gone.
    fn add(&self, queue: &Rc<RefCell<Queue>>) {
        let mut all = self.0.borrow_mut();
        let goes_on = |queue: &Weak<RefCell<Queue>>| {
            (queue.upgrade()).is_some_and(|queue| queue.borrow().end.is_none())
        };
        all.retain(goes_on);
        all.push_back(Rc::downgrade(queue));
        while all.len() > MAX_DISCARDING {
            if let Some(oldest) = all.pop_front().and_then(|oldest| oldest.upgrade()) {
                let mut oldest = oldest.borrow_mut();
                oldest.is_closed = true;
                oldest.discards_until = None;
            }
        }
    }
}

/// The chunks that a script has yielded and the client has not taken.
#[derive(Default)]
pub(super) struct Queue {
    chunks: VecDeque<Bytes>,
    len: usize,
    end: Option<Result<(), String>>,
    /// Whether the connection has dropped the body, so that no more chunks are taken.
    is_closed: bool,
    /// Until when further chunks are dropped without being sent, because the response has no (more) content; `None` if they are
    /// sent.
    discards_until: Option<Instant>,
    /// Number of chunks that were dropped without being sent.
    discarded: u32,
    /// Whether the method `close` of the script's body was called or is about to be called.
    is_close_called: bool,
    reader: Option<Waker>,
    /// The script's strand (fiber), while it waits for room in the queue.
    writer: Option<Ticket>,
}

/// The queue of a body, which the script's strand (fiber) and the client's connection share.
#[derive(Clone, Default)]
pub(super) struct Sink(Rc<RefCell<Queue>>);

/// Starts a strand (fiber) of its own that runs `body.each`.
pub(super) fn start(vm: &Vm, body: Value, request: &Rc<RequestState>) -> Result<ScriptBody, Leave> {
    let sink = Sink::default();
    let module = vm.constant(None, "H2O").map_err(Leave::Raise)?;
    let class = vm
        .constant(Some(module), "BodySink")
        .map_err(Leave::Raise)?;
    let object = vm.object(class, sink.clone()).map_err(Leave::Raise)?;
    let streaming = vm
        .constant(Some(module), "Streaming")
        .map_err(Leave::Raise)?;
    let pair = vm.array(&[body, object]).map_err(Leave::Raise)?;
    let context = vm.context().unwrap_or(u64::MAX);
    vm.spawn(streaming, pair, context, Rc::new(sink.clone()));
    Ok(ScriptBody {
        sink,
        vm: vm.reference(),
        request: Rc::clone(request),
        body: vm.root(body).ok(),
    })
}

impl Sink {
    /// Has the script go on although the response has no (more) content: what it yields is dropped. A script that does not end
    /// is ended after [`DISCARD_TIME`] or [`MAX_DISCARDED`] chunks.
    pub(super) fn discard(&self, worker: &Worker) {
        worker.local::<Discarding>().add(&self.0);
        let mut queue = self.0.borrow_mut();
        queue.discards_until = Some(worker.clock.now() + DISCARD_TIME);
        queue.chunks.clear();
        queue.len = 0;
    }
}

impl Finish for Sink {
    fn finish(&self, vm: &Vm, result: Result<Value, Value>) -> Result<(), Leave> {
        let failure = result
            .err()
            .map(|exception| machine::describe(vm, exception));
        if let Some(exception) = &failure {
            machine::report(exception);
        }
        let waker = {
            let mut queue = self.0.borrow_mut();
            queue.end = Some(match failure {
                // Chunks that the client has not taken are dropped.
                Some(exception) => {
                    queue.chunks.clear();
                    queue.len = 0;
                    Err(exception)
                }
                None => Ok(()),
            });
            queue.reader.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

/// Defines the Ruby class whose method `write` adds chunks to a queue.
pub(super) fn define(vm: &Vm, module: Value) -> Result<(), Value> {
    let class = vm.object_class(Some(module), "BodySink")?;
    vm.define(class, "write", |vm, call| {
        let [chunk] = call.arguments.exactly()?;
        if chunk.kind() != Kind::String {
            let class = vm.name_in_messages(chunk);
            return Err(Leave::type_error(format!(
                "{class} cannot be converted to String"
            )));
        }
        let bytes = vm.bytes(chunk).unwrap_or_default();
        vm.with_object(call.receiver, |sink: &Sink| {
            let mut queue = sink.0.borrow_mut();
            if let Some(until) = queue.discards_until {
                queue.discarded += 1;
                if queue.discarded <= MAX_DISCARDED && Host::worker(vm)?.clock.now() < until {
                    return Ok(Value::nil());
                }
                queue.is_closed = true;
            }
            if queue.is_closed {
                return Err(Leave::runtime("downstream HTTP closed"));
            }
            if !bytes.is_empty() {
                queue.len += bytes.len();
                queue.chunks.push_back(Bytes::from(bytes));
                if let Some(waker) = queue.reader.take() {
                    waker.wake();
                }
            }
            if queue.len >= FULL
                && let Ok(ticket) = vm.suspend()
            {
                queue.writer = Some(ticket);
                return Err(Leave::Wait);
            }
            Ok(Value::nil())
        })?
    })?;
    // Returns whether the caller must call `close` of the body: true the first time only.
    vm.define(class, "closes?", |vm, call| {
        vm.with_object(call.receiver, |sink: &Sink| {
            let called = std::mem::replace(&mut sink.0.borrow_mut().is_close_called, true);
            Value::boolean(!called)
        })
    })?;
    vm.define(class, "closed?", |vm, call| {
        vm.with_object(call.receiver, |sink: &Sink| {
            Value::boolean(sink.0.borrow().is_closed)
        })
    })
}

/// The body of a response, from which the connection pulls the script's chunks.
pub(super) struct ScriptBody {
    pub(super) sink: Sink,
    vm: Weak<Vm>,
    request: Rc<RequestState>,
    body: Option<h2o_mruby::Rooted>,
}

impl ScriptBody {
    /// Limits a body to its announced length: bytes beyond it are not sent.
    ///
    /// `sink` is that of the body, if the body is a script's; the script goes on.
    pub(super) fn cut(body: Body, length: u64, sink: Option<(Sink, Rc<Worker>)>) -> Body {
        match body {
            Body::Stream(source) => {
                let mut cut = Cut {
                    source,
                    left: length,
                    sink,
                };
                cut.end_if_complete();
                Body::Stream(Box::new(cut))
            }
            other => other,
        }
    }

    /// Resumes the script's strand (fiber) that waits for room, in a task of its own, so that the script does not run
    /// while the connection is being served.
    fn resume_writer(&self, ticket: Ticket) {
        let vm = self.vm.clone();
        let Some(worker) = vm.upgrade().and_then(|vm| Host::worker(&vm).ok()) else {
            return;
        };
        worker.spawn(async move {
            if let Some(vm) = vm.upgrade() {
                vm.resume(ticket, |_| Value::nil());
            }
        });
    }
}

impl BodySource for ScriptBody {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        let (piece, writer) = {
            let queue = &mut *self.sink.0.borrow_mut();
            let Some(front) = queue.chunks.front_mut() else {
                return match &queue.end {
                    Some(Ok(())) => Poll::Ready(None),
                    Some(Err(exception)) => {
                        let text = format!("mruby raised: {exception}");
                        Poll::Ready(Some(Err(BodyError::Reported(text))))
                    }
                    None => {
                        queue.reader = Some(context.waker().clone());
                        Poll::Pending
                    }
                };
            };
            let piece = front.split_to(front.len().min(max));
            if front.is_empty() {
                queue.chunks.pop_front();
            }
            queue.len -= piece.len();
            let writer = if queue.len < FULL {
                queue.writer.take()
            } else {
                None
            };
            (piece, writer)
        };
        if let Some(ticket) = writer {
            self.resume_writer(ticket);
        }
        Poll::Ready(Some(Ok(piece)))
    }

    fn retained(&self) -> usize {
        self.sink.0.borrow().len
    }
}

impl Drop for ScriptBody {
    fn drop(&mut self) {
        self.request.end();
        let (writer, goes_on) = {
            let mut queue = self.sink.0.borrow_mut();
            let goes_on = queue.discards_until.is_some();
            queue.is_closed = !goes_on;
            queue.chunks.clear();
            queue.len = 0;
            (queue.writer.take(), goes_on)
        };
        if let Some(ticket) = writer {
            self.resume_writer(ticket);
        }
        if goes_on {
            // The script's strand calls `close` when `each` has returned.
            return;
        }
        let is_called = std::mem::replace(&mut self.sink.0.borrow_mut().is_close_called, true);
        if let (false, Some(vm), Some(body)) = (is_called, self.vm.upgrade(), self.body.take())
            && let Ok(worker) = Host::worker(&vm)
        {
            worker.spawn(async move {
                vm.scope(|| {
                    if let Ok(module) = vm.constant(None, "H2O") {
                        let _ = vm.call(module, "__close", &[body.value()]);
                    }
                });
            });
        }
    }
}

/// A body that ends after the announced length.
struct Cut {
    source: Box<dyn BodySource>,
    left: u64,
    sink: Option<(Sink, Rc<Worker>)>,
}

impl Cut {
    /// Has the script go on by itself once all announced bytes were taken: the connection may drop the body without polling it again.
    fn end_if_complete(&mut self) {
        if self.left == 0
            && let Some((sink, worker)) = self.sink.take()
        {
            sink.discard(&worker);
        }
    }
}

impl BodySource for Cut {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let max = usize::try_from(self.left).unwrap_or(usize::MAX).min(max);
        let polled = self.source.poll_next(context, max);
        match &polled {
            Poll::Ready(Some(Ok(piece))) => {
                self.left -= piece.len() as u64;
                self.end_if_complete();
            }
            Poll::Ready(None) => {
                let text = "the script's body is shorter than its content-length".to_owned();
                return Poll::Ready(Some(Err(BodyError::Failed(text))));
            }
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        polled
    }

    fn trailers(&mut self) -> Trailers {
        self.source.trailers()
    }

    fn poll_ahead(&mut self, context: &mut Context<'_>) {
        self.source.poll_ahead(context);
    }

    fn retained(&self) -> usize {
        self.source.retained()
    }
}

/// Shortens a response to the length that a script has announced.
pub(super) fn limit(response: &mut Response, length: u64) {
    match &mut response.body {
        Body::Bytes(bytes) if (bytes.len() as u64) > length => {
            bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        }
        Body::File(range) if range.len > length => range.len = length,
        Body::Stream(_) => {
            if response.length.is_none_or(|known| known > length) {
                let body = std::mem::take(&mut response.body);
                response.body = ScriptBody::cut(body, length, None);
                response.length = Some(length);
            }
            return;
        }
        Body::Empty | Body::Bytes(_) | Body::File(_) => {}
    }
    response.length = response.body.len();
}
