//! The directory with certificates, keys, accounts and answers. Every file is written beside its place and then
//! renamed, so that a crash leaves the old file intact.
//!
//! ```text
//! certificates/NAME.crt, NAME.key    for the server
//! account-DIGEST.json                the account at the authority whose URL has this digest
//! webroot/.well-known/acme-challenge answers to HTTP-01, served by every host
//! lock                               held by the process that obtains certificates
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, FlockOperation};
use rustix::io::Errno;

use crate::failure::Failure;

/// Mode of files that only the user of the server may read.
const PRIVATE: u32 = 0o600;
/// Mode of files that every user may read.
const PUBLIC: u32 = 0o644;

/// The directory in which the ACME client keeps its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDirectory(PathBuf);

/// The user and the group that own the files of the state directory.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// The number of the user.
    pub user: u32,
    /// The number of the group.
    pub group: u32,
}

impl StateDirectory {
    /// The state directory at `path`, which need not exist yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The path of the state directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of the file for the certificate called `name`.
    #[must_use]
    pub fn certificate_file(&self, name: &str) -> PathBuf {
        self.certificates().join(format!("{name}.crt"))
    }

    /// The path of the file for the key of the certificate called `name`.
    #[must_use]
    pub fn key_file(&self, name: &str) -> PathBuf {
        self.certificates().join(format!("{name}.key"))
    }

    /// The directory with the answers to HTTP-01 challenges, which every host serves.
    #[must_use]
    pub fn answers(&self) -> PathBuf {
        self.0.join("webroot/.well-known/acme-challenge")
    }

    fn certificates(&self) -> PathBuf {
        self.0.join("certificates")
    }

    /// Creates the state directory and the directories in it, and gives them to `owner`, with those of their files that belong to root
    /// or to the former owner of the directory, who was the `user` of an earlier configuration.
    ///
    /// # Errors
    /// The message about the directory that cannot be created, for the user.
    pub fn prepare(&self, owner: Option<Owner>) -> Result<(), String> {
        let failed = |path: &Path, error: &io::Error| {
            let reason = h2o_log::reason(error);
            let hint = self.remedy(error);
            format!(
                "failed to make the directory of `acme`: {}: {reason}{hint}",
                path.display()
            )
        };
        if let Some(parent) = self.0.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(parent);
            made.map_err(|error| failed(parent, &error))?;
        }
        let webroot = self.0.join("webroot");
        let well_known = webroot.join(".well-known");
        let directories = [
            (self.0.clone(), 0o711),
            (self.certificates(), 0o700),
            (webroot, 0o755),
            (well_known, 0o755),
            (self.answers(), 0o755),
        ];
        for (directory, mode) in directories {
            match DirBuilder::new().mode(mode).create(&directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed(&directory, &error));
                }
                Ok(()) | Err(_) => {}
            }
            if let Some(owner) = owner {
                give(&directory, owner).map_err(|error| failed(&directory, &error))?;
            }
        }
        Ok(())
    }

    /// What an administrator can do about an error in the state directory, as the end of a message; empty unless the user of this
    /// process lacks the right.
    pub(crate) fn remedy(&self, error: &io::Error) -> String {
        if error.kind() != io::ErrorKind::PermissionDenied {
            return String::new();
        }
        let (user, path) = (rustix::process::geteuid().as_raw(), self.0.display());
        format!(
            " (the server runs as user {user}; restart it, started by root it makes the directory, or run `mkdir -p {path}; chown -R {user} {path}`)"
        )
    }

    /// Whether the user of this process may write into the directory; also if there is none, which the server makes at the start.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        let is_allowed = |path: &Path| {
            let (access, flags) = (Access::WRITE_OK, AtFlags::EACCESS);
            rustix::fs::accessat(rustix::fs::CWD, path, access, flags) != Err(Errno::ACCESS)
        };
        is_allowed(&self.0) && is_allowed(&self.certificates())
    }

    /// Locks the state directory until the returned file is dropped. `None` if another process has the lock.
    pub(crate) fn lock(&self) -> Result<Option<File>, Failure> {
        let path = self.0.join("lock");
        let failed = |error: &io::Error| Failure::local(&path, error).with(&self.remedy(error));
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(PRIVATE)
            .open(&path);
        let file = file.map_err(|error| failed(&error))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(failed(&error.into())),
        }
    }

    /// Writes the file that answers an HTTP-01 challenge. Returns its path.
    pub(crate) fn write_answer(&self, token: &str, text: &[u8]) -> Result<PathBuf, Failure> {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        // The token becomes the name of a file, so it may only have the characters that RFC 8555 §8.3 allows.
        if token.is_empty() || token.len() > 200 || !token.bytes().all(is_token) {
            return Err(Failure::refused(
                "the authority sent a token that is not base64url",
            ));
        }
        let path = self.answers().join(token);
        write(&path, text, PUBLIC)?;
        Ok(path)
    }

    fn account_file(&self, server: &str) -> PathBuf {
        let digest = h2o_tls::sha256(server.as_bytes());
        let name: String = digest[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        self.0.join(format!("account-{name}.json"))
    }

    /// Reads the account at the authority `server`; `None` if no account is stored.
    pub(crate) fn read_account(&self, server: &str) -> Result<Option<Vec<u8>>, Failure> {
        let path = self.account_file(server);
        match fs::read(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::local(&path, &error)),
        }
    }

    pub(crate) fn write_account(&self, server: &str, text: &[u8]) -> Result<(), Failure> {
        write(&self.account_file(server), text, PRIVATE)
    }

    /// Renames the file of an account that cannot be used, so that another account can be stored. Returns the new path.
    pub(crate) fn set_account_aside(&self, server: &str) -> Result<PathBuf, Failure> {
        let path = self.account_file(server);
        let aside = path.with_extension("json.unusable");
        fs::rename(&path, &aside).map_err(|error| Failure::local(&path, &error))?;
        Ok(aside)
    }

    /// Replaces the certificate called `name` and its key. Both new files are complete on the disk before the first of
    /// them is renamed, so that [`Self::finish_replacement`] can complete a replacement that a crash has interrupted.
    pub(crate) fn write_certificate(
        &self,
        name: &str,
        chain: &str,
        key: &str,
    ) -> Result<(), Failure> {
        let (certificate_file, key_file) = (self.certificate_file(name), self.key_file(name));
        write_beside(&key_file, key.as_bytes(), PRIVATE)?;
        write_beside(&certificate_file, chain.as_bytes(), PUBLIC)?;
        put_in_place(&key_file)?;
        put_in_place(&certificate_file)
    }

    /// Completes a replacement that a crash has interrupted: if one of the two files was renamed, the other is renamed,
    /// too. If none was, the new files are removed.
    pub(crate) fn finish_replacement(&self, name: &str) -> Result<(), Failure> {
        let (certificate_file, key_file) = (self.certificate_file(name), self.key_file(name));
        if beside(&key_file).exists() {
            for path in [beside(&key_file), beside(&certificate_file)] {
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(Failure::local(&path, &error));
                    }
                    Ok(()) | Err(_) => {}
                }
            }
        } else if beside(&certificate_file).exists() {
            put_in_place(&certificate_file)?;
        }
        Ok(())
    }
}

/// Gives a directory to `owner`, with the files in it that belong to root or to the former owner of the directory. Symbolic links
/// are not followed, and files with a second hard link are left alone, because that owner could have made such links to files of
/// others.
fn give(directory: &Path, owner: Owner) -> io::Result<()> {
    let former = fs::symlink_metadata(directory)?;
    if !former.is_dir() {
        return Ok(());
    }
    let own = |path: &Path, uid: u32| {
        if uid == owner.user {
            return Ok(());
        }
        std::os::unix::fs::lchown(path, Some(owner.user), Some(owner.group))
    };
    own(directory, former.uid())?;
    for entry in fs::read_dir(directory)?.flatten() {
        let path = entry.path();
        let found = fs::symlink_metadata(&path)?;
        let is_ours = found.is_file() && found.nlink() == 1;
        if is_ours && [0, former.uid()].contains(&found.uid()) {
            own(&path, found.uid())?;
        }
    }
    Ok(())
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Writes `text` to a temporary file beside `path`; [`put_in_place`] then renames it to `path`.
fn write_beside(path: &Path, text: &[u8], mode: u32) -> Result<(), Failure> {
    let path = beside(path);
    let written = (|| {
        // A crash may have left a file of this name, with another mode, so it is removed first.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path)?;
        file.write_all(text)?;
        file.sync_all()
    })();
    written.map_err(|error| Failure::local(&path, &error))
}

fn put_in_place(path: &Path) -> Result<(), Failure> {
    let renamed = fs::rename(beside(path), path).and_then(|()| {
        // The directory is written to the disk as well, so that the new name survives a crash.
        path.parent()
            .map_or(Ok(()), |parent| File::open(parent)?.sync_all())
    });
    renamed.map_err(|error| Failure::local(path, &error))
}

fn write(path: &Path, text: &[u8], mode: u32) -> Result<(), Failure> {
    write_beside(path, text, mode)?;
    put_in_place(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> (tempfile::TempDir, StateDirectory) {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::new(directory.path().join("new/acme"));
        state.prepare(None).unwrap();
        (directory, state)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn keys_and_accounts_are_private() {
        let (_directory, state) = state();
        state.write_certificate("a.test", "chain", "key").unwrap();
        state.write_account("https://ca.test", b"account").unwrap();
        assert_eq!(mode(&state.key_file("a.test")), 0o600);
        assert_eq!(mode(&state.account_file("https://ca.test")), 0o600);
        assert_eq!(mode(&state.certificate_file("a.test")), 0o644);
        assert_eq!(fs::read(state.key_file("a.test")).unwrap(), b"key");
        assert_eq!(state.read_account("https://other.test").unwrap(), None);
        let found = state.read_account("https://ca.test").unwrap();
        assert_eq!(found.as_deref(), Some(&b"account"[..]));
    }

    #[test]
    fn another_user_gets_what_the_former_one_had() {
        if !rustix::process::geteuid().is_root() {
            // Only root can give files away.
            return;
        }
        let (_directory, state) = state();
        let owner_of = |path: &Path| fs::metadata(path).unwrap().uid();
        state.write_certificate("a.test", "chain", "key").unwrap();
        let foreign = state.path().join("foreign");
        fs::write(&foreign, "").unwrap();
        std::os::unix::fs::chown(&foreign, Some(77_003), None).unwrap();
        for user in [77_001, 77_002] {
            let owner = Owner { user, group: user };
            state.prepare(Some(owner)).unwrap();
            let key = state.key_file("a.test");
            assert_eq!((owner_of(state.path()), owner_of(&key)), (user, user));
            assert_eq!(owner_of(&foreign), 77_003);
        }
    }

    #[test]
    fn a_crash_leaves_a_certificate_with_its_own_key() {
        let (_directory, state) = state();
        let (chain, key) = (state.certificate_file("a.test"), state.key_file("a.test"));
        let pair = || [&chain, &key].map(|path| fs::read_to_string(path).unwrap());
        state
            .write_certificate("a.test", "chain 1", "key 1")
            .unwrap();
        // Simulates a crash before the first file is renamed.
        write_beside(&key, b"key 2", PRIVATE).unwrap();
        write_beside(&chain, b"chain 2", PUBLIC).unwrap();
        state.finish_replacement("a.test").unwrap();
        assert_eq!(pair(), ["chain 1", "key 1"]);
        // Simulates a crash after the key was renamed, but not the certificate.
        write_beside(&key, b"key 2", PRIVATE).unwrap();
        write_beside(&chain, b"chain 2", PUBLIC).unwrap();
        put_in_place(&key).unwrap();
        state.finish_replacement("a.test").unwrap();
        assert_eq!(pair(), ["chain 2", "key 2"]);
        state.finish_replacement("a.test").unwrap();
        assert!(!beside(&chain).exists() && !beside(&key).exists());
    }

    #[test]
    fn one_process_at_a_time_obtains_certificates() {
        let (_directory, state) = state();
        let held = state.lock().unwrap();
        assert!(held.is_some());
        assert!(state.lock().unwrap().is_none());
        drop(held);
        assert!(state.lock().unwrap().is_some());
    }

    #[test]
    fn a_token_names_a_file_of_its_directory() {
        let (_directory, state) = state();
        for token in ["", "../x", "a/b", "a.b", &"a".repeat(201)] {
            assert!(state.write_answer(token, b"x").is_err(), "{token}");
        }
        let path = state.write_answer("aB0-_", b"x").unwrap();
        assert_eq!(path, state.answers().join("aB0-_"));
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_reported() {
        let (_directory, state) = state();
        fs::remove_dir_all(state.certificates()).unwrap();
        let failed = state
            .write_certificate("a.test", "chain", "key")
            .unwrap_err();
        assert_eq!(failed.cause, crate::failure::Cause::Local);
        assert!(
            failed.to_string().contains("a.test.key.new: No such file"),
            "{failed}"
        );
    }
}
