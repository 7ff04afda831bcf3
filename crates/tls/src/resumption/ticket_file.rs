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

    /// The position of the path in the configuration: an error without text.
    pub(crate) const fn place(&self) -> &Error {
        &self.place
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

    fn check(&self) -> Option<(String, &'static str)> {
        let failure = TicketFile::new(&self.path).poll(unix_now()).failure?;
        Some((failure, "without its keys clients make full handshakes"))
    }
}

/// The ticket file, with the contents that were read last.
#[derive(Debug)]
pub(crate) struct TicketFile {
    path: Box<str>,
    /// The text of the file that was read last. It is compared as a whole, because a new file may have the same size and times.
    text: Option<Vec<u8>>,
    /// The keys of that text.
    keys: KeyRing,
    /// What was wrong at the last poll, so that the same failure is logged once.
    failure: Option<String>,
    next_poll: u64,
}

/// What a poll of the ticket file has found.
#[derive(Debug, Default)]
pub(crate) struct Poll {
    /// The keys of the file, if it has changed since the last poll.
    pub(crate) keys: Option<KeyRing>,
    /// The line for the error log, if the file cannot be read or has no key that encrypts tickets now.
    pub(crate) failure: Option<String>,
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
            keys: KeyRing::default(),
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
        let poll = self.poll(now);
        let is_news = self.is_news(&poll);
        match &poll.failure {
            Some(line) if is_news => report!(error, "{line}"),
            None if is_news => report!(notice, "session ticket secrets have been (re)loaded"),
            Some(_) | None => {}
        }
        poll.keys
    }

    /// Whether the result of a poll is to be logged: the keys are new, or the failure differs from that of the poll before.
    fn is_news(&mut self, poll: &Poll) -> bool {
        let is_news = poll.keys.is_some() || self.failure != poll.failure;
        self.failure.clone_from(&poll.failure);
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
    pub(crate) fn poll(&mut self, now: u64) -> Poll {
        self.next_poll = now + POLL_SECS;
        match self.read() {
            Ok(keys) => {
                // Keys also expire while the file stays as it is.
                let is_useless = self.keys.active(now).is_none();
                let failure = is_useless.then(|| {
                    format!(
                        "no session ticket secret in file:{} is valid now, by `not_before` and `not_after`",
                        self.path
                    )
                });
                Poll { keys, failure }
            }
            Err(line) => Poll {
                keys: None,
                failure: Some(line),
            },
        }
    }

    /// Returns the keys if the file has changed.
    ///
    /// # Errors
    /// The line for the error log.
    fn read(&mut self) -> Result<Option<KeyRing>, String> {
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
        self.keys = keys.clone();
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
        let error = file.poll(100).failure.unwrap();
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
        assert!(file.poll(1110).keys.is_some());
        assert!(file.poll(1120).keys.is_none());
        write("nonsense");
        let polls = [1130, 1140].map(|now| file.poll(now));
        let failure = polls[0].failure.clone().unwrap();
        assert!(failure.starts_with(&format!(
            "failed to load session ticket secrets from file:{path}:"
        )));
        // The error is returned again at each check until the file is correct, but logged once.
        let [first, again] = polls.map(|poll| file.is_news(&poll));
        assert!(first && !again);
        // The text that was read last before the error counts as unchanged; a text with another key of the same length is a
        // change.
        write(&entry(&[]));
        let unchanged = file.poll(1150);
        assert!(unchanged.keys.is_none() && unchanged.failure.is_none());
        assert!(file.is_news(&unchanged) && !file.is_news(&unchanged));
        write(&entry(&[("name", &"1".repeat(32))]));
        let ring = file.poll(1160).keys.unwrap();
        assert!(ring.key_of(&[0x11; 16], 1500).is_some());
    }

    #[test]
    fn a_file_without_a_usable_key_is_not_passed_over_in_silence() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys").to_str().unwrap().to_owned();
        let useless = Some(format!(
            "no session ticket secret in file:{path} is valid now, by `not_before` and `not_after`"
        ));
        // The key is valid from 1000 to 2000.
        let one = entry(&[]);
        for (text, now, is_useless) in [
            ("[]", 1500, true),
            (&one, 999, true),
            (&one, 1000, false),
            (&one, 1999, false),
            (&one, 2000, true),
        ] {
            std::fs::write(&path, text).unwrap();
            let polled = TicketFile::new(&path).poll(now);
            assert!(polled.keys.is_some());
            let want = useless.clone().filter(|_| is_useless);
            assert_eq!(polled.failure, want, "{text} {now}");
        }
        // A key that expires while the server runs is reported once.
        let mut file = TicketFile::new(&path);
        let mut logged = |now| {
            let poll = file.poll(now);
            file.is_news(&poll).then_some(poll.failure)
        };
        assert_eq!(logged(1990), Some(None));
        assert_eq!(logged(2000), Some(useless.clone()));
        assert_eq!(logged(2010), None);
        std::fs::write(&path, "[]").unwrap();
        assert_eq!(logged(2020), Some(useless));
        assert_eq!(logged(2030), None);
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
