//! The events that the main thread handles while the server runs.

use std::sync::mpsc::{Receiver, Sender, channel};

use h2o_server::WorkerEnd;
use signal_hook::consts::{SIGHUP, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::question::{Question, Reply};
use crate::{Failure, signals};

/// An event that the main thread handles while the server runs.
pub(crate) enum Event {
    /// A signal has arrived; this is its number.
    Signal(i32),
    /// A worker's thread has ended; the value says how.
    Worker(WorkerEnd),
    /// A client of the control socket has sent a question; the reply goes to the sender, from which the client's thread receives
    /// it.
    Question(Question, Sender<Reply>),
}

/// The queue of events, with its sender.
pub(crate) struct Events {
    pub(crate) sender: Sender<Event>,
    pub(crate) receiver: Receiver<Event>,
}

/// Catches signals: from here on SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGQUIT become events. SIGINT is not caught and kills the
/// process, so that a user can always end the program.
pub(crate) fn catch_signals() -> Result<Signals, Failure> {
    signals::catch(&[SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT])
}

impl Events {
    /// Starts the thread that reports signals as events; signals that arrived since [`catch_signals`] come first.
    pub(crate) fn begin(signals: Signals) -> Result<Self, Failure> {
        let (sender, receiver) = channel();
        let from_signals = sender.clone();
        signals::forward(signals, move |signal| {
            from_signals.send(Event::Signal(signal)).is_ok()
        })?;
        Ok(Self { sender, receiver })
    }
}
