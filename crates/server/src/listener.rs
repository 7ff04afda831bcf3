//! A listener as its worker and its connections see it.

use std::rc::Rc;
use std::sync::Arc;

use h2o_exchange::{Endpoint, HostTable};
use h2o_http::Scheme;

use crate::setup::Setup;
use crate::site::certificates::AcceptorSlot;
use crate::site::listen::ProxyProtocol;

/// A listener of one worker.
pub(crate) struct LocalListener {
    pub(crate) setup: Rc<Setup>,
    pub(crate) endpoint: Rc<Endpoint>,
    /// The hosts that it serves, in order of mention.
    pub(crate) hosts: HostTable,
    pub(crate) tls: Option<Arc<AcceptorSlot>>,
    /// Origins announced to HTTP/2 clients (RFC 8336).
    pub(crate) origins: Option<Arc<[Box<str>]>>,
    pub(crate) proxy_protocol: ProxyProtocol,
    pub(crate) is_unix: bool,
    /// Sizes of the send and receive buffers of accepted Unix sockets, which do not inherit them.
    pub(crate) unix_buffers: (Option<usize>, Option<usize>),
}

impl LocalListener {
    /// Scheme of the requests that arrive here.
    pub(crate) const fn scheme(&self) -> Scheme {
        if self.tls.is_some() {
            Scheme::Https
        } else {
            Scheme::Http
        }
    }

    /// Whether only a proxy in front of us connects here, which also tells the client's address and scheme.
    pub(crate) fn is_behind_proxy(&self) -> bool {
        self.is_unix || self.proxy_protocol != ProxyProtocol::Off
    }
}
