//! A valid configuration: an immutable value that every exchange references until it ends.

use std::sync::Arc;

use h2o_http::{Headers, Scheme};

use crate::{
    ConnectionInfo, Endpoint, EnvCommands, Filter, Handler, Logger, PathPattern, SettingsMap,
};

/// A whole configuration. Built by [`crate::Scope`] and never changed.
pub struct Site {
    /// The hosts of the configuration in file order.
    pub hosts: Vec<Host>,
    /// The settings of the global level, one value per feature.
    pub settings: SettingsMap,
    /// Settings of features that apply to the whole server, collected from all levels: listeners, log targets and
    /// others.
    pub shared: SettingsMap,
    /// The host for requests that match no other host; it has no handlers, filters or loggers.
    pub nowhere: Host,
    /// Limits on the number of internal redirects that a request may make.
    pub reroute_limits: RerouteLimits,
    /// The value of the `server` field of responses; `None` if the server adds no such field.
    pub server_field: Option<Box<[u8]>>,
}

/// Limits on the number of internal redirects that a request may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RerouteLimits {
    /// The value of `max-delegations`.
    pub delegations: u32,
    /// The value of `max-reprocesses`.
    pub reprocesses: u32,
}

impl Default for RerouteLimits {
    fn default() -> Self {
        Self {
            delegations: 5,
            reprocesses: 5,
        }
    }
}

impl Default for Site {
    fn default() -> Self {
        let nowhere = Host {
            paths: vec![PathRoute::default()],
            ..Host::default()
        };
        Self {
            hosts: Vec::new(),
            settings: SettingsMap::default(),
            shared: SettingsMap::default(),
            nowhere,
            reroute_limits: RerouteLimits::default(),
            server_field: None,
        }
    }
}

/// A worker's reference to a [`Site`], counted without atomic operations, since every exchange takes one.
#[derive(Clone, Default)]
pub struct LocalSite(pub Arc<Site>);

impl std::ops::Deref for LocalSite {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.0
    }
}

/// The host and path chosen for a request, as indices into a [`Site`]. The default leads to a 404 response without a
/// log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    host: u32,
    path: u32,
}

impl Default for Route {
    fn default() -> Self {
        Self {
            host: u32::MAX,
            path: u32::MAX,
        }
    }
}

/// The name and port of a host: its key in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostName {
    /// The host name in lower case; `*` or `*.suffix` for wildcards; IPv6 literals keep their brackets.
    pub name: Box<str>,
    /// The port, if the key has one.
    pub port: Option<u16>,
}

impl HostName {
    /// Whether this host name of the configuration matches `host` (any letter case) at `port` under `scheme` (H2O
    /// compatibility: H2O's rules; see the manual on host selection).
    #[must_use]
    pub fn matches(&self, host: &[u8], port: Option<u16>, scheme: Scheme) -> bool {
        let port = port.unwrap_or(scheme.default_port());
        if self.port.unwrap_or(scheme.default_port()) != port {
            return false;
        }
        self.matches_name(host)
    }

    /// Like [`HostName::matches`], but ignores the port.
    #[must_use]
    pub fn matches_name(&self, host: &[u8]) -> bool {
        match self.name.as_bytes() {
            b"*" => true,
            [b'*', suffix @ ..] => {
                host.len() > suffix.len()
                    && host[host.len() - suffix.len()..].eq_ignore_ascii_case(suffix)
            }
            name => name.eq_ignore_ascii_case(host),
        }
    }

    /// The host as `name[:port]`, for logs.
    #[must_use]
    pub fn to_authority(&self) -> String {
        self.port.map_or_else(
            || self.name.to_string(),
            |port| format!("{}:{port}", self.name),
        )
    }
}

/// A host of the configuration, with its paths.
#[derive(Default)]
pub struct Host {
    /// The name and port that the configuration gives as the host's key.
    pub name: HostName,
    /// `name[:port]` as configured, lower case, for logs.
    pub authority: Box<str>,
    /// Whether the host is never the fallback for unknown names.
    pub strict: bool,
    /// For each listener the `client-ca-file` that must have issued the certificates of this host's clients; `None`
    /// where clients need no certificate. Empty if no listener requires one.
    pub client_authorities: Box<[(Endpoint, Option<Arc<str>>)]>,
    /// The `alt-svc` header that tells clients of the host's QUIC listener (RFC 7838 §3), if it has one.
    pub alt_svc: Option<Box<[u8]>>,
    /// Whether paths of requests are also looked up with repeated slashes merged: a guard of the host lets only some clients through, or the
    /// host has several paths, and one of them reads files.
    pub looks_behind_slashes: bool,
    /// The paths of the host, longest first; paths of equal length in file order, with patterns first. The last entry
    /// is for requests that match no path.
    pub paths: Vec<PathRoute>,
}

impl Host {
    /// Whether a request on `connection` must be refused with 421 (RFC 9110 §15.5.20), because the client has not
    /// presented the certificate that the host requires: its TLS handshake was for another host name or for none.
    #[inline]
    #[must_use]
    pub fn is_closed_to(&self, connection: &ConnectionInfo) -> bool {
        !self.client_authorities.is_empty() && self.lacks_certificate(connection)
    }

    #[cold]
    fn lacks_certificate(&self, connection: &ConnectionInfo) -> bool {
        let shown = connection.tls.as_ref();
        let shown = shown.and_then(|tls| tls.client_authority.as_ref());
        let lacks = |wanted: &Option<Arc<str>>| wanted.is_some() && wanted.as_ref() != shown;
        let mut listeners = self.client_authorities.iter();
        match listeners.find(|(listener, _)| *listener == *connection.listener) {
            Some((_, wanted)) => lacks(wanted),
            // An internal redirect has led from another listener to this host. It is allowed only if some listener of
            // the host requires no client certificate.
            None => self
                .client_authorities
                .iter()
                .all(|(_, wanted)| lacks(wanted)),
        }
    }
}

/// A path of a host, with the handlers, filters, loggers and settings for its requests.
#[derive(Default)]
pub struct PathRoute {
    /// The path as configured, which is matched as a prefix; empty for requests that match no path.
    pub path: Box<str>,
    /// For paths that are configured as patterns: the expression that the whole path of a request has to match. Their
    /// `path` is `/`.
    pub pattern: Option<PathPattern>,
    /// The handlers of the path, in the order in which they run.
    pub handlers: Vec<Box<dyn Handler>>,
    /// How many of the first handlers are guards, such as access control, which run before the body of a request is
    /// collected.
    pub guards: u32,
    /// The filters of the path, in the order in which they run.
    pub filters: Vec<Box<dyn Filter>>,
    /// The access loggers of the path, which run when an exchange is finished.
    pub loggers: Vec<Arc<dyn Logger>>,
    /// Whether a logger uses the response's header fields as they were before the filters.
    pub keep_unfiltered: bool,
    /// Whether a logger or filter uses the timing trace of requests to backends.
    pub keep_trace: bool,
    /// Header fields of a `103 Early Hints` response, which is sent to clients while they wait for the final one.
    pub early_hints: Option<Headers>,
    /// The `setenv` commands that are applied when a request is routed to this path; `None` if there are none.
    pub env: Option<EnvCommands>,
    /// The value of `error-log.emit-request-errors`.
    pub emit_request_errors: bool,
    /// Final settings of the path, for features that need them while serving.
    pub settings: SettingsMap,
}

impl PathRoute {
    /// Whether the normalised `path` of a request is this path or below it: this path is a prefix of it that ends at a
    /// slash.
    #[must_use]
    pub fn matches(&self, path: &[u8]) -> bool {
        let key = self.path.as_bytes();
        let Some((begin, _)) = path.split_at_checked(key.len()) else {
            return false;
        };
        // Compares from the end, since the paths of a host often begin alike and differ at the end (bench:
        // routing/last-of-100-paths).
        begin.iter().rev().eq(key.iter().rev())
            && (key.ends_with(b"/") || path.len() == key.len() || path[key.len()] == b'/')
    }

    /// The rules by which the guards of the path let clients through; see [`Handler::access_rules`].
    pub fn access_rules(&self) -> impl Iterator<Item = usize> {
        let guards = self.handlers.iter().take(self.guards as usize);
        guards.filter_map(|guard| guard.access_rules())
    }

    /// Whether a handler of the path [reads files](Handler::reads_files).
    #[must_use]
    pub fn reads_files(&self) -> bool {
        self.handlers.iter().any(|handler| handler.reads_files())
    }

    /// The rest of the request's normalised `path`, after this path of the configuration.
    #[must_use]
    pub fn rest<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        path.get(self.path.len()..).unwrap_or_default()
    }
}

impl Site {
    /// The host that `route` refers to.
    #[must_use]
    pub fn host(&self, route: Route) -> &Host {
        self.hosts.get(route.host as usize).unwrap_or(&self.nowhere)
    }

    /// The path that `route` refers to.
    #[must_use]
    pub fn path(&self, route: Route) -> &PathRoute {
        let host = self.host(route);
        host.paths
            .get(route.path as usize)
            .unwrap_or_else(|| &self.nowhere.paths[0])
    }

    /// Chooses the route of a normalised request path on a host: the longest path that matches, else the entry for
    /// requests that match no path. That entry is also chosen if the path has repeated slashes and leads past the access rules of the path
    /// that it would match without them, or past that path to files: file systems and most applications take `//private` for `/private`.
    #[must_use]
    #[inline]
    pub fn select_path(&self, host: u32, path: &[u8]) -> Route {
        let found = self.select_as_written(host, path);
        if self.hosts[host as usize].looks_behind_slashes
            && path.windows(2).any(|pair| pair == b"//")
            && self.is_detour(host, path, found)
        {
            let last = self.hosts[host as usize].paths.len().saturating_sub(1);
            let path = u32::try_from(last).unwrap_or(u32::MAX);
            return Route { host, path };
        }
        found
    }

    /// Whether a path with repeated slashes, which leads to `found`, leads past what the configuration says for the path without them.
    #[cold]
    fn is_detour(&self, host: u32, path: &[u8], found: Route) -> bool {
        let mut merged = path.to_vec();
        merged.dedup_by(|next, before| *next == b'/' && *before == b'/');
        let meant = self.select_as_written(host, &merged);
        if meant == found {
            return false;
        }
        let (meant, found) = (self.path(meant), self.path(found));
        let rules: Vec<usize> = found.access_rules().collect();
        found.reads_files() || meant.access_rules().any(|rule| !rules.contains(&rule))
    }

    #[inline]
    fn select_as_written(&self, host: u32, path: &[u8]) -> Route {
        let paths = &self.hosts[host as usize].paths;
        let last = paths.len().saturating_sub(1);
        let found = paths[..last]
            .iter()
            .position(|entry| entry.matches(path))
            .unwrap_or(last);
        let found = match paths.get(found) {
            Some(entry) if entry.pattern.is_some() => found + first_match(&paths[found..], path),
            Some(_) | None => found,
        };
        Route {
            host,
            path: u32::try_from(found).unwrap_or(u32::MAX),
        }
    }
}

/// The index of the first path of a host that matches, including its pattern, or the index of the last path if none
/// matches. A function of its own, so that hosts without patterns do not pay for checking them.
#[cold]
fn first_match(paths: &[PathRoute], path: &[u8]) -> usize {
    let is_match = |entry: &PathRoute| {
        let pattern = entry.pattern.as_ref();
        // A path of which a pattern cannot tell whether it matches is left to the pattern's guards, if it has any.
        let is_meant = |pattern: &PathPattern| pattern.is_match(path).unwrap_or(entry.guards > 0);
        entry.matches(path) && pattern.is_none_or(is_meant)
    };
    let found = paths.iter().position(is_match);
    found.unwrap_or(paths.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Exchange, Outcome};

    /// Asserts which entry of the host each request path leads to.
    fn assert_paths(host: Host, cases: &[(&str, &str)]) {
        let site = Site {
            hosts: vec![host],
            ..Site::default()
        };
        for (path, want) in cases {
            let route = site.select_path(0, path.as_bytes());
            assert_eq!(*site.path(route).path, **want, "{path}");
        }
    }

    /// A guard with these rules, or a handler.
    enum Kind {
        Guard(Option<usize>),
        Files,
        Other,
    }

    impl Handler for Kind {
        fn on_request(&self, _: &mut Exchange) -> Outcome {
            Outcome::Declined
        }

        fn access_rules(&self) -> Option<usize> {
            match self {
                Self::Guard(rules) => *rules,
                Self::Files | Self::Other => None,
            }
        }

        fn reads_files(&self) -> bool {
            matches!(self, Self::Files)
        }
    }

    #[test]
    fn no_repeated_slash_leads_past_access_rules() {
        let entry = |path: &str, guards: &[Option<usize>]| PathRoute {
            path: path.into(),
            guards: u32::try_from(guards.len()).unwrap(),
            handlers: (guards.iter())
                .map(|rules| Box::new(Kind::Guard(*rules)) as Box<dyn Handler>)
                .collect(),
            ..PathRoute::default()
        };
        // The rules 1 are inherited from the host.
        let host = Host {
            looks_behind_slashes: true,
            paths: vec![
                entry("/private", &[Some(1), Some(2)]),
                entry("/also", &[Some(1), None]),
                entry("/open", &[]),
                entry("/", &[Some(1)]),
                entry("", &[Some(1)]),
            ],
            ..Host::default()
        };
        let cases = [
            ("/private/x", "/private"),
            ("/private//x", "/private"),
            ("//private/x", ""),
            ("///private", ""),
            ("//also/x", "/"),
            ("//open/x", "/"),
            ("//else", "/"),
        ];
        assert_paths(host, &cases);
    }

    #[test]
    fn no_repeated_slash_leads_past_a_path_to_its_files() {
        let entry = |path: &str, handler: Kind| PathRoute {
            path: path.into(),
            handlers: vec![Box::new(handler)],
            ..PathRoute::default()
        };
        let host = Host {
            looks_behind_slashes: true,
            paths: vec![
                entry("/app/uploads", Kind::Other),
                entry("/app", Kind::Files),
                entry("/", Kind::Other),
                entry("", Kind::Other),
            ],
            ..Host::default()
        };
        let cases = [
            ("/app/uploads/x", "/app/uploads"),
            ("/app/uploads//x", "/app/uploads"),
            ("/app//uploads/x", ""),
            ("/app//other", "/app"),
            ("//app/uploads/x", "/"),
        ];
        assert_paths(host, &cases);
    }

    #[test]
    fn paths_match_at_slashes_and_the_longest_wins() {
        let entry = |path: &str| PathRoute {
            path: path.into(),
            ..PathRoute::default()
        };
        let host = Host {
            paths: vec![
                entry("/doc/a"),
                entry("/doc/"),
                entry("/doc"),
                entry("/"),
                entry(""),
            ],
            ..Host::default()
        };
        let cases = [
            ("/doc", "/doc"),
            ("/doc/", "/doc/"),
            ("/doc/x", "/doc/"),
            ("/doc/a", "/doc/a"),
            ("/doc/ab", "/doc/"),
            ("/document", "/"),
        ];
        assert_paths(host, &cases);
    }
}
