//! Tests of QPACK against the examples of RFC 9204, and against an independent implementation that panics at anything that
//! the RFC forbids.

use h2o_http::{Known, Name, StatusCode};
use h2o_testkit::http3 as other;
use h2o_testkit::http3::instruction;
use h2o_testkit::{Random, run_seeds};

use super::static_table::FIELDS;
use super::{Decoded, DecodedField, Decoder, Encoder, Pseudo, QpackError};
use crate::stream_id::StreamId;

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fn id(number: u64) -> StreamId {
    StreamId::new(number)
}

/// Decodes a section. Returns its fields, and what the decoder tells the peer's encoder; `Err(None)` if the section has to
/// wait.
fn decode(
    decoder: &mut Decoder,
    stream: u64,
    section: &[u8],
) -> Result<(Fields, Vec<u8>), Option<QpackError>> {
    let (mut fields, mut out) = (Vec::new(), Vec::new());
    let decoded = decoder.decode(id(stream), section, &mut out, |field: DecodedField<'_>| {
        fields.push((field.name.as_bytes().to_vec(), field.value.to_vec()));
        Ok::<(), QpackError>(())
    });
    match decoded.map_err(Some)? {
        Decoded::Done => Ok((fields, out)),
        Decoded::Blocked(_) => {
            assert!(fields.is_empty() && out.is_empty());
            Err(None)
        }
    }
}

fn follow(decoder: &mut Decoder, instructions: &[u8]) -> Result<Vec<u8>, QpackError> {
    let mut out = Vec::new();
    decoder.receive(instructions, &mut out)?;
    Ok(out)
}

fn fields(list: &[(&str, &str)]) -> Fields {
    let list = list.iter();
    list.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}

#[test]
fn the_examples_of_rfc_9204_appendix_b() {
    let mut decoder = Decoder::new(220);
    // Example B.1 of RFC 9204.
    let got = decode(&mut decoder, 0, b"\0\0\x51\x0b/index.html");
    assert_eq!(got, Ok((fields(&[(":path", "/index.html")]), vec![])));
    // Example B.2 of RFC 9204: the section waits for the instructions.
    let section = b"\x03\x81\x10\x11";
    assert_eq!(decode(&mut decoder, 4, section), Err(None));
    let instructions = b"\x3f\xbd\x01\xc0\x0fwww.example.com\xc1\x0c/sample/path";
    assert_eq!(follow(&mut decoder, instructions), Ok(vec![2]));
    let want = fields(&[(":authority", "www.example.com"), (":path", "/sample/path")]);
    assert_eq!(decode(&mut decoder, 4, section), Ok((want, vec![0x84])));
    // Example B.3 of RFC 9204.
    let got = follow(&mut decoder, b"\x4a\x63ustom-key\x0c\x63ustom-value");
    assert_eq!(got, Ok(vec![0x01]));
    // Example B.4 of RFC 9204.
    let section = b"\x05\x00\x80\xc1\x81";
    assert_eq!(decode(&mut decoder, 8, section), Err(None));
    let mut cancelled = Vec::new();
    decoder.cancel(id(8), &mut cancelled);
    assert_eq!(cancelled, [0x48]);
    assert_eq!(follow(&mut decoder, b"\x02"), Ok(vec![0x01]));
    let want = fields(&[
        (":authority", "www.example.com"),
        (":path", "/"),
        ("custom-key", "custom-value"),
    ]);
    assert_eq!(decode(&mut decoder, 8, section), Ok((want, vec![0x88])));
    // Example B.5 of RFC 9204: the insertion evicts the oldest entry.
    assert_eq!(decoder.len(), 4);
    let got = follow(&mut decoder, b"\x81\x0d\x63ustom-value2");
    assert_eq!(got, Ok(vec![0x01]));
    assert_eq!((decoder.len(), decoder.inserted()), (4, 5));
    let want = fields(&[("custom-key", "custom-value2")]);
    let got = decode(&mut decoder, 12, b"\x06\x00\x80");
    assert_eq!(got, Ok((want, vec![0x8c])));
}

#[test]
fn the_static_table_is_that_of_another_implementation() {
    for (index, (entry, want)) in FIELDS.iter().zip(other::STATIC).enumerate() {
        let name = str::from_utf8(entry.name()).expect("the bytes are UTF-8");
        assert_eq!((name, entry.value), want, "entry {index}");
    }
}

#[test]
fn every_form_of_a_field_line_is_read() {
    let mut decoder = Decoder::new(4096);
    let table = [
        instruction::capacity(4096),
        instruction::insert(b"x-a", b"1"),
        instruction::insert(b"x-b", b"2"),
        instruction::insert_static(92, b"h2o"),
        instruction::insert_named(2, b"3"),
        instruction::duplicate(2),
    ]
    .concat();
    assert_eq!(follow(&mut decoder, &table), Ok(vec![5]));
    // The base is 2: the entries 0 and 1 are before it, the entries 2 to 4 after it.
    let prefix = other::section_prefix(4096, 5, 2);
    type Case<'a> = (&'a str, &'a [u8], (&'a str, &'a str), bool);
    let cases: &[Case<'_>] = &[
        ("indexed, static", b"\xd9", (":status", "200"), false),
        ("indexed, static, long", b"\xff\x1d", ("server", ""), false),
        ("indexed, dynamic", b"\x80", ("x-b", "2"), false),
        ("indexed, dynamic, older", b"\x81", ("x-a", "1"), false),
        (
            "indexed, behind the base",
            b"\x10",
            ("server", "h2o"),
            false,
        ),
        (
            "inserted with a name of the table",
            b"\x11",
            ("x-a", "3"),
            false,
        ),
        ("a duplicate", b"\x12", ("x-b", "2"), false),
        ("static name", b"\x56\x01v", ("date", "v"), false),
        (
            "static name, never indexed",
            b"\x75\x01v",
            ("cookie", "v"),
            true,
        ),
        ("dynamic name", b"\x41\x01v", ("x-a", "v"), false),
        (
            "dynamic name, never indexed",
            b"\x60\x01v",
            ("x-b", "v"),
            true,
        ),
        ("name behind the base", b"\x00\x01v", ("server", "v"), false),
        (
            "name behind the base, never indexed",
            b"\x09\x01v",
            ("x-a", "v"),
            true,
        ),
        ("literal name", b"\x23x-c\x01v", ("x-c", "v"), false),
        (
            "literal name, never indexed",
            b"\x33x-c\x01v",
            ("x-c", "v"),
            true,
        ),
        (
            "Huffman code",
            b"\x2a\xf2\xb4\x82\x1c\x64",
            ("x-a", "ab"),
            false,
        ),
    ];
    for (what, line, (name, value), never_indexed) in cases {
        let mut prefixed = prefix.clone();
        prefixed.extend_from_slice(line);
        if *what == "Huffman code" {
            // The Huffman codes of `x-a` and `ab`, made by the encoder of strings.
            prefixed.truncate(prefix.len());
            h2o_http::string_literal::encode(0x20, 3, b"x-a", &mut prefixed);
            h2o_http::string_literal::encode(0, 7, b"ab", &mut prefixed);
        }
        let mut out = Vec::new();
        let mut seen = 0;
        let got = decoder.decode(id(0), &prefixed, &mut out, |field| {
            assert_eq!(field.name.as_bytes(), name.as_bytes(), "{what}");
            assert_eq!(field.value, value.as_bytes(), "{what}");
            assert_eq!(field.never_indexed, *never_indexed, "{what}");
            assert!(field.flaws.is_none(), "{what}");
            seen += 1;
            Ok::<(), QpackError>(())
        });
        assert_eq!((got, seen), (Ok(Decoded::Done), 1), "{what}");
        assert_eq!(out, [0x80], "{what} is acknowledged");
    }
}

#[test]
fn sections_that_cannot_be_are_refused() {
    let cases: &[(&str, &[u8])] = &[
        ("a section without bytes", b""),
        ("half a prefix", b"\0"),
        ("static index 99", b"\0\0\xff\x24"),
        ("name of static index 99", b"\0\0\x5f\x54\x01v"),
        ("dynamic index without insertions", b"\0\0\x80"),
        ("dynamic name without insertions", b"\0\0\x40\x01v"),
        ("index behind the base without insertions", b"\0\0\x10"),
        ("name behind the base without insertions", b"\0\0\x00\x01v"),
        ("an index that is cut off", b"\0\0\xff"),
        ("a value that is cut off", b"\0\0\x51\x05/a"),
        ("a name that is cut off", b"\0\0\x25ab"),
        ("an invalid Huffman code", b"\0\0\x51\x81\x00"),
        ("a negative base", b"\x02\x81"),
        ("more insertions than the table has entries", b"\xff\x03\0"),
        ("a relative index below the first insertion", b"\x02\0\x81"),
        (
            "an index that is not below the Required Insert Count",
            b"\x02\x01\x80",
        ),
        ("an entry that was evicted", b"\x02\0\x80"),
        ("a number without end", b"\0\0\xff\xff\xff\xff\xff\xff\xff"),
    ];
    for (what, section) in cases {
        let mut decoder = Decoder::new(4096);
        // The table has room for one of these entries, so that the first is evicted.
        let table = [
            instruction::capacity(64),
            instruction::insert(b"x-a", b"1"),
            instruction::insert(b"x-b", b"2"),
        ];
        assert_eq!(follow(&mut decoder, &table.concat()), Ok(vec![2]));
        let got = decode(&mut decoder, 0, section);
        assert_eq!(got, Err(Some(QpackError::Section)), "{what}");
    }
    // Without a table, a section cannot require insertions.
    let got = decode(&mut Decoder::new(0), 0, b"\x01\0");
    assert_eq!(got, Err(Some(QpackError::Section)));
}

#[test]
fn instructions_that_cannot_be_followed_are_refused() {
    let long = instruction::insert(b"x", &[b'v'; 200]);
    let cases: &[(&str, Vec<u8>)] = &[
        (
            "a capacity above the announced maximum",
            instruction::capacity(129),
        ),
        ("an entry larger than the table", long),
        (
            "a duplicate of an entry that does not exist",
            instruction::duplicate(1),
        ),
        (
            "the name of an entry that does not exist",
            instruction::insert_named(1, b"v"),
        ),
        (
            "a name of static index 99",
            instruction::insert_static(99, b"v"),
        ),
        ("an invalid Huffman code", b"\x41\x78\x81\x00".to_vec()),
        ("a number without end", vec![0xff; 12]),
        (
            "a length without end",
            [vec![0x41, b'x'], vec![0xff; 12]].concat(),
        ),
        (
            "a value longer than the table",
            [vec![0x41, b'x', 0x7f, 0xff, 0x7f], vec![b'v'; 600]].concat(),
        ),
    ];
    for (what, instructions) in cases {
        for piece in [1, 2, usize::MAX] {
            let mut decoder = Decoder::new(128);
            let begin = [instruction::capacity(128), instruction::insert(b"x", b"1")];
            assert_eq!(follow(&mut decoder, &begin.concat()), Ok(vec![1]));
            let pieces = instructions.chunks(piece.min(instructions.len()));
            let got: Result<Vec<_>, _> = pieces.map(|piece| follow(&mut decoder, piece)).collect();
            assert_eq!(got, Err(QpackError::EncoderStream), "{what}");
            assert!(
                decoder.retained() < 4096,
                "{what}: the decoder holds a bounded amount of memory"
            );
        }
    }
}

#[test]
fn instructions_are_followed_however_they_are_cut() {
    let value = vec![b'v'; 100];
    let instructions = [
        instruction::capacity(1024),
        instruction::insert(b"x-a", &value),
        instruction::insert_static(5, b"a=b"),
        instruction::insert_named(1, b""),
        instruction::duplicate(0),
        instruction::capacity(0),
        instruction::capacity(500),
        instruction::insert(b"", b""),
    ]
    .concat();
    let mut whole = Decoder::new(4096);
    assert_eq!(follow(&mut whole, &instructions), Ok(vec![5]));
    assert_eq!((whole.len(), whole.inserted()), (1, 5));
    for piece in 1..instructions.len() {
        let mut decoder = Decoder::new(4096);
        let mut reported = 0;
        for piece in instructions.chunks(piece) {
            let out = follow(&mut decoder, piece).expect("the instructions are valid");
            reported += out.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        }
        assert_eq!((decoder.len(), decoder.inserted(), reported), (1, 5, 5));
    }
}

#[test]
fn insertions_required_are_counted_around() {
    // The table has four entries at most, so that the encoded number of required insertions repeats after eight insertions.
    let capacity = 128;
    let mut decoder = Decoder::new(capacity);
    assert_eq!(
        follow(&mut decoder, &instruction::capacity(128)),
        Ok(vec![])
    );
    for count in 1..100_usize {
        let prefix = other::section_prefix(128, count, count);
        let section = [prefix, vec![0x80]].concat();
        assert_eq!(
            decode(&mut decoder, 0, &section),
            Err(None),
            "insertion {count} has not arrived"
        );
        let value = count.to_string();
        let insertion = instruction::insert(b"", value.as_bytes());
        assert_eq!(follow(&mut decoder, &insertion), Ok(vec![1]));
        let (got, told) = decode(&mut decoder, 0, &section)
            .expect("the section refers only to entries that the decoder has");
        assert_eq!((got, told), (fields(&[("", &value)]), vec![0x80]));
    }
}

/// A field as the tests of the encoder write it.
#[derive(Clone, Debug)]
enum Written {
    Status(u16),
    Pseudo(Pseudo, String),
    Field(Name<'static>, String),
}

impl Written {
    fn random(random: &mut Random) -> Self {
        const NAMES: [Name<'static>; 8] = [
            Name::Known(Known::Server),
            Name::Known(Known::Date),
            Name::Known(Known::Etag),
            Name::Known(Known::Cookie),
            Name::Known(Known::ContentLength),
            Name::Known(Known::XFrameOptions),
            Name::Other("x-request-id"),
            Name::Other("timing-allow-origin"),
        ];
        let value = match random.below(4) {
            0 => "deny".to_owned(),
            1 => "v".repeat(random.below(60)),
            2 => format!("value {}", random.below(5)),
            _ => format!("{} bytes \u{e4}", random.below(1000)),
        };
        match random.below(10) {
            0 => Self::Status([200, 404, 418, 999][random.below(4)]),
            1 => Self::Pseudo([Pseudo::Path, Pseudo::Authority][random.below(2)], value),
            _ => Self::Field(NAMES[random.below(NAMES.len())], value),
        }
    }

    fn field(&self) -> (Vec<u8>, Vec<u8>) {
        let (name, value) = match self {
            Self::Status(status) => (":status", status.to_string()),
            Self::Pseudo(pseudo, value) => (pseudo.as_str(), value.clone()),
            Self::Field(name, value) => (name.as_str(), value.clone()),
        };
        (name.as_bytes().to_vec(), value.into_bytes())
    }
}

/// An encoder, and the independent decoder that reads what it writes.
struct Pair {
    encoder: Encoder,
    peer: other::Decoder,
    instructions: Vec<u8>,
    /// Acknowledgements that the encoder has not received yet, each with its stream.
    under_way: Vec<(u64, Vec<u8>)>,
    bytes: usize,
}

impl Pair {
    fn new(limit: u32, announced: u64) -> Self {
        let mut encoder = Encoder::new(limit);
        encoder.set_peer_capacity(announced);
        Self {
            encoder,
            peer: other::Decoder::new(
                usize::try_from(announced).expect("the capacity fits into a usize"),
            ),
            instructions: Vec::new(),
            under_way: Vec::new(),
            bytes: 0,
        }
    }

    fn section(&mut self, stream: u64, fields: &[Written]) -> Vec<u8> {
        let mut out = b"before".to_vec();
        let mut section = self.encoder.section(&mut out, Some(&mut self.instructions));
        for field in fields {
            match field {
                Written::Status(status) => {
                    section.status(
                        StatusCode::new(*status).expect("the number is a valid status code"),
                    );
                }
                Written::Pseudo(pseudo, value) => section.pseudo(*pseudo, value.as_bytes()),
                Written::Field(name, value) => section.field(*name, value.as_bytes()),
            }
        }
        section.finish(id(stream));
        assert!(out.starts_with(b"before"));
        let section = out.split_off(6);
        self.bytes += section.len();
        section
    }

    /// Passes a section to the peer, before or after the instructions that were written with it (`is_first`), and checks
    /// its fields.
    fn reads(&mut self, stream: u64, section: &[u8], want: &[Written], is_first: bool) {
        if !is_first {
            self.gets_instructions(stream);
        }
        let decoded = self.peer.decode(stream, section);
        let (got, is_acknowledged) =
            decoded.expect("the decoder has all entries that the section refers to");
        let want: Fields = want.iter().map(Written::field).collect();
        assert_eq!(got, want);
        if is_acknowledged {
            let number = usize::try_from(stream).expect("the stream id fits into a usize");
            self.under_way
                .push((stream, instruction::acknowledge(number)));
        }
        self.gets_instructions(stream);
    }

    fn gets_instructions(&mut self, stream: u64) {
        self.bytes += self.instructions.len();
        let new = self.peer.follow(&std::mem::take(&mut self.instructions));
        if new > 0 {
            self.under_way.push((stream, instruction::increment(new)));
        }
    }

    /// Passes the oldest acknowledgement to the encoder.
    fn acknowledges(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let (stream, told) = self.under_way.remove(0);
        if told[0] >= 0x80 {
            self.peer.acknowledged(stream);
        }
        for byte in told {
            assert_eq!(self.encoder.receive(&[byte]), Ok(()));
        }
    }
}

#[test]
fn what_the_encoder_writes_another_decoder_reads() {
    run_seeds(60, |seed| {
        let mut random = Random::new(seed);
        let limit = [0, 64, 100, 500, 4096, 16_384][random.below(6)];
        let announced = [0, 32, 100, 4096, 70_000, 1 << 30][random.below(6)];
        let mut pair = Pair::new(limit, announced);
        let delay = random.below(20);
        for round in 0..200_u64 {
            let count = random.below(12);
            let list: Vec<_> = (0..count).map(|_| Written::random(&mut random)).collect();
            let section = pair.section(4 * round, &list);
            pair.reads(4 * round, &section, &list, random.below(2) == 0);
            while pair.under_way.len() > delay {
                pair.acknowledges();
            }
        }
        while !pair.under_way.is_empty() {
            pair.acknowledges();
        }
        assert_eq!(pair.encoder.outstanding(), 0);
        let inserted = usize::try_from(pair.encoder.inserted());
        assert_eq!(inserted, Ok(pair.peer.inserted()));
        let (_, size) = pair.peer.table();
        assert!(size <= limit as usize);
        assert!(pair.encoder.retained() < 4 * limit as usize + 16_384);
        (1, 1)
    });
}

#[test]
fn fields_that_come_again_shrink_to_indices() {
    let mut pair = Pair::new(16_384, 16_384);
    let list = [
        Written::Status(200),
        Written::Field(Name::Known(Known::Server), "h2o".into()),
        Written::Field(Name::Known(Known::LastModified), "Sun, 06 Nov 1994".into()),
        Written::Field(Name::Other("x-a"), "some value".into()),
    ];
    let mut lens = Vec::new();
    for round in 0..5 {
        let section = pair.section(4 * round, &list);
        pair.reads(4 * round, &section, &list, true);
        lens.push((section.len(), pair.encoder.inserted()));
        while !pair.under_way.is_empty() {
            pair.acknowledges();
        }
    }
    let (first, _) = lens[0];
    // The first section has the fields as text. With the second one, the encoder inserts them into the table, to which the later
    // sections refer.
    assert_eq!(lens, [(first, 0), (first, 3), (6, 3), (6, 3), (6, 3)]);
}

#[test]
fn fields_that_do_not_come_again_are_never_inserted() {
    let mut pair = Pair::new(16_384, 16_384);
    for round in 0..2000_u64 {
        let value = format!("value {round}");
        let list = [
            Written::Field(Name::Known(Known::Etag), value.clone()),
            Written::Field(Name::Other("x-request-id"), value),
            // These fields are in each section, but are never worth an entry.
            Written::Field(Name::Known(Known::ContentLength), "1024".into()),
            Written::Pseudo(Pseudo::Path, "/assets/app.css".into()),
            Written::Field(Name::Known(Known::Cookie), "a=b".into()),
        ];
        let section = pair.section(4 * round, &list);
        pair.reads(4 * round, &section, &list, true);
    }
    assert_eq!(pair.encoder.inserted(), 0);
    assert_eq!(
        pair.instructions, b"",
        "no instruction is sent, not even the capacity"
    );
}

#[test]
fn a_peer_that_acknowledges_nothing_gets_text() {
    let mut pair = Pair::new(16_384, 16_384);
    let list = [Written::Field(
        Name::Known(Known::Server),
        "a server".into(),
    )];
    for round in 0..3 {
        pair.section(4 * round, &list);
    }
    assert_eq!(pair.encoder.receive(&instruction::increment(1)), Ok(()));
    // The number of unacknowledged sections that the encoder remembers is limited.
    for round in 3..2000 {
        pair.section(4 * round, &list);
    }
    assert_eq!(pair.encoder.outstanding(), 256);
    let text = pair.section(9000, &list);
    assert!(text.starts_with(&[0, 0]) && text.len() > 4, "{text:?}");
    // After a section was cancelled, one more section may refer to the table.
    assert_eq!(pair.encoder.receive(&instruction::cancel(16)), Ok(()));
    assert_eq!(pair.section(9004, &list).len(), 3);
    assert_eq!(pair.section(9008, &list), text);
}

#[test]
fn acknowledgements_of_nothing_are_refused() {
    let cases: &[(&str, Vec<u8>, bool)] = &[
        (
            "an Insert Count Increment of 0",
            instruction::increment(0),
            false,
        ),
        (
            "an Insert Count Increment above the number of insertions",
            instruction::increment(2),
            false,
        ),
        (
            "an Insert Count Increment of 1 after one insertion",
            instruction::increment(1),
            true,
        ),
        (
            "an acknowledgement of a section without table entries",
            instruction::acknowledge(0),
            false,
        ),
        (
            "an acknowledgement of a stream that never had a section",
            instruction::acknowledge(400),
            false,
        ),
        ("a cancellation of a stream", instruction::cancel(0), true),
        (
            "a cancellation of a stream that never had a section",
            instruction::cancel(1 << 40),
            true,
        ),
        ("a number without end", vec![0xff; 12], false),
    ];
    for (what, told, is_right) in cases {
        let mut pair = Pair::new(4096, 4096);
        let list = [Written::Field(
            Name::Known(Known::Server),
            "a server".into(),
        )];
        pair.section(0, &list);
        pair.section(4, &list);
        assert_eq!(pair.encoder.inserted(), 1);
        let got = pair.encoder.receive(told);
        let want = if *is_right {
            Ok(())
        } else {
            Err(QpackError::DecoderStream)
        };
        assert_eq!(got, want, "{what}");
        let mut cut = Pair::new(4096, 4096);
        cut.section(0, &list);
        cut.section(4, &list);
        let got: Result<(), _> = told
            .iter()
            .try_for_each(|byte| cut.encoder.receive(&[*byte]));
        assert_eq!(got, want, "{what}, byte by byte");
    }
}

#[test]
fn without_room_on_the_encoder_stream_nothing_is_inserted() {
    let mut encoder = Encoder::new(4096);
    encoder.set_peer_capacity(4096);
    for _ in 0..3 {
        let mut out = Vec::new();
        let mut section = encoder.section(&mut out, None);
        section.field(Name::Known(Known::Server), b"a server");
        section.finish(id(0));
    }
    assert_eq!(encoder.inserted(), 0);
}

#[test]
fn the_path_is_found_wherever_it_stands() {
    let mut encoder = Encoder::new(0);
    let mut out = Vec::new();
    let mut section = encoder.section(&mut out, None);
    section.pseudo(Pseudo::Method, b"GET");
    section.field(Name::Other("x-a"), b"a value");
    section.field(Name::Known(Known::Cookie), b"a=b");
    section.pseudo(Pseudo::Path, b"/some/path");
    section.field(Name::Known(Known::Accept), b"*/*");
    section.finish(id(0));
    let range = super::path_string(&out).expect("the section has a path as a string literal");
    let mut scratch = Vec::new();
    let (text, rest) = h2o_http::string_literal::decode(&out[range.clone()], 7, &mut scratch)
        .expect("the string literal is valid");
    assert_eq!((text.bytes(&scratch), rest), (&b"/some/path"[..], &b""[..]));
    assert_eq!(super::path_string(&out[..range.start - 1]), None);
    assert_eq!(
        super::path_string(b"\0\0\xd1\xd7\xc1"),
        None,
        "a path that is an index of the table is no string literal"
    );
    assert_eq!(super::path_string(b""), None);
}
