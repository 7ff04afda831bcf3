//! Access-log formats: text with `%` specifiers, compiled once into a flat list of elements.

use h2o_http::Known;

use super::escape::Escape;
use super::field::{ConnectionEnd, Field, FieldName, Stage, Unit, extended};

/// The format of an `access-log` without `format`: that of the Combined Log Format.
pub(super) const DEFAULT: &str = r#"%h %l %u %t "%r" %s %b "%{Referer}i" "%{User-agent}i""#;

/// An access-log format, compiled.
#[derive(Debug)]
pub(crate) struct Format {
    pub(super) elements: Vec<Element>,
    pub(super) escape: Escape,
}

/// A piece of an access-log format.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Element {
    /// Text that is copied to the log line.
    Text(Box<str>),
    /// The value of a specifier.
    Value(Field),
    /// A value between two of these quotes. If the value does not exist, the quotes are left out ("magic quotes").
    Quoted(u8, Field),
}

impl Format {
    /// Compiles an access-log format.
    ///
    /// # Errors
    /// The message `failed to compile log format: ...` with the reason.
    pub(crate) fn compile(text: &str, escape: Escape) -> Result<Self, String> {
        let mut elements =
            elements(text).map_err(|error| format!("failed to compile log format: {error}"))?;
        if escape == Escape::Json {
            elements = with_magic_quotes(elements);
        }
        Ok(Self { elements, escape })
    }

    /// Whether a log line in this format needs the timing trace of a request to a backend.
    pub(super) fn wants_trace(&self) -> bool {
        self.elements.iter().any(|element| match element {
            Element::Value(field) | Element::Quoted(_, field) => field.is_of_trace(),
            Element::Text(_) => false,
        })
    }

    /// Whether a log line in this format shows response fields as they were before the filters.
    pub(super) fn wants_unfiltered_headers(&self) -> bool {
        self.elements.iter().any(|element| match element {
            Element::Value(field) | Element::Quoted(_, field) => {
                matches!(field, Field::ResponseHeader(Stage::First, _))
            }
            Element::Text(_) => false,
        })
    }
}

fn elements(text: &str) -> Result<Vec<Element>, String> {
    let mut elements = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        literal.push_str(before);
        if let Some(tail) = after.strip_prefix('%') {
            literal.push('%');
            rest = tail;
            continue;
        }
        let (field, tail) = specifier(after)?;
        if !literal.is_empty() {
            elements.push(Element::Text(std::mem::take(&mut literal).into()));
        }
        elements.push(Element::Value(field));
        rest = tail;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        elements.push(Element::Text(literal.into()));
    }
    Ok(elements)
}

/// Reads the specifier after a `%`. Returns its value and the rest of the format.
fn specifier(text: &str) -> Result<(Field, &str), String> {
    let unmodified = text.trim_start_matches(['<', '>']);
    let modifiers = &text[..text.len() - unmodified.len()];
    let stage = if modifiers.ends_with('<') {
        Stage::First
    } else {
        Stage::Final
    };
    let Some(letter) = unmodified.chars().next() else {
        return Err("unknown escape sequence: %".to_owned());
    };
    let rest = &unmodified[letter.len_utf8()..];
    let field = match letter {
        '{' => return braced(stage, rest),
        'A' => Field::Address(ConnectionEnd::Local),
        'b' => Field::BodyBytes,
        'H' => Field::Protocol,
        'h' => Field::Address(ConnectionEnd::Remote),
        'l' => Field::Null,
        'm' => Field::Method,
        'p' => Field::Port(ConnectionEnd::Local),
        'q' => Field::Query,
        'r' => Field::RequestLine,
        's' => Field::Status(stage),
        't' => Field::CommonTime,
        'U' => Field::Path,
        'u' => Field::User,
        'V' => Field::Authority,
        'v' => Field::HostName,
        other => return Err(format!("unknown escape sequence: %{other}")),
    };
    Ok((field, rest))
}

/// Reads `NAME}` of a specifier and the letter after it, which tells the kind of value.
fn braced(stage: Stage, text: &str) -> Result<(Field, &str), String> {
    let Some((name, after)) = text.split_once('}') else {
        return Err(format!("unterminated header name starting at: \"{text}\""));
    };
    let mut rest = after.chars();
    let field = match rest.next() {
        Some('i') => request_header(name),
        Some('o') => Field::ResponseHeader(stage, FieldName::new(name)),
        Some('e') => Field::Env(name.into()),
        Some('x') => extended(name),
        Some('t') => time(name),
        Some('p') if name == "local" => Field::Port(ConnectionEnd::Local),
        Some('p') if name == "remote" => Field::Port(ConnectionEnd::Remote),
        Some('p') => return Err("unknown specifier for %{...}p".to_owned()),
        _ => {
            return Err("header name is not followed by either `i`, `o`, `x`, `e`".to_owned());
        }
    };
    Ok((field, rest.as_str()))
}

fn request_header(name: &str) -> Field {
    match FieldName::new(name) {
        FieldName::Known(Known::Upgrade) => Field::Upgrade,
        FieldName::Known(Known::Expect) => Field::Expect,
        // `host`, `content-length` and `transfer-encoding` are logged as missing values: the protocol engines interpret
        // them and do not list them among the request's other fields. H2O compatibility: H2O does the same.
        FieldName::Known(Known::Host | Known::ContentLength | Known::TransferEncoding) => {
            Field::Null
        }
        name => Field::RequestHeader(name),
    }
}

fn time(format: &str) -> Field {
    match format {
        "sec" => Field::Epoch(Unit::Seconds),
        "msec" => Field::Epoch(Unit::Milliseconds),
        "usec" => Field::Epoch(Unit::Microseconds),
        "msec_frac" => Field::EpochFraction(Unit::Milliseconds),
        "usec_frac" => Field::EpochFraction(Unit::Microseconds),
        format => Field::Time(format.into()),
    }
}

/// Takes the quotes directly around a value out of the text beside it. H2O compatibility: H2O takes everything between two
/// quotes, even quotes of the other kind, as text.
fn with_magic_quotes(elements: Vec<Element>) -> Vec<Element> {
    let mut out: Vec<Element> = Vec::with_capacity(elements.len());
    let mut elements = elements.into_iter().peekable();
    // The last quote in the format that was opened and not closed.
    let mut open = None;
    while let Some(element) = elements.next() {
        let field = match element {
            Element::Value(field) => field,
            Element::Text(text) => {
                open = open_quote(open, &text);
                out.push(Element::Text(text));
                continue;
            }
            Element::Quoted(..) => {
                out.push(element);
                continue;
            }
        };
        if let (Some(quote), Some(Element::Text(before)), Some(Element::Text(after))) =
            (open, out.last_mut(), elements.peek_mut())
            && before.ends_with(char::from(quote))
            && after.starts_with(char::from(quote))
        {
            *before = before[..before.len() - 1].into();
            *after = after[1..].into();
            open = None;
            out.push(Element::Quoted(quote, field));
        } else {
            out.push(Element::Value(field));
        }
    }
    out.retain(|element| !matches!(element, Element::Text(text) if text.is_empty()));
    out
}

/// The quote that is open at the end of `text`, if the quote `open` was open at its start.
fn open_quote(open: Option<u8>, text: &str) -> Option<u8> {
    let quotes = text.bytes().filter(|byte| matches!(byte, b'"' | b'\''));
    quotes.fold(open, |open, quote| match open {
        None => Some(quote),
        Some(opened) if opened == quote => None,
        Some(opened) => Some(opened),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_a_format_are_named() {
        let cases = [
            ("%Z", "unknown escape sequence: %Z"),
            ("%", "unknown escape sequence: %"),
            ("a%>", "unknown escape sequence: %"),
            ("%<%", "unknown escape sequence: %%"),
            ("%\u{e9}", "unknown escape sequence: %\u{e9}"),
            ("%T %D", "unknown escape sequence: %T"),
            (
                "%{Referer}",
                "header name is not followed by either `i`, `o`, `x`, `e`",
            ),
            (
                "%{Referer}h",
                "header name is not followed by either `i`, `o`, `x`, `e`",
            ),
            (
                "%h %{Referer",
                "unterminated header name starting at: \"Referer\"",
            ),
            ("%{canonical}p", "unknown specifier for %{...}p"),
            ("%{}p", "unknown specifier for %{...}p"),
        ];
        for (format, want) in cases {
            for escape in [Escape::Apache, Escape::Json] {
                assert_eq!(
                    Format::compile(format, escape).unwrap_err(),
                    format!("failed to compile log format: {want}"),
                    "{format}"
                );
            }
        }
    }

    #[test]
    fn quotes_belong_to_a_value_only_where_both_touch_it() {
        let text = |text: &str| Element::Text(text.into());
        let compiled = |format| Format::compile(format, Escape::Json).unwrap().elements;
        assert_eq!(compiled(r#""%l""#), [Element::Quoted(b'"', Field::Null)]);
        assert_eq!(
            compiled(r#"{"a":"%l",'%l'}"#),
            [
                text(r#"{"a":"#),
                Element::Quoted(b'"', Field::Null),
                text(","),
                Element::Quoted(b'\'', Field::Null),
                text("}"),
            ]
        );
        assert_eq!(
            compiled(r#""%l%l""#),
            [
                text("\""),
                Element::Value(Field::Null),
                Element::Value(Field::Null),
                text("\""),
            ]
        );
        assert_eq!(
            compiled(r#""%l'"#),
            [text("\""), Element::Value(Field::Null), text("'")]
        );
        // A quote that closes one value cannot open another one.
        assert_eq!(
            compiled(r#""%l"%l""#),
            [
                Element::Quoted(b'"', Field::Null),
                Element::Value(Field::Null),
                text("\""),
            ]
        );
        // Within quotes of another kind, quotes around a value are text.
        for format in [r#"'"%l"'"#, r#""'%l'""#, r#""a '%l' b""#, r#""a"%l"b""#] {
            let quoted = (compiled(format).iter()).any(|it| matches!(it, Element::Quoted(..)));
            assert!(!quoted, "{format}");
        }
        assert_eq!(
            compiled(r#""don't", '%l'"#),
            [text(r#""don't", "#), Element::Quoted(b'\'', Field::Null),]
        );
        let apache = Format::compile(r#""%l""#, Escape::Apache).unwrap();
        assert_eq!(
            apache.elements,
            [text("\""), Element::Value(Field::Null), text("\"")]
        );
    }

    #[test]
    fn only_original_response_fields_ask_for_unfiltered_ones() {
        for (format, want) in [
            ("%<{x-a}o", true),
            ("\"%<{x-a}o\"", true),
            ("%><{x-a}o", true),
            ("%{x-a}o %>{x-a}o %<s %<{x-a}i", false),
        ] {
            let format = Format::compile(format, Escape::Json).unwrap();
            assert_eq!(format.wants_unfiltered_headers(), want);
        }
    }
}
