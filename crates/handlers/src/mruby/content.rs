//! Bodies of responses that scripts get, from other servers and from sub-requests.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2o_exchange::{Body, FileReader};
use h2o_http::Headers;
use h2o_mruby::{Leave, Value, Vm};

use super::machine::Host;

/// Most bytes of a body that the server reads at a time for a script.
const PIECE: usize = 64 * 1024;

/// The body of a response that a script has got.
struct Content {
    state: RefCell<State>,
    /// Whether reading the body a second time raises an exception. Otherwise it is empty then.
    is_read_once: bool,
    /// Whether `each` has begun, for bodies that may be read only once.
    is_consumed: Cell<bool>,
    /// Counts the body while it is open.
    open: RefCell<Option<Open>>,
}

/// Number of bodies from which the garbage collector is asked to find those that no script can reach. The collector itself counts memory only,
/// and a body has little of that, but often a connection.
const MANY: usize = 64;

/// The bodies of a VM that scripts have and that have not come to their end.
struct OpenBodies {
    count: Cell<usize>,
    /// The number at which the garbage collector is asked next.
    collect_at: Cell<usize>,
}

impl Default for OpenBodies {
    fn default() -> Self {
        Self {
            count: Cell::new(0),
            collect_at: Cell::new(MANY),
        }
    }
}

/// Counts an open body among [`OpenBodies`].
struct Open(Rc<OpenBodies>);

impl Open {
    fn new(vm: &Vm) -> Self {
        let bodies = vm.local::<OpenBodies>();
        bodies.count.set(bodies.count.get() + 1);
        if bodies.count.get() >= bodies.collect_at.get() {
            bodies.collect_at.set(2 * bodies.count.get());
            vm.request_collection();
        }
        Self(bodies)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let OpenBodies { count, collect_at } = &*self.0;
        count.set(count.get() - 1);
        collect_at.set(collect_at.get().min(MANY.max(2 * count.get())));
    }
}

enum State {
    /// The body can be read, or become part of the script's response without passing through Ruby.
    Unread(Body),
    /// A strand (fiber) waits for the next piece of the body.
    BeingRead,
    /// The body has become part of the response to the client.
    HandedOn,
    Ended,
}

impl Content {
    /// Drops what the script has not read. Without it, the connection of a script that stops reading would stay open until the garbage
    /// collector frees the object, which can be a thousand requests later.
    fn end(&self) {
        let mut state = self.state.borrow_mut();
        if matches!(*state, State::Unread(_)) {
            let before = std::mem::replace(&mut *state, State::Ended);
            drop(state);
            drop(before);
            self.open.take();
        }
    }

    /// Changes the state, and returns the one before.
    fn replace(&self, state: State) -> State {
        if matches!(state, State::Ended | State::HandedOn) {
            self.open.take();
        }
        self.state.replace(state)
    }
}

/// Defines the Ruby classes of the bodies of responses that scripts get.
pub(super) fn define(vm: &Vm) -> Result<(), Value> {
    let module = vm.module(None, "H2O")?;
    for class in ["HttpInputStream", "AppInputStream"] {
        let class = vm.object_class(Some(module), class)?;
        vm.define(class, "__read", read)?;
        vm.define(class, "__end", |vm, call| {
            vm.with_object(call.receiver, Content::end)?;
            Ok(Value::nil())
        })?;
    }
    let once = vm.constant(Some(module), "HttpInputStream")?;
    vm.define(once, "__begin", |vm, call| {
        vm.with_object(call.receiver, |content: &Content| {
            if content.is_consumed.replace(true) {
                return Err(Leave::runtime("http response body is already consumed"));
            }
            Ok(Value::nil())
        })?
    })
}

/// The status, fields and body of a response as the Array that Ruby gets. `class` is the class of the body; if `is_read_once`, the
/// script gets an exception when it reads the body a second time.
pub(super) fn triple(
    vm: &Vm,
    status: u16,
    headers: Value,
    class: Value,
    body: Body,
    is_read_once: bool,
) -> Result<Value, Value> {
    let is_open = matches!(body, Body::Stream(_));
    let content = Content {
        open: RefCell::new(is_open.then(|| Open::new(vm))),
        is_read_once,
        state: RefCell::new(State::Unread(body)),
        is_consumed: Cell::new(false),
    };
    let stream = vm.object(class, content)?;
    vm.array(&[vm.integer(status.into())?, headers, stream])
}

/// Adds `content-length` to a Hash of header fields, if the length is known.
pub(super) fn add_length(vm: &Vm, headers: Value, length: Option<u64>) -> Result<(), Value> {
    let Some(length) = length else {
        return Ok(());
    };
    let (name, value) = (vm.string("content-length")?, vm.string(length.to_string())?);
    vm.hash_set(headers, name, value)
}

/// The fields as a Hash. The values of fields with the same name are joined by the text that `between` returns for the
/// name.
pub(super) fn joined_fields(
    vm: &Vm,
    headers: &Headers,
    between: impl Fn(&str) -> &'static [u8],
) -> Result<Value, Value> {
    let hash = vm.hash(headers.len() + 1)?;
    for field in headers.iter() {
        let name = vm.string(field.name.as_str())?;
        let known = vm.hash_get(hash, name)?;
        let value = match vm.bytes(known) {
            Some(mut joined) => {
                joined.extend_from_slice(between(field.name.as_str()));
                joined.extend_from_slice(field.value);
                vm.string(joined)?
            }
            None => vm.string(field.value)?,
        };
        vm.hash_set(hash, name, value)?;
    }
    Ok(hash)
}

/// Takes a body out of a Ruby object, to send it without passing through Ruby; `None` if the object is no such body.
///
/// # Errors
/// The exception `RuntimeError`, if the script has read the body or is reading it.
pub(super) fn take_body(vm: &Vm, value: Value) -> Result<Option<Body>, Leave> {
    let taken = vm.try_object(value, |content: &Content| {
        if let State::Unread(Body::Empty) = *content.state.borrow() {
            return Ok(Body::Empty);
        }
        if content.is_consumed.replace(true) && content.is_read_once {
            return Err(Leave::runtime("http response body is already consumed"));
        }
        match content.replace(State::HandedOn) {
            State::Unread(body) => Ok(body),
            State::BeingRead => {
                content.replace(State::BeingRead);
                Err(Leave::runtime("another fiber reads this body"))
            }
            State::HandedOn | State::Ended => Ok(Body::Empty),
        }
    });
    taken.transpose()
}

/// Reads the next piece of a body; `nil` at the end, also if the connection broke off (H2O compatibility: as in H2O).
fn read(vm: &Vm, call: &h2o_mruby::Call<'_>) -> Result<Value, Leave> {
    let stream = call.receiver;
    let state = vm.with_object(stream, |content: &Content| {
        content.replace(State::BeingRead)
    })?;
    let mut body = match state {
        State::Unread(body) => body,
        State::BeingRead => return Err(Leave::runtime("another fiber reads this body")),
        State::HandedOn => {
            set_state(vm, stream, State::HandedOn)?;
            return Err(Leave::argument("downstream HTTP closed"));
        }
        State::Ended => {
            set_state(vm, stream, State::Ended)?;
            return Ok(Value::nil());
        }
    };
    let mut context = Context::from_waker(Waker::noop());
    match poll_piece(&mut body, &mut context) {
        Poll::Ready(piece) => give(vm, stream, body, piece).map_err(Leave::Raise),
        Poll::Pending => {
            let worker = Host::worker(vm)?;
            let ticket = match vm.suspend() {
                Ok(ticket) => ticket,
                Err(refused) => {
                    set_state(vm, stream, State::Unread(body))?;
                    return Err(refused);
                }
            };
            let stream = vm.root(stream).map_err(Leave::Raise)?;
            let reference = vm.reference();
            worker.spawn(async move {
                let piece = poll_fn(|task| poll_piece(&mut body, task)).await;
                if let Some(vm) = reference.upgrade() {
                    vm.resume(ticket, |vm| {
                        give(vm, stream.value(), body, piece).unwrap_or_else(|exception| exception)
                    });
                }
            });
            Err(Leave::Wait)
        }
    }
}

/// Returns a piece to Ruby, and puts the rest of the body back into its object.
fn give(vm: &Vm, stream: Value, body: Body, piece: Option<Bytes>) -> Result<Value, Value> {
    let Some(piece) = piece else {
        let _ = set_state(vm, stream, State::Ended);
        return Ok(Value::nil());
    };
    let _ = set_state(vm, stream, State::Unread(body));
    vm.string(piece)
}

fn set_state(vm: &Vm, stream: Value, state: State) -> Result<(), Leave> {
    vm.with_object(stream, |content: &Content| content.replace(state))
        .map(drop)
}

/// Polls the next piece of a body; `None` at the end.
fn poll_piece(body: &mut Body, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
    match body {
        Body::Empty => Poll::Ready(None),
        Body::Bytes(bytes) => {
            let bytes = std::mem::take(bytes);
            *body = Body::Empty;
            Poll::Ready(Some(bytes).filter(|bytes| !bytes.is_empty()))
        }
        Body::File(range) => {
            let mut reader = FileReader::new(range.clone());
            let mut piece = Vec::new();
            let read = std::task::ready!(reader.poll_append(context, PIECE, &mut piece));
            let read = read.unwrap_or(0) as u64;
            range.offset += read;
            range.len -= read.min(range.len);
            Poll::Ready(Some(Bytes::from(piece)).filter(|piece| !piece.is_empty()))
        }
        Body::Stream(source) => source
            .poll_next(context, PIECE)
            .map(|piece| piece.and_then(Result::ok)),
    }
}
