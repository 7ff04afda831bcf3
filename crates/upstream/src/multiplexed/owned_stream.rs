//! A stream of a connection, as held by the request or response body that owns it.

use std::rc::Rc;

use super::connection::Connection;
use super::engine::{Engine, StreamIndex};
use crate::balancer::InUse;

/// A stream, held by its owner: a request or a response body. Dropping this before the end of the stream cancels it (RFC 9113
/// §5.4.2, RFC 9114 §4.1.1).
pub(super) struct OwnedStream<E: Engine> {
    pub(super) connection: Rc<Connection<E>>,
    pub(super) key: StreamIndex,
    /// Counts the request for the balancer.
    pub(super) in_use: Option<InUse>,
}

impl<E: Engine> Drop for OwnedStream<E> {
    fn drop(&mut self) {
        self.connection
            .state
            .borrow_mut()
            .on_owner_dropped(self.key);
    }
}
