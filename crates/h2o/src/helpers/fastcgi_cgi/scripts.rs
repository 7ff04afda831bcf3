//! The CGI scripts that are running. Their number is limited, and all of them get SIGTERM when this process is told to
//! end.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Counts the FastCGI connections, and knows the scripts that run for them.
pub(super) struct Scripts {
    most: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    places: usize,
    is_ending: bool,
    /// The process groups of the running scripts, which have not been reaped.
    running: HashSet<i32>,
}

impl Scripts {
    pub(super) fn new(most: Option<usize>) -> Self {
        Self {
            most: most.unwrap_or(usize::MAX),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the number of connections is below the limit, and counts a new one. Never returns after [`Scripts::end`] was called, so
    /// that no further connection is accepted.
    pub(super) fn take_place(this: &Arc<Self>) -> Place {
        let is_full = |state: &mut State| state.is_ending || state.places >= this.most;
        let waited = this.changed.wait_while(this.lock(), is_full);
        waited.unwrap_or_else(PoisonError::into_inner).places += 1;
        Place(Arc::clone(this))
    }

    /// Sends SIGTERM to all scripts, and waits until all of them have ended and their responses were sent.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.is_ending = true;
        for &group in &state.running {
            let _ = killpg(Pid::from_raw(group), Signal::SIGTERM);
        }
        // Waits for the scripts, not for the places of connections: the thread that accepts connections holds a place for the next
        // connection, so that the number of places does not become 0.
        let runs = |state: &mut State| !state.running.is_empty();
        drop(self.changed.wait_while(state, runs));
    }
}

/// The place of one connection in the count; its drop frees the place.
pub(super) struct Place(Arc<Scripts>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.lock().places -= 1;
        self.0.changed.notify_all();
    }
}

impl Place {
    /// Records that a script runs; its process leads the process group `group`. If all scripts are being ended, this one gets
    /// SIGTERM at once.
    pub(super) fn begin(&self, group: i32) -> Running<'_> {
        let mut state = self.0.lock();
        state.running.insert(group);
        if state.is_ending {
            let _ = killpg(Pid::from_raw(group), Signal::SIGTERM);
        }
        Running {
            scripts: &self.0,
            group,
        }
    }
}

/// A running script. Must be dropped before its process is reaped: after that, the kernel may give the process id to another
/// process.
pub(super) struct Running<'a> {
    scripts: &'a Scripts,
    group: i32,
}

impl Running<'_> {
    /// Sends a signal to the script and to the processes that it has started.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = killpg(Pid::from_raw(self.group), signal);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.scripts.lock().running.remove(&self.group);
        self.scripts.changed.notify_all();
    }
}
