//! `h2o`: the main program, with command line, run modes, signals and privileges.

mod allocator;
mod check;
mod compress;
mod control;
mod error_log;
mod events;
mod fatal_signal;
mod files;
mod generate;
mod getopt;
mod helpers;
mod master;
mod options;
mod parent;
mod pid_file;
mod privileges;
mod question;
mod quick;
mod reload;
mod run;
mod running;
#[cfg(feature = "mruby")]
mod script;
mod signals;
mod supervise;
mod supervisor;
mod systemd;
mod top;
mod usage;

use std::process::ExitCode;

use h2o_log::{report, report_plainly};

use files::Files;
use h2o_server::LoadedConfig;
use options::{Command, Mode};
use parent::Parent;

#[cfg(feature = "mruby")]
#[global_allocator]
static ALLOCATOR: h2o_mruby::Metered<allocator::Allocator> =
    h2o_mruby::Metered(allocator::Allocator);

#[cfg(not(feature = "mruby"))]
#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

/// The configuration file that is used if the command line names none.
const DEFAULT_CONFIG: &str = "/usr/local/etc/h2o.conf";

/// The configuration file that the package installs, and that its service uses.
const INSTALLED_CONFIG: &str = "/etc/h2o/h2o.conf";

/// The first of the two that exists. A server that is started without `-c` does not use the installed one: it serves the current directory.
///
/// # Errors
/// If there is none.
pub(crate) fn default_config() -> Result<&'static str, Failure> {
    let files = [DEFAULT_CONFIG, INSTALLED_CONFIG];
    let found = files
        .into_iter()
        .find(|path| std::path::Path::new(path).exists());
    found.ok_or_else(|| {
        Failure::config(format!(
            "there is no configuration at {DEFAULT_CONFIG} or {INSTALLED_CONFIG}; name one with -c"
        ))
    })
}

/// Why the program ends early: the message for standard error and the exit status (sysexits).
pub(crate) struct Failure {
    text: String,
    code: u8,
}

impl Failure {
    /// An error in the configuration or the command line (`EX_CONFIG`).
    pub(crate) fn config(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            code: 78,
        }
    }

    /// The system refused an operation (`EX_OSERR`).
    pub(crate) fn system(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            code: 71,
        }
    }

    /// A check has failed, or the program could not do its task.
    fn check(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            code: 1,
        }
    }

    /// The message for standard error.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// A worker's thread panicked outside of a connection (`EX_SOFTWARE`).
    pub(crate) fn worker_died() -> Self {
        Self {
            text:
                "a worker thread died; ending the process, so that a supervisor can start it again"
                    .into(),
            code: 70,
        }
    }

    /// The program already runs under a supervisor and cannot become one (`EX_SOFTWARE`).
    fn supervised(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            code: 70,
        }
    }
}

fn main() -> ExitCode {
    // Transparent huge pages are turned off, since with them an idle worker would need megabytes of memory instead of a few
    // kilobytes. If the kernel refuses, the program only needs more memory.
    let _ = nix::sys::prctl::set_thp_disable(true);
    // Lists of processes would show a process that was started as `/proc/self/exe` under the name `exe`.
    if let Ok(name) = std::ffi::CString::new(helpers::own_name()) {
        let _ = nix::sys::prctl::set_name(&name);
    }
    std::panic::set_hook(Box::new(on_panic));
    let is = |argument: &str| std::env::args().skip(1).eq([argument]);
    let ended = if is(h2o_opener::KEEPER_ARGUMENT) {
        privileges::keep()
    } else if is(h2o_keys::KEY_PROCESS_ARGUMENT) {
        privileges::keep_keys()
    } else {
        let helper = helpers::run(&helpers::own_name(), std::env::args().skip(1));
        helper.unwrap_or_else(start)
    };
    let code = match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            match h2o_log::error_log() {
                Some(_) => report!(error, "{}", failure.text),
                None if failure.text.is_empty() => {}
                None => report_plainly(&failure.text),
            }
            ExitCode::from(failure.code)
        }
    };
    h2o_log::close_error_log();
    code
}

/// Logs a panic with its position in the source. A panic ends only one exchange or one connection.
fn on_panic(info: &std::panic::PanicHookInfo<'_>) {
    report!(
        error,
        "{info}\n{}",
        std::backtrace::Backtrace::force_capture()
    );
}

/// Runs the command that the first word of the command line names, or the server.
fn start() -> Result<(), Failure> {
    let rest = std::env::args().skip(2);
    match std::env::args().nth(1).as_deref() {
        Some("reload") => reload::command(rest),
        Some("top") => top::command(rest),
        Some("compress") => compress::run(rest),
        #[cfg(feature = "mruby")]
        Some("mruby") => script::run(rest),
        _ => run_mode(),
    }
}

/// Runs the server or another task in the mode that the options choose.
fn run_mode() -> Result<(), Failure> {
    let options = match options::parse(std::env::args().skip(1)).map_err(Failure::config)? {
        Command::Run(options) => options,
        Command::Print(text) => {
            print_out(&text);
            return Ok(());
        }
        Command::Help => {
            print_out(&generate::help());
            return Ok(());
        }
        Command::Generate(kind) => {
            print_out(&generate::generate(&kind).map_err(Failure::config)?);
            return Ok(());
        }
    };
    if options.is_strict && options.mode != Mode::Test {
        return Err(Failure::config(
            "option '--strict' needs '--test': it makes warnings a failure of the test",
        ));
    }
    if let mode @ (Mode::Master | Mode::Daemon) = options.mode
        && std::env::var_os(parent::SERVER_STARTER_PORT).is_some()
    {
        return Err(Failure::supervised(format!(
            "refusing to start in `{}` mode, environment variable SERVER_STARTER_PORT is already set",
            mode.name()
        )));
    }
    let named_or_default = || match &options.config {
        Some(path) => Ok(path.as_str()),
        None => default_config(),
    };
    match options.mode {
        Mode::Test => {
            return check::test(&load(named_or_default()?)?, options.is_strict);
        }
        mode @ (Mode::Master | Mode::Daemon) => {
            let config = named_or_default()?;
            let refused = master::supervise(&load(config)?, config, mode);
            return refused.map(|never| match never {});
        }
        // With `neverbleed`, a process of its own holds the private keys; this process must be allowed to start it.
        Mode::Worker => h2o_keys::allow("/proc/self/exe"),
    }
    let mut parent = Parent::find();
    // Before any script is loaded: the limits of scripts use SIGSEGV and pass other faults on to this handler.
    fatal_signal::begin();
    let signals = events::catch_signals()?;
    let is_there = std::path::Path::new(DEFAULT_CONFIG).exists();
    let default = is_there.then_some(DEFAULT_CONFIG);
    match options.config.as_deref().or(default) {
        Some(config) => {
            // Before the configuration is loaded, which may start programs: these must not inherit the sockets.
            let inherited = parent.take_sockets()?;
            let plan = run::Plan {
                loaded: load(config)?,
                config,
                source: &Files,
                greeting: None,
                parent,
                inherited,
            };
            run::serve(plan, signals)
        }
        None => quick::serve(options.stray.as_deref(), signals),
    }
}

fn load(config: &str) -> Result<LoadedConfig, Failure> {
    let loaded =
        h2o_server::load(config, &Files).map_err(|error| Failure::config(error.to_string()))?;
    Ok(loaded)
}

/// Writes to standard output. An error is ignored: usually the program that reads the output has ended.
pub(crate) fn print_out(text: &str) {
    use std::io::Write;
    let _ = std::io::stdout().write_all(text.as_bytes());
}
