//! Which protocol a request goes upstream by: shares of HTTP/1 and HTTP/2, or what the server chooses.

use std::cell::Cell;

/// What `proxy.http2.ratio` makes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolClass {
    /// HTTP/1; new connections do without ALPN.
    Http1,
    /// HTTP/2 if the server takes it; HTTP/1 if not.
    Http2,
    /// The ratio was never set: new connections offer both, and what is there already is used evenly.
    ServerDriven,
}

/// Deals requests out to the classes, for one upstream on one worker (H2O compatibility).
///
/// Each class has a counter. With every request each counter grows by its class's share, the class with the highest is
/// used, and its counter drops by 100: over any hundred requests each class gets its share, evenly spread.
#[derive(Debug, Default)]
pub(crate) struct ProtocolChoice {
    http1: Cell<i32>,
    http2: Cell<i32>,
}

impl ProtocolChoice {
    /// The class of the next request. `http2_ratio` is a percentage, at most 100.
    pub(crate) fn next(&self, http2_ratio: Option<u8>) -> ProtocolClass {
        let Some(ratio) = http2_ratio else {
            return ProtocolClass::ServerDriven;
        };
        let ratio = i32::from(ratio.min(100));
        let http1 = self.http1.get() + 100 - ratio;
        let http2 = self.http2.get() + ratio;
        // Of equals it is the first.
        let is_http2 = http2 > http1;
        self.http1.set(if is_http2 { http1 } else { http1 - 100 });
        self.http2.set(if is_http2 { http2 - 100 } else { http2 });
        if is_http2 {
            ProtocolClass::Http2
        } else {
            ProtocolClass::Http1
        }
    }
}

/// The HTTP/1 connections of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Http1Load {
    /// Connections with a request.
    pub(crate) busy: usize,
    /// Connections that wait for one.
    pub(crate) idle: usize,
}

/// The HTTP/2 connections of an upstream on this worker that take requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Http2Load {
    /// Streams in use.
    pub(crate) used: usize,
    /// Streams there could be.
    pub(crate) most: usize,
}

/// How a server-driven request goes upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By an HTTP/2 connection that is there.
    Http2,
    /// By an idle HTTP/1 connection.
    Http1,
    /// By a new connection that offers both to the server.
    New,
}

impl Way {
    /// Of what is there, the kind that is used less (H2O compatibility).
    pub(crate) const fn choose(http1: Http1Load, http2: Http2Load) -> Self {
        let all = http1.busy + http1.idle;
        match (http1.idle > 0, http2.used < http2.most) {
            (false, false) => Self::New,
            (true, false) => Self::Http1,
            (false, true) => Self::Http2,
            // used / most against busy / all, without the division.
            (true, true) if http2.used * all > http1.busy * http2.most => Self::Http1,
            (true, true) => Self::Http2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dealt(ratio: u8, requests: usize) -> String {
        let choice = ProtocolChoice::default();
        (0..requests)
            .map(|_| match choice.next(Some(ratio)) {
                ProtocolClass::Http1 => '1',
                ProtocolClass::Http2 => '2',
                ProtocolClass::ServerDriven => 'S',
            })
            .collect()
    }

    #[test]
    fn shares_are_dealt_out_evenly_and_always_alike() {
        let cases = [
            (0, "1111"),
            (100, "2222"),
            (50, "1212"),
            (25, "11211121"),
            (75, "21222122"),
            (1, "1111"),
        ];
        for (ratio, want) in cases {
            assert_eq!(dealt(ratio, want.len()), want, "{ratio}%");
        }
        for ratio in 0..=100 {
            let count = dealt(ratio, 100).matches('2').count();
            assert_eq!(count, usize::from(ratio), "{ratio}% of a hundred");
        }
    }

    #[test]
    fn an_unset_ratio_leaves_the_choice_to_the_server() {
        let choice = ProtocolChoice::default();
        assert_eq!(choice.next(None), ProtocolClass::ServerDriven);
        assert_eq!(choice.next(Some(50)), ProtocolClass::Http1);
    }

    #[test]
    fn server_driven_requests_go_where_there_is_more_room() {
        let load = |busy, idle, used, most| (Http1Load { busy, idle }, Http2Load { used, most });
        let cases = [
            (load(0, 0, 0, 0), Way::New),
            (load(5, 0, 100, 100), Way::New),
            (load(0, 1, 0, 0), Way::Http1),
            (load(9, 1, 100, 100), Way::Http1),
            (load(0, 0, 0, 100), Way::Http2),
            (load(5, 0, 99, 100), Way::Http2),
            // Both idle: HTTP/2, as it is not used more.
            (load(0, 1, 0, 100), Way::Http2),
            (load(0, 1, 1, 100), Way::Http1),
            (load(1, 1, 50, 100), Way::Http2),
            (load(1, 1, 51, 100), Way::Http1),
        ];
        for ((http1, http2), want) in cases {
            assert_eq!(Way::choose(http1, http2), want, "{http1:?} {http2:?}");
        }
    }
}
