//! Writes trace files of QUIC connections (`qlog`) on a thread of its own, so that a slow or full disk blocks no
//! worker.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use h2o_log::{LineLimit, reason, report};

/// Largest number of connections that are traced at the same time.
const MAX_TRACES: usize = 256;
/// Largest size of one trace file, in bytes.
const MAX_FILE: usize = 16 << 20;
/// Largest size of all trace files of a process together, in bytes. Records that were dropped because the disk was too slow count,
/// too.
const MAX_TOTAL: usize = 1 << 30;
/// Largest number of pieces of traces, each of about 64 KiB at most, that wait to be written. Further pieces are dropped.
const MAX_WAITING: usize = 256;

/// Limits the number of lines in the error log about trace files that cannot be written.
static FAILURES: LineLimit = LineLimit::per_minute(20);
/// Number of trace files in use.
static TRACES: AtomicUsize = AtomicUsize::new(0);
/// Number of bytes that may still be written to all trace files together.
static ROOM: AtomicUsize = AtomicUsize::new(MAX_TOTAL);

/// The trace of one connection; its worker passes pieces of it to the thread that writes them.
pub(super) struct QlogFile {
    file: Arc<TraceFile>,
    writer: SyncSender<Piece>,
    /// Number of bytes that may still be written to all trace files together.
    room: &'static AtomicUsize,
    /// Number of bytes that may still be written to this trace file.
    left: usize,
    /// Whether pieces were dropped since the last piece that was passed on, so that the file has a gap.
    has_gap: bool,
}

/// Records of a trace, and the file that they are for.
struct Piece(Arc<TraceFile>, String);

/// A trace file, which only the writing thread accesses.
struct TraceFile {
    path: PathBuf,
    state: Mutex<FileState>,
}

enum FileState {
    New,
    Open(File),
    /// The trace file could not be opened or written; the rest of the trace is dropped.
    Failed,
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        TRACES.fetch_sub(1, Relaxed);
    }
}

impl QlogFile {
    /// Begins the trace of a new connection. Returns `None` if there are too many traces, or if all trace files together have
    /// reached their limit of size.
    pub(super) fn create(directory: &Path, name: &str) -> Option<Self> {
        static WRITER: OnceLock<Option<SyncSender<Piece>>> = OnceLock::new();
        let writer = WRITER.get_or_init(|| {
            let (sender, pieces) = sync_channel(MAX_WAITING);
            let thread = std::thread::Builder::new().name("qlog".into());
            let thread = thread.spawn(move || write_all(&pieces));
            thread.ok().map(|_| sender)
        });
        Self::with_writer(writer.clone()?, &ROOM, directory, name)
    }

    fn with_writer(
        writer: SyncSender<Piece>,
        room: &'static AtomicUsize,
        directory: &Path,
        name: &str,
    ) -> Option<Self> {
        if room.load(Relaxed) == 0 {
            return None;
        }
        if TRACES.fetch_add(1, Relaxed) >= MAX_TRACES {
            TRACES.fetch_sub(1, Relaxed);
            return None;
        }
        let file = Arc::new(TraceFile {
            path: directory.join(format!("{name}.sqlog")),
            state: Mutex::new(FileState::New),
        });
        let mut trace = Self {
            file,
            writer,
            room,
            left: MAX_FILE,
            has_gap: false,
        };
        let since_epoch = now().duration_since(UNIX_EPOCH).unwrap_or_default();
        trace.write(h2o_quic::trace_header(name, since_epoch));
        Some(trace)
    }

    /// Passes records to the thread that writes them to the trace file.
    pub(super) fn write(&mut self, records: String) {
        if records.is_empty() || self.left == 0 {
            return;
        }
        let Some(left) = self.left.checked_sub(records.len()) else {
            // The trace file has reached its largest size.
            self.left = 0;
            return;
        };
        let take = |room: usize| room.checked_sub(records.len());
        if self.room.fetch_update(Relaxed, Relaxed, take).is_err() {
            self.left = 0;
            if self.room.swap(0, Relaxed) > 0 {
                report!(
                    warning,
                    "no more traces of QUIC connections are written: the trace files of this process have reached {MAX_TOTAL} bytes"
                );
            }
            return;
        }
        let records = if self.has_gap {
            format!("{GAP}{records}")
        } else {
            records
        };
        let piece = Piece(Arc::clone(&self.file), records);
        self.has_gap = self.writer.try_send(piece).is_err();
        if !self.has_gap {
            self.left = left;
        }
    }
}

/// The record that marks a gap: events were dropped at this place of the trace.
const GAP: &str = "\u{1e}{\"time\":0,\"name\":\"loglevel:warning\",\"data\":{\"message\":\"events were left out\"}}\n";

#[expect(
    clippy::disallowed_methods,
    reason = "a trace contains the time of the machine's clock at which it began"
)]
fn now() -> SystemTime {
    SystemTime::now()
}

fn write_all(pieces: &Receiver<Piece>) {
    while let Ok(Piece(file, records)) = pieces.recv() {
        let mut state = file.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = write(&file.path, &mut state, &records) {
            *state = FileState::Failed;
            if let Some(held_back) = FAILURES.admit() {
                report!(
                    warning,
                    "cannot write the trace {}: {}; the rest of this trace is left out{held_back}",
                    file.path.display(),
                    reason(&error)
                );
            }
        }
    }
}

fn write(path: &Path, state: &mut FileState, records: &str) -> io::Result<()> {
    if let FileState::New = state {
        let mut options = OpenOptions::new();
        *state = FileState::Open(
            options
                .write(true)
                .create_new(true)
                .mode(0o640)
                .open(path)?,
        );
    }
    match state {
        FileState::Open(file) => file.write_all(records.as_bytes()),
        FileState::New | FileState::Failed => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static PLENTY: AtomicUsize = AtomicUsize::new(usize::MAX);

    fn trace(writer: SyncSender<Piece>, room: &'static AtomicUsize) -> Option<QlogFile> {
        QlogFile::with_writer(writer, room, Path::new("/nowhere"), "0a")
    }

    #[test]
    fn a_disk_that_is_slow_stops_nobody() {
        let (sender, pieces) = sync_channel(3);
        let mut trace = trace(sender, &PLENTY).unwrap();
        for number in 0..1000 {
            trace.write(format!("{number}\n"));
        }
        let taken = || pieces.try_recv().ok().map(|Piece(_, records)| records);
        assert!(taken().unwrap().contains("\"ODCID\":\"0a\""));
        trace.write("behind the gap\n".into());
        let rest: String = std::iter::from_fn(taken).collect();
        assert_eq!(rest, format!("0\n1\n{GAP}behind the gap\n"));
    }

    #[test]
    fn files_have_an_end() {
        let (sender, pieces) = sync_channel(1000);
        let mut trace = trace(sender, &PLENTY).unwrap();
        for _ in 0..1000 {
            trace.write("x".repeat(64 * 1024));
        }
        drop(trace);
        let sum: usize = pieces.iter().map(|Piece(_, records)| records.len()).sum();
        assert!(sum <= MAX_FILE && sum > MAX_FILE - 128 * 1024, "{sum}");
    }
    #[test]
    fn all_files_together_have_an_end() {
        static ROOM: AtomicUsize = AtomicUsize::new(1000);
        let (sender, pieces) = sync_channel(1000);
        let mut traces: Vec<QlogFile> = (0..2)
            .filter_map(|_| trace(sender.clone(), &ROOM))
            .collect();
        for _ in 0..100 {
            for trace in &mut traces {
                trace.write("x".repeat(100));
            }
        }
        assert!(trace(sender, &ROOM).is_none());
        drop(traces);
        let sum: usize = pieces.iter().map(|Piece(_, records)| records.len()).sum();
        assert!(sum > 800 && sum <= 1000, "{sum}");
    }
}
