//! Ticket keys in a file that several servers share.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};

use h2o_config::Error;
use h2o_exchange::Resource;
use h2o_log::report;

use crate::clock::unix_now;
use crate::resumption::key_format;
use crate::resumption::tickets::KeyRing;

/// Seconds between two checks of whether the file has changed.
const POLL_SECS: u64 = 10;
/// The file that the configuration names. The server opens it together with its logs, with the rights of the user that started the
/// server, so that no other user needs to be able to read it.
#[derive(Clone, Debug)]
pub(crate) struct SharedTicketFile {
    path: Box<str>,
    /// Position of the path in the configuration.
    place: Error,
    opened: Arc<Mutex<Option<(TicketFile, KeyRing)>>>,
}

impl PartialEq for SharedTicketFile {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for SharedTicketFile {}

impl SharedTicketFile {
    /// `place` is an error that has the position of the path in the configuration, and no text.
    pub(crate) fn new(path: &str, place: Error) -> Self {
        Self {
            path: path.into(),
            place,
            opened: Arc::default(),
        }
    }

    /// Takes the keys that were read when the server opened its files; empty before.
    pub(crate) fn take(&self) -> (TicketFile, KeyRing) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, ring) = opened
            .take()
            .unwrap_or_else(|| (TicketFile::new(&self.path), KeyRing::default()));
        if file.text.is_some() {
            file.warn_if_exposed();
        }
        (file, ring)
    }
}

impl Resource for SharedTicketFile {
    /// Reads the keys. A failure is logged but does not prevent the start of the server: without ticket keys, clients make full
    /// handshakes.
    fn open(&self) -> Result<(), String> {
        let mut file = TicketFile::new(&self.path);
        let ring = file.poll_and_log(unix_now()).unwrap_or_default();
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        *opened = Some((file, ring));
        Ok(())
    }

    fn check(&self) -> Option<Error> {
        let mut error = self.place.clone();
        error.message = TicketFile::new(&self.path).poll(unix_now()).err()?;
        Some(error.with_hint("without its keys clients make full handshakes"))
    }
}

/// The ticket file, with the contents that were read last.
#[derive(Debug)]
pub(crate) struct TicketFile {
    path: Box<str>,
    /// The text of the file that was read last. It is compared as a whole, because a new file may have the same size and times.
    text: Option<Vec<u8>>,
    /// Why the last attempt to read the file failed, so that the same failure is logged once.
    failure: Option<String>,
    next_poll: u64,
}

/// Which users other than the server's may read or write the file; `None` for none.
fn is_exposed_to(metadata: &Metadata) -> Option<&'static str> {
    let is_ours = || {
        let groups = nix::unistd::getgroups().unwrap_or_default();
        let mut ours = groups.into_iter().chain([nix::unistd::getegid()]);
        ours.any(|group| group.as_raw() == metadata.gid())
    };
    if metadata.mode() & 0o007 != 0 {
        Some("everybody")
    } else if metadata.mode() & 0o070 != 0 && !is_ours() {
        Some("a group that the server does not belong to")
    } else {
        None
    }
}

impl TicketFile {
    pub(crate) fn new(path: &str) -> Self {
        Self {
            path: path.into(),
            text: None,
            failure: None,
            next_poll: 0,
        }
    }

    /// Whether [`Self::poll`] is due.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.next_poll <= now
    }

    /// Like [`Self::poll`], and writes the result to the log.
    pub(crate) fn poll_and_report(&mut self, now: u64) -> Option<KeyRing> {
        let ring = self.poll_and_log(now)?;
        self.warn_if_exposed();
        Some(ring)
    }

    fn poll_and_log(&mut self, now: u64) -> Option<KeyRing> {
        match self.poll(now) {
            Ok(ring) => {
                if self.is_news(None) || ring.is_some() {
                    report!(notice, "session ticket secrets have been (re)loaded");
                }
                ring
            }
            Err(line) => {
                if self.is_news(Some(&line)) {
                    report!(error, "{line}");
                }
                None
            }
        }
    }

    /// Notes that reading the file has failed for this reason, or has succeeded. Returns whether that was different the last time.
    fn is_news(&mut self, failure: Option<&str>) -> bool {
        let is_news = self.failure.as_deref() != failure;
        self.failure = failure.map(str::to_owned);
        is_news
    }

    /// Logs a warning if other users may read the file: with these keys, they could resume the sessions of clients, and decrypt
    /// recorded sessions of TLS 1.2.
    fn warn_if_exposed(&self) {
        let path = &*self.path;
        let metadata = fs::metadata(path).ok();
        if let Some(whom) = metadata.as_ref().and_then(is_exposed_to) {
            report!(
                warning,
                "session ticket secrets in file:{path} can be read by {whom}: only the user that starts the server needs to (chmod 600)"
            );
        }
    }

    /// Reads the keys, if the file has changed. If reading fails, the old keys stay in use.
    ///
    /// # Errors
    /// The line for the error log.
    pub(crate) fn poll(&mut self, now: u64) -> Result<Option<KeyRing>, String> {
        self.next_poll = now + POLL_SECS;
        let path = &*self.path;
        let text = h2o_opener::read(path.as_ref()).map_err(|error| {
            let reason = h2o_log::reason(&error);
            format!("cannot load session ticket secrets from file:{path}:{reason}")
        })?;
        if self.text.as_ref() == Some(&text) {
            return Ok(None);
        }
        let keys = key_format::parse(path, &text).map_err(|error| {
            format!("failed to load session ticket secrets from file:{path}:{error}")
        })?;
        self.text = Some(text);
        Ok(Some(keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resumption::key_format::tests::entry;

    #[test]
    fn a_file_that_was_replaced_is_not_taken_for_the_old_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys").to_str().unwrap().to_owned();
        let mut file = TicketFile::new(&path);
        assert!(file.is_due(0));
        let error = file.poll(100).unwrap_err();
        assert_eq!(
            error,
            format!(
                "cannot load session ticket secrets from file:{path}:No such file or directory"
            )
        );
        assert!(!file.is_due(109));
        assert!(file.is_due(110));
        // Replaces the file by one with the same mtime, as copies and backups may have.
        let write = |text: &str| {
            let new = directory.path().join("new");
            std::fs::write(&new, text).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
            let file = std::fs::File::options().write(true).open(&new).unwrap();
            file.set_modified(time).unwrap();
            std::fs::rename(&new, &path).unwrap();
        };
        write(&entry(&[]));
        assert!(file.poll(110).unwrap().is_some());
        assert!(file.poll(120).unwrap().is_none());
        write("nonsense");
        let error = file.poll(130).unwrap_err();
        assert!(error.starts_with(&format!(
            "failed to load session ticket secrets from file:{path}:"
        )));
        // The error is returned again at each check until the file is correct, but logged once.
        let again = file.poll(140).unwrap_err();
        let news = [Some(&*error), Some(&*again), None, None].map(|failure| file.is_news(failure));
        assert_eq!(news, [true, false, true, false]);
        // The text that was read last before the error counts as unchanged; a text with another key of the same length is a
        // change.
        write(&entry(&[]));
        assert!(file.poll(150).unwrap().is_none());
        write(&entry(&[("name", &"1".repeat(32))]));
        let ring = file.poll(160).unwrap().unwrap();
        assert!(ring.key_of(&[0x11; 16], 1500).is_some());
    }

    #[test]
    fn files_that_others_can_read_are_not_passed_over_in_silence() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        std::fs::write(&path, "").unwrap();
        let exposed = |mode: u32| {
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, permissions).unwrap();
            is_exposed_to(&fs::metadata(&path).unwrap())
        };
        for mode in [0o600, 0o400, 0o640] {
            assert_eq!(exposed(mode), None, "{mode:o}");
        }
        for mode in [0o644, 0o604, 0o602, 0o777] {
            assert_eq!(exposed(mode), Some("everybody"), "{mode:o}");
        }
    }
}
