//! Tests of valid requests.

use crate::kit::server::{Conversation, outcome};
use crate::kit::{CONNECT, GET, POST, assert_said, data, frame, headers};

#[test]
fn a_request_without_content_is_a_head_and_the_end() {
    let said = outcome(Conversation::new, 0, &headers(GET), true);
    assert_said(
        &said,
        &["0 GET https://a.example/ END"],
        "in one piece or many",
    );
}

#[test]
fn content_comes_in_any_number_of_frames() {
    let input = [headers(POST), data(b"hello"), data(b""), data(b", world")].concat();
    let want = ["0 POST https://a.example/", "0 data hello, world END"];
    assert_said(
        &outcome(Conversation::new, 0, &input, true),
        &want,
        "two DATA frames",
    );
}

#[test]
fn trailers_end_the_content() {
    let trailers = headers(&[("x-sum", "5"), ("content-length", "9")]);
    let input = [headers(POST), data(b"hello"), trailers].concat();
    let want = [
        "0 POST https://a.example/",
        "0 data hello",
        "0 trailers x-sum=5",
    ];
    assert_said(
        &outcome(Conversation::new, 0, &input, true),
        &want,
        "one that frames is left out",
    );
}

#[test]
fn frames_of_unknown_types_are_skipped_wherever_they_stand() {
    let grease = frame(0x21, b"grease");
    let input = [
        &grease[..],
        &headers(POST),
        &grease,
        &data(b"a"),
        &grease,
        &headers(&[("x", "y")]),
        &grease,
    ]
    .concat();
    let want = ["0 POST https://a.example/", "0 data a", "0 trailers x=y"];
    assert_said(
        &outcome(Conversation::new, 0, &input, true),
        &want,
        "RFC 9114 §9",
    );
}

#[test]
fn tunnels_carry_content_both_ways() {
    let input = [headers(CONNECT), data(b"up")].concat();
    let want = [
        "0 CONNECT https://b.example:443b.example:443",
        "0 data up END",
    ];
    let said = outcome(Conversation::new, 0, &input, true);
    assert_said(
        &said,
        &want
            .map(|words| words.replace("https", "http"))
            .each_ref()
            .map(String::as_str),
        "CONNECT",
    );
}
