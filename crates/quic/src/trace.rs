//! Traces of connections in the format qlog (draft-ietf-quic-qlog-main-schema-02 and draft-ietf-quic-qlog-quic-events-01,
//! which tools know as version 0.3), in records of RFC 7464. quinn-proto does not show its packets, so only datagrams and
//! the state of the congestion controller are traced.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::congestion::State;

/// Limit of the bytes of records that wait to be taken. Records beyond it are left out.
const MAX_PENDING: usize = 64 * 1024;
/// Limit of the packets lost since the last record of metrics that get a record each.
const MAX_LOST: u64 = 100;
/// Limit of the characters of the reason for a close that are recorded.
const MAX_REASON: usize = 200;

/// The trace of one connection.
#[derive(Debug)]
pub(crate) struct Trace {
    /// The connection id that the client chose first, in hexadecimal digits.
    pub(crate) name: String,
    began: Instant,
    records: String,
    left_out: u64,
    metrics: Option<Metrics>,
    lost: u64,
}

/// The values in a record of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Metrics {
    pub(crate) min_rtt: Duration,
    pub(crate) smoothed_rtt: Duration,
    pub(crate) state: State,
}

impl Trace {
    pub(crate) fn new(now: Instant, id: &[u8], remote: SocketAddr) -> Self {
        let mut name = String::with_capacity(2 * id.len());
        for byte in id {
            // Writing to a string does not fail.
            let _ = write!(name, "{byte:02x}");
        }
        let mut trace = Self {
            name,
            began: now,
            records: String::new(),
            left_out: 0,
            metrics: None,
            lost: 0,
        };
        let version = if remote.is_ipv4() { "ipv4" } else { "ipv6" };
        trace.record(now, "connectivity:connection_started", |out| {
            let (ip, port) = (remote.ip(), remote.port());
            write!(
                out,
                r#""ip_version":"{version}","src_ip":"{ip}","src_port":{port}"#
            )
        });
        trace
    }

    fn record(
        &mut self,
        now: Instant,
        name: &str,
        data: impl FnOnce(&mut String) -> std::fmt::Result,
    ) {
        if self.records.len() >= MAX_PENDING {
            self.left_out += 1;
            return;
        }
        let time = milliseconds(now.saturating_duration_since(self.began));
        let out = &mut self.records;
        let _ = write!(
            out,
            "\u{1e}{{\"time\":{time},\"name\":\"{name}\",\"data\":{{"
        );
        let _ = data(out);
        out.push_str("}}\n");
    }

    pub(crate) fn on_received(&mut self, now: Instant, len: usize) {
        self.record(now, "transport:datagrams_received", |out| {
            write!(out, r#""count":1,"raw":[{{"length":{len}}}]"#)
        });
    }

    /// Records that datagrams were sent: `len` bytes in all, in datagrams of `segment` bytes.
    pub(crate) fn on_sent(&mut self, now: Instant, len: usize, segment: usize) {
        let segment = segment.max(1);
        self.record(now, "transport:datagrams_sent", |out| {
            write!(out, r#""count":{},"raw":["#, len.div_ceil(segment))?;
            let mut left = len;
            while left > 0 {
                let comma = if left < len { "," } else { "" };
                write!(out, r#"{comma}{{"length":{}}}"#, left.min(segment))?;
                left -= left.min(segment);
            }
            out.write_char(']')
        });
    }

    /// `lost`: number of packets lost since the connection began.
    pub(crate) fn on_metrics(&mut self, now: Instant, metrics: Metrics, lost: u64) {
        for _ in 0..lost.saturating_sub(self.lost).min(MAX_LOST) {
            self.record(now, "recovery:packet_lost", |_| Ok(()));
        }
        self.lost = lost;
        if self.metrics == Some(metrics) {
            return;
        }
        self.metrics = Some(metrics);
        self.record(now, "recovery:metrics_updated", |out| {
            let State {
                window,
                rate,
                in_flight,
            } = metrics.state;
            write!(
                out,
                r#""min_rtt":{},"smoothed_rtt":{},"congestion_window":{window},"bytes_in_flight":{in_flight}"#,
                milliseconds(metrics.min_rtt),
                milliseconds(metrics.smoothed_rtt),
            )?;
            match rate {
                // qlog has the pacing rate in bits per second.
                Some(rate) => write!(out, r#","pacing_rate":{}"#, rate.saturating_mul(8)),
                None => Ok(()),
            }
        });
    }

    pub(crate) fn on_closed(&mut self, now: Instant, reason: &str) {
        self.record(now, "connectivity:connection_closed", |out| {
            out.push_str("\"reason\":\"");
            for char in reason.chars().take(MAX_REASON) {
                match char {
                    '"' | '\\' => write!(out, "\\{char}")?,
                    char if char.is_control() => write!(out, "\\u{:04x}", u32::from(char))?,
                    char => out.push(char),
                }
            }
            out.write_char('"')
        });
    }

    /// Takes the records made since the last call.
    pub(crate) fn take(&mut self, now: Instant) -> String {
        let left_out = std::mem::take(&mut self.left_out);
        let mut records = std::mem::take(&mut self.records);
        if left_out > 0 {
            self.record(now, "loglevel:warning", |out| {
                write!(out, r#""message":"{left_out} events were left out""#)
            });
            records.push_str(&std::mem::take(&mut self.records));
        }
        records
    }

    pub(crate) const fn retained(&self) -> usize {
        self.records.capacity()
    }
}

/// The record at the start of a trace file. `began`: when the connection began, as time since the Unix epoch.
pub fn header(name: &str, began: Duration) -> String {
    let began = milliseconds(began);
    format!(
        "\u{1e}{{\"qlog_version\":\"0.3\",\"qlog_format\":\"JSON-SEQ\",\"title\":\"h2o\",\"trace\":{{\"vantage_point\":{{\"type\":\"server\"}},\"common_fields\":{{\"ODCID\":\"{name}\",\"time_format\":\"relative\",\"reference_time\":{began}}}}}}}\n"
    )
}

/// Formats a duration in milliseconds with three decimal places.
fn milliseconds(time: Duration) -> String {
    format!("{}.{:03}", time.as_millis(), time.as_micros() % 1000)
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "a virtual clock has to begin at some instant"
)]
mod tests {
    use super::*;

    #[test]
    fn events_are_records_of_json() {
        let began = Instant::now();
        let at = |micros| began + Duration::from_micros(micros);
        let remote = "192.0.2.1:5000".parse().unwrap();
        let mut trace = Trace::new(began, &[0x0a, 0xff], remote);
        assert_eq!(trace.name, "0aff");
        trace.on_received(at(1_500), 1200);
        trace.on_sent(at(2_000), 2500, 1200);
        let metrics = Metrics {
            min_rtt: Duration::from_micros(1_002),
            smoothed_rtt: Duration::from_millis(2),
            state: State {
                window: 10,
                rate: Some(1000),
                in_flight: 5,
            },
        };
        trace.on_metrics(at(3_000), metrics, 1);
        trace.on_metrics(at(3_000), metrics, 1);
        trace.on_closed(at(4_000), "a \"word\"\n\\");
        let want = [
            r#"{"time":0.000,"name":"connectivity:connection_started","data":{"ip_version":"ipv4","src_ip":"192.0.2.1","src_port":5000}}"#,
            r#"{"time":1.500,"name":"transport:datagrams_received","data":{"count":1,"raw":[{"length":1200}]}}"#,
            r#"{"time":2.000,"name":"transport:datagrams_sent","data":{"count":3,"raw":[{"length":1200},{"length":1200},{"length":100}]}}"#,
            r#"{"time":3.000,"name":"recovery:packet_lost","data":{}}"#,
            r#"{"time":3.000,"name":"recovery:metrics_updated","data":{"min_rtt":1.002,"smoothed_rtt":2.000,"congestion_window":10,"bytes_in_flight":5,"pacing_rate":8000}}"#,
            r#"{"time":4.000,"name":"connectivity:connection_closed","data":{"reason":"a \"word\"\u000a\\"}}"#,
        ];
        let records = trace.take(at(5_000));
        let found: Vec<&str> = records.split_terminator('\n').collect();
        let want: Vec<String> = want
            .iter()
            .map(|record| format!("\u{1e}{record}"))
            .collect();
        assert_eq!(found, want);
        assert_eq!(trace.take(at(5_000)), "");
    }

    #[test]
    fn records_that_nobody_takes_are_left_out() {
        let now = Instant::now();
        let mut trace = Trace::new(now, &[1], "[::1]:1".parse().unwrap());
        for _ in 0..10_000 {
            trace.on_received(now, 1200);
        }
        let records = trace.take(now);
        assert!(records.len() < MAX_PENDING + 1000, "{}", records.len());
        assert!(records.contains("events were left out"));
        trace.on_received(now, 1200);
        assert!(!trace.take(now).contains("left out"));
    }
}
