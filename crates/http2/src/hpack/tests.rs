//! Tests of both directions of HPACK: the examples of RFC 7541 Appendix C, malformed blocks, limits, and random fields.

use h2o_http::{Known, Name, StatusCode};

use super::*;

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |byte: u8| u8::try_from(char::from(byte).to_digit(16).unwrap()).unwrap();
    digits
        .chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

/// Parses a list of fields with one field per line, as Appendix C of RFC 7541 prints it.
fn listed(text: &str) -> Fields {
    let field = |line: &str| {
        let at = 1 + line[1..].find(": ").unwrap();
        (line[..at].into(), line[at + 2..].into())
    };
    text.lines().map(str::trim).map(field).collect()
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, HpackError> {
    let mut fields = Fields::new();
    decoder.decode(block, |field| {
        fields.push((field.name.as_bytes().to_vec(), field.value.to_vec()));
        Ok::<(), HpackError>(())
    })?;
    Ok(fields)
}

fn table(decoder: &Decoder) -> Fields {
    let owned = |(name, value): (&[u8], &[u8])| (name.to_vec(), value.to_vec());
    decoder.entries().map(owned).collect()
}

/// An example: a block, the fields that it encodes, and the dynamic table after it.
type Example = (&'static str, &'static str, &'static str);

const REQUEST_1: &str = ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com";
const REQUEST_2: &str = ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\n\
    cache-control: no-cache";
const REQUEST_3: &str = ":method: GET\n:scheme: https\n:path: /index.html\n\
    :authority: www.example.com\ncustom-key: custom-value";
const REQUEST_TABLE_1: &str = ":authority: www.example.com";
const REQUEST_TABLE_2: &str = "cache-control: no-cache\n:authority: www.example.com";
const REQUEST_TABLE_3: &str =
    "custom-key: custom-value\ncache-control: no-cache\n:authority: www.example.com";

const C_3: &[Example] = &[
    (
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        REQUEST_1,
        REQUEST_TABLE_1,
    ),
    (
        "8286 84be 5808 6e6f 2d63 6163 6865",
        REQUEST_2,
        REQUEST_TABLE_2,
    ),
    (
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        REQUEST_3,
        REQUEST_TABLE_3,
    ),
];
const C_4: &[Example] = &[
    (
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        REQUEST_1,
        REQUEST_TABLE_1,
    ),
    ("8286 84be 5886 a8eb 1064 9cbf", REQUEST_2, REQUEST_TABLE_2),
    (
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        REQUEST_3,
        REQUEST_TABLE_3,
    ),
];

const RESPONSE_1: &str = ":status: 302\ncache-control: private\n\
    date: Mon, 21 Oct 2013 20:13:21 GMT\nlocation: https://www.example.com";
const RESPONSE_2: &str = ":status: 307\ncache-control: private\n\
    date: Mon, 21 Oct 2013 20:13:21 GMT\nlocation: https://www.example.com";
const RESPONSE_3: &str = ":status: 200\ncache-control: private\n\
    date: Mon, 21 Oct 2013 20:13:22 GMT\nlocation: https://www.example.com\n\
    content-encoding: gzip\n\
    set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
const RESPONSE_TABLE_1: &str = "location: https://www.example.com\n\
    date: Mon, 21 Oct 2013 20:13:21 GMT\ncache-control: private\n:status: 302";
const RESPONSE_TABLE_2: &str = ":status: 307\nlocation: https://www.example.com\n\
    date: Mon, 21 Oct 2013 20:13:21 GMT\ncache-control: private";
const RESPONSE_TABLE_3: &str = "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1\n\
    content-encoding: gzip\ndate: Mon, 21 Oct 2013 20:13:22 GMT";

const C_5: &[Example] = &[
    (
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133
         2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70
         6c65 2e63 6f6d",
        RESPONSE_1,
        RESPONSE_TABLE_1,
    ),
    ("4803 3330 37c1 c0bf", RESPONSE_2, RESPONSE_TABLE_2),
    (
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d
         54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049
         5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e
         3d31",
        RESPONSE_3,
        RESPONSE_TABLE_3,
    ),
];
const C_6: &[Example] = &[
    (
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6
         2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        RESPONSE_1,
        RESPONSE_TABLE_1,
    ),
    ("4883 640e ffc1 c0bf", RESPONSE_2, RESPONSE_TABLE_2),
    (
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab
         77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f
         9587 3160 65c0 03ed 4ee5 b106 3d50 07",
        RESPONSE_3,
        RESPONSE_TABLE_3,
    ),
];

#[test]
fn single_fields_of_appendix_c_2_decode() {
    let cases = [
        (
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            "custom-key: custom-header",
            (1, false),
        ),
        (
            "040c 2f73 616d 706c 652f 7061 7468",
            ":path: /sample/path",
            (0, false),
        ),
        (
            "1008 7061 7373 776f 7264 0673 6563 7265 74",
            "password: secret",
            (0, true),
        ),
        ("82", ":method: GET", (0, false)),
    ];
    for (block, want, (entries, never)) in cases {
        let block = hex(block);
        let mut decoder = Decoder::new(4096);
        let mut count = 0;
        let sunk = decoder.decode(&block, |field| {
            let got = (field.name.as_bytes().to_vec(), field.value.to_vec());
            assert_eq!(vec![got], listed(want));
            assert_eq!(field.never_indexed, never);
            assert!(field.flaws.is_none());
            count += 1;
            Ok::<(), HpackError>(())
        });
        assert_eq!((sunk, count, decoder.len()), (Ok(()), 1, entries));
        for end in 1..block.len() {
            let got = decode(&mut Decoder::new(4096), &block[..end]);
            assert_eq!(got, Err(HpackError::Incomplete));
        }
    }
}

#[test]
fn conversations_of_appendix_c_decode() {
    for (max_size, examples) in [(4096, C_3), (4096, C_4), (256, C_5), (256, C_6)] {
        let mut decoder = Decoder::new(max_size);
        for &(block, fields, entries) in examples {
            assert_eq!(decode(&mut decoder, &hex(block)), Ok(listed(fields)));
            assert_eq!(table(&decoder), listed(entries));
        }
    }
}

#[test]
fn a_block_cut_short_is_an_error_or_ends_between_fields() {
    for (max_size, examples) in [(4096, C_3), (4096, C_4), (256, C_5), (256, C_6)] {
        for nth in 0..examples.len() {
            let block = hex(examples[nth].0);
            let whole = listed(examples[nth].1);
            for end in 0..block.len() {
                let mut decoder = Decoder::new(max_size);
                for (before, ..) in &examples[..nth] {
                    decode(&mut decoder, &hex(before)).unwrap();
                }
                match decode(&mut decoder, &block[..end]) {
                    Ok(fields) => assert!(fields.len() < whole.len() && whole.starts_with(&fields)),
                    Err(error) => assert_eq!(error, HpackError::Incomplete),
                }
            }
        }
    }
}

/// Encodes the fields, each with the call of the encoder that a sender uses for that kind of field.
fn encode(encoder: &mut Encoder, fields: &Fields) -> Vec<u8> {
    let mut out = Vec::new();
    encoder.begin(&mut out);
    for (name, value) in fields {
        let pseudo = match &name[..] {
            b":authority" => Pseudo::Authority,
            b":method" => Pseudo::Method,
            b":path" => Pseudo::Path,
            b":protocol" => Pseudo::Protocol,
            b":scheme" => Pseudo::Scheme,
            b":status" => {
                let code = str::from_utf8(value).unwrap().parse().unwrap();
                encoder.status(StatusCode::new(code).unwrap(), &mut out);
                continue;
            }
            name => {
                let name = Name::from_lower(str::from_utf8(name).unwrap());
                encoder.field(name, value, &mut out);
                continue;
            }
        };
        encoder.pseudo(pseudo, value, &mut out);
    }
    out
}

#[test]
fn conversations_of_appendix_c_encode() {
    let mut encoder = Encoder::new();
    for &(block, fields, entries) in C_4 {
        assert_eq!(encode(&mut encoder, &listed(fields)), hex(block));
        assert!(
            encoder
                .entries()
                .eq(listed(entries).iter().map(|(n, v)| (&n[..], &v[..])))
        );
    }
    let mut encoder = Encoder::new();
    encoder.set_peer_table_size(256);
    // The encoder does not use the Huffman code for the second block, since the code would not be shorter than the text.
    let blocks = [
        hex("3fe1 01").into_iter().chain(hex(C_6[0].0)).collect(),
        hex(C_5[1].0),
        hex(C_6[2].0),
    ];
    for (block, (_, fields, entries)) in blocks.iter().zip(C_6) {
        assert_eq!(encode(&mut encoder, &listed(fields)), *block);
        assert!(
            encoder
                .entries()
                .eq(listed(entries).iter().map(|(n, v)| (&n[..], &v[..])))
        );
    }
}

#[test]
fn broken_blocks_are_refused() {
    let huffman = |error| Err(HpackError::Huffman(error));
    let cases: &[(&str, Result<(), HpackError>)] = &[
        ("", Ok(())),
        // Indices: 0, the last of the static table, the first of an empty dynamic table, and a very large one.
        ("80", Err(HpackError::IndexInvalid)),
        ("bd", Ok(())),
        ("be", Err(HpackError::IndexInvalid)),
        ("ff 80 ff ff ff 0f", Err(HpackError::IndexInvalid)),
        ("ff 81 ff ff ff 0f", Err(HpackError::IntegerTooLarge)),
        ("ff 80 80 80 80 80", Err(HpackError::IntegerTooLarge)),
        ("ff 80 80 80 80", Err(HpackError::Incomplete)),
        ("7d 00", Ok(())),
        ("7e 00", Err(HpackError::IndexInvalid)),
        ("0f 30 00", Err(HpackError::IndexInvalid)),
        ("0f 2e 00", Ok(())),
        // Malformed strings: some are longer than the block, others are not valid Huffman code.
        ("00 01 61", Err(HpackError::Incomplete)),
        ("00 7f ff ff ff ff 07 61", Err(HpackError::Incomplete)),
        ("00 ff ff ff ff ff 07 61", Err(HpackError::Incomplete)),
        ("01 81 ff", huffman(HuffmanError::PaddingTooLong)),
        ("01 81 00", huffman(HuffmanError::PaddingInvalid)),
        ("01 84 ff ff ff ff", huffman(HuffmanError::EndOfString)),
        // A size update may go up to the announced size, several may follow each other, and all must be at the start of a
        // block.
        ("3f e1 1f", Ok(())),
        ("3f e2 1f", Err(HpackError::TableTooLarge)),
        ("20 3f e1 1f 82", Ok(())),
        ("20 3f e2 1f 82", Err(HpackError::TableTooLarge)),
        ("82 20", Err(HpackError::SizeUpdateLate)),
        ("20 82 20", Err(HpackError::SizeUpdateLate)),
        ("3f", Err(HpackError::Incomplete)),
    ];
    for (block, want) in cases {
        let got = decode(&mut Decoder::new(4096), &hex(block)).map(|_| ());
        assert_eq!(got, *want, "{block}");
    }
}

#[test]
fn size_updates_evict_and_hold_for_later_blocks() {
    let mut decoder = Decoder::new(4096);
    decode(&mut decoder, &hex("40 01 61 01 62  40 01 63 01 64")).unwrap();
    assert_eq!(table(&decoder), listed("c: d\na: b"));
    // Each of these entries has 34 bytes: a table of 34 bytes holds one of them, a table of 33 bytes none.
    decode(&mut decoder, &hex("3f 03")).unwrap();
    assert_eq!(table(&decoder), listed("c: d"));
    assert_eq!(decode(&mut decoder, &hex("be")), Ok(listed("c: d")));
    assert_eq!(
        decode(&mut decoder, &hex("bf")),
        Err(HpackError::IndexInvalid)
    );
    // Two size updates in one block: the first empties the table by the size 0, the second raises the size again.
    decode(&mut decoder, &hex("20 3f e1 1f")).unwrap();
    assert!(decoder.is_empty());
    decode(&mut decoder, &hex("40 01 61 01 62  40 01 63 01 64")).unwrap();
    assert_eq!(decoder.len(), 2);
    decode(&mut decoder, &hex("3f 02")).unwrap();
    assert!(decoder.is_empty());
    // A field that is larger than the table is decoded, although it does not enter the table.
    let got = decode(&mut decoder, &hex("40 01 61 01 62"));
    assert_eq!(got, Ok(listed("a: b")));
    assert!(decoder.is_empty());
}

#[test]
fn a_name_may_come_from_the_entry_that_its_field_evicts() {
    let mut decoder = Decoder::new(40);
    decode(&mut decoder, &hex("40 03 782d61 01 31")).unwrap();
    assert_eq!(table(&decoder), listed("x-a: 1"));
    let got = decode(&mut decoder, &hex("7e 02 3232"));
    assert_eq!(got, Ok(listed("x-a: 22")));
    assert_eq!(table(&decoder), listed("x-a: 22"));
}

#[test]
fn flaws_come_again_with_each_use_of_an_entry() {
    // The block has `x-A` with a blank before its value, then the same name with a valid value, `date` with a NUL, an empty
    // name and the name `:x`, each but the empty name followed by a reference to its entry.
    let block =
        hex("40 03 782d41 02 2031  be  7e 01 31  be  61 01 00  be  00 00 00  40 02 3a78 00 be");
    let mut got = Vec::new();
    let sunk = Decoder::new(4096).decode(&block, |field| {
        got.push((field.name.as_bytes().to_vec(), field.flaws));
        Ok::<(), HpackError>(())
    });
    assert_eq!(sunk, Ok(()));
    let upper = Flaws::NAME_UPPER_CASE;
    let want: &[(&[u8], Flaws)] = &[
        (b"x-A", upper.and(Flaws::VALUE_BLANK)),
        (b"x-A", upper.and(Flaws::VALUE_BLANK)),
        (b"x-A", upper),
        (b"x-A", upper),
        (b"date", Flaws::VALUE_CONTROL),
        (b"date", Flaws::VALUE_CONTROL),
        (b"", Flaws::NAME_INVALID),
        (b":", Flaws::NONE),
        (b":", Flaws::NONE),
    ];
    assert!(
        want.iter()
            .copied()
            .eq(got.iter().map(|(n, f)| (&n[..], *f)))
    );
}

#[test]
fn what_the_sink_says_ends_the_decoding() {
    #[derive(Debug, PartialEq)]
    enum Stop {
        Hpack(HpackError),
        Enough,
    }
    impl From<HpackError> for Stop {
        fn from(error: HpackError) -> Self {
            Self::Hpack(error)
        }
    }
    let mut decoder = Decoder::new(4096);
    let mut count = 0;
    let mut sink = |_: DecodedField<'_>| {
        count += 1;
        if count == 2 {
            Err(Stop::Enough)
        } else {
            Ok(())
        }
    };
    assert_eq!(
        decoder.decode(&[0x82, 0x84, 0x80], &mut sink),
        Err(Stop::Enough)
    );
    let hpack = Err(Stop::Hpack(HpackError::IndexInvalid));
    assert_eq!(decoder.decode(&[0x80], &mut sink), hpack);
    assert_eq!(count, 2);
}

fn one(encode: impl FnOnce(&mut Encoder, &mut Vec<u8>)) -> (Vec<u8>, usize) {
    let (mut encoder, mut out) = (Encoder::new(), Vec::new());
    encoder.begin(&mut out);
    encode(&mut encoder, &mut out);
    (out, encoder.len())
}

#[test]
fn each_field_is_written_the_way_that_suits_it() {
    let field = |name: Known, value: &str| {
        one(|encoder, out| encoder.field(name.into(), value.as_bytes(), out))
    };
    let status = |code| one(|e, out| e.status(StatusCode::new(code).unwrap(), out));
    let pseudo = |name, value: &str| one(|e, out| e.pseudo(name, value.as_bytes(), out));
    for (index, code) in (8..).zip([200, 204, 206, 304, 400, 404, 500]) {
        assert_eq!(status(code), (vec![0x80 | index], 0));
    }
    assert_eq!(status(302), (hex("48 82 64 02"), 1));
    assert_eq!(field(Known::ContentLength, "7"), (hex("0f 0d 01 37"), 0));
    // Cookies of 19 bytes are never indexed; those of 20 bytes enter the table.
    for name in [Known::Cookie, Known::SetCookie] {
        let (short, entries) = field(name, &"v".repeat(19));
        assert_eq!((short[0], entries), (0x1f, 0));
        let (long, entries) = field(name, &"v".repeat(20));
        assert_eq!((long[0] & 0xc0, entries), (0x40, 1));
    }
    // A field of exactly half the table's size enters the table, one that is a byte longer does not.
    let half = 2048 - 32 - "vary".len();
    assert_eq!(field(Known::Vary, &"v".repeat(half)).1, 1);
    let (large, entries) = field(Known::Vary, &"v".repeat(half + 1));
    assert_eq!((&large[..2], entries), (&hex("0f 2c")[..], 0));
    // Fields that are entries of the static table.
    assert_eq!(
        field(Known::AcceptEncoding, "gzip, deflate"),
        (vec![0x90], 0)
    );
    assert_eq!(field(Known::Via, ""), (vec![0x80 | 60], 0));
    let cases = [
        (Pseudo::Method, "GET", 2),
        (Pseudo::Method, "POST", 3),
        (Pseudo::Path, "/", 4),
        (Pseudo::Path, "/index.html", 5),
        (Pseudo::Scheme, "http", 6),
        (Pseudo::Scheme, "https", 7),
    ];
    for (name, value, index) in cases {
        assert_eq!(pseudo(name, value), (vec![0x80 | index], 0));
    }
    assert_eq!(pseudo(Pseudo::Path, "/#"), (hex("04 02 2f 23"), 0));
    assert_eq!(pseudo(Pseudo::Authority, "#"), (hex("41 01 23"), 1));
    let (protocol, entries) = pseudo(Pseudo::Protocol, "#");
    assert_eq!((protocol[0], entries), (0x40, 1));
    let never = one(|e, out| e.never_indexed(Known::Date.into(), b"#", out));
    assert_eq!(never, (hex("1f 12 01 23"), 0));
}

#[test]
fn short_cookies_are_never_compressed() {
    // The length of a short cookie on the wire reveals nothing about its text (RFC 7541 §7.1).
    for name in [Known::Cookie, Known::SetCookie] {
        for value in ["a=0000000000000000", "a=~~~~~~~~~~~~~~~~", "a"] {
            let (written, entries) = one(|e, out| e.field(name.into(), value.as_bytes(), out));
            let plain = [&[value.len().try_into().unwrap()][..], value.as_bytes()].concat();
            assert!(written.ends_with(&plain), "{}", written.escape_ascii());
            assert_eq!((written[0] & 0xf0, entries), (0x10, 0));
        }
    }
}

#[test]
fn names_that_the_static_table_lacks_are_found_in_the_dynamic_one() {
    let (out, entries) = one(|encoder, out| {
        for name in [Name::Other("#"), Name::Known(Known::Te)] {
            encoder.field(name, b"#", out);
            encoder.field(name, b"##", out);
            encoder.field(name, b"#", out);
        }
    });
    let want = hex("40 01 23 01 23  7e 02 2323 bf  40 02 7465 01 23  7e 02 2323 bf");
    assert_eq!(out, want);
    assert_eq!(entries, 4);
}

#[test]
fn a_smaller_table_of_the_peer_is_told_once_and_a_larger_one_is_not_used() {
    let (mut encoder, mut out) = (Encoder::new(), Vec::new());
    encoder.set_peer_table_size(65_536);
    encoder.set_peer_table_size(4096);
    encoder.begin(&mut out);
    assert!(out.is_empty());
    for value in [b"#", b"$"] {
        encoder.field(Known::Te.into(), value, &mut out);
    }
    // The table keeps only one of its entries of 35 bytes.
    encoder.set_peer_table_size(69);
    encoder.set_peer_table_size(4096);
    assert_eq!(
        encoder.entries().collect::<Vec<_>>(),
        [(&b"te"[..], &b"$"[..])]
    );
    out.clear();
    encoder.begin(&mut out);
    encoder.begin(&mut out);
    assert_eq!(out, hex("3f 26"));
    encoder.set_peer_table_size(0);
    out.clear();
    encoder.begin(&mut out);
    encoder.field(Known::Date.into(), b"#", &mut out);
    assert_eq!((out, encoder.len()), (hex("20 0f 12 01 23"), 0));
}

#[test]
fn an_encoder_remembers_32_entries() {
    let (mut encoder, mut out) = (Encoder::new(), Vec::new());
    assert_eq!(encoder.retained(), 0);
    let value = |n: u32| n.to_string().into_bytes();
    for n in 0..1000 {
        encoder.field(Known::Via.into(), &value(n), &mut out);
        let newest: Vec<_> = encoder.entries().map(|(_, value)| value.to_vec()).collect();
        let want: Vec<_> = (0..=n).rev().take(32).map(value).collect();
        assert_eq!(newest, want);
    }
    // The 32 newest fields are found in the table; the one before them is not.
    for (age, n) in (968..1000).rev().enumerate() {
        out.clear();
        encoder.field(Known::Via.into(), &value(n), &mut out);
        assert_eq!(out, [0x80 + 62 + u8::try_from(age).unwrap()]);
    }
    out.clear();
    encoder.field(Known::Via.into(), &value(967), &mut out);
    assert_eq!(out[0], 0x40 + 60);
    assert!(encoder.retained() < 2048, "{}", encoder.retained());
}

#[test]
fn validators_enter_the_table_when_they_come_again_soon() {
    let (mut encoder, mut out) = (Encoder::new(), Vec::new());
    let mut write = |value: &str| {
        out.clear();
        encoder.field(Known::Etag.into(), value.as_bytes(), &mut out);
        (out.clone(), encoder.len(), encoder.generation())
    };
    // The first `etag`s are written as literals that enter no table (RFC 7541 §6.2.2), with the name's index 34. The
    // generation changes all the same, since the encoder may write the same field differently the next time.
    let (bytes, entries, generation) = write("1");
    assert_eq!((&bytes[..], entries), (&b"\x0f\x13\x011"[..], 0));
    for value in ["2", "3", "4"] {
        assert_eq!(write(value).1, 0);
    }
    assert_ne!(write("1").2, generation);
    assert_eq!((write("1").0, write("1").1), (vec![0x80 + 62], 1));
    // Only the last four `etag`s are remembered as sent once.
    for value in ["5", "6", "7", "8", "4"] {
        assert_eq!(write(value).1, 1, "{value}");
    }
    assert_eq!(write("8").1, 2);
}

/// A simple generator of random numbers, determined by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let high = self.0 >> 33;
        usize::try_from(high % limit).unwrap()
    }

    fn text(&mut self, bytes: &[u8], max_len: u64) -> Vec<u8> {
        let len = self.below(max_len + 1);
        (0..len)
            .map(|_| bytes[self.below(bytes.len() as u64)])
            .collect()
    }

    fn field(&mut self) -> (Vec<u8>, Vec<u8>) {
        let all: Vec<u8> = (0..=255).collect();
        let mut name = match self.below(10) {
            0 => b":authority".to_vec(),
            1 => b":path".to_vec(),
            2 => b":method".to_vec(),
            3 => {
                return (
                    b":status".to_vec(),
                    (100 + self.below(900)).to_string().into(),
                );
            }
            4..8 => Known::ALL[self.below(Known::ALL.len() as u64)]
                .as_str()
                .into(),
            _ => self.text(b"ab-~", 3),
        };
        if name.is_empty() {
            name.push(b'x');
        }
        let value = match self.below(20) {
            0 => self.text(&all, 5000),
            1..4 => self.text(&all, 100),
            4..8 => b"gzip, deflate".to_vec(),
            _ => self.text(b"01", 4),
        };
        (name, value)
    }
}

#[test]
fn random_fields_come_back_and_both_sides_have_the_same_table() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(4096));
        for block in 0..40 {
            if random.below(8) == 0 {
                encoder.set_peer_table_size(u32::try_from(random.below(6000)).unwrap());
            }
            let count = random.below(20);
            let fields: Fields = (0..count).map(|_| random.field()).collect();
            let bytes = encode(&mut encoder, &fields);
            let got = decode(&mut decoder, &bytes);
            assert_eq!(got, Ok(fields), "seed {seed}, block {block}");
            // The decoder's table may have older entries that the encoder does not remember.
            let theirs: Vec<_> = decoder.entries().collect();
            let ours: Vec<_> = encoder.entries().collect();
            assert!(theirs.starts_with(&ours), "seed {seed}, block {block}");
            assert!(encoder.retained() <= 8192 + 32 * 24 + 64);
            decoder.shrink();
            assert!(decoder.retained() <= 8192 + 128 * 16);
        }
    }
}

#[test]
fn a_hash_of_several_fields_never_makes_one_of_them_another() {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(4096));
    let mut random = Random(1);
    for _ in 0..500 {
        let value = random.text(b"01", 5);
        let name = [
            Name::Known(Known::Etag),
            Name::Other("x-a"),
            Name::Other("x-b"),
        ][random.below(3)];
        let hash = u32::try_from(random.below(3)).unwrap();
        let mut block = Vec::new();
        encoder.begin(&mut block);
        encoder.field_hashed(name, &value, hash, &mut block);
        let want = vec![(name.as_str().into(), value)];
        assert_eq!(decode(&mut decoder, &block), Ok(want));
    }
}

#[test]
fn random_bytes_neither_panic_nor_use_memory() {
    for seed in 0..2000 {
        let mut random = Random(seed);
        let mut decoder = Decoder::new(4096);
        loop {
            // Bytes that insert entries or refer to them are more likely than bytes that end the decoding with an error.
            let block: Vec<u8> = (0..random.below(400))
                .map(|_| match random.below(4) {
                    0 => [0x40, 0x41, 0x7e, 0xbe, 0x00, 0x3f, 0x82, 0x7f][random.below(8)],
                    1 => u8::try_from(random.below(8)).unwrap(),
                    _ => u8::try_from(random.below(256)).unwrap(),
                })
                .collect();
            let result = decode(&mut decoder, &block);
            assert!(
                decoder.retained() <= 8192 + 128 * 16 + 2 * 400 * 8,
                "seed {seed}"
            );
            assert!(decoder.len() <= 128);
            if result.is_err() || random.below(10) == 0 {
                break;
            }
        }
    }
}
