//! The UDP sockets of the configuration: how a worker opens them, applies new settings, and closes them.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use h2o_exchange::Endpoint;
use h2o_quic::Endpoint as QuicEndpoint;
use h2o_quic::udp::UdpSocket;

use super::{KEY_INTERVAL, MAX_SEGMENTS, Port, QuicConnections, SOCKET_BIT};
use crate::event::socket::Socket;
use crate::generation::LocalGeneration;
use crate::listener::LocalListener;
use crate::quic::endpoint;
use crate::site::quic_settings::QuicSettings;

impl QuicConnections {
    /// Opens the sockets of the next configuration, and applies its settings to new connections. A socket that the next
    /// configuration does not have is closed after the last of its connections.
    pub(super) fn adopt_listeners(&mut self, next: &mut LocalGeneration) -> io::Result<()> {
        self.settings = Arc::clone(&next.settings);
        self.resumption = Arc::clone(&next.resumption);
        let mut known = Vec::new();
        for (_, port) in &mut self.sockets {
            let mut listeners = next.listeners.iter();
            let found = listeners.find(|next| next.listener.endpoint == port.listener.endpoint);
            match found
                .and_then(|next| Some((next, next.quic.as_ref()?, next.listener.tls.clone()?)))
            {
                Some((next, settings, tls)) => {
                    known.push(next.listener.id);
                    port.listener = Rc::clone(&next.listener);
                    port.settings = Rc::clone(settings);
                    let role = endpoint::server_role(settings, &self.settings, &self.shared, tls);
                    port.endpoint.borrow_mut().set_server(role);
                }
                None => port.listener = next.successor(&port.listener),
            }
        }
        for next in &mut next.listeners {
            let (Endpoint::Udp(address), Some(settings)) = (&*next.listener.endpoint, &next.quic)
            else {
                continue;
            };
            if known.contains(&next.listener.id) {
                continue;
            }
            if let Some(socket) = next.socket.take() {
                let (address, settings) = (*address, Rc::clone(settings));
                self.open(socket, address, Rc::clone(&next.listener), settings)?;
            }
        }
        self.plan_keys();
        Ok(())
    }

    fn open(
        &mut self,
        socket: OwnedFd,
        address: SocketAddr,
        listener: Rc<LocalListener>,
        settings: Rc<QuicSettings>,
    ) -> io::Result<()> {
        let Some(tls) = listener.tls.clone() else {
            return Ok(());
        };
        let socket = Rc::new(Socket::new(socket, false));
        let udp = UdpSocket::new(&*socket)?;
        let entry = self.sockets.vacant_entry();
        let token = self.first_token | SOCKET_BIT | entry.key() as u64;
        self.registry.add_datagram_socket(&*socket, token)?;
        let config = endpoint::config(
            endpoint::server_role(&settings, &self.settings, &self.shared, tls),
            &self.settings,
            &self.shared,
            endpoint::keys(&self.resumption),
            self.context.worker.index,
            !udp.may_fragment(),
        );
        let endpoint = Rc::new(RefCell::new(QuicEndpoint::new(config)));
        self.endpoints.add(&endpoint);
        entry.insert(Port {
            max_segments: if self.settings.http3.segmentation_offload {
                udp.max_segments().min(MAX_SEGMENTS)
            } else {
                1
            },
            socket,
            udp,
            endpoint,
            listener,
            settings,
            address,
            slots: Vec::new(),
            unsent: None,
            blocked: Vec::new(),
        });
        Ok(())
    }

    /// Sets the timer of the next check for new keys of connection ids, and publishes the keys in use to the other generations of
    /// the server.
    pub(super) fn plan_keys(&self) {
        if !self.sockets.is_empty() {
            self.shared
                .other_generations
                .publish(self.resumption.quic_secrets());
        }
        let worker = &self.context.worker;
        let at = (!self.sockets.is_empty()).then(|| worker.clock.now() + KEY_INTERVAL);
        worker.timers.set(self.key_timer, at);
    }

    /// Closes a socket that a reload has removed, once it has no connection left.
    pub(super) fn close_if_unused(&mut self, index: usize) {
        let is_unused = |port: &Port| {
            port.listener.is_closing && port.endpoint.borrow().open_connections() == 0
        };
        if self.sockets.get(index).is_some_and(is_unused) {
            let port = self.sockets.remove(index);
            self.registry.remove(&*port.socket);
            self.endpoints.remove(&port.endpoint);
        }
    }
}
