//! Caches of a connection's latest request section and latest response head. Consecutive requests of a connection are often
//! alike (calls of one method, polls, health checks), and an index into the dynamic table of HPACK or QPACK keeps its
//! meaning until a field is inserted.

use std::ops::Range;

use super::{RequestSection, set_path};
use crate::{RequestHead, ResponseHead, StatusCode, prefixed, string_literal};

/// Length in bytes of the longest encoded request section that is remembered.
const MAX_SECTION_LEN: usize = 128;

/// Limit in bytes of the fields of a response head that is remembered.
const MAX_FIELDS_LEN: usize = 512;

/// The latest encoded request section, with the request head that it decodes to. The head is stored only when the section
/// came twice in a row; `:path` may differ: requests for the parts of a page differ only in their paths.
///
/// `G` is the generation of the decoder: it changes whenever a section may have another meaning than before.
#[derive(Debug, Default)]
pub struct RequestMemo<G> {
    section: Vec<u8>,
    /// The range in `section` of the string literal that encodes `:path`; empty if another path cannot be put in its place.
    path: Range<usize>,
    generation: G,
    said: Option<Box<(RequestHead, RequestSection)>>,
}

impl<G: Copy + PartialEq> RequestMemo<G> {
    /// Returns the result of a section that equals the previous two except for its path, and fills `head`. Otherwise
    /// returns `None`, with `head` unchanged or cleared. The path is decoded into `scratch`.
    #[inline]
    pub fn recall(
        &self,
        section: &[u8],
        end_stream: bool,
        generation: G,
        scratch: &mut Vec<u8>,
        head: &mut RequestHead,
    ) -> Option<RequestSection> {
        let (kept, request) = &**self.said.as_ref()?;
        if self.generation != generation || request.end_stream != end_stream {
            return None;
        }
        if self.section == section {
            head.copy_from(kept);
            return Some(*request);
        }
        scratch.clear();
        let (text, _) = string_literal::decode(self.path_in(section)?, 7, scratch).ok()?;
        head.copy_from(kept);
        set_path(head, text.bytes(scratch)).then_some(*request)
    }

    /// The string literal of `:path` in `section`, if the rest of `section` equals the remembered section.
    #[inline]
    fn path_in<'s>(&self, section: &'s [u8]) -> Option<&'s [u8]> {
        if self.path.is_empty() {
            return None;
        }
        let before = self.section.get(..self.path.start)?;
        let after = self.section.get(self.path.end..)?;
        let string = section.strip_prefix(before)?.strip_suffix(after)?;
        let (len, text) = prefixed::decode(string, 7).ok()?;
        (len as usize == text.len()).then_some(string)
    }

    /// Remembers the result of a section that did not change the dynamic table. `path` locates the string literal of
    /// `:path` in the section, whose length has a prefix of seven bits, unless a table stores the path.
    #[inline]
    pub fn note(
        &mut self,
        section: &[u8],
        generation: G,
        path: impl FnOnce(&[u8]) -> Option<Range<usize>>,
        head: &RequestHead,
        request: RequestSection,
    ) {
        if section.len() > MAX_SECTION_LEN {
            return;
        }
        let is_usual = request.refusal.is_none() && !request.is_tunnel;
        let comes_again = self.generation == generation
            && (self.section == section || self.path_in(section).is_some());
        self.said = (is_usual && comes_again).then(|| Box::new((head.clone(), request)));
        self.path = path(section).unwrap_or_default();
        self.section.clear();
        self.section.extend_from_slice(section);
        self.generation = generation;
    }

    /// Bytes of memory that the cache has allocated.
    #[must_use]
    pub fn retained(&self) -> usize {
        let said = self.said.as_ref().map_or(0, |said| {
            size_of::<(RequestHead, RequestSection)>() + said.0.headers.retained()
        });
        self.section.capacity() + said
    }
}

/// The latest response head in encoded form, with the head and the state of the encoder that it was encoded from.
///
/// `G` is the generation of the encoder: it changes whenever the encoder may encode a field in another way than before.
#[derive(Debug, Default)]
pub struct ResponseMemo<G> {
    /// The fields of the head in the form of HTTP/1 ([`Headers::wire`](crate::Headers::wire)), followed by the value of
    /// `server`.
    fields: Vec<u8>,
    fields_len: usize,
    status: Option<StatusCode>,
    length: Option<u64>,
    generation: G,
    section: Vec<u8>,
}

impl<G: Copy + PartialEq> ResponseMemo<G> {
    /// The encoded section for `head`, if `head` equals the remembered head and the encoder's generation is the same.
    #[inline]
    #[must_use]
    pub fn find(&self, head: &ResponseHead<'_>, generation: G) -> Option<&[u8]> {
        let wire = head.headers.wire()?;
        let (fields, server) = self.fields.split_at_checked(self.fields_len)?;
        let is_same = self.status == Some(head.status)
            && self.length == head.length
            && self.generation == generation
            && fields == wire
            && server == head.server.unwrap_or_default();
        is_same.then_some(&self.section)
    }

    /// Remembers `section`, which the encoder wrote for `head` without changing its dynamic table. Returns whether it is
    /// remembered.
    #[inline]
    pub fn note(&mut self, head: &ResponseHead<'_>, generation: G, section: &[u8]) -> bool {
        let Some(wire) = head
            .headers
            .wire()
            .filter(|wire| wire.len() <= MAX_FIELDS_LEN)
        else {
            return false;
        };
        self.fields.clear();
        self.fields.extend_from_slice(wire);
        self.fields
            .extend_from_slice(head.server.unwrap_or_default());
        self.fields_len = wire.len();
        self.status = Some(head.status);
        self.length = head.length;
        self.generation = generation;
        self.section.clear();
        self.section.extend_from_slice(section);
        true
    }

    /// Bytes of memory that the cache has allocated.
    #[must_use]
    pub const fn retained(&self) -> usize {
        self.fields.capacity() + self.section.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field_section::Refusal;
    use crate::{Headers, Known, Name};

    fn request(path: &[u8], end_stream: bool) -> (RequestHead, RequestSection) {
        let mut head = RequestHead::default();
        let target = head.headers.store(path);
        head.set_target(target);
        head.headers.push(Known::Accept, b"*/*");
        let section = RequestSection {
            end_stream,
            refusal: None,
            content_length: None,
            is_tunnel: false,
            priority: None,
        };
        (head, section)
    }

    /// A request section whose `:path` is a string literal that begins at the byte 2.
    fn section(path: &[u8]) -> Vec<u8> {
        let mut section = vec![0x11, 0x22];
        string_literal::encode_plain(0, 7, path, &mut section);
        section.push(0x33);
        section
    }

    fn note(memo: &mut RequestMemo<u32>, generation: u32, path: &[u8]) {
        let (head, said) = request(path, true);
        let section = section(path);
        let string = |section: &[u8]| Some(2..section.len() - 1);
        memo.note(&section, generation, string, &head, said);
    }

    fn recall(memo: &RequestMemo<u32>, generation: u32, path: &[u8], end: bool) -> Option<Vec<u8>> {
        let mut head = RequestHead::default();
        let (section, mut scratch) = (section(path), b"of before".to_vec());
        memo.recall(&section, end, generation, &mut scratch, &mut head)?;
        assert_eq!(head.headers.get(Known::Accept), Some(&b"*/*"[..]));
        Some(head.target().to_vec())
    }

    #[test]
    fn a_request_is_known_once_it_came_twice() {
        let mut memo = RequestMemo::default();
        assert_eq!(recall(&memo, 0, b"/a", true), None);
        note(&mut memo, 0, b"/a");
        assert_eq!(recall(&memo, 0, b"/a", true), None);
        note(&mut memo, 0, b"/b");
        assert_eq!(recall(&memo, 0, b"/b", true), Some(b"/b".to_vec()));
        assert_eq!(
            recall(&memo, 0, b"/other?x", true),
            Some(b"/other?x".to_vec())
        );
        // Differences that must keep the remembered head from being used.
        assert_eq!(
            recall(&memo, 1, b"/b", true),
            None,
            "the compression table has changed since the request was remembered"
        );
        assert_eq!(
            recall(&memo, 0, b"/b", false),
            None,
            "this field section does not end the stream"
        );
        assert_eq!(
            recall(&memo, 0, b"x", true),
            None,
            "the bytes are not a path"
        );
        assert_eq!(recall(&memo, 0, b"/ x", true), None, "the path has a blank");
        assert!(memo.retained() > 0);
    }

    #[test]
    fn requests_that_are_refused_or_long_are_not_remembered() {
        let mut memo = RequestMemo::default();
        let (head, mut said) = request(b"/a", true);
        said.refusal = Some(Refusal::ValueInvalid);
        for _ in 0..3 {
            memo.note(&section(b"/a"), 0, |_| None, &head, said);
        }
        assert_eq!(recall(&memo, 0, b"/a", true), None);
        let long = [b'/'; 130];
        for _ in 0..3 {
            note(&mut memo, 0, &long);
        }
        assert_eq!(recall(&memo, 0, &long, true), None);
        let (head, said) = request(b"/a", true);
        for _ in 0..3 {
            memo.note(&section(b"/a"), 0, |_| None, &head, said);
        }
        assert_eq!(recall(&memo, 0, b"/a", true), Some(b"/a".to_vec()));
        assert_eq!(
            recall(&memo, 0, b"/b", true),
            None,
            "the remembered request may not be used with another path"
        );
    }

    fn response<'a>(
        headers: &'a Headers,
        length: Option<u64>,
        server: &'a [u8],
    ) -> ResponseHead<'a> {
        ResponseHead {
            status: StatusCode::OK,
            reason: None,
            headers,
            length,
            server: Some(server),
        }
    }

    #[test]
    fn a_response_is_known_while_nothing_of_it_differs() {
        let mut headers = Headers::new();
        headers.push(Name::Other("x-a"), b"1");
        let head = response(&headers, Some(5), b"h2o");
        let mut memo = ResponseMemo::default();
        assert_eq!(memo.find(&head, 0), None);
        assert!(memo.note(&head, 0, b"section"));
        assert_eq!(memo.find(&head, 0), Some(&b"section"[..]));
        assert_eq!(
            memo.find(&head, 1),
            None,
            "the compression table has changed since the request was remembered"
        );
        let other = ResponseHead {
            status: StatusCode::NOT_FOUND,
            ..head
        };
        assert_eq!(memo.find(&other, 0), None);
        assert_eq!(memo.find(&response(&headers, Some(6), b"h2o"), 0), None);
        assert_eq!(memo.find(&response(&headers, None, b"h2o"), 0), None);
        assert_eq!(memo.find(&response(&headers, Some(5), b"h2o/2"), 0), None);
        let mut more = headers.clone();
        more.push(Name::Other("x-b"), b"2");
        assert_eq!(memo.find(&response(&more, Some(5), b"h2o"), 0), None);
        let mut shifted = Headers::new();
        shifted.push(Name::Other("x-a"), b"");
        assert_eq!(
            memo.find(&response(&shifted, Some(5), b"1\r\nh2o"), 0),
            None
        );
    }

    #[test]
    fn long_and_edited_responses_are_not_remembered() {
        let mut memo = ResponseMemo::default();
        let mut headers = Headers::new();
        headers.push(Name::Other("x-a"), &[b'v'; 600]);
        assert!(!memo.note(&response(&headers, None, b""), 0, b"section"));
        let mut headers = Headers::new();
        headers.push(Name::Other("x-a"), b"1");
        headers.remove(Name::Other("x-a"));
        assert!(!memo.note(&response(&headers, None, b""), 0, b"section"));
        assert_eq!(memo.find(&response(&headers, None, b""), 0), None);
        assert_eq!(memo.retained(), 0);
    }
}
