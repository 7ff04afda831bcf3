//! Request content collected before a handler runs; spilled to an unlinked file above a threshold.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use bytes::Bytes;
use h2o_exchange::{FileRange, OpenFile, RequestBody};

use crate::context::Context;

/// Content received so far.
#[derive(Default)]
pub(crate) struct Collector {
    memory: Vec<u8>,
    file: Option<File>,
    len: u64,
}

impl Collector {
    /// Adds a piece.
    ///
    /// # Errors
    /// That of the temporary file, a full disk for example.
    pub(crate) fn push(&mut self, context: &Context, piece: &[u8]) -> io::Result<()> {
        self.len += piece.len() as u64;
        if self.file.is_none() && self.len >= context.temp_buffer_threshold {
            let fd = h2o_exchange::temp_file::create(&context.temp_buffer_path)?;
            let mut file = File::from(fd);
            file.write_all(&std::mem::take(&mut self.memory))?;
            self.file = Some(file);
        }
        match &mut self.file {
            Some(file) => file.write_all(piece),
            None => {
                self.memory.extend_from_slice(piece);
                Ok(())
            }
        }
    }

    /// Octets of memory held.
    pub(crate) fn retained(&self) -> usize {
        self.memory.capacity()
    }

    /// The complete content.
    pub(crate) fn finish(self) -> RequestBody {
        match self.file {
            Some(file) => RequestBody::File(FileRange {
                file: OpenFile::new(OwnedFd::from(file)),
                offset: 0,
                len: self.len,
            }),
            None => RequestBody::Bytes(Bytes::from(self.memory)),
        }
    }
}
