//! `proxy.connect` and `proxy.connect-udp` open tunnels to targets that clients choose, as far as an access control
//! list permits them.
//!
//! [`handler`] opens connections for requests, [`tunnel`] moves the bytes afterwards.

mod acl;
mod capsule;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod handler;
mod proxy_status;
mod target;
mod tcp;
#[cfg(test)]
mod tests;
mod tunnel;
mod udp;

use std::sync::Arc;
use std::time::Duration;

use h2o_config::{Command, Directive, Error, Kinds, Levels, Pass, Unit};
use h2o_exchange::Scope;
use h2o_upstream::ConnectLimits;

use crate::proxy::settings::ProxySettings;
use acl::Acl;
use handler::{Service, TcpHandler, UdpHandler};

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[
    Directive {
        name: "proxy.connect",
        levels: Levels::PATH,
        pass: Pass::Content,
        kinds: Kinds::SEQUENCE,
        value: "a sequence of `+ADDRESS[/BITS][:PORT]` and `-ADDRESS[/BITS][:PORT]`",
        default: "",
        help: "Opens tunnels for CONNECT requests, as a forward proxy does. Each address of the name is compared with the list: the \
               first entry that matches permits (`+`) or denies (`-`) it; what no entry matches is denied. ADDRESS is `*`, an IPv4 \
               address or an IPv6 address in brackets; PORT a number, a range `LOW-HIGH` or `*`. Belongs to the path `/` of the \
               host that also serves unknown names (`strict-match`). See [the page on the forward proxy](forward-proxy.md).",
        apply: |scope, command| {
            let service = service(scope, command)?;
            let takes_connect_udp = scope.settings.get::<ConnectSettings>().masque_draft_03;
            scope.handlers.push(Box::new(TcpHandler {
                service,
                takes_connect_udp,
            }));
            Ok(())
        },
    },
    Directive {
        name: "proxy.connect-udp",
        levels: Levels::PATH,
        pass: Pass::Content,
        kinds: Kinds::SEQUENCE,
        value: "as `proxy.connect`",
        default: "",
        help: "Carries UDP datagrams for clients that ask for it (RFC 9298). What follows the configured path in a request is \
               `/HOST/PORT/`; by default clients ask below `/.well-known/masque/udp`.",
        apply: |scope, command| {
            let service = service(scope, command)?;
            scope.handlers.push(Box::new(UdpHandler { service }));
            Ok(())
        },
    },
    Directive::setting(
        "proxy.connect.emit-proxy-status",
        "ON|OFF",
        "OFF",
        "Whether responses of `proxy.connect` and `proxy.connect-udp` have a `proxy-status` header with the outcome \
         (RFC 9209).",
        emit_proxy_status,
    ),
    Directive::setting(
        "proxy.connect.proxy-status",
        "ON|OFF",
        "OFF",
        "The old name of `proxy.connect.emit-proxy-status`.",
        |scope, command| {
            deprecated(scope, command, "proxy.connect.emit-proxy-status");
            emit_proxy_status(scope, command)
        },
    ),
    Directive::setting(
        "proxy.connect.masque-draft-03",
        "ON|OFF",
        "OFF",
        "Whether `proxy.connect` accepts the method CONNECT-UDP of an early draft of RFC 9298.",
        |scope, command| {
            settings(scope).masque_draft_03 = command.node.on_off()?;
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.proxy-status.identity",
        "TEXT",
        "`h2o`",
        "The name of this server in `proxy-status` headers: printable ASCII characters.",
        identity,
    ),
    Directive {
        levels: Levels::GLOBAL_ONLY,
        ..Directive::setting(
            "proxy-status.identity",
            "TEXT",
            "`h2o`",
            "The old name of `proxy.proxy-status.identity`.",
            |scope, command| {
                deprecated(scope, command, "proxy.proxy-status.identity");
                identity(scope, command)
            },
        )
    },
    Directive::setting(
        "proxy.happy-eyeballs.name-resolution-delay",
        "MILLISECONDS",
        "50",
        "How long `proxy.connect` waits for the IPv6 addresses of a name that has IPv4 addresses.",
        |scope, command| {
            settings(scope).name_resolution_delay = milliseconds(command)?;
            Ok(())
        },
    ),
    Directive::setting(
        "proxy.happy-eyeballs.connection-attempt-delay",
        "MILLISECONDS",
        "250",
        "How long `proxy.connect` waits for a connection before it tries the next address, if there is one.",
        |scope, command| {
            settings(scope).connection_attempt_delay = milliseconds(command)?;
            Ok(())
        },
    ),
];

/// The settings of tunnels at a configuration level, other than those in [`ProxySettings`].
#[derive(Clone, Debug)]
struct ConnectSettings {
    emits_proxy_status: bool,
    masque_draft_03: bool,
    /// The name of this proxy, encoded for the `proxy-status` field.
    identity: Box<str>,
    name_resolution_delay: Duration,
    connection_attempt_delay: Duration,
}

impl Default for ConnectSettings {
    fn default() -> Self {
        Self {
            emits_proxy_status: false,
            masque_draft_03: false,
            identity: "h2o".into(),
            name_resolution_delay: Duration::from_millis(50),
            connection_attempt_delay: Duration::from_millis(250),
        }
    }
}

fn settings(scope: &mut Scope) -> &mut ConnectSettings {
    scope.edit()
}

fn emit_proxy_status(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    settings(scope).emits_proxy_status = command.node.on_off()?;
    Ok(())
}

fn identity(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    let text = command.node.scalar()?;
    if !text.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) {
        return Err(command.error("the identity must only consist of printable ASCII characters"));
    }
    settings(scope).identity = proxy_status::encode_identity(text).into();
    Ok(())
}

fn milliseconds(command: &Command<'_>) -> Result<Duration, Error> {
    let limit = command
        .node
        .quantity(Unit::Milliseconds, "%lu", 0..=u64::MAX)?;
    Ok(Duration::from_millis(limit))
}

/// The time limit, reduced so that it can be added to any time without overflow.
fn at_most_a_century(limit: Duration) -> Duration {
    limit.min(Duration::from_secs(100 * 366 * 86_400))
}

fn deprecated(scope: &mut Scope, command: &Command<'_>, successor: &str) {
    let text = format!("the command is deprecated; use {successor}");
    scope.warn(&command.error(text));
}

/// The configuration of a handler: its access control list, and the settings of its level.
fn service(scope: &Scope, command: &Command<'_>) -> Result<Arc<Service>, Error> {
    let acl = Acl::read(command)?;
    let timeouts = scope.settings.get::<ProxySettings>().timeouts;
    let settings = scope.settings.get::<ConnectSettings>();
    Ok(Arc::new(Service {
        acl,
        limits: ConnectLimits {
            name_resolution_delay: at_most_a_century(settings.name_resolution_delay),
            connection_attempt_delay: at_most_a_century(settings.connection_attempt_delay),
            connect_timeout: at_most_a_century(timeouts.connect),
        },
        io_timeout: at_most_a_century(timeouts.io),
        identity: settings
            .emits_proxy_status
            .then(|| settings.identity.clone()),
    }))
}
