//! An accepted socket: the system calls the drivers make on it.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use h2o_exchange::{Address, FileRange, Transport};
use rustix::net::{RecvFlags, SendFlags};

/// What the kernel knows of a TCP connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpInfo {
    /// Smoothed round-trip time.
    pub(crate) rtt: Duration,
    /// Octets of the largest packet's content.
    pub(crate) mss: u32,
    /// The congestion window.
    pub(crate) cwnd_packets: u32,
    /// Packets on their way.
    pub(crate) unacked_packets: u32,
    /// Octets per second; 0 where the kernel does not say.
    pub(crate) delivery_rate: u64,
}

impl TcpInfo {
    /// Enough for what is read here; the kernel cuts its own off.
    const LEN: usize = 168;

    /// Reads the kernel's `struct tcp_info` (linux/tcp.h). What an older kernel does not have is 0.
    fn parse(info: &[u8; Self::LEN]) -> Self {
        let u32_at = |at: usize| {
            let octets = info[at..at + 4].try_into();
            u32::from_ne_bytes(octets.unwrap_or_default())
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

    /// Receives into the spare capacity of `buffer`. Returns how many octets came and whether there may be
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

    /// Sends up to `len` octets that are in a pipe.
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
    #[expect(unsafe_code, reason = "no safe wrapper knows TLS_SET_RECORD_TYPE")]
    pub(crate) fn send_record(&self, content_type: u8, payload: &[u8]) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        /// Enough for a header and one octet, and aligned as a header must be.
        #[repr(C, align(8))]
        struct ControlBuffer([u8; 32]);
        let mut control = ControlBuffer([0; 32]);
        let mut piece = libc::iovec {
            iov_base: payload.as_ptr().cast_mut().cast(),
            iov_len: payload.len(),
        };
        // SAFETY: all fields of a `msghdr` may be zero. The pointers are to values that live until the end of this function.
        // CMSG_SPACE(1) is at most 24, so that header and octet are within `control`, where CMSG_FIRSTHDR and CMSG_DATA
        // point to. `sendmsg` reads what the lengths say, and only reads `payload`.
        let sent = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &raw mut piece;
            message.msg_iovlen = 1;
            message.msg_control = (&raw mut control.0).cast();
            message.msg_controllen = libc::CMSG_SPACE(1) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            if header.is_null() {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            (*header).cmsg_level = libc::SOL_TLS;
            (*header).cmsg_type = libc::TLS_SET_RECORD_TYPE;
            (*header).cmsg_len = libc::CMSG_LEN(1) as _;
            *libc::CMSG_DATA(header) = content_type;
            libc::sendmsg(self.fd.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
        };
        match usize::try_from(sent) {
            Ok(sent) if sent == payload.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::WouldBlock.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Tells the peer that nothing more will come.
    pub(crate) fn shut_down_write(&self) {
        // The peer may have gone already; then there is nobody to tell.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write);
    }

    /// Lets the socket be writable only while fewer octets than that wait in the kernel to be sent for the first
    /// time: what is there cannot be overtaken by what becomes more important.
    #[expect(unsafe_code, reason = "no safe wrapper knows TCP_NOTSENT_LOWAT")]
    pub(crate) fn set_not_sent_low_water(&self, octets: u32) {
        use std::os::fd::AsRawFd;
        if self.is_unix {
            return;
        }
        let len = libc::socklen_t::try_from(size_of::<u32>()).unwrap_or_default();
        // SAFETY: the value is a `u32` that is readable for its length. A kernel that does not know the option sends
        // all the same.
        let _ = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_NOTSENT_LOWAT,
                (&raw const octets).cast(),
                len,
            )
        };
    }

    /// What the kernel knows of the connection; `None` if it is not TCP.
    #[expect(unsafe_code, reason = "no safe wrapper knows TCP_INFO")]
    pub(crate) fn tcp_info(&self) -> Option<TcpInfo> {
        use std::os::fd::AsRawFd;
        if self.is_unix {
            return None;
        }
        let mut info = [0u8; TcpInfo::LEN];
        let mut len = libc::socklen_t::try_from(info.len()).ok()?;
        // SAFETY: `info` is writable for `len` octets, and `len` is updated to what the kernel wrote.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        (result == 0).then(|| TcpInfo::parse(&info))
    }

    /// Octets sent that the peer's system has not acknowledged yet.
    #[expect(unsafe_code, reason = "no safe wrapper knows SIOCOUTQ")]
    pub(crate) fn unacknowledged(&self) -> usize {
        use std::os::fd::AsRawFd;
        let mut octets: libc::c_int = 0;
        // SAFETY: the request (SIOCOUTQ, which has the number of TIOCOUTQ) writes one `c_int`.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut octets) };
        if result == 0 {
            usize::try_from(octets).unwrap_or(0)
        } else {
            0
        }
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
