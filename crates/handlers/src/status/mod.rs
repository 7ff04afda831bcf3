//! The status page; the status report as JSON and the metrics, for monitoring tools.

mod durations;
mod events;
mod exposition;
mod page;
mod report;
mod request_metrics;
mod requests;

#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2o_config::{Directive, Kinds, Levels, Pass};
use h2o_exchange::{Body, BodyUse, Exchange, Handler, Outcome, Response, Scope, Site, Worker};
use h2o_http::{Headers, Known, StatusCode};
use tokio::sync::oneshot;

use exposition::Format;
use report::{Module, Report};

pub(crate) const DIRECTIVES: &[Directive<Scope>] =
    &[STATUS, durations::DIRECTIVE, request_metrics::DIRECTIVE];

const STATUS: Directive<Scope> = Directive {
    name: "status",
    levels: Levels::PATH,
    pass: Pass::Content,
    kinds: Kinds::SCALAR,
    value: "ON|OFF",
    default: "OFF",
    help: "Shows what the server is doing: a page for people at the path, a report for programs at `json` below it, \
           and, not in H2O, metrics for Prometheus at `metrics`. \
           `json?show=main,events` limits the report to some of its modules: main, requests, events, ssl, durations, \
           memory, and, not in H2O, traffic, backends, certificates, reloads, paths.",
    apply: |scope, command| {
        if command.node.on_off()? {
            scope.handlers.push(Box::new(Status));
        }
        Ok(())
    },
};

/// How long the report waits for another worker to list its requests and to update its counters. Later answers are left
/// out.
const ANSWER_TIME: Duration = Duration::from_secs(1);

struct Status;

impl Handler for Status {
    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::None
    }

    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let route = exchange.site.path(exchange.route);
        let rest = route.rest(exchange.request.path());
        match rest.strip_prefix(b"/").unwrap_or(rest) {
            b"" => Outcome::Done(page::respond(exchange)),
            b"json" => json(exchange),
            b"metrics" => metrics(exchange),
            name => match page::asset(name) {
                Some(asset) => {
                    let has_hash = page::is_current(asset, exchange.request.query());
                    Outcome::Done(asset.respond(exchange, has_hash))
                }
                None => Outcome::Declined,
            },
        }
    }
}

fn json(exchange: &mut Exchange) -> Outcome {
    let headers = exchange.headers();
    let modules = Module::asked_for(exchange.request.query());
    let worker = Rc::clone(&exchange.worker);
    let lists_requests = modules.contains(&Module::Requests);
    // Counters whose values are kept elsewhere, for example in connections, are updated for the report.
    let has_live = modules.contains(&Module::Events) || modules.contains(&Module::Memory);
    if has_live {
        requests::publish(&worker);
    }
    let own = lists_requests.then(|| requests::of_worker(&worker, Some(exchange)));
    let others = if lists_requests || has_live {
        requests::ask_others(&worker, lists_requests)
    } else {
        Vec::new()
    };
    if others.is_empty() {
        let report = report(&modules, own, &worker, &exchange.site);
        return Outcome::Done(respond(headers, report));
    }
    let site = Rc::clone(&exchange.site);
    Outcome::Later(Box::pin(async move {
        let mut lists: Vec<_> = own.into_iter().collect();
        lists.extend(answers(&worker, others).await);
        Outcome::Done(respond(headers, report(&modules, lists, &worker, &site)))
    }))
}

/// The response with the metrics. It is sent for a request with any method, like the status report.
fn metrics(exchange: &mut Exchange) -> Outcome {
    let mut headers = exchange.headers();
    let accept = exchange.request.headers.get_all(Known::Accept);
    let format = Format::accepted(accept);
    headers.push(Known::ContentType, format.content_type());
    headers.push(Known::CacheControl, b"no-cache, no-store");
    headers.push(Known::Vary, b"accept");
    let worker = Rc::clone(&exchange.worker);
    requests::publish(&worker);
    let site = Rc::clone(&exchange.site);
    let others = requests::ask_others(&worker, false);
    let respond = move |worker: &Worker| {
        let text = exposition::metrics(format, worker, &site);
        Outcome::Done(Response::new(
            StatusCode::OK,
            headers,
            Body::Bytes(Bytes::from(text)),
        ))
    };
    if others.is_empty() {
        return respond(&worker);
    }
    Outcome::Later(Box::pin(async move {
        answers(&worker, others).await;
        respond(&worker)
    }))
}

/// Updates the counters of a worker, for [`report_of`].
pub fn publish_counters(worker: &Worker) {
    requests::publish(worker);
}

/// The part of the report that `h2o top` shows, as JSON. Must run on the thread of the worker.
#[must_use]
pub fn report_of(worker: &Worker, site: &Site) -> Vec<u8> {
    let none: [Vec<u8>; 0] = [];
    report(&Module::TOP, none, worker, site).into_json()
}

/// The answers that the other workers give within [`ANSWER_TIME`].
async fn answers(worker: &Rc<Worker>, others: Vec<oneshot::Receiver<Vec<u8>>>) -> Vec<Vec<u8>> {
    let deadline = worker.clock.now() + ANSWER_TIME;
    let mut lists = Vec::new();
    for answer in others {
        let left = deadline.saturating_duration_since(worker.clock.now());
        if let Ok(Ok(list)) = worker.timeout(left, answer).await {
            lists.push(list);
        }
    }
    lists
}

/// The report with these modules. `requests` are the requests in progress of each worker.
fn report(
    modules: &[Module],
    requests: impl IntoIterator<Item = Vec<u8>>,
    worker: &Worker,
    site: &Site,
) -> Report {
    let mut report = Report::default();
    let mut requests = Some(requests);
    for &module in modules {
        if module == Module::Requests {
            for list in requests.take().into_iter().flatten() {
                report.add_requests(list);
            }
        } else {
            report.add(module, worker, site);
        }
    }
    report
}

fn respond(mut headers: Headers, report: Report) -> Response {
    headers.push(Known::ContentType, b"text/plain; charset=utf-8");
    headers.push(Known::CacheControl, b"no-cache, no-store");
    let body = Body::Bytes(Bytes::from(report.into_json()));
    Response::new(StatusCode::OK, headers, body)
}
