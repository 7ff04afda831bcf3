//! Saves memory: a connection whose client uses few streams has small tables of streams in `quinn-proto`.
//!
//! `quinn-proto` makes an entry for each stream that a client may open: its tables take 5.4 KB for 100 streams, in every handshake
//! and every idle connection. So `quinn-proto` is told at first that a client may open [`FEW_BIDI`] and [`FEW_UNI`] streams, while
//! the connection's transport parameters announce to the client as many as the settings allow. As long as the tables are small, each
//! packet is searched, once it is decrypted, for a frame that names a stream without an entry ([`StreamWatch`]). If there is such a
//! frame, decryption of the packet fails in the eyes of `quinn-proto`; the endpoint then lets `quinn-proto` make entries for all
//! announced streams, and hands it the same datagram once more. The client may open as many streams at a time as it could with large
//! tables.

use std::sync::atomic::{AtomicBool, Ordering};

use quinn_proto::TransportConfig;

use crate::config::{TransportSettings, var_int};
use crate::{frames, parameters};

/// Number of bidirectional streams for which `quinn-proto` has entries at first in an accepted connection. With small tables, an
/// ended stream gives the client no right to open another one. But a client that has used these four streams may still open 96 of the
/// 100 that were announced, about as many as with large tables, where `quinn-proto` raises the limit by a MAX_STREAMS frame only
/// after every 13 ended streams.
const FEW_BIDI: u64 = 4;
/// Number of unidirectional streams for which `quinn-proto` has entries at first in an accepted connection: HTTP/3 needs three.
/// Together with the bidirectional streams there are seven entries, the most that a hash table with eight places takes.
const FEW_UNI: u64 = 3;

/// How many streams of each kind a client may open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamLimits {
    pub(crate) bidi: u64,
    pub(crate) uni: u64,
}

impl StreamLimits {
    /// The limits of a client that may open no streams.
    pub(crate) const NONE: Self = Self { bidi: 0, uni: 0 };

    /// Returns the limits that the settings allow, and that the server's transport parameters announce to clients.
    pub(crate) fn announced(settings: &TransportSettings) -> Self {
        Self {
            bidi: settings.max_streams_bidi,
            uni: settings.max_streams_uni,
        }
    }

    /// Returns how many of these streams have entries in the tables of `quinn-proto` at first.
    pub(crate) fn few(self) -> Self {
        Self {
            bidi: self.bidi.min(FEW_BIDI),
            uni: self.uni.min(FEW_UNI),
        }
    }

    /// Makes the connections of this configuration begin with entries for these numbers of streams in the tables of `quinn-proto`.
    pub(crate) fn apply(self, config: &mut TransportConfig) {
        config
            .max_concurrent_bidi_streams(var_int(self.bidi))
            .max_concurrent_uni_streams(var_int(self.uni));
    }

    /// Returns the encoded transport parameters with these limits in place of those that `quinn-proto` has written.
    pub(crate) fn announce(self, encoded: &[u8]) -> Vec<u8> {
        const MAX_STREAMS_BIDI: u64 = 0x08;
        const MAX_STREAMS_UNI: u64 = 0x09;
        parameters::replace(encoded, |id, _| match id {
            MAX_STREAMS_BIDI => Some(self.bidi),
            MAX_STREAMS_UNI => Some(self.uni),
            _ => None,
        })
    }

    /// Whether a client may use the stream with this identifier (RFC 9000 §2.1) under these limits, which do not apply to the streams
    /// that the server opens.
    fn allows(self, id: u64) -> bool {
        let index = id >> 2;
        match id & 0b11 {
            0b00 => index < self.bidi,
            0b10 => index < self.uni,
            _ => true,
        }
    }
}

/// Searches packets for streams that have no entry in the small tables of `quinn-proto`. An endpoint and the packet keys of all its
/// connections share one value: this works because an endpoint is used by one thread, and handles the packets of one connection at a
/// time.
#[derive(Debug)]
pub(crate) struct StreamWatch {
    announced: StreamLimits,
    /// Whether the connection whose datagram is being handled has small tables, so that its packets are searched.
    is_on: AtomicBool,
    /// Whether a packet was refused since [`Self::begin`], because it names a stream without an entry.
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

    /// Whether more streams are announced to clients than have entries at first; otherwise packets need not be searched.
    pub(crate) fn is_needed(&self) -> bool {
        self.announced != self.announced.few()
    }

    /// Begins to search packets. Called before `quinn-proto` gets a datagram of a connection with small tables.
    pub(crate) fn begin(&self) {
        self.is_on.store(true, Ordering::Relaxed);
        self.has_refused.store(false, Ordering::Relaxed);
    }

    /// Ends the search of packets. Returns whether a packet was refused since [`Self::begin`].
    pub(crate) fn end(&self) -> bool {
        self.is_on.store(false, Ordering::Relaxed);
        self.has_refused.load(Ordering::Relaxed)
    }

    /// Whether a packet with this decrypted content is refused, because packets are being searched and it names a stream without an
    /// entry.
    #[inline]
    pub(crate) fn refuses(&self, content: &[u8]) -> bool {
        self.is_on.load(Ordering::Relaxed) && self.is_beyond_tables(content)
    }

    fn is_beyond_tables(&self, content: &[u8]) -> bool {
        let few = self.announced.few();
        // A packet that names a stream beyond the announced limit is not refused: `quinn-proto` closes the connection because of it.
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
        // The transport parameters max_idle_timeout, initial_max_streams_bidi, initial_max_streams_uni, disable_active_migration, and
        // an unknown one.
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
        // Bidirectional streams of the client: the last one with an entry, the first one without, the last one announced, and the
        // first one not announced. Then unidirectional streams of the client: the last one with an entry, the first one without, and
        // the first one not announced. Then two streams of the server.
        let cases = [
            (4 * 3, false),
            (4 * 4, true),
            (4 * 99, true),
            (4 * 100, false),
            (4 * 2 + 2, false),
            (4 * 3 + 2, true),
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
