//! Slow clients: one rule for every protocol version and for both directions.
//!
//! A transfer (of a request or response body) that waits for nothing but its client must reach a minimum rate. Only bytes of this transfer
//! count as progress; a PING, or a window update for another stream, does not. Drivers check waiting transfers at
//! [`ClientRate::next_check`], in HTTP versions with many streams per connection through `request::paces`.

use std::time::{Duration, Instant};

use h2o_config::{Directive, Unit};
use h2o_exchange::{Exchange, Scope};

use crate::site::settings::seconds;

/// A transfer that waits for its client and moves no byte for this long, or for `client-min-rate.grace` if that is longer, is
/// ended, unless a timeout of the protocol is shorter. With `client-min-rate: 0` there is no such limit. H2O compatibility: H2O
/// applies this limit to HTTP/2 connections.
const SILENCE: Duration = Duration::from_secs(60);
/// Longest interval between two checks of a transfer.
const TICK: Duration = Duration::from_secs(5);

/// Values of the directives `client-min-rate` and `client-min-rate.grace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientRate {
    /// `client-min-rate`: minimum rate in bytes per second; 0 turns the check off.
    least: u64,
    /// `client-min-rate.grace`: the minimum rate applies once the transfer has waited for its client for this long.
    grace: Duration,
}

impl Default for ClientRate {
    fn default() -> Self {
        Self {
            least: 500,
            grace: Duration::from_secs(20),
        }
    }
}

impl ClientRate {
    /// The minimum rate that is configured for the path that a request was routed to.
    pub(crate) fn of(exchange: &Exchange) -> Self {
        let settings = &exchange.site.path(exchange.route).settings;
        settings.peek().map_or_else(Self::default, |rate| *rate)
    }

    /// Whether clients may be as slow as they like.
    pub(crate) const fn is_off(&self) -> bool {
        self.least == 0
    }

    /// Combines the settings of two requests into the more lenient one.
    pub(crate) fn or_more_lenient(self, other: Self) -> Self {
        Self {
            least: self.least.min(other.least),
            grace: self.grace.max(other.grace),
        }
    }

    /// When the driver must check the waiting transfers again.
    pub(crate) fn next_check(&self, now: Instant) -> Instant {
        let tick = (self.grace / 4).clamp(Duration::from_secs(1), TICK);
        now + tick
    }
}

/// Progress of one transfer in one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Time of the last check, and in `bytes` the number of bytes that had been transferred by then.
    seen: Instant,
    bytes: u64,
    /// How long the transfer has waited for the client: `waited` in all, `silent` since a byte was last transferred.
    waited: Duration,
    silent: Duration,
}

/// State of a transfer at a check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferState {
    pub(crate) now: Instant,
    /// Number of bytes transferred so far.
    pub(crate) bytes: u64,
    /// Whether only the client can continue the transfer.
    pub(crate) waits_for_client: bool,
}

impl Pace {
    /// The progress of a transfer that begins at `now`.
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            seen: now,
            bytes: 0,
            waited: Duration::ZERO,
            silent: Duration::ZERO,
        }
    }

    /// Checks the transfer. Returns `false` if the client is too slow.
    #[must_use]
    pub(crate) fn keeps_up(&mut self, look: TransferState, rate: &ClientRate) -> bool {
        let passed = look.now.saturating_duration_since(self.seen);
        self.seen = look.now;
        let has_moved = look.bytes != self.bytes;
        self.bytes = look.bytes;
        if has_moved {
            self.silent = Duration::ZERO;
        }
        if !look.waits_for_client || rate.least == 0 {
            return true;
        }
        self.waited += passed;
        self.silent += passed;
        let due = u128::from(rate.least) * self.waited.as_millis() / 1000;
        let is_slow = self.waited >= rate.grace && u128::from(self.bytes) < due;
        !is_slow && self.silent < SILENCE.max(rate.grace)
    }
}

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[
    Directive::setting(
        "client-min-rate",
        "BYTES",
        "500",
        "Not in H2O: bytes per second that a client has to send of a request body, and take of a response, on average over the time \
         that the server waits for the client. A slower client loses its connection (HTTP/1) or stream (HTTP/2, HTTP/3). `0` turns \
         the check off, for example for gRPC calls in which the client sends nothing for a long time.",
        |scope, command| {
            scope.edit::<ClientRate>().least =
                command
                    .node
                    .quantity(Unit::Bytes, "%u", 0..=u64::from(u32::MAX))?;
            Ok(())
        },
    ),
    Directive::setting(
        "client-min-rate.grace",
        "SECONDS",
        "20",
        "Not in H2O: time that the server waits for a client, in all, before `client-min-rate` applies.",
        |scope, command| {
            scope.edit::<ClientRate>().grace = seconds(command.node)?;
            Ok(())
        },
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(
        clippy::disallowed_methods,
        reason = "the virtual time of the test may start at any instant"
    )]
    fn start() -> Instant {
        Instant::now()
    }

    /// Returns the second in which a transfer that is checked every second is found too slow; `None` if it never is. `transfer` gives, for
    /// each second, the bytes transferred and whether the transfer waits for the client.
    fn given_up(rate: ClientRate, transfer: impl Fn(u64) -> (u64, bool)) -> Option<u64> {
        let start = start();
        let mut pace = Pace::new(start);
        (1..10_000).find(|&second| {
            let (bytes, waits_for_client) = transfer(second);
            let look = TransferState {
                now: start + Duration::from_secs(second),
                bytes,
                waits_for_client,
            };
            !pace.keeps_up(look, &rate)
        })
    }

    #[test]
    fn clients_below_the_least_rate_are_given_up_after_the_grace() {
        let rate = ClientRate::default();
        assert_eq!(given_up(rate, |_| (0, true)), Some(20));
        assert_eq!(given_up(rate, |second| (second * 499, true)), Some(20));
        assert_eq!(given_up(rate, |second| (second * 500, true)), None);
        // A fast start makes up for a slow time afterwards, but not for a time without any byte.
        assert_eq!(given_up(rate, |second| (20_000 + second, true)), Some(41));
        assert_eq!(given_up(rate, |_| (1_000_000, true)), Some(60));
        assert_eq!(
            given_up(rate, |second| (1_000_000 + second / 59, true)),
            Some(2001)
        );
    }

    #[test]
    fn time_in_which_nobody_waits_for_the_client_does_not_count() {
        let rate = ClientRate::default();
        assert_eq!(given_up(rate, |_| (0, false)), None);
        assert_eq!(given_up(rate, |second| (0, second % 2 == 0)), Some(40));
        // If the transfer waits for this server in between, the client's silence before that still counts.
        let pauses = |second| (1_000_000, second % 100 < 50);
        assert_eq!(given_up(rate, pauses), Some(110));
    }

    #[test]
    fn the_rate_can_be_chosen_or_switched_off() {
        let rate = |least, grace| ClientRate {
            least,
            grace: Duration::from_secs(grace),
        };
        assert_eq!(given_up(rate(0, 20), |_| (0, true)), None);
        assert_eq!(given_up(rate(1, 5), |_| (6, true)), Some(7));
        assert_eq!(given_up(rate(1, 100), |_| (0, true)), Some(100));
    }
}
