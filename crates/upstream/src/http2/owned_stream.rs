//! A stream of an HTTP/2 connection, as its owner holds it.

use std::rc::Rc;

use h2o_http2::StreamKey;

use super::connection::Connection;
use crate::balancer::InUse;

/// A stream with its owner. Dropping this before the end cancels the stream (RFC 9113 §5.4.2).
pub(super) struct OwnedStream {
    pub(super) connection: Rc<Connection>,
    pub(super) key: StreamKey,
    /// Counts the request for the balancer.
    pub(super) in_use: Option<InUse>,
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        self.connection
            .state
            .borrow_mut()
            .on_owner_dropped(self.key);
    }
}
