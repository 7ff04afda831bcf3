//! Explanations of YAML syntax errors, since the messages of the YAML parser name neither the right line nor the remedy.

use crate::yaml::{Mark, Problem};

/// A more useful position of a syntax error than the parser's, and a hint that says how to correct it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Explanation {
    pub(crate) place: Mark,
    pub(crate) hint: String,
}

impl Explanation {
    fn new(place: Mark, hint: impl Into<String>) -> Self {
        Self {
            place,
            hint: hint.into(),
        }
    }
}

/// Explains `problem`, which the parser found in `input`; `None` if there is no better explanation than the parser's.
pub(crate) fn explain(input: &[u8], problem: &Problem) -> Option<Explanation> {
    // Only the lines up to the position of the problem are examined: the parser has not read the rest.
    let text = std::str::from_utf8(input).ok()?;
    let lines: Vec<&str> = text.lines().take(problem.place.line as usize + 1).collect();
    unclosed_quote(&lines, problem).or_else(|| match &*problem.message {
        "found character that cannot start any token" => forbidden_start(&lines, problem.place),
        "did not find expected alphabetic or numeric character" => star(&lines, problem.place),
        "could not find expected ':'" => {
            let (_, key) = problem.context.as_ref()?;
            missing_colon(lines.get(key.line as usize)?, *key)
        }
        "mapping values are not allowed in this context" => {
            second_colon(&lines, problem.place).or_else(|| stray_colon(&lines, problem.place))
        }
        "did not find expected key" => {
            let (_, mapping) = problem.context.as_ref()?;
            odd_indentation(problem.place, *mapping)
        }
        "did not find expected ',' or '}'" => unclosed(problem, '}'),
        "did not find expected ',' or ']'" => unclosed(problem, ']'),
        "block sequence entries are not allowed in this context" => Some(Explanation::new(
            problem.place,
            "a list must begin on a line of its own",
        )),
        "found unknown escape character" => Some(Explanation::new(
            problem.place,
            "within double quotes, write `\\\\` for a backslash; within single quotes, `\\` stands for itself",
        )),
        "did not find expected <document start>" => less_than_the_first(&lines, problem.place),
        _ => None,
    })
}

/// Detects a quoted scalar without a closing quote: the parser takes the text up to the next quote for its content, and
/// fails there, some lines later.
fn unclosed_quote(lines: &[&str], problem: &Problem) -> Option<Explanation> {
    let hint = "the quote that opens here is not closed on this line";
    if let Some((context, start)) = &problem.context
        && context == "while scanning a quoted scalar"
        && start.line != problem.place.line
    {
        return Some(Explanation::new(*start, hint));
    }
    let last = u32::try_from(lines.len()).ok()?.checked_sub(1)?;
    let mut open: Option<(Mark, char)> = None;
    for (number, line) in (0..).zip(lines) {
        let mut before = ' ';
        let mut chars = (0..).zip(line.chars()).peekable();
        while let Some((column, char)) = chars.next() {
            match open {
                Some((_, '"')) if char == '\\' => {
                    let _ = chars.next();
                }
                Some((_, '\'')) if char == '\'' && matches!(chars.peek(), Some((_, '\''))) => {
                    let _ = chars.next();
                }
                Some((start, quote)) if char == quote => {
                    open = None;
                    if start.line < number && number == last {
                        return Some(Explanation::new(start, hint));
                    }
                }
                Some(_) => {}
                None if char == '#' && before.is_whitespace() => break,
                None if matches!(char, '"' | '\'')
                    && (before.is_whitespace() || "[{,".contains(before)) =>
                {
                    let line = number;
                    open = Some((Mark { line, column }, char));
                }
                None => {}
            }
            before = char;
        }
    }
    None
}

fn forbidden_start(lines: &[&str], place: Mark) -> Option<Explanation> {
    let line = lines.get(place.line as usize)?;
    let char = line.chars().nth(place.column as usize)?;
    if char == '\t' {
        return Some(Explanation::new(
            place,
            "this is a tab; YAML is indented with spaces",
        ));
    }
    let value: String = line.chars().skip(place.column as usize).collect();
    Some(Explanation::new(
        place,
        format!(
            "a value cannot begin with `{char}`; put it in quotes: {}",
            quoted(value.trim_end())
        ),
    ))
}

fn star(lines: &[&str], place: Mark) -> Option<Explanation> {
    let line = lines.get(place.line as usize)?;
    let star = line.chars().take(place.column as usize);
    let star = star.collect::<Vec<_>>();
    let column = star.iter().rposition(|char| *char == '*')?;
    let value: String = line.chars().skip(column).collect();
    let value = value.trim_end();
    let value = value.strip_suffix(':').unwrap_or(value);
    let place = Mark {
        column: u32::try_from(column).ok()?,
        ..place
    };
    Some(Explanation::new(
        place,
        format!(
            "`*` begins an alias; put the name in quotes: {}",
            quoted(value)
        ),
    ))
}

/// Detects a name and value without a colon and a space between them, such as `port:10080` or `port 10080`.
fn missing_colon(line: &str, place: Mark) -> Option<Explanation> {
    let text = line.trim();
    if let Some((name, value)) = text.split_once(':')
        && is_name(name)
        && !value.is_empty()
    {
        return Some(Explanation::new(
            place,
            format!("there must be a space after the colon: `{name}: {value}`"),
        ));
    }
    if is_name(text) {
        let hint = format!("there must be a colon after the name: `{text}:`");
        return Some(Explanation::new(place, hint));
    }
    let (name, value) = text.split_once(char::is_whitespace)?;
    is_name(name).then(|| {
        Explanation::new(
            place,
            format!(
                "there must be a colon after the name: `{name}: {}`",
                value.trim_start()
            ),
        )
    })
}

/// Detects a value with an unquoted colon, such as that of `header.set: A: b`.
fn second_colon(lines: &[&str], place: Mark) -> Option<Explanation> {
    let line = lines.get(place.line as usize)?;
    let before: String = line.chars().take(place.column as usize).collect();
    let (name, _) = before.split_once(": ")?;
    let value = line[name.len() + 1..].trim();
    Some(Explanation::new(
        place,
        format!(
            "a value that contains `: ` must be in quotes: `{}: {}`; a nested mapping must begin on a line of its own",
            name.trim_start(),
            quoted(value).trim_matches('`')
        ),
    ))
}

/// Detects a line that the parser took for the continuation of the value above, until it found a colon in the line.
fn stray_colon(lines: &[&str], place: Mark) -> Option<Explanation> {
    let line = lines.get(place.line as usize)?;
    let (number, before) = (0..)
        .zip(&lines[..place.line as usize])
        .filter(|(_, line)| is_content(line))
        .last()?;
    let at = |line, text: &str| Mark {
        line,
        column: u32::try_from(indentation(text)).unwrap_or(u32::MAX),
    };
    let has_value = before.contains(": ") || before.trim_end().ends_with(':');
    if !has_value && let Some(found) = missing_colon(before, at(number, before)) {
        return Some(found);
    }
    let (deep, shallow) = (indentation(line), indentation(before));
    (deep > shallow).then(|| {
        Explanation::new(
            at(place.line, line),
            format!(
                "this line is indented more ({deep} spaces) than line {} ({shallow}), which has a value already",
                number + 1
            ),
        )
    })
}

fn odd_indentation(place: Mark, mapping: Mark) -> Option<Explanation> {
    (place.column != mapping.column && place.line != mapping.line).then(|| {
        Explanation::new(
            place,
            format!(
                "this line is indented by {} spaces, but the mapping to which it belongs by {} (it begins on line {})",
                place.column,
                mapping.column,
                mapping.line + 1
            ),
        )
    })
}

fn less_than_the_first(lines: &[&str], place: Mark) -> Option<Explanation> {
    let first = lines.iter().find(|line| is_content(line))?;
    (indentation(first) > place.column as usize).then(|| {
        Explanation::new(
            place,
            "this line is indented less than the first line of the file",
        )
    })
}

/// Detects a bracket that is not closed on its line.
fn unclosed(problem: &Problem, bracket: char) -> Option<Explanation> {
    let (_, start) = problem.context.as_ref()?;
    Some(Explanation::new(
        *start,
        format!(
            "expected `,` or `{bracket}` before line {}",
            problem.place.line + 1
        ),
    ))
    .filter(|_| start.line != problem.place.line)
}

fn is_content(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with('#')
}

fn indentation(line: &str) -> usize {
    line.chars().take_while(|char| *char == ' ').count()
}

fn is_name(text: &str) -> bool {
    let is_part = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    !text.is_empty() && text.chars().all(is_part)
}

/// Formats the value as a YAML scalar in the kind of quotes that needs the fewest escapes, within backticks.
fn quoted(value: &str) -> String {
    if value.contains('"') || value.contains('\\') {
        format!("`'{}'`", value.replace('\'', "''"))
    } else {
        format!("`\"{value}\"`")
    }
}
