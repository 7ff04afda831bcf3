//! Reads the value of `proxy.reverse.url`: the backends and their balancer.

use h2o_config::{Attribute, Error, Kinds, Node};
use h2o_upstream::{BackendUrl, Balancing, HealthCheck, MAX_UNIX_PATH};

use super::health_policy;

/// A backend as the configuration gives it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BackendSpec {
    pub(super) url: BackendUrl,
    pub(super) weight: u32,
    /// The backend's own `health-check`, which replaces that of the configuration level: `None` if the backend has
    /// none, `Some(None)` if it is `OFF`.
    pub(super) check: Option<Option<HealthCheck>>,
}

/// The backends of a `proxy.reverse.url`, and how requests are distributed among them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Backends {
    pub(super) list: Vec<BackendSpec>,
    pub(super) balancing: Balancing,
}

/// The attributes of `proxy.reverse.url`.
pub(super) const ATTRIBUTES: [Attribute; 2] = [
    Attribute::required(
        "backends",
        Kinds::ANY.with_attributes(&BACKEND),
        "URL, or a sequence of URLs and mappings",
        "The backends.",
    ),
    Attribute::optional(
        "balancer",
        Kinds::SCALAR,
        "round-robin|least-conn",
        "round-robin",
        "How the backend of a request is chosen: in turn, or the one with the fewest requests in progress, each in proportion to `weight`.",
    ),
];

const BACKEND: [Attribute; 3] = [
    Attribute::required("url", Kinds::SCALAR, "URL", "The URL of the backend."),
    Attribute::optional(
        "weight",
        Kinds::SCALAR,
        "1 to 256",
        "1",
        "The share of requests that the backend gets, in relation to the weights of the other backends.",
    ),
    Attribute::optional(
        "health-check",
        Kinds::ANY,
        "as `proxy.health-check`",
        "`proxy.health-check`",
        "Health checks of this backend.",
    ),
];

impl Backends {
    /// Reads the value of `proxy.reverse.url`: a URL, a sequence of backends, or a mapping of `backends` and
    /// `balancer`.
    pub(super) fn read(node: &Node) -> Result<Self, Error> {
        let (list, balancing) = if node.as_mapping().is_some() {
            let attributes = node.attributes(&ATTRIBUTES)?;
            let balancing = match attributes.get("balancer") {
                Some(word) => read_balancer(word)?,
                None => Balancing::RoundRobin,
            };
            (attributes.require("backends")?, balancing)
        } else {
            (node, Balancing::RoundRobin)
        };
        if list.as_mapping().is_some() {
            return Err(list
                .error("value for the `backends` property must be either a scalar or a sequence"));
        }
        let list = list.one_or_more();
        if list.is_empty() {
            return Err(node.error("at least one backend url must be set"));
        }
        Ok(Self {
            list: list.iter().map(read_backend).collect::<Result<_, _>>()?,
            balancing,
        })
    }
}

fn read_balancer(node: &Node) -> Result<Balancing, Error> {
    match node.scalar()? {
        "round-robin" => Ok(Balancing::RoundRobin),
        "least-conn" => Ok(Balancing::LeastConn),
        _ => Err(node.error(
            "specified balancer is not supported. Currently supported ones are: round-robin, least-conn",
        )),
    }
}

fn read_backend(node: &Node) -> Result<BackendSpec, Error> {
    if node.as_sequence().is_some() {
        return Err(node.error(
            "items of arguments passed to proxy.reverse.url must be either a scalar or a mapping",
        ));
    }
    if node.as_str().is_some() {
        return Ok(BackendSpec {
            url: read_url(node)?,
            weight: 1,
            check: None,
        });
    }
    let attributes = node.attributes(&BACKEND)?;
    let weight = match attributes.get("weight") {
        None => 1,
        Some(weight) => weight
            .integer("%u", 1..=256)
            .map_err(|_| weight.error("weight must be an integer in range 1 - 256"))?,
    };
    let check = attributes.get("health-check");
    Ok(BackendSpec {
        url: read_url(attributes.require("url")?)?,
        weight,
        check: check.map(health_policy::health_check).transpose()?,
    })
}

fn read_url(node: &Node) -> Result<BackendUrl, Error> {
    let url = node.scalar()?;
    BackendUrl::parse(url).ok_or_else(|| {
        node.error(format!("failed to parse URL: {url}"))
            .with_hint(how_to_write(url))
    })
}

/// A hint that tells how to write a URL that cannot be used.
fn how_to_write(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (meant, note) = match scheme.to_ascii_lowercase().as_str() {
        "" | "http" => ("http", ""),
        "https" => ("https", ""),
        "ws" => ("http", "; WebSocket needs `proxy.tunnel: ON`"),
        "wss" => ("https", "; WebSocket needs `proxy.tunnel: ON`"),
        _ => return "write a URL that begins with `http://` or `https://`".to_owned(),
    };
    let socket = rest.trim_start_matches('[').strip_prefix("unix:");
    let socket =
        socket.or_else(|| Some(rest).filter(|rest| scheme.is_empty() && rest.starts_with('/')));
    if let Some(path) = socket.and_then(|rest| rest.split(']').next())
        && path.len() > MAX_UNIX_PATH
    {
        let len = path.len();
        return format!(
            "the path of a Unix socket has at most {MAX_UNIX_PATH} bytes, and this one has {len}"
        );
    }
    let better = match socket {
        Some(path) => {
            let path = path.split([']', ':']).next().unwrap_or(path);
            format!("{meant}://[unix:{}]/", path.trim_end_matches('/'))
        }
        None => format!("{meant}://{rest}"),
    };
    if better != url && BackendUrl::parse(&better).is_some() {
        return format!("write `{better}`{note}");
    }
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    match authority.rsplit_once(':') {
        Some((_, port)) if !port.contains(']') && port.parse::<u16>().is_err() => {
            format!("`{port}` is not a port: write a number from 1 to 65534")
        }
        _ => "write `http://HOST:PORT/`, or `http://[unix:/PATH/OF/SOCKET]/`".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use h2o_config::{Memory, load};

    fn read(text: &str) -> Result<Backends, String> {
        let node = load("f", &Memory::new().file("f", text)).unwrap();
        Backends::read(&node).map_err(|error| error.message)
    }

    /// Reads `text` and shows the authority, path and weight of each backend, and the balancer.
    fn shown(text: &str) -> String {
        match read(text) {
            Err(message) => message,
            Ok(backends) => {
                let list = backends.list.iter();
                let list = list.map(|BackendSpec { url, weight, check }| {
                    let path = url.path.escape_ascii();
                    let check = match check {
                        None => String::new(),
                        Some(None) => " unchecked".to_owned(),
                        Some(Some(check)) => format!(" checked at {}", check.path),
                    };
                    format!("{}{path} {weight}{check}, ", url.authority)
                });
                format!("{}{:?}", list.collect::<String>(), backends.balancing)
            }
        }
    }

    #[test]
    fn hints_tell_what_is_wrong_with_a_url() {
        let long = format!("http://[unix:/{}]/", "a".repeat(107));
        let cases = [
            (
                "ftp://a",
                "write a URL that begins with `http://` or `https://`",
            ),
            ("HTTP://a/", "write `http://a/`"),
            (
                "http://a:x/",
                "`x` is not a port: write a number from 1 to 65534",
            ),
            (
                &long,
                "the path of a Unix socket has at most 107 bytes, and this one has 108",
            ),
        ];
        for (url, want) in cases {
            assert_eq!(how_to_write(url), want, "{url}");
        }
    }

    #[test]
    fn backends_are_a_url_a_list_or_a_mapping() {
        let cases = [
            ("http://A:1/x", "a:1/x 1, RoundRobin"),
            ("[ 'http://a' ]", "a/ 1, RoundRobin"),
            (
                "[ 'http://a', { url: 'http://b/?q', weight: 256 } ]",
                "a/ 1, b/?q 256, RoundRobin",
            ),
            (
                "{ backends: 'http://a', balancer: least-conn }",
                "a/ 1, LeastConn",
            ),
            (
                "{ backends: [ 'http://[unix:/S]/v', { url: 'https://b' } ], balancer: round-robin }",
                "[unix:/S]/v 1, b/ 1, RoundRobin",
            ),
            (
                "[ { url: 'http://a', health-check: OFF }, { url: 'http://b', health-check: { path: /x } } ]",
                "a/ 1 unchecked, b/ 1 checked at /x, RoundRobin",
            ),
            (
                "[ { url: 'http://a', health-check: { path: x } } ]",
                "path must begin with `/`",
            ),
            ("[]", "at least one backend url must be set"),
            ("{ backends: [] }", "at least one backend url must be set"),
            ("{ url: 'http://a' }", "unexpected key:url"),
            ("{}", "cannot find mandatory attribute: backends"),
            (
                "{ backends: { url: 'http://a' } }",
                "value for the `backends` property must be either a scalar or a sequence",
            ),
            (
                "[ [ 'http://a' ] ]",
                "items of arguments passed to proxy.reverse.url must be either a scalar or a mapping",
            ),
            ("[ { weight: 1 } ]", "cannot find mandatory attribute: url"),
            (
                "[ { url: 'http://a', waight: 1 } ]",
                "unexpected key:waight",
            ),
            (
                "[ { url: 'http://a', weight: 0 } ]",
                "weight must be an integer in range 1 - 256",
            ),
            (
                "[ { url: 'http://a', weight: 257 } ]",
                "weight must be an integer in range 1 - 256",
            ),
            (
                "[ { url: 'http://a', weight: x } ]",
                "weight must be an integer in range 1 - 256",
            ),
            (
                "{ backends: 'http://a', balancer: Least-Conn }",
                "specified balancer is not supported. Currently supported ones are: round-robin, least-conn",
            ),
            ("ftp://a", "failed to parse URL: ftp://a"),
            ("''", "failed to parse URL: "),
        ];
        for (text, want) in cases {
            assert_eq!(shown(text), want, "{text}");
        }
    }
}
