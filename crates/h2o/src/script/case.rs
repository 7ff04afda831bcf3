//! Reads the requests and assertions of `h2o mruby`, from the command line and from test files.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use h2o_http::{Method, Scheme, Version};
use h2o_server::TrialRequest;

/// The port number that simulated clients appear to have; it has no meaning.
const CLIENT_PORT: u16 = 50_000;

/// A test case: a request, and assertions about its response.
#[derive(Debug)]
pub(crate) struct Case {
    /// Number of the case's first line in the test file.
    pub(crate) line: usize,
    /// The first line of the case.
    pub(crate) title: String,
    pub(crate) request: TrialRequest,
    pub(crate) assertions: Vec<Assertion>,
}

/// A line of a case that begins with `assert`.
#[derive(Debug)]
pub(crate) struct Assertion {
    pub(crate) line: usize,
    /// The line as it is in the test file.
    pub(crate) text: String,
    pub(crate) subject: Subject,
    pub(crate) expected: Expected,
}

/// The part of a response that an assertion is about.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Status,
    /// The field with this name, in lower case.
    Field(String),
    Body,
    /// The error messages that were logged for the request.
    Log,
}

/// What an assertion expects of its part of the response: a text, a text that the part contains, or that the part is absent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Is(Vec<u8>),
    Contains(Vec<u8>),
    Absent,
}

/// An error in a line of a test file: the number of the line, and what is wrong.
pub(crate) type Fault = (usize, String);

/// Reads test cases, which empty lines separate. Lines that begin with `#` are comments.
pub(crate) fn parse(text: &str) -> Result<Vec<Case>, Fault> {
    let mut cases: Vec<Case> = Vec::new();
    let mut is_open = false;
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        if line.starts_with('#') {
            continue;
        }
        if line.is_empty() {
            is_open = false;
            continue;
        }
        let failed = |why: String| (number, why);
        match cases.last_mut().filter(|_| is_open) {
            Some(case) => read_line(case, line, number).map_err(failed)?,
            None => cases.push(begin(line, number).map_err(failed)?),
        }
        is_open = true;
    }
    Ok(cases)
}

/// Reads the first line of a case: `[METHOD] TARGET [VERSION]`.
fn begin(line: &str, number: usize) -> Result<Case, String> {
    let mut words: Vec<&str> = line.split_ascii_whitespace().collect();
    let version = match words.last().copied() {
        Some(word) if word.starts_with("HTTP/") => {
            words.pop();
            read_version(word)?
        }
        _ => Version::Http11,
    };
    let (method, url) = match words[..] {
        [url] => ("GET", url),
        [method, url] => (method, url),
        _ => {
            return Err(format!(
                "`{line}` is no request: write `METHOD TARGET`, such as `GET /a?b`, or `GET /a?b HTTP/2` for a certain version"
            ));
        }
    };
    let method = Method::from_token(method.as_bytes())
        .ok_or_else(|| format!("`{method}` is no method: write one such as `GET`"))?;
    let (scheme, authority, target) = read_url(url)?;
    Ok(Case {
        line: number,
        title: line.to_owned(),
        request: TrialRequest {
            method,
            scheme,
            version,
            authority,
            target,
            headers: Vec::new(),
            body: None,
            peer: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), CLIENT_PORT),
            variables: Vec::new(),
        },
        assertions: Vec::new(),
    })
}

fn read_version(word: &str) -> Result<Version, String> {
    let all = [
        Version::Http10,
        Version::Http11,
        Version::Http2,
        Version::Http3,
    ];
    let found = all.into_iter().find(|version| version.as_str() == word);
    found.ok_or_else(|| {
        format!("`{word}` is no version: write HTTP/1.0, HTTP/1.1, HTTP/2 or HTTP/3")
    })
}

/// Splits a URL into scheme, authority and target; a target without an authority means the host `localhost`.
fn read_url(url: &str) -> Result<(Scheme, String, String), String> {
    let (scheme, rest) = match url.split_once("://") {
        Some(("http", rest)) => (Scheme::Http, rest),
        Some(("https", rest)) => (Scheme::Https, rest),
        _ if url.starts_with('/') => return Ok((Scheme::Http, "localhost".into(), url.into())),
        _ => {
            return Err(format!(
                "`{url}` is no target: write one that begins with `/`, `http://` or `https://`"
            ));
        }
    };
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(at);
    if authority.is_empty() {
        return Err(format!("`{url}` names no host: write `http://HOST/PATH`"));
    }
    let slash = if target.starts_with('/') { "" } else { "/" };
    Ok((scheme, authority.to_owned(), format!("{slash}{target}")))
}

/// Reads a line of a case after its first line.
fn read_line(case: &mut Case, line: &str, number: usize) -> Result<(), String> {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim_start();
    let request = &mut case.request;
    if let Some(name) = word.strip_suffix(':') {
        return read_field(request, name, rest);
    }
    match word {
        "from" => {
            let address: IpAddr = rest
                .parse()
                .map_err(|_| format!("`{rest}` is no IP address: write `from ADDRESS`"))?;
            request.peer.set_ip(address);
        }
        "env" => {
            let (name, value) = rest
                .split_once('=')
                .ok_or_else(|| format!("`{rest}` is no variable: write `env NAME=VALUE`"))?;
            request.variables.push((name.into(), value.into()));
        }
        "body" => request.body = Some(read_text(rest)?),
        "assert" => {
            let (subject, expected) = read_assertion(rest)?;
            case.assertions.push(Assertion {
                line: number,
                text: line.to_owned(),
                subject,
                expected,
            });
        }
        _ => {
            return Err(format!(
                "`{line}` is neither a header field (`NAME: VALUE`) nor one of `body`, `from`, `env` and `assert`"
            ));
        }
    }
    Ok(())
}

fn read_field(request: &mut TrialRequest, name: &str, value: &str) -> Result<(), String> {
    if !h2o_http::is_token(name.as_bytes()) {
        return Err(format!("`{name}` is no name of a header field"));
    }
    match name.to_ascii_lowercase() {
        name if name == "host" => request.authority = value.to_owned(),
        name if name == "content-length" || name == "transfer-encoding" => {
            return Err(format!("`{name}` follows from the body: write `body TEXT`"));
        }
        name => request.headers.push((name, value.to_owned())),
    }
    Ok(())
}

/// Reads the text after the word `assert`.
fn read_assertion(text: &str) -> Result<(Subject, Expected), String> {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim_start();
    if let Some(name) = word.strip_suffix(':') {
        return Ok((field(name)?, Expected::Is(rest.into())));
    }
    if word == "no" {
        return Ok((field(rest)?, Expected::Absent));
    }
    let subject = match word {
        "status" => Subject::Status,
        "body" => Subject::Body,
        "log" => Subject::Log,
        name => field(name)?,
    };
    let contained = match rest.split_once(char::is_whitespace) {
        Some(("contains", text)) => Some(text.trim_start()),
        _ => None,
    };
    let expected = match (&subject, contained) {
        (Subject::Status, _) => {
            let code = rest.parse::<u16>().ok();
            let code =
                code.ok_or_else(|| format!("`{rest}` is no status code: write `status 200`"))?;
            Expected::Is(code.to_string().into_bytes())
        }
        (_, Some(text)) => Expected::Contains(read_text(text)?),
        (Subject::Body, None) => Expected::Is(read_text(rest)?),
        (Subject::Field(_) | Subject::Log, None) => {
            return Err(format!(
                "`{text}` is no assertion: write `status CODE`, `NAME: VALUE`, `NAME contains TEXT`, `no NAME`, `body TEXT`, \
                 `body contains TEXT` or `log contains TEXT`"
            ));
        }
    };
    Ok((subject, expected))
}

fn field(name: &str) -> Result<Subject, String> {
    if h2o_http::is_token(name.as_bytes()) {
        Ok(Subject::Field(name.to_ascii_lowercase()))
    } else {
        Err(format!("`{name}` is no name of a header field"))
    }
}

/// Reads a text of an assertion; it may be in double quotes, with the escapes `\n`, `\r`, `\t`, `\"` and `\\`.
fn read_text(text: &str) -> Result<Vec<u8>, String> {
    let Some(quoted) = text.strip_prefix('"') else {
        return Ok(text.into());
    };
    let Some(inner) = quoted.strip_suffix('"') else {
        return Err(format!("the closing quote of `{text}` is missing"));
    };
    let mut read = String::with_capacity(inner.len());
    let mut rest = inner.chars();
    while let Some(character) = rest.next() {
        if character != '\\' {
            read.push(character);
            continue;
        }
        read.push(match rest.next() {
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some(escaped @ ('"' | '\\')) => escaped,
            _ => {
                return Err(format!(
                    "`{text}` has an escape other than \\n, \\r, \\t, \\\" and \\\\"
                ));
            }
        });
    }
    Ok(read.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_a_request_with_fields_and_assertions() {
        let text = "# comment\n/plain\n\nPOST https://a.test?q HTTP/2\nHost: b.test\nX-A: 1: 2\nfrom 10.0.0.1\nenv A=b=c\n\
                    # comment\nbody \"1\\n\"\nassert status 200\nassert X-B: c d\nassert x-b contains d\nassert no X-C\n\
                    assert body contains \" \"\nassert log contains boom\n";
        let cases = parse(text).unwrap();
        assert_eq!(cases.len(), 2);
        let plain = &cases[0].request;
        let head = (&plain.method, plain.scheme, plain.version);
        assert_eq!(head, (&Method::Get, Scheme::Http, Version::Http11));
        assert_eq!((&*plain.authority, &*plain.target), ("localhost", "/plain"));
        let request = &cases[1].request;
        assert_eq!(cases[1].line, 4);
        let head = (&request.method, request.scheme, request.version);
        assert_eq!(head, (&Method::Post, Scheme::Https, Version::Http2));
        assert_eq!((&*request.authority, &*request.target), ("b.test", "/?q"));
        assert_eq!(request.headers, [("x-a".into(), "1: 2".into())]);
        assert_eq!(request.peer.to_string(), "10.0.0.1:50000");
        assert_eq!(request.variables, [("A".into(), "b=c".into())]);
        assert_eq!(request.body.as_deref(), Some(&b"1\n"[..]));
        let field = |name: &str| Subject::Field(name.into());
        let wanted = [
            (Subject::Status, Expected::Is(b"200".into())),
            (field("x-b"), Expected::Is(b"c d".into())),
            (field("x-b"), Expected::Contains(b"d".into())),
            (field("x-c"), Expected::Absent),
            (Subject::Body, Expected::Contains(b" ".into())),
            (Subject::Log, Expected::Contains(b"boom".into())),
        ];
        let assertions = cases[1].assertions.iter();
        let read: Vec<_> = assertions.map(|a| (&a.subject, &a.expected)).collect();
        let wanted: Vec<_> = wanted.iter().map(|(a, b)| (a, b)).collect();
        assert_eq!(read, wanted);
    }

    #[test]
    fn a_line_that_means_nothing_is_refused_with_its_number() {
        for (text, line, part) in [
            ("GET", 1, "is no target"),
            ("GET /a b c", 1, "is no request"),
            ("G@T /", 1, "is no method"),
            ("/ HTTP/4", 1, "is no version"),
            ("http:///", 1, "names no host"),
            ("/\nnonsense", 2, "neither a header field"),
            ("/\n\n/\na b: c", 4, "neither a header field"),
            ("/\n(: c", 2, "is no name"),
            ("/\ncontent-length: 3", 2, "follows from the body"),
            ("/\nfrom nowhere", 2, "is no IP address"),
            ("/\nenv A", 2, "is no variable"),
            ("/\nbody \"a", 2, "closing quote"),
            ("/\nbody \"\\q\"", 2, "escape"),
            ("/\nassert status ok", 2, "is no status code"),
            ("/\nassert etag", 2, "is no assertion"),
            ("/\nassert log boom", 2, "is no assertion"),
            ("/\nassert", 2, "is no name"),
        ] {
            let (number, why) = parse(text).unwrap_err();
            assert_eq!(number, line, "{text}");
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
