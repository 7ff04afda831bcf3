//! The compressors for gzip, brotli and zstd behind one interface, which also tells how much memory they hold.

use std::cell::RefCell;

use flate2::{Compress, Compression, FlushCompress};
use h2o_exchange::Worker;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective, zstd_sys};

use super::brotli::BrotliEncoder;
use super::operation::{EncoderError, Operation};
use crate::coding::Coding;

/// Most unused compressors that a worker keeps.
const SPARE: usize = 8;
/// Fewest free bytes that the output buffer of a compressor has when the compressor begins to write to it.
const ROOM: usize = 4096;

/// A content coding with the level of compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Method {
    pub(crate) coding: Coding,
    pub(crate) level: u8,
}

impl Method {
    /// Whether compressing a piece takes so long (more than about two milliseconds) that another thread does it.
    pub(super) const fn is_slow(self) -> bool {
        match self.coding {
            Coding::Gzip => self.level >= 8,
            Coding::Brotli => self.level >= 5,
            Coding::Zstd => self.level >= 9,
        }
    }

    /// Most bytes compressed in one turn of the worker, so that other connections are not held up. With longer pieces the compressors of
    /// several responses evict each other less often from the processor's cache: gzip at level 6 takes a tenth less time for pieces
    /// of 64 KB than for pieces of 32 KB.
    pub(super) const fn piece(self) -> usize {
        match (self.coding, self.level) {
            // Up to level 1 the library of brotli compresses each piece on its own: shorter pieces would make the output longer, and
            // for longer ones the compressor would take more than 300 KB. From level 4 to 8 it compresses blocks of this length.
            (Coding::Brotli, _) | (Coding::Gzip, 2..=6) | (Coding::Zstd, 0..=3) => 64 * 1024,
            // A client that reads nothing holds a piece of input and its output: at the default level of gzip less than 400 KB in all.
            (Coding::Gzip | Coding::Zstd, _) => 32 * 1024,
        }
    }

    /// The size of the compressor's window as a power of two, for content of `len` bytes. The fast levels get small
    /// windows to save memory, because sites use them for every response.
    fn window_bits(self, len: Option<u64>) -> u8 {
        let most = match (self.coding, self.level) {
            (Coding::Gzip, 0..=3) => 14,
            (Coding::Zstd, 0..=3) | (Coding::Gzip, _) => 15,
            (Coding::Brotli, 0..=1) => 16,
            (Coding::Zstd, 4..=8) => 17,
            (Coding::Brotli, _) | (Coding::Zstd, _) => 18,
        };
        let bits = len.map_or(most, needed_bits).min(most);
        if self.coding == Coding::Brotli && self.level >= 5 {
            return bits.max(Self::LEAST_BROTLI_BITS);
        }
        bits
    }

    /// The smallest window of brotli from level 5 on, as a power of two. With a smaller one the library uses other tables, which take up
    /// to 40 % more time for short content and make it no shorter.
    const LEAST_BROTLI_BITS: u8 = 17;

    /// The binary logarithm of the compressor's window in bytes, for a static file of `len` bytes. Every decoder of brotli and zstd takes
    /// a window of 4 MB (RFC 8878 §3.1.1.1.2).
    fn file_window_bits(len: u64) -> u8 {
        needed_bits(len).min(22)
    }
}

/// The binary logarithm of the smallest window in bytes that holds content of `len` bytes. The smallest window of brotli and zstd has 10
/// bits.
fn needed_bits(len: u64) -> u8 {
    let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
    u8::try_from(bits).unwrap_or(u8::MAX).max(10)
}

/// A compressor for gzip, brotli or zstd.
pub(crate) enum Encoder {
    Gzip { state: Box<Compress>, memory: usize },
    Brotli(BrotliEncoder),
    Zstd(CCtx<'static>),
}

impl Encoder {
    /// Creates a compressor for content of `len` bytes, if the length is known.
    pub(super) fn new(method: Method, len: Option<u64>) -> Result<Self, EncoderError> {
        Self::with_window(method, len, method.window_bits(len))
    }

    /// Creates a compressor for a static file of `len` bytes, whose compressed form is kept. It may take more memory than the compressor
    /// of a response.
    pub(crate) fn of_file(method: Method, len: u64) -> Result<Self, EncoderError> {
        Self::with_window(method, Some(len), Method::file_window_bits(len))
    }

    fn with_window(method: Method, len: Option<u64>, bits: u8) -> Result<Self, EncoderError> {
        match method.coding {
            Coding::Gzip => {
                // The window is the same for responses of every length, so that responses can share compressors: most of a compressor's
                // memory does not depend on the window.
                let bits = method.window_bits(None).max(bits.min(15));
                let level = Compression::new(u32::from(method.level));
                Ok(Self::Gzip {
                    state: Box::new(Compress::new_gzip(level, bits)),
                    // The memory that zlib allocates: four window sizes for the doubled window and the hash chains, and
                    // about 200 KiB for hash heads and symbols.
                    memory: (4 << bits) + 200 * 1024,
                })
            }
            Coding::Brotli => BrotliEncoder::new(method.level, bits, len).map(Self::Brotli),
            Coding::Zstd => {
                let mut state = CCtx::try_create().ok_or(EncoderError)?;
                let set = |state: &mut CCtx<'_>, parameter| {
                    state.set_parameter(parameter).map_err(|_| EncoderError)
                };
                set(
                    &mut state,
                    CParameter::CompressionLevel(i32::from(method.level)),
                )?;
                if method.level <= 3 {
                    // With these parameters a zstd compressor takes 270 KB, its window included; by default it takes 3
                    // MB.
                    set(&mut state, CParameter::HashLog(14))?;
                    set(&mut state, CParameter::ChainLog(13))?;
                    set(&mut state, CParameter::MaxBlockSize(1 << 14))?;
                }
                let mut encoder = Self::Zstd(state);
                encoder.begin(bits, len)?;
                Ok(encoder)
            }
        }
    }

    /// Compresses all of `input`, and appends the output of the compressor to `output`.
    pub(crate) fn encode(
        &mut self,
        input: &[u8],
        operation: Operation,
        output: &mut Vec<u8>,
    ) -> Result<(), EncoderError> {
        match self {
            Self::Gzip { state, .. } => deflate(state, input, operation, output),
            Self::Brotli(encoder) => encoder.encode(input, operation, output),
            Self::Zstd(state) => zstd(state, input, operation, output),
        }
    }

    /// Number of bytes of memory that the compressor holds.
    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Gzip { memory, .. } => *memory,
            Self::Brotli(encoder) => encoder.memory(),
            Self::Zstd(state) => state.sizeof(),
        }
    }

    /// Prepares an unused compressor for content of `len` bytes, if that is known, with a window of 2 to the power of
    /// `window_bits` bytes.
    fn begin(&mut self, window_bits: u8, len: Option<u64>) -> Result<(), EncoderError> {
        if let Self::Zstd(state) = self {
            let bits = CParameter::WindowLog(u32::from(window_bits));
            let set = state.set_parameter(bits);
            let set = set.and_then(|_| state.set_pledged_src_size(len));
            return set.map(|_| ()).map_err(|_| EncoderError);
        }
        Ok(())
    }

    /// Resets the compressor after a response, so that another response can use it. Returns false if that is not
    /// possible.
    fn reset(&mut self) -> bool {
        match self {
            Self::Gzip { state, .. } => {
                state.reset();
                true
            }
            Self::Brotli(_) => false,
            Self::Zstd(state) => state.reset(ResetDirective::SessionOnly).is_ok(),
        }
    }
}

fn deflate(
    state: &mut Compress,
    mut input: &[u8],
    operation: Operation,
    output: &mut Vec<u8>,
) -> Result<(), EncoderError> {
    let flush = match operation {
        Operation::Continue => FlushCompress::None,
        Operation::Flush => FlushCompress::Sync,
        Operation::Finish => FlushCompress::Finish,
    };
    loop {
        output.reserve(ROOM);
        let before = state.total_in();
        state
            .compress_vec(input, output, flush)
            .map_err(|_| EncoderError)?;
        let taken = usize::try_from(state.total_in() - before).map_err(|_| EncoderError)?;
        input = input.get(taken..).ok_or(EncoderError)?;
        // If the compressor leaves space in the output buffer, it has no more output for this operation.
        if input.is_empty() && output.len() < output.capacity() {
            return Ok(());
        }
    }
}

fn zstd(
    state: &mut CCtx<'static>,
    input: &[u8],
    operation: Operation,
    output: &mut Vec<u8>,
) -> Result<(), EncoderError> {
    let directive = match operation {
        Operation::Continue => zstd_sys::ZSTD_EndDirective::ZSTD_e_continue,
        Operation::Flush => zstd_sys::ZSTD_EndDirective::ZSTD_e_flush,
        Operation::Finish => zstd_sys::ZSTD_EndDirective::ZSTD_e_end,
    };
    let mut input = InBuffer::around(input);
    loop {
        output.reserve(ROOM);
        let at = output.len();
        let mut out = OutBuffer::around_pos(output, at);
        let held = state
            .compress_stream2(&mut out, &mut input, directive)
            .map_err(|_| EncoderError)?;
        let is_done = match operation {
            Operation::Continue => out.pos() < out.capacity(),
            Operation::Flush | Operation::Finish => held == 0,
        };
        if is_done && input.pos() == input.src.len() {
            return Ok(());
        }
    }
}

/// Unused compressors of a worker, whose memory the next responses reuse.
#[derive(Default)]
pub(super) struct SpareEncoders(RefCell<Vec<(Method, Encoder)>>);

impl SpareEncoders {
    /// Takes an unused compressor, or creates one, for content of `len` bytes, if the length is known.
    pub(super) fn take(
        worker: &Worker,
        method: Method,
        len: Option<u64>,
    ) -> Result<Encoder, EncoderError> {
        let spare = worker.local::<Self>();
        let mut spare = spare.0.borrow_mut();
        match spare.iter().position(|(kept, _)| *kept == method) {
            Some(at) => {
                let mut encoder = spare.swap_remove(at).1;
                encoder.begin(method.window_bits(len), len)?;
                Ok(encoder)
            }
            None => Encoder::new(method, len),
        }
    }

    /// Keeps a compressor whose response has ended, for a later response.
    pub(super) fn put_back(worker: &Worker, method: Method, mut encoder: Encoder) {
        let spare = worker.local::<Self>();
        let mut spare = spare.0.borrow_mut();
        if spare.len() < SPARE && encoder.reset() {
            spare.push((method, encoder));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn methods() -> Vec<Method> {
        let levels = [
            (Coding::Gzip, 1..=9),
            (Coding::Brotli, 0..=11),
            (Coding::Zstd, 1..=22),
        ];
        let methods = levels
            .into_iter()
            .flat_map(|(coding, levels)| levels.map(move |level| Method { coding, level }));
        methods.collect()
    }

    /// Text that compresses about as well as a web page.
    fn text(len: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(7);
        let words: Vec<_> = (0..500)
            .map(|_| {
                (0..random.usize(2..9))
                    .map(|_| random.lowercase() as u8)
                    .collect::<Vec<_>>()
            })
            .collect();
        let mut text = Vec::with_capacity(len + 16);
        while text.len() < len {
            text.extend_from_slice(&words[random.usize(..words.len())]);
            text.push(b' ');
        }
        text.truncate(len);
        text
    }

    /// Compresses `content` in pieces as long as those of a response, each followed by `operation`. Returns the output, and the most
    /// memory that the compressor held between them.
    fn compressed(
        method: Method,
        content: &[u8],
        operation: Operation,
        known: bool,
    ) -> (Vec<u8>, usize) {
        let len = known.then_some(content.len() as u64);
        let mut encoder = Encoder::new(method, len).unwrap();
        let (mut output, mut memory) = (Vec::new(), 0);
        for piece in content.chunks(method.piece()) {
            encoder.encode(piece, operation, &mut output).unwrap();
            memory = memory.max(encoder.memory());
        }
        encoder.encode(b"", Operation::Finish, &mut output).unwrap();
        (output, memory)
    }

    pub(super) fn expand(coding: Coding, content: &[u8]) -> Vec<u8> {
        crate::compress::testing::expand(coding, content)
    }

    #[test]
    fn every_level_gives_back_the_content() {
        let content = text(60_000);
        for method in methods() {
            for known in [false, true] {
                let (packed, _) = compressed(method, &content, Operation::Continue, known);
                assert!(
                    packed.len() < content.len() * 6 / 10,
                    "{method:?}: {}",
                    packed.len()
                );
                assert!(
                    expand(method.coding, &packed) == content,
                    "{method:?} {known}"
                );
            }
        }
    }

    #[test]
    fn a_flush_lets_the_client_decode_all_there_is() {
        let content = text(35_000);
        for method in methods() {
            let mut encoder = Encoder::new(method, None).unwrap();
            let mut output = Vec::new();
            for (at, piece) in content.chunks(1000).enumerate() {
                encoder
                    .encode(piece, Operation::Flush, &mut output)
                    .unwrap();
                let got = expand(method.coding, &output);
                assert!(
                    got == content[..(at + 1) * 1000],
                    "{method:?} piece {at}: {}",
                    got.len()
                );
            }
        }
    }

    #[test]
    fn brotli_takes_no_more_memory_for_short_content() {
        let content = text(2_000);
        for level in 0..=9 {
            let method = Method {
                coding: Coding::Brotli,
                level,
            };
            let (_, memory) = compressed(method, &content, Operation::Continue, true);
            let (_, unknown) = compressed(method, &content, Operation::Continue, false);
            assert!(memory <= unknown, "level {level}: {memory}, {unknown}");
        }
    }

    #[test]
    fn a_stream_at_default_level_takes_less_than_300_kb() {
        let content = text(2_000_000);
        for (coding, level) in [(Coding::Gzip, 1), (Coding::Brotli, 1), (Coding::Zstd, 3)] {
            for len in [200, 2_000_000] {
                let method = Method { coding, level };
                let (_, memory) =
                    compressed(method, &content[..len], Operation::Continue, len < 1000);
                assert!(memory < 300_000, "{method:?} {len}: {memory}");
            }
        }
    }
}
