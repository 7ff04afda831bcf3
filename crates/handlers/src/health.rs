//! The directive `health`, which tells balancers and orchestrators whether the server runs, and whether it wants more
//! requests.

use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use h2o_config::{Directive, Kinds, Levels, Pass};
use h2o_exchange::{Body, BodyUse, Exchange, Handler, Outcome, Response, Scope};
use h2o_http::{Known, StatusCode};

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: "health",
    levels: Levels::PATH,
    pass: Pass::Content,
    kinds: Kinds::SCALAR,
    value: "LIVE|READY",
    default: "none",
    help: "Answers probes. `LIVE`: 200 as long as the server runs. `READY`: 200 while the server wants new connections, 503 once \
           the signal TERM has told it to end. With `shutdown-delay` the server accepts connections for some time after the \
           signal, so that balancers can notice the 503. See [the page on running it](running.md#probes).",
    apply: |scope, command| {
        const KINDS: [(&str, Probe); 2] = [("LIVE", Probe::Live), ("READY", Probe::Ready)];
        let chosen = command.node.one_of(&KINDS.map(|(word, _)| word))?;
        scope.handlers.push(Box::new(KINDS[chosen].1));
        Ok(())
    },
}];

/// The question of a health probe.
#[derive(Clone, Copy)]
enum Probe {
    /// The probe asks whether the server runs.
    Live,
    /// The probe asks whether the server wants new connections.
    Ready,
}

impl Handler for Probe {
    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::None
    }

    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let is_ending = exchange.worker.shared.is_ending.load(Relaxed);
        let (status, text) = match self {
            Self::Ready if is_ending => (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n"),
            Self::Live | Self::Ready => (StatusCode::OK, "ok\n"),
        };
        let mut headers = exchange.headers();
        headers.push(Known::ContentType, b"text/plain; charset=utf-8");
        headers.push(Known::CacheControl, b"no-store");
        let body = Body::Bytes(Bytes::from_static(text.as_bytes()));
        Outcome::Done(Response::new(status, headers, body))
    }
}
