//! The metrics as text for Prometheus: format 0.0.4, or OpenMetrics 1.0 for clients that accept it.

use std::collections::HashSet;
use std::fmt::{Display, Write as _};
use std::sync::atomic::Ordering::Relaxed;

use h2o_exchange::{Certificates, Counter, Site, Worker};
use h2o_http::accept;

use super::events::CONNECTIONS;
use super::report::{buffers_limit, resident, total};
use super::request_metrics::{CLASSES, LIMITS, Metrics, Series};
use crate::SERVER_VERSION;
use crate::proxy::Upstreams;

/// Number of backends, and of certificates, that have a series of their own; the rest is left out.
const MAX_LISTED: usize = 200;

/// The formats of the text with metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// The format for a client with these `accept` values.
    pub(super) fn accepted<'a>(accept: impl Iterator<Item = &'a [u8]>) -> Self {
        if accept::names_type(accept, b"application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    pub(super) fn content_type(self) -> &'static [u8] {
        match self {
            Self::Prometheus => b"text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => b"application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// All metrics of the server.
pub(super) fn metrics(format: Format, worker: &Worker, site: &Site) -> String {
    let mut text = Text::new(format);
    server(&mut text, worker);
    connections(&mut text, worker);
    memory_and_cache(&mut text, worker);
    reloads(&mut text, worker);
    backends(&mut text, site, worker);
    certificates(&mut text, site, worker);
    if let Some(collected) = &site.shared.get::<Metrics>().0 {
        requests(&mut text, &collected.series());
    }
    text.finish()
}

/// A text with metrics that is being written.
struct Text {
    format: Format,
    out: String,
}

impl Text {
    fn new(format: Format) -> Self {
        Self {
            format,
            out: String::new(),
        }
    }

    /// Begins a metric. `name` of a counter is without `_total`.
    fn family(&mut self, kind: &str, name: &str, help: &str) {
        // OpenMetrics gives type and help for the name of the family, the older format for that of the samples, which ends with
        // `_total`.
        let suffix = match self.format {
            Format::Prometheus if kind == "counter" => "_total",
            Format::Prometheus | Format::OpenMetrics => "",
        };
        let _ = write!(
            self.out,
            "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n"
        );
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.out.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.out.push(if index == 0 { '{' } else { ',' });
            let _ = write!(self.out, "{label}=\"");
            for char in text.chars() {
                match char {
                    '\\' => self.out.push_str("\\\\"),
                    '"' => self.out.push_str("\\\""),
                    '\n' => self.out.push_str("\\n"),
                    char => self.out.push(char),
                }
            }
            self.out.push('"');
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        let _ = writeln!(self.out, " {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family("gauge", name, help);
        self.sample(name, &[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family("counter", name, help);
        self.sample(&format!("{name}_total"), &[], value);
    }

    /// Writes a counter that has one label, with a value for each value of the label.
    fn counters<'a>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        self.family("counter", name, help);
        for (text, value) in values {
            self.sample(&format!("{name}_total"), &[(label, text)], value);
        }
    }

    fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

fn server(text: &mut Text, worker: &Worker) {
    let count = |counter: Counter| total(worker, counter.name());
    text.family("gauge", "h2o_build_info", "The version of the server.");
    text.sample("h2o_build_info", &[("version", SERVER_VERSION)], 1);
    text.gauge(
        "h2o_start_time_seconds",
        "When the server started, in Unix time.",
        worker.shared.started.as_secs(),
    );
    text.counters(
        "h2o_responses",
        "Responses of all hosts by class of status.",
        "status",
        [
            ("2xx", count(Counter::Responses2xx)),
            ("3xx", count(Counter::Responses3xx)),
            ("4xx", count(Counter::Responses4xx)),
            ("5xx", count(Counter::Responses5xx)),
        ],
    );
    text.counter(
        "h2o_received_bytes",
        "Bytes received from clients, TLS included.",
        count(Counter::BytesReceived),
    );
    text.counter(
        "h2o_sent_bytes",
        "Bytes sent to clients, TLS included.",
        count(Counter::BytesSent),
    );
    text.counter(
        "h2o_panics",
        "Requests that a panic ended.",
        count(Counter::Panics),
    );
    text.counter(
        "h2o_script_exceptions",
        "Exceptions that scripts have not rescued.",
        count(Counter::ScriptExceptions),
    );
}

fn connections(text: &mut Text, worker: &Worker) {
    let count = |counter: Counter| total(worker, counter.name());
    text.counter(
        "h2o_connections_accepted",
        "Connections accepted.",
        count(Counter::Sessions),
    );
    text.family(
        "gauge",
        "h2o_connections",
        "Open connections by protocol and state.",
    );
    for (protocol, state, counter) in CONNECTIONS {
        let labels = [("protocol", protocol), ("state", state)];
        text.sample("h2o_connections", &labels, count(counter));
    }
    text.counters(
        "h2o_connections_closed",
        "Connections that the server closed because of a limit: the abuse budget, max-memory, soft-connection-limit.",
        "cause",
        [
            ("budget", count(Counter::Overdrawn)),
            ("memory", count(Counter::MemoryClosed)),
            ("soft-limit", count(Counter::ConnectionsIdleClosed)),
        ],
    );
    text.counters(
        "h2o_tls_handshakes",
        "TLS handshakes by kind.",
        "kind",
        [
            ("full", count(Counter::SslHandshakeFull)),
            ("resumed", count(Counter::SslHandshakeResume)),
            ("failed", count(Counter::SslErrors)),
        ],
    );
}

fn memory_and_cache(text: &mut Text, worker: &Worker) {
    if let Some(bytes) = resident() {
        text.gauge(
            "h2o_resident_bytes",
            "Resident memory of the process in bytes.",
            bytes,
        );
    }
    text.gauge(
        "h2o_temp_files_bytes",
        "Size of all temporary files in bytes.",
        worker.shared.temp_files.used(),
    );
    let count = |counter: Counter| total(worker, counter.name());
    text.gauge(
        "h2o_buffers_bytes",
        "Bytes that connections hold in buffers.",
        count(Counter::BufferBytes),
    );
    if let Some(limit) = buffers_limit(worker) {
        text.gauge(
            "h2o_buffers_limit_bytes",
            "The value of max-memory in bytes.",
            limit,
        );
    }
    text.gauge(
        "h2o_scripts_bytes",
        "Bytes that scripts have allocated.",
        count(Counter::ScriptBytes),
    );
    text.counters(
        "h2o_file_cache_lookups",
        "Requests for files, answered by the content cache (hit) or looked up in the file system (miss).",
        "result",
        [
            ("hit", count(Counter::CacheHits)),
            ("miss", count(Counter::CacheMisses)),
        ],
    );
}

fn reloads(text: &mut Text, worker: &Worker) {
    let reloads = &worker.shared.reloads;
    text.counters(
        "h2o_reloads",
        "Reloads of the configuration by result.",
        "result",
        [
            ("succeeded", reloads.succeeded.load(Relaxed)),
            ("failed", reloads.failed.load(Relaxed)),
        ],
    );
}

fn backends(text: &mut Text, site: &Site, worker: &Worker) {
    text.counter(
        "h2o_proxy_retries",
        "Attempts to send a request to a backend once more.",
        total(worker, Counter::Retries.name()),
    );
    text.family(
        "gauge",
        "h2o_backend_up",
        "Whether a backend with health checks is up.",
    );
    let listed = site.shared.get::<Upstreams>();
    let mut seen = HashSet::new();
    for listed in listed.list() {
        for index in 0..listed.upstream.backends().len() {
            let Some(is_up) = listed.upstream.is_up(index) else {
                continue;
            };
            let url = listed.upstream.url_text(index);
            let key = (&*listed.host, &*listed.path, url.to_string());
            if seen.len() == MAX_LISTED || !seen.insert(key) {
                continue;
            }
            let labels = [
                ("host", &*listed.host),
                ("path", &*listed.path),
                ("url", &*url),
            ];
            text.sample("h2o_backend_up", &labels, u8::from(is_up));
        }
    }
}

fn certificates(text: &mut Text, site: &Site, worker: &Worker) {
    let now = i64::try_from(worker.clock.unix().as_secs()).unwrap_or(i64::MAX);
    text.family(
        "gauge",
        "h2o_certificate_days_left",
        "Days until a certificate expires.",
    );
    // Each certificate file is listed once.
    let list = site.shared.get::<Certificates>().list();
    for certificate in list.iter().take(MAX_LISTED) {
        let days = certificate.days_left(now);
        text.sample(
            "h2o_certificate_days_left",
            &[("file", &*certificate.file)],
            days,
        );
    }
}

fn requests(text: &mut Text, all: &[Series]) {
    let name = "h2o_http_requests";
    text.family(
        "counter",
        name,
        "Requests by host and path of the configuration and class of status.",
    );
    for series in all {
        let labels = &series.labels;
        for (class, count) in CLASSES.into_iter().zip(series.classes) {
            if count > 0 {
                let labels = [
                    ("host", &*labels.host),
                    ("path", &*labels.path),
                    ("status", class),
                ];
                text.sample(&format!("{name}_total"), &labels, count);
            }
        }
    }
    let name = "h2o_http_request_duration_seconds";
    text.family(
        "histogram",
        name,
        "Time from the first byte of a request to the end of its response, in seconds.",
    );
    for series in all {
        let (host, path) = (&*series.labels.host, &*series.labels.path);
        let mut below = 0;
        for (index, count) in series.buckets.into_iter().enumerate() {
            below += count;
            let limit = LIMITS.get(index).map(std::time::Duration::as_secs_f64);
            let limit = limit.map_or("+Inf".to_owned(), |limit| format!("{limit:?}"));
            let labels = [("host", host), ("path", path), ("le", &*limit)];
            text.sample(&format!("{name}_bucket"), &labels, below);
        }
        let labels = [("host", host), ("path", path)];
        let (whole, rest) = (series.micros / 1_000_000, series.micros % 1_000_000);
        text.sample(
            &format!("{name}_sum"),
            &labels,
            format_args!("{whole}.{rest:06}"),
        );
        text.sample(&format!("{name}_count"), &labels, below);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The text of the metrics with these series alone.
    pub(in super::super) fn of_series(series: &[Series]) -> String {
        let mut text = Text::new(Format::Prometheus);
        requests(&mut text, series);
        text.finish()
    }

    #[test]
    fn labels_cannot_leave_their_quotes() {
        let mut text = Text::new(Format::OpenMetrics);
        text.sample("x", &[("a", "q\"\\\n"), ("b", "ü")], 1);
        assert_eq!(text.finish(), "x{a=\"q\\\"\\\\\\n\",b=\"ü\"} 1\n# EOF\n");
    }
}
