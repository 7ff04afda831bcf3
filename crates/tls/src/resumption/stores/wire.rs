//! Reads and writes the bytes of a conversation with a store.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};

/// Limits in bytes of a line in a store's answer (`MAX_LINE`), and of a value (`MAX_VALUE`).
const MAX_LINE: u64 = 1024;
const MAX_VALUE: usize = 256 << 10;

/// The entry that a store has under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) value: Vec<u8>,
    /// memcached's number for this version of the value (`cas`): a write that contains it fails if the value has changed since.
    pub(super) version: u64,
}

/// A connection to a store that limits the length of the store's answers.
#[derive(Debug)]
pub(super) struct Wire<S>(BufReader<S>);

impl<S: Read + Write> Wire<S> {
    pub(super) fn new(stream: S) -> Self {
        Self(BufReader::new(stream))
    }

    #[cfg(test)]
    pub(super) fn stream(&self) -> &S {
        self.0.get_ref()
    }

    pub(super) fn stream_mut(&mut self) -> &mut S {
        self.0.get_mut()
    }

    pub(super) fn send(&mut self, command: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(command)?;
        self.0.get_mut().flush()
    }

    /// Reads a line of the answer, and returns it without its end.
    pub(super) fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        (&mut self.0).take(MAX_LINE).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(closed());
        }
        let line = line.strip_suffix(b"\r\n").ok_or_else(nonsense)?;
        Ok(String::from_utf8_lossy(line).into_owned())
    }

    pub(super) fn bytes(&mut self, len: usize) -> io::Result<Vec<u8>> {
        if len > MAX_VALUE {
            return Err(nonsense());
        }
        let mut bytes = vec![0; len];
        let read = self.0.read_exact(&mut bytes);
        read.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => closed(),
            _ => error,
        })?;
        Ok(bytes)
    }

    /// Reads a value of `len` bytes, and the end of its line.
    pub(super) fn value(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let value = self.bytes(len)?;
        if self.bytes(2)? != b"\r\n" {
            return Err(nonsense());
        }
        Ok(value)
    }
}

/// The error for a store that has closed the connection before its answer.
fn closed() -> io::Error {
    io::Error::new(
        ErrorKind::UnexpectedEof,
        "the store has closed the connection",
    )
}

/// The error for an answer that the store's protocol does not allow.
pub(super) fn nonsense() -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        "the store sent an answer that its protocol does not allow",
    )
}

/// The error for a store that has answered with an error; `text` is its message.
pub(super) fn refusal(text: &str) -> io::Error {
    let shown: String = text.chars().filter(|c| !c.is_control()).take(100).collect();
    io::Error::other(format!("the store answered `{shown}`"))
}
