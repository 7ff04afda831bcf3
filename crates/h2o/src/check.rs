//! `-m test`, and the checks of a configuration that it shares with other run modes.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use h2o_exchange::RunningUser;
use h2o_log::{reason, report_plainly};
use h2o_server::{LoadedConfig, ServerSettings};
use nix::unistd::User;

use crate::{Failure, print_out, privileges};

/// `-m test`: checks everything that a start would do, without opening listeners and logs. `is_strict` says whether warnings make
/// the check fail.
pub(crate) fn test(loaded: &LoadedConfig, is_strict: bool) -> Result<(), Failure> {
    let settings = loaded.settings();
    let user = privileges::running_user(&settings)?;
    let mut warnings = warnings_at_start(loaded);
    warnings.extend(loaded.inspect_ports());
    // The change of user is not undone: from here on only files are read, with the rights of the user that the server runs as.
    let own = nix::unistd::Uid::effective();
    let is_current = match &user {
        Some(user) if own.is_root() => {
            let switched = privileges::switch_user(user, settings.capabilities);
            if let Err(failure) = &switched {
                warnings.push(format!("[warning] {}", failure.text()));
            }
            switched.is_ok()
        }
        Some(user) => {
            // A start changes the user even to the one that it already has.
            warnings.push(format!(
                "[warning] user: only root can change the user to `{}`, so the server will not start",
                user.name
            ));
            user.uid == own
        }
        None => true,
    };
    // Temporary files are checked with the rights of the user that the server runs as, because the server writes them.
    check_temp_buffer_path(&settings)?;
    warnings.extend(inspect_as_running_user(loaded, user.as_ref(), is_current));
    for warning in &warnings {
        report_plainly(warning);
    }
    loaded.test_stapling(report_plainly);
    if is_strict && !warnings.is_empty() {
        return Err(Failure::config(format!(
            "the configuration has warnings ({}), which `--strict` does not allow",
            warnings.len()
        )));
    }
    print_out("configuration OK\n");
    Ok(())
}

/// `-m master`: checks that the supervisor and its workers will get the limits, directories and files that they need. Its warnings go to
/// the terminal; the workers write them to their log, too.
pub(crate) fn check(loaded: &LoadedConfig) -> Result<(), Failure> {
    let settings = loaded.settings();
    let user = privileges::running_user(&settings)?;
    let mut warnings = warnings_at_start(loaded);
    warnings.extend(user.and_then(|user| check_temp_files_of(&user, &settings)));
    for warning in &warnings {
        report_plainly(warning);
    }
    check_temp_buffer_path(&settings)
}

/// The warnings that need the rights of the starting user, and no listeners.
fn warnings_at_start(loaded: &LoadedConfig) -> Vec<String> {
    let mut warnings = loaded.warnings.clone();
    warnings.extend(loaded.inspect_as_starting_user());
    warnings.extend(loaded.inspect_resources());
    warnings.extend(check_loader(loaded));
    warnings
}

/// Returns a warning if the user that the workers run as may not write into the directory for temporary files: then they do not start. This
/// process keeps the rights of the starting user, so another one looks.
fn check_temp_files_of(user: &User, settings: &ServerSettings) -> Option<String> {
    if !nix::unistd::Uid::effective().is_root() {
        return None;
    }
    let path = &settings.temp_buffer_path;
    let looked = Command::new("/bin/sh")
        .args(["-c", r#"test -w "$1" && test -x "$1""#, "sh"])
        .arg(path)
        .uid(user.uid.as_raw())
        .gid(user.gid.as_raw())
        .stdin(Stdio::null())
        .status();
    let may_write = looked.map_or(true, |status| status.success());
    (!may_write).then(|| {
        format!(
            "[warning] temp-buffer-path: user {} may not write into {}, so no worker starts",
            user.name,
            path.display()
        )
    })
}

/// How long the program that `loader` of `acme` names may take when it is run with `--check`.
const LOADER_TIME: Duration = Duration::from_secs(60);

/// Runs the program that `loader` of `acme` names, if there is one, with `--check`: it checks whether it can obtain certificates.
/// Returns a warning if the program cannot be run, fails or takes too long.
fn check_loader(loaded: &LoadedConfig) -> Option<String> {
    let program = loaded.acme_loader()?.program;
    // The output of the loader goes to standard error, where people read the messages of this program, too.
    let mut child = Command::new(&program);
    let child = child
        .arg("--check")
        .env("H2O_ROOT", h2o_opener::installation_root())
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .spawn();
    let program = program.display();
    let warning = |why: String| Some(format!("[warning] `loader` of `acme`: {program} {why}"));
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return warning(format!("cannot be run: {}", reason(&error))),
    };
    for _ in 0..LOADER_TIME.as_millis() / POLL_INTERVAL.as_millis() {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(POLL_INTERVAL),
            Ok(Some(status)) if status.success() => return None,
            Ok(Some(status)) => return warning(format!("--check ended with {status}")),
            Err(error) => return warning(reason(&error).to_string()),
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    warning(format!(
        "--check took more than {} seconds",
        LOADER_TIME.as_secs()
    ))
}

/// How often this process looks whether the loader that it runs with `--check` has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Returns warnings about files that the server is configured to serve, but that the user it runs as may not read.
pub(crate) fn inspect_as_running_user(
    loaded: &LoadedConfig,
    user: Option<&User>,
    is_current: bool,
) -> Vec<String> {
    let current = || User::from_uid(nix::unistd::Uid::effective()).ok().flatten();
    let name = user.map(|user| user.name.clone());
    let name = name.or_else(|| current().map(|user| user.name));
    loaded.inspect_as_running_user(RunningUser {
        name: name.as_deref().unwrap_or("this user"),
        is_current,
    })
}

/// Checks that temporary files can be created in the directory of `temp-buffer-path`.
pub(crate) fn check_temp_buffer_path(settings: &ServerSettings) -> Result<(), Failure> {
    let path = &settings.temp_buffer_path;
    h2o_exchange::temp_file::create(path).map(drop).map_err(|error| {
        Failure::config(format!(
            "temp-buffer-path: failed to create temporary file from the mkstemp(3) template '{}/h2o.b.XXXXXX': {}",
            path.display(),
            reason(&error)
        ))
    })
}
