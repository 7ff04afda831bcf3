//! The status report as JSON: modules in a fixed order, one member per line.

use std::fmt::Display;
use std::sync::atomic::Ordering::Relaxed;

use h2o_exchange::{Certificates, Counter, HostName, Site, Worker};

use super::durations::{DurationStats, NAMES, PERCENTILES};
use super::events::{CONNECTIONS, EVENTS, SSL, TRAFFIC, names};
use super::request_metrics::Metrics;
use crate::access_log::{Escape, LocalTime};
use crate::proxy::Upstreams;
use crate::{SERVER_VERSION, TLS_LIBRARY};

/// A part of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Module {
    Main,
    Requests,
    Events,
    Ssl,
    Durations,
    Memory,
    /// H2O does not have this module and those after it.
    Traffic,
    Backends,
    Certificates,
    Reloads,
    Paths,
}

impl Module {
    /// All modules, in the order of the report.
    const ALL: [Self; 11] = [
        Self::Main,
        Self::Requests,
        Self::Events,
        Self::Ssl,
        Self::Durations,
        Self::Memory,
        Self::Traffic,
        Self::Backends,
        Self::Certificates,
        Self::Reloads,
        Self::Paths,
    ];

    /// The modules that `h2o top` shows.
    pub(super) const TOP: [Self; 6] = [
        Self::Main,
        Self::Events,
        Self::Memory,
        Self::Traffic,
        Self::Backends,
        Self::Paths,
    ];

    /// The modules that a query asks for. These are all modules, unless the query begins with `show=`. H2O
    /// compatibility: H2O takes everything after that as a list, so that further parameters belong to the last name.
    /// Unknown names are ignored.
    pub(super) fn asked_for(query: &[u8]) -> Vec<Self> {
        let Some(list) = query.strip_prefix(b"?show=") else {
            return Self::ALL.to_vec();
        };
        let asked = |module: &Self| {
            list.split(|&byte| byte == b',')
                .any(|name| module.is_called(name))
        };
        Self::ALL.into_iter().filter(asked).collect()
    }

    fn is_called(self, name: &[u8]) -> bool {
        match self {
            Self::Main => name == b"main",
            Self::Requests => name == b"requests",
            // H2O's manual calls this module `errors`.
            Self::Events => name == b"events" || name == b"errors",
            Self::Ssl => name == b"ssl",
            Self::Durations => name == b"durations",
            Self::Memory => name == b"memory",
            Self::Traffic => name == b"traffic",
            Self::Backends => name == b"backends",
            Self::Certificates => name == b"certificates",
            Self::Reloads => name == b"reloads",
            Self::Paths => name == b"paths",
        }
    }
}

/// Memory pools that H2O has and this server does not have. They are shown as empty, because monitoring expects them.
const POOLS: [&str; 7] = [
    "memory.mem_pool.chunks",
    "memory.mem_pool.low_watermark",
    "memory.socket.ssl.chunks",
    "memory.socket.ssl.low_watermark",
    "memory.socket.zerocopy.chunks",
    "memory.socket.zerocopy.low_watermark",
    "memory.socket.zerocopy.inflight",
];

/// A status report that is being written.
#[derive(Default)]
pub(super) struct Report {
    before: Vec<u8>,
    requests: Option<Vec<u8>>,
    after: Vec<u8>,
}

impl Report {
    /// Adds a module other than `requests` to the report. Modules must be added in their order.
    pub(super) fn add(&mut self, module: Module, worker: &Worker, site: &Site) {
        let out = if self.requests.is_some() {
            &mut self.after
        } else {
            &mut self.before
        };
        let mut members = Members { out };
        match module {
            Module::Main => main(&mut members, worker),
            Module::Requests => {}
            Module::Events => events(&mut members, worker),
            Module::Ssl => counters(&mut members, SSL, worker),
            Module::Durations => durations(&mut members, &site.shared.get::<DurationStats>()),
            Module::Memory => memory(&mut members, worker),
            Module::Traffic => counters(&mut members, TRAFFIC, worker),
            Module::Backends => backends(&mut members, site),
            Module::Certificates => certificates(&mut members, site, worker),
            Module::Reloads => reloads(&mut members, worker),
            Module::Paths => paths(&mut members, &site.shared.get::<Metrics>()),
        }
    }

    /// Adds requests to the module `requests`: JSON objects separated by `,`.
    pub(super) fn add_requests(&mut self, list: Vec<u8>) {
        let requests = self.requests.get_or_insert_default();
        if !requests.is_empty() && !list.is_empty() {
            requests.push(b',');
        }
        requests.extend_from_slice(&list);
    }

    /// The whole report as JSON.
    pub(super) fn into_json(self) -> Vec<u8> {
        let requests = self.requests.map(|list| {
            let mut member = b" \"requests\": [".to_vec();
            member.extend_from_slice(&list);
            member.extend_from_slice(b"\n ]");
            member
        });
        let parts = [self.before, requests.unwrap_or_default(), self.after];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let mut json = b"{\n".to_vec();
        json.extend_from_slice(&parts.join(&b",\n"[..]));
        json.extend_from_slice(b"\n}\n");
        json
    }
}

/// Writes the members of a JSON object, one per line.
struct Members<'a> {
    out: &'a mut Vec<u8>,
}

impl Members<'_> {
    fn raw(&mut self, name: &str, value: impl Display) {
        self.name(name);
        self.out.extend_from_slice(value.to_string().as_bytes());
    }

    fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        self.out.push(b'"');
        Escape::Json.write(value.as_bytes(), self.out);
        self.out.push(b'"');
    }

    /// Writes a member that is a list of objects, one object per line.
    fn list(&mut self, name: &str, objects: impl Iterator<Item = Object>) {
        self.name(name);
        self.out.push(b'[');
        for (index, object) in objects.enumerate() {
            let separator: &[u8] = if index == 0 { b"\n  " } else { b",\n  " };
            self.out.extend_from_slice(separator);
            self.out.extend_from_slice(&object.0);
            self.out.push(b'}');
        }
        self.out.extend_from_slice(b"\n ]");
    }

    fn name(&mut self, name: &str) {
        if !self.out.is_empty() {
            self.out.extend_from_slice(b",\n");
        }
        self.out
            .extend_from_slice(format!(" \"{name}\": ").as_bytes());
    }
}

/// An object on one line; [`Members::list`] writes its closing brace.
struct Object(Vec<u8>);

impl Object {
    fn new() -> Self {
        Self(b"{".to_vec())
    }

    fn raw(mut self, name: &str, value: impl Display) -> Self {
        let separator = if self.0.len() > 1 { "," } else { "" };
        let member = format!("{separator}\"{name}\":{value}");
        self.0.extend_from_slice(member.as_bytes());
        self
    }

    fn text(self, name: &str, value: &str) -> Self {
        self.raw(name, quoted(value))
    }

    fn texts<'a>(self, name: &str, values: impl Iterator<Item = &'a str>) -> Self {
        let values: Vec<String> = values.map(quoted).collect();
        self.raw(name, format!("[{}]", values.join(",")))
    }
}

fn quoted(text: &str) -> String {
    let mut escaped = Vec::with_capacity(text.len());
    Escape::Json.write(text.as_bytes(), &mut escaped);
    format!("\"{}\"", String::from_utf8_lossy(&escaped))
}

fn main(members: &mut Members<'_>, worker: &Worker) {
    let time = worker.local::<LocalTime>();
    let now = worker.clock.unix();
    let shared = &worker.shared;
    members.text("server-version", SERVER_VERSION);
    members.text("openssl-version", TLS_LIBRARY);
    members.text("current-time", &time.common(now));
    members.text("restart-time", &time.common(shared.started));
    members.raw(
        "uptime",
        now.as_secs().saturating_sub(shared.started.as_secs()),
    );
    match shared.generation {
        Some(generation) => members.raw("generation", generation),
        None => members.raw("generation", "null"),
    }
    members.raw("connections", shared.connections());
    members.raw("max-connections", shared.limits.max());
    members.raw("soft-connection-limit", shared.limits.soft());
    members.raw(
        "soft-connection-limit.min-age",
        shared.limits.soft_min_age().as_secs(),
    );
    members.raw("listeners", shared.listeners.load(Relaxed));
    members.raw("worker-threads", shared.workers.get().map_or(1, Vec::len));
    members.raw("num-sessions", total(worker, Counter::Sessions.name()));
}

fn events(members: &mut Members<'_>, worker: &Worker) {
    for name in names(EVENTS) {
        let value = match name.as_str() {
            "connections.idle" => connections(worker, "idle"),
            "connections.active" => connections(worker, "active"),
            "connections.shutdown" => connections(worker, "shutdown"),
            "temp-files.made" => worker.shared.temp_files.made(),
            "temp-files.octets-written" => worker.shared.temp_files.written(),
            "temp-files.write-failures" => worker.shared.temp_files.failures(),
            "temp-files.limit-reached" => worker.shared.temp_files.refusals(),
            name => total(worker, name),
        };
        members.raw(&name, value);
    }
}

/// Number of open connections in a state, whatever their protocol.
fn connections(worker: &Worker, state: &str) -> u64 {
    let counters = CONNECTIONS.iter().filter(|(_, found, _)| *found == state);
    counters
        .map(|(.., counter)| total(worker, counter.name()))
        .sum()
}

fn counters(
    members: &mut Members<'_>,
    groups: &'static [(&'static str, &'static str)],
    worker: &Worker,
) {
    for name in names(groups) {
        members.raw(&name, total(worker, &name));
    }
}

/// Writes the numbers of reloads of the configuration into the report.
fn reloads(members: &mut Members<'_>, worker: &Worker) {
    let reloads = &worker.shared.reloads;
    members.raw("reloads.succeeded", reloads.succeeded.load(Relaxed));
    members.raw("reloads.failed", reloads.failed.load(Relaxed));
    members.raw("reloads.retiring", reloads.retiring.load(Relaxed));
}

/// Writes every backend of every `proxy.reverse.url` into the report. `up` is null for a backend without health checks.
fn backends(members: &mut Members<'_>, site: &Site) {
    let listed = site.shared.get::<Upstreams>();
    let backends = listed.list().iter().flat_map(|listed| {
        let backends = listed.upstream.backends().iter().enumerate();
        backends.map(|(index, backend)| {
            let up = listed.upstream.is_up(index);
            Object::new()
                .text("url", &listed.upstream.url_text(index))
                .text("host", &listed.host)
                .text("path", &listed.path)
                .raw("weight", backend.weight)
                .raw("up", up.map_or("null".to_owned(), |up| up.to_string()))
        })
    });
    members.list("backends", backends);
}

/// Writes the counts by host and path that `metrics` has collected into the report; null if the directive is not used.
/// `errors` counts responses with a status 5xx.
fn paths(members: &mut Members<'_>, metrics: &Metrics) {
    let Some(collected) = &metrics.0 else {
        return members.raw("paths", "null");
    };
    let all = collected.series();
    let paths = all.iter().map(|series| {
        let server_errors = series.classes[4];
        Object::new()
            .text("host", &series.labels.host)
            .text("path", &series.labels.path)
            .raw("requests", series.classes.iter().sum::<u64>())
            .raw("errors", server_errors)
            .raw("micros", series.micros)
    });
    members.list("paths", paths);
}

/// Writes the certificates of the listeners into the report.
fn certificates(members: &mut Members<'_>, site: &Site, worker: &Worker) {
    let now = i64::try_from(worker.clock.unix().as_secs()).unwrap_or(i64::MAX);
    let list = site.shared.get::<Certificates>().list();
    let certificates = list.iter().map(|certificate| {
        let hosts: Vec<String> = certificate
            .hosts
            .iter()
            .map(HostName::to_authority)
            .collect();
        Object::new()
            .text("file", &certificate.file)
            .texts("names", certificate.names.iter().map(|name| &**name))
            .texts("hosts", hosts.iter().map(String::as_str))
            .texts(
                "listeners",
                certificate.listeners.iter().map(|name| &**name),
            )
            .raw("not-before", certificate.not_before)
            .raw("not-after", certificate.not_after)
            .raw("days-left", certificate.days_left(now))
    });
    members.list("certificates", certificates);
}

fn durations(members: &mut Members<'_>, stats: &DurationStats) {
    let collected = stats.0.as_ref();
    let values = collected.map(|collected| collected.percentiles());
    for (index, name) in NAMES.into_iter().enumerate() {
        let values = values.map_or([0; PERCENTILES.len()], |values| values[index]);
        for (percent, value) in PERCENTILES.into_iter().zip(values) {
            members.raw(&format!("{name}-{percent}"), value);
        }
    }
    let turns = collected.map(|collected| collected.turn_nanos());
    let turns: Vec<String> = turns.iter().flatten().map(u64::to_string).collect();
    members.raw(
        "evloop-latency-nanosec",
        format_args!("[{}]", turns.join(", ")),
    );
}

fn memory(members: &mut Members<'_>, worker: &Worker) {
    for name in POOLS {
        members.raw(name, 0);
    }
    if let Some(bytes) = resident() {
        members.raw("memory.resident-bytes", bytes);
    }
    members.raw("memory.temp-files-bytes", worker.shared.temp_files.used());
    let buffers = total(worker, Counter::BufferBytes.name());
    members.raw(Counter::BufferBytes.name(), buffers);
    let limit = buffers_limit(worker).map_or("null".to_owned(), |limit| limit.to_string());
    members.raw("memory.buffers-limit-bytes", limit);
    let scripts = total(worker, Counter::ScriptBytes.name());
    members.raw(Counter::ScriptBytes.name(), scripts);
}

/// The value of `max-memory` in bytes, if it is set.
pub(super) fn buffers_limit(worker: &Worker) -> Option<usize> {
    let workers = worker.shared.workers.get().map_or(1, Vec::len);
    worker.shared.buffers.memory_of(workers)
}

/// Resident memory of the process in bytes: the second number of `/proc/self/statm`, which counts pages (proc_pid_statm(5)).
/// Reading it needs no disk.
pub(super) fn resident() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size())
}

/// The sum of a counter over all workers; 0 if there is no such counter.
pub(super) fn total(worker: &Worker, name: &str) -> u64 {
    let Some(&counter) = Counter::ALL.iter().find(|counter| counter.name() == name) else {
        return 0;
    };
    match worker.shared.workers.get() {
        Some(workers) => workers
            .iter()
            .map(|worker| worker.counters.get(counter))
            .sum(),
        None => worker.counters.get(counter),
    }
}
