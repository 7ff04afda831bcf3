//! The directive `server-timing`, which sends the durations of a request's phases to the client (Server Timing, W3C).

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2o_config::{Directive, Kinds, Levels, Pass};
use h2o_exchange::{
    Body, BodyError, BodySource, Exchange, Filter, FilterResult, Response, Scope, Timings, Trace,
    Trailers, Worker,
};
use h2o_http::{Headers, Known, Method, Version};

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: "server-timing",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Settings,
    kinds: Kinds::SCALAR,
    value: "OFF|ON|ENFORCE",
    default: "OFF",
    help: "`ON`: sends timings to the client in a `server-timing` header, in milliseconds. Values that are known only \
           at the end follow in a trailer: over HTTP/2, and over HTTP/1.1 if the response is chunked. `ENFORCE`: over \
           HTTP/1.1 all responses with a body are chunked. The names are those of the access log: `connect` is \
           `connect-time`.",
    apply: |scope, command| {
        let setting = match command.node.one_of(&["OFF", "ON", "ENFORCE"])? {
            0 => ServerTiming::Off,
            1 => ServerTiming::On,
            _ => ServerTiming::Enforce,
        };
        *scope.edit::<ServerTiming>() = setting;
        Ok(())
    },
}];

/// The setting of `server-timing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ServerTiming {
    #[default]
    Off,
    On,
    Enforce,
}

/// The filter that adds the field `server-timing`. It runs last, since its values are those at the time when the head
/// is sent.
pub(crate) fn filter(scope: &Scope) -> Option<Box<dyn Filter>> {
    match *scope.settings.peek::<ServerTiming>()? {
        ServerTiming::Off => None,
        ServerTiming::On => Some(Box::new(ServerTimingFilter { enforces: false })),
        ServerTiming::Enforce => Some(Box::new(ServerTimingFilter { enforces: true })),
    }
}

struct ServerTimingFilter {
    enforces: bool,
}

impl Filter for ServerTimingFilter {
    fn on_response(&self, exchange: &mut Exchange, response: &mut Response) -> FilterResult {
        let now = exchange.worker.clock.now();
        if self.has_trailer(exchange, response) {
            response.headers.push(Known::Trailer, b"server-timing");
            let body = TimedBody {
                body: std::mem::take(&mut response.body).into_source(),
                worker: Rc::clone(&exchange.worker),
                trace: exchange.forwarded.trace.clone(),
                begun: exchange.timings.begun,
                response_start: now,
            };
            response.body = Body::Stream(Box::new(body));
        }
        let trace = exchange.forwarded.trace.as_deref();
        let accepted = exchange.connection.accepted;
        let value = of_head(accepted, &exchange.timings, trace, now);
        response.headers.push(Known::ServerTiming, &value);
        FilterResult::Continue
    }

    fn wants_trace(&self) -> bool {
        true
    }
}

impl ServerTimingFilter {
    /// Whether trailers can follow the response. Over HTTP/1.1 this may require that `content-length` is left out.
    fn has_trailer(&self, exchange: &Exchange, response: &mut Response) -> bool {
        if *exchange.original_method() == Method::Head || response.status.is_bodyless() {
            return false;
        }
        match exchange.request.version {
            Version::Http10 => false,
            Version::Http11 => {
                if self.enforces {
                    response.length = None;
                }
                response.length.is_none()
            }
            Version::Http2 => true,
            // H2O compatibility: H2O sends no trailers over HTTP/3.
            Version::Http3 => false,
        }
    }
}

/// The body of a response, followed by trailers with the times that were not known when the head was sent.
struct TimedBody {
    body: Box<dyn BodySource>,
    worker: Rc<Worker>,
    trace: Option<Rc<Trace>>,
    begun: Instant,
    response_start: Instant,
}

impl BodySource for TimedBody {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.body.poll_next(context, max)
    }

    fn poll_ahead(&mut self, context: &mut Context<'_>) {
        self.body.poll_ahead(context);
    }

    fn retained(&self) -> usize {
        self.body.retained()
    }

    fn is_complete(&self) -> bool {
        self.body.is_complete()
    }

    fn trailers(&mut self) -> Trailers {
        let mut fields = match self.body.trailers() {
            Trailers::Unknown => return Trailers::Unknown,
            Trailers::None => Headers::new(),
            Trailers::Fields(fields) => fields,
        };
        let mut elements = Elements::default();
        let now = self.worker.clock.now();
        elements.add("response", Some(self.response_start), Some(now));
        elements.add("total", Some(self.begun), Some(now));
        if let Some(trace) = &self.trace {
            let end = trace.response_ended.get();
            elements.add("proxy.response", trace.response_begun.get(), end);
            elements.add("proxy.total", trace.request_begun.get(), end);
        }
        fields.push(Known::ServerTiming, &elements.0);
        Trailers::Fields(fields)
    }
}

/// The value of the field in the head, with the times that are known at the time `now`, when the head is sent.
fn of_head(accepted: Instant, timings: &Timings, trace: Option<&Trace>, now: Instant) -> Vec<u8> {
    let begun = Some(timings.begun);
    let mut elements = Elements::default();
    elements.add("connect", Some(accepted), begun);
    elements.add("request-header", begun, timings.head);
    elements.add("request-body", timings.head, timings.processed);
    elements.add("request-total", begun, timings.processed);
    elements.add("process", timings.processed, Some(now));
    if let Some(trace) = trace {
        let started = trace.started.get();
        let request_begun = trace.request_begun.get();
        let request_ended = trace.request_ended.get();
        elements.add("proxy.idle", begun, started);
        elements.add("proxy.connect", started, request_begun);
        elements.add("proxy.request", request_begun, request_ended);
        elements.add("proxy.process", request_ended, trace.response_begun.get());
    }
    elements.0
}

/// The value of a `server-timing` field: elements `NAME; dur=MILLISECONDS`, separated by commas.
#[derive(Default)]
struct Elements(Vec<u8>);

impl Elements {
    /// Adds an element with the time between two moments of a request, if both are known.
    fn add(&mut self, name: &str, from: Option<Instant>, to: Option<Instant>) {
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        if !self.0.is_empty() {
            self.0.extend_from_slice(b", ");
        }
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"; dur=");
        self.write_milliseconds(to.saturating_duration_since(from));
    }

    /// Writes a duration in milliseconds with up to three decimals, without zeros at the end.
    fn write_milliseconds(&mut self, duration: Duration) {
        let mut digits = itoa::Buffer::new();
        self.0
            .extend_from_slice(digits.format(duration.as_millis()).as_bytes());
        let micros = duration.subsec_micros() % 1000;
        if micros > 0 {
            let fraction = format!(".{micros:03}");
            self.0
                .extend_from_slice(fraction.trim_end_matches('0').as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Setup, request, shown};
    use h2o_http::StatusCode;

    const SETUP: Setup = Setup::new(DIRECTIVES, Some(filter));

    /// A response with content that has passed the filter.
    fn filtered(config: &str, edit: impl FnOnce(&mut Exchange, &mut Response)) -> Response {
        let site = SETUP
            .read(["", "", config])
            .unwrap_or_else(|error| panic!("{error}"));
        let mut exchange = request(site, "GET", "default", "/");
        exchange.request.version = Version::Http11;
        let body = Body::Bytes(Bytes::from_static(b"content"));
        let mut response = Response::new(StatusCode::OK, Headers::new(), body);
        edit(&mut exchange, &mut response);
        let site = Rc::clone(&exchange.site);
        for filter in &site.path(exchange.route).filters {
            filter.on_response(&mut exchange, &mut response);
        }
        response
    }

    #[test]
    fn durations_are_milliseconds_without_zeros_at_the_end() {
        let cases = [
            (0, "0"),
            (1, "0.001"),
            (40, "0.04"),
            (100, "0.1"),
            (1000, "1"),
            (20_010, "20.01"),
            (61_000_500, "61000.5"),
        ];
        for (micros, want) in cases {
            let mut elements = Elements::default();
            elements.write_milliseconds(Duration::from_micros(micros));
            assert_eq!(elements.0.escape_ascii().to_string(), want);
        }
    }

    #[test]
    fn a_head_tells_what_is_known_in_order() {
        let start = h2o_exchange::Clock::default().now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut timings = Timings::starting(at(1));
        let shown = |timings: &Timings, trace: Option<&Trace>| {
            let value = of_head(start, timings, trace, at(100));
            value.escape_ascii().to_string()
        };
        assert_eq!(shown(&timings, None), "connect; dur=1");
        timings.head = Some(at(3));
        timings.processed = Some(at(7));
        let own = "connect; dur=1, request-header; dur=2, request-body; dur=4, request-total; dur=6, process; dur=93";
        assert_eq!(shown(&timings, None), own);
        let trace = Trace::default();
        trace.started.set(Some(at(15)));
        assert_eq!(
            shown(&timings, Some(&trace)),
            format!("{own}, proxy.idle; dur=14")
        );
        trace.request_begun.set(Some(at(31)));
        trace.request_ended.set(Some(at(63)));
        trace.response_begun.set(Some(at(95)));
        assert_eq!(
            shown(&timings, Some(&trace)),
            format!(
                "{own}, proxy.idle; dur=14, proxy.connect; dur=16, proxy.request; dur=32, proxy.process; dur=32"
            )
        );
    }

    #[test]
    fn trailers_are_promised_where_they_can_be_sent() {
        type Edit = fn(&mut Exchange, &mut Response);
        let cases: [(&str, Edit, Option<bool>); 10] = [
            ("OFF", |_, _| {}, None),
            ("ON", |_, _| {}, Some(false)),
            ("ENFORCE", |_, _| {}, Some(true)),
            ("ON", |_, response| response.length = None, Some(true)),
            (
                "ENFORCE",
                |exchange, _| exchange.request.version = Version::Http10,
                Some(false),
            ),
            (
                "ON",
                |exchange, _| exchange.request.version = Version::Http2,
                Some(true),
            ),
            (
                "ENFORCE",
                |exchange, _| exchange.request.version = Version::Http3,
                Some(false),
            ),
            (
                "ENFORCE",
                |exchange, _| exchange.request.method = Method::Head,
                Some(false),
            ),
            (
                "ENFORCE",
                |_, response| response.status = StatusCode::NOT_MODIFIED,
                Some(false),
            ),
            (
                "ON",
                |exchange, response| {
                    exchange.request.version = Version::Http2;
                    response.status = StatusCode::NO_CONTENT;
                },
                Some(false),
            ),
        ];
        for (number, (setting, edit, want)) in cases.into_iter().enumerate() {
            let mut before = None;
            let response = filtered(
                &format!("server-timing: {setting}"),
                |exchange, response| {
                    edit(exchange, response);
                    let keeps = setting != "ENFORCE"
                        || exchange.request.version != Version::Http11
                        || want == Some(false);
                    before = response.length.filter(|_| keeps);
                },
            );
            let head = shown(&response.headers);
            let promised = head.contains("trailer: server-timing");
            let got = head
                .contains("server-timing: connect; dur=")
                .then_some(promised);
            assert_eq!(got, want, "{number}: {head}");
            assert_eq!(response.length, before, "{number}");
            assert_eq!(
                matches!(response.body, Body::Stream(_)),
                want == Some(true),
                "{number}"
            );
        }
    }

    #[test]
    fn what_followed_the_content_still_does() {
        /// A body that ends at once, with these trailers.
        struct Ends(Trailers);
        impl BodySource for Ends {
            fn poll_next(
                &mut self,
                _: &mut Context<'_>,
                _: usize,
            ) -> Poll<Option<Result<Bytes, BodyError>>> {
                Poll::Ready(None)
            }
            fn trailers(&mut self) -> Trailers {
                std::mem::take(&mut self.0)
            }

            fn retained(&self) -> usize {
                0
            }
        }
        let mut grpc = Headers::new();
        grpc.push(h2o_http::Name::from_lower("grpc-status"), b"0");
        let cases = [
            (
                Trailers::None,
                "server-timing: response; dur=0, total; dur=0",
            ),
            (Trailers::Unknown, "unknown"),
            (
                Trailers::Fields(grpc),
                "grpc-status: 0\nserver-timing: response; dur=0, total; dur=0",
            ),
        ];
        for (theirs, want) in cases {
            let response = filtered("server-timing: ON", |exchange, response| {
                exchange.request.version = Version::Http2;
                response.body = Body::Stream(Box::new(Ends(theirs)));
            });
            let Body::Stream(mut source) = response.body else {
                panic!("{want}");
            };
            let got = match source.trailers() {
                Trailers::None => "none".to_owned(),
                Trailers::Unknown => "unknown".to_owned(),
                Trailers::Fields(fields) => shown(&fields),
            };
            assert_eq!(got, want);
        }
    }

    #[test]
    fn other_words_are_refused() {
        assert_eq!(
            SETUP.refusal("server-timing: FORCE"),
            "[f:1] in command server-timing, argument must be one of: OFF,ON,ENFORCE (column 16; did you mean `ENFORCE`?)"
        );
    }
}
