//! What compressors of all codings have in common.

/// What a compressor does after it has taken the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// The compressor may keep back input that compresses better together with the input that follows.
    Continue,
    /// The compressor outputs everything, so that the client can decode all that was compressed.
    Flush,
    /// The compressor ends the compressed content.
    Finish,
}

/// The error of a compressor that has failed, for lack of memory or by a fault of its library.
#[derive(Debug)]
pub(crate) struct EncoderError;
