//! The protocol of a request to a backend: by fixed shares of HTTP/1, HTTP/2 and HTTP/3, or by what the backend offers.

use std::cell::Cell;

/// What `proxy.http2.ratio` and `proxy.http3.ratio` say for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolClass {
    /// The request uses HTTP/1; new connections use no ALPN.
    Http1,
    /// The request uses HTTP/2, or HTTP/1 if the backend does not accept HTTP/2.
    Http2,
    /// The request uses HTTP/3, or another protocol if there is no HTTP/3 connection.
    Http3,
    /// `proxy.http2.ratio` is not set: new connections offer HTTP/2 and HTTP/1 by ALPN, and open ones are used evenly.
    ServerDriven,
}

/// Distributes requests over the protocol classes, for one upstream on one worker (H2O compatibility: H2O's algorithm).
///
/// Each class has a counter. With every request each counter grows by the share of its class, the class with the
/// highest counter is used, and that counter drops by 100. Of any hundred requests each class gets its share, evenly
/// spread.
#[derive(Debug, Default)]
pub(crate) struct ProtocolChoice {
    /// The counters of three classes: HTTP/1 or server-driven, HTTP/2, HTTP/3.
    counters: Cell<[i32; 3]>,
}

impl ProtocolChoice {
    /// The protocol class of the next request. Both ratios are percentages, together at most 100.
    pub(crate) fn next(&self, http2_ratio: Option<u8>, http3_ratio: u8) -> ProtocolClass {
        let rest = match http2_ratio {
            Some(_) => ProtocolClass::Http1,
            None => ProtocolClass::ServerDriven,
        };
        if (http2_ratio, http3_ratio) == (None, 0) {
            return rest;
        }
        let http2 = i32::from(http2_ratio.unwrap_or(0).min(100));
        let http3 = i32::from(http3_ratio).min(100 - http2);
        let [mut first, mut second, mut third] = self.counters.get();
        first += 100 - http2 - http3;
        second += http2;
        third += http3;
        // If several counters are equal, the first class wins. H2O compatibility: as in H2O, the server-driven class comes last,
        // though.
        let class = if http2_ratio.is_none() {
            if third >= first {
                ProtocolClass::Http3
            } else {
                rest
            }
        } else if first >= second && first >= third {
            rest
        } else if second >= third {
            ProtocolClass::Http2
        } else {
            ProtocolClass::Http3
        };
        match class {
            ProtocolClass::Http1 | ProtocolClass::ServerDriven => first -= 100,
            ProtocolClass::Http2 => second -= 100,
            ProtocolClass::Http3 => third -= 100,
        }
        self.counters.set([first, second, third]);
        class
    }
}

/// The number of an upstream's HTTP/1 connections on this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Http1Load {
    /// Number of connections with a request in progress.
    pub(crate) busy: usize,
    /// Number of idle HTTP/1 connections.
    pub(crate) idle: usize,
}

/// Load of an upstream's HTTP/2 or HTTP/3 connections that accept requests, on this worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Number of open streams on these connections.
    pub(crate) used: usize,
    /// Limit of the streams that may be open on these connections.
    pub(crate) most: usize,
}

/// Which connection a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionChoice {
    /// The request uses an open HTTP/2 connection.
    Http2,
    /// The request uses an open HTTP/3 connection, or a new one.
    Http3,
    /// The request uses an idle HTTP/1 connection.
    Http1,
    /// The request uses a new connection, which offers HTTP/2 and HTTP/1.
    New,
}

impl ConnectionChoice {
    /// Among the open connections, chooses the protocol that is less loaded (H2O compatibility: as H2O does).
    pub(crate) const fn choose(http1: Http1Load, http2: Load) -> Self {
        let all = http1.busy + http1.idle;
        match (http1.idle > 0, http2.used < http2.most) {
            (false, false) => Self::New,
            (true, false) => Self::Http1,
            (false, true) => Self::Http2,
            // Compares the load of both protocols, used / most with busy / all, without a division.
            (true, true) if http2.used * all > http1.busy * http2.most => Self::Http1,
            (true, true) => Self::Http2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dealt(http2: Option<u8>, http3: u8, requests: usize) -> String {
        let choice = ProtocolChoice::default();
        (0..requests)
            .map(|_| match choice.next(http2, http3) {
                ProtocolClass::Http1 => '1',
                ProtocolClass::Http2 => '2',
                ProtocolClass::Http3 => '3',
                ProtocolClass::ServerDriven => 'S',
            })
            .collect()
    }

    #[test]
    fn shares_are_dealt_out_evenly_and_always_alike() {
        let cases = [
            (Some(0), 0, "1111"),
            (Some(100), 0, "2222"),
            (Some(50), 0, "1212"),
            (Some(25), 0, "11211121"),
            (Some(75), 0, "21222122"),
            (Some(1), 0, "1111"),
            (Some(0), 100, "3333"),
            (Some(0), 50, "1313"),
            (Some(50), 50, "2323"),
            (Some(25), 25, "12311231"),
            (None, 0, "SSSS"),
            (None, 100, "3333"),
            (None, 50, "3S3S"),
            (None, 25, "S3SSS3SS"),
        ];
        for (http2, http3, want) in cases {
            assert_eq!(dealt(http2, http3, want.len()), want, "{http2:?} {http3}");
        }
        for ratio in 0..=100 {
            let count = |http2, http3, class| dealt(http2, http3, 100).matches(class).count();
            let want = usize::from(ratio);
            assert_eq!(count(Some(ratio), 0, '2'), want, "{ratio}% of a hundred");
            assert_eq!(count(None, ratio, '3'), want, "{ratio}% of a hundred");
            assert_eq!(count(Some(100 - ratio), ratio, '3'), want, "{ratio}%");
        }
    }

    #[test]
    fn server_driven_requests_go_where_there_is_more_room() {
        let load = |busy, idle, used, most| (Http1Load { busy, idle }, Load { used, most });
        let cases = [
            (load(0, 0, 0, 0), ConnectionChoice::New),
            (load(5, 0, 100, 100), ConnectionChoice::New),
            (load(0, 1, 0, 0), ConnectionChoice::Http1),
            (load(9, 1, 100, 100), ConnectionChoice::Http1),
            (load(0, 0, 0, 100), ConnectionChoice::Http2),
            (load(5, 0, 99, 100), ConnectionChoice::Http2),
            // Both protocols are idle: HTTP/2 is chosen, because it is not more loaded.
            (load(0, 1, 0, 100), ConnectionChoice::Http2),
            (load(0, 1, 1, 100), ConnectionChoice::Http1),
            (load(1, 1, 50, 100), ConnectionChoice::Http2),
            (load(1, 1, 51, 100), ConnectionChoice::Http1),
        ];
        for ((http1, http2), want) in cases {
            assert_eq!(
                ConnectionChoice::choose(http1, http2),
                want,
                "{http1:?} {http2:?}"
            );
        }
    }
}
