//! The client's end of a simulated connection: a non-blocking socket, with or without TLS.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use rustls::{ClientConfig, ClientConnection};

pub(super) struct Wire {
    socket: UnixStream,
    tls: Option<Box<ClientConnection>>,
    /// Bytes for the socket, with TLS already encrypted.
    unsent: Vec<u8>,
    /// Whether the server has closed its direction, or the connection is gone.
    pub(super) is_ended: bool,
}

impl Wire {
    pub(super) fn connect(path: &Path, tls: Option<Arc<ClientConfig>>) -> Self {
        let socket = UnixStream::connect(path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let tls = tls.map(|config| {
            let name = "sim.test".try_into().unwrap();
            Box::new(ClientConnection::new(config, name).unwrap())
        });
        Self {
            socket,
            tls,
            unsent: Vec::new(),
            is_ended: false,
        }
    }

    /// Number of bytes in the kernel: first those that the server has sent and the client has not read, then those in the other
    /// direction.
    pub(super) fn in_kernel(&self) -> (i32, i32) {
        let count = |request| {
            let mut bytes: libc::c_int = 0;
            #[expect(unsafe_code, reason = "no safe wrapper of ioctl has these requests")]
            // SAFETY: the two kinds of request (bytes to read, bytes not yet read by the peer) write one `c_int`.
            let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), request, &raw mut bytes) };
            if result == 0 { bytes } else { 0 }
        };
        (count(libc::FIONREAD), count(libc::TIOCOUTQ))
    }

    /// Sends up to `most` bytes: first those that were encoded before, then `bytes`. Returns whether any bytes were sent.
    pub(super) fn send(&mut self, bytes: &mut Vec<u8>, most: usize) -> bool {
        if let Some(tls) = &mut self.tls {
            if !bytes.is_empty() && !tls.is_handshaking() && self.unsent.is_empty() {
                let taken = tls
                    .writer()
                    .write(&bytes[..bytes.len().min(16_384)])
                    .unwrap();
                bytes.drain(..taken);
            }
            while tls.wants_write() {
                tls.write_tls(&mut self.unsent).unwrap();
            }
        } else {
            self.unsent.append(bytes);
        }
        let len = self.unsent.len().min(most);
        if len == 0 {
            return false;
        }
        match self.socket.write(&self.unsent[..len]) {
            Ok(sent) => {
                self.unsent.drain(..sent);
                sent > 0
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(_) => {
                // The server does not read any more, so the output is dropped; bytes that the server has sent can still be read.
                self.unsent.clear();
                bytes.clear();
                false
            }
        }
    }

    /// Receives up to `most` bytes into `input`. Returns whether any bytes came.
    pub(super) fn receive(&mut self, input: &mut Vec<u8>, most: usize) -> bool {
        if self.is_ended || most == 0 {
            return false;
        }
        let mut buffer = vec![0; most];
        match self.socket.read(&mut buffer) {
            Ok(0) => {
                self.is_ended = true;
                true
            }
            Ok(len) => {
                let Some(tls) = &mut self.tls else {
                    input.extend_from_slice(&buffer[..len]);
                    return true;
                };
                let mut cipher = &buffer[..len];
                while !cipher.is_empty() {
                    tls.read_tls(&mut cipher).unwrap();
                    let state = tls
                        .process_new_packets()
                        .expect("the server sends valid TLS records");
                    let mut plain = vec![0; state.plaintext_bytes_to_read()];
                    tls.reader().read_exact(&mut plain).unwrap();
                    input.append(&mut plain);
                }
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(_) => {
                self.is_ended = true;
                true
            }
        }
    }

    /// Ends the client's direction of the connection.
    pub(super) fn finish(&mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }
}
