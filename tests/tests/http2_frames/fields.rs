//! Valid and invalid fields in requests.

use h2o_tests::http2::{Frame, code, encode, flag, post};

use super::kit::*;

#[test]
fn wrong_fields_are_answered_with_their_code_and_text() {
    let server = start("");
    let method = (":method", "GET");
    let scheme = (":scheme", "http");
    let path = (":path", "/a.txt");
    let authority = (":authority", "a.example");
    let protocol = |text| Want::GoAway(1, code::PROTOCOL_ERROR, text);
    let reset = || Want::Reset(1, code::PROTOCOL_ERROR);
    let hello = || Want::Answer(1, 200, "hello");
    let bad_name = || Want::Answer(1, 400, "found an invalid character in header name");
    let bad_value = || Want::Answer(1, 400, "found an invalid character in header value");
    let specific = || protocol("found an unexpected connection-specific header");
    let pseudo = || protocol("invalid pseudo header");
    let many = |count| vec![("x", "1"); count];
    let rows = [
        row(
            "an upper-case letter in a name",
            [with(&[("X-a", "1")])],
            protocol("found an upper-case letter in header name"),
        ),
        row("a blank in a name", [with(&[("x a", "1")])], bad_name()),
        row("a colon within a name", [with(&[("x:a", "1")])], bad_name()),
        row(
            "a byte above 0x7f in a name",
            [with(&[("x\u{e9}", "1")])],
            bad_name(),
        ),
        row("a NUL in a value", [with(&[("x", "a\0b")])], bad_value()),
        row(
            "a line end in a value",
            [with(&[("x", "a\r\nb: c")])],
            bad_value(),
        ),
        row(
            "a leading blank in a value",
            [with(&[("x", " a")])],
            bad_value(),
        ),
        row(
            "a trailing tab in a value",
            [with(&[("x", "a\t")])],
            bad_value(),
        ),
        row(
            "a blank and text above 0x7f in a value",
            [with(&[("x", "a \u{e9}")])],
            hello(),
        ),
        row(
            "100 fields beside four of the request",
            [with(&many(100))],
            hello(),
        ),
        row(
            "101 fields beside four of the request",
            [with(&many(101))],
            Want::Answer(1, 400, "headers too long"),
        ),
        row(
            "996 fields and four of the request",
            [with(&many(996))],
            Want::Answer(1, 400, "headers too long"),
        ),
        row(
            "1,001 fields beside four of the request",
            [with(&many(1001))],
            Want::GoAway(1, code::COMPRESSION_ERROR, "headers too long"),
        ),
        row("connection", [with(&[("connection", "close")])], specific()),
        row(
            "http2-settings",
            [with(&[("http2-settings", "AA")])],
            specific(),
        ),
        row(
            "transfer-encoding",
            [with(&[("transfer-encoding", "chunked")])],
            specific(),
        ),
        row("upgrade", [with(&[("upgrade", "h2c")])], specific()),
        row("te: gzip", [with(&[("te", "gzip")])], specific()),
        row("te: trailers", [with(&[("te", "trailers")])], hello()),
        row(
            "keep-alive and proxy-connection",
            [with(&[("keep-alive", "1"), ("proxy-connection", "close")])],
            hello(),
        ),
        row(
            "content-length: abc",
            [with(&[("content-length", "abc")])],
            protocol("invalid content-length header"),
        ),
        row(
            "content-length: -1",
            [with(&[("content-length", "-1")])],
            protocol("invalid content-length header"),
        ),
        row(
            "content-length without content",
            [with(&[("content-length", "1")])],
            reset(),
        ),
        row(
            "content-length: 0 without content",
            [with(&[("content-length", "0")])],
            hello(),
        ),
        row(
            "content longer than content-length",
            [upload_of("3"), Frame::data(1, flag::END_STREAM, *b"four")],
            reset(),
        ),
        row(
            "content longer than content-length, not at its end",
            [upload_of("3"), Frame::data(1, 0, *b"four")],
            reset(),
        ),
        row(
            "content shorter than content-length",
            [upload_of("3"), Frame::data(1, flag::END_STREAM, *b"tw")],
            reset(),
        ),
        row(
            "content as long as content-length",
            [
                upload_of("3"),
                Frame::data(1, 0, *b"tw"),
                Frame::data(1, 1, *b"o"),
            ],
            Want::Answer(1, 404, ""),
        ),
        row(
            ":method twice",
            [asking(&[method, method, scheme, path, authority])],
            pseudo(),
        ),
        row(
            ":path twice",
            [asking(&[method, scheme, path, path, authority])],
            pseudo(),
        ),
        row(
            ":scheme twice",
            [asking(&[method, scheme, scheme, path, authority])],
            pseudo(),
        ),
        row(
            ":authority twice",
            [asking(&[method, scheme, path, authority, authority])],
            pseudo(),
        ),
        row(
            "a pseudo field after others",
            [asking(&[method, scheme, ("x", "1"), path, authority])],
            pseudo(),
        ),
        row(
            "an empty :path",
            [asking(&[method, scheme, (":path", ""), authority])],
            pseudo(),
        ),
        row(
            ":status",
            [asking(&[
                method,
                scheme,
                path,
                authority,
                (":status", "200"),
            ])],
            protocol(""),
        ),
        row(
            "an unknown pseudo field",
            [asking(&[method, scheme, path, authority, (":x", "1")])],
            protocol(""),
        ),
        row("no :method", [asking(&[scheme, path, authority])], reset()),
        row("no :scheme", [asking(&[method, path, authority])], reset()),
        row("no :path", [asking(&[method, scheme, authority])], reset()),
        row("no field at all", [Frame::request(1, [])], reset()),
        row(
            ":protocol with GET",
            [asking(&[
                method,
                scheme,
                path,
                authority,
                (":protocol", "websocket"),
            ])],
            reset(),
        ),
        row(
            "host for :authority",
            [asking(&[method, scheme, path, ("host", "a.example")])],
            hello(),
        ),
        row(
            "host beside :authority",
            [asking(&[
                method,
                scheme,
                path,
                authority,
                ("host", "b.example"),
            ])],
            hello(),
        ),
        row(
            "an unknown scheme",
            [asking(&[method, (":scheme", "ftp"), path, authority])],
            hello(),
        ),
        row(
            "expect: more",
            [with(&[("expect", "more")])],
            Want::Answer(1, 417, "unknown expectation"),
        ),
        row(
            "trailers with a pseudo field",
            [upload(1), Frame::request(1, encode(&[(":path", "/")]))],
            Want::End(1, code::PROTOCOL_ERROR),
        ),
    ];
    play(&server, &rows);
}

fn upload_of(length: &str) -> Frame {
    let section = [post("/upload"), encode(&[("content-length", length)])];
    Frame::request_with_content(1, section.concat())
}

#[test]
fn connect_has_its_own_fields() {
    let server = start("");
    let connect = (":method", "CONNECT");
    let authority = (":authority", "a.example:443");
    let rest = [
        (":scheme", "http"),
        (":path", "/"),
        (":protocol", "websocket"),
    ];
    let begin = |fields: &[(&str, &str)]| Frame::request_with_content(1, encode(fields));
    let reset = || Want::Reset(1, code::PROTOCOL_ERROR);
    let invalid = || Want::Answer(1, 400, "Invalid CONNECT request");
    let rows = [
        row(
            "CONNECT with :path",
            [begin(&[connect, authority, (":path", "/")])],
            reset(),
        ),
        row(
            "CONNECT with :scheme",
            [begin(&[connect, authority, (":scheme", "http")])],
            reset(),
        ),
        row("CONNECT without :authority", [begin(&[connect])], reset()),
        row(
            "CONNECT without :scheme and :path but :protocol",
            [begin(&[connect, authority, (":protocol", "websocket")])],
            reset(),
        ),
        row(
            "CONNECT with END_STREAM",
            [asking(&[connect, authority])],
            invalid(),
        ),
        row(
            "CONNECT with content-length",
            [begin(&[connect, authority, ("content-length", "0")])],
            invalid(),
        ),
        row(
            "extended CONNECT with END_STREAM",
            [asking(&[connect, rest[0], rest[1], rest[2], authority])],
            invalid(),
        ),
        row(
            "CONNECT where there are only files",
            [begin(&[connect, authority])],
            Want::Answer(1, 405, ""),
        ),
        row(
            "extended CONNECT where there are only files",
            [begin(&[connect, rest[0], rest[1], rest[2], authority])],
            Want::Answer(1, 405, ""),
        ),
        row(
            "CONNECT-UDP with another path",
            [begin(&[
                (":method", "CONNECT-UDP"),
                rest[0],
                (":path", "/a"),
                authority,
            ])],
            reset(),
        ),
    ];
    play(&server, &rows);
}
