//! Decoders for the tests of compression.

use std::io::Read;

use crate::coding::Coding;

/// Decodes `packed`, which may be the first part of a compressed body, as far as a client could decode it.
pub(super) fn expand(coding: Coding, packed: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    // At the end of an unfinished stream the decoders report an error after the last byte.
    let _ = match coding {
        Coding::Gzip => flate2::read::GzDecoder::new(packed).read_to_end(&mut content),
        Coding::Brotli => brotli::Decompressor::new(packed, 4096).read_to_end(&mut content),
        Coding::Zstd => {
            expand_zstd(packed, &mut content);
            Ok(0)
        }
    };
    content
}

fn expand_zstd(packed: &[u8], content: &mut Vec<u8>) {
    let mut decoder = zstd_safe::DCtx::create();
    let mut input = zstd_safe::InBuffer::around(packed);
    loop {
        content.reserve(1 << 17);
        let at = content.len();
        let mut output = zstd_safe::OutBuffer::around_pos(content, at);
        decoder.decompress_stream(&mut output, &mut input).unwrap();
        if output.pos() < output.capacity() && input.pos() == packed.len() {
            return;
        }
    }
}
