//! The directive `throttle-response`: a response that names a rate is sent no faster than that.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2o_config::{Directive, Levels};
use h2o_exchange::{
    Body, BodyError, BodySource, Exchange, Filter, FilterResult, Response, Scope, Timer, Trailers,
    Worker,
};
use h2o_http::{Known, Method, StatusCode};

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    levels: Levels::ALL_BUT_EXTENSION,
    ..Directive::setting(
        "throttle-response",
        "ON|OFF",
        "OFF",
        "Whether a response with status 200 and the header `x-traffic: BYTES` is sent at that many bytes a second; the header is \
         removed. `header.add` can set it. The rate is that before compression; `0`: no limit. See [Limit the rate of \
         downloads](recipes.md#limit-the-rate-of-downloads).",
        |scope, command| {
            scope.edit::<Throttle>().0 = command.node.on_off()?;
            Ok(())
        },
    )
}];

/// Smallest size in bytes of a piece of a throttled body.
const MIN_PIECE: u64 = 4096;
/// A piece of the body has as many bytes as the rate allows in this part of a second.
const PIECES_PER_SECOND: u64 = 10;

/// The setting of `throttle-response` at a configuration level.
#[derive(Clone, Debug, Default)]
struct Throttle(bool);

pub(crate) fn filter(scope: &Scope) -> Option<Box<dyn Filter>> {
    let is_on = scope.settings.peek::<Throttle>()?.0;
    is_on.then(|| Box::new(ThrottleFilter) as _)
}

struct ThrottleFilter;

impl Filter for ThrottleFilter {
    fn on_response(&self, exchange: &mut Exchange, response: &mut Response) -> FilterResult {
        let rate = response.headers.get(Known::XTraffic).and_then(parse_rate);
        let is_eligible =
            response.status == StatusCode::OK && *exchange.original_method() != Method::Head;
        let Some(rate) = rate.filter(|_| is_eligible) else {
            return FilterResult::Continue;
        };
        response.headers.remove(Known::XTraffic);
        if rate > 0 && !response.body.is_empty() {
            let source = std::mem::take(&mut response.body).into_source();
            let body = ThrottledBody::new(source, &exchange.worker, rate, response.length);
            response.body = Body::Stream(Box::new(body));
        }
        FilterResult::Continue
    }
}

/// The rate at the start of the field's value, in bytes per second. H2O compatibility: H2O ignores text after it, and
/// numbers of 20 digits and more.
fn parse_rate(value: &[u8]) -> Option<u64> {
    let digits = value
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    if digits >= 20 {
        return None;
    }
    std::str::from_utf8(&value[..digits]).ok()?.parse().ok()
}

/// A throttled body, which works like a token bucket: a piece may be sent while the balance is not negative.
struct ThrottledBody {
    source: Box<dyn BodySource>,
    timer: Timer,
    /// The rate in bytes per second, which is not 0.
    rate: u64,
    balance: Balance,
    /// The number of bytes that are still to come, if the response announces its length.
    left: Option<u64>,
}

/// The balance of a throttled body: the number of bytes that may be sent. After a piece it is negative for as long as
/// the piece takes at the rate.
struct Balance {
    bytes: i64,
    /// The time up to which the balance was credited.
    credited: Instant,
}

impl Balance {
    /// Adds the bytes for the time since the last call to the balance. The time counts in whole milliseconds, up to one
    /// second.
    fn credit(&mut self, rate: u64, now: Instant) {
        let elapsed = now.saturating_duration_since(self.credited).as_millis();
        let millis = u64::try_from(elapsed).unwrap_or(u64::MAX);
        if millis == 0 {
            return;
        }
        self.credited = now;
        let earned = (u128::from(rate) * u128::from(millis.min(1000))) / 1000;
        let earned = i64::try_from(earned).unwrap_or(i64::MAX);
        let most = i64::try_from(rate).unwrap_or(i64::MAX);
        self.bytes = self.bytes.saturating_add(earned).min(most);
    }

    /// The time until the balance is no longer negative.
    fn wait(&self, rate: u64) -> Duration {
        let millis = (u128::from(self.bytes.unsigned_abs()) * 1000).div_ceil(u128::from(rate));
        Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)).min(Duration::from_secs(1))
    }
}

impl ThrottledBody {
    fn new(source: Box<dyn BodySource>, worker: &Rc<Worker>, rate: u64, left: Option<u64>) -> Self {
        Self {
            source,
            timer: Timer::new(&worker.timers),
            rate,
            balance: Balance {
                bytes: 0,
                credited: worker.clock.now(),
            },
            left,
        }
    }
}

impl BodySource for ThrottledBody {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.balance.credit(self.rate, self.timer.clock().now());
        // The end of the body follows its last byte without a pause.
        while self.balance.bytes < 0 && self.left != Some(0) {
            // The timer is set again each time, because the worker's clock is coarse: the timer may fire before the
            // clock shows that the time has passed.
            self.timer.set_after(self.balance.wait(self.rate));
            if self.timer.poll_fired(context).is_pending() {
                return Poll::Pending;
            }
            self.balance.credit(self.rate, self.timer.clock().now());
        }
        let piece = (self.rate / PIECES_PER_SECOND).max(MIN_PIECE);
        let max = max.min(usize::try_from(piece).unwrap_or(usize::MAX));
        let next = self.source.poll_next(context, max);
        if let Poll::Ready(Some(Ok(piece))) = &next {
            let len = i64::try_from(piece.len()).unwrap_or(i64::MAX);
            self.balance.bytes = self.balance.bytes.saturating_sub(len);
            self.left = self
                .left
                .map(|left| left.saturating_sub(piece.len() as u64));
        }
        next
    }

    fn trailers(&mut self) -> Trailers {
        self.source.trailers()
    }

    fn is_complete(&self) -> bool {
        self.source.is_complete()
    }

    fn poll_ahead(&mut self, context: &mut Context<'_>) {
        self.source.poll_ahead(context);
    }

    fn retained(&self) -> usize {
        self.source.retained()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Setup, headers, request};
    use std::future::poll_fn;

    const SETUP: Setup = Setup::new(DIRECTIVES, Some(filter));

    /// A response of `len` bytes that has passed the filter.
    fn filtered(method: &str, status: u16, field: &str, len: usize) -> (Exchange, Response) {
        let site = SETUP.read(["throttle-response: ON", "", ""]).unwrap();
        let mut exchange = request(site, method, "default", "/");
        let body = Body::Bytes(vec![b'a'; len].into());
        let status = StatusCode::new(status).unwrap();
        let mut response = Response::new(status, headers(field), body);
        let site = Rc::clone(&exchange.site);
        let filter = &site.path(exchange.route).filters[0];
        let _ = filter.on_response(&mut exchange, &mut response);
        (exchange, response)
    }

    #[test]
    fn the_field_counts_only_where_there_is_content_to_throttle() {
        let cases = [
            // Each row: method, status and value of the field; whether the field is removed, and whether the body is
            // throttled.
            ("GET", 200, "5000", true, true),
            ("GET", 200, "5000 B/s", true, true),
            ("GET", 200, "0", true, false),
            ("HEAD", 200, "5000", false, false),
            ("GET", 206, "5000", false, false),
            ("GET", 200, "fast", false, false),
            ("GET", 200, "-1", false, false),
            ("GET", 200, "1000000000000000000", true, true),
            ("GET", 200, "00000000000000000001", false, false),
        ];
        for (method, status, value, removed, throttled) in cases {
            let (_, response) = filtered(method, status, &format!("x-traffic: {value}"), 10);
            let got = (
                response.headers.get(Known::XTraffic).is_none(),
                matches!(response.body, Body::Stream(_)),
            );
            assert_eq!(got, (removed, throttled), "{method} {status} {value}");
            assert_eq!(response.length, Some(10));
        }
        let site = SETUP.read(["throttle-response: ON", "", "throttle-response: OFF"]);
        assert!(site.unwrap().hosts[0].paths[0].filters.is_empty());
    }

    #[test]
    fn content_takes_as_long_as_the_rate_says() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        // The last piece is sent when the time that those before it take at the rate has passed, and the body ends with it.
        for (rate, len, pieces, millis) in [(50_000, 100_000, 20, 1900), (1000, 10_000, 3, 8192)] {
            runtime.block_on(async {
                let (exchange, response) = filtered("GET", 200, &format!("x-traffic: {rate}"), len);
                let Body::Stream(mut source) = response.body else {
                    panic!("the response is throttled, so its body is a stream");
                };
                let worker = Rc::clone(&exchange.worker);
                let begun = tokio::time::Instant::now();
                let sizes = worker.run(async {
                    let mut sizes = Vec::new();
                    while let Some(piece) =
                        poll_fn(|context| source.poll_next(context, 65_536)).await
                    {
                        sizes.push(piece.unwrap().len());
                    }
                    sizes
                });
                let sizes = sizes.await;
                let elapsed = begun.elapsed().as_millis();
                assert_eq!((sizes.len(), sizes.iter().sum::<usize>()), (pieces, len));
                assert!(
                    (millis..millis + 300).contains(&elapsed),
                    "{elapsed} ms for {len} at {rate}"
                );
            });
        }
    }
}
