//! How much plaintext a record gets: a connection begins with small records, which the client can decrypt after each packet, and
//! continues with full ones, which are cheaper (H2O compatibility: H2O does the same).

use crate::record::framing::MAX_PLAINTEXT_LEN;

/// Length in bytes of a small record with its overhead, which fits one TCP segment on nearly all paths.
const SMALL_RECORD_LEN: usize = 1400;
/// Number of bytes of plaintext after which records are full: the congestion window is then large enough.
const SMALL_UNTIL: u32 = 65_536;

/// How much plaintext the next record of a connection gets.
#[derive(Debug, Default)]
pub(crate) struct RecordSize {
    /// Number of plaintext bytes written so far, saturating at [`SMALL_UNTIL`].
    written: u32,
    /// Number of plaintext bytes per record that the driver has chosen for this path; 0 if it has not chosen.
    chosen: u16,
}

impl RecordSize {
    /// Writes records of full length from the start, as is best for peers in the same network.
    pub(crate) const fn full() -> Self {
        Self {
            written: SMALL_UNTIL,
            chosen: 0,
        }
    }

    /// Limit in bytes of the plaintext in the next record.
    pub(crate) fn limit(&self, overhead: usize) -> usize {
        if self.chosen > 0 {
            self.chosen.into()
        } else if self.written < SMALL_UNTIL {
            SMALL_RECORD_LEN - overhead
        } else {
            MAX_PLAINTEXT_LEN
        }
    }

    /// Counts the `len` bytes of plaintext of a record that was written.
    pub(crate) fn on_written(&mut self, len: usize) {
        let len = u32::try_from(len).unwrap_or(SMALL_UNTIL);
        self.written = SMALL_UNTIL.min(self.written.saturating_add(len));
    }

    /// Sets the number of plaintext bytes per record.
    pub(crate) fn choose(&mut self, plain_len: usize) {
        let plain_len = plain_len.clamp(1, MAX_PLAINTEXT_LEN);
        self.chosen = u16::try_from(plain_len).unwrap_or(u16::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_small_until_65536_bytes_are_written() {
        let mut size = RecordSize::default();
        assert_eq!(size.limit(22), 1378);
        size.on_written(65_535);
        assert_eq!(size.limit(29), 1371);
        size.on_written(1);
        assert_eq!(size.limit(22), 16_384);
        size.on_written(usize::MAX - 65_536);
        assert_eq!(size.limit(22), 16_384);
    }

    #[test]
    fn records_are_as_large_as_was_chosen() {
        let mut size = RecordSize::default();
        for (chosen, want) in [(1426, 1426), (0, 1), (16_384, 16_384), (65_483, 16_384)] {
            size.choose(chosen);
            assert_eq!(size.limit(22), want);
            size.on_written(70_000);
        }
    }
}
