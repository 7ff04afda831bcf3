//! Parses YAML into events. This is the only module that uses libyaml (translated to Rust).
//!
//! A parser of events leaves anchors, aliases and duplicate keys to its caller. The dialect of configurations needs that:
//! aliases are allowed before their anchors.

#![expect(
    unsafe_code,
    reason = "libyaml-rs has the unsafe interface of a C library"
)]

use std::ffi::CStr;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use libyaml_rs as unsafe_sys;

/// One YAML event. Lines and columns count from 0.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) line: u32,
    pub(crate) column: u32,
    pub(crate) kind: EventKind,
}

#[derive(Debug)]
pub(crate) enum EventKind {
    /// A scalar; `block` tells whether it is written with `|` or `>`.
    Scalar {
        properties: Properties,
        text: String,
        block: bool,
    },
    SequenceStart(Properties),
    MappingStart(Properties),
    /// The end of a sequence or a mapping.
    End,
    Alias(String),
    /// The end of a document; `explicit` tells whether it is written as `...`.
    DocumentEnd {
        explicit: bool,
    },
    StreamEnd,
    /// The start of the stream or of a document.
    Started,
}

/// Anchor and tag of a node.
#[derive(Debug)]
pub(crate) struct Properties {
    pub(crate) anchor: Option<String>,
    pub(crate) tag: Option<String>,
}

/// A position in the input. Lines and columns count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

impl Mark {
    fn of(mark: &unsafe_sys::yaml_mark_t) -> Self {
        Self {
            line: clamp(mark.line),
            column: clamp(mark.column),
        }
    }
}

/// Why the input is not valid YAML.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) place: Mark,
    pub(crate) message: String,
    /// The construct that was being parsed when the problem was found, and the position at which it begins.
    pub(crate) context: Option<(String, Mark)>,
}

/// Reads the events of `input` one by one.
pub(crate) struct Parser<'a> {
    /// The memory of libyaml's parser, from `Box::into_raw`. It never moves, since the parser stores its own address.
    raw: NonNull<unsafe_sys::yaml_parser_t>,
    input: &'a [u8],
    owns: PhantomData<unsafe_sys::yaml_parser_t>,
}

impl<'a> Parser<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        let memory =
            Box::into_raw(Box::new(MaybeUninit::<unsafe_sys::yaml_parser_t>::uninit())).cast();
        // SAFETY: `memory` is a fresh allocation of the right type, which `yaml_parser_initialize` fills whole; it
        // cannot fail, as allocation failure aborts. `input` outlives the parser by the lifetime of `Self`.
        let raw = unsafe {
            let _ = unsafe_sys::yaml_parser_initialize(memory);
            unsafe_sys::yaml_parser_set_input_string(memory, input.as_ptr(), input.len() as u64);
            NonNull::new_unchecked(memory)
        };
        Self {
            raw,
            input,
            owns: PhantomData,
        }
    }

    /// Reads the next event. Must not be called again after [`EventKind::StreamEnd`] or a problem.
    pub(crate) fn poll_event(&mut self) -> Result<Event, Problem> {
        let mut event = MaybeUninit::<unsafe_sys::yaml_event_t>::uninit();
        // SAFETY: `raw` is an initialised parser that only `self` uses. `yaml_parser_parse` clears the event before
        // anything else, so it is initialised whatever the outcome.
        let ok = unsafe { unsafe_sys::yaml_parser_parse(self.raw.as_ptr(), event.as_mut_ptr()).ok };
        // SAFETY: `event` was initialised by `yaml_parser_parse`, which clears it before anything else.
        let event = unsafe { event.assume_init_mut() };
        if !ok {
            return Err(self.problem());
        }
        let converted = Event {
            line: clamp(event.start_mark.line),
            column: clamp(event.start_mark.column),
            // SAFETY: `event` comes from `yaml_parser_parse` and has not been deleted.
            kind: unsafe { kind(event) },
        };
        // SAFETY: deletes the event once; nothing refers to its memory any more.
        unsafe { unsafe_sys::yaml_event_delete(event) };
        Ok(converted)
    }

    fn problem(&self) -> Problem {
        // SAFETY: `raw` is an initialised parser that only `self` uses.
        let parser = unsafe { self.raw.as_ref() };
        // SAFETY: the problem and context strings of the parser are null or static C strings.
        let (message, context) =
            unsafe { (text(parser.problem.cast()), text(parser.context.cast())) };
        // An encoding problem has an offset instead of a line, since libyaml's reader is ahead of its scanner.
        let place = match parser.error {
            unsafe_sys::yaml_error_type_t::YAML_READER_ERROR => self.locate(parser.problem_offset),
            _ => Mark::of(&parser.problem_mark),
        };
        Problem {
            place,
            message: message.unwrap_or_else(|| "not YAML".to_owned()),
            context: context.map(|context| (context, Mark::of(&parser.context_mark))),
        }
    }

    /// Converts an offset in UTF-8 input into line and column.
    fn locate(&self, offset: u64) -> Mark {
        let offset = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(self.input.len());
        let before = &self.input[..offset];
        let line = before.iter().filter(|&&byte| byte == b'\n').count();
        let start = before
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |newline| newline + 1);
        let column = String::from_utf8_lossy(&before[start..]).chars().count();
        Mark {
            line: clamp(line as u64),
            column: clamp(column as u64),
        }
    }
}

impl Drop for Parser<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` was initialised and boxed in `new`, and is deleted and freed only here.
        unsafe {
            unsafe_sys::yaml_parser_delete(self.raw.as_ptr());
            drop(Box::from_raw(
                self.raw
                    .as_ptr()
                    .cast::<MaybeUninit<unsafe_sys::yaml_parser_t>>(),
            ));
        }
    }
}

/// # Safety
/// `event` must have been filled by `yaml_parser_parse` and not deleted since.
unsafe fn kind(event: &unsafe_sys::yaml_event_t) -> EventKind {
    use unsafe_sys::yaml_event_type_t as Type;
    // SAFETY: the event's type says which member of the union is initialised; its strings are null or NUL-terminated,
    // and a scalar's value has `length` bytes.
    unsafe {
        match event.type_ {
            Type::YAML_SCALAR_EVENT => {
                let scalar = &event.data.scalar;
                let length = usize::try_from(scalar.length).unwrap_or(0);
                let bytes = std::slice::from_raw_parts(scalar.value, length);
                let style = scalar.style;
                EventKind::Scalar {
                    properties: properties(scalar.anchor, scalar.tag),
                    text: String::from_utf8_lossy(bytes).into_owned(),
                    block: style == unsafe_sys::yaml_scalar_style_t::YAML_LITERAL_SCALAR_STYLE
                        || style == unsafe_sys::yaml_scalar_style_t::YAML_FOLDED_SCALAR_STYLE,
                }
            }
            Type::YAML_SEQUENCE_START_EVENT => {
                let start = &event.data.sequence_start;
                EventKind::SequenceStart(properties(start.anchor, start.tag))
            }
            Type::YAML_MAPPING_START_EVENT => {
                let start = &event.data.mapping_start;
                EventKind::MappingStart(properties(start.anchor, start.tag))
            }
            Type::YAML_SEQUENCE_END_EVENT | Type::YAML_MAPPING_END_EVENT => EventKind::End,
            Type::YAML_ALIAS_EVENT => {
                EventKind::Alias(text(event.data.alias.anchor).unwrap_or_default())
            }
            Type::YAML_STREAM_START_EVENT | Type::YAML_DOCUMENT_START_EVENT => EventKind::Started,
            Type::YAML_DOCUMENT_END_EVENT => EventKind::DocumentEnd {
                explicit: !event.data.document_end.implicit,
            },
            // If libyaml is called after the end of the stream, it reports no event, which is treated as the end, too.
            _ => EventKind::StreamEnd,
        }
    }
}

/// # Safety
/// `anchor` and `tag` must be null or NUL-terminated.
unsafe fn properties(anchor: *const u8, tag: *const u8) -> Properties {
    // SAFETY: the caller guarantees that both `anchor` and `tag` are null or NUL-terminated.
    unsafe {
        Properties {
            anchor: text(anchor),
            tag: text(tag),
        }
    }
}

/// # Safety
/// `start` must be null or NUL-terminated.
unsafe fn text(start: *const u8) -> Option<String> {
    if start.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees that `start` is NUL-terminated, and it is not null here.
    let text = unsafe { CStr::from_ptr(start.cast()) };
    Some(text.to_string_lossy().into_owned())
}

fn clamp(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(input: &[u8]) -> String {
        let mut parser = Parser::new(input);
        let mut out = String::new();
        loop {
            let event = match parser.poll_event() {
                Ok(event) => event,
                Err(problem) => {
                    let Mark { line, column } = problem.place;
                    return out + &format!("! {line}:{column} {}", problem.message);
                }
            };
            out += &match event.kind {
                EventKind::Started => continue,
                EventKind::DocumentEnd { .. } | EventKind::StreamEnd => {
                    return out.trim_end().to_owned();
                }
                EventKind::Scalar {
                    properties,
                    text,
                    block,
                } => {
                    let Properties { anchor, tag } = properties;
                    let block = if block { "|" } else { "" };
                    format!("{}{}{block}{text:?}", shown("&", anchor), shown("", tag))
                }
                EventKind::SequenceStart(properties) => {
                    format!("{}[", shown("&", properties.anchor))
                }
                EventKind::MappingStart(properties) => {
                    format!("{}{{", shown("&", properties.anchor))
                }
                EventKind::End => {
                    out += "end ";
                    continue;
                }
                EventKind::Alias(name) => format!("*{name}"),
            };
            out += &format!("@{}:{} ", event.line, event.column);
        }
    }

    fn shown(mark: &str, property: Option<String>) -> String {
        property.map_or_else(String::new, |text| format!("{mark}{text} "))
    }

    #[test]
    fn everything_libyaml_accepts_comes_through() {
        let cases: &[(&[u8], &str)] = &[
            (b"", ""),
            (b"# only a comment\n", ""),
            (b"%YAML 1.2\n---\na", r#""a"@2:0"#),
            (b"%YAML 1.1\n---\na", r#""a"@2:0"#),
            (b"\xef\xbb\xbfa: b", r#"{@0:0 "a"@0:0 "b"@0:3 end"#),
            (b"\xff\xfea\0", r#""a"@0:0"#),
            (
                b"a: *x\nb: &x 1",
                r#"{@0:0 "a"@0:0 *x@0:3 "b"@1:0 &x "1"@1:3 end"#,
            ),
            (
                b"a: 1\na: 2",
                r#"{@0:0 "a"@0:0 "1"@0:3 "a"@1:0 "2"@1:3 end"#,
            ),
            (
                b"!file k: !env v",
                r#"{@0:0 !file "k"@0:0 !env "v"@0:9 end"#,
            ),
            (b"!!int 1", r#"tag:yaml.org,2002:int "1"@0:0"#),
            (b"a:", r#"{@0:0 "a"@0:0 ""@0:2 end"#),
            (
                b"- |\n x\n- >-\n  y\n  z",
                r#"[@0:0 |"x\n"@0:2 |"y z"@2:2 end"#,
            ),
            (
                b"{a, 'b': \"\\0\\u00e9\"}",
                "{@0:0 \"a\"@0:1 \"\"@0:2 \"b\"@0:4 \"\\0é\"@0:9 end",
            ),
            (b"a\n--- b", r#""a"@0:0"#),
            (
                b"\t- a",
                "! 0:0 found character that cannot start any token",
            ),
            (
                b"a: b: c",
                r#"{@0:0 "a"@0:0 "b"@0:3 ! 0:4 mapping values are not allowed in this context"#,
            ),
            (b"a: 1\nb: \xff", "! 1:3 invalid leading UTF-8 octet"),
        ];
        for (input, want) in cases {
            assert_eq!(events(input), *want, "{}", input.escape_ascii());
        }
    }
}
