//! Collects the answers of a turn in a buffer, in TLS records if the connection uses TLS.

use crate::Fault;
use crate::tls::{APPLICATION_DATA, MAX_PLAINTEXT_LEN, Protection};

/// Bytes of output that one turn may have at most: several times what the largest benchmark case needs.
const MAX_OUTPUT: usize = 4 << 20;

/// The output of one turn of a connection.
pub(crate) struct Sink<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    protection: Option<&'a mut Protection>,
    /// Position of the plaintext of the unfinished record.
    record: Option<usize>,
}

impl<'a> Sink<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>, protection: Option<&'a mut Protection>) -> Self {
        Self {
            out,
            protection,
            record: None,
        }
    }

    /// Appends `bytes`. A record is encrypted in place as soon as it is full.
    #[inline]
    pub(crate) fn put(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        if self.out.len() > MAX_OUTPUT {
            return Err(Fault(
                "the answers to one batch of requests do not fit into the buffer",
            ));
        }
        let Some(protection) = &mut self.protection else {
            self.out.extend_from_slice(bytes);
            return Ok(());
        };
        while !bytes.is_empty() {
            let start = *self
                .record
                .get_or_insert_with(|| protection.begin(self.out));
            let room = MAX_PLAINTEXT_LEN - (self.out.len() - start);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.out.extend_from_slice(now);
            if now.len() == room {
                protection.seal(APPLICATION_DATA, start, self.out)?;
                self.record = None;
            }
            bytes = later;
        }
        Ok(())
    }

    /// Ends and encrypts the last record.
    #[inline]
    pub(crate) fn finish(self) -> Result<(), Fault> {
        match (self.protection, self.record) {
            (Some(protection), Some(start)) => protection.seal(APPLICATION_DATA, start, self.out),
            _ => Ok(()),
        }
    }
}
