//! HTTP/1: a request's path is the text between the first two blanks of its head.

use memchr::{memchr, memmem};

use crate::Fault;
use crate::sink::Sink;
use crate::site::Site;

/// Bytes of the longest head.
const MAX_HEAD_LEN: usize = 16 * 1024;

/// Substring searches that are prepared once.
pub(crate) struct Patterns {
    head_end: memmem::Finder<'static>,
    close: memmem::Finder<'static>,
}

impl Default for Patterns {
    fn default() -> Self {
        Self {
            head_end: memmem::Finder::new(b"\r\n\r\n"),
            close: memmem::Finder::new(b"onnection: close\r\n"),
        }
    }
}

/// The result of answering a piece of input.
pub(crate) struct Step {
    /// Number of bytes used.
    pub(crate) taken: usize,
    /// Whether the client wants no more answers.
    pub(crate) is_last: bool,
}

/// Answers the complete requests in `input`.
#[inline]
pub(crate) fn serve(input: &[u8], site: &Site, sink: &mut Sink<'_>) -> Result<Step, Fault> {
    let mut taken = 0;
    while taken < input.len() {
        let rest = &input[taken..];
        let Some(end) = site.patterns.head_end.find(rest) else {
            if rest.len() > MAX_HEAD_LEN {
                return Err(Fault("a request head is too long"));
            }
            break;
        };
        let head = &rest[..end + 4];
        let path = path(head).ok_or(Fault("a request has no path"))?;
        sink.put(&site.by_path(path).http1)?;
        taken += head.len();
        if site.patterns.close.find(head).is_some() {
            let is_last = true;
            return Ok(Step { taken, is_last });
        }
    }
    let is_last = false;
    Ok(Step { taken, is_last })
}

fn path(head: &[u8]) -> Option<&[u8]> {
    let target = &head[memchr(b' ', head)? + 1..];
    Some(&target[..memchr(b' ', target)?])
}
