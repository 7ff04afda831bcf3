//! Rotates log files: renames one that is large or old enough, compresses those that were rotated before, and removes the
//! oldest.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::{AtFlags, FlockOperation, OFlags, StatxFlags, flock, statx};

use crate::message::text_of;

/// Ending of the names of compressed logs.
const COMPRESSED: &str = ".gz";

/// When log files are rotated, and what is done with the rotated ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The size in bytes at which a log file is rotated.
    pub size: Option<u64>,
    /// The age at which a log file is rotated, since its creation.
    pub age: Option<Duration>,
    /// Number of rotated files that are kept.
    pub keep: u32,
    /// Whether rotated files are compressed by gzip: all but the youngest, because processes that have it open may
    /// still append lines to it.
    pub compresses: bool,
}

impl Rotation {
    /// Whether a log file is large or old enough to be rotated. An empty file is never rotated.
    #[must_use]
    pub fn is_due(&self, file: impl AsFd) -> bool {
        let wanted = StatxFlags::SIZE | StatxFlags::BTIME;
        let Ok(found) = statx(file, c"", AtFlags::EMPTY_PATH, wanted) else {
            return false;
        };
        if found.stx_size == 0 {
            return false;
        }
        let has_birth_time =
            StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        let is_old = |age: Duration| {
            let born = u64::try_from(found.stx_btime.tv_sec).unwrap_or(0);
            has_birth_time && unix_now().saturating_sub(Duration::from_secs(born)) >= age
        };
        self.size.is_some_and(|size| found.stx_size >= size) || self.age.is_some_and(is_old)
    }

    /// The name of the task to rotate the log at `path`, which the keeper (the process with the starting user's rights)
    /// gets: `SIZE AGE KEEP COMPRESSES PATH`, with the age in seconds.
    pub(crate) fn task_name(&self, path: &str) -> String {
        let size = self.size.unwrap_or(0);
        let age = self.age.map_or(0, |age| age.as_secs());
        let Self {
            keep, compresses, ..
        } = self;
        format!("{size} {age} {keep} {compresses} {path}")
    }

    /// Reads the rotation and the path from the [name of a task](Self::task_name).
    pub(crate) fn parse(name: &str) -> Option<(Self, &str)> {
        let mut parts = name.splitn(5, ' ');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (size, age, keep) = (number()?, number()?, number()?);
        let compresses = parts.next()?.parse().ok()?;
        let rotation = Self {
            size: (size > 0).then_some(size),
            age: (age > 0).then(|| Duration::from_secs(age)),
            keep: u32::try_from(keep).ok()?,
            compresses,
        };
        Some((rotation, parts.next()?))
    }
}

/// Whether the file system records the time at which the file was created.
#[must_use]
pub fn has_birth_time(file: impl AsFd) -> bool {
    let found = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
    found
        .is_ok_and(|found| StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME))
}

#[expect(
    clippy::disallowed_methods,
    reason = "logs are rotated by threads that have no worker's clock"
)]
fn unix_now() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}

/// Rotates the log at `path` if that is due and no other process is doing it: renames it, and creates an empty one with
/// the same owner and mode. A thread then compresses and removes older logs. The messages about its failures can be
/// read from the returned pipe, which ends when the thread has ended.
pub(crate) fn rotate(path: &Path, rotation: Rotation) -> io::Result<OwnedFd> {
    let (end, failures) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let file = open(path, OpenOptions::new().append(true))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(end);
    }
    let opened = file.metadata()?;
    let is_still_there = std::fs::symlink_metadata(path)?.ino() == opened.ino();
    if !is_still_there || !rotation.is_due(&file) {
        return Ok(end);
    }
    let rotated = with_suffix(path, &format!(".{}", stamp(unix_now())));
    let has_name = |path: &Path| std::fs::symlink_metadata(path).is_ok();
    if has_name(&rotated) || has_name(&with_suffix(&rotated, COMPRESSED)) {
        // The log was already rotated in this second, so the name for the rotated file is taken.
        return Ok(end);
    }
    std::fs::rename(path, &rotated)?;
    match create_like(path, &opened) {
        Ok(_) => {}
        // Another process has noticed that the log file was gone, and has created it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => {
            std::fs::rename(&rotated, path)?;
            return Err(error);
        }
    }
    let path = path.to_owned();
    let tidy = move || {
        if let Err(text) = tidy(&path, rotation) {
            // If the server has ended, writing fails; no process waits for the message then.
            let _ = File::from(failures).write_all(text.as_bytes());
        }
    };
    std::thread::Builder::new()
        .name("h2o-log-gzip".to_owned())
        .spawn(tidy)?;
    Ok(end)
}

/// Removes the oldest rotated logs and compresses the others, except the youngest.
fn tidy(path: &Path, rotation: Rotation) -> Result<(), String> {
    let failed = |what: &str, path: &Path, error: &io::Error| {
        Err(format!(
            "failed to {what} {}: {}",
            path.display(),
            text_of(error)
        ))
    };
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut rotated = match rotated_logs(directory, path) {
        Ok(rotated) => rotated,
        Err(error) => return failed("list the rotated logs of", directory, &error),
    };
    // The names of rotated logs have the time in them, so that sorting by name sorts by age.
    rotated.sort_unstable_by(|one, other| other.cmp(one));
    let removed = rotated.split_off(rotated.len().min(rotation.keep as usize));
    // Old logs are removed before others are compressed, so that a full disk gets space for the compressed files.
    for path in &removed {
        if let Err(error) = std::fs::remove_file(path) {
            return failed("remove the rotated log", path, &error);
        }
    }
    let older = rotated.iter().skip(1);
    for path in older.filter(|path| rotation.compresses && !is_compressed(path)) {
        if let Err(error) = compress(path) {
            return failed("compress the rotated log", path, &error);
        }
    }
    Ok(())
}

fn is_compressed(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(COMPRESSED.as_bytes())
}

/// The files in `directory` whose names say that they are rotated logs of `path`.
fn rotated_logs(directory: &Path, path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_file = entry.file_type()?.is_file();
        if is_file && path.file_name().is_some_and(|log| is_rotated(&name, log)) {
            found.push(directory.join(name));
        }
    }
    Ok(found)
}

/// Whether `name` consists of the name of the log, a [stamp](stamp), and perhaps `.gz`.
fn is_rotated(name: &OsStr, log: &OsStr) -> bool {
    let rest = name.as_bytes().strip_prefix(log.as_bytes());
    let Some(rest) = rest.and_then(|rest| rest.strip_prefix(b".")) else {
        return false;
    };
    let rest = rest.strip_suffix(COMPRESSED.as_bytes()).unwrap_or(rest);
    let shape = b"00000000T000000Z";
    let fits = |(byte, wanted): (&u8, &u8)| match wanted {
        b'0' => byte.is_ascii_digit(),
        _ => byte == wanted,
    };
    rest.len() == shape.len() && rest.iter().zip(shape).all(fits)
}

/// The time as in `20261124T021000Z`. Sorting these texts sorts them by age.
fn stamp(now: Duration) -> String {
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let at = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX);
    at.strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// Replaces a file by its gzip form, which has the same owner, mode and modification time.
fn compress(path: &Path) -> io::Result<()> {
    let mut source = open(path, OpenOptions::new().read(true))?;
    let metadata = source.metadata()?;
    if metadata.nlink() != 1 {
        return Err(io::Error::other("the file has a second hard link"));
    }
    let target = with_suffix(path, COMPRESSED);
    let unfinished = with_suffix(&target, ".tmp");
    if let Err(error) = std::fs::remove_file(&unfinished)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let file = create_like(&unfinished, &metadata)?;
    let written = (|| {
        let mut encoder = GzEncoder::new(file, Compression::default());
        io::copy(&mut source, &mut encoder)?;
        let file = encoder.finish()?;
        file.set_modified(metadata.modified()?)?;
        std::fs::rename(&unfinished, &target)
    })();
    match written {
        Ok(()) => std::fs::remove_file(path),
        Err(error) => {
            let _ = std::fs::remove_file(&unfinished);
            Err(error)
        }
    }
}

/// Opens a regular file. Symbolic links are not followed: in a directory that another user may write to, a link could
/// lead to any file.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    let file = options.custom_flags(flags).open(path)?;
    if !file.metadata()?.file_type().is_file() {
        return Err(io::Error::other("the file is not a regular file"));
    }
    Ok(file)
}

/// Creates a file with the owner, group and mode of another file.
fn create_like(path: &Path, other: &Metadata) -> io::Result<File> {
    let file = open(
        path,
        OpenOptions::new().append(true).create_new(true).mode(0o600),
    )?;
    let made = file.metadata()?;
    let is_like = |of: fn(&Metadata) -> u32| of(&made) == of(other);
    let given = if is_like(Metadata::uid) && is_like(Metadata::gid) {
        Ok(())
    } else {
        std::os::unix::fs::fchown(&file, Some(other.uid()), Some(other.gid()))
    };
    let given = given.and_then(|()| {
        let mode = other.permissions().mode() & 0o777;
        file.set_permissions(Permissions::from_mode(mode))
    });
    if let Err(error) = given {
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(file)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().as_bytes().to_vec();
    name.extend_from_slice(suffix.as_bytes());
    OsString::from_vec(name).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    const LARGE: Rotation = Rotation {
        size: Some(5),
        age: None,
        keep: 3,
        compresses: true,
    };

    struct Log {
        directory: tempfile::TempDir,
    }

    impl Log {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            Self { directory }
        }

        fn path(&self) -> PathBuf {
            self.directory.path().join("log")
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.directory.path().join(name), text).unwrap();
        }

        /// Rotates the log. Returns the messages of the thread that compresses and removes older logs.
        fn rotate(&self, rotation: Rotation) -> String {
            let mut text = String::new();
            let pipe = rotate(&self.path(), rotation).unwrap();
            File::from(pipe).read_to_string(&mut text).unwrap();
            text
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(self.directory.path()).unwrap();
            let mut names: Vec<String> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    #[test]
    fn a_file_is_renamed_once_it_is_large_enough() {
        let log = Log::new();
        log.write("log", "1234");
        assert_eq!(log.rotate(LARGE), "");
        assert_eq!(log.names(), ["log"]);
        log.write("log", "12345");
        std::fs::set_permissions(log.path(), Permissions::from_mode(0o640)).unwrap();
        assert_eq!(log.rotate(LARGE), "");
        let names = log.names();
        assert_eq!(names.len(), 2, "{names:?}");
        assert!(is_rotated(names[1].as_ref(), "log".as_ref()), "{names:?}");
        let new = std::fs::metadata(log.path()).unwrap();
        assert_eq!((new.len(), new.permissions().mode() & 0o777), (0, 0o640));
        let old = log.directory.path().join(&names[1]);
        assert_eq!(std::fs::read(old).unwrap(), b"12345");
    }

    #[test]
    fn an_old_file_is_renamed_unless_it_is_empty() {
        let log = Log::new();
        let old = Rotation {
            size: None,
            age: Some(Duration::ZERO),
            ..LARGE
        };
        log.write("log", "");
        assert_eq!(log.rotate(old), "");
        assert_eq!(log.names(), ["log"]);
        log.write("log", "1");
        let young = Rotation {
            age: Some(Duration::from_secs(3600)),
            ..old
        };
        assert_eq!(log.rotate(young), "");
        assert_eq!(log.names(), ["log"]);
        assert_eq!(log.rotate(old), "");
        assert_eq!(log.names().len(), 2);
    }

    #[test]
    fn the_oldest_are_removed_and_the_others_compressed_but_for_the_youngest() {
        let log = Log::new();
        log.write("log", "12345");
        for day in 1..=5 {
            log.write(&format!("log.2026010{day}T000000Z"), &format!("day {day}"));
        }
        // A compression that was interrupted has left this file.
        log.write("log.20260105T000000Z.gz.tmp", "half");
        for other in ["log.1", "log.20260101T00000Z", "other.20260101T000000Z"] {
            log.write(other, "not ours");
        }
        assert_eq!(log.rotate(LARGE), "");
        let names = log.names();
        let rest = [
            "log",
            "log.1",
            "log.20260101T00000Z",
            "log.20260104T000000Z.gz",
        ];
        assert_eq!(names[..4], rest, "{names:?}");
        assert_eq!(names[4], "log.20260105T000000Z.gz");
        assert!(is_rotated(names[5].as_ref(), "log".as_ref()), "{names:?}");
        assert_eq!(names[6..], ["other.20260101T000000Z"]);
        let packed = File::open(log.directory.path().join(&names[4])).unwrap();
        let mut text = String::new();
        let mut decoder = flate2::read::GzDecoder::new(packed);
        decoder.read_to_string(&mut text).unwrap();
        assert_eq!(text, "day 5");
    }

    #[test]
    fn links_are_neither_followed_nor_compressed() {
        let log = Log::new();
        log.write("target", "12345");
        std::os::unix::fs::symlink(log.directory.path().join("target"), log.path()).unwrap();
        assert!(rotate(&log.path(), LARGE).is_err());
        std::fs::remove_file(log.path()).unwrap();
        log.write("log", "12345");
        let linked = log.directory.path().join("log.20260101T000000Z");
        std::fs::hard_link(log.directory.path().join("target"), linked).unwrap();
        let text = log.rotate(LARGE);
        assert!(
            text.ends_with("log.20260101T000000Z: the file has a second hard link"),
            "{text}"
        );
    }

    #[test]
    fn the_oldest_are_removed_even_if_another_cannot_be_compressed() {
        let log = Log::new();
        log.write("log", "12345");
        log.write("target", "");
        for day in 1..=3 {
            let name = log
                .directory
                .path()
                .join(format!("log.2026010{day}T000000Z"));
            std::fs::hard_link(log.directory.path().join("target"), name).unwrap();
        }
        let text = log.rotate(LARGE);
        assert!(text.ends_with("the file has a second hard link"), "{text}");
        assert!(!log.names().contains(&"log.20260101T000000Z".to_owned()));
        assert_eq!(log.names().len(), 5, "{:?}", log.names());
    }

    #[test]
    fn one_process_rotates_at_a_time() {
        let log = Log::new();
        log.write("log", "12345");
        let other = File::open(log.path()).unwrap();
        flock(&other, FlockOperation::LockExclusive).unwrap();
        assert_eq!(log.rotate(LARGE), "");
        assert_eq!(log.names(), ["log"]);
        drop(other);
        assert_eq!(log.rotate(LARGE), "");
        assert_eq!(log.names().len(), 2);
    }

    #[test]
    fn tasks_have_names_that_say_all() {
        let path = "/var/log/a log";
        for rotation in [
            LARGE,
            Rotation {
                size: None,
                age: Some(Duration::from_secs(86_400)),
                keep: 0,
                compresses: false,
            },
        ] {
            let name = rotation.task_name(path);
            assert_eq!(Rotation::parse(&name), Some((rotation, path)));
        }
        for name in ["", "1 2 3 true", "1 2 x true /log", "1 2 3 4 /log"] {
            assert_eq!(Rotation::parse(name), None, "{name}");
        }
    }
}
