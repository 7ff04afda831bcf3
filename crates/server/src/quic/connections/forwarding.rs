//! Forwards QUIC datagrams whose connection belongs to another worker, to another generation of this server, or to
//! another server of the fleet.

use std::net::SocketAddr;

use bytes::BytesMut;
use h2o_exchange::Counter;
use h2o_quic::forward::Forwarded;
use h2o_quic::{Datagram, Placement, Transmit};

use super::{Port, QuicConnections};
use crate::quic::handover::{self, Predecessor};
use crate::quic::mail::Mail;

impl QuicConnections {
    /// Forwards a datagram to the worker or the server that has the datagram's connection. Returns whether that was possible.
    pub(super) fn forward(
        &mut self,
        listener: usize,
        placement: Placement,
        datagram: Datagram,
        hops: u8,
    ) -> bool {
        if placement.node != self.node() {
            return self.forward_to_node(listener, placement.node, &datagram, hops);
        }
        if placement.generation != self.shared.other_generations.generation {
            return false;
        }
        let worker = usize::from(placement.worker);
        let is_ours = worker == self.context.worker.index;
        let mailbox = self.shared.mailboxes.get(worker).filter(|_| !is_ours);
        let id = self.sockets.get(listener).map(|port| port.listener.id);
        mailbox.zip(id).is_some_and(|(mailbox, listener)| {
            mailbox.put(Mail::Received {
                listener,
                datagram,
                hops,
            })
        })
    }

    /// The number of this server in its fleet.
    pub(super) fn node(&self) -> u64 {
        let nodes = self.settings.quic_nodes.as_deref();
        nodes.map_or(0, |nodes| nodes.this)
    }

    /// Forwards a datagram to the older generation of this server (a process that is shutting down after an upgrade)
    /// that has its connection.
    pub(super) fn hand_over(
        &mut self,
        listener: usize,
        owner: &Predecessor,
        datagram: &Datagram,
        hops: u8,
    ) {
        let Some(port) = self.sockets.get(listener) else {
            return;
        };
        let ip = datagram.local.unwrap_or(port.address.ip());
        let forwarded = Forwarded {
            local: Some(SocketAddr::new(ip, port.address.port())),
            remote: datagram.remote,
            hops,
        };
        handover::start_message(&mut self.buffer);
        forwarded.encode(&mut self.buffer);
        self.buffer.extend_from_slice(&datagram.data);
        if owner.send(&self.buffer) {
            let counters = &self.context.worker.counters;
            counters.count(Counter::QuicForwarded);
        }
        self.buffer.clear();
    }

    /// Sends a datagram to another server of the fleet. The datagram is dropped if the socket's buffer is full.
    fn forward_to_node(
        &mut self,
        listener: usize,
        node: u64,
        datagram: &Datagram,
        hops: u8,
    ) -> bool {
        let (Some(nodes), Some(port)) = (&self.settings.quic_nodes, self.sockets.get(listener))
        else {
            return false;
        };
        let number = port.address.port();
        let Some(address) = nodes.address(node).filter(|_| hops > 0) else {
            return false;
        };
        let remote = address.for_listener(number);
        let sender = if port.address.is_ipv4() == remote.is_ipv4() {
            Some(port)
        } else {
            self.sibling(number, remote.is_ipv4())
                .and_then(|index| self.sockets.get(index))
        };
        let Some(sender) = sender else {
            return false;
        };
        let ip = datagram.local.unwrap_or(port.address.ip());
        let forwarded = Forwarded {
            local: Some(ip)
                .filter(|ip| !ip.is_unspecified())
                .map(|ip| SocketAddr::new(ip, number)),
            remote: datagram.remote,
            hops: hops - 1,
        };
        self.buffer.clear();
        forwarded.encode(&mut self.buffer);
        self.buffer.extend_from_slice(&datagram.data);
        let transmit = Transmit {
            remote,
            local: None,
            ecn: None,
            len: self.buffer.len(),
            segment_len: None,
        };
        let sent = (sender.udp).send(&sender.socket, &transmit, &self.buffer);
        self.buffer.clear();
        sent.is_ok()
    }

    /// Whether another server of the fleet has forwarded the datagram, by its source address.
    pub(super) fn is_from_node(&self, listener: usize, remote: SocketAddr) -> bool {
        let (Some(nodes), Some(port)) = (&self.settings.quic_nodes, self.sockets.get(listener))
        else {
            return false;
        };
        nodes.is_known(remote, port.address.port())
    }

    /// Unwraps a datagram that another server has forwarded, and passes its content to the connection.
    pub(super) fn take_forwarded(&mut self, listener: usize, wrapped: &[u8]) {
        let Some((forwarded, data)) = Forwarded::decode(wrapped) else {
            return;
        };
        let counters = &self.context.worker.counters;
        counters.count(Counter::QuicForwardedReceived);
        let Some(port) = self.sockets.get(listener) else {
            return;
        };
        // The listener to which the client has sent the datagram is the one with the same port, or otherwise one of the same
        // address family.
        let is_ipv4 = forwarded.remote.is_ipv4();
        let number = forwarded.local.map(|local| local.port());
        let meant = number.and_then(|number| self.sibling(number, is_ipv4));
        let listener = match meant {
            Some(meant) => meant,
            None if port.address.is_ipv4() == is_ipv4 => listener,
            None => match self.sibling(port.address.port(), is_ipv4) {
                Some(sibling) => sibling,
                None => return,
            },
        };
        let datagram = Datagram {
            remote: forwarded.remote,
            local: forwarded
                .local
                .map(|local| local.ip())
                .filter(|ip| !ip.is_unspecified()),
            ecn: None,
            data: BytesMut::from(data),
        };
        self.take_in(listener, datagram, forwarded.hops);
    }

    /// The listener with the port number `port`, of IPv4 or IPv6.
    fn sibling(&self, port: u16, is_ipv4: bool) -> Option<usize> {
        let is_meant =
            |other: &Port| other.address.port() == port && other.address.is_ipv4() == is_ipv4;
        let mut sockets = self.sockets.iter();
        let found = sockets.find(|(_, port)| is_meant(port));
        found.map(|(index, _)| index)
    }
}
