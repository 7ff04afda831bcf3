//! Tells systemd the state of the service (sd_notify(3)), for units with `Type=notify`.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use h2o_exchange::{Order, Shared};

/// The environment variables by which systemd asks for notifications.
pub(crate) const SOCKET: &str = "NOTIFY_SOCKET";
pub(crate) const WATCHDOG: &str = "WATCHDOG_USEC";
const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// How long to wait for systemd if it reads none of its messages: meanwhile the main thread handles no signal.
const PATIENCE: Duration = Duration::from_millis(500);

/// What the service does.
#[derive(Clone, Copy)]
pub(crate) enum State {
    /// The service serves clients.
    Ready,
    /// The service reloads its configuration; [`State::Ready`] follows.
    Reloading,
    /// The service is ending.
    Stopping,
}

/// Tells systemd the state of the service, if systemd has started this process and asks for notifications. Errors are ignored.
pub(crate) fn notify(state: State) {
    match state {
        State::Ready => send(&format!(
            "READY=1\nMAINPID={}\nSTATUS=serving",
            std::process::id()
        )),
        State::Reloading => send(&format!(
            "RELOADING=1\nMONOTONIC_USEC={}\nSTATUS=reloading",
            monotonic_micros()
        )),
        State::Stopping => send("STOPPING=1\nSTATUS=finishing the requests in progress"),
    }
}

fn send(text: &str) {
    let Some(name) = std::env::var_os(SOCKET) else {
        return;
    };
    let bytes = name.as_encoded_bytes();
    let address = match bytes.split_first() {
        Some((b'@', rest)) => SocketAddr::from_abstract_name(rest),
        _ => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.send_to_addr(text.as_bytes(), &address)
    });
    if let Err(error) = sent {
        let text = h2o_log::reason(&error);
        h2o_log::report!(
            warning,
            "failed to tell systemd the state of the service: {text}"
        );
    }
}

fn monotonic_micros() -> u128 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    let rest = Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0));
    (seconds + rest).as_micros()
}

/// Starts the thread that notifies systemd's watchdog, at half the interval that systemd expects, as long as the event
/// loops of all workers run. If a worker hangs, no notification is sent, and systemd restarts the service.
pub(crate) fn begin_watchdog(shared: &Arc<Shared>) {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_for_us = number(WATCHDOG_PID).is_none_or(|pid| pid == u64::from(std::process::id()));
    let Some(limit) = number(WATCHDOG).filter(|limit| *limit > 0 && is_for_us) else {
        return;
    };
    let shared = Arc::clone(shared);
    let watch = move || {
        // Each worker gets an order with a clone of this `Arc`, and drops the clone when it executes the order. Once no clone is left, all
        // workers have responded.
        let round = Arc::new(());
        loop {
            if Arc::strong_count(&round) == 1 {
                send("WATCHDOG=1");
                for worker in shared.workers.get().map_or(&[][..], Vec::as_slice) {
                    let held = Arc::clone(&round);
                    // If the worker has ended, the order and its clone are dropped at once.
                    worker.order(Order::Run(Box::new(move |_| drop(held))));
                }
            }
            std::thread::sleep(Duration::from_micros(limit / 2));
        }
    };
    let thread = std::thread::Builder::new().name("watchdog".to_owned());
    if let Err(error) = thread.spawn(watch) {
        let text = h2o_log::reason(&error);
        h2o_log::report!(
            warning,
            "failed to start the thread for systemd's watchdog: {text}"
        );
    }
}
