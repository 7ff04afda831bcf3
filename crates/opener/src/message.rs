//! Messages between processes of this program, over a socket that preserves message boundaries.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// A message: a byte that tells its kind, a text, and perhaps a descriptor.
pub struct Message<'a> {
    /// The byte that tells the kind of message.
    pub byte: u8,
    /// The text of the message.
    pub text: &'a [u8],
    /// The descriptor that comes with the message, if any.
    pub descriptor: Option<OwnedFd>,
}

/// Sends a message.
///
/// # Errors
/// The system's error, if the socket fails.
pub fn send(
    socket: impl AsFd,
    byte: u8,
    text: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let parts = [
        IoSlice::new(std::slice::from_ref(&byte)),
        IoSlice::new(text),
    ];
    rustix::io::retry_on_intr(|| sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives a message; `None` if the other process has closed the socket.
///
/// # Errors
/// The system's error, if the socket fails.
pub fn receive<'a>(socket: impl AsFd, buffer: &'a mut [u8]) -> io::Result<Option<Message<'a>>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)
    })?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(buffer[..received.bytes]
        .split_first()
        .map(|(byte, text)| Message {
            byte: *byte,
            text,
            descriptor,
        }))
}

/// The text of an error, without the error number that Rust puts behind it, since the server would add the number
/// again.
pub(crate) fn text_of(error: &io::Error) -> String {
    let mut text = error.to_string();
    if let Some(at) = text.rfind(" (os error ") {
        text.truncate(at);
    }
    text
}
