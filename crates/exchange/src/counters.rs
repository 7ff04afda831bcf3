//! Event counters, one set per worker, summed up by whoever shows them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),* $(,)?) => {
        /// What is counted; the text is the name in the status report (H2O compatibility).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter { $($(#[$doc])* $variant),* }

        impl Counter {
            /// All counters in the order of the status report.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name in the status report.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

counters! {
    /// Error answers made by the server itself.
    Status400 = "status-errors.400",
    /// As above.
    Status401 = "status-errors.401",
    /// As above.
    Status403 = "status-errors.403",
    /// As above.
    Status404 = "status-errors.404",
    /// As above.
    Status405 = "status-errors.405",
    /// As above.
    Status416 = "status-errors.416",
    /// As above.
    Status417 = "status-errors.417",
    /// As above.
    Status421 = "status-errors.421",
    /// As above.
    Status500 = "status-errors.500",
    /// As above.
    Status502 = "status-errors.502",
    /// As above.
    Status503 = "status-errors.503",
    /// Heads that did not arrive in time.
    Http1RequestTimeout = "http1-errors.request-timeout",
    /// Sockets silent for too long.
    Http1RequestIoTimeout = "http1-errors.request-io-timeout",
    /// HTTP/2 connections and streams that ended with this error code (RFC 9113 §7).
    Http2ErrorProtocol = "http2-errors.protocol",
    /// As above.
    Http2ErrorInternal = "http2-errors.internal",
    /// As above.
    Http2ErrorFlowControl = "http2-errors.flow-control",
    /// As above.
    Http2ErrorSettingsTimeout = "http2-errors.settings-timeout",
    /// As above.
    Http2ErrorStreamClosed = "http2-errors.stream-closed",
    /// As above.
    Http2ErrorFrameSize = "http2-errors.frame-size",
    /// As above.
    Http2ErrorRefusedStream = "http2-errors.refused-stream",
    /// As above.
    Http2ErrorCancel = "http2-errors.cancel",
    /// As above.
    Http2ErrorCompression = "http2-errors.compression",
    /// As above.
    Http2ErrorConnect = "http2-errors.connect",
    /// As above.
    Http2ErrorEnhanceYourCalm = "http2-errors.enhance-your-calm",
    /// As above.
    Http2ErrorInadequateSecurity = "http2-errors.inadequate-security",
    /// HTTP/2 connections on which reading failed or that the client closed.
    Http2ReadClosed = "http2.read-closed",
    /// HTTP/2 connections on which writing failed.
    Http2WriteClosed = "http2.write-closed",
    /// HTTP/2 connections closed because nothing happened on them.
    Http2IdleTimeout = "http2.idle-timeout",
    /// Requests over HTTP/2 whose content was handed on while it arrived.
    Http2StreamingRequests = "http2.streaming-requests",
    /// Idle connections closed to make room.
    ConnectionsIdleClosed = "connections.idle-closed",
    /// Connections open now that are between requests.
    ConnectionsIdle = "connections.idle",
    /// Connections open now with something under way: a request, or what comes before the first.
    ConnectionsActive = "connections.active",
    /// Connections open now that end with what is under way.
    ConnectionsShutdown = "connections.shutdown",
    /// Handshakes that failed.
    SslErrors = "ssl.errors",
    /// Connections that chose HTTP/1 by ALPN.
    SslAlpnH1 = "ssl.alpn.h1",
    /// Connections that chose HTTP/2 by ALPN.
    SslAlpnH2 = "ssl.alpn.h2",
    /// Full handshakes.
    SslHandshakeFull = "ssl.handshake.full",
    /// Resumed handshakes.
    SslHandshakeResume = "ssl.handshake.resume",
    /// Microseconds spent in full handshakes, from accept to finished.
    SslHandshakeTimeFull = "ssl.handshake.accumulated-time.full",
    /// Microseconds spent in resumed handshakes.
    SslHandshakeTimeResume = "ssl.handshake.accumulated-time.resume",
    /// Connections accepted.
    Sessions = "num-sessions",
    /// Connections closed because they cost more than their budget.
    Overdrawn = "connections.overdrawn",
    /// Connections closed because `max-memory` was exceeded.
    MemoryClosed = "connections.memory-closed",
    /// Responses of backends of which something was kept for a slow client.
    ResponsesBuffered = "proxy.responses-buffered",
    /// Requests ended by a panic in a handler or filter.
    Panics = "panics",
    /// Requests that are over, whatever came of them.
    Requests = "traffic.requests",
    /// Responses sent with such a status.
    Responses2xx = "traffic.responses.2xx",
    /// As above.
    Responses3xx = "traffic.responses.3xx",
    /// As above.
    Responses4xx = "traffic.responses.4xx",
    /// As above.
    Responses5xx = "traffic.responses.5xx",
    /// Bytes received from clients, TLS and all.
    BytesReceived = "traffic.bytes-received",
    /// Bytes sent to clients, TLS and all.
    BytesSent = "traffic.bytes-sent",
}

/// One worker's counters. Written by that worker only, read by any.
#[repr(align(128))]
pub struct Counters {
    values: [AtomicU64; Counter::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            values: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Counters {
    /// Adds one.
    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds `n`. A plain load and store: there is one writer.
    pub fn add(&self, counter: Counter, n: u64) {
        let value = &self.values[counter as usize];
        value.store(value.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Takes one back: of what is open now.
    pub fn uncount(&self, counter: Counter) {
        self.add(counter, u64::MAX);
    }

    /// The current value.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize].load(Relaxed)
    }

    /// Counts a request that is over, by the status that was sent if there was one.
    pub fn count_request(&self, status: Option<h2o_http::StatusCode>) {
        self.count(Counter::Requests);
        self.count(match status.map_or(0, |status| status.as_u16() / 100) {
            2 => Counter::Responses2xx,
            3 => Counter::Responses3xx,
            4 => Counter::Responses4xx,
            5 => Counter::Responses5xx,
            _ => return,
        });
    }

    /// Counts an error answer made by the server itself.
    pub fn count_status(&self, status: h2o_http::StatusCode) {
        let counter = match status.as_u16() {
            400 => Counter::Status400,
            401 => Counter::Status401,
            403 => Counter::Status403,
            404 => Counter::Status404,
            405 => Counter::Status405,
            416 => Counter::Status416,
            417 => Counter::Status417,
            421 => Counter::Status421,
            500 => Counter::Status500,
            502 => Counter::Status502,
            503 => Counter::Status503,
            _ => return,
        };
        self.count(counter);
    }

    /// Counts an error code that an HTTP/2 connection or stream ended with (RFC 9113 §7). NO_ERROR and codes without a
    /// name in the report count nothing.
    pub fn count_http2_error(&self, code: u32) {
        let counter = match code {
            1 => Counter::Http2ErrorProtocol,
            2 => Counter::Http2ErrorInternal,
            3 => Counter::Http2ErrorFlowControl,
            4 => Counter::Http2ErrorSettingsTimeout,
            5 => Counter::Http2ErrorStreamClosed,
            6 => Counter::Http2ErrorFrameSize,
            7 => Counter::Http2ErrorRefusedStream,
            8 => Counter::Http2ErrorCancel,
            9 => Counter::Http2ErrorCompression,
            10 => Counter::Http2ErrorConnect,
            11 => Counter::Http2ErrorEnhanceYourCalm,
            12 => Counter::Http2ErrorInadequateSecurity,
            _ => return,
        };
        self.count(counter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_2_errors_are_counted_by_their_code() {
        let counted = |code| {
            let counters = Counters::default();
            counters.count_http2_error(code);
            let mut all = Counter::ALL.iter();
            all.find(|&&counter| counters.get(counter) == 1)
                .map_or("", |counter| counter.name())
        };
        let cases = [
            (0, ""),
            (1, "http2-errors.protocol"),
            (3, "http2-errors.flow-control"),
            (7, "http2-errors.refused-stream"),
            (0xb, "http2-errors.enhance-your-calm"),
            (0xc, "http2-errors.inadequate-security"),
            (0xd, ""),
            (u32::MAX, ""),
        ];
        for (code, want) in cases {
            assert_eq!(counted(code), want, "{code}");
        }
    }
}
