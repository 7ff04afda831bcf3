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
    /// Adds an upstream of the path that is being configured.
    pub(super) fn note(scope: &mut Scope, upstream: &Arc<Upstream>) {
        let host = scope.host.as_ref().map(|host| host.to_authority());
        let listed = ListedUpstream {
            host: host.unwrap_or_default().into(),
            path: scope.path.clone().unwrap_or_default(),
            upstream: Arc::clone(upstream),
        };
        scope.shared.edit::<Self>().0.push(listed);
    }
}
