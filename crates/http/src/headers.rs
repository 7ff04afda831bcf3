//! The header block of a message: an arena with the text of all fields, and a vector that locates each field in the arena.

use crate::name::{Known, LONGEST_KNOWN, Name, TOKEN};

/// A range of bytes in the arena of a [`Headers`] block. Valid until that block is cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// An empty span.
    pub const EMPTY: Self = Self { start: 0, len: 0 };

    /// The span of `len` bytes from `start` on.
    ///
    /// # Panics
    /// Panics if the range does not fit in 32 bits; the limits on message heads are far below that.
    #[inline]
    #[must_use]
    pub fn new(start: usize, len: usize) -> Self {
        match (u32::try_from(start), u32::try_from(len)) {
            (Ok(start), Ok(len)) => Self { start, len },
            _ => too_long(),
        }
    }

    /// Length of the span in bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.len as usize
    }

    /// Whether the span is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Whether both spans begin at the same byte.
    pub(crate) const fn is_at(self, other: Self) -> bool {
        self.start == other.start
    }

    /// The first `len` bytes of the span (all of it if it is shorter).
    #[must_use]
    pub fn prefix(self, len: usize) -> Self {
        Self {
            start: self.start,
            len: self.len.min(u32::try_from(len).unwrap_or(u32::MAX)),
        }
    }

    /// The span without its first `skip` bytes (empty if it is shorter).
    #[must_use]
    pub fn suffix(self, skip: usize) -> Self {
        let skip = self.len.min(u32::try_from(skip).unwrap_or(u32::MAX));
        Self {
            start: self.start + skip,
            len: self.len - skip,
        }
    }

    fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

#[cold]
fn too_long() -> ! {
    panic!("a message head is limited far below 4 GiB")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StoredField {
    known: Option<Known>,
    /// The name in lower case; unused for well-known names.
    name: Span,
    value: Span,
    /// The name as the peer wrote it; empty if its spelling was not kept.
    spelling: Span,
}

/// One field of a [`Headers`] block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The field's name.
    pub name: Name<'a>,
    /// The field's value, without surrounding blanks.
    pub value: &'a [u8],
    /// The name as received over HTTP/1, for forwarding; `None` if it was received in lower case or its spelling was not
    /// kept.
    pub spelling: Option<&'a [u8]>,
}

/// A header block: fields in order, duplicates kept, names in lower case.
///
/// All text is in one arena. Clearing keeps the memory, so a connection that reuses its block allocates nothing per
/// request. Removing a field leaves its text in the arena until `clear`.
///
/// While fields are only added, the arena has the form in which HTTP/1 writes them, so that the fields of a cached response
/// are sent in one copy ([`Headers::wire`]).
///
/// Blocks are equal if they have the same fields in the same places of equal arenas: blocks that came about in different ways may
/// differ although their fields do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    arena: Vec<u8>,
    entries: Vec<StoredField>,
    /// Whether the arena is not exactly the fields' lines in the form of HTTP/1.
    scattered: bool,
}

impl Headers {
    /// An empty block, which allocates nothing before the first field.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            arena: Vec::new(),
            entries: Vec::new(),
            scattered: false,
        }
    }

    /// An empty block with room for `fields` fields, whose names and values have `len` bytes in total.
    #[must_use]
    pub fn with_room(fields: usize, len: usize) -> Self {
        // A field's line also has a colon, a blank and a line break.
        Self {
            arena: Vec::with_capacity(len + 4 * fields),
            entries: Vec::with_capacity(fields),
            scattered: false,
        }
    }

    /// Removes all fields and their text; the memory is kept.
    #[inline]
    pub fn clear(&mut self) {
        self.arena.clear();
        self.entries.clear();
        self.scattered = false;
    }

    /// Number of fields in the block.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the block has no fields.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of memory that the block holds, for accounting.
    #[must_use]
    pub fn retained(&self) -> usize {
        self.arena.capacity() + self.entries.capacity() * size_of::<StoredField>()
    }

    /// Frees the memory of the block if it exceeds `limit` bytes.
    pub fn shrink(&mut self, limit: usize) {
        if self.retained() > limit {
            *self = Self::new();
        }
    }

    /// Copies `text` into the arena. Returns where it is.
    #[inline]
    pub fn store(&mut self, text: &[u8]) -> Span {
        self.scattered = true;
        self.append(text)
    }

    /// Copies `pieces` into the arena one after another. Returns the span of all of them.
    pub fn store_pieces<'p>(&mut self, pieces: impl IntoIterator<Item = &'p [u8]>) -> Span {
        self.scattered = true;
        self.append_pieces(pieces)
    }

    fn append_pieces<'p>(&mut self, pieces: impl IntoIterator<Item = &'p [u8]>) -> Span {
        let start = self.arena.len();
        for piece in pieces {
            self.arena.extend_from_slice(piece);
        }
        Span::new(start, self.arena.len() - start)
    }

    fn append(&mut self, text: &[u8]) -> Span {
        let span = Span::new(self.arena.len(), text.len());
        self.arena.extend_from_slice(text);
        span
    }

    /// All fields in the form of HTTP/1, each `name: value` and CR LF. `None` if the arena has another form: a field was
    /// removed or changed, a value has a line end or NUL, or one of the fields frames messages in HTTP/1.
    #[inline]
    #[must_use]
    pub fn wire(&self) -> Option<&[u8]> {
        (!self.scattered).then_some(&self.arena)
    }

    /// The text of a span of this block.
    #[inline]
    #[must_use]
    pub fn text(&self, span: Span) -> &[u8] {
        self.arena.get(span.range()).unwrap_or_default()
    }

    /// Appends a field to the block.
    pub fn push<'n>(&mut self, name: impl Into<Name<'n>>, value: &[u8]) {
        let (known, name) = self.push_name(name.into(), value.len());
        let value = self.push_value(value);
        self.arena.extend_from_slice(b"\r\n");
        self.entries.push(StoredField {
            known,
            name,
            value,
            spelling: Span::default(),
        });
    }

    /// Like [`Headers::push`], for a value that is joined from `pieces`.
    pub fn push_pieces<'n, 'p>(
        &mut self,
        name: impl Into<Name<'n>>,
        pieces: impl IntoIterator<Item = &'p [u8]>,
    ) {
        let (known, name) = self.push_name(name.into(), 0);
        let value = self.append_pieces(pieces);
        self.scattered |= has_break(self.text(value));
        self.arena.extend_from_slice(b"\r\n");
        self.entries.push(StoredField {
            known,
            name,
            value,
            spelling: Span::default(),
        });
    }

    /// Appends the name, the colon and the blank of a field line whose value has `len` bytes.
    #[expect(
        clippy::inline_always,
        reason = "most callers have a known name, for which the branch is removed (bench: request/redirect)"
    )]
    #[inline(always)]
    fn push_name(&mut self, name: Name<'_>, len: usize) -> (Option<Known>, Span) {
        match name {
            Name::Known(known) => {
                self.scattered |= known.frames_messages();
                let start = known.line_start().as_bytes();
                self.arena.reserve(start.len() + len + 2);
                self.arena.extend_from_slice(start);
                (Some(known), Span::default())
            }
            Name::Other(text) => {
                self.arena.reserve(text.len() + len + 4);
                let name = self.append(text.as_bytes());
                self.arena.extend_from_slice(b": ");
                (None, name)
            }
        }
    }

    fn push_value(&mut self, value: &[u8]) -> Span {
        self.scattered |= has_break(value);
        self.append(value)
    }

    /// Appends a field whose name (in any letter case) and value are already in the arena. The HTTP/1 parser uses this: it
    /// copies a head as a whole, not field by field.
    pub fn push_stored(&mut self, spelling: Span, value: Span) {
        let known = self.known_name(spelling);
        self.push_stored_as(known, spelling, value);
    }

    /// Like [`Headers::push_stored`], for a caller that has already looked up whether the name is a well-known one.
    #[inline]
    pub fn push_stored_as(&mut self, known: Option<Known>, spelling: Span, value: Span) {
        self.scattered = true;
        let mut name = spelling;
        if known.is_none() && self.text(spelling).iter().any(u8::is_ascii_uppercase) {
            name = Span::new(self.arena.len(), spelling.len());
            self.arena.extend_from_within(spelling.range());
            self.arena[name.range()].make_ascii_lowercase();
        }
        self.entries.push(StoredField {
            known,
            name,
            value,
            spelling,
        });
    }

    fn known_name(&self, spelling: Span) -> Option<Known> {
        let text = self.text(spelling);
        let mut lower = [0; LONGEST_KNOWN];
        let lower = lower.get_mut(..text.len())?;
        for (to, &from) in lower.iter_mut().zip(text) {
            *to = TOKEN[from as usize];
        }
        Known::from_lower(lower)
    }

    fn field(&self, entry: &StoredField) -> Field<'_> {
        let name = match entry.known {
            Some(known) => Name::Known(known),
            // Names are tokens, hence ASCII. Any other name is a mistake of the caller and is returned as empty.
            None => Name::Other(std::str::from_utf8(self.text(entry.name)).unwrap_or_default()),
        };
        let spelling = (!entry.spelling.is_empty()).then(|| self.text(entry.spelling));
        Field {
            name,
            value: self.text(entry.value),
            spelling,
        }
    }

    /// All fields of the block in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Field<'_>> {
        self.entries.iter().map(|entry| self.field(entry))
    }

    /// Whether a field of this name would be taken for another one where `_` stands for `-`, as in the variables of CGI (RFC 3875
    /// §4.1.18): for a well-known field, or for one that is in the list. nginx drops all names with `_`, H2O none.
    #[must_use]
    pub fn is_look_alike(&self, name: &str) -> bool {
        name.contains('_') && {
            let meant = name.replace('_', "-");
            Known::from_lower(meant.as_bytes()).is_some() || self.get(Name::Other(&meant)).is_some()
        }
    }

    /// The value of the first field with this name.
    #[inline]
    #[must_use]
    pub fn get<'n>(&self, name: impl Into<Name<'n>>) -> Option<&[u8]> {
        self.get_all(name).next()
    }

    /// The values of all fields with this name, in order.
    #[inline]
    pub fn get_all<'n>(&self, name: impl Into<Name<'n>>) -> impl Iterator<Item = &[u8]> {
        let name: Name<'n> = name.into();
        self.entries
            .iter()
            .filter(move |e| self.is_named(e, name))
            .map(|e| self.text(e.value))
    }

    #[inline]
    fn is_named(&self, entry: &StoredField, name: Name<'_>) -> bool {
        match name {
            Name::Known(known) => entry.known == Some(known),
            Name::Other(text) => entry.known.is_none() && self.text(entry.name) == text.as_bytes(),
        }
    }

    /// Removes all fields with this name. Returns whether there was one.
    pub fn remove<'n>(&mut self, name: impl Into<Name<'n>>) -> bool {
        let name = name.into();
        let before = self.entries.len();
        let mut entries = std::mem::take(&mut self.entries);
        entries.retain(|entry| !self.is_named(entry, name));
        self.entries = entries;
        self.note_loss(before)
    }

    /// Updates `scattered` after an operation that may have removed some of the `before` fields. Returns whether the
    /// operation has removed any.
    fn note_loss(&mut self, before: usize) -> bool {
        let lost = self.entries.len() != before;
        self.scattered |= lost;
        lost
    }

    /// Removes all fields with this name and appends one.
    pub fn set<'n>(&mut self, name: impl Into<Name<'n>>, value: &[u8]) {
        let name = name.into();
        self.remove(name);
        self.push(name, value);
    }

    /// Replaces the value of the first field with this name, or appends the field if there is none.
    pub fn replace<'n>(&mut self, name: impl Into<Name<'n>>, value: &[u8]) {
        let name = name.into();
        match self
            .entries
            .iter()
            .position(|entry| self.is_named(entry, name))
        {
            Some(at) => self.entries[at].value = self.store(value),
            None => self.push(name, value),
        }
    }

    /// Overwrites the value of the field at `index` in place. The new value must have the same length and no line ends;
    /// returns false if it does not or if there is no such field, and changes nothing then.
    pub fn overwrite(&mut self, index: usize, value: &[u8]) -> bool {
        let old = self.entries.get(index).map(|entry| entry.value.range());
        let old = old.and_then(|range| self.arena.get_mut(range));
        let Some(old) = old.filter(|old| old.len() == value.len() && !has_break(value)) else {
            return false;
        };
        old.copy_from_slice(value);
        true
    }

    /// Keeps the fields for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(Field<'_>) -> bool) {
        let before = self.entries.len();
        let mut entries = std::mem::take(&mut self.entries);
        entries.retain(|entry| keep(self.field(entry)));
        self.entries = entries;
        self.note_loss(before);
    }

    /// Rewrites the fields one by one: `edit` returns `None` to keep a value, `Some(Some(v))` to replace it, `Some(None)`
    /// to remove the field.
    pub fn edit(&mut self, mut edit: impl FnMut(Field<'_>) -> Option<Option<Vec<u8>>>) {
        let before = self.entries.len();
        let mut entries = std::mem::take(&mut self.entries);
        entries.retain_mut(|entry| match edit(self.field(entry)) {
            None => true,
            Some(None) => false,
            Some(Some(value)) => {
                entry.value = self.store(&value);
                true
            }
        });
        self.entries = entries;
        self.note_loss(before);
    }

    /// Replaces the block by a copy of `other` and reuses the memory.
    #[inline]
    pub fn copy_from(&mut self, other: &Self) {
        self.arena.clear();
        self.arena.extend_from_slice(&other.arena);
        self.entries.clear();
        self.entries.extend_from_slice(&other.entries);
        self.scattered = other.scattered;
    }

    /// Adds a copy of every field of `other`.
    pub fn extend_from(&mut self, other: &Self) {
        if self.arena.is_empty() && self.entries.is_empty() {
            self.arena.extend_from_slice(&other.arena);
            self.entries.extend_from_slice(&other.entries);
            self.scattered = other.scattered;
            return;
        }
        self.scattered |= other.scattered;
        let shift = u32::try_from(self.arena.len()).unwrap_or(u32::MAX);
        self.arena.extend_from_slice(&other.arena);
        let moved = |span: Span| Span {
            start: span.start + shift,
            len: span.len,
        };
        self.entries
            .extend(other.entries.iter().map(|entry| StoredField {
                known: entry.known,
                name: moved(entry.name),
                value: moved(entry.value),
                spelling: moved(entry.spelling),
            }));
    }
}

/// Whether `text` has no blank, control character or DEL.
#[inline]
#[must_use]
pub fn is_visible(text: &[u8]) -> bool {
    has_none_below(text, 0x21)
}

/// Whether `text` has no control character (not even a tab) and no DEL.
#[inline]
#[must_use]
pub fn is_printable(text: &[u8]) -> bool {
    has_none_below(text, 0x20)
}

#[inline]
fn has_none_below(text: &[u8], floor: u8) -> bool {
    let stops =
        |bytes: &[u8; 8]| crate::words::marks_below_or_del(u64::from_le_bytes(*bytes), floor) != 0;
    match text.last_chunk::<8>() {
        // The last eight bytes of the text may overlap the eight before them.
        Some(last) => !stops(last) && !text.as_chunks::<8>().0.iter().any(stops),
        None => text.iter().all(|&byte| byte >= floor && byte != 0x7f),
    }
}

/// Whether `value` has a byte below 0x10: a line end, a NUL or a control byte that is as rare, such as a tab. The caller
/// then checks the value more exactly before it is sent.
#[inline]
#[must_use]
pub fn has_break(value: &[u8]) -> bool {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let below = |bytes: &[u8; 8]| {
        let bytes = u64::from_le_bytes(*bytes);
        bytes.wrapping_sub(ONES * 0x10) & !bytes & (ONES << 7) != 0
    };
    match value.last_chunk::<8>() {
        // The last eight bytes of the value may overlap the eight before them.
        Some(last) => below(last) || value.as_chunks::<8>().0.iter().any(below),
        None => value.iter().any(|&byte| byte < 0x10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_seen_is_told_from_what_cannot_wherever_it_stands() {
        for len in 0..40 {
            let text = vec![b'x'; len];
            assert!(is_visible(&text));
            for at in 0..len {
                for byte in 0..=255 {
                    let mut text = text.clone();
                    text[at] = byte;
                    let want = byte > b' ' && byte != 0x7f;
                    assert_eq!(is_visible(&text), want, "{byte:#x} at {at} of {len}");
                    let want = want || byte == b' ';
                    assert_eq!(is_printable(&text), want, "{byte:#x} at {at} of {len}");
                }
            }
        }
    }

    #[test]
    fn a_block_that_was_only_added_to_is_kept_as_http_1_writes_it() {
        let mut one = Headers::new();
        assert_eq!(one.wire(), Some(&b""[..]));
        one.push(Known::Date, b"today");
        one.push(Name::Other("x-a"), b"");
        assert!(
            one.overwrite(0, b"later")
                && !one.overwrite(0, b"late")
                && !one.overwrite(0, b"la\nr!")
        );
        assert!(one.overwrite(0, b"today") && !one.overwrite(7, b"today"));
        let mut two = Headers::new();
        two.push(Known::Etag, b"\"0123456789abcdef\"");
        two.extend_from(&one);
        let wire = &b"etag: \"0123456789abcdef\"\r\ndate: today\r\nx-a: \r\n"[..];
        assert_eq!(two.wire(), Some(wire));
        assert!(!two.remove(Known::Vary));
        two.set(Known::Vary, b"*");
        assert_eq!(two.wire(), Some(&[wire, b"vary: *\r\n"].concat()[..]));
        two.replace(Known::Vary, b"x");
        assert_eq!(two.wire(), None);
        let scattering: &[fn(&mut Headers)] = &[
            |h| h.push(Known::Link, b"a\r\nb: c"),
            |h| h.push(Known::Link, b"a long value with a NUL\0 in it"),
            |h| h.push(Known::ContentLength, b"1"),
            |h| h.push(Known::Connection, b"close"),
            |h| h.retain(|field| field.name != Name::Known(Known::Date)),
            |h| h.edit(|_| Some(Some(b"v".to_vec()))),
            |h| h.edit(|_| Some(None)),
            |h| _ = h.remove(Known::Date),
            |h| _ = h.store(b"x"),
        ];
        for scatter in scattering {
            let mut block = one.clone();
            scatter(&mut block);
            assert_eq!(block.wire(), None);
            block.clear();
            assert!(block.wire().is_some());
        }
    }

    fn names(headers: &Headers) -> Vec<String> {
        headers
            .iter()
            .map(|f| format!("{}={}", f.name.as_str(), f.value.escape_ascii()))
            .collect()
    }

    #[test]
    fn order_and_duplicates_are_kept() {
        let mut headers = Headers::new();
        headers.push(Known::SetCookie, b"a=1");
        headers.push(Name::from_lower("x-a"), b"1");
        headers.push(Known::SetCookie, b"b=2");
        assert_eq!(
            names(&headers),
            ["set-cookie=a=1", "x-a=1", "set-cookie=b=2"]
        );
        assert_eq!(headers.get(Known::SetCookie), Some(&b"a=1"[..]));
        assert_eq!(headers.get_all(Known::SetCookie).count(), 2);
        assert_eq!(headers.get(Name::Other("x-a")), Some(&b"1"[..]));
        assert_eq!(headers.get(Name::Other("x-b")), None);
    }

    #[test]
    fn stored_names_are_folded_and_their_spelling_is_kept() {
        let mut headers = Headers::new();
        let all = headers.store(b"X-FooContent-TYPEx-low");
        let value = headers.store(b"v");
        headers.push_stored(all.prefix(5), value);
        headers.push_stored(all.suffix(5).prefix(12), value);
        headers.push_stored(all.suffix(17), value);
        assert_eq!(names(&headers), ["x-foo=v", "content-type=v", "x-low=v"]);
        let spelt: Vec<_> = headers
            .iter()
            .map(|f| f.spelling.unwrap().to_vec())
            .collect();
        assert_eq!(spelt, [&b"X-Foo"[..], b"Content-TYPE", b"x-low"]);
        assert_eq!(
            headers.iter().nth(1).unwrap().name,
            Name::Known(Known::ContentType)
        );
    }

    #[test]
    fn editing_touches_only_what_it_names() {
        let mut headers = Headers::new();
        for (name, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
            headers.push(Name::from_lower(name), value.as_bytes());
        }
        let mut set = headers.clone();
        set.set(Name::Other("a"), b"9");
        assert_eq!(names(&set), ["b=2", "a=9"]);
        let mut replaced = headers.clone();
        replaced.replace(Name::Other("a"), b"longer than before");
        assert_eq!(names(&replaced), ["a=longer than before", "b=2", "a=3"]);
        assert!(headers.remove(Name::Other("a")));
        assert!(!headers.remove(Name::Other("a")));
        assert_eq!(names(&headers), ["b=2"]);
    }

    #[test]
    fn values_are_put_together_from_pieces() {
        let mut whole = Headers::new();
        whole.push(Known::Via, b"1.0 a, 2 b");
        whole.push(Name::Other("x"), b"");
        let mut pieces = Headers::new();
        pieces.push_pieces(Known::Via, [&b"1.0 a"[..], b", ", b"2 b"]);
        pieces.push_pieces(Name::Other("x"), []);
        assert_eq!(names(&pieces), ["via=1.0 a, 2 b", "x="]);
        assert_eq!(pieces.wire(), whole.wire());
        pieces.push_pieces(Known::Age, [&b"1"[..], b"\r\nx: y"]);
        assert_eq!(pieces.wire(), None);
        let stored = pieces.store_pieces([&b"/a"[..], b"", b"/b"]);
        assert_eq!(pieces.text(stored), b"/a/b");
    }

    #[test]
    fn extending_moves_the_text_along() {
        let mut one = Headers::new();
        one.push(Known::Age, b"1");
        let mut two = Headers::new();
        two.push(Name::Other("x"), b"2");
        one.extend_from(&two);
        assert_eq!(names(&one), ["age=1", "x=2"]);
        let mut empty = Headers::new();
        empty.extend_from(&one);
        assert_eq!(names(&empty), ["age=1", "x=2"]);
    }
}
