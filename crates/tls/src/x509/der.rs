//! A DER parser (X.690), as far as certificates need one.

/// A DER element: its tag and its content.
#[derive(Clone, Copy, Debug)]
pub struct Element<'a> {
    /// The tag: class, form and number in one byte.
    pub tag: u8,
    /// The content of the element, without tag and length.
    pub content: &'a [u8],
    /// The whole element, with tag and length.
    pub whole: &'a [u8],
}

impl<'a> Element<'a> {
    /// The content, if the element has this tag.
    #[must_use]
    pub fn content_of(self, tag: u8) -> Option<&'a [u8]> {
        (self.tag == tag).then_some(self.content)
    }
}

/// Reads elements from the front of the remaining bytes.
#[derive(Clone, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Reads the next element. Tags above 30, and lengths of more than three bytes, do not occur in certificates, and are refused.
    pub fn element(&mut self) -> Option<Element<'a>> {
        let (&[tag, first], rest) = self.0.split_first_chunk()?;
        let (len, header_len) = match first {
            0..=0x7f => (usize::from(first), 2),
            0x81..=0x83 => {
                let bytes = usize::from(first & 0x7f);
                let bytes_of_len = rest.get(..bytes)?.iter();
                let len = bytes_of_len.fold(0, |len, byte| len << 8 | usize::from(*byte));
                (len, 2 + bytes)
            }
            _ => return None,
        };
        let (whole, rest) = self.0.split_at_checked(header_len + len)?;
        self.0 = rest;
        Some(Element {
            tag,
            content: &whole[header_len..],
            whole,
        })
    }

    /// Reads the content of the next element, which must have this tag.
    pub fn content_of(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.element()?.content_of(tag)
    }

    /// Reads the content of the next element if it has this tag; otherwise the element is not consumed.
    pub fn content_if(&mut self, tag: u8) -> Option<&'a [u8]> {
        if self.0.first() != Some(&tag) {
            return None;
        }
        self.content_of(tag)
    }

    /// Whether no bytes are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

pub(crate) const NULL: u8 = 0x05;

/// Encodes a DER element with this tag, whose content is the concatenation of these parts.
pub(crate) fn element(tag: u8, content: &[&[u8]]) -> Vec<u8> {
    let content = content.concat();
    let len = content.len().to_be_bytes();
    let significant = len.iter().position(|&byte| byte != 0);
    let len = &len[significant.unwrap_or(len.len() - 1)..];
    let mut out = vec![tag];
    match len {
        &[short @ 0..=0x7f] => out.push(short),
        len => {
            // The length is encoded in at most eight bytes, so this conversion cannot fail.
            out.push(0x80 | u8::try_from(len.len()).unwrap_or(u8::MAX));
            out.extend_from_slice(len);
        }
    }
    out.extend_from_slice(&content);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for len in [0, 1, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x10000] {
            let content = vec![7; len];
            let written = element(4, &[&content[..len / 2], &content[len / 2..]]);
            let mut reader = Reader(&written);
            assert_eq!(reader.content_of(4), Some(&content[..]), "{len}");
            assert!(reader.is_empty());
        }
        assert_eq!(element(NULL, &[]), [5, 0]);
    }

    #[test]
    fn lengths_are_of_up_to_three_bytes() {
        let whole_len = |header: &[u8], content: usize| {
            let input = [header, &vec![0; content]].concat();
            Reader(&input).element().map(|element| element.whole.len())
        };
        assert_eq!(whole_len(&[4, 0x7f], 0x7f), Some(0x81));
        assert_eq!(whole_len(&[4, 0x81, 0x80], 0x80), Some(0x83));
        assert_eq!(whole_len(&[4, 0x82, 1, 0], 0x100), Some(0x104));
        assert_eq!(whole_len(&[4, 0x83, 1, 0, 0], 0x10000), Some(0x10005));
        assert_eq!(whole_len(&[4, 0x84, 0, 0, 0, 1], 1), None);
        assert_eq!(whole_len(&[4, 0x80], 9), None);
        assert_eq!(whole_len(&[4, 0x82, 1, 0], 0xff), None);
    }
}
