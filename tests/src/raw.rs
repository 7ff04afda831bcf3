//! A TCP client that sends exactly the bytes that a test gives it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::{Deadline, Response};

/// Time limit of a single read.
const PATIENCE: Duration = Duration::from_secs(20);

/// A TCP connection to a server on this machine.
#[derive(Debug)]
pub struct Raw {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Raw {
    /// Connects to a port of 127.0.0.1.
    ///
    /// # Panics
    /// If nothing listens on the port.
    #[must_use]
    pub fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port))
            .unwrap_or_else(|error| panic!("cannot connect to port {port}: {error}"));
        stream
            .set_nodelay(true)
            .expect("the socket is a TCP socket");
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("the time is not zero");
        stream
            .set_write_timeout(Some(PATIENCE))
            .expect("the time is not zero");
        Self {
            stream,
            received: Vec::new(),
        }
    }

    /// The socket of the connection.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends all of the bytes.
    ///
    /// # Panics
    /// If the server has closed the connection.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream
            .write_all(bytes.as_ref())
            .expect("the server reads what the client sends");
    }

    /// Sends bytes until the server closes the connection. Returns whether all were sent.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Ends the client's direction of the connection (shutdown for writing).
    pub fn finish(&mut self) {
        // The result is ignored: the server may have closed the connection already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Reads once from the socket. Returns the number of bytes; 0 at the end of input or after a reset.
    fn receive(&mut self) -> usize {
        let mut buffer = [0; 64 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(count) => {
                self.received.extend_from_slice(&buffer[..count]);
                count
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => panic!(
                "the server sends no more bytes ({error}) after {}",
                self.received.escape_ascii()
            ),
        }
    }

    /// Reads up to and including the bytes `end`.
    ///
    /// # Panics
    /// If the connection ends first.
    pub fn read_until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            let found = self
                .received
                .windows(end.len())
                .position(|window| window == end);
            if let Some(at) = found {
                return self.received.drain(..at + end.len()).collect();
            }
            assert!(
                self.receive() > 0,
                "the connection ends after {}",
                self.received.escape_ascii()
            );
        }
    }

    /// Reads the next `count` bytes.
    ///
    /// # Panics
    /// If the connection ends first.
    pub fn read_exactly(&mut self, count: usize) -> Vec<u8> {
        while self.received.len() < count {
            assert!(
                self.receive() > 0,
                "the connection ends {} bytes early",
                count - self.received.len()
            );
        }
        self.received.drain(..count).collect()
    }

    /// Reads the next `count` bytes, or fewer if the connection ends first.
    pub fn read_at_most(&mut self, count: usize) -> Vec<u8> {
        while self.received.len() < count && self.receive() > 0 {}
        let count = count.min(self.received.len());
        self.received.drain(..count).collect()
    }

    /// Reads a chunked body that the server may cut off. Returns the data, and whether the last chunk came.
    pub fn read_chunks_that_may_break(&mut self) -> (Vec<u8>, bool) {
        let mut body = Vec::new();
        loop {
            let line = self.read_line_that_may_break();
            let Ok(size) = usize::from_str_radix(line.trim(), 16) else {
                return (body, false);
            };
            body.extend(self.read_at_most(size));
            if self.read_at_most(2) != b"\r\n" {
                return (body, false);
            }
            if size == 0 {
                return (body, true);
            }
        }
    }

    fn read_line_that_may_break(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let byte = self.read_at_most(1);
            if byte.is_empty() {
                break;
            }
            line.extend(byte);
        }
        String::from_utf8_lossy(&line).into_owned()
    }

    /// Reads until the server ends the connection.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        while self.receive() > 0 {}
        std::mem::take(&mut self.received)
    }

    /// Reads the head of the next response.
    pub fn read_head(&mut self) -> Response {
        let head = self.read_until(b"\r\n\r\n");
        Response::parse_head(&head)
    }

    /// Reads the next response completely; `method` is that of the request, which says whether a body follows.
    pub fn read_response(&mut self, method: &str) -> Response {
        let mut response = self.read_head();
        let code = response.code();
        if method == "HEAD" || code < 200 || code == 204 || code == 304 {
            return response;
        }
        response.body = if response.field("transfer-encoding") == Some("chunked") {
            self.read_chunks()
        } else if let Some(length) = response.field("content-length") {
            let length = length.parse().expect("content-length is a number");
            self.read_exactly(length)
        } else {
            self.read_to_end()
        };
        response
    }

    fn read_chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let line = self.read_until(b"\r\n");
            let size = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
            let size = usize::from_str_radix(&size, 16)
                .unwrap_or_else(|_| panic!("the chunk has no size: {size}"));
            if size == 0 {
                while self.read_until(b"\r\n") != b"\r\n" {}
                return body;
            }
            body.extend(self.read_exactly(size));
            assert_eq!(self.read_exactly(2), b"\r\n", "a chunk ends in CR LF");
        }
    }

    /// Waits until the server closes the connection, and returns how long that took. Bytes received meanwhile are dropped.
    ///
    /// # Panics
    /// If the server does not close it within `limit`.
    pub fn time_to_close(&mut self, limit: Duration) -> Duration {
        let deadline = Deadline::after(limit);
        self.stream
            .set_read_timeout(Some(limit))
            .expect("the time limit is not zero");
        while self.receive() > 0 {
            assert!(
                !deadline.has_passed(),
                "the connection is open after {limit:?}"
            );
        }
        deadline.elapsed()
    }
}
