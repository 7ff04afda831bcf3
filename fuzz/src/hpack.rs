//! HPACK (RFC 7541): decoding any bytes, and decoding what the encoder writes.

use h2o_http::{Known, Name, StatusCode, is_token};
use h2o_http2::hpack::{Decoder, Encoder, FieldName, Flaws, HpackError, Pseudo};

/// Cuts the input into parts; the byte before each part is its length.
fn parts(mut input: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = input.split_first()?;
        let (part, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        input = rest;
        Some(part)
    })
}

/// Size of a decoder's dynamic table, as RFC 7541 §4.1 counts it.
fn table_size(decoder: &Decoder) -> usize {
    decoder
        .entries()
        .map(|(name, value)| name.len() + value.len() + 32)
        .sum()
}

/// The input is a series of field blocks for one decoder: the dynamic table stays within its size, and errors are found.
///
/// # Panics
/// If an invariant does not hold.
pub fn hpack_decode(input: &[u8]) {
    let Some((size, blocks)) = input.split_first() else {
        return;
    };
    let size = u32::from(*size) * 16;
    let (mut decoder, mut again) = (Decoder::new(size), Decoder::new(size));
    for block in parts(blocks) {
        let (first, second) = (read(&mut decoder, block), read(&mut again, block));
        assert_eq!(
            first, second,
            "two decoders read the same block differently"
        );
        assert!(table_size(&decoder) <= size as usize);
        assert_eq!(decoder.entries().count(), decoder.len());
        assert!(
            decoder.retained() < 64 << 10,
            "the decoder holds a bounded amount of memory"
        );
        if first.is_err() {
            return;
        }
    }
}

type Fields = Vec<(Vec<u8>, Vec<u8>, Flaws)>;

fn read(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, HpackError> {
    let mut fields = Vec::new();
    decoder.decode(block, |field| {
        let (name, value) = (field.name.as_bytes(), field.value);
        let is_lower = || !name.iter().any(u8::is_ascii_uppercase);
        match field.name {
            FieldName::Pseudo(_) => assert!(name.starts_with(b":")),
            FieldName::Known(_) | FieldName::Other(_) => assert!(is_token(name) && is_lower()),
            FieldName::Invalid(_) => assert!(!(is_token(name) && is_lower())),
        }
        let is_text = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
        let is_plain = value.iter().all(is_text) && value.trim_ascii() == value;
        let is_name = !matches!(field.name, FieldName::Invalid(_));
        assert_eq!(field.flaws.is_none(), is_plain && is_name);
        fields.push((name.to_vec(), value.to_vec(), field.flaws));
        Ok::<(), HpackError>(())
    })?;
    Ok(fields)
}

/// A decoder reads the fields that the encoder has written, and both have the same dynamic table. Each part of the input is a field: a byte
/// that says which kind, then its text.
///
/// # Panics
/// If an invariant does not hold.
pub fn hpack_round_trip(input: &[u8]) {
    let mut encoder = Encoder::new();
    let mut decoder = Decoder::new(4096);
    let (mut block, mut want) = (Vec::new(), Vec::new());
    encoder.begin(&mut block);
    for part in parts(input) {
        let Some((&what, text)) = part.split_first() else {
            check(&encoder, &mut decoder, &mut block, &mut want);
            encoder.begin(&mut block);
            continue;
        };
        if what == 0xff {
            check(&encoder, &mut decoder, &mut block, &mut want);
            encoder.set_peer_table_size(text.iter().map(|byte| u32::from(*byte)).sum());
            encoder.begin(&mut block);
            continue;
        }
        let (name, value) = write(&mut encoder, what, text, &mut block);
        want.push((name, value));
    }
    check(&encoder, &mut decoder, &mut block, &mut want);
}

/// Writes one field, and returns it.
fn write(encoder: &mut Encoder, what: u8, text: &[u8], block: &mut Vec<u8>) -> (String, Vec<u8>) {
    const PSEUDO: [Pseudo; 6] = [
        Pseudo::Authority,
        Pseudo::Method,
        Pseudo::Path,
        Pseudo::Protocol,
        Pseudo::Scheme,
        Pseudo::Status,
    ];
    const KNOWN: [Known; 8] = [
        Known::Cookie,
        Known::SetCookie,
        Known::ContentLength,
        Known::Date,
        Known::Host,
        Known::Te,
        Known::Accept,
        Known::Via,
    ];
    let which = usize::from(what / 8);
    // The names consist of few different letters, so that some are repeated.
    let other: String = text
        .iter()
        .take(which)
        .map(|byte| char::from(b"abcxyz-0"[usize::from(byte % 8)]))
        .collect();
    match what % 8 {
        0 => {
            let pseudo = PSEUDO[which % PSEUDO.len()];
            encoder.pseudo(pseudo, text, block);
            (pseudo.as_str().to_owned(), text.to_vec())
        }
        1 => {
            let code = text.iter().map(|byte| u16::from(*byte)).sum();
            let status = StatusCode::new(code).unwrap_or(StatusCode::OK);
            encoder.status(status, block);
            (":status".to_owned(), status.digits().to_vec())
        }
        2 | 3 => {
            let known = KNOWN[which % KNOWN.len()];
            encoder.field(Name::Known(known), text, block);
            (known.as_str().to_owned(), text.to_vec())
        }
        4 => {
            let known = KNOWN[which % KNOWN.len()];
            encoder.never_indexed(Name::Known(known), text, block);
            (known.as_str().to_owned(), text.to_vec())
        }
        // A long value evicts other entries from the dynamic table.
        5 => {
            let value = text.repeat(20);
            encoder.field(Name::from_lower("x-long"), &value, block);
            ("x-long".to_owned(), value)
        }
        _ => {
            let name = if other.is_empty() { "x" } else { &other };
            let value = text.get(which..).unwrap_or_default();
            encoder.field(Name::from_lower(name), value, block);
            (name.to_owned(), value.to_vec())
        }
    }
}

fn check(
    encoder: &Encoder,
    decoder: &mut Decoder,
    block: &mut Vec<u8>,
    want: &mut Vec<(String, Vec<u8>)>,
) {
    let mut got = Vec::new();
    let read = decoder.decode(block, |field| {
        let name = String::from_utf8(field.name.as_bytes().to_vec()).expect("ASCII");
        got.push((name, field.value.to_vec()));
        Ok::<(), HpackError>(())
    });
    assert_eq!(read, Ok(()));
    assert_eq!(&got, want);
    // The encoder does not store the names of entries with a static name, so only values are compared.
    let theirs: Vec<_> = decoder.entries().map(|(_, value)| value).collect();
    let ours: Vec<_> = encoder.entries().map(|(_, value)| value).collect();
    assert!(
        theirs.starts_with(&ours),
        "the tables of encoder and decoder differ"
    );
    block.clear();
    want.clear();
}
