//! `-m master` and `-m daemon`: checks the configuration, then replaces this process by the supervisor.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use h2o_exchange::Endpoint;
use h2o_log::reason;
use h2o_server::LoadedConfig;

use crate::options::Mode;
use crate::parent::VIA_MASTER;
use crate::{Failure, check, supervisor};

/// Replaces this process by the supervisor of workers with this configuration.
///
/// # Errors
/// If the configuration lacks what the mode needs, or the supervisor cannot be run.
pub(crate) fn supervise(
    loaded: &LoadedConfig,
    config: &str,
    mode: Mode,
) -> Result<Infallible, Failure> {
    let settings = loaded.settings();
    if mode == Mode::Daemon && settings.error_log.is_none() {
        return Err(Failure::config(
            "to run in `daemon` mode, `error-log` must be specified in the configuration file",
        ));
    }
    check::check(loaded)?;
    if let Some(acme) = loaded.acme().filter(|acme| acme.loader.is_some()) {
        // Creates the state directory of `acme` here, as the program that obtains certificates may start before the
        // first worker, which creates the directory otherwise.
        acme.state.prepare(None).map_err(Failure::system)?;
    }
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |option: &str, value: OsString| {
        let mut argument = OsString::from(option);
        argument.push(value);
        arguments.push(argument);
    };
    if let Some(path) = &settings.pid_file {
        add("--pid-file=", path.as_os_str().to_owned());
    }
    if let Some(path) = &settings.error_log {
        add("--log-file=", path.as_ref().into());
    }
    if mode == Mode::Daemon {
        add("--daemonize", OsString::new());
    }
    if let Some(loader) = loaded.acme_loader() {
        let option = format!("--{}=", supervisor::LOADER);
        add(&option, loader.program.into());
        for word in loader.arguments {
            add(&option, word);
        }
    }
    for endpoint in loaded.supervised_endpoints() {
        match endpoint {
            Endpoint::Tcp(address) => add("--port=", address.to_string().into()),
            Endpoint::Udp(address) => {
                let udp = format!("{}:u{}", host(address.ip()), address.port());
                add("--port=", udp.into());
            }
            Endpoint::Unix(path) => add("--path=", path.into()),
        }
    }
    let program = std::env::args_os().next().unwrap_or_else(|| "h2o".into());
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(supervisor::NAME)
        .args(arguments)
        .arg("--")
        .arg(program)
        .args(["-c", config])
        .env(VIA_MASTER, "")
        .env("H2O_ROOT", h2o_opener::installation_root());
    let error = command.exec();
    Err(Failure::config(format!(
        "failed to run the supervisor: {}",
        reason(&error)
    )))
}

fn host(ip: std::net::IpAddr) -> String {
    match ip {
        std::net::IpAddr::V4(ip) => ip.to_string(),
        std::net::IpAddr::V6(ip) => format!("[{ip}]"),
    }
}
