//! Addresses that a client has moved to without having shown that it receives there (RFC 9000 §8.2, §9.3): each gets at most so many times the bytes that came from it.
//! The library has such a limit, but begins a datagram as long as there is any credit, fills it up to 1200 bytes, and does not apply the
//! limit to packets that search for the path's MTU, or that answer a PATH_CHALLENGE.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use quinn_proto::ConnectionStats;

use crate::endpoint::Transmit;
use crate::tls::Shared;

/// Addresses known to be valid, and addresses that are not, that are remembered. A client has one or two.
const MAX_ADDRESSES: usize = 4;
/// The shortest datagram that the library fits PATH_CHALLENGE and an acknowledgement into.
const MIN_DATAGRAM: u64 = 64;
/// The library pads to so many bytes, of which an AEAD's tag takes 16: no more than the rest, less the shortest datagram, is cut off.
const MAX_CUT: u64 = 1200 - MIN_DATAGRAM;

/// What an address has sent and was sent.
#[derive(Debug)]
struct Account {
    address: IpAddr,
    received: u64,
    sent: u64,
}

/// The addresses of a client that was seen at more than one. A port is not a part of it: as with tokens (RFC 9000 §8.1.3), who receives at an
/// address is believed to receive at all of its ports, so that a NAT that forgets does not slow clients down.
pub(crate) struct Paths {
    /// Bytes sent for each one received (RFC 9000 §8).
    amplification: u64,
    valid: VecDeque<IpAddr>,
    accounts: VecDeque<Account>,
    keys: Arc<Shared>,
    /// PATH_RESPONSE frames that had come when the client was first seen at its present address.
    responses: u64,
    /// Whether the library's next packet is the one that asks whether the client still is where it was before (RFC 9000 §9.3.3).
    asks_previous: bool,
}

/// What may be sent to an address that is not validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// Bytes to be cut off a full packet so that it does not go beyond.
    pub(crate) cut: usize,
}

/// There is no credit for any packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoCredit;

impl Paths {
    /// `valid`: where the handshake was done.
    pub(crate) fn new(valid: IpAddr, amplification: u16, keys: Arc<Shared>) -> Self {
        Self {
            amplification: amplification.into(),
            valid: VecDeque::from([valid]),
            accounts: VecDeque::new(),
            keys,
            responses: 0,
            asks_previous: false,
        }
    }

    /// A datagram has come from there. `current`: the connection's present address, whose account is kept.
    pub(crate) fn on_received(&mut self, address: IpAddr, current: IpAddr, len: usize) {
        if self.valid.contains(&address) {
            return;
        }
        let len = len as u64;
        if let Some(account) = self.account(address) {
            account.received = account.received.saturating_add(len);
            return;
        }
        if self.accounts.len() >= MAX_ADDRESSES
            && let Some(oldest) = (self.accounts.iter()).position(|it| it.address != current)
        {
            self.accounts.remove(oldest);
        }
        self.accounts.push_back(Account {
            address,
            received: len,
            sent: 0,
        });
    }

    /// The connection has another address now.
    pub(crate) fn on_moved(&mut self, from: IpAddr, stats: &ConnectionStats) {
        self.asks_previous = self.valid.contains(&from);
        self.responses = stats.frame_rx.path_response;
    }

    fn account(&mut self, address: IpAddr) -> Option<&mut Account> {
        (self.accounts.iter_mut()).find(|account| account.address == address)
    }

    /// Bytes that may be sent there; `None` for no limit.
    fn credit(&self, address: IpAddr) -> Option<u64> {
        if self.valid.contains(&address) {
            return None;
        }
        let account = (self.accounts.iter()).find(|account| account.address == address);
        Some(account.map_or(0, |account| {
            let limit = account.received.saturating_mul(self.amplification);
            limit.saturating_sub(account.sent)
        }))
    }

    /// How the next packet to that address is made, if packets are `mtu` long; `None` if there is no limit.
    pub(crate) fn allowance(
        &mut self,
        address: IpAddr,
        mtu: u16,
    ) -> Result<Option<Allowance>, NoCredit> {
        let asks_previous = std::mem::take(&mut self.asks_previous);
        let Some(credit) = self.credit(address) else {
            return Ok(None);
        };
        if asks_previous {
            // This is the packet to the address before, which is no part of this.
            return Ok(Some(Allowance { cut: 0 }));
        }
        let cut = u64::from(mtu).saturating_sub(credit);
        if cut > MAX_CUT || credit < MIN_DATAGRAM {
            return Err(NoCredit);
        }
        Ok(Some(Allowance {
            cut: usize::try_from(cut).unwrap_or(0),
        }))
    }

    /// Cuts so many bytes off each packet.
    pub(crate) fn set_cut(&self, bytes: usize) {
        self.keys.set_cut(bytes);
    }

    /// Takes a datagram's length from the credit of its address; `false` if there is not enough.
    pub(crate) fn take_credit(&mut self, transmit: &Transmit) -> bool {
        let (address, len) = (transmit.remote.ip(), transmit.len as u64);
        match self.credit(address) {
            None => return true,
            Some(credit) if credit < len => return false,
            Some(_) => {}
        }
        if let Some(account) = self.account(address) {
            account.sent += len;
        }
        true
    }

    /// Looks at what the library has sent to the connection's present address: until that is validated, each packet with room for it has
    /// PATH_CHALLENGE. `has_room`: whether this one has.
    pub(crate) fn look(
        &mut self,
        address: IpAddr,
        before: &ConnectionStats,
        after: &ConnectionStats,
        has_room: bool,
    ) {
        let has_challenge = after.frame_tx.path_challenge > before.frame_tx.path_challenge;
        let had_room = has_room || after.frame_tx.acks == before.frame_tx.acks;
        let is_answered = after.frame_rx.path_response > self.responses;
        if has_challenge || !had_room || !is_answered {
            return;
        }
        self.accounts.retain(|account| account.address != address);
        if self.valid.len() >= MAX_ADDRESSES {
            self.valid.pop_front();
        }
        self.valid.push_back(address);
    }
}
