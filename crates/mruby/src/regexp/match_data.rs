//! Ruby's `MatchData`, and the global variables that refer to the last one.

use super::engine::{Groups, after};
use super::{classes, number, with_regexp, with_subject};
use crate::{Call, Kind, Leave, Value, Vm};

/// The Rust object of a `MatchData`. Its instance variables in Ruby have the subject and the Regexp.
pub(super) struct Match {
    pub(super) groups: Groups,
}

pub(super) fn new_match(
    vm: &Vm,
    regexp: Value,
    subject: Value,
    groups: Groups,
) -> Result<Value, Leave> {
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

/// Sets `$~`, `$1` and the like from a `MatchData`, or to nil.
pub(super) fn set_last(vm: &Vm, data: Value) -> Result<Value, Leave> {
    const NUMBERED: [&str; 9] = ["$1", "$2", "$3", "$4", "$5", "$6", "$7", "$8", "$9"];
    let state = &vm.patterns;
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

/// A part of a String. A long part shares its memory with the String.
pub(super) fn slice(vm: &Vm, text: Value, (start, end): (usize, usize)) -> Result<Value, Leave> {
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

pub(super) fn part(vm: &Vm, text: Value, group: Option<(usize, usize)>) -> Result<Value, Leave> {
    group.map_or(Ok(Value::nil()), |range| slice(vm, text, range))
}

/// The number of the group that an index or a name denotes.
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
    let group = with_regexp(vm, regexp, |regexp| {
        vm.with_object(data, |data: &Match| regexp.group(&name, &data.groups))
    })?;
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

pub(super) fn define_match(vm: &Vm, data: Value) -> Result<(), Value> {
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
