//! A worker's reference to an upstream.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::Upstream;

/// A worker's reference to an upstream. Workers drop their state of an upstream that [only
/// workers](Upstream::is_forgotten) refer to.
pub(crate) struct LocalUpstream(Arc<Upstream>);

impl LocalUpstream {
    pub(crate) fn new(upstream: &Arc<Upstream>) -> Self {
        upstream.locals.fetch_add(1, Relaxed);
        Self(Arc::clone(upstream))
    }
}

impl Drop for LocalUpstream {
    fn drop(&mut self) {
        self.0.locals.fetch_sub(1, Relaxed);
    }
}

impl Deref for LocalUpstream {
    type Target = Arc<Upstream>;

    fn deref(&self) -> &Arc<Upstream> {
        &self.0
    }
}
