//! The requests in progress on all workers, for the status report.

use std::rc::Rc;
use std::sync::LazyLock;

use h2o_exchange::{Exchange, LiveCounters, Order, Worker};
use tokio::sync::oneshot;

use crate::access_log::{Escape, Format, LocalTime};

/// The format of a request in the report, in the syntax of access-log formats. Values are strings or null, `host` is
/// the client. H2O compatibility: H2O has the same members.
static FORMAT: LazyLock<Format> = LazyLock::new(|| {
    let text = concat!(
        r#"{"host":"%h","user":"%u","at":"%{%Y%m%dT%H%M%S}t.%{usec_frac}t%{%z}t","#,
        r#""method":"%m","path":"%U","query":"%q","protocol":"%H","#,
        r#""referer":"%{Referer}i","user-agent":"%{User-agent}i","#,
        r#""connect-time":"%{connect-time}x","#,
        r#""request-header-time":"%{request-header-time}x","#,
        r#""request-body-time":"%{request-body-time}x","#,
        r#""request-total-time":"%{request-total-time}x","#,
        r#""process-time":"%{process-time}x","#,
        r#""response-time":"%{response-time}x","#,
        r#""connection-id":"%{connection-id}x","#,
        r#""ssl.protocol-version":"%{ssl.protocol-version}x","#,
        r#""ssl.session-reused":"%{ssl.session-reused}x","#,
        r#""ssl.cipher":"%{ssl.cipher}x","ssl.cipher-bits":"%{ssl.cipher-bits}x","#,
        r#""ssl.session-ticket":"%{ssl.session-ticket}x","#,
        r#""ssl.server-name":"%{ssl.server-name}x","#,
        r#""http1.request-index":"%{http1.request-index}x","#,
        r#""http2.stream-id":"%{http2.stream-id}x","#,
        r#""http2.priority.received.exclusive":"%{http2.priority.received.exclusive}x","#,
        r#""http2.priority.received.parent":"%{http2.priority.received.parent}x","#,
        r#""http2.priority.received.weight":"%{http2.priority.received.weight}x","#,
        r#""http2.priority.actual.parent":"%{http2.priority.actual.parent}x","#,
        r#""http2.priority.actual.weight":"%{http2.priority.actual.weight}x","#,
        r#""authority":"%V"}"#,
    );
    Format::compile(text, Escape::Json).expect("the format above is a valid log format")
});

/// The requests in progress on a worker, separated by `,`. `asking` is the request for the status report itself, which
/// the worker is executing.
pub(super) fn of_worker(worker: &Worker, asking: Option<&Exchange>) -> Vec<u8> {
    let time = worker.local::<LocalTime>();
    let mut out = Vec::new();
    let mut list = |exchange: &Exchange| {
        out.extend_from_slice(if out.is_empty() { b"\n  " } else { b",\n  " });
        FORMAT.render(exchange, &time, &mut out);
    };
    if let Some(exchange) = asking {
        list(exchange);
    }
    worker.each_live(|exchange| {
        if !asking.is_some_and(|asking| std::ptr::eq(asking, exchange)) {
            list(exchange);
        }
    });
    out
}

/// Updates the counters of a worker whose values are kept elsewhere.
pub(super) fn publish(worker: &Worker) {
    worker.local::<LiveCounters>().publish(&worker.counters);
}

/// Asks the other workers to update their counters and, if requests are to be listed, for their requests.
pub(super) fn ask_others(
    worker: &Rc<Worker>,
    lists_requests: bool,
) -> Vec<oneshot::Receiver<Vec<u8>>> {
    let workers = worker.shared.workers.get().map_or(&[][..], Vec::as_slice);
    let others = workers
        .iter()
        .enumerate()
        .filter(|(index, _)| *index != worker.index);
    others
        .filter_map(|(_, other)| {
            let (sender, receiver) = oneshot::channel();
            let question = Box::new(move |worker: &Rc<Worker>| {
                publish(worker);
                let list = lists_requests.then(|| of_worker(worker, None));
                // The request for the status report may have been cancelled meanwhile.
                let _ = sender.send(list.unwrap_or_default());
            });
            other.order(Order::Run(question)).then_some(receiver)
        })
        .collect()
}
