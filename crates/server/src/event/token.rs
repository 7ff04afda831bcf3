//! The tokens by which an event loop names the sockets and connections of its tables.
//!
//! A token has, from the highest bit on: the index of the table, a mark for what is no connection, a count that tells apart successive
//! connections in the same slot, and the slot.

/// Position of the lowest bit of a token that belongs to the index of a table of connections; the table itself uses the bits below.
pub(crate) const TABLE_SHIFT: u32 = 60;
/// Number of low bits of a token, and of a timer event, that hold the slot in a table of connections.
const SLOT_BITS: u32 = 27;
/// The highest slot, which is that of no connection.
pub(crate) const MAX_SLOT: u32 = (1 << SLOT_BITS) - 1;
/// Bit that marks a token as that of a socket which is not that of a connection. In place of the slot it has a number of the table's choice.
pub(crate) const SOCKET_BIT: u64 = 1 << (TABLE_SHIFT - 1);
/// Bit that marks a token as that of a worker's mailbox for datagrams.
pub(crate) const MAIL_BIT: u64 = 1 << (TABLE_SHIFT - 2);
/// Position of the lowest bit of the count of connections.
const COUNT_SHIFT: u32 = 32;
/// The count of connections is below this number.
const COUNTS: u32 = 1 << (TABLE_SHIFT - 2 - COUNT_SHIFT);

/// Makes the tokens of the connections of one table.
#[derive(Debug)]
pub(crate) struct ConnectionTokens {
    first: u64,
    count: u32,
}

impl ConnectionTokens {
    /// For the table whose first token is `first`.
    pub(crate) const fn new(first: u64) -> Self {
        Self { first, count: 0 }
    }

    /// The token of the next connection, which is in the slot `slot`. `None` if the slot is too high for a token: no machine has memory for
    /// as many connections.
    pub(crate) fn next(&mut self, slot: usize) -> Option<u64> {
        let slot = u32::try_from(slot).ok().filter(|slot| *slot < MAX_SLOT)?;
        self.count = (self.count + 1) % COUNTS;
        Some(self.first | u64::from(self.count) << COUNT_SHIFT | u64::from(slot))
    }
}

/// The slot in the token of a connection, or the number in that of a socket.
pub(crate) fn slot_of(token: u64) -> u32 {
    // The conversion cannot fail: the slot has 27 bits.
    u32::try_from(token & u64::from(MAX_SLOT)).unwrap_or(MAX_SLOT)
}

/// The index of the table that a token belongs to.
pub(crate) fn table_of(token: u64) -> usize {
    usize::try_from(token >> TABLE_SHIFT).unwrap_or(usize::MAX)
}

/// The index of the table, and the slot in it, of a [`timer_event`].
pub(crate) const fn timer_target(event: u32) -> (usize, u32) {
    ((event >> SLOT_BITS) as usize, event & MAX_SLOT)
}

/// The timer event for the table and the slot of this token. When the timer fires, the loop calls
/// [`ConnectionTable::on_timeout`](super::event_loop::ConnectionTable::on_timeout) with the slot.
pub(crate) fn timer_event(token: u64) -> u32 {
    let table = u32::try_from(token >> TABLE_SHIFT).unwrap_or(0);
    table << SLOT_BITS | slot_of(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_have_tokens_of_their_own_and_no_marks() {
        let first = 3 << TABLE_SHIFT;
        let mut tokens = ConnectionTokens::new(first);
        let (one, two) = (tokens.next(7).unwrap(), tokens.next(7).unwrap());
        assert_ne!(one, two);
        assert_eq!([slot_of(one), slot_of(two)], [7, 7]);
        assert_eq!(
            [one, two].map(|token| timer_target(timer_event(token))),
            [(3, 7); 2]
        );
        assert_eq!([one, two].map(table_of), [3, 3]);
        assert_eq!(tokens.next(MAX_SLOT as usize), None);
        // The counts up to the highest one, and the one after it.
        for count in [1 << 25, COUNTS - 2, COUNTS - 1] {
            tokens.count = count;
            let token = tokens.next(0).unwrap();
            assert_eq!(token & (SOCKET_BIT | MAIL_BIT), 0, "{count}");
            assert_eq!(token >> TABLE_SHIFT, 3, "{count}");
        }
    }
}
