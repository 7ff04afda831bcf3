//! Ruby's `Regexp`, `MatchData`, `$~ $1 ...`, and the methods of String that take patterns. The engine is fancy-regex:
//! patterns without look-around and back references run in linear time, others have a limit of steps. The methods that call
//! a block are in Ruby (`prelude/regexp.rb`), because a block may wait for I/O: its fiber is then suspended, which is
//! impossible while a function of Rust or C is below it on the stack.

mod engine;
mod match_data;
mod strings;
mod syntax;
#[cfg(test)]
mod tests;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::{Call, Kind, Leave, Rooted, Value, Vm};
use engine::{EXTENDED, IGNORECASE, MULTILINE, OCTETS, Regexp, embedded, escape, inspect};
use match_data::{Match, define_match, new_match, set_last};
use strings::{replace, scan, search_some, split};

/// Maximum number of compiled patterns that are cached for each set of flags.
const MOST_KEPT: usize = 512;

/// Number of compiled patterns after which garbage is collected: the collector does not know how much memory they use.
const COMPILED_PER_COLLECTION: u32 = 256;

/// If the kept regular expressions of literals use more than the VM's memory limit divided by this number, all of them are dropped.
const KEPT_SHARE: usize = 8;

/// The cached patterns by their source, for one set of flags.
type Kept = FxHashMap<Box<[u8]>, Rooted>;

/// The state of the pattern functions in one VM: the compiled patterns of literals in scripts, and what is known of `$~`
/// and `$1` to `$9`.
#[derive(Default)]
pub(crate) struct State {
    kept: RefCell<FxHashMap<i64, Kept>>,
    compiled: Cell<u32>,
    /// Whether `$~` is set; `set_groups` is how many of `$1` to `$9` are.
    is_set: Cell<bool>,
    set_groups: Cell<usize>,
    classes: OnceCell<(Value, Value)>,
}

fn classes(vm: &Vm) -> Result<(Value, Value), Leave> {
    let classes = vm.patterns.classes.get().copied();
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

/// Calls `read` with the octets of the subject of a match, which must be a String or Symbol.
fn with_subject<T>(
    vm: &Vm,
    value: Value,
    read: impl FnOnce(&[u8]) -> Result<T, Leave>,
) -> Result<T, Leave> {
    vm.with_bytes(value, read).unwrap_or_else(|| {
        let class = vm.name_in_messages(value);
        Err(Leave::type_error(format!(
            "no implicit conversion of {class} into String"
        )))
    })
}

/// The flags that the second and third arguments of `Regexp.new` mean.
fn options_of(vm: &Vm, flags: Value, encoding: Value) -> i64 {
    let mut options = match flags.kind() {
        Kind::Nil | Kind::False => 0,
        Kind::Integer => {
            flags.as_integer().unwrap_or(0) & (IGNORECASE | EXTENDED | MULTILINE | OCTETS)
        }
        Kind::String => vm.with_bytes(flags, options_in).unwrap_or(0),
        _ => IGNORECASE,
    };
    if vm.with_bytes(encoding, |letters| letters.starts_with(b"n")) == Some(true) {
        options |= OCTETS;
    }
    options
}

/// The flags that the letters after a literal mean.
fn options_in(letters: &[u8]) -> i64 {
    let flag = |letter, flag| {
        if letters.contains(&letter) { flag } else { 0 }
    };
    flag(b'i', IGNORECASE) | flag(b'x', EXTENDED) | flag(b'm', MULTILINE)
}

fn new(vm: &Vm, source: &[u8], options: i64) -> Result<Value, Leave> {
    let state = &vm.patterns;
    let compiled = state.compiled.get() + 1;
    state.compiled.set(compiled % COMPILED_PER_COLLECTION);
    if compiled == COMPILED_PER_COLLECTION {
        vm.collect();
    }
    let regexp = Regexp::compile(vm, source, options)?;
    Ok(vm.object(classes(vm)?.0, Rc::new(regexp))?)
}

/// `Regexp.new` in Ruby.
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

/// `Regexp.compile` in Ruby, which mruby calls at each evaluation of a literal.
fn compile(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let arguments = call.arguments.between(1, 3)?;
    let source = arguments.get(0);
    if source.kind() != Kind::String {
        return make(vm, call);
    }
    let options = options_of(vm, arguments.get(1), arguments.get(2));
    let state = &vm.patterns;
    let kept = vm.with_bytes(source, |text| kept_with(vm, text, options));
    if let Some(regexp) = kept.flatten() {
        return Ok(regexp);
    }
    let text = vm.bytes(source).unwrap_or_default();
    let regexp = new(vm, &text, options)?;
    let rooted = vm.root(regexp)?;
    if kept_memory(vm, state) > vm.memory_limit() / KEPT_SHARE {
        forget_kept(vm);
    }
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

fn kept_with(vm: &Vm, source: &[u8], options: i64) -> Option<Value> {
    let kept = vm.patterns.kept.borrow();
    Some(kept.get(&options)?.get(source)?.value())
}

/// The kept regular expression with this source, and the flags that these letters mean.
pub(crate) fn kept(vm: &Vm, source: &[u8], letters: &[u8]) -> Option<Value> {
    kept_with(vm, source, options_in(letters))
}

/// Whether a regular expression matches a text; `None` if the search fails.
pub(crate) fn is_match(vm: &Vm, regexp: &Rc<Regexp>, text: &[u8]) -> Option<bool> {
    regexp.is_match(vm, text, 0).ok()
}

/// Bytes that the VM counts for the kept regular expressions of literals, including the caches that searches have filled.
fn kept_memory(vm: &Vm, state: &State) -> usize {
    let kept = state.kept.borrow();
    let patterns = kept.values().flat_map(FxHashMap::values);
    let memory = |pattern: &Rooted| {
        vm.with_object(pattern.value(), |regexp: &Rc<Regexp>| regexp.memory())
            .unwrap_or(0)
    };
    patterns.map(memory).sum()
}

/// Drops the kept regular expressions of literals, so that the garbage collector can free them. They are compiled again when a script
/// evaluates their literals again.
pub(crate) fn forget_kept(vm: &Vm) {
    let removed = vm.patterns.kept.take();
    drop(removed);
}

/// Searches without setting global variables. Returns a `MatchData` or nil.
fn find(vm: &Vm, regexp: Value, subject: Value, start: usize) -> Result<Value, Leave> {
    let groups = with_regexp(vm, regexp, |regexp| {
        with_subject(vm, subject, |text| {
            regexp.search(vm, &regexp.subject(text), start)
        })
    })?;
    groups.map_or(Ok(Value::nil()), |groups| {
        new_match(vm, regexp, subject, groups)
    })
}

fn number(vm: &Vm, number: usize) -> Result<Value, Leave> {
    Ok(vm.integer(i64::try_from(number).unwrap_or(i64::MAX))?)
}

/// The octet at which a search starts; a negative position counts from the end. `None` if it is outside of the subject.
fn start_of(vm: &Vm, subject: Value, position: Value) -> Result<Option<usize>, Leave> {
    let position = match position.kind() {
        Kind::Nil => 0,
        Kind::Integer => position.as_integer().unwrap_or(0),
        _ => {
            return Err(Leave::type_error(
                "the position at which the search starts is no Integer",
            ));
        }
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

/// The Regexp that an argument means; a String is compiled.
fn pattern_of(vm: &Vm, value: Value) -> Result<Value, Leave> {
    let (class, _) = classes(vm)?;
    if vm.is_a(value, class) {
        return Ok(value);
    }
    if value.kind() == Kind::String {
        return Ok(vm.call(class, "compile", &[value])?);
    }
    let class = vm.name_in_messages(value);
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
        with_subject(vm, subject, |text| regexp.is_match(vm, text, start))
    })??;
    Ok(Value::boolean(is_match))
}

/// Searches and sets the global variables. Returns the index of the match, or nil.
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

pub(crate) fn define(vm: &Vm) -> Result<(), Value> {
    let regexp = vm.object_class(None, "Regexp")?;
    let data = vm.object_class(None, "MatchData")?;
    let standard = vm.constant(None, "StandardError")?;
    vm.class(None, "RegexpError", Some(standard))?;
    let _ = vm.patterns.classes.set((regexp, data));
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
    vm.define_pattern(regexp, compile)?;
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
    vm.define_match(regexp, |vm, call| {
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
    vm.define(regexp, "__search_some", search_some)?;
    vm.define(regexp, "__replace", replace)?;
    vm.define(regexp, "__scan", scan)?;
    vm.define(regexp, "__split", split)
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
    vm.define_match(string, |vm, call| {
        let arguments = call.arguments.between(1, 2)?;
        let pattern = pattern_of(vm, arguments.get(0))?;
        is_match_at(vm, pattern, call.receiver, arguments.get(1))
    })
}
