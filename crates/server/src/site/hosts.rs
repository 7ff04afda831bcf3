//! `hosts`, `paths` and `strict-match`: reads the tree of virtual hosts.

use std::collections::HashSet;

use h2o_config::{Command, Directive, Error, Kinds, Level, Levels, Node, Pass, Pos};
use h2o_exchange::{Host, HostName, PathPattern, PathRoute, Scope};

use crate::site::acme;
use crate::site::listen::Listeners;

/// Positions in the configuration file of the keys of `hosts`, in the order of the file.
#[derive(Clone, Default)]
pub(crate) struct HostKeys(pub(crate) Vec<Pos>);

/// Value of `strict-match` for the host that is being read.
#[derive(Clone, Default)]
struct StrictMatch(bool);

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[
    Directive {
        name: "hosts",
        levels: Levels::GLOBAL,
        pass: Pass::Content,
        kinds: Kinds::MAPPING,
        value: "mapping of `NAME[:PORT]`, `*.SUFFIX[:PORT]` or `*[:PORT]` to the settings of the host",
        default: "mandatory",
        help: "The virtual hosts. A request is served by the first entry, in the order of the file, that matches its `Host`; if \
               none does, by the first entry without `strict-match: ON`. Only the hosts that the address of the request serves \
               count ([`listen`](#listen)).",
        apply: hosts,
    },
    Directive {
        name: "paths",
        levels: Levels::HOST,
        pass: Pass::Content,
        kinds: Kinds::MAPPING,
        value: "mapping of path to the settings of the path",
        default: "mandatory",
        help: "The paths of a host. The longest matching one wins: `/doc` matches `/doc` and `/doc/a`, not `/document`. A key such \
               as `~ ^/u/([a-z]+)` is a [regular expression](https://docs.rs/regex/#syntax) for the whole path, without query; \
               these are tried in the order of the file, if no path but `/` matches. As with `/`, nothing is cut off the path that \
               its handlers see. The groups of the expression are variables of the request: `PATH_1` and so on, `PATH_NAME` for \
               `(?<NAME>...)`. A dot matches line feeds, too. The bytes of a path that \
               is not UTF-8 are matched one by one; an expression with characters or classes beyond ASCII does not match such a path.",
        apply: paths,
    },
    Directive {
        name: "strict-match",
        levels: Levels::HOST,
        pass: Pass::Settings,
        kinds: Kinds::SCALAR,
        value: "ON|OFF",
        default: "OFF",
        help: "Whether the host serves its own name only. With `OFF`, requests for names that match no host are served as well, if \
               this is the first host with `OFF`.",
        apply: |scope, command| {
            scope.edit::<StrictMatch>().0 = command.node.on_off()?;
            Ok(())
        },
    },
];

fn hosts(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    let entries = command.node.mapping()?;
    if entries.is_empty() {
        return Err(command
            .error("the mapping cannot be empty")
            .with_hint("expected a host such as `\"example.com\":` with its `paths`"));
    }
    for (key, value) in entries {
        let name = parse_host_key(key)?;
        if scope.hosts.iter().any(|host| host.name == name) {
            return Err(key
                .error("duplicate host entry")
                .with_hint("write all paths of the host below its first entry"));
        }
        let index = u32::try_from(scope.hosts.len())
            .map_err(|_| key.error("the configuration has too many hosts"))?;
        scope.shared.edit::<HostKeys>().0.push(key.pos.clone());
        let host = scope.enter(Level::Host, |scope| {
            scope.host = Some(name.clone());
            scope.host_index = index;
            host(scope, name, key, value)
        })?;
        scope.hosts.push(host);
    }
    Ok(())
}

fn host(scope: &mut Scope, name: HostName, key: &Node, value: &Node) -> Result<Host, Error> {
    scope.edit::<StrictMatch>().0 = false;
    scope.run(value)?;
    if !value
        .mapping()?
        .iter()
        .any(|(key, _)| key.as_str() == Some("paths"))
    {
        return Err(key.error("mandatory configuration directive `paths` is missing"));
    }
    if scope.shared.get::<Listeners>().0.is_empty() {
        return Err(key.error(
            "mandatory configuration directive `listen` does not exist, neither at global level or at this host level",
        ));
    }
    acme::add_answers(scope)?;
    let mut paths = std::mem::take(&mut scope.paths);
    // The longest paths come first, and patterns, which count as the path `/`, before `/` itself. The sort is stable, so that of
    // two equal keys the first in the file stays first.
    paths.sort_by_key(|path| (std::cmp::Reverse(path.path.len()), path.pattern.is_none()));
    paths.push(scope.build_path(""));
    Ok(Host {
        alt_svc: None,
        authority: name.to_authority().into(),
        name,
        strict: scope.settings.get::<StrictMatch>().0,
        // `set_client_authorities` fills this in once all listeners are read.
        client_authorities: Box::default(),
        looks_behind_slashes: looks_behind_slashes(&paths),
        paths,
    })
}

/// Whether a path of a request with repeated slashes may lead past what the configuration says for the path without them. The last of the
/// host's paths is for requests that match no path.
fn looks_behind_slashes(paths: &[PathRoute]) -> bool {
    let has_rules = |path: &PathRoute| path.access_rules().next().is_some();
    paths.iter().any(has_rules) || paths.len() > 2 && paths.iter().any(PathRoute::reads_files)
}

fn paths(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    let prefixes = scope.paths.iter().filter(|path| path.pattern.is_none());
    let mut known: HashSet<Box<str>> = prefixes.map(|path| path.path.clone()).collect();
    for (key, value) in command.node.mapping()? {
        let path = key
            .as_str()
            .ok_or_else(|| key.error("key must be a scalar"))?;
        if path.is_empty() {
            return Err(
                key.error("key (representing the virtual path) must not be an empty string")
            );
        }
        let pattern = match path.strip_prefix('~') {
            Some(text) => Some(PathPattern::new(text.trim_start()).map_err(|text| {
                key.error(text)
                    .with_hint("write a regular expression such as `~ ^/u/([a-z]+)`")
            })?),
            None => None,
        };
        // A pattern only decides which requests an entry of `paths` gets; its handlers see the whole path of the request.
        let prefix = if pattern.is_some() { "/" } else { path };
        let (mut route, has_handlers) = scope.enter(Level::Path, |scope| {
            scope.path = Some(prefix.into());
            scope.run(value)?;
            let has_handlers = !scope.handlers.is_empty();
            Ok((scope.build_path(prefix), has_handlers))
        })?;
        route.pattern = pattern;
        let is_pattern = route.pattern.is_some();
        let is_twin = !is_pattern && !known.insert(path.into());
        if let Some(error) = doubtful_path(command, key, path).filter(|_| !is_pattern) {
            scope.warn(&error);
        } else if is_twin {
            let error = command.error_at(key, format!("the path `{path}` is given twice"));
            let hint =
                "the first entry gets all requests; write the handlers of both below one key";
            scope.warn(&error.with_hint(hint));
        } else if !has_handlers {
            let error = command.error_at(key, format!("the path `{path}` has no handler"));
            let hint = "requests get 404; add a handler such as `file.dir` or `proxy.reverse.url`";
            scope.warn(&error.with_hint(hint));
        }
        scope.paths.push(route);
    }
    Ok(())
}

/// Returns a warning for a key of `paths` that would be a pattern in other servers, or that matches no request path.
fn doubtful_path(command: &Command<'_>, key: &Node, path: &str) -> Option<Error> {
    if let Some(prefix) = path
        .strip_suffix('*')
        .filter(|prefix| prefix.ends_with('/'))
    {
        let error = command.error_at(key, "`*` has no special meaning in a path");
        let hint = format!("write `{prefix}`, which matches everything below it");
        return Some(error.with_hint(hint));
    }
    let is_pattern = path.starts_with(['^', '='])
        || path.ends_with('$')
        || path.contains(['\\', '*', '|'])
        || path.contains("(?");
    if is_pattern {
        let error = command.error_at(
            key,
            format!("the server compares `{path}` character by character"),
        );
        return Some(error.with_hint(
            "a path is a prefix such as `/app`; a regular expression is written `~ ^/u/([a-z]+)`",
        ));
    }
    if path.contains('?') {
        let error = command.error_at(
            key,
            format!("`{path}` is compared without the query of the request"),
        );
        return Some(error.with_hint("write the path alone"));
    }
    let mut normal = Vec::new();
    h2o_http::path::normalize(path.as_bytes(), &mut normal);
    let hint = if !path.starts_with('/') {
        format!("paths begin with a slash: write `/{path}`")
    } else if normal != path.as_bytes() {
        let normal = String::from_utf8_lossy(&normal);
        format!(
            "the paths of requests are decoded, and `..` is resolved, before they are compared: write `{normal}`"
        )
    } else {
        return None;
    };
    let error = command.error_at(key, format!("no request path matches `{path}`"));
    Some(error.with_hint(hint))
}

fn parse_host_key(key: &Node) -> Result<HostName, Error> {
    const INVALID: &str = "invalid key (must be either `host` or `host:port`)";
    let text = key
        .as_str()
        .ok_or_else(|| key.error("key must be a scalar"))?;
    let (name, port) = match text.rsplit_once(':') {
        // The last colon is not before a port if the text ends with `]`: it belongs to an IPv6 address in brackets.
        Some((name, port)) if !port.ends_with(']') => {
            let port = Some(port)
                .filter(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
            (
                name,
                Some(
                    port.and_then(|port| port.parse().ok())
                        .ok_or_else(|| key.error(INVALID))?,
                ),
            )
        }
        _ => (text, None),
    };
    let is_bad = |byte: u8| byte <= b' ' || byte == 0x7f || byte == b'/';
    let is_address = name.starts_with('[') && name.ends_with(']');
    let has_brackets = name.contains(['[', ']']);
    if name.is_empty()
        || name.bytes().any(is_bad)
        || (!is_address && (name.contains(':') || has_brackets))
    {
        return Err(key.error(INVALID));
    }
    let wildcard_elsewhere = name.rfind('*').is_some_and(|at| at != 0);
    if wildcard_elsewhere || (name.starts_with('*') && name.len() > 1 && !name.starts_with("*.")) {
        return Err(key.error("wildcard (*) can only be used at the start of the hostname"));
    }
    Ok(HostName {
        name: name.to_ascii_lowercase().into(),
        port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_keys_are_names_with_an_optional_port() {
        type Want = Option<(&'static str, Option<u16>)>;
        let cases: &[(&str, Want)] = &[
            ("Example.COM", Some(("example.com", None))),
            ("example.com:8080", Some(("example.com", Some(8080)))),
            ("*", Some(("*", None))),
            ("*:81", Some(("*", Some(81)))),
            ("*.example.com", Some(("*.example.com", None))),
            ("[::1]", Some(("[::1]", None))),
            ("[::1]:443", Some(("[::1]", Some(443)))),
            ("[::1", None),
            ("a]", None),
            ("a.*.com", None),
            ("*foo", None),
            ("a b", None),
            ("a/b", None),
            ("a:port", None),
            ("a:", None),
            ("a:70000", None),
            ("", None),
            (":80", None),
        ];
        for (text, want) in cases {
            let source = h2o_config::Memory::new().file("f", format!("{text:?}: 1\n"));
            let top = h2o_config::load("f", &source).unwrap();
            let key = &top.as_mapping().unwrap()[0].0;
            let got = parse_host_key(key)
                .ok()
                .map(|name| (name.name.to_string(), name.port));
            assert_eq!(
                got,
                want.map(|(name, port)| (name.to_string(), port)),
                "{text}"
            );
        }
    }
}
