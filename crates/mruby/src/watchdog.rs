//! Interrupts scripts that do not end: one thread for all VMs of the process.

#![expect(unsafe_code, reason = "the shim interrupts")]

use std::ffi::c_ulong;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crate::ffi::{self, Memory, State, Watch};

/// How often a script is interrupted before the log says that it does not heed it.
const TRIES: u32 = 3;

/// The part of a VM that the watchdog sees.
pub(crate) struct Watched {
    pub(crate) watch: *mut Watch,
    limit: Duration,
}

// SAFETY: what other threads call is `shim_watch_entries` and `shim_watch_interrupt`, which lock.
unsafe impl Send for Watched {}
// SAFETY: as above.
unsafe impl Sync for Watched {}

impl Watched {
    /// A VM whose scripts may run for `limit` without waiting; `None` if there is no memory.
    pub(crate) fn new(mrb: *mut State, memory: *mut Memory, limit: Duration) -> Option<Arc<Self>> {
        // SAFETY: the VM is open, and `Vm` keeps it and the record of its memory as long as it runs anything.
        let watch = unsafe { ffi::shim_watch_new(mrb, memory) };
        (!watch.is_null()).then(|| Arc::new(Self { watch, limit }))
    }

    /// Has the watchdog look after it from now on.
    pub(crate) fn begin(self: &Arc<Self>) {
        if !self.limit.is_zero() {
            let mut all = all().lock().unwrap_or_else(PoisonError::into_inner);
            all.push(Arc::downgrade(self));
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: the VM is closed, and nobody else refers to this.
        unsafe { ffi::shim_watch_free(self.watch) };
    }
}

/// All VMs. The first call starts the thread.
fn all() -> &'static Mutex<Vec<Weak<Watched>>> {
    static ALL: OnceLock<Mutex<Vec<Weak<Watched>>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let started = thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(look_after);
        drop(started);
        Mutex::default()
    })
}

/// What the watchdog has seen of a VM.
struct Seen {
    vm: Weak<Watched>,
    entry: c_ulong,
    /// Processor time of the thread when the entry was first seen, or last interrupted. Time in which other threads had the processor
    /// does not count.
    since: Duration,
    tries: u32,
}

fn look_after() {
    let mut seen: Vec<Seen> = Vec::new();
    loop {
        {
            let mut added = all().lock().unwrap_or_else(PoisonError::into_inner);
            seen.extend(added.drain(..).map(|vm| Seen {
                vm,
                entry: 0,
                since: Duration::ZERO,
                tries: 0,
            }));
        }
        let mut pause = Duration::from_millis(100);
        seen.retain_mut(|seen| {
            let Some(vm) = seen.vm.upgrade() else {
                return false;
            };
            pause = pause.min((vm.limit / 8).max(Duration::from_millis(1)));
            seen.look(&vm);
            true
        });
        thread::sleep(pause);
    }
}

impl Seen {
    fn look(&mut self, vm: &Watched) {
        // SAFETY: the VM's part for other threads lives as long as `vm`.
        let entry = unsafe { ffi::shim_watch_entries(vm.watch) };
        // SAFETY: as above.
        let now = Duration::from_nanos(unsafe { ffi::shim_watch_time(vm.watch) });
        if entry != self.entry || entry % 2 == 0 {
            (self.entry, self.since, self.tries) = (entry, now, 0);
            return;
        }
        if now.saturating_sub(self.since) < vm.limit {
            return;
        }
        // SAFETY: as above.
        let interrupted = unsafe { ffi::shim_watch_interrupt(vm.watch, entry) } != 0;
        if interrupted {
            self.since = now;
            self.tries += 1;
            if self.tries == TRIES {
                (log())("a script cannot be interrupted: it is in a call that does not return");
            }
        }
    }
}

/// Where the watchdog reports what nobody else can.
pub type Report = fn(&str);

static REPORT: OnceLock<Report> = OnceLock::new();

/// Sets where the watchdog reports that a script cannot be interrupted. Only the first call counts.
pub fn report_to(report: Report) {
    let _ = REPORT.set(report);
}

fn log() -> Report {
    REPORT.get().copied().unwrap_or(|_| ())
}
