//! Worker and test mode.

use h2o_exchange::RunningUser;
use h2o_log::{reason, report, report_plainly};
use h2o_server::{Bound, Loaded, Server, ServerSettings, bind, worker_plan};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::User;

use crate::{Failure, error_log, print_out, privileges};

/// `-m test`: everything but opening listeners and logs. Warnings are a failure if `is_strict`.
pub(crate) fn test(loaded: &Loaded, is_strict: bool) -> Result<(), Failure> {
    let settings = loaded.settings();
    let user = privileges::running_user(&settings)?;
    check_temp_buffer_path(&settings)?;
    let mut warnings = loaded.warnings.clone();
    warnings.extend(loaded.inspect_as_starting_user());
    warnings.extend(loaded.inspect_ports());
    // For good: what follows only reads, and nothing but a process of that user knows what it may read.
    let own = nix::unistd::Uid::effective();
    let is_current = match &user {
        Some(user) if own.is_root() => {
            let switched = privileges::switch_user(user);
            if let Err(failure) = &switched {
                warnings.push(format!("[warning] {}", failure.text()));
            }
            switched.is_ok()
        }
        Some(user) => user.uid == own,
        None => true,
    };
    warnings.extend(inspect_as_running_user(loaded, user.as_ref(), is_current));
    for warning in &warnings {
        report_plainly(warning);
    }
    if is_strict && !warnings.is_empty() {
        return Err(Failure::config(format!(
            "the configuration has warnings ({}), which `--strict` does not allow",
            warnings.len()
        )));
    }
    print_out("configuration OK\n");
    Ok(())
}

/// What is amiss with the files to serve, for the user the server runs as.
fn inspect_as_running_user(loaded: &Loaded, user: Option<&User>, is_current: bool) -> Vec<String> {
    let current = || User::from_uid(nix::unistd::Uid::effective()).ok().flatten();
    let name = user.map(|user| user.name.clone());
    let name = name.or_else(|| current().map(|user| user.name));
    loaded.inspect_as_running_user(RunningUser {
        name: name.as_deref().unwrap_or("this user"),
        is_current,
    })
}

/// `-m worker`: serves in the foreground until TERM. `greeting` is printed when the server is ready.
pub(crate) fn serve(loaded: &Loaded, greeting: Option<&str>) -> Result<(), Failure> {
    let settings = loaded.settings();
    let user = privileges::running_user(&settings)?;
    for warning in loaded
        .warnings
        .iter()
        .cloned()
        .chain(loaded.inspect_as_starting_user())
    {
        report_plainly(&warning);
    }
    // With everything that is opened, under the rights of the starting user.
    let bound = bind(loaded, worker_plan(&settings).len()).map_err(Failure::config)?;
    for warning in &bound.warnings {
        report!(warning, "{warning}");
    }
    loaded.open_resources().map_err(Failure::config)?;
    check_temp_buffer_path(&settings)?;
    privileges::raise_descriptor_limit(&settings)?;
    let log = error_log::open(&settings)?;
    if let Some(user) = &user
        && (settings.user.is_some() || nix::unistd::Uid::effective().is_root())
    {
        privileges::switch_user(user)?;
    }
    for warning in inspect_as_running_user(loaded, user.as_ref(), true) {
        report_plainly(&warning);
    }
    // Blocked in every thread, and waited for by this one: behind the log commands, which would inherit that,
    // and before anybody can learn our number from the file.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals
        .thread_block()
        .map_err(|error| Failure::system(format!("failed to block signals: {}", error.desc())))?;
    let pid_file = write_pid_file(&settings)?;
    error_log::begin(log, settings.error_log.is_some())?;
    let served = serve_until_terminated(loaded, bound, greeting);
    if let Some(path) = pid_file {
        // Somebody may have tidied up already, or the running user may not remove it.
        let _ = std::fs::remove_file(path);
    }
    served
}

/// Runs the workers until TERM, and until their last connection has ended.
fn serve_until_terminated(
    loaded: &Loaded,
    bound: Bound,
    greeting: Option<&str>,
) -> Result<(), Failure> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    let server = Server::start(loaded, bound).map_err(Failure::system)?;
    report!(
        notice,
        "h2o server (pid:{}) is ready to serve requests with {} threads",
        std::process::id(),
        server.workers()
    );
    if let Some(greeting) = greeting {
        print_out(greeting);
    }
    // The only signal in the set.
    while signals.wait().is_err() {}
    report!(notice, "received SIGTERM, gracefully shutting down");
    server.shut_down();
    server.join();
    Ok(())
}

fn write_pid_file(settings: &ServerSettings) -> Result<Option<std::path::PathBuf>, Failure> {
    let Some(path) = &settings.pid_file else {
        return Ok(None);
    };
    std::fs::write(path, format!("{}\n", std::process::id())).map_err(|error| {
        Failure::system(format!(
            "failed to open pid file:{}:{}",
            path.display(),
            reason(&error)
        ))
    })?;
    Ok(Some(path.clone()))
}

fn check_temp_buffer_path(settings: &ServerSettings) -> Result<(), Failure> {
    let path = &settings.temp_buffer_path;
    h2o_exchange::temp_file::create(path).map(drop).map_err(|error| {
        Failure::config(format!(
            "temp-buffer-path: failed to create temporary file from the mkstemp(3) template '{}/h2o.b.XXXXXX': {}",
            path.display(),
            reason(&error)
        ))
    })
}
