//! HPACK: field sections that cannot be decoded, and the dynamic table.

use h2o_tests::http2::{Frame, Indexing, code, encode_integer, encode_with, get};

use super::kit::*;

#[test]
fn corrupt_field_sections_end_the_connection_with_compression_error() {
    let server = start("");
    let mut above_limit = Vec::new();
    encode_integer(&mut above_limit, 0x20, 5, 4097);
    let at_limit = |section: Vec<u8>| {
        let mut sections = Vec::new();
        encode_integer(&mut sections, 0x20, 5, 0);
        encode_integer(&mut sections, 0x20, 5, 4096);
        sections.extend(section);
        sections
    };
    let corrupt: [(&str, Vec<u8>); 10] = [
        ("index 0", vec![0x80]),
        ("an index past both tables", vec![0xff, 0x40]),
        ("a name index past both tables", vec![0x7f, 0x40, 0]),
        (
            "an index that never ends",
            [&[0xff][..], &[0xff; 20]].concat(),
        ),
        ("a table of 4,097 bytes", above_limit),
        ("a change of the table's size after a field", vec![0x20]),
        ("a cut literal", vec![0x40, 5, b'a']),
        (
            "a string longer than its section",
            vec![0, 1, b'a', 0x7f, 0xff, 0xff, 0x7f],
        ),
        (
            "Huffman padding of a whole byte",
            vec![0, 1, b'a', 0x82, 0x07, 0xff],
        ),
        (
            "the end's code in Huffman",
            vec![0, 1, b'a', 0x84, 0xff, 0xff, 0xff, 0xff],
        ),
    ];
    let failures: Vec<_> = corrupt
        .into_iter()
        .filter_map(|(name, section)| {
            let mut connection = open(&server);
            connection.send_frames(&[Frame::request(1, [get("/a.txt"), section].concat())]);
            connection.read_while_waiting(PATIENCE, |connection| connection.is_closed);
            let code = connection.goaway.as_ref().map(|goaway| goaway.code);
            (code != Some(code::COMPRESSION_ERROR))
                .then(|| format!("{name}: {code:?}\n{}", connection.story()))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));

    let mut connection = open(&server);
    let answer = connection.ask(1, &at_limit(get("/a.txt")));
    assert_eq!(answer.text(), "hello");
}

#[test]
fn fields_in_the_dynamic_table_are_remembered() {
    let server = start("");
    let mut connection = open(&server);
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/a.txt"),
        (":authority", "www.example.com"),
    ];
    let first = connection.ask(1, &encode_with(Indexing::Incremental, &fields));
    assert_eq!(first.text(), "hello");
    // References to the four entries just added: the oldest of the four has the highest index.
    for stream in [3, 5] {
        let again = connection.ask(stream, &[0xc1, 0xc0, 0xbf, 0xbe]);
        assert_eq!(again.text(), "hello");
    }
    // A table size update to 0 empties the dynamic table, so the references to its entries are errors.
    connection.send_frames(&[Frame::request(7, [0x20, 0xc1, 0xc0, 0xbf, 0xbe])]);
    connection.read_to_end();
    let code = connection.goaway.map(|goaway| goaway.code);
    assert_eq!(code, Some(code::COMPRESSION_ERROR));
}
