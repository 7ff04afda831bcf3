//! Limits the file descriptors that clients can occupy, so that some are left for `accept`, files and logs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use h2o_log::report;
use rustix::process::{Resource, getrlimit};

use crate::failure_counter::FailureCounter;

/// The part of the file descriptors that clients cannot occupy, because it is reserved for files, logs and look-ups:
/// one in this many descriptors, but at most [`MOST_KEPT_BACK`] of them.
const KEPT_BACK: usize = 8;
const MOST_KEPT_BACK: usize = 1024;

/// Counts the file descriptors that clients occupy in a process: their connections, and the temporary files and
/// connections to backends that are open for their requests.
#[derive(Debug)]
pub struct Descriptors {
    /// File descriptors that were unused when the process began to serve.
    limit: usize,
    /// Number of open client connections.
    clients: AtomicUsize,
    /// Number of connections to backends and of temporary files that are open for requests.
    opened: AtomicUsize,
    refusals: FailureCounter,
}

/// A file descriptor opened for a request. It counts against the limit until this value is dropped.
#[derive(Debug)]
pub struct Descriptor(Arc<Descriptors>);

/// The default sets no limit.
impl Default for Descriptors {
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl Descriptors {
    /// Creates a limit of `limit` descriptors in addition to those that are open now.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            clients: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
            refusals: FailureCounter::default(),
        }
    }

    /// Creates the limit of this process: RLIMIT_NOFILE less the descriptors that are open now.
    #[must_use]
    pub fn of_process() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        Self::new(
            usize::try_from(limit)
                .unwrap_or(usize::MAX)
                .saturating_sub(open),
        )
    }

    /// Number of open client connections.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.load(Relaxed)
    }

    /// Counts a new client connection.
    pub fn begin_client(&self) {
        self.clients.fetch_add(1, Relaxed);
    }

    /// Removes a closed client connection from the count.
    pub fn end_client(&self) {
        self.clients.fetch_sub(1, Relaxed);
    }

    /// Whether another client may be accepted.
    #[must_use]
    pub fn may_accept(&self) -> bool {
        self.leaves_enough(self.opened.load(Relaxed) + 1)
    }

    /// Reserves a descriptor for a connection to a backend or for a temporary file. `None` if connections to backends
    /// and temporary files already use half of the limit, or if too few descriptors would be left.
    #[must_use]
    pub fn open(self: &Arc<Self>) -> Option<Descriptor> {
        let opened = self.opened.fetch_add(1, Relaxed) + 1;
        // `descriptor` counts as open until it is dropped: by the caller, or at the end of this function if the limit
        // refuses it.
        let descriptor = Descriptor(Arc::clone(self));
        if opened <= self.limit / 2 && self.leaves_enough(opened) {
            return Some(descriptor);
        }
        if self.refusals.count() {
            report!(
                warning,
                "the limit of file descriptors (RLIMIT_NOFILE) is reached: {} connections of clients, {} connections to backends and temporary files are open; raise it (`LimitNOFILE` of systemd) or lower max-connections",
                self.clients(),
                opened - 1
            );
        }
        None
    }

    /// How many files each of `workers` workers may keep open for later requests: one in sixteen of all descriptors, shared out, and at least
    /// one.
    #[must_use]
    pub fn for_kept_files(&self, workers: usize) -> usize {
        (self.limit / 16 / workers.max(1)).max(1)
    }

    /// How often [`Descriptors::open`] refused.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refusals.counted()
    }

    const fn kept_back(&self) -> usize {
        let part = self.limit / KEPT_BACK;
        if part < MOST_KEPT_BACK {
            part
        } else {
            MOST_KEPT_BACK
        }
    }

    fn leaves_enough(&self, opened: usize) -> bool {
        self.clients() + opened <= self.limit - self.kept_back()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.0.opened.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_some_descriptors_for_the_files_that_they_keep() {
        let kept = |limit, workers| Descriptors::new(limit).for_kept_files(workers);
        assert_eq!([kept(1000, 1), kept(1000, 4), kept(1000, 100)], [62, 15, 1]);
        assert_eq!([kept(1 << 20, 1), kept(1 << 20, 16)], [65_536, 4096]);
    }

    #[test]
    fn requests_leave_half_to_clients_and_some_to_files() {
        let descriptors = Arc::new(Descriptors::new(80));
        let open = || descriptors.open();
        let mut opened: Vec<_> = std::iter::from_fn(open).collect();
        assert_eq!(opened.len(), 40);
        assert_eq!(descriptors.refusals(), 1);
        let mut clients = 0;
        while descriptors.may_accept() {
            descriptors.begin_client();
            clients += 1;
        }
        assert_eq!(
            (clients, descriptors.clients()),
            (30, 30),
            "10 descriptors are not given to clients"
        );
        opened.truncate(20);
        assert!(descriptors.may_accept());
        (0..15).for_each(|_| descriptors.begin_client());
        opened.extend(std::iter::from_fn(|| descriptors.open()));
        assert_eq!(
            opened.len(),
            25,
            "connections of clients use the descriptors that requests have left"
        );
        drop(opened);
        descriptors.end_client();
        assert_eq!(descriptors.clients(), 44);
        assert!(descriptors.open().is_some());
        assert!(Arc::new(Descriptors::default()).open().is_some());
        assert!(Arc::new(Descriptors::new(0)).open().is_none());
        assert!(Descriptors::of_process().may_accept());
    }
}
