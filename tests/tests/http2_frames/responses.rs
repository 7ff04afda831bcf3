//! The frames and fields that make up a response.

use h2o_tests::http2::{Frame, Http2, encode, flag, get, kind, setting};

use super::kit::*;

fn of_stream(connection: &Http2, stream: u32) -> Vec<(u8, usize, bool)> {
    let frames = connection
        .frames
        .iter()
        .filter(|frame| frame.stream == stream);
    frames
        .filter(|frame| frame.kind != kind::WINDOW_UPDATE)
        .map(|frame| {
            let is_end =
                matches!(frame.kind, kind::DATA | kind::HEADERS) && frame.has(flag::END_STREAM);
            (frame.kind, frame.payload.len(), is_end)
        })
        .collect()
}

#[test]
fn responses_are_headers_then_data_with_the_end_on_the_last() {
    let server = start("");
    let mut connection = open(&server);
    let answer = connection.ask(1, &get("/a.txt"));
    let frames = of_stream(&connection, 1);
    let kinds: Vec<_> = frames
        .iter()
        .map(|&(kind, _, is_end)| (kind, is_end))
        .collect();
    assert_eq!(kinds, [(kind::HEADERS, false), (kind::DATA, true)]);
    let names: Vec<_> = answer
        .fields
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(names[..2], [":status", "server"]);
    assert_eq!(names.last(), Some(&"content-length"), "{names:?}");
    assert!(names.contains(&"date"), "{names:?}");
    assert!(!names.contains(&"connection"), "{names:?}");
    let lower = names
        .iter()
        .all(|name| !name.bytes().any(|c| c.is_ascii_uppercase()));
    assert!(lower, "{names:?}");
    assert_eq!(answer.field("content-type"), Some("text/plain"));
    assert_eq!(answer.field("content-length"), Some("5"));

    // The server's encoder uses at most 32 entries of the dynamic table.
    for stream in (3..201).step_by(2) {
        let again = connection.ask(stream, &get("/a.txt"));
        assert_eq!(again.text(), "hello");
        let (entries, size) = connection.decoder().table();
        assert!(
            entries <= 32 && size <= 4096,
            "{entries} entries, {size} bytes"
        );
    }
}

#[test]
fn responses_without_content_end_with_headers() {
    let server = start("");
    let mut connection = open(&server);
    let head = encode(&[
        (":method", "HEAD"),
        (":scheme", "http"),
        (":path", "/large"),
        (":authority", "a.example"),
    ]);
    let etag = connection
        .ask(1, &get("/a.txt"))
        .field("etag")
        .unwrap_or_default()
        .to_owned();
    let unchanged = [get("/a.txt"), encode(&[("if-none-match", &etag)])].concat();
    for (stream, name, section, status, length) in [
        (3, "HEAD", head, 200, Some("1000000")),
        (5, "304", unchanged, 304, None),
        (7, "an empty file", get("/empty.txt"), 200, Some("0")),
    ] {
        let answer = connection.ask(stream, &section);
        assert_eq!(answer.status(), status, "{name}: {answer:?}");
        if length.is_some() {
            assert_eq!(answer.field("content-length"), length, "{name}");
        }
        let frames = of_stream(&connection, stream);
        assert_eq!(frames.len(), 1, "{name}: {frames:?}");
        assert!(frames[0].2, "{name}: {frames:?}");
    }
}

#[test]
fn frames_are_not_longer_than_the_client_takes() {
    let server = start("");
    for (size, largest) in [
        (None, 16_384),
        (Some(16_384), 16_384),
        (Some(20_000), 20_000),
    ] {
        let mut settings = vec![(setting::INITIAL_WINDOW_SIZE, 1 << 24)];
        settings.extend(size.map(|size| (setting::MAX_FRAME_SIZE, size)));
        let mut connection = Http2::open(server.port(), &settings);
        connection.send_frame(&Frame::window_update(0, 1 << 24));
        let answer = connection.ask(1, &get("/large"));
        assert_eq!(answer.body.len(), LARGE);
        let long = connection.ask(3, &get("/long/a.txt"));
        assert_eq!(long.field("x-long").map(str::len), Some(20_000));
        assert_eq!(long.text(), "hello");
        let longest = connection
            .frames
            .iter()
            .map(|frame| frame.payload.len())
            .max();
        assert!(longest <= Some(largest), "{longest:?} for {size:?}");
        // The server does not split content into many small DATA frames.
        let data = connection
            .frames
            .iter()
            .filter(|frame| frame.kind == kind::DATA);
        let count = data.count();
        assert!(count <= 2 * LARGE.div_ceil(16_384), "{count} frames");
    }
}
