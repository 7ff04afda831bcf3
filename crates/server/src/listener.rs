//! A listener as a worker and its connections see it.

use std::rc::Rc;
use std::sync::Arc;

use h2o_exchange::{Endpoint, HostTable};
use h2o_http::Scheme;

use crate::setup::Setup;
use crate::site::certificates::AcceptorSlot;
use crate::site::listen::ProxyProtocol;

/// A listener as its worker sees it.
pub(crate) struct LocalListener {
    pub(crate) setup: Rc<Setup>,
    pub(crate) endpoint: Rc<Endpoint>,
    /// Host entries it serves, in order of mention.
    pub(crate) hosts: HostTable,
    pub(crate) tls: Option<Arc<AcceptorSlot>>,
    /// Told to HTTP/2 clients (RFC 8336).
    pub(crate) origins: Option<Arc<[Box<str>]>>,
    pub(crate) proxy_protocol: ProxyProtocol,
    pub(crate) is_unix: bool,
    /// Send and receive buffer of accepted Unix sockets, which do not inherit them.
    pub(crate) unix_buffers: (Option<usize>, Option<usize>),
}

impl LocalListener {
    /// The scheme of requests that come through it.
    pub(crate) const fn scheme(&self) -> Scheme {
        if self.tls.is_some() {
            Scheme::Https
        } else {
            Scheme::Http
        }
    }

    /// Whether a server in front of us, and nobody else, is to connect to it: it says who the client is and by which scheme
    /// it has asked.
    pub(crate) fn is_behind_proxy(&self) -> bool {
        self.is_unix || self.proxy_protocol != ProxyProtocol::Off
    }
}
