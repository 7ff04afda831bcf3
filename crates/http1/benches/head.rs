//! Cost of one exchange in this crate: parse a request head, encode the response. Run with
//! `cargo bench -p h2o-http1`; the numbers are medians of many rounds, in nanoseconds per exchange.

#![expect(clippy::print_stdout, reason = "the numbers are the output")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use h2o_http::{Headers, Known, RequestHead, Scheme, StatusCode};
use h2o_http1::{Next, Received, ResponseHead, ServerConnection, Settings};

const REQUESTS: &[(&str, &[u8])] = &[
    (
        "h2load",
        b"GET /1k.txt HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nuser-agent: h2load nghttp2/1.52.0\r\n\r\n",
    ),
    (
        "curl",
        b"GET /1k.txt HTTP/1.1\r\nHost: www.example.com\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n",
    ),
    (
        "browser",
        b"GET /assets/app.css?v=3 HTTP/1.1\r\nHost: www.example.com\r\nConnection: keep-alive\r\n\
          sec-ch-ua: \"Chromium\";v=\"124\", \"Google Chrome\";v=\"124\", \"Not-A.Brand\";v=\"99\"\r\n\
          sec-ch-ua-mobile: ?0\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 \
          (KHTML, like Gecko) Chrome/124.0.0.0 Safari/537.36\r\nsec-ch-ua-platform: \"Linux\"\r\n\
          Accept: text/css,*/*;q=0.1\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: no-cors\r\n\
          Sec-Fetch-Dest: style\r\nReferer: https://www.example.com/\r\n\
          Accept-Encoding: gzip, deflate, br, zstd\r\nAccept-Language: en-GB,en;q=0.9\r\n\
          Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\r\n",
    ),
];

fn main() {
    let mut headers = Headers::new();
    headers.push(Known::ContentType, b"text/plain");
    headers.push(Known::LastModified, b"Sun, 06 Nov 1994 08:49:37 GMT");
    headers.push(Known::Etag, b"\"2ebc9b71-400\"");
    headers.push(Known::AcceptRanges, b"bytes");
    headers.push(Known::Date, b"Sun, 06 Nov 1994 08:49:37 GMT");
    let response = ResponseHead {
        status: StatusCode::OK,
        reason: None,
        headers: &headers,
        length: Some(1024),
        server: Some(b"h2o"),
    };
    for (name, request) in REQUESTS {
        println!("{name}: {:.0} ns", median(request, &response));
    }
}

fn median(request: &[u8], response: &ResponseHead<'_>) -> f64 {
    const PER_ROUND: u32 = 20_000;
    #[expect(clippy::disallowed_methods, reason = "a benchmark needs a clock")]
    let clock = Instant::now;
    let now = clock();
    let mut connection = ServerConnection::new(Arc::new(Settings::default()), Scheme::Http, now);
    let mut head = RequestHead::default();
    let mut out = Vec::new();
    let mut rounds: Vec<f64> = (0..101)
        .map(|_| {
            let start = clock();
            for _ in 0..PER_ROUND {
                out.clear();
                let received = connection.receive(black_box(request), now, &mut head);
                assert!(matches!(received, Ok(Received::Request { .. })));
                black_box(head.path());
                connection.respond(black_box(response), &mut out, now);
                // The content: framing only, as for data that is sent by other means.
                let _ = connection.begin_data(1024, &mut out);
                connection.finish(None, &mut out);
                connection.on_written(out.len() + 1024, false, now);
                assert_eq!(connection.next(now), Next::Request);
                black_box(&out);
            }
            start.elapsed().as_nanos() as f64 / f64::from(PER_ROUND)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}
