//! The thread that compresses static files for `compress.cache`.

use std::any::Any;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use h2o_exchange::BackgroundService;
use h2o_log::{LineLimit, reason, report};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, utimensat};

use super::store::{VariantStore, room};
use super::{WantedVariant, shown};
use crate::compress::{Encoder, Operation};
use crate::file::identity::inspect;
use crate::file::open::{self, Access, READ};

/// Number of bytes of a file that the thread reads and compresses at a time.
const PIECE: usize = 64 * 1024;
/// How long the thread makes no compressed forms after the disk was full or another error occurred.
const PAUSE: Duration = Duration::from_secs(60);
/// The nice value of the thread that compresses files: the workers, which serve requests, come first.
const NICE: i32 = 10;
/// Number of compressed forms that the thread makes before it adds up the sizes in the directory again, to which other processes add
/// forms as well.
const UNSEEN: u32 = 64;

/// The new times of a compressed form that was just used: the modification time becomes the present, the access time stays.
const USED_NOW: Timestamps = Timestamps {
    last_access: Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_OMIT,
    },
    last_modification: Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    },
};

/// The background service that runs the compressing thread of a store.
pub(super) struct Maker(pub(super) Arc<VariantStore>);

impl BackgroundService for Maker {
    fn begin(&self) -> Result<Box<dyn Any + Send>, String> {
        let store = Arc::clone(&self.0);
        store.queue().is_stopped = false;
        let thread = std::thread::Builder::new().name("compress".to_owned());
        let thread = thread.spawn(move || run(&store));
        let thread = thread.map_err(|error| {
            format!(
                "failed to start the thread of compress.cache: {}",
                reason(&error)
            )
        })?;
        Ok(Box::new(Running {
            store: Arc::clone(&self.0),
            thread: Some(thread),
        }))
    }

    fn is_same_as(&self, running: &dyn BackgroundService) -> bool {
        let running = running.as_any().downcast_ref::<Self>();
        running.is_some_and(|running| Arc::ptr_eq(&self.0, &running.0))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The running thread of a store. Dropping this value ends the thread.
struct Running {
    store: Arc<VariantStore>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.store.stop();
        if let Some(thread) = self.thread.take() {
            // An error means that the thread has panicked, which the panic hook has reported.
            let _ = thread.join();
        }
    }
}

/// The result of an attempt to make a compressed form.
enum Made {
    /// The compressed form is in the directory, and has this length in bytes.
    Kept(u64),
    /// No compressed form was made: it exists already, another process makes it, or the file has changed or cannot be opened.
    Nothing,
    /// The thread was told to end while it made the compressed form.
    Stopped,
}

fn run(store: &VariantStore) {
    // An error in raising the nice value is ignored: the thread then competes with the workers on equal terms.
    let _ = rustix::process::setpriority_process(None, NICE);
    // The warnings about failures to write and to clean up the directory have a limit each, so that one kind does not
    // suppress the other.
    let (write_failures, clean_failures) = (LineLimit::per_minute(1), LineLimit::per_minute(1));
    let mut total = clean(store, &clean_failures);
    let mut unseen = 0;
    loop {
        let (used, next) = {
            let mut queue = store.wait(PAUSE);
            if queue.is_stopped {
                return;
            }
            (std::mem::take(&mut queue.used), queue.wanted.pop_front())
        };
        for variant in used {
            // The modification time of a compressed form says when the form was last used. An error is ignored: the form may have been
            // removed.
            let _ = utimensat(CWD, variant.path(), &USED_NOW, AtFlags::empty());
        }
        let Some(wanted) = next else {
            store.queue().is_paused = false;
            continue;
        };
        match make(store, &wanted) {
            Ok(Made::Kept(len)) => {
                total += room(len);
                unseen += 1;
            }
            Ok(Made::Nothing) => {}
            Ok(Made::Stopped) => return,
            Err(error) => {
                if let Some(held_back) = write_failures.admit() {
                    report!(
                        warning,
                        "compress.cache: compressed forms cannot be written to {}: {}{held_back}",
                        shown(store.directory()),
                        reason(&error)
                    );
                }
                let mut queue = store.queue();
                queue.is_paused = true;
                queue.wanted.clear();
                queue.known.clear();
            }
        }
        store.queue().known.remove(&wanted.variant);
        if total > store.size() || unseen >= UNSEEN {
            total = clean(store, &clean_failures);
            unseen = 0;
        }
    }
}

fn clean(store: &VariantStore, failures: &LineLimit) -> u64 {
    store.clean().unwrap_or_else(|error| {
        if let Some(held_back) = failures.admit() {
            report!(
                warning,
                "compress.cache: compressed forms cannot be removed from {}: {}{held_back}",
                shown(store.directory()),
                reason(&error)
            );
        }
        0
    })
}

/// Makes the compressed form of a file. If it is hardly shorter than the file, an empty file takes its place, which says that the
/// original is to be sent instead.
fn make(store: &VariantStore, wanted: &WantedVariant) -> io::Result<Made> {
    let variant = &wanted.variant;
    if variant.file().exists() {
        return Ok(Made::Nothing);
    }
    let Ok(source) = open::configured(&wanted.source, READ, Access::Waiting) else {
        return Ok(Made::Nothing);
    };
    let mut source = File::from(source);
    let is_same = |source: &File| inspect(source).is_ok_and(|(_, it)| it == wanted.identity);
    if !is_same(&source) {
        return Ok(Made::Nothing);
    }
    let Some(mut unfinished) = Unfinished::begin(variant.unfinished())? else {
        return Ok(Made::Nothing);
    };
    let broken = |_| io::Error::other("the file could not be compressed");
    let mut encoder = Encoder::of_file(wanted.method, wanted.identity.size).map_err(broken)?;
    let (mut piece, mut output, mut len) = (vec![0; PIECE], Vec::new(), 0);
    loop {
        if store.queue().is_stopped {
            return Ok(Made::Stopped);
        }
        let read = source.read(&mut piece)?;
        let operation = if read == 0 {
            Operation::Finish
        } else {
            Operation::Continue
        };
        output.clear();
        encoder
            .encode(&piece[..read], operation, &mut output)
            .map_err(broken)?;
        unfinished.file.write_all(&output)?;
        len += output.len() as u64;
        if read == 0 {
            break;
        }
    }
    if !is_same(&source) {
        return Ok(Made::Nothing);
    }
    if len >= wanted.identity.size / 20 * 19 {
        unfinished.file.set_len(0)?;
        len = 0;
    }
    // The content of a compressed form must be on the disk before the form gets its final name: a loss of power could otherwise leave a
    // form that is cut off.
    unfinished.file.sync_data()?;
    fs::rename(&unfinished.path, variant.file())?;
    unfinished.is_kept = true;
    Ok(Made::Kept(len))
}

/// A compressed form that is being made. Its file is removed when this value is dropped, unless the form was completed and renamed.
struct Unfinished {
    path: PathBuf,
    file: File,
    is_kept: bool,
}

impl Unfinished {
    /// Creates the file of a compressed form. Returns `None` if the file exists, because another process makes the same form.
    fn begin(path: PathBuf) -> io::Result<Option<Self>> {
        let begun = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        match begun {
            Ok(file) => Ok(Some(Self {
                path,
                file,
                is_kept: false,
            })),
            // If the process that has created the file has died, `VariantStore::clean` removes the file later.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}
