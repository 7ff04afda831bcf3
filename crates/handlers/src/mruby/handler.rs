//! The handler of scripts: passes a request to the script, and the script's result to the client.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2o_exchange::{Exchange, ExchangeRef, Handler, Outcome, Response};
use h2o_http::StatusCode;
use h2o_mruby::{Finish, Leave, Value, Vm};

use super::answer::{self, Answer};
use super::machine;
use super::machine::{App, LocalScript, Machine, Script};
use super::objects::RequestState;
use super::sub_request::InnerCall;

/// The handler of one script in the configuration.
pub(super) struct ScriptHandler {
    script: Arc<Script>,
}

impl ScriptHandler {
    pub(super) const fn new(script: Arc<Script>) -> Self {
        Self { script }
    }
}

impl Handler for ScriptHandler {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let machine = match Machine::of(&exchange.worker, &exchange.site) {
            Ok(machine) => machine,
            Err(error) => {
                exchange.note_error("h2o_mruby", &error);
                return Outcome::Done(failure(exchange));
            }
        };
        let script = machine.script(&self.script);
        script.note_place(exchange);
        match script.app(None) {
            App::Evaluating => later(exchange, machine, script),
            App::Failed => Outcome::Done(never()),
            App::Ready(app) => {
                let request = begin(&machine, &script, exchange, app.value());
                match request.take_answer() {
                    Some(answer) => answer::deliver(exchange, &request, answer),
                    None => wait_for(exchange, request),
                }
            }
        }
    }

    fn waits_for_backend(&self) -> bool {
        true
    }
}

/// Answers once the script is evaluated.
fn later(exchange: &Exchange, machine: Rc<Machine>, script: Rc<LocalScript>) -> Outcome {
    let Some(exchange) = exchange.reference() else {
        return Outcome::Done(never());
    };
    Outcome::Later(Box::pin(async move {
        let App::Ready(app) = script.evaluated().await else {
            return Outcome::Done(never());
        };
        let request = begin(&machine, &script, &exchange.borrow(), app.value());
        Waiting { request, exchange }.answer().await
    }))
}

fn wait_for(exchange: &Exchange, request: Rc<RequestState>) -> Outcome {
    let Some(exchange) = exchange.reference() else {
        return Outcome::Done(never());
    };
    let waiting = Waiting { request, exchange };
    Outcome::Later(Box::pin(waiting.answer()))
}

/// A request that waits for the result of its script. Dropped when the client disconnects; the script continues to run.
struct Waiting {
    request: Rc<RequestState>,
    exchange: ExchangeRef,
}

impl Waiting {
    async fn answer(self) -> Outcome {
        let answer = poll_fn(|task| self.poll(task)).await;
        let exchange = &mut self.exchange.borrow_mut();
        answer::deliver(exchange, &self.request, answer)
    }

    fn poll(&self, task: &mut Context<'_>) -> Poll<Answer> {
        self.request.set_waker(task.waker());
        self.request.pass_on(&mut self.exchange.borrow_mut());
        if let Some(answer) = self.request.take_answer() {
            return Poll::Ready(answer);
        }
        self.request.call.waker.set(Some(task.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Once the script has answered, the request ends when its response body ends.
        if !self.request.call.is_answered.get() {
            self.request.end();
            if let Some(inner) = self.request.call.inner.take() {
                inner.cancel();
            }
        }
    }
}

/// The state of a request for which the app of a script (the object that the script evaluates to) is called.
#[derive(Default)]
pub(super) struct Call {
    answer: RefCell<Option<Answer>>,
    is_answered: Cell<bool>,
    waker: Cell<Option<Waker>>,
    /// The sub-request whose response is the result of the script.
    inner: Cell<Option<Rc<InnerCall>>>,
}

/// Begins the call of a script's app.
fn begin(
    machine: &Machine,
    script: &LocalScript,
    exchange: &Exchange,
    app: Value,
) -> Rc<RequestState> {
    let request = RequestState::new(exchange);
    let source = machine.env.source(exchange, &request);
    let finish = Rc::clone(&request) as Rc<dyn Finish>;
    let (vm, hash) = (&machine.vm, machine.env.hash);
    if vm.copies_hashes() {
        vm.scope(|| match super::env::whole(vm, &source) {
            Ok(hash) => vm.spawn(app, hash, script.context(), finish),
            Err(exception) => drop(finish.finish(vm, Err(exception))),
        });
    } else {
        vm.spawn_lazy(app, hash, source, script.context(), finish);
    }
    request
}

impl RequestState {
    fn take_answer(&self) -> Option<Answer> {
        let call = &self.call;
        let answer = call.answer.borrow_mut().take();
        call.is_answered
            .set(call.is_answered.get() || answer.is_some());
        answer
    }

    fn settle(&self, answer: Answer) {
        if self.has_ended() {
            if let Answer::Raised(exception) = &answer {
                machine::report(exception);
            }
            answer.abandon();
            return;
        }
        *self.call.answer.borrow_mut() = Some(answer);
        if let Some(waker) = self.call.waker.take() {
            waker.wake();
        }
    }

    /// Makes the response of the sub-request the result of the script.
    fn settle_by(&self, inner: Rc<InnerCall>) {
        let request = Weak::clone(&self.this);
        // The sub-request is stored before `pass_to` is called, which removes it again at once if the response is there
        // already.
        let kept = Rc::clone(&inner);
        self.call.inner.set(Some(inner));
        kept.pass_to(move |response| {
            if let Some(request) = request.upgrade() {
                request.call.inner.take();
                request.settle(answer::of_response(response));
            }
        });
    }
}

impl Finish for RequestState {
    fn finish(&self, vm: &Vm, result: Result<Value, Value>) -> Result<(), Leave> {
        let answer = match result {
            Ok(value) => match InnerCall::of(vm, value) {
                // The method `join` returns the response again that it has returned before.
                Some(inner) if inner.is_joined() => match vm.call(value, "join", &[]) {
                    Ok(triple) => answer::read(vm, triple, &self.this)?,
                    Err(exception) => Answer::Raised(machine::describe(vm, exception)),
                },
                Some(inner) if inner.is_awaited() => {
                    let text = "another fiber waits for this response (RuntimeError)";
                    Answer::Raised(text.to_owned())
                }
                Some(inner) => {
                    self.settle_by(inner);
                    return Ok(());
                }
                None => answer::read(vm, value, &self.this)?,
            },
            Err(exception) => Answer::Raised(machine::describe(vm, exception)),
        };
        self.settle(answer);
        Ok(())
    }
}

/// The response of a script that cannot be evaluated (H2O compatibility: it has H2O's form).
fn never() -> Response {
    let text = Bytes::from_static(b"Internal Server Error");
    let headers = h2o_http::Headers::new();
    let mut response = Response::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        headers,
        h2o_exchange::Body::Bytes(text),
    );
    response.reason = Some("OK".into());
    response
}

/// The response if a script raises an exception (H2O compatibility: it has H2O's form).
pub(super) fn failure(exchange: &Exchange) -> Response {
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    exchange.worker.counters.count_status(status);
    let mut response = Response::error(status, "Internal Server Error", "Internal Server Error");
    response.is_undated = true;
    response
}
