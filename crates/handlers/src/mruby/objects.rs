//! The Ruby objects by which a script acts on its request: for the request body, error lines and early hints.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Waker;

use h2o_exchange::{Address, Exchange, FileRange, RequestBody, Transport};
use h2o_http::{Headers, StatusCode};
use h2o_mruby::{Kind, Leave, Value, Vm};

use super::answer;
use super::body;
use super::handler::Call;
use super::input;
use crate::header;

/// The state of a request that Ruby objects share. They may outlive the request, since scripts continue to run when the
/// client disconnects.
pub(super) struct RequestState {
    has_ended: Cell<bool>,
    /// The request body, until the request ends; a body that is in a temporary file is read when the script asks for it.
    body: RefCell<RequestBody>,
    body_len: Option<u64>,
    transport: Weak<dyn Transport>,
    /// The early hints of the script that the exchange has not got yet: the exchange is borrowed while Ruby runs. The
    /// same holds for `lines`, its lines for the error log.
    hints: RefCell<Vec<Headers>>,
    lines: RefCell<Vec<String>>,
    waker: RefCell<Option<Waker>>,
    /// The value of `error-log.emit-request-errors`.
    emits_errors: bool,
    /// Whether the client refuses early hints.
    refuses_hints: Cell<bool>,
    pub(super) call: Call,
    pub(super) this: Weak<Self>,
}

impl RequestState {
    pub(super) fn new(exchange: &Exchange) -> Rc<Self> {
        // A later handler may need the body, too.
        let body = match &exchange.body {
            RequestBody::Bytes(bytes) => RequestBody::Bytes(bytes.clone()),
            RequestBody::File(range) => RequestBody::File(range.clone()),
            RequestBody::Stream(_) | RequestBody::None => RequestBody::None,
        };
        Rc::new_cyclic(|this| Self {
            has_ended: Cell::new(false),
            body_len: body.complete_len(),
            body: RefCell::new(body),
            transport: Rc::downgrade(&exchange.connection.transport),
            hints: RefCell::default(),
            lines: RefCell::default(),
            waker: RefCell::default(),
            emits_errors: exchange.emits_request_errors(),
            refuses_hints: Cell::new(false),
            call: Call::default(),
            this: Weak::clone(this),
        })
    }

    /// Called when the request has ended or its client has disconnected.
    pub(super) fn end(&self) {
        self.has_ended.set(true);
        self.waker.take();
        // Dropped here, since the garbage collector frees the objects of Ruby that share this state only after many more requests.
        self.body.replace(RequestBody::None);
        if !self.lines.borrow().is_empty() {
            for line in self.lines.take() {
                self.report(&line);
            }
        }
    }

    pub(super) const fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    /// Notes that the client refuses early hints.
    pub(super) fn refuse_hints(&self) {
        self.refuses_hints.set(true);
    }

    /// The length of the request body; `None` if the request has no body.
    pub(super) const fn body_len(&self) -> Option<u64> {
        self.body_len
    }

    /// The request body from the byte `from` on, at most `len` bytes.
    pub(super) fn part_of_body(&self, from: u64, len: u64) -> RequestBody {
        match &*self.body.borrow() {
            RequestBody::Bytes(bytes) => {
                let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                let (start, end) = (index(from), index(from.saturating_add(len)));
                RequestBody::Bytes(bytes.slice(start..end))
            }
            RequestBody::File(range) => {
                let from = from.min(range.len);
                RequestBody::File(FileRange {
                    file: Arc::clone(&range.file),
                    offset: range.offset + from,
                    len: len.min(range.len - from),
                })
            }
            RequestBody::Stream(_) | RequestBody::None => RequestBody::None,
        }
    }

    /// The server's address on the client's connection; `None` if the connection has ended.
    pub(super) fn local_address(&self) -> Option<Address> {
        self.transport.upgrade()?.local_address()
    }

    /// Sets the waker that is called when there are hints or lines to [pass on](Self::pass_on).
    pub(super) fn set_waker(&self, waker: &Waker) {
        *self.waker.borrow_mut() = Some(waker.clone());
    }

    /// Moves the hints and lines that the script has written to the exchange.
    pub(super) fn pass_on(&self, exchange: &mut Exchange) {
        if !self.hints.borrow().is_empty() {
            for mut headers in self.hints.take() {
                header::edit_early(&exchange.site.path(exchange.route).settings, &mut headers);
                if !headers.is_empty() {
                    exchange
                        .informational
                        .push((StatusCode::EARLY_HINTS, headers));
                    // The early hints of the path are among these.
                    exchange.is_hinted = true;
                }
            }
        }
        if !self.lines.borrow().is_empty() {
            for line in self.lines.take() {
                exchange.note_line(&line);
            }
        }
    }

    /// Adds a line of the script for the error log.
    pub(super) fn write_line(&self, line: String) {
        if self.has_ended() {
            self.report(&line);
        } else {
            self.lines.borrow_mut().push(line);
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    fn report(&self, line: &str) {
        if self.emits_errors {
            h2o_log::report!(error, "{line}");
        }
    }
}

/// The Ruby classes of the objects by which a script acts on its request.
pub(super) struct Classes {
    pub(super) errors: h2o_mruby::Rooted,
    pub(super) hints: h2o_mruby::Rooted,
    pub(super) request: h2o_mruby::Rooted,
    pub(super) get_rtt: h2o_mruby::Rooted,
    pub(super) is_ech: h2o_mruby::Rooted,
    /// The class of the Hash that describes a request.
    pub(super) env: h2o_mruby::Rooted,
    /// The class of the object from which the entries of that Hash are made.
    pub(super) source: h2o_mruby::Rooted,
}

/// The Ruby classes of a VM, once they are defined.
#[derive(Default)]
pub(super) struct ClassCell(pub(super) std::cell::OnceCell<Classes>);

/// Defines the Ruby classes of the objects by which a script acts on its request.
pub(super) fn define(vm: &Vm) -> Result<(), Value> {
    let module = vm.module(None, "H2O")?;
    body::define(vm, module)?;

    let errors = vm.object_class(Some(module), "ErrorStream")?;
    vm.define(errors, "write", |vm, call| {
        let [object] = call.arguments.exactly()?;
        let text = vm.text_of(object).map_err(Leave::Raise)?;
        let line = String::from_utf8_lossy(&text).into_owned();
        vm.with_object(call.receiver, |request: &Rc<RequestState>| {
            request.write_line(line);
        })?;
        let len = i64::try_from(text.len()).unwrap_or(i64::MAX);
        vm.integer(len).map_err(Leave::Raise)
    })?;

    let hints = vm.object_class(Some(module), "EarlyHints")?;
    vm.define(hints, "call", |vm, call| {
        let [headers] = call.arguments.exactly()?;
        if headers.kind() != Kind::Hash {
            let class = vm.name_in_messages(headers);
            return Err(Leave::type_error(format!(
                "{class} cannot be converted to Hash"
            )));
        }
        let mut all = Headers::new();
        answer::read_fields(vm, headers, |name, value| {
            all.push(h2o_http::Name::from_lower(name), value);
        })?;
        vm.with_object(call.receiver, |request: &Rc<RequestState>| {
            if !request.has_ended() && !request.refuses_hints.get() && !all.is_empty() {
                request.hints.borrow_mut().push(all);
                request.wake();
            }
        })?;
        Ok(Value::nil())
    })?;

    let request = vm.object_class(Some(module), "Request")?;
    vm.define(request, "ended?", |vm, call| {
        vm.with_object(call.receiver, |request: &Rc<RequestState>| {
            Value::boolean(request.has_ended())
        })
    })?;
    input::define(vm, request)?;

    let get_rtt = vm.object_class(Some(module), "RoundTrip")?;
    vm.define(get_rtt, "call", |vm, call| {
        call.arguments.exactly::<0>()?;
        let rtt = vm.with_object(call.receiver, |request: &Rc<RequestState>| {
            let transport = request.transport.upgrade();
            let rtt = transport.and_then(|transport| transport.settings_rtt());
            rtt.filter(|_| !request.has_ended())
        })?;
        let micros = rtt.and_then(|rtt| i64::try_from(rtt.as_micros()).ok());
        Ok(micros.map_or(Ok(Value::nil()), |micros| vm.integer(micros))?)
    })?;
    // The result is always false, since no listener offers Encrypted Client Hello.
    let is_ech = vm.object_class(Some(module), "EncryptedHello")?;
    vm.define(is_ech, "call", |vm, call| {
        call.arguments.exactly::<0>()?;
        vm.with_object(call.receiver, |request: &Rc<RequestState>| {
            if request.has_ended() {
                Value::nil()
            } else {
                Value::boolean(false)
            }
        })
    })?;

    let hash = vm.constant(None, "Hash")?;
    let env = vm.class(Some(module), "Env", Some(hash))?;
    super::env::define(vm, env)?;
    let source = vm.object_class(Some(module), "EnvSource")?;

    let classes = Classes {
        errors: vm.root(errors)?,
        hints: vm.root(hints)?,
        request: vm.root(request)?,
        get_rtt: vm.root(get_rtt)?,
        is_ech: vm.root(is_ech)?,
        env: vm.root(env)?,
        source: vm.root(source)?,
    };
    let _ = vm.local::<ClassCell>().0.set(classes);
    Ok(())
}
