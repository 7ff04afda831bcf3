//! Addresses that a client has moved to and that are not validated (RFC 9000 §8.2, §9.3): for each byte received from such
//! an address, at most `amplification` bytes are sent to it. quinn-proto has such a limit, but may exceed it by almost a
//! datagram, fills datagrams up to 1200 bytes, and does not apply the limit to packets that search for the path's MTU or
//! that answer a PATH_CHALLENGE.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use quinn_proto::ConnectionStats;

use crate::endpoint::Transmit;
use crate::tls::Shared;

/// Number of validated addresses, and likewise of addresses that are not validated, that are remembered for each client. A client
/// has one or two.
const MAX_ADDRESSES: usize = 4;
/// Length of the shortest datagram in which quinn-proto fits PATH_CHALLENGE and an acknowledgement.
const MIN_DATAGRAM: u64 = 64;
/// The most bytes that may be cut off a datagram. quinn-proto pads datagrams to 1200 bytes; what remains must be long enough
/// for [`MIN_DATAGRAM`].
const MAX_CUT: u64 = 1200 - MIN_DATAGRAM;

/// How many bytes were received from an address and sent to it.
#[derive(Debug)]
struct Account {
    address: IpAddr,
    received: u64,
    sent: u64,
}

/// The addresses of a client that was seen at more than one. They are compared without ports: as with tokens (RFC 9000
/// §8.1.3), a client that receives at an address is assumed to receive at all of its ports, so that a NAT that changes ports
/// does not slow clients down.
pub(crate) struct Paths {
    /// Bytes that may be sent to an address that is not validated, for each byte received from it (RFC 9000 §8).
    amplification: u64,
    valid: VecDeque<IpAddr>,
    accounts: VecDeque<Account>,
    keys: Arc<Shared>,
    /// Number of PATH_RESPONSE frames that had arrived when the client moved to its present address.
    responses: u64,
    /// Whether quinn-proto's next packet is the PATH_CHALLENGE to the client's previous address (RFC 9000 §9.3.3).
    asks_previous: bool,
}

/// How a packet to an address that is not validated must be shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// Bytes to cut off a full packet so that it stays within the limit of the address.
    pub(crate) cut: usize,
}

/// The limit of the address allows no packet at all now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoCredit;

impl Paths {
    /// `valid`: the address at which the client completed the handshake.
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

    /// Counts a datagram of `len` bytes from `address`. `current`: the connection's present address, whose account is never
    /// forgotten for a new one.
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

    /// Handles a change of the client's address; `from`: its previous address.
    pub(crate) fn on_moved(&mut self, from: IpAddr, stats: &ConnectionStats) {
        self.asks_previous = self.valid.contains(&from);
        self.responses = stats.frame_rx.path_response;
    }

    /// Whether the client has shown that it receives at this address.
    pub(crate) fn is_valid(&self, address: IpAddr) -> bool {
        self.valid.contains(&address)
    }

    fn account(&mut self, address: IpAddr) -> Option<&mut Account> {
        (self.accounts.iter_mut()).find(|account| account.address == address)
    }

    /// Bytes that may be sent to an address now; `None` for no limit.
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

    /// How much of the next packet to an address must be cut off, if packets are `mtu` bytes long; `None` if the address has
    /// no limit.
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
            // The next packet goes to the client's previous address, which this limit does not concern.
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

    /// Makes quinn-proto's packets shorter by `bytes` bytes.
    pub(crate) fn set_cut(&self, bytes: usize) {
        self.keys.set_cut(bytes);
    }

    /// Deducts a datagram's length from what may be sent to its address. Returns false, and deducts nothing, if the datagram is
    /// longer than what may be sent.
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

    /// Finds out from a sent packet whether quinn-proto has validated the connection's present address: until then, it adds
    /// PATH_CHALLENGE to each packet that has room for it. `has_room`: whether this packet had room.
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
