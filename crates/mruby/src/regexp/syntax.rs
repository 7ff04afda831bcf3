//! Translation of Ruby's patterns to the syntax of the engine, fancy-regex.
//!
//! What Ruby and the engine read differently is written out: `\w \d \s \h` are ASCII, `[[:alpha:]]` and `\p{Alpha}` are
//! Unicode, `m` lets the dot match newlines, `-` and `~` in brackets are no operators, and an escaped letter without a
//! meaning is the letter.

use std::iter::Peekable;
use std::str::Chars;

/// Maximum depth of nested bracket expressions, and of nested groups, in a pattern.
const MOST_NESTED: usize = 250;

/// How the subjects of a pattern are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// Subjects are read as characters in UTF-8.
    Characters,
    /// Subjects are read as octets.
    Octets,
}

/// What `\w`, `[[:alpha:]]` and the like mean, by the options of the pattern or group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Range {
    /// `\w` means ASCII characters, `[[:alpha:]]` characters of all scripts (option `d`, the default).
    Usual,
    /// Both mean ASCII characters (option `a`).
    Ascii,
    /// Both mean characters of all scripts (option `u`).
    Unicode,
}

/// The options of a group that are written out in its translation.
#[derive(Clone, Copy)]
struct Mode {
    /// Whether white space and comments are ignored (option `x`).
    is_extended: bool,
    range: Range,
}

/// Translates a pattern to the syntax of the engine.
///
/// # Errors
/// Returns the reason, in the words of Ruby's errors, if the pattern is invalid or not supported.
pub(super) fn translate(
    source: &str,
    is_extended: bool,
    reading: Reading,
) -> Result<String, &'static str> {
    let mut translator = Translator {
        rest: source.chars().peekable(),
        out: String::with_capacity(source.len() + 16),
        mode: Mode {
            is_extended,
            range: Range::Usual,
        },
        outer: Vec::new(),
        consumes: false,
        assertion: None,
        groups: 0,
        implied: 0,
        depth: 0,
        names: 0,
        reading,
    };
    translator.run()?;
    Ok(translator.out)
}

/// What a group does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GroupKind {
    Captures,
    /// Looks ahead or behind.
    Looks,
    /// Neither.
    Groups,
}

/// A group whose `)` was not read yet.
struct OpenGroup {
    /// The options outside of the group.
    mode: Mode,
    /// Where the group begins in the translation.
    start: usize,
    /// Whether the group looks ahead or behind, so that it matches only the empty text.
    looks: bool,
    /// Whether a part before the group, in the group around it, can match characters.
    consumes: bool,
    /// Number of capture groups before the group.
    groups: u32,
    /// The value of [`Translator::implied`] around the group.
    implied: usize,
}

struct Translator<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
    /// The options at this point of the pattern.
    mode: Mode,
    /// The open groups.
    outer: Vec<OpenGroup>,
    /// Whether a part of the innermost open group can match characters.
    consumes: bool,
    /// Where in `out` the part before this point begins, if it can match only the empty text, such as `^` and `(?=a)`.
    assertion: Option<usize>,
    /// Number of capture groups so far.
    groups: u32,
    /// Number of groups in the translation that end with the innermost open group, though the pattern has no `)` for them.
    implied: usize,
    /// Number of groups in the translation that are open at this point.
    depth: usize,
    /// Depth of nested escapes that is being read: `\c`, `\C-` and `\M-` can be followed by another escape, as in `\M-\C-a`.
    names: usize,
    reading: Reading,
}

impl Translator<'_> {
    fn run(&mut self) -> Result<(), &'static str> {
        while let Some(next) = self.rest.next() {
            if self.repeats_assertion(next) {
                continue;
            }
            match next {
                '\\' => {
                    let start = self.out.len();
                    let is_assertion =
                        matches!(self.rest.peek(), Some('A' | 'b' | 'B' | 'G' | 'Z' | 'z'));
                    self.escape()?;
                    self.note(is_assertion.then_some(start));
                }
                '[' => {
                    self.class(0)?;
                    self.note(None);
                }
                '(' => {
                    self.assertion = None;
                    self.group()?;
                }
                ')' => self.close()?,
                '#' if self.mode.is_extended => {
                    while self.rest.next().is_some_and(|c| c != '\n') {}
                }
                '|' => {
                    self.assertion = None;
                    self.out.push('|');
                }
                '^' | '$' => {
                    self.note(Some(self.out.len()));
                    self.out.push(next);
                }
                _ if self.mode.is_extended && next.is_whitespace() => self.out.push(next),
                _ => {
                    self.note(None);
                    self.out.push(next);
                }
            }
        }
        if self.outer.is_empty() {
            self.out.push_str(&")".repeat(self.implied));
            Ok(())
        } else {
            Err("end pattern with unmatched parenthesis")
        }
    }

    /// Notes that a part of the pattern was read: an assertion, which begins at this place of the translation, or a part that can match
    /// characters.
    const fn note(&mut self, assertion: Option<usize>) {
        self.assertion = assertion;
        self.consumes |= assertion.is_none();
    }

    /// Begins a group. The text of its begin was not added to the translation yet.
    fn open(&mut self, mode: Mode, kind: GroupKind) {
        let looks = kind == GroupKind::Looks;
        let captures = kind == GroupKind::Captures;
        self.groups += u32::from(captures);
        self.outer.push(OpenGroup {
            mode,
            start: self.out.len(),
            looks,
            consumes: self.consumes,
            groups: self.groups - u32::from(captures),
            implied: std::mem::take(&mut self.implied),
        });
        self.consumes = false;
        self.depth += 1;
    }

    /// Ends a group, after its `)`.
    fn close(&mut self) -> Result<(), &'static str> {
        let group = self.outer.pop().ok_or("unmatched close parenthesis")?;
        self.mode = group.mode;
        self.out.push_str(&")".repeat(self.implied + 1));
        self.depth -= self.implied + 1;
        self.implied = group.implied;
        let is_empty = group.looks || !self.consumes;
        let captures = self.groups > group.groups;
        self.consumes = group.consumes || !is_empty;
        // A group that captures cannot be left out, and the engine takes quantifiers for most of them.
        self.assertion = (is_empty && !captures).then_some(group.start);
        Ok(())
    }

    /// Reads the quantifier that begins with `first`, if the part before it is an assertion, which the engine does not take
    /// quantifiers for. An optional assertion means nothing, because it captures nothing; another one means the same as without
    /// the quantifier. Returns whether there was one.
    fn repeats_assertion(&mut self, first: char) -> bool {
        let Some(start) = self.assertion else {
            return false;
        };
        let is_optional = match first {
            '?' | '*' => true,
            '+' => false,
            '{' => match self.interval() {
                // In Ruby, `{n}?` is no lazy quantifier, but makes `{n}` optional.
                Some((is_from_zero, is_exact)) => {
                    is_from_zero || (is_exact && self.rest.peek() == Some(&'?'))
                }
                None => return false,
            },
            _ => return false,
        };
        let _ = self.rest.next_if(|next| matches!(next, '?' | '+'));
        if is_optional {
            self.out.truncate(start);
            self.out.push_str("(?:)");
        }
        true
    }

    /// Reads the interval quantifier whose `{` was read, up to its `}`. Returns whether its lower limit is zero, and whether it has only
    /// one number; `None`, if there is no such quantifier.
    fn interval(&mut self) -> Option<(bool, bool)> {
        let mut ahead = self.rest.clone();
        let mut numbers = String::new();
        loop {
            match ahead.next()? {
                '}' => break,
                next @ ('0'..='9' | ',') if numbers.len() < 16 => numbers.push(next),
                _ => return None,
            }
        }
        let is_exact = !numbers.contains(',');
        let (least, most) = numbers.split_once(',').unwrap_or((&numbers, ""));
        if most.contains(',') || (least.is_empty() && most.is_empty()) {
            return None;
        }
        self.rest = ahead;
        Some((least.bytes().all(|digit| digit == b'0'), is_exact))
    }

    /// Translates a group, after its `(`.
    fn group(&mut self) -> Result<(), &'static str> {
        if self.depth >= MOST_NESTED {
            return Err("too deep nest level");
        }
        if self.rest.peek() != Some(&'?') {
            self.open(self.mode, GroupKind::Captures);
            self.out.push('(');
            return Ok(());
        }
        self.rest.next();
        match self.rest.peek().copied() {
            Some('#') => {
                while let Some(next) = self.rest.next() {
                    match next {
                        '\\' => drop(self.rest.next()),
                        ')' => return Ok(()),
                        _ => {}
                    }
                }
                Err("end pattern in group")
            }
            Some('-' | 'i' | 'm' | 'x' | 'a' | 'u' | 'd') => self.options(),
            Some('\'') => {
                // The engine knows `(?'name'...)` only as `(?<name>...)`.
                self.rest.next();
                self.open(self.mode, GroupKind::Captures);
                self.out.push_str("(?<");
                loop {
                    match self.rest.next() {
                        Some('\'') => break,
                        Some(name) => self.out.push(name),
                        None => return Err("end pattern in group"),
                    }
                }
                self.out.push('>');
                Ok(())
            }
            _ => {
                let mut ahead = self.rest.clone();
                let kinds = (ahead.next(), ahead.next());
                let kind = match kinds {
                    (Some('=' | '!'), _) | (Some('<'), Some('=' | '!')) => GroupKind::Looks,
                    (Some('<'), _) => GroupKind::Captures,
                    _ => GroupKind::Groups,
                };
                self.open(self.mode, kind);
                self.out.push_str("(?");
                if kinds.0 == Some('(') {
                    // The condition names a group.
                    for next in self.rest.by_ref() {
                        self.out.push(next);
                        if next == ')' {
                            break;
                        }
                    }
                    return Ok(());
                }
                // What follows, up to the pattern of the group, matches nothing.
                while let Some(next) = self.rest.next_if(|next| "=!<>:~|".contains(*next)) {
                    self.out.push(next);
                    if next != '<' {
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    /// Translates the options of a group, `mix-mix)` or `mix-mix:`, after their `(?`.
    fn options(&mut self) -> Result<(), &'static str> {
        let before = self.mode;
        let (mut on, mut off) = (String::new(), String::new());
        let mut is_off = false;
        loop {
            let letter = match self.rest.next() {
                Some('-') if !is_off => {
                    is_off = true;
                    continue;
                }
                Some('i') => 'i',
                Some('m') => 's',
                Some('x') => {
                    self.mode.is_extended = !is_off;
                    'x'
                }
                Some(letter @ ('a' | 'd' | 'u')) if !is_off => {
                    self.mode.range = match letter {
                        'a' => Range::Ascii,
                        'u' => Range::Unicode,
                        _ => Range::Usual,
                    };
                    continue;
                }
                Some(end @ (':' | ')')) => {
                    let dash = if off.is_empty() { "" } else { "-" };
                    let written = format!("{on}{dash}{off}");
                    match end {
                        ':' => {
                            self.open(before, GroupKind::Groups);
                            self.out.push_str(&format!("(?{written}:"));
                        }
                        // In Ruby, what follows `(?i)` up to the end of the group is a group of its own: `a(?i)b|c` means
                        // `a(?i:b|c)`.
                        _ => {
                            self.out.push_str(&format!("(?{written}:"));
                            self.implied += 1;
                            self.depth += 1;
                        }
                    }
                    return Ok(());
                }
                _ => return Err("undefined group option"),
            };
            if is_off { &mut off } else { &mut on }.push(letter);
        }
    }

    /// Translates an escape outside of brackets, after its `\`.
    fn escape(&mut self) -> Result<(), &'static str> {
        let next = self.rest.next().ok_or("end pattern at escape")?;
        if let Some(set) = self.set_of(next) {
            self.out.push_str(set);
            return Ok(());
        }
        match next {
            'p' | 'P' => self.property(next == 'P')?,
            '1'..='9' if self.names_no_group(next) => {
                let character = match next.to_digit(8) {
                    Some(first) => {
                        let code = self.digits(8, 2, first)?;
                        self.octets(code)?
                    }
                    None => next,
                };
                self.literal(character);
            }
            'A' | 'b' | 'B' | 'G' | 'K' | 'R' | 'X' | 'Z' | 'z' | 'k' | 'g' | '1'..='9' => {
                self.out.push('\\');
                self.out.push(next);
            }
            _ => {
                let character = self.character(next)?;
                self.literal(character);
            }
        }
        Ok(())
    }

    /// Whether the digits of an escape outside of brackets name no group, so that they are an octal number or the digit `8` or `9`.
    /// `first`, which follows the `\`, has been read.
    fn names_no_group(&self, first: char) -> bool {
        let rest = self.rest.clone();
        let digits = std::iter::once(first).chain(rest.take_while(char::is_ascii_digit));
        let number = digits.filter_map(|digit| digit.to_digit(10));
        let number = number.fold(0_u32, |number, digit| {
            number.saturating_mul(10).saturating_add(digit)
        });
        number > 9 && number > self.groups
    }

    /// The character that an escape means. `letter`, which follows the `\`, has been read.
    fn character(&mut self, letter: char) -> Result<char, &'static str> {
        Ok(match letter {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'f' => '\x0c',
            'v' => '\x0b',
            'a' => '\x07',
            'e' => '\x1b',
            '0'..='7' => {
                let first = letter.to_digit(8).unwrap_or(0);
                let number = self.digits(8, 2, first)?;
                char::from_u32(number & 0x7f).ok_or("invalid code point value")?
            }
            'x' => {
                if self.rest.peek() == Some(&'{') {
                    return self.braced();
                }
                let first = self.digits(16, 2, 0)?;
                self.octets(first)?
            }
            'u' => {
                if self.rest.peek() == Some(&'{') {
                    return self.braced();
                }
                let number = self.digits(16, 4, 0)?;
                char::from_u32(number).ok_or("invalid code point value")?
            }
            'c' => self.control()?,
            'C' if self.rest.next() == Some('-') => self.control()?,
            'C' => return Err("invalid control-code syntax"),
            'M' if self.rest.next() == Some('-') => {
                let (letter, _) = self.named()?;
                char::from_u32((u32::from(letter) & 0xff) | 0x80)
                    .ok_or("invalid code point value")?
            }
            'M' => return Err("invalid meta-code syntax"),
            other => other,
        })
    }

    /// The control character of an escape, after its `c` or `C-`.
    fn control(&mut self) -> Result<char, &'static str> {
        let (letter, is_escaped) = self.named()?;
        let code = if letter == '?' && !is_escaped {
            0x7f
        } else {
            u32::from(letter) & 0x9f
        };
        char::from_u32(code).ok_or("invalid code point value")
    }

    /// The character for which an escape is named, such as `a` in `\ca`; and whether the character is written as an escape, too.
    fn named(&mut self) -> Result<(char, bool), &'static str> {
        const NO_NAME: &str = "end pattern at control";
        let next = self.rest.next().ok_or(NO_NAME)?;
        if next != '\\' {
            return Ok((next, false));
        }
        if self.names >= MOST_NESTED {
            return Err("too deep nest level");
        }
        let next = self.rest.next().ok_or(NO_NAME)?;
        self.names += 1;
        let named = self.character(next);
        self.names -= 1;
        Ok((named?, true))
    }

    fn digits(&mut self, radix: u32, most: usize, start: u32) -> Result<u32, &'static str> {
        let mut number = start;
        for _ in 0..most {
            let Some(digit) = self.rest.peek().and_then(|c| c.to_digit(radix)) else {
                break;
            };
            self.rest.next();
            number = number
                .checked_mul(radix)
                .and_then(|number| number.checked_add(digit))
                .ok_or("too big number")?;
        }
        Ok(number)
    }

    fn braced(&mut self) -> Result<char, &'static str> {
        self.rest.next();
        let number = self.digits(16, 8, 0)?;
        if self.rest.next() != Some('}') {
            return Err("invalid code point value");
        }
        char::from_u32(number).ok_or("invalid code point value")
    }

    /// The character that escapes of octets (`\xHH`, `\NNN`) mean: the first octet if it is ASCII, else the UTF-8 character of this and the
    /// following octets.
    fn octets(&mut self, first: u32) -> Result<char, &'static str> {
        const NO_CHARACTER: &str =
            "escapes of octets that form no UTF-8 character are not supported";
        let first = u8::try_from(first).map_err(|_| "too big number")?;
        if first < 0x80 {
            return Ok(first.into());
        }
        let mut octets = vec![first];
        while octets.len() < 4 {
            if let Ok(text) = std::str::from_utf8(&octets) {
                return text.chars().next().ok_or(NO_CHARACTER);
            }
            if self.rest.next() != Some('\\') {
                return Err(NO_CHARACTER);
            }
            let next = match self.rest.next() {
                Some('x') => self.digits(16, 2, 0)?,
                Some(digit @ '0'..='7') => {
                    self.digits(8, 2, digit.to_digit(8).unwrap_or_default())?
                }
                _ => return Err(NO_CHARACTER),
            };
            octets.push(u8::try_from(next).map_err(|_| NO_CHARACTER)?);
        }
        let text = std::str::from_utf8(&octets).map_err(|_| NO_CHARACTER)?;
        text.chars().next().ok_or(NO_CHARACTER)
    }

    /// Translates a character property, after its `\p` or `\P`.
    fn property(&mut self, is_not: bool) -> Result<(), &'static str> {
        const INVALID: &str = "invalid character property name";
        if self.rest.next() != Some('{') {
            return Err(INVALID);
        }
        let mut is_not = is_not;
        if self.rest.peek() == Some(&'^') {
            self.rest.next();
            is_not = !is_not;
        }
        let mut name = String::new();
        loop {
            match self.rest.next().ok_or(INVALID)? {
                '}' => break,
                other if name.len() < 64 => name.push(other),
                _ => return Err(INVALID),
            }
        }
        if self.reading == Reading::Octets {
            return Err("character properties (`\\p`) match text in UTF-8 only");
        }
        let folded = name.to_ascii_lowercase();
        if let Some(set) = bracket(&folded, Reading::Characters) {
            self.bracket(set, is_not);
        } else {
            let letter = if is_not { 'P' } else { 'p' };
            self.out.push_str(&format!("\\{letter}{{{name}}}"));
        }
        Ok(())
    }

    fn bracket(&mut self, set: &str, is_not: bool) {
        self.out.push_str(if is_not { "[^" } else { "[" });
        self.out.push_str(set);
        self.out.push(']');
    }

    /// Writes a character that stands for itself.
    fn literal(&mut self, character: char) {
        // White space, `#` and all other punctuation could have a meaning and are escaped; letters and digits have none.
        if character.is_ascii_punctuation() {
            self.out.push('\\');
            self.out.push(character);
        } else if character.is_ascii_whitespace() || character.is_ascii_control() {
            self.out
                .push_str(&format!("\\x{:02X}", u32::from(character)));
        } else {
            self.out.push(character);
        }
    }

    /// The bracket expression that `\w`, `\d` and the like mean; `None` for other letters.
    fn set_of(&self, letter: char) -> Option<&'static str> {
        let has_scripts = self.reading == Reading::Characters && self.mode.range == Range::Unicode;
        let set = has_scripts.then(|| unicode_set_of(letter)).flatten();
        set.or_else(|| ascii_set_of(letter))
    }

    /// Translates a bracket expression, after its `[`.
    fn class(&mut self, depth: usize) -> Result<(), &'static str> {
        if depth > MOST_NESTED {
            return Err("too deep nest level");
        }
        self.out.push('[');
        if self.rest.peek() == Some(&'^') {
            self.rest.next();
            self.out.push('^');
        }
        let mut is_first = true;
        // Whether the last item can begin a range, and whether a range has begun.
        let (mut may_range, mut in_range) = (false, false);
        loop {
            let next = self.rest.next().ok_or("premature end of char-class")?;
            let mut is_character = false;
            match next {
                ']' if !is_first => {
                    self.out.push(']');
                    return Ok(());
                }
                '[' if self.rest.peek() == Some(&':') && self.is_posix() => self.posix()?,
                '[' => self.class(depth + 1)?,
                '&' if self.rest.peek() == Some(&'&') => {
                    self.rest.next();
                    self.out.push_str("&&");
                }
                '-' if may_range && !matches!(self.rest.peek(), Some(&']') | None) => {
                    self.out.push('-');
                    (may_range, in_range, is_first) = (false, true, false);
                    continue;
                }
                '\\' => is_character = self.escape_in_class()?,
                _ => {
                    self.literal(next);
                    is_character = true;
                }
            }
            if in_range && !is_character {
                return Err("char-class value at end of range");
            }
            (may_range, in_range, is_first) = (is_character && !in_range, false, false);
        }
    }

    /// Whether a POSIX bracket `[:name:]` follows; its `[` has been read.
    fn is_posix(&self) -> bool {
        let mut ahead = self.rest.clone();
        ahead.next();
        let mut last = ' ';
        for next in ahead.take(16) {
            match next {
                ']' => return last == ':',
                'a'..='z' | '^' | ':' => last = next,
                _ => return false,
            }
        }
        false
    }

    fn posix(&mut self) -> Result<(), &'static str> {
        self.rest.next();
        let is_not = self.rest.peek() == Some(&'^');
        if is_not {
            self.rest.next();
        }
        let mut name = String::new();
        while let Some(next) = self.rest.next()
            && next != ':'
        {
            name.push(next);
        }
        self.rest.next();
        let reading = match self.mode.range {
            Range::Ascii => Reading::Octets,
            Range::Usual | Range::Unicode => self.reading,
        };
        let set = bracket(&name, reading).ok_or("invalid POSIX bracket type")?;
        self.bracket(set, is_not);
        Ok(())
    }

    /// Translates an escape in a bracket expression, after its `\`. Returns whether it stands for a single character.
    fn escape_in_class(&mut self) -> Result<bool, &'static str> {
        let next = self.rest.next().ok_or("end pattern at escape")?;
        if let Some(set) = self.set_of(next) {
            self.out.push_str(set);
            return Ok(false);
        }
        match next {
            'p' | 'P' => {
                self.property(next == 'P')?;
                Ok(false)
            }
            'b' => {
                self.literal('\x08');
                Ok(true)
            }
            'R' | 'X' => Err("`\\R` and `\\X` cannot stand in a character class"),
            _ => {
                let character = self.character(next)?;
                self.literal(character);
                Ok(true)
            }
        }
    }
}

/// The bracket expression that `\w`, `\d` and the like mean with characters of all scripts; `None` for other letters.
const fn unicode_set_of(letter: char) -> Option<&'static str> {
    Some(match letter {
        'w' => "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]",
        'W' => "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]",
        'd' => "[\\p{Nd}]",
        'D' => "[^\\p{Nd}]",
        's' => "[\\p{White_Space}]",
        'S' => "[^\\p{White_Space}]",
        _ => return None,
    })
}

/// The bracket expression that `\w`, `\d` and the like mean with ASCII characters; `None` for other letters.
const fn ascii_set_of(letter: char) -> Option<&'static str> {
    Some(match letter {
        'w' => "[a-zA-Z0-9_]",
        'W' => "[^a-zA-Z0-9_]",
        'd' => "[0-9]",
        'D' => "[^0-9]",
        's' => "[\\t\\n\\x0B\\x0C\\r\\x20]",
        'S' => "[^\\t\\n\\x0B\\x0C\\r\\x20]",
        'h' => "[0-9a-fA-F]",
        'H' => "[^0-9a-fA-F]",
        _ => return None,
    })
}

/// The content of the bracket expression that means the same as the POSIX bracket with this name.
fn bracket(name: &str, reading: Reading) -> Option<&'static str> {
    Some(match (name, reading) {
        ("ascii", _) => "\\x00-\\x7F",
        ("xdigit", _) => "0-9a-fA-F",
        ("blank", Reading::Octets) => "\\t\\x20",
        ("blank", _) => "\\t\\p{Zs}",
        ("alnum", Reading::Octets) => "[:alnum:]",
        ("alnum", _) => "\\p{Alphabetic}\\p{M}\\p{Nd}",
        ("alpha", Reading::Octets) => "[:alpha:]",
        ("alpha", _) => "\\p{Alphabetic}\\p{M}",
        ("cntrl", Reading::Octets) => "[:cntrl:]",
        ("cntrl", _) => "\\p{Cc}",
        ("digit", Reading::Octets) => "0-9",
        ("digit", _) => "\\p{Nd}",
        ("graph", Reading::Octets) => "[:graph:]",
        ("graph", _) => "[^\\p{White_Space}\\p{Cc}\\p{Cn}\\p{Cs}]",
        ("lower", Reading::Octets) => "a-z",
        ("lower", _) => "\\p{Lowercase}",
        ("print", Reading::Octets) => "[:print:]",
        ("print", _) => "[^\\p{Cc}\\p{Cn}\\p{Cs}\\p{Zl}\\p{Zp}]",
        ("punct", Reading::Octets) => "[:punct:]",
        ("punct", _) => "\\p{P}$+<=>^`|~",
        ("space", Reading::Octets) => "\\t\\n\\x0B\\x0C\\r\\x20",
        ("space", _) => "\\p{White_Space}",
        ("upper", Reading::Octets) => "A-Z",
        ("upper", _) => "\\p{Uppercase}",
        ("word", Reading::Octets) => "[:word:]",
        ("word", _) => "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}",
        _ => return None,
    })
}
