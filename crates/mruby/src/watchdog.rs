//! The watchdog, which interrupts scripts that do not end: one thread for all VMs of the process.

#![expect(unsafe_code, reason = "a C function of the shim interrupts the script")]

use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_ulong};
use std::fs;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crate::ffi::{self, Memory, State, Watch};

/// How often a script is interrupted before the log says that it cannot be interrupted.
const TRIES: u32 = 3;

/// A script that goes on after it was interrupted is interrupted again after the limit divided by this number: so other clients of the
/// worker wait for the limit and a little more.
const SHORTER: u32 = 5;

/// How long a call may block a worker without using the processor before the log names its place in the script.
const BLOCKING: Duration = Duration::from_millis(100);

/// Maximum time between two looks of the watchdog at all VMs.
const PERIOD: Duration = Duration::from_millis(50);

/// Maximum number of places of blocking calls that the log names.
const MOST_PLACES: usize = 256;

/// The part of a VM that the watchdog uses.
pub(crate) struct Watched {
    pub(crate) watch: *mut Watch,
    limit: Duration,
    /// The kernel's id of the VM's thread.
    thread: libc::pid_t,
}

// SAFETY: other threads call only the functions for the watchdog, which take a lock or read atomically.
unsafe impl Send for Watched {}
// SAFETY: as for `Send`, other threads call only functions that take a lock or read atomically.
unsafe impl Sync for Watched {}

impl Watched {
    /// The watchdog's part of a VM whose scripts may run for `limit` without waiting; `None` if there is not enough memory.
    pub(crate) fn new(mrb: *mut State, memory: *mut Memory, limit: Duration) -> Option<Arc<Self>> {
        // SAFETY: the VM is open, and `Vm` keeps it and the record of its memory as long as it runs anything.
        let watch = unsafe { ffi::shim_watch_new(mrb, memory) };
        // SAFETY: the system call may be made at any time.
        let thread = unsafe { libc::gettid() };
        (!watch.is_null()).then(|| {
            Arc::new(Self {
                watch,
                limit,
                thread,
            })
        })
    }

    /// Registers this VM with the watchdog thread, which from now on interrupts its scripts at the time limit.
    pub(crate) fn begin(self: &Arc<Self>) {
        let mut all = all().lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Arc::downgrade(self));
    }

    /// Whether the VM's thread waits in the kernel.
    fn is_blocked(&self) -> bool {
        let stat = fs::read(format!("/proc/self/task/{}/stat", self.thread)).unwrap_or_default();
        // The state of the thread follows its name, which is in parentheses.
        let mut words = stat.rsplit(|byte| *byte == b')');
        matches!(words.next(), Some([b' ', b'S' | b'D', ..]))
    }

    /// The place where the script was when the watchdog asked for it, as `FILE:LINE`; `None` if no new place is known.
    fn take_place(&self) -> Option<String> {
        let mut place: [c_char; 512] = [0; 512];
        // SAFETY: the buffer has this size, and the record that the watchdog shares with the VM lives as long as `self`.
        let known =
            unsafe { ffi::shim_watch_take_place(self.watch, place.as_mut_ptr(), place.len()) };
        // SAFETY: the shim ends the text with a NUL.
        let text = unsafe { CStr::from_ptr(place.as_ptr()) };
        (known != 0).then(|| text.to_string_lossy().into_owned())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: the VM is closed, and nothing else refers to the record.
        unsafe { ffi::shim_watch_free(self.watch) };
    }
}

/// The VMs that the watchdog has not taken over yet. The first call starts the watchdog's thread.
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

/// What the watchdog has seen of one VM.
struct Seen {
    vm: Weak<Watched>,
    entry: c_ulong,
    /// Processor time of the VM's thread when the watchdog first saw that the VM had been entered, or when it last
    /// interrupted it. Time in which other threads had the processor does not count.
    since: Duration,
    tries: u32,
    /// How long the VM's thread has waited in the kernel since the VM was entered, as far as the watchdog has seen.
    blocked: Duration,
}

fn look_after() {
    let mut seen: Vec<Seen> = Vec::new();
    let mut named = HashSet::new();
    let mut pause = PERIOD;
    loop {
        {
            let mut added = all().lock().unwrap_or_else(PoisonError::into_inner);
            seen.extend(added.drain(..).map(|vm| Seen {
                vm,
                entry: 0,
                since: Duration::ZERO,
                tries: 0,
                blocked: Duration::ZERO,
            }));
        }
        let passed = std::mem::replace(&mut pause, PERIOD);
        seen.retain_mut(|seen| {
            let Some(vm) = seen.vm.upgrade() else {
                return false;
            };
            if !vm.limit.is_zero() {
                pause = pause.min((vm.limit / 8).max(Duration::from_millis(1)));
            }
            seen.look(&vm, passed);
            if let Some(place) = vm.take_place()
                && named.len() < MOST_PLACES
                && !named.contains(&place)
            {
                (log())(&format!(
                    "a script held its worker for more than 100 ms in a call that blocks, at {place}"
                ));
                named.insert(place);
            }
            true
        });
        thread::sleep(pause);
    }
}

/// How long a script may run, if it was interrupted `tries` times since the VM was entered.
pub(crate) fn allowance(limit: Duration, tries: u32) -> Duration {
    if tries == 0 { limit } else { limit / SHORTER }
}

impl Seen {
    /// Looks at the VM; `passed` is the time since the last look.
    fn look(&mut self, vm: &Watched, passed: Duration) {
        // SAFETY: the record that the watchdog shares with the VM lives as long as `vm`.
        let entry = unsafe { ffi::shim_watch_entries(vm.watch) };
        // SAFETY: the record that the watchdog shares with the VM lives as long as `vm`.
        let now = Duration::from_nanos(unsafe { ffi::shim_watch_time(vm.watch) });
        if entry != self.entry || entry % 2 == 0 {
            (self.entry, self.since, self.tries) = (entry, now, 0);
            self.blocked = Duration::ZERO;
            return;
        }
        if !vm.is_blocked() {
            self.blocked = Duration::ZERO;
        } else if self.blocked < BLOCKING {
            self.blocked += passed;
            if self.blocked >= BLOCKING {
                // SAFETY: the record that the watchdog shares with the VM lives as long as `vm`.
                unsafe { ffi::shim_watch_ask_place(vm.watch, entry) };
            }
        }
        if vm.limit.is_zero() {
            return;
        }
        if now.saturating_sub(self.since) < allowance(vm.limit, self.tries) {
            return;
        }
        // SAFETY: the record that the watchdog shares with the VM lives as long as `vm`.
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

/// The function with which the watchdog reports to the log.
pub type Report = fn(&str);

static REPORT: OnceLock<Report> = OnceLock::new();

/// Sets the function with which the watchdog reports scripts that block or cannot be interrupted. Only the first call
/// counts.
pub fn report_to(report: Report) {
    let _ = REPORT.set(report);
}

fn log() -> Report {
    REPORT.get().copied().unwrap_or(|_| ())
}
