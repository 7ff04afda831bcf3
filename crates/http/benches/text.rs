//! Benchmarks of operations on text that most requests need: targets, authorities, field names, MIME types, dates, Huffman
//! codes.

#[path = "../../../bench/micro/kit.rs"]
mod kit;

use std::hint::black_box;

use h2o_http::mime::MimeMap;
use h2o_http::{Headers, Known, authority, date, huffman, path};

const USER_AGENT: &[u8] =
    b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/124.0.0.0 Safari/537.36";

fn main() {
    let bench = kit::Bench::from_arguments();
    bench.case("path-scan", "Path: a plain target looked through", || {
        || {
            _ = black_box(path::scan_target(black_box(
                b"/assets/app.css?v=3 HTTP/1.1\r\n",
            )))
        }
    });
    bench.case(
        "path-normalise",
        "Path: one with dots and escapes made normal",
        || {
            let mut out = Vec::new();
            move || {
                out.clear();
                path::normalize(black_box(b"/a/b/../c/%7Eanna/./index.html"), &mut out);
                black_box(&out);
            }
        },
    );
    bench.case("authority", "Authority split into host and port", || {
        || _ = black_box(authority::split(black_box(b"www.example.com:8443")))
    });
    bench.case("known-name", "Field name of HTTP/1 looked up", || {
        || {
            _ = black_box(Known::before_colon(black_box(
                b"Accept-Encoding: gzip, deflate, br\r\n",
            )))
        }
    });
    bench.case("field-lookup", "A field searched for among ten", || {
        let mut headers = Headers::new();
        for &known in &Known::ALL[..9] {
            headers.push(known, b"value");
        }
        headers.push(Known::IfNoneMatch, b"\"2ebc9b71-400\"");
        move || _ = black_box(black_box(&headers).get(Known::IfNoneMatch))
    });
    bench.case("mime", "MIME types of four files", || {
        let map = MimeMap::default();
        move || {
            for file in [
                &b"/index.html"[..],
                b"/assets/app.css",
                b"/img/logo.PNG",
                b"/README",
            ] {
                black_box(map.of_file(black_box(file)));
            }
        }
    });
    bench.case("date-format", "Date written", || {
        || _ = black_box(date::format(black_box(784_111_777)))
    });
    bench.case("date-parse", "Date read", || {
        || _ = black_box(date::parse(black_box(b"Sun, 06 Nov 1994 08:49:37 GMT")))
    });
    bench.case(
        "huffman-encode",
        "Huffman code of a user agent written",
        || {
            let mut out = Vec::new();
            move || {
                out.clear();
                huffman::encode(black_box(USER_AGENT), &mut out);
                black_box(&out);
            }
        },
    );
    bench.case(
        "huffman-decode",
        "Huffman code of a user agent read",
        || {
            let mut code = Vec::new();
            huffman::encode(USER_AGENT, &mut code);
            let mut out = Vec::new();
            move || {
                out.clear();
                huffman::decode(black_box(&code), &mut out).expect("the Huffman code is valid");
                black_box(&out);
            }
        },
    );
}
