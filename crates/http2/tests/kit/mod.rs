//! Helpers that the tests of the crate `http2` share.
#![allow(dead_code, reason = "each test file uses a part of this module")]

pub(crate) mod client;
pub(crate) mod frames;
pub(crate) mod server;

/// The positions at which to split an input: none, one at every byte (at some bytes of a long input), and all.
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

/// Checks reported events, which are in words, so that tests can have them in tables.
#[track_caller]
pub(crate) fn assert_said(got: &[String], want: &[&str], why: &str) {
    assert_eq!(got, want, "{why}");
}
