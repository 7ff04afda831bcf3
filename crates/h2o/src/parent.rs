//! What the process that has started this one has done for it, or wants to know: a supervisor of the protocol of
//! Server::Starter, or systemd.

#![expect(
    unsafe_code,
    reason = "variables cannot be removed safely once threads run"
)]

use h2o_server::InheritedSockets;

use crate::Failure;

/// The sockets of a supervisor.
pub(crate) const SERVER_STARTER_PORT: &str = "SERVER_STARTER_PORT";
/// Set by `-m master` and `-m daemon`: pid file and error log are those of the supervisor.
pub(crate) const VIA_MASTER: &str = "H2O_VIA_MASTER";
const LISTEN: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// The process that has started this one.
pub(crate) struct Parent {
    /// The value of `SERVER_STARTER_PORT`.
    ports: Option<String>,
    /// How many sockets systemd passes.
    activated: u16,
    /// Whether it is `-m master` or `-m daemon`, which keep pid file and error log.
    pub(crate) is_master: bool,
}

impl Parent {
    /// A process that does nothing for us.
    pub(crate) const fn none() -> Self {
        Self {
            ports: None,
            activated: 0,
            is_master: false,
        }
    }

    /// Reads the environment, and removes from it what is not for the programs that this one starts. Must be called before
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
            // SAFETY: the process has one thread, which nothing else that reads the environment can run beside.
            unsafe { std::env::remove_var(name) };
        }
        found
    }

    /// Whether a supervisor has opened the listeners, which starts other processes for them, too.
    pub(crate) const fn is_supervisor(&self) -> bool {
        self.ports.is_some()
    }

    /// The listeners that it has opened.
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
