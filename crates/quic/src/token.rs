//! Address validation tokens (RFC 9000 §8.1): which of them have been used.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use quinn_proto::{TokenLog, TokenReuseError};

/// Number of used NEW_TOKEN tokens that are remembered, so that none is accepted twice. If more are used within their
/// lifetime, the oldest are forgotten and could be used again: RFC 9000 §8.1.4 only asks to limit reuse.
const MAX_REMEMBERED: usize = 8192;

/// The NEW_TOKEN tokens that clients have used.
#[derive(Debug, Default)]
pub struct UsedTokens(Mutex<Used>);

#[derive(Debug, Default)]
struct Used {
    hasher: RandomState,
    /// Hashes of the used tokens, in the order of use.
    order: VecDeque<u64>,
    known: HashSet<u64>,
}

impl TokenLog for UsedTokens {
    fn check_and_insert(
        &self,
        nonce: u128,
        _issued: SystemTime,
        _lifetime: Duration,
    ) -> Result<(), TokenReuseError> {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hash = used.hasher.hash_one(nonce);
        if !used.known.insert(hash) {
            return Err(TokenReuseError);
        }
        used.order.push_back(hash);
        if used.order.len() > MAX_REMEMBERED
            && let Some(oldest) = used.order.pop_front()
        {
            used.known.remove(&oldest);
        }
        Ok(())
    }
}
