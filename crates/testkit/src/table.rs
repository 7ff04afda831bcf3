//! Tables of HTTP/1 requests, for tests of the engine and of the program. `data/README.md` describes the format.

/// The table of requests that the server refuses.
const MALFORMED: &str = include_str!("../data/malformed.txt");

/// The table of unusual requests that the server accepts.
const UNUSUAL: &str = include_str!("../data/unusual.txt");

/// One entry of a table of requests.
#[derive(Debug)]
pub struct Entry {
    /// What is unusual about the request.
    pub name: String,
    fields: Vec<(String, Vec<u8>)>,
    /// The bytes that the client sends for the request.
    pub input: Vec<u8>,
}

impl Entry {
    /// Returns the value of a key of the entry, with escapes resolved.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.fields
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, value)| value.as_slice())
    }

    /// Returns the value of a key of the entry as text.
    ///
    /// # Panics
    /// If the value is not UTF-8.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key)
            .map(|value| std::str::from_utf8(value).expect("the bytes are UTF-8"))
    }

    /// Whether the entry applies to this value of `http1-strict`.
    ///
    /// # Panics
    /// If the key `strict` has an unknown value.
    #[must_use]
    pub fn applies(&self, strict: bool) -> bool {
        match self.text("strict") {
            None => true,
            Some("only") => strict,
            Some("off") => !strict,
            Some(other) => panic!("{}: `strict` cannot be {other}", self.name),
        }
    }
}

/// The entries of the table of requests that the server refuses.
#[must_use]
pub fn malformed() -> Vec<Entry> {
    read(MALFORMED, &["strict", "error", "status", "body"])
}

/// The entries of the table of unusual requests that the server accepts.
#[must_use]
pub fn unusual() -> Vec<Entry> {
    let keys = [
        "strict",
        "method",
        "target",
        "path",
        "authority",
        "version",
        "upgrade",
        "fields",
        "content",
        "requests",
        "kept",
    ];
    read(UNUSUAL, &keys)
}

fn read(text: &str, keys: &[&str]) -> Vec<Entry> {
    let blocks = text.split("\n\n").map(|block| {
        block
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
            .collect::<Vec<_>>()
    });
    let entries: Vec<_> = blocks
        .filter(|lines| !lines.is_empty())
        .map(|lines| read_entry(&lines, keys))
        .collect();
    for (at, entry) in entries.iter().enumerate() {
        let is_new = entries[..at].iter().all(|other| other.name != entry.name);
        assert!(is_new, "two entries named {}", entry.name);
    }
    entries
}

fn read_entry(lines: &[&str], keys: &[&str]) -> Entry {
    let mut entry = Entry {
        name: String::new(),
        fields: Vec::new(),
        input: Vec::new(),
    };
    for line in lines {
        let (key, value) = line
            .split_once(':')
            .unwrap_or_else(|| panic!("the line has no key: {line}"));
        let value = unescape(value.trim_matches(' '));
        match key.split_once('*').unwrap_or((key, "1")) {
            ("name", _) => {
                entry.name = String::from_utf8(value).expect("the name of an entry is UTF-8")
            }
            ("input", times) => entry
                .input
                .extend(value.repeat(times.parse().expect("the text is a number"))),
            (key, _) => {
                assert!(keys.contains(&key), "{}: unknown key {key}", entry.name);
                entry.fields.push((key.to_owned(), value));
            }
        }
    }
    assert!(!entry.name.is_empty(), "an entry without name: {lines:?}");
    entry
}

fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.push(match rest.next() {
            Some(b'r') => b'\r',
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'0') => 0,
            Some(b'\\') => b'\\',
            Some(b'x') => {
                let mut digit = || rest.next().and_then(|d| char::from(d).to_digit(16));
                let (high, low) = (
                    digit().expect("the escape has two hexadecimal digits"),
                    digit().expect("the escape has two hexadecimal digits"),
                );
                u8::try_from(high * 16 + low).expect("two hexadecimal digits are a byte")
            }
            other => panic!("unknown escape {other:?} in {text}"),
        });
    }
    out
}
