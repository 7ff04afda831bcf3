//! Waiting with a time limit, and the start time of virtual clocks.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The time at which a test gives up waiting.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    began: Instant,
    limit: Duration,
}

impl Deadline {
    /// Makes a deadline at `limit` from now.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "tests wait for processes and sockets, which have no virtual clock"
    )]
    pub fn after(limit: Duration) -> Self {
        Self {
            began: Instant::now(),
            limit,
        }
    }

    /// Makes a deadline at `seconds` from now.
    #[must_use]
    pub fn after_secs(seconds: u64) -> Self {
        Self::after(Duration::from_secs(seconds))
    }

    /// Whether the deadline has passed.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.began.elapsed() >= self.limit
    }

    /// Time since the deadline was set.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Time left until the deadline.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(self.began.elapsed())
    }
}

/// Calls `ask` until it returns a value.
///
/// # Panics
/// If `ask` returns none within 20 seconds; `what` describes what was awaited.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Deadline::after_secs(20);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(!deadline.has_passed(), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sets timeouts of 20 seconds and TCP_NODELAY on a socket, and returns it.
///
/// # Panics
/// If the options cannot be set.
#[must_use]
pub fn patient(socket: TcpStream) -> TcpStream {
    let limit = Some(Duration::from_secs(20));
    socket
        .set_read_timeout(limit)
        .expect("the socket is a TCP socket");
    socket
        .set_write_timeout(limit)
        .expect("the socket is a TCP socket");
    socket
        .set_nodelay(true)
        .expect("the socket is a TCP socket");
    socket
}

/// Waits until the peer of an IPv4 connection on this machine has read all bytes sent to it.
///
/// # Panics
/// If the peer has not read them within 20 seconds, or the socket is not connected.
pub fn wait_until_read(socket: &TcpStream) {
    let in_table = |address: SocketAddr| {
        let SocketAddr::V4(address) = address else {
            panic!("{address} is not an IPv4 address");
        };
        let ip = u32::from_ne_bytes(address.ip().octets());
        format!("{ip:08X}:{:04X}", address.port())
    };
    let ours = in_table(socket.local_addr().expect("the socket is a TCP socket"));
    let theirs = in_table(socket.peer_addr().expect("the socket is connected"));
    eventually("the other side to read everything", || {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("/proc/net/tcp can be read");
        let waits = table.lines().any(|line| {
            let fields: Vec<&str> = line.split_whitespace().take(5).collect();
            match fields[..] {
                // The fifth field in /proc/net/tcp is `UNACKNOWLEDGED:UNREAD`: numbers of bytes in hexadecimal.
                [_, local, remote, _, queues] if local == ours && remote == theirs => {
                    !queues.starts_with("00000000:")
                }
                [_, local, remote, _, queues] if local == theirs && remote == ours => {
                    !queues.ends_with(":00000000")
                }
                _ => false,
            }
        });
        (!waits).then_some(())
    });
}

/// Returns a time for the start of a virtual clock.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "an `Instant` comes only from the clock; tests depend on no particular one"
)]
pub fn any_moment() -> Instant {
    Instant::now()
}
