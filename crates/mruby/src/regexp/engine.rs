//! Compiled regular expressions, and searches with them.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::ops::Range;

use fancy_regex::{BytesMode, CompileError, Error, Match, RegexBuilder, RuntimeError};

use super::syntax::{self, Reading};
use crate::{Leave, Vm, border, meter};

pub(super) const IGNORECASE: i64 = 1;
pub(super) const EXTENDED: i64 = 2;
pub(super) const MULTILINE: i64 = 4;

/// The flag of a pattern that is matched against octets, not characters: the third argument of `Regexp.new` was `n`.
pub(super) const OCTETS: i64 = 32;

/// Maximum number of steps of a search with a pattern that has back references or look-around; searches with other patterns
/// run in linear time.
const MOST_STEPS: usize = 1_000_000;

/// A compiled regular expression.
pub(crate) struct Regexp {
    pub(super) source: Box<[u8]>,
    pub(super) options: i64,
    characters: Option<fancy_regex::Regex>,
    /// The pattern compiled for octets; a pattern for characters is compiled when a search begins within a character.
    octets: OnceCell<Result<fancy_regex::Regex, String>>,
    names: Vec<(String, usize)>,
    groups: usize,
    /// Bytes that the VM counts for this regular expression. Searches increase the number, because they fill caches of the engine.
    charged: Cell<usize>,
}

impl Drop for Regexp {
    fn drop(&mut self) {
        if let Some(vm) = Vm::current() {
            vm.refund(self.charged.get());
        }
    }
}

/// For each group the range in octets that it matched; `None` if the group did not take part in the match.
pub(super) type Groups = Vec<Option<(usize, usize)>>;

/// A text that is to be searched.
pub(super) struct Subject<'a> {
    octets: &'a [u8],
    /// The same for the engine for characters; `None` if the pattern is for octets.
    text: Option<Text<'a>>,
}

/// A subject as UTF-8. For each stray octet, which belongs to no character of UTF-8, it has a character of its own, which no pattern names:
/// so the octet is one character that is no letter, and its neighbours are the characters that they are.
struct Text<'a> {
    text: Cow<'a, str>,
    /// Positions of the stray octets in the subject.
    strays: Vec<usize>,
}

impl<'a> Text<'a> {
    /// The character that stands for the octet 0, at the end of the last plane for private use.
    const FIRST_STAND_IN: u32 = 0x10_ff00;
    /// How many bytes a stand-in is longer than its octet.
    const GROWTH: usize = 3;

    fn of(octets: &'a [u8]) -> Self {
        let mut strays = Vec::new();
        if let Some(text) = border::as_text(octets) {
            let text = text.into();
            return Self { text, strays };
        }
        let mut text = String::with_capacity(octets.len() + Self::GROWTH);
        for chunk in octets.utf8_chunks() {
            text.push_str(chunk.valid());
            for &octet in chunk.invalid() {
                strays.push(text.len() - Self::GROWTH * strays.len());
                let stand_in = char::from_u32(Self::FIRST_STAND_IN + u32::from(octet));
                text.push(stand_in.unwrap_or(char::MAX));
            }
        }
        let text = text.into();
        Self { text, strays }
    }

    /// The position in the text of a position in the subject.
    fn in_text(&self, at: usize) -> usize {
        at + Self::GROWTH * self.strays.partition_point(|&stray| stray < at)
    }

    /// The range in the subject of a range in the text.
    fn in_subject(&self, range: Range<usize>) -> (usize, usize) {
        let position = |at| at - Self::GROWTH * self.strays_before(at);
        (position(range.start), position(range.end))
    }

    /// Number of stray octets before a position in the text.
    fn strays_before(&self, at: usize) -> usize {
        let (mut least, mut most) = (0, self.strays.len());
        while least < most {
            let middle = least.midpoint(most);
            if self.strays[middle] + Self::GROWTH * middle < at {
                least = middle + 1;
            } else {
                most = middle;
            }
        }
        least
    }
}

fn build(source: &str, options: i64, reading: Reading) -> Result<fancy_regex::Regex, String> {
    let pattern = syntax::translate(source, options & EXTENDED != 0, reading)?;
    let mut builder = RegexBuilder::new(&pattern);
    builder
        .oniguruma_mode(true)
        .multi_line(true)
        .ignore_numbered_groups_when_named_groups_exist(true)
        .case_insensitive(options & IGNORECASE != 0)
        .ignore_whitespace(options & EXTENDED != 0)
        .dot_matches_new_line(options & MULTILINE != 0)
        .backtrack_limit(MOST_STEPS);
    if reading == Reading::Octets {
        builder.bytes_mode(BytesMode::Ascii);
    }
    builder.build().map_err(|error| reason_of(&error))
}

/// Why the engine has refused a pattern.
fn reason_of(error: &Error) -> String {
    let text = match error {
        Error::CompileError(error) => match &**error {
            CompileError::InnerError(error) => innermost(error).to_string(),
            error => error.to_string(),
        },
        error => error.to_string(),
    };
    // An error of the engine can have several lines, of which the last one says the reason.
    let reason = text.lines().rfind(|line| !line.trim().is_empty());
    let reason = reason.unwrap_or("the engine does not support the pattern");
    let reason = reason.trim();
    reason.strip_prefix("error: ").unwrap_or(reason).to_owned()
}

/// The error at the end of the chain of causes.
fn innermost<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> &'a (dyn std::error::Error + 'static) {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost
}

impl Regexp {
    /// Compiles a regular expression, and adds its memory to that of the VM.
    pub(super) fn compile(vm: &Vm, source: &[u8], options: i64) -> Result<Self, Leave> {
        let before = meter::held();
        let regexp = Self::build(source, options)?;
        regexp.charge(vm, before);
        Ok(regexp)
    }

    /// Adds to the VM's memory, for this regular expression, what the current thread has allocated since it held `before` bytes.
    fn charge(&self, vm: &Vm, before: isize) {
        let Ok(grown @ 1..) = usize::try_from(meter::held().wrapping_sub(before)) else {
            return;
        };
        self.charged.set(self.charged.get() + grown);
        vm.charge(grown);
    }

    /// Bytes that the VM counts for this regular expression.
    pub(super) const fn memory(&self) -> usize {
        self.charged.get()
    }

    fn build(source: &[u8], options: i64) -> Result<Self, Leave> {
        let invalid = |reason: &str| {
            let pattern = String::from_utf8_lossy(source);
            Leave::New(
                "RegexpError",
                format!("'{pattern}' is an invalid regular expression because {reason}."),
            )
        };
        let text =
            std::str::from_utf8(source).map_err(|_| invalid("invalid multibyte character"))?;
        let octets = OnceCell::new();
        let mut characters = None;
        if options & OCTETS == 0 {
            let built = build(text, options, Reading::Characters);
            characters = Some(built.map_err(|reason| invalid(&reason))?);
        } else {
            let built = build(text, options, Reading::Octets);
            let _ = octets.set(Ok(built.map_err(|reason| invalid(&reason))?));
        }
        let built = octets.get().and_then(|built| built.as_ref().ok());
        let Some(engine) = characters.as_ref().or(built) else {
            return Err(invalid("no engine could be built for the pattern"));
        };
        let names = engine.capture_names().enumerate();
        let names = names
            .filter_map(|(group, name)| Some((name?.to_owned(), group)))
            .collect();
        let groups = engine.captures_len();
        Ok(Self {
            source: source.into(),
            options,
            characters,
            octets,
            names,
            groups,
            charged: Cell::new(0),
        })
    }

    fn for_octets(&self) -> Result<&fancy_regex::Regex, Leave> {
        let built = self.octets.get_or_init(|| {
            let text = String::from_utf8_lossy(&self.source);
            build(&text, self.options, Reading::Octets)
        });
        built.as_ref().map_err(|reason| {
            Leave::New(
                "RegexpError",
                format!(
                    "the search begins within a character, and the pattern matches characters only: {reason}"
                ),
            )
        })
    }

    /// Prepares a text for searches: which of its octets are characters is found out once for all of them.
    pub(super) fn subject<'a>(&self, octets: &'a [u8]) -> Subject<'a> {
        let is_for_characters = self.characters.is_some();
        Subject {
            octets,
            text: is_for_characters.then(|| Text::of(octets)),
        }
    }

    /// The engine for characters, the subject as text, and the position of `start` in it; `None` if the subject is to be searched as
    /// octets, because the pattern is for these or `start` is within a character.
    fn characters<'s>(
        &self,
        subject: &'s Subject<'_>,
        start: usize,
    ) -> Option<(&fancy_regex::Regex, &'s Text<'s>, usize)> {
        let engine = self.characters.as_ref()?;
        let text = subject.text.as_ref()?;
        let start = text.in_text(start);
        (text.text.is_char_boundary(start)).then_some((engine, text, start))
    }

    pub(super) fn is_match(&self, vm: &Vm, subject: &[u8], start: usize) -> Result<bool, Leave> {
        if start > subject.len() {
            return Ok(false);
        }
        let before = meter::held();
        let found = match self.characters(&self.subject(subject), start) {
            Some((engine, text, 0)) => engine.is_match(&*text.text),
            Some((engine, text, start)) => {
                (engine.find_from_pos(&*text.text, start)).map(|m| m.is_some())
            }
            None => {
                let engine = self.for_octets()?;
                engine.find_from_pos(subject, start).map(|m| m.is_some())
            }
        };
        self.charge(vm, before);
        found.map_err(failed)
    }

    /// Searches in a subject that [`Regexp::subject`] of this regular expression has prepared.
    pub(super) fn search(
        &self,
        vm: &Vm,
        subject: &Subject<'_>,
        start: usize,
    ) -> Result<Option<Groups>, Leave> {
        vm.check_time()?;
        let before = meter::held();
        let found = self.find(subject, start)?;
        // The memory of the returned groups is not charged to the VM, since the caller soon frees it.
        let capacity = found.as_ref().map_or(0, Vec::capacity);
        let result = capacity * size_of::<Option<(usize, usize)>>();
        self.charge(vm, before.wrapping_add(result.cast_signed()));
        Ok(found)
    }

    fn find(&self, subject: &Subject<'_>, start: usize) -> Result<Option<Groups>, Leave> {
        if start > subject.octets.len() {
            return Ok(None);
        }
        let found = match (self.characters(subject, start), self.groups) {
            (Some((engine, text, start)), ..=1) => {
                let found = engine.find_from_pos(&*text.text, start);
                let whole = |range| vec![Some(text.in_subject(range))];
                found.map(|found| found.map(|found| whole(found.range())))
            }
            (Some((engine, text, start)), _) => {
                let found = engine.captures_from_pos(&*text.text, start);
                let group = |group: Match<'_>| text.in_subject(group.range());
                found.map(|found| found.map(|found| found.iter().map(|g| g.map(group)).collect()))
            }
            (None, _) => {
                let engine = self.for_octets()?;
                engine
                    .captures_from_pos(subject.octets, start)
                    .map(|found| {
                        found.map(|found| {
                            let groups = found.iter();
                            groups.map(|g| g.map(|g| (g.start(), g.end()))).collect()
                        })
                    })
            }
        };
        found.map_err(failed)
    }

    /// The number of the group with this name: of several, the last one that took part in the match, or else the last one.
    pub(super) fn group(&self, name: &str, matched: &Groups) -> Option<usize> {
        let named = self.names.iter().filter(|known| known.0 == name);
        let numbers = || named.clone().map(|known| known.1);
        let has_matched = |number: &usize| matched.get(*number).is_some_and(Option::is_some);
        numbers()
            .rfind(has_matched)
            .or_else(|| numbers().next_back())
    }
}

fn failed(error: Error) -> Leave {
    let text = match error {
        Error::RuntimeError(RuntimeError::BacktrackLimitExceeded) => {
            "the search needs too many steps".to_owned()
        }
        error => error.to_string(),
    };
    Leave::New("RegexpError", text)
}

/// The position from which to search for the next match: the end of this match, or one character further if this match is
/// empty.
pub(super) fn after(subject: &[u8], (start, end): (usize, usize)) -> usize {
    if end > start {
        return end;
    }
    let is_inside = |octet: &&u8| **octet & 0xc0 == 0x80;
    let rest = subject.get(end + 1..).unwrap_or_default();
    end + 1 + rest.iter().take(3).take_while(is_inside).count()
}

pub(super) fn escape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 8);
    for octet in text {
        let letter = match octet {
            b'\n' => b'n',
            b'\t' => b't',
            b'\r' => b'r',
            0x0c => b'f',
            0x0b => b'v',
            b'[' | b']' | b'{' | b'}' | b'(' | b')' | b'|' | b'-' | b'*' | b'.' | b'\\' | b'?'
            | b'+' | b'^' | b'$' | b'#' | b' ' => *octet,
            _ => {
                out.push(*octet);
                continue;
            }
        };
        out.extend([b'\\', letter]);
    }
    out
}

fn letters(options: i64) -> String {
    let letters = [(MULTILINE, 'm'), (IGNORECASE, 'i'), (EXTENDED, 'x')];
    let set = letters.iter().filter(|(flag, _)| options & flag != 0);
    set.map(|(_, letter)| letter).collect()
}

/// The text of `Regexp#inspect`.
pub(super) fn inspect(regexp: &Regexp) -> Vec<u8> {
    let mut out = vec![b'/'];
    let mut is_escaped = false;
    for octet in &regexp.source {
        if *octet == b'/' && !is_escaped {
            out.push(b'\\');
        }
        is_escaped = *octet == b'\\' && !is_escaped;
        out.push(*octet);
    }
    out.push(b'/');
    out.extend(letters(regexp.options).bytes());
    if regexp.options & OCTETS != 0 {
        out.push(b'n');
    }
    out
}

/// The text of `Regexp#to_s`, which can be used within other patterns.
pub(super) fn embedded(regexp: &Regexp) -> Vec<u8> {
    let on = letters(regexp.options);
    let off: String = "mix"
        .chars()
        .filter(|letter| !on.contains(*letter))
        .collect();
    let dash = if off.is_empty() { "" } else { "-" };
    let mut out = format!("(?{on}{dash}{off}:").into_bytes();
    out.extend(&regexp.source);
    out.push(b')');
    out
}
