//! Reads from environment variables what the process that has started this one passes to it: a supervisor with the protocol of
//! Server::Starter, or systemd.

#![expect(
    unsafe_code,
    reason = "removing environment variables is safe only before threads run"
)]

use h2o_server::InheritedSockets;

use crate::Failure;

/// The environment variable in which a supervisor names its sockets.
pub(crate) const SERVER_STARTER_PORT: &str = "SERVER_STARTER_PORT";
/// An environment variable that `-m master` and `-m daemon` set for their workers: it says that the supervisor itself has the pid
/// file and the error log open.
pub(crate) const VIA_MASTER: &str = "H2O_VIA_MASTER";
const LISTEN: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// The process that has started this one.
pub(crate) struct Parent {
    /// The value of `SERVER_STARTER_PORT`.
    ports: Option<String>,
    /// How many sockets systemd passes to this process.
    activated: u16,
    /// Whether the parent is this program with `-m master` or `-m daemon`, which itself has the pid file and the error log open.
    pub(crate) is_master: bool,
}

impl Parent {
    /// A parent that passes neither sockets nor files to this process.
    pub(crate) const fn none() -> Self {
        Self {
            ports: None,
            activated: 0,
            is_master: false,
        }
    }

    /// Reads the environment, and removes the variables that programs started by this process must not see. Must be called before
    /// threads are started.
    pub(crate) fn find() -> Self {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let is_for_us = number(LISTEN[0]) == Some(std::process::id());
        let activated = number(LISTEN[1]).and_then(|count| u16::try_from(count).ok());
        let found = Self {
            ports: std::env::var(SERVER_STARTER_PORT).ok(),
            activated: activated.filter(|_| is_for_us).unwrap_or(0),
            is_master: std::env::var_os(VIA_MASTER).is_some(),
        };
        for name in LISTEN.into_iter().chain([SERVER_STARTER_PORT]) {
            // SAFETY: the process has only one thread, so nothing reads the environment at the same time.
            unsafe { std::env::remove_var(name) };
        }
        found
    }

    /// Whether the parent is a supervisor, which has opened the listeners and passes the same sockets to its other workers.
    pub(crate) const fn is_supervisor(&self) -> bool {
        self.ports.is_some()
    }

    /// Takes the listening sockets that the parent has opened.
    ///
    /// # Errors
    /// If they cannot be used.
    pub(crate) fn take_sockets(&mut self) -> Result<Option<InheritedSockets>, Failure> {
        let sockets = match (&self.ports, std::mem::take(&mut self.activated)) {
            (Some(ports), _) => InheritedSockets::from_server_starter(ports),
            (None, 0) => return Ok(None),
            (None, count) => InheritedSockets::from_systemd(count),
        };
        sockets.map(Some).map_err(Failure::config)
    }
}
