//! `Regexp`, `MatchData`, `$~ $1 ...`, and the methods of String that take patterns. The engine is fancy-regex: patterns without look-around
//! and back references run in linear time, others have a limit of steps. The forms with blocks are in Ruby (`prelude/regexp.rb`),
//! so that the blocks can wait.

mod syntax;
#[cfg(test)]
mod tests;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use fancy_regex::{BytesMode, Error, RegexBuilder, RuntimeError};
use rustc_hash::FxHashMap;

use crate::{Call, Kind, Leave, Rooted, Value, Vm};
use syntax::Reading;

const IGNORECASE: i64 = 1;
const EXTENDED: i64 = 2;
const MULTILINE: i64 = 4;
/// The third argument `n`: subjects are octets.
const OCTETS: i64 = 32;

/// Steps of a search with back references or look-around, at most.
const MOST_STEPS: usize = 1_000_000;

/// Patterns that are kept compiled, per set of flags.
const MOST_KEPT: usize = 512;

/// After so many compiled patterns garbage is collected: the collector does not see how much memory they have.
const COMPILED_PER_COLLECTION: u32 = 256;

/// A compiled pattern.
struct Regexp {
    source: Box<[u8]>,
    options: i64,
    characters: Option<fancy_regex::Regex>,
    /// For subjects that are not UTF-8.
    octets: OnceCell<Result<fancy_regex::Regex, String>>,
    names: Vec<(String, usize)>,
    groups: usize,
}

/// Where groups matched, in octets.
type Groups = Vec<Option<(usize, usize)>>;

/// What a `MatchData` owns. Its instance variables have the subject and the Regexp.
struct Match {
    groups: Groups,
}

/// Compiled patterns by source, for one set of flags.
type Kept = FxHashMap<Box<[u8]>, Rooted>;

/// Patterns of literals, and what the global variables have.
#[derive(Default)]
struct State {
    kept: RefCell<FxHashMap<i64, Kept>>,
    compiled: Cell<u32>,
    /// Whether the last match succeeded, and how many of `$1` to `$9` it set.
    is_set: Cell<bool>,
    set_groups: Cell<usize>,
    classes: OnceCell<(Value, Value)>,
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
    builder.build().map_err(|error| {
        let text = error.to_string();
        // The engine's errors can have several lines, of which the last has the reason.
        let reason = text.lines().rfind(|line| !line.trim().is_empty());
        reason.unwrap_or("it is not supported").trim().to_owned()
    })
}

impl Regexp {
    fn compile(source: &[u8], options: i64) -> Result<Self, Leave> {
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
            return Err(invalid("there is no engine"));
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
                format!("the subject is not UTF-8, and the pattern fits no octets: {reason}"),
            )
        })
    }

    /// The subject as characters, if it can be searched as such from `start`.
    fn characters<'a>(
        &self,
        subject: &'a [u8],
        start: usize,
    ) -> Option<(&fancy_regex::Regex, &'a str)> {
        let engine = self.characters.as_ref()?;
        let text = std::str::from_utf8(subject).ok()?;
        text.is_char_boundary(start).then_some((engine, text))
    }

    fn is_match(&self, subject: &[u8], start: usize) -> Result<bool, Leave> {
        if start > subject.len() {
            return Ok(false);
        }
        let found = match self.characters(subject, start) {
            Some((engine, text)) if start == 0 => engine.is_match(text),
            Some((engine, text)) => engine.find_from_pos(text, start).map(|m| m.is_some()),
            None => {
                let engine = self.for_octets()?;
                engine.find_from_pos(subject, start).map(|m| m.is_some())
            }
        };
        found.map_err(failed)
    }

    fn search(&self, subject: &[u8], start: usize) -> Result<Option<Groups>, Leave> {
        if start > subject.len() {
            return Ok(None);
        }
        let whole = |range: std::ops::Range<usize>| vec![Some((range.start, range.end))];
        let found = match (self.characters(subject, start), self.groups) {
            (Some((engine, text)), ..=1) => {
                let found = engine.find_from_pos(text, start);
                found.map(|found| found.map(|found| whole(found.range())))
            }
            (Some((engine, text)), _) => engine.captures_from_pos(text, start).map(|found| {
                found.map(|found| {
                    let groups = found.iter();
                    groups.map(|g| g.map(|g| (g.start(), g.end()))).collect()
                })
            }),
            (None, _) => {
                let engine = self.for_octets()?;
                engine.captures_from_pos(subject, start).map(|found| {
                    found.map(|found| {
                        let groups = found.iter();
                        groups.map(|g| g.map(|g| (g.start(), g.end()))).collect()
                    })
                })
            }
        };
        found.map_err(failed)
    }

    fn group(&self, name: &str) -> Option<usize> {
        let mut names = self.names.iter();
        names.find(|known| known.0 == name).map(|known| known.1)
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

/// Where a search goes on after this match: after an empty one at the next character.
fn after(subject: &[u8], (start, end): (usize, usize)) -> usize {
    if end > start {
        return end;
    }
    let is_inside = |octet: &&u8| **octet & 0xc0 == 0x80;
    let rest = subject.get(end + 1..).unwrap_or_default();
    end + 1 + rest.iter().take(3).take_while(is_inside).count()
}

fn classes(vm: &Vm) -> Result<(Value, Value), Leave> {
    let state = vm.local::<State>();
    let classes = state.classes.get().copied();
    classes.ok_or_else(|| Leave::runtime("Regexp is not defined"))
}

fn with_regexp<T>(
    vm: &Vm,
    value: Value,
    read: impl FnOnce(&Regexp) -> Result<T, Leave>,
) -> Result<T, Leave> {
    vm.with_object(value, |regexp: &Rc<Regexp>| Rc::clone(regexp))
        .and_then(|regexp| read(&regexp))
}

/// The subject of a match: a String or Symbol.
fn with_subject<T>(
    vm: &Vm,
    value: Value,
    read: impl FnOnce(&[u8]) -> Result<T, Leave>,
) -> Result<T, Leave> {
    vm.with_bytes(value, read).unwrap_or_else(|| {
        let class = vm.class_name(value);
        Err(Leave::type_error(format!(
            "no implicit conversion of {class} into String"
        )))
    })
}

/// The flags of `Regexp.new`.
fn options_of(vm: &Vm, flags: Value, encoding: Value) -> i64 {
    let mut options = match flags.kind() {
        Kind::Nil | Kind::False => 0,
        Kind::Integer => {
            flags.as_integer().unwrap_or(0) & (IGNORECASE | EXTENDED | MULTILINE | OCTETS)
        }
        Kind::String => {
            let letters = vm.bytes(flags).unwrap_or_default();
            let flag = |letter, flag| {
                if letters.contains(&letter) { flag } else { 0 }
            };
            flag(b'i', IGNORECASE) | flag(b'x', EXTENDED) | flag(b'm', MULTILINE)
        }
        _ => IGNORECASE,
    };
    if vm.with_bytes(encoding, |letters| letters.starts_with(b"n")) == Some(true) {
        options |= OCTETS;
    }
    options
}

fn new(vm: &Vm, source: &[u8], options: i64) -> Result<Value, Leave> {
    let state = vm.local::<State>();
    let compiled = state.compiled.get() + 1;
    state.compiled.set(compiled % COMPILED_PER_COLLECTION);
    if compiled == COMPILED_PER_COLLECTION {
        vm.collect();
    }
    let regexp = Regexp::compile(source, options)?;
    Ok(vm.object(classes(vm)?.0, Rc::new(regexp))?)
}

/// `Regexp.new`.
fn make(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let arguments = call.arguments.between(1, 3)?;
    let source = arguments.get(0);
    if vm.is_a(source, classes(vm)?.0) {
        let (text, options) = with_regexp(vm, source, |regexp| {
            Ok((regexp.source.clone(), regexp.options))
        })?;
        return new(vm, &text, options);
    }
    let options = options_of(vm, arguments.get(1), arguments.get(2));
    let text = with_subject(vm, source, |text| Ok(text.to_vec()))?;
    new(vm, &text, options)
}

/// `Regexp.compile`, which each evaluation of a literal calls.
fn compile(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let arguments = call.arguments.between(1, 3)?;
    let source = arguments.get(0);
    if source.kind() != Kind::String {
        return make(vm, call);
    }
    let options = options_of(vm, arguments.get(1), arguments.get(2));
    let state = vm.local::<State>();
    let kept = vm.with_bytes(source, |text| {
        let kept = state.kept.borrow();
        let regexp = kept.get(&options)?.get(text)?;
        Some(regexp.value())
    });
    if let Some(regexp) = kept.flatten() {
        return Ok(regexp);
    }
    let text = vm.bytes(source).unwrap_or_default();
    let regexp = new(vm, &text, options)?;
    let rooted = vm.root(regexp)?;
    let removed = {
        let mut kept = state.kept.borrow_mut();
        let kept = kept.entry(options).or_default();
        let is_full = kept.len() >= MOST_KEPT;
        let removed = is_full.then(|| std::mem::take(kept));
        kept.insert(text.into(), rooted);
        removed
    };
    drop(removed);
    Ok(regexp)
}

fn new_match(vm: &Vm, regexp: Value, subject: Value, groups: Groups) -> Result<Value, Leave> {
    let data = vm.object(classes(vm)?.1, Match { groups })?;
    let text = if subject.kind() == Kind::String {
        vm.call(subject, "dup", &[])?
    } else {
        vm.string(vm.bytes(subject).unwrap_or_default())?
    };
    let text = vm.call(text, "freeze", &[])?;
    vm.set_instance_variable(data, "@string", text)?;
    vm.set_instance_variable(data, "@regexp", regexp)?;
    Ok(data)
}

/// Searches, without setting global variables: a `MatchData` or nil.
fn find(vm: &Vm, regexp: Value, subject: Value, start: usize) -> Result<Value, Leave> {
    let groups = with_regexp(vm, regexp, |regexp| {
        with_subject(vm, subject, |text| regexp.search(text, start))
    })?;
    groups.map_or(Ok(Value::nil()), |groups| {
        new_match(vm, regexp, subject, groups)
    })
}

/// Sets `$~`, `$1` ... to a `MatchData` or to nil.
fn set_last(vm: &Vm, data: Value) -> Result<Value, Leave> {
    const NUMBERED: [&str; 9] = ["$1", "$2", "$3", "$4", "$5", "$6", "$7", "$8", "$9"];
    let state = vm.local::<State>();
    let before = state.set_groups.get();
    if data.is_nil() {
        if state.is_set.replace(false) {
            for name in ["$~", "$&", "$`", "$'", "$+"] {
                vm.set_global(name, data)?;
            }
            for name in &NUMBERED[..before] {
                vm.set_global(name, data)?;
            }
            state.set_groups.set(0);
        }
        return Ok(data);
    }
    let text = vm.instance_variable(data, "@string")?;
    let groups = vm.with_object(data, |data: &Match| data.groups.clone())?;
    state.is_set.set(true);
    vm.set_global("$~", data)?;
    let length = vm.with_bytes(text, <[u8]>::len).unwrap_or(0);
    if let Some((start, end)) = groups.first().copied().flatten() {
        vm.set_global("$&", slice(vm, text, (start, end))?)?;
        vm.set_global("$`", slice(vm, text, (0, start))?)?;
        vm.set_global("$'", slice(vm, text, (end, length))?)?;
    }
    let mut last = Value::nil();
    let count = (groups.len().saturating_sub(1)).min(9);
    for (name, group) in NUMBERED.iter().zip(groups.iter().skip(1)) {
        let value = part(vm, text, *group)?;
        if !value.is_nil() {
            last = value;
        }
        vm.set_global(name, value)?;
    }
    vm.set_global("$+", last)?;
    for name in NUMBERED.iter().take(before).skip(count) {
        vm.set_global(name, Value::nil())?;
    }
    state.set_groups.set(count);
    Ok(data)
}

/// A part of a String. Long ones share memory with it.
fn slice(vm: &Vm, text: Value, (start, end): (usize, usize)) -> Result<Value, Leave> {
    const LONG: usize = 64;
    if end.saturating_sub(start) < LONG {
        let part = vm.with_bytes(text, |text| {
            text.get(start..end).unwrap_or_default().to_vec()
        });
        return Ok(vm.string(part.unwrap_or_default())?);
    }
    let arguments = [number(vm, start)?, number(vm, end - start)?];
    Ok(vm.call(text, "byteslice", &arguments)?)
}

fn part(vm: &Vm, text: Value, group: Option<(usize, usize)>) -> Result<Value, Leave> {
    group.map_or(Ok(Value::nil()), |range| slice(vm, text, range))
}

fn number(vm: &Vm, number: usize) -> Result<Value, Leave> {
    Ok(vm.integer(i64::try_from(number).unwrap_or(i64::MAX))?)
}

/// The octet at which a search starts: negative ones count from the end. None: outside.
fn start_of(vm: &Vm, subject: Value, position: Value) -> Result<Option<usize>, Leave> {
    let position = match position.kind() {
        Kind::Nil => 0,
        Kind::Integer => position.as_integer().unwrap_or(0),
        _ => return Err(Leave::type_error("the position is no Integer")),
    };
    let length = with_subject(vm, subject, |text| Ok(text.len()))?;
    let start = match usize::try_from(position) {
        Ok(start) => Some(start),
        Err(_) => usize::try_from(position.unsigned_abs())
            .ok()
            .and_then(|back| length.checked_sub(back)),
    };
    Ok(start.filter(|start| *start <= length))
}

/// The pattern that an argument is: Strings are compiled.
fn pattern_of(vm: &Vm, value: Value) -> Result<Value, Leave> {
    let (class, _) = classes(vm)?;
    if vm.is_a(value, class) {
        return Ok(value);
    }
    if value.kind() == Kind::String {
        return Ok(vm.call(class, "compile", &[value])?);
    }
    let class = vm.class_name(value);
    Err(Leave::type_error(format!(
        "wrong argument type {class} (expected Regexp)"
    )))
}

fn match_at(vm: &Vm, regexp: Value, subject: Value, call: &Call<'_>) -> Result<Value, Leave> {
    if subject.is_nil() {
        return set_last(vm, subject);
    }
    let found = match start_of(vm, subject, call.arguments.get(1))? {
        Some(start) => find(vm, regexp, subject, start)?,
        None => Value::nil(),
    };
    set_last(vm, found)?;
    if found.is_nil() || call.block.is_nil() {
        return Ok(found);
    }
    Ok(vm.yield_to(call.block, &[found])?)
}

fn is_match_at(vm: &Vm, regexp: Value, subject: Value, position: Value) -> Result<Value, Leave> {
    if subject.is_nil() {
        return Ok(Value::boolean(false));
    }
    let start = if position.is_nil() {
        Some(0)
    } else {
        start_of(vm, subject, position)?
    };
    let Some(start) = start else {
        return Ok(Value::boolean(false));
    };
    let is_match = vm.with_object(regexp, |regexp: &Rc<Regexp>| {
        with_subject(vm, subject, |text| regexp.is_match(text, start))
    })??;
    Ok(Value::boolean(is_match))
}

/// Index of the match, or nil; sets the global variables.
fn index_of(vm: &Vm, regexp: Value, subject: Value, start: usize) -> Result<Value, Leave> {
    let found = find(vm, regexp, subject, start)?;
    set_last(vm, found)?;
    if found.is_nil() {
        return Ok(found);
    }
    let start = vm.with_object(found, |data: &Match| {
        data.groups.first().copied().flatten().map(|range| range.0)
    })?;
    number(vm, start.unwrap_or(0))
}

fn escape(text: &[u8]) -> Vec<u8> {
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

/// `Regexp#inspect`.
fn inspect(regexp: &Regexp) -> Vec<u8> {
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

/// `Regexp#to_s`: for use inside other patterns.
fn embedded(regexp: &Regexp) -> Vec<u8> {
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

/// Appends a replacement, in which `\1`, `\0`, `\k<name>` and `\\` have a meaning.
fn expand(out: &mut Vec<u8>, replacement: &[u8], text: &[u8], groups: &Groups, regexp: &Regexp) {
    let group = |number: usize| {
        let range = groups.get(number).copied().flatten();
        range
            .and_then(|(start, end)| text.get(start..end))
            .unwrap_or_default()
    };
    let (start, end) = groups.first().copied().flatten().unwrap_or_default();
    let mut rest = replacement;
    while let Some((octet, after)) = rest.split_first() {
        rest = after;
        let next = rest.first().copied();
        let (put, used): (&[u8], usize) = match (octet, next) {
            (b'\\', Some(digit @ b'0'..=b'9')) => (group(usize::from(digit - b'0')), 1),
            (b'\\', Some(b'&')) => (group(0), 1),
            (b'\\', Some(b'`')) => (&text[..start], 1),
            (b'\\', Some(b'\'')) => (&text[end..], 1),
            (b'\\', Some(b'\\')) => (b"\\", 1),
            (b'\\', Some(b'k')) if rest.get(1) == Some(&b'<') => {
                match rest.iter().position(|octet| *octet == b'>') {
                    Some(close) => {
                        let name = String::from_utf8_lossy(&rest[2..close]);
                        let number = name.parse().ok().or_else(|| regexp.group(&name));
                        (number.map_or(&[], group), close + 1)
                    }
                    None => (b"\\", 0),
                }
            }
            _ => (std::slice::from_ref(octet), 0),
        };
        out.extend_from_slice(put);
        rest = &rest[used..];
    }
}

/// `__replace(text, replacement, is_all)`: the new text, or nil if nothing matches.
fn replace(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let [subject, replacement, is_all] = call.arguments.exactly()?;
    let replacement = with_subject(vm, replacement, |text| Ok(text.to_vec()))?;
    let is_all = is_all.is_true();
    let (out, last) = with_regexp(vm, call.receiver, |regexp| {
        with_subject(vm, subject, |text| {
            let mut out = Vec::new();
            let (mut start, mut done) = (0, 0);
            let mut last: Option<Groups> = None;
            while let Some(groups) = regexp.search(text, start)? {
                let range = groups.first().copied().flatten().unwrap_or_default();
                // \K can put the start of a match before the end of the last one.
                let from = range.0.max(done);
                out.extend_from_slice(&text[done..from]);
                expand(&mut out, &replacement, text, &groups, regexp);
                done = range.1.max(done);
                start = after(text, range).max(start + usize::from(range.0 == range.1));
                last = Some(groups);
                if !is_all {
                    break;
                }
            }
            out.extend_from_slice(&text[done..]);
            Ok((out, last))
        })
    })?;
    let Some(last) = last else {
        return set_last(vm, Value::nil());
    };
    let data = new_match(vm, call.receiver, subject, last)?;
    set_last(vm, data)?;
    Ok(vm.string(out)?)
}

/// All matches of a text.
fn all(regexp: &Regexp, text: &[u8]) -> Result<Vec<Groups>, Leave> {
    let mut found = Vec::new();
    let mut start = 0;
    while let Some(groups) = regexp.search(text, start)? {
        let range = groups.first().copied().flatten().unwrap_or_default();
        start = after(text, range).max(start + usize::from(range.0 == range.1));
        found.push(groups);
    }
    Ok(found)
}

/// `__scan(text)`: an Array of Strings, or of Arrays if there are groups.
fn scan(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let [subject] = call.arguments.exactly()?;
    let found = with_regexp(vm, call.receiver, |regexp| {
        with_subject(vm, subject, |text| all(regexp, text))
    })?;
    let array = vm.array(&[])?;
    for groups in &found {
        vm.scope(|| {
            let item = if groups.len() > 1 {
                let captures = vm.array(&[])?;
                for group in &groups[1..] {
                    vm.push(captures, part(vm, subject, *group)?)?;
                }
                captures
            } else {
                part(vm, subject, groups[0])?
            };
            Ok::<_, Leave>(vm.push(array, item)?)
        })?;
    }
    let last = match found.into_iter().next_back() {
        Some(groups) => new_match(vm, call.receiver, subject, groups)?,
        None => Value::nil(),
    };
    set_last(vm, last)?;
    Ok(array)
}

/// `__split(text, limit)`.
fn split(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let [subject, limit] = call.arguments.exactly()?;
    let limit = limit.as_integer().unwrap_or(0);
    let mut parts = with_regexp(vm, call.receiver, |regexp| {
        with_subject(vm, subject, |text| {
            let mut parts = Vec::new();
            let (mut begin, mut start, mut count) = (0, 0, 1);
            while limit <= 0 || count < limit {
                let Some(groups) = regexp.search(text, start)? else {
                    break;
                };
                let range = groups.first().copied().flatten().unwrap_or_default();
                start = after(text, range).max(start + usize::from(range.0 == range.1));
                if range.0 == range.1 && (range.0 >= text.len() || range.0 == begin) {
                    // An empty match splits between characters only.
                    continue;
                }
                parts.push((begin, range.0.max(begin)));
                parts.extend(groups.iter().skip(1).filter_map(|group| *group));
                begin = range.1.max(begin);
                count += 1;
            }
            if !text.is_empty() {
                parts.push((begin, text.len()));
            }
            Ok(parts)
        })
    })?;
    if limit == 0 {
        while parts.last().is_some_and(|(start, end)| start == end) {
            parts.pop();
        }
    }
    let array = vm.array(&[])?;
    for range in parts {
        vm.scope(|| Ok::<_, Leave>(vm.push(array, slice(vm, subject, range)?)?))?;
    }
    Ok(array)
}

// ---- MatchData ----

/// The number of the group that an index or name means.
fn group_of(vm: &Vm, data: Value, index: Value) -> Result<Option<usize>, Leave> {
    let count = vm.with_object(data, |data: &Match| data.groups.len())?;
    if let Some(index) = index.as_integer() {
        let number = if index < 0 {
            let back = usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX);
            count.checked_sub(back)
        } else {
            usize::try_from(index).ok()
        };
        return Ok(number.filter(|number| *number < count));
    }
    let regexp = vm.instance_variable(data, "@regexp")?;
    let name = with_subject(vm, index, |name| {
        Ok(String::from_utf8_lossy(name).into_owned())
    })?;
    let group = with_regexp(vm, regexp, |regexp| Ok(regexp.group(&name)))?;
    group.map(Some).ok_or_else(|| {
        Leave::New(
            "IndexError",
            format!("undefined group name reference: {name}"),
        )
    })
}

fn range_of(vm: &Vm, data: Value, index: Value) -> Result<Option<(usize, usize)>, Leave> {
    let group = group_of(vm, data, index)?;
    vm.with_object(data, |data: &Match| {
        group.and_then(|group| data.groups.get(group).copied().flatten())
    })
}

fn text_of_match(vm: &Vm, data: Value) -> Result<Value, Leave> {
    Ok(vm.instance_variable(data, "@string")?)
}

fn parts_of(vm: &Vm, data: Value, skip: usize) -> Result<Value, Leave> {
    let text = text_of_match(vm, data)?;
    let groups = vm.with_object(data, |data: &Match| data.groups.clone())?;
    let array = vm.array(&[])?;
    for group in groups.iter().skip(skip) {
        vm.push(array, part(vm, text, *group)?)?;
    }
    Ok(array)
}

fn bound(vm: &Vm, call: &Call<'_>, of: fn((usize, usize)) -> usize) -> Result<Value, Leave> {
    let [index] = call.arguments.exactly()?;
    let range = range_of(vm, call.receiver, index)?;
    range.map_or(Ok(Value::nil()), |range| number(vm, of(range)))
}

pub(crate) fn define(vm: &Vm) -> Result<(), Value> {
    let regexp = vm.object_class(None, "Regexp")?;
    let data = vm.object_class(None, "MatchData")?;
    let standard = vm.constant(None, "StandardError")?;
    vm.class(None, "RegexpError", Some(standard))?;
    let _ = vm.local::<State>().classes.set((regexp, data));
    vm.set_constant(None, "OnigRegexp", regexp)?;
    vm.set_constant(None, "OnigMatchData", data)?;
    for (name, flag) in [
        ("IGNORECASE", IGNORECASE),
        ("EXTENDED", EXTENDED),
        ("MULTILINE", MULTILINE),
    ] {
        vm.set_constant(Some(regexp), name, vm.integer(flag)?)?;
    }
    vm.define_singleton(regexp, "new", make)?;
    vm.define_singleton(regexp, "compile", compile)?;
    for name in ["escape", "quote"] {
        vm.define_singleton(regexp, name, |vm, call| {
            let [text] = call.arguments.exactly()?;
            let escaped = with_subject(vm, text, |text| Ok(escape(text)))?;
            Ok(vm.string(escaped)?)
        })?;
    }
    vm.define_singleton(regexp, "last_match", |vm, call| {
        let index = call.arguments.between(0, 1)?.get(0);
        let last = vm.global("$~")?;
        if index.is_nil() || last.is_nil() {
            return Ok(last);
        }
        Ok(vm.call(last, "[]", &[index])?)
    })?;
    vm.define_singleton(regexp, "last_match=", |vm, call| {
        let [data] = call.arguments.exactly()?;
        set_last(vm, data)
    })?;
    vm.define_singleton(regexp, "version", |vm, _| Ok(vm.string("fancy-regex")?))?;
    define_regexp(vm, regexp)?;
    define_match(vm, data)?;
    define_string(vm)
}

fn define_regexp(vm: &Vm, regexp: Value) -> Result<(), Value> {
    vm.define(regexp, "match", |vm, call| {
        let subject = call.arguments.between(1, 2)?.get(0);
        match_at(vm, call.receiver, subject, call)
    })?;
    vm.define(regexp, "match?", |vm, call| {
        let arguments = call.arguments.between(1, 2)?;
        is_match_at(vm, call.receiver, arguments.get(0), arguments.get(1))
    })?;
    vm.define(regexp, "=~", |vm, call| {
        let [subject] = call.arguments.exactly()?;
        if subject.is_nil() {
            return set_last(vm, subject);
        }
        index_of(vm, call.receiver, subject, 0)
    })?;
    vm.define(regexp, "===", |vm, call| {
        let [subject] = call.arguments.exactly()?;
        if !matches!(subject.kind(), Kind::String | Kind::Symbol) {
            return Ok(Value::boolean(false));
        }
        let found = index_of(vm, call.receiver, subject, 0)?;
        Ok(Value::boolean(!found.is_nil()))
    })?;
    vm.define(regexp, "==", |vm, call| {
        let [other] = call.arguments.exactly()?;
        let read = |value| {
            with_regexp(vm, value, |regexp| {
                Ok((regexp.source.clone(), regexp.options))
            })
        };
        let is_equal = vm.is_a(other, classes(vm)?.0) && read(call.receiver)? == read(other)?;
        Ok(Value::boolean(is_equal))
    })?;
    vm.define(regexp, "source", |vm, call| {
        with_regexp(vm, call.receiver, |regexp| Ok(vm.string(&regexp.source)?))
    })?;
    vm.define(regexp, "options", |vm, call| {
        with_regexp(vm, call.receiver, |regexp| Ok(vm.integer(regexp.options)?))
    })?;
    vm.define(regexp, "casefold?", |vm, call| {
        with_regexp(vm, call.receiver, |regexp| {
            Ok(Value::boolean(regexp.options & IGNORECASE != 0))
        })
    })?;
    vm.define(regexp, "inspect", |vm, call| {
        with_regexp(vm, call.receiver, |regexp| Ok(vm.string(inspect(regexp))?))
    })?;
    vm.define(regexp, "to_s", |vm, call| {
        with_regexp(vm, call.receiver, |regexp| Ok(vm.string(embedded(regexp))?))
    })?;
    vm.define(regexp, "__search", |vm, call| {
        let [subject, start] = call.arguments.exactly()?;
        match start_of(vm, subject, start)? {
            Some(start) => find(vm, call.receiver, subject, start),
            None => Ok(Value::nil()),
        }
    })?;
    vm.define(regexp, "__replace", replace)?;
    vm.define(regexp, "__scan", scan)?;
    vm.define(regexp, "__split", split)
}

fn define_match(vm: &Vm, data: Value) -> Result<(), Value> {
    vm.define(data, "[]", |vm, call| {
        let arguments = call.arguments.between(1, 2)?;
        let index = arguments.get(0);
        let is_one = matches!(index.kind(), Kind::Integer | Kind::String | Kind::Symbol);
        if !is_one || arguments.all().len() == 2 {
            let parts = parts_of(vm, call.receiver, 0)?;
            return Ok(vm.call(parts, "[]", arguments.all())?);
        }
        let range = range_of(vm, call.receiver, index)?;
        part(vm, text_of_match(vm, call.receiver)?, range)
    })?;
    vm.define(data, "begin", |vm, call| bound(vm, call, |range| range.0))?;
    vm.define(data, "end", |vm, call| bound(vm, call, |range| range.1))?;
    vm.define(data, "offset", |vm, call| {
        let [index] = call.arguments.exactly()?;
        let both = match range_of(vm, call.receiver, index)? {
            Some((start, end)) => [number(vm, start)?, number(vm, end)?],
            None => [Value::nil(); 2],
        };
        Ok(vm.array(&both)?)
    })?;
    vm.define(data, "captures", |vm, call| parts_of(vm, call.receiver, 1))?;
    vm.define(data, "to_a", |vm, call| parts_of(vm, call.receiver, 0))?;
    vm.define(data, "to_s", |vm, call| {
        let range = vm.with_object(call.receiver, |data: &Match| data.groups[0])?;
        part(vm, text_of_match(vm, call.receiver)?, range)
    })?;
    vm.define(data, "pre_match", |vm, call| {
        let range = vm.with_object(call.receiver, |data: &Match| data.groups[0])?;
        part(
            vm,
            text_of_match(vm, call.receiver)?,
            range.map(|range| (0, range.0)),
        )
    })?;
    vm.define(data, "post_match", |vm, call| {
        let range = vm.with_object(call.receiver, |data: &Match| data.groups[0])?;
        let text = text_of_match(vm, call.receiver)?;
        let length = vm.with_bytes(text, <[u8]>::len).unwrap_or(0);
        part(vm, text, range.map(|range| (range.1, length)))
    })?;
    for name in ["size", "length"] {
        vm.define(data, name, |vm, call| {
            let count = vm.with_object(call.receiver, |data: &Match| data.groups.len())?;
            number(vm, count)
        })?;
    }
    vm.define(data, "string", |vm, call| text_of_match(vm, call.receiver))?;
    vm.define(data, "regexp", |vm, call| {
        Ok(vm.instance_variable(call.receiver, "@regexp")?)
    })?;
    vm.define(data, "__next", |vm, call| {
        let range = vm.with_object(call.receiver, |data: &Match| data.groups[0])?;
        let text = text_of_match(vm, call.receiver)?;
        let next = vm.with_bytes(text, |text| after(text, range.unwrap_or_default()));
        number(vm, next.unwrap_or(0))
    })
}

fn define_string(vm: &Vm) -> Result<(), Value> {
    let string = vm.constant(None, "String")?;
    vm.define(string, "=~", |vm, call| {
        let [pattern] = call.arguments.exactly()?;
        if pattern.kind() == Kind::String {
            return Err(Leave::type_error("type mismatch: String given"));
        }
        if vm.is_a(pattern, classes(vm)?.0) {
            return index_of(vm, pattern, call.receiver, 0);
        }
        Ok(vm.call(pattern, "=~", &[call.receiver])?)
    })?;
    vm.define(string, "match", |vm, call| {
        let pattern = call.arguments.between(1, 2)?.get(0);
        let pattern = pattern_of(vm, pattern)?;
        match_at(vm, pattern, call.receiver, call)
    })?;
    vm.define(string, "match?", |vm, call| {
        let arguments = call.arguments.between(1, 2)?;
        let pattern = pattern_of(vm, arguments.get(0))?;
        is_match_at(vm, pattern, call.receiver, arguments.get(1))
    })
}
