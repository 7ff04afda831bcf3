//! The handler of `fastcgi.connect`.

use std::rc::Rc;
use std::sync::Arc;

use h2o_exchange::{BodyUse, Exchange, ExchangeRef, Handler, Outcome, RequestBody, Response};
use h2o_http::{BodyLength, Method, StatusCode};
use h2o_log::report;
use h2o_upstream::{FastcgiCall, FastcgiError, FastcgiReply, Upstream};

use super::response::{self, HeadError};
use super::{FastcgiSettings, parameters};

/// The label of FastCGI errors in the error log.
const LABEL: &str = "fastcgi";

/// The handler of `fastcgi.connect`, which answers requests with the responses of an application.
pub(super) struct FastcgiHandler {
    upstream: Arc<Upstream>,
    settings: Arc<FastcgiSettings>,
}

impl FastcgiHandler {
    pub(super) fn new(upstream: Arc<Upstream>, settings: &Arc<FastcgiSettings>) -> Self {
        Self {
            upstream,
            settings: Arc::clone(settings),
        }
    }
}

impl Handler for FastcgiHandler {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let Some(reference) = exchange.reference() else {
            // Every exchange of the server has a reference; only those of some tests do not.
            return Outcome::Declined;
        };
        let script = exchange.script.take();
        let parameters = parameters::build(exchange, script.as_ref(), &self.settings);
        let upstream = Arc::clone(&self.upstream);
        Outcome::Later(Box::pin(ask(upstream, reference, parameters)))
    }

    /// FastCGI applications need the length of the body before its bytes, so the body is collected first.
    fn body_use(&self, exchange: &Exchange) -> BodyUse {
        match exchange.request.body {
            BodyLength::None => BodyUse::None,
            BodyLength::Known(_) => BodyUse::Stream,
            BodyLength::Unknown | BodyLength::Tunnel => BodyUse::Whole,
        }
    }

    fn waits_for_backend(&self) -> bool {
        true
    }
}

async fn ask(upstream: Arc<Upstream>, reference: ExchangeRef, parameters: Vec<u8>) -> Outcome {
    let (worker, body) = {
        let exchange = reference.borrow();
        (Rc::clone(&exchange.worker), exchange.body.clone())
    };
    let noted = Rc::clone(&reference);
    let reply = upstream.send_fastcgi(FastcgiCall {
        worker: &worker,
        parameters: &parameters,
        body: body.clone(),
        on_stderr: Rc::new(move |text| note_stderr(&noted, text)),
    });
    let reply = reply.await;
    let exchange = &mut *reference.borrow_mut();
    let answer = match reply {
        Ok(reply) => answer(exchange, reply),
        Err(error) => Err(failed(exchange, &error)),
    };
    Outcome::Done(answer.unwrap_or_else(|mut response| {
        if let RequestBody::Stream(pipe) = &body
            && !pipe.is_complete()
        {
            // Close the client's connection after the response: the rest of the request body is not read, so the next
            // request on the connection cannot be read either.
            response.closes = true;
            pipe.abandon();
        }
        *response
    }))
}

/// The response to the client, from the application's reply. `Err`: an error response in its place.
fn answer(exchange: &mut Exchange, reply: FastcgiReply) -> Result<Response, Box<Response>> {
    let head = match response::parse(&reply.head) {
        Ok(head) => head,
        Err(error) => return Err(refused(exchange, &error)),
    };
    let is_head = exchange.request.method == Method::Head;
    let length = head.length;
    let body = reply.into_body(length);
    let mut response = Response::new(head.status, head.headers, body);
    response.reason = Some(head.reason.into());
    response.links = head.links;
    if length.is_some() || is_head {
        response.length = length;
    }
    Ok(response)
}

fn note_stderr(reference: &ExchangeRef, text: &[u8]) {
    let text = String::from_utf8_lossy(text.trim_ascii_end());
    match reference.try_borrow_mut() {
        Ok(mut exchange) => exchange.note_error(LABEL, &text),
        // The server is using the exchange, so the text cannot be recorded there and goes to the error log directly.
        Err(_) => report!(error, "[{LABEL}] {text}"),
    }
}

fn failed(exchange: &mut Exchange, error: &FastcgiError) -> Box<Response> {
    exchange.note_error(LABEL, &error.to_string());
    unavailable(exchange)
}

fn refused(exchange: &mut Exchange, error: &HeadError) -> Box<Response> {
    exchange.note_error(LABEL, &error.to_string());
    unavailable(exchange)
}

/// The response when the application cannot be used. H2O compatibility: H2O answers 503 with this reason and text.
fn unavailable(exchange: &Exchange) -> Box<Response> {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    exchange.worker.counters.count_status(status);
    let text = "Internal Server Error";
    Box::new(Response::error(status, text, text))
}
