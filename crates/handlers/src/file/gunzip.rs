//! The content of a gzip file, which is unpacked when it is pulled.

use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use flate2::{Decompress, FlushDecompress, Status};
use h2o_exchange::{Body, BodyError, BodySource};

/// Most bytes that are read from the gzip file at once.
const INPUT: usize = 16 * 1024;
/// Most bytes that are unpacked at once, even if the engine has room for more.
const OUTPUT: usize = 64 * 1024;
/// Most bytes of memory that the decoder uses: its window and tables.
const DECODER: usize = 48 * 1024;
/// The window size as a power of two that suffices for every gzip file (RFC 1951 §3.2.5).
const WINDOW_BITS: u8 = 15;
/// The first bytes of a gzip member (RFC 1952 §2.3.1).
const MAGIC: &[u8] = &[0x1f, 0x8b];

/// The unpacked content of a gzip file. Bytes after the last member are ignored, as the program `gzip` ignores them.
pub(super) struct Gunzip {
    source: Box<dyn BodySource>,
    decoder: Decompress,
    input: Bytes,
    state: GunzipState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GunzipState {
    /// The next bytes of the file belong to a member.
    Member,
    /// A member of the file has ended: another member follows, or the end of the file.
    Between,
    Ended,
}

impl Gunzip {
    pub(super) fn new(packed: Body) -> Self {
        Self {
            source: packed.into_source(),
            decoder: Decompress::new_gzip(WINDOW_BITS),
            input: Bytes::new(),
            state: GunzipState::Member,
        }
    }

    /// Reads until there are at least `len` bytes of input. Returns false at the end of the file.
    fn poll_fill(
        &mut self,
        context: &mut Context<'_>,
        len: usize,
    ) -> Poll<Result<bool, BodyError>> {
        while self.input.len() < len {
            match ready!(self.source.poll_next(context, INPUT)) {
                None => return Poll::Ready(Ok(false)),
                Some(Err(error)) => return Poll::Ready(Err(error)),
                Some(Ok(piece)) if self.input.is_empty() => self.input = piece,
                Some(Ok(piece)) => self.input = [&self.input[..], &piece].concat().into(),
            }
        }
        Poll::Ready(Ok(true))
    }

    /// Unpacks input into `output`, which does not grow beyond its capacity.
    fn unpack(&mut self, output: &mut Vec<u8>) -> Result<(), BodyError> {
        let before = self.decoder.total_in();
        let status = self
            .decoder
            .decompress_vec(&self.input, output, FlushDecompress::None)
            .map_err(|_| damaged())?;
        let taken = self.decoder.total_in() - before;
        self.input
            .advance(usize::try_from(taken).unwrap_or(usize::MAX));
        match status {
            Status::StreamEnd => self.state = GunzipState::Between,
            Status::Ok | Status::BufError => {}
        }
        Ok(())
    }
}

fn damaged() -> BodyError {
    BodyError::Failed("the gzip file is damaged".into())
}

impl BodySource for Gunzip {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        let mut output = Vec::with_capacity(max.min(OUTPUT));
        while output.is_empty() {
            match self.state {
                GunzipState::Member => {
                    if !ready!(self.poll_fill(context, 1))? {
                        // At the end of the file, the decoder may still hold bytes for which the output had no room
                        // before.
                        self.unpack(&mut output)?;
                        if output.is_empty() && self.state == GunzipState::Member {
                            let error = BodyError::Failed("the gzip file is cut short".into());
                            return Poll::Ready(Some(Err(error)));
                        }
                        continue;
                    }
                    let waiting = self.input.len();
                    self.unpack(&mut output)?;
                    // With input and room for output the decoder must make progress; otherwise this loop would not end.
                    if output.is_empty()
                        && self.input.len() == waiting
                        && self.state == GunzipState::Member
                    {
                        return Poll::Ready(Some(Err(damaged())));
                    }
                }
                GunzipState::Between => {
                    let full = ready!(self.poll_fill(context, MAGIC.len()))?;
                    if full && self.input.starts_with(MAGIC) {
                        self.decoder = Decompress::new_gzip(WINDOW_BITS);
                        self.state = GunzipState::Member;
                    } else {
                        self.state = GunzipState::Ended;
                    }
                }
                GunzipState::Ended => return Poll::Ready(None),
            }
        }
        Poll::Ready(Some(Ok(output.into())))
    }

    fn retained(&self) -> usize {
        self.source.retained() + self.input.len() + DECODER
    }
}
