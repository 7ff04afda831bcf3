//! The thread that rotates log files.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use h2o_opener::{Rotation, has_birth_time};

use crate::stream::set_nonblocking;
use crate::{Target, reason, report};

/// Time between two checks of the log files.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often this process checks whether another process has rotated a log file that it writes to.
const FOLLOWING_INTERVAL: Duration = Duration::from_secs(10);

/// Most bytes that are read of a message about a failure to compress or remove rotated logs.
const LONGEST_FAILURE: usize = 4096;

/// A thread that rotates log files when they are due. Dropping this ends it.
pub struct Rotator {
    _end: Sender<()>,
}

struct RotatedLog {
    target: Arc<Target>,
    /// Set while older logs are being compressed and removed. If that fails, the message about the failure can be read
    /// from this pipe.
    tidying: Option<File>,
    /// The message about the last failure, which is reported only once until the rotation works again.
    failure: Option<String>,
}

impl Rotator {
    /// Starts the thread. Targets that are not regular files are not rotated.
    ///
    /// # Errors
    /// The system's error, if the thread cannot be started.
    pub fn start(rotation: Rotation, targets: Vec<Arc<Target>>) -> io::Result<Self> {
        let (end, ended) = channel::<()>();
        let mut logs: Vec<_> = targets.into_iter().map(RotatedLog::new).collect();
        let run = move || {
            if rotation.age.is_some() {
                logs.iter().for_each(RotatedLog::check_age);
            }
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                for log in &mut logs {
                    log.check(rotation);
                }
            }
        };
        thread::Builder::new()
            .name("h2o-log-rotation".to_owned())
            .spawn(run)?;
        Ok(Self { _end: end })
    }
}

/// Starts a thread that opens a log file anew whenever another process has rotated it.
///
/// # Errors
/// The system's error, if the thread cannot be started.
pub fn follow_rotation(target: Arc<Target>) -> io::Result<()> {
    let run = move || {
        let mut failure = None;
        loop {
            thread::sleep(FOLLOWING_INTERVAL);
            // While the new file cannot be opened, lines still go to the rotated one.
            let failed = target.follow().err();
            if let Some(text) = failed.as_ref().filter(|_| failed != failure) {
                report!(error, "{text}");
            }
            failure = failed;
        }
    };
    thread::Builder::new()
        .name("h2o-log-follow".to_owned())
        .spawn(run)?;
    Ok(())
}

impl RotatedLog {
    const fn new(target: Arc<Target>) -> Self {
        Self {
            target,
            tidying: None,
            failure: None,
        }
    }

    fn check_age(&self) {
        if let Some(file) = self.target.file()
            && !has_birth_time(file)
        {
            report!(
                warning,
                "the age of {} is not known, because its file system does not record when files were created: `age` of `log-rotation` has no effect on it",
                self.target.path()
            );
        }
    }

    fn check(&mut self, rotation: Rotation) {
        if let Some(tidying) = &mut self.tidying {
            let mut text = vec![0; LONGEST_FAILURE];
            match tidying.read(&mut text) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(0) => self.failure = None,
                Ok(len) => self.on_failure(String::from_utf8_lossy(&text[..len]).into_owned()),
                Err(error) => self.on_failure(reason(&error)),
            }
            self.tidying = None;
        }
        match self.target.rotate(rotation) {
            Ok(None) => {}
            Ok(Some(tidying)) => {
                // The pipe ends once older logs are compressed and removed. If it cannot be made non-blocking, it is not
                // read: reading would delay the rotation of the other logs.
                let set = set_nonblocking(&tidying);
                self.tidying = set.is_ok().then(|| tidying.into());
            }
            Err(text) => self.on_failure(text),
        }
    }

    fn on_failure(&mut self, text: String) {
        if self.failure.as_ref() != Some(&text) {
            report!(error, "{text}");
            self.failure = Some(text);
        }
    }
}
