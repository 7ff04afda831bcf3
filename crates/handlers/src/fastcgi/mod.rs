//! `fastcgi.connect` and `fastcgi.spawn`: applications answer requests over FastCGI.
//!
//! The module [`parameters`] makes the FastCGI parameters that describe a request. The crate `h2o_upstream` has connections, records,
//! header blocks, health checks, retries and time limits.

mod handler;
mod parameters;
mod spawn;

use std::path::Path;
use std::time::Duration;

use h2o_config::{Attribute, Command, Directive, Error, Kinds, Level, Levels, Node, Pass};
use h2o_exchange::Scope;
use h2o_http::Scheme;
use h2o_upstream::{
    BackendHost, BackendUrl, Balancing, FastcgiTarget, HealthCheck, MAX_UNIX_PATH, Upstream,
};

use crate::proxy::Upstreams;
use crate::proxy::health_policy::{self, CheckSettings};
use crate::proxy::settings::{ProxySettings, Timeouts};
use crate::time_limit::{milliseconds, time_limit};
use handler::FastcgiHandler;

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[
    Directive {
        name: "fastcgi.connect",
        levels: Levels::PATH_EXTENSION,
        pass: Pass::Content,
        kinds: Kinds::ANY.with_attributes(&CONNECT),
        value: "a port of 127.0.0.1, a mapping, or a sequence of these",
        default: "none",
        help: "The FastCGI application that listens at this address, such as php-fpm, answers requests. At the level of a path \
               it gets all requests, in [`file.custom-handler`](#filecustom-handler) the requests for files with the extension. \
               Not in H2O: the applications of a sequence get requests in turn, by their `weight`. \
               See [the recipe](recipes.md#php-and-other-fastcgi-applications).",
        apply: connect,
    },
    Directive {
        name: "fastcgi.spawn",
        levels: Levels::PATH_EXTENSION,
        pass: Pass::Content,
        kinds: Kinds::ANY.with_attributes(&SPAWN),
        value: "a command of the shell, or a mapping",
        default: "none",
        help: "Starts a FastCGI application together with the server; the application answers requests like that of \
               [`fastcgi.connect`](#fastcgiconnect). The command gets a listening Unix socket as its descriptor 0, and \
               `H2O_ROOT` in its environment. If the command ends, it is started again, at first after 0.1 seconds, later after \
               up to 10 seconds; meanwhile requests wait in the socket. The command gets SIGTERM when the server ends, or after \
               a reload whose configuration no longer has it: begin the command with `exec`, so that the application gets the \
               signal and not a shell. See [the recipe](recipes.md#php-and-other-fastcgi-applications).",
        apply: spawn::spawn,
    },
    Directive::setting(
        "fastcgi.document_root",
        "PATH",
        "none",
        "`DOCUMENT_ROOT` of requests, which also adds `PATH_TRANSLATED`. An empty string unsets it.",
        |scope, command| {
            let root = command.node.scalar()?;
            if !root.is_empty() && !root.starts_with('/') {
                return Err(command.error("value does not start from `/`"));
            }
            scope.edit::<FastcgiSettings>().document_root =
                Some(root).filter(|root| !root.is_empty()).map(Into::into);
            Ok(())
        },
    ),
    Directive::setting(
        "fastcgi.send-delegated-uri",
        "ON|OFF",
        "OFF",
        "Whether `HTTP_HOST` and `REQUEST_URI` are those of the last internal redirect in place of those that the client sent.",
        |scope, command| {
            scope.edit::<FastcgiSettings>().sends_delegated_uri = command.node.on_off()?;
            Ok(())
        },
    ),
    Directive::setting(
        "fastcgi.timeout.io",
        "MILLISECONDS",
        "30000",
        "How long a connection may take to open, and how long a wait for the application may last. Also sets \
         `fastcgi.timeout.connect` and `fastcgi.timeout.first_byte`, unless they are set at the same level.",
        |scope, command| {
            let limit = time_limit(scope, command)?;
            let timeouts = &mut scope.edit::<FastcgiSettings>().timeouts;
            timeouts.set_io(command.level, limit);
            Ok(())
        },
    ),
    Directive::setting(
        "fastcgi.timeout.connect",
        "MILLISECONDS",
        "`fastcgi.timeout.io`",
        "Not in H2O: how long connecting may take, the look-up of the name and all attempts together.",
        |scope, command| {
            let limit = time_limit(scope, command)?;
            let timeouts = &mut scope.edit::<FastcgiSettings>().timeouts;
            timeouts.set_connect(command.level, limit);
            Ok(())
        },
    ),
    Directive::setting(
        "fastcgi.timeout.first_byte",
        "MILLISECONDS",
        "`fastcgi.timeout.io`",
        "Not in H2O: how long the first byte of a response may take once the request is sent.",
        |scope, command| {
            let limit = time_limit(scope, command)?;
            let timeouts = &mut scope.edit::<FastcgiSettings>().timeouts;
            timeouts.set_first_byte(command.level, limit);
            Ok(())
        },
    ),
    Directive::setting(
        "fastcgi.timeout.keepalive",
        "MILLISECONDS",
        "0",
        "How long a connection without requests is kept. 0: each request has a connection of its own.",
        |scope, command| {
            scope.edit::<FastcgiSettings>().timeouts.keepalive = milliseconds(command)?;
            Ok(())
        },
    ),
    Directive {
        kinds: Kinds::ANY.with_attributes(&health_policy::HEALTH_CHECK),
        ..Directive::setting(
            "fastcgi.health-check",
            "OFF|ON, or a mapping",
            "OFF",
            "Not in H2O: checks of applications, like `proxy.health-check`. An application at the level of a path gets the `path` \
             of the check as `PATH_INFO`, with an empty `SCRIPT_NAME`. One within `file.custom-handler` gets it as `SCRIPT_NAME`, \
             and as `SCRIPT_FILENAME` with `fastcgi.document_root` before it. Also switches `fastcgi.passive-health-check` and \
             `fastcgi.retry` on, unless they are set.",
            |scope, command| {
                let check = health_policy::health_check(command.node)?;
                scope.edit::<FastcgiSettings>().checks.active = check;
                Ok(())
            },
        )
    },
    Directive {
        kinds: Kinds::ANY.with_attributes(&health_policy::PASSIVE_CHECK),
        ..Directive::setting(
            "fastcgi.passive-health-check",
            "OFF|ON, or a mapping",
            "`ON` for the applications that `fastcgi.health-check` checks",
            "Not in H2O: like [`proxy.passive-health-check`](#proxypassive-health-check).",
            |scope, command| {
                let check = health_policy::passive_check(command.node)?;
                scope.edit::<FastcgiSettings>().checks.passive = Some(check);
                Ok(())
            },
        )
    },
    Directive {
        kinds: Kinds::ANY.with_attributes(&health_policy::RETRY),
        ..Directive::setting(
            "fastcgi.retry",
            "OFF|ON, or a mapping",
            "`ON` where applications are checked, actively or passively",
            "Not in H2O: like [`proxy.retry`](#proxyretry). A request that an application rejects because it is overloaded (FCGI_OVERLOADED) \
             is retried, too.",
            |scope, command| {
                let retry = health_policy::retry(command.node)?;
                scope.edit::<FastcgiSettings>().checks.retry = Some(retry);
                Ok(())
            },
        )
    },
];

const CONNECT: [Attribute; 5] = [
    Attribute::required(
        "port",
        Kinds::SCALAR,
        "PORT or PATH",
        "The TCP port, or the path of the Unix socket.",
    ),
    Attribute::optional(
        "host",
        Kinds::SCALAR,
        "NAME or ADDRESS",
        "`127.0.0.1`",
        "The host; names are resolved for each connection.",
    ),
    Attribute::optional(
        "type",
        Kinds::SCALAR,
        "tcp|unix",
        "`tcp`",
        "Whether `port` is a TCP port or the path of a Unix socket.",
    ),
    Attribute::optional(
        "weight",
        Kinds::SCALAR,
        "1 to 256",
        "1",
        "The share of requests that the application gets, in relation to the weights of the others in the sequence.",
    ),
    Attribute::optional(
        "health-check",
        Kinds::ANY,
        "as `fastcgi.health-check`",
        "`fastcgi.health-check`",
        "Health checks of this application.",
    ),
];

const SPAWN: [Attribute; 2] = [
    Attribute::required(
        "command",
        Kinds::SCALAR,
        "COMMAND",
        "The command, which is run by `/bin/sh -c`.",
    ),
    Attribute::optional(
        "user",
        Kinds::SCALAR,
        "USER",
        "the user of the server",
        "The user as which the command runs. For another user than that of the server, the server must be started by root.",
    ),
];

/// The settings of the directives `fastcgi.*` at a configuration level.
#[derive(Clone, Debug)]
struct FastcgiSettings {
    document_root: Option<Box<str>>,
    sends_delegated_uri: bool,
    /// The time limits that the directives `fastcgi.timeout.*` set.
    timeouts: Timeouts,
    /// The settings `fastcgi.health-check`, `fastcgi.passive-health-check` and `fastcgi.retry`.
    checks: CheckSettings,
}

impl Default for FastcgiSettings {
    fn default() -> Self {
        let mut timeouts = Timeouts::default();
        timeouts.keepalive = Duration::ZERO;
        Self {
            document_root: None,
            sends_delegated_uri: false,
            timeouts,
            checks: CheckSettings::default(),
        }
    }
}

/// A FastCGI application that the configuration names.
struct ApplicationSpec {
    url: BackendUrl,
    weight: u32,
    /// The application's own `health-check`, which replaces that of the configuration level: `None` if the application has none,
    /// `Some(None)` if it is `OFF`.
    check: Option<Option<HealthCheck>>,
}

impl From<BackendUrl> for ApplicationSpec {
    fn from(url: BackendUrl) -> Self {
        Self {
            url,
            weight: 1,
            check: None,
        }
    }
}

fn connect(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    let list = match command.node.as_sequence() {
        Some([]) | None => std::slice::from_ref(command.node),
        Some(list) => list,
    };
    let applications = list.iter().map(read_application);
    let applications = applications.collect::<Result<_, _>>()?;
    add_handler(scope, command, applications)
}

/// Adds a handler to the configured path that sends requests to these applications.
fn add_handler(
    scope: &mut Scope,
    command: &Command<'_>,
    applications: Vec<ApplicationSpec>,
) -> Result<(), Error> {
    let settings = scope.settings.get::<FastcgiSettings>();
    let mut proxy = ProxySettings::default();
    proxy.timeouts = settings.timeouts;
    let mut upstream = proxy
        .upstream()
        .map_err(|error| command.error(error.to_string()))?;
    upstream.fastcgi = Some(match command.level {
        Level::Extension => {
            FastcgiTarget::Script(settings.document_root.clone().unwrap_or_default())
        }
        _ => FastcgiTarget::Path,
    });
    let own = applications.iter().map(|application| &application.check);
    let policy = health_policy::of(&settings.checks, own);
    let list = applications.into_iter();
    let list = list.map(|application| (application.url, application.weight));
    let upstream =
        Upstream::with_health_policy(list.collect(), Balancing::RoundRobin, upstream, policy);
    let upstream = Upstreams::note(scope, upstream);
    health_policy::check(scope, &upstream);
    let handler = FastcgiHandler::new(upstream, &settings);
    scope.handlers.push(Box::new(handler));
    Ok(())
}

fn read_application(node: &Node) -> Result<ApplicationSpec, Error> {
    if node.as_str().is_some() {
        return tcp(node, "127.0.0.1").map(Into::into);
    }
    if node.as_mapping().is_none() {
        return Err(node.error(
            "value must be a string or a mapping (with keys: `port` and optionally `host` and `type`)",
        ));
    }
    let attributes = node.attributes(&CONNECT)?;
    let port = attributes.require("port")?;
    let host = match attributes.get("host") {
        Some(host) => host.scalar()?,
        None => "127.0.0.1",
    };
    let url = match attributes.get("type") {
        None => tcp(port, host)?,
        Some(kind) => match kind.scalar()? {
            "tcp" => tcp(port, host)?,
            "unix" => unix(port)?,
            other => {
                return Err(kind
                    .error(format!("unknown listen type: {other}"))
                    .with_hint("write `tcp` or `unix`"));
            }
        },
    };
    let weight = match attributes.get("weight") {
        None => 1,
        Some(weight) => weight
            .integer("%u", 1..=256)
            .map_err(|_| weight.error("weight must be an integer in range 1 - 256"))?,
    };
    let check = attributes.get("health-check");
    Ok(ApplicationSpec {
        url,
        weight,
        check: check.map(health_policy::health_check).transpose()?,
    })
}

fn tcp(port: &Node, host: &str) -> Result<BackendUrl, Error> {
    let text = port.scalar()?;
    let number: Result<u16, Error> = port.integer("%hu", 1..=u64::from(u16::MAX) - 1);
    let number = number.map_err(|_| port.error(format!("invalid port number:{text}")))?;
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    BackendUrl::parse(&format!("http://{host}:{number}/"))
        .ok_or_else(|| port.error(format!("`{host}` is not the name or address of a host")))
}

fn unix(path: &Node) -> Result<BackendUrl, Error> {
    let text = path.scalar()?;
    if text.is_empty() || text.len() > MAX_UNIX_PATH {
        return Err(path.error(format!("path:{text} is too long as a unix socket name")));
    }
    Ok(unix_url(text))
}

fn unix_url(path: &str) -> BackendUrl {
    BackendUrl {
        scheme: Scheme::Http,
        host: BackendHost::Unix(Path::new(path).into()),
        port: 0,
        authority: format!("[unix:{path}]").into(),
        path: b"/"[..].into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Setup;

    const SETUP: Setup = Setup::new(DIRECTIVES, None);

    #[test]
    fn wrong_values_are_refused() {
        let long = format!(
            "fastcgi.connect: {{ port: '/{}', type: unix }}",
            "x".repeat(107)
        );
        let cases = [
            ("fastcgi.connect: 9000", "accepted"),
            ("fastcgi.connect: { port: 9000, host: '::1' }", "accepted"),
            (
                "fastcgi.connect: { port: /run/php.sock, type: unix }",
                "accepted",
            ),
            (
                "fastcgi.connect: { port: 9000, host: php.internal, type: tcp }",
                "accepted",
            ),
            (
                "fastcgi.connect: [9000, { port: /run/b.sock, type: unix, weight: 2, health-check: OFF }]",
                "accepted",
            ),
            ("fastcgi.connect: []", "value must be a string or a mapping"),
            (
                "fastcgi.connect: { port: 1, weight: 0 }",
                "weight must be an integer in range 1 - 256",
            ),
            (
                "fastcgi.health-check: { path: ping }",
                "path must begin with `/`",
            ),
            (
                "fastcgi.retry: { tries: 0 }",
                "argument must be between 1 and 1000",
            ),
            ("fastcgi.connect: php", "invalid port number:php"),
            ("fastcgi.connect: 0", "invalid port number:0"),
            ("fastcgi.connect: 65536", "invalid port number:65536"),
            (
                "fastcgi.connect: [[9000]]",
                "value must be a string or a mapping (with keys: `port` and optionally `host` and `type`)",
            ),
            (
                "fastcgi.connect: { host: a }",
                "cannot find mandatory attribute: port",
            ),
            (
                "fastcgi.connect: { port: 1, type: TCP }",
                "unknown listen type: TCP",
            ),
            (
                "fastcgi.connect: { port: 1, user: a }",
                "unexpected key:user",
            ),
            (&*long, "is too long as a unix socket name"),
            ("fastcgi.spawn: exec php-cgi", "accepted"),
            ("fastcgi.spawn: { command: a, user: root }", "accepted"),
            ("fastcgi.spawn: ' '", "the command is empty"),
            ("fastcgi.spawn: [a]", "argument must be scalar or mapping"),
            (
                "fastcgi.spawn: { user: root }",
                "cannot find mandatory attribute: command",
            ),
            (
                "fastcgi.spawn: { command: a, user: no-such-user }",
                "getpwnam_r(3) failed to obtain uid of user:no-such-user",
            ),
            (
                "fastcgi.document_root: www",
                "value does not start from `/`",
            ),
            ("fastcgi.document_root: ''", "accepted"),
            (
                "fastcgi.timeout.io: 1s",
                "argument must match the format: %lu",
            ),
            (
                "fastcgi.send-delegated-uri: 1",
                "argument must be one of: OFF,ON",
            ),
        ];
        for (config, want) in cases {
            let refusal = SETUP.refusal(config);
            assert!(refusal.contains(want), "{config}: {refusal}");
        }
    }
}
