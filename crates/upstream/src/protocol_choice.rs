//! The protocol of a request to a backend: by fixed shares of HTTP/1 and HTTP/2, or by what the backend offers.

use std::cell::Cell;

/// Result of `proxy.http2.ratio` for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolClass {
    /// HTTP/1; new connections use no ALPN.
    Http1,
    /// HTTP/2, or HTTP/1 if the backend does not accept it.
    Http2,
    /// `proxy.http2.ratio` is unset: new connections offer both by ALPN, and open ones are used evenly.
    ServerDriven,
}

/// Distributes requests over the protocol classes, for one upstream on one worker (H2O compatibility: H2O's algorithm).
///
/// Each class has a counter. With every request each counter grows by the share of its class, the class with the
/// highest counter is used, and that counter drops by 100. Of any hundred requests each class gets its share, evenly
/// spread.
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
        // Of equals the first wins.
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

/// Load of an upstream's HTTP/1 connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Http1Load {
    /// Connections with a request in progress.
    pub(crate) busy: usize,
    /// Idle connections.
    pub(crate) idle: usize,
}

/// Load of an upstream's HTTP/2 connections that accept requests, on this worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Open streams.
    pub(crate) used: usize,
    /// Most streams that may be open.
    pub(crate) most: usize,
}

/// The connection for a request of class `ServerDriven`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionChoice {
    /// An open HTTP/2 connection.
    Http2,
    /// An idle HTTP/1 connection.
    Http1,
    /// A new connection that offers both protocols.
    New,
}

impl ConnectionChoice {
    /// Of the open connections, chooses the less loaded protocol (H2O compatibility: as H2O does).
    pub(crate) const fn choose(http1: Http1Load, http2: Load) -> Self {
        let all = http1.busy + http1.idle;
        match (http1.idle > 0, http2.used < http2.most) {
            (false, false) => Self::New,
            (true, false) => Self::Http1,
            (false, true) => Self::Http2,
            // Compares used / most with busy / all, without dividing.
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
        let load = |busy, idle, used, most| (Http1Load { busy, idle }, Load { used, most });
        let cases = [
            (load(0, 0, 0, 0), ConnectionChoice::New),
            (load(5, 0, 100, 100), ConnectionChoice::New),
            (load(0, 1, 0, 0), ConnectionChoice::Http1),
            (load(9, 1, 100, 100), ConnectionChoice::Http1),
            (load(0, 0, 0, 100), ConnectionChoice::Http2),
            (load(5, 0, 99, 100), ConnectionChoice::Http2),
            // Both idle: HTTP/2, which is not more loaded.
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
