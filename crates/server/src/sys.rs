//! System calls on sockets that rustix and nix have no wrapper for.

#![expect(unsafe_code, reason = "no safe wrapper has these system calls")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, c_void, socklen_t};

/// Takes ownership of a file descriptor that this process inherited from the process that started it. Programs that this process starts do
/// not inherit the descriptor.
pub(crate) fn take_descriptor(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call only reads the flags of the descriptor `number`, and fails if there is none.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // A descriptor with this flag is not inherited: this process has opened it itself, or has taken it before.
    if flags & libc::FD_CLOEXEC != 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the call only changes a flag of the descriptor `number`.
    checked(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: the descriptor is open, as the calls above have shown, and no other code owns it: this program opens all of its own
    // descriptors with the flag, and the flag is set when a descriptor is taken.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Makes `accept` return a connection only when its first bytes have arrived, or after about a second.
pub(crate) fn set_defer_accept(listener: impl AsFd) -> io::Result<()> {
    set_tcp_option(listener, libc::TCP_DEFER_ACCEPT, 1)
}

/// Accepts TCP Fast Open (RFC 7413) for up to `queue` connections with incomplete handshakes.
pub(crate) fn set_fastopen_queue(listener: impl AsFd, queue: u32) -> io::Result<()> {
    let queue = c_int::try_from(queue).unwrap_or(c_int::MAX);
    set_tcp_option(listener, libc::TCP_FASTOPEN, queue)
}

/// Makes the socket writable only while fewer than `len` bytes wait in the kernel for their first transmission.
pub(crate) fn set_not_sent_low_water(socket: impl AsFd, len: u32) -> io::Result<()> {
    let len = c_int::try_from(len).unwrap_or(c_int::MAX);
    set_tcp_option(socket, libc::TCP_NOTSENT_LOWAT, len)
}

fn set_tcp_option(socket: impl AsFd, option: c_int, value: c_int) -> io::Result<()> {
    let len = socklen_t::try_from(size_of::<c_int>()).map_err(io::Error::other)?;
    // SAFETY: the option's value is a live `c_int`, and the length is that of a `c_int`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            option,
            (&raw const value).cast::<c_void>(),
            len,
        )
    };
    checked(result)
}

/// Fills `info` with the kernel's `struct tcp_info` (linux/tcp.h). Fields that an older kernel does not know stay as they are.
pub(crate) fn read_tcp_info(socket: impl AsFd, info: &mut [u8]) -> io::Result<()> {
    let mut len = socklen_t::try_from(info.len()).map_err(io::Error::other)?;
    // SAFETY: `info` is writable for `len` bytes, and `len` is a live `socklen_t`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast::<c_void>(),
            &raw mut len,
        )
    };
    checked(result)
}

/// Returns the number of bytes sent that the peer's TCP has not acknowledged.
pub(crate) fn unacknowledged(socket: impl AsFd) -> io::Result<usize> {
    let mut len: c_int = 0;
    // SAFETY: the request (SIOCOUTQ, which has the number of TIOCOUTQ) writes one `c_int`.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut len) };
    checked(result)?;
    Ok(usize::try_from(len).unwrap_or(0))
}

/// With kTLS: has the kernel encrypt and send a TLS record that is not application data. Returns how many bytes of `payload` the
/// kernel took.
pub(crate) fn send_tls_record(
    socket: impl AsFd,
    content_type: u8,
    payload: &[u8],
) -> io::Result<usize> {
    /// Buffer for the control header of `sendmsg` and the one byte after it, aligned like the header.
    #[repr(C, align(8))]
    struct ControlBuffer([u8; 32]);
    let mut control = ControlBuffer([0; 32]);
    let mut piece = libc::iovec {
        iov_base: payload.as_ptr().cast_mut().cast(),
        iov_len: payload.len(),
    };
    // SAFETY: all fields of a `msghdr` may be zero. The pointers are to values that live until the end of this
    // function. CMSG_SPACE(1) is at most 24, so header and byte are within `control`, where CMSG_FIRSTHDR and CMSG_DATA
    // point. `sendmsg` stays within the given lengths and only reads `payload`.
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
        libc::sendmsg(
            socket.as_fd().as_raw_fd(),
            &raw const message,
            libc::MSG_NOSIGNAL,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

fn checked(result: c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
