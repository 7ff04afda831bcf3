//! Privileges of the process: switches to the user that the server runs as, and raises the limit of file descriptors.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use h2o_config::{OsSource, Source};
use h2o_log::{reason, report};
use h2o_server::ServerSettings;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Uid, User};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::Failure;
use crate::files::Files;

/// Raises the process's soft limit of file descriptors to its hard limit, and checks that it is enough for `max-connections`.
pub(crate) fn raise_descriptor_limit(settings: &ServerSettings) -> Result<(), Failure> {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return Ok(());
    };
    if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
        report!(notice, "raised RLIMIT_NOFILE to {hard}");
    }
    check_descriptor_limit(settings)
}

/// Checks that the limit of file descriptors is enough for `max-connections`.
pub(crate) fn check_descriptor_limit(settings: &ServerSettings) -> Result<(), Failure> {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((_, hard)) if settings.max_connections as u64 > hard => Err(Failure::config(format!(
            "[error] 'max-connections'=[{}] configuration value should not exceed the hard limit of file descriptors 'RLIMIT_NOFILE'=[{hard}]; lower it, or raise the limit (`ulimit -Hn`, `LimitNOFILE` of systemd)",
            settings.max_connections
        ))),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The user that the server must switch to; `None` if the process keeps its user.
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

/// Starts the keeper: a process that keeps the rights which this process gives up next, and uses them to reopen logs
/// and reload certificates.
pub(crate) fn start_keeper(output: Option<OwnedFd>) {
    if let Err(error) = h2o_opener::start_keeper("/proc/self/exe", output) {
        report!(
            warning,
            "failed to start the keeper process: {}; SIGHUP and SIGUSR1 will reopen logs and reload certificates with the rights of the running user",
            reason(&error)
        );
    }
}

/// Runs the process that holds private keys (`neverbleed`). It survives signals that end the server, which may still finish requests, and
/// ends when the server has ended.
pub(crate) fn keep_keys() -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::system(format!(
            "the key process, which holds private keys, failed: {}",
            reason(&error)
        ))
    };
    outlive_signals().map_err(failed)?;
    h2o_keys::serve(std::io::stdin()).map_err(failed)
}

/// Makes this helper process survive signals that end the server, since the server may still need the helper to finish requests.
fn outlive_signals() -> std::io::Result<()> {
    // The signals are handled, not ignored: ignored signals would stay ignored in commands that this process starts.
    let signals = [SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT];
    for signal in signals {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    Ok(())
}

/// Runs the keeper, a process with the rights of the starting user. It survives signals that end the server, which may
/// still finish requests, and ends when the server has ended.
pub(crate) fn keep() -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::system(format!(
            "the keeper process (rights of the starting user) failed: {}",
            reason(&error)
        ))
    };
    outlive_signals().map_err(failed)?;
    let learn = |config: &str| {
        let loaded = h2o_server::load(config, &Files).map_err(|error| error.to_string())?;
        loaded.announce();
        Ok(())
    };
    h2o_opener::keep(std::io::stdin(), learn, |pattern| OsSource.glob(pattern)).map_err(failed)
}

/// Gives up the rights of the starting user, except the capabilities `kept`. Must be called before threads are started.
pub(crate) fn switch_user(user: &User, kept: Option<CapabilitySet>) -> Result<(), Failure> {
    let refused = |error: nix::errno::Errno| {
        Failure::system(format!(
            "failed to change the running user (are you sure you are running as root?): user {}: {}",
            user.name,
            error.desc()
        ))
    };
    let name = std::ffi::CString::new(user.name.as_str())
        .map_err(|_| Failure::system("`user` must not contain a NUL character"))?;
    h2o_keys::switch_user(user.uid.as_raw(), user.gid.as_raw()).map_err(Failure::system)?;
    set_keep_capabilities(kept.is_some()).map_err(capabilities_refused)?;
    nix::unistd::setgid(user.gid).map_err(refused)?;
    nix::unistd::initgroups(&name, user.gid).map_err(refused)?;
    nix::unistd::setuid(user.uid).map_err(refused)?;
    kept.map_or(Ok(()), keep_capabilities)
}

/// Gives up all Linux capabilities but `kept`. Must be called before threads are started.
pub(crate) fn keep_capabilities(kept: CapabilitySet) -> Result<(), Failure> {
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).map_err(capabilities_refused)
}

fn capabilities_refused(error: rustix::io::Errno) -> Failure {
    let error = std::io::Error::from(error);
    Failure::system(format!(
        "failed to keep the `capabilities` (does the starting user have them?): {}",
        reason(&error)
    ))
}
