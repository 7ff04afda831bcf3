//! Ruby's `JSON`. The reader and the writer keep the Arrays and Hashes that they are within on a stack of their own, so
//! that deep nesting does not use the stack of the thread.

use crate::function::text_argument;
use crate::{Call, Kind, Leave, Value, Vm};

/// Maximum depth of nested Arrays and Hashes.
const DEEPEST: usize = 2048;

/// Maximum length in bytes of a generated text. Without a limit, a small value could make a huge text: an Array that
/// contains another one twice, which contains a third one twice, and so on.
const LONGEST: usize = 256 * 1024 * 1024;

// ---- reading JSON ----

enum Token {
    Null,
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(Vec<u8>),
    Array,
    Object,
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_if(&mut self, byte: u8) -> bool {
        let is_there = self.peek() == Some(byte);
        self.at += usize::from(is_there);
        is_there
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn token(&mut self) -> Option<Token> {
        self.blanks();
        match self.peek()? {
            b'[' => {
                self.at += 1;
                Some(Token::Array)
            }
            b'{' => {
                self.at += 1;
                Some(Token::Object)
            }
            b'"' => self.string().map(Token::Text),
            b'n' => self.word("null", Token::Null),
            b't' => self.word("true", Token::Boolean(true)),
            b'f' => self.word("false", Token::Boolean(false)),
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &str, token: Token) -> Option<Token> {
        let is_there = self.text[self.at..].starts_with(word.as_bytes());
        self.at += word.len();
        is_there.then_some(token)
    }

    fn digits(&mut self) -> Option<()> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }

    fn number(&mut self) -> Option<Token> {
        let start = self.at;
        self.skip_if(b'-');
        if !self.skip_if(b'0') {
            self.digits()?;
        }
        let mut is_integer = true;
        if self.skip_if(b'.') {
            is_integer = false;
            self.digits()?;
        }
        if self.skip_if(b'e') || self.skip_if(b'E') {
            is_integer = false;
            let _ = self.skip_if(b'+') || self.skip_if(b'-');
            self.digits()?;
        }
        let text = std::str::from_utf8(&self.text[start..self.at]).ok()?;
        if is_integer && let Ok(number) = text.parse() {
            return Some(Token::Integer(number));
        }
        let number: f64 = text.parse().ok()?;
        number.is_finite().then_some(Token::Float(number))
    }

    fn string(&mut self) -> Option<Vec<u8>> {
        if !self.skip_if(b'"') {
            return None;
        }
        let mut out = Vec::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest
                .iter()
                .position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
            out.extend_from_slice(&rest[..plain]);
            self.at += plain + 1;
            match rest[plain] {
                b'"' => return Some(out),
                b'\\' => self.escape(&mut out)?,
                _ => return None,
            }
        }
    }

    fn escape(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let letter = self.peek()?;
        self.at += 1;
        out.push(match letter {
            b'"' | b'\\' | b'/' => letter,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let mut buffer = [0; 4];
                let text = self.unicode()?.encode_utf8(&mut buffer);
                out.extend_from_slice(text.as_bytes());
                return Some(());
            }
            _ => return None,
        });
        Some(())
    }

    /// The character of one `\u` escape, or of two that form a pair of surrogates.
    fn unicode(&mut self) -> Option<char> {
        let first = self.unit()?;
        if first & 0xfc00 != 0xd800 {
            return char::from_u32(first);
        }
        if !(self.skip_if(b'\\') && self.skip_if(b'u')) {
            return None;
        }
        let second = self.unit()?;
        if second & 0xfc00 != 0xdc00 {
            return None;
        }
        char::from_u32(0x1_0000 + ((first & 0x3ff) << 10) + (second & 0x3ff))
    }

    fn unit(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        self.at += 4;
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        digits
            .iter()
            .try_fold(0, |unit, byte| Some(unit << 4 | digit(byte)?))
    }

    fn key(&mut self) -> Option<Vec<u8>> {
        self.blanks();
        let key = self.string()?;
        self.blanks();
        self.skip_if(b':').then_some(key)
    }
}

fn invalid() -> Leave {
    Leave::New("JSON::ParserError", "invalid json".into())
}

fn value_of(vm: &Vm, token: &Token) -> Result<Value, Value> {
    match token {
        Token::Null => Ok(Value::nil()),
        Token::Boolean(value) => Ok(Value::boolean(*value)),
        Token::Integer(number) => vm.integer(*number),
        Token::Float(number) => vm.float(*number),
        Token::Text(text) => vm.string(text),
        Token::Array => vm.array(&[]),
        Token::Object => vm.hash(0),
    }
}

/// Adds a value to the Array or Hash that contains it.
fn attach(vm: &Vm, container: Value, key: Option<Vec<u8>>, value: Value) -> Result<(), Leave> {
    let Some(key) = key else {
        return Ok(vm.push(container, value)?);
    };
    let key = vm.string(key)?;
    if vm.call(container, "key?", &[key])?.is_true() {
        return Err(invalid());
    }
    Ok(vm.hash_set(container, key, value)?)
}

/// An Array or Hash that is being read.
struct Open {
    container: Value,
    is_object: bool,
}

impl Open {
    const fn close(&self) -> u8 {
        if self.is_object { b'}' } else { b']' }
    }
}

/// The value that a JSON text stands for.
fn read(vm: &Vm, text: &[u8]) -> Result<Value, Leave> {
    std::str::from_utf8(text).map_err(|_| invalid())?;
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut reader = Reader { text, at: 0 };
    let first = reader.token().ok_or_else(invalid)?;
    let root = value_of(vm, &first)?;
    let mut open = Vec::new();
    let mut begun = container(&first, root);
    loop {
        if let Some(container) = begun.take() {
            if open.len() >= DEEPEST {
                return Err(invalid());
            }
            reader.blanks();
            let is_empty = reader.skip_if(container.close());
            if is_empty && !go_on(&mut reader, &mut open)? {
                return Ok(root);
            }
            if !is_empty {
                open.push(container);
            }
        } else if !go_on(&mut reader, &mut open)? {
            return Ok(root);
        }
        let Some(within) = open.last() else {
            return Ok(root);
        };
        let key = if within.is_object {
            Some(reader.key().ok_or_else(invalid)?)
        } else {
            None
        };
        let token = reader.token().ok_or_else(invalid)?;
        // After this block the containing Array or Hash refers to the value, and so protects it from the garbage collector.
        begun = vm.scope(|| {
            let value = value_of(vm, &token)?;
            attach(vm, within.container, key, value)?;
            Ok::<_, Leave>(container(&token, value))
        })?;
    }
}

fn container(token: &Token, value: Value) -> Option<Open> {
    matches!(token, Token::Array | Token::Object).then(|| Open {
        container: value,
        is_object: matches!(token, Token::Object),
    })
}

/// Reads the text after a value: the ends of Arrays and Hashes, then a comma, if there is one. Returns whether another
/// value follows.
fn go_on(reader: &mut Reader<'_>, open: &mut Vec<Open>) -> Result<bool, Leave> {
    while let Some(within) = open.last() {
        reader.blanks();
        if reader.skip_if(b',') {
            return Ok(true);
        }
        if !reader.skip_if(within.close()) {
            return Err(invalid());
        }
        open.pop();
    }
    Ok(false)
}

// ---- writing JSON ----

/// An Array or Hash that is being written.
struct Written {
    /// The elements of the Array, or the keys of the Hash. They are also in an Array to which nothing else refers, so that
    /// the garbage collector does not take them.
    items: Vec<Value>,
    /// The Hash, if the container is one.
    hash: Option<Value>,
    next: usize,
}

struct Writer<'a> {
    vm: &'a Vm,
    out: Vec<u8>,
    is_pretty: bool,
    open: Vec<Written>,
}

fn is_number(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<f64>().is_ok())
}

impl Writer<'_> {
    fn value(&mut self, value: Value) -> Result<(), Leave> {
        if self.out.len() > LONGEST {
            return Err(Leave::New("JSON::JSONError", "the text is too long".into()));
        }
        match value.kind() {
            Kind::Nil => self.out.extend_from_slice(b"null"),
            Kind::True | Kind::False | Kind::Integer => {
                let text = self.vm.text_of(value)?;
                self.out.extend_from_slice(&text);
            }
            Kind::Float => {
                let text = self.vm.text_of(value)?;
                match value.as_float() {
                    // mruby 3.1 writes some numbers wrongly, such as 1e100.
                    Some(number) if number.is_finite() && !is_number(&text) => {
                        self.out.extend_from_slice(format!("{number:e}").as_bytes());
                    }
                    _ => self.out.extend_from_slice(&text),
                }
            }
            Kind::String | Kind::Symbol => {
                let text = self.vm.bytes(value).unwrap_or_default();
                self.text(&text);
            }
            Kind::Array | Kind::Hash => self.begin(value)?,
            _ => {
                let text = self.vm.call(value, "to_json", &[])?;
                let text = self.vm.text_of(text)?;
                self.out.extend_from_slice(&text);
            }
        }
        Ok(())
    }

    fn begin(&mut self, container: Value) -> Result<(), Leave> {
        if self.open.len() >= DEEPEST {
            return Err(Leave::New("JSON::JSONError", "nesting is too deep".into()));
        }
        let is_hash = container.kind() == Kind::Hash;
        self.out.push(if is_hash { b'{' } else { b'[' });
        let items = if is_hash {
            self.vm.hash_keys(container)?
        } else {
            let elements = self.vm.elements(container).unwrap_or_default();
            self.vm.array(&elements)?
        };
        let items = self.vm.elements(items).unwrap_or_default();
        self.open.push(Written {
            items,
            hash: is_hash.then_some(container),
            next: 0,
        });
        Ok(())
    }

    /// Writes the next element or entry of the innermost Array or Hash, or its end. Returns false if no Array or Hash is
    /// left.
    fn step(&mut self) -> Result<bool, Leave> {
        let Some(written) = self.open.last_mut() else {
            return Ok(false);
        };
        let index = written.next;
        written.next += 1;
        let hash = written.hash;
        let Some(item) = written.items.get(index).copied() else {
            let is_empty = written.items.is_empty();
            self.open.pop();
            if !is_empty {
                self.new_line();
            }
            self.out.push(if hash.is_some() { b'}' } else { b']' });
            return Ok(true);
        };
        if index > 0 {
            self.out.push(b',');
        }
        self.new_line();
        let value = match hash {
            Some(hash) => {
                let key = self.vm.text_of(item)?;
                self.text(&key);
                self.out.push(b':');
                self.vm.hash_get(hash, item)?
            }
            None => item,
        };
        self.value(value)?;
        Ok(true)
    }

    fn new_line(&mut self) {
        if self.is_pretty {
            self.out.push(b'\n');
            let depth = self.open.len();
            self.out.extend(std::iter::repeat_n(b' ', depth * 2));
        }
    }

    fn text(&mut self, text: &[u8]) {
        self.out.push(b'"');
        for byte in text {
            match byte {
                b'"' | b'\\' => self.out.extend_from_slice(&[b'\\', *byte]),
                8 => self.out.extend_from_slice(b"\\b"),
                12 => self.out.extend_from_slice(b"\\f"),
                b'\n' => self.out.extend_from_slice(b"\\n"),
                b'\r' => self.out.extend_from_slice(b"\\r"),
                b'\t' => self.out.extend_from_slice(b"\\t"),
                0..0x20 => self
                    .out
                    .extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                _ => self.out.push(*byte),
            }
        }
        self.out.push(b'"');
    }
}

fn write(vm: &Vm, value: Value, is_pretty: bool) -> Result<Value, Leave> {
    let mut writer = Writer {
        vm,
        out: Vec::new(),
        is_pretty,
        open: Vec::new(),
    };
    writer.value(value)?;
    while writer.step()? {}
    Ok(vm.string(writer.out)?)
}

fn parse(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let [text] = call.arguments.exactly()?;
    read(vm, &text_argument(vm, text)?)
}

fn generate(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let [value] = call.arguments.exactly()?;
    write(vm, value, false)
}

/// `to_json` of any object. An object that JSON has no type for is written as its `to_s`.
fn to_json(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let value = call.receiver;
    match value.kind() {
        Kind::Proc | Kind::Exception | Kind::Data | Kind::Class | Kind::Object => {
            let text = vm.text_of(value)?;
            write(vm, vm.string(text)?, false)
        }
        _ => write(vm, value, false),
    }
}

pub(crate) fn define(vm: &Vm) -> Result<(), Value> {
    let module = vm.module(None, "JSON")?;
    let standard = vm.constant(None, "StandardError")?;
    let error = vm.class(Some(module), "JSONError", Some(standard))?;
    vm.class(Some(module), "ParserError", Some(error))?;
    vm.define_singleton(module, "parse", parse)?;
    for name in ["generate", "stringify"] {
        vm.define_singleton(module, name, generate)?;
    }
    vm.define_singleton(module, "pretty_generate", |vm, call| {
        let [value] = call.arguments.exactly()?;
        write(vm, value, true)
    })?;
    vm.define_singleton(module, "load", |vm, call| {
        let value = parse(vm, call)?;
        if !call.block.is_nil() {
            vm.yield_to(call.block, &[value])?;
        }
        Ok(value)
    })?;
    vm.define_singleton(module, "dump", |vm, call| {
        let arguments = call.arguments.between(1, 2)?;
        let text = write(vm, arguments.get(0), false)?;
        let io = arguments.get(1);
        if io.is_nil() {
            return Ok(text);
        }
        vm.call(io, "write", &[text])?;
        Ok(io)
    })?;
    let object = vm.constant(None, "Object")?;
    vm.define(object, "to_json", to_json)
}
