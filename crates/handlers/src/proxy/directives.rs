//! The directives of the reverse proxy.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use h2o_config::{Attribute, Command, Directive, Error, Kinds, Levels, Node, Pass, Unit};
use h2o_exchange::{Resource, Resources, Scope};
use h2o_http::Scheme;
use h2o_tls::{TlsClient, TlsClientError};
use h2o_upstream::Upstream;

use super::backends::{self, BackendSpec, Backends};
use super::handler::ProxyHandler;
use super::health_policy;
use super::settings::{ProxySettings, TlsRules};
use super::upstreams::Upstreams;
use crate::header::{self, Verb};
use crate::time_limit::{milliseconds, time_limit};

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[
    Directive {
        name: "proxy.reverse.url",
        levels: Levels::PATH,
        pass: Pass::Content,
        kinds: Kinds::ANY.with_attributes(&backends::ATTRIBUTES),
        value: "URL; a sequence of URLs and mappings as in `backends` below; or a mapping",
        default: "",
        help: "Forwards requests to a backend. URLs are `http://HOST[:PORT][/PATH]` or `https://`; the host may be \
               `[unix:/path/of/socket]`. The rest of the request path is appended to the path of the URL. See [the page on the \
               proxy](proxy.md).",
        apply: reverse,
    },
    Directive::setting(
        "proxy.preserve-host",
        "ON|OFF",
        "OFF",
        "Whether backends get the host that the client asked for, in place of the host of their URL.",
        |scope, command| {
            settings(scope).request.preserve_host = command.node.on_off()?;
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.timeout.io",
        "MILLISECONDS",
        "30000",
        "Longest time without progress while a request is sent or a response is received. Also sets \
         `proxy.timeout.connect` and `proxy.timeout.first_byte`, unless they are set at the same level.",
        |scope, command| {
            let limit = time_limit(scope, command)?;
            settings(scope).timeouts.set_io(command.level, limit);
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.timeout.connect",
        "MILLISECONDS",
        "`proxy.timeout.io`",
        "How long connecting may take: the look-up of the name, all attempts and the TLS handshake together.",
        |scope, command| {
            let limit = time_limit(scope, command)?;
            settings(scope).timeouts.set_connect(command.level, limit);
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.timeout.first_byte",
        "MILLISECONDS",
        "`proxy.timeout.io`",
        "How long the first byte of a response may take once the request is sent.",
        |scope, command| {
            let limit = time_limit(scope, command)?;
            let timeouts = &mut settings(scope).timeouts;
            timeouts.set_first_byte(command.level, limit);
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.timeout.keepalive",
        "MILLISECONDS",
        "2000",
        "How long an idle connection to a backend is kept; `0`: not at all. Set it below the keep-alive timeout of the \
         backend, which may otherwise close a connection just as a request is sent.",
        |scope, command| {
            settings(scope).timeouts.keepalive = milliseconds(command)?;
            Ok(())
        },
    ),
    Directive {
        kinds: Kinds::ANY.with_attributes(&health_policy::HEALTH_CHECK),
        ..Directive::setting(
            "proxy.health-check",
            "OFF|ON, or a mapping",
            "OFF",
            "Not in H2O: each backend is checked by a request at regular intervals; a backend that several times in a row (`fall`) \
             does not respond with 2xx or 3xx gets no requests until it has done so again (`rise`). A backend of \
             `proxy.reverse.url` can have a `health-check` of its own. Also switches `proxy.passive-health-check` and \
             `proxy.retry` on, unless they are set. `ON` stands for the defaults.",
            |scope, command| {
                let check = health_policy::health_check(command.node)?;
                settings(scope).checks.active = check;
                Ok(())
            },
        )
    },
    Directive {
        kinds: Kinds::ANY.with_attributes(&health_policy::PASSIVE_CHECK),
        ..Directive::setting(
            "proxy.passive-health-check",
            "OFF|ON, or a mapping",
            "`ON` for the backends that `proxy.health-check` checks",
            "Not in H2O: a backend that several requests in a row could not connect to, or got no response from, gets no requests \
             for a pause. After the pause, one request at a time is sent to it until one is answered. `ON` stands for the \
             defaults.",
            |scope, command| {
                let check = health_policy::passive_check(command.node)?;
                settings(scope).checks.passive = Some(check);
                Ok(())
            },
        )
    },
    Directive {
        kinds: Kinds::ANY.with_attributes(&health_policy::RETRY),
        ..Directive::setting(
            "proxy.retry",
            "OFF|ON, or a mapping",
            "`ON` where backends are checked, actively or passively",
            "Not in H2O: a request that got no response is retried if nothing of it was sent, or if its method is idempotent \
             and its body was not streamed, or was kept for `reproxy`. `ON` stands for the defaults.",
            |scope, command| {
                let retry = health_policy::retry(command.node)?;
                settings(scope).checks.retry = Some(retry);
                Ok(())
            },
        )
    },
    edit(
        "proxy.header.add",
        header::LINES,
        "Adds the header to requests to the backend, also if they have one of that name.",
        |scope, command| add_edits(scope, command, Verb::Add),
    ),
    edit(
        "proxy.header.append",
        header::LINES,
        "Appends the value to the first header of that name in the request to the backend, after a comma; adds the header if there \
         is none.",
        |scope, command| add_edits(scope, command, Verb::Append),
    ),
    edit(
        "proxy.header.merge",
        header::LINES,
        "As `proxy.header.append`, but does nothing if the value is already an element of the first header of that \
         name.",
        |scope, command| add_edits(scope, command, Verb::Merge),
    ),
    edit(
        "proxy.header.set",
        header::LINES,
        "Replaces all headers of that name in the request to the backend by this one. `host` sets the host of the request to the \
         backend.",
        |scope, command| add_edits(scope, command, Verb::Set),
    ),
    edit(
        "proxy.header.setifempty",
        header::LINES,
        "Adds the header if the request to the backend has none of that name.",
        |scope, command| add_edits(scope, command, Verb::SetIfEmpty),
    ),
    edit(
        "proxy.header.unset",
        header::NAMES,
        "Removes all headers of these names from the request to the backend.",
        |scope, command| add_edits(scope, command, Verb::Unset),
    ),
    edit(
        "proxy.header.unsetunless",
        header::NAMES,
        "Removes all headers but those of these names from the request to the backend.",
        |scope, command| add_edits(scope, command, Verb::UnsetUnless),
    ),
    edit(
        "proxy.header.cookie.unset",
        header::COOKIES,
        "Removes the cookies of these names from the `cookie` headers of requests to backends.",
        |scope, command| add_edits(scope, command, Verb::CookieUnset),
    ),
    edit(
        "proxy.header.cookie.unsetunless",
        header::COOKIES,
        "Removes all cookies but those of these names from the `cookie` headers of requests to backends.",
        |scope, command| add_edits(scope, command, Verb::CookieUnsetUnless),
    ),
    Directive::global(
        "proxy.emit-x-forwarded-headers",
        "ON|OFF",
        "ON",
        "Whether requests to backends get `x-forwarded-proto` and `x-forwarded-for`.",
        |scope, command| {
            settings(scope).request.emit_x_forwarded = command.node.on_off()?;
            Ok(())
        },
    ),
    Directive::global(
        "proxy.preserve-x-forwarded-proto",
        "ON|OFF",
        "OFF",
        "Whether the client's `x-forwarded-proto` is forwarded in place of the server's own.",
        |scope, command| {
            let preserves = command.node.on_off()?;
            settings(scope).request.preserve_x_forwarded_proto = preserves;
            Ok(())
        },
    ),
    Directive::global(
        "proxy.emit-via-header",
        "ON|OFF",
        "ON",
        "Whether requests to backends get a `via` entry of this server.",
        |scope, command| {
            settings(scope).request.emit_via = command.node.on_off()?;
            Ok(())
        },
    ),
    Directive::global(
        "proxy.emit-missing-date-header",
        "ON|OFF",
        "ON",
        "Whether responses of a backend that have no `date` header get one.",
        |scope, command| {
            settings(scope).response.emit_missing_date = command.node.on_off()?;
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.ssl.verify-peer",
        "ON|OFF",
        "ON",
        "Whether the certificates of `https` backends are verified.",
        |scope, command| {
            let verify_peer = command.node.on_off()?;
            settings(scope).edit_tls(|rules| rules.verify_peer = verify_peer);
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.ssl.cafile",
        "FILE",
        "those that the system trusts",
        "A file with certificates (PEM). An `https` backend is trusted if its certificate was issued by an authority in this \
         file, or is itself in this file.",
        |scope, command| {
            let file = PathBuf::from(command.node.scalar()?);
            let rules = TlsRules {
                ca_file: Some(file.clone()),
                ..TlsRules::default()
            };
            rules
                .client()
                .map_err(|error| unreadable(command, &error))?;
            settings(scope).edit_tls(|rules| rules.ca_file = Some(file));
            Ok(())
        },
    ),
    Directive {
        kinds: Kinds::ANY.with_attributes(&SESSION_CACHE),
        ..Directive::setting(
            "proxy.ssl.session-cache",
            "ON|OFF, or a mapping",
            "ON",
            "Whether TLS sessions with backends are kept to be resumed; `ON` stands for a lifetime of 86400 seconds and \
             a capacity of 4096 sessions.",
            |scope, command| {
                let cache = session_cache(command.node)?;
                settings(scope).edit_tls(|rules| rules.session_cache = cache);
                Ok(())
            },
        )
    },
    Directive::setting(
        "proxy.proxy-protocol",
        "ON|OFF",
        "OFF",
        "Whether connections to backends begin with a PROXY protocol line (version 1) that has the client's address. Needs \
         `proxy.timeout.keepalive: 0`.",
        |scope, command| {
            settings(scope).proxy_protocol = command.node.on_off()?;
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.tunnel",
        "ON|OFF",
        "OFF",
        "Whether upgrades to other protocols, such as WebSocket, and CONNECT are forwarded.",
        |scope, command| {
            settings(scope).tunnels = command.node.on_off()?;
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.expect",
        "OFF|ON|FORWARD",
        "OFF",
        "`ON`: requests with a body are sent with `expect: 100-continue`, and the body once the backend has answered. \
         `FORWARD`: the client's `expect: 100-continue` is forwarded, and so is the 100 of the backend, as far as \
         `send-informational` allows; the proxy has to be the first handler of its path.",
        |scope, command| {
            let word = command.node.one_of(&["OFF", "ON", "FORWARD"])?;
            let settings = settings(scope);
            settings.expects_continue = word == 1;
            settings.request.forwards_expectations = word == 2;
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.forward.close-connection",
        "ON|OFF",
        "OFF",
        "Whether `connection: close` of the backend also closes the client's connection (HTTP/1).",
        |scope, command| {
            settings(scope).response.forward_close = command.node.on_off()?;
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.max-buffer-size",
        "BYTES",
        "",
        "How many bytes of a response are buffered for a client that is slower than the backend, apart from some 64 KiB on their \
         way to the client. At the limit the server stops reading from the backend until the client has taken more. If this is not \
         set, 256 KiB of each response are buffered in memory, and up to `proxy.max-temp-file-size` in a temporary file.",
        |scope, command| {
            let size = command.node.quantity(Unit::Bytes, "%zu", 0..=u64::MAX)?;
            if size == 0 {
                return Err(command
                    .error("proxy.buffer_size must be a positive value")
                    .with_hint("leave it out to buffer in memory and in temporary files"));
            }
            settings(scope).max_buffer_size = Some(size);
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.max-temp-file-size",
        "BYTES",
        "1073741824",
        "Not in H2O: how many bytes of a response are buffered for a slow client in a temporary file in `temp-buffer-path`. At the \
         limit the server stops reading from the backend until the client has taken more. `0`: no temporary files. Has no effect \
         where `proxy.max-buffer-size` is set.",
        |scope, command| {
            let size = command.node.quantity(Unit::Bytes, "%zu", 0..=u64::MAX)?;
            settings(scope).max_temp_file_size = size;
            Ok(())
        },
    ),
    Directive::global(
        "proxy.zerocopy",
        "OFF|ON|ALWAYS",
        "ON",
        "Large bodies of responses are moved within the kernel (`splice`) from the backend's socket to the client's, if both \
         connections are HTTP/1 in clear text and the length of the body is known. `ALWAYS` is the same as `ON`: with TLS or \
         HTTP/2 the server has to process the data itself.",
        |scope, command| {
            settings(scope).zerocopy = command.node.one_of(&["OFF", "ON", "ALWAYS"])? != 0;
            Ok(())
        },
    ),
    Directive::global(
        "num-name-resolution-threads",
        "NUMBER",
        "32",
        "Largest number of host names that are looked up at a time, each by a thread of its own; `1` means 2. Further look-ups \
         wait. At most half of the threads look up names that come with requests and responses, such as the targets of CONNECT.",
        |scope, command| {
            let count: u32 = command.node.integer("%zu", 0..=u32::MAX.into())?;
            if count == 0 {
                return Err(command.error("num-name-resolution-threads must be >=1"));
            }
            let resources = scope.shared.edit::<Resources>();
            resources.add(command.error(""), Arc::new(ResolverThreads(count)));
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.http2.ratio",
        "0 to 100",
        "",
        "Percentage of requests that are sent over HTTP/2. If it is not set, `https` backends choose by ALPN and `http` \
         backends get HTTP/1.",
        |scope, command| {
            let percentage = ratio(command)?;
            settings(scope).http2_ratio = Some(percentage);
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.http2.force-cleartext",
        "ON|OFF",
        "OFF",
        "Whether `http` backends get HTTP/2 with prior knowledge. Needs `proxy.http2.ratio: 100`.",
        |scope, command| {
            settings(scope).http2_force_cleartext = command.node.on_off()?;
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.http2.max-concurrent-streams",
        "NUMBER",
        "100",
        "How many requests an HTTP/2 or HTTP/3 connection to a backend may have at the same time; the next request gets another \
         connection.",
        max_streams,
    ),
    Directive::setting(
        "proxy.http2.max-concurrent_streams",
        "NUMBER",
        "100",
        "The old name of `proxy.http2.max-concurrent-streams`.",
        |scope, command| {
            deprecated(
                scope,
                command,
                "proxy.http2.max-concurrent-streams (notice `-` and `_`)",
            );
            max_streams(scope, command)
        },
    ),
    Directive::setting(
        "proxy.http3.ratio",
        "0 to 100",
        "0",
        "Percentage of requests that are sent over HTTP/3, at most 100 together with `proxy.http2.ratio`. If no QUIC connection \
         can be opened, they are sent over HTTP/2 or HTTP/1, and QUIC is not tried again for 10 seconds to 10 minutes. \
         Without effect for `http` backends.",
        |scope, command| {
            let percentage = ratio(command)?;
            settings(scope).http3_ratio = percentage;
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.http3.ecn",
        "ON|OFF",
        "ON",
        "Whether QUIC packets to backends are marked for explicit congestion notification (ECN).",
        |scope, command| {
            settings(scope).http3_ecn = command.node.on_off()?;
            Ok(())
        },
    ),
];

/// Creates one of the directives `proxy.header.*`. At extension level such a directive is accepted without effect, like
/// other settings of the proxy: handlers there cannot be proxies.
const fn edit(
    name: &'static str,
    value: &'static str,
    help: &'static str,
    apply: fn(&mut Scope, &Command<'_>) -> Result<(), Error>,
) -> Directive<Scope> {
    Directive {
        levels: Levels::ALL,
        ..header::directive(name, value, help, apply)
    }
}

/// The setting of `num-name-resolution-threads`. It is applied to the process once the whole configuration was checked.
struct ResolverThreads(u32);

impl Resource for ResolverThreads {
    fn open(&self) -> Result<(), String> {
        h2o_upstream::limit_threads(self.0);
        Ok(())
    }
}

fn settings(scope: &mut Scope) -> &mut ProxySettings {
    scope.edit()
}

fn ratio(command: &Command<'_>) -> Result<u8, Error> {
    let percentage: u64 = command.node.integer("%hhd", 0..=u64::MAX)?;
    u8::try_from(percentage)
        .ok()
        .filter(|percentage| *percentage <= 100)
        .ok_or_else(|| command.error(format!("{} must be between 0 and 100", command.name)))
}

fn max_streams(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    settings(scope).http2_max_streams = command.node.integer("%u", 1..=u32::MAX.into())?;
    Ok(())
}

fn deprecated(scope: &mut Scope, command: &Command<'_>, successor: &str) {
    let text = format!("the command is deprecated; use {successor}");
    scope.warn(&command.error(text));
}

/// Adds the changes of a `proxy.header.*` directive. Its attribute `when` is ignored, because a request has only one
/// list of fields.
fn add_edits(scope: &mut Scope, command: &Command<'_>, verb: Verb) -> Result<(), Error> {
    let (edits, _) = header::read(command, verb)?;
    settings(scope).request.edits.extend(edits);
    Ok(())
}

const SESSION_CACHE: [Attribute; 2] = [
    Attribute::required(
        "lifetime",
        Kinds::SCALAR,
        "SECONDS",
        "How long a session can be resumed.",
    ),
    Attribute::required(
        "capacity",
        Kinds::SCALAR,
        "NUMBER",
        "How many sessions are kept at most.",
    ),
];

fn session_cache(node: &Node) -> Result<Option<(Duration, usize)>, Error> {
    if node.as_sequence().is_some() {
        return Err(node.error("node must be a scalar or a mapping"));
    }
    if node.as_str().is_some() {
        return match node.one_of(&["OFF", "ON"]) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(TlsRules::CACHE)),
            Err(_) => Err(node.error("scalar argument must be either of: `OFF`, `ON`")),
        };
    }
    let attributes = node.attributes(&SESSION_CACHE)?;
    let positive = |name: &str, unit, format| {
        let node = attributes.require(name)?;
        match node.quantity(unit, format, 0..=u64::MAX)? {
            0 => Err(node.error(format!("{name} must be greater than zero"))),
            number => Ok(number),
        }
    };
    let capacity = positive("capacity", Unit::Count, "%zu")?;
    let lifetime = positive("lifetime", Unit::Seconds, "%u")?;
    let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
    Ok(Some((Duration::from_secs(lifetime), capacity)))
}

fn reverse(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    let backends = Backends::read(command.node)?;
    let settings = scope.settings.get::<ProxySettings>();
    if settings.proxy_protocol && !settings.timeouts.keepalive.is_zero() {
        let text = "please either set `proxy.use-proxy-protocol` to `OFF` or disable keep-alive by setting \
                    `proxy.timeout.keepalive` to zero; the features are mutually exclusive";
        return Err(command
            .error(text)
            .with_hint("`proxy.proxy-protocol: ON` needs `proxy.timeout.keepalive: 0`"));
    }
    if settings.http2_force_cleartext && settings.http2_ratio != Some(100) {
        return Err(command.error(
            "when `proxy.http2.force-cleartext` is `ON`, `proxy.http2.ratio` must be set to `100` (percent)",
        ));
    }
    if u32::from(settings.http2_ratio.unwrap_or(0)) + u32::from(settings.http3_ratio) > 100 {
        let text = "sum of http2.ratio and http3.ratio cannot be greater than 100";
        return Err(command.error(text));
    }
    if settings.proxy_protocol && settings.http3_ratio > 0 {
        let text = "`proxy.proxy-protocol` and `proxy.http3.ratio` are mutually exclusive: QUIC connections have no PROXY header";
        return Err(command.error(text));
    }
    let is_tls = |backend: &BackendSpec| backend.url.scheme == Scheme::Https;
    if backends.list.iter().any(is_tls) {
        warn_of_missing_bundle(scope, &settings);
    }
    let upstream = settings
        .upstream()
        .map_err(|error| unreadable(command, &error))?;
    let own = backends.list.iter().map(|backend| &backend.check);
    let policy = health_policy::of(&settings.checks, own);
    let list = backends.list.into_iter();
    let list = list.map(|backend| (backend.url, backend.weight)).collect();
    let upstream = Upstream::with_health_policy(list, backends.balancing, upstream, policy);
    let upstream = Upstreams::note(scope, upstream);
    health_policy::check(scope, &upstream);
    let handler = ProxyHandler::new(upstream, &settings);
    scope.handlers.push(Box::new(handler));
    Ok(())
}

fn unreadable(command: &Command<'_>, error: &TlsClientError) -> Error {
    let message = format!("failed to load certificates file:{}", error.path.display());
    command.error(message).with_hint(error.reason.clone())
}

/// Warns of a missing default certificate bundle: without one every handshake that verifies its backend fails.
fn warn_of_missing_bundle(scope: &mut Scope, settings: &ProxySettings) {
    let rules = &settings.tls.rules;
    if !rules.verify_peer || rules.ca_file.is_some() {
        return;
    }
    let Err(error) = TlsClient::bundle() else {
        return;
    };
    let warning = format!(
        "[warning] failed to load the default certificates file at {}. Proxying to HTTPS servers may fail. ({}; name \
         another file by `proxy.ssl.cafile`)",
        error.path.display(),
        error.reason
    );
    if !scope.warnings.contains(&warning) {
        scope.warnings.push(warning);
    }
}
