//! Cost of HPACK: field blocks of requests decoded, of responses encoded, when all fields are in the
//! tables and when they are text. Run with `cargo bench -p h2o-http2`; the numbers are medians of many
//! rounds, in nanoseconds per block. With a name and a number of rounds as arguments, only that case is
//! run, for counting instructions.

#![expect(clippy::print_stdout, reason = "the numbers are the output")]

use std::hint::black_box;
use std::time::Instant;

use h2o_http::{Headers, Known, Name, StatusCode};
use h2o_http2::hpack::{DecodedField, Decoder, Encoder, FieldName, HpackError, Pseudo, field_hash};

const PSEUDO: &[(Pseudo, &str)] = &[
    (Pseudo::Method, "GET"),
    (Pseudo::Path, "/assets/app.css?v=3"),
    (Pseudo::Scheme, "https"),
    (Pseudo::Authority, "www.example.com"),
];
const BROWSER: &[(Known, &str)] = &[
    (
        Known::UserAgent,
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/124.0.0.0 \
         Safari/537.36",
    ),
    (Known::Accept, "text/css,*/*;q=0.1"),
    (Known::SecFetchSite, "same-origin"),
    (Known::SecFetchMode, "no-cors"),
    (Known::SecFetchDest, "style"),
    (Known::Referer, "https://www.example.com/"),
    (Known::AcceptEncoding, "gzip, deflate, br, zstd"),
    (Known::AcceptLanguage, "en-GB,en;q=0.9"),
    (
        Known::Cookie,
        "session=0123456789abcdef0123456789abcdef; theme=dark",
    ),
];
const RESPONSE: &[(Known, &str)] = &[
    (Known::Server, "h2o"),
    (Known::Date, "Sun, 06 Nov 1994 08:49:37 GMT"),
    (Known::ContentType, "text/plain"),
    (Known::LastModified, "Sun, 06 Nov 1994 08:49:37 GMT"),
    (Known::Etag, "\"2ebc9b71-400\""),
    (Known::AcceptRanges, "bytes"),
];

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|a| !a.starts_with("--"));
    let only = arguments.next();
    let rounds = arguments.next().and_then(|rounds| rounds.parse().ok());
    let report = |name: &str, work: &mut dyn FnMut()| match (&only, rounds) {
        (Some(only), Some(rounds)) if only == name => (0..rounds).for_each(|_| work()),
        (Some(_), _) => {}
        (None, _) => println!("{name}: {:.0} ns", median(work)),
    };

    let mut first = Vec::new();
    let mut again = Vec::new();
    let mut encoder = Encoder::new();
    encode_request(&mut encoder, &mut first);
    encode_request(&mut encoder, &mut again);

    let mut headers = Headers::new();
    let mut path = Vec::new();
    report("decode-text", &mut || {
        let mut decoder = Decoder::new(4096);
        decode_request(&mut decoder, black_box(&first), &mut headers, &mut path);
    });
    let mut decoder = Decoder::new(4096);
    decode_request(&mut decoder, &first, &mut headers, &mut path);
    report("decode-indexed", &mut || {
        decode_request(&mut decoder, black_box(&again), &mut headers, &mut path);
    });
    let indexed = [0x82, 0x87, 0xbe, 0xbf, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5];
    report("decode-only-indexed", &mut || {
        let sunk = decoder.decode(black_box(&indexed), |field| {
            black_box(field.value.len());
            Ok::<(), HpackError>(())
        });
        assert_eq!(sunk, Ok(()));
    });

    let mut out = Vec::new();
    report("encode-text", &mut || {
        let mut encoder = Encoder::new();
        encode_response(&mut encoder, &mut out);
    });
    let mut encoder = Encoder::new();
    report("encode-indexed", &mut || {
        encode_response(&mut encoder, &mut out);
        black_box(&out);
    });
    let hash = |&(name, value): &(Known, &str)| field_hash(Name::Known(name), value.as_bytes());
    let hashes: Vec<u32> = RESPONSE.iter().map(hash).collect();
    report("encode-hashed", &mut || {
        out.clear();
        encoder.begin(&mut out);
        encoder.status(StatusCode::OK, &mut out);
        for (&(name, value), &hash) in black_box(RESPONSE).iter().zip(&hashes) {
            encoder.field_hashed(Name::Known(name), value.as_bytes(), hash, &mut out);
        }
        black_box(&out);
    });
}

fn encode_request(encoder: &mut Encoder, out: &mut Vec<u8>) {
    out.clear();
    encoder.begin(out);
    for &(name, value) in PSEUDO {
        encoder.pseudo(name, value.as_bytes(), out);
    }
    for &(name, value) in BROWSER {
        encoder.field(Name::Known(name), value.as_bytes(), out);
    }
}

fn encode_response(encoder: &mut Encoder, out: &mut Vec<u8>) {
    out.clear();
    encoder.begin(out);
    encoder.status(StatusCode::OK, out);
    for &(name, value) in black_box(RESPONSE) {
        encoder.field(Name::Known(name), value.as_bytes(), out);
    }
}

fn decode_request(decoder: &mut Decoder, block: &[u8], headers: &mut Headers, path: &mut Vec<u8>) {
    headers.clear();
    let sunk = decoder.decode(block, |field: DecodedField<'_>| {
        assert!(field.flaws.is_none());
        match field.name {
            FieldName::Pseudo(Pseudo::Path) => {
                path.clear();
                path.extend_from_slice(field.value);
            }
            FieldName::Pseudo(pseudo) => _ = black_box((pseudo, field.value)),
            FieldName::Known(known) => headers.push(known, field.value),
            FieldName::Other(name) => headers.push(Name::Other(name), field.value),
            FieldName::Invalid(_) => {}
        }
        Ok::<(), HpackError>(())
    });
    assert_eq!(sunk, Ok(()));
    black_box(&headers);
}

fn median(work: &mut dyn FnMut()) -> f64 {
    const PER_ROUND: u32 = 2_000;
    #[expect(clippy::disallowed_methods, reason = "a benchmark needs a clock")]
    let clock = Instant::now;
    let mut rounds: Vec<f64> = (0..51)
        .map(|_| {
            let start = clock();
            for _ in 0..PER_ROUND {
                work();
            }
            start.elapsed().as_nanos() as f64 / f64::from(PER_ROUND)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}
