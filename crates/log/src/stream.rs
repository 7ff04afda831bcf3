//! Writes lines to a pipe, a socket or a device whose reader may be slow, stuck or gone. Workers never wait.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use h2o_opener::{RunningCommand, log_command, log_stream};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::report::report_at_start;
use crate::standard::StandardStream;
use crate::{now, reason, report};

/// Number of bytes of log lines that may wait for a slow reader. Further lines are dropped and counted.
pub(crate) const BACKLOG_LIMIT: usize = 1024 * 1024;

/// How often the helper thread checks whether it should still wait for a reader that does not read.
const PATIENCE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// The reader of the lines that are written to a stream.
pub(crate) enum Reader {
    /// A command, which reads lines from a pipe. This process keeps the read end of the pipe open, too: if the command
    /// ends, the command that replaces it reads the lines that were left in the pipe.
    Command { text: Box<str>, input: OwnedFd },
    /// A server at a Unix socket. When the connection to it breaks, the helper thread connects again.
    Socket(Box<str>),
    /// The reader of a named pipe, or a device.
    Device(Box<str>),
    /// A standard stream of the process. If it `may_wait`, because other processes use the same open file, only the helper thread
    /// writes to it.
    Standard {
        stream: StandardStream,
        may_wait: bool,
    },
}

impl Reader {
    /// Whether writing to the reader may wait, although workers never do.
    const fn may_wait(&self) -> bool {
        matches!(self, Self::Standard { may_wait: true, .. })
    }
}

/// A target of log lines that is written to without waiting. A helper thread writes what does not fit at once. It is
/// started when it is first needed: after the change of the running user, and never for a reader that keeps up.
pub(crate) struct Stream {
    shared: Arc<Shared>,
}

struct Shared {
    reader: Reader,
    /// Held while a line is written, so that the pieces of long lines stay together. A write does not wait; the only wait
    /// is for another worker's write, which the kernel would impose as well.
    state: Mutex<State>,
    /// Wakes the helper thread, the thread that waits for a command, and callers of [`Stream::close`].
    changed: Condvar,
}

struct State {
    phase: Phase,
    /// The descriptor that lines are written to; `None` once it is closed.
    fd: Option<Arc<OwnedFd>>,
    /// Lines that wait for the helper thread to write them.
    backlog: Vec<u8>,
    /// Whether the beginning of the first line of the backlog has been written already.
    is_cut: bool,
    /// Number of bytes that the helper thread has taken out of the backlog and not written yet.
    taken: usize,
    /// Number of line ends in these bytes.
    taken_lines: u64,
    has_helper: bool,
    dropped: u64,
    /// When this process last reported dropped lines, in seconds since the Unix epoch.
    reported: u64,
    /// The process of the log command; `None` once a thread waits for its end.
    child: Option<RunningCommand>,
    /// Whether a thread waits for the log command to end.
    is_watched: bool,
    /// Whether this stream is the error log: messages about this stream go into it too.
    is_error_log: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The connection to a socket has broken; the helper thread will connect again.
    Lost,
    /// The stream accepts no more lines; the helper thread writes those in the backlog.
    Closing,
    /// The stream is closed: no lines are written any more.
    Closed,
}

impl Stream {
    /// Starts a log command, which reads lines from its standard input.
    pub(crate) fn to_command(text: &str) -> io::Result<Self> {
        let (input, output) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let child = log_command(text, &input)?;
        let text = text.into();
        Self::new(output, Reader::Command { text, input }, Some(child))
    }

    /// Connects to a Unix socket, to which lines are then written.
    pub(crate) fn to_socket(path: &str) -> io::Result<Self> {
        Self::new(log_stream(path)?, Reader::Socket(path.into()), None)
    }

    /// Opens a named pipe or a device, to which lines are then written.
    pub(crate) fn to_device(path: &str) -> io::Result<Self> {
        Self::new(log_stream(path)?, Reader::Device(path.into()), None)
    }

    /// Creates a stream to a standard stream of this process, whose descriptor is `fd`. `may_wait`: other processes use the open file,
    /// too, so that it cannot be made non-blocking.
    pub(crate) fn to_standard(
        stream: StandardStream,
        fd: OwnedFd,
        may_wait: bool,
    ) -> io::Result<Self> {
        Self::new(fd, Reader::Standard { stream, may_wait }, None)
    }

    fn new(fd: OwnedFd, reader: Reader, child: Option<RunningCommand>) -> io::Result<Self> {
        if !reader.may_wait() {
            set_nonblocking(&fd)?;
        }
        let state = State {
            phase: Phase::Open,
            fd: Some(Arc::new(fd)),
            backlog: Vec::new(),
            is_cut: false,
            taken: 0,
            taken_lines: 0,
            has_helper: false,
            dropped: 0,
            reported: 0,
            child,
            is_watched: false,
            is_error_log: false,
        };
        let shared = Shared {
            reader,
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Starts a thread that waits for the end of the log command and restarts it whenever it ends.
    pub(crate) fn watch(&self) -> io::Result<()> {
        let mut state = self.shared.lock();
        if let Some(child) = state.child.take() {
            let shared = Arc::clone(&self.shared);
            let watcher = thread::Builder::new().name("h2o-log-command".to_owned());
            watcher.spawn(move || shared.supervise_command(child))?;
            state.is_watched = true;
        }
        Ok(())
    }

    /// Makes this stream the error log: messages about the stream then go into it.
    pub(crate) fn mark_as_error_log(&self) {
        self.shared.lock().is_error_log = true;
    }

    /// Writes a line at once, or appends it to the backlog, or drops it if the backlog is full. `unix_time` is the time
    /// now.
    pub(crate) fn write(&self, line: &[u8], unix_time: Duration) {
        let shared = &self.shared;
        let mut state = shared.lock();
        if matches!(state.phase, Phase::Closing | Phase::Closed) {
            return;
        }
        let mut rest = line;
        let mut failure = None;
        match shared.write_directly(&state, line) {
            Ok(written) if written == line.len() => return,
            Ok(written) => rest = &line[written..],
            Err(Errno::AGAIN) => {}
            Err(error) => {
                shared.on_failure(&mut state);
                failure = Some(error);
            }
        }
        let mut dropped = 0;
        if state.phase != Phase::Closed {
            // If the beginning of a line was written already, its rest is queued even if the backlog is full.
            let is_begun = rest.len() < line.len();
            let has_room = state.backlog.len() + state.taken + rest.len() <= BACKLOG_LIMIT;
            if is_begun || has_room && self.ensure_helper(&mut state) {
                state.is_cut |= is_begun;
                state.backlog.extend_from_slice(rest);
                self.ensure_helper(&mut state);
                shared.changed.notify_all();
            } else {
                state.dropped += 1;
                // The helper thread of the error log reports the lines that the error log itself has dropped, once there is
                // room: a report written now would be dropped, too.
                if state.reported != unix_time.as_secs() && !state.is_error_log {
                    state.reported = unix_time.as_secs();
                    dropped = std::mem::take(&mut state.dropped);
                }
            }
        }
        // The state is unlocked before failures are reported, because the report may be written to this same stream.
        drop(state);
        if let Some(error) = failure {
            shared.report_failure(error);
        }
        shared.report_dropped(dropped);
    }

    /// Starts the helper thread if it does not run. Returns whether it runs.
    fn ensure_helper(&self, state: &mut State) -> bool {
        if !state.has_helper {
            let shared = Arc::clone(&self.shared);
            let helper = thread::Builder::new().name("h2o-log".to_owned());
            state.has_helper = helper.spawn(move || shared.drain()).is_ok();
        }
        state.has_helper
    }

    /// Connects to the socket or opens the device again. Does nothing for a command and a standard stream.
    pub(crate) fn reopen(&self) -> io::Result<()> {
        match &self.shared.reader {
            Reader::Command { .. } | Reader::Standard { .. } => Ok(()),
            Reader::Socket(path) | Reader::Device(path) => self.replace(log_stream(path)?),
        }
    }

    fn replace(&self, fd: OwnedFd) -> io::Result<()> {
        set_nonblocking(&fd)?;
        let mut state = self.shared.lock();
        if state.phase != Phase::Closing {
            state.fd = Some(Arc::new(fd));
            state.phase = Phase::Open;
            self.shared.changed.notify_all();
        }
        Ok(())
    }

    /// The descriptor that lines are written to; `None` if the stream is closed.
    pub(crate) fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.shared.lock().fd.clone()
    }

    /// Stops accepting lines. Waits up to `patience` until the backlog is written and the log command has ended, which
    /// it does when it reads the end of its input.
    pub(crate) fn close(&self, patience: Duration) {
        let deadline = now() + patience;
        let mut state = self.shared.lock();
        self.shared.begin_close(&mut state);
        // The end of an error log's command is not awaited: standard error of this process keeps the input of the command
        // open.
        while state.phase == Phase::Closing || state.is_watched && !state.is_error_log {
            let left = deadline.saturating_duration_since(now());
            if left.is_zero() {
                break;
            }
            state = self.shared.wait(state, Some(left));
        }
        let dropped = std::mem::take(&mut state.dropped);
        let unwritten = line_ends(&state.backlog) + state.taken_lines;
        let is_error_log = state.is_error_log;
        drop(state);
        // The error log itself takes no lines any more.
        if !is_error_log {
            self.shared.report_dropped(dropped);
            self.shared.report_unwritten(unwritten);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        self.shared.begin_close(&mut state);
        if let Some(child) = state.child.take() {
            reap(child);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        match limit {
            None => self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let waited = self.changed.wait_timeout(state, limit);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Writes as much of a line as the reader has room for. Writes nothing if lines already wait in the backlog.
    fn write_directly(&self, state: &State, line: &[u8]) -> rustix::io::Result<usize> {
        let is_next = state.phase == Phase::Open && state.backlog.is_empty() && state.taken == 0;
        match &state.fd {
            Some(fd) if is_next && !self.reader.may_wait() => write(fd, line),
            _ => Ok(0),
        }
    }

    fn begin_close(&self, state: &mut State) {
        let is_idle = state.backlog.is_empty() && state.taken == 0;
        match state.phase {
            Phase::Open if !is_idle => state.phase = Phase::Closing,
            Phase::Open | Phase::Lost => state.close(),
            Phase::Closing | Phase::Closed => {}
        }
        self.changed.notify_all();
    }

    /// The loop of the helper thread: writes the backlog and waits for the reader.
    fn drain(&self) {
        let mut batch = Vec::new();
        let mut back_off = BackOff::default();
        loop {
            let mut state = self.lock();
            match state.phase {
                Phase::Open if state.backlog.is_empty() => {
                    let dropped = std::mem::take(&mut state.dropped);
                    if dropped == 0 {
                        drop(self.wait(state, None));
                    } else {
                        drop(state);
                        self.report_dropped(dropped);
                    }
                    continue;
                }
                Phase::Lost => {
                    drop(state);
                    self.reconnect(&mut back_off);
                    continue;
                }
                Phase::Closing if state.backlog.is_empty() => state.close(),
                Phase::Open | Phase::Closing | Phase::Closed => {}
            }
            let Some(fd) = state.fd.clone() else {
                state.has_helper = false;
                self.changed.notify_all();
                return;
            };
            std::mem::swap(&mut batch, &mut state.backlog);
            let is_cut = std::mem::take(&mut state.is_cut);
            state.taken = batch.len();
            state.taken_lines = line_ends(&batch);
            drop(state);
            self.write_batch(&fd, &batch, is_cut);
            batch.clear();
        }
    }

    /// Writes all lines of `batch`, unless writing fails or the stream is closed. `is_cut`: whether the beginning of
    /// the first line was written before.
    fn write_batch(&self, fd: &OwnedFd, batch: &[u8], is_cut: bool) {
        let mut written = 0;
        while written < batch.len() {
            let result = write(fd, &batch[written..]);
            let mut state = self.lock();
            match result {
                Ok(count) => {
                    written += count;
                    state.taken = batch.len() - written;
                    state.taken_lines = line_ends(&batch[written..]);
                }
                Err(Errno::AGAIN) => {
                    let is_awaited = state.phase == Phase::Open;
                    drop(state);
                    if !wait_for_room(fd) && !is_awaited {
                        self.lock().close();
                        return;
                    }
                }
                Err(error) => {
                    state.taken = 0;
                    self.on_failure(&mut state);
                    if state.phase == Phase::Lost {
                        let rest = whole_lines(batch, written, is_cut);
                        state.dropped += u64::from(rest.len() < batch.len() - written);
                        state.backlog.splice(..0, rest.iter().copied());
                    }
                    drop(state);
                    self.report_failure(error);
                    return;
                }
            }
        }
    }

    /// Reacts to a failed write, by closing the stream or connecting again.
    fn on_failure(&self, state: &mut State) {
        match (&self.reader, state.phase) {
            (Reader::Socket(_), Phase::Open) => state.phase = Phase::Lost,
            _ => state.close(),
        }
        self.changed.notify_all();
    }

    /// Waits for the back-off time and reconnects to the socket, unless the log is closed meanwhile.
    fn reconnect(&self, back_off: &mut BackOff) {
        let Reader::Socket(path) = &self.reader else {
            return;
        };
        if !self.pause(back_off.next(), Phase::Lost) {
            return;
        }
        let Ok(fd) = log_stream(path) else {
            return;
        };
        let mut state = self.lock();
        if state.phase == Phase::Lost && set_nonblocking(&fd).is_ok() {
            state.fd = Some(Arc::new(fd));
            state.phase = Phase::Open;
            drop(state);
            report!(notice, "reconnected to the log socket {path}");
        }
    }

    /// Waits until `time` has passed or the phase has changed. Returns whether the phase is still `phase`.
    fn pause(&self, time: Duration, phase: Phase) -> bool {
        let deadline = now() + time;
        let mut state = self.lock();
        while state.phase == phase {
            let left = deadline.saturating_duration_since(now());
            if left.is_zero() {
                return true;
            }
            state = self.wait(state, Some(left));
        }
        false
    }

    /// Waits for the end of the log command and restarts it each time, until the log is closed. If the pipe is not
    /// empty then, one more command reads the rest.
    fn supervise_command(&self, mut command: RunningCommand) {
        let Reader::Command { text, input } = &self.reader else {
            return;
        };
        let mut back_off = BackOff::default();
        loop {
            let ended = command.wait();
            let is_open = self.lock().phase == Phase::Open;
            if is_open {
                self.report_error(&format!(
                    "log command ended ({ended}), restarting it: {text}"
                ));
            }
            match self.restart_command(text, input, &mut back_off) {
                Some(started) => command = started,
                None => break,
            }
            // The log is closed, and this command reads the rest of the pipe: [`Stream::close`] waits until it has ended.
            if !is_open {
                let _ = command.wait();
                break;
            }
        }
        self.lock().is_watched = false;
        self.changed.notify_all();
    }

    /// Starts the log command after the back-off time, or at once if it only has to read the rest of the pipe. `None`
    /// if it need not be started any more.
    fn restart_command(
        &self,
        text: &str,
        input: &OwnedFd,
        back_off: &mut BackOff,
    ) -> Option<RunningCommand> {
        loop {
            let is_open = self.pause(back_off.next(), Phase::Open);
            if !is_open && !has_unread(input) {
                return None;
            }
            match log_command(text, input) {
                Ok(started) => return Some(started),
                Err(error) => self.report_error(&format!(
                    "failed to restart the log command: {text}: {}",
                    reason(&error)
                )),
            }
            if !is_open {
                return None;
            }
        }
    }

    /// Reports a failure of this log. A failure of the error log itself is written to the standard error that the
    /// process was started with.
    fn report_error(&self, text: &str) {
        let is_error_log = self.lock().is_error_log;
        if is_error_log {
            report_at_start(text);
        }
        report!(error, "{text}");
    }

    fn name(&self) -> &str {
        match &self.reader {
            Reader::Command { text, .. } => text,
            Reader::Socket(path) | Reader::Device(path) => path,
            Reader::Standard { stream, .. } => stream.name(),
        }
    }

    #[cold]
    fn report_failure(&self, error: Errno) {
        let (name, reason) = (self.name(), reason(&error.into()));
        match self.reader {
            Reader::Socket(_) => report!(
                error,
                "lost the connection to the log socket {name}, reconnecting: {reason}"
            ),
            _ => report!(
                error,
                "failed to write to the log {name}, its lines are dropped: {reason}"
            ),
        }
    }

    /// Reports lines that the helper thread still tries to write after the log was closed. They are lost if the process ends.
    fn report_unwritten(&self, lines: u64) {
        if lines > 0 {
            report!(
                warning,
                "{} may be lost, because the reader of the log had not taken them when the log was closed: {}",
                counted(lines),
                self.name()
            );
        }
    }

    fn report_dropped(&self, lines: u64) {
        if lines > 0 {
            report!(
                warning,
                "{} dropped, because the reader of the log is too slow or gone: {}",
                counted(lines),
                self.name()
            );
        }
    }
}

impl State {
    /// Closes the descriptor of the stream and discards the backlog.
    fn close(&mut self) {
        self.phase = Phase::Closed;
        self.fd = None;
        self.backlog = Vec::new();
        self.is_cut = false;
        self.taken = 0;
        self.taken_lines = 0;
    }
}

/// The time between two attempts to restart a command or to connect to a socket: a tenth of a second at first, doubled
/// each time, at most a minute. Starts over when the last attempt was two minutes ago.
struct BackOff {
    pause: Duration,
    last: Option<Instant>,
}

impl BackOff {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(60);

    fn next(&mut self) -> Duration {
        self.next_at(now())
    }

    fn next_at(&mut self, now: Instant) -> Duration {
        if self
            .last
            .is_some_and(|last| now.saturating_duration_since(last) > Self::LONGEST * 2)
        {
            self.pause = Self::FIRST;
        }
        self.last = Some(now);
        let pause = self.pause;
        self.pause = (pause * 2).min(Self::LONGEST);
        pause
    }
}

impl Default for BackOff {
    fn default() -> Self {
        Self {
            pause: Self::FIRST,
            last: None,
        }
    }
}

pub(crate) fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
    Ok(())
}

fn write(fd: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    rustix::io::retry_on_intr(|| rustix::io::write(fd, bytes))
}

/// Waits up to [`PATIENCE`] until `fd` can be written to. Returns whether it can.
fn wait_for_room(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::OUT)];
    rustix::event::poll(&mut fds, Some(&PATIENCE)) != Ok(0)
}

fn has_unread(input: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(input, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::IN)
}

fn counted(lines: u64) -> String {
    match lines {
        1 => "1 log line".to_owned(),
        _ => format!("{lines} log lines"),
    }
}

fn line_ends(lines: &[u8]) -> u64 {
    lines.iter().map(|&byte| u64::from(byte == b'\n')).sum()
}

/// The part of `batch` to send to a new reader, after `written` bytes of it went to the last reader: it begins with a
/// whole line.
fn whole_lines(batch: &[u8], written: usize, is_cut: bool) -> &[u8] {
    let rest = &batch[written..];
    let is_whole = match written.checked_sub(1) {
        Some(last) => batch[last] == b'\n',
        None => !is_cut,
    };
    if is_whole {
        return rest;
    }
    let end = rest.iter().position(|&byte| byte == b'\n');
    end.map_or(&[], |end| &rest[end + 1..])
}

/// Waits for the end of a log command after its log was closed, so that it does not become a zombie.
fn reap(command: RunningCommand) {
    let waiter = thread::Builder::new().name("h2o-log-reaper".to_owned());
    // If no thread can be started, a zombie remains, which does no harm.
    let _ = waiter.spawn(move || command.wait());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    use h2o_testkit::eventually;

    fn pipe() -> (File, Stream) {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let reader_of = Reader::Device("test".into());
        (reader.into(), Stream::new(writer, reader_of, None).unwrap())
    }

    fn line(number: usize, len: usize) -> Vec<u8> {
        let mut line = format!("{number:08} ").into_bytes();
        line.resize(len - 1, b'.');
        line.push(b'\n');
        line
    }

    fn numbers(text: &[u8]) -> Vec<usize> {
        let lines = text.split_inclusive(|&byte| byte == b'\n');
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
        // The first dropped line of this second was reported at once; the others are counted for the next report.
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
    fn a_standard_error_without_reader_makes_no_worker_wait() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let other_user = writer.try_clone().unwrap();
        let stream = Stream::to_standard(StandardStream::Error, writer, true).unwrap();
        for number in 0..30_000 {
            stream.write(&line(number, 100), Duration::from_secs(1));
        }
        assert!(stream.shared.lock().dropped > 10_000);
        // Standard error is still in blocking mode, on which other processes that share it may rely.
        let flags = rustix::fs::fcntl_getfl(&other_user).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK));
        drop((other_user, stream));
        let mut text = Vec::new();
        File::from(reader).read_to_end(&mut text).unwrap();
        let got = numbers(&text);
        assert_eq!(got, (0..got.len()).collect::<Vec<_>>());
        assert!(got.len() > 10_000);
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
                .all(|line| line[9..8999].iter().all(|&byte| byte == b'.'))
        );
        assert_eq!(numbers(&text).len(), 80);
    }

    #[test]
    fn a_reader_that_is_gone_is_given_up_until_the_log_is_opened_again() {
        let (reader, stream) = pipe();
        drop(reader);
        stream.write(b"line\n", Duration::ZERO);
        assert_eq!(stream.shared.lock().phase, Phase::Closed);
        stream.write(b"line\n", Duration::ZERO);

        let (mut reader, writer) = rustix::pipe::pipe()
            .map(|(reader, writer)| (File::from(reader), writer))
            .unwrap();
        stream.replace(writer).unwrap();
        stream.write(b"again\n", Duration::ZERO);
        let mut text = [0; 6];
        reader.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"again\n");

        let (reader, stream) = pipe();
        stream.write(&line(0, 200_000), Duration::ZERO);
        assert!(stream.shared.lock().has_helper);
        drop(reader);
        eventually("the stream to be closed", || {
            (stream.shared.lock().phase == Phase::Closed).then_some(())
        });
        assert_eq!(stream.shared.lock().taken, 0);
    }

    #[test]
    fn no_line_is_lost_when_a_command_dies() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        // The command reads one line and ends, so it is restarted for each line.
        let command = format!("read line; echo \"$line\" >> {}", path.display());
        let stream = Stream::to_command(&command).unwrap();
        stream.watch().unwrap();
        for number in 0..6 {
            stream.write(format!("line {number}\n").as_bytes(), Duration::ZERO);
        }
        let want: String = (0..6).map(|number| format!("line {number}\n")).collect();
        eventually("all lines to be in the file", || {
            let text = std::fs::read_to_string(&path).ok()?;
            (text == want).then_some(())
        });
    }

    #[test]
    fn closing_waits_until_the_command_has_read_everything() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let stream = Stream::to_command(&format!("cat > {}", path.display())).unwrap();
        stream.watch().unwrap();
        let text: Vec<u8> = (0..50).flat_map(|number| line(number, 10_000)).collect();
        for line in text.chunks(10_000) {
            stream.write(line, Duration::ZERO);
        }
        stream.close(Duration::from_secs(60));
        assert!(std::fs::read(&path).unwrap() == text);
    }

    #[test]
    fn a_socket_whose_listener_was_restarted_is_connected_to_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let stream = Stream::to_socket(path.to_str().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        stream.write(b"one\n", Duration::ZERO);
        stream.write(b"two\n", Duration::ZERO);
        assert_eq!(stream.shared.lock().phase, Phase::Lost);
        let listener = UnixListener::bind(&path).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let mut text = [0; 8];
        peer.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"one\ntwo\n");
    }

    #[test]
    fn a_new_reader_never_gets_half_a_line() {
        let batch = b"one\ntwo\nthree\n";
        let cases: &[(usize, bool, &[u8])] = &[
            (0, false, b"one\ntwo\nthree\n"),
            (0, true, b"two\nthree\n"),
            (1, false, b"two\nthree\n"),
            (4, true, b"two\nthree\n"),
            (9, false, b""),
        ];
        for &(written, is_cut, want) in cases {
            assert_eq!(whole_lines(batch, written, is_cut), want, "{written}");
        }
    }

    #[test]
    fn attempts_become_rarer_and_begin_anew_after_a_quiet_time() {
        let mut back_off = BackOff::default();
        let start = now();
        let pauses: Vec<_> = (0..12)
            .map(|_| back_off.next_at(start).as_millis())
            .collect();
        assert_eq!(pauses[..4], [100, 200, 400, 800]);
        assert_eq!(pauses[11], 60_000);
        let later = start + Duration::from_secs(121);
        assert_eq!(back_off.next_at(later), BackOff::FIRST);
    }
}
