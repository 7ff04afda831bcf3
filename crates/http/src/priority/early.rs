//! PRIORITY_UPDATE frames (RFC 9218) for streams whose requests have not arrived yet.

use super::PriorityParameters;

/// Maximum number of unopened streams whose PRIORITY_UPDATE frames are kept. A client could send them for any number of
/// streams that it never opens; RFC 9218 §7 recommends a limit.
pub const MAX_EARLY_UPDATES: usize = 16;

/// The client has sent PRIORITY_UPDATE frames for more than [`MAX_EARLY_UPDATES`] unopened streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyUpdates;

/// The latest PRIORITY_UPDATE of each stream that is not open yet (RFC 9218 §7). Nothing is allocated before the first.
#[derive(Debug, Default)]
pub struct EarlyUpdates {
    updates: Vec<(u64, PriorityParameters)>,
}

impl EarlyUpdates {
    /// A collection without updates.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            updates: Vec::new(),
        }
    }

    /// Whether no update is kept.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.updates.is_empty()
    }

    /// Keeps an update for a stream that is not open yet; it replaces an earlier one for the same stream. If there is no
    /// room, the updates for streams for which `can_open` is false are dropped: the client may not open those any more.
    ///
    /// # Errors
    /// Returns [`TooManyUpdates`] for the 17th stream, whose update is not kept.
    pub fn keep(
        &mut self,
        stream: u64,
        parameters: PriorityParameters,
        can_open: impl Fn(u64) -> bool,
    ) -> Result<(), TooManyUpdates> {
        if let Some((_, kept)) = self.updates.iter_mut().find(|(id, _)| *id == stream) {
            *kept = parameters;
            return Ok(());
        }
        if self.updates.len() == MAX_EARLY_UPDATES {
            self.updates.retain(|&(id, _)| can_open(id));
        }
        if self.updates.len() == MAX_EARLY_UPDATES {
            return Err(TooManyUpdates);
        }
        self.updates.push((stream, parameters));
        Ok(())
    }

    /// Removes and returns the update for `stream`, which is being opened.
    pub fn take(&mut self, stream: u64) -> Option<PriorityParameters> {
        let at = self.updates.iter().position(|&(id, _)| id == stream)?;
        Some(self.updates.swap_remove(at).1)
    }

    /// Frees the memory that the kept updates do not need.
    pub fn shrink(&mut self) {
        self.updates.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urgency(urgency: u8) -> PriorityParameters {
        PriorityParameters {
            urgency,
            incremental: false,
        }
    }

    #[test]
    fn the_latest_update_of_a_stream_is_taken_once() {
        let mut early = EarlyUpdates::new();
        assert!(early.is_empty());
        for (stream, value) in [(5, 1), (9, 2), (5, 7)] {
            assert_eq!(early.keep(stream, urgency(value), |_| true), Ok(()));
        }
        assert_eq!(early.take(7), None);
        assert_eq!(early.take(5), Some(urgency(7)));
        assert_eq!(early.take(5), None);
        assert_eq!(early.take(9), Some(urgency(2)));
        assert!(early.is_empty());
        early.shrink();
        assert_eq!(early.updates.capacity(), 0);
    }

    #[test]
    fn sixteen_streams_are_kept_and_those_that_cannot_be_opened_make_room() {
        let mut early = EarlyUpdates::new();
        for stream in 0..16 {
            assert_eq!(early.keep(stream, urgency(1), |_| true), Ok(()));
        }
        assert_eq!(early.keep(16, urgency(1), |_| true), Err(TooManyUpdates));
        assert_eq!(
            early.keep(3, urgency(6), |_| true),
            Ok(()),
            "an update for a stream with a kept update replaces that one"
        );
        assert_eq!(early.keep(16, urgency(1), |id| id > 1), Ok(()));
        assert_eq!(early.keep(17, urgency(1), |id| id > 1), Ok(()));
        assert_eq!(early.keep(18, urgency(1), |id| id > 1), Err(TooManyUpdates));
        assert_eq!([early.take(0), early.take(1)], [None, None]);
        assert_eq!(early.take(3), Some(urgency(6)));
        assert_eq!(early.take(18), None);
    }
}
