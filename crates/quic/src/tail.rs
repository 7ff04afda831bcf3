//! Repeats the last packet of an answer if it may be lost. quinn-proto only probes with PING, and sends lost data again once
//! the PING is acknowledged: a round trip later than RFC 9002 §6.2.4 recommends. The last datagram is therefore kept until
//! all is acknowledged, and an exact copy of it is sent together with a probe. To the peer, this looks like a packet that
//! the network has duplicated.

use crate::endpoint::Transmit;

/// How often one datagram is repeated at most.
const MAX_REPEATS: u8 = 2;

/// A copy of the last datagram that the peer has to acknowledge.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    data: Vec<u8>,
    transmit: Option<Transmit>,
    repeats: u8,
    is_due: bool,
}

impl Tail {
    pub(crate) fn is_kept(&self) -> bool {
        self.transmit.is_some()
    }

    /// Keeps a copy of the last of the datagrams in `buffer`, which are being sent.
    pub(crate) fn keep(&mut self, transmit: &Transmit, buffer: &[u8]) {
        let sent = buffer.get(..transmit.len).unwrap_or_default();
        let segment = transmit.segment_len.unwrap_or(transmit.len).max(1);
        let Some(last) = sent.chunks(segment).last() else {
            return;
        };
        self.data.clear();
        self.data.extend_from_slice(last);
        self.transmit = Some(Transmit {
            len: last.len(),
            segment_len: None,
            ..*transmit
        });
        self.repeats = 0;
        self.is_due = false;
    }

    /// Handles quinn-proto having sent a probe to `remote`: the kept datagram follows if it went to the same address.
    pub(crate) fn on_probe(&mut self, remote: std::net::SocketAddr) {
        let is_there = self.transmit.is_some_and(|kept| kept.remote == remote);
        self.is_due = is_there && self.repeats < MAX_REPEATS;
    }

    /// Appends the kept datagram, the last ack-eliciting one, to `buffer` if a probe was just sent to the same address.
    pub(crate) fn repeat(&mut self, buffer: &mut Vec<u8>) -> Option<Transmit> {
        if !std::mem::take(&mut self.is_due) {
            return None;
        }
        let transmit = self.transmit?;
        self.repeats += 1;
        buffer.extend_from_slice(&self.data);
        Some(transmit)
    }
}
