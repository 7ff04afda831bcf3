//! A listener (a configured address) as its worker and its connections see it.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use h2o_exchange::{Address, Endpoint, HostName, HostTable};
use h2o_http::Scheme;
use rustc_hash::FxHashMap;

use crate::setup::Setup;
use crate::site::certificates::AcceptorSlot;
use crate::site::listen::ProxyProtocol;
use crate::site::quic_settings::QuicSettings;

/// The part of a configuration that describes one listener, as sent to one worker.
pub(crate) struct ListenerConfig {
    /// The listener's number in this process: the same in all workers, and kept by every configuration that has the listener.
    pub(crate) id: ListenerId,
    /// The listener's socket; `None` if the worker has the socket from an earlier configuration.
    pub(crate) socket: Option<OwnedFd>,
    pub(crate) endpoint: Endpoint,
    /// The hosts that the listener serves, as indices into the hosts of the site.
    pub(crate) hosts: Vec<u32>,
    pub(crate) tls: Option<Arc<AcceptorSlot>>,
    pub(crate) origins: Option<Arc<[Box<str>]>>,
    pub(crate) proxy_protocol: ProxyProtocol,
    pub(crate) is_unix: bool,
    pub(crate) unix_buffers: (Option<usize>, Option<usize>),
    /// The settings of QUIC, if the listener's socket is a UDP socket.
    pub(crate) quic: Option<Arc<QuicSettings>>,
}

/// Number of a listener in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ListenerId(pub(crate) u32);

/// A listener as one worker has it.
pub(crate) struct LocalListener {
    pub(crate) id: ListenerId,
    pub(crate) setup: Rc<Setup>,
    pub(crate) endpoint: Rc<Endpoint>,
    /// The hosts that the listener serves, in the order in which they name the listener in the configuration.
    pub(crate) hosts: HostTable,
    /// The hosts that the listener serves, as indices into the hosts of the site.
    served: Box<[u32]>,
    pub(crate) tls: Option<Arc<AcceptorSlot>>,
    /// Origins announced to HTTP/2 clients (RFC 8336).
    pub(crate) origins: Option<Arc<[Box<str>]>>,
    pub(crate) proxy_protocol: ProxyProtocol,
    pub(crate) is_unix: bool,
    /// Sizes of the send and the receive buffer of accepted Unix sockets, which do not inherit them from the listening socket.
    pub(crate) unix_buffers: (Option<usize>, Option<usize>),
    /// Whether a reload has removed the listener: no connection is accepted, and its connections end after their requests.
    pub(crate) is_closing: bool,
}

impl LocalListener {
    /// Builds the listener that `config` describes, and returns it with its socket.
    pub(crate) fn new(setup: &Rc<Setup>, config: ListenerConfig) -> (Self, Option<OwnedFd>) {
        let listener = Self {
            id: config.id,
            setup: Rc::clone(setup),
            hosts: HostTable::new(&setup.site.hosts, &config.hosts),
            served: config.hosts.into(),
            endpoint: Rc::new(config.endpoint),
            tls: config.tls,
            origins: config.origins,
            proxy_protocol: config.proxy_protocol,
            is_unix: config.is_unix,
            unix_buffers: config.unix_buffers,
            is_closing: false,
        };
        (listener, config.socket)
    }

    /// The listener that replaces `old` when the configuration of `setup` does not have it any more. It serves the connections of `old`
    /// until their requests end, and only by the hosts with the same names: other hosts may not be meant for clients that could connect to
    /// `old`.
    pub(crate) fn closing(old: &Self, setup: &Rc<Setup>) -> Self {
        let hosts = (0..).zip(&setup.site.hosts);
        let by_name: FxHashMap<_, u32> = hosts
            .map(|(index, host)| ((&*host.name.name, host.name.port), index))
            .collect();
        let of_same_name = |&host: &u32| {
            let HostName { name, port } = &old.setup.site.hosts.get(host as usize)?.name;
            by_name.get(&(&**name, *port)).copied()
        };
        let served: Box<[u32]> = old.served.iter().filter_map(of_same_name).collect();
        Self {
            id: old.id,
            setup: Rc::clone(setup),
            endpoint: Rc::clone(&old.endpoint),
            hosts: HostTable::new(&setup.site.hosts, &served),
            served,
            tls: old.tls.clone(),
            origins: None,
            proxy_protocol: old.proxy_protocol,
            is_unix: old.is_unix,
            unix_buffers: old.unix_buffers,
            is_closing: true,
        }
    }

    /// Whether this listener can take over the connections that `old` has accepted: the address, whether clients use TLS and whether a
    /// proxy is in front must be the same, since a connection cannot change them.
    pub(crate) fn may_succeed(&self, old: &Self) -> bool {
        self.endpoint == old.endpoint
            && self.tls.is_some() == old.tls.is_some()
            && self.proxy_protocol == old.proxy_protocol
    }

    /// Scheme (`http` or `https`) of the requests that arrive on this listener.
    pub(crate) const fn scheme(&self) -> Scheme {
        if self.tls.is_some() {
            Scheme::Https
        } else {
            Scheme::Http
        }
    }

    /// Whether the server takes the client's address from a PROXY header that `peer` sends.
    pub(crate) fn believes_proxy_header(&self, peer: Address) -> bool {
        let trusted = self.setup.trusted_proxies.as_ref();
        trusted.is_none_or(|trusted| trusted.trust(peer))
    }

    /// Whether only a proxy in front of this server connects to this listener; that proxy also tells the client's address and scheme.
    pub(crate) fn is_behind_proxy(&self) -> bool {
        self.is_unix || self.proxy_protocol != ProxyProtocol::Off
    }
}
