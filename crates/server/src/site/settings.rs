//! Settings of the process and of the HTTP/1 engine, with their directives.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use h2o_config::{Command, Directive, Error, Kinds, Levels, Node, Pass, Unit};
use h2o_exchange::{
    ConfiguredUser, KeepsServerField, PathCheck, PathChecks, PathNeed, RerouteLimits, Scope,
    ServerSoftware, TempFiles,
};
use rustix::thread::CapabilitySet;

use crate::budget::BudgetSettings;
use crate::site::http2_settings::Http2Settings;
use crate::site::quic_settings::{Http3Settings, QuicNodes};

/// Global settings of the server itself.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Value of the directive `user`.
    pub user: Option<Arc<str>>,
    /// Linux capabilities that the process keeps (`capabilities`); `None` for those of the user that the server runs as.
    pub capabilities: Option<CapabilitySet>,
    /// Value of the directive `pid-file`.
    pub pid_file: Option<PathBuf>,
    /// Value of the directive `error-log`: a path, or `| command`.
    pub error_log: Option<Arc<str>>,
    /// `num-threads`: one entry per worker, with the CPU to pin the worker to, if any. An empty list stands for one worker per
    /// online CPU.
    pub workers: Vec<Option<usize>>,
    /// Value of the directive `max-connections`.
    pub max_connections: usize,
    /// Value of the directive `max-quic-connections`; `None` if only `max-connections` limits QUIC connections.
    pub max_quic_connections: Option<usize>,
    /// Value of the directive `quic-nodes`; `None` if this server belongs to no fleet.
    pub quic_nodes: Option<Arc<QuicNodes>>,
    /// Value of the directive `num-quic-threads`; `None` if all workers serve QUIC.
    pub quic_workers: Option<usize>,
    /// Value of the directive `soft-connection-limit`.
    pub soft_connection_limit: usize,
    /// Value of the directive `soft-connection-limit.min-age`.
    pub soft_connection_min_age: Duration,
    /// Value of the directive `handshake-timeout`.
    pub handshake_timeout: Duration,
    /// Value of the directive `shutdown-timeout`; `None` for no limit.
    pub shutdown_timeout: Option<Duration>,
    /// Value of the directive `num-ocsp-updaters`.
    pub ocsp_updaters: usize,
    /// Value of the directive `shutdown-delay`.
    pub shutdown_delay: Duration,
    /// `tcp-fastopen`: how many connections may wait for the end of their TCP handshake; 0 turns TCP Fast Open off.
    pub tcp_fastopen: u32,
    /// Value of the directive `tcp-reuseport`.
    pub tcp_reuseport: bool,
    /// Value of the directive `server-name`; `None` for the built-in name.
    pub server_name: Option<Arc<str>>,
    /// Value of the directive `send-server-name`.
    pub send_server_name: bool,
    /// Value of the directive `send-informational`.
    pub send_informational: SendInformational,
    /// Value of the directive `temp-buffer-path`.
    pub temp_buffer_path: PathBuf,
    /// Value of `temp-buffer-threshold` in bytes; `None` if temporary files are never used.
    pub temp_buffer_threshold: Option<u64>,
    /// `temp-buffer-max-size`: largest size of one request body, in bytes.
    pub temp_buffer_max_size: u64,
    /// `temp-buffer-max-total`: largest size of all temporary files of the process together, in bytes.
    pub temp_buffer_max_total: u64,
    /// Value of the directive `max-spare-pipes`: number of unused pipes that each worker keeps.
    pub max_spare_pipes: usize,
    /// Values of the directives `connection-budget` and `connection-budget.per-second`.
    pub budget: BudgetSettings,
    /// `max-memory`: limit for the buffers of all connections, in bytes; `None` for no limit.
    pub max_memory: Option<u64>,
    /// Limits of the HTTP/1 engine.
    pub http1: h2o_http1::Settings,
    /// Values of the directives `http2-*`.
    pub http2: Http2Settings,
    /// Values of the directives `http3-*`.
    pub http3: Http3Settings,
}

/// Which clients get informational responses (1xx, RFC 9110 §15.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendInformational {
    /// HTTP/2 and HTTP/3 clients get informational responses; HTTP/1 clients only get `100 Continue`, for which they wait.
    ExceptHttp1,
    /// No client gets informational responses, except that HTTP/1 clients get `100 Continue`.
    None,
    /// Clients of all versions from HTTP/1.1 on get informational responses.
    All,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            user: None,
            capabilities: None,
            pid_file: None,
            error_log: None,
            workers: Vec::new(),
            max_connections: 1024,
            max_quic_connections: None,
            quic_nodes: None,
            quic_workers: None,
            soft_connection_limit: i32::MAX as usize,
            soft_connection_min_age: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            shutdown_timeout: None,
            ocsp_updaters: 10,
            shutdown_delay: Duration::ZERO,
            tcp_fastopen: 4096,
            tcp_reuseport: false,
            server_name: None,
            send_server_name: true,
            send_informational: SendInformational::ExceptHttp1,
            temp_buffer_path: "/tmp".into(),
            temp_buffer_threshold: Some(32 << 20),
            temp_buffer_max_size: 1 << 30,
            temp_buffer_max_total: TempFiles::DEFAULT_LIMIT,
            max_spare_pipes: 0,
            budget: BudgetSettings::default(),
            max_memory: Some(default_max_memory()),
            http1: h2o_http1::Settings::default(),
            http2: Http2Settings::default(),
            http3: Http3Settings::default(),
        }
    }
}

/// The default of `max-memory`: half of the machine's memory, or 1 GiB if its size is unknown.
fn default_max_memory() -> u64 {
    let info = nix::sys::sysinfo::sysinfo();
    info.map_or(1 << 30, |info| info.ram_total() / 2)
}

impl ServerSettings {
    /// Largest number of bytes that the temporary files may have together: 0 with `temp-buffer-threshold: OFF`.
    #[must_use]
    pub fn temp_buffer_limit(&self) -> u64 {
        let limit = self.temp_buffer_threshold;
        limit.map_or(0, |_| self.temp_buffer_max_total)
    }

    /// Value of the `server` field of responses; `None` if it is not sent.
    #[must_use]
    pub(super) fn server_field(&self) -> Option<Box<[u8]>> {
        let name = self.server_name.as_deref();
        let name = name.unwrap_or(concat!("h2o/", env!("CARGO_PKG_VERSION")));
        (self.send_server_name && !name.is_empty()).then(|| name.as_bytes().into())
    }
}

/// Returns one entry per worker, with the CPU that the worker is pinned to, if any.
#[must_use]
pub fn worker_plan(settings: &ServerSettings) -> Vec<Option<usize>> {
    if settings.workers.is_empty() {
        let online = std::thread::available_parallelism().map_or(1, usize::from);
        return vec![None; online];
    }
    settings.workers.clone()
}

pub(crate) fn seconds(node: &Node) -> Result<Duration, Error> {
    // A longer time counts as a year, so that sums of times cannot overflow.
    const YEAR: u64 = 31_536_000;
    let seconds: u64 = node.quantity(Unit::Seconds, "%lu", 0..=u64::MAX)?;
    Ok(Duration::from_secs(seconds.min(YEAR)))
}

/// Reads a limit of internal redirects. More than a thousand count as a thousand, which ends endless redirects in time.
fn redirect_limit(node: &Node) -> Result<u32, Error> {
    let count: u32 = node.integer("%u", 0..=u64::from(u32::MAX))?;
    Ok(count.min(1000))
}

/// Notes the check that the directory of the file `path` exists; the file itself is created when the server starts.
fn check_parent(scope: &mut Scope, command: &Command<'_>, path: &str) {
    let check = PathCheck::new(command, command.node, Path::new(path), PathNeed::Parent);
    scope.shared.edit::<PathChecks>().0.push(check);
}

pub(crate) fn settings(scope: &mut Scope) -> &mut ServerSettings {
    scope.edit()
}

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[
    Directive::global(
        "user",
        "NAME",
        "`nobody` when started as root",
        "User to run as once ports and logs are open.",
        |scope, command| {
            let name = command.node.scalar()?;
            if crate::site::users::find_user(name).is_none() {
                return Err(command.error(format!("user:{name} does not exist")));
            }
            settings(scope).user = Some(name.into());
            scope.shared.edit::<ConfiguredUser>().0 = Some(name.into());
            Ok(())
        },
    ),
    Directive::global(
        "pid-file",
        "PATH",
        "none",
        "File to write the process id to; removed at exit. It is opened with the rights of the starting user, so it can be in `/run`.",
        |scope, command| {
            let path = command.node.scalar()?;
            settings(scope).pid_file = Some(path.into());
            check_parent(scope, command, path);
            Ok(())
        },
    ),
    Directive::global(
        "error-log",
        "PATH, or `| COMMAND`",
        "standard error",
        "Where the server's messages go. A command is run by `/bin/sh -c` with the log on its standard input.",
        |scope, command| {
            let target = command.node.scalar()?;
            settings(scope).error_log = Some(target.into());
            if !target.starts_with('|') {
                check_parent(scope, command, target);
            }
            Ok(())
        },
    ),
    Directive {
        name: "num-threads",
        levels: Levels::GLOBAL_ONLY,
        pass: Pass::Settings,
        kinds: Kinds::SCALAR.or(Kinds::SEQUENCE),
        value: "COUNT, or a sequence of CPU numbers and ranges such as `2-5`",
        default: "number of online CPUs",
        help: "Number of worker threads. With a sequence, there is a thread for each CPU that is named, and it runs on that CPU \
               only.",
        apply: num_threads,
    },
    Directive::global(
        "max-connections",
        "NUMBER",
        "1024",
        "Largest number of open connections. Further clients wait in the accept queue of the kernel.",
        |scope, command| {
            settings(scope).max_connections =
                command.node.integer("%zu", 1..=u64::from(u32::MAX))?;
            Ok(())
        },
    ),
    Directive::global(
        "soft-connection-limit",
        "NUMBER",
        "2147483647",
        "Above this number of connections, idle ones are closed when a new one is accepted, oldest first.",
        |scope, command| {
            settings(scope).soft_connection_limit =
                command.node.integer("%zu", 0..=u64::from(u32::MAX))?;
            Ok(())
        },
    ),
    Directive::global(
        "soft-connection-limit.min-age",
        "SECONDS",
        "30",
        "Idle connections younger than this are not closed by `soft-connection-limit`.",
        |scope, command| {
            settings(scope).soft_connection_min_age = seconds(command.node)?;
            Ok(())
        },
    ),
    Directive::global(
        "handshake-timeout",
        "SECONDS",
        "10",
        "How long the PROXY header and the TLS handshake may take together; then the connection is closed.",
        |scope, command| {
            let limit = seconds(command.node)?;
            let text = "with `0`, TLS handshakes that need more than one packet of the client fail";
            scope.warn_of_no_time(command, limit, text);
            settings(scope).handshake_timeout = limit;
            Ok(())
        },
    ),
    Directive::global(
        "shutdown-timeout",
        "SECONDS",
        "0",
        "How long a graceful shutdown (TERM) may take. Then the remaining connections are closed, downloads and tunnels among \
         them. `0`: no limit.",
        |scope, command| {
            settings(scope).shutdown_timeout = match seconds(command.node)? {
                Duration::ZERO => None,
                limit => Some(limit),
            };
            Ok(())
        },
    ),
    Directive::global(
        "num-ocsp-updaters",
        "NUMBER",
        "10",
        "How many OCSP responses are fetched at the same time.",
        |scope, command| {
            settings(scope).ocsp_updaters = command.node.integer("%zu", 1..=u64::MAX)?;
            Ok(())
        },
    ),
    Directive::global(
        "shutdown-delay",
        "SECONDS",
        "0",
        "How long the server goes on as before after TERM, while the probe `health: READY` is already answered with 503, so that \
         balancers send no more connections. The graceful shutdown follows.",
        |scope, command| {
            settings(scope).shutdown_delay = seconds(command.node)?;
            Ok(())
        },
    ),
    Directive::global(
        "limit-request-body",
        "BYTES",
        "1073741824",
        "Largest request body accepted. A larger one is answered with 413 over HTTP/1, and over HTTP/3 if its length was announced. \
         Otherwise, and over HTTP/2 in any case, its stream is reset.",
        |scope, command| {
            settings(scope).http1.limit_request_body =
                command.node.quantity(Unit::Bytes, "%zu", 0..=u64::MAX)?;
            Ok(())
        },
    ),
    Directive::global(
        "max-delegations",
        "NUMBER",
        "5",
        "How often the server may answer one request by another resource: by an error document, by the target of an internal \
         redirect (`x-reproxy-url`, `redirect` with `internal: YES`, and the redirects that these lead to), or by what a script \
         gets from `H2O.reprocess`. From the first of these on, all that `max-reprocesses` counts is counted here instead. A \
         request that needs more gets 502. Numbers above 1000 count as 1000.",
        |scope, command| {
            scope.edit::<RerouteLimits>().delegations = redirect_limit(command.node)?;
            Ok(())
        },
    ),
    Directive::global(
        "max-reprocesses",
        "NUMBER",
        "5",
        "How often one request may be passed on before `max-delegations` begins to count. Each `rewrite`, each redirect by \
         `file.try-files` and each forwarding to a backend of `proxy.reverse.url` counts as one; with `0`, every \
         `proxy.reverse.url` answers 502. A request that needs more gets 502. Numbers above 1000 count as \
         1000.",
        |scope, command| {
            scope.edit::<RerouteLimits>().reprocesses = redirect_limit(command.node)?;
            Ok(())
        },
    ),
    Directive::global(
        "tcp-fastopen",
        "NUMBER",
        "4096",
        "Queue length of TCP Fast Open; `0` turns it off. If the kernel refuses it, there is a warning.",
        |scope, command| {
            settings(scope).tcp_fastopen = command.node.integer("%u", 0..=65_535)?;
            Ok(())
        },
    ),
    Directive::global(
        "tcp-reuseport",
        "ON|OFF",
        "OFF",
        "Whether each worker has a listening socket of its own (`SO_REUSEPORT`) in place of a shared one. Two processes can \
         then listen on the same port.",
        |scope, command| {
            settings(scope).tcp_reuseport = command.node.on_off()?;
            Ok(())
        },
    ),
    Directive::global(
        "server-name",
        "TEXT",
        "h2o/VERSION",
        "Value of the `server` response header. Empty: no such header.",
        |scope, command| {
            let name = command.node.scalar()?;
            if name.bytes().any(|byte| byte.is_ascii_control()) {
                return Err(command.error("a field value cannot have control characters"));
            }
            settings(scope).server_name = Some(name.into());
            scope.edit::<ServerSoftware>().name = Some(name.into());
            Ok(())
        },
    ),
    Directive {
        name: "send-server-name",
        levels: Levels::GLOBAL_ONLY,
        pass: Pass::Content,
        kinds: Kinds::SCALAR,
        value: "ON|OFF|preserve",
        default: "ON",
        help: "Whether the `server` response header is sent. `preserve`: it is sent only if a backend's response has it.",
        apply: |scope, command| {
            let word = command.node.one_of(&["OFF", "ON", "preserve"])?;
            settings(scope).send_server_name = word == 1;
            scope.edit::<KeepsServerField>().0 = word == 2;
            scope.edit::<ServerSoftware>().is_hidden = word != 1;
            Ok(())
        },
    },
    Directive {
        name: "send-informational",
        levels: Levels::GLOBAL_ONLY,
        pass: Pass::Settings,
        kinds: Kinds::SCALAR,
        value: "except-h1|none|all",
        default: "except-h1",
        help: "Which clients get informational responses (1xx): all but those of HTTP/1, none, or all. A request with the header \
               `no-early-hints: 1` gets none. `100 Continue` is sent over HTTP/1 in any case.",
        apply: |scope, command| {
            settings(scope).send_informational =
                match command.node.one_of(&["except-h1", "none", "all"])? {
                    0 => SendInformational::ExceptHttp1,
                    1 => SendInformational::None,
                    _ => SendInformational::All,
                };
            Ok(())
        },
    },
    Directive::global(
        "temp-buffer-path",
        "DIRECTORY",
        "/tmp",
        "The directory for temporary files: large request bodies while they are collected, and large responses of backends for slow \
         clients. The user that the server runs as must be able to write there. The files have no names, so that none is left behind.",
        |scope, command| {
            let path = command.node.scalar()?;
            if path.len() >= 242 {
                return Err(command
                    .error("path is too long")
                    .with_hint("write a path of at most 241 bytes"));
            }
            settings(scope).temp_buffer_path = path.into();
            Ok(())
        },
    ),
    Directive::global(
        "temp-buffer-max-size",
        "BYTES",
        "1073741824",
        "Not in H2O: the largest request body that is collected before its handler runs; a larger one is answered with 413. \
         Bodies that are streamed to their handler are limited by `limit-request-body` alone.",
        |scope, command| {
            settings(scope).temp_buffer_max_size =
                command.node.quantity(Unit::Bytes, "%zu", 0..=u64::MAX)?;
            Ok(())
        },
    ),
    max_spare_pipes("max-spare-pipes"),
    max_spare_pipes("proxy.max-spare-pipes"),
    Directive::global(
        "temp-buffer-threshold",
        "BYTES|OFF",
        "33554432",
        "Request bodies of this size or more are kept in a temporary file while they are collected. The smallest value is 1048576. \
         `OFF`: they are kept in memory, and the server makes no temporary files for responses either.",
        |scope, command| {
            settings(scope).temp_buffer_threshold =
                if command.node.scalar()?.eq_ignore_ascii_case("OFF") {
                    None
                } else {
                    let bytes: u64 = command.node.quantity(Unit::Bytes, "%zu", 0..=u64::MAX)?;
                    if bytes < 1_048_576 {
                        return Err(command
                            .error("threshold is too low (must be >= 1048576; OFF to disable)"));
                    }
                    Some(bytes)
                };
            Ok(())
        },
    ),
    Directive::global(
        "temp-buffer-max-total",
        "BYTES",
        "8589934592",
        "Not in H2O: how large all temporary files may be together. At the limit the server reads the responses of backends only as \
         fast as slow clients take them, and answers a request whose body needs a file with 503.",
        |scope, command| {
            settings(scope).temp_buffer_max_total =
                command.node.quantity(Unit::Bytes, "%zu", 0..=u64::MAX)?;
            Ok(())
        },
    ),
    Directive::global(
        "connection-budget",
        "UNITS",
        "2000",
        "Not in H2O: protection against abuse. Each connection begins with this number of units and is closed when none are left. A \
         read of less than 256 bytes that completes no message or frame costs 1 unit. A request that is answered with status 400 \
         or above, by this server or by a backend, costs 5: so a client may get some 400 times 404 at once by default. Any other \
         request restores 2 units, and 2048 bytes of response bodies restore 1. Frames of HTTP/2 and HTTP/3 that serve nothing \
         cost units, too ([table for HTTP/2](http2.md#limits-and-protection)).",
        |scope, command| {
            settings(scope).budget.units = command.node.integer("%u", 10..=1_000_000_000)?;
            Ok(())
        },
    ),
    Directive::global(
        "connection-budget.per-second",
        "UNITS",
        "100",
        "Not in H2O: units of `connection-budget` that are restored per second.",
        |scope, command| {
            settings(scope).budget.per_second = command.node.integer("%u", 0..=1_000_000)?;
            Ok(())
        },
    ),
    Directive::global(
        "max-memory",
        "BYTES|OFF",
        "half of the machine's memory",
        "Not in H2O: how much memory may be used for the buffers of all connections (headers, request bodies, output that clients \
         do not read; with QUIC also handshakes and data that is not acknowledged) and by scripts, together. Above 7/8 of this \
         limit new requests get 503; above the limit the server closes connections, first those that hold the most memory. Scripts \
         get at most half of the limit (see `mruby.memory-limit`).",
        |scope, command| {
            settings(scope).max_memory = if command.node.scalar()?.eq_ignore_ascii_case("OFF") {
                None
            } else {
                Some(
                    command
                        .node
                        .quantity(Unit::Bytes, "%zu", 1_048_576..=u64::MAX)?,
                )
            };
            Ok(())
        },
    ),
    Directive::global(
        "http1-request-timeout",
        "SECONDS",
        "10",
        "Time from the end of a response, or the start of the connection, until the header block of the next request is complete. So an idle connection is closed after this time.",
        |scope, command| {
            let limit = seconds(command.node)?;
            let text =
                "with `0`, requests whose header block comes in several packets are not answered";
            scope.warn_of_no_time(command, limit, text);
            settings(scope).http1.request_timeout = limit;
            Ok(())
        },
    ),
    Directive::global(
        "http1-request-io-timeout",
        "SECONDS",
        "5",
        "How long a client may be silent within a request that has begun, or take nothing of a response that is being written.",
        |scope, command| {
            let limit = seconds(command.node)?;
            let text = "with `0`, requests that come in several packets are not answered";
            scope.warn_of_no_time(command, limit, text);
            settings(scope).http1.io_timeout = limit;
            Ok(())
        },
    ),
    Directive::global(
        "http1-upgrade-to-http2",
        "ON|OFF",
        "ON",
        "Whether clear-text HTTP/1 connections may become HTTP/2 ones: by `Upgrade: h2c`, or by prior knowledge (the connection begins \
         with the preface of HTTP/2). `OFF`: an `Upgrade: h2c` is ignored and the request served over HTTP/1; a preface of HTTP/2 is \
         answered with 400.",
        |scope, command| {
            settings(scope).http1.upgrade_to_http2 = command.node.on_off()?;
            Ok(())
        },
    ),
    Directive::global(
        "http1-strict",
        "ON|OFF",
        "OFF",
        "Not in H2O: whether HTTP/1.1 requests without `Host`, and line ends in the header block that are not CR LF, are \
         refused as well.",
        |scope, command| {
            settings(scope).http1.strict = command.node.on_off()?;
            Ok(())
        },
    ),
];

const fn max_spare_pipes(name: &'static str) -> Directive<Scope> {
    Directive::global(
        name,
        "NUMBER",
        "0",
        "Number of unused pipes that each thread keeps open for `proxy.zerocopy`; the process never has more than 200 pipes. \
         `max-spare-pipes` and `proxy.max-spare-pipes` are names of one setting.",
        |scope, command| {
            settings(scope).max_spare_pipes = command.node.integer("%zu", 0..=u64::MAX)?;
            Ok(())
        },
    )
}

fn num_threads(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    const INVALID: &str = "Invalid CPU number: CPUs must be specified as a non-negative number or as a range of non-negative numbers";
    let workers = &mut settings(scope).workers;
    workers.clear();
    let Some(items) = command.node.as_sequence() else {
        if command.node.as_str() == Some("0") {
            return Err(command.error("num-threads must be >=1"));
        }
        let count: usize = command.node.integer("%zu", 1..=4096).map_err(|error| {
            if command.node.as_str() == Some("auto") {
                return error.with_hint("leave the directive out for one thread per CPU");
            }
            error
        })?;
        workers.resize(count, None);
        return Ok(());
    };
    for item in items {
        let text = item.as_str().ok_or_else(|| item.error(INVALID))?;
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| {
            text.parse::<usize>()
                .ok()
                .filter(|cpu| *cpu < 4096 && text.bytes().all(|byte| byte.is_ascii_digit()))
        };
        let (Some(first), Some(last)) = (number(first), number(last)) else {
            return Err(item.error(INVALID));
        };
        if first > last {
            return Err(item.error(INVALID));
        }
        workers.extend((first..=last).map(Some));
    }
    if workers.is_empty() {
        return Err(command.error("num-threads must be >=1"));
    }
    Ok(())
}
