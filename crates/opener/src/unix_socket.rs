//! Unix sockets that a server listens to.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::message::text_of;

/// A Unix socket that is to be bound to a path, and the access to its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSocketSpec {
    /// The path of the socket.
    pub path: PathBuf,
    /// The ids of the user and the group that own the file of the socket; `None` for those of the starting user.
    pub owner: Option<(u32, u32)>,
    /// The permissions of the file; `None` for those that the system gives a new socket.
    pub permission: Option<u32>,
}

impl UnixSocketSpec {
    /// The name of the task to bind this socket, which the keeper (the process with the starting user's rights) gets: `USER:GROUP MODE
    /// PATH`, with `-` for what is not given.
    pub(crate) fn name(&self) -> OsString {
        let owner = self.owner.map(|(user, group)| format!("{user}:{group}"));
        let mode = self.permission.map(|mode| format!("{mode:o}"));
        let [owner, mode] = [owner, mode].map(|text| text.unwrap_or_else(|| "-".to_owned()));
        let mut name = OsString::from(format!("{owner} {mode} "));
        name.push(&self.path);
        name
    }

    pub(crate) fn parse(name: &OsStr) -> Option<Self> {
        let mut parts = name.as_bytes().splitn(3, |byte| *byte == b' ');
        let mut text = || std::str::from_utf8(parts.next()?).ok();
        let (owner, mode) = (text()?, text()?);
        let owner = match owner.split_once(':') {
            Some((user, group)) => Some((user.parse().ok()?, group.parse().ok()?)),
            None => None,
        };
        let permission = match mode {
            "-" => None,
            mode => Some(u32::from_str_radix(mode, 8).ok()?),
        };
        Some(Self {
            path: OsStr::from_bytes(parts.next()?).into(),
            owner,
            permission,
        })
    }

    /// The error with which a step fails that is named `what`.
    fn failure(&self, what: &str, error: &io::Error) -> io::Error {
        let (path, reason) = (self.path.display(), text_of(error));
        io::Error::other(format!("failed to {what} socket:{path}: {reason}"))
    }

    pub(crate) fn bind(&self) -> io::Result<OwnedFd> {
        let failed = |what, error: &io::Error| self.failure(what, error);
        let is_socket = fs::symlink_metadata(&self.path);
        if is_socket.is_ok_and(|found| found.file_type().is_socket()) {
            refuse_live_socket(&self.path).map_err(|error| failed("listen to", &error))?;
            fs::remove_file(&self.path).map_err(|error| failed("remove the old", &error))?;
        }
        let bind = || {
            let socket = new_socket()?;
            rustix::net::bind(&socket, &SocketAddrUnix::new(&self.path)?)?;
            Ok(socket)
        };
        let socket = bind().map_err(|error| failed("listen to", &error))?;
        self.set_access()?;
        Ok(socket)
    }

    /// Gives the file of the socket its owner and permissions.
    ///
    /// # Errors
    /// The message for the administrator, with the error of the system.
    pub fn set_access(&self) -> io::Result<()> {
        if self.owner.is_none() && self.permission.is_none() {
            return Ok(());
        }
        // Everything is done to one and the same file, which is a socket: whoever may write to the directory could replace the file by a
        // symbolic link meanwhile, and get another file.
        let open = || {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::open(&self.path, flags, Mode::empty())?;
            let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
            if kind == FileType::Socket {
                Ok(file)
            } else {
                Err(Errno::NOTSOCK)
            }
        };
        let what = if self.owner.is_some() {
            "chown"
        } else {
            "chmod"
        };
        let file = open().map_err(|error| self.failure(what, &error.into()))?;
        if let Some((user, group)) = self.owner {
            let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
            rustix::fs::chownat(&file, "", Some(user), Some(group), AtFlags::EMPTY_PATH)
                .map_err(|error| self.failure("chown", &error.into()))?;
        }
        if let Some(mode) = self.permission {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty())
                .map_err(|error| self.failure("chmod", &error.into()))?;
        }
        Ok(())
    }
}

/// Checks that no program listens to the Unix socket at `path`, so that its file can be removed. Whoever removes the file of a socket in
/// use takes all later clients from the program that listens to it.
///
/// # Errors
/// What keeps the socket from being replaced: a program that listens to it, or the reason why nobody can tell.
pub fn refuse_live_socket(path: &Path) -> io::Result<()> {
    let in_use = || {
        let text = "another program listens to it; stop that program, or take another path";
        Err(io::Error::new(io::ErrorKind::AddrInUse, text))
    };
    match rustix::net::connect(new_socket()?, &SocketAddrUnix::new(path)?) {
        // The queue of the socket is full, or it is a socket of datagrams.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => in_use(),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        Err(error) => {
            let reason = text_of(&error.into());
            Err(io::Error::other(format!(
                "no way to find out whether another program listens to it: {reason}"
            )))
        }
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn spec(path: PathBuf) -> UnixSocketSpec {
        UnixSocketSpec {
            path,
            owner: None,
            permission: Some(0o604),
        }
    }

    #[test]
    fn the_name_of_the_task_says_all() {
        for owner in [None, Some((0, 65_534))] {
            for permission in [None, Some(0o660)] {
                let path = OsStr::from_bytes(b"/a b/\xff").into();
                let spec = UnixSocketSpec {
                    path,
                    owner,
                    permission,
                };
                assert_eq!(UnixSocketSpec::parse(&spec.name()), Some(spec));
            }
        }
        for name in ["", "- -", "1 - /a", "a:1 - /a", "- 8 /a"] {
            let parsed = UnixSocketSpec::parse(name.as_ref());
            assert_eq!(
                parsed.filter(|parsed| parsed.owner.is_some()),
                None,
                "{name}"
            );
        }
    }

    #[test]
    fn a_socket_takes_the_place_of_one_that_nobody_listens_to_and_of_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let spec = spec(directory.path().join("socket"));
        let socket = spec.bind().unwrap();
        let mode = fs::metadata(&spec.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o604);
        rustix::net::listen(&socket, 1).unwrap();
        let text = spec.bind().unwrap_err().to_string();
        assert!(text.contains("another program listens to it"), "{text}");
        drop(socket);
        let old = fs::metadata(&spec.path).unwrap().ino();
        let _kept = fs::hard_link(&spec.path, directory.path().join("old"));
        spec.bind().unwrap();
        assert_ne!(fs::metadata(&spec.path).unwrap().ino(), old);
    }

    #[test]
    fn only_a_socket_gets_the_permissions() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let spec = spec(directory.path().join("link"));
        symlink(&file, &spec.path).unwrap();
        assert!(spec.set_access().is_err());
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o640
        );
    }
}
