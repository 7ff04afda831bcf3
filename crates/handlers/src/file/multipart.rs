//! Responses with several ranges of a file (RFC 9110 §14.6).

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::task::{Context, Poll};

use bytes::Bytes;
use h2o_exchange::{Body, BodyError, BodySource};

use super::document::Document;
use super::range::ByteRange;

/// Number of characters in a boundary of a multipart body.
const BOUNDARY: usize = 20;

/// The content of a `multipart/byteranges` response.
pub(super) struct Multipart {
    boundary: [u8; BOUNDARY],
    len: u64,
    pieces: VecDeque<Box<dyn BodySource>>,
}

impl Multipart {
    /// Creates the content with these ranges of a document, in this order.
    pub(super) fn new(document: &Document, ranges: &[ByteRange]) -> Self {
        let mut multipart = Self {
            boundary: boundary(),
            len: 0,
            pieces: VecDeque::with_capacity(2 * ranges.len() + 1),
        };
        let mut line_break = "";
        for range in ranges {
            let head = format!(
                "{line_break}--{}\r\nContent-Type: {}\r\nContent-Range: {}\r\n\r\n",
                multipart.boundary.escape_ascii(),
                document.kind.content_type,
                content_range(*range, document.size),
            );
            multipart.push(Body::Bytes(head.into()));
            multipart.push(document.content.part(*range));
            line_break = "\r\n";
        }
        let end = format!("\r\n--{}--\r\n", multipart.boundary.escape_ascii());
        multipart.push(Body::Bytes(end.into()));
        multipart
    }

    fn push(&mut self, piece: Body) {
        self.len += piece.len().unwrap_or(0);
        self.pieces.push_back(piece.into_source());
    }

    /// The value of the response's `content-type` field.
    pub(super) fn content_type(&self) -> String {
        format!(
            "multipart/byteranges; boundary={}",
            self.boundary.escape_ascii()
        )
    }

    /// The exact length of the content in bytes.
    pub(super) const fn len(&self) -> u64 {
        self.len
    }
}

/// The value of `content-range` for a range of a document of `size` bytes.
pub(super) fn content_range(range: ByteRange, size: u64) -> String {
    let mut text = String::with_capacity("bytes -/".len() + 3 * "18446744073709551615".len());
    let mut digits = itoa::Buffer::new();
    text.push_str("bytes ");
    text.push_str(digits.format(range.first));
    text.push('-');
    text.push_str(digits.format(range.last));
    text.push('/');
    text.push_str(digits.format(size));
    text
}

/// Creates a boundary of random letters and digits, so that the author of a file cannot know it and put it into the
/// file.
fn boundary() -> [u8; BOUNDARY] {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let random = |_| u128::from(RandomState::new().hash_one(0u8));
    let mut number = (0..2).map(random).fold(0, |sum, half| sum << 64 | half);
    std::array::from_fn(|_| {
        let digit = usize::try_from(number % 62).unwrap_or(0);
        number /= 62;
        DIGITS[digit]
    })
}

impl BodySource for Multipart {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        while let Some(piece) = self.pieces.front_mut() {
            match piece.poll_next(context, max) {
                Poll::Ready(None) => {
                    self.pieces.pop_front();
                }
                other => return other,
            }
        }
        Poll::Ready(None)
    }

    fn retained(&self) -> usize {
        self.pieces.iter().map(|piece| piece.retained()).sum()
    }
}
