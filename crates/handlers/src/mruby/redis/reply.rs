//! The protocol of Redis (RESP2): encodes commands, and parses replies.

/// Most memory of one reply, in bytes.
const MAX_REPLY: usize = 64 << 20;
/// Most levels of arrays within arrays in a reply.
const MAX_DEPTH: usize = 32;
/// Length in bytes of the longest line in a reply.
const MAX_LINE: usize = 64 * 1024;
/// Bytes of memory that an element of a reply takes besides its text.
const ELEMENT: usize = size_of::<Reply>();

/// A reply of Redis.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
    Nil,
    Integer(i64),
    /// A status text, or a string.
    Text(Vec<u8>),
    Error(Vec<u8>),
    Array(Vec<Self>),
}

impl Reply {
    /// The text of the reply, if it is a text.
    pub(super) fn text(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => Some(text),
            Self::Nil | Self::Integer(_) | Self::Error(_) | Self::Array(_) => None,
        }
    }
}

/// The error if the server does not speak RESP2, or a reply exceeds the limits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// A parser of replies, which gets the bytes of a connection in pieces.
#[derive(Default)]
pub(super) struct Parser {
    input: Vec<u8>,
    /// Offset in `input` of the next element.
    at: usize,
    /// Arrays of the current reply that are not complete, each with the number of its missing elements.
    open: Vec<(usize, Vec<Reply>)>,
    /// Bytes of memory that the current reply takes so far.
    size: usize,
}

impl Parser {
    /// Appends bytes received from Redis.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        if self.at > 0 {
            self.input.drain(..self.at);
            self.at = 0;
        }
        self.input.extend_from_slice(bytes);
    }

    /// Returns the next reply; `None` if it is not complete.
    pub(super) fn next_reply(&mut self) -> Result<Option<Reply>, Malformed> {
        loop {
            let Some(element) = self.element()? else {
                return Ok(None);
            };
            if let Some(reply) = self.close(element) {
                self.size = 0;
                return Ok(Some(reply));
            }
        }
    }

    /// Adds an element to the arrays that are not complete. Returns the reply if that completes it.
    fn close(&mut self, element: Element) -> Option<Reply> {
        let mut reply = match element {
            Element::Whole(reply) => reply,
            Element::Opened => return None,
        };
        while let Some((missing, elements)) = self.open.last_mut() {
            elements.push(reply);
            *missing -= 1;
            if *missing > 0 {
                return None;
            }
            let (_, elements) = self.open.pop()?;
            reply = Reply::Array(elements);
        }
        Some(reply)
    }

    /// Reads the next element, or the begin of an array; `None` if it is not complete.
    fn element(&mut self) -> Result<Option<Element>, Malformed> {
        let rest = &self.input[self.at..];
        let Some(end) = memchr::memchr(b'\n', rest.get(..MAX_LINE).unwrap_or(rest)) else {
            return if rest.len() >= MAX_LINE {
                Err(Malformed)
            } else {
                Ok(None)
            };
        };
        let [kind, line @ .., b'\r'] = &rest[..end] else {
            return Err(Malformed);
        };
        let (taken, element) = match kind {
            b'+' => (end + 1, Element::Whole(Reply::Text(line.to_vec()))),
            b'-' => (end + 1, Element::Whole(Reply::Error(line.to_vec()))),
            b':' => (end + 1, Element::Whole(Reply::Integer(number(line)?))),
            b'$' => match length(line)? {
                None => (end + 1, Element::Whole(Reply::Nil)),
                Some(len) if len > MAX_REPLY - self.size.min(MAX_REPLY) => return Err(Malformed),
                Some(len) => {
                    let Some(text) = rest.get(end + 1..end + 1 + len + 2) else {
                        return Ok(None);
                    };
                    let Some(text) = text.strip_suffix(b"\r\n") else {
                        return Err(Malformed);
                    };
                    let text = Reply::Text(text.to_vec());
                    (end + 1 + len + 2, Element::Whole(text))
                }
            },
            b'*' => match length(line)? {
                None => (end + 1, Element::Whole(Reply::Nil)),
                Some(0) => (end + 1, Element::Whole(Reply::Array(Vec::new()))),
                Some(len) => {
                    if self.open.len() >= MAX_DEPTH || len > MAX_REPLY / ELEMENT {
                        return Err(Malformed);
                    }
                    // Memory for at most 64 elements is reserved, because Redis has only announced `len` elements so
                    // far.
                    self.open.push((len, Vec::with_capacity(len.min(64))));
                    (end + 1, Element::Opened)
                }
            },
            _ => return Err(Malformed),
        };
        self.at += taken;
        self.size += taken + ELEMENT;
        if self.size > 2 * MAX_REPLY {
            return Err(Malformed);
        }
        Ok(Some(element))
    }
}

enum Element {
    Whole(Reply),
    /// The begin of an array, whose elements follow.
    Opened,
}

fn number(line: &[u8]) -> Result<i64, Malformed> {
    let text = std::str::from_utf8(line).map_err(|_| Malformed)?;
    text.parse().map_err(|_| Malformed)
}

/// Reads a length; `None` for -1, which stands for no value.
fn length(line: &[u8]) -> Result<Option<usize>, Malformed> {
    match number(line)? {
        -1 => Ok(None),
        len => usize::try_from(len).map(Some).map_err(|_| Malformed),
    }
}

/// Appends the encoding of a command with its arguments to `out`.
pub(super) fn encode(words: &[Vec<u8>], out: &mut Vec<u8>) {
    let mut line = |kind: char, len: usize, text: &[u8]| {
        out.extend_from_slice(format!("{kind}{len}\r\n").as_bytes());
        if kind == '$' {
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        }
    };
    line('*', words.len(), b"");
    for word in words {
        line('$', word.len(), word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Reply {
        Reply::Text(text.into())
    }

    /// Parses `input`, which arrives in pieces of this size, and returns all replies.
    fn parse(input: &[u8], piece: usize) -> Result<Vec<Reply>, Malformed> {
        let mut parser = Parser::default();
        let mut all = Vec::new();
        for bytes in input.chunks(piece) {
            parser.feed(bytes);
            while let Some(reply) = parser.next_reply()? {
                all.push(reply);
            }
        }
        Ok(all)
    }

    #[test]
    fn replies_are_the_same_however_they_arrive() {
        let input = b"+OK\r\n-ERR no\r\n:-5\r\n$3\r\na\r\n\r\n$-1\r\n*-1\r\n*0\r\n*3\r\n$1\r\nx\r\n*2\r\n:1\r\n*0\r\n$0\r\n\r\n";
        let want = [
            text("OK"),
            Reply::Error(b"ERR no".to_vec()),
            Reply::Integer(-5),
            text("a\r\n"),
            Reply::Nil,
            Reply::Nil,
            Reply::Array(Vec::new()),
            Reply::Array(vec![
                text("x"),
                Reply::Array(vec![Reply::Integer(1), Reply::Array(Vec::new())]),
                text(""),
            ]),
        ];
        for piece in 1..input.len() {
            // The text "a\r " has three bytes, as the `$3` in the input says.
            assert_eq!(parse(input, piece).as_deref(), Ok(&want[..]), "{piece}");
        }
    }

    #[test]
    fn what_is_no_reply_or_beyond_the_limits_is_refused() {
        let deep = "*1\r\n".repeat(MAX_DEPTH + 1);
        let line = format!("+{}", "x".repeat(MAX_LINE));
        for input in [
            "HTTP/1.1 400\r\n",
            "%1\r\n",
            ":x\r\n",
            ":\r\n",
            "+OK\n",
            "\r\n",
            "$-2\r\n",
            "$3\r\nabcd\r\n",
            "$99999999999\r\n",
            "$99999999999999999999\r\n",
            "*99999999\r\n",
            &deep,
            &line,
        ] {
            assert_eq!(parse(input.as_bytes(), 1000), Err(Malformed), "{input:.40}");
        }
    }

    #[test]
    fn a_claimed_length_allocates_nothing() {
        let mut parser = Parser::default();
        parser.feed(b"*1000000\r\n$60000000\r\nx");
        assert_eq!(parser.next_reply(), Ok(None));
        assert!(parser.input.capacity() < 1000);
        assert!(parser.open[0].1.capacity() <= 64);
    }

    #[test]
    fn no_input_makes_the_parser_panic() {
        let mut random = 1_u64;
        let alphabet = b"+-:$*0123456789\r\n\r\nx";
        for _ in 0..20_000 {
            let input: Vec<u8> = (0..40)
                .map(|_| {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    alphabet[usize::try_from(random >> 33).unwrap() % alphabet.len()]
                })
                .collect();
            assert_eq!(parse(&input, 7), parse(&input, 40));
        }
    }

    #[test]
    fn commands_are_arrays_of_strings() {
        let mut out = Vec::new();
        encode(&[b"GET".to_vec(), b"a\r\n".to_vec()], &mut out);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$3\r\na\r\n\r\n");
    }
}
