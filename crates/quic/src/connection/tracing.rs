//! The trace of a connection (qlog).

use std::time::Instant;

use super::Connection;
use crate::close::CloseReason;
use crate::congestion::ControllerChannel;
use crate::endpoint::Transmit;
use crate::trace::{Metrics, Trace};

impl Connection {
    /// Begins to trace the connection. `id`: the connection id that the client chose; `len`: the length of its first
    /// datagram.
    pub(crate) fn begin_trace(&mut self, now: Instant, id: &[u8], len: usize) {
        let mut trace = Trace::new(now, id, self.remote);
        trace.on_received(now, len);
        self.trace = Some(Box::new(trace));
    }

    /// The name of the trace, if the connection is traced: the first connection id that the client chose, in hexadecimal
    /// digits.
    pub fn trace_name(&self) -> Option<&str> {
        self.trace.as_ref().map(|trace| trace.name.as_str())
    }

    /// Takes the trace records made since the last call. To be called once per turn of the event loop, since records beyond
    /// 64 KiB are left out. A file of them begins with [`crate::trace_header`].
    pub fn take_trace(&mut self, now: Instant) -> String {
        let records = self.trace.as_mut().map(|trace| trace.take(now));
        records.unwrap_or_default()
    }

    /// Ends the trace, because the application does not take its records.
    pub fn stop_trace(&mut self) {
        self.trace = None;
    }

    /// Records in the trace that the connection has ended.
    pub fn trace_close(&mut self, now: Instant, reason: &CloseReason) {
        if let Some(trace) = &mut self.trace {
            trace.on_closed(now, &reason.to_string());
        }
    }

    /// Records in the trace that a datagram of `len` bytes was received.
    pub(crate) fn trace_received(&mut self, channel: &ControllerChannel, now: Instant, len: usize) {
        if let Some(trace) = &mut self.trace {
            trace.on_received(now, len);
            self.trace_metrics(channel, now);
        }
    }

    /// Records in the trace that datagrams were sent.
    pub(crate) fn trace_sent(
        &mut self,
        channel: &ControllerChannel,
        now: Instant,
        transmit: &Transmit,
    ) {
        if let Some(trace) = &mut self.trace {
            let segment = transmit.segment_len.unwrap_or(transmit.len);
            trace.on_sent(now, transmit.len, segment);
            self.trace_metrics(channel, now);
        }
    }

    fn trace_metrics(&mut self, channel: &ControllerChannel, now: Instant) {
        let stats = self.stats();
        let metrics = Metrics {
            min_rtt: stats.min_rtt,
            smoothed_rtt: stats.rtt,
            state: channel.read(self.library.congestion_state()),
        };
        if let Some(trace) = &mut self.trace {
            trace.on_metrics(now, metrics, stats.packets_lost);
        }
    }
}
