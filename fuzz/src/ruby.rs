//! Ruby methods that scripts call with text from the network, and values that pass between Rust and Ruby.

use std::rc::Rc;

use h2o_mruby::{Kind, Options, Value, Vm};

thread_local! {
    static VM: Rc<Vm> = Vm::open(Options::default()).expect("the Ruby library can be used");
}

pub(crate) fn with_vm(work: impl FnOnce(&Vm)) {
    VM.with(|vm| vm.scope(|| work(vm)));
}

/// Calls a Ruby method. Returns its value, or `None` if it raises one of the exceptions in `allowed`.
pub(crate) fn call(
    vm: &Vm,
    receiver: Value,
    name: &str,
    arguments: &[Value],
    allowed: &[&str],
) -> Option<Value> {
    match vm.call(receiver, name, arguments) {
        Ok(value) => Some(value),
        Err(exception) => {
            let class = vm.class_name(exception);
            let text = vm.describe(exception);
            assert!(allowed.contains(&&*class), "{name}: {text}");
            None
        }
    }
}

pub(crate) fn string(vm: &Vm, text: impl AsRef<[u8]>) -> Value {
    vm.string(text).expect("the VM has memory left")
}

/// The positions of the groups in a MatchData; `None` if the value is nil.
pub(crate) fn places(vm: &Vm, found: Value) -> Option<Vec<Option<[i64; 2]>>> {
    if found.is_nil() {
        return None;
    }
    let count = vm.call(found, "size", &[]).ok()?.as_integer()?;
    let place = |group| {
        let group = vm.integer(group).ok()?;
        let bound = |name| vm.call(found, name, &[group]).ok()?.as_integer();
        Some([bound("begin")?, bound("end")?])
    };
    Some((0..count).map(place).collect())
}

/// The input is a byte of flags, a line with the pattern, and the subject. All ways to search must find the same: with and without groups,
/// by characters and by bytes, and with the engine that is used for patterns with a look-ahead.
///
/// # Panics
/// If an invariant does not hold.
pub fn ruby_patterns(input: &[u8]) {
    const ERRORS: &[&str] = &["RegexpError"];
    const EXTENDED: u8 = 2;
    let Some((flags, rest)) = input.split_first() else {
        return;
    };
    let mut parts = rest.splitn(2, |byte| *byte == b'\n');
    let pattern = parts.next().unwrap_or_default();
    let subject = parts.next().unwrap_or_default();
    with_vm(|vm| {
        let class = vm
            .constant(None, "Regexp")
            .expect("the VM has the class Regexp");
        let flags = flags & 7;
        let number = vm.integer(flags.into()).expect("the VM has memory left");
        let text = string(vm, subject);
        let find = |arguments: &[Value]| {
            let regexp = call(vm, class, "new", arguments, ERRORS)?;
            let found = call(vm, regexp, "match", &[text], ERRORS)?;
            Some((regexp, places(vm, found)))
        };
        let pattern_text = string(vm, pattern);
        let Some((regexp, found)) = find(&[pattern_text, number]) else {
            return;
        };
        if let Some(is_match) = call(vm, regexp, "match?", &[text], ERRORS) {
            assert_eq!(is_match.is_true(), found.is_some(), "match?");
        }
        for name in ["scan", "split", "gsub"] {
            let arguments = [regexp, text];
            let arguments = if name == "gsub" {
                &arguments[..]
            } else {
                &arguments[..1]
            };
            call(vm, text, name, arguments, ERRORS);
        }
        if pattern.is_ascii() && subject.is_ascii() {
            let octets = string(vm, "n");
            if let Some((_, other)) = find(&[pattern_text, number, octets]) {
                assert_eq!(found, other, "the search by bytes found something else");
            }
        }
        // A comment in an extended pattern ends at the end of the line.
        let end: &[u8] = if flags & EXTENDED == 0 {
            b")(?=)"
        } else {
            b"\n)(?=)"
        };
        let around = string(vm, [b"(?:", pattern, end].concat());
        if let Some((_, other)) = find(&[around, number]) {
            assert_eq!(
                found, other,
                "the search with a look-ahead found something else"
            );
        }
    });
}

/// If the input is JSON, the text that is generated from its value is JSON, and is generated from its own value again, except for digits:
/// Floats lose some each time.
///
/// # Panics
/// If an invariant does not hold.
pub fn ruby_json(input: &[u8]) {
    with_vm(|vm| {
        let json = vm
            .constant(None, "JSON")
            .expect("the VM has the class JSON");
        let text = string(vm, input);
        let Some(value) = call(vm, json, "parse", &[text], &["JSON::ParserError"]) else {
            return;
        };
        for name in ["generate", "pretty_generate"] {
            let written =
                call(vm, json, name, &[value], &[]).expect("the call may not raise any exception");
            let again = call(vm, json, "parse", &[written], &[])
                .expect("the call may not raise any exception");
            let again =
                call(vm, json, name, &[again], &[]).expect("the call may not raise any exception");
            let [written, again] = [written, again].map(|text| {
                let mut text = vm.bytes(text).unwrap_or_default();
                text.retain(|byte| !b"0123456789.e+-".contains(byte));
                String::from_utf8_lossy(&text).into_owned()
            });
            assert_eq!(written, again, "{name}");
        }
    });
}

/// A Ruby value in a form that Rust can compare.
#[derive(Debug, PartialEq)]
pub(crate) enum Plain {
    Nil,
    Boolean(bool),
    Integer(i64),
    /// A Float, as the 64 bits of the number.
    Float(u64),
    Text(Vec<u8>),
    List(Vec<Self>),
    /// A hash whose keys are the indices of its values.
    Table(Vec<Self>),
}

impl Plain {
    /// Takes a value from the front of the input.
    pub(crate) fn read(input: &mut &[u8], depth: u32) -> Self {
        let Some((kind, rest)) = input.split_first() else {
            return Self::Nil;
        };
        *input = rest;
        let length = usize::from(kind >> 3);
        match kind & 7 {
            0 => Self::Nil,
            1 => Self::Boolean(length % 2 == 1),
            2 => Self::Integer(i64::from_le_bytes(take_eight(input))),
            3 => {
                // mruby's boxing of floats drops the last two bits, and all NaNs count as equal.
                let float = f64::from_le_bytes(take_eight(input));
                Self::Float(if float.is_nan() {
                    0
                } else {
                    float.to_bits() & !3
                })
            }
            4 | 5 => {
                let (text, rest) = input.split_at(length.min(input.len()));
                *input = rest;
                Self::Text(text.to_vec())
            }
            kind => {
                let count = if depth == 0 { 0 } else { length };
                let items = (0..count).map(|_| Self::read(input, depth - 1)).collect();
                if kind == 6 {
                    Self::List(items)
                } else {
                    Self::Table(items)
                }
            }
        }
    }

    pub(crate) fn to_ruby(&self, vm: &Vm) -> Result<Value, Value> {
        match self {
            Self::Nil => Ok(Value::nil()),
            Self::Boolean(value) => Ok(Value::boolean(*value)),
            Self::Integer(number) => vm.integer(*number),
            Self::Float(bits) => vm.float(f64::from_bits(*bits)),
            Self::Text(text) => vm.string(text),
            Self::List(items) => {
                let array = vm.array(&[])?;
                for item in items {
                    vm.push(array, item.to_ruby(vm)?)?;
                }
                Ok(array)
            }
            Self::Table(items) => {
                let hash = vm.hash(items.len())?;
                for (number, item) in (0..).zip(items) {
                    vm.hash_set(hash, vm.integer(number)?, item.to_ruby(vm)?)?;
                }
                Ok(hash)
            }
        }
    }

    fn of_ruby(vm: &Vm, value: Value) -> Result<Self, Value> {
        Ok(match value.kind() {
            Kind::Nil => Self::Nil,
            Kind::True => Self::Boolean(true),
            Kind::False => Self::Boolean(false),
            Kind::Integer => Self::Integer(
                value
                    .as_integer()
                    .expect("the value is of the kind matched above"),
            ),
            Kind::Float => Self::Float(
                value
                    .as_float()
                    .expect("the value is of the kind matched above")
                    .to_bits(),
            ),
            Kind::String => Self::Text(
                vm.bytes(value)
                    .expect("the value is of the kind matched above"),
            ),
            Kind::Array => {
                let items = vm.elements(value).unwrap_or_default().into_iter();
                Self::List(
                    items
                        .map(|item| Self::of_ruby(vm, item))
                        .collect::<Result<_, _>>()?,
                )
            }
            Kind::Hash => {
                let keys = vm.elements(vm.hash_keys(value)?).unwrap_or_default();
                let items = keys.into_iter();
                let items = items.map(|key| Self::of_ruby(vm, vm.hash_get(value, key)?));
                Self::Table(items.collect::<Result<_, _>>()?)
            }
            kind => panic!("the test makes no value of the kind {kind:?}"),
        })
    }
}

fn take_eight(input: &mut &[u8]) -> [u8; 8] {
    let mut bytes = [0; 8];
    let count = input.len().min(8);
    bytes[..count].copy_from_slice(&input[..count]);
    *input = &input[count..];
    bytes
}

/// A value that Rust makes is the same when Rust reads it back from Ruby.
///
/// # Panics
/// If an invariant does not hold.
pub fn ruby_values(mut input: &[u8]) {
    let plain = Plain::read(&mut input, 16);
    with_vm(|vm| {
        let value = plain.to_ruby(vm).expect("the VM has memory left");
        vm.set_global("$value", value)
            .expect("the VM has memory left");
        let kept = vm.global("$value").expect("the VM has memory left");
        let passed = vm
            .call(kept, "itself", &[])
            .expect("the value is an object");
        for value in [value, kept, passed] {
            let back = Plain::of_ruby(vm, value).expect("the VM has memory left");
            assert_eq!(back, plain);
        }
        let shown = vm
            .call(value, "inspect", &[])
            .expect("the value can be converted to a text");
        assert_eq!(shown.kind(), Kind::String);
    });
}
