//! Opening files, without waiting for the disk unless told to.

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Whether the disk may be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// No: what is not in memory is reported as [`Errno::AGAIN`]. For the event loop.
    InMemory,
    /// Yes. For the thread pool.
    Waiting,
}

/// For reading content. Opening a FIFO must not wait for a writer, nor a terminal become ours.
pub(super) const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOCTTY);

/// For reading names.
pub(super) const READ_DIRECTORY: OFlags = READ.union(OFlags::DIRECTORY);

/// For finding out what something is.
pub(super) const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Tries again that often when directories are being renamed under a look-up.
const RENAME_RETRIES: usize = 8;

/// Opens `path`, relative to the working directory or absolute, as the configuration gives it.
pub(super) fn configured(path: &CStr, flags: OFlags, access: Access) -> Result<OwnedFd, Errno> {
    open(CWD, path, flags, ResolveFlags::empty(), access)
}

/// Opens `relative` beneath `root`.
///
/// A symbolic link that the administrator placed may lead anywhere (H2O compatibility), the path itself may
/// not: it has no `..` after normalisation, and is refused here should one ever come through.
pub(super) fn beneath(
    root: BorrowedFd<'_>,
    relative: &CStr,
    flags: OFlags,
    access: Access,
) -> Result<OwnedFd, Errno> {
    let bytes = relative.to_bytes();
    debug_assert!(!bytes.starts_with(b"/"));
    if bytes.starts_with(b"/") || bytes.split(|&byte| byte == b'/').any(|part| part == b"..") {
        return Err(Errno::ACCESS);
    }
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    match open(root, relative, flags, inside, access) {
        Err(Errno::XDEV) => open(root, relative, flags, ResolveFlags::NO_MAGICLINKS, access),
        other => other,
    }
}

/// Set once the kernel, or what filters its calls, was found not to know `openat2`. Files are then opened with
/// `openat`, which may wait for the disk.
static NO_OPENAT2: AtomicBool = AtomicBool::new(false);

fn open(
    directory: BorrowedFd<'_>,
    path: &CStr,
    flags: OFlags,
    resolve: ResolveFlags,
    access: Access,
) -> Result<OwnedFd, Errno> {
    #[cfg(test)]
    if access == Access::InMemory && super::testing::is_disk_cold() {
        return Err(Errno::AGAIN);
    }
    let cached = match access {
        Access::InMemory => ResolveFlags::CACHED,
        Access::Waiting => ResolveFlags::empty(),
    };
    let mut again = 0;
    while !NO_OPENAT2.load(Relaxed) {
        match rustix::fs::openat2(directory, path, flags, Mode::empty(), resolve | cached) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if access == Access::Waiting && again < RENAME_RETRIES => again += 1,
            Err(Errno::AGAIN) if access == Access::Waiting => return Err(Errno::ACCESS),
            // Kernels before 5.12 do not know RESOLVE_CACHED.
            Err(Errno::INVAL) if access == Access::InMemory => return Err(Errno::AGAIN),
            Err(Errno::NOSYS) => NO_OPENAT2.store(true, Relaxed),
            // Also what some seccomp filters answer for calls they do not know.
            Err(Errno::PERM) => {
                let file = plain(directory, path, flags)?;
                NO_OPENAT2.store(true, Relaxed);
                return Ok(file);
            }
            other => return other,
        }
    }
    plain(directory, path, flags)
}

fn plain(directory: BorrowedFd<'_>, path: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    loop {
        match rustix::fs::openat(directory, path, flags, Mode::empty()) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
