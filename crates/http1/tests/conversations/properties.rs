//! Tests with random messages: content arrives as it was sent, heads are read as they were written, and no value is read as
//! a further field or message.

use h2o_http::{Headers, Name};
use h2o_http1::Next;

use crate::kit::server::{Conversation, Event};

/// Characters of random field names.
const TOKEN: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCXYZ0123456789!#$%&'*+-.^_`|~";
const TEXT: &[u8] = b"abc XYZ 019 \t,;=\"()[]{}<>?/\\@:\x80\xff";

fn some(random: &mut fastrand::Rng, letters: &[u8], len: usize) -> Vec<u8> {
    (0..len)
        .map(|_| letters[random.usize(..letters.len())])
        .collect()
}

/// Sends bytes to the engine in pieces of random lengths.
fn send_in_pieces(talk: &mut Conversation, mut bytes: &[u8], random: &mut fastrand::Rng) {
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at(random.usize(1..=bytes.len().min(200)));
        talk.client_sends(piece);
        bytes = rest;
    }
}

/// All content that the engine reported, joined.
fn content(talk: &Conversation) -> Vec<u8> {
    let data = talk.events.iter().filter_map(|event| match event {
        Event::Data(data) => Some(&data[..]),
        _ => None,
    });
    data.collect::<Vec<_>>().concat()
}

fn errors(talk: &Conversation) -> Vec<String> {
    let errors = talk.events.iter().filter_map(|event| match event {
        Event::Error(error) => Some(error.name().to_string()),
        _ => None,
    });
    errors.collect()
}

#[test]
fn chunked_content_arrives_as_it_was_sent_however_it_is_cut() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let len = random.usize(..3_000);
        let sent: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        let mut input =
            b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let (chunk, later) = rest.split_at(random.usize(1..=rest.len()));
            let zeros = "0".repeat(random.usize(..4));
            let size = if random.bool() {
                format!("{zeros}{:x}", chunk.len())
            } else {
                format!("{zeros}{:X}", chunk.len())
            };
            let extension = ["", ";x", ";a=\"b\"", " ;c=d"][random.usize(..4)];
            input.extend(format!("{size}{extension}\r\n").into_bytes());
            input.extend_from_slice(chunk);
            input.extend_from_slice(b"\r\n");
            rest = later;
        }
        input.extend_from_slice(b"0\r\n");
        for _ in 0..random.usize(..3) {
            input.extend_from_slice(b"Trailer: of no use\r\n");
        }
        input.extend_from_slice(b"\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n");

        let mut talk = Conversation::new();
        send_in_pieces(&mut talk, &input, &mut random);
        assert_eq!(errors(&talk), Vec::<String>::new(), "seed {seed}");
        assert!(content(&talk) == sent, "seed {seed}");
        assert!(talk.connection.is_body_done(), "seed {seed}");
        assert_eq!(
            talk.left(),
            b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n",
            "seed {seed}: the bytes of the next request are left"
        );
        assert_eq!(talk.answer(""), Next::Request);
    }
}

#[test]
fn fields_are_read_as_they_were_sent() {
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut sent: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let mut input = b"GET /path?query HTTP/1.1\r\nHost: h\r\n".to_vec();
        for _ in 0..random.usize(..20) {
            let len = random.usize(1..20);
            // No name with the prefix `X-` is one that the engine interprets.
            let name = [b"X-", &some(&mut random, TOKEN, len)[..]].concat();
            let len = random.usize(..60);
            let value = some(&mut random, TEXT, len);
            let [before, after] = std::array::from_fn(|_| " \t".repeat(random.usize(..2)));
            input.extend_from_slice(&name);
            input.extend(format!(":{before}").into_bytes());
            input.extend_from_slice(&value);
            input.extend(format!("{after}\r\n").into_bytes());
            sent.push((name.to_ascii_lowercase(), value.trim_ascii().to_vec()));
        }
        input.extend_from_slice(b"\r\n");
        let mut talk = Conversation::new();
        send_in_pieces(&mut talk, &input, &mut random);
        assert_eq!(errors(&talk), Vec::<String>::new(), "seed {seed}");
        let got: Vec<(Vec<u8>, Vec<u8>)> = (talk.head.headers.iter())
            .map(|field| {
                (
                    field.name.as_str().as_bytes().to_ascii_lowercase(),
                    field.value.to_vec(),
                )
            })
            .collect();
        assert_eq!(got, sent, "seed {seed}");
        assert_eq!(talk.head.target(), b"/path?query", "seed {seed}");
    }
}

/// Whether RFC 9112 allows the request head, or the head has one of the few faults that the engine tolerates. This check is
/// as simple as possible and shares nothing with the engine.
fn is_sound(head: &[u8]) -> bool {
    let is_token = |text: &[u8]| {
        !text.is_empty()
            && text
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
    };
    let is_text = |text: &[u8]| {
        text.iter()
            .all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
    };
    let head = head
        .strip_suffix(b"\r\n\r\n")
        .expect("the output has a complete head");
    let mut lines = head
        .split(|&byte| byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    // Empty lines before a request are skipped (RFC 9112 §2.2).
    let line = lines.find(|line| !line.is_empty()).unwrap_or_default();
    // More than one space between the parts of the request line is tolerated (RFC 9112 §3).
    let parts = line.split(|&byte| byte == b' ');
    let parts: Vec<&[u8]> = parts.filter(|part| !part.is_empty()).collect();
    let [method, target, version] = parts[..] else {
        return false;
    };
    is_token(method)
        && !target.is_empty()
        && target.iter().all(|&byte| byte > b' ' && byte != 0x7f)
        && version.starts_with(b"HTTP/1.")
        && lines.all(|line| {
            let Some(colon) = line.iter().position(|&byte| byte == b':') else {
                return false;
            };
            is_token(&line[..colon]) && is_text(&line[colon + 1..])
        })
}

#[test]
fn a_damaged_head_is_refused_unless_it_is_sound_all_the_same() {
    let head = b"POST /some/where?x=y HTTP/1.1\r\nHost: a.example:8080\r\nAccept: text/html, */*;q=0.5\r\n\
        X-Empty:\r\nContent-Length: 0\r\nCookie: a=b; c=d\r\n\r\n";
    let mut accepted = 0;
    for at in 0..head.len() - 4 {
        for byte in 0..=255_u8 {
            let mut damaged = head.to_vec();
            damaged[at] = byte;
            // Skips the case if the changed byte ends the head early: the rest would be another message.
            if damaged.windows(4).position(|four| four == b"\r\n\r\n") != Some(head.len() - 4)
                || damaged.windows(2).any(|two| two == b"\n\n")
                || damaged.windows(3).any(|three| three == b"\n\r\n") && at > 0 && byte == b'\n'
            {
                continue;
            }
            let mut talk = Conversation::new();
            talk.client_sends(&damaged);
            let is_taken = talk
                .events
                .iter()
                .any(|event| matches!(event, Event::Request(_)));
            if is_taken {
                accepted += 1;
                assert!(is_sound(&damaged), "{}", damaged.escape_ascii());
            }
        }
    }
    // Many damaged heads are still valid, since most bytes of a target or a value may be replaced by many other bytes.
    assert!(
        accepted > 5_000,
        "only {accepted} damaged heads were accepted"
    );
}

#[test]
fn no_value_of_a_response_becomes_a_field_or_a_message() {
    const HOSTILE: &[u8] = b"a:\r\n\0\r\n \t<x";
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut headers = Headers::new();
        let count = random.usize(..12);
        for _ in 0..count {
            let len = random.usize(..40);
            let value = some(&mut random, HOSTILE, len);
            headers.push(Name::from_lower("x-hostile"), &value);
        }
        let mut talk = Conversation::new();
        talk.client_sends("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        talk.respond_with(200, Some(0), &headers);
        talk.finish();
        let wire = std::mem::take(&mut talk.out);
        let text = wire
            .strip_suffix(b"\r\n\r\n")
            .expect("the output is one head, which ends with an empty line");
        let lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
        assert_eq!(lines[0], b"HTTP/1.1 200 OK\r", "seed {seed}");
        let hostile = lines.iter().filter(|line| line.starts_with(b"x-hostile: "));
        assert_eq!(hostile.count(), count, "seed {seed}");
        for line in &lines[1..] {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            assert!(line.contains(&b':'), "seed {seed}: {}", line.escape_ascii());
            assert!(!line.contains(&b'\r') && !line.contains(&0), "seed {seed}");
        }
    }
}

#[test]
fn what_is_sent_is_as_long_as_announced_or_the_connection_closes() {
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let announced = random.bool().then(|| random.u64(..300));
        let is_http10 = random.u8(..4) == 0;
        let mut talk = Conversation::new();
        talk.client_sends(if is_http10 {
            "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
        } else {
            "GET / HTTP/1.1\r\nHost: h\r\n\r\n"
        });
        talk.respond(200, announced);
        let mut sent = String::new();
        for _ in 0..random.usize(..6) {
            let piece = "x".repeat(random.usize(..100));
            talk.send(&piece);
            sent += &piece;
        }
        talk.finish();
        let wire = String::from_utf8(std::mem::take(&mut talk.out)).expect("the bytes are UTF-8");
        let (head, body) = wire
            .split_once("\r\n\r\n")
            .expect("the output has a complete head");
        let next = talk.connection.next(talk.now);
        let most = announced.map_or(usize::MAX, |announced| {
            usize::try_from(announced).expect("the length fits into the type")
        });
        let wanted = &sent[..sent.len().min(most)];
        if head.contains("chunked") {
            assert_eq!((announced, is_http10), (None, false), "seed {seed}");
            let chunks: Vec<&str> = body.split("\r\n").collect();
            let sizes: usize = chunks
                .iter()
                .step_by(2)
                .map(|size| usize::from_str_radix(size, 16).unwrap_or(0))
                .sum();
            assert_eq!(sizes, wanted.len(), "seed {seed}");
            assert!(body.ends_with("0\r\n\r\n"), "seed {seed}");
        } else {
            assert_eq!(body, wanted, "seed {seed}");
        }
        let is_whole = announced.is_none_or(|announced| announced <= sent.len() as u64);
        let is_delimited = announced.is_some() || !is_http10;
        let want = if is_whole && is_delimited {
            Next::Request
        } else {
            Next::Close
        };
        assert_eq!(next, want, "seed {seed}: {} of {announced:?}", sent.len());
    }
}
