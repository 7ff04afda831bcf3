//! Connections that have few streams hold small tables of streams.
//!
//! The library makes an entry for each stream that a client may open: 5.4 KB of tables for 100 streams, held by every handshake and
//! every idle connection. So a connection that was accepted begins with [`FEW_BIDI`] and [`FEW_UNI`] streams in the library, although
//! its transport parameters announce all that the settings allow. While it has these few ([`StreamWatch`]), each packet is searched
//! for a frame that names a later stream when it is decrypted. If there is one, the packet is refused as if it could not be
//! decrypted, the endpoint makes the tables as large as announced, and hands the library the same datagram once more. What a client
//! may open at a time is the same as without all this.

use std::sync::atomic::{AtomicBool, Ordering};

use quinn_proto::TransportConfig;

use crate::config::{TransportSettings, var_int};
use crate::{frames, parameters};

/// Bidirectional streams that an accepted connection has in the library's tables at first. The client may open them only once each:
/// by the time that it has used them up, it may still open 90 others of the 100 that were announced, about as many as a client that
/// waits for the library's MAX_STREAMS frames, which are sent for every 13 streams.
const FEW_BIDI: u64 = 10;
/// Unidirectional streams: HTTP/3 needs three. With the bidirectional ones these are 14, the most entries that a hash table of
/// sixteen places takes.
const FEW_UNI: u64 = 4;

/// Streams that a client may open, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamLimits {
    pub(crate) bidi: u64,
    pub(crate) uni: u64,
}

impl StreamLimits {
    /// No streams.
    pub(crate) const NONE: Self = Self { bidi: 0, uni: 0 };

    /// All that the settings allow, which the transport parameters announce.
    pub(crate) fn announced(settings: &TransportSettings) -> Self {
        Self {
            bidi: settings.max_streams_bidi,
            uni: settings.max_streams_uni,
        }
    }

    /// What the library's tables have room for at first.
    pub(crate) fn few(self) -> Self {
        Self {
            bidi: self.bidi.min(FEW_BIDI),
            uni: self.uni.min(FEW_UNI),
        }
    }

    /// Makes the library begin with tables for this number of streams.
    pub(crate) fn apply(self, config: &mut TransportConfig) {
        config
            .max_concurrent_bidi_streams(var_int(self.bidi))
            .max_concurrent_uni_streams(var_int(self.uni));
    }

    /// Replaces the limits in encoded transport parameters by these.
    pub(crate) fn announce(self, encoded: &[u8]) -> Vec<u8> {
        const MAX_STREAMS_BIDI: u64 = 0x08;
        const MAX_STREAMS_UNI: u64 = 0x09;
        parameters::replace(encoded, |id, _| match id {
            MAX_STREAMS_BIDI => Some(self.bidi),
            MAX_STREAMS_UNI => Some(self.uni),
            _ => None,
        })
    }

    /// Whether a client may open a stream with this identifier (RFC 9000 §2.1). Those of the server's streams are not limited.
    fn allows(self, id: u64) -> bool {
        let index = id >> 2;
        match id & 0b11 {
            0b00 => index < self.bidi,
            0b10 => index < self.uni,
            _ => true,
        }
    }
}

/// Searches the packets of connections with few streams for a stream that the library's tables lack. An endpoint and the keys of
/// its connections share it; an endpoint is used by one thread, one connection at a time.
#[derive(Debug)]
pub(crate) struct StreamWatch {
    announced: StreamLimits,
    /// Whether the connection whose packets are handled now has few streams.
    is_on: AtomicBool,
    /// Whether a packet was refused for the stream that it names.
    has_refused: AtomicBool,
}

impl StreamWatch {
    pub(crate) const fn new(announced: StreamLimits) -> Self {
        Self {
            announced,
            is_on: AtomicBool::new(false),
            has_refused: AtomicBool::new(false),
        }
    }

    pub(crate) const fn announced(&self) -> StreamLimits {
        self.announced
    }

    /// Whether more streams are announced than connections begin with.
    pub(crate) fn is_needed(&self) -> bool {
        self.announced != self.announced.few()
    }

    /// Searches packets from now on: a connection with few streams is given a datagram.
    pub(crate) fn begin(&self) {
        self.is_on.store(true, Ordering::Relaxed);
        self.has_refused.store(false, Ordering::Relaxed);
    }

    /// Ends the search. Returns whether a packet was refused.
    pub(crate) fn end(&self) -> bool {
        self.is_on.store(false, Ordering::Relaxed);
        self.has_refused.load(Ordering::Relaxed)
    }

    /// Whether a packet with this content is to be refused.
    #[inline]
    pub(crate) fn refuses(&self, content: &[u8]) -> bool {
        self.is_on.load(Ordering::Relaxed) && self.is_beyond_tables(content)
    }

    fn is_beyond_tables(&self, content: &[u8]) -> bool {
        let few = self.announced.few();
        // A stream that was not announced is the library's business: it ends the connection.
        let is_beyond =
            frames::streams(content).any(|id| !few.allows(id) && self.announced.allows(id));
        if is_beyond {
            self.has_refused.store(true, Ordering::Relaxed);
        }
        is_beyond
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_announced_replace_those_of_the_library() {
        let limits = StreamLimits { bidi: 100, uni: 10 };
        // max_idle_timeout, both limits, disable_active_migration, an unknown one.
        let parameters = [
            &[0x01, 2, 0x47, 0xd0][..],
            &[0x08, 1, 10],
            &[0x09, 1, 4],
            &[0x0c, 0],
            &[0x40, 0xff, 3, 1, 2, 3],
        ];
        let announced = limits.announce(&parameters.concat());
        let expected = [
            &[0x01, 2, 0x47, 0xd0][..],
            &[0x08, 2, 0x40, 100],
            &[0x09, 1, 10],
            &[0x0c, 0],
            &[0x40, 0xff, 3, 1, 2, 3],
        ];
        assert_eq!(announced, expected.concat());
        assert_eq!(limits.announce(&[0x08, 9, 1]), [0x08, 9, 1]);
    }

    #[test]
    fn only_announced_streams_behind_the_tables_refuse_a_packet() {
        let watch = StreamWatch::new(StreamLimits { bidi: 100, uni: 10 });
        let reset = |id: u16| {
            let [high, low] = (0x4000 | id).to_be_bytes();
            [4, high, low, 0, 0]
        };
        // The last stream of each kind in the tables, the first behind it, the last one announced, and the first that is not.
        let cases = [
            (4 * 9, false),
            (4 * 10, true),
            (4 * 99, true),
            (4 * 100, false),
            (4 * 3 + 2, false),
            (4 * 4 + 2, true),
            (4 * 10 + 2, false),
            (4 * 50 + 1, false),
            (4 * 50 + 3, false),
        ];
        for (id, is_refused) in cases {
            watch.begin();
            assert_eq!(watch.refuses(&reset(id)), is_refused, "{id}");
            assert_eq!(watch.end(), is_refused, "{id}");
            assert!(!watch.refuses(&reset(id)), "{id}");
        }
    }
}
