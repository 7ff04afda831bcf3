//! The list of a site's backends, for the status report.

use std::sync::Arc;

use h2o_exchange::Scope;
use h2o_upstream::Upstream;

/// Every `proxy.reverse.url` of a site, in order of the configuration.
#[derive(Clone, Default)]
pub(crate) struct Upstreams(pub(crate) Vec<ListedUpstream>);

/// One `proxy.reverse.url`.
#[derive(Clone)]
pub(crate) struct ListedUpstream {
    /// Its host entry, as `NAME` or `NAME:PORT`.
    pub(crate) host: Box<str>,
    /// The key of its path.
    pub(crate) path: Box<str>,
    pub(crate) upstream: Arc<Upstream>,
}

impl Upstreams {
    /// Adds an upstream of the path that is being configured. Returns the one to use: that of the running configuration, if it
    /// is the same.
    pub(super) fn note(scope: &mut Scope, upstream: Arc<Upstream>) -> Arc<Upstream> {
        let host = scope.host.as_ref().map(|host| host.to_authority());
        let mut listed = ListedUpstream {
            host: host.unwrap_or_default().into(),
            path: scope.path.clone().unwrap_or_default(),
            upstream,
        };
        if let Some(running) = &scope.running {
            let taken = scope.shared.get::<Self>();
            listed.upstream = listed.unchanged(&running.shared.get::<Self>(), &taken);
        }
        let upstream = Arc::clone(&listed.upstream);
        scope.shared.edit::<Self>().0.push(listed);
        upstream
    }
}

impl ListedUpstream {
    /// The upstream of `running` that is the same as this new one, or else this one. Each is taken once; that of the same path is
    /// preferred.
    fn unchanged(&self, running: &Upstreams, taken: &Upstreams) -> Arc<Upstream> {
        let is_taken = |upstream: &Arc<Upstream>| {
            let mut taken = taken.0.iter();
            taken.any(|taken| Arc::ptr_eq(&taken.upstream, upstream))
        };
        let free = (running.0.iter()).filter(|listed| !is_taken(&listed.upstream));
        let (own, others): (Vec<_>, Vec<_>) =
            free.partition(|listed| listed.host == self.host && listed.path == self.path);
        let candidates = own.into_iter().chain(others);
        Arc::clone(&self.upstream).or_unchanged(candidates.map(|listed| &listed.upstream))
    }
}
