//! Checks the files and directories that a configuration refers to. The configuration is valid even if they do not
//! exist: problems are reported as warnings.

use std::io;
use std::path::Path;

use h2o_config::{Command, Error, Node};
use rustix::fs::{Access, AtFlags, CWD};

/// What the server does with the path that a directive names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathNeed {
    /// The server serves files of the directory, and lists it if `is_listed`, with the rights of the running user.
    Directory {
        /// Whether the directory is listed as well (`file.dirlisting` is on).
        is_listed: bool,
    },
    /// The server serves the file, with the rights of the running user.
    File,
    /// The server reads the file for its own use, with the rights of the running user: requests that need it get 500 if it cannot be read.
    OwnFile,
    /// The server creates the file, with the rights of the starting user: its directory is checked.
    Parent,
    /// The server writes traces into the directory, with the rights of the running user: without it there are none.
    Traces,
}

/// A check of a path that a directive of the configuration names.
#[derive(Clone, Debug)]
pub struct PathCheck {
    need: PathNeed,
    path: Box<Path>,
    /// Position of the path in the configuration.
    place: Error,
}

/// The checks of all paths in a configuration, in file order.
#[derive(Clone, Default)]
pub struct PathChecks(pub Vec<PathCheck>);

/// The user with whose rights a path is checked.
#[derive(Clone, Copy, Debug)]
pub struct RunningUser<'a> {
    /// The name of the user, for messages.
    pub name: &'a str,
    /// Whether the process already has the rights of this user. If not, only missing files are reported.
    pub is_current: bool,
}

impl PathCheck {
    /// Creates a check of `path`, which the node `node` of the configuration contains.
    #[must_use]
    pub fn new(command: &Command<'_>, node: &Node, path: &Path, need: PathNeed) -> Self {
        Self {
            need,
            path: path.into(),
            place: command.error_at(node, ""),
        }
    }

    /// Returns a warning if the user who starts the server lacks the rights that the path needs.
    #[must_use]
    pub fn check_as_starting_user(&self) -> Option<Error> {
        if self.need != PathNeed::Parent {
            return None;
        }
        let path = self.path.display();
        if self.path.as_os_str().is_empty() {
            return Some(self.error("the path is empty".to_owned(), "name a file"));
        }
        if self.path.as_os_str().eq_ignore_ascii_case("off") {
            let text = format!("the file is named `{path}`");
            return Some(self.error(text, "remove the directive if no file is wanted"));
        }
        if self.path.is_dir() {
            let text = format!("{path} is a directory");
            return Some(self.error(text, "name a file in it"));
        }
        let parent = self.path.parent()?;
        let parent = if parent.as_os_str().is_empty() {
            Path::new(".")
        } else {
            parent
        };
        if parent.is_dir() {
            return None;
        }
        let text = format!("there is no directory {}", parent.display());
        Some(self.error(text, "create it, or correct the path"))
    }

    /// Returns a warning if the user that the server runs as lacks the rights that the path needs.
    #[must_use]
    pub fn check_as_running_user(&self, user: RunningUser<'_>) -> Option<Error> {
        let is_listed = match self.need {
            PathNeed::Parent => return None,
            PathNeed::File | PathNeed::OwnFile => return self.check_file(user),
            PathNeed::Traces => return self.check_writable(user),
            PathNeed::Directory { is_listed } => is_listed,
        };
        let path = self.path.display();
        match std::fs::metadata(&self.path) {
            Err(error) => self.explain(&error, user),
            Ok(found) if !found.is_dir() => Some(self.error(
                format!("{path} is not a directory"),
                "one file is served by `file.file`",
            )),
            Ok(_) if !user.is_current => None,
            Ok(_) if !may(&self.path, Access::EXEC_OK) => self.refused(&self.path, user, "o+x"),
            Ok(_) if is_listed && !may(&self.path, Access::READ_OK) => {
                self.refused(&self.path, user, "o+rx")
            }
            Ok(_) => None,
        }
    }

    fn check_writable(&self, user: RunningUser<'_>) -> Option<Error> {
        let path = self.path.display();
        let text = match std::fs::metadata(&self.path) {
            Ok(found) if !found.is_dir() => format!("{path} is not a directory"),
            Ok(_) if user.is_current && !may(&self.path, Access::WRITE_OK | Access::EXEC_OK) => {
                format!(
                    "the server runs as `{}`, who may not write into {path}",
                    user.name
                )
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                format!("{path} does not exist")
            }
            Ok(_) | Err(_) => return None,
        };
        Some(self.error(text, "no traces are written"))
    }

    fn check_file(&self, user: RunningUser<'_>) -> Option<Error> {
        let path = self.path.display();
        match std::fs::metadata(&self.path) {
            Err(_) if self.need == PathNeed::File && self.has_compressed() => None,
            Err(error) => self.explain(&error, user),
            Ok(found) if found.is_dir() => Some(self.error(
                format!("{path} is a directory"),
                "a directory is served by `file.dir`",
            )),
            Ok(_) if user.is_current && !may(&self.path, Access::READ_OK) => {
                self.refused(&self.path, user, "o+r")
            }
            Ok(_) => None,
        }
    }

    /// Whether a compressed form of the file exists, which `file.send-compressed` can send in its place.
    fn has_compressed(&self) -> bool {
        let forms = [".gz", ".br", ".zst", ".zstd"].map(|suffix| {
            let mut name = self.path.as_os_str().to_owned();
            name.push(suffix);
            name
        });
        forms.iter().any(|form| Path::new(form).is_file())
    }

    /// The warning that says why a path cannot be examined: it does not exist, leads through a file, or the user may not search
    /// one of the directories above it.
    fn explain(&self, error: &io::Error, user: RunningUser<'_>) -> Option<Error> {
        if self.need == PathNeed::File
            && !matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
            )
        {
            let text = format!(
                "{} cannot be opened: {}",
                self.path.display(),
                h2o_log::reason(error)
            );
            return Some(self.error(text, "requests get 403"));
        }
        if error.kind() != io::ErrorKind::PermissionDenied {
            let text = format!("{} does not exist", self.path.display());
            return Some(match std::env::current_dir() {
                Ok(here) if self.path.is_relative() => self.error(
                    text,
                    &format!("a relative path counts from {}", here.display()),
                ),
                Ok(_) | Err(_) => self.error(text, &format!("requests get {}", self.status(404))),
            });
        }
        if !user.is_current {
            return None;
        }
        let closed = self
            .path
            .ancestors()
            .skip(1)
            .filter(|above| std::fs::metadata(above).is_ok())
            .find(|above| !may(above, Access::EXEC_OK));
        self.refused(closed.unwrap_or(&self.path), user, "o+x")
    }

    fn refused(&self, at: &Path, user: RunningUser<'_>, mode: &str) -> Option<Error> {
        let at = at.display();
        let text = format!(
            "the server runs as `{}`, who may not read {}",
            user.name,
            self.path.display()
        );
        let status = self.status(403);
        Some(self.error(
            text,
            &format!("requests get {status}; `chmod {mode} {at}` allows it"),
        ))
    }

    /// The status of requests that need the path: `served` if they ask for the path itself.
    fn status(&self, served: u16) -> u16 {
        match self.need {
            PathNeed::OwnFile => 500,
            PathNeed::Directory { .. } | PathNeed::File | PathNeed::Parent | PathNeed::Traces => {
                served
            }
        }
    }

    fn error(&self, message: String, hint: &str) -> Error {
        let error = self.place.clone().with_message(message);
        error.with_hint(hint)
    }
}

/// Whether the process has the access right `access` to the path.
fn may(path: &Path, access: Access) -> bool {
    rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS).is_ok()
}
