//! An accepted socket, with the system calls that the drivers of the HTTP versions make on it.

use std::cell::{Cell, OnceCell};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use h2o_exchange::{Address, FileRange, Transport};
use rustix::net::{RecvFlags, SendFlags};

use crate::sys;

/// The kernel's figures (`TCP_INFO`) of a TCP connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpInfo {
    /// Smoothed round-trip time of the connection.
    pub(crate) rtt: Duration,
    /// Maximum segment size: payload bytes of the largest packet.
    pub(crate) mss: u32,
    /// Congestion window, in packets.
    pub(crate) cwnd_packets: u32,
    /// Number of packets that are sent and not acknowledged.
    pub(crate) unacked_packets: u32,
    /// The rate at which TCP has delivered data, in bytes per second; 0 if the kernel does not report it.
    pub(crate) delivery_rate: u64,
}

impl TcpInfo {
    /// Number of bytes of the structure `tcp_info` that are read here; the kernel cuts its answer to this length.
    const LEN: usize = 168;

    /// Parses the kernel's `struct tcp_info` (linux/tcp.h). Fields that an older kernel does not fill are 0.
    fn parse(info: &[u8; Self::LEN]) -> Self {
        let u32_at = |at: usize| {
            let bytes = info[at..at + 4].try_into();
            u32::from_ne_bytes(bytes.unwrap_or_default())
        };
        let delivery_rate = info[160..168].try_into();
        Self {
            mss: u32_at(16),
            unacked_packets: u32_at(24),
            rtt: Duration::from_micros(u32_at(68).into()),
            cwnd_packets: u32_at(80),
            delivery_rate: u64::from_ne_bytes(delivery_rate.unwrap_or_default()),
        }
    }
}

/// A connected, non-blocking stream socket.
pub(crate) struct Socket {
    fd: OwnedFd,
    is_unix: bool,
    /// Round-trip time that the HTTP/2 client's acknowledgement of SETTINGS has shown, in microseconds plus 1; 0 until the time is known.
    settings_rtt: Cell<u32>,
    /// The address of the server's end, kept from the first time that it was asked for. It is in a box because most connections never ask.
    local_address: OnceCell<Box<SocketAddr>>,
}

impl Socket {
    pub(crate) const fn new(fd: OwnedFd, is_unix: bool) -> Self {
        Self {
            fd,
            is_unix,
            settings_rtt: Cell::new(0),
            local_address: OnceCell::new(),
        }
    }

    /// Records the round-trip time that the client's acknowledgement of SETTINGS has shown, for [`Transport::settings_rtt`].
    pub(crate) fn note_settings_rtt(&self, rtt: Duration) {
        let micros = u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX);
        self.settings_rtt.set(micros.saturating_add(1));
    }

    /// Receives bytes into the spare capacity of `buffer`. Returns their number, and whether more may be available at once: after a
    /// short read the socket is empty.
    pub(crate) fn recv(&self, buffer: &mut Vec<u8>) -> io::Result<(usize, bool)> {
        let room = buffer.capacity() - buffer.len();
        loop {
            match rustix::net::recv(
                &self.fd,
                rustix::buffer::spare_capacity(buffer),
                RecvFlags::empty(),
            ) {
                Ok((got, _)) => return Ok((got, got == room)),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends as much of `data` as the socket takes. Returns the number of bytes.
    pub(crate) fn send(&self, data: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::net::send(&self.fd, data, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Like [`Socket::send`], for data in two pieces that are sent with one system call.
    pub(crate) fn send_two(&self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        let slices = [IoSlice::new(first), IoSlice::new(second)];
        let mut control = rustix::net::SendAncillaryBuffer::default();
        loop {
            match rustix::net::sendmsg(&self.fd, &slices, &mut control, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Sends up to `len` bytes of a file without a copy through user space. Returns 0 if the file has become shorter.
    pub(crate) fn send_file(&self, range: &FileRange, len: usize) -> io::Result<usize> {
        let mut offset = range.offset;
        loop {
            match rustix::fs::sendfile(&self.fd, &range.file, Some(&mut offset), len) {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Sends up to `len` bytes from a pipe.
    pub(crate) fn send_piped(&self, pipe: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
        loop {
            let flags = rustix::pipe::SpliceFlags::NONBLOCK;
            match rustix::pipe::splice(pipe, None, &self.fd, None, len, flags) {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// With kTLS: has the kernel encrypt and send a TLS record that is not application data.
    pub(crate) fn send_record(&self, content_type: u8, payload: &[u8]) -> io::Result<()> {
        if sys::send_tls_record(&self.fd, content_type, payload)? == payload.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    /// Ends the server's direction of the connection (TCP FIN).
    pub(crate) fn shut_down_write(&self) {
        // The result is ignored: the call fails if the peer has already closed the connection.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write);
    }

    /// Makes the socket count as writable only while fewer than this many bytes wait in the kernel for their first transmission.
    /// Bytes that the kernel already has cannot be overtaken by a more urgent response.
    pub(crate) fn set_not_sent_low_water(&self, bytes: u32) {
        if !self.is_unix {
            // The result is ignored: on a kernel without the option, responses are only less well ordered.
            let _ = sys::set_not_sent_low_water(&self.fd, bytes);
        }
    }

    /// The kernel's figures of the connection; `None` for Unix sockets.
    pub(crate) fn tcp_info(&self) -> Option<TcpInfo> {
        if self.is_unix {
            return None;
        }
        let mut info = [0; TcpInfo::LEN];
        sys::read_tcp_info(&self.fd, &mut info).ok()?;
        Some(TcpInfo::parse(&info))
    }

    /// Returns the number of bytes sent that the peer's TCP has not acknowledged.
    pub(crate) fn unacknowledged(&self) -> usize {
        sys::unacknowledged(&self.fd).unwrap_or(0)
    }
}

pub(crate) fn address(any: Option<rustix::net::SocketAddrAny>) -> Option<Address> {
    SocketAddr::try_from(any?)
        .ok()
        .map(|address| Address::Ip(unmapped(address)))
}

/// Turns an IPv4-mapped IPv6 address, which a dual-stack socket reports, back into IPv4.
pub(crate) fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Transport for Socket {
    fn local_address(&self) -> Option<Address> {
        if self.is_unix {
            return Some(Address::Unix);
        }
        if let Some(known) = self.local_address.get() {
            return Some(Address::Ip(**known));
        }
        let found = address(rustix::net::getsockname(&self.fd).ok());
        if let Some(Address::Ip(address)) = found {
            let _ = self.local_address.set(Box::new(address));
        }
        found
    }

    fn settings_rtt(&self) -> Option<Duration> {
        let micros = self.settings_rtt.get().checked_sub(1)?;
        Some(Duration::from_micros(micros.into()))
    }

    fn congestion_controller(&self) -> Option<String> {
        if self.is_unix {
            return None;
        }
        rustix::net::sockopt::tcp_congestion(&self.fd).ok()
    }

    fn delivery_rate(&self) -> Option<u64> {
        let rate = self.tcp_info()?.delivery_rate;
        (rate > 0).then_some(rate)
    }
}
