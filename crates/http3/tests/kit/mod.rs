//! Helpers that the tests of the crate `http3` share.
#![allow(dead_code, reason = "each test file uses a part of this module")]

pub(crate) mod client;
pub(crate) mod server;

use h2o_testkit::http3::{Frame, encode, kind, varint};

pub(crate) type Fields<'a> = &'a [(&'a str, &'a str)];

pub(crate) const GET: Fields<'static> = &[
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "a.example"),
    (":path", "/"),
];
pub(crate) const POST: Fields<'static> = &[
    (":method", "POST"),
    (":scheme", "https"),
    (":authority", "a.example"),
    (":path", "/"),
];
pub(crate) const CONNECT: Fields<'static> =
    &[(":method", "CONNECT"), (":authority", "b.example:443")];

/// Identifiers of the client's unidirectional streams.
pub(crate) const CONTROL: u64 = 2;
pub(crate) const ENCODER: u64 = 6;
pub(crate) const DECODER: u64 = 10;

/// A HEADERS frame whose section does not refer to the dynamic table. Texts are converted to Latin-1, so that a `str` of a
/// test can stand for any byte.
pub(crate) fn headers(fields: Fields<'_>) -> Vec<u8> {
    let bytes = |text: &str| -> Vec<u8> {
        let bytes = text
            .chars()
            .map(|c| u8::try_from(c).expect("the characters of the text are bytes"));
        bytes.collect()
    };
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| (bytes(name), bytes(value)))
        .collect();
    Frame::headers(encode(&fields)).bytes()
}

pub(crate) fn data(content: &[u8]) -> Vec<u8> {
    Frame::data(content).bytes()
}

pub(crate) fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    Frame::new(kind, payload).bytes()
}

/// The start of a control stream: its type, and SETTINGS with these values.
pub(crate) fn control(settings: &[(u64, u64)]) -> Vec<u8> {
    [varint(0), Frame::settings(settings).bytes()].concat()
}

/// Ways to split an input, each as a list of positions: not at all, at every byte, and once after each byte (after some bytes of a
/// long input).
pub(crate) fn ways_to_cut(len: usize) -> Vec<Vec<usize>> {
    let step = len / 300 + 1;
    let mut ways = vec![Vec::new(), (1..len).collect()];
    ways.extend((1..len).step_by(step).map(|at| vec![at]));
    ways
}

/// The pieces of `input` between the positions `cuts`.
pub(crate) fn pieces<'a>(input: &'a [u8], cuts: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([input.len()]);
    starts.zip(ends).map(|(start, end)| &input[start..end])
}

/// Checks reported events, which are in words, so that tests can list them.
#[track_caller]
pub(crate) fn assert_said(got: &[String], want: &[&str], why: &str) {
    assert_eq!(got, want, "{why}");
}

/// The name of a type of frame.
pub(crate) fn name(kind: u64) -> String {
    match kind {
        kind::DATA => "DATA".to_owned(),
        kind::HEADERS => "HEADERS".to_owned(),
        kind::SETTINGS => "SETTINGS".to_owned(),
        kind::GOAWAY => "GOAWAY".to_owned(),
        kind::MAX_PUSH_ID => "MAX_PUSH_ID".to_owned(),
        other => format!("{other:#x}"),
    }
}
