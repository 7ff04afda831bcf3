//! Random numbers that depend only on a seed, and a function that runs simulations with many seeds.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// A generator whose numbers are the same on every machine (SplitMix64).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Makes the generator for a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random number below `limit`.
    ///
    /// # Panics
    /// If `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("the number fits into 64 bits");
        usize::try_from(self.next() % limit).expect("the number is below a limit of type usize")
    }

    /// Returns true with the probability 1 in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Returns a random element of `from`.
    ///
    /// # Panics
    /// If `from` is empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns random bytes of this length, many of which are line ends and digits.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len)
            .map(|_| self.pick(b"\r\n0123456789abc\0\xff :;"))
            .collect()
    }

    /// Returns a random field value, without control characters and without spaces at its ends.
    pub fn value(&mut self) -> Vec<u8> {
        let len = self.below(40);
        let mut value: Vec<u8> = (0..len)
            .map(|_| self.pick(b"abcXYZ019 \t,;=\"\xc3\xa9%/"))
            .collect();
        if let [first, .., last] = &mut value[..] {
            (*first, *last) = (b'a', b'z');
        }
        if let [only] = &mut value[..] {
            *only = b'x';
        }
        value
    }
}

/// Runs a simulation with every seed below `count`, on all processors, or only with `n` if the environment has `SEED=n`.
///
/// `run` gets a seed, and returns the number of exchanges that were completed and the number of all exchanges. Returns the sums of
/// both over all seeds, or `None` if `SEED` is set. Prints the seed of a run that panics.
///
/// # Panics
/// If a run panics, or `SEED` is not a number.
pub fn run_seeds(count: u64, run: impl Fn(u64) -> (usize, usize) + Sync) -> Option<(usize, usize)> {
    if let Ok(seed) = std::env::var("SEED") {
        run(seed.parse().expect("SEED is a number"));
        return None;
    }
    let next = AtomicU64::new(0);
    let run_some = || {
        let (mut completed, mut planned) = (0, 0);
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= count {
                return (completed, planned);
            }
            let result = catch_unwind(AssertUnwindSafe(|| run(seed)));
            let (done, all) = result.unwrap_or_else(|panic| {
                eprintln!("seed {seed} failed; SEED={seed} runs it alone");
                // The other threads stop after their current seed.
                next.store(count, Ordering::Relaxed);
                resume_unwind(panic)
            });
            (completed, planned) = (completed + done, planned + all);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let sums = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run_some)).collect();
        let sums = threads.into_iter().map(|thread| {
            let result = thread.join();
            result.unwrap_or_else(|panic| resume_unwind(panic))
        });
        sums.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    });
    Some(sums)
}
