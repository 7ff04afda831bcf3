//! The data structure of [`super::Timers`]: a hierarchical timing wheel, with longer slots for later deadlines.

/// Number of slots per level of the wheel; each slot has one bit of a `u128`.
const SLOTS: u16 = 128;
/// The slots of a level are 2^3 times as long as those of the level below. A timer fires late by at most the length of
/// its slot, which is at most an eighth of the time for which the timer was set.
const SHIFT: u16 = 3;
/// With this many levels the wheel reaches nine hours ahead. A timer with a later deadline goes into the last slot, and
/// is put into another one when that slot comes.
const LEVELS: u16 = 7;

/// The deadline of a timer that is not set.
pub(super) const UNSET: u64 = u64::MAX;
/// The slot number of a timer that is in no slot.
const UNFILED: u16 = u16::MAX;
/// Stands for no timer where an index of a timer is expected.
const NIL: u32 = u32::MAX;

/// Identifies a timer of a [`super::Timers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerKey(u32);

/// A timing wheel, whose timers are identified by keys. Time is counted in ticks of one millisecond.
///
/// Timers of a slot fire in the order in which they were filed. A timer is filed in the slot of its deadline. Moving the deadline to a later time, or clearing it, costs one store:
/// the timer stays in its slot, and is filed again when that slot comes.
pub(super) struct Wheel {
    timers: Vec<Timer>,
    /// Index of the first unused element of `timers`. The field `next` of each unused element is the index of the next
    /// unused one.
    free: u32,
    /// Index of the first timer in each slot, level by level.
    slots: Box<[u32]>,
    /// For each level one bit per slot: whether the slot has timers.
    occupied: [u128; LEVELS as usize],
    /// All slots that begin at this tick or earlier are empty.
    passed: u64,
    /// The wheel need not be advanced before this tick: no slot that has a timer begins earlier. [`UNSET`] if no slot
    /// has a timer.
    next: u64,
}

struct Timer {
    deadline: u64,
    /// Index of the timer before this one in the list of its slot; for the first one, index of the last one.
    previous: u32,
    /// Index of the timer after this one.
    next: u32,
    /// The number by which the owner of the wheel recognises the timer.
    value: u32,
    slot: u16,
}

impl Wheel {
    pub(super) fn new() -> Self {
        Self {
            timers: Vec::new(),
            free: NIL,
            slots: vec![NIL; usize::from(LEVELS * SLOTS)].into(),
            occupied: [0; LEVELS as usize],
            passed: 0,
            next: UNSET,
        }
    }

    /// The tick by which to call [`Wheel::advance`]; [`UNSET`] if no timer is filed.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// Adds a timer that is not set, and returns its key.
    pub(super) fn add(&mut self, value: u32) -> TimerKey {
        let timer = Timer {
            deadline: UNSET,
            previous: NIL,
            next: NIL,
            value,
            slot: UNFILED,
        };
        let key = self.free;
        if let Some(unused) = self.timers.get_mut(key as usize) {
            self.free = std::mem::replace(unused, timer).next;
            return TimerKey(key);
        }
        self.timers.push(timer);
        TimerKey(u32::try_from(self.timers.len() - 1).unwrap_or(NIL))
    }

    pub(super) fn remove(&mut self, key: TimerKey) {
        self.unfile(key.0);
        let timer = &mut self.timers[key.0 as usize];
        timer.deadline = UNSET;
        timer.next = std::mem::replace(&mut self.free, key.0);
    }

    /// Sets, moves or clears the timer with this key.
    #[inline]
    pub(super) fn set(&mut self, key: TimerKey, deadline: u64, now: impl FnOnce() -> u64) {
        let timer = &mut self.timers[key.0 as usize];
        timer.deadline = deadline;
        let slot = timer.slot;
        if slot == UNFILED {
            if deadline != UNSET {
                self.file(key.0, now());
            }
        } else if deadline < self.begin_of(slot) {
            self.unfile(key.0);
            self.file(key.0, now());
        }
    }

    /// Calls `fire` with the value of every timer that is due, and clears it.
    pub(super) fn advance(&mut self, now: u64, mut fire: impl FnMut(u32)) {
        if now < self.next {
            return;
        }
        // List of timers whose slot has come although their deadline was moved to later; they are put into other slots
        // at the end.
        let mut put_off = NIL;
        for level in 0..LEVELS {
            let shift = SHIFT * level;
            let from = self.passed >> shift;
            let count = ((now >> shift) - from).min(u64::from(SLOTS));
            if count == 0 {
                break;
            }
            let come = u128::MAX >> (u64::from(SLOTS) - count);
            let first = from + 1;
            let occupied = &mut self.occupied[usize::from(level)];
            let mut hit = occupied.rotate_right(index_of(first).into()) & come;
            *occupied &= !come.rotate_left(index_of(first).into());
            while hit != 0 {
                let index = index_of(first + u64::from(hit.trailing_zeros()));
                let slot = usize::from(level * SLOTS + index);
                hit &= hit - 1;
                let mut key = std::mem::replace(&mut self.slots[slot], NIL);
                while let Some(timer) = self.timers.get_mut(key as usize) {
                    let following = timer.next;
                    timer.slot = UNFILED;
                    if timer.deadline <= now {
                        timer.deadline = UNSET;
                        fire(timer.value);
                    } else if timer.deadline != UNSET {
                        timer.next = std::mem::replace(&mut put_off, key);
                    }
                    key = following;
                }
            }
        }
        self.passed = self.passed.max(now);
        self.next = self.first_occupied();
        while let Some(timer) = self.timers.get(put_off as usize) {
            let key = std::mem::replace(&mut put_off, timer.next);
            self.file(key, now);
        }
    }

    /// Puts a timer that is in no slot into the slot for its deadline.
    fn file(&mut self, key: u32, now: u64) {
        if now < self.next {
            // Distances are counted from now, so that a timer for a short time gets a short slot even if the wheel has
            // not been advanced for long.
            self.passed = self.passed.max(now);
        }
        let timer = &mut self.timers[key as usize];
        let due = timer.deadline.max(self.passed + 1);
        let distance = due - self.passed;
        let reach = |level: u16| u64::from(SLOTS - 1) << (SHIFT * level);
        let level = (0..LEVELS - 1).find(|&level| distance <= reach(level));
        let level = level.unwrap_or(LEVELS - 1);
        let shift = SHIFT * level;
        // The timer goes into the first slot that begins at its deadline or later. The farthest slot reuses the index
        // of the current slot, which is empty because its timers have fired.
        let farthest = (self.passed >> shift) + u64::from(SLOTS);
        let at = due.div_ceil(1 << shift).min(farthest);
        let index = index_of(at);
        timer.slot = level * SLOTS + index;
        timer.next = NIL;
        let first = &mut self.slots[usize::from(timer.slot)];
        if *first == NIL {
            *first = key;
        }
        let first = *first;
        let last = std::mem::replace(&mut self.timers[first as usize].previous, key);
        if first != key {
            self.timers[last as usize].next = key;
            self.timers[key as usize].previous = last;
        }
        self.occupied[usize::from(level)] |= 1 << index;
        self.next = self.next.min(at << shift);
    }

    fn unfile(&mut self, key: u32) {
        let timer = &mut self.timers[key as usize];
        let slot = std::mem::replace(&mut timer.slot, UNFILED);
        if slot == UNFILED {
            return;
        }
        let (previous, following) = (timer.previous, timer.next);
        let first = &mut self.slots[usize::from(slot)];
        if *first == key {
            *first = following;
        } else {
            self.timers[previous as usize].next = following;
        }
        let first = self.slots[usize::from(slot)];
        if first == NIL {
            self.occupied[usize::from(slot / SLOTS)] &= !(1 << (slot % SLOTS));
            return;
        }
        let behind = if following == NIL { first } else { following };
        self.timers[behind as usize].previous = previous;
    }

    /// The tick at which a slot that has timers begins.
    fn begin_of(&self, slot: u16) -> u64 {
        let shift = SHIFT * (slot / SLOTS);
        let coming = (self.passed >> shift) + 1;
        let ahead = u64::from(slot % SLOTS).wrapping_sub(coming) % u64::from(SLOTS);
        (coming + ahead) << shift
    }

    fn first_occupied(&self) -> u64 {
        let levels = (0..LEVELS).zip(&self.occupied);
        let firsts = levels.filter(|(_, occupied)| **occupied != 0);
        let firsts = firsts.map(|(level, occupied)| {
            let shift = SHIFT * level;
            let coming = (self.passed >> shift) + 1;
            let ahead = occupied.rotate_right(index_of(coming).into());
            (coming + u64::from(ahead.trailing_zeros())) << shift
        });
        firsts.min().unwrap_or(UNSET)
    }
}

/// The index of a slot in its level; the slot begins at `at` times the length of the level's slots.
fn index_of(at: u64) -> u16 {
    u16::try_from(at % u64::from(SLOTS)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(wheel: &mut Wheel, now: u64) -> Vec<u32> {
        let mut due = Vec::new();
        wheel.advance(now, |value| due.push(value));
        due.sort_unstable();
        due
    }

    #[test]
    fn timers_fire_once_not_early_and_can_be_moved_both_ways() {
        let wheel = &mut Wheel::new();
        let key = wheel.add(3);
        wheel.set(key, 1000, || 0);
        assert_eq!(due(wheel, 999), []);
        wheel.set(key, 5000, || 999); // The deadline is moved to a later time.
        assert_eq!(due(wheel, 2000), []);
        wheel.set(key, 3000, || 2000); // The deadline is moved to an earlier time.
        assert_eq!(due(wheel, 3200), [3]);
        assert_eq!((due(wheel, 9000), wheel.next()), (vec![], UNSET));
        wheel.set(key, 8000, || 9000); // The deadline is in the past: the timer fires at the next tick.
        assert_eq!((due(wheel, 9000), due(wheel, 9001)), (vec![], vec![3]));
        wheel.set(key, 20_000, || 9001);
        wheel.set(key, UNSET, || 9001);
        assert_eq!(due(wheel, 30_000), []);
        wheel.set(key, 31_000, || 30_000);
        assert_eq!(due(wheel, 32_000), [3]);
    }

    #[test]
    fn a_timer_is_late_by_an_eighth_at_most_however_far_it_is() {
        const DAY: u64 = 24 * 60 * 60 * 1000;
        for start in [0, 1, 127, 128, 4_095, 1_000_003] {
            for time in (0..25).map(|power| 1 << power).chain([DAY, 30 * DAY]) {
                for time in [time - 1, time, time + 1] {
                    let wheel = &mut Wheel::new();
                    let key = wheel.add(0);
                    wheel.set(key, start + time, || start);
                    let mut fired = None;
                    while fired.is_none() {
                        let next = wheel.next();
                        assert!(next > start, "after {time} from {start}");
                        assert_eq!(due(wheel, next - 1), [], "after {time} from {start}");
                        fired = due(wheel, next).first().map(|_| next);
                    }
                    let late = fired.unwrap() - (start + time);
                    assert!(
                        late <= (time / 8).max(1),
                        "{late} after {time} from {start}"
                    );
                }
            }
        }
    }

    #[test]
    fn timers_of_the_same_time_fire_in_the_order_in_which_they_were_set() {
        let fired = |wheel: &mut Wheel, now| {
            let mut fired = Vec::new();
            wheel.advance(now, |value| fired.push(value));
            fired
        };
        for time in [1, 100, 126, 127, 5_000] {
            let wheel = &mut Wheel::new();
            let keys: Vec<_> = (0..6).map(|value| wheel.add(value)).collect();
            for &key in &keys {
                wheel.set(key, 40 + time, || 40);
            }
            // One is taken from each end of the list, and from its middle.
            for at in [0, 3, 5] {
                wheel.set(keys[at], 41, || 40);
            }
            assert_eq!(
                fired(wheel, 41),
                if time == 1 {
                    vec![0, 1, 2, 3, 4, 5]
                } else {
                    vec![0, 3, 5]
                }
            );
            wheel.set(keys[3], 40 + time, || 41);
            assert_eq!(
                fired(wheel, 40 + 2 * time),
                if time == 1 { vec![3] } else { vec![1, 2, 4, 3] }
            );
            assert_eq!(wheel.next(), UNSET);
        }
        // Timers of different times fire in the order of these even if the wheel is advanced late.
        let wheel = &mut Wheel::new();
        for time in [90, 110, 100] {
            let key = wheel.add(time);
            wheel.set(key, time.into(), || 0);
        }
        let key = wheel.add(130);
        wheel.advance(80, |_| ());
        wheel.set(key, 130, || 80);
        assert_eq!(fired(wheel, 200), [90, 100, 110, 130]);
    }

    #[test]
    fn the_places_of_removed_timers_are_used_again() {
        let wheel = &mut Wheel::new();
        let keys = [0, 1, 2].map(|value| wheel.add(value));
        for key in keys {
            wheel.set(key, 50, || 0);
        }
        wheel.remove(keys[1]);
        assert_eq!(wheel.add(7), keys[1]);
        assert_eq!(due(wheel, 60), [0, 2]);
        wheel.set(keys[1], 70, || 60);
        wheel.remove(keys[0]);
        wheel.remove(keys[2]);
        assert_eq!(due(wheel, 80), [7]);
        assert_eq!((wheel.add(8), wheel.add(9)), (keys[2], keys[0]));
        assert_eq!(wheel.timers.len(), 3);
    }

    /// Compares the wheel with a plain list of deadlines: the same timers fire, each between its deadline and the end
    /// of its slot.
    #[test]
    fn any_sequence_of_changes_leaves_each_timer_its_deadline() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for _ in 0..20 {
            let wheel = &mut Wheel::new();
            let mut timers: Vec<(TimerKey, Option<u64>)> =
                (0..40).map(|value| (wheel.add(value), None)).collect();
            let mut now = 0;
            for _ in 0..3000 {
                let index = usize::try_from(random(40)).unwrap();
                let (key, deadline) = &mut timers[index];
                match random(8) {
                    0 => now += 1 << random(16),
                    1 => now += random(40),
                    2 => {
                        wheel.set(*key, UNSET, || now);
                        *deadline = None;
                    }
                    3 => {
                        wheel.remove(*key);
                        *key = wheel.add(u32::try_from(index).unwrap());
                        *deadline = None;
                    }
                    _ => {
                        let most = 1 << random(18);
                        let at = now + random(most);
                        wheel.set(*key, at, || now);
                        *deadline = Some(at);
                    }
                }
                wheel.advance(now, |value| {
                    let deadline = timers[value as usize].1.take();
                    let deadline = deadline.expect("the timer that fires has a deadline");
                    assert!(deadline <= now, "{deadline} at {now}");
                });
                for (_, deadline) in &timers {
                    // A timer fires late by at most the length of its slot, an eighth of the time for which it was set.
                    // The times in this test are at most 2^18 ticks.
                    assert!(deadline.is_none_or(|at| now <= at + (1 << 15)), "at {now}");
                    let waits = deadline.is_some();
                    assert!(!waits || wheel.next() > now && wheel.next() != UNSET);
                }
            }
        }
    }
}
