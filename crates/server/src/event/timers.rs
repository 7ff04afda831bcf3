//! Timers of a worker: coarse, and cheap to move, since they are moved on every read.
//!
//! A deadline that is put off costs one store. Its entry stays in the slot of the wheel where it was filed
//! and is filed again when that slot comes round and the deadline turns out to lie later.

use std::time::{Duration, Instant};

/// Length of one step of the wheel. Time limits are whole seconds; being late by this is in order.
pub(crate) const STEP: Duration = Duration::from_millis(STEP_MILLIS);
const STEP_MILLIS: u64 = 200;
const STEPS_PER_SECOND: u64 = 1000 / STEP_MILLIS;
const SLOTS: usize = 256;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Entry {
    /// In steps since the start.
    deadline: u32,
    /// The step under which the entry is filed.
    filed: u32,
}

const UNSET: Entry = Entry {
    deadline: NONE,
    filed: NONE,
};

/// The timers of one worker's connections, by the index of the connection.
pub(crate) struct Timers {
    start: Instant,
    entries: Vec<Entry>,
    slots: Vec<Vec<u32>>,
    /// Steps up to here have been looked at.
    passed: u32,
}

impl Timers {
    pub(crate) fn new(start: Instant) -> Self {
        Self {
            start,
            entries: Vec::new(),
            slots: vec![Vec::new(); SLOTS],
            passed: 0,
        }
    }

    /// The step by which `at` has passed.
    fn steps(&self, at: Instant) -> u32 {
        let since = at.saturating_duration_since(self.start);
        let steps = since.as_secs() * STEPS_PER_SECOND
            + u64::from(since.subsec_micros()).div_ceil(STEP_MILLIS * 1000);
        u32::try_from(steps).unwrap_or(NONE - 1).min(NONE - 1)
    }

    /// Sets, moves or clears the timer of a connection.
    pub(crate) fn set(&mut self, key: u32, deadline: Option<Instant>) {
        let deadline = deadline.map_or(NONE, |at| self.steps(at));
        if self.entries.len() <= key as usize {
            self.entries.resize(key as usize + 1, UNSET);
        }
        let entry = &mut self.entries[key as usize];
        entry.deadline = deadline;
        if deadline == NONE || entry.filed <= deadline {
            return;
        }
        let earlier = std::mem::replace(&mut entry.filed, deadline.max(self.passed + 1));
        let filed = entry.filed;
        if earlier != NONE {
            self.slots[earlier as usize % SLOTS].retain(|other| *other != key);
        }
        self.slots[filed as usize % SLOTS].push(key);
    }

    /// Appends the connections whose time has come to `due`. Their timers are cleared.
    pub(crate) fn advance(&mut self, now: Instant, due: &mut Vec<u32>) {
        let elapsed = now.saturating_duration_since(self.start);
        let elapsed =
            elapsed.as_secs() * STEPS_PER_SECOND + u64::from(elapsed.subsec_millis()) / STEP_MILLIS;
        let target = u32::try_from(elapsed).unwrap_or(NONE - 1).min(NONE - 1);
        // One full round at most: after a long sleep every slot is looked at once.
        let first = self
            .passed
            .max(target.saturating_sub(u32::try_from(SLOTS).unwrap_or(NONE)))
            + 1;
        for step in first..=target {
            let mut slot = std::mem::take(&mut self.slots[step as usize % SLOTS]);
            let mut again = Vec::new();
            for key in slot.drain(..) {
                let entry = &mut self.entries[key as usize];
                if entry.deadline <= target {
                    *entry = UNSET;
                    due.push(key);
                } else {
                    entry.filed = entry.deadline;
                    if entry.deadline != NONE {
                        again.push((key, entry.filed));
                    }
                }
            }
            // The slot keeps its memory, unless a burst has made it large.
            slot.shrink_to(64);
            self.slots[step as usize % SLOTS] = slot;
            for (key, filed) in again {
                self.slots[filed as usize % SLOTS].push(key);
            }
        }
        self.passed = target;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any start will do")]
    fn timers() -> (Timers, Instant) {
        let start = Instant::now();
        (Timers::new(start), start)
    }

    fn due(timers: &mut Timers, now: Instant) -> Vec<u32> {
        let mut due = Vec::new();
        timers.advance(now, &mut due);
        due
    }

    #[test]
    fn timers_fire_once_not_early_and_can_be_moved_both_ways() {
        let (mut timers, start) = timers();
        let at = |ms| start + Duration::from_millis(ms);
        timers.set(3, Some(at(1000)));
        assert_eq!(due(&mut timers, at(900)), []);
        timers.set(3, Some(at(5000))); // put off
        assert_eq!(due(&mut timers, at(2000)), []);
        timers.set(3, Some(at(3000))); // brought forward
        assert_eq!(due(&mut timers, at(3200)), [3]);
        assert_eq!(due(&mut timers, at(9000)), []);
        timers.set(3, Some(at(9000))); // past: at the next step
        assert_eq!(due(&mut timers, at(9300)), [3]);
        timers.set(3, Some(at(20_000)));
        timers.set(3, None);
        assert_eq!(due(&mut timers, at(30_000)), []);
        timers.set(3, Some(at(31_000)));
        assert_eq!(due(&mut timers, at(32_000)), [3]);
    }

    #[test]
    fn deadlines_further_than_one_round_wait_their_time() {
        let (mut timers, start) = timers();
        timers.set(0, Some(start + Duration::from_secs(600)));
        for second in (1..600).step_by(7) {
            assert_eq!(
                due(&mut timers, start + Duration::from_secs(second)),
                [],
                "at {second} s"
            );
        }
        assert_eq!(due(&mut timers, start + Duration::from_secs(601)), [0]);
    }
}
