//! The order in which the streams of a connection send (RFC 9218 §10).

use super::PriorityParameters;

/// A stream that has content to send, and a flow control window that allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedStream {
    /// The stream's identifier, which decides the order among streams of the same urgency.
    pub id: u64,
    /// The stream's priority parameters.
    pub priority: PriorityParameters,
    /// Whether the stream is served before all others, whatever their urgency. Such elevated streams are served in the order
    /// of their identifiers.
    pub is_elevated: bool,
    /// Whether the stream has sent a frame since it was opened.
    pub has_sent: bool,
}

/// The streams of one connection that can send, in the order in which they are served.
///
/// Streams with a lower urgency number are served first. Within one urgency, streams that are not incremental, and
/// incremental ones that have not sent yet, are served in the order of their identifiers; after them the other incremental
/// streams take turns of one frame each.
///
/// The caller identifies each stream by a slot, a small number that it assigns. The memory of the queue grows with the
/// largest slot.
///
/// ```
/// use h2o_http::priority::{PriorityField, QueuedStream, UrgencyQueue};
///
/// let stream = |id, field| QueuedStream {
///     id,
///     priority: PriorityField::parse(field).into(),
///     is_elevated: false,
///     has_sent: false,
/// };
/// let mut queue = UrgencyQueue::new();
/// queue.insert(0, stream(0, b"u=5"));
/// queue.insert(1, stream(4, b"u=1, i"));
/// assert_eq!(queue.next(), Some(1));
/// assert!(queue.remove(1).is_some_and(|stream| stream.has_sent));
/// assert_eq!(queue.next(), Some(0));
/// ```
#[derive(Debug, Default)]
pub struct UrgencyQueue {
    /// The queued streams; the index is the slot (the caller's number of the stream).
    members: Vec<Member>,
    /// A binary heap of the streams that are served in the order of their identifiers; each member knows its place in the
    /// heap.
    in_order: Vec<(Rank, u32)>,
    /// For each urgency, the slot (the caller's number) of the incremental stream that sends next; meaningless if the bit of
    /// the urgency in `occupied` is 0.
    rings: [u32; 8],
    /// A bit for each urgency: whether its ring of incremental streams has a member.
    occupied: u8,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    stream: QueuedStream,
    place: Place,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    /// No queued stream has this slot (number that the caller gives to a stream).
    Free,
    /// The stream is in the heap, at this index.
    InOrder { at: u32 },
    /// The incremental stream takes turns with others of its urgency: its neighbours in their ring are the streams with
    /// these slots.
    InTurns { prev: u32, next: u32 },
}

/// Sort key of a stream in the heap: `class` is the urgency plus one, or 0 for an elevated stream; then the identifier
/// decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    class: u8,
    id: u64,
}

impl Member {
    const FREE: Self = Self {
        stream: QueuedStream {
            id: 0,
            priority: PriorityParameters::DEFAULT,
            is_elevated: false,
            has_sent: false,
        },
        place: Place::Free,
    };

    const fn is_free(&self) -> bool {
        matches!(self.place, Place::Free)
    }
}

impl QueuedStream {
    /// The urgency of the stream, limited to 7.
    const fn urgency(&self) -> u8 {
        if self.priority.urgency < 7 {
            self.priority.urgency
        } else {
            7
        }
    }

    const fn takes_turns(&self) -> bool {
        self.priority.incremental && self.has_sent && !self.is_elevated
    }
}

impl UrgencyQueue {
    /// An empty queue, which allocates nothing before the first stream.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            members: Vec::new(),
            in_order: Vec::new(),
            rings: [0; 8],
            occupied: 0,
        }
    }

    /// Whether the stream with this slot is queued.
    #[inline]
    #[must_use]
    pub fn contains(&self, slot: u32) -> bool {
        (self.members.get(slot as usize)).is_some_and(|member| !member.is_free())
    }

    /// Queues a stream under `slot`, a number of the caller's choice that no queued stream has.
    pub fn insert(&mut self, slot: u32, stream: QueuedStream) {
        debug_assert!(!self.contains(slot), "a stream is queued once");
        let at = slot as usize;
        if at >= self.members.len() {
            self.members.resize(at + 1, Member::FREE);
        }
        let place = if stream.takes_turns() {
            self.join_ring(slot, stream.urgency())
        } else {
            Place::InOrder { at: 0 }
        };
        self.members[at] = Member { stream, place };
        if let Place::InOrder { .. } = place {
            let class = if stream.is_elevated {
                0
            } else {
                stream.urgency() + 1
            };
            let id = stream.id;
            self.in_order.push((Rank { class, id }, slot));
            self.rise(self.in_order.len() - 1);
        }
    }

    /// Removes the stream with this slot. `None` if it was not queued.
    pub fn remove(&mut self, slot: u32) -> Option<QueuedStream> {
        let member = self.members.get_mut(slot as usize)?;
        let Member { stream, place } = std::mem::replace(member, Member::FREE);
        match place {
            Place::Free => return None,
            Place::InTurns { prev, next } => self.leave_ring(slot, stream.urgency(), prev, next),
            Place::InOrder { at } => {
                let at = at as usize;
                self.in_order.swap_remove(at);
                if at < self.in_order.len() {
                    self.rise(at);
                    self.sink(at);
                }
            }
        }
        Some(stream)
    }

    /// The slot of the stream that sends the next frame. The call counts as the stream's turn; the stream stays queued.
    #[inline]
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator would borrow the queue between frames"
    )]
    pub fn next(&mut self) -> Option<u32> {
        // The smallest urgency whose ring has a member; 8, which is behind every urgency, if all rings are empty.
        let ring = self.occupied.trailing_zeros();
        if let Some(&(rank, slot)) = self.in_order.first()
            && u32::from(rank.class) <= ring + 1
        {
            if let Some(Member { stream, .. }) = self.members.get_mut(slot as usize)
                && !std::mem::replace(&mut stream.has_sent, true)
                && stream.takes_turns()
            {
                self.join_turns(slot);
            }
            return Some(slot);
        }
        let head = self.rings.get_mut(ring as usize)?;
        let slot = *head;
        if let Some(member) = self.members.get(slot as usize)
            && let Place::InTurns { next, .. } = member.place
        {
            *head = next;
        }
        Some(slot)
    }

    /// An incremental stream has sent its first frame: it moves from the streams that are served in the order of identifiers
    /// to the ring of those that take turns.
    #[inline(never)]
    fn join_turns(&mut self, slot: u32) {
        if let Some(stream) = self.remove(slot) {
            self.insert(slot, stream);
        }
    }

    /// Frees the memory that the queue does not need for the streams that it has.
    pub fn shrink(&mut self) {
        while self.members.last().is_some_and(Member::is_free) {
            self.members.pop();
        }
        self.members.shrink_to_fit();
        self.in_order.shrink_to_fit();
    }

    /// Bytes of memory that the queue has allocated.
    #[must_use]
    pub const fn retained(&self) -> usize {
        self.members.capacity() * size_of::<Member>()
            + self.in_order.capacity() * size_of::<(Rank, u32)>()
    }

    /// Appends the stream with this slot to the ring of incremental streams that take turns. Returns its neighbours there.
    fn join_ring(&mut self, slot: u32, urgency: u8) -> Place {
        let first = &mut self.rings[usize::from(urgency)];
        if self.occupied & 1 << urgency == 0 {
            self.occupied |= 1 << urgency;
            *first = slot;
            let (prev, next) = (slot, slot);
            return Place::InTurns { prev, next };
        }
        let next = *first;
        let prev = self.set_prev(next, slot);
        self.set_next(prev, slot);
        Place::InTurns { prev, next }
    }

    fn leave_ring(&mut self, slot: u32, urgency: u8, prev: u32, next: u32) {
        if next == slot {
            self.occupied &= !(1 << urgency);
            return;
        }
        self.set_next(prev, next);
        self.set_prev(next, prev);
        let first = &mut self.rings[usize::from(urgency)];
        if *first == slot {
            *first = next;
        }
    }

    /// Sets the stream that comes before another one in a ring of streams that take turns. Returns the one that came before
    /// so far.
    fn set_prev(&mut self, slot: u32, to: u32) -> u32 {
        match &mut self.members[slot as usize].place {
            Place::InTurns { prev, .. } => std::mem::replace(prev, to),
            Place::Free | Place::InOrder { .. } => to,
        }
    }

    fn set_next(&mut self, slot: u32, to: u32) {
        if let Place::InTurns { next, .. } = &mut self.members[slot as usize].place {
            *next = to;
        }
    }

    fn rise(&mut self, mut at: usize) {
        let moved = self.in_order[at];
        while at > 0 {
            let above = (at - 1) / 2;
            if self.in_order[above].0 <= moved.0 {
                break;
            }
            self.put(at, self.in_order[above]);
            at = above;
        }
        self.put(at, moved);
    }

    fn sink(&mut self, mut at: usize) {
        let moved = self.in_order[at];
        loop {
            let left = 2 * at + 1;
            let Some(&first) = self.in_order.get(left) else {
                break;
            };
            let (below, from) = match self.in_order.get(left + 1) {
                Some(&second) if second.0 < first.0 => (second, left + 1),
                _ => (first, left),
            };
            if moved.0 <= below.0 {
                break;
            }
            self.put(at, below);
            at = from;
        }
        self.put(at, moved);
    }

    fn put(&mut self, at: usize, entry: (Rank, u32)) {
        self.in_order[at] = entry;
        self.members[entry.1 as usize].place = Place::InOrder {
            at: u32::try_from(at).expect("slots are u32, and there are no more entries than slots"),
        };
    }
}

#[cfg(test)]
mod tests;
