//! `-m worker`: runs the server.

use std::sync::Arc;

use h2o_acme::Owner;
use h2o_config::Source;
use h2o_log::{Target, report, report_plainly};
use h2o_server::{
    InheritedSockets, ListeningSockets, LoadedConfig, Server, bind_or_take, worker_plan,
};
use nix::unistd::{Uid, User};
use signal_hook::iterator::Signals;

use crate::check::{check_temp_buffer_path, inspect_as_running_user};
use crate::control::ControlSocket;
use crate::events::{Event, Events};
use crate::parent::Parent;
use crate::pid_file::PidFile;
use crate::running::RunningServer;
use crate::supervise::{End, handle_events};
use crate::systemd::{self, State};
use crate::{Failure, control, error_log, print_out, privileges};

/// The arguments of [`serve`].
pub(crate) struct Plan<'a> {
    pub(crate) loaded: LoadedConfig,
    /// The name of the configuration file.
    pub(crate) config: &'a str,
    /// The source that the configuration is read from.
    pub(crate) source: &'a dyn Source,
    /// Text to print when the server is ready.
    pub(crate) greeting: Option<&'a str>,
    /// The process that has started this one.
    pub(crate) parent: Parent,
    /// The listening sockets that the parent has opened for this one.
    pub(crate) inherited: Option<InheritedSockets>,
}

/// `-m worker`: serves in the foreground until SIGTERM.
pub(crate) fn serve(mut plan: Plan<'_>, signals: Signals) -> Result<(), Failure> {
    let loaded = &plan.loaded;
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
    // The listening sockets are bound here, with the other steps that need the rights of the starting user, before the
    // process gives these rights up.
    let inherited = plan.inherited.take();
    let bound = bind_or_take(loaded, worker_plan(&settings).len(), inherited);
    let bound = bound.map_err(Failure::config)?;
    for warning in &bound.warnings {
        report!(warning, "{warning}");
    }
    // Under `-m master` the supervisor has opened the configured pid file and error log, so this process does not.
    let is_configured = settings.error_log.is_some() && !plan.parent.is_master;
    let log = error_log::open(&settings, plan.parent.is_master)?;
    let output = log.descriptor().ok().flatten();
    h2o_opener::set_program_output(output.filter(|_| is_configured));
    loaded.open_resources().map_err(Failure::config)?;
    privileges::raise_descriptor_limit(&settings)?;
    prepare_acme(loaded, user.as_ref())?;
    if loaded.acme_loader().is_some() && !plan.parent.is_master {
        report!(
            warning,
            "`loader` of `acme` is run with `-m master` and `-m daemon` only: certificates will not be obtained automatically"
        );
    }
    let own_pid_file = settings.pid_file.as_ref();
    // A supervisor starts the next worker while the one before still answers.
    if let Some(path) =
        own_pid_file.filter(|path| !plan.parent.is_supervisor() && control::is_answered(path))
    {
        report!(
            warning,
            "the pid file {} is that of a server that runs: its signals, `h2o reload` and `h2o top` reach this server from now on",
            path.display()
        );
    }
    let mut pid_file = match own_pid_file.filter(|_| !plan.parent.is_master) {
        Some(path) => Some(PidFile::open(path)?),
        None => None,
    };
    let control = (settings.pid_file.as_deref()).and_then(ControlSocket::open);
    if let Some(user) = &user
        && (settings.user.is_some() || nix::unistd::Uid::effective().is_root())
    {
        if !user.uid.is_root() {
            h2o_opener::will_learn(plan.config);
            let output = log.descriptor().ok().flatten();
            privileges::start_keeper(output.filter(|_| is_configured));
        }
        privileges::switch_user(user, settings.capabilities)?;
    } else if let Some(kept) = settings.capabilities {
        privileges::keep_capabilities(kept)?;
    }
    for warning in inspect_as_running_user(loaded, user.as_ref(), true) {
        report_plainly(&warning);
    }
    check_temp_buffer_path(&settings)?;
    if let Some(file) = &mut pid_file {
        file.write()?;
    }
    let events = Events::begin(signals)?;
    if let Some(path) = settings.error_log.as_ref().filter(|_| is_configured) {
        report!(notice, "further messages go to the error log: {path}");
    }
    error_log::begin(Arc::clone(&log), is_configured)?;
    h2o_opener::set_program_output(None);
    serve_until_ended(plan, bound, &events, &log, control.as_ref())
}

/// Creates the directory in which certificates obtained by ACME are stored. Its owner is the user who writes there: the user that
/// the server runs as, or the user of the supervisor if the supervisor runs a program that obtains the certificates (`loader`).
fn prepare_acme(loaded: &LoadedConfig, user: Option<&User>) -> Result<(), Failure> {
    let Some(acme) = loaded.acme() else {
        return Ok(());
    };
    let owner = user
        .filter(|_| Uid::effective().is_root() && acme.loader.is_none())
        .map(|user| Owner {
            user: user.uid.as_raw(),
            group: user.gid.as_raw(),
        });
    acme.state.prepare(owner).map_err(Failure::system)
}

/// Runs the workers until a signal or a dead worker ends the server.
fn serve_until_ended(
    plan: Plan<'_>,
    bound: ListeningSockets,
    events: &Events,
    error_log: &Target,
    control: Option<&ControlSocket>,
) -> Result<(), Failure> {
    let loaded = plan.loaded;
    let addresses = bound.addresses(&loaded).join(", ");
    let worker_ended = events.sender.clone();
    let server = Server::start(&loaded, bound, move |end| {
        // Sending fails only if the process is about to end, when the main thread receives no more events.
        let _ = worker_ended.send(Event::Worker(end));
    })
    .map_err(Failure::system)?;
    if let Some(control) = control {
        control.begin(&events.sender)?;
        control.publish();
    }
    report!(
        notice,
        "listening on {addresses}; configuration: {}",
        plan.config
    );
    report!(
        notice,
        "h2o server (pid:{}) is ready to serve requests with {} threads",
        std::process::id(),
        server.workers()
    );
    systemd::notify(State::Ready);
    systemd::begin_watchdog(server.shared());
    if let Some(greeting) = plan.greeting {
        print_out(greeting);
    }
    let workers = server.workers();
    let mut running = RunningServer {
        server,
        loaded,
        config: plan.config,
        source: plan.source,
        error_log,
        is_supervised: plan.parent.is_supervisor(),
    };
    // Clients that connect at once may need the OCSP response, so its fetch does not wait for the first tick.
    running.server.update_staples();
    let is_term_counted = !plan.parent.is_supervisor();
    match handle_events(events, &mut running, workers, is_term_counted) {
        End::Drained => running.server.join(),
        End::Abandoned => running.server.abandon(),
        End::WorkerDied => {
            running.server.abandon();
            return Err(Failure::worker_died());
        }
    }
    Ok(())
}
