//! The directive `fastcgi.spawn`: applications that the server starts and ends.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use h2o_config::{Command, Error};
use h2o_exchange::{ConfiguredUser, Resource, Resources, Scope};
use h2o_log::reason;
use h2o_opener::APPLICATION_DIRECTORY;
use nix::unistd::{Uid, User, geteuid};

/// The user that a server started by root switches to if the configuration has no `user`.
const DEFAULT_USER: &str = "nobody";

/// The applications of `fastcgi.spawn` in a configuration.
#[derive(Clone, Default)]
struct Applications(Vec<Arc<Application>>);

/// An application, which runs from [`Resource::open`] until the value is dropped.
struct Application {
    command: Box<str>,
    /// The user that runs the application; `None`: the user that runs the server.
    user: Option<Box<str>>,
    /// The value of the directive `user`: the user that runs the server.
    running_user: Option<Arc<str>>,
    directory: PathBuf,
    /// The descriptor that keeps the application running: it ends when the descriptor is closed.
    pipe: OnceLock<OwnedFd>,
}

/// Executes the directive `fastcgi.spawn`.
pub(super) fn spawn(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    let node = command.node;
    let (text, user) = if let Some(text) = node.as_str() {
        (text, None)
    } else if node.as_mapping().is_some() {
        let attributes = node.attributes(&super::SPAWN)?;
        let text = attributes.require("command")?.scalar()?;
        (text, attributes.get("user"))
    } else {
        return Err(command.error("argument must be scalar or mapping"));
    };
    let user = match user {
        Some(node) => {
            let name = node.scalar()?;
            if find_user(name).is_none() {
                let text = format!("getpwnam_r(3) failed to obtain uid of user:{name}");
                return Err(node.error(text));
            }
            Some(name.into())
        }
        None => None,
    };
    if text.trim().is_empty() {
        return Err(command.error("the command is empty"));
    }
    if text.contains('\0') {
        return Err(command.error("the command contains a NUL character"));
    }
    let next = Application::new(text, user, scope.shared.get::<ConfiguredUser>().0.clone());
    let application = take_over(scope, next);
    let path = application.socket();
    let resources = scope.shared.edit::<Resources>();
    resources.add(command.error(""), application);
    super::add_handler(scope, command, vec![super::unix_url(&path).into()])
}

/// The application to use: the equal one of the running configuration, unless another directive has taken it over
/// already; otherwise `next`.
fn take_over(scope: &mut Scope, next: Application) -> Arc<Application> {
    let running = scope.running.as_ref();
    let running = running.map(|site| Arc::clone(&site.shared.get::<Applications>()));
    let taken = &mut scope.shared.edit::<Applications>().0;
    let mut running = running.iter().flat_map(|running| &running.0);
    let same = running.find(|running| {
        running.is_same_as(&next) && !taken.iter().any(|taken| Arc::ptr_eq(taken, running))
    });
    let application = same.map_or_else(|| Arc::new(next), Arc::clone);
    taken.push(Arc::clone(&application));
    application
}

fn find_user(name: &str) -> Option<User> {
    User::from_name(name).ok().flatten()
}

impl Application {
    fn new(command: &str, user: Option<Box<str>>, running_user: Option<Arc<str>>) -> Self {
        let random: String = std::iter::repeat_with(fastrand::alphanumeric)
            .take(6)
            .collect();
        Self {
            command: command.into(),
            user,
            running_user,
            directory: format!("{APPLICATION_DIRECTORY}{random}").into(),
            pipe: OnceLock::new(),
        }
    }

    fn is_same_as(&self, other: &Self) -> bool {
        self.command == other.command
            && self.user == other.user
            && self.running_user == other.running_user
    }

    /// The path of the application's socket.
    fn socket(&self) -> String {
        format!("{}/_", self.directory.display())
    }

    /// The user to switch to before the application's command is run; `None` if the user stays the same.
    fn other_user(&self) -> Option<&str> {
        let default = geteuid().is_root().then_some(DEFAULT_USER);
        let configured = self.user.as_deref().or(self.running_user.as_deref());
        let name = configured.or(default)?;
        let is_own = find_user(name).is_some_and(|user| user.uid == geteuid());
        (!is_own).then_some(name)
    }

    /// Creates the directory and the socket in it, which belong to the server's user, and starts the application.
    fn start(&self) -> std::io::Result<OwnedFd> {
        DirBuilder::new().mode(0o700).create(&self.directory)?;
        let started = self.listen();
        if started.is_err() {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
        started
    }

    fn listen(&self) -> std::io::Result<OwnedFd> {
        let path = self.socket();
        let socket = OwnedFd::from(UnixListener::bind(&path)?);
        if geteuid().is_root() {
            let name = self.running_user.as_deref().unwrap_or(DEFAULT_USER);
            let owner = find_user(name).map_or(Uid::from_raw(0), |user| user.uid);
            chown(&path, Some(owner.as_raw()), None)?;
            chown(&self.directory, Some(owner.as_raw()), None)?;
        }
        h2o_opener::application(self.other_user(), &self.command, &socket)
    }
}

impl Resource for Application {
    fn open(&self) -> Result<(), String> {
        if self.pipe.get().is_some() {
            // The application runs already: it was taken over from the running configuration.
            return Ok(());
        }
        let started = self.start();
        let pipe = started.map_err(|error| {
            let command = &self.command;
            format!(
                "failed to start the application of fastcgi.spawn: {command}: {}",
                reason(&error)
            )
        })?;
        let _ = self.pipe.set(pipe);
        Ok(())
    }

    fn announce(&self) {
        if let Some(user) = self.other_user() {
            h2o_opener::will_run(user, &self.command);
        }
    }
}
