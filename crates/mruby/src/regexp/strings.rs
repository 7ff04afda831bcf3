//! Methods of String that take patterns: replacing, scanning and splitting.

use super::engine::{Groups, Regexp, after};
use super::match_data::{new_match, part, set_last, slice};
use super::{start_of, with_regexp, with_subject};
use crate::{Call, Leave, Value, Vm};

/// Appends `replacement` to `out`, with `\1`, `\0`, `\k<name>`, `\\` and the like replaced by parts of the match.
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
                        let number = name.parse().ok().or_else(|| regexp.group(&name, groups));
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

/// `__replace(text, replacement, is_all)` in Ruby: the new text, or nil if nothing matches. `is_all` tells whether all
/// matches are replaced.
pub(super) fn replace(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let [subject, replacement, is_all] = call.arguments.exactly()?;
    let replacement = with_subject(vm, replacement, |text| Ok(text.to_vec()))?;
    let is_all = is_all.is_true();
    let (out, last) = with_regexp(vm, call.receiver, |regexp| {
        with_subject(vm, subject, |text| {
            let mut out = Vec::new();
            let (mut start, mut done) = (0, 0);
            let mut last: Option<Groups> = None;
            let prepared = regexp.subject(text);
            while let Some(groups) = regexp.search(vm, &prepared, start)? {
                let range = groups.first().copied().flatten().unwrap_or_default();
                // Because of `\K`, a match can start before the end of the previous match: no text is copied twice then.
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

/// The matches in a text from octet `start` on, at most `most`.
fn all(
    vm: &Vm,
    regexp: &Regexp,
    text: &[u8],
    mut start: usize,
    most: usize,
) -> Result<Vec<Groups>, Leave> {
    let prepared = regexp.subject(text);
    let mut found = Vec::new();
    while found.len() < most
        && let Some(groups) = regexp.search(vm, &prepared, start)?
    {
        let range = groups.first().copied().flatten().unwrap_or_default();
        start = after(text, range).max(start + usize::from(range.0 == range.1));
        found.push(groups);
    }
    Ok(found)
}

/// `__search_some(text, start, most)` in Ruby: an Array of the matches from octet `start` on, at most `most`.
pub(super) fn search_some(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let [subject, start, most] = call.arguments.exactly()?;
    let start = start_of(vm, subject, start)?.unwrap_or(usize::MAX);
    let most = most.as_integer().map(usize::try_from);
    let most = most.and_then(Result::ok).unwrap_or(1);
    let found = with_regexp(vm, call.receiver, |regexp| {
        with_subject(vm, subject, |text| all(vm, regexp, text, start, most))
    })?;
    let array = vm.array(&[])?;
    for groups in found {
        vm.scope(|| {
            let data = new_match(vm, call.receiver, subject, groups)?;
            Ok::<_, Leave>(vm.push(array, data)?)
        })?;
    }
    Ok(array)
}

/// `__scan(text)` in Ruby: an Array of the matches as Strings, or as Arrays of their groups if the pattern has groups.
pub(super) fn scan(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let [subject] = call.arguments.exactly()?;
    let found = with_regexp(vm, call.receiver, |regexp| {
        with_subject(vm, subject, |text| all(vm, regexp, text, 0, usize::MAX))
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

/// `__split(text, limit)` in Ruby: an Array of the parts between the matches.
pub(super) fn split(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let [subject, limit] = call.arguments.exactly()?;
    let limit = limit.as_integer().unwrap_or(0);
    let mut parts = with_regexp(vm, call.receiver, |regexp| {
        with_subject(vm, subject, |text| {
            let mut parts = Vec::new();
            let (mut begin, mut start, mut count) = (0, 0, 1);
            let prepared = regexp.subject(text);
            while limit <= 0 || count < limit {
                let Some(groups) = regexp.search(vm, &prepared, start)? else {
                    break;
                };
                let range = groups.first().copied().flatten().unwrap_or_default();
                start = after(text, range).max(start + usize::from(range.0 == range.1));
                if range.0 == range.1 && (range.0 >= text.len() || range.0 == begin) {
                    // An empty match splits only between two characters, not at either end.
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
