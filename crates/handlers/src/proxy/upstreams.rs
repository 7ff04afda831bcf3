//! The list of a site's backends, for the status report and for reloads.

use std::sync::Arc;

use h2o_exchange::Scope;
use h2o_upstream::Upstream;
use rustc_hash::{FxHashMap, FxHashSet};

/// Most upstreams of other paths with the same backends that a new upstream is compared with, to take over one with the
/// same settings.
const MAX_COMPARED: usize = 64;

/// The upstreams of all `proxy.reverse.url` directives in a site configuration.
#[derive(Clone, Default)]
pub(crate) struct Upstreams {
    list: Vec<ListedUpstream>,
    /// Indices into `list` of the upstreams of each host and path.
    by_place: FxHashMap<(Box<str>, Box<str>), Vec<usize>>,
    /// Indices into `list` of the upstreams with the same backends, by the authorities of the backends.
    by_backends: FxHashMap<Box<str>, Vec<usize>>,
    /// The memory addresses of the listed upstreams. By these, an upstream of the running configuration is taken over
    /// only once.
    taken: FxHashSet<usize>,
}

/// The upstream of one `proxy.reverse.url`.
#[derive(Clone)]
pub(crate) struct ListedUpstream {
    /// The host of the configuration that the directive belongs to, as `NAME` or `NAME:PORT`.
    pub(crate) host: Box<str>,
    /// The configured path that the directive belongs to.
    pub(crate) path: Box<str>,
    pub(crate) upstream: Arc<Upstream>,
}

impl Upstreams {
    /// The upstreams in the order of the configuration.
    pub(crate) fn list(&self) -> &[ListedUpstream] {
        &self.list
    }

    /// Adds an upstream of the path that is being configured. Returns the upstream to use: that of the running
    /// configuration, if it has the same settings.
    pub(crate) fn note(scope: &mut Scope, upstream: Arc<Upstream>) -> Arc<Upstream> {
        let host = scope.host.as_ref().map(|host| host.to_authority());
        let host: Box<str> = host.unwrap_or_default().into();
        let path = scope.path.clone().unwrap_or_default();
        let place = (host.clone(), path.clone());
        let names = upstream.backends().iter();
        let names: Vec<&str> = names.map(|backend| &*backend.url.authority).collect();
        let backends: Box<str> = names.join(" ").into();
        let running = scope.running.as_ref();
        let running = running.map(|site| site.shared.get::<Self>());
        let known = scope.shared.edit::<Self>();
        let upstream = match running {
            Some(running) => upstream.or_unchanged(running.candidates(&place, &backends, known)),
            None => upstream,
        };
        let index = known.list.len();
        known.by_place.entry(place).or_default().push(index);
        known.by_backends.entry(backends).or_default().push(index);
        known.taken.insert(Arc::as_ptr(&upstream).addr());
        known.list.push(ListedUpstream {
            host,
            path,
            upstream: Arc::clone(&upstream),
        });
        upstream
    }

    /// Upstreams of this configuration that the configuration `next` may take over for a path; those of the same path
    /// come first.
    fn candidates<'a>(
        &'a self,
        place: &(Box<str>, Box<str>),
        backends: &str,
        next: &'a Self,
    ) -> impl Iterator<Item = &'a Arc<Upstream>> {
        let own = self.by_place.get(place).into_iter().flatten();
        let others = self.by_backends.get(backends).into_iter().flatten();
        let all = own.chain(others.take(MAX_COMPARED));
        let upstreams = all.filter_map(|&index| Some(&self.list.get(index)?.upstream));
        upstreams.filter(|upstream| !next.taken.contains(&Arc::as_ptr(upstream).addr()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Setup;

    #[test]
    fn a_reload_takes_each_unchanged_upstream_over_once() {
        let setup = Setup {
            host: "a.test",
            path: "/a",
            ..Setup::new(super::super::DIRECTIVES, None)
        };
        let (a, b) = (
            "proxy.reverse.url: 'http://a/'",
            "proxy.reverse.url: 'http://b/'",
        );
        let two = format!("- {a}\n- {b}\n- {a}");
        let first = Arc::new(setup.read(["", "", &two]).unwrap());
        let addresses = |site: &h2o_exchange::Site| -> Vec<usize> {
            let upstreams = site.shared.get::<Upstreams>();
            let upstreams = upstreams.list().iter();
            upstreams
                .map(|listed| Arc::as_ptr(&listed.upstream).addr())
                .collect()
        };
        let running = addresses(&first);
        let next = |path: &'static str, host: &str, text: &str| {
            let setup = Setup { path, ..setup };
            let next = setup.read_next(["", host, text], Some(Arc::clone(&first)));
            let next = next.unwrap();
            let position = |address: &usize| running.iter().position(|known| known == address);
            addresses(&next).iter().map(position).collect::<Vec<_>>()
        };
        assert_eq!(next("/a", "", &two), [Some(0), Some(1), Some(2)]);
        // An unchanged upstream is also taken over if it is at another path now, but only once.
        let three = format!("- {b}\n- {a}\n- {a}\n- {a}");
        assert_eq!(next("/b", "", &three), [Some(1), Some(0), Some(2), None]);
        assert_eq!(next("/a", "proxy.timeout.io: 7", &two), [None; 3]);
    }
}
