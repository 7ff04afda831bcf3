//! The end of an answer that is lost. The library probes with PING, and repeats what was lost when that is acknowledged: a round trip later
//! than RFC 9002 §6.2.4 wants it. What was sent last is therefore kept until all is acknowledged, and sent once more with a probe, bit by bit
//! as it was. To the peer this is a packet that the network has doubled.

use crate::endpoint::Transmit;

/// How often one tail is repeated.
const MAX_REPEATS: u8 = 2;

/// The datagram sent last of those that have to be acknowledged.
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

    /// Keeps the last datagram of those in `buffer`.
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

    /// The library has sent a probe there.
    pub(crate) fn on_probe(&mut self, remote: std::net::SocketAddr) {
        let is_there = self.transmit.is_some_and(|kept| kept.remote == remote);
        self.is_due = is_there && self.repeats < MAX_REPEATS;
    }

    /// Puts the datagram that is kept, the last ack-eliciting one, into `buffer` once more if a probe was just sent to its peer.
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
