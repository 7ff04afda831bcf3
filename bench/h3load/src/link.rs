//! Simulates a network link between client and server, which run on the same machine. Datagrams wait in a queue, leave it at the link's
//! rate, and arrive half a round trip later. Datagrams for which the queue has no room are dropped.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Fault;
use crate::client::receive_much;

/// One direction of the link.
struct Direction {
    bytes_per_second: f64,
    delay: Duration,
    queue_len: f64,
    /// The time at which the last datagram accepted so far will have left the queue.
    free: Instant,
    under_way: VecDeque<(Instant, Vec<u8>)>,
}

impl Direction {
    fn take(&mut self, now: Instant, datagram: &[u8]) {
        let waiting =
            self.free.saturating_duration_since(now).as_secs_f64() * self.bytes_per_second;
        // The length with the headers of IP and UDP.
        let len = f64::from(u32::try_from(datagram.len() + 28).unwrap_or(u32::MAX));
        if waiting + len > self.queue_len {
            return;
        }
        self.free = self.free.max(now) + Duration::from_secs_f64(len / self.bytes_per_second);
        self.under_way
            .push_back((self.free + self.delay, datagram.to_vec()));
    }

    fn next(&self) -> Option<Instant> {
        self.under_way.front().map(|(at, _)| *at)
    }

    /// Takes a datagram that has arrived by now.
    fn give(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.under_way
            .pop_front_if(|(at, _)| *at <= now)
            .map(|(_, datagram)| datagram)
    }
}

/// Starts a link to the server. Rate in kbit/s and queue in KB are those of each direction; the round trip is in ms. Returns the address
/// that clients send to. The link ends with the process.
pub(crate) fn begin(
    server: SocketAddr,
    kbit: u32,
    round_trip_ms: u64,
    queue_kb: u32,
) -> Result<SocketAddr, Fault> {
    let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    far.connect(server)?;
    for socket in [&near, &far] {
        socket.set_nonblocking(true)?;
        receive_much(socket)?;
    }
    let address = near.local_addr()?;
    let direction = || Direction {
        bytes_per_second: f64::from(kbit) * 125.0,
        delay: Duration::from_millis(round_trip_ms) / 2,
        queue_len: f64::from(queue_kb) * 1024.0,
        free: now(),
        under_way: VecDeque::new(),
    };
    let (up, down) = (direction(), direction());
    thread::spawn(move || carry(&near, &far, up, down));
    Ok(address)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the load generator measures time and has no worker's clock"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

fn carry(
    near: &UdpSocket,
    far: &UdpSocket,
    mut up: Direction,
    mut down: Direction,
) -> io::Result<()> {
    let mut buffer = vec![0; 65_536];
    let mut client = None;
    loop {
        let wait = [up.next(), down.next()].into_iter().flatten().min();
        wait_for(&[near.as_fd(), far.as_fd()], wait)?;
        let now = now();
        while let Some((len, from)) = received(near.recv_from(&mut buffer))? {
            client = Some(from);
            up.take(now, &buffer[..len]);
        }
        while let Some(len) = received(far.recv(&mut buffer))? {
            down.take(now, &buffer[..len]);
        }
        while let Some(datagram) = up.give(now) {
            // If the kernel refuses a datagram, it is lost as on a network.
            let _ = far.send(&datagram);
        }
        while let Some(datagram) = down.give(now) {
            if let Some(client) = client {
                let _ = near.send_to(&datagram, client);
            }
        }
    }
}

/// Makes an empty socket, or an ICMP error from an earlier datagram, `None` instead of an error.
fn received<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(received) => Ok(Some(received)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits until a descriptor is readable or the time has come. Returns which descriptors are readable.
pub(crate) fn wait_for<const N: usize>(
    descriptors: &[BorrowedFd<'_>; N],
    until: Option<Instant>,
) -> io::Result<[bool; N]> {
    let mut polled =
        descriptors.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
    let limit = until.map(|until| {
        let left = until.saturating_duration_since(now());
        Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        }
    });
    match poll(&mut polled, limit.as_ref()) {
        Ok(_) => Ok(polled.map(|polled| !polled.revents().is_empty())),
        Err(rustix::io::Errno::INTR) => Ok([false; N]),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_arrive_at_the_rate_and_a_full_queue_drops_them() {
        let begin = now();
        let mut link = Direction {
            bytes_per_second: 1000.0,
            delay: Duration::from_millis(500),
            queue_len: 350.0,
            free: begin,
            under_way: VecDeque::new(),
        };
        for _ in 0..5 {
            link.take(begin, &[0; 72]);
        }
        // Each datagram has 100 bytes with its headers and takes 0.1 s; the queue has room for three.
        assert_eq!(link.under_way.len(), 3);
        assert_eq!(link.next(), Some(begin + Duration::from_millis(600)));
        assert!(link.give(begin + Duration::from_millis(599)).is_none());
        assert!(link.give(begin + Duration::from_millis(700)).is_some());
        assert!(link.give(begin + Duration::from_millis(700)).is_some());
        assert!(link.give(begin + Duration::from_millis(700)).is_none());
    }
}
