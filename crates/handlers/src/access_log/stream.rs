//! Lines into a pipe or a socket whose reader may be slow, stuck or gone, without ever waiting for it.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::target::reason;

/// Octets that may wait for a reader. Lines that come when it is reached are dropped and counted.
pub(super) const BACKLOG_LIMIT: usize = 1024 * 1024;

/// How often the helper thread looks whether anybody still wants it to wait for a stuck reader.
const PATIENCE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// A pipe or socket, written to without waiting. What does not fit at once is finished by a helper thread, which is
/// started when it is first needed: after the change of the running user, and never for a reader that keeps up.
pub(super) struct Stream {
    shared: Arc<Shared>,
}

struct Shared {
    name: Box<str>,
    fd: OwnedFd,
    /// Held while a line is written, so that the pieces of long lines stay together. A write does not wait; the only
    /// wait is for another worker's write, which the kernel would impose as well.
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    phase: Phase,
    /// Lines waiting for the helper thread; the first may lack its beginning, which has been written.
    backlog: Vec<u8>,
    /// Octets that the helper thread has taken and not written yet.
    taken: usize,
    has_helper: bool,
    dropped: u64,
    /// When dropped lines were last reported, in seconds since the Unix epoch.
    reported: u64,
    child: Option<Child>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// The configuration is gone: the helper thread writes what it can and ends.
    Closing,
    /// Writing failed. Nothing more is written; commands are not restarted (H2O compatibility).
    Broken,
}

impl Stream {
    /// Takes over a descriptor, which is made non-blocking, and the command that reads from it.
    pub(super) fn new(name: &str, fd: OwnedFd, child: Option<Child>) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        let state = State {
            phase: Phase::Open,
            backlog: Vec::new(),
            taken: 0,
            has_helper: false,
            dropped: 0,
            reported: 0,
            child,
        };
        let shared = Shared {
            name: name.into(),
            fd,
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Writes a line now or puts it in the backlog or, if that is full, drops it. `unix_time` is now.
    pub(super) fn write(&self, line: &[u8], unix_time: Duration) {
        let shared = &self.shared;
        let mut state = shared.lock();
        if state.phase == Phase::Broken {
            return;
        }
        let mut rest = line;
        if state.backlog.is_empty() && state.taken == 0 {
            match write(&shared.fd, line) {
                Ok(written) => rest = &line[written..],
                Err(Errno::AGAIN) => {}
                Err(error) => return shared.break_off(&mut state, error),
            }
            if rest.is_empty() {
                return;
            }
        }
        // A line that has been begun is completed whatever the limit.
        let begun = rest.len() < line.len();
        let has_room = state.backlog.len() + state.taken + rest.len() <= BACKLOG_LIMIT;
        if !(begun || has_room && self.ensure_helper(&mut state)) {
            state.dropped += 1;
            if state.reported != unix_time.as_secs() {
                state.reported = unix_time.as_secs();
                shared.report_dropped(&mut state);
            }
            return;
        }
        state.backlog.extend_from_slice(rest);
        if self.ensure_helper(&mut state) {
            shared.changed.notify_one();
        }
    }

    /// True if there is a helper thread, now if not before.
    fn ensure_helper(&self, state: &mut State) -> bool {
        if !state.has_helper {
            let shared = Arc::clone(&self.shared);
            let helper = thread::Builder::new().name("h2o-log".to_owned());
            state.has_helper = helper.spawn(move || shared.drain()).is_ok();
        }
        state.has_helper
    }

    #[cfg(test)]
    pub(super) fn close_and_wait(self) {
        let child = self.shared.lock().child.take();
        drop(self);
        if let Some(mut child) = child {
            child.wait().unwrap();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Closing;
        }
        self.shared.changed.notify_one();
        if let Some(child) = state.child.take() {
            reap(child);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The helper thread: writes the backlog whenever there is one, waiting for the reader.
    fn drain(&self) {
        let mut batch = Vec::new();
        loop {
            let mut state = self.lock();
            while state.phase == Phase::Open && state.backlog.is_empty() {
                self.report_dropped(&mut state);
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if state.phase == Phase::Broken || state.backlog.is_empty() {
                return;
            }
            std::mem::swap(&mut batch, &mut state.backlog);
            state.taken = batch.len();
            drop(state);
            if !self.write_batch(&batch) {
                return;
            }
            batch.clear();
        }
    }

    /// Writes all of `batch`; false if that became impossible or pointless.
    fn write_batch(&self, batch: &[u8]) -> bool {
        let mut rest = batch;
        while !rest.is_empty() {
            let result = write(&self.fd, rest);
            let mut state = self.lock();
            match result {
                Ok(written) => {
                    rest = &rest[written..];
                    state.taken = rest.len();
                }
                Err(Errno::AGAIN) => {
                    let awaited = state.phase == Phase::Open;
                    drop(state);
                    if !self.wait_for_room() && !awaited {
                        return false;
                    }
                }
                Err(error) => {
                    self.break_off(&mut state, error);
                    return false;
                }
            }
        }
        true
    }

    /// False if there is still no room after [`PATIENCE`].
    fn wait_for_room(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        rustix::event::poll(&mut fds, Some(&PATIENCE)) != Ok(0)
    }

    #[cold]
    fn report_dropped(&self, state: &mut State) {
        if state.dropped > 0 {
            h2o_exchange::report!(
                "[access-log] {} lines dropped, which their reader was too slow to take: {}",
                state.dropped,
                self.name
            );
            state.dropped = 0;
        }
    }

    #[cold]
    fn break_off(&self, state: &mut State, error: Errno) {
        let reason = reason(&error.into());
        h2o_exchange::report!(
            "[access-log] nothing more is written to {}: {reason}",
            self.name
        );
        state.phase = Phase::Broken;
        state.backlog = Vec::new();
        state.taken = 0;
        self.changed.notify_one();
        if let Some(child) = state.child.take() {
            reap(child);
        }
    }
}

fn write(fd: &OwnedFd, octets: &[u8]) -> rustix::io::Result<usize> {
    rustix::io::retry_on_intr(|| rustix::io::write(fd, octets))
}

/// Waits for the end of a command that gets no more lines, so that no zombie is left.
fn reap(mut child: Child) {
    if matches!(child.try_wait(), Ok(None)) {
        let waiter = thread::Builder::new().name("h2o-log-reaper".to_owned());
        // Without a thread there is a zombie, which hurts nobody.
        let _ = waiter.spawn(move || child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    fn pipe() -> (File, Stream) {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        (reader.into(), Stream::new("test", writer, None).unwrap())
    }

    fn line(number: usize, len: usize) -> Vec<u8> {
        let mut line = format!("{number:08} ").into_bytes();
        line.resize(len - 1, b'.');
        line.push(b'\n');
        line
    }

    fn numbers(text: &[u8]) -> Vec<usize> {
        let lines = text.split_inclusive(|&octet| octet == b'\n');
        lines
            .map(|line| std::str::from_utf8(&line[..8]).unwrap().parse().unwrap())
            .collect()
    }

    #[test]
    fn a_slow_reader_gets_every_line_in_order() {
        for len in [100, 5000, 200_000] {
            let (mut reader, stream) = pipe();
            let count = 800_000 / len;
            for number in 0..count {
                stream.write(&line(number, len), Duration::ZERO);
            }
            drop(stream);
            let mut text = Vec::new();
            reader.read_to_end(&mut text).unwrap();
            assert_eq!(numbers(&text), (0..count).collect::<Vec<_>>(), "{len}");
        }
    }

    #[test]
    fn a_stuck_reader_costs_whole_lines_and_no_more_memory_than_the_limit() {
        let (mut reader, stream) = pipe();
        for number in 0..30_000 {
            stream.write(&line(number, 100), Duration::from_secs(1));
            let state = stream.shared.lock();
            assert!(state.backlog.len() + state.taken <= BACKLOG_LIMIT);
        }
        // All but the first dropped line of this second wait to be reported.
        let dropped = stream.shared.lock().dropped;
        assert!(dropped > 10_000);
        drop(stream);
        let mut text = Vec::new();
        reader.read_to_end(&mut text).unwrap();
        let got = numbers(&text);
        assert_eq!(got, (0..got.len()).collect::<Vec<_>>());
        assert_eq!(got.len() as u64 + dropped + 1, 30_000);
    }

    #[test]
    fn lines_of_several_workers_stay_whole() {
        let (mut reader, stream) = pipe();
        let text = thread::scope(|scope| {
            let stream = &stream;
            let workers: Vec<_> = (0..4)
                .map(|number| {
                    scope.spawn(move || {
                        for _ in 0..20 {
                            stream.write(&line(number, 9000), Duration::ZERO);
                        }
                    })
                })
                .collect();
            let reader = scope.spawn(move || {
                let mut text = vec![0; 4 * 20 * 9000];
                reader.read_exact(&mut text).unwrap();
                text
            });
            for worker in workers {
                worker.join().unwrap();
            }
            reader.join().unwrap()
        });
        assert!(
            text.chunks(9000)
                .all(|line| line[9..8999].iter().all(|&octet| octet == b'.'))
        );
        assert_eq!(numbers(&text).len(), 80);
    }

    #[test]
    fn a_reader_that_is_gone_is_given_up() {
        let (reader, stream) = pipe();
        drop(reader);
        stream.write(b"line\n", Duration::ZERO);
        assert!(stream.shared.lock().phase == Phase::Broken);
        stream.write(b"line\n", Duration::ZERO);

        let (reader, stream) = pipe();
        stream.write(&line(0, 200_000), Duration::ZERO);
        assert!(stream.shared.lock().has_helper);
        drop(reader);
        while stream.shared.lock().phase != Phase::Broken {
            thread::yield_now();
        }
        assert_eq!(stream.shared.lock().taken, 0);
    }
}
