//! An accepted socket: the system calls the drivers make on it.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use h2o_exchange::{Address, FileRange, Transport};
use rustix::net::{RecvFlags, SendFlags};

use crate::sys;

/// What the kernel knows of a TCP connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpInfo {
    /// Smoothed round-trip time.
    pub(crate) rtt: Duration,
    /// Bytes of the largest packet's content.
    pub(crate) mss: u32,
    /// The congestion window.
    pub(crate) cwnd_packets: u32,
    /// Packets on their way.
    pub(crate) unacked_packets: u32,
    /// Bytes per second; 0 where the kernel does not say.
    pub(crate) delivery_rate: u64,
}

impl TcpInfo {
    /// Enough for what is read here; the kernel cuts its own off.
    const LEN: usize = 168;

    /// Reads the kernel's `struct tcp_info` (linux/tcp.h). What an older kernel does not have is 0.
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

/// A connected stream socket, non-blocking.
pub(crate) struct Socket {
    fd: OwnedFd,
    is_unix: bool,
}

impl Socket {
    pub(crate) const fn new(fd: OwnedFd, is_unix: bool) -> Self {
        Self { fd, is_unix }
    }

    /// Receives into the spare capacity of `buffer`. Returns how many bytes came and whether there may be
    /// more at once: a short read has emptied the socket.
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

    /// Sends what the socket takes.
    pub(crate) fn send(&self, data: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::net::send(&self.fd, data, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// As [`Socket::send`] for data in two pieces.
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

    /// Sends from a file without a copy through user space. 0: the file has become shorter.
    pub(crate) fn send_file(&self, range: &FileRange, len: usize) -> io::Result<usize> {
        let mut offset = range.offset;
        loop {
            match rustix::fs::sendfile(&self.fd, &range.file, Some(&mut offset), len) {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Sends up to `len` bytes that are in a pipe.
    pub(crate) fn send_piped(&self, pipe: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
        loop {
            let flags = rustix::pipe::SpliceFlags::NONBLOCK;
            match rustix::pipe::splice(pipe, None, &self.fd, None, len, flags) {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Has the kernel, which encrypts what is sent, send a TLS record of another type than application data.
    pub(crate) fn send_record(&self, content_type: u8, payload: &[u8]) -> io::Result<()> {
        if sys::send_tls_record(&self.fd, content_type, payload)? == payload.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    /// Tells the peer that nothing more will come.
    pub(crate) fn shut_down_write(&self) {
        // The peer may have gone already; then there is nobody to tell.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write);
    }

    /// Lets the socket be writable only while fewer bytes than that wait in the kernel to be sent for the first
    /// time: what is there cannot be overtaken by what becomes more important.
    pub(crate) fn set_not_sent_low_water(&self, bytes: u32) {
        if !self.is_unix {
            // A kernel that does not know the option sends all the same.
            let _ = sys::set_not_sent_low_water(&self.fd, bytes);
        }
    }

    /// What the kernel knows of the connection; `None` if it is not TCP.
    pub(crate) fn tcp_info(&self) -> Option<TcpInfo> {
        if self.is_unix {
            return None;
        }
        let mut info = [0; TcpInfo::LEN];
        sys::read_tcp_info(&self.fd, &mut info).ok()?;
        Some(TcpInfo::parse(&info))
    }

    /// Bytes sent that the peer's system has not acknowledged yet.
    pub(crate) fn unacknowledged(&self) -> usize {
        sys::unacknowledged(&self.fd).unwrap_or(0)
    }
}

pub(crate) fn address(any: Option<rustix::net::SocketAddrAny>) -> Option<Address> {
    SocketAddr::try_from(any?)
        .ok()
        .map(|address| Address::Ip(unmapped(address)))
}

/// An IPv4 client on a dual-stack socket is shown as what it is.
fn unmapped(address: SocketAddr) -> SocketAddr {
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
        address(rustix::net::getsockname(&self.fd).ok())
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
