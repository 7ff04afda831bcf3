//! The scripts that run: at most so many at a time, and all of them get SIGTERM at the end.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// All connections, with the scripts that run for them.
pub(super) struct Scripts {
    most: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    places: usize,
    is_ending: bool,
    /// The process groups of the scripts that have not been waited for.
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

    /// Waits for a place for a connection. There is none any more once the scripts are being ended.
    pub(super) fn take_place(this: &Arc<Self>) -> Place {
        let is_full = |state: &mut State| state.is_ending || state.places >= this.most;
        let waited = this.changed.wait_while(this.lock(), is_full);
        waited.unwrap_or_else(PoisonError::into_inner).places += 1;
        Place(Arc::clone(this))
    }

    /// Sends SIGTERM to all scripts, and waits until their responses are through.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.is_ending = true;
        for &group in &state.running {
            let _ = killpg(Pid::from_raw(group), Signal::SIGTERM);
        }
        // A place without a script is that of the connection to come.
        let runs = |state: &mut State| !state.running.is_empty();
        drop(self.changed.wait_while(state, runs));
    }
}

/// The place of a connection, given back when it is dropped.
pub(super) struct Place(Arc<Scripts>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.lock().places -= 1;
        self.0.changed.notify_all();
    }
}

impl Place {
    /// Notes that a script runs, which leads a process group. If scripts are being ended, it is ended as well.
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

/// A script that runs. Must be dropped before its process is waited for: its number may have another owner then.
pub(super) struct Running<'a> {
    scripts: &'a Scripts,
    group: i32,
}

impl Running<'_> {
    /// Sends a signal to the script and to what it has started.
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
