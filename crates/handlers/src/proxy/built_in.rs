//! The built-in proxy: fetches the target of an internal redirect from a server whose name no host of the configuration
//! has.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use h2o_exchange::{Exchange, Outcome, Site, Worker};
use h2o_http::Scheme;
use h2o_tls::TlsClientError;
use h2o_upstream::{BackendHost, BackendUrl, Balancing, Upstream};
use rustc_hash::FxHashMap;

use super::handler::{LocalProxy, Proxy, forward_request};
use super::response;
use super::settings::ProxySettings;
use super::target::PathMapping;

/// Longest authority in bytes: a name (RFC 1035 §2.3.4) with a port.
const MAX_AUTHORITY: usize = 255 + ":65535".len();

/// A server whose name no host of the configuration has.
pub struct OtherServer(BackendUrl);

impl OtherServer {
    /// The server with this authority; `None` if the authority is not valid.
    #[must_use]
    pub fn new(scheme: Scheme, authority: &[u8]) -> Option<Self> {
        let authority = std::str::from_utf8(authority).ok()?;
        if authority.len() > MAX_AUTHORITY {
            return None;
        }
        let url = format!("{}://{authority}/", scheme.as_str());
        BackendUrl::parse(&url).map(Self)
    }

    /// Whether the server listens at a Unix socket of this machine.
    #[must_use]
    pub fn is_unix_socket(&self) -> bool {
        matches!(self.0.host, BackendHost::Unix(_))
    }

    /// Answers the request with the server's response, under the settings of the global level.
    #[must_use]
    pub fn fetch(self, exchange: &mut Exchange) -> Outcome {
        let servers = exchange.worker.local::<OtherServers>();
        let (worker, site) = (&exchange.worker, &exchange.site.0);
        match servers.proxy(worker, site, self.0) {
            Ok(proxy) => forward_request(proxy, exchange, PathMapping::Whole),
            Err(error) => {
                exchange.note_error("core", &error.to_string());
                Outcome::Done(response::bad_gateway(exchange, "internal error"))
            }
        }
    }
}

/// The upstream for requests of scripts to the server of `url`, under the settings of the global level.
///
/// # Errors
/// The reason why the certificates that the settings name cannot be used.
#[cfg(feature = "mruby")]
pub(crate) fn upstream_for(
    worker: &Worker,
    site: &Arc<Site>,
    url: BackendUrl,
) -> Result<Arc<Upstream>, TlsClientError> {
    let proxy = worker.local::<OtherServers>().proxy(worker, site, url)?;
    Ok(Arc::clone(proxy.upstream()))
}

/// The servers that a worker has sent requests to. `h2o_upstream` holds their idle connections, and closes the idle
/// connections to a server once the server is dropped here.
#[derive(Default)]
struct OtherServers(RefCell<RememberedServers>);

#[derive(Default)]
struct RememberedServers {
    /// The site configuration that the settings are taken from.
    site: Weak<Site>,
    settings: ProxySettings,
    /// The servers by scheme and authority.
    servers: FxHashMap<String, RememberedServer>,
}

struct RememberedServer {
    proxy: Rc<LocalProxy>,
    used: Instant,
}

impl OtherServers {
    fn proxy(
        &self,
        worker: &Worker,
        site: &Arc<Site>,
        url: BackendUrl,
    ) -> Result<Rc<LocalProxy>, TlsClientError> {
        let now = worker.clock.now();
        let mut known = self.0.borrow_mut();
        known.read_settings(site);
        let key = format!("{}://{}", url.scheme.as_str(), url.authority);
        if let Some(server) = known.servers.get_mut(&key) {
            server.used = now;
            return Ok(Rc::clone(&server.proxy));
        }
        known.make_room(now);
        let settings = &known.settings;
        let upstream = Upstream::new(vec![(url, 1)], Balancing::RoundRobin, settings.upstream()?);
        let proxy = Rc::new(LocalProxy(Arc::new(Proxy::new(upstream, settings))));
        let server = RememberedServer {
            proxy: Rc::clone(&proxy),
            used: now,
        };
        known.servers.insert(key, server);
        Ok(proxy)
    }
}

impl RememberedServers {
    /// Most servers that a worker remembers. There is a limit because responses of backends choose the servers, and may
    /// name many.
    const MOST: usize = 256;
    /// A server without requests for this long is dropped when a new one is added.
    const IDLE: Duration = Duration::from_secs(60);

    fn read_settings(&mut self, site: &Arc<Site>) {
        if !std::ptr::eq(self.site.as_ptr(), Arc::as_ptr(site)) {
            *self = Self {
                site: Arc::downgrade(site),
                settings: site.settings.get::<ProxySettings>().of_built_in(),
                servers: FxHashMap::default(),
            };
        }
    }

    /// Drops servers until there is room for another one.
    fn make_room(&mut self, now: Instant) {
        let servers = &mut self.servers;
        servers.retain(|_, server| now.saturating_duration_since(server.used) < Self::IDLE);
        while servers.len() >= Self::MOST {
            let longest_idle = servers.iter().min_by_key(|(_, server)| server.used);
            let Some(key) = longest_idle.map(|(key, _)| key.clone()) else {
                return;
            };
            servers.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use h2o_upstream::NameOrigin;

    use super::*;
    use crate::testing::{Setup, request};

    const SETUP: Setup = Setup::new(super::super::DIRECTIVES, None);

    #[test]
    fn servers_have_a_name_that_can_be_one() {
        let long = "h".repeat(MAX_AUTHORITY + 1);
        for (authority, want) in [
            ("h", true),
            ("H:8080", true),
            ("[::1]:1", true),
            ("[unix:/a/b]", true),
            (&long[1..], true),
            (&long, false),
            ("", false),
            ("u@h", false),
            ("h:", false),
            ("h:99999", false),
            ("[", false),
        ] {
            let server = OtherServer::new(Scheme::Http, authority.as_bytes());
            assert_eq!(server.is_some(), want, "{authority}");
        }
        assert!(OtherServer::new(Scheme::Http, b"h\xff").is_none());
    }

    #[test]
    fn as_many_servers_are_known_as_may_be() {
        let config = "proxy.preserve-host: ON\nproxy.tunnel: ON\nproxy.header.set: 'a: b'\nproxy.timeout.io: 7";
        let site = SETUP.read([config, "", ""]).unwrap();
        let exchange = request(site, "GET", "default", "/");
        let servers = OtherServers::default();
        let ask = |number: usize| {
            let url = BackendUrl::parse(&format!("http://h{number}/")).unwrap();
            servers
                .proxy(&exchange.worker, &exchange.site.0, url)
                .unwrap_or_else(|error| panic!("{error}"))
        };
        let first = ask(0);
        assert!(Rc::ptr_eq(&first, &ask(0)));
        for number in 1..=RememberedServers::MOST {
            let last = ask(number);
            assert!(Rc::ptr_eq(&last, &ask(number)));
        }
        let mut known = servers.0.borrow_mut();
        assert_eq!(known.servers.len(), RememberedServers::MOST);
        let settings = &known.settings;
        assert!(!settings.request.preserve_host && settings.request.edits.is_empty());
        assert!(!settings.tunnels && !settings.response.relocates);
        assert_eq!(settings.name_origin, NameOrigin::Requested);
        assert_eq!(settings.timeouts.io, Duration::from_millis(7));
        let later = exchange.worker.clock.now() + RememberedServers::IDLE;
        known.make_room(later);
        assert!(known.servers.is_empty());
    }
}
