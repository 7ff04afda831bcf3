//! Benchmarks of HPACK: decoding the field blocks of requests and encoding those of responses, both when all fields are in
//! the tables and when they are sent as text.

#[path = "../../../bench/micro/kit.rs"]
mod kit;

mod fields;

use std::hint::black_box;

use h2o_http::{Headers, Name, StatusCode};
use h2o_http2::hpack::{DecodedField, Decoder, Encoder, FieldName, HpackError, Pseudo, field_hash};

use fields::{BROWSER, H2LOAD, RESPONSE, request};

fn main() {
    let bench = kit::Bench::from_arguments();

    bench.case(
        "decode-browser-first",
        "HPACK: first request of a browser decoded",
        || {
            let block = request(&mut Encoder::new(), "/assets/app.css?v=3", BROWSER);
            let mut sink = Sink::default();
            move || sink.decode(&mut Decoder::new(4096), &block)
        },
    );
    for (name, title, fields) in [
        (
            "decode-browser-later",
            "HPACK: later request of a browser decoded",
            BROWSER,
        ),
        (
            "decode-h2load",
            "HPACK: later request of h2load decoded",
            H2LOAD,
        ),
    ] {
        bench.case(name, title, || {
            let mut encoder = Encoder::new();
            let first = request(&mut encoder, "/", fields);
            let block = request(&mut encoder, "/assets/app.css?v=3", fields);
            let mut sink = Sink::default();
            let mut decoder = Decoder::new(4096);
            sink.decode(&mut decoder, &first);
            move || sink.decode(&mut decoder, &block)
        });
    }

    bench.case(
        "encode-first",
        "HPACK: first response of a connection encoded",
        || {
            let mut out = Vec::new();
            move || {
                out.clear();
                encode_response(&mut Encoder::new(), &mut out);
                black_box(&out);
            }
        },
    );
    bench.case("encode-later", "HPACK: later response encoded", || {
        let mut encoder = Encoder::new();
        let mut out = Vec::new();
        move || {
            out.clear();
            encode_response(&mut encoder, &mut out);
            black_box(&out);
        }
    });
    bench.case(
        "encode-hashed",
        "HPACK: later response encoded, hashes at hand",
        || {
            let hashes: Vec<u32> = RESPONSE
                .iter()
                .map(|&(name, value)| field_hash(Name::Known(name), value.as_bytes()))
                .collect();
            let mut encoder = Encoder::new();
            let mut out = Vec::new();
            move || {
                out.clear();
                encoder.begin(&mut out);
                encoder.status(StatusCode::OK, &mut out);
                for (&(name, value), &hash) in black_box(RESPONSE).iter().zip(&hashes) {
                    encoder.field_hashed(Name::Known(name), value.as_bytes(), hash, &mut out);
                }
                black_box(&out);
            }
        },
    );
}

fn encode_response(encoder: &mut Encoder, out: &mut Vec<u8>) {
    encoder.begin(out);
    encoder.status(StatusCode::OK, out);
    for &(name, value) in black_box(RESPONSE) {
        encoder.field(Name::Known(name), value.as_bytes(), out);
    }
}

/// Stores the decoded fields of a request, as the engine does.
#[derive(Default)]
struct Sink {
    headers: Headers,
    path: Vec<u8>,
}

impl Sink {
    fn decode(&mut self, decoder: &mut Decoder, block: &[u8]) {
        self.headers.clear();
        let sunk = decoder.decode(black_box(block), |field: DecodedField<'_>| {
            assert!(field.flaws.is_none());
            match field.name {
                FieldName::Pseudo(Pseudo::Path) => {
                    self.path.clear();
                    self.path.extend_from_slice(field.value);
                }
                FieldName::Pseudo(pseudo) => _ = black_box((pseudo, field.value)),
                FieldName::Known(known) => self.headers.push(known, field.value),
                FieldName::Other(name) => self.headers.push(Name::Other(name), field.value),
                FieldName::Invalid(_) => {}
            }
            Ok::<(), HpackError>(())
        });
        assert_eq!(sunk, Ok(()));
        black_box(&self.headers);
    }
}
