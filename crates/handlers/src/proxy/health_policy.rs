//! The directives `proxy.health-check`, `proxy.passive-health-check` and `proxy.retry`, which H2O does not have.

use std::sync::Arc;
use std::time::Duration;

use h2o_config::{Attribute, Attributes, Error, Kinds, Node, Unit};
use h2o_exchange::{BackgroundServices, Scope};
use h2o_upstream::{
    BackendHealthPolicy, HealthCheck, HealthChecks, HealthPolicy, PassiveCheck, Retry, Upstream,
};

/// The settings of health checks and retries of a configuration level.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckSettings {
    /// The active health checks that `health-check` sets; `None` if they are off.
    pub(crate) active: Option<HealthCheck>,
    /// The passive health checks: `None` if `passive-health-check` was not set, `Some(None)` if it is off.
    pub(crate) passive: Option<Option<PassiveCheck>>,
    /// The retries: `None` if `retry` was not set, `Some(None)` if it is off.
    pub(crate) retry: Option<Option<Retry>>,
}

/// Longest time in milliseconds that the directives for health checks and retries accept: one day. Longer times are
/// likely mistakes.
const MAX_MILLISECONDS: u64 = 86_400_000;
/// Highest count that the directives for health checks and retries accept.
const MAX_COUNT: u64 = 1_000;

/// The attributes of `proxy.health-check`.
pub(crate) const HEALTH_CHECK: [Attribute; 7] = [
    Attribute::optional(
        "path",
        Kinds::SCALAR,
        "PATH",
        "/",
        "The path of the check's request, a `GET`. If the URL of `proxy.reverse.url` has a path, write that here as well: nothing \
         is put before this path.",
    ),
    Attribute::optional(
        "host",
        Kinds::SCALAR,
        "NAME",
        "host and port of the backend, as the configuration names them; `localhost` for a Unix socket",
        "The host that the check's request names: in the header `host`, or in `HTTP_HOST` for a FastCGI application.",
    ),
    Attribute::optional(
        "interval",
        Kinds::SCALAR,
        "MILLISECONDS",
        "2000",
        "Time between two checks.",
    ),
    Attribute::optional(
        "timeout",
        Kinds::SCALAR,
        "MILLISECONDS",
        "1000",
        "How long a response may take.",
    ),
    Attribute::optional(
        "rise",
        Kinds::SCALAR,
        "1 to 1000",
        "2",
        "Passed checks in a row after which a backend is up.",
    ),
    Attribute::optional(
        "fall",
        Kinds::SCALAR,
        "1 to 1000",
        "3",
        "Failed checks in a row after which a backend is down.",
    ),
    Attribute::optional(
        "slow-start",
        Kinds::SCALAR,
        "MILLISECONDS",
        "0",
        "How long the weight of a backend that is up again takes to grow to its full value.",
    ),
];

/// The attributes of `proxy.passive-health-check`.
pub(crate) const PASSIVE_CHECK: [Attribute; 2] = [
    Attribute::optional(
        "fall",
        Kinds::SCALAR,
        "1 to 1000",
        "3",
        "Failed requests in a row after which a backend is down.",
    ),
    Attribute::optional(
        "pause",
        Kinds::SCALAR,
        "MILLISECONDS",
        "10000",
        "How long a backend that is down gets no requests.",
    ),
];

/// The attributes of `proxy.retry`.
pub(crate) const RETRY: [Attribute; 2] = [
    Attribute::optional(
        "tries",
        Kinds::SCALAR,
        "1 to 1000",
        "2",
        "How often one request may be retried.",
    ),
    Attribute::optional(
        "budget",
        Kinds::SCALAR,
        "0 to 100",
        "20",
        "How many retries there may be for every hundred requests to these backends; the first ten retries in a second do not \
         count.",
    ),
];

/// Reads `proxy.health-check`, or the `health-check` of a backend. `None` if there are no checks.
pub(crate) fn health_check(node: &Node) -> Result<Option<HealthCheck>, Error> {
    on_off_or(node, &HEALTH_CHECK, |attributes| {
        let default = HealthCheck::default();
        let path = match attributes.get("path") {
            Some(path) => path_of(path)?,
            None => default.path,
        };
        Ok(HealthCheck {
            path,
            host: attributes.get("host").map(host_of).transpose()?,
            interval: time(attributes, "interval", 1, default.interval)?,
            timeout: time(attributes, "timeout", 1, default.timeout)?,
            rise: count(attributes, "rise", default.rise)?,
            fall: count(attributes, "fall", default.fall)?,
            slow_start: time(attributes, "slow-start", 0, default.slow_start)?,
        })
    })
}

/// Reads `proxy.passive-health-check`. `None` if there are no passive checks.
pub(crate) fn passive_check(node: &Node) -> Result<Option<PassiveCheck>, Error> {
    on_off_or(node, &PASSIVE_CHECK, |attributes| {
        let default = PassiveCheck::default();
        Ok(PassiveCheck {
            fall: count(attributes, "fall", default.fall)?,
            pause: time(attributes, "pause", 1, default.pause)?,
        })
    })
}

/// Reads `proxy.retry`. `None` if failed requests are not retried.
pub(crate) fn retry(node: &Node) -> Result<Option<Retry>, Error> {
    on_off_or(node, &RETRY, |attributes| {
        let default = Retry::default();
        let budget = match attributes.get("budget") {
            Some(budget) => budget.integer("%u", 0..=100)?,
            None => default.budget,
        };
        Ok(Retry {
            attempts: count(attributes, "tries", default.attempts)?,
            budget,
        })
    })
}

/// Reads a value that is `OFF`, `ON` for the defaults, or a mapping.
fn on_off_or<T: Default>(
    node: &Node,
    spec: &[Attribute],
    read: impl FnOnce(&Attributes<'_>) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    if node.as_mapping().is_some() {
        return read(&node.attributes(spec)?).map(Some);
    }
    if node.as_str().is_none() {
        return Err(node.error("node must be a scalar or a mapping"));
    }
    Ok(node.on_off()?.then(T::default))
}

fn path_of(node: &Node) -> Result<Box<str>, Error> {
    let path = node.scalar()?;
    if !path.starts_with('/') {
        return Err(node.error("path must begin with `/`"));
    }
    if !h2o_http::is_visible(path.as_bytes()) {
        return Err(node.error("path must only consist of visible ASCII characters"));
    }
    Ok(path.into())
}

fn host_of(node: &Node) -> Result<Box<str>, Error> {
    let host = node.scalar()?;
    let bytes = host.as_bytes();
    if !h2o_http::is_visible(bytes) || !h2o_http::authority::is_valid(bytes) {
        return Err(node.error("host must be a name or an address, with a port or without"));
    }
    Ok(host.into())
}

fn time(
    attributes: &Attributes<'_>,
    name: &str,
    least: u64,
    default: Duration,
) -> Result<Duration, Error> {
    let Some(node) = attributes.get(name) else {
        return Ok(default);
    };
    let milliseconds = node.quantity(Unit::Milliseconds, "%lu", least..=MAX_MILLISECONDS)?;
    Ok(Duration::from_millis(milliseconds))
}

fn count(attributes: &Attributes<'_>, name: &str, default: u32) -> Result<u32, Error> {
    match attributes.get(name) {
        Some(node) => node.integer("%u", 1..=MAX_COUNT),
        None => Ok(default),
    }
}

/// Which health checks are made of backends: for each backend those of its own configuration entry, if it has any, or else those of the
/// configuration level.
pub(crate) fn of<'b>(
    settings: &CheckSettings,
    own: impl Iterator<Item = &'b Option<Option<HealthCheck>>>,
) -> HealthPolicy {
    let of_backend = |own: &Option<Option<HealthCheck>>| {
        let active = match own {
            Some(own) => own.clone(),
            None => settings.active.clone(),
        };
        // Passive checks are on by default where active checks are.
        let passive = match settings.passive {
            Some(configured) => configured,
            None => active.as_ref().map(|_| PassiveCheck::default()),
        };
        BackendHealthPolicy { active, passive }
    };
    let backends: Vec<_> = own.map(of_backend).collect();
    let is_any = |policy: &BackendHealthPolicy| policy.active.is_some() || policy.passive.is_some();
    let retry = match settings.retry {
        Some(configured) => configured,
        None => backends.iter().any(is_any).then(Retry::default),
    };
    HealthPolicy { backends, retry }
}

/// The health checks of all backends in the configuration; created with the first of them.
#[derive(Clone, Default)]
struct Checks(Option<Arc<HealthChecks>>);

/// If `upstream` has health checks, the server starts them when it begins to serve.
pub(crate) fn check(scope: &mut Scope, upstream: &Arc<Upstream>) {
    if !upstream.is_checked() {
        return;
    }
    let known = &mut scope.shared.edit::<Checks>().0;
    if let Some(checks) = known {
        checks.add(upstream);
        return;
    }
    let checks = Arc::<HealthChecks>::default();
    checks.add(upstream);
    *known = Some(Arc::clone(&checks));
    scope.shared.edit::<BackgroundServices>().0.push(checks);
}

#[cfg(test)]
mod tests {
    use super::*;
    use h2o_config::{Memory, load};

    /// Returns the health checks of two backends as text, and the number of attempts of retries. The second backend has the
    /// `health-check` `own` in its configuration entry. In the text, `a` stands for active checks and `p` for passive checks.
    fn shown(settings: &CheckSettings, own: &str) -> (String, Option<u32>) {
        let text = format!("[ 'http://a', {{ url: 'http://b', health-check: {own} }} ]");
        let node = load("f", &Memory::new().file("f", &*text)).unwrap();
        let backends = super::super::backends::Backends::read(&node).unwrap();
        let policy = of(settings, backends.list.iter().map(|backend| &backend.check));
        let kinds = policy.backends.iter().map(|policy| {
            let active = policy.active.as_ref().map_or("-", |_| "a");
            let passive = policy.passive.map_or("-", |_| "p");
            format!("{active}{passive} ")
        });
        (kinds.collect(), policy.retry.map(|retry| retry.attempts))
    }

    #[test]
    fn passive_checks_and_retries_are_on_where_active_checks_are() {
        let on = Some(HealthCheck::default());
        let passive = PassiveCheck::default();
        let seven = Retry {
            attempts: 7,
            ..Retry::default()
        };
        let cases = [
            // Each row: active check, passive check and retry in the settings of the level, the second backend's own
            // check, and the result.
            (None, None, None, "OFF", ("-- -- ", None)),
            (None, None, None, "ON", ("-- ap ", Some(2))),
            (on.clone(), None, None, "OFF", ("ap -- ", Some(2))),
            (on.clone(), None, None, "{ rise: 1 }", ("ap ap ", Some(2))),
            (on.clone(), Some(None), None, "OFF", ("a- -- ", Some(2))),
            (
                on.clone(),
                Some(Some(passive)),
                None,
                "OFF",
                ("ap -p ", Some(2)),
            ),
            (None, Some(Some(passive)), None, "OFF", ("-p -p ", Some(2))),
            (on, None, Some(None), "OFF", ("ap -- ", None)),
            (None, None, Some(Some(seven)), "OFF", ("-- -- ", Some(7))),
        ];
        for (health_check, passive_check, retry, own, (kinds, tries)) in cases {
            let settings = CheckSettings {
                active: health_check,
                passive: passive_check,
                retry,
            };
            assert_eq!(
                shown(&settings, own),
                (kinds.to_owned(), tries),
                "{settings:?} {own}"
            );
        }
    }
}
