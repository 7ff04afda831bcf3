//! The handler of `fastcgi.connect`.

use std::rc::Rc;
use std::sync::Arc;

use h2o_exchange::{
    BodyUse, Exchange, ExchangeRef, Handler, LinkHeaderUse, Outcome, RequestBody, Response,
};
use h2o_http::{BodyLength, Known, Method, RequestHead, StatusCode};
use h2o_log::report;
use h2o_upstream::fastcgi_record::RequestRecords;
use h2o_upstream::{BackendUrl, Call, Failure, FastcgiRequest, Reply, Upstream};

use super::{FastcgiSettings, parameters};
use crate::reproxy;

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
            // Only exchanges that tests make without a worker have no reference to themselves.
            return Outcome::Declined;
        };
        let script = exchange.script.take();
        let parameters = parameters::build(exchange, script.as_ref(), &self.settings);
        let keeps_connection = !self.upstream.settings().keepalive.is_zero();
        let records = RequestRecords::new(parameters, keeps_connection);
        let upstream = Arc::clone(&self.upstream);
        Outcome::Later(Box::pin(ask(upstream, reference, records)))
    }

    /// FastCGI applications need the length of the body before its bytes, so a body of unknown length is collected
    /// first.
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

async fn ask(upstream: Arc<Upstream>, reference: ExchangeRef, records: RequestRecords) -> Outcome {
    let (worker, client, body, headers, method, is_multiplexed) = {
        let exchange = &mut *reference.borrow_mut();
        (
            Rc::clone(&exchange.worker),
            Rc::clone(&exchange.connection),
            exchange.body.clone(),
            exchange.headers(),
            exchange.request.method.clone(),
            exchange.protocol.is_multiplexed(),
        )
    };
    let noted = Rc::clone(&reference);
    let request = FastcgiRequest {
        method,
        records: &records,
        on_stderr: Rc::new(move |text| note_stderr(&noted, text)),
    };
    let pipe = match &body {
        RequestBody::Stream(pipe) => Some(Rc::clone(pipe)),
        RequestBody::None | RequestBody::Bytes(_) | RequestBody::File(_) => None,
    };
    if let Some(pipe) = &pipe {
        reproxy::keep_content(&reference.borrow(), pipe);
    }
    let mut build = |_: &BackendUrl, _, _: &mut RequestHead| {};
    let sending = upstream.send(Call {
        worker: &worker,
        client,
        client_address: None,
        build: &mut build,
        fastcgi: Some(&request),
        body,
        waits_for_content: true,
        ends_with_upload: !is_multiplexed,
        closes_connection: false,
        needs_http1: false,
        expects_continue: false,
        on_informational: None,
        trace: None,
        headers,
    });
    let reply = sending.await;
    let exchange = &mut *reference.borrow_mut();
    Outcome::Done(match reply {
        Ok(reply) => answer(exchange, reply),
        Err(failure) => {
            let mut response = failed(exchange, &failure);
            if let Some(pipe) = pipe
                && !pipe.is_complete()
            {
                // Close the client's connection after the response: the rest of the request body is not read, so the next
                // request on the connection cannot be read either.
                response.closes = true;
                pipe.abandon();
            }
            response
        }
    })
}

/// The response to the client, from the application's reply.
fn answer(exchange: &Exchange, reply: Reply) -> Response {
    let is_head = exchange.request.method == Method::Head;
    let has_link = reply.headers.get(Known::Link).is_some();
    let mut response = Response::new(reply.status, reply.headers, reply.body);
    response.reason = reply.reason.map(String::from).map(Into::into);
    if has_link {
        response.links = LinkHeaderUse::Push;
    }
    // The length of a 304 would be that of the content that the client has (RFC 9110 §8.6).
    if reply.length.is_some() || is_head || reply.status == StatusCode::NOT_MODIFIED {
        response.length = reply.length;
    }
    response
}

fn note_stderr(reference: &ExchangeRef, text: &[u8]) {
    let text = String::from_utf8_lossy(text.trim_ascii_end());
    match reference.try_borrow_mut() {
        Ok(mut exchange) => exchange.note_error(LABEL, &text),
        // The exchange is borrowed at the moment, so the text cannot be recorded there and goes to the error log
        // directly.
        Err(_) => report!(error, "[{LABEL}] {text}"),
    }
}

/// The response when the application cannot be used. H2O compatibility: H2O answers 503 with this reason and text.
fn failed(exchange: &mut Exchange, failure: &Failure) -> Response {
    exchange.note_error(LABEL, &failure.fastcgi_text());
    let status = StatusCode::SERVICE_UNAVAILABLE;
    exchange.worker.counters.count_status(status);
    let text = "Internal Server Error";
    Response::error(status, text, text)
}
