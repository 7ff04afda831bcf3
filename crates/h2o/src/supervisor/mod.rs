//! `start_server`, a supervisor: opens sockets, hands them to a worker process by the protocol of Server::Starter, replaces the
//! worker on SIGHUP, and starts it again when it dies. `-m master` and `-m daemon` become this supervisor; under the name
//! `start_server` it can run any command as its worker.

mod control;
mod detach;
mod files;
mod loader;
mod options;
mod sockets;
mod workers;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use h2o_log::{Target, reason, report_plainly};
use nix::sys::signal::Signal;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::systemd::{self, State};
use crate::{Failure, error_log, print_out, signals};
use files::{LockedPidFile, StatusFile};
use loader::Loader;
use options::{Options, Task};
use sockets::Sockets;
use workers::Worker;

pub(crate) use options::LOADER;

/// The program name under which this program runs as a supervisor.
pub(crate) const NAME: &str = "start_server";

/// Runs `start_server` with these arguments.
///
/// # Errors
/// If the command line is invalid, or the system refuses an operation.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let task = options::parse(arguments, |name| std::env::var(name).ok());
    match task.map_err(Failure::config)? {
        Task::Print(text) => {
            print_out(&text);
            Ok(())
        }
        Task::Stop { pid_file } => control::stop(&pid_file),
        Task::Restart {
            pid_file,
            status_file,
        } => control::restart(&pid_file, &status_file),
        Task::Exec(command) => Err(workers::become_worker(&command)),
        Task::Supervise(options, command) => supervise(&options, &command),
    }
}

fn supervise(options: &Options, command: &[String]) -> Result<(), Failure> {
    let sockets = Sockets::open(&options.listen, options.backlog)?;
    let pid_file = options.pid_file.as_deref().map(LockedPidFile::lock);
    let mut pid_file = pid_file.transpose()?;
    let log = options.log_file.as_deref().map(Target::new);
    // The log file is opened before the process leaves its terminal, so that an error can be shown on the terminal. A log command
    // is started later, since it must be a child of the process that stays.
    let is_command = |path: &String| path.starts_with('|');
    if let Some(log) = &log
        && !options.log_file.as_ref().is_some_and(is_command)
    {
        log.open().map_err(Failure::config)?;
    }
    if options.is_daemon && detach::detach()? == detach::Side::Parent {
        // The sockets and the pid file belong to the child process now: this process must not remove them.
        std::mem::forget((sockets, pid_file));
        return Ok(());
    }
    if let Some(file) = &mut pid_file {
        file.write()?;
    }
    let signals = signals::catch(&[SIGHUP, SIGTERM, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD])?;
    let log = log.map(Arc::new);
    if let Some(log) = &log {
        log.open().map_err(Failure::config)?;
        error_log::begin(Arc::clone(log), true)?;
        // A worker may rotate the log file; the supervisor must then write to the new file as well.
        h2o_log::follow_rotation(Arc::clone(log)).map_err(|error| {
            let reason = reason(&error);
            Failure::system(format!(
                "failed to start a thread for the log file: {reason}"
            ))
        })?;
    }
    let (sender, received) = channel();
    signals::forward(signals, move |signal| sender.send(signal).is_ok())?;
    let status_file = options.status_file.clone().map(StatusFile::new);
    let mut supervisor = Supervisor {
        options,
        command,
        sockets: &sockets,
        log: log.as_deref(),
        status_file,
        generation: 0,
        workers: Vec::new(),
        loader: None,
        phase: Phase::Running { restart: None },
        wants_restart: false,
    };
    supervisor.run(&received);
    Ok(())
}

/// What a worker process is to its supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The worker has just been started, and may still turn out not to work.
    New,
    /// The worker serves.
    Current,
    /// A newer worker serves; this one must still be told to end.
    Replaced,
    /// The worker has been told to end.
    Leaving,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// A worker has been started. If it ends before the time `until`, it counts as failed and another one is started.
    Starting { until: Instant },
    /// A new worker serves; the old workers are told to end at the time `at`.
    Replacing { at: Instant },
    /// A worker serves. With `--enable-auto-restart` it is replaced at the time `restart`.
    Running { restart: Option<Instant> },
    /// The workers have been told to end.
    Stopping,
}

struct Supervisor<'a> {
    options: &'a Options,
    command: &'a [String],
    sockets: &'a Sockets,
    log: Option<&'a Target>,
    status_file: Option<StatusFile>,
    /// Generation number of the youngest worker.
    generation: u64,
    workers: Vec<(Role, Worker)>,
    /// The program that obtains certificates, if `loader` of `acme` names one.
    loader: Option<Loader<'a>>,
    phase: Phase,
    /// Whether SIGHUP came while a worker was being replaced, so that the new worker must be replaced, too.
    wants_restart: bool,
}

impl Supervisor<'_> {
    /// Supervises the workers until SIGTERM, SIGINT or SIGQUIT has ended all of them.
    fn run(&mut self, received: &Receiver<i32>) {
        say(&format!(
            "start_server (pid:{}) starting now...",
            std::process::id()
        ));
        self.start();
        let options = self.options;
        self.loader = (!options.loader.is_empty()).then(|| Loader::start(&options.loader));
        loop {
            let event = match self.deadline() {
                Some(at) => received.recv_timeout(at.saturating_duration_since(now())),
                None => received.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(SIGTERM) => self.stop("TERM"),
                Ok(SIGINT) => self.stop("INT"),
                Ok(SIGQUIT) => self.quit(),
                Ok(SIGUSR2) => say("received USR2, which has no effect"),
                Ok(SIGHUP) => self.on_hup(),
                Ok(SIGUSR1) => self.reopen_logs(),
                Ok(SIGCHLD) => self.reap(),
                // The supervisor catches no other signals.
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => self.on_deadline(),
                // The thread that sends signals normally runs until the process ends, so that its channel is never disconnected.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if matches!(self.phase, Phase::Stopping) && self.workers.is_empty() {
                say("exiting");
                return;
            }
        }
    }

    /// When the supervisor has to act although no signal has come.
    fn deadline(&self) -> Option<Instant> {
        if matches!(self.phase, Phase::Stopping) {
            return None;
        }
        let loader = self.loader.as_ref().and_then(Loader::deadline);
        self.phase_deadline().into_iter().chain(loader).min()
    }

    /// When the current phase ends.
    fn phase_deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Starting { until } => Some(until),
            Phase::Replacing { at } => Some(at),
            Phase::Running { restart } => restart,
            Phase::Stopping => None,
        }
    }

    /// Starts a worker of the next generation.
    fn start(&mut self) {
        self.generation += 1;
        // The new worker reads the newest configuration, so no further restart is needed for it.
        self.wants_restart = false;
        let started = Worker::start(self.generation, self.command, self.options, self.sockets);
        match started {
            Ok(worker) => {
                say(&format!("starting new worker {}", worker.pid()));
                self.workers.push((Role::New, worker));
            }
            Err(error) => {
                let text = match &self.options.directory {
                    Some(directory) => format!("{} (in {})", reason(&error), directory.display()),
                    None => reason(&error),
                };
                say(&format!("failed to start a process: {text}"));
            }
        }
        self.phase = Phase::Starting {
            until: now() + self.options.interval,
        };
        self.write_status();
    }

    fn on_hup(&mut self) {
        match self.phase {
            Phase::Stopping => {}
            Phase::Starting { .. } | Phase::Replacing { .. } => self.wants_restart = true,
            Phase::Running { .. } => {
                say("received HUP, spawning a new worker");
                systemd::notify(State::Reloading);
                self.start();
            }
        }
    }

    fn on_deadline(&mut self) {
        if let Some(loader) = &mut self.loader {
            loader.on_deadline();
        }
        if self.phase_deadline().is_none_or(|at| at > now()) {
            return;
        }
        match self.phase {
            Phase::Stopping => {}
            Phase::Starting { .. } => {
                // The new worker may have ended although its SIGCHLD has not come yet.
                self.reap();
                if self.workers.iter().any(|(role, _)| *role == Role::New) {
                    self.promote();
                } else {
                    self.start();
                }
            }
            Phase::Replacing { .. } => self.end_replaced(),
            Phase::Running { .. } => {
                say("spawning a new worker, as the interval of --auto-restart-interval has passed");
                self.start();
            }
        }
    }

    /// Makes the new worker the current one, since it has lived long enough to count as started.
    fn promote(&mut self) {
        for (role, _) in &mut self.workers {
            *role = match role {
                Role::New => Role::Current,
                Role::Current => Role::Replaced,
                Role::Replaced | Role::Leaving => *role,
            };
        }
        let signal = name(self.options.signal_on_hup);
        let replaced = self.pids(|role| role == Role::Replaced);
        if replaced.is_empty() {
            self.be_running();
            return;
        }
        say(&format!(
            "new worker is now running, sending {signal} to old workers:{replaced}"
        ));
        let delay = self.options.kill_old_delay;
        if delay.is_zero() {
            self.end_replaced();
        } else {
            self.phase = Phase::Replacing { at: now() + delay };
        }
    }

    fn end_replaced(&mut self) {
        say("killing old workers");
        for (role, worker) in &mut self.workers {
            if *role == Role::Replaced {
                worker.signal(self.options.signal_on_hup);
                *role = Role::Leaving;
            }
        }
        self.be_running();
    }

    fn be_running(&mut self) {
        systemd::notify(State::Ready);
        self.phase = Phase::Running {
            restart: self.options.auto_restart.map(|interval| now() + interval),
        };
        // The current worker may have ended while its successor was being started.
        if !self.workers.iter().any(|(role, _)| *role == Role::Current) {
            self.start();
        } else if self.wants_restart {
            self.on_hup();
        }
    }

    /// Checks whether the program that obtains certificates has ended, and which workers have ended, and handles their ends.
    fn reap(&mut self) {
        if let Some(loader) = &mut self.loader
            && !matches!(self.phase, Phase::Stopping)
        {
            loader.reap();
        }
        let mut ended = Vec::new();
        self.workers
            .retain_mut(|(role, worker)| match worker.ended() {
                None => true,
                Some(status) => {
                    ended.push((*role, worker.pid(), status));
                    false
                }
            });
        for (role, pid, status) in &ended {
            self.on_end(*role, *pid, *status);
        }
        if !ended.is_empty() {
            self.write_status();
        }
    }

    fn on_end(&mut self, role: Role, pid: u32, status: i32) {
        match (self.phase, role) {
            (Phase::Stopping, _) => say(&format!("worker {pid} died, status:{status}")),
            (_, Role::New) => say(&format!(
                "new worker {pid} seems to have failed to start, exit status:{status}"
            )),
            (Phase::Running { .. } | Phase::Replacing { .. }, Role::Current) => {
                say(&format!(
                    "worker {pid} died unexpectedly with status:{status}, restarting"
                ));
                self.start();
            }
            (_, _) => say(&format!("old worker {pid} died, status:{status}")),
        }
    }

    fn stop(&mut self, received: &str) {
        if matches!(self.phase, Phase::Stopping) {
            return;
        }
        // Each worker gets the signal only once: a second one makes some programs stop at once.
        let is_due = |role| role != Role::Leaving;
        self.end_workers(received, self.options.signal_on_term, is_due);
    }

    /// On SIGQUIT: has all workers end at once, also those that were told to end before.
    fn quit(&mut self) {
        self.end_workers("QUIT", Signal::SIGQUIT, |_| true);
    }

    /// Sends a signal to the workers for whose role `is_due` is true, and begins the end of the supervisor.
    fn end_workers(&mut self, received: &str, signal: Signal, is_due: impl Fn(Role) -> bool) {
        self.phase = Phase::Stopping;
        systemd::notify(State::Stopping);
        let all = self.pids(|_| true);
        say(&format!(
            "received {received}, sending {} to all workers:{all}",
            name(signal)
        ));
        for (role, worker) in &mut self.workers {
            if is_due(*role) {
                worker.signal(signal);
                *role = Role::Leaving;
            }
        }
    }

    /// On SIGUSR1: reopens the supervisor's log, which was moved away, and tells the workers to reopen their logs.
    fn reopen_logs(&self) {
        if let Some(Err(text)) = self.log.map(Target::reopen) {
            say(&text);
        }
        for (_, worker) in &self.workers {
            worker.signal(Signal::SIGUSR1);
        }
    }

    fn pids(&self, filter: impl Fn(Role) -> bool) -> String {
        let workers = self.workers.iter().filter(|(role, _)| filter(*role));
        let pids: Vec<String> = workers
            .map(|(_, worker)| worker.pid().to_string())
            .collect();
        pids.join(",")
    }

    fn write_status(&mut self) {
        if let Some(file) = &mut self.status_file {
            let workers = self.workers.iter();
            let mut lines: Vec<(u64, u32)> = workers
                .map(|(_, worker)| (worker.generation, worker.pid()))
                .collect();
            file.write(&mut lines);
        }
    }
}

fn say(text: &str) {
    report_plainly(text);
}

/// The name of a signal in messages.
fn name(signal: Signal) -> &'static str {
    let long = signal.as_str();
    long.strip_prefix("SIG").unwrap_or(long)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the supervisor has no worker's clock"
)]
fn now() -> Instant {
    Instant::now()
}
