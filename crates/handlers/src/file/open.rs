//! Opens files, optionally without waiting for the disk.

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Whether a call may wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// The call fails with [`Errno::AGAIN`] instead of waiting for the disk if the kernel has not cached the path's
    /// directories. The event loop uses this.
    InMemory,
    /// The call may wait for the disk. The disk threads use this.
    Waiting,
}

/// Flags for reading content: opening a FIFO does not wait for a writer, and a terminal does not become the controlling
/// terminal of the server.
pub(super) const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOCTTY);

/// Flags for reading the names in a directory.
pub(super) const READ_DIRECTORY: OFlags = READ.union(OFlags::DIRECTORY);

/// Flags for finding out the type of a file without opening its content.
pub(super) const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// How often an open is retried if directories are being renamed during the look-up.
const RENAME_RETRIES: usize = 8;

/// Opens the path `path` of the configuration, which may be absolute or relative to the working directory.
pub(super) fn configured(path: &CStr, flags: OFlags, access: Access) -> Result<OwnedFd, Errno> {
    open(CWD, path, flags, ResolveFlags::empty(), access)
}

/// Opens `relative` beneath `root`.
///
/// H2O compatibility: H2O follows symbolic links, which may lead anywhere. The path itself must not leave `root`: it has no
/// `..` after normalisation, and is checked again here.
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

/// Whether the kernel or a seccomp filter has turned out not to support the system call `openat2`. Files are then
/// opened with `openat`, which may wait for the disk.
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
            // Kernels before 5.12 do not support RESOLVE_CACHED, so the call counts as one that would wait for the
            // disk.
            Err(Errno::INVAL) if access == Access::InMemory => return Err(Errno::AGAIN),
            Err(Errno::NOSYS) => NO_OPENAT2.store(true, Relaxed),
            // Some seccomp filters return this error for system calls that they do not know.
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
