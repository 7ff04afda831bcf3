//! Test of equal response heads on one connection while the HPACK table of the client changes.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::sync::Arc;

use h2o_http::{Headers, Known, RequestHead, ResponseHead, StatusCode};
use h2o_http2::frame::{FrameHeader, HEADER_LEN};
use h2o_http2::hpack::{Decoder, HpackError};
use h2o_http2::{FrameType, Received, ServerConnection, Settings};
use h2o_testkit::any_moment;

#[test]
fn a_head_that_comes_again_is_right_after_the_table_got_smaller() {
    let now = any_moment();
    let mut connection = ServerConnection::new(Arc::new(Settings::default()), None, now);
    let mut input = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for id in (1..=15).step_by(2) {
        if id == 9 {
            // A SETTINGS frame with SETTINGS_HEADER_TABLE_SIZE 0.
            input.extend_from_slice(b"\0\0\x06\x04\0\0\0\0\0\0\x01\0\0\0\0");
        }
        input.extend_from_slice(&[0, 0, 3, 1, 5, 0, 0, 0, id, 0x82, 0x86, 0x84]);
    }
    let mut headers = Headers::new();
    headers.push(Known::ContentType, b"text/css");
    let head = ResponseHead {
        status: StatusCode::OK,
        reason: None,
        headers: &headers,
        length: None,
        server: Some(b"h2o"),
    };
    let (mut request, mut out, mut at) = (RequestHead::default(), Vec::new(), 0);
    loop {
        let step = connection.receive(&input[at..], &mut request, now, &mut out);
        let step = step.unwrap();
        at += step.taken;
        match step.received {
            Received::Request { stream, .. } => {
                connection.respond(stream, &head, true, &mut out);
                connection.release(stream, &mut out);
            }
            Received::NeedMore => break,
            other => panic!("{other:?}"),
        }
    }
    let mut decoder = Decoder::new(4096);
    let (mut rest, mut count) = (&out[..], 0);
    while let Some(header) = FrameHeader::parse(rest) {
        let (frame, after) = rest.split_at(HEADER_LEN + header.len);
        rest = after;
        if header.kind != FrameType::HEADERS {
            continue;
        }
        let mut fields = Vec::new();
        let decoded = decoder.decode(&frame[HEADER_LEN..], |field| {
            fields.push(field.value.to_vec());
            Ok::<(), HpackError>(())
        });
        assert_eq!(decoded, Ok(()), "response {count}");
        assert_eq!(
            fields,
            [&b"200"[..], b"h2o", b"text/css"],
            "response {count}"
        );
        count += 1;
    }
    assert_eq!(count, 8);
}
