//! Compares what regular expressions in scripts find with what oniguruma finds, a library that reads the syntax of Ruby as well.

#![expect(
    unsafe_code,
    reason = "oniguruma has the unsafe interface of a C library"
)]

use std::ptr;
use std::sync::Once;

use onig_sys::{
    ONIG_MISMATCH, ONIG_OPTION_DIGIT_IS_ASCII, ONIG_OPTION_EXTEND, ONIG_OPTION_IGNORECASE,
    ONIG_OPTION_MULTILINE, ONIG_OPTION_SPACE_IS_ASCII, ONIG_OPTION_WORD_IS_ASCII, OnigRegex,
};

use crate::ruby::{call, places, string, with_vm};

/// Largest number of items in a pattern: more items make searches slower and find no other kind of difference.
const MOST_ITEMS: usize = 24;

/// Largest depth of nested groups.
const DEEPEST: usize = 3;

/// The characters of the searched texts, and of patterns where a character stands for itself.
const ALPHABET: &[u8; 16] = b"aabbcAB01_-. \nx/";

/// Makes a pattern from the bytes of the fuzzer: a well-formed one, without what the manual of either engine calls a difference. Loops
/// over items that can match the empty string are such a difference: the engines run them a different number of times.
struct Maker<'a> {
    input: &'a [u8],
    out: String,
    items: usize,
    /// For each capturing group, in the order of their beginnings: whether the pattern contains the end of the group already.
    complete: Vec<bool>,
}

impl Maker<'_> {
    fn byte(&mut self) -> usize {
        let Some((first, rest)) = self.input.split_first() else {
            return 0;
        };
        self.input = rest;
        usize::from(*first)
    }

    fn pick<'b>(&mut self, from: &[&'b str]) -> &'b str {
        let at = self.byte() % from.len();
        from[at]
    }

    fn character(&mut self) {
        let at = self.byte() % ALPHABET.len();
        match ALPHABET[at] {
            b'\n' => self.out.push_str("\\n"),
            letter if letter.is_ascii_alphanumeric() || letter == b'_' => {
                self.out.push(letter.into());
            }
            other => {
                self.out.push('\\');
                self.out.push(other.into());
            }
        }
    }

    /// Adds alternatives to the pattern. Returns whether they can match the empty string.
    fn alternatives(&mut self, depth: usize) -> bool {
        let mut is_empty = false;
        loop {
            is_empty |= self.sequence(depth);
            if self.input.is_empty() || self.items >= MOST_ITEMS || !self.byte().is_multiple_of(3) {
                return is_empty;
            }
            self.out.push('|');
        }
    }

    fn sequence(&mut self, depth: usize) -> bool {
        let mut is_empty = true;
        for _ in 0..1 + self.byte() % 4 {
            if self.input.is_empty() || self.items >= MOST_ITEMS {
                break;
            }
            self.items += 1;
            is_empty &= self.item(depth);
        }
        is_empty
    }

    /// Adds an item with its quantifier to the pattern. Returns whether the item can match the empty string.
    fn item(&mut self, depth: usize) -> bool {
        let can_be_empty = match self.byte() % 12 {
            0..=3 => {
                self.character();
                false
            }
            4 => {
                let class = self.pick(&[
                    "[a-c]",
                    "[^b]",
                    "[\\w-]",
                    "[[:alpha:]]",
                    "[[:^digit:]]",
                    "[a-c&&[^b]]",
                    "[0-9_.]",
                    "[^\\s]",
                ]);
                self.out.push_str(class);
                false
            }
            5 => {
                let set = self.pick(&[
                    ".", "\\w", "\\W", "\\d", "\\D", "\\s", "\\S", "\\h", "\\H", "\\x61", "\\u0062",
                ]);
                self.out.push_str(set);
                false
            }
            6 => {
                let anchor = self.pick(&["\\A", "\\z", "\\Z", "^", "$", "\\b", "\\B"]);
                self.out.push_str(anchor);
                return true;
            }
            7 if self.complete.iter().any(|is_complete| *is_complete) => {
                let known: Vec<_> = (1..)
                    .zip(&self.complete)
                    .filter_map(|(number, is_complete)| is_complete.then_some(number))
                    .collect();
                let number = known[self.byte() % known.len()];
                self.out.push_str(&format!("\\{number}(?:)"));
                return true;
            }
            8 if depth < DEEPEST => {
                let kind = self.pick(&["(?=", "(?!"]);
                self.group(kind, depth);
                return true;
            }
            9 => {
                let kind = self.pick(&["(?<=", "(?<!"]);
                self.out.push_str(kind);
                self.character();
                self.out.push(')');
                return true;
            }
            _ if depth < DEEPEST => {
                let kind = self.pick(&["(", "(", "(?:", "(?>", "(?i:", "(?m:"]);
                self.group(kind, depth)
            }
            _ => {
                self.character();
                false
            }
        };
        if can_be_empty {
            return true;
        }
        let quantifier = self.pick(&[
            "", "", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,2}", "{2,}", "*+",
            "++", "?+",
        ]);
        self.out.push_str(quantifier);
        quantifier.starts_with(['*', '?']) || quantifier.starts_with("{0")
    }

    fn group(&mut self, kind: &str, depth: usize) -> bool {
        let number = self.complete.len();
        let captures = kind == "(";
        if captures {
            self.complete.push(false);
        }
        self.out.push_str(kind);
        let is_empty = self.alternatives(depth + 1);
        self.out.push(')');
        if captures {
            self.complete[number] = true;
        }
        is_empty
    }
}

/// A pattern that oniguruma has compiled.
struct Onig(OnigRegex);

impl Drop for Onig {
    fn drop(&mut self) {
        // SAFETY: `onig_new` has made the pattern, which is freed only here.
        unsafe { onig_sys::onig_free(self.0) };
    }
}

impl Onig {
    /// Compiles a pattern. Returns `None` if oniguruma refuses it.
    fn compile(pattern: &str, flags: u8) -> Option<Self> {
        static ONCE: Once = Once::new();
        let mut encoding = &raw mut onig_sys::OnigEncodingUTF8;
        ONCE.call_once(|| {
            // SAFETY: the list contains one encoding, as its length says.
            unsafe { onig_sys::onig_initialize(&raw mut encoding, 1) };
        });
        let mut options =
            ONIG_OPTION_WORD_IS_ASCII | ONIG_OPTION_DIGIT_IS_ASCII | ONIG_OPTION_SPACE_IS_ASCII;
        for (flag, option) in [
            (1, ONIG_OPTION_IGNORECASE),
            (2, ONIG_OPTION_EXTEND),
            (4, ONIG_OPTION_MULTILINE),
        ] {
            if flags & flag != 0 {
                options |= option;
            }
        }
        let mut regex = ptr::null_mut();
        let range = pattern.as_bytes().as_ptr_range();
        // SAFETY: `range` is the range of the pattern, `regex` receives the result, and the other arguments are constants of the library.
        let made = unsafe {
            onig_sys::onig_new(
                &raw mut regex,
                range.start,
                range.end,
                options,
                encoding,
                &raw mut onig_sys::OnigSyntaxRuby,
                ptr::null_mut(),
            )
        };
        (made == 0).then_some(Self(regex))
    }

    /// Returns the ranges of all groups of the first match, or an error if oniguruma gave up the search.
    fn search(&self, subject: &[u8]) -> Result<Option<Vec<Option<[i64; 2]>>>, i32> {
        let range = subject.as_ptr_range();
        // SAFETY: `range` is the range of the subject. The region is freed below, and has as many places as its `num_regs` says.
        unsafe {
            let region = onig_sys::onig_region_new();
            let found = onig_sys::onig_search(
                self.0,
                range.start,
                range.end,
                range.start,
                range.end,
                region,
                0,
            );
            let places = (found >= 0).then(|| {
                let count = usize::try_from((*region).num_regs).unwrap_or(0);
                let place = |group| {
                    let bounds = [*(*region).beg.add(group), *(*region).end.add(group)];
                    (bounds[0] >= 0).then_some(bounds.map(i64::from))
                };
                (0..count).map(place).collect()
            });
            onig_sys::onig_region_free(region, 1);
            if found < ONIG_MISMATCH {
                return Err(found);
            }
            Ok(places)
        }
    }
}

/// The fuzz target. The first byte of the input has the flags of the pattern, the second says how many of the remaining bytes make the
/// pattern; the others make the searched text. A script must find what oniguruma finds, group by group.
///
/// # Panics
/// If a script finds something else, or refuses the pattern.
pub fn ruby_pattern_engines(input: &[u8]) {
    compare(input);
}

/// Returns whether both engines found a match; `None` if an engine gave up, so that nothing was compared.
fn compare(input: &[u8]) -> Option<bool> {
    let [flags, share, rest @ ..] = input else {
        return None;
    };
    let flags = flags & 5;
    let (for_pattern, for_subject) = rest.split_at(usize::from(*share).min(rest.len()));
    let mut maker = Maker {
        input: for_pattern,
        out: String::new(),
        items: 0,
        complete: Vec::new(),
    };
    maker.alternatives(0);
    let pattern = maker.out;
    let letters = for_subject.iter().take(48);
    let mut subject: Vec<u8> = letters
        .map(|byte| ALPHABET[usize::from(*byte) % ALPHABET.len()])
        .collect();
    // Oniguruma sees no empty line after a line break at the end of the text, so the text ends without a line break.
    while subject.last() == Some(&b'\n') {
        subject.pop();
    }
    let other = Onig::compile(&pattern, flags)?;
    let wanted = other.search(&subject).ok()?;
    let mut is_compared = false;
    with_vm(|vm| {
        let class = vm
            .constant(None, "Regexp")
            .expect("the VM has the class Regexp");
        let number = vm.integer(flags.into()).expect("the VM has memory left");
        let arguments = [string(vm, &pattern), number];
        let errors = &["RegexpError"];
        let Some(regexp) = call(vm, class, "new", &arguments, errors) else {
            panic!("the engine refuses /{pattern}/");
        };
        let text = string(vm, &subject);
        let Some(found) = call(vm, regexp, "match", &[text], errors) else {
            return;
        };
        is_compared = true;
        let shown = String::from_utf8_lossy(&subject);
        assert_eq!(
            places(vm, found),
            wanted,
            "/{pattern}/ with flags {flags} in {shown:?}"
        );
    });
    is_compared.then_some(wanted.is_some())
}

#[cfg(test)]
mod tests {
    use super::compare;

    #[test]
    fn most_inputs_are_compared_and_many_match() {
        let mut state: u64 = 13;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33).to_le_bytes()[0]
        };
        let (mut compared, mut matched) = (0, 0);
        for _ in 0..3000 {
            let mut input: Vec<u8> = (0..60).map(|_| next()).collect();
            input[1] = 5 + input[1] % 30;
            match compare(&input) {
                Some(true) => (compared, matched) = (compared + 1, matched + 1),
                Some(false) => compared += 1,
                None => {}
            }
        }
        assert!(compared > 2000, "only {compared} patterns were compared");
        assert!(matched > 500, "{matched} of {compared} matched");
    }
}
