//! Who the server runs as, and how many descriptors it may have.

use h2o_log::report;
use h2o_server::ServerSettings;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Uid, User};

use crate::Failure;

/// Raises the number of descriptors to what the system allows, and checks that it is enough.
pub(crate) fn raise_descriptor_limit(settings: &ServerSettings) -> Result<(), Failure> {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return Ok(());
    };
    if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
        report!(notice, "raised RLIMIT_NOFILE to {hard}");
    }
    if settings.max_connections as u64 > hard {
        return Err(Failure::config(format!(
            "[error] 'max-connections'=[{}] configuration value should not exceed the hard limit of file descriptors 'RLIMIT_NOFILE'=[{hard}]",
            settings.max_connections
        )));
    }
    Ok(())
}

/// The user to switch to; `None` if the program stays what it is.
pub(crate) fn running_user(settings: &ServerSettings) -> Result<Option<User>, Failure> {
    let lookup = |name: &str| User::from_name(name).ok().flatten();
    match &settings.user {
        Some(name) => lookup(name)
            .map(Some)
            .ok_or_else(|| Failure::config(format!("user:{name} does not exist"))),
        None if !Uid::effective().is_root() => Ok(None),
        None => lookup("nobody").map(Some).ok_or_else(|| {
            Failure::config("refusing to run as root; set `user` in the configuration file")
        }),
    }
}

/// Gives up the rights of the starting user. Must be called before threads are started.
pub(crate) fn switch_user(user: &User) -> Result<(), Failure> {
    let refused = |_| {
        Failure::system("failed to change the running user (are you sure you are running as root?)")
    };
    let name = std::ffi::CString::new(user.name.as_str())
        .map_err(|_| Failure::system("the name of the user is not valid"))?;
    nix::unistd::setgid(user.gid).map_err(refused)?;
    nix::unistd::initgroups(&name, user.gid).map_err(refused)?;
    nix::unistd::setuid(user.uid).map_err(refused)
}
